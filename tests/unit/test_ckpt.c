/* Checkpoints: any layout in, any layout out; damage, full disks and kills. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/mem.h"
#include "ckpt/check.h"
#include "ckpt/ckpt.h"
#include "ckpt/ckpt_impl.h"
#include "ckpt/find.h"
#include "ckpt/save.h"
#include "io/file.h"
#include "io/json.h"

static char root[256];

static int setup(void **st)
{
	(void)st;
	snprintf(root, sizeof(root), "%s/vfm_ckpt_XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	return mkdtemp(root) ? 0 : -1;
}

static int teardown(void **st)
{
	struct vfm_err err;

	(void)st;
	return vfm_rm_rf(root, &err);
}

#define OK(call)                                                                                                       \
	do {                                                                                                           \
		if ((call) < 0)                                                                                        \
			fail_msg("%s", err.msg);                                                                       \
	} while (0)

static float value(int tensor, int64_t i, int64_t step)
{
	return (float)(tensor * 1000 + i) + (float)step * 0.25f;
}

static int faults_of(const char *path)
{
	struct vfm_ckpt_faults f = {0};
	struct vfm_err err = {0};

	OK(vfm_ckpt_check(path, &f, &err));
	return f.damaged + f.nonfinite;
}

static char fault_text[512];

static void copy_fault(void *ctx, const char *what)
{
	(void)ctx;
	snprintf(fault_text, sizeof(fault_text), "%s", what);
}

/* A small model in one piece a tensor. */
static const int64_t shapes[3][2] = {{12, 10}, {7, 3}, {5, 0}};
static const char *const names[3] = {"model/blocks.0.fc1.weight", "optim/m/blocks.0.fc1.weight", "ema/empty"};

static struct vfm_ckpt_writer *small(const char *dir, int64_t step, float *data[3])
{
	json_t *state = json_pack("{s:i,s:f}", "seed", 7, "loss", 0.1);
	struct vfm_ckpt_spec spec = {.dir = dir, .step = step, .state = state};
	struct vfm_ckpt_writer *w = vfm_ckpt_begin(&spec);
	struct vfm_err err;

	json_decref(state);
	for (int t = 0; t < 3; t++) {
		int64_t n = vfm_shape_numel(2, shapes[t]);

		data[t] = vfm_calloc((size_t)n + 1, 4);
		for (int64_t i = 0; i < n; i++)
			data[t][i] = value(t, i, step);
		OK(vfm_ckpt_add(w, names[t], VFM_F32, 2, shapes[t], NULL, data[t], &err));
	}
	return w;
}

static void free3(float *data[3])
{
	for (int t = 0; t < 3; t++)
		free(data[t]);
}

static void save_small(const char *dir, int64_t step)
{
	float *data[3];
	struct vfm_ckpt_writer *w = small(dir, step, data);
	struct vfm_err err;

	OK(vfm_ckpt_save(w, &err));
	free3(data);
}

/* 0 when the checkpoint opens, reads and has the values of its step. */
static int verify(const char *path, struct vfm_err *err)
{
	struct vfm_ckpt *c;
	int rc = vfm_ckpt_open(&c, path, err);

	for (int t = 0; t < 3 && !rc; t++) {
		float buf[128];
		int64_t n = vfm_shape_numel(2, shapes[t]);

		rc = vfm_ckpt_read_tensor(c, vfm_ckpt_find(c, names[t]), NULL, VFM_F32, buf, err);
		for (int64_t i = 0; i < n && !rc; i++)
			if (buf[i] != value(t, i, c->step))
				rc = vfm_fail(err, -99, "wrong value");
	}
	vfm_ckpt_close(c);
	return rc;
}

