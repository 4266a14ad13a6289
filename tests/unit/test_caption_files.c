/* Captions of other programs: texts and values against a second implementation on random input, tables of many names,
 * and paths. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/philox.h"
#include "curate/table/caption_table.h"
#include "curate/table/caption_value.h"
#include "io/file.h"
#include "io/json.h"

/* The lines of a text by Python's rules: CRLF, CR and LF end one; each is stripped; empty ones do not count. */
static int split_lines(const char *text, char lines[64][64])
{
	int n = 0;

	for (const char *p = text; *p;) {
		size_t len = strcspn(p, "\r\n"), a = 0, b = len;

		while (a < b && (p[a] == ' ' || p[a] == '\t'))
			a++;
		while (b > a && (p[b - 1] == ' ' || p[b - 1] == '\t'))
			b--;
		if (b > a)
			snprintf(lines[n++], 64, "%.*s", (int)(b - a), p + a);
		p += len;
		p += *p == '\r' && p[1] == '\n' ? 2 : *p != 0;
	}
	return n;
}

static void random_texts(void **state)
{
	static const char letters[] = "ab \t\r\n\r\nc";
	struct vfm_rng r = vfm_rng_stream(7, 0, 0, VFM_RNG_CAPTION);
	uint64_t k = 0;

	(void)state;
	for (int round = 0; round < 20000; round++) {
		char text[64], lines[64][64];
		size_t len = (size_t)(vfm_rng_uniform(&r, k++) * 40);
		json_t *whole, *by_line;
		struct vfm_err err;
		int n, rc;

		for (size_t i = 0; i < len; i++)
			text[i] = letters[(size_t)(vfm_rng_uniform(&r, k++) * (sizeof(letters) - 1))];
		text[len] = 0;
		n = split_lines(text, lines);
		rc = vfm_caption_of_text(&by_line, text, len, true, "text", &err);
		if (n > 16) {
			assert_int_equal(rc, VFM_EINPUT);
		} else if (n <= 1) {
			assert_string_equal(json_string_value(by_line), n ? lines[0] : "");
		} else {
			assert_int_equal(json_object_size(by_line), n);
			for (int i = 0; i < n; i++) {
				char name[16];

				snprintf(name, sizeof(name), "%d", i + 1);
				assert_string_equal(json_string_value(json_object_get(by_line, name)), lines[i]);
			}
		}
		assert_int_equal(vfm_caption_of_text(&whole, text, len, false, "text", &err), 0);
		assert_null(strchr(json_string_value(whole), '\r'));
		assert_true(vfm_caption_is_empty(whole) == (n == 0));
		json_decref(whole);
		json_decref(by_line);
	}
}

static void values(void **state)
{
	static const struct {
		const char *given, *want; /* want NULL: an error */
	} cases[] = {
		{"\" a \"", "\"a\""},
		{"[\"a\"]", "\"a\""},
		{"[\"a\",\" b\"]", "{\"1\":\"a\",\"2\":\"b\"}"},
		{"[]", "null"},
		{"null", "null"},
		{"{\"short\":\" a\",\"long\":\"b\"}", "{\"short\":\"a\",\"long\":\"b\"}"},
		{"5", NULL},
		{"[5]", NULL},
		{"[[\"a\"]]", NULL},
		{"{}", NULL},
		{"{\"Big Name\":\"a\"}", NULL},
		{"{\"a\":5}", NULL},
		{"[1,2,3]", NULL},
		{"[\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\"]", NULL},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		json_t *given = json_loads(cases[i].given, JSON_DECODE_ANY, NULL), *got;
		json_t *want = cases[i].want ? json_loads(cases[i].want, JSON_DECODE_ANY, NULL) : NULL;
		struct vfm_err err;
		int rc = vfm_caption_of_json(&got, given, "value", &err);

		assert_int_equal(rc, want ? 0 : VFM_EINPUT);
		assert_true(
			json_equal(got, json_is_null(want) ? NULL : want) || got == (json_is_null(want) ? NULL : want));
		json_decref(given);
		json_decref(want);
		json_decref(got);
	}
}

static void paths(void **state)
{
	static const char *const cases[][2] = {{"a", "a"}, {"./a", "a"}, {"a//b/./c", "a/b/c"}, {"/a/", "/a/"},
		{"//a", "/a"}, {"././a", "a"}, {"../a", "../a"}, {"a/../b", "a/../b"}, {".a/.b", ".a/.b"}, {"", ""},
		{"a/.", "a/"}};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char *got = vfm_plain_path(cases[i][0]);

		assert_string_equal(got, cases[i][1]);
		free(got);
	}
}

/* Many rows, each found with its caption; the second time in another order. */
static void many_rows(void **state)
{
	enum { N = 20000 };
	struct vfm_caption_table t = {0};
	struct vfm_buf b = {0};
	struct vfm_err err;
	FILE *store = tmpfile();
	char dir[] = "/tmp/vfm-captions.XXXXXX", *path;

	(void)state;
	assert_non_null(mkdtemp(dir));
	path = vfm_strfmt("%s/metadata.jsonl", dir);
	for (int i = 0; i < N; i++)
		vfm_buf_addf(&b, "{\"path\":\"./v/%d.mp4\",\"cap\":[\"c %d\"%s]}\n", i, i, i % 3 ? "" : ",\"d\"");
	assert_int_equal(vfm_write_file(path, b.data, b.len, &err), 0);
	assert_int_equal(vfm_caption_table_open(&t, path, store, true, &err), 1);
	assert_int_equal(t.names.n, N);
	for (int k = 0; k < N; k++) {
		int i = (int)((int64_t)k * 7919 % N);
		char name[40], want[40];
		json_t *caption;
		int64_t row;

		snprintf(name, sizeof(name), "v/%d.mp4", i);
		snprintf(want, sizeof(want), "c %d", i);
		row = vfm_names_find(&t.names, name);
		assert_int_equal(t.rows[row].place, i + 1);
		assert_int_equal(vfm_caption_table_get(&t, row, store, &caption, &err), 0);
		assert_string_equal(json_string_value(i % 3 ? caption : json_object_get(caption, "1")), want);
		json_decref(caption);
	}
	vfm_caption_table_close(&t);
	unlink(path);
	rmdir(dir);
	free(path);
	vfm_buf_release(&b);
	fclose(store);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_texts),
		cmocka_unit_test(values),
		cmocka_unit_test(paths),
		cmocka_unit_test(many_rows),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
