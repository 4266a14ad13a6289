/* Outside models as child processes.  This program is also the child: `test_exec --child FAULT…`. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ok.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "encoder/exec/exec_impl.h"
#include "encoder/exec/payload.h"
#include "io/json.h"
#include "io/process.h"

/* ---- the child ---- */

static const char hello_text[] =
	"{\"vfm_exec\":1,\"name\":\"toy\",\"version\":\"1.0\",\"sha256\":"
	"\"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\","
	"\"capabilities\":[\"score\",\"embed\",\"sing\"],\"batch\":%d,\"input\":{\"kind\":\"clip\"}}\n";

static void copy_array(const json_t *in, const char *out)
{
	FILE *a = fopen(json_string_value(json_object_get(in, "path")), "rb"), *b = fopen(out, "wb");
	static char block[1 << 20];
	size_t n;

	while ((n = fread(block, 1, sizeof(block), a)) > 0)
		fwrite(block, 1, n, b);
	fclose(a);
	fclose(b);
}

/* What a bad child does to the file of its array instead of writing it, or to that of its input. */
static void spoil_files(const char *what, const char *in, const char *out)
{
	char path[4200];

	if (!strcmp(what, "link") || !strcmp(what, "fifo") || !strcmp(what, "folder"))
		unlink(out);
	if (!strcmp(what, "link"))
		assert_int_equal(symlink("/dev/null", out), 0);
	if (!strcmp(what, "fifo"))
		assert_int_equal(mkfifo(out, 0600), 0);
	if (!strcmp(what, "folder")) {
		snprintf(path, sizeof(path), "%s/file", out);
		assert_int_equal(mkdir(out, 0700) + mkdir(path, 0700), 0);
	}
	if (!strcmp(what, "hide"))
		assert_int_equal(chmod(out, 0), 0);
	if (!strcmp(what, "cut"))
		assert_int_equal(truncate(in, 0), 0);
	if (!strcmp(what, "drop"))
		assert_int_equal(unlink(in), 0);
}

/* Leaves a process that holds the pipes open. */
static void leave_sleeper(void)
{
	if (fork() == 0) {
		sleep(1000);
		_exit(0);
	}
}

/* Answers a request as its key "do" says. */
static void answer_request(const json_t *r)
{
	const char *what = json_string_value(json_object_get(r, "do")),
		   *out = json_string_value(json_object_get(r, "out"));
	json_int_t id = json_integer_value(json_object_get(r, "id")), n = json_integer_value(json_object_get(r, "n"));

	if (!strcmp(what, "crash"))
		abort();
	if (!strcmp(what, "exit"))
		exit(0);
	if (!strcmp(what, "forkdie")) {
		leave_sleeper();
		_exit(5);
	}
	if (!strcmp(what, "closein"))
		close(0);
	if (!strcmp(what, "regroup"))
		setpgid(0, getpgid(getppid()));
	if (!strcmp(what, "hang") || !strcmp(what, "closein") || !strcmp(what, "regroup"))
		sleep(1000);
	if (!strcmp(what, "garbage"))
		printf("Loading weights: 10%%\n");
	if (!strcmp(what, "wrong"))
		id += 1000000;
	if (!strcmp(what, "half")) {
		printf("{\"id\":%lld,", (long long)id);
		fflush(stdout);
		_exit(0);
	}
	if (!strcmp(what, "error")) {
		printf("{\"id\":%lld,\"error\":\"no face\"}\n", (long long)id);
		return;
	}
	if (!strcmp(what, "nan")) {
		printf("{\"id\":%lld,\"n\":NaN}\n", (long long)id);
		return;
	}
	if (!strcmp(what, "array"))
		copy_array(json_object_get(r, "frames"), out);
	spoil_files(what, json_string_value(json_object_get(json_object_get(r, "frames"), "path")), out);
	printf("{\"id\":%lld,\"n\":%lld", (long long)id, (long long)n);
	if (json_object_get(r, "frames"))
		printf(",\"latent\":{\"shape\":[%lld,2],\"dtype\":\"uint8\"}", (long long)n / 2);
	printf("}\n");
	if (!strcmp(what, "twice"))
		printf("{\"id\":%lld,\"n\":%lld}\n", (long long)id, (long long)n);
}

