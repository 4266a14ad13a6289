/* attn_check.c - computes sampled rows of attention again with our kernels, and compares cuDNN's with them. */
#include "device/cuda/attn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/suballoc.h"

enum { ROWS = 32, RESULTS = 2 /* of one call of our own kernels */ };

/* Limits.  o and gradients: the norm of the difference, relative to the norm; a wrong row of 32 exceeds it, rounding
 * to bf16 does not.  lse: the root mean square of the difference. */
static const double MOST_RELATIVE = 0.1, MOST_LSE = 0.003, MOST_LSE_RELATIVE = 2e-4;
/* The rounding of dout v - rowsum(dout o) in f32, relative to its terms: all that dq and dk are where a sample has one
 * key. */
static const double NOISE = 5e-6;

/* A run of rows of one sample that our own kernels compute again. */
struct attn_check {
	struct vfm_stream *s;
	const struct vfm_attn_bwd *a;
	const struct vfm_attn_piece *p;
	int64_t q, nq, k, nk;    /* first query and key of the sample, and their numbers */
	double noise_q, noise_k; /* of dq and dk: root mean squares that mean nothing */
	struct vfm_tensor own[RESULTS];
	int32_t *dev_cu; /* [4], device memory */
	int32_t cu[4];   /* 0, queries, 0, keys */
	struct vfm_seqs seqs_q, seqs_k;
	char *mem;
	size_t bytes;
	bool silent; /* nothing has been compared so far */
};

/* ---- comparison ---- */

static struct vfm_tensor slice_attn_rows(const struct vfm_tensor *x, int64_t first, int64_t n)
{
	struct vfm_tensor y = *x;

	y.data = (char *)x->data + (size_t)(first * x->stride[0]) * vfm_dtype_size(x->dtype);
	y.shape[0] = n;
	return y;
}

static size_t extent_of(const struct vfm_tensor *x)
{
	int64_t cols = x->shape[1] * (x->ndim == 3 ? x->shape[2] : 1);

	return (size_t)((x->shape[0] - 1) * x->stride[0] + cols) * vfm_dtype_size(x->dtype);
}

static double element(const char *mem, enum vfm_dtype t, int64_t i)
{
	return t == VFM_F32 ? (double)((const float *)(const void *)mem)[i]
			    : (double)vfm_bf16_to_f32(((const uint16_t *)(const void *)mem)[i]);
}

struct distance {
	double diff, norm; /* sums of squares */
	int64_t n;
	bool lost; /* not finite where our own result is */
};

/* The distance of got to want, rows [n, heads, d] or [n, heads], in the heads [lo, hi). */
static struct distance distance_of(const struct vfm_tensor *got, const char *g, const struct vfm_tensor *want,
	const char *w, int64_t lo, int64_t hi)
{
	int64_t d = got->ndim == 3 ? got->shape[2] : 1;
	struct distance r = {0};

	for (int64_t i = 0; i < got->shape[0]; i++)
		for (int64_t c = lo * d; c < hi * d; c++) {
			double x = element(g, got->dtype, i * got->stride[0] + c),
			       y = element(w, want->dtype, i * want->stride[0] + c);

			if (!isfinite(y))
				continue;
			r.n++;
			r.lost = r.lost || !isfinite(x);
			r.diff += (x - y) * (x - y);
			r.norm += y * y;
		}
	return r;
}

/* Copies rows to the host; the caller frees them.  NULL: a failure. */
static char *read_attn_rows(struct attn_check *c, const struct vfm_tensor *x, struct vfm_err *err)
{
	const struct vfm_dev_table *t = c->s->dev->t;
	char *host = vfm_malloc(extent_of(x));

	if (t->to_host(c->s, host, x->data, extent_of(x), err) == 0 && t->stream_sync(c->s, err) == 0)
		return host;
	free(host);
	return NULL;
}