static void test_round_trip(void **st)
{
	char *dir = vfm_strfmt("%s/rt/ckpt", root), *run = vfm_strfmt("%s/rt", root), *sums;
	struct vfm_err err = {0};
	struct vfm_ckpt *c;
	double half[40];
	struct vfm_slice s = {.a = 30, .b = 70};
	int64_t latest;

	(void)st;
	OK(vfm_ckpt_latest(dir, &latest, &err));
	assert_int_equal(latest, -1);
	assert_int_equal(vfm_ckpt_open(&c, run, &err), VFM_EUSAGE);
	save_small(dir, 3);
	save_small(dir, 12);
	OK(vfm_ckpt_latest(dir, &latest, &err));
	assert_int_equal(latest, 12);
	OK(vfm_ckpt_open(&c, run, &err));
	assert_int_equal(c->step, 12);
	assert_int_equal(c->n, 3);
	assert_string_equal(c->t[0].name, "ema/empty");
	assert_int_equal(json_integer_value(json_object_get(c->state, "seed")), 7);
	OK(vfm_ckpt_read_tensor(c, vfm_ckpt_find(c, names[0]), &s, VFM_F64, half, &err));
	for (int i = 0; i < 40; i++)
		assert_true(half[i] == (double)value(0, 30 + i, 12));
	s.b = 121;
	assert_int_equal(vfm_ckpt_read_tensor(c, vfm_ckpt_find(c, names[0]), &s, VFM_F64, half, &err), VFM_EUSAGE);
	assert_null(vfm_ckpt_find(c, "model/none"));
	assert_int_equal(faults_of(c->path), 0);
	vfm_ckpt_close(c);
	OK(verify(run, &err));
	save_small(dir, 12); /* again: takes the place of the first */
	OK(verify(run, &err));
	sums = vfm_strfmt("cd %s/step-00000012 && sha256sum --quiet -c SHA256SUMS", dir);
	assert_int_equal(system(sums), 0);
	free(sums);
	free(dir);
	free(run);
}

/* ---- ranks as threads ---- */

struct team {
	pthread_barrier_t bar;
	int size, rc[8], broken; /* broken: this rank adds its slice twice; -1: none */
	char *text[8];
	struct vfm_err err[8];
};
struct member {
	struct team *t;
	int rank;
	struct vfm_ckpt_comm comm;
	const char *dir;
	int tp, fsdp, rc;
	const struct vfm_pdesc *d;
	struct vfm_err err;
};

static int team_gather(void *ctx, const char *mine, char ***all, struct vfm_err *err)
{
	struct member *m = ctx;

	(void)err;
	m->t->text[m->rank] = vfm_strdup(mine);
	pthread_barrier_wait(&m->t->bar);
	*all = NULL;
	if (m->rank == 0) {
		*all = vfm_calloc((size_t)m->t->size, sizeof(char *));
		for (int r = 0; r < m->t->size; r++)
			(*all)[r] = m->t->text[r];
	}
	return 0;
}

static int team_agree(void *ctx, int rc, struct vfm_err *err)
{
	struct member *m = ctx;
	int worst = 0;

	m->t->rc[m->rank] = rc;
	m->t->err[m->rank] = *err;
	pthread_barrier_wait(&m->t->bar);
	for (int r = 0; r < m->t->size; r++) {
		if (m->t->rc[r] < worst) {
			worst = m->t->rc[r];
			*err = m->t->err[r];
		}
	}
	pthread_barrier_wait(&m->t->bar);
	return worst;
}

/* The local data of a rank: every element is its own flat global index. */
static int32_t *local_data(const struct vfm_part *p, int64_t a, int64_t b)
{
	struct vfm_runs r = {0};
	int32_t *v = vfm_calloc((size_t)(b - a) + 1, sizeof(*v));

	vfm_runs_add_part(&r, p, a, b);
	for (size_t i = 0; i < r.n; i++)
		for (int64_t k = 0; k < r.v[i].n; k++)
			v[r.v[i].to + k] = (int32_t)(r.v[i].from + k);
	vfm_runs_release(&r);
	return v;
}

