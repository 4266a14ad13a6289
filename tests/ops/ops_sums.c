/* ops_sums.c - sums over many rows on the levels of the CPU: the error against float64 does not grow with the number of
 * rows.  Equal rows are the worst case: each addition to a running sum rounds to the same side. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/philox.h"
#include "ops_test.h"

/* The largest error of a sum of positive terms, in units of 2^-24 of it, whatever the number of rows. */
enum { BOUND = 48 };

static const int64_t row_counts[] = {512, 24576, 98304};

/* x[rows][d], positive; `equal`: all rows are the first. */
static float *make_rows(int64_t rows, int64_t d, uint64_t id, bool equal)
{
	struct vfm_rng r = vfm_rng_stream(17, id, 0, VFM_RNG_TEST);
	float *x = vfm_calloc((size_t)(rows * d), sizeof(*x));

	for (int64_t i = 0; i < rows * d; i++)
		x[i] = equal && i >= d ? x[i - d] : 1 + 0.3f * (float)fabs((double)vfm_rng_normal(&r, (uint64_t)i));
	return x;
}

/* Fails if an element of got[n] differs from want by more than the bound. */
static void check_sums(
	const char *level, const char *what, int64_t rows, bool equal, const float *got, const double *want, int64_t n)
{
	double most = 0;

	for (int64_t i = 0; i < n; i++)
		most = fmax(most, fabs((double)got[i] - want[i]) / fabs(want[i]) * 0x1p24);
	if (getenv("VFM_TEST_V"))
		fprintf(stderr, "%-14s %-28s %6lld %s rows: error %.1f of 2^-24\n", level, what, (long long)rows,
			equal ? "equal" : "other", most);
	if (!(most <= BOUND))
		fail_msg("%s: %s of %lld %s rows: the error is %g of 2^-24, the bound %d", level, what, (long long)rows,
			equal ? "equal" : "other", most, BOUND);
}

/* ---- products ---- */

struct wide {
	const char *what;
	int64_t m, n;
	bool trans_a, trans_b;
	bool bf, accumulate, bias;
};

static const struct wide wides[] = {
	{"gradient of a weight", 40, 48, true, false, false, true, false},
	{"the same, many rows", 335, 37, true, false, false, true, false},
	{"the same in bf16", 335, 37, true, false, true, true, false},
	{"product of few rows", 7, 70, false, false, false, false, true},
	{"the same, B along K", 7, 70, false, true, false, false, true},
	{"the same in bf16", 9, 70, false, true, true, false, true},
	{"the same in bf16, k-major", 9, 70, false, false, true, false, true},
	{"product", 40, 33, false, true, false, false, true},
	{"product in bf16", 40, 33, false, true, true, false, true},
};

/* The transpose of x[rows][d]. */
static float *turn_rows(const float *x, int64_t rows, int64_t d)
{
	float *y = vfm_calloc((size_t)(rows * d), sizeof(*y));

	for (int64_t i = 0; i < rows; i++)
		for (int64_t j = 0; j < d; j++)
			y[j * rows + i] = x[i * d + j];
	return y;
}

static void *in_dtype(float *x, int64_t n, bool bf)
{
	uint16_t *h = (uint16_t *)x;

	for (int64_t i = 0; bf && i < n; i++)
		h[i] = vfm_f32_to_bf16(x[i]);
	return x;
}

/* want[m][n], sums[m] = the products and the sums of a's columns; a and b get the values of the dtype. */
static void refer_product(const struct wide *w, int64_t rows, float *a, float *b, double *want, double *sums)
{
	for (int64_t i = 0; w->bf && i < rows * w->m; i++)
		a[i] = vfm_bf16_to_f32(vfm_f32_to_bf16(a[i]));
	for (int64_t i = 0; w->bf && i < rows * w->n; i++)
		b[i] = vfm_bf16_to_f32(vfm_f32_to_bf16(b[i]));
	for (int64_t k = 0; k < rows; k++)
		for (int64_t i = 0; i < w->m; i++) {
			double x = (double)a[k * w->m + i];

			sums[i] += x;
			for (int64_t j = 0; j < w->n; j++)
				want[i * w->n + j] += x * (double)b[k * w->n + j];
		}
}

