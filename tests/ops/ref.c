#include "ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double *ref_at(const struct ref *r, size_t offset)
{
	const struct vfm_operand *o = vfm_op_info(r->op)->operands;

	for (int i = 0; o[i].name; i++)
		if (o[i].offset == offset)
			return r->v[i];
	abort();
}

#define V(op, field) ref_at(r, offsetof(struct vfm_##op, field))

static int sample_of(const struct vfm_seqs *q, int64_t t)
{
	int s = 0;

	while (q->cu[s + 1] <= t)
		s++;
	return s;
}

static double act_of(enum vfm_act act, double x)
{
	double u = 0.79788456080286535588 * (x + 0.044715 * x * x * x);

	switch (act) {
	case VFM_ACT_GELU_TANH:
		return 0.5 * x * (1 + tanh(u));
	case VFM_ACT_SILU:
		return x / (1 + exp(-x));
	case VFM_ACT_GELU:
		return 0.5 * x * erfc(-x / sqrt(2));
	default:
		return x;
	}
}

static double dact_of(enum vfm_act act, double x)
{
	double u = 0.79788456080286535588 * (x + 0.044715 * x * x * x), t = tanh(u), s = 1 / (1 + exp(-x));

	switch (act) {
	case VFM_ACT_GELU_TANH:
		return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.79788456080286535588 * (1 + 3 * 0.044715 * x * x);
	case VFM_ACT_SILU:
		return s + x * s * (1 - s);
	case VFM_ACT_GELU:
		return 0.5 * erfc(-x / sqrt(2)) + x * exp(-0.5 * x * x) / sqrt(2 * M_PI);
	default:
		return 1;
	}
}

static void ref_gemm(struct ref *r)
{
	const struct vfm_gemm *g = r->args;
	const double *a = V(gemm, a), *b = V(gemm, b), *bias = V(gemm, bias);
	double *c = V(gemm, c), *aux = V(gemm, aux), *sum = V(gemm, a_rowsum);
	const double *sa = V(gemm, scale_a), *sb = V(gemm, scale_b);
	double f = sa ? *sa * *sb : 1;
	int64_t m = g->c.shape[0], n = g->c.shape[1], k = g->a.shape[g->trans_a ? 0 : 1];

	for (int64_t i = 0; i < m; i++) {
		for (int64_t j = 0; j < n; j++) {
			double z = bias ? bias[j] : 0;

			for (int64_t q = 0; q < k; q++)
				z += f * a[g->trans_a ? q * m + i : i * k + q] * b[g->trans_b ? j * k + q : q * n + j];
			if (g->act && aux)
				aux[i * n + j] = z;
			if (g->dact)
				z *= dact_of(g->dact, aux[i * n + j]);
			z = act_of(g->act, z);
			c[i * n + j] = z + (g->accumulate ? c[i * n + j] : 0);
		}
		for (int64_t q = 0; sum && q < k; q++)
			sum[i] += a[g->trans_a ? q * m + i : i * k + q];
	}
}

/* Rounds x to the nearest 8-bit float, ties to even. */
static double to_f8(double x, int mantissa, int low, double most)
{
	double a = fabs(x), last;
	int e;

	if (!isfinite(x))
		return NAN;
	(void)frexp(a, &e);
	last = ldexp(1, (e - 1 < low ? low : e - 1) - mantissa);
	a = rint(a / last) * last;
	return copysign(a > most ? most : a, x);
}

static void ref_quant(struct ref *r)
{
	const struct vfm_quant *a = r->args;
	const double *x = V(quant, x), *history = V(quant, history);
	double *y = V(quant, y), *yt = V(quant, yt), *sum = V(quant, colsum), amax = 0, top = 0, scale = 1;
	int64_t t = a->x.shape[0], d = a->x.shape[1], w = yt ? a->yt.shape[1] : 0;
	bool wide = (y ? a->y.dtype : a->yt.dtype) == VFM_F8E5M2;
	double most = wide ? 57344 : 448;

	for (int64_t i = 0; i < t * d; i++)
		amax = isfinite(x[i]) && fabs(x[i]) > amax ? fabs(x[i]) : amax;
	for (int64_t i = 0; history && i < a->history.shape[0]; i++)
		top = fmax(top, history[i]);
	top = top > 0 ? top : amax;
	while (top > 0 && top * scale > most)
		scale /= 2;
	while (top > 0 && top * scale * 2 <= most && scale < 0x1p100)
		scale *= 2;
	for (int64_t i = 0; yt && i < d * w; i++)
		yt[i] = 0;
	for (int64_t i = 0; i < t; i++)
		for (int64_t j = 0; j < d; j++) {
			double v = to_f8(x[i * d + j] * scale, wide ? 2 : 3, wide ? -14 : -6, most);

			if (y)
				y[i * d + j] = v;
			if (yt)
				yt[j * w + i] = v;
			if (sum)
				sum[j] += x[i * d + j];
		}
	*V(quant, amax) = history ? fmax(*V(quant, amax), amax) : amax;
	*V(quant, inv) = 1 / scale;
}

static void ref_transpose8(struct ref *r)
{
	const struct vfm_transpose8 *a = r->args;
	const double *x = V(transpose8, x);
	double *y = V(transpose8, y);
	int64_t t = a->x.shape[0], d = a->x.shape[1], w = a->y.shape[1];

	for (int64_t i = 0; i < d * w; i++)
		y[i] = i % w < t ? x[i % w * d + i / w] : 0;
}

static void ref_amax_push(struct ref *r)
{
	const struct vfm_amax_push *a = r->args;
	const double *parts = V(amax_push, parts), *gs = V(amax_push, grad_scale);
	int64_t n = a->past.shape[0], h = a->past.shape[1];
	double *past = V(amax_push, past);

	for (int64_t i = 0; i < n && (!gs || isfinite(*gs)); i++) {
		for (int64_t k = 0; k < h; k++)
			past[i * h + k] = k < h - 1 ? past[i * h + k + 1] : 0;
		for (int64_t k = 0; k < a->parts.shape[0]; k++)
			past[i * h + h - 1] = fmax(past[i * h + h - 1], parts[k * n + i]);
	}
}

/* s = x + gate h, and its rounded copy. */
static void ref_residual_sum(struct ref *r, double *s)
{
	const struct vfm_norm *a = r->args;
	const double *x = V(norm, x), *h = V(norm, h), *g = V(norm, gate);
	double *sum = V(norm, sum);
	int64_t d = a->x.shape[1];

	for (int64_t t = 0; t < a->x.shape[0]; t++)
		for (int64_t i = t * d; i < (t + 1) * d; i++) {
			s[i] = x[i] + (h ? (g ? g[sample_of(a->seqs, t) * d + i - t * d] : 1) * h[i] : 0);
			if (sum)
				sum[i] = s[i];
		}
}

/* amax, and y in 8 bits. */
static void ref_norm8(struct ref *r)
{
	const struct vfm_norm *a = r->args;
	const double *history = V(norm, history);
	double *y = V(norm, y), *amax = V(norm, amax), top = 0, scale = 1;

	for (int64_t i = 0; amax && i < vfm_numel(&a->y); i++)
		*amax = isfinite(y[i]) ? fmax(*amax, fabs(y[i])) : *amax;
	for (int64_t i = 0; history && i < a->history.shape[0]; i++)
		top = fmax(top, history[i]);
	if (!history)
		return;
	if (top > 0)
		scale = exp2(floor(log2(448 / top)));
	for (int64_t i = 0; i < vfm_numel(&a->y); i++)
		y[i] = to_f8(y[i] * scale, 3, -6, 448);
	*V(norm, inv) = 1 / scale;
}