static void *member_main(void *arg)
{
	struct member *m = arg;
	struct vfm_ckpt_spec spec = {.dir = m->dir, .step = 5, .rank = m->rank, .size = m->t->size, .comm = &m->comm};
	struct vfm_ckpt_writer *w = vfm_ckpt_begin(&spec);
	int coord[VFM_AXES] = {[VFM_AX_TP] = m->rank % m->tp}, size[VFM_AXES] = {[VFM_AX_TP] = m->tp};
	struct vfm_part p;
	struct vfm_slice s = {.part = &p};
	int32_t *data;

	m->rc = vfm_part_of(m->d, coord, size, &p, &m->err);
	vfm_flat_cut(vfm_part_numel(&p), m->fsdp, m->rank / m->tp, &s.a, &s.b);
	data = local_data(&p, s.a, s.b);
	if (s.b > s.a)
		m->rc |= vfm_ckpt_add(w, "model/qkv", VFM_I32, m->d->ndim, m->d->shape, &s, data, &m->err);
	if (m->t->broken == m->rank) /* twice the same: found by rank 0 as an overlap */
		m->rc |= vfm_ckpt_add(w, "model/qkv", VFM_I32, m->d->ndim, m->d->shape, &s, data, &m->err);
	m->rc |= vfm_ckpt_save(w, &m->err);
	free(data);
	vfm_part_release(&p);
	return NULL;
}

static int team_save(const char *dir, const struct vfm_pdesc *d, int tp, int fsdp, int broken, struct vfm_err *err)
{
	struct team t = {.size = tp * fsdp, .broken = broken};
	struct member m[8];
	pthread_t th[8];
	int rc = 0;

	pthread_barrier_init(&t.bar, NULL, (unsigned)t.size);
	for (int r = 0; r < t.size; r++) {
		m[r] = (struct member){.t = &t, .rank = r, .dir = dir, .tp = tp, .fsdp = fsdp, .d = d};
		m[r].comm = (struct vfm_ckpt_comm){&m[r], team_gather, team_agree};
		assert_int_equal(pthread_create(&th[r], NULL, member_main, &m[r]), 0);
	}
	for (int r = 0; r < t.size; r++) {
		pthread_join(th[r], NULL);
		if (m[r].rc < 0) {
			rc = m[r].rc;
			*err = m[r].err;
		} else {
			assert_int_equal(rc, 0);
		}
	}
	pthread_barrier_destroy(&t.bar);
	return rc;
}

/* Saved by tp x fsdp ranks with a fused qkv, read by every other layout. */
static void test_layouts(void **st)
{
	struct vfm_pdesc d = {.name = "qkv", .ndim = 3, .shape = {3 * 8, 4, 5}};
	char *dir = vfm_strfmt("%s/ly", root);
	static const int grids[][2] = {{1, 1}, {2, 1}, {4, 1}, {1, 3}, {2, 3}, {4, 2}, {8, 1}};
	struct vfm_err err = {0};

	(void)st;
	d.cut[VFM_AX_TP] = (struct vfm_axis_cut){3, 0};
	for (size_t g = 0; g < 7; g++) {
		struct vfm_ckpt *c;

		OK(team_save(dir, &d, grids[g][0], grids[g][1], -1, &err));
		OK(vfm_ckpt_open(&c, dir, &err));
		assert_int_equal(c->world, grids[g][0] * grids[g][1]);
		assert_int_equal(faults_of(dir), 0);
		for (size_t h = 0; h < 7; h++) {
			for (int r = 0; r < grids[h][0] * grids[h][1]; r++) {
				int coord[VFM_AXES] = {[VFM_AX_TP] = r % grids[h][0]},
				    size[VFM_AXES] = {[VFM_AX_TP] = grids[h][0]};
				struct vfm_part p;
				struct vfm_slice s = {.part = &p};
				int32_t *want, *got;

				OK(vfm_part_of(&d, coord, size, &p, &err));
				vfm_flat_cut(vfm_part_numel(&p), grids[h][1], r / grids[h][0], &s.a, &s.b);
				want = local_data(&p, s.a, s.b);
				got = vfm_calloc((size_t)(s.b - s.a) + 1, 4);
				OK(vfm_ckpt_read_tensor(c, vfm_ckpt_find(c, "model/qkv"), &s, VFM_I32, got, &err));
				assert_memory_equal(got, want, (size_t)(s.b - s.a) * 4);
				free(want);
				free(got);
				vfm_part_release(&p);
			}
		}
		vfm_ckpt_close(c);
	}
	/* a rank that adds its slice twice: refused by all, the old one stays */
	assert_int_equal(team_save(dir, &d, 2, 3, 4, &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "cannot save checkpoint"));
	assert_non_null(strstr(err.msg, "model/qkv"));
	assert_int_equal(faults_of(dir), 0);
	free(dir);
}