static int be_child(int argc, char **argv)
{
	static char line[1 << 16];
	const char *fault = argc > 2 ? argv[2] : "", *log = getenv("TOY_LOG");
	int batch = argc > 3 ? atoi(argv[3]) : 1;

	if (!strcmp(fault, "dead")) {
		fprintf(stderr, "no module named toy\n");
		return 4;
	}
	if (!strcmp(fault, "mute"))
		sleep(1000);
	if (!strcmp(fault, "forkdead")) {
		leave_sleeper();
		return 3;
	}
	if (!strcmp(fault, "regroup"))
		setpgid(0, getpgid(getppid()));
	if (!strcmp(fault, "regroup") || (!strcmp(fault, "grandchild") && fork() == 0)) {
		FILE *f = fopen(log, "w");

		fprintf(f, "%d\n", getpid());
		fclose(f);
		if (!strcmp(fault, "regroup"))
			printf(hello_text, batch), fflush(stdout);
		sleep(1000);
		_exit(0);
	}
	printf(hello_text, batch);
	fflush(stdout);
	if (!strcmp(fault, "once")) /* ends as soon as it has begun */
		return 0;
	while (fgets(line, sizeof(line), stdin)) {
		json_t *r = json_loads(line, 0, NULL);
		bool more = json_is_true(json_object_get(r, "more"));

		if (log && !strcmp(fault, "log")) {
			FILE *f = fopen(log, "a");

			fprintf(f, "%d %s", more, line);
			fclose(f);
			if (!more)
				poll(NULL, 0, 2); /* a batch costs time: requests queue up */
		}
		answer_request(r);
		json_decref(r);
		if (!more)
			fflush(stdout);
	}
	return 0;
}

/* ---- helpers ---- */

static char self[4096];

static struct vfm_exec *open_toy(const char *fault, int batch, const struct vfm_exec_opts *more)
{
	struct vfm_exec_opts o = VFM_EXEC_DEFAULTS;
	char *command = vfm_strfmt("'%s' --child %s %d", self, fault, batch);
	struct vfm_exec *x = NULL;
	int rc;

	if (more) {
		o.children = more->children;
		o.retries = more->retries;
		o.timeout_s = more->timeout_s > 0 ? more->timeout_s : o.timeout_s;
		o.start_s = more->start_s > 0 ? more->start_s : o.start_s;
	}
	o.command = command;
	o.capability = more && more->capability ? more->capability : "score";
	rc = vfm_exec_open(&x, &o, &err);
	if (rc == 0)
		vfm_exec_make_slots(x, vfm_exec_threads(x, 2));
	free(command);
	return rc < 0 ? NULL : x;
}

static int ask(struct vfm_exec *x, int slot, const char *what, int64_t n, json_t **answer)
{
	return vfm_exec_call(
		vfm_exec_slot(x, slot), json_pack("{s:s,s:I}", "do", what, "n", (json_int_t)n), answer, &err);
}

static void expect_answer(struct vfm_exec *x, int64_t n)
{
	json_t *a;

	OK(ask(x, 0, "ok", n, &a));
	assert_int_equal(json_integer_value(json_object_get(a, "n")), n);
	json_decref(a);
}

static void expect_error(struct vfm_exec *x, const char *what, const char *message)
{
	json_t *a;

	err.msg[0] = 0;
	assert_int_equal(ask(x, 0, what, 1, &a), VFM_EINPUT);
	assert_null(a);
	if (!strstr(err.msg, message))
		fail_msg("%s: '%s'", what, err.msg);
}

static bool is_alive(pid_t pid)
{
	char path[64], state = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	f = fopen(path, "r");
	if (!f)
		return false;
	if (fscanf(f, "%*d %*s %c", &state) != 1)
		state = 0;
	fclose(f);
	return state && state != 'Z';
}

/* ---- tests ---- */