static void ref_norm(struct ref *r)
{
	const struct vfm_norm *a = r->args;
	const double *w = V(norm, weight), *b = V(norm, bias), *sh = V(norm, shift), *sc = V(norm, scale);
	double *y = V(norm, y), *mean = V(norm, mean), *rstd = V(norm, rstd);
	int64_t d = a->x.shape[1];
	double *all = vfm_calloc((size_t)vfm_numel(&a->x) + 1, sizeof(*all)), *x = all;

	ref_residual_sum(r, all);
	for (int64_t t = 0; t < a->x.shape[0]; t++, x += d, y += d) {
		int s = sc ? sample_of(a->seqs, t) : 0;
		double m = 0, q = 0, k;

		for (int64_t i = 0; i < d && a->kind == VFM_NORM_LAYER; i++)
			m += x[i] / (double)d;
		for (int64_t i = 0; i < d; i++)
			q += (x[i] - m) * (x[i] - m) / (double)d;
		k = 1 / sqrt(q + (double)a->eps);
		for (int64_t i = 0; i < d; i++)
			y[i] = (x[i] - m) * k *
					(sc                 ? 1 + sc[s * d + i]
							: w ? w[i]
							    : 1) +
				(sc                 ? sh[s * d + i]
						: b ? b[i]
						    : 0);
		if (mean)
			mean[t] = m;
		if (rstd)
			rstd[t] = k;
	}
	free(all);
	ref_norm8(r);
}

/* dh = gate dx of [rows,d], dgate and dh_sum; h, gate, dgate and dh_sum may be NULL. */
static void ref_branch_bwd(const struct vfm_seqs *seqs, int64_t rows, int64_t d, const double *dx, const double *h,
	const double *g, double *dh, double *dg, double *sum)
{
	if (dg)
		memset(dg, 0, (size_t)(seqs->n * d) * sizeof(*dg));
	for (int64_t t = 0; t < rows; t++)
		for (int64_t i = 0; i < d; i++) {
			int64_t k = g ? sample_of(seqs, t) * d + i : 0;

			dh[t * d + i] = (g ? g[k] : 1) * dx[t * d + i];
			if (dg)
				dg[k] += h[t * d + i] * dx[t * d + i];
			if (sum)
				sum[i] += dh[t * d + i];
		}
}

static void ref_norm_bwd(struct ref *r)
{
	const struct vfm_norm_bwd *a = r->args;
	const double *x = V(norm_bwd, x), *dy = V(norm_bwd, dy), *w = V(norm_bwd, weight), *sc = V(norm_bwd, scale);
	const double *mean = V(norm_bwd, mean), *rstd = V(norm_bwd, rstd);
	double *dx = V(norm_bwd, dx), *dw = V(norm_bwd, dweight), *db = V(norm_bwd, dbias);
	double *dsh = V(norm_bwd, dshift), *dsc = V(norm_bwd, dscale);
	int64_t d = a->x.shape[1], n = sc ? a->scale.shape[0] : 0;

	if (dsh)
		memset(dsh, 0, (size_t)(n * d) * sizeof(*dsh));
	if (dsc)
		memset(dsc, 0, (size_t)(n * d) * sizeof(*dsc));
	for (int64_t t = 0; t < a->x.shape[0]; t++, x += d, dy += d, dx += d) {
		int s = sc ? sample_of(a->seqs, t) : 0;
		double m = mean && a->kind == VFM_NORM_LAYER ? mean[t] : 0, s1 = 0, s2 = 0;

		for (int64_t i = 0; i < d; i++) {
			double xh = (x[i] - m) * rstd[t], g = dy[i] * (sc ? 1 + sc[s * d + i] : w ? w[i] : 1);

			s1 += g / (double)d;
			s2 += g * xh / (double)d;
			if (dw)
				dw[i] += dy[i] * xh;
			if (db)
				db[i] += dy[i];
			if (dsc)
				dsc[s * d + i] += dy[i] * xh;
			if (dsh)
				dsh[s * d + i] += dy[i];
		}
		if (a->kind == VFM_NORM_RMS)
			s1 = 0;
		for (int64_t i = 0; i < d; i++) {
			double xh = (x[i] - m) * rstd[t], g = dy[i] * (sc ? 1 + sc[s * d + i] : w ? w[i] : 1);

			dx[i] = rstd[t] * (g - s1 - xh * s2) + (a->dx_accumulate ? dx[i] : 0);
		}
	}
	if (vfm_has(&a->dh))
		ref_branch_bwd(a->seqs, a->x.shape[0], d, V(norm_bwd, dx), V(norm_bwd, h), V(norm_bwd, gate),
			V(norm_bwd, dh), V(norm_bwd, dgate), V(norm_bwd, dh_sum));
}

static void ref_gate(struct ref *r)
{
	const struct vfm_gate *a = r->args;
	const double *x = V(gate, x), *h = V(gate, h), *g = V(gate, gate);
	double *y = V(gate, y);
	int64_t d = a->x.shape[1];

	for (int64_t t = 0; t < a->x.shape[0]; t++)
		for (int64_t i = 0; i < d; i++)
			y[t * d + i] = x[t * d + i] + (g ? g[sample_of(a->seqs, t) * d + i] : 1) * h[t * d + i];
}

static void ref_gate_bwd(struct ref *r)
{
	const struct vfm_gate_bwd *a = r->args;

	ref_branch_bwd(a->seqs, a->dy.shape[0], a->dy.shape[1], V(gate_bwd, dy), V(gate_bwd, h), V(gate_bwd, gate),
		V(gate_bwd, dh), V(gate_bwd, dgate), V(gate_bwd, dh_sum));
}

static void ref_add_row(struct ref *r)
{
	const struct vfm_add_row *a = r->args;
	const double *x = V(add_row, x), *row = V(add_row, row);
	double *y = V(add_row, y);
	int64_t d = a->x.shape[1];

	for (int64_t i = 0; i < a->x.shape[0] * d; i++)
		y[i] = x[i] + row[i % d];
}

static void ref_add_row_bwd(struct ref *r)
{
	const struct vfm_add_row_bwd *a = r->args;
	const double *dy = V(add_row_bwd, dy);
	double *drow = V(add_row_bwd, drow);
	int64_t d = a->dy.shape[1];

	for (int64_t i = 0; i < a->dy.shape[0] * d; i++)
		drow[i % d] += dy[i];
}

/* Rotates the pairs of row[d] by cs[d], or back. */
static void rotate(double *row, const double *cs, int64_t d, double dir)
{
	for (int64_t i = 0; i < d; i += 2) {
		double a = row[i], b = row[i + 1], c = cs[i], s = dir * cs[i + 1];

		row[i] = a * c - b * s;
		row[i + 1] = a * s + b * c;
	}
}