static void test_async(void **st)
{
	char *dir = vfm_strfmt("%s/async", root);
	struct vfm_err err = {0};
	struct vfm_ckpt_job *job;
	float *data[3];

	(void)st;
	OK(vfm_ckpt_save_async(small(dir, 1, data), &job, &err));
	while (!vfm_ckpt_done(job))
		usleep(1000);
	OK(vfm_ckpt_wait(job, &err));
	OK(verify(dir, &err));
	free3(data);
	OK(vfm_ckpt_save_async(small("/proc/nowhere", 1, data), &job, &err));
	assert_int_equal(vfm_ckpt_wait(job, &err), VFM_EENV);
	assert_non_null(strstr(err.msg, "cannot save checkpoint '/proc/nowhere/step-00000001': "));
	assert_int_equal(vfm_ckpt_wait(NULL, &err), 0);
	free3(data);
	free(dir);
}

static void test_prune(void **st)
{
	char *dir = vfm_strfmt("%s/prune", root), *tmp = vfm_strfmt("%s/prune/step-00000099.tmp", root);
	struct vfm_err err = {0};
	static const int left[] = {4, 8, 9, 10};

	(void)st;
	OK(vfm_mkdir_p(tmp, &err)); /* a leftover: swept by the next save */
	for (int s = 1; s <= 10; s++) {
		struct vfm_ckpt_spec spec = {.dir = dir, .step = s, .keep_last = 2, .keep_every = 4};

		OK(vfm_ckpt_save(vfm_ckpt_begin(&spec), &err));
	}
	assert_int_equal(access(tmp, F_OK), -1);
	for (int s = 1, k = 0; s <= 10; s++) {
		char *p = vfm_ckpt_path(dir, s);
		bool keep = k < 4 && left[k] == s;

		assert_int_equal(access(p, F_OK) == 0, keep);
		k += keep;
		free(p);
	}
	free(tmp);
	free(dir);
}

/* Saves [8] f32, of which the first `bad` are NaN or infinite, and keeps the newest. */
static void save_values(const char *dir, int64_t step, int bad)
{
	struct vfm_ckpt_spec spec = {.dir = dir, .step = step, .keep_last = 1};
	struct vfm_ckpt_writer *w = vfm_ckpt_begin(&spec);
	const int64_t shape[1] = {8};
	float x[8] = {0}, one[8] = {0};
	struct vfm_err err = {0};

	for (int i = 0; i < bad; i++)
		x[i] = i % 2 ? -INFINITY : NAN;
	OK(vfm_ckpt_add(w, "model/one", VFM_F32, 1, shape, NULL, one, &err));
	OK(vfm_ckpt_add(w, "model/x", VFM_F32, 1, shape, NULL, x, &err));
	OK(vfm_ckpt_save(w, &err));
}

static bool has_step(const char *dir, int64_t step)
{
	char *p = vfm_ckpt_path(dir, step);
	bool yes = access(p, F_OK) == 0;

	free(p);
	return yes;
}