static void check_product(const struct wide *w, int64_t rows, bool equal)
{
	float *a = make_rows(rows, w->m, 1, equal), *b = make_rows(rows, w->n, 2, equal), *p, *q;
	float *c = vfm_calloc((size_t)(w->m * w->n), sizeof(*c)), sum[512], bias[512] = {0};
	double *want = vfm_calloc((size_t)(w->m * w->n), sizeof(*want)), sums[512] = {0};
	enum vfm_dtype t = w->bf ? VFM_BF16 : VFM_F32;
	struct vfm_err err = {0};

	refer_product(w, rows, a, b, want, sums);
	p = w->trans_a ? a : turn_rows(a, rows, w->m);
	q = w->trans_b ? turn_rows(b, rows, w->n) : b;
	in_dtype(p, rows * w->m, w->bf);
	in_dtype(q, rows * w->n, w->bf);
	for (int l = 0; l <= n_full; l++) {
		struct vfm_gemm g = {.a = w->trans_a ? vfm_t2(p, t, rows, w->m) : vfm_t2(p, t, w->m, rows),
			.b = w->trans_b ? vfm_t2(q, t, w->n, rows) : vfm_t2(q, t, rows, w->n),
			.c = vfm_t2(c, VFM_F32, w->m, w->n),
			.trans_a = w->trans_a,
			.trans_b = w->trans_b,
			.accumulate = w->accumulate};

		if (l == n_isa) /* CUDA, emulated */
			continue;
		memset(c, 0, (size_t)(w->m * w->n) * sizeof(*c));
		memset(sum, 0, sizeof(sum));
		if (w->accumulate)
			g.a_rowsum = vfm_t1(sum, VFM_F32, w->m);
		if (w->bias) /* a result that cannot hold the sums */
			g.bias = vfm_t1(bias, VFM_F32, w->n);
		assert_int_equal(vfm_op_gemm(levels[l].s, &g, &err), 0);
		check_sums(levels[l].name, w->what, rows, equal, c, want, w->m * w->n);
		if (w->accumulate)
			check_sums(levels[l].name, "gradient of a bias", rows, equal, sum, sums, w->m);
	}
	if (p != a)
		free(p);
	if (q != b)
		free(q);
	free(a);
	free(b);
	free(c);
	free(want);
}

/* ---- sums of columns ---- */

enum { D = 24, HEADS = 12 };

/* dy and x[rows][D]; xhat = x: mean 0, rstd 1. */
static void check_norms(int l, int64_t rows, bool equal, float *dy, float *x, float *ones, float *dx,
	const double *want, const double *sums)
{
	int32_t cu[2] = {0, (int32_t)rows};
	struct vfm_seqs seqs = {.n = 1, .total = rows, .max_len = rows, .cu = cu};
	struct vfm_tensor t_dy = vfm_t2(dy, VFM_F32, rows, D), t_x = vfm_t2(x, VFM_F32, rows, D),
			  t_dx = vfm_t2(dx, VFM_F32, rows, D), stat = vfm_t1(ones, VFM_F32, rows);
	struct vfm_err err = {0};
	float s[4][D] = {{0}}, gate[D];

	for (int i = 0; i < D; i++)
		gate[i] = 1;
	struct vfm_norm_bwd n = {.kind = VFM_NORM_RMS,
		.x = t_x,
		.dy = t_dy,
		.rstd = stat,
		.dx = t_dx,
		.weight = vfm_t1(gate, VFM_F32, D),
		.dweight = vfm_t1(s[0], VFM_F32, D)};
	struct vfm_add_row_bwd r = {.dy = t_dy, .drow = vfm_t1(s[1], VFM_F32, D)};
	struct vfm_gate_bwd g = {.dy = t_dy,
		.h = t_x,
		.gate = vfm_t2(gate, VFM_F32, 1, D),
		.seqs = &seqs,
		.dh = t_dx,
		.dgate = vfm_t2(s[2], VFM_F32, 1, D),
		.dh_sum = vfm_t1(s[3], VFM_F32, D)};
	assert_int_equal(vfm_op_norm_bwd(levels[l].s, &n, &err), 0);
	check_sums(levels[l].name, "weight of a norm", rows, equal, s[0], want, D);
	assert_int_equal(vfm_op_add_row_bwd(levels[l].s, &r, &err), 0);
	check_sums(levels[l].name, "row that was added", rows, equal, s[1], sums, D);
	assert_int_equal(vfm_op_gate_bwd(levels[l].s, &g, &err), 0);
	check_sums(levels[l].name, "gate", rows, equal, s[2], want, D);
	check_sums(levels[l].name, "bias below a gate", rows, equal, s[3], sums, D);
}