static void test_words(void **state)
{
	static const char *const want[] = {"python3", "a b", "c\"d", "", "e\\f", "$HOME", NULL};
	char **w = vfm_exec_words(" python3 'a b'\tc\\\"d \"\" \"e\\f\" $HOME", &err);
	int i = 0;

	(void)state;
	assert_non_null(w);
	for (; want[i]; i++)
		assert_string_equal(w[i], want[i]);
	assert_null(w[i]);
	vfm_exec_words_free(w);
	assert_null(vfm_exec_words("a 'b", &err));
	assert_non_null(strstr(err.msg, "open '"));
	assert_null(vfm_exec_words(" \t", &err));
	assert_int_equal(err.code, VFM_EUSAGE);
}

static void test_hello(void **state)
{
	static const struct {
		const char *key, *value, *message;
	} bad[] = {
		{"vfm_exec", "2", "protocol version 2"},
		{"name", "\"a b\"", "hello.name"},
		{"name", "\"\"", "hello.name"},
		{"version", "1", "hello.version"},
		{"sha256", "\"12\"", "hello.sha256"},
		{"capabilities", "[]", "hello.capabilities"},
		{"capabilities", "[\"sing\"]", "hello.capabilities"},
		{"batch", "0", "hello.batch"},
		{"input", "[]", "hello.input"},
		{"input", "{\"kind\":\"film\"}", "hello.input.kind"},
		{"input", "{\"kind\":\"frames\",\"frames\":4,\"fps\":2}", "one of frames and fps"},
		{"input", "{\"kind\":\"frames\",\"width\":4}", "both width and height"},
		{"input", "{\"kind\":\"frames\",\"fit\":\"zoom\"}", "hello.input.fit"},
		{"input", "{\"kind\":\"frames\",\"frame\":3}",
			"hello.input.frame: unknown key (did you mean 'frames'?)"},
		{"tokenizer", "{\"stride\":[4,8,8],\"channels\":16,\"frames\":[1,4],\"padding\":true}",
			"hello.tokenizer.padding: unknown key"},
		{"text", "{\"dim\":8,\"row\":512}", "hello.text.row: unknown key"},
		{"tokenizer", "null", "hello.tokenizer is missing"},
		{"tokenizer", "{\"stride\":[4,8],\"channels\":16,\"frames\":[1,4]}", "hello.tokenizer.stride"},
		{"tokenizer", "{\"stride\":[4,8,8],\"channels\":0,\"frames\":[1,4]}", "hello.tokenizer.channels"},
		{"tokenizer", "{\"stride\":[4,8,8],\"channels\":16,\"frames\":[1,3]}", "hello.tokenizer.frames"},
		{"tokenizer", "{\"stride\":[4,8,8],\"channels\":16,\"frames\":[1,4],\"range\":[2,1]}", "range"},
		{"tokenizer", "{\"stride\":[4,8,8],\"channels\":16,\"frames\":[5,4],\"max_frames\":4}",
			"hello.tokenizer.max_frames"},
		{"text", "{\"rows\":512}", "hello.text.dim"},
		{"image", "null", "hello.image is missing"},
		{"image", "{\"dim\":1280}", "hello.image.rows"},
		{"image", "{\"dim\":1280,\"rows\":257,\"max_rows\":9}", "hello.image.max_rows: unknown key"},
		{"shots", "null", "hello.shots is missing"},
		{"shots", "{\"width\":48,\"height\":27}", "hello.shots.frames"},
		{"shots", "{\"width\":48,\"height\":27,\"frames\":50,\"margin\":25}", "hello.shots: expected a margin"},
		{"shots", "{\"width\":0,\"height\":27,\"frames\":50}", "hello.shots.width"},
		{"shots", "{\"width\":48,\"height\":27,\"frames\":9,\"step\":5}", "hello.shots.step: unknown key"},
	};
	static const char good[] =
		"{\"vfm_exec\":1,\"name\":\"vae\",\"version\":\"2.1\",\"sha256\":"
		"\"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\",\"capabilities\":"
		"[\"encode\",\"decode\",\"text-encode\",\"image-encode\",\"shots\",\"dance\"],\"batch\":3,"
		"\"tokenizer\":{"
		"\"stride\":[4,16,8],"
		"\"channels\":48,\"frames\":[1,4],\"max_frames\":81,\"scaling\":\"mean-std\",\"range\":[-9,9.5]},"
		"\"text\":{\"dim\":4096,\"rows\":512},\"image\":{\"dim\":1280,\"rows\":257},\"shots\":{\"width\":48,"
		"\"height\":27,\"frames\":100,"
		"\"margin\":25},\"later\":true}";
	struct vfm_hello h;
	json_t *o = json_loads(good, 0, NULL);

	(void)state;
	OK(vfm_hello_parse(&h, o, &err));
	assert_int_equal(h.ops,
		VFM_EXEC_ENCODE | VFM_EXEC_DECODE | VFM_EXEC_TEXT_ENCODE | VFM_EXEC_IMAGE_ENCODE | VFM_EXEC_SHOTS);
	assert_int_equal(h.batch, 3);
	assert_int_equal(h.geometry.stride[1], 16);
	assert_int_equal(h.geometry.channels, 48);
	assert_int_equal(h.geometry.step, 4);
	assert_true(h.max == 9.5 && h.min == -9);
	assert_string_equal(h.geometry.scaling, "mean-std");
	assert_int_equal(h.text_rows, 512);
	assert_int_equal(h.image_rows, 257);
	assert_int_equal(h.image_dim, 1280);
	assert_int_equal(h.shots.width, 48);
	assert_int_equal(h.shots.frames, 100);
	assert_int_equal(h.shots.margin, 25);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		json_t *copy = json_deep_copy(o);

		json_object_set_new(copy, bad[i].key, json_loads(bad[i].value, JSON_DECODE_ANY, NULL));
		assert_int_equal(vfm_hello_parse(&h, copy, &err), VFM_EUSAGE);
		if (!strstr(err.msg, bad[i].message))
			fail_msg("%s: '%s'", bad[i].message, err.msg);
		json_decref(copy);
	}
	json_decref(o);
}

