/* The loop of a stage: order, counts, failures, shares, what was done before. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "data/record/sample_key.h"
#include "data/record/share.h"
#include "data/record/stage.h"
#include "io/file.h"
#include "io/json.h"

static char dir[64];

static char *in_dir(const char *name)
{
	return vfm_strfmt("%s/%s", dir, name);
}

static int setup(void **state)
{
	(void)state;
	vfm_log_set_quiet(true);
	strcpy(dir, "/tmp/vfm-stage.XXXXXX");
	return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
	(void)state;
	return vfm_rm_rf(dir, NULL);
}

static char *write_text(const char *name, const char *text)
{
	char *path = in_dir(name);

	assert_int_equal(vfm_write_file(path, text, strlen(text), NULL), 0);
	return path;
}

/* Doubles "n"; fails on 7, drops 9, waits a little so that threads overtake each other. */
static int work(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	json_int_t n = json_integer_value(json_object_get(rec, "n"));

	(void)out, (void)worker;
	if (ctx)
		__atomic_add_fetch((int *)ctx, 1, __ATOMIC_SEQ_CST);
	usleep((useconds_t)(n % 5 * 300));
	if (n == 7)
		return vfm_fail(err, VFM_EINPUT, "seven");
	if (n == 9)
		vfm_stage_drop(rec, "work", "%d is too much", 9);
	json_object_set_new(rec, "twice", json_integer(2 * n));
	return 0;
}

/* n records of each. */
static int spread(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	json_int_t n = json_integer_value(json_object_get(rec, "n"));

	(void)ctx, (void)worker, (void)err;
	if (ctx)
		__atomic_add_fetch((int *)ctx, 1, __ATOMIC_SEQ_CST);
	for (int i = 0; i < n; i++)
		vfm_stage_emit(out,
			json_pack("{s:o,s:s,s:I}", "id", json_sprintf("%s-%d", vfm_rec_str(rec, "id", ""), i), "parent",
				vfm_rec_str(rec, "id", ""), "siblings", n));
	return 0;
}

static char *run(struct vfm_stage s, const char *input, int want_rc, struct vfm_stage_counts *c)
{
	char *path = in_dir("out.jsonl"), *data, *files[1] = {(char *)(uintptr_t)input};
	struct vfm_err err = {0};
	size_t len;

	s.n_files = 1;
	s.files = files;
	s.out = fopen(path, "w");
	assert_non_null(s.out);
	assert_int_equal(vfm_stage_run(&s, c, &err), want_rc);
	fclose(s.out);
	assert_int_equal(vfm_read_file(path, 1 << 24, &data, &len, &err), 0);
	free(path);
	return data;
}

static char *numbers(int n)
{
	struct vfm_buf b = {0};
	char *path;

	for (int i = 0; i < n; i++)
		vfm_buf_addf(&b, "{\"id\":\"r%d\",\"n\":%d,\"other\":[1,{\"x\":null}]}\n", i, i);
	path = write_text("in.jsonl", b.data);
	vfm_buf_release(&b);
	return path;
}

static void test_order_and_counts(void **state)
{
	char *input = numbers(100), *one, *many;
	struct vfm_stage_counts c;

	(void)state;
	one = run((struct vfm_stage){.name = "work", .fn = work}, input, VFM_EINPUT, &c);
	assert_int_equal(c.in, 100);
	assert_int_equal(c.out, 98);
	assert_int_equal(c.dropped, 1);
	assert_int_equal(c.failed, 1);
	assert_int_equal(c.written, 100);
	many = run((struct vfm_stage){.name = "work", .fn = work, .opts = {.jobs = 7}}, input, VFM_EINPUT, &c);
	assert_int_equal(c.in, c.out + c.dropped + c.failed);
	assert_string_equal(one, many);
	assert_non_null(strstr(
		one, "{\"v\":1,\"id\":\"r3\",\"n\":3,\"other\":[1,{\"x\":null}],\"twice\":6,\"by\":{\"work\":\""));
	assert_non_null(strstr(one, "\"error\":\"seven\"}"));
	assert_non_null(strstr(one, "\"drop\":\"work: 9 is too much\""));
	free(one);
	free(many);
	free(input);
}