/* One tensor x [rows,nh,d]; w, cs may be NULL. */
static void qk_forward(const struct vfm_tensor *xt, const double *x, const double *w, const double *cs, double eps,
	double *y, double *rstd)
{
	int64_t nh = xt->shape[1], d = xt->shape[2];

	for (int64_t j = 0; j < xt->shape[0] * nh; j++, x += d, y += d) {
		double q = 0, k = 1;

		for (int64_t i = 0; i < d; i++)
			q += x[i] * x[i] / (double)d;
		if (w)
			rstd[j] = k = 1 / sqrt(q + eps);
		for (int64_t i = 0; i < d; i++)
			y[i] = x[i] * k * (w ? w[i] : 1);
		if (cs)
			rotate(y, cs + j / nh * d, d, 1);
	}
}

static void ref_qk_norm_rope(struct ref *r)
{
	const struct vfm_qk_norm_rope *a = r->args;

	qk_forward(&a->x, V(qk_norm_rope, x), V(qk_norm_rope, weight), V(qk_norm_rope, rope), (double)a->eps,
		V(qk_norm_rope, y), V(qk_norm_rope, rstd));
	if (vfm_has(&a->x2))
		qk_forward(&a->x2, V(qk_norm_rope, x2), V(qk_norm_rope, weight2), V(qk_norm_rope, rope2),
			(double)a->eps, V(qk_norm_rope, y2), V(qk_norm_rope, rstd2));
}

struct qk_grad {
	const double *x, *dy, *w, *cs, *rstd;
	double *dx, *dw; /* dw may be NULL */
};

static void qk_backward(const struct vfm_tensor *dyt, const struct qk_grad *g)
{
	int64_t nh = dyt->shape[1], d = dyt->shape[2];

	for (int64_t j = 0; j < dyt->shape[0] * nh; j++) {
		double *o = g->dx + j * d, s = 0;

		memcpy(o, g->dy + j * d, (size_t)d * sizeof(*o));
		if (g->cs)
			rotate(o, g->cs + j / nh * d, d, -1);
		for (int64_t i = 0; g->w && i < d; i++) {
			double xh = g->x[j * d + i] * g->rstd[j];

			if (g->dw)
				g->dw[i] += o[i] * xh;
			s += o[i] * g->w[i] * xh / (double)d;
		}
		for (int64_t i = 0; g->w && i < d; i++)
			o[i] = g->rstd[j] * (o[i] * g->w[i] - g->x[j * d + i] * g->rstd[j] * s);
	}
}

static void ref_row_dot(struct ref *r)
{
	const struct vfm_row_dot *a = r->args;
	const double *x = V(row_dot, x), *y = vfm_has(&a->y) ? V(row_dot, y) : x;
	int64_t width = a->x.shape[1] * a->x.shape[2];

	for (int64_t t = 0; t < a->x.shape[0]; t++) {
		double s = 0;

		for (int64_t i = t * width; i < (t + 1) * width; i++)
			s += x[i] * y[i];
		V(row_dot, out)[t] = s;
	}
}

/* Where the table of row_norm_rope has head j % heads of token j / heads. */
static int64_t angles_of(const struct vfm_tensor *rope, int64_t j, int64_t heads)
{
	return rope->ndim == 3 ? j * rope->shape[2] : j / heads * rope->shape[1];
}

static void ref_row_norm_rope(struct ref *r)
{
	const struct vfm_row_norm_rope *a = r->args;
	const double *x = V(row_norm_rope, x), *w = V(row_norm_rope, weight), *cs = V(row_norm_rope, rope);
	double *y = V(row_norm_rope, y);
	int64_t nh = a->x.shape[1], d = a->x.shape[2];

	for (int64_t j = 0; j < a->x.shape[0] * nh; j++) {
		double k = 1 / sqrt(V(row_norm_rope, sumsq)[j / nh] / (double)a->width + (double)a->eps);

		for (int64_t i = 0; i < d; i++)
			y[j * d + i] = x[j * d + i] * k * w[j % nh * d + i];
		if (cs)
			rotate(y + j * d, cs + angles_of(&a->rope, j, nh), d, 1);
	}
}

#define VB(f) V(row_norm_rope_bwd, f)
static void ref_row_norm_rope_bwd(struct ref *r)
{
	const struct vfm_row_norm_rope_bwd *a = r->args;
	const double *x = VB(x), *w = VB(weight), *cs = VB(rope);
	double *dw = VB(dweight);
	int64_t nh = a->x.shape[1], d = a->x.shape[2];

	for (int64_t j = 0; j < a->x.shape[0] * nh; j++) {
		double *o = VB(dx) + j * d, k = 1 / sqrt(VB(sumsq)[j / nh] / (double)a->width + (double)a->eps);

		memcpy(o, VB(dy) + j * d, (size_t)d * sizeof(*o));
		if (cs)
			rotate(o, cs + angles_of(&a->rope, j, nh), d, -1);
		for (int64_t i = 0; i < d; i++) {
			double xh = x[j * d + i] * k;

			if (dw)
				dw[j % nh * d + i] += o[i] * xh;
			o[i] = k * (o[i] * w[j % nh * d + i] - xh * VB(dot)[j / nh] / (double)a->width);
		}
	}
}
#undef VB

#define VB(f) V(qk_norm_rope_bwd, f)
static void ref_qk_norm_rope_bwd(struct ref *r)
{
	const struct vfm_qk_norm_rope_bwd *a = r->args;

	qk_backward(&a->dy, &(struct qk_grad){VB(x), VB(dy), VB(weight), VB(rope), VB(rstd), VB(dx), VB(dweight)});
	if (vfm_has(&a->dy2))
		qk_backward(&a->dy2,
			&(struct qk_grad){VB(x2), VB(dy2), VB(weight2), VB(rope2), VB(rstd2), VB(dx2), VB(dweight2)});
}
#undef VB

/* Computes p[k] = scale q k of one query for the keys [k0, k1); returns the log of the sum of exponentials. */
static double scores(
	const double *q, const double *k, int64_t k0, int64_t k1, int64_t hkv, int64_t d, double scale, double *p)
{
	double max = -INFINITY, sum = 0;

	for (int64_t j = k0; j < k1; j++) {
		double s = 0;

		for (int64_t i = 0; i < d; i++)
			s += q[i] * k[j * hkv * d + i];
		p[j - k0] = s * scale;
		max = fmax(max, p[j - k0]);
	}
	for (int64_t j = k0; j < k1; j++)
		sum += exp(p[j - k0] - max);
	return sum > 0 ? max + log(sum) : -INFINITY;
}

static void ref_attn(struct ref *r)
{
	const struct vfm_attn *a = r->args;
	const double *q = V(attn, q), *k = V(attn, k), *v = V(attn, v);
	double *o = V(attn, o), *lse = V(attn, lse);
	int64_t nh = a->q.shape[1], hkv = a->k.shape[1], d = a->q.shape[2];

#pragma omp parallel for
	for (int64_t t = 0; t < a->q.shape[0]; t++) {
		double *p = malloc(sizeof(double) * (size_t)(a->k.shape[0] + 1));

		for (int64_t h = 0; h < nh; h++) {
			int s = sample_of(a->seqs_q, t);
			int64_t k0 = a->seqs_k->cu[s], k1 = a->seqs_k->cu[s + 1], off = h / (nh / hkv) * d;
			double l = scores(q + (t * nh + h) * d, k + off, k0, k1, hkv, d, (double)a->scale, p);

			lse[t * nh + h] = l;
			memset(o + (t * nh + h) * d, 0, (size_t)d * sizeof(*o));
			for (int64_t j = k0; j < k1; j++) {
				double pj = exp(p[j - k0] - l);

				for (int64_t i = 0; i < d; i++)
					o[(t * nh + h) * d + i] += pj * v[j * hkv * d + off + i];
			}
		}
		free(p);
	}
}