static void test_answers(void **state)
{
	struct vfm_exec *x = open_toy("none", 1, NULL);

	(void)state;
	assert_non_null(x);
	assert_string_equal(vfm_exec_hello(x)->name, "toy");
	for (int i = 0; i < 100; i++)
		expect_answer(x, i);
	expect_error(x, "error", "toy: no face");
	expect_error(x, "nan", "toy: the answer is no JSON object: '{\"id\":101,\"n\":NaN}': invalid token near 'NaN'");
	assert_int_equal(vfm_exec_stats(x).requests, 102);
	assert_int_equal(vfm_exec_stats(x).errors, 2);
	assert_int_equal(vfm_exec_stats(x).restarts, 0);
	vfm_exec_close(x);
}

/* Each fault costs its own record two processes; the next record is answered. */
static void test_faults(void **state)
{
	static const struct {
		const char *what, *message;
	} faults[] = {
		{"crash", "was killed by SIGABRT"},
		{"exit", "exited with status 0"},
		{"hang", "gave no answer for 0.2 s"},
		{"garbage", "wrote a line that is no JSON object: 'Loading weights: 10%': "},
		{"forkdie", "exited with status 5"},
		{"closein", "closed its stdin"},
		{"regroup", "gave no answer for 0.2 s"},
		{"wrong", "answered a request that was not in flight"},
		{"half", "ended in the middle of a line"},
	};
	struct vfm_exec *x = open_toy("none", 1, &(struct vfm_exec_opts){.timeout_s = 0.2, .retries = 1});

	(void)state;
	assert_non_null(x);
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
		expect_error(x, faults[i].what, "toy: 2 processes failed on this record");
		if (!strstr(err.msg, faults[i].message))
			fail_msg("%s: '%s'", faults[i].what, err.msg);
		expect_answer(x, (int64_t)i);
		assert_int_equal(vfm_exec_stats(x).restarts, 2 * (i + 1));
	}
	vfm_exec_close(x);
}

/* A surplus answer follows a good one: the record is answered, and the process replaced. */
static void test_surplus(void **state)
{
	struct vfm_exec *x = open_toy("none", 1, NULL);
	json_t *a;

	(void)state;
	OK(ask(x, 0, "twice", 5, &a));
	json_decref(a);
	for (int i = 0; i < 1000 && vfm_exec_stats(x).restarts == 0; i++)
		poll(NULL, 0, 5);
	assert_int_equal(vfm_exec_stats(x).restarts, 1);
	expect_answer(x, 1);
	vfm_exec_close(x);
}