/* Emits a clip of 2 s, and one of 1 s, which is dropped. */
static int split_seconds(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	(void)ctx, (void)worker, (void)err;
	for (int i = 0; i < 2; i++) {
		json_t *clip = json_pack("{s:o,s:s,s:i,s:i,s:f}", "id",
			json_sprintf("%s-%d", vfm_rec_str(rec, "id", ""), i), "parent", vfm_rec_str(rec, "id", ""),
			"siblings", 1, "transitions", 1, "duration_s", 2.0 - i);

		if (i)
			vfm_stage_drop(clip, "work", "in a transition");
		vfm_stage_emit(out, clip);
	}
	return 0;
}

/* Seconds are those of inputs that were not out before, and of outputs; copied records count alike. */
static void test_seconds(void **state)
{
	char *input = write_text("in.jsonl",
		"{\"id\":\"a\",\"duration_s\":3.5}\n{\"id\":\"b\",\"duration_s\":8,\"drop\":\"x: y\"}\n"
		"{\"id\":\"c\",\"duration_s\":3}\n{\"id\":\"d\",\"duration_s\":16,\"error\":\"x\"}\n");
	struct vfm_stage s = {.name = "work", .fn = split_seconds, .one_to_many = true};
	struct vfm_stage_counts c;
	char *first = run(s, input, 0, &c), *done = write_text("done.jsonl", first), *again;

	(void)state;
	for (int i = 0; i < 2; i++) {
		assert_true(c.in_s == 6.5 && c.kept_s == 4 && c.dropped_s == 2 && c.missing_s == 0.5);
		assert_int_equal(c.in, 4);
		assert_int_equal(c.out, 2);
		assert_int_equal(c.dropped, 1);
		assert_int_equal(c.dropped_here, 0);
		assert_int_equal(c.kept, 2);
		assert_int_equal(c.untimed, 0);
		assert_int_equal(c.written, 6);
		assert_int_equal(c.copied, i ? 2 : 0);
		s.opts.done = done;
		again = run(s, input, 0, &c);
		assert_string_equal(again, first);
		free(again);
	}
	free(first);
	free(done);
	free(input);
}

static void test_what_is_out_passes(void **state)
{
	char *input = write_text("in.jsonl",
		"{\"v\":1,\"id\":\"a\",\"error\":\"before\"}\n\nnonsense\n[1]\n{\"id\":\"b\",\"drop\":\"x: y\"}\n"
		"{\"v\":2,\"id\":\"c\"}\n{\"v\":1,\"id\":\"d\",\"n\":1}");
	struct vfm_stage_counts c;
	int calls = 0;
	char *text = run((struct vfm_stage){.name = "work", .fn = work, .ctx = &calls, .opts = {.jobs = 3}}, input,
		VFM_EINPUT, &c);

	(void)state;
	assert_int_equal(calls, 1);
	assert_int_equal(c.in, 6);
	assert_int_equal(c.out, 1);
	assert_int_equal(c.dropped, 1);
	assert_int_equal(c.failed, 4);
	assert_int_equal(c.failed_here, 3);
	assert_true(strstr(text, "{\"v\":1,\"id\":\"a\",\"error\":\"before\"}\n") == strchr(text, '\n') + 1);
	assert_non_null(strstr(text, ":3: "));
	free(text);
	free(input);
}

static int keep(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	(void)rec, (void)out, (void)ctx, (void)worker, (void)err;
	return 0;
}

/* Two stages in a row under the same share do one N-th, and all shares together do everything once. */
static void test_shares(void **state)
{
	char *input = numbers(60), seen[60] = {0};
	int total = 0;

	(void)state;
	for (int share = 0; share < 3; share++) {
		char *opt = vfm_strfmt("%d/3", share), *first, *second, *middle;
		struct vfm_stage s = {.name = "keep", .fn = keep, .opts = {.share = opt}};
		struct vfm_stage_counts a, b;

		first = run(s, input, 0, &a);
		middle = write_text("middle.jsonl", first);
		second = run(s, middle, 0, &b);
		assert_string_equal(first, second);
		assert_int_equal(a.in, b.in);
		assert_int_equal(a.in + a.other_shares, 60);
		assert_int_equal(b.other_shares, 0);
		assert_in_range(a.in, 8, 34); /* even, roughly */
		for (const char *p = first; (p = strstr(p, "\"n\":")); p++)
			seen[atoi(p + 4)]++;
		total += (int)a.in;
		free(first);
		free(second);
		free(middle);
		free(opt);
	}
	assert_int_equal(total, 60);
	for (int i = 0; i < 60; i++)
		assert_int_equal(seen[i], 1);
	free(input);
}

