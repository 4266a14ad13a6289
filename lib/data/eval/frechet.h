/* frechet.h - the Frechet distance between two sets of feature vectors, as normal distributions with their means m and
 * covariances S (Dowson and Landau, "The Frechet Distance between Multivariate Normal Distributions", J.  Multivariate
 * Analysis 12, 1982; Heusel et al., arXiv 1706.08500, eq. 6):
 *
 *	d^2 = |m1 - m2|^2 + tr(S1 + S2 - 2 (S1 S2)^(1/2))
 *
 * As usual, the value is d^2, not d.  S has the denominator n - 1.  Everything is float64.
 *
 * With factors S1 = F1 F1^T, S2 = F2 F2^T, tr (S1 S2)^(1/2) is the sum of the singular values of F1^T F2.  This takes
 * no square root of a rounded eigenvalue, so the distance between a set and itself is 0 up to rounding.  The factors
 * come from the pivoted Cholesky factorization of the correlation matrices, which ends at the numerical rank.  Sets may
 * therefore have fewer rows than dimensions, and dimensions without variance.
 */
#ifndef VFM_DATA_EVAL_FRECHET_H
#define VFM_DATA_EVAL_FRECHET_H

#include "base/err.h"
#include "base/stats.h"
#include "data/record/features.h"

struct vfm_moments {     /* `= {0}` before init; release in any case */
	int64_t dim, ld; /* ld: dim rounded up (dense.h) */
	int64_t n;       /* rows */
	double *mean;    /* [ld] */
	double *cov;     /* [ld, ld]; only the upper triangle is set; zero beyond dim */
};

int vfm_moments_init(struct vfm_moments *m, int64_t dim, struct vfm_err *err);
void vfm_moments_release(struct vfm_moments *m);

/* Computes mean and covariance of the rows of f, >= 2.  With counts, row i counts counts[i] times, and `about`, the
 * mean of all rows, is subtracted first; counts NULL: each row counts once.  Runs on the compute threads. */
int vfm_moments_of(struct vfm_moments *m, const struct vfm_features *f, const uint32_t *counts, const double *about,
	struct vfm_err *err);

struct vfm_frechet {
	double value;                 /* d^2 */
	struct vfm_interval interval; /* of d^2; see below */
	double bias;                  /* mean of the resamples minus value; NaN without resamples */
};

/* Computes the distance, and an interval from resamples of the rows of both sets (sets 0 and 1 of base/stats.h).
 *
 * d^2 of finite sets is too large (Chong and Forsyth, arXiv 1911.07023), and that of resamples is larger still.  The
 * interval is therefore that of percentiles minus `bias` (vfm-bench-eval(1)).  It describes the spread of d^2 at these
 * numbers of rows; bias also estimates the excess of the value.
 *
 * resamples < 0: as many as take about a minute on a core, at most 1000; none if fewer than 50 fit.  VFM_EUSAGE: a set
 * has fewer than 2 rows, or the sets cannot be compared. */
int vfm_frechet_of(struct vfm_frechet *r, const struct vfm_features *a, const struct vfm_features *b,
	const struct vfm_bootstrap *boot, struct vfm_err *err);

#endif
