/* Markup: whatever a text has, it is shown and not read.  Curves in bounded memory: their extremes, sums and gaps
 * survive whatever the range of x grows to. */
#include "media/draw/chart.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "media/draw/html.h"

#define check_markup(want, ...)                                                                                        \
	do {                                                                                                           \
		struct vfm_buf b_ = {0};                                                                               \
		vfm_html_addf(&b_, __VA_ARGS__);                                                                       \
		assert_string_equal(b_.data, want);                                                                    \
		vfm_buf_release(&b_);                                                                                  \
	} while (0)

static void test_markup(void **state)
{
	const char *volatile none = NULL;

	(void)state;
	check_markup("<b>&lt;i&gt; &amp;amp; &quot;&#39;</b>", "<b>%s</b>", "<i> &amp; \"'");
	check_markup("\xef\xbf\xbd\xef\xbf\xbd\xc3\xa9\n\t\xef\xbf\xbd", "%s", "\x01\xff\xc3\xa9\n\t\x7f");
	check_markup("\xef\xbf\xbd", "%s", "\xc3"); /* a character that is cut */
	check_markup("&ndash;", "%s", none);
	check_markup("ab|%|  7| 2.50|1e-05", "%.*s|%%|%3d|%*.2f|%g", 2, "abc", 7, 5, 2.5, 1e-5);
	check_markup("9|-123|-1\u202f234|1\u202f234\u202f567|18446744073709551615", "%'d|%'d|%'d|%'lld|%zu", 9, -123,
		-1234, 1234567LL, (size_t)-1);
}

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
	struct vfm_curve curves[] = {{"<one>", &one, NULL, 0}, {"none", &none, NULL, 0}, {"gap", &gap, NULL, 0}};
	struct vfm_chart c = {
		.title = "a<b", .lo = 3, .hi = 3, .may_log = true, .smooth = true, .curves = curves, .n = 3};
	struct vfm_buf b = {0};

	(void)state;
	vfm_trace_add(&one, 3, 0.5);
	vfm_trace_add(&gap, 3, NAN);
	for (int zero = 0; zero < 2; zero++) {
		c.from_zero = zero;
		vfm_buf_clear(&b);
		vfm_chart_html(&b, &c);
		assert_non_null(strstr(b.data, "a&lt;b"));
		assert_non_null(strstr(b.data, "&lt;one&gt;"));
		assert_null(strstr(b.data, "nan"));
		assert_null(strstr(b.data, "inf"));
		assert_null(strstr(b.data, "none"));
		vfm_buf_clear(&b);
		vfm_chart_svg(&b, &c);
		assert_non_null(strstr(b.data, ">a&lt;b<"));
		assert_non_null(strstr(b.data, ">&lt;one&gt;<"));
		assert_null(strstr(b.data, "nan"));
	}
	vfm_buf_release(&b);
	vfm_trace_release(&one);
	vfm_trace_release(&gap);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_markup),
		cmocka_unit_test(test_trace_growth),
		cmocka_unit_test(test_trace_to_the_left),
		cmocka_unit_test(test_chart_of_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