/* Runs `spread` over `input` with the done records `done`; returns the output. */
static char *respread(const char *input, const char *done, const char *options, int *calls, struct vfm_stage_counts *c)
{
	struct vfm_stage s = {.name = "spread",
		.fn = spread,
		.ctx = calls,
		.options = options,
		.one_to_many = true,
		.opts = {.done = done, .jobs = 2}};

	*calls = 0;
	return run(s, input, 0, c);
}

static const char *line_of(const char *text, int n)
{
	while (n-- > 0)
		text = strchr(text, '\n') + 1;
	return text;
}

static void test_done(void **state)
{
	static const char three[] = "{\"id\":\"a\",\"n\":2}\n{\"id\":\"b\",\"n\":3}\n{\"id\":\"c\",\"n\":1}\n";
	char *input = write_text("in.jsonl", three), *all, *text, *done;
	struct vfm_stage_counts c;
	struct vfm_buf b = {0};
	int calls;

	(void)state;
	all = respread(input, NULL, "x 1", &calls, &c);
	/* a is whole, of b one of three is missing, c failed, and the end is torn. */
	vfm_buf_add(&b, all, (size_t)(line_of(all, 4) - all));
	vfm_buf_adds(&b, "{\"v\":1,\"id\":\"c\",\"error\":\"no\"}\n{\"v\":1,\"id\":\"c-0\",\"pare");
	done = write_text("done.jsonl", b.data);
	text = respread(input, done, "x 1", &calls, &c);
	assert_int_equal(calls, 2);
	assert_int_equal(c.copied, 1);
	assert_int_equal(c.stale, 0);
	assert_int_equal(c.in, 3);
	assert_int_equal(c.out, 3);
	assert_int_equal(c.written, 6);
	assert_string_equal(text, all);
	free(text);
	text = respread(input, done, "x 2", &calls, &c); /* other options */
	assert_int_equal(calls, 3);
	assert_int_equal(c.copied, 0);
	assert_int_equal(c.stale, 2);
	free(text);
	free(input);
	input = write_text("in.jsonl", "{\"id\":\"a\",\"n\":2,\"caption\":\"new\",\"part\":\"0/1\"}\n");
	text = respread(input, done, "x 1", &calls, &c); /* another record with the same id */
	assert_int_equal(calls, 1);
	assert_int_equal(c.stale, 1);
	free(text);
	free(input);
	input = write_text("in.jsonl", "{\"n\":2,\"part\":\"0/1\",\"id\":\"a\",\"v\":1,\"by\":{\"other\":\"?\"}}\n");
	text = respread(input, done, "x 1", &calls, &c); /* v, part, by and the order of keys do not matter */
	assert_int_equal(c.copied, 1);
	free(text);
	free(all);
	free(done);
	free(input);
	vfm_buf_release(&b);
}

/* A file that exists, or not. */
static int name_output(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	(void)out, (void)worker, (void)err;
	json_object_set_new(rec, "made", json_pack("{s:s}", "path", (const char *)ctx));
	return 0;
}

static void test_done_needs_outputs_and_version(void **state)
{
	static const char *const outputs[] = {"made.path", NULL};
	char *input = write_text("in.jsonl", "{\"id\":\"a\"}\n{\"id\":\"b\",\"v\":2}\n"),
	     *made = write_text("made", "x");
	struct vfm_stage s = {.name = "make", .fn = name_output, .ctx = made, .outputs = outputs};
	char *first = run(s, input, VFM_EINPUT, NULL), *done = write_text("done.jsonl", first), *again, *two;
	struct vfm_stage_counts c;

	(void)state;
	assert_non_null(strstr(first, "{\"v\":2,\"id\":\"b\",\"error\":\"v: expected record version 1\"}"));
	s.opts.done = done;
	again = run(s, input, VFM_EINPUT, &c);
	assert_int_equal(c.copied, 1);
	assert_int_equal(c.failed_here, 1);
	assert_string_equal(again, first);
	free(again);
	unlink(made);
	again = run(s, input, VFM_EINPUT, &c);
	assert_int_equal(c.copied, 0);
	assert_int_equal(c.stale, 1);
	free(again);
	free(write_text("made", "x"));
	two = strstr(strchr(first, '\n'), "\"v\":1");
	two[4] = '2'; /* of a's record */
	free(done);
	done = write_text("done.jsonl", first);
	s.opts.done = done;
	again = run(s, input, VFM_EINPUT, &c);
	assert_int_equal(c.copied, 0);
	free(again);
	free(first);
	free(done);
	free(made);
	free(input);
}

