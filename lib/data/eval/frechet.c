/* frechet.c - mean and covariance, the trace term by pivoted Cholesky and singular values, bootstrap intervals. */
#include "data/eval/frechet.h"

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/par.h"
#include "base/stats.h"
#include "data/eval/dense.h"
#include "data/eval/lapack.h"

/* ---- mean and covariance ---- */

int vfm_moments_init(struct vfm_moments *m, int64_t dim, struct vfm_err *err)
{
	size_t ld = (size_t)vfm_dense_padded(dim);

	*m = (struct vfm_moments){.dim = dim, .ld = (int64_t)ld};
	m->mean = vfm_calloc(ld, sizeof(double));
	m->cov = vfm_big_alloc(ld * ld * sizeof(double), "a covariance matrix", err);
	return m->cov ? 0 : VFM_EENV;
}

void vfm_moments_release(struct vfm_moments *m)
{
	free(m->mean);
	vfm_big_free(m->cov, (size_t)m->ld * (size_t)m->ld * sizeof(double));
	*m = (struct vfm_moments){0};
}

enum { BLOCK = 256 }; /* rows */

/* The mean of all rows.  Sums are of differences from the first row, so that a common offset costs no digits. */
static void compute_mean(struct vfm_moments *m, const struct vfm_features *f)
{
	double *first = vfm_calloc((size_t)m->ld, sizeof(double)), *row = vfm_calloc((size_t)m->ld, sizeof(double));

	memset(m->mean, 0, (size_t)m->ld * sizeof(double));
	vfm_features_read(f, 0, 1, m->ld, first);
	for (int64_t r = 1; r < f->rows; r++) {
		vfm_features_read(f, r, 1, m->ld, row);
		for (int64_t i = 0; i < m->dim; i++)
			m->mean[i] += row[i] - first[i];
	}
	for (int64_t i = 0; i < m->dim; i++)
		m->mean[i] = first[i] + m->mean[i] / (double)f->rows;
	free(first);
	free(row);
}

/* Reads the rows first to end - 1 that count, less `about`, times sqrt(count), to x [rows, ld], and adds count times
 * their differences to `off`.  Returns how many rows x has. */
static int64_t read_differences(const struct vfm_moments *m, const struct vfm_features *f, const uint32_t *counts,
	const double *about, int64_t first, int64_t end, double *x, double *off)
{
	int64_t n = 0;

	for (int64_t r = first; r < end; r++) {
		double times = counts ? counts[r] : 1, scale = sqrt(times), *row = x + n * m->ld;

		if (times == 0)
			continue;
		vfm_features_read(f, r, 1, m->ld, row);
		for (int64_t i = 0; i < m->dim; i++) {
			double d = row[i] - about[i];

			off[i] += times * d;
			row[i] = scale * d;
		}
		n++;
	}
	return n;
}

int vfm_moments_of(struct vfm_moments *m, const struct vfm_features *f, const uint32_t *counts, const double *about,
	struct vfm_err *err)
{
	size_t ld = (size_t)m->ld, bytes = BLOCK * ld * sizeof(double);
	double *x = vfm_big_alloc(bytes, "rows of features", err), *off = vfm_calloc(ld, sizeof(double));

	if (!x) {
		free(off);
		return VFM_EENV;
	}
	if (!about) {
		compute_mean(m, f);
		about = m->mean;
	}
	m->n = f->rows;
	memset(x, 0, bytes);
	memset(m->cov, 0, ld * ld * sizeof(double));
	for (int64_t r = 0; r < f->rows; r += BLOCK) {
		int64_t end = f->rows - r < BLOCK ? f->rows : r + BLOCK;
		int64_t n = read_differences(m, f, counts, about, r, end, x, off);

		vfm_dense_add_atb(m->cov, x, x, n, m->ld, m->ld, true);
	}
	/* The differences were taken from `about` instead of from the mean, about + off / n. */
	for (int64_t i = 0; i < m->dim; i++) {
		for (int64_t j = i; j < m->dim; j++) {
			double *c = &m->cov[i * m->ld + j];

			*c = (*c - off[i] * off[j] / (double)m->n) / (double)(m->n - 1);
		}
		m->mean[i] = about[i] + off[i] / (double)m->n;
	}
	vfm_big_free(x, bytes);
	free(off);
	return 0;
}

/* ---- the distance ---- */

struct factor {                /* S = F F^T */
	double *f;             /* [dim, ld], zero beyond rank */
	int64_t dim, rank, ld; /* ld: rank rounded up */
	size_t bytes;
};

/* Writes the correlation matrix to r [dim, ld of m] and the standard deviations to d [dim].  A dimension without
 * variance has the row 0. */
