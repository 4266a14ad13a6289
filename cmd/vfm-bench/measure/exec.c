/* vfm-bench exec - times the transport between a tool and a child of vfm-exec(7): small records, and large arrays. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/par.h"
#include "encoder/exec/payload.h"
#include "io/opt.h"
#include "bench.h"
#include "encoder/exec/outside.h"

static struct {
	int64_t records, bytes, repeat;
	const char *format;
} o = {.records = 50000, .bytes = 50 << 20, .repeat = 5, .format = "text"};

static const struct vfm_opt opts[] = {
	{VFM_OPT_INT, 'n', "records", "N", "records of a run (50000)", &o.records},
	{VFM_OPT_SIZE, 0, "bytes", "SIZE", "of the latents of a record in the rows with arrays (50M)", &o.bytes},
	{VFM_OPT_INT, 'r', "repeat", "N", "runs; the median counts (5)", &o.repeat},
	{VFM_OPT_STR, 'o', "output", "FORMAT", VFM_TABLE_FORMATS " (text)", &o.format},
	{0},
};

static const struct vfm_cmd cmd = {
	.name = "vfm-bench exec",
	.synopsis = "[OPTION ...]",
	.summary = "measure the protocol of outside models",
	.opts = opts,
};

/* ---- the child: this command in the environment of a child ---- */

/* Reads all frames, mapped as numpy.memmap does, and writes as many bytes of bfloat16. */
static void write_latents(const json_t *request, const char *out, size_t bytes)
{
	static uint16_t block[1 << 16];
	int in = open(json_string_value(json_object_get(json_object_get(request, "frames"), "path")), O_RDONLY);
	int fd = open(out, O_WRONLY | O_CREAT, 0600);
	const uint64_t *frames = in < 0 ? MAP_FAILED : mmap(NULL, bytes, PROT_READ, MAP_SHARED, in, 0);
	uint64_t all = 0;

	if (frames == MAP_FAILED || fd < 0)
		exit(1);
	for (size_t i = 0; i < bytes / 8; i++)
		all |= frames[i];
	for (size_t i = 0; i < sizeof(block) / 2; i++)
		block[i] = (uint16_t)(0x3f80 | (all & 1));
	for (size_t at = 0; at < bytes;) {
		ssize_t done = write(fd, block, bytes - at < sizeof(block) ? bytes - at : sizeof(block));

		if (done <= 0)
			exit(1);
		at += (size_t)done;
	}
	munmap((void *)(uintptr_t)frames, bytes);
	close(in);
	close(fd);
}

static int run_child(const char *batch)
{
	char *line = NULL;
	size_t cap = 0;

	printf("{\"vfm_exec\":1,\"name\":\"bench\",\"version\":\"1\",\"sha256\":\"%064d\",\"capabilities\":[\"score\","
	       "\"encode\"],"
	       "\"batch\":%s,\"tokenizer\":{\"stride\":[1,1,1],\"channels\":1,\"frames\":[1,1]}}\n",
		0, batch);
	fflush(stdout);
	while (getline(&line, &cap, stdin) > 0) {
		json_t *r = json_loads(line, 0, NULL), *frames = json_object_get(r, "frames");
		json_int_t id = json_integer_value(json_object_get(r, "id"));

		if (frames) {
			json_t *shape = json_object_get(frames, "shape");

			json_int_t bytes = json_integer_value(json_array_get(shape, 0));

			write_latents(r, json_string_value(json_object_get(r, "out")), (size_t)bytes);
			printf("{\"id\":%lld,\"latent\":{\"shape\":[1,1,1,%lld],\"dtype\":\"bfloat16\"}}\n",
				(long long)id, (long long)bytes / 2);
		} else {
			printf("{\"id\":%lld,\"score\":{\"x\":1}}\n", (long long)id);
		}
		if (!json_is_true(json_object_get(r, "more")))
			fflush(stdout);
		json_decref(r);
	}
	free(line);
	return 0;
}