/* The gradients of one query and head: sets its dq, and adds to dk and dv.  p: for all keys. */
static void attn_bwd_row(const struct ref *r, int64_t t, int64_t h, double *p)
{
	const struct vfm_attn_bwd *a = r->args;
	int64_t nh = a->q.shape[1], hkv = a->k.shape[1], d = a->q.shape[2], row = (t * nh + h) * d;
	int64_t off = h / (nh / hkv) * d;
	const double *q = V(attn_bwd, q) + row, *o = V(attn_bwd, o) + row, *dout = V(attn_bwd, dout) + row;
	const double *k = V(attn_bwd, k) + off, *v = V(attn_bwd, v) + off, *lse = V(attn_bwd, lse);
	double *dq = V(attn_bwd, dq) + row, *dk = V(attn_bwd, dk) + off, *dv = V(attn_bwd, dv) + off, delta = 0;
	int s = sample_of(a->seqs_q, t);
	int64_t k0 = a->seqs_k->cu[s], k1 = a->seqs_k->cu[s + 1];

	scores(q, k, k0, k1, hkv, d, (double)a->scale, p);
	for (int64_t i = 0; i < d; i++)
		delta += o[i] * dout[i];
	for (int64_t j = k0; j < k1; j++) {
		double pj = exp(p[j - k0] - lse[t * nh + h]), dp = 0, ds;
		int64_t kj = j * hkv * d;

		for (int64_t i = 0; i < d; i++) {
			dp += dout[i] * v[kj + i];
			dv[kj + i] += pj * dout[i];
		}
		ds = pj * (dp - delta) * (double)a->scale;
		for (int64_t i = 0; i < d; i++) {
			dq[i] += ds * k[kj + i];
			dk[kj + i] += ds * q[i];
		}
	}
}

static void ref_attn_bwd(struct ref *r)
{
	const struct vfm_attn_bwd *a = r->args;
	int64_t nh = a->q.shape[1], hkv = a->k.shape[1];

	memset(V(attn_bwd, dq), 0, (size_t)vfm_numel(&a->q) * sizeof(double));
	memset(V(attn_bwd, dk), 0, (size_t)vfm_numel(&a->k) * sizeof(double));
	memset(V(attn_bwd, dv), 0, (size_t)vfm_numel(&a->v) * sizeof(double));
#pragma omp parallel for
	for (int64_t hk = 0; hk < hkv; hk++) { /* a thread has all that is added to the keys of a head */
		double *p = malloc(sizeof(double) * (size_t)(a->k.shape[0] + 1));

		for (int64_t t = 0; t < a->q.shape[0]; t++)
			for (int64_t h = hk * (nh / hkv); h < (hk + 1) * (nh / hkv); h++)
				attn_bwd_row(r, t, h, p);
		free(p);
	}
}

static void ref_attn_bias(struct ref *r)
{
	const struct vfm_attn_bias *a = r->args;
	const double *q = V(attn_bias, q), *k = V(attn_bias, k), *v = V(attn_bias, v), *bias = V(attn_bias, bias);
	double *o = V(attn_bias, o);
	int64_t nh = a->q.shape[1], d = a->q.shape[2], reach = (a->bias.shape[1] + 1) / 2;

	for (int64_t i = 0; i < a->q.shape[0]; i++)
		for (int64_t h = 0; h < nh; h++) {
			int s = sample_of(a->seqs, i);
			double *row = o + (i * nh + h) * d, sum = 0;

			memset(row, 0, (size_t)d * sizeof(*row));
			for (int64_t j = a->seqs->cu[s]; j < a->seqs->cu[s + 1]; j++) {
				double p = bias[h * (2 * reach - 1) + reach - 1 + j - i];

				for (int64_t c = 0; c < d; c++)
					p += (double)a->scale * q[(i * nh + h) * d + c] * k[(j * nh + h) * d + c];
				p = exp(p); /* scores of the cases are far below 700 */
				sum += p;
				for (int64_t c = 0; c < d; c++)
					row[c] += p * v[(j * nh + h) * d + c];
			}
			for (int64_t c = 0; c < d; c++)
				row[c] /= sum;
		}
}

/* Mean and mean square deviation of n x w elements in rows of c. */
static void moments(const double *x, int64_t n, int64_t w, int64_t c, double *mean, double *var)
{
	*mean = *var = 0;
	for (int64_t i = 0; i < n * w; i++)
		*mean += x[i / w * c + i % w] / (double)(n * w);
	for (int64_t i = 0; i < n * w; i++)
		*var += pow(x[i / w * c + i % w] - *mean, 2) / (double)(n * w);
}

/* Each frame and group, or each pixel, has one mean and one factor. */
static void ref_channel_norm(struct ref *r)
{
	const struct vfm_channel_norm *a = r->args;
	const double *x = V(channel_norm, x), *weight = V(channel_norm, weight), *bias = V(channel_norm, bias);
	double *y = V(channel_norm, y);
	bool group = a->kind == VFM_CHANNEL_NORM_GROUP;
	int64_t c = a->x.shape[2], width = group ? c / a->groups : c, n = group ? a->x.shape[1] : 1;
	int64_t parts = n ? a->x.shape[0] * a->x.shape[1] / n : 0; /* frames, or pixels */

	for (int64_t part = 0; part < parts; part++)
		for (int64_t g = 0; g < c; g += width) {
			int64_t first = part * n * c + g;
			double mean, var, by;

			moments(x + first, n, width, c, &mean, &var);
			by = 1 / sqrt(var + (double)a->eps);
			if (!group) {
				const double square = var + mean * mean, least = (double)a->eps / sqrt((double)c);

				by = a->kind == VFM_CHANNEL_NORM_RMS ? 1 / fmax(sqrt(square), least)
								     : 1 / sqrt(square + (double)a->eps);
				mean = 0;
			}
			for (int64_t i = 0; i < n * width; i++) {
				int64_t at = first + i / width * c + i % width;
				double z = (x[at] - mean) * by * weight[at % c];

				y[at] = act_of(a->act, z + (bias ? bias[at % c] : 0));
			}
		}
}

static void ref_upsample(struct ref *r)
{
	const struct vfm_upsample *a = r->args;
	const double *x = V(upsample, x);
	double *y = V(upsample, y);
	int64_t h = a->y.shape[1], w = a->y.shape[2], c = a->y.shape[3];

	for (int64_t i = 0; i < vfm_numel(&a->y); i++) {
		int64_t t = i / (h * w * c), row = i / (w * c) % h, col = i / c % w;

		y[i] = x[((t * (h / 2) + row / 2) * (w / 2) + col / 2) * c + i % c];
	}
}

static void ref_unary(struct ref *r)
{
	const struct vfm_unary *a = r->args;
	const double *x = V(unary, x), *dy = V(unary, dy);
	double *y = V(unary, y);

	for (int64_t i = 0; i < vfm_numel(&a->x); i++)
		y[i] = dy ? dy[i] * dact_of(a->act, x[i]) : act_of(a->act, x[i]);
}

