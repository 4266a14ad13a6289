#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "io/table.h"

static char *printed(enum vfm_table_format format)
{
	struct vfm_table *t = vfm_table_new(NULL);
	struct vfm_err err = {0};
	char *text = NULL;
	size_t len;
	FILE *f = open_memstream(&text, &len);

	vfm_table_col(t, "name", "name", 0);
	vfm_table_col(t, "tok_s", "token/s", 1);
	vfm_table_col(t, "n", "n", 0);
	vfm_table_col(t, "fits", "fits", 0);
	vfm_table_row(t);
	vfm_table_f64(t, "tok_s", 10052.25);
	vfm_table_str(t, "name", "größe, \"x\"|y");
	vfm_table_i64(t, "n", -7);
	vfm_table_str(t, "fits", "yes");
	vfm_table_row(t);
	vfm_table_str(t, "name", "b");
	vfm_table_f64(t, "tok_s", NAN);
	vfm_table_note(t, "median of %d", 5);
	assert_int_equal(vfm_table_print(t, &(struct vfm_table_opts){.format = format}, f, &err), 0);
	fclose(f);
	vfm_table_free(t);
	return text;
}

static void expect(enum vfm_table_format format, const char *want)
{
	char *got = printed(format);

	assert_string_equal(got, want);
	free(got);
}

static void formats(void **state)
{
	(void)state;
	expect(VFM_TABLE_TEXT,
		"name          token/s   n  fits\n"
		"größe, \"x\"|y  10052.2  -7  yes\n"
		"b                   -\n"
		"\nmedian of 5\n");
	expect(VFM_TABLE_MD,
		"| name         | token/s |  n | fits |\n"
		"|:--|--:|--:|:--|\n"
		"| größe, \"x\"/y | 10052.2 | -7 | yes  |\n"
		"| b            |       - |    |      |\n"
		"\nmedian of 5\n");
	expect(VFM_TABLE_CSV,
		"name,tok_s,n,fits\n"
		"\"größe, \"\"x\"\"|y\",10052.25,-7,yes\n"
		"b,,,\n");
	expect(VFM_TABLE_JSONL,
		"{\"v\":1,\"name\":\"größe, \\\"x\\\"|y\",\"tok_s\":10052.25,\"n\":-7,\"fits\":\"yes\"}\n"
		"{\"v\":1,\"name\":\"b\",\"tok_s\":null,\"n\":null,\"fits\":null}\n");
}

static void sql(void **state)
{
	const char *head = "CREATE TABLE IF NOT EXISTS \"vfm_test_x\" (\n"
			   "  \"name\" TEXT,\n  \"tok_s\" DOUBLE PRECISION,\n  \"n\" BIGINT,\n  \"fits\" TEXT\n);\n";
	char *want = NULL;

	(void)state;
	vfm_log_init("vfm-test x");
	assert_true(asprintf(&want,
			    "%sINSERT INTO \"vfm_test_x\" (\"name\", \"tok_s\", \"n\", \"fits\") VALUES ('größe, "
			    "\"x\"|y', 10052.25, -7, 'yes');\n"
			    "INSERT INTO \"vfm_test_x\" (\"name\", \"tok_s\", \"n\", \"fits\") VALUES ('b', NULL, "
			    "NULL, NULL);\n"
			    "-- median of 5\n",
			    head) > 0);
	expect(VFM_TABLE_SQL, want);
	free(want);
}

/* No text leaves its literal or its comment, and columns without cells have the type that they were declared with. */
static void sql_of_odd_texts(void **state)
{
	struct vfm_table *t = vfm_table_new(NULL);
	struct vfm_err err = {0};
	size_t len, n;
	char *text = NULL;
	FILE *f = open_memstream(&text, &len);

	(void)state;
	vfm_log_init("t");
	vfm_table_col(t, "a\"b", "a", 0);
	vfm_table_col(t, "text", "a", VFM_TABLE_STRINGS);
	vfm_table_col(t, "number", "a", 0);
	vfm_table_row(t);
	vfm_table_str(t, "a\"b", "it's '); DROP TABLE t; --\n\\'");
	vfm_table_row(t);
	vfm_table_str(t, "a\"b", "\xff is no UTF-8");
	vfm_table_note(t, "x\n; DROP TABLE t;\r--");
	assert_string_equal(vfm_table_notes(t, &n)[0], "x\n; DROP TABLE t;\r--");
	assert_int_equal(n, 1);
	assert_int_equal(vfm_table_print(t, &(struct vfm_table_opts){.format = VFM_TABLE_SQL}, f, &err), 0);
	fclose(f);
	assert_string_equal(text,
		"CREATE TABLE IF NOT EXISTS \"t\" (\n  \"a\"\"b\" TEXT,\n  \"text\" TEXT,\n  \"number\" DOUBLE "
		"PRECISION\n);\n"
		"INSERT INTO \"t\" (\"a\"\"b\", \"text\", \"number\") VALUES ('it''s ''); DROP TABLE t; --\n\\''', "
		"NULL, "
		"NULL);\n"
		"INSERT INTO \"t\" (\"a\"\"b\", \"text\", \"number\") VALUES (NULL, NULL, NULL);\n"
		"-- x ; DROP TABLE t; --\n");
	free(text);
	vfm_table_free(t);
}