static void expect_refusal(const char *fault, const struct vfm_exec_opts *o, int code, const char *message)
{
	assert_null(open_toy(fault, 1, o));
	assert_int_equal(err.code, code);
	if (!strstr(err.msg, message))
		fail_msg("'%s'", err.msg);
}

static void expect_start(struct vfm_exec_opts *o, const char *command, int code, const char *message)
{
	struct vfm_exec *x = NULL;

	o->command = command;
	assert_int_equal(vfm_exec_open(&x, o, &err), code);
	if (!strstr(err.msg, message))
		fail_msg("%s: '%s'", command, err.msg);
}

static void test_start(void **state)
{
	struct vfm_exec_opts o = VFM_EXEC_DEFAULTS;
	struct vfm_exec *x = NULL;
	json_t *a;

	(void)state;
	o.capability = "score";
	expect_start(&o, "/no/such/program", VFM_EUSAGE, "cannot start '/no/such/program': No such file");
	expect_refusal("dead", NULL, VFM_EENV, "exited with status 4: no module named toy");
	expect_refusal("mute", &(struct vfm_exec_opts){.start_s = 0.1}, VFM_EENV, "said no hello within 0.1 s");
	expect_refusal("none", &(struct vfm_exec_opts){.capability = "caption"}, VFM_EUSAGE, "'toy' lacks 'caption'");
	expect_refusal("forkdead", &(struct vfm_exec_opts){.start_s = 9}, VFM_EENV, "exited with status 3");
	expect_start(&o, "echo hi", VFM_EENV, "echo: child 0 wrote a line that is no JSON object: 'hi': ");
	expect_start(&o, "env -i A=b /no/share/wan.py x", VFM_EENV, "wan.py: child 0 exited with status 127");
	expect_start(&o, "/no/share/wan.py x", VFM_EUSAGE, "wan.py: child 0: cannot start");
	expect_start(&o, "/bin/sh -e /no/wan.sh x", VFM_EENV, "wan.sh: child 0 exited with status");
	/* a child that ends after each hello does not go on for ever */
	x = open_toy("once", 1, NULL);
	if (x) {
		poll(NULL, 0, 300);
		assert_int_equal(ask(x, 0, "ok", 1, &a), VFM_EENV);
		vfm_exec_close(x);
	}
	o.shell = true;
	o.command = vfm_strfmt("cd / && exec '%s' --child none 1", self);
	OK(vfm_exec_open(&x, &o, &err));
	vfm_exec_make_slots(x, 1);
	expect_answer(x, 7);
	vfm_exec_close(x);
	free((char *)(uintptr_t)o.command);
}

/* The children share the GPUs of CUDA_VISIBLE_DEVICES in turn; empty entries count as none. */
static void test_gpus(void **state)
{
	static const char *const gpus[] = {"gpu=4;", "gpu=7;", "gpu=4;"};
	struct vfm_exec_opts o = VFM_EXEC_DEFAULTS;

	(void)state;
	o.capability = "score";
	o.shell = true;
	setenv("CUDA_VISIBLE_DEVICES", ",4,,7,", 1);
	for (o.first_gpu = 0; o.first_gpu < 3; o.first_gpu++)
		expect_start(&o, "echo \"gpu=$CUDA_VISIBLE_DEVICES;\" >&2; exit 1", VFM_EENV, gpus[o.first_gpu]);
	unsetenv("CUDA_VISIBLE_DEVICES");
}

static int ask_array(struct vfm_exec_slot *slot, const char *what, const void *in, size_t n, const void **out)
{
	json_t *a, *frames;
	struct vfm_npy npy;
	int rc;

	OK(vfm_exec_input(slot, 0, in, n, &err));
	OK(vfm_exec_describe(slot, VFM_NPY_U8, 1, (int64_t[]){(int64_t)n}, &frames, &err));
	OK(vfm_exec_call(slot, json_pack("{s:s,s:I,s:o}", "do", what, "n", (json_int_t)n, "frames", frames), &a, &err));
	rc = vfm_exec_read_array(slot, a, "latent", &npy, out, &err);
	json_decref(a);
	return rc;
}

