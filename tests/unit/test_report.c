/* The page about records: facts of scores, times and numbers as text, links, JPEG. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "curate/report/text.h"
#include "media/av/jpeg.h"
#include "media/score/score.h"
#include "media/score/score_facts.h"
#include "ok.h"

/* Every score has its facts, in order, and the scores of a group are consecutive. */
static void test_facts(void **state)
{
#define NAME(name) #name,
	static const char *const names[] = {VFM_SCORE_LIST(NAME)};
#undef NAME
	size_t n = sizeof(names) / sizeof(names[0]);
	const struct vfm_score_fact *f;

	(void)state;
	for (size_t i = 0; i < n; i++) {
		f = vfm_score_fact((int)i);
		assert_non_null(f);
		assert_non_null(f->name);
		assert_string_equal(f->name, names[i]);
		assert_ptr_equal(vfm_score_fact_of(names[i]), f);
		assert_true(strlen(f->meaning) > 10 && f->meaning[strlen(f->meaning) - 1] == '.');
		assert_non_null(f->unit);
		assert_true(isnan(f->low) || isnan(f->high) || f->low < f->high);
		for (size_t k = 0; k + 1 < i; k++)
			if (!strcmp(vfm_score_fact((int)k)->group, f->group))
				assert_string_equal(vfm_score_fact((int)k + 1)->group, f->group);
	}
	assert_null(vfm_score_fact((int)n));
	assert_null(vfm_score_fact(-1));
	assert_null(vfm_score_fact_of("aesthetic"));
}

static void test_text(void **state)
{
	char text[REPORT_TEXT];

	(void)state;
	assert_string_equal(report_time(text, 0), "0 s");
	assert_string_equal(report_time(text, 0.04), "0.04 s");
	assert_string_equal(report_time(text, 9.9), "9.9 s");
	assert_string_equal(report_time(text, 59.6), "0:01:00");
	assert_string_equal(report_time(text, 3599.6), "1:00:00");
	assert_string_equal(report_time(text, 100 * 3600 + 61), "100:01:01");
	assert_string_equal(report_value(text, 3026), "3026");
	assert_string_equal(report_value(text, -0.0), "0");
	assert_string_equal(report_value(text, 0.123456), "0.1235");
	assert_string_equal(report_value(text, 12345678), "1.235e+07");
}

static void check_link(const char *page, const char *path, const char *want)
{
	struct report_links l;
	struct vfm_buf b = {0};
	char *all = vfm_strfmt("<a href='%s'>", want);

	report_links_init(&l, page);
	report_add_link(&b, &l, path);
	b.data[strlen(all)] = 0;
	assert_string_equal(b.data, all);
	report_links_release(&l);
	vfm_buf_release(&b);
	free(all);
}

static void test_links(void **state)
{
	char here[4096], *page, *want;

	(void)state;
	assert_non_null(getcwd(here, sizeof(here)));
	check_link("page.html", "a/b.mp4", "a/b.mp4");
	check_link("no/such/folder/page.html", "a/b.mp4", "a/b.mp4");
	check_link("page.html", "/a/b.mp4", "file:///a/b.mp4");
	check_link("page.html", "javascript:alert(1)", "javascript%3Aalert%281%29");
	check_link("page.html", "a?b#c%41 '\"<>\n.mp4", "a%3Fb%23c%2541%20%27%22%3C%3E%0A.mp4");
	check_link("page.html", "all.tar@512+100/x.mp4", "all.tar");
	page = vfm_strfmt("%s/page.html", here);
	check_link(page, "x", "x");
	free(page);
	want = vfm_strfmt("%s/x", here + 1);
	check_link("/page.html", "x", want);
	free(want);
}

static void test_jpeg(void **state)
{
	uint8_t rgb[5 * 7 * 3];
	struct vfm_buf a = {0}, b = {0};

	(void)state;
	for (size_t i = 0; i < sizeof(rgb); i++)
		rgb[i] = (uint8_t)(i * 7);
	OK(vfm_jpeg_encode(&a, rgb, 7, 5, &err));
	OK(vfm_jpeg_encode(&b, rgb, 7, 5, &err));
	assert_int_equal(a.len, b.len);
	assert_memory_equal(a.data, b.data, a.len);
	assert_memory_equal(a.data, "\xff\xd8\xff", 3);
	assert_memory_equal(a.data + a.len - 2, "\xff\xd9", 2);
	vfm_buf_release(&a);
	vfm_buf_release(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_facts),
		cmocka_unit_test(test_text),
		cmocka_unit_test(test_links),
		cmocka_unit_test(test_jpeg),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
