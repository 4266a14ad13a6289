/* Curves in bounded memory: their extremes, sums and gaps survive whatever the range of x grows to. */
#include "media/draw/html_chart.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void check_totals(const struct vfm_trace *t, int64_t n, int64_t gaps, double min, double max, double sum)
{
	struct vfm_trace_column all = {.min = INFINITY, .max = -INFINITY};

	for (int i = 0; i < VFM_TRACE_COLUMNS; i++) {
		const struct vfm_trace_column *c = &t->column[i];

		all.n += c->n;
		all.gaps += c->gaps;
		all.sum += c->sum;
		all.min = c->n ? fmin(all.min, c->min) : all.min;
		all.max = c->n ? fmax(all.max, c->max) : all.max;
	}
	assert_int_equal(all.n, n);
	assert_int_equal(t->n, n);
	assert_int_equal(all.gaps, gaps);
	assert_true(all.min == min && all.max == max && all.sum == sum);
}

static void test_trace_growth(void **state)
{
	struct vfm_trace t = {0};

	(void)state;
	for (int64_t x = 1; x <= VFM_TRACE_COLUMNS; x++)
		vfm_trace_add(&t, x, (double)x);
	assert_int_equal(t.width, 1);
	assert_true(t.column[7].min == 8);
	for (int64_t x = VFM_TRACE_COLUMNS + 1; x <= 1000000; x++)
		vfm_trace_add(&t, x, x == 777777 ? -5 : x % 1000 ? (double)x : NAN);
	assert_int_equal(t.width, 1024);
	assert_int_equal(t.first, 1);
	assert_true(t.column[777776 / 1024].min == -5);
	assert_true(t.last == 999999);
	check_totals(
		&t, 1000000 - 999, 999, -5, 999999, 1e6 * 1000001 / 2 - 777777 - 5 - (1e3 * 1000 * 1001 / 2 - 1000));
	vfm_trace_release(&t);
}

/* Steps of another run may lie in front of the first one. */
static void test_trace_to_the_left(void **state)
{
	struct vfm_trace t = {0};

	(void)state;
	vfm_trace_add(&t, 1 << 30, 1);
	vfm_trace_add(&t, (1 << 30) + 1, 2);
	vfm_trace_add(&t, -5, 4);
	vfm_trace_add(&t, INT64_C(1) << 53, 8);
	vfm_trace_add(&t, -(INT64_C(1) << 53), 16);
	check_totals(&t, 5, 0, 1, 16, 31);
	for (int i = 0; i < VFM_TRACE_COLUMNS; i++)
		if (t.column[i].n && t.column[i].max == 8)
			assert_true(t.first + i * t.width <= INT64_C(1) << 53 &&
				t.first + (i + 1) * t.width > INT64_C(1) << 53);
	vfm_trace_release(&t);
}

static void test_chart_of_nothing(void **state)
{
	struct vfm_trace one = {0}, none = {0}, gap = {0};
	struct vfm_html_curve curves[] = {
		{"<one>", &one, NULL, 0, 0}, {"none", &none, NULL, 0, 1}, {"gap", &gap, NULL, 0, 9}};
	struct vfm_html_chart c = {
		.title = "a<b", .lo = 3, .hi = 3, .may_log = true, .smooth = true, .curves = curves, .n = 3};
	struct vfm_buf b = {0};

	(void)state;
	vfm_trace_add(&one, 3, 0.5);
	vfm_trace_add(&gap, 3, NAN);
	for (int zero = 0; zero < 2; zero++) {
		c.from_zero = zero;
		vfm_buf_clear(&b);
		vfm_html_chart(&b, &c);
		assert_non_null(strstr(b.data, "a&lt;b"));
		assert_non_null(strstr(b.data, "&lt;one&gt;"));
		assert_null(strstr(b.data, "nan"));
		assert_null(strstr(b.data, "inf"));
		assert_null(strstr(b.data, "none"));
	}
	vfm_buf_release(&b);
	vfm_trace_release(&one);
	vfm_trace_release(&gap);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_trace_growth),
		cmocka_unit_test(test_trace_to_the_left),
		cmocka_unit_test(test_chart_of_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
