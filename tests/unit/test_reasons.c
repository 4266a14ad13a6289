/* Counts of reasons: equal drops, errors that differ in names and numbers, limits, texts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "data/record/reasons.h"

static void check_reason(const struct vfm_reasons *r, int i, const char *text, int64_t n, double s)
{
	assert_string_equal(r->v[i].text, text);
	assert_int_equal(r->v[i].n, n);
	assert_true(r->v[i].s == s);
}

static void test_drops(void **state)
{
	struct vfm_reasons r = {0}, other = {0};

	(void)state;
	vfm_reasons_add(&r, "shorter than 1 s", false, 1, 0.5);
	vfm_reasons_add(&r, "motion below 0.5", false, 1, 2);
	vfm_reasons_add(&r, "motion below 0.6", false, 1, 4);
	vfm_reasons_add(&other, "motion below 0.5", false, 2, 8);
	vfm_reasons_add(&other, "motion below 0.5", true, 1, 0); /* an error of the same text */
	vfm_reasons_merge(&r, &other);
	check_reason(&r, 0, "shorter than 1 s", 1, 0.5);
	check_reason(&r, 1, "motion below 0.5", 3, 10);
	check_reason(&r, 2, "motion below 0.6", 1, 4);
	check_reason(&r, 3, "motion below 0.5", 1, 0);
	assert_true(r.v[3].is_error && !r.v[1].is_error);
	assert_int_equal(r.v[4].n, 0);
}

static void test_errors(void **state)
{
	struct vfm_reasons r = {0};

	(void)state;
	vfm_reasons_add(&r, "'a b.mp4' is empty", true, 1, 0);
	check_reason(&r, 0, "'a b.mp4' is empty", 1, 0);
	vfm_reasons_add(&r, "'a b.mp4' is empty", true, 1, 0);
	check_reason(&r, 0, "'a b.mp4' is empty", 2, 0);
	vfm_reasons_add(&r, "'c.mp4' is empty", true, 1, 0);
	check_reason(&r, 0, "'...' is empty", 3, 0);
	vfm_reasons_add(&r, "clip 0123abcd: offset 0x1be2 of 12.5", true, 1, 0);
	vfm_reasons_add(&r, "clip 4567efab-12: offset 7 of 8", true, 1, 0);
	check_reason(&r, 1, "clip '...': offset # of #", 2, 0);
	vfm_reasons_add(&r, "a\033[31m tab\t", true, 1, 0);
	check_reason(&r, 2, "a?[31m tab?", 1, 0);
	vfm_reasons_add(&r, "don't", true, 1, 0);
	check_reason(&r, 3, "don't", 1, 0);
}

/* Long texts are cut between characters; too many reasons are counted as others. */
static void test_limits(void **state)
{
	struct vfm_reasons r = {0}, errors = {0};
	char text[400];

	(void)state;
	for (int i = 0; i < 200; i++)
		memcpy(text + 2 * i, "\xc3\xa9", 2);
	text[399] = 0;
	for (int is_error = 0; is_error < 2; is_error++) {
		vfm_reasons_add(&r, text, is_error, 1, 0);
		assert_int_equal(strlen(r.v[is_error].text), 118);
		vfm_reasons_add(&r, text, is_error, 1, 0);
		assert_int_equal(r.v[is_error].n, 2);
	}
	for (int i = 0; i < 2; i++) { /* names longer than the text */
		memset(text, 'a' + i, 300);
		memset(text + 300, 'x', 99);
		text[0] = text[300] = '\'';
		vfm_reasons_add(&errors, text, true, 1, 0);
	}
	assert_int_equal(errors.v[0].n, 2);
	r = (struct vfm_reasons){0};
	for (int i = 0; i < 100; i++) {
		snprintf(text, sizeof(text), "reason %d", i);
		vfm_reasons_add(&r, text, false, 1, 1);
	}
	check_reason(&r, VFM_REASONS - 2, "reason 30", 1, 1);
	check_reason(&r, VFM_REASONS - 1, "others", 69, 69);
}

static void test_durations(void **state)
{
	char text[VFM_DURATION_TEXT];

	(void)state;
	assert_string_equal(vfm_duration_text(text, 14.74), "14.7 s");
	assert_string_equal(vfm_duration_text(text, 9999.9), "9999.9 s");
	assert_string_equal(vfm_duration_text(text, 9999.96), "2.78 h");
	assert_string_equal(vfm_duration_text(text, 36e5), "1000.00 h");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_drops),
		cmocka_unit_test(test_errors),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_durations),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
