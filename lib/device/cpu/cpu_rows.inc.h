/* cpu_rows.inc.h - row kernels: norm, gate, add_row, QK norm, RoPE.  Included by cpu_kern_<isa>.c after cpu_vec.h. */
#include "device/cpu/cpu_fp8.h"

/* BF2(a, b, f(…)) calls f with both dtype flags as compile-time constants B0 and B1; BF1(a, f(…)) with one. */
#define BF_CASE(a, b, call)                                                                                            \
	case (a)*2 + (b): {                                                                                            \
		enum { B0 = (a), B1 = (b) };                                                                           \
		call;                                                                                                  \
		break;                                                                                                 \
	}
#define BF2(b0, b1, call)                                                                                              \
	do {                                                                                                           \
		switch ((b0)*2 + (b1)) {                                                                               \
			BF_CASE(0, 0, call)                                                                            \
			BF_CASE(0, 1, call)                                                                            \
			BF_CASE(1, 0, call)                                                                            \
			BF_CASE(1, 1, call)                                                                            \
		}                                                                                                      \
	} while (0)
#define BF1(b0, call)                                                                                                  \
	do {                                                                                                           \
		switch ((b0)*2) {                                                                                      \
			BF_CASE(0, 0, call)                                                                            \
			BF_CASE(1, 0, call)                                                                            \
		}                                                                                                      \
	} while (0)

INLINE bool is_bf(const struct vfm_tensor *t)
{
	return t->dtype == VFM_BF16;
}
INLINE const void *crow(const struct vfm_tensor *t, int64_t i)
{
	return (const char *)t->data + (size_t)(i * t->stride[0]) * (is_bf(t) ? 2 : 4);
}
INLINE void *row(const struct vfm_tensor *t, int64_t i)
{
	return (char *)t->data + (size_t)(i * t->stride[0]) * (is_bf(t) ? 2 : 4);
}
INLINE float *fdata(const struct vfm_tensor *t)
{
	return t->ndim ? t->data : NULL;
}

/* dst = offset + row i of t */
INLINE void load_row(float *dst, const struct vfm_tensor *t, int64_t i, int64_t d, float offset)
{
	const void *p = crow(t, i);

	if (is_bf(t))
		V_FOR(k, n, 0, d)
	v_put(dst, k, v_get(p, k, n, true) + v_set(offset), n, false);
	else V_FOR(k, n, 0, d) v_put(dst, k, v_get(p, k, n, false) + v_set(offset), n, false);
}

/* ---- gated residual: one row ---------------------------------------------------------- */

/* y = x + g h; g NULL: 1.  s (may be NULL) = y before rounding.  y may be x. */
INLINE void add_branch(float *s, void *y, const void *x, const void *h, const float *g, int64_t d, bool xb, bool hb)
{
	V_FOR(k, n, 0, d)
	{
		vf f = v_get(h, k, n, hb), o = v_get(x, k, n, xb);

		if (g)
			o = v_fma(v_get(g, k, n, false), f, o);
		else
			o = f + o;
		v_put(y, k, o, n, xb);
		if (s)
			v_put(s, k, o, n, false);
	}
}

/* dh = g dy; dg += h dy; sum += dh.  g NULL: 1; dg NULL: without h; sum may be NULL. */
INLINE void branch_bwd(
	const void *dy, const void *h, const float *g, void *dh, float *dg, float *sum, int64_t d, bool yb, bool hb)
{
	if (g && dg)
		V_FOR(k, n, 0, d)
		{
			vf y = v_get(dy, k, n, yb);

			v_put(dg, k, v_fma(y, v_get(h, k, n, hb), v_get(dg, k, n, false)), n, false);
			v_put(dh, k, y * v_get(g, k, n, false), n, hb);
		}
	else if (g)
		V_FOR(k, n, 0, d)
	v_put(dh, k, v_get(dy, k, n, yb) * v_get(g, k, n, false), n, hb);
	else V_FOR(k, n, 0, d) v_put(dh, k, v_get(dy, k, n, yb), n, hb);
	if (sum && g)
		V_FOR(k, n, 0, d)
	v_put(sum, k, v_fma(v_get(dy, k, n, yb), v_get(g, k, n, false), v_get(sum, k, n, false)), n, false);
	else if (sum) V_FOR(k, n, 0, d) v_put(sum, k, v_get(dy, k, n, yb) + v_get(sum, k, n, false), n, false);
}

/* ---- norm ------------------------------------------------------------------------- */