static void json_has_rows_and_notes(void **state)
{
	char *got = printed(VFM_TABLE_JSON);

	(void)state;
	assert_non_null(strstr(got, "\"rows\""));
	assert_non_null(strstr(got, "median of 5"));
	assert_non_null(strstr(got, "10052.25"));
	free(got);
}

static void full_disk(void **state)
{
	struct vfm_table *t = vfm_table_new(NULL);
	struct vfm_err err = {0};
	FILE *f = fopen("/dev/full", "w");

	(void)state;
	vfm_table_col(t, "a", "a", 0);
	assert_int_equal(vfm_table_print(t, &(struct vfm_table_opts){0}, f, &err), VFM_EENV);
	fclose(f);
	vfm_table_free(t);
}

static char *print_rows(const struct vfm_table_column *columns, const struct vfm_table_opts *o, int rows)
{
	struct vfm_table *t = vfm_table_new(columns);
	struct vfm_err err = {0};
	char *text = NULL;
	size_t len;
	FILE *f = open_memstream(&text, &len);

	for (int i = 0; i < rows; i++) {
		vfm_table_row(t);
		vfm_table_str(t, "model", i < 2 ? "small" : "large");
		vfm_table_i64(t, "n", i);
		vfm_table_str(t, "why",
			i % 2 ? NULL
			      : "a text that is so long that a terminal of 100 columns has no "
				"room for it in one line and a_word_that_is_not_broken");
		vfm_table_json(t, "all", "{\"a\":1}");
	}
	vfm_table_note(t,
		"a note of more than 100 columns, which text breaks between two words, and indents all lines "
		"but the first");
	if (vfm_table_print(t, o, f, &err) < 0)
		fputs(err.msg, f);
	fclose(f);
	vfm_table_free(t);
	return text;
}

static void expect_rows(const struct vfm_table_opts *o, int rows, const char *want)
{
	static const struct vfm_table_column columns[] = {{"model", "model", 0, VFM_COLUMN_GROUP}, {"n", "n", 0},
		{"none", "none", 0}, {"detail", "detail", 0, VFM_COLUMN_DETAIL}, {"why", "why", 0},
		{"all", "", 0, VFM_COLUMN_JSON}, {0}};
	char *got = print_rows(columns, o, rows);

	assert_non_null(strstr(got, want));
	free(got);
}

/* Without --columns: columns with cells, lines of groups, broken texts. */
static void main_columns(void **state)
{
	const struct vfm_table_opts text = {0}, md = {.format = VFM_TABLE_MD}, csv = {.format = VFM_TABLE_CSV};

	(void)state;
	expect_rows(&text, 2,
		"model small\nn  why\n"
		"0  a text that is so long that a terminal of 100 columns has no room for it in one line and\n"
		"   a_word_that_is_not_broken\n1\n\n"
		"a note of more than 100 columns, which text breaks between two words, and indents all lines but the\n"
		"  first\n");
	expect_rows(&text, 4, "a_word_that_is_not_broken\n1\n\nmodel large\nn  why\n2  a text");
	expect_rows(&text, 3, "model  n  why\nsmall  0  a text"); /* groups of one row are none */
	expect_rows(&text, 0, "model  n  none  why\n");
	expect_rows(&md, 4, "model small\n\n| n | why ");
	expect_rows(&csv, 1, "model,n,none,detail,why\n");
}

static void named_columns(void **state)
{
	const struct {
		struct vfm_table_opts o;
		const char *want;
	} of[] = {{{VFM_TABLE_TEXT, "n,model"}, "n  model\n0  small\n1  small\n"},
		{{VFM_TABLE_TEXT, "all"},
			"model  n  none  detail  why\nsmall  0                a text that is so long that"
			" a terminal of 100 columns has no room"},
		{{VFM_TABLE_JSONL, "all,n"}, "{\"v\":1,\"all\":{\"a\":1},\"n\":0}\n"},
		{{VFM_TABLE_CSV, "detail"}, "detail\n\n\n"}, {{VFM_TABLE_SQL, "n"}, " (\"n\") VALUES (1);\n"},
		{{VFM_TABLE_TEXT, "all,n"},
			"--columns: there is no 'all'; the columns are model, n, none, detail, why"},
		{{VFM_TABLE_TEXT, "n,n"}, "--columns: 'n' is given twice"}, {{VFM_TABLE_TEXT, ""}, "--columns: "}};

	(void)state;
	for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++)
		expect_rows(&of[i].o, 2, of[i].want);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(formats), cmocka_unit_test(main_columns),
		cmocka_unit_test(named_columns), cmocka_unit_test(json_has_rows_and_notes), cmocka_unit_test(sql),
		cmocka_unit_test(sql_of_odd_texts), cmocka_unit_test(full_disk)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