/* An array of an earlier request is never taken for that of this one.  What a child leaves in place of a file fails no
 * later request.  The folder is absolute. */
static void test_bad_files(void **state)
{
	static const char *const wrong[] = {"ok", "link", "fifo", "folder", "hide", "ok"},
				 *const in[] = {"cut", "drop"};
	struct vfm_exec *x;
	struct vfm_exec_slot *slot;
	const void *out;

	(void)state;
	setenv("VFM_EXEC_TMP", "..", 1);
	x = open_toy("none", 1, &(struct vfm_exec_opts){.capability = "embed"});
	unsetenv("VFM_EXEC_TMP");
	slot = vfm_exec_slot(x, 0);
	assert_int_equal(slot->in_path[0], '/');
	for (int i = 0; i < 6; i++) {
		OK(ask_array(slot, "array", "abcdef", 6, &out));
		assert_memory_equal(out, "abcdef", 6);
		assert_int_equal(ask_array(slot, wrong[i], "ghijkl", 6, &out), VFM_EINPUT);
	}
	for (int i = 0; i < 2; i++) {
		ask_array(slot, in[i], "ghijkl", 6, &out);
		OK(ask_array(slot, "array", "uvwxyz", 6, &out));
		assert_memory_equal(out, "uvwxyz", 6);
	}
	assert_int_equal(vfm_exec_stats(x).restarts, 0);
	vfm_exec_close(x);
}

static void test_arrays(void **state)
{
	const size_t sizes[] = {10, 2, 5 << 20, 64};
	struct vfm_exec *x = open_toy("none", 1, &(struct vfm_exec_opts){.capability = "embed"});
	struct vfm_exec_slot *slot = vfm_exec_slot(x, 0);
	struct vfm_npy out;
	const void *data;
	json_t *a, *r, *frames;

	(void)state;
	for (size_t i = 0; i < 4; i++) {
		unsigned char *in = vfm_malloc(sizes[i]);

		for (size_t k = 0; k < sizes[i]; k++)
			in[k] = (unsigned char)(k * 7 + i);
		OK(vfm_exec_input(slot, 0, in, sizes[i] / 3, &err));
		OK(vfm_exec_input(slot, sizes[i] / 3, in + sizes[i] / 3, sizes[i] - sizes[i] / 3, &err));
		OK(vfm_exec_describe(slot, VFM_NPY_U8, 1, (int64_t[]){(int64_t)sizes[i]}, &frames, &err));
		r = json_pack("{s:s,s:I,s:o}", "do", "array", "n", (json_int_t)sizes[i], "frames", frames);
		OK(vfm_exec_call(slot, r, &a, &err));
		OK(vfm_exec_read_array(slot, a, "latent", &out, &data, &err));
		assert_int_equal(out.ndim, 2);
		assert_int_equal(out.data_bytes, sizes[i]);
		assert_memory_equal(data, in, sizes[i]);
		free(in);
		assert_int_equal(vfm_exec_read_array(slot, a, "frames", &out, &data, &err), VFM_EINPUT);
		json_object_set_new(json_object_get(a, "latent"), "dtype", json_string("float32"));
		assert_int_equal(vfm_exec_read_array(slot, a, "latent", &out, &data, &err), VFM_EINPUT);
		assert_non_null(strstr(err.msg, "its shape and dtype say"));
		json_object_set_new(json_object_get(a, "latent"), "dtype", json_string("complex64"));
		assert_int_equal(vfm_exec_read_array(slot, a, "latent", &out, &data, &err), VFM_EINPUT);
		json_object_set_new(json_object_get(a, "latent"), "shape",
			json_pack("[I,I]", (json_int_t)1 << 40, (json_int_t)1 << 40));
		json_object_set_new(json_object_get(a, "latent"), "dtype", json_string("uint8"));
		assert_int_equal(vfm_exec_read_array(slot, a, "latent", &out, &data, &err), VFM_EINPUT);
		json_decref(a);
	}
	vfm_exec_close(x);
}

/* ---- many records, several children ---- */