static void ref_axpby(struct ref *r)
{
	const struct vfm_axpby *a = r->args;
	const double *x = V(axpby, x);
	double *y = V(axpby, y);

	for (int64_t i = 0; i < vfm_numel(&a->x); i++)
		y[i] = (double)a->alpha * x[i] + (double)a->beta * y[i];
}

static void ref_sum_parts(struct ref *r)
{
	const struct vfm_sum_parts *a = r->args;
	const double *x = V(sum_parts, x), *own = V(sum_parts, own);
	double *y = V(sum_parts, y);
	int64_t n = a->x.shape[1];

	for (int64_t i = 0; i < n; i++) {
		y[i] = 0;
		for (int64_t k = 0; k < a->x.shape[0]; k++)
			y[i] += x[k * n + i];
		y[i] += own ? own[i] : 0;
	}
}

static void ref_timestep(struct ref *r)
{
	const struct vfm_timestep *a = r->args;
	const double *t = V(timestep, t);
	double *out = V(timestep, out);
	int64_t half = a->out.shape[1] / 2;

	for (int64_t s = 0; s < a->t.shape[0]; s++)
		for (int64_t i = 0; i < half; i++) {
			double f = pow((double)a->max_period, -(double)i / (double)half);

			out[s * 2 * half + i] = cos(t[s] * f);
			out[s * 2 * half + half + i] = sin(t[s] * f);
		}
}

static void ref_diffuse(struct ref *r)
{
	const struct vfm_diffuse *a = r->args;
	const double *x0 = V(diffuse, x0), *id = V(diffuse, id), *idx = V(diffuse, idx), *coef = V(diffuse, coef);
	double *in = V(diffuse, input), *target = V(diffuse, target);
	int64_t f = a->x0.shape[1];

	for (int64_t t = 0; t < a->x0.shape[0]; t++) {
		int s = sample_of(a->seqs, t);
		const double *c = coef + 4 * s;
		struct vfm_rng rng = vfm_rng_stream(a->seed, a->step, (uint64_t)id[s], VFM_RNG_NOISE);

		for (int64_t i = 0; i < f; i++) {
			double n = (double)vfm_rng_normal(&rng, (uint64_t)idx[t] * (uint64_t)f + (uint64_t)i);

			in[t * f + i] = c[0] * x0[t * f + i] + c[1] * n;
			if (target)
				target[t * f + i] = c[2] * x0[t * f + i] + c[3] * n;
		}
	}
}

static void ref_mse(struct ref *r)
{
	const struct vfm_mse *a = r->args;
	const double *p = V(mse, pred), *y = V(mse, target), *w = V(mse, w);
	double *loss = V(mse, loss), *all = V(mse, unweighted), *each = V(mse, sample_loss), *dp = V(mse, dpred);
	int64_t f = a->pred.shape[1];

	for (int64_t s = 0; each && s < a->w.shape[0]; s++)
		each[s] = 0;
	for (int64_t t = 0; t < a->pred.shape[0]; t++) {
		int s = sample_of(a->seqs, t);

		for (int64_t i = t * f; i < (t + 1) * f; i++) {
			double d = p[i] - y[i];

			*loss += w[s] * d * d / (double)f;
			if (all)
				*all += d * d / (double)f;
			if (each)
				each[s] += d * d / (double)f;
			if (dp)
				dp[i] = 2 * w[s] * d / (double)f;
		}
	}
}

/* With split master weights, w holds the master (ops_parity.c joins w and p_lo). */
static void ref_adamw(struct ref *r)
{
	const struct vfm_adamw *a = r->args;
	const double *g = V(adamw, g), *gs = V(adamw, grad_scale), *lo = V(adamw, p_lo);
	double *p = V(adamw, p), *m = V(adamw, m), *v = V(adamw, v), *w = V(adamw, w), *ema = V(adamw, ema);
	double b1 = (double)a->beta1, b2 = (double)a->beta2, lr = (double)a->lr;

	if (lo)
		p = w;
	for (int64_t i = 0; lo && i < a->v.shape[0]; i++)
		p[i] = (double)vfm_master_join(vfm_f32_to_bf16((float)w[i]), (int16_t)lo[i]);
	if (gs && !isfinite(*gs))
		return;
	for (int64_t i = 0; i < a->v.shape[0]; i++) {
		double gi = g[i] * (gs ? *gs : 1);

		m[i] = b1 * m[i] + (1 - b1) * gi;
		v[i] = b2 * v[i] + (1 - b2) * gi * gi;
		p[i] -= lr * (double)a->wd * p[i];
		p[i] -= lr * (m[i] / (double)a->c1) / (sqrt(v[i] / (double)a->c2) + (double)a->eps);
		if (ema)
			ema[i] = (double)a->ema_decay * ema[i] + (1 - (double)a->ema_decay) * p[i];
		if (w)
			w[i] = p[i];
	}
}

static void ref_split_master(struct ref *r)
{
	const struct vfm_split_master *a = r->args;
	double *x = V(split_master, x), *hi = V(split_master, hi), *lo = V(split_master, lo);

	for (int64_t i = 0; i < a->x.shape[0]; i++) {
		int e;

		/* lo counts units in the last place of an f32 with the exponent of x. */
		if (!a->join) {
			frexp(x[i], &e);
			hi[i] = ldexp(round(ldexp(x[i], 8 - e)), e - 8); /* away from zero */
			lo[i] = ldexp(fabs(x[i]) - fabs(hi[i]), 24 - e);
		} else {
			frexp(hi[i], &e);
			x[i] = hi[i] + copysign(ldexp(lo[i], e - 24), hi[i]);
		}
	}
}

/* The search is linear, and of all values; the quotient has the rounding of the contract. */
static void ref_block8(struct ref *r)
{
	const struct vfm_block8 *a = r->args;
	double *x = V(block8, x), *code = V(block8, code), *scale = V(block8, scale), value[256];
	int n = 0;

	for (int e = 6, sign = a->is_signed; e >= 0; e--) /* magnitudes of decade e, ascending */
		for (int k = 0, items = 1 << (7 - sign - e); k < items; k++)
			value[n++] = pow(10, -e) * (0.1 + 0.9 * (k + 0.5) / items);
	for (int k = 0; a->is_signed && k < 127; k++)
		value[127 + 1 + k] = value[k];
	for (int k = 0; a->is_signed && k < 127; k++)
		value[126 - k] = -value[127 + 1 + k];
	for (int k = 254; !a->is_signed && k > 0; k--)
		value[k] = value[k - 1];
	value[a->is_signed ? 127 : 0] = 0;
	value[255] = 1;
	for (int64_t i = 0; a->back && i < a->x.shape[0]; i++)
		x[i] = value[(int)code[i]] * scale[(a->first + i) / 256];
	for (int64_t b = 0; !a->back && b < a->scale.shape[0]; b++) {
		int64_t i0 = b * 256, i1 = i0 + 256 < a->x.shape[0] ? i0 + 256 : a->x.shape[0];
		double hi = 0, lo = 0;

		for (int64_t i = i0; i < i1; i++) {
			hi = fmax(hi, x[i]);
			lo = fmin(lo, x[i]);
		}
		scale[b] = a->is_signed && -lo > hi ? lo : hi;
		for (int64_t i = i0; i < i1; i++) {
			double y = scale[b] != 0 ? (double)((float)x[i] / (float)scale[b]) : 0;
			int best = a->is_signed ? 127 : 0;

			for (int c = 0; c < 256; c++)
				if (fabs(value[c] - y) < fabs(value[best] - y))
					best = c;
			code[i] = !a->is_signed && best == 0 && y > 0 ? 1 : best;
		}
	}
}