/* Returns the factors mul[D] of the normalized x; NULL: 1. */
static const float *norm_mul(
	const struct vfm_tensor *weight, const struct vfm_tensor *scale, int64_t s, int64_t d, float *tmp)
{
	if (s >= 0 && scale->ndim) {
		load_row(tmp, scale, s, d, 1.0f);
		return tmp;
	}
	return fdata(weight);
}

INLINE float row_sum(const void *x, int64_t d, bool bf)
{
	vf s0 = v_set(0), s1 = v_set(0);
	int64_t k = 0;

	for (; k + 2 * VW <= d; k += 2 * VW) {
		s0 += v_get(x, k, VW, bf);
		s1 += v_get(x, k + VW, VW, bf);
	}
	V_FOR(i, n, k, d)
	s0 += v_get(x, i, n, bf);
	return v_sum(s0 + s1);
}

/* sum of (x - mean)^2 */
INLINE float row_sumsq(const void *x, int64_t d, float mean, bool bf)
{
	vf s0 = v_set(0), s1 = v_set(0), m = v_set(mean), a, b;
	int64_t k = 0;

	for (; k + 2 * VW <= d; k += 2 * VW) {
		a = v_get(x, k, VW, bf) - m;
		b = v_get(x, k + VW, VW, bf) - m;
		s0 = v_fma(a, a, s0);
		s1 = v_fma(b, b, s1);
	}
	for (; k + VW <= d; k += VW) {
		a = v_get(x, k, VW, bf) - m;
		s0 = v_fma(a, a, s0);
	}
	if (k < d) { /* excludes the padding lanes */
		a = v_first(v_get(x, k, d - k, bf) - m, d - k);
		s1 = v_fma(a, a, s1);
	}
	return v_sum(s0 + s1);
}

/* Adds the branch to row t; the sum is in s, which is returned. */
static const float *norm_sum(const struct vfm_norm *a, int64_t t, const float *g, float *s)
{
	int64_t d = a->x.shape[1];

	BF2(is_bf(&a->x), is_bf(&a->h), add_branch(s, row(&a->sum, t), crow(&a->x, t), crow(&a->h, t), g, d, B0, B1));
	return s;
}

/* With h, call with xb false: the row that is read is the sum in s.  With a history, call with yb true: y8 holds a row
 * before it is quantized. */
INLINE void norm_rows(const struct vfm_norm *a, int64_t t0, int64_t t1, const float *mul, const float *add,
	const float *g, float *s, void *y8, float *most, bool xb, bool yb)
{
	int64_t d = a->x.shape[1];
	float *mean = fdata(&a->mean), *rstd = fdata(&a->rstd);

	for (int64_t t = t0; t < t1; t++) {
		const void *x = s ? (const void *)norm_sum(a, t, g, s)
				  : (const void *)((const char *)a->x.data + t * d * (xb ? 2 : 4));
		void *y = y8 ? y8 : (char *)a->y.data + t * d * (yb ? 2 : 4);
		float mu = a->kind == VFM_NORM_LAYER ? row_sum(x, d, xb) / (float)d : 0;
		float r = 1.0f / sqrtf(row_sumsq(x, d, mu, xb) / (float)d + a->eps);
		vf vr = v_set(r), vm = v_set(mu);

		if (mul && add)
			V_FOR(k, n, 0, d)
		v_put(y, k, v_fma((v_get(x, k, n, xb) - vm) * vr, v_get(mul, k, n, false), v_get(add, k, n, false)), n,
			yb);
		else if (mul) V_FOR(k, n, 0, d)
			v_put(y, k, (v_get(x, k, n, xb) - vm) * vr * v_get(mul, k, n, false), n, yb);
		else V_FOR(k, n, 0, d) v_put(y, k, (v_get(x, k, n, xb) - vm) * vr, n, yb);
		if (mean)
			mean[t] = mu;
		if (rstd)
			rstd[t] = r;
		if (y8 || most) {
			float m = vfm_cpu_norm_row8(a, t, yb ? y : NULL, most ? *most : 0);

			if (most)
				*most = m;
		}
	}
}