struct crowd {
	struct vfm_exec *x;
	int64_t n;
	const char *(*what)(int64_t i);
	atomic_llong next;
	_Atomic signed char *result; /* 1: answered, -1: failed */
	atomic_int wrong;
};

static void *run_asker(void *arg)
{
	struct crowd *c = ((void **)arg)[0];
	int slot = (int)(intptr_t)((void **)arg)[1];
	int64_t i;

	while ((i = atomic_fetch_add(&c->next, 1)) < c->n) {
		json_t *a, *r = json_pack("{s:s,s:I}", "do", c->what(i), "n", (json_int_t)i);
		struct vfm_err why;
		int rc = vfm_exec_call(vfm_exec_slot(c->x, slot), r, &a, &why);

		if (rc < 0 && rc != VFM_EINPUT)
			c->wrong++;
		if (rc == 0 && json_integer_value(json_object_get(a, "n")) != i)
			c->wrong++;
		if (c->result[i])
			c->wrong++;
		c->result[i] = rc < 0 ? -1 : 1;
		json_decref(a);
	}
	return NULL;
}

static void ask_all(struct crowd *c, int threads)
{
	pthread_t thread[256];
	void *args[256][2];

	c->result = vfm_calloc((size_t)c->n, 1);
	for (int i = 0; i < threads; i++) {
		args[i][0] = c;
		args[i][1] = (void *)(intptr_t)i;
		assert_int_equal(pthread_create(&thread[i], NULL, run_asker, args[i]), 0);
	}
	for (int i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
	assert_int_equal(c->wrong, 0);
}

static const char *mostly_good(int64_t i)
{
	return i % 97 == 13 ? "crash" : i % 101 == 50 ? "garbage" : i % 89 == 3 ? "error" : "ok";
}

static const char *always_good(int64_t i)
{
	(void)i;
	return "ok";
}

/* A record fails alone, however often records are repeated. */
static void check_crowd(int retries)
{
	struct vfm_exec *x = open_toy("none", 4, &(struct vfm_exec_opts){.children = 3, .retries = retries});
	struct crowd c = {.x = x, .n = 1500, .what = mostly_good};
	int64_t failed = 0;

	assert_int_equal(vfm_exec_threads(x, 2), 3 * 2 * 4 + 2);
	ask_all(&c, vfm_exec_threads(x, 2));
	for (int64_t i = 0; i < c.n; i++) {
		bool bad = strcmp(mostly_good(i), "ok") != 0;

		failed += bad;
		if (c.result[i] != (bad ? -1 : 1))
			fail_msg("record %lld (%s): %d", (long long)i, mostly_good(i), c.result[i]);
	}
	assert_int_equal(vfm_exec_stats(x).errors, failed);
	free((void *)c.result);
	vfm_exec_close(x);
}

static void test_crowd(void **state)
{
	(void)state;
	check_crowd(0);
	check_crowd(1);
}

/* Reads the processes whose parent is this one and that run this program. */
static int list_children(pid_t *pids, int max)
{
	char path[64];
	FILE *f;
	int n = 0;

	snprintf(path, sizeof(path), "/proc/self/task/%d/children", getpid());
	f = popen("ps -o pid=,args= --ppid $PPID | grep -e '--child' | awk '{print $1}'", "r");
	while (f && n < max && fscanf(f, "%d", &pids[n]) == 1)
		n++;
	if (f)
		pclose(f);
	return n;
}

static void *kill_now_and_then(void *arg)
{
	atomic_int *kills = arg;
	pid_t pids[8];

	for (int i = 0; i < 5; i++) {
		poll(NULL, 0, 40);
		if (list_children(pids, 8) > 0)
			*kills += kill(pids[i % 2 == 0 ? 0 : 1], SIGKILL) == 0;
	}
	return NULL;
}

/* kill -9 of children during 10,000 records loses and duplicates nothing. */
static void test_killed_children(void **state)
{
	struct vfm_exec *x = open_toy("none", 2, &(struct vfm_exec_opts){.children = 2, .retries = 3});
	struct crowd c = {.x = x, .n = 10000, .what = always_good};
	atomic_int kills = 0;
	pthread_t killer;

	(void)state;
	pthread_create(&killer, NULL, kill_now_and_then, &kills);
	ask_all(&c, vfm_exec_threads(x, 2));
	pthread_join(killer, NULL);
	for (int64_t i = 0; i < c.n; i++)
		assert_int_equal(c.result[i], 1);
	assert_true(kills > 0);
	assert_int_equal(vfm_exec_stats(x).requests, c.n);
	assert_int_equal(vfm_exec_stats(x).errors, 0);
	free((void *)c.result);
	vfm_exec_close(x);
}

/* The lines of a batch: "more" on all but the last, never more than the child wants. */
static void test_batches(void **state)
{
	char log[] = "/tmp/test_exec.XXXXXX", line[4096];
	struct crowd c = {.n = 200, .what = always_good};
	int fd = mkstemp(log), run = 0, longest = 0, lines = 0, full = 0;
	FILE *f;

	(void)state;
	close(fd);
	setenv("TOY_LOG", log, 1);
	c.x = open_toy("log", 5, NULL);
	ask_all(&c, vfm_exec_threads(c.x, 2));
	vfm_exec_close(c.x);
	f = fopen(log, "r");
	while (fgets(line, sizeof(line), f)) {
		run++;
		lines++;
		longest = run > longest ? run : longest;
		full += run == 5;
		if (line[0] == '0')
			run = 0;
	}
	fclose(f);
	unlink(log);
	unsetenv("TOY_LOG");
	assert_int_equal(lines, 200);
	assert_int_equal(longest, 5);
	assert_true(full >= 30); /* of at most 40: a busy child gets full batches */
	free((void *)c.result);
}

/* Neither a process nor the folder survives if the parent is killed. */
static void check_orphans(const char *fault)
{
	char log[] = "/tmp/test_exec.XXXXXX", dir[64] = "";
	int ends[2], fd = mkstemp(log);
	pid_t parent, grandchild = 0;

	close(fd);
	assert_int_equal(pipe(ends), 0);
	setenv("TOY_LOG", log, 1);
	parent = fork();
	if (parent == 0) {
		struct vfm_exec *x = open_toy(fault, 1, NULL);
		const char *path = vfm_exec_slot(x, 0)->in_path;

		if (write(ends[1], path, strlen(path)) < 0)
			_exit(1);
		pause();
		_exit(0);
	}
	assert_true(read(ends[0], dir, sizeof(dir) - 1) > 0);
	*strrchr(dir, '/') = 0;
	assert_int_equal(access(dir, F_OK), 0);
	for (int i = 0; i < 400 && !grandchild; i++) {
		FILE *f = fopen(log, "r");

		if (fscanf(f, "%d", &grandchild) != 1)
			grandchild = 0;
		fclose(f);
		poll(NULL, 0, 5);
	}
	assert_true(grandchild > 0 && is_alive(grandchild));
	kill(parent, SIGKILL);
	waitpid(parent, NULL, 0);
	for (int i = 0; i < 1000 && (is_alive(grandchild) || access(dir, F_OK) == 0); i++)
		poll(NULL, 0, 5);
	assert_false(is_alive(grandchild));
	assert_int_not_equal(access(dir, F_OK), 0);
	unsetenv("TOY_LOG");
	unlink(log);
}

static void test_orphans(void **state)
{
	(void)state;
	check_orphans("grandchild");
	check_orphans("regroup"); /* a child that has left its group */
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_words),
		cmocka_unit_test(test_hello),
		cmocka_unit_test(test_answers),
		cmocka_unit_test(test_faults),
		cmocka_unit_test(test_surplus),
		cmocka_unit_test(test_start),
		cmocka_unit_test(test_gpus),
		cmocka_unit_test(test_arrays),
		cmocka_unit_test(test_bad_files),
		cmocka_unit_test(test_crowd),
		cmocka_unit_test(test_killed_children),
		cmocka_unit_test(test_batches),
		cmocka_unit_test(test_orphans),
	};
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (n < 0)
		return 1;
	if (argc > 1 && !strcmp(argv[1], "--child"))
		return be_child(argc, argv);
	signal(SIGPIPE, SIG_IGN);
	vfm_log_init("test_exec");
	vfm_log_set_quiet(!getenv("V"));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
