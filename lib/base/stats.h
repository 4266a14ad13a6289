/* stats.h - statistics of samples: the median, quantiles, the normal distribution, and confidence intervals by
 * resampling with replacement (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993).  Local and thread-safe.
 *
 * Resample b of a set of n values is n indices, drawn independently and uniformly: draw i is vfm_rng_below(stream(seed,
 * b, set, VFM_RNG_BOOTSTRAP), i, n).
 */
#ifndef VFM_BASE_STATS_H
#define VFM_BASE_STATS_H

#include <stddef.h>
#include <stdint.h>

struct vfm_spread { /* of repeated measurements */
	double min, median, max;
};

/* Sort in ascending order. */
void vfm_sort(double *x, size_t n);
void vfm_sort_f32(float *x, size_t n);
void vfm_sort_i64(int64_t *x, size_t n);

/* Returns the spread of x [n], n >= 1, and sorts x.  The median of an even number of values is the mean of the two in
 * the middle. */
struct vfm_spread vfm_spread_of(double *x, size_t n);

double vfm_normal_cdf(double z); /* P(Z < z) */
/* Returns the z with P(Z < z) = u, 0 < u < 1, by bisection. */
double vfm_normal_quantile(double u);

struct vfm_bootstrap { /* plain data */
	uint64_t seed;
	int64_t resamples; /* 0: no interval */
	double confidence; /* in (0, 1) */
};

struct vfm_interval {
	double low, high;  /* NaN if there is none */
	int64_t resamples; /* 0: there is none */
};

#define VFM_NO_INTERVAL ((struct vfm_interval){NAN, NAN, 0})

/* Sets counts [n] to how often each index is in resample b of a set; 1 <= n < 2^32. */
void vfm_bootstrap_counts(uint64_t seed, int64_t b, uint64_t set, int64_t n, uint32_t *counts);

/* Returns the BCa interval (bias-corrected and accelerated; Efron and Tibshirani, eqs. 14.9 to 14.15) of the mean of x
 * [n]; the number of its set is 0.  Returns VFM_NO_INTERVAL if n < 2, if a value is not finite, or if there are no
 * resamples.  Runs on the compute threads. */
struct vfm_interval vfm_bootstrap_mean(const double *x, int64_t n, const struct vfm_bootstrap *o);

/* Returns the quantile p of x [n], ascending, n >= 1: the order statistic p (n + 1), counted from 1 and interpolated
 * linearly.  Beyond the ends, returns the first or last value. */
double vfm_quantile(const double *x, int64_t n, double p);

#endif
