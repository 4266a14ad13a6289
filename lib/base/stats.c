/* stats.c - sorting, quantiles, the normal distribution, and bootstrap intervals (BCa). */
#include "base/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/par.h"
#include "base/philox.h"

static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static int compare_floats(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

static int compare_integers(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

void vfm_sort(double *x, size_t n)
{
	qsort(x, n, sizeof(*x), compare_doubles);
}

void vfm_sort_f32(float *x, size_t n)
{
	qsort(x, n, sizeof(*x), compare_floats);
}

void vfm_sort_i64(int64_t *x, size_t n)
{
	qsort(x, n, sizeof(*x), compare_integers);
}

struct vfm_spread vfm_spread_of(double *x, size_t n)
{
	vfm_sort(x, n);
	return (struct vfm_spread){
		.min = x[0], .median = n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2, .max = x[n - 1]};
}

/* ---- the normal distribution ---- */

double vfm_normal_cdf(double z)
{
	return 0.5 * erfc(-z * M_SQRT1_2);
}

double vfm_normal_quantile(double u)
{
	double lo = -40, hi = 40;

	for (int i = 0; i < 100; i++) {
		double mid = (lo + hi) / 2;

		if (vfm_normal_cdf(mid) < u)
			lo = mid;
		else
			hi = mid;
	}
	return (lo + hi) / 2;
}

/* ---- resamples ---- */

/* Draws i and i + 1 of a stream, i even: vfm_rng_below with one evaluation of the generator. */
static void draw_two(const struct vfm_rng *r, uint64_t i, uint64_t n, uint64_t out[2])
{
	uint32_t w[4];

	vfm_rng_block(r, i / 2, w);
	out[0] = (uint64_t)((unsigned __int128)((uint64_t)w[1] << 32 | w[0]) * n >> 64);
	out[1] = (uint64_t)((unsigned __int128)((uint64_t)w[3] << 32 | w[2]) * n >> 64);
}

void vfm_bootstrap_counts(uint64_t seed, int64_t b, uint64_t set, int64_t n, uint32_t *counts)
{
	struct vfm_rng r = vfm_rng_stream(seed, (uint64_t)b, set, VFM_RNG_BOOTSTRAP);
	uint64_t at[2];

	memset(counts, 0, (size_t)n * sizeof(*counts));
	for (int64_t i = 0; i < n; i += 2) {
		draw_two(&r, (uint64_t)i, (uint64_t)n, at);
		counts[at[0]]++;
		if (i + 1 < n)
			counts[at[1]]++;
	}
}

/* ---- the mean ---- */

struct mean_resamples {
	const double *x;
	int64_t n;
	uint64_t seed;
	double *means; /* [resamples] */
};

static void resample_means(int64_t b0, int64_t b1, void *ctx)
{
	const struct mean_resamples *m = ctx;
	uint64_t at[2];

	for (int64_t b = b0; b < b1; b++) {
		struct vfm_rng r = vfm_rng_stream(m->seed, (uint64_t)b, 0, VFM_RNG_BOOTSTRAP);
		double sum = 0;

		for (int64_t i = 0; i < m->n; i += 2) {
			draw_two(&r, (uint64_t)i, (uint64_t)m->n, at);
			sum += m->x[at[0]];
			if (i + 1 < m->n)
				sum += m->x[at[1]];
		}
		m->means[b] = sum / (double)m->n;
	}
}

double vfm_quantile(const double *x, int64_t n, double p)
{
	double at = p * (double)(n + 1) - 1;
	int64_t i = (int64_t)floor(at);

	if (!(at > 0))
		return x[0];
	if (i >= n - 1)
		return x[n - 1];
	return x[i] + (at - (double)i) * (x[i + 1] - x[i]);
}

/* z0: the normal quantile of the share of resamples below the estimate; of equal ones one half counts. */
static double bias_correction(const double *sorted, int64_t n, double estimate)
{
	double below = 0;

	for (int64_t i = 0; i < n && sorted[i] <= estimate; i++)
		below += sorted[i] < estimate ? 1 : 0.5;
	return vfm_normal_quantile(fmin(fmax(below, 0.5), (double)n - 0.5) / (double)n);
}

/* a, from the jackknife: leaving out x[i] moves the mean by (mean - x[i]) / (n - 1). */
static double acceleration(const double *x, int64_t n, double mean)
{
	double two = 0, three = 0;

	for (int64_t i = 0; i < n; i++) {
		double d = x[i] - mean;

		two += d * d;
		three += d * d * d;
	}
	return two > 0 ? three / (6 * pow(two, 1.5)) : 0;
}

static double bca_level(double z0, double a, double p)
{
	double z = z0 + vfm_normal_quantile(p), below = 1 - a * z;

	return below > 0 ? vfm_normal_cdf(z0 + z / below) : z > 0;
}

struct vfm_interval vfm_bootstrap_mean(const double *x, int64_t n, const struct vfm_bootstrap *o)
{
	struct mean_resamples m = {.x = x, .n = n, .seed = o->seed};
	struct vfm_interval r = {.resamples = o->resamples};
	double mean = 0, z0, a;

	for (int64_t i = 0; i < n; i++)
		mean += x[i];
	mean /= (double)n;
	if (n < 2 || o->resamples < 1 || !isfinite(mean))
		return VFM_NO_INTERVAL;
	m.means = vfm_calloc((size_t)o->resamples, sizeof(double));
	vfm_par_for(o->resamples, 16, resample_means, &m);
	vfm_sort(m.means, (size_t)o->resamples);
	z0 = bias_correction(m.means, o->resamples, mean);
	a = acceleration(x, n, mean);
	r.low = vfm_quantile(m.means, o->resamples, bca_level(z0, a, (1 - o->confidence) / 2));
	r.high = vfm_quantile(m.means, o->resamples, bca_level(z0, a, (1 + o->confidence) / 2));
	free(m.means);
	return r;
}