static void test_duplicate_ids(void **state)
{
	char *input = write_text("in.jsonl",
		"{\"id\":\"a\",\"drop\":\"x: y\"}\n{\"id\":\"a\",\"n\":1}\n{\"id\":\"b\",\"n\":1}\n"
		"{\"id\":\"a\",\"n\":2}\n{\"id\":\"a\",\"error\":\"e\"}\n{\"n\":1}\n{\"n\":2}\n"
		"{\"n\":1,\"v\":1,\"id\":\"a\",\"src\":\"copy\"}\n");
	struct vfm_stage s = {.name = "work", .fn = work, .unique_ids = true};
	struct vfm_stage_counts c;
	char *one, *many;

	(void)state;
	one = run(s, input, VFM_EINPUT, &c);
	assert_int_equal(c.out, 4);
	assert_int_equal(c.dropped, 2);
	assert_int_equal(c.failed, 2);
	assert_int_equal(c.failed_here, 1);
	assert_non_null(
		strstr(one, "\"src\":\"copy\",\"drop\":\"work: equal to an earlier record, but for its path\"}"));
	assert_non_null(strstr(one, "{\"v\":1,\"id\":\"a\",\"n\":2,\"error\":\"input record 2 has the id 'a' too, "));
	s.opts.jobs = 5;
	many = run(s, input, VFM_EINPUT, &c);
	assert_string_equal(one, many);
	free(many);
	s.opts.done = write_text("done.jsonl", one);
	many = run(s, input, VFM_EINPUT, &c); /* the second a is not copied from the first */
	assert_string_equal(one, many);
	assert_int_equal(c.copied, 2); /* records without id and src are not */
	free((char *)(uintptr_t)s.opts.done);
	free(many);
	free(one);
	free(input);
}

static int stop(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	(void)out, (void)ctx, (void)worker;
	if (json_integer_value(json_object_get(rec, "n")) == 20)
		return vfm_fail(err, VFM_EENV, "no space");
	return 0;
}

static void test_environment_stops(void **state)
{
	char *input = numbers(100), *text;
	struct vfm_stage_counts c;

	(void)state;
	for (int jobs = 1; jobs <= 4; jobs += 3) {
		text = run((struct vfm_stage){.name = "stop", .fn = stop, .opts = {.jobs = jobs}}, input, VFM_EENV, &c);
		assert_int_equal(c.written, 20); /* all before it, nothing after it */
		free(text);
	}
	free(input);
}