static void norm(const struct vfm_norm *a, int64_t t0, int64_t t1, int64_t s, float *tmp, float *part)
{
	int64_t d = a->x.shape[1];
	const float *mul = norm_mul(&a->weight, &a->scale, s, d, tmp), *add = fdata(&a->bias), *g = NULL;
	float *sum = a->h.ndim ? tmp + 3 * d : NULL;
	void *y8 = a->history.ndim ? tmp + 4 * d : NULL;

	if (s >= 0 && a->shift.ndim) {
		load_row(tmp + d, &a->shift, s, d, 0);
		add = tmp + d;
	}
	if (s >= 0 && a->gate.ndim) {
		load_row(tmp + 2 * d, &a->gate, s, d, 0);
		g = tmp + 2 * d;
	}
	if (part)
		*part = 0;
	BF2(is_bf(&a->x) && !sum, is_bf(&a->y) || y8, norm_rows(a, t0, t1, mul, add, g, sum, y8, part, B0, B1));
}

/* The branch of row t; ds: the gradient of the sum; part: [2][D], sums of h ds and of dh. */
static void norm_branch_bwd(const struct vfm_norm_bwd *a, int64_t t, const float *g, const float *ds, float *part)
{
	int64_t d = a->x.shape[1];
	const void *h = a->h.ndim ? crow(&a->h, t) : NULL;
	void *dh = row(&a->dh, t);
	float *dg = a->dgate.ndim ? part : NULL, *sum = a->dh_sum.ndim ? part + d : NULL;

	BF1(is_bf(&a->dh), branch_bwd(ds, h, g, dh, dg, sum, d, false, B0));
}

/* Two passes over a row:
 *   1. the sums for dx, and the column sums for dscale and dshift
 *   2. dx = rstd (g - mean(g) - xhat mean(g xhat)), g = dy mul */
INLINE void norm_bwd_rows(const struct vfm_norm_bwd *a, int64_t t0, int64_t t1, const float *mul, const float *g,
	float *part, float *sum, bool xb, bool yb)
{
	int64_t d = a->x.shape[1];
	const float *mean = fdata(&a->mean), *rstd = fdata(&a->rstd);
	bool layer = a->kind == VFM_NORM_LAYER, db = is_bf(&a->dx);

	for (int64_t t = t0; t < t1; t++) {
		const void *x = (const char *)a->x.data + t * d * (xb ? 2 : 4);
		const void *dy = (const char *)a->dy.data + t * d * (yb ? 2 : 4);
		void *dx = (char *)a->dx.data + t * d * (db ? 2 : 4);
		float r = rstd[t], mu = layer ? mean[t] : 0, c1, c2;
		vf vr = v_set(r), vm = v_set(mu), s1 = v_set(0), s2 = v_set(0);

		if (part)
			V_FOR(k, n, 0, d)
			{
				vf xh = (v_get(x, k, n, xb) - vm) * vr, y = v_get(dy, k, n, yb);
				vf ym = y * v_get(mul, k, n, false);

				s1 += ym;
				s2 = v_fma(ym, xh, s2);
				v_put(part, k, v_fma(y, xh, v_get(part, k, n, false)), n, false);
				v_put(part, d + k, y + v_get(part, d + k, n, false), n, false);
			}
		else
			V_FOR(k, n, 0, d)
			{
				vf xh = (v_get(x, k, n, xb) - vm) * vr, y = v_get(dy, k, n, yb);
				vf ym = y * v_get(mul, k, n, false);

				s1 += ym;
				s2 = v_fma(ym, xh, s2);
			}
		c1 = layer ? v_sum(s1) / (float)d : 0;
		c2 = v_sum(s2) / (float)d;
		s1 = v_set(c1), s2 = v_set(-c2);
		V_FOR(k, n, 0, d)
		{
			vf xh = (v_get(x, k, n, xb) - vm) * vr, ym = v_get(dy, k, n, yb) * v_get(mul, k, n, false);
			vf o = v_fma(xh, s2, ym - s1) * vr;

			if (a->dx_accumulate)
				o += v_get(dx, k, n, db);
			v_put(dx, k, o, n, db);
			if (sum)
				v_put(sum, k, o, n, false);
		}
		if (sum)
			norm_branch_bwd(a, t, g, sum, part ? part + 2 * d : NULL);
	}
}

static void norm_bwd(const struct vfm_norm_bwd *a, int64_t t0, int64_t t1, int64_t s, float *tmp, float *part)
{
	int64_t d = a->x.shape[1];
	const float *mul = norm_mul(&a->weight, &a->scale, s, d, tmp), *g = NULL;
	float *sum = a->dh.ndim ? tmp + 2 * d : NULL;

	if (!mul) {
		V_FOR(k, n, 0, d)
		v_put(tmp, k, v_set(1), n, false);
		mul = tmp;
	}
	if (s >= 0 && a->gate.ndim) {
		load_row(tmp + d, &a->gate, s, d, 0);
		g = tmp + d;
	}
	if (part)
		memset(part, 0, (size_t)d * (sum ? 4 : 2) * sizeof(*part));
	BF2(is_bf(&a->x), is_bf(&a->dy), norm_bwd_rows(a, t0, t1, mul, g, part, sum, B0, B1));
}