static void correlate(const struct vfm_moments *m, double *r, double *d)
{
	for (int64_t i = 0; i < m->dim; i++)
		d[i] = sqrt(fmax(0, m->cov[i * m->ld + i]));
	for (int64_t i = 0; i < m->dim; i++)
		for (int64_t j = i; j < m->dim; j++) {
			double s = d[i] * d[j], v = s > 0 ? m->cov[i * m->ld + j] / s : 0;

			r[i * m->ld + j] = r[j * m->ld + i] = i == j && s > 0 ? 1 : v;
		}
}

/* Row piv[i] of F is row i of L times a standard deviation. */
static int unpivot(
	struct factor *f, const double *l, int64_t ld, const int32_t *piv, const double *d, struct vfm_err *err)
{
	f->ld = vfm_dense_padded(f->rank > 0 ? f->rank : 1);
	f->bytes = (size_t)f->dim * (size_t)f->ld * sizeof(double);
	f->f = vfm_big_alloc(f->bytes, "a factor of a covariance matrix", err);
	if (!f->f)
		return VFM_EENV;
	memset(f->f, 0, f->bytes);
	for (int64_t i = 0; i < f->dim; i++)
		for (int64_t k = 0; k <= i && k < f->rank; k++)
			f->f[piv[i] * f->ld + k] = d[piv[i]] * l[i * ld + k];
	return 0;
}

static int factorize(struct factor *f, const struct vfm_moments *m, struct vfm_err *err)
{
	size_t bytes = (size_t)m->dim * (size_t)m->ld * sizeof(double);
	double *r = vfm_big_alloc(bytes, "a correlation matrix", err), *d;
	double tol = DBL_EPSILON * ((double)m->dim + sqrt((double)m->n));
	int32_t *piv;
	int rc;

	*f = (struct factor){.dim = m->dim};
	if (!r)
		return VFM_EENV;
	d = vfm_calloc((size_t)m->dim, sizeof(*d));
	piv = vfm_calloc((size_t)m->dim, sizeof(*piv));
	correlate(m, r, d);
	rc = vfm_lapack_pivoted_cholesky(r, m->dim, m->ld, tol, piv, &f->rank, err);
	if (rc == 0)
		rc = unpivot(f, r, m->ld, piv, d, err);
	vfm_big_free(r, bytes);
	free(d);
	free(piv);
	return rc;
}

/* Sets *trace to that of (S1 S2)^(1/2). */
static int trace_of_root(const struct factor *a, const struct factor *b, double *trace, struct vfm_err *err)
{
	int64_t least = a->rank < b->rank ? a->rank : b->rank;
	size_t bytes = (size_t)a->ld * (size_t)b->ld * sizeof(double);
	double *p, *sigma;
	int rc;

	*trace = 0;
	if (least == 0)
		return 0;
	p = vfm_big_alloc(bytes, "a product of factors", err);
	if (!p)
		return VFM_EENV;
	memset(p, 0, bytes);
	sigma = vfm_calloc((size_t)least, sizeof(*sigma));
	vfm_dense_add_atb(p, a->f, b->f, a->dim, a->ld, b->ld, false);
	rc = vfm_lapack_singular_values(p, a->rank, b->rank, b->ld, sigma, err);
	for (int64_t i = least - 1; i >= 0; i--)
		*trace += sigma[i];
	vfm_big_free(p, bytes);
	free(sigma);
	return rc;
}

/* Of sets with equal dim. */
static int frechet_distance(const struct vfm_moments *a, const struct vfm_moments *b, double *d2, struct vfm_err *err)
{
	struct factor fa = {0}, fb = {0};
	double means = 0, traces = 0, root;
	int rc;

	TRY_OUT(factorize(&fa, a, err));
	TRY_OUT(factorize(&fb, b, err));
	TRY_OUT(trace_of_root(&fa, &fb, &root, err));
	for (int64_t i = 0; i < a->dim; i++) {
		double d = a->mean[i] - b->mean[i];

		means += d * d;
		traces += a->cov[i * a->ld + i] + b->cov[i * b->ld + i];
	}
	*d2 = means + (traces - 2 * root);
	if (!isfinite(*d2))
		TRY_OUT(vfm_fail(err, VFM_EINPUT, "the Frechet distance is not finite: the features are too large"));
	*d2 = fmax(0, *d2); /* rounding may make it negative */
out:
	vfm_big_free(fa.f, fa.bytes);
	vfm_big_free(fb.f, fb.bytes);
	return rc;
}

/* ---- the interval ---- */

struct resampling {
	const struct vfm_features *set[2];
	const struct vfm_moments *all[2];
	uint64_t seed;
	double *values; /* [resamples] */
	pthread_mutex_t lock;
	int rc; /* of the first failure; guarded by lock */
	struct vfm_err err;
};