static void test_share_text(void **state)
{
	static const char *const bad[] = {"", "1", "3/3", "-1/3", "1/0", "a/b", "1/2/3", "1 /2", "1/2 "};
	int64_t i, n;

	(void)state;
	assert_int_equal(vfm_share_parse("2/5", &i, &n, NULL), 0);
	assert_int_equal(i, 2);
	assert_int_equal(n, 5);
	for (size_t k = 0; k < sizeof(bad) / sizeof(bad[0]); k++)
		assert_int_equal(vfm_share_parse(bad[k], &i, &n, NULL), VFM_EUSAGE);
	setenv("SLURM_ARRAY_TASK_ID", "7", 1);
	setenv("SLURM_ARRAY_TASK_COUNT", "4", 1);
	setenv("SLURM_ARRAY_TASK_MIN", "1", 1);
	setenv("SLURM_ARRAY_TASK_STEP", "2", 1);
	assert_int_equal(vfm_share_parse(NULL, &i, &n, NULL), 0);
	assert_int_equal(i, 3);
	assert_int_equal(n, 4);
	setenv("SLURM_STEP_NUM_TASKS", "2", 1); /* a step of the array task: its tasks divide the share */
	setenv("SLURM_PROCID", "1", 1);
	assert_int_equal(vfm_share_parse(NULL, &i, &n, NULL), 0);
	assert_int_equal(i, 7);
	assert_int_equal(n, 8);
	unsetenv("SLURM_ARRAY_TASK_ID");
	setenv("SLURM_NTASKS", "8", 1); /* of the job: not read */
	setenv("SLURM_JOB_ID", "5", 1);
	assert_int_equal(vfm_share_parse("task", &i, &n, NULL), 0);
	assert_int_equal(i, 1);
	assert_int_equal(n, 2);
	unsetenv("SLURM_PROCID");
	assert_int_equal(vfm_share_parse(NULL, &i, &n, NULL), VFM_EUSAGE); /* which task? */
	assert_int_equal(vfm_share_parse("0/3", &i, &n, NULL), 0);
	setenv("SLURM_PROCID", "0", 1);
	setenv("SLURM_STEP_NUM_TASKS", "1", 1); /* a shell of salloc */
	assert_int_equal(vfm_share_parse("task", &i, &n, NULL), 0);
	assert_int_equal(i, 0);
	assert_int_equal(n, 1);
	unsetenv("SLURM_STEP_NUM_TASKS"); /* the script of a job is not a task */
	assert_int_equal(vfm_share_parse(NULL, &i, &n, NULL), 0);
	assert_int_equal(n, 1);
	assert_int_equal(vfm_share_parse("task", &i, &n, NULL), VFM_EUSAGE);
	unsetenv("SLURM_PROCID");
	unsetenv("SLURM_NTASKS");
	unsetenv("SLURM_JOB_ID");
	setenv("SLURM_ARRAY_TASK_ID", "8", 1);
	assert_int_equal(vfm_share_parse(NULL, &i, &n, NULL), VFM_EUSAGE);
	unsetenv("SLURM_ARRAY_TASK_ID");
	unsetenv("SLURM_ARRAY_TASK_COUNT");
}

static void test_share_file(void **state)
{
	char *name;

	(void)state;
	assert_int_equal(vfm_share_file(&name, "a.%t.b%%%t", 12, NULL), 0);
	assert_string_equal(name, "a.12.b%12");
	free(name);
	assert_int_equal(vfm_share_file(&name, "", 0, NULL), 0);
	assert_string_equal(name, "");
	free(name);
	assert_int_equal(vfm_share_file(&name, "a%d", 0, NULL), VFM_EUSAGE);
	assert_int_equal(vfm_share_file(&name, "a%", 0, NULL), VFM_EUSAGE);
}

static void test_numbers_of_records(void **state)
{
	static const char text[] = "{\"width\":3,\"score\":{\"motion\":0.5,\"no\":null},\"a\":{\"b\":{\"c\":7}}}";
	json_t *rec = vfm_json_parse(text, strlen(text), "x", NULL);
	double x;

	(void)state;
	assert_non_null(rec);
	assert_true(vfm_rec_num(rec, "width", &x) && x == 3);
	assert_true(vfm_rec_num(rec, "motion", &x) && x == 0.5);
	assert_true(vfm_rec_num(rec, "score.motion", &x) && x == 0.5);
	assert_true(vfm_rec_num(rec, "a.b.c", &x) && x == 7);
	assert_false(vfm_rec_num(rec, "no", &x));
	assert_false(vfm_rec_num(rec, "a.b", &x));
	assert_false(vfm_rec_num(rec, "a.b.c.d", &x));
	json_decref(rec);
}

/* ---- headers ---- */

#define ENTRY(tool, options) "{\"tool\":\"" tool "\",\"version\":\"1\",\"options\":\"" options "\"}"
#define HEADER(entries)      "{\"v\":1,\"provenance\":[" entries "]}\n"

/* Returns the tools and options of the headers in `text`, a line each, and counts the other lines. */
static char *chains(const char *text, int *n_records)
{
	struct vfm_buf b = {0};

	*n_records = 0;
	vfm_buf_adds(&b, "");
	for (const char *end; *text; text = end + 1) {
		json_t *rec, *entry;
		size_t i;

		end = strchr(text, '\n');
		rec = json_loadb(text, (size_t)(end - text), 0, NULL);
		assert_non_null(rec);
		if (json_object_get(rec, "provenance")) {
			json_array_foreach(json_object_get(rec, "provenance"), i, entry) vfm_buf_addf(&b, "%s%s:%s",
				i ? " " : "", vfm_rec_str(entry, "tool", "?"), vfm_rec_str(entry, "options", ""));
			vfm_buf_adds(&b, "\n");
		} else {
			++*n_records;
		}
		json_decref(rec);
	}
	return b.data;
}