/* The first of ROWS rows at the beginning, in the middle (not at the beginning of a tile), or at the end of n rows. */
static int64_t place_check_rows(int64_t n, int place)
{
	int64_t last = n > ROWS ? n - ROWS : 0;

	return place == 0 ? 0 : place == 1 ? last / 2 : last;
}

/* *rms: the largest root mean square of the rows that are compared, of the n from `first` on. */
static int rms_of(
	struct attn_check *c, const struct vfm_tensor *x, int64_t first, int64_t n, double *rms, struct vfm_err *err)
{
	*rms = 0;
	for (int place = 0; place < 3; place++) {
		struct vfm_tensor rows = slice_attn_rows(x, first + place_check_rows(n, place), n < ROWS ? n : ROWS);
		char *host = read_attn_rows(c, &rows, err);
		struct distance d;

		if (!host)
			return VFM_EENV;
		d = distance_of(&rows, host, &rows, host, 0, rows.shape[1]);
		*rms = d.n ? fmax(*rms, sqrt(d.norm / (double)d.n)) : *rms;
		free(host);
	}
	return 0;
}

/* Sets the noise of a sample in the backward.  Returns 1 if its dout is zero. */
static int measure_noise(struct attn_check *c, struct vfm_err *err)
{
	const struct vfm_attn_bwd *a = c->a;
	double dout, v, q, k;

	TRY(rms_of(c, &a->dout, c->q, c->nq, &dout, err));
	if (dout == 0)
		return 1;
	TRY(rms_of(c, &a->v, c->k, c->nk, &v, err));
	TRY(rms_of(c, &a->q, c->q, c->nq, &q, err));
	TRY(rms_of(c, &a->k, c->k, c->nk, &k, err));
	c->noise_q = NOISE * (double)a->scale * sqrt((double)a->q.shape[2]) * dout * v * k;
	c->noise_k = NOISE * (double)a->scale * sqrt((double)(a->q.shape[2] * c->nq)) * dout * v * q;
	return 0;
}

/* A result whose rows are compared with own[i]; its difference may be `noise` and more. */
struct result {
	const char *name;
	struct vfm_tensor rows;
	int i;
	bool of_keys;
	double noise, relative;
};

static int compare_attn_rows(struct attn_check *c, const struct result *r, struct vfm_err *why, struct vfm_err *err)
{
	int64_t group = r->of_keys ? 1 : c->a->q.shape[1] / c->a->k.shape[1], lo = c->p->head * group;
	char *got = read_attn_rows(c, &r->rows, err), *want = got ? read_attn_rows(c, &c->own[r->i], err) : NULL;
	struct distance d = {0};
	double is, most;

	if (want)
		d = distance_of(&r->rows, got, &c->own[r->i], want, lo, lo + c->p->heads * group);
	free(got);
	free(want);
	if (!want)
		return VFM_EENV;
	if (d.n == 0)
		return VFM_ATTN_AGREES;
	c->silent = false;
	is = sqrt(d.diff / (double)d.n);
	most = sqrt(d.norm / (double)d.n);
	most = r->relative * most + r->noise;
	if (!d.lost && is <= most)
		return VFM_ATTN_AGREES;
	if (d.lost)
		vfm_fail(why, VFM_EENV, "%s is not finite, unlike that of our own kernels", r->name);
	else
		vfm_fail(why, VFM_EENV,
			"%s differs from that of our own kernels by %.2g (root mean square; at most %.2g)", r->name, is,
			most);
	return VFM_ATTN_DIFFERS;
}

/* ---- one run of rows ---- */

static void set_seqs(struct attn_check *c, int64_t nq, int64_t nk)
{
	c->cu[1] = (int32_t)nq;
	c->cu[3] = (int32_t)nk;
	c->seqs_q = (struct vfm_seqs){
		.n = 1, .total = nq, .max_len = nq, .cu = c->cu, .dev_cu = vfm_t1(c->dev_cu, VFM_I32, 2)};
	c->seqs_k = (struct vfm_seqs){
		.n = 1, .total = nk, .max_len = nk, .cu = c->cu + 2, .dev_cu = vfm_t1(c->dev_cu + 2, VFM_I32, 2)};
}

