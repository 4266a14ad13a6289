/* JSON documents and JSON Lines, with hostile input. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/file.h"
#include "io/json.h"

static struct vfm_err err;

static void getters(void **state)
{
	json_t *d = vfm_json_parse("{\"model\":{\"layers\":12,\"lr\":0.5,\"big\":1e6,\"half\":0.5,\"on\":true,\"name\":"
				   "\"x\",\"no\":null}}",
		80, "c.json", &err);
	const json_t *m;
	int64_t i = 7;
	double f = 7;
	const char *s = "7";

	(void)state;
	assert_null(d); /* cut short */
	assert_memory_equal(err.msg, "c.json:1:", 9);
	d = json_pack("{s{si,sf,sf,sf,sb,ss,sn}}", "model", "layers", 12, "lr", 0.5, "big", 1e6, "half", 0.5, "on", 1,
		"name", "x", "no");
	assert_non_null(d);
	m = json_object_get(d, "model");
	assert_int_equal(vfm_json_i64(m, "model", "layers", true, 1, 100, &i, &err), 0);
	assert_int_equal(i, 12);
	assert_int_equal(vfm_json_i64(m, "model", "big", true, 1, INT64_MAX, &i, &err), 0);
	assert_int_equal(i, 1000000);
	assert_int_equal(vfm_json_f64(m, "model", "layers", true, &f, &err), 0);
	assert_true(f == 12);
	assert_int_equal(vfm_json_str(m, "model", "name", true, &s, &err), 0);
	assert_string_equal(s, "x");
	/* absent or null, and not required: unchanged */
	assert_int_equal(vfm_json_f64(m, "model", "none", false, &f, &err), 0);
	assert_int_equal(vfm_json_f64(m, "model", "no", false, &f, &err), 0);
	assert_true(f == 12);
	assert_int_equal(vfm_json_i64(m, "model", "name", true, 0, 9, &i, &err), VFM_EUSAGE);
	assert_string_equal(err.msg, "model.name: expected an integer, got a string");
	assert_int_equal(vfm_json_i64(m, "model", "half", true, 0, 9, &i, &err), VFM_EUSAGE);
	assert_string_equal(err.msg, "model.half: expected an integer, got 0.5");
	assert_int_equal(vfm_json_i64(m, "model", "layers", true, 0, 9, &i, &err), VFM_EUSAGE);
	assert_string_equal(err.msg, "model.layers: expected an integer from 0 to 9, got 12");
	assert_int_equal(vfm_json_f64(m, "model", "none", true, &f, &err), VFM_EUSAGE);
	assert_string_equal(err.msg, "model.none: missing (expected a number)");
	assert_int_equal(vfm_json_f64(d, "", "model", true, &f, &err), VFM_EUSAGE);
	assert_string_equal(err.msg, "model: expected a number, got an object");
	assert_int_equal(vfm_json_f64(json_object_get(m, "name"), "model.name", "x", true, &f, &err), VFM_EUSAGE);
	assert_string_equal(err.msg, "model.name: expected an object, got a string");
	assert_int_equal(vfm_json_only_keys(m, "model",
				 (const char *const[]){"layers", "lr", "bog", "half", "on", "name", "no", NULL}, &err),
		VFM_EUSAGE);
	assert_string_equal(err.msg, "model.big: unknown key (did you mean 'bog'?)");
	assert_int_equal(vfm_json_only_keys(d, "", (const char *const[]){"model", NULL}, &err), 0);
	json_decref(d);
}

static void text_of(const char *in, int indent, const char *want)
{
	json_t *v = vfm_json_parse(in, strlen(in), "t", &err);
	struct vfm_buf b = {0};

	assert_non_null(v);
	vfm_json_text(&b, v, indent);
	assert_string_equal(b.data, want);
	vfm_buf_release(&b);
	json_decref(v);
}