/* ---- gate ------------------------------------------------------------------------- */

INLINE void gate_rows(const struct vfm_gate *a, int64_t t0, int64_t t1, const float *g, bool xb, bool hb)
{
	for (int64_t t = t0; t < t1; t++)
		add_branch(NULL, row(&a->y, t), crow(&a->x, t), crow(&a->h, t), g, a->x.shape[1], xb, hb);
}

static void gate(const struct vfm_gate *a, int64_t t0, int64_t t1, int64_t s, float *tmp)
{
	const float *g = NULL;

	if (s >= 0) {
		load_row(tmp, &a->gate, s, a->x.shape[1], 0);
		g = tmp;
	}
	BF2(is_bf(&a->x), is_bf(&a->h), gate_rows(a, t0, t1, g, B0, B1));
}

INLINE void gate_bwd_rows(
	const struct vfm_gate_bwd *a, int64_t t0, int64_t t1, const float *g, float *part, bool yb, bool hb)
{
	int64_t d = a->dy.shape[1];
	float *dg = a->dgate.ndim ? part : NULL, *sum = a->dh_sum.ndim ? part + d : NULL;

	for (int64_t t = t0; t < t1; t++)
		branch_bwd(crow(&a->dy, t), dg ? crow(&a->h, t) : NULL, g, row(&a->dh, t), dg, sum, d, yb, hb);
}

static void gate_bwd(const struct vfm_gate_bwd *a, int64_t t0, int64_t t1, int64_t s, float *tmp, float *part)
{
	int64_t d = a->dy.shape[1];

	load_row(tmp, &a->gate, s, d, 0);
	if (part)
		memset(part, 0, (size_t)d * (a->dh_sum.ndim ? 2 : 1) * sizeof(*part));
	BF2(is_bf(&a->dy), is_bf(&a->dh), gate_bwd_rows(a, t0, t1, tmp, part, B0, B1));
}

/* ---- add_row ---------------------------------------------------------------------- */

INLINE void add_row_rows(const struct vfm_add_row *a, int64_t t0, int64_t t1, bool xb, bool rb)
{
	int64_t d = a->x.shape[1];

	for (int64_t t = t0; t < t1; t++) {
		const void *x = (const char *)a->x.data + t * d * (xb ? 2 : 4);
		void *y = (char *)a->y.data + t * d * (xb ? 2 : 4);

		V_FOR(k, n, 0, d)
		v_put(y, k, v_get(x, k, n, xb) + v_get(a->row.data, k, n, rb), n, xb);
	}
}

static void add_row(const struct vfm_add_row *a, int64_t t0, int64_t t1)
{
	BF2(is_bf(&a->x), is_bf(&a->row), add_row_rows(a, t0, t1, B0, B1));
}

INLINE void add_row_bwd_rows(const struct vfm_add_row_bwd *a, int64_t t0, int64_t t1, float *part, bool yb)
{
	int64_t d = a->dy.shape[1];

	for (int64_t t = t0; t < t1; t++) {
		const void *dy = (const char *)a->dy.data + t * d * (yb ? 2 : 4);

		V_FOR(k, n, 0, d)
		{
			vf y = v_get(dy, k, n, yb);

			if (t > t0)
				y += v_get(part, k, n, false);
			v_put(part, k, y, n, false);
		}
	}
}

static void add_row_bwd(const struct vfm_add_row_bwd *a, int64_t t0, int64_t t1, float *part)
{
	BF1(is_bf(&a->dy), add_row_bwd_rows(a, t0, t1, part, B0));
}

/* ---- QK norm and RoPE ---------------------------------------------------------------- */

INLINE void *head(const struct vfm_tensor *x, int64_t t, int64_t h, bool bf)
{
	return (char *)x->data + (size_t)(t * x->stride[0] + h * x->stride[1]) * (bf ? 2 : 4);
}

