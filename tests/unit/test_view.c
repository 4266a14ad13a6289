/* The estimate of the time left of a run, and its table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "curate/pipeline/pipeline_view.h"

/* 100 inputs of 10 s; split keeps 8 s of each, in 2 clips; score waits for work. */
static struct vfm_view make_view(void)
{
	struct vfm_view v = {.config = "x", .dir = "run", .elapsed_s = 10, .jobs = 2, .total = 100, .n = 3};

	v.stage[0].name = "00-probe";
	v.stage[1].name = "01-split";
	v.stage[2].name = "02-score";
	v.stage[0].c.counts = (struct vfm_stage_counts){.in = 50, .out = 50, .kept = 50, .kept_s = 500, .work_s = 5};
	v.stage[0].worked = 50;
	v.stage[0].worked_s = 5;
	v.stage[1].c.counts = (struct vfm_stage_counts){
		.in = 20, .out = 20, .kept = 40, .in_s = 200, .kept_s = 160, .dropped_s = 40, .work_s = 10};
	return v;
}

static int tenths(double x)
{
	return (int)(x * 10 + (x < 0 ? -0.5 : 0.5));
}

static void test_estimate(void **state)
{
	struct vfm_view v = make_view();
	struct vfm_view_left left[3];

	(void)state;
	vfm_view_estimate(&v, left); /* probe 5 s of work, split 40 s, by two jobs */
	assert_int_equal(tenths(left[0].s), 25);
	assert_int_equal(tenths(left[1].s), 225);
	assert_int_equal(tenths(left[1].done), 2);
	assert_true(!left[1].is_least && left[2].is_least);
	assert_int_equal(tenths(left[2].s), 225);
	/* score has 8 s of 800: 99 times 0.5 s, of its own worker */
	v.stage[2].c.counts = (struct vfm_stage_counts){.in = 2, .kept = 2, .in_s = 8, .kept_s = 8, .work_s = 0.5};
	v.stage[2].is_apart = true;
	v.stage[2].wall_s = 0.5;
	vfm_view_estimate(&v, left);
	assert_false(left[2].is_least);
	assert_in_range(tenths(left[2].s), 490, 500);
	v.stage[2].is_apart = false;
	vfm_view_estimate(&v, left);
	assert_in_range(tenths(left[2].s), 225 + 245, 225 + 250);
	for (int k = 0; k < 3; k++)
		v.stage[k].state = VFM_VIEW_DONE;
	vfm_view_estimate(&v, left);
	assert_true(left[2].s == 0 && left[2].done == 1 && !left[2].is_least);
}

/* Bytes tell more than numbers of files; finished records count before they are written; nothing known is unknown. */
static void test_beginning(void **state)
{
	struct vfm_view v = {.jobs = 1, .total = -1, .n = 2};
	struct vfm_view_left left[2];

	(void)state;
	vfm_view_estimate(&v, left);
	assert_true(left[0].s < 0 && left[1].s < 0);
	v.total = 10;
	v.total_bytes = 1000;
	vfm_view_estimate(&v, left);
	assert_true(left[0].s < 0 && left[1].s < 0);
	v.stage[0].worked = 1;
	v.stage[0].worked_bytes = 500;
	v.stage[0].worked_s = 7;
	vfm_view_estimate(&v, left);
	assert_int_equal(tenths(left[0].s), 70);
	assert_true(!left[0].is_least && left[1].is_least);
}

static void test_table(void **state)
{
	struct vfm_view v = make_view();
	struct vfm_buf b = {0};

	(void)state;
	vfm_reasons_add(&v.stage[1].c.reasons, "in a transition", false, 20, 40);
	vfm_view_table(&b, &v, 100, 24);
	assert_non_null(strstr(b.data, "       20       20       0    200.0 s    160.0 s     40.0 s"));
	assert_non_null(strstr(b.data, "0:10 elapsed, >0:23 left\n"));
	for (const char *line = b.data, *end; (end = strchr(line, '\n')); line = end + 1)
		assert_true(end - line <= 100 + 2 * 30); /* a block of the bar has 3 bytes */
	vfm_buf_release(&b);
	vfm_view_reasons(&b, &v, 100);
	assert_string_equal(b.data, "         20      40.0 s  01-split: in a transition\n");
	vfm_buf_release(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_estimate),
		cmocka_unit_test(test_beginning),
		cmocka_unit_test(test_table),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