static void writing(void **state)
{
	json_t *v;

	(void)state;
	text_of("{ \"z\" : [1, 2.5, -0.0, 0.1, 1e300, 100.0], \"a\":{}, \"n\":null}", 0,
		"{\"z\":[1,2.5,-0.0,0.1,1e+300,100.0],\"a\":{},\"n\":null}");
	text_of("[\"a\\\"\\\\\\n\\u0001\\u00e9\x7f/\"]", 0, "[\"a\\\"\\\\\\n\\u0001\xc3\xa9\x7f/\"]");
	text_of("{\"a\":{\"b\":[1,2],\"c\":true},\"d\":[]}", 2,
		"{\n  \"a\": {\n    \"b\": [1, 2],\n    \"c\": true\n  },\n  \"d\": []\n}");
	text_of("[0.1234567890123456789]", 0, "[0.12345678901234568]");
	v = vfm_json_real(NAN);
	assert_true(json_is_null(v));
	json_decref(v);
	v = vfm_json_real(-INFINITY);
	assert_true(json_is_null(v));
	json_decref(v);
}

/* Doubles read back equal; the writer is compared with the parser on many values. */
static void reals_survive(void **state)
{
	uint64_t bits = 88172645463325252u;

	(void)state;
	for (int i = 0; i < 20000; i++) {
		struct vfm_buf b = {0};
		json_t *v, *w;
		double x;

		bits ^= bits << 13, bits ^= bits >> 7, bits ^= bits << 17;
		memcpy(&x, &bits, 8);
		if (!isfinite(x) || (x != 0 && fabs(x) < 1e-300)) /* libjansson calls an underflow an error */
			continue;
		v = json_pack("[o]", json_real(x));
		vfm_json_text(&b, v, 0);
		w = vfm_json_parse(b.data, b.len, "t", &err);
		assert_non_null(w);
		assert_true(json_real_value(json_array_get(w, 0)) == x);
		json_decref(v);
		json_decref(w);
		vfm_buf_release(&b);
	}
}

static void loading(void **state)
{
	char path[] = "/tmp/vfm-json.XXXXXX";
	int fd = mkstemp(path);

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(write(fd, "{\"a\": 1,\n \"a\": 2}", 17), 17);
	close(fd);
	assert_null(vfm_json_load(path, 1000, &err)); /* a key twice */
	assert_int_equal(err.code, VFM_EUSAGE);
	assert_non_null(strstr(err.msg, ":2:"));
	assert_null(vfm_json_load(path, 10, &err));
	assert_non_null(strstr(err.msg, "too large"));
	unlink(path);
	assert_null(vfm_json_load(path, 10, &err));
	assert_int_equal(err.code, VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "No such file"));
}

/* ---- lines ---- */

static struct vfm_jsonl open_bytes(const char *bytes, size_t len)
{
	struct vfm_jsonl r = {.max_line = 100000};
	char path[] = "/tmp/vfm-jsonl.XXXXXX";
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, len), (ssize_t)len);
	close(fd);
	assert_int_equal(vfm_jsonl_open(&r, path, &err), 0);
	unlink(path);
	return r;
}

/* Reads to the end.  Returns the codes of all calls as a string: r record, x bad line. */
static const char *codes(struct vfm_jsonl *r)
{
	static char s[64];
	size_t n = 0;

	memset(s, 0, sizeof(s));
	while (n < sizeof(s) - 1) {
		json_t *v;
		int rc = vfm_jsonl_next(r, &v, &err);

		if (rc == 0)
			return s;
		assert_true(rc == 1 || rc == VFM_EINPUT);
		assert_true((rc == 1) == (v != NULL));
		s[n++] = rc == 1 ? 'r' : 'x';
		json_decref(v);
	}
	return s;
}