/* The newest checkpoint that is whole and finite is never pruned. */
static void test_prune_keeps_good(void **st)
{
	char *dir = vfm_strfmt("%s/good", root), *p;
	struct vfm_ckpt_faults f = {0};
	struct vfm_err err = {0};
	struct vfm_ckpt *c;

	(void)st;
	save_values(dir, 1, 0);
	save_values(dir, 2, 0);
	assert_false(has_step(dir, 1));
	save_values(dir, 3, 3);
	assert_true(has_step(dir, 2) && has_step(dir, 3));
	OK(vfm_ckpt_open(&c, dir, &err));
	assert_int_equal(c->nonfinite, 3);
	assert_int_equal(vfm_ckpt_find(c, "model/x")->nonfinite, 3);
	assert_int_equal(vfm_ckpt_find(c, "model/one")->nonfinite, 0);
	assert_int_equal(vfm_ckpt_finite(c, &err), VFM_EUSAGE);
	assert_non_null(
		strstr(err.msg, "has 3 values that are NaN or infinite, the first of them in tensor 'model/x'"));
	vfm_ckpt_close(c);
	OK(vfm_ckpt_check(dir, &f, &err));
	assert_true(f.nonfinite == 1 && f.damaged == 0);
	save_values(dir, 4, 1);
	assert_true(has_step(dir, 2) && !has_step(dir, 3) && has_step(dir, 4));
	p = vfm_strfmt("%s/step-00000002/SHA256SUMS", dir);
	assert_int_equal(unlink(p), 0);
	save_values(dir, 5, 1); /* none is good: warns, and removes none */
	assert_true(has_step(dir, 2) && has_step(dir, 4) && has_step(dir, 5));
	save_values(dir, 6, 0);
	assert_true(!has_step(dir, 2) && !has_step(dir, 4) && !has_step(dir, 5) && has_step(dir, 6));
	free(p);
	free(dir);
}

/* Values are found also where they cross the border of a chunk. */
static void test_nonfinite_at_border(void **st)
{
	enum { CHUNK = 4 << 20, N = CHUNK / 4 + 4096 };
	char *path = vfm_strfmt("%s/border.safetensors", root);
	float *x = vfm_calloc(N, sizeof(*x));

	(void)st;
	for (int pad = 0; pad < 4; pad++) {
		char *head = vfm_strfmt("{\"a\":{\"dtype\":\"F32\",\"shape\":[%d],\"data_offsets\":[0,%d]}}%*s", N,
			4 * N, 64 + pad, "");
		uint64_t len = strlen(head);
		struct vfm_ckpt_faults f = {0};
		struct vfm_err err = {0};
		FILE *file = fopen(path, "w");
		int64_t at = (CHUNK - 8 - (int64_t)len) / 4;
		char *want;

		memset(x, 0, N * sizeof(*x));
		x[at - 1] = x[at] = x[at + 1] = NAN;
		assert_non_null(file);
		assert_int_equal(fwrite(&len, 8, 1, file) + fwrite(head, len, 1, file) + fwrite(x, 4 * N, 1, file), 3);
		fclose(file);
		f.fn = copy_fault;
		OK(vfm_ckpt_check(path, &f, &err));
		want = vfm_strfmt("%s: tensor 'a': 3 of %d elements are NaN or infinite", path, N);
		assert_int_equal(f.nonfinite, 1);
		assert_string_equal(fault_text, want);
		free(want);
		free(head);
	}
	free(x);
	free(path);
}