static void ref_mxfp8(struct ref *r)
{
	const struct vfm_mxfp8 *a = r->args;
	double *x = V(mxfp8, x), *code = V(mxfp8, code), *scale = V(mxfp8, scale);
	int64_t blocks = vfm_numel(&a->scale);

	for (int64_t b = 0; b < blocks; b++, x += 32, code += 32) {
		double amax = 0;
		int e = 0;

		for (int i = 0; i < 32; i++)
			amax = isfinite(x[i]) ? fmax(amax, fabs(x[i])) : amax;
		while (amax > 0 && ldexp(amax, e) > 448)
			e--;
		while (amax > 0 && ldexp(amax, e + 1) <= 448 && e < 100)
			e++;
		if (!a->back)
			scale[b] = 127 - e;
		for (int i = 0; i < 32; i++) {
			if (a->back)
				x[i] = ldexp(code[i], (int)scale[b] - 127);
			else
				code[i] = to_f8(ldexp(x[i], e), 3, -6, 448);
		}
	}
}

/* Rounds to f32, as the contract says after each operation. */
static double to_f32(double x)
{
	return (double)(float)x;
}

/* Returns the value of an absmax code; the values of the op differ from it by 1 ulp of f32 at most. */
static double absmax_value(int code)
{
	int k = abs(code - 127), decade = 0;

	if (k == 0 || code == 255)
		return k == 0 ? 0 : 1;
	while (k >= 2 << decade)
		decade++;
	k -= 1 << decade;
	return copysign(pow(10, decade - 6) * (0.1 + 0.9 * (k + 0.5) / (1 << decade)), code - 127);
}

/* The segment of each element is searched among all of them. */
static void ref_decode_weights(struct ref *r)
{
	static const double nf4[16] = {-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
		-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0, 0.07958029955625534,
		0.16093020141124725, 0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
		0.7229568362236023, 1};
	const struct vfm_decode_weights *a = r->args;
	const double *code = V(decode_weights, code), *absmax = V(decode_weights, absmax),
		     *g = V(decode_weights, segment), *scale = V(decode_weights, scale),
		     *offset = V(decode_weights, offset);
	double *x = V(decode_weights, x);

	for (int64_t e = 0; e < vfm_numel(&a->x); e++) {
		x[e] = 0;
		for (int64_t s = 0; s < a->segment.shape[0]; s++) {
			int64_t at = e - (int64_t)g[6 * s], cols = (int64_t)g[6 * s + 2];
			double b = g[6 * s + 3] + (double)(at / cols) * g[6 * s + 4], f;
			int c = (int)code[absmax ? e / 2 : e];

			if (at < 0 || at >= (int64_t)g[6 * s + 1] * cols)
				continue;
			if (!absmax) {
				f = scale[(int64_t)(g[6 * s + 5] + b)];
				x[e] = to_f32(to_f32((c < 128 ? c : c - 256) * f) * (double)(1 / 127.0f));
				continue;
			}
			f = scale[(int64_t)g[6 * s + 5] + ((int64_t)b + at % cols / 64) / 256];
			f = to_f32(to_f32(to_f32(absmax_value((int)absmax[e / 64])) * f) + offset[s]);
			x[e] = to_f32(nf4[e % 2 ? c % 16 : c / 16] * f);
		}
	}
}

static void ref_sumsq(struct ref *r)
{
	const struct vfm_sumsq *a = r->args;
	const double *x = V(sumsq, x);

	for (int64_t i = 0; i < a->x.shape[0]; i++)
		*V(sumsq, sum) += x[i] * x[i];
}

static void ref_clip(struct ref *r)
{
	const struct vfm_clip *a = r->args;
	const double *loss = V(clip, loss);
	double norm = sqrt(*V(clip, sum));

	*V(clip, norm) = norm;
	if (!isfinite(norm) || (loss && !isfinite(*loss)))
		*V(clip, scale) = (double)NAN;
	else
		*V(clip, scale) = a->max_norm > 0 && norm > (double)a->max_norm ? (double)a->max_norm / norm : 1;
}

static void ref_fill(struct ref *r)
{
	const struct vfm_fill *a = r->args;
	double *x = V(fill, x);

	for (int64_t i = 0; i < a->x.shape[0]; i++)
		x[i] = (double)a->mean + (double)a->std * (double)vfm_rng_normal(&a->rng, (uint64_t)(a->first + i));
}

static void ref_index_select(struct ref *r)
{
	const struct vfm_index_select *a = r->args;
	const double *x = V(index_select, x), *index = V(index_select, index), *w = V(index_select, weight);
	double *y = V(index_select, y);
	int64_t n = a->index.shape[0], d = n ? vfm_numel(&a->y) / n : 0;

	for (int64_t i = 0; i < n; i++)
		for (int64_t k = 0; (index[i] >= 0 || !a->keep) && k < d; k++)
			y[i * d + k] = index[i] < 0 ? 0 : (w ? w[i] : 1) * x[(int64_t)index[i] * d + k];
}

static void ref_index_add(struct ref *r)
{
	const struct vfm_index_add *a = r->args;
	const double *x = V(index_add, x), *index = V(index_add, index), *w = V(index_add, weight);
	double *y = V(index_add, y);
	int64_t n = a->index.shape[0], d = n ? vfm_numel(&a->x) / n : 0;

	if (!a->accumulate)
		memset(y, 0, (size_t)vfm_numel(&a->y) * sizeof(*y));
	for (int64_t i = 0; i < n; i++)
		for (int64_t k = 0; index[i] >= 0 && k < d; k++)
			y[(int64_t)index[i] * d + k] += (w ? w[i] : 1) * x[i * d + k];
}

static void ref_index_dot(struct ref *r)
{
	const struct vfm_index_dot *a = r->args;
	const double *x = V(index_dot, x), *y = V(index_dot, y), *index = V(index_dot, index);
	double *dot = V(index_dot, dot);
	int64_t d = a->x.shape[1];

	for (int64_t i = 0; i < a->index.shape[0]; i++) {
		dot[i] = 0;
		for (int64_t k = 0; index[i] >= 0 && k < d; k++)
			dot[i] += x[i * d + k] * y[(int64_t)index[i] * d + k];
	}
}

static void ref_attn_merge(struct ref *r)
{
	const struct vfm_attn_merge *a = r->args;
	const double *ob = V(attn_merge, o_b), *lb = V(attn_merge, lse_b);
	double *o = V(attn_merge, o), *l = V(attn_merge, lse);
	int64_t d = a->o.shape[2];

	for (int64_t i = 0; i < vfm_numel(&a->lse); i++) {
		double wa = a->first ? 0 : exp(l[i]), wb = exp(lb[i]), sum = wa + wb;

		for (int64_t k = i * d; k < (i + 1) * d; k++)
			o[k] = wa == 0 ? ob[k] : (wa * o[k] + wb * ob[k]) / sum;
		l[i] = log(sum);
	}
}