static void lines(void **state)
{
	static const char in[] = "\xEF\xBB\xBF{\"a\":1}\r\n"
				 "\n  \t\r\n"
				 "{\"a\":\n"              /* 4: broken */
				 "[1]\n"                  /* 5: no object */
				 "3\n"                    /* 6 */
				 "{\"a\":1} x\n"          /* 7: something after it */
				 "{\"a\":\"\xff\xfe\"}\n" /* 8: not UTF-8 */
				 "{\"a\":\0001}\n"        /* 9: a NUL byte */
				 "\0\n"                   /* 10 */
				 "{\"a\":\"\\u0000\"}\n"  /* 11: a NUL that would cut a C string */
				 "{\"a\":1,\"a\":2}\n"    /* 12 */
				 "{\"a\":99999999999999999999}\n"
				 "{\"a\":1e999}\n"
				 "{\"a\":NaN}\n"
				 "{\"b\":\"\\ud800\"}\n" /* half a surrogate pair */
				 "{\"last\":true}";      /* no newline */
	struct vfm_jsonl r = open_bytes(in, sizeof(in) - 1);
	json_t *v;

	(void)state;
	assert_int_equal(vfm_jsonl_next(&r, &v, &err), 1);
	assert_int_equal(r.line, 1);
	json_decref(v);
	assert_int_equal(vfm_jsonl_next(&r, &v, &err), VFM_EINPUT);
	assert_int_equal(r.line, 4);
	assert_non_null(strstr(err.msg, ":4: "));
	assert_int_equal(vfm_jsonl_next(&r, &v, &err), VFM_EINPUT);
	assert_non_null(strstr(err.msg, ":5: expected an object, got an array"));
	assert_string_equal(codes(&r), "xxxxxxxxxxxr");
	assert_int_equal(r.line, 17);
	vfm_jsonl_close(&r);
}

static void depth_bomb(void **state)
{
	enum { N = 90000 };
	char *in = vfm_malloc(N + 20);
	struct vfm_jsonl r;

	(void)state;
	memset(in, '[', N);
	memcpy(in + N, "\n{\"a\":1}\n", 9);
	r = open_bytes(in, N + 9);
	assert_string_equal(codes(&r), "xr");
	vfm_jsonl_close(&r);
	free(in);
}

static void long_line(void **state)
{
	enum { N = 300000 };
	char *in = vfm_malloc(N + 20);
	struct vfm_jsonl r;
	json_t *v;

	(void)state;
	memset(in, ' ', N);
	memcpy(in + N, "\n{\"a\":1}\n", 9);
	r = open_bytes(in, N + 9);
	assert_int_equal(vfm_jsonl_next(&r, &v, &err), VFM_EINPUT);
	assert_non_null(strstr(err.msg, ":1: line is too long (300000 bytes, at most 100000)"));
	assert_true(r.cap <= 2 * 100000); /* the reader did not store the line */
	assert_string_equal(codes(&r), "r");
	vfm_jsonl_close(&r);
	free(in);
}

static void open_errors(void **state)
{
	struct vfm_jsonl r = {0};
	json_t *v;

	(void)state;
	assert_int_equal(vfm_jsonl_open(&r, "/nowhere/x.jsonl", &err), VFM_EUSAGE);
	assert_string_equal(err.msg, "cannot open '/nowhere/x.jsonl': No such file or directory");
	vfm_jsonl_close(&r);
	assert_int_equal(vfm_jsonl_open(&r, "/", &err), 0);
	assert_int_equal(vfm_jsonl_next(&r, &v, &err), VFM_EENV);
	assert_string_equal(err.msg, "cannot read '/': Is a directory");
	vfm_jsonl_close(&r);
}

static void full_disk(void **state)
{
	FILE *f = fopen("/dev/full", "w");
	json_t *v = json_pack("{si}", "a", 1);
	int rc = 0;

	(void)state;
	assert_non_null(f);
	for (int i = 0; i < 10000 && rc == 0; i++)
		rc = vfm_jsonl_write(f, v, &err);
	assert_int_equal(rc, VFM_EENV);
	assert_string_equal(err.msg, "cannot write record: No space left on device");
	fclose(f);
	json_decref(v);
}