/* Every single byte of a checkpoint is guarded: flipped, it is found. */
static void test_flip_every_byte(void **st)
{
	char *dir = vfm_strfmt("%s/flip", root), *ck = vfm_ckpt_path(dir, 2);
	static const char *const files[] = {"manifest.json", "SHA256SUMS", "model-00000.safetensors",
		"optim-00000.safetensors", "ema-00000.safetensors"};
	struct vfm_err err = {0};

	(void)st;
	save_small(dir, 2);
	for (size_t f = 0; f < 5; f++) {
		char *p = vfm_strfmt("%s/%s", ck, files[f]);
		int fd = open(p, O_RDWR);
		struct stat sb;

		assert_true(fd >= 0);
		assert_int_equal(fstat(fd, &sb), 0);
		for (off_t i = 0; i < sb.st_size; i++) {
			uint8_t b, x;
			int rc;

			assert_int_equal(pread(fd, &b, 1, i), 1);
			x = b ^ (uint8_t)(1 << (i % 8));
			assert_int_equal(pwrite(fd, &x, 1, i), 1);
			rc = verify(ck, &err);
			if (f < 2 || i < sb.st_size)
				if (f != 4) /* no reader reads the tensor without elements */
					assert_int_equal(rc, VFM_EUSAGE);
			if (f >= 2 && f < 4)
				assert_non_null(strstr(err.msg, files[f]));
			if (f >= 2 && f < 4)
				assert_non_null(strstr(err.msg, names[f - 2]));
			assert_true(faults_of(ck) > 0);
			assert_int_equal(pwrite(fd, &b, 1, i), 1);
		}
		/* truncated anywhere, also empty, and longer than it was */
		for (off_t i = 0; i <= sb.st_size; i += 1 + sb.st_size / 300) {
			char *copy = vfm_strfmt("%s/copy", root),
			     *cmd = vfm_strfmt("rm -rf %s && cp -r %s %s", copy, ck, copy);
			char *q = vfm_strfmt("%s/%s", copy, files[f]);

			if (i % 7 == 0 || i < 2) {
				assert_int_equal(system(cmd), 0);
				assert_int_equal(truncate(q, i == sb.st_size ? i + 1 : i), 0);
				assert_int_equal(verify(copy, &err), VFM_EUSAGE);
				assert_true(faults_of(copy) > 0);
			}
			free(copy);
			free(cmd);
			free(q);
		}
		close(fd);
		free(p);
	}
	OK(verify(ck, &err));
	free(ck);
	free(dir);
}

/* A save that runs out of room: one clear line, nothing left, the previous one usable. */
static void expect_failed_save(const char *dir, const char *reason)
{
	struct vfm_err err = {0};
	float *data[3];
	struct vfm_ckpt_writer *w = small(dir, 2, data);
	char *want = vfm_strfmt("cannot save checkpoint '%s/step-00000002': %s", dir, reason),
	     *tmp = vfm_strfmt("%s/step-00000002.tmp", dir);

	assert_int_equal(vfm_ckpt_save(w, &err), VFM_EENV);
	assert_string_equal(err.msg, want);
	assert_int_equal(access(tmp, F_OK), -1);
	OK(verify(dir, &err));
	free3(data);
	free(want);
	free(tmp);
}

static void test_file_limit(void **st)
{
	char *dir = vfm_strfmt("%s/limit", root), *manifest = vfm_strfmt("%s/limit/step-00000001/manifest.json", root);
	struct rlimit old, lim;
	struct stat sb;

	(void)st;
	save_small(dir, 1);
	assert_int_equal(stat(manifest, &sb), 0);
	signal(SIGXFSZ, SIG_IGN);
	getrlimit(RLIMIT_FSIZE, &old);
	for (rlim_t n = 0; n < (rlim_t)sb.st_size; n += 100) { /* fails in each of the files, the manifest last */
		lim = old;
		lim.rlim_cur = n;
		setrlimit(RLIMIT_FSIZE, &lim);
		expect_failed_save(dir, strerror(EFBIG));
		setrlimit(RLIMIT_FSIZE, &old);
	}
	free(manifest);
	free(dir);
}

static void test_full_disk(void **st)
{
	char *mnt = vfm_strfmt("%s/mnt", root), *dir = vfm_strfmt("%s/mnt/ckpt", root),
	     *hog = vfm_strfmt("%s/mnt/hog", root);
	struct vfm_err err = {0};
	char page[4096] = {1};
	int fd;

	(void)st;
	OK(vfm_mkdir_p(mnt, &err));
	if (mount("none", mnt, "tmpfs", 0, "size=256k") != 0) {
		print_message("SKIP: full and read-only disk: cannot mount a tmpfs: %s\n", strerror(errno));
		free(mnt), free(dir), free(hog);
		skip();
	}
	save_small(dir, 1);
	fd = open(hog, O_WRONLY | O_CREAT, 0666);
	while (write(fd, page, sizeof(page)) > 0)
		;
	for (int room = 0; room < 4; room++) { /* ends in another file each time */
		expect_failed_save(dir, strerror(ENOSPC));
		assert_int_equal(ftruncate(fd, lseek(fd, 0, SEEK_END) - 4096), 0);
	}
	close(fd);
	unlink(hog);
	assert_int_equal(mount("none", mnt, "tmpfs", MS_REMOUNT | MS_RDONLY, "size=256k"), 0);
	expect_failed_save(dir, strerror(EROFS));
	assert_int_equal(umount(mnt), 0);
	free(mnt), free(dir), free(hog);
}