/* The operands of our own kernels: n queries from `first` on and all keys of the sample; of_keys: the reverse. */
static struct vfm_attn_bwd own_operands(struct attn_check *c, int64_t first, int64_t n, bool of_keys)
{
	const struct vfm_attn_bwd *a = c->a;
	int64_t q = of_keys ? c->q : first, nq = of_keys ? c->nq : n, k = of_keys ? first : c->k,
		nk = of_keys ? n : c->nk;

	set_seqs(c, nq, nk);
	return (struct vfm_attn_bwd){.q = slice_attn_rows(&a->q, q, nq),
		.k = slice_attn_rows(&a->k, k, nk),
		.v = slice_attn_rows(&a->v, k, nk),
		.o = slice_attn_rows(&a->o, q, nq),
		.lse = slice_attn_rows(&a->lse, q, nq),
		.dout = vfm_has(&a->dout) ? slice_attn_rows(&a->dout, q, nq) : a->dout,
		.seqs_q = &c->seqs_q,
		.seqs_k = &c->seqs_k,
		.scale = a->scale};
}

/* Result i of our own kernels: contiguous, with the shape of x. */
static struct vfm_tensor own_result(const struct attn_check *c, int i, enum vfm_dtype t, const struct vfm_tensor *x)
{
	void *at = c->own[i].data;

	return x->ndim == 3 ? vfm_t3(at, t, x->shape[0], x->shape[1], x->shape[2])
			    : vfm_t2(at, t, x->shape[0], x->shape[1]);
}

static int check_attn_queries(struct attn_check *c, int64_t first, int64_t n, struct vfm_err *why, struct vfm_err *err)
{
	const struct vfm_attn_bwd *a = c->a;
	struct vfm_attn_bwd own = own_operands(c, first, n, false);
	struct result dq = {"dq", slice_attn_rows(&a->dq, first, n), 0, false, c->noise_q, MOST_RELATIVE},
		      o = {"o", own.o, 0, false, 0, MOST_RELATIVE},
		      lse = {"lse", own.lse, 1, false, MOST_LSE, MOST_LSE_RELATIVE};
	struct vfm_attn f = {
		.q = own.q, .k = own.k, .v = own.v, .seqs_q = own.seqs_q, .seqs_k = own.seqs_k, .scale = own.scale};
	int rc;

	TRY(c->s->dev->t->to_device(c->s, c->dev_cu, c->cu, sizeof(c->cu), err));
	if (vfm_has(&a->dout)) {
		own.dq = c->own[0] = own_result(c, 0, VFM_F32, &dq.rows);
		TRY(vfm_cuda_attn_bwd_own(c->s, &own, err));
		return compare_attn_rows(c, &dq, why, err);
	}
	f.o = c->own[0] = own_result(c, 0, own.o.dtype, &own.o);
	f.lse = c->own[1] = own_result(c, 1, VFM_F32, &own.lse);
	TRY(vfm_cuda_attn_own(c->s, &f, err));
	rc = compare_attn_rows(c, &lse, why, err);
	return rc ? rc : compare_attn_rows(c, &o, why, err);
}

static int check_attn_keys(struct attn_check *c, int64_t first, int64_t n, struct vfm_err *why, struct vfm_err *err)
{
	struct vfm_attn_bwd own = own_operands(c, first, n, true);
	struct result dk = {"dk", slice_attn_rows(&c->a->dk, first, n), 0, true, c->noise_k, MOST_RELATIVE},
		      dv = {"dv", slice_attn_rows(&c->a->dv, first, n), 1, true, 0, MOST_RELATIVE};
	int rc;

	TRY(c->s->dev->t->to_device(c->s, c->dev_cu, c->cu, sizeof(c->cu), err));
	own.dk = c->own[0] = own_result(c, 0, VFM_F32, &dk.rows);
	own.dv = c->own[1] = own_result(c, 1, VFM_F32, &dv.rows);
	TRY(vfm_cuda_attn_bwd_own(c->s, &own, err));
	rc = compare_attn_rows(c, &dk, why, err);
	return rc ? rc : compare_attn_rows(c, &dv, why, err);
}