/* ---- measuring ---- */

struct crowd {
	struct vfm_exec *x;
	int64_t n, bytes; /* requests; of an array, 0: none */
	atomic_llong next;
	atomic_int failed;
	struct vfm_err err;
};

struct asker {
	struct crowd *c;
	int slot;
	pthread_t thread;
};

static int ask_latents(struct vfm_exec_slot *s, int64_t bytes, struct vfm_err *err)
{
	char picture[1 << 18];
	struct vfm_npy npy;
	const void *data;
	json_t *frames;

	for (size_t at = 0; at < (size_t)bytes; at += sizeof(picture)) {
		size_t n = (size_t)bytes - at < sizeof(picture) ? (size_t)bytes - at : sizeof(picture);

		memset(picture, 1, n);
		TRY(vfm_exec_input(s, at, picture, n, err));
	}
	TRY(vfm_exec_describe(s, VFM_NPY_U8, 1, &bytes, &frames, err));
	return vfm_outside_ask(s, VFM_EXEC_ENCODE, json_pack("{s:o}", "frames", frames),
		(int64_t[]){1, 1, 1, bytes / 2}, &npy, &data, err);
}

static int ask_score(struct vfm_exec_slot *s, struct vfm_err *err)
{
	json_t *answer;

	TRY(vfm_exec_call(s,
		json_pack("{s:{s:s},s:{s:s,s:s}}", "clip", "path", "clips/0000.mp4", "record", "id", "0123456789abcdef",
			"src", "clips/0000.mp4"),
		&answer, err));
	json_decref(answer);
	return 0;
}

static void *run_asker(void *arg)
{
	struct asker *a = arg;
	struct crowd *c = a->c;
	struct vfm_exec_slot *s = vfm_exec_slot(c->x, a->slot);
	struct vfm_err err;

	while (atomic_fetch_add(&c->next, 1) < c->n) {
		if ((c->bytes ? ask_latents(s, c->bytes, &err) : ask_score(s, &err)) >= 0)
			continue;
		if (atomic_fetch_add(&c->failed, 1) == 0)
			c->err = err;
		break;
	}
	return NULL;
}

struct exec_row {
	int batch;
	int64_t records, bytes;
	double seconds[256], idle[256];
};

static int ask_all(struct crowd *c, int threads, struct vfm_err *err)
{
	struct asker *a = vfm_calloc((size_t)threads, sizeof(*a));
	int n = 0;

	for (; n < threads; n++) {
		a[n] = (struct asker){.c = c, .slot = n};
		if (pthread_create(&a[n].thread, NULL, run_asker, &a[n]) != 0)
			break;
	}
	for (int i = 0; i < n; i++)
		pthread_join(a[i].thread, NULL);
	free(a);
	if (n == 0)
		return vfm_fail(err, VFM_EENV, "cannot start a thread");
	if (c->failed)
		*err = c->err;
	return c->failed ? VFM_EENV : 0;
}

static int measure_exec(struct exec_row *row, int repeat, struct vfm_err *err)
{
	struct vfm_exec_opts eo = VFM_EXEC_DEFAULTS;
	char *command = vfm_strfmt("/proc/%d/exe exec -n %d", getpid(), row->batch);
	struct vfm_exec *x = NULL;
	struct vfm_exec_stats before, after;
	int rc, threads;

	eo.command = command;
	eo.capability = row->bytes ? "encode" : "score";
	rc = vfm_exec_open(&x, &eo, err);
	free(command);
	TRY(rc);
	threads = vfm_exec_threads(x, 1);
	vfm_exec_make_slots(x, threads);
	for (int i = -1; i < repeat && rc >= 0; i++) { /* the first run fills caches */
		struct crowd c = {.x = x, .n = row->records, .bytes = row->bytes};
		double start = vfm_now();

		before = vfm_exec_stats(x);
		rc = ask_all(&c, threads, err);
		after = vfm_exec_stats(x);
		if (i < 0)
			continue;
		row->seconds[i] = vfm_now() - start;
		row->idle[i] = (after.waiting_s - before.waiting_s) / row->seconds[i];
	}
	vfm_exec_close(x);
	return rc;
}