/* kill -9 at random moments of saving in a loop: there is always a whole newest checkpoint. */
static void test_kill(void **st)
{
	char *dir = vfm_strfmt("%s/kill", root);
	struct vfm_err err = {0};
	int64_t last = 1, step;
	double t0;

	(void)st;
	t0 = vfm_now();
	save_small(dir, 1);
	t0 = vfm_now() - t0; /* what a save takes on this disk */
	/* On a busy machine the estimate may be short of a whole save: then it goes on with more time. */
	for (int it = 0; it < 25 || (last == 1 && it < 50); it++) {
		pid_t pid = fork();

		assert_true(pid >= 0);
		if (!pid) {
			for (int64_t s = last;; s++) { /* begins with a save over the newest one */
				float *data[3];
				struct vfm_ckpt_writer *w = small(dir, s, data);
				struct vfm_ckpt_job *job;

				if (vfm_ckpt_save_async(w, &job, &err) < 0 || vfm_ckpt_wait(job, &err) < 0)
					_exit(1);
				free3(data);
			}
		}
		/* up to four saves */
		usleep((useconds_t)(1000 + t0 * 1e6 * (it * 37 % 100) / 25 * (it < 25 ? 1 : 10)));
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		OK(vfm_ckpt_latest(dir, &step, &err));
		assert_true(step >= last);
		last = step;
		OK(verify(dir, &err));
		assert_int_equal(faults_of(dir), 0);
	}
	assert_true(last > 1);
	free(dir);
}

/* Manifests that lie. */
static void test_bad_manifests(void **st)
{
	static const struct {
		const char *pieces, *shape, *want;
	} cases[] = {
		{"[]", "[4,2]", "have 0 elements"},
		{"[{\"file\":\"f\",\"tensor\":\"t\",\"range\":[0,7]}]", "[4,2]", "have 7 elements"},
		{"[{\"file\":\"f\",\"tensor\":\"t\",\"range\":[0,4]},{\"file\":\"f\",\"tensor\":\"u\",\"range\":[3,7]}"
		 "]",
			"[4,2]", "overlap"},
		{"[{\"file\":\"f\",\"tensor\":\"t\",\"box\":{\"offset\":[0,0],\"extent\":[4,1]}},{\"file\":\"f\","
		 "\"tensor\":\"u\",\"range\":[3,7]}]",
			"[4,2]", "overlap"},
		{"[{\"file\":\"f\",\"tensor\":\"t\",\"box\":{\"offset\":[0,1],\"extent\":[4,2]}}]", "[4,2]", "beyond"},
		{"[{\"file\":\"f\",\"tensor\":\"t\",\"box\":{\"offset\":[0],\"extent\":[4]}}]", "[4,2]", "beyond"},
		{"[{\"file\":\"g\",\"tensor\":\"t\",\"range\":[0,8]}]", "[4,2]", "not listed in files"},
		{"[{\"file\":\"f\",\"tensor\":\"t\",\"range\":[0,8]}]", "[4,-2]", ">= 0"},
		{"[{\"file\":\"f\",\"tensor\":\"t\",\"range\":[0,8]}]", "[4611686018427387904,4]", "too large"},
		{"[{\"file\":\"f\",\"tensor\":\"t\",\"range\":[0,8]}]", "[4,2]", NULL},
		{"[{\"file\":\"f\",\"tensor\":\"t\",\"box\":{\"offset\":[0,0],\"extent\":[4,1]}},{\"file\":\"f\","
		 "\"tensor\":\"u\",\"box\":{\"offset\":[0,1],\"extent\":[4,1]}}]",
			"[4,2]", NULL},
	};
	const char *h = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

	(void)st;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		char *text = vfm_strfmt("{\"v\":1,\"step\":1,\"world\":1,\"tensors\":[{\"name\":\"model/"
					"w\",\"dtype\":\"f32\",\"shape\":%s,\"pieces\":%s}],"
					"\"files\":[{\"name\":\"f\",\"bytes\":100,\"sha256\":\"%s\",\"chunk_bytes\":"
					"4096,\"chunks\":[\"%s\"]}]}",
			cases[i].shape, cases[i].pieces, h, h);
		struct vfm_err err = {0};
		struct vfm_ckpt *c;
		int rc = ckpt_parse_manifest(&c, text, strlen(text), &err);

		if (cases[i].want) {
			assert_int_equal(rc, VFM_EUSAGE);
			if (!strstr(err.msg, cases[i].want))
				fail_msg("case %zu: '%s'", i, err.msg);
			assert_non_null(strstr(err.msg, "model/w"));
		} else {
			OK(rc);
			vfm_ckpt_close(c);
		}
		free(text);
	}
}