static int check_sample(struct attn_check *c, struct vfm_err *why, struct vfm_err *err)
{
	bool bwd = vfm_has(&c->a->dout);
	int zero = bwd ? measure_noise(c, err) : 0;

	if (zero)
		return zero < 0 ? zero : 0;
	for (int place = 0; place < 3; place++) {
		int64_t q = place_check_rows(c->nq, place), k = place_check_rows(c->nk, place);
		int rc = check_attn_queries(c, c->q + q, c->nq < ROWS ? c->nq : ROWS, why, err);

		if (rc == 0 && bwd)
			rc = check_attn_keys(c, c->k + k, c->nk < ROWS ? c->nk : ROWS, why, err);
		if (rc)
			return rc;
	}
	return 0;
}

/* ---- samples ---- */

/* Picks the first sample of the piece, the one with the most pairs of a query and a key, and the last. */
static void pick_samples(const struct attn_check *c, int pick[3])
{
	const struct vfm_attn_piece *p = c->p;
	int64_t most = 0;
	int at = 0;

	pick[0] = pick[1] = pick[2] = -1;
	for (int i = 0; i < c->a->seqs_q->n; i++) {
		int64_t nq = vfm_seqs_len(c->a->seqs_q, i), nk = vfm_seqs_len(c->a->seqs_k, i);

		if (nq <= p->lo || nq > p->hi || nk == 0)
			continue;
		if (at >= p->first && at < p->first + p->n) {
			pick[0] = pick[0] < 0 ? i : pick[0];
			pick[1] = nq * nk > most ? i : pick[1];
			pick[2] = i;
			most = nq * nk > most ? nq * nk : most;
		}
		at++;
	}
}

/* Allocates the results of our own kernels and the list of rows; false: there is no memory. */
static bool alloc_check(struct attn_check *c)
{
	int64_t cols = c->a->q.shape[1] * c->a->q.shape[2];
	struct vfm_suballoc count = {.align = 256}, give = {.align = 256};

	for (struct vfm_suballoc *m = &count; m; m = m == &count ? &give : NULL) {
		for (int i = 0; i < RESULTS; i++)
			c->own[i] = vfm_t2(vfm_suballoc(m, ROWS * cols, sizeof(float)), VFM_F32, ROWS, cols);
		c->dev_cu = vfm_suballoc(m, 4, sizeof(*c->dev_cu));
		if (m == &count) {
			c->bytes = count.used;
			c->mem = vfm_dev_borrow(c->s, c->bytes, "rows to check attention");
			if (!c->mem)
				return false;
			give.base = c->mem;
		}
	}
	return true;
}

int vfm_attn_check(struct vfm_stream *s, const struct vfm_attn_bwd *a, const struct vfm_attn_piece *p,
	struct vfm_err *why, struct vfm_err *err)
{
	struct attn_check c = {.s = s, .a = a, .p = p, .silent = true};
	int pick[3], rc = 0;

	pick_samples(&c, pick);
	if (!alloc_check(&c))
		return VFM_ATTN_SILENT;
	for (int i = 0; i < 3 && rc == 0; i++) {
		if (pick[i] < 0 || (i > 0 && pick[i] == pick[i - 1]))
			continue;
		c.q = a->seqs_q->cu[pick[i]], c.nq = vfm_seqs_len(a->seqs_q, pick[i]);
		c.k = a->seqs_k->cu[pick[i]], c.nk = vfm_seqs_len(a->seqs_k, pick[i]);
		rc = check_sample(&c, why, err);
	}
	vfm_dev_free(s, c.mem, c.bytes);
	return rc ? rc : c.silent ? VFM_ATTN_SILENT : VFM_ATTN_AGREES;
}