INLINE void qk_rows(const struct vfm_qk_norm_rope *a, int64_t t0, int64_t t1, bool bf)
{
	int64_t nh = a->x.shape[1], d = a->x.shape[2];
	const float *w = fdata(&a->weight);

	for (int64_t t = t0; t < t1; t++) {
		const float *cs = a->rope.ndim ? (const float *)a->rope.data + t * d : NULL;

		for (int64_t h = 0; h < nh; h++) {
			const void *x = head(&a->x, t, h, bf);
			void *y = head(&a->y, t, h, bf);
			float r = 1;

			if (w) {
				r = 1.0f / sqrtf(row_sumsq(x, d, 0, bf) / (float)d + a->eps);
				((float *)a->rstd.data)[t * nh + h] = r;
			}
			V_FOR(k, n, 0, d)
			{
				vf v = v_get(x, k, n, bf) * v_set(r);

				if (w)
					v *= v_get(w, k, n, false);
				if (cs) {
					vf c = v_get(cs, k, n, false);

					v = v_addsub(v, v_dup_even(c), v_swap(v) * v_dup_odd(c));
				}
				v_put(y, k, v, n, bf);
			}
		}
	}
}

static void qk_norm_rope(const struct vfm_qk_norm_rope *a, int64_t t0, int64_t t1, float *tmp)
{
	(void)tmp;
	BF1(is_bf(&a->x), qk_rows(a, t0, t1, B0));
}

enum { HEADS_RUN = 64 }; /* rows per run of the sum for dweight, approximately */

INLINE void qk_bwd_rows(
	const struct vfm_qk_norm_rope_bwd *a, int64_t t0, int64_t t1, float *g, float *part, bool xb, bool yb)
{
	int64_t nh = a->dy.shape[1], d = a->dy.shape[2], run_tokens = HEADS_RUN / (nh + 1) + 1;
	const float *w = fdata(&a->weight), *rstd = fdata(&a->rstd);
	float *run = g + d; /* of part: the heads of some tokens */
	bool db = is_bf(&a->dx);

	for (int64_t t = t0; t < t1; t++) {
		const float *cs = a->rope.ndim ? (const float *)a->rope.data + t * d : NULL;

		for (int64_t h = 0; h < nh; h++) {
			const void *dy = head(&a->dy, t, h, yb), *x = w ? head(&a->x, t, h, xb) : NULL;
			void *dx = head(&a->dx, t, h, db);
			float r = w ? rstd[t * nh + h] : 1;
			vf s = v_set(0), vr = v_set(r);

			V_FOR(k, n, 0, d)
			{
				vf v = v_get(dy, k, n, yb);

				if (cs) {
					vf c = v_get(cs, k, n, false);

					v = v_subadd(v, v_dup_even(c), v_swap(v) * v_dup_odd(c));
				}
				if (w) {
					vf xh = v_get(x, k, n, xb) * vr;

					v_put(run, k, v_fma(v, xh, v_get(run, k, n, false)), n, false);
					v *= v_get(w, k, n, false);
					s = v_fma(v, xh, s);
					v_put(g, k, v, n, false);
				} else {
					v_put(dx, k, v, n, db);
				}
			}
			if (!w)
				continue;
			s = v_set(-v_sum(s) / (float)d * r * r);
			V_FOR(k, n, 0, d)
			v_put(dx, k, v_fma(v_get(g, k, n, false), vr, v_get(x, k, n, xb) * s), n, db);
		}
		if ((t - t0 + 1) % run_tokens && t + 1 < t1)
			continue;
		V_FOR(k, n, 0, d)
		{
			v_put(part, k, v_get(part, k, n, false) + v_get(run, k, n, false), n, false);
			v_put(run, k, v_set(0), n, false);
		}
	}
}

static void qk_norm_rope_bwd(const struct vfm_qk_norm_rope_bwd *a, int64_t t0, int64_t t1, float *tmp, float *part)
{
	memset(part, 0, (size_t)a->dy.shape[2] * sizeof(*part));
	memset(tmp + a->dy.shape[2], 0, (size_t)a->dy.shape[2] * sizeof(*tmp));
	BF2(is_bf(&a->x), is_bf(&a->dy), qk_bwd_rows(a, t0, t1, tmp, part, B0, B1));
}

/* ---- norms of whole rows: all heads ------------------------------------------------ */