/* The same numbers as [rows / HEADS, HEADS, D] and by index. */
static void check_heads(int l, int64_t rows, bool equal, float *dy, float *x, float *ones, float *dx,
	const double *want, const double *sums)
{
	int64_t tokens = rows / HEADS;
	struct vfm_err err = {0};
	int32_t *zeros = vfm_calloc((size_t)rows * 3, sizeof(*zeros));
	float s[4][D] = {{0}}, weight[D];

	for (int i = 0; i < D; i++)
		weight[i] = 1;
	struct vfm_qk_norm_rope_bwd q = {.x = vfm_t3(x, VFM_F32, tokens, HEADS, D),
		.dy = vfm_t3(dy, VFM_F32, tokens, HEADS, D),
		.dx = vfm_t3(dx, VFM_F32, tokens, HEADS, D),
		.weight = vfm_t1(weight, VFM_F32, D),
		.rstd = vfm_t2(ones, VFM_F32, tokens, HEADS),
		.dweight = vfm_t1(s[0], VFM_F32, D)};
	struct vfm_index_add a = {.x = vfm_t2(dy, VFM_F32, rows, D),
		.index = vfm_t1(zeros, VFM_I32, rows),
		.y = vfm_t2(s[1], VFM_F32, 1, D)};
	struct vfm_embed3_bwd e = {.dy = vfm_t2(dy, VFM_F32, rows, D),
		.pos = vfm_t2(zeros, VFM_I32, rows, 3),
		.dtable_t = vfm_t2(s[2], VFM_F32, 1, D)};
	assert_int_equal(vfm_op_qk_norm_rope_bwd(levels[l].s, &q, &err), 0);
	check_sums(levels[l].name, "weight of a norm of heads", rows, equal, s[0], want, D);
	assert_int_equal(vfm_op_index_add(levels[l].s, &a, &err), 0);
	check_sums(levels[l].name, "rows of an index", rows, equal, s[1], sums, D);
	assert_int_equal(vfm_op_embed3_bwd(levels[l].s, &e, &err), 0);
	check_sums(levels[l].name, "embedding", rows, equal, s[2], sums, D);
	free(zeros);
}

static void check_columns(int64_t rows, bool equal)
{
	float *dy = make_rows(rows, D, 3, equal), *x = make_rows(rows, D, 4, equal),
	      *ones = make_rows(rows, 1, 5, true);
	float *dx = vfm_calloc((size_t)(rows * D), sizeof(*dx));
	double want[D] = {0}, sums[D] = {0};

	for (int64_t i = 0; i < rows; i++)
		ones[i] = 1;
	for (int64_t i = 0; i < rows * D; i++) {
		want[i % D] += (double)dy[i] * (double)x[i];
		sums[i % D] += (double)dy[i];
	}
	for (int l = 0; l < n_isa; l++) {
		check_norms(l, rows, equal, dy, x, ones, dx, want, sums);
		check_heads(l, rows, equal, dy, x, ones, dx, want, sums);
	}
	free(dy);
	free(x);
	free(ones);
	free(dx);
}

/* ---- attention ---- */

enum { HD = 16 };

struct attn_rows {
	int64_t nq, nk;
	float *q, *k, *v, *dout, *o, *lse, *dq, *dk, *dv;
	double *p, *want_o, *want_lse, *want_dq, *want_dk, *want_dv; /* p[nk]: of a query */
	double *size_dq, *size_dk;                                   /* sums of |terms|, which cancel in dq and dk */
};

static double dot_heads(const float *x, const float *y)
{
	double sum = 0;

	for (int i = 0; i < HD; i++)
		sum += (double)x[i] * (double)y[i];
	return sum;
}

/* Query i of the reference. */
static void refer_query(struct attn_rows *x, int64_t i, double scale)
{
	const float *q = x->q + i * HD, *dout = x->dout + i * HD;
	double sum = 0, delta = 0;

	for (int64_t j = 0; j < x->nk; j++)
		sum += x->p[j] = exp(scale * dot_heads(q, x->k + j * HD));
	x->want_lse[i] = log(sum);
	for (int64_t j = 0; j < x->nk; j++) {
		x->p[j] /= sum;
		delta += x->p[j] * dot_heads(dout, x->v + j * HD);
	}
	for (int64_t j = 0; j < x->nk; j++) {
		double dp = dot_heads(dout, x->v + j * HD), ds = x->p[j] * (dp - delta) * scale;
		double size = x->p[j] * (fabs(dp) + fabs(delta)) * scale;

		for (int c = 0; c < HD; c++) {
			x->want_o[i * HD + c] += x->p[j] * (double)x->v[j * HD + c];
			x->want_dv[j * HD + c] += x->p[j] * (double)dout[c];
			x->want_dq[i * HD + c] += ds * (double)x->k[j * HD + c];
			x->want_dk[j * HD + c] += ds * (double)q[c];
			x->size_dq[i * HD + c] += size * (double)x->k[j * HD + c];
			x->size_dk[j * HD + c] += size * (double)q[c];
		}
	}
}