/* Blocks of any size have the lines that are read one by one. */
static void blocks(void **state)
{
	static const char *const files[] = {"", "\n", "{}", "\xEF\xBB\xBF{\"a\":1}\n\n \t\n{\"b\":2}\r\n{\"c\":3}",
		"{\"a\":1}\n0123456789012345678901234567890123456789\n{\"b\":2}\n",
		"01234567890123456789012345678901234567890123456789", "\n\n{}\n\n\n{}\n\n"};

	(void)state;
	for (size_t f = 0; f < sizeof(files) / sizeof(*files); f++)
		for (size_t bytes = 1; bytes < 70; bytes++) {
			struct vfm_jsonl one = open_bytes(files[f], strlen(files[f])),
					 many = open_bytes(files[f], strlen(files[f]));
			struct vfm_jsonl_block b = {0};
			struct vfm_err of_one, of_many;
			const char *text;
			size_t len;
			int rc;

			one.max_line = many.max_line = 30;
			while ((rc = vfm_jsonl_block_read(&many, &b, bytes, &err)) == 1) {
				vfm_jsonl_block_split(&b);
				for (size_t i = 0; i < b.n; i++) {
					rc = vfm_jsonl_text(&one, &text, &len, &of_one);
					assert_int_equal(rc, b.lines[i].too_long ? VFM_EINPUT : 1);
					assert_int_equal(b.lines[i].line, one.line);
					if (rc == VFM_EINPUT) {
						vfm_jsonl_too_long(&one, b.lines[i].line, b.lines[i].len, &of_many);
						assert_string_equal(of_many.msg, of_one.msg);
						continue;
					}
					assert_int_equal(b.lines[i].len, len);
					assert_string_equal(b.lines[i].text, text);
				}
			}
			assert_int_equal(rc, 0);
			assert_int_equal(vfm_jsonl_text(&one, &text, &len, &of_one), 0);
			vfm_jsonl_block_release(&b);
			vfm_jsonl_close(&one);
			vfm_jsonl_close(&many);
		}
}

/* Documents as Python's json writes them, and texts that records take. */
static void foreign(void **state)
{
	static const char *const same[][2] = {{"[NaN,-Infinity,Infinity]", "[null,null,null]"},
		{"\xEF\xBB\xBF{\"a\":NaN}", "{\"a\":null}"},
		{"[\"NaN\",\"\\\"Infinity\"]", "[\"NaN\",\"\\\"Infinity\"]"},
		{"[9223372036854775807,-9223372036854775808]", "[9223372036854775807,-9223372036854775808]"},
		{"[9223372036854775808]", "[9223372036854775808.0]"}, {"[1e999,-9e308,1e-999]", "[null,null,0.0]"}};
	static const char *const bad[] = {"[nan]", "[-NaN]", "[NaN1]", "[01]", "[00000000000000000001]", "[1.]", "[1e]",
		"[12345678901234567890e]", "[12345678901234567890x]", "[1e999.5]", "[-]", "[Infinity", "[\"Infinity]",
		"{NaN:1}", "{\"a\":1,\"a\":2}", "[\"\\u0000\"]", "NaN", ""};
	json_t *v, *w;

	(void)state;
	for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
		v = vfm_json_parse_foreign(same[i][0], strlen(same[i][0]), "f", &err);
		w = vfm_json_parse(same[i][1], strlen(same[i][1]), "f", &err);
		assert_non_null(v);
		assert_true(json_equal(v, w));
		json_decref(v);
		json_decref(w);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_null(vfm_json_parse_foreign(bad[i], strlen(bad[i]), "f", &err));
	assert_null(vfm_json_string("a\0b", 3, "the text", &err));
	assert_string_equal(err.msg, "the text has a zero byte");
	assert_null(vfm_json_string("\xed\xa0\x80", 3, "the text", &err));
	assert_string_equal(err.msg, "the text is not UTF-8");
	assert_false(vfm_json_takes("\xff"));
	v = vfm_json_shown("a\xff");
	assert_string_equal(json_string_value(v), "a?");
	json_decref(v);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(getters),
		cmocka_unit_test(writing),
		cmocka_unit_test(reals_survive),
		cmocka_unit_test(loading),
		cmocka_unit_test(lines),
		cmocka_unit_test(depth_bomb),
		cmocka_unit_test(long_line),
		cmocka_unit_test(blocks),
		cmocka_unit_test(open_errors),
		cmocka_unit_test(full_disk),
		cmocka_unit_test(foreign),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
