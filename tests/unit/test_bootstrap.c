/* Resamples and intervals of base/stats.h: the streams of draws, the BCa formula, and how often intervals cover. */
#include "base/stats.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/par.h"
#include "base/philox.h"
#include "base/stats.h"

static void test_counts(void **state)
{
	enum { N = 1001 };
	struct vfm_rng r = vfm_rng_stream(7, 3, 1, VFM_RNG_BOOTSTRAP);
	uint32_t counts[N], want[N] = {0};
	int64_t none = 0;

	(void)state;
	vfm_bootstrap_counts(7, 3, 1, N, counts);
	for (uint64_t i = 0; i < N; i++)
		want[vfm_rng_below(&r, i, N)]++;
	assert_memory_equal(counts, want, sizeof(want));
	for (int i = 0; i < N; i++)
		none += counts[i] == 0;
	assert_in_range(none, (int)(0.30 * N), (int)(0.44 * N)); /* 1 / e */
	vfm_bootstrap_counts(7, 3, 2, N, want);
	assert_true(memcmp(counts, want, sizeof(want)) != 0);
}

static void test_normal(void **state)
{
	(void)state;
	assert_true(fabs(vfm_normal_quantile(0.975) - 1.959963984540054) < 1e-12);
	assert_true(fabs(vfm_normal_quantile(1e-9) + 5.997807015007687) < 1e-9);
	assert_true(fabs(vfm_normal_cdf(-1) - 0.15865525393145705) < 1e-15);
}

static void test_quantile(void **state)
{
	const double x[] = {1, 2, 4, 8};

	(void)state;
	assert_true(vfm_quantile(x, 4, 0.5) == 3);
	assert_true(vfm_quantile(x, 4, 0.2) == 1);
	assert_true(vfm_quantile(x, 4, 0.7) == 6);
	assert_true(vfm_quantile(x, 4, 0) == 1 && vfm_quantile(x, 4, 1) == 8);
	assert_true(vfm_quantile(x, 1, 0.9) == 1);
}

/* Exponential values: skewed, so that the interval is, too. */
static void draw_exponential(double *x, int64_t n, uint64_t id)
{
	struct vfm_rng r = vfm_rng_stream(1, 0, id, VFM_RNG_TEST);

	for (int64_t i = 0; i < n; i++)
		x[i] = -log(vfm_rng_uniform(&r, (uint64_t)i));
}

static void test_mean(void **state)
{
	enum { N = 400 };
	const struct vfm_bootstrap o = {.seed = 5, .resamples = 4000, .confidence = 0.9};
	struct vfm_interval a, b;
	double x[N], mean = 0, two = 0, se;

	(void)state;
	draw_exponential(x, N, 0);
	for (int i = 0; i < N; i++)
		mean += x[i] / N;
	for (int i = 0; i < N; i++)
		two += (x[i] - mean) * (x[i] - mean) / N;
	se = sqrt(two / N);
	a = vfm_bootstrap_mean(x, N, &o);
	assert_int_equal(a.resamples, 4000);
	assert_true(fabs(a.low - (mean - 1.645 * se)) < 0.25 * se);
	assert_true(fabs(a.high - (mean + 1.645 * se)) < 0.35 * se);
	assert_true(a.high - mean > 1.03 * (mean - a.low)); /* a long tail above */
	vfm_par_serial();
	b = vfm_bootstrap_mean(x, N, &o);
	assert_memory_equal(&a, &b, sizeof(a));
	b = vfm_bootstrap_mean(x, N, &(struct vfm_bootstrap){.seed = 6, .resamples = 4000, .confidence = 0.9});
	assert_true(a.low != b.low && fabs(a.low - b.low) < 0.2 * se);
}

/* {0, 0, 3}: resampled means are 0 to 3 with the probabilities 8, 12, 6 and 1 of 27.  z0 = 0.046 and a = 0.068 move the
 * levels 0.05 and 0.95 to 0.08 and 0.975, and only the latter is beyond 26 / 27. */
static void test_bca(void **state)
{
	const struct vfm_bootstrap o = {.seed = 1, .resamples = 20000, .confidence = 0.9};
	const double up[] = {0, 0, 3}, down[] = {0, 0, -3};
	struct vfm_interval i = vfm_bootstrap_mean(up, 3, &o);

	(void)state;
	assert_true(i.low == 0 && i.high == 3);
	i = vfm_bootstrap_mean(down, 3, &o);
	assert_true(i.low == -3 && i.high == 0);
}

/* 95 % intervals of few and skewed values. */
static void test_coverage(void **state)
{
	enum { SETS = 500, N = 40 };
	int covers = 0;
	double x[N];

	(void)state;
	for (int s = 0; s < SETS; s++) {
		struct vfm_interval i;

		draw_exponential(x, N, (uint64_t)s);
		i = vfm_bootstrap_mean(
			x, N, &(struct vfm_bootstrap){.seed = (uint64_t)s, .resamples = 600, .confidence = 0.95});
		covers += i.low <= 1 && 1 <= i.high;
	}
	assert_in_range(covers, (int)(0.90 * SETS), (int)(0.98 * SETS));
}

static void test_none(void **state)
{
	const struct vfm_bootstrap o = {.resamples = 100, .confidence = 0.95};
	const double same[] = {0.1, 0.1, 0.1}, infinite[] = {1, INFINITY, 2};
	struct vfm_interval i = vfm_bootstrap_mean(same, 3, &o);

	(void)state;
	assert_true(i.low == i.high && fabs(i.low - 0.1) < 1e-16);
	assert_int_equal(vfm_bootstrap_mean(same, 1, &o).resamples, 0);
	assert_int_equal(vfm_bootstrap_mean(infinite, 3, &o).resamples, 0);
	i = vfm_bootstrap_mean(same, 3, &(struct vfm_bootstrap){.confidence = 0.95});
	assert_true(i.resamples == 0 && isnan(i.low) && isnan(i.high));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_counts),
		cmocka_unit_test(test_normal),
		cmocka_unit_test(test_quantile),
		cmocka_unit_test(test_mean),
		cmocka_unit_test(test_bca),
		cmocka_unit_test(test_coverage),
		cmocka_unit_test(test_none),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