static void ref_swiglu(struct ref *r)
{
	const struct vfm_swiglu *a = r->args;
	const double *x = V(swiglu, x);
	double *y = V(swiglu, y);
	int64_t f = a->y.shape[1];

	for (int64_t t = 0; t < a->y.shape[0]; t++)
		for (int64_t i = 0; i < f; i++)
			y[t * f + i] = act_of(VFM_ACT_SILU, x[2 * t * f + i]) * x[2 * t * f + f + i];
}

static void ref_geglu(struct ref *r)
{
	const struct vfm_geglu *a = r->args;
	const double *x = V(geglu, x);
	double *y = V(geglu, y);
	int64_t f = a->y.shape[1];

	for (int64_t t = 0; t < a->y.shape[0]; t++)
		for (int64_t i = 0; i < f; i++)
			y[t * f + i] = act_of(VFM_ACT_GELU_TANH, x[2 * t * f + i]) * x[2 * t * f + f + i];
}

static void ref_swiglu_bwd(struct ref *r)
{
	const struct vfm_swiglu_bwd *a = r->args;
	const double *x = V(swiglu_bwd, x), *dy = V(swiglu_bwd, dy);
	double *dx = V(swiglu_bwd, dx);
	int64_t f = a->dy.shape[1];

	for (int64_t t = 0; t < a->dy.shape[0]; t++)
		for (int64_t i = 0; i < f; i++) {
			int64_t g = 2 * t * f + i;

			dx[g] = dy[t * f + i] * x[g + f] * dact_of(VFM_ACT_SILU, x[g]);
			dx[g + f] = dy[t * f + i] * act_of(VFM_ACT_SILU, x[g]);
		}
}

static void ref_embed3(struct ref *r)
{
	const struct vfm_embed3 *a = r->args;
	const double *tt = V(embed3, table_t), *th = V(embed3, table_h), *tw = V(embed3, table_w), *p = V(embed3, pos);
	double *out = V(embed3, out);
	int64_t d = a->out.shape[1];

	for (int64_t t = 0; t < a->out.shape[0]; t++)
		for (int64_t i = 0; i < d; i++)
			out[t * d + i] = tt[(int64_t)p[3 * t] * d + i] + th[(int64_t)p[3 * t + 1] * d + i] +
				tw[(int64_t)p[3 * t + 2] * d + i];
}

static void ref_embed3_bwd(struct ref *r)
{
	const struct vfm_embed3_bwd *a = r->args;
	const double *dy = V(embed3_bwd, dy), *p = V(embed3_bwd, pos);
	double *out[] = {V(embed3_bwd, dtable_t), V(embed3_bwd, dtable_h), V(embed3_bwd, dtable_w)};
	int64_t d = a->dy.shape[1];

	for (int64_t t = 0; t < a->dy.shape[0]; t++)
		for (int k = 0; k < 3; k++)
			for (int64_t i = 0; out[k] && i < d; i++)
				out[k][(int64_t)p[3 * t + k] * d + i] += dy[t * d + i];
}

static void ref_softmax(struct ref *r)
{
	const struct vfm_softmax *a = r->args;
	const double *x = V(softmax, x);
	double *y = V(softmax, y);
	int64_t e = a->x.shape[1];

	for (int64_t t = 0; t < a->x.shape[0]; t++) {
		double sum = 0;

		for (int64_t i = t * e; i < (t + 1) * e; i++)
			sum += exp(x[i]);
		for (int64_t i = t * e; i < (t + 1) * e; i++)
			y[i] = exp(x[i]) / sum;
	}
}

static void ref_softmax_bwd(struct ref *r)
{
	const struct vfm_softmax_bwd *a = r->args;
	const double *y = V(softmax_bwd, y), *dy = V(softmax_bwd, dy);
	double *dx = V(softmax_bwd, dx);
	int64_t e = a->y.shape[1];

	for (int64_t t = 0; t < a->y.shape[0]; t++)
		for (int64_t i = 0; i < e; i++) {
			double sum = 0;

			for (int64_t k = 0; k < e; k++)
				sum += dy[t * e + k] * y[t * e + k];
			dx[t * e + i] = y[t * e + i] * (dy[t * e + i] - sum);
		}
}

/* A token is selected if fewer than k tokens of its sample have a higher score, or the same score and precede it. */
static void ref_moe_topk_expert(struct ref *r)
{
	const struct vfm_moe_topk_expert *a = r->args;
	const double *p = V(moe_topk_expert, score);
	double *index = V(moe_topk_expert, index), *w = V(moe_topk_expert, weight);
	int64_t ne = a->score.shape[1], at = 0;

	for (int64_t e = 0; e < ne; e++)
		for (int s = 0; s < a->seqs->n; s++) {
			int64_t t0 = a->seqs->cu[s], t1 = a->seqs->cu[s + 1];
			double k = fmin(ceil((double)(t1 - t0) * a->capacity / (double)ne - 1e-9), (double)(t1 - t0));

			for (int64_t t = t0; t < t1; t++) {
				int64_t better = 0;

				for (int64_t u = t0; u < t1; u++)
					better += p[u * ne + e] > p[t * ne + e] ||
						(p[u * ne + e] == p[t * ne + e] && u < t);
				if ((double)better >= k)
					continue;
				index[at] = (double)t;
				if (w)
					w[at] = p[t * ne + e];
				at++;
			}
		}
	if (at != vfm_numel(&a->index))
		abort();
}

static void ref_moe_topk_token(struct ref *r)
{
	const struct vfm_moe_topk_token *a = r->args;
	const double *p = V(moe_topk_token, score);
	double *id = V(moe_topk_token, expert), *w = V(moe_topk_token, weight);
	int64_t ne = a->score.shape[1], k = a->expert.shape[1];

	for (int64_t t = 0; t < a->score.shape[0]; t++, p += ne, id += k, w += k) {
		double sum = 0;

		for (int64_t e = 0; e < ne; e++) {
			int64_t better = 0;

			for (int64_t f = 0; f < ne; f++)
				better += p[f] > p[e] || (p[f] == p[e] && f < e);
			if (better < k) {
				id[better] = (double)e;
				w[better] = p[e];
				sum += p[e];
			}
		}
		for (int64_t j = 0; j < k; j++)
			w[j] /= sum;
	}
}

static void ref_moe_topk_token_bwd(struct ref *r)
{
	const struct vfm_moe_topk_token_bwd *a = r->args;
	const double *p = V(moe_topk_token_bwd, score), *id = V(moe_topk_token_bwd, expert),
		     *dw = V(moe_topk_token_bwd, dweight);
	double *dp = V(moe_topk_token_bwd, dscore);
	int64_t ne = a->score.shape[1], k = a->expert.shape[1];

	memset(dp, 0, (size_t)vfm_numel(&a->score) * sizeof(*dp));
	for (int64_t t = 0; t < a->score.shape[0]; t++)
		for (int64_t j = 0; j < k; j++) {
			double sum = 0;

			for (int64_t i = 0; i < k; i++)
				sum += p[t * ne + (int64_t)id[t * k + i]];
			for (int64_t i = 0; i < k; i++) /* d w_i / d p_j */
				dp[t * ne + (int64_t)id[t * k + j]] += dw[t * k + i] *
					((i == j) / sum - p[t * ne + (int64_t)id[t * k + i]] / (sum * sum));
		}
}