static const struct bench_column columns[] = {{"batch", "batch", 0}, {"records", "records", 0},
	{"bytes", "bytes a record", 0}, {"records_s", "records/s", 0}, {"gb_s", "GB/s", 2}, {"seconds", "median s", 3},
	{"seconds_min", "min s", 3}, {"seconds_max", "max s", 3}, {"idle_ratio", "idle", 4}, {"kind", "kind", 0}, {0}};

static int print_exec_rows(struct exec_row *rows, int n, struct vfm_err *err)
{
	enum vfm_table_format f;
	struct vfm_table *t;
	int rc;

	TRY(vfm_table_format(o.format, &f, err));
	t = vfm_table_new();
	bench_columns(t, columns);
	for (int i = 0; i < n; i++) {
		struct vfm_spread s = vfm_spread_of(rows[i].seconds, (size_t)o.repeat);

		vfm_table_row(t);
		vfm_table_i64(t, "batch", rows[i].batch);
		vfm_table_i64(t, "records", rows[i].records);
		vfm_table_i64(t, "bytes", rows[i].bytes);
		vfm_table_f64(t, "records_s", (double)rows[i].records / s.median);
		vfm_table_f64(t, "gb_s", (double)(rows[i].records * rows[i].bytes) / s.median / 1e9);
		vfm_table_f64(t, "seconds", s.median);
		vfm_table_f64(t, "seconds_min", s.min);
		vfm_table_f64(t, "seconds_max", s.max);
		vfm_table_f64(t, "idle_ratio", vfm_spread_of(rows[i].idle, (size_t)o.repeat).median);
		vfm_table_str(t, "kind", "measured");
	}
	vfm_table_note(t,
		"one child; GB/s counts latents alone, with frames of as many bytes as input; idle: share of the time "
		"in which "
		"the child had nothing to do while a request waited; median of %d runs",
		(int)o.repeat);
	bench_note_machine(t, vfm_par_threads());
	rc = vfm_table_print(t, f, stdout, err);
	vfm_table_free(t);
	return rc;
}

int bench_exec(int argc, char **argv, struct vfm_err *err)
{
	struct exec_row rows[4];
	enum vfm_table_format f;
	int n = 0, rc;

	TRY(rc = vfm_opt_parse(&cmd, argc, argv, &n, err));
	if (rc == VFM_OPT_DONE)
		return rc;
	if (getenv("VFM_EXEC") && o.records >= 1 && o.records <= 4096) {
		char batch[16];

		snprintf(batch, sizeof(batch), "%d", (int)o.records);
		return run_child(batch);
	}
	if (n)
		return vfm_fail(err, VFM_EUSAGE, "unexpected operand '%s'", argv[1]);
	if (vfm_table_format(o.format, &f, err) < 0)
		return vfm_err_context(err, "--output");
	if (o.repeat < 1 || o.repeat > 256 || o.records < 1 || o.records > 1 << 30 || o.bytes < 2 ||
		o.bytes > (int64_t)1 << 33)
		return vfm_fail(err, VFM_EUSAGE, "expected --repeat 1 to 256, --records from 1, --bytes 2 to 8G");
	o.bytes &= ~(int64_t)1;
	for (int i = 0; i < 3; i++)
		rows[i] = (struct exec_row){.batch = 1 << (3 * i), .records = o.records}; /* 1, 8, 64 */
	rows[3] = (struct exec_row){.batch = 1, .records = o.records < 100 ? o.records : 100, .bytes = o.bytes};
	for (int i = 0; i < 4; i++)
		TRY(measure_exec(&rows[i], (int)o.repeat, err));
	return print_exec_rows(rows, 4, err);
}