static void run_attention(struct attn_rows *x, int l, float scale)
{
	int32_t cu_q[2] = {0, (int32_t)x->nq}, cu_k[2] = {0, (int32_t)x->nk};
	struct vfm_seqs qs = {.n = 1, .total = x->nq, .max_len = x->nq, .cu = cu_q};
	struct vfm_seqs ks = {.n = 1, .total = x->nk, .max_len = x->nk, .cu = cu_k};
	struct vfm_attn f = {.q = vfm_t3(x->q, VFM_F32, x->nq, 1, HD),
		.k = vfm_t3(x->k, VFM_F32, x->nk, 1, HD),
		.v = vfm_t3(x->v, VFM_F32, x->nk, 1, HD),
		.o = vfm_t3(x->o, VFM_F32, x->nq, 1, HD),
		.lse = vfm_t2(x->lse, VFM_F32, x->nq, 1),
		.seqs_q = &qs,
		.seqs_k = &ks,
		.scale = scale};
	struct vfm_attn_bwd b = {.q = f.q,
		.k = f.k,
		.v = f.v,
		.o = f.o,
		.lse = f.lse,
		.dout = vfm_t3(x->dout, VFM_F32, x->nq, 1, HD),
		.dq = vfm_t3(x->dq, VFM_F32, x->nq, 1, HD),
		.dk = vfm_t3(x->dk, VFM_F32, x->nk, 1, HD),
		.dv = vfm_t3(x->dv, VFM_F32, x->nk, 1, HD),
		.seqs_q = &qs,
		.seqs_k = &ks,
		.scale = scale};
	struct vfm_err err = {0};

	assert_int_equal(vfm_op_attn(levels[l].s, &f, &err), 0);
	assert_int_equal(vfm_op_attn_bwd(levels[l].s, &b, &err), 0);
}

/* Stores want + (got - want) / size * want in got: the error in units of the terms. */
static void weigh_terms(float *got, const double *want, const double *size, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		got[i] = (float)(want[i] + ((double)got[i] - want[i]) / size[i] * want[i]);
}

static void check_attention(int64_t nq, int64_t nk, bool equal)
{
	int64_t rows = nq > nk ? nq : nk, nqd = nq * HD, nkd = nk * HD;
	double *mem = vfm_calloc((size_t)(nk + nq + 3 * nqd + 4 * nkd), sizeof(*mem));
	float *out = vfm_calloc((size_t)(2 * nqd + nq + 2 * nkd), sizeof(*out));
	struct attn_rows x = {.nq = nq,
		.nk = nk,
		.q = make_rows(nq, HD, 6, equal),
		.k = make_rows(nk, HD, 7, equal),
		.v = make_rows(nk, HD, 8, equal && nk > nq),
		.dout = make_rows(nq, HD, 9, equal),
		.o = out,
		.dq = out + nqd,
		.lse = out + 2 * nqd,
		.dk = out + 2 * nqd + nq,
		.dv = out + 2 * nqd + nq + nkd,
		.p = mem,
		.want_lse = mem + nk,
		.want_o = mem + nk + nq,
		.want_dq = mem + nk + nq + nqd,
		.size_dq = mem + nk + nq + 2 * nqd,
		.want_dk = mem + nk + nq + 3 * nqd,
		.want_dv = mem + nk + nq + 3 * nqd + nkd,
		.size_dk = mem + nk + nq + 3 * nqd + 2 * nkd};

	for (int64_t i = 0; i < nq; i++)
		refer_query(&x, i, 0.25);
	for (int l = 0; l < n_isa; l++) {
		run_attention(&x, l, 0.25f);
		check_sums(levels[l].name, "attention", rows, equal, x.o, x.want_o, nqd);
		check_sums(levels[l].name, "lse of attention", rows, equal, x.lse, x.want_lse, nq);
		check_sums(levels[l].name, "values of attention", rows, equal, x.dv, x.want_dv, nkd);
		weigh_terms(x.dk, x.want_dk, x.size_dk, nkd);
		check_sums(levels[l].name, "keys of attention", rows, equal, x.dk, x.want_dk, nkd);
		weigh_terms(x.dq, x.want_dq, x.size_dq, nqd);
		check_sums(levels[l].name, "queries of attention", rows, equal, x.dq, x.want_dq, nqd);
	}
	free(x.q);
	free(x.k);
	free(x.v);
	free(x.dout);
	free(out);
	free(mem);
}

void test_long_sums(void **state)
{
	(void)state;
	for (int equal = 1; equal >= 0; equal--)
		for (int i = 0; i < 2 + equal; i++) {
			/* a multiple of HEADS */
			check_columns(row_counts[i] / HEADS * HEADS, equal);
			check_attention(row_counts[i], 16, equal);
			check_attention(20, row_counts[i], equal);
			if (i < 2) /* several items with the same queries */
				check_attention(row_counts[i], 520, equal);
			for (size_t k = 0; k < sizeof(wides) / sizeof(wides[0]); k++)
				check_product(&wides[k], row_counts[i], equal);
		}
}