static int resample_distance(const struct resampling *r, int64_t b, double *value, struct vfm_err *err)
{
	struct vfm_moments m[2] = {{0}, {0}};
	uint32_t *counts = NULL;
	int rc = 0;

	for (int s = 0; s < 2 && rc == 0; s++) {
		counts = vfm_calloc((size_t)r->set[s]->rows, sizeof(*counts));
		vfm_bootstrap_counts(r->seed, b, (uint64_t)s, r->set[s]->rows, counts);
		rc = vfm_moments_init(&m[s], r->set[s]->dim, err);
		if (rc == 0)
			rc = vfm_moments_of(&m[s], r->set[s], counts, r->all[s]->mean, err);
		free(counts);
	}
	if (rc == 0)
		rc = frechet_distance(&m[0], &m[1], value, err);
	vfm_moments_release(&m[0]);
	vfm_moments_release(&m[1]);
	return rc;
}

static void resample_range(int64_t b0, int64_t b1, void *ctx)
{
	struct resampling *r = ctx;
	struct vfm_err err = {0};

	for (int64_t b = b0; b < b1; b++) {
		int rc = resample_distance(r, b, &r->values[b], &err);

		if (rc == 0)
			continue;
		pthread_mutex_lock(&r->lock);
		if (r->rc == 0) {
			r->rc = rc;
			r->err = err;
		}
		pthread_mutex_unlock(&r->lock);
		return;
	}
}

static double least_of(double a, double b, double c)
{
	return fmin(a, fmin(b, c));
}

/* Estimated seconds of a resample on a core: 10 GFLOP/s of our products, 4 GFLOP/s of LAPACK. */
static double resample_seconds(const struct vfm_features *a, const struct vfm_features *b)
{
	double d = (double)a->dim, na = (double)a->rows, nb = (double)b->rows;
	double products = (na + nb) * d * d + 2 * d * fmin(na, d) * fmin(nb, d);
	double least = least_of(na, nb, d), factors = d * d * (fmin(na, d) + fmin(nb, d)) / 2;

	return products / 1e10 + (factors + 4 * d * least * least) / 4e9;
}

static int64_t choose_resamples(const struct vfm_features *a, const struct vfm_features *b, int64_t wanted)
{
	const int64_t most = 1000, least = 50;
	double affordable = 60 / resample_seconds(a, b);

	if (wanted >= 0)
		return wanted;
	return affordable >= (double)most ? most : affordable >= (double)least ? (int64_t)affordable : 0;
}

/* Resamples run at once if their matrices, about six a resample, take at most 2 GiB, else one after another. */
static void run_resamples(struct resampling *r, int64_t n)
{
	double bytes = 6 * sizeof(double) * (double)r->all[0]->ld * (double)r->all[0]->ld;

	if (bytes * vfm_par_threads() <= 2.0 * (1 << 30))
		vfm_par_for(n, 1, resample_range, r);
	else
		resample_range(0, n, r);
}

static int compute_interval(
	struct vfm_frechet *f, struct resampling *r, int64_t n, double confidence, struct vfm_err *err)
{
	double sum = 0;

	r->values = vfm_calloc((size_t)n, sizeof(double));
	run_resamples(r, n);
	if (r->rc == 0) {
		vfm_sort(r->values, (size_t)n);
		for (int64_t b = 0; b < n; b++)
			sum += r->values[b];
		f->bias = sum / (double)n - f->value;
		f->interval = (struct vfm_interval){
			.low = fmax(0, vfm_quantile(r->values, n, (1 - confidence) / 2) - f->bias),
			.high = fmax(0, vfm_quantile(r->values, n, (1 + confidence) / 2) - f->bias),
			.resamples = n,
		};
	} else {
		*err = r->err;
	}
	free(r->values);
	return r->rc;
}

static int check_enough(const struct vfm_features *f, struct vfm_err *err)
{
	if (f->rows >= 2)
		return 0;
	return vfm_fail(
		err, VFM_EUSAGE, "'%s' has %lld vectors: a covariance needs at least 2", f->name, (long long)f->rows);
}

int vfm_frechet_of(struct vfm_frechet *r, const struct vfm_features *a, const struct vfm_features *b,
	const struct vfm_bootstrap *boot, struct vfm_err *err)
{
	struct resampling res = {.set = {a, b}, .seed = boot->seed, .lock = PTHREAD_MUTEX_INITIALIZER};
	struct vfm_moments m[2] = {{0}, {0}};
	int64_t n;
	int rc;

	*r = (struct vfm_frechet){.interval = VFM_NO_INTERVAL, .bias = NAN};
	TRY(check_enough(a, err));
	TRY(check_enough(b, err));
	TRY(vfm_features_match(a, b, err));
	for (int s = 0; s < 2; s++) {
		TRY_OUT(vfm_moments_init(&m[s], a->dim, err));
		TRY_OUT(vfm_moments_of(&m[s], res.set[s], NULL, NULL, err));
		res.all[s] = &m[s];
	}
	TRY_OUT(frechet_distance(&m[0], &m[1], &r->value, err));
	n = choose_resamples(a, b, boot->resamples);
	if (n > 0)
		rc = compute_interval(r, &res, n, boot->confidence, err);
out:
	vfm_moments_release(&m[0]);
	vfm_moments_release(&m[1]);
	return rc;
}