INLINE float row_product(const struct vfm_row_dot *a, int64_t t, bool xb, bool yb)
{
	vf s = v_set(0), rest = v_set(0);

	for (int64_t h = 0; h < a->x.shape[1]; h++) {
		const void *x = head(&a->x, t, h, xb), *y = head(&a->y, t, h, yb);
		int64_t d = a->x.shape[2], k = 0;

		for (; k + VW <= d; k += VW)
			s = v_fma(v_get(x, k, VW, xb), v_get(y, k, VW, yb), s);
		if (k < d) /* excludes the padding lanes */
			rest += v_first(v_get(x, k, d - k, xb) * v_get(y, k, d - k, yb), d - k);
	}
	return v_sum(s + rest);
}

INLINE void row_dots(const struct vfm_row_dot *a, int64_t t0, int64_t t1, bool xb, bool yb)
{
	for (int64_t t = t0; t < t1; t++)
		((float *)a->out.data)[t] = row_product(a, t, xb, yb);
}

static void row_dot(const struct vfm_row_dot *a, int64_t t0, int64_t t1)
{
	const struct vfm_row_dot of = {a->x, a->y.ndim ? a->y : a->x, a->out};

	BF2(is_bf(&of.x), is_bf(&of.y), row_dots(&of, t0, t1, B0, B1));
}

INLINE void row_norm_rows(const struct vfm_row_norm_rope *a, int64_t t0, int64_t t1, bool bf)
{
	int64_t d = a->x.shape[2], width = a->rope.ndim ? vfm_rope_width(&a->rope) : 0;
	const float *sumsq = a->sumsq.data;

	for (int64_t t = t0; t < t1; t++) {
		const float *row = width ? (const float *)a->rope.data + t * width : NULL;
		vf r = v_set(1.0f / sqrtf(sumsq[t] / (float)a->width + a->eps));

		for (int64_t h = 0; h < a->x.shape[1]; h++) {
			const void *x = head(&a->x, t, h, bf);
			const float *w = (const float *)a->weight.data + h * d, *cs = row ? row + h * d % width : NULL;
			void *y = head(&a->y, t, h, bf);

			V_FOR(k, n, 0, d)
			{
				vf v = v_get(x, k, n, bf) * r * v_get(w, k, n, false);

				if (cs) {
					vf c = v_get(cs, k, n, false);

					v = v_addsub(v, v_dup_even(c), v_swap(v) * v_dup_odd(c));
				}
				v_put(y, k, v, n, bf);
			}
		}
	}
}

static void row_norm_rope(const struct vfm_row_norm_rope *a, int64_t t0, int64_t t1)
{
	BF1(is_bf(&a->x), row_norm_rows(a, t0, t1, B0));
}

INLINE void row_norm_bwd_rows(
	const struct vfm_row_norm_rope_bwd *a, int64_t t0, int64_t t1, float *part, bool xb, bool yb)
{
	int64_t d = a->x.shape[2], width = a->rope.ndim ? vfm_rope_width(&a->rope) : 0;
	const float *sumsq = a->sumsq.data, *dot = a->dot.data;
	bool db = is_bf(&a->dx);

	for (int64_t t = t0; t < t1; t++) {
		const float *row = width ? (const float *)a->rope.data + t * width : NULL;
		float r = 1.0f / sqrtf(sumsq[t] / (float)a->width + a->eps);
		vf vr = v_set(r), mean = v_set(-dot[t] / (float)a->width * r);

		for (int64_t h = 0; h < a->x.shape[1]; h++) {
			const void *x = head(&a->x, t, h, xb), *dy = head(&a->dy, t, h, yb);
			const float *w = (const float *)a->weight.data + h * d, *cs = row ? row + h * d % width : NULL;
			void *dx = head(&a->dx, t, h, db);
			float *sum = part + h * d;

			V_FOR(k, n, 0, d)
			{
				vf v = v_get(dy, k, n, yb), xh = v_get(x, k, n, xb) * vr;

				if (cs) {
					vf c = v_get(cs, k, n, false);

					v = v_subadd(v, v_dup_even(c), v_swap(v) * v_dup_odd(c));
				}
				v_put(sum, k, v_fma(v, xh, v_get(sum, k, n, false)), n, false);
				v_put(dx, k, v_fma(v * vr, v_get(w, k, n, false), xh * mean), n, db);
			}
		}
	}
}

static void row_norm_rope_bwd(const struct vfm_row_norm_rope_bwd *a, int64_t t0, int64_t t1, float *part)
{
	memset(part, 0, (size_t)(a->x.shape[1] * a->x.shape[2]) * sizeof(*part));
	BF2(is_bf(&a->x), is_bf(&a->dy), row_norm_bwd_rows(a, t0, t1, part, B0, B1));
}