static void check_chains(const char *text, const char *want, int want_records)
{
	int n;
	char *got = chains(text, &n);

	assert_string_equal(got, want);
	assert_int_equal(n, want_records);
	free(got);
}

static void test_header(void **state)
{
	struct vfm_buf b = {0};
	struct vfm_stage s = {.name = "keep", .fn = keep, .options = "x 1"};
	struct vfm_stage_counts c;
	char *input = write_text("in.jsonl", ""), *text;
	int calls = 0;

	(void)state;
	text = run(s, input, 0, &c);
	check_chains(text, "vfm-curate keep:x 1\n", 0); /* no input: the stage ran */
	assert_int_equal(c.in + c.written, 0);
	free(text);
	free(input);

	/* Headers of files that were concatenated: before the records, between them, equal ones, at the end. */
	vfm_buf_adds(&b, HEADER(ENTRY("a", "") "," ENTRY("b", "1")) HEADER(ENTRY("a", "") "," ENTRY("b", "2")));
	for (int i = 0; i < 60; i++)
		vfm_buf_addf(&b, "{\"id\":\"r%d\",\"n\":%d}\n%s", i, i % 5,
			i == 20           ? HEADER(ENTRY("a", "") "," ENTRY("c", "") "," ENTRY("b", "2"))
				: i == 40 ? HEADER(ENTRY("b", "1"))
					  : "");
	vfm_buf_adds(&b, HEADER(ENTRY("d", "")));
	input = write_text("in.jsonl", b.data);
	for (int jobs = 1; jobs < 9; jobs += 7) {
		s = (struct vfm_stage){.name = "work", .fn = work, .ctx = &calls, .opts = {.jobs = jobs}};
		calls = 0;
		text = run(s, input, 0, &c);
		check_chains(text,
			"a: b:1 b:2 vfm-curate work:\n"
			"a: b:1 c: b:2 vfm-curate work:\n"
			"a: b:1 c: b:2 d: vfm-curate work:\n",
			60);
		assert_non_null(strstr(text, "\"id\":\"r20\",\"n\":0,\"twice\":0,\"by\":"));
		assert_non_null(strstr(strstr(text, "\"id\":\"r20\""), "\n{\"v\":1,\"provenance\":"));
		assert_true(strstr(strstr(text, "\"id\":\"r20\""), "\"provenance\"") < strstr(text, "\"id\":\"r21\""));
		assert_int_equal(calls, 60);
		assert_int_equal(c.in, 60);
		assert_int_equal(c.written, 60);
		free(text);
	}
	/* A share has all headers; a silent stage writes none; the own output adds nothing. */
	s = (struct vfm_stage){.name = "keep", .fn = keep, .opts = {.share = "1/3"}};
	text = run(s, input, 0, &c);
	assert_int_equal(c.in + c.other_shares, 60);
	check_chains(text,
		"a: b:1 b:2 vfm-curate keep:\na: b:1 c: b:2 vfm-curate keep:\na: b:1 c: b:2 d: vfm-curate keep:\n",
		(int)c.in);
	free(input);
	input = write_text("in.jsonl", text);
	free(text);
	text = run((struct vfm_stage){.name = "keep", .fn = keep}, input, 0, &c);
	check_chains(strstr(text, "\n") + 1, "a: b:1 c: b:2 vfm-curate keep:\na: b:1 c: b:2 d: vfm-curate keep:\n",
		(int)c.in);
	free(text);
	text = run((struct vfm_stage){.name = "keep", .fn = keep, .silent = true, .serial = true}, input, 0, &c);
	assert_string_equal(text, "");
	free(text);
	free(input);
	vfm_buf_release(&b);
}