static void test_bad_adds(void **st)
{
	struct vfm_ckpt_spec spec = {.dir = "x", .step = 1};
	struct vfm_ckpt_writer *w = vfm_ckpt_begin(&spec);
	struct vfm_err err = {0};
	int64_t shape[1] = {4};
	struct vfm_slice s = {.a = 2, .b = 5};
	float data[8] = {0};

	(void)st;
	assert_int_equal(vfm_ckpt_add(w, "weight", VFM_F32, 1, shape, NULL, data, &err), VFM_EUSAGE);
	assert_int_equal(vfm_ckpt_add(w, "../w", VFM_F32, 1, shape, NULL, data, &err), VFM_EUSAGE);
	assert_int_equal(vfm_ckpt_add(w, "model/\xff", VFM_F32, 1, shape, NULL, data, &err), VFM_EUSAGE);
	assert_int_equal(vfm_ckpt_add(w, "model/w", VFM_F32, 1, shape, &s, data, &err), VFM_EUSAGE);
	assert_int_equal(vfm_ckpt_add(w, "model/w", VFM_F32, 9, shape, NULL, data, &err), VFM_EUSAGE);
	vfm_ckpt_abandon(w);
}

/* "test_ckpt make DIR": checkpoints for the tests of the command: DIR/run (steps 1, 2 of a small
 * model), DIR/cut and DIR/whole (equal values, different cuts). */
static void make_samples(const char *dir)
{
	struct vfm_pdesc d = {.name = "qkv", .ndim = 3, .shape = {3 * 8, 4, 5}};
	char *run = vfm_strfmt("%s/run/ckpt", dir), *cut = vfm_strfmt("%s/cut", dir),
	     *whole = vfm_strfmt("%s/whole", dir);
	struct vfm_err err;

	d.cut[VFM_AX_TP] = (struct vfm_axis_cut){3, 0};
	save_small(run, 1);
	save_small(run, 2);
	OK(team_save(cut, &d, 4, 2, -1, &err));
	OK(team_save(whole, &d, 1, 1, -1, &err));
	free(run), free(cut), free(whole);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_layouts),
		cmocka_unit_test(test_async),
		cmocka_unit_test(test_prune),
		cmocka_unit_test(test_prune_keeps_good),
		cmocka_unit_test(test_nonfinite_at_border),
		cmocka_unit_test(test_flip_every_byte),
		cmocka_unit_test(test_file_limit),
		cmocka_unit_test(test_full_disk),
		cmocka_unit_test(test_kill),
		cmocka_unit_test(test_bad_manifests),
		cmocka_unit_test(test_bad_adds),
	};

	if (argc == 3 && !strcmp(argv[1], "make")) {
		make_samples(argv[2]);
		return 0;
	}
	return cmocka_run_group_tests(tests, setup, teardown);
}