static void ref_moe_own(struct ref *r)
{
	const struct vfm_moe_own *a = r->args;
	const double *index = V(moe_own, index), *own = V(moe_own, own);
	double *row = V(moe_own, row), *place = V(moe_own, place), *count = V(moe_own, count);
	int64_t e = a->index.shape[0], k = a->index.shape[1], n = 0;

	for (int64_t i = 0; i < e; i++)
		count[i] = 0;
	for (int64_t i = 0; i < e * k; i++) {
		double x = own ? own[(int64_t)index[i]] : index[i];

		if (x < 0)
			continue;
		row[n] = x;
		place[n++] = x * (double)e + (double)(i / k);
		count[i / k]++;
	}
	for (; n < e * k; n++)
		row[n] = place[n] = -1;
}

static void ref_moe_sort(struct ref *r)
{
	const struct vfm_moe_sort *a = r->args;
	const double *key = V(moe_sort, key);
	double *order = V(moe_sort, order), *source = V(moe_sort, source), *inverse = V(moe_sort, inverse);
	double *count = V(moe_sort, count);
	int64_t n = a->key.shape[0], at = 0;

	for (int64_t e = 0; e <= a->buckets; e++) { /* the last round: rows without a key */
		int64_t first = at;

		for (int64_t i = 0; i < n; i++)
			if (e < a->buckets ? key[i] == (double)e : key[i] < 0)
				order[at++] = (double)i;
		if (e < a->buckets)
			count[e] = (double)(at - first);
	}
	for (int64_t i = 0; i < n; i++) {
		if (source)
			source[i] = floor(order[i] / (double)a->div);
		if (inverse)
			inverse[(int64_t)order[i]] = (double)i;
	}
}

static void ref_moe_count(struct ref *r)
{
	const struct vfm_moe_count *a = r->args;
	const double *id = V(moe_count, expert);
	double *count = V(moe_count, count);
	int64_t k = a->expert.shape[1], ne = a->count.shape[1];

	memset(count, 0, (size_t)vfm_numel(&a->count) * sizeof(*count));
	for (int64_t i = 0; i < vfm_numel(&a->expert); i++)
		if (id[i] >= 0)
			count[sample_of(a->seqs, i / k) * ne + (int64_t)id[i]]++;
}

static void ref_moe_balance(struct ref *r)
{
	const struct vfm_moe_balance *a = r->args;
	const double *p = V(moe_balance, score), *n = V(moe_balance, count), *coef = V(moe_balance, coef);
	double *loss = V(moe_balance, loss), *dp = V(moe_balance, dscore);
	int64_t ne = a->score.shape[1];

	for (int64_t t = 0; t < a->score.shape[0]; t++)
		for (int64_t e = 0; e < ne; e++) {
			int s = sample_of(a->seqs, t);

			if (loss)
				*loss += coef[s] * n[s * ne + e] * p[t * ne + e];
			if (dp)
				dp[t * ne + e] = coef[s] * n[s * ne + e] + (a->accumulate ? dp[t * ne + e] : 0);
		}
}

static void ref_grouped_gemm(struct ref *r)
{
	const struct vfm_grouped_gemm *g = r->args;
	const double *a = V(grouped_gemm, a), *b = V(grouped_gemm, b), *bias = V(grouped_gemm, bias);
	double *c = V(grouped_gemm, c), *aux = V(grouped_gemm, aux), *sum = V(grouped_gemm, a_colsum);
	int64_t n = g->a.shape[0], ka = g->a.shape[1], m = g->c.shape[g->c.ndim - 1];

	if (g->what == VFM_GROUPED_WGRAD) {
		for (int64_t i = 0; !g->accumulate && i < vfm_numel(&g->c); i++)
			c[i] = 0;
		for (int64_t t = 0; t < n; t++)
			for (int64_t i = 0; i < ka; i++) {
				int64_t at = sample_of(g->groups, t) * ka + i;

				for (int64_t j = 0; j < m; j++)
					c[at * m + j] += a[t * ka + i] * b[t * m + j];
				if (sum)
					sum[at] += a[t * ka + i];
			}
		return;
	}
	for (int64_t t = 0; t < n; t++)
		for (int64_t j = 0; j < m; j++) {
			int e = sample_of(g->groups, t);
			const double *w = b + e * ka * m;
			double z = bias ? bias[e * m + j] : 0;

			for (int64_t k = 0; k < ka; k++)
				z += a[t * ka + k] * (g->what == VFM_GROUPED_FWD ? w[j * ka + k] : w[k * m + j]);
			if (g->act && aux)
				aux[t * m + j] = z;
			if (g->dact)
				z *= dact_of(g->dact, aux[t * m + j]);
			z = act_of(g->act, z);
			c[t * m + j] = z + (g->accumulate ? c[t * m + j] : 0);
		}
}

/* The frame i of the frames with zeros and past before them; NULL: zeros. */
static const double *conv_frame(struct ref *r, int64_t i)
{
	const struct vfm_conv3d *a = r->args;
	int64_t size = a->x.shape[1] * a->x.shape[2] * a->x.shape[3], p = vfm_has(&a->past) ? a->past.shape[0] : 0;

	i -= a->zeros;
	return i < 0 ? NULL : i < p ? V(conv3d, past) + i * size : V(conv3d, x) + (i - p) * size;
}

static double conv_element(struct ref *r, int64_t t, int64_t h, int64_t w, int64_t o)
{
	const struct vfm_conv3d *a = r->args;
	int64_t c = a->x.shape[3], taps = a->weight.shape[1], kh = a->kernel[1], kw = a->kernel[2];
	const double *weight = V(conv3d, weight) + o * taps * c;
	double sum = 0;

	for (int64_t k = 0; k < taps; k++, weight += c) {
		const double *x = conv_frame(r, t * a->stride[0] + k / (kh * kw));
		int64_t i = h * a->stride[1] + k / kw % kh - a->pad[0], j = w * a->stride[2] + k % kw - a->pad[2];

		if (!x || i < 0 || j < 0 || i >= a->x.shape[1] * (1 + a->up) || j >= a->x.shape[2] * (1 + a->up))
			continue;
		x += (i / (1 + a->up) * a->x.shape[2] + j / (1 + a->up)) * c;
		for (int64_t q = 0; q < c; q++)
			sum += x[q] * weight[q];
	}
	return sum;
}

static void ref_conv3d(struct ref *r)
{
	const struct vfm_conv3d *a = r->args;
	const double *bias = V(conv3d, bias), *add = V(conv3d, add);
	double *y = V(conv3d, y);
	int64_t hn = a->y.shape[1], wn = a->y.shape[2], on = a->y.shape[3], i = 0;

	for (int64_t t = 0; t < a->y.shape[0]; t++)
		for (int64_t h = 0; h < hn; h++)
			for (int64_t w = 0; w < wn; w++)
				for (int64_t o = 0; o < on; o++, i++)
					y[i] = conv_element(r, t, h, w, o) + (bias ? bias[o] : 0) + (add ? add[i] : 0);
}

void ref_run(struct ref *r)
{
	static void (*const run[VFM_OP_N])(struct ref *) = {
#define X(name) ref_##name,
		VFM_OP_LIST(X)
#undef X
	};

	run[r->op](r);
}