static void test_damaged_header(void **state)
{
	static const char *const bad[][2] = {{"7", "expected a list of stages"},
		{"[{\"tool\":\"a\"},{\"tool\":7}]", "provenance[1].tool: expected a string, got an integer"},
		{"[{\"tool\":\"a\",\"options\":[]}]", "provenance[0].options: expected a string"},
		{"[{\"tool\":\"a\",\"maker\":\"b\"}]", "provenance[0].maker: expected an object"},
		{"[[]]", "provenance[0]: expected an object"}, {"[{}]", "provenance[0].tool: "}};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		char *lines = vfm_strfmt("{\"id\":\"a\"}\n{\"v\":1,\"provenance\":%s}\n{\"id\":\"b\"}\n", bad[i][0]),
		     *input = write_text("in.jsonl", lines);
		struct vfm_stage_counts c;
		char *text = run((struct vfm_stage){.name = "keep", .fn = keep}, input, VFM_EINPUT, &c);

		assert_non_null(strstr(text, "in.jsonl:2: "));
		assert_non_null(strstr(text, bad[i][1]));
		assert_int_equal(c.out, 2);
		assert_int_equal(c.failed_here, 1);
		check_chains(text, "vfm-curate keep:\n", 3);
		free(text);
		free(input);
		free(lines);
	}
}

/* A record with a key "provenance" of its own is no header, and a header that jq has edited is one. */
static void test_records_like_headers(void **state)
{
	char *input = write_text("in.jsonl",
		"{\"id\":\"a\",\"provenance\":\"a web site\"}\n{\"src\":\"b\",\"provenance\":[\"a\",\"b\"]}\n"
		"{\"v\":1,\"id\":\"-2\",\"caption\":\"x\",\"provenance\":[" ENTRY(
			"a", "1") "]}\n"
				  "{\"v\":2,\"provenance\":[" ENTRY("b", "1") "]}\n");
	struct vfm_stage_counts c;
	char *text = run((struct vfm_stage){.name = "keep", .fn = keep}, input, VFM_EINPUT, &c);

	(void)state;
	assert_int_equal(c.out, 2);
	assert_int_equal(c.failed, 1); /* version 2 */
	assert_non_null(strstr(text, "\"id\":\"a\",\"provenance\":\"a web site\",\"by\":"));
	assert_non_null(strstr(text, "in.jsonl:4: v: expected record version 1"));
	free(text);
	free(input);
}

/* Copied records of another version of the program: its entry stays; that of other options does not. */
static void test_header_of_done(void **state)
{
	char *input = numbers(3), *done, *text, *old, *release;
	struct vfm_stage s = {.name = "keep", .fn = keep, .options = "x 1"};
	struct vfm_stage_counts c;
	int n;

	(void)state;
	old = run(s, input, 0, NULL);
	release = strstr(old, "\"version\":\"") + 11;
	*release = *release == '9' ? '8' : '9';
	done = write_text("done.jsonl", old);
	s.opts.done = done;
	text = run(s, input, 0, &c);
	assert_int_equal(c.copied, 3);
	check_chains(text, "vfm-curate keep:x 1 vfm-curate keep:x 1\n", 3);
	free(text);
	s.options = "x 2";
	text = run(s, input, 0, &c);
	assert_int_equal(c.copied, 0);
	free(chains(text, &n));
	check_chains(text, "vfm-curate keep:x 2\n", 3);
	free(text);
	free(old);
	free(done);
	free(input);
}

static void test_huge_chain(void **state)
{
	struct vfm_buf b = {0};
	struct vfm_stage_counts c;
	char *input, *text;

	(void)state;
	for (int header = 0; header < 3; header++) {
		vfm_buf_adds(&b, "{\"v\":1,\"provenance\":[");
		for (int i = 0; i < 400; i++)
			vfm_buf_addf(&b, "%s{\"tool\":\"t%d-%d\"}", i ? "," : "", header, i);
		vfm_buf_adds(&b, "]}\n");
	}
	vfm_buf_adds(&b, "{\"id\":\"a\"}\n{\"v\":1,\"provenance\":[{\"tool\":\"big\",\"options\":\"");
	for (int i = 0; i < 5 << 17; i++)
		vfm_buf_adds(&b, "0123 567");
	vfm_buf_adds(&b, "\"}]}\n");
	input = write_text("in.jsonl", b.data);
	text = run((struct vfm_stage){.name = "keep", .fn = keep}, input, VFM_EINPUT, &c);
	assert_int_equal(c.out, 1);
	assert_int_equal(c.failed_here, 2);
	assert_non_null(strstr(text, "in.jsonl:3: provenance: 1200 entries with those of earlier headers"));
	assert_non_null(strstr(text, "in.jsonl:5: provenance: more than 4194304 bytes"));
	assert_non_null(strstr(text, "t1-399"));
	assert_null(strstr(text, "t2-0"));
	free(text);
	free(input);
	vfm_buf_release(&b);
}

/* As vfm_stage.lines: has an output for each record whose id begins with "mine". */
static int give_lines(struct vfm_stage_loop *l, const struct vfm_stage *s, struct vfm_err *err)
{
	struct vfm_jsonl_block b = {0};
	struct vfm_jsonl in = {0};
	int rc = vfm_jsonl_open(&in, s->files[0], err);

	while (rc >= 0 && (rc = vfm_jsonl_block_read(&in, &b, 32, err)) == 1) {
		vfm_jsonl_block_split(&b);
		struct vfm_stage_output o[16] = {0};
		struct vfm_buf text = {0};

		assert_true(b.n <= 16);
		vfm_buf_adds(&text, "");
		for (size_t i = 0; i < b.n; i++) {
			const char *id = strstr(b.lines[i].text, "mine");

			o[i].len = id ? strlen("mine\n") : 0;
			vfm_buf_adds(&text, id ? "mine\n" : "");
			vfm_sample_hash(id && id[4] == '2' ? "mine2" : "mine", o[i].hash);
		}
		rc = vfm_stage_take(l, &b, o, text.data, err);
		vfm_buf_release(&text);
	}
	vfm_jsonl_block_release(&b);
	vfm_jsonl_close(&in);
	return rc;
}

/* A stage that reads its lines writes some outputs itself; what precedes them, and all others, the loop does. */
static void test_lines(void **state)
{
	char *input = write_text("in.jsonl",
		"{\"id\":\"a\",\"n\":1}\n{\"id\":\"mine\",\"n\":1}\nno record\n{\"id\":\"mine\",\"n\":1}\n" HEADER(
			ENTRY("x", "")) "{\"id\":\"mine2\",\"n\":1}\n" HEADER(ENTRY("y", "")));
	struct vfm_stage s = {.name = "work", .fn = work, .unique_ids = true, .lines = give_lines};
	char *text, *save, *line[10] = {0};
	struct vfm_stage_counts c;
	int n = 0;

	(void)state;
	text = run(s, input, VFM_EINPUT, &c);
	assert_true(c.in == 5 && c.out == 3 && c.failed == 2 && c.failed_here == 2 && c.written == 5);
	for (char *t = strtok_r(text, "\n", &save); t && n < 10; t = strtok_r(NULL, "\n", &save))
		line[n++] = t;
	assert_int_equal(n, 8);
	assert_non_null(strstr(line[0], "\"provenance\""));
	assert_non_null(strstr(line[1], "\"id\":\"a\",\"n\":1,\"twice\":2"));
	assert_string_equal(line[2], "mine");
	assert_non_null(strstr(line[3], "in.jsonl:3: "));
	assert_non_null(strstr(line[4], "input record 2 has the id 'mine' too"));
	assert_non_null(strstr(line[5], "\"tool\":\"x\""));
	assert_non_null(strstr(line[6], "\"id\":\"mine2\",\"n\":1,\"twice\":2"));
	assert_non_null(strstr(line[7], "\"tool\":\"y\""));
	free(text);
	free(input);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_order_and_counts, setup, teardown),
		cmocka_unit_test_setup_teardown(test_seconds, setup, teardown),
		cmocka_unit_test_setup_teardown(test_what_is_out_passes, setup, teardown),
		cmocka_unit_test_setup_teardown(test_shares, setup, teardown),
		cmocka_unit_test_setup_teardown(test_lines, setup, teardown),
		cmocka_unit_test_setup_teardown(test_done, setup, teardown),
		cmocka_unit_test_setup_teardown(test_done_needs_outputs_and_version, setup, teardown),
		cmocka_unit_test_setup_teardown(test_duplicate_ids, setup, teardown),
		cmocka_unit_test_setup_teardown(test_environment_stops, setup, teardown),
		cmocka_unit_test_setup_teardown(test_header, setup, teardown),
		cmocka_unit_test_setup_teardown(test_damaged_header, setup, teardown),
		cmocka_unit_test_setup_teardown(test_records_like_headers, setup, teardown),
		cmocka_unit_test_setup_teardown(test_header_of_done, setup, teardown),
		cmocka_unit_test_setup_teardown(test_huge_chain, setup, teardown),
		cmocka_unit_test(test_share_text),
		cmocka_unit_test(test_share_file),
		cmocka_unit_test(test_numbers_of_records),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
