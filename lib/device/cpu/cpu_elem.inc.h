/* cpu_elem.inc.h - elementwise kernels and random numbers.  Included by cpu_kern_<isa>.c after cpu_rows.inc.h. */

INLINE vf act_fwd(enum vfm_act act, vf x, bool bf)
{
	return act == VFM_ACT_GELU_TANH ? v_gelu(x, bf)
		: act == VFM_ACT_SILU   ? v_silu(x, bf)
		: act == VFM_ACT_GELU   ? v_gelu_erf(x)
					: x;
}
INLINE vf act_bwd(enum vfm_act act, vf x)
{
	return act == VFM_ACT_GELU_TANH ? v_dgelu(x)
		: act == VFM_ACT_SILU   ? v_dsilu(x)
		: act == VFM_ACT_GELU   ? v_dgelu_erf(x)
					: v_set(1);
}

INLINE void unary_fwd(const struct vfm_unary *a, int64_t i0, int64_t i1, enum vfm_act act, bool xb, bool yb)
{
	V_FOR(i, n, i0, i1)
	v_put(a->y.data, i, act_fwd(act, v_get(a->x.data, i, n, xb), yb), n, yb);
}
INLINE void unary_bwd(const struct vfm_unary *a, int64_t i0, int64_t i1, enum vfm_act act, bool xb, bool yb)
{
	bool db = is_bf(&a->dy);

	V_FOR(i, n, i0, i1)
	v_put(a->y.data, i, v_get(a->dy.data, i, n, db) * act_bwd(act, v_get(a->x.data, i, n, xb)), n, yb);
}

#define UNARY(f)                                                                                                       \
	do {                                                                                                           \
		if (a->act == VFM_ACT_GELU_TANH)                                                                       \
			BF2(is_bf(&a->x), is_bf(&a->y), f(a, i0, i1, VFM_ACT_GELU_TANH, B0, B1));                      \
		else if (a->act == VFM_ACT_SILU)                                                                       \
			BF2(is_bf(&a->x), is_bf(&a->y), f(a, i0, i1, VFM_ACT_SILU, B0, B1));                           \
		else if (a->act == VFM_ACT_GELU)                                                                       \
			BF2(is_bf(&a->x), is_bf(&a->y), f(a, i0, i1, VFM_ACT_GELU, B0, B1));                           \
		else                                                                                                   \
			BF2(is_bf(&a->x), is_bf(&a->y), f(a, i0, i1, VFM_ACT_NONE, B0, B1));                           \
	} while (0)

static void unary(const struct vfm_unary *a, int64_t i0, int64_t i1)
{
	if (a->dy.ndim)
		UNARY(unary_bwd);
	else
		UNARY(unary_fwd);
}

INLINE void axpby_rows(float alpha, const void *x, float beta, void *y, int64_t len, bool xb, bool yb)
{
	vf a = v_set(alpha), b = v_set(beta);

	if (alpha == 0 && beta == 0) /* y may hold NaN */
		memset(y, 0, (size_t)len * (yb ? 2 : 4));
	else if (alpha == 0)
		V_FOR(i, n, 0, len)
	v_put(y, i, b * v_get(y, i, n, yb), n, yb);
	else if (beta == 0) V_FOR(i, n, 0, len) v_put(y, i, a * v_get(x, i, n, xb), n, yb);
	else V_FOR(i, n, 0, len) v_put(y, i, v_fma(a, v_get(x, i, n, xb), b * v_get(y, i, n, yb)), n, yb);
}

static void axpby(float alpha, const void *x, bool x_bf, float beta, void *y, bool y_bf, int64_t n)
{
	BF2(x_bf, y_bf, axpby_rows(alpha, x, beta, y, n, B0, B1));
}

INLINE const void *part_of(const struct vfm_sum_parts *a, int64_t r)
{
	return a->own.ndim && r == a->at ? a->own.data : crow(&a->x, a->own.ndim && r > a->at ? r - 1 : r);
}

INLINE void sum_parts_range(const struct vfm_sum_parts *a, int64_t i0, int64_t i1, bool xb, bool yb)
{
	int64_t parts = a->x.shape[0] + (a->own.ndim > 0);

	V_FOR(i, n, i0, i1)
	{
		vf sum = parts ? v_get(part_of(a, 0), i, n, xb) : v_set(0);

		for (int64_t r = 1; r < parts; r++)
			sum += v_get(part_of(a, r), i, n, xb);
		v_put(a->y.data, i, sum, n, yb);
	}
}

static void sum_parts(const struct vfm_sum_parts *a, int64_t i0, int64_t i1)
{
	BF2(is_bf(&a->x), is_bf(&a->y), sum_parts_range(a, i0, i1, B0, B1));
}

static void sum_into(float *dst, const float *src, int64_t len)
{
	V_FOR(i, n, 0, len)
	v_put(dst, i, v_get(dst, i, n, false) + v_get(src, i, n, false), n, false);
}

INLINE float dot_rows(const void *x, const void *y, int64_t len, bool xb, bool yb)
{
	vf s0 = v_set(0), s1 = v_set(0);
	int64_t k = 0;

	for (; k + 2 * VW <= len; k += 2 * VW) {
		s0 = v_fma(v_get(x, k, VW, xb), v_get(y, k, VW, yb), s0);
		s1 = v_fma(v_get(x, k + VW, VW, xb), v_get(y, k + VW, VW, yb), s1);
	}
	V_FOR(i, n, k, len)
	s0 = v_fma(v_get(x, i, n, xb), v_get(y, i, n, yb), s0);
	return v_sum(s0 + s1);
}

static float dot(const void *x, bool x_bf, const void *y, bool y_bf, int64_t n)
{
	float r = 0;

	BF2(x_bf, y_bf, r = dot_rows(x, y, n, B0, B1));
	return r;
}

INLINE void softmax_row(const float *x, float *y, int64_t len)
{
	float most = x[0], sum = 0;
	vf m, total = v_set(0);

	for (int64_t i = 1; i < len; i++)
		most = x[i] > most ? x[i] : most;
	m = v_set(most);
	V_FOR(i, n, 0, len)
	{
		vf e = v_exp(v_get(x, i, n, false) - m);

		v_put(y, i, e, n, false);
		total += n == VW ? e : v_first(e, n);
	}
	sum = v_sum(total);
	V_FOR(i, n, 0, len)
	v_put(y, i, v_get(y, i, n, false) / v_set(sum), n, false);
}

static void softmax(const struct vfm_softmax *a, int64_t t0, int64_t t1)
{
	for (int64_t t = t0; t < t1 && a->x.shape[1]; t++)
		softmax_row(crow(&a->x, t), row(&a->y, t), a->x.shape[1]);
}

static void softmax_bwd(const struct vfm_softmax_bwd *a, int64_t t0, int64_t t1)
{
	int64_t e = a->y.shape[1];

	for (int64_t t = t0; t < t1; t++) {
		const float *y = crow(&a->y, t), *dy = crow(&a->dy, t);
		float *dx = row(&a->dx, t), sum = dot(dy, false, y, false, e);

		for (int64_t i = 0; i < e; i++)
			dx[i] = y[i] * (dy[i] - sum);
	}
}

/* y = act(a) * b, x = [a | b] */
INLINE void gated_rows(const struct vfm_tensor *xt, const struct vfm_tensor *yt, int64_t t0, int64_t t1,
	vf (*act)(vf x, bool bf), bool xb, bool yb)
{
	int64_t f = yt->shape[1];

	for (int64_t t = t0; t < t1; t++) {
		const void *x = crow(xt, t);
		void *y = row(yt, t);

		V_FOR(i, n, 0, f)
		v_put(y, i, act(v_get(x, i, n, xb), yb) * v_get(x, f + i, n, xb), n, yb);
	}
}

static void swiglu(const struct vfm_swiglu *a, int64_t t0, int64_t t1)
{
	BF2(is_bf(&a->x), is_bf(&a->y), gated_rows(&a->x, &a->y, t0, t1, v_silu, B0, B1));
}

static void geglu(const struct vfm_geglu *a, int64_t t0, int64_t t1)
{
	BF2(is_bf(&a->x), is_bf(&a->y), gated_rows(&a->x, &a->y, t0, t1, v_gelu, B0, B1));
}

INLINE void swiglu_bwd_rows(const struct vfm_swiglu_bwd *a, int64_t t0, int64_t t1, bool xb, bool yb)
{
	int64_t f = a->dy.shape[1];
	bool db = is_bf(&a->dx);

	for (int64_t t = t0; t < t1; t++) {
		const void *x = crow(&a->x, t), *dy = crow(&a->dy, t);
		void *dx = row(&a->dx, t);

		V_FOR(i, n, 0, f)
		{
			vf g = v_get(x, i, n, xb), d = v_get(dy, i, n, yb), b = v_get(x, f + i, n, xb);

			v_put(dx, i, d * b * v_dsilu(g), n, db);
			v_put(dx, f + i, d * v_silu(g, xb), n, db);
		}
	}
}

static void swiglu_bwd(const struct vfm_swiglu_bwd *a, int64_t t0, int64_t t1)
{
	BF2(is_bf(&a->x), is_bf(&a->dy), swiglu_bwd_rows(a, t0, t1, B0, B1));
}

INLINE void embed3_rows(const struct vfm_embed3 *a, int64_t t0, int64_t t1, bool tb, bool ob)
{
	const int32_t *pos = a->pos.data;

	for (int64_t t = t0; t < t1; t++) {
		const void *x = crow(&a->table_t, pos[3 * t]), *y = crow(&a->table_h, pos[3 * t + 1]);
		const void *z = crow(&a->table_w, pos[3 * t + 2]);
		void *out = row(&a->out, t);

		V_FOR(i, n, 0, a->out.shape[1])
		v_put(out, i, v_get(x, i, n, tb) + v_get(y, i, n, tb) + v_get(z, i, n, tb), n, ob);
	}
}

static void embed3(const struct vfm_embed3 *a, int64_t t0, int64_t t1)
{
	BF2(is_bf(&a->table_t), is_bf(&a->out), embed3_rows(a, t0, t1, B0, B1));
}

/* Joins n floats from their upper 16 bits and the bits below, and splits them. */
INLINE vf v_join(const uint16_t *w, const int16_t *lo, int64_t i, int64_t n)
{
	float x[VW] = {0};

	for (int64_t k = 0; k < n; k++)
		x[k] = vfm_master_join(w[i + k], lo[i + k]);
	return v_load(x);
}
INLINE void v_split(uint16_t *w, int16_t *lo, int64_t i, vf x, int64_t n)
{
	float f[VW];

	v_store(f, x);
	for (int64_t k = 0; k < n; k++)
		vfm_master_split(f[k], &w[i + k], &lo[i + k]);
}

INLINE void adamw_range(const struct vfm_adamw *a, int64_t i0, int64_t i1, bool split, bool mb, bool gb)
{
	float *p = a->p.data, *v = a->v.data, *ema = fdata(&a->ema);
	uint16_t *w = a->w.ndim ? a->w.data : NULL;
	int16_t *lo = a->p_lo.data;
	void *m = a->m.data;
	const void *g = a->g.data;
	vf gs = v_set(a->grad_scale.ndim ? *(const float *)a->grad_scale.data : 1.0f);
	vf b1 = v_set(a->beta1), b2 = v_set(a->beta2), d1 = v_set(1 - a->beta1), d2 = v_set(1 - a->beta2);
	vf eps = v_set(a->eps), decay = v_set(1 - a->lr * a->wd), lr = v_set(a->lr / a->c1);
	vf rc2 = v_set(1 / sqrtf(a->c2)), keep = v_set(a->ema_decay), take = v_set(1 - a->ema_decay);

	V_FOR(i, n, i0, i1)
	{
		vf gi = v_get(g, i, n, gb) * gs;
		vf mi = v_fma(b1, v_get(m, i, n, mb), d1 * gi);
		vf vi = v_fma(b2, v_get(v, i, n, false), d2 * gi * gi);
		vf old = split ? v_join(w, lo, i, n) : v_get(p, i, n, false);
		vf pi = old * decay - lr * mi / v_fma(v_sqrt(vi), rc2, eps);

		v_put(m, i, mi, n, mb);
		v_put(v, i, vi, n, false);
		if (split)
			v_split(w, lo, i, pi, n);
		else
			v_put(p, i, pi, n, false);
		if (w && !split)
			v_put(w, i, pi, n, true);
		if (ema)
			v_put(ema, i, v_fma(keep, v_get(ema, i, n, false), take * pi), n, false);
	}
}

static void adamw(const struct vfm_adamw *a, int64_t i0, int64_t i1)
{
	if (a->p_lo.ndim)
		BF2(is_bf(&a->m), is_bf(&a->g), adamw_range(a, i0, i1, true, B0, B1));
	else
		BF2(is_bf(&a->m), is_bf(&a->g), adamw_range(a, i0, i1, false, B0, B1));
}

/* Sums in f32 over at most 1024 elements, and these sums in f64. */
static double sumsq_bf(const uint16_t *x, int64_t len)
{
	double sum = 0;

	for (int64_t j = 0; j < len; j += 1024) {
		vf s = v_set(0);

		V_FOR(k, n, j, j + 1024 < len ? j + 1024 : len)
		{
			vf a = v_get(x, k, n, true);

			s = v_fma(a, a, s);
		}
		sum += (double)v_sum(s);
	}
	return sum;
}

static double sumsq(const void *data, bool bf, int64_t len)
{
	const float *x = data;
	double sum = 0;

	if (bf)
		return sumsq_bf(data, len);
	for (int64_t j = 0; j < len; j += 1024) {
		int64_t end = j + 1024 < len ? j + 1024 : len;
		vf s0 = v_set(0), s1 = v_set(0), s2 = v_set(0), s3 = v_set(0);

		for (; j + 4 * VW <= end && end - j == 1024; end = j) {
			for (int64_t k = 0; k < 1024; k += 4 * VW) {
				vf a = v_load(x + j + k), b = v_load(x + j + k + VW);
				vf c = v_load(x + j + k + 2 * VW), d = v_load(x + j + k + 3 * VW);

				s0 = v_fma(a, a, s0);
				s1 = v_fma(b, b, s1);
				s2 = v_fma(c, c, s2);
				s3 = v_fma(d, d, s3);
			}
		}
		V_FOR(k, n, j, end)
		{
			vf a = v_get(x, k, n, false);

			s0 = v_fma(a, a, s0);
		}
		sum += (double)v_sum((s0 + s1) + (s2 + s3));
	}
	return sum;
}

INLINE double mse_rows(const struct vfm_mse *a, int64_t t0, int64_t t1, int64_t s, bool bf)
{
	int64_t f = a->pred.shape[1];
	vf k = v_set(2 * ((const float *)a->w.data)[s] / (float)f);
	double sum = 0;

	for (int64_t t = t0; t < t1; t++) {
		const void *p = (const char *)a->pred.data + t * f * (bf ? 2 : 4);
		void *dp = a->dpred.ndim ? (char *)a->dpred.data + t * f * (bf ? 2 : 4) : NULL;
		const float *y = (const float *)a->target.data + t * f;
		vf acc = v_set(0);

		V_FOR(i, n, 0, f)
		{
			vf d = v_get(p, i, n, bf) - v_get(y, i, n, false);

			acc = v_fma(d, d, acc);
			if (dp)
				v_put(dp, i, k * d, n, bf);
		}
		sum += (double)v_sum(acc) / (double)f;
	}
	return sum;
}

static double mse(const struct vfm_mse *a, int64_t t0, int64_t t1, int64_t s)
{
	return is_bf(&a->pred) ? mse_rows(a, t0, t1, s, true) : mse_rows(a, t0, t1, s, false);
}

/* ---- random numbers ------------------------------------------------------------------- */

enum { NB = 16 }; /* blocks at a time, in plain loops that the compiler vectorizes */

INLINE void philox_blocks(const struct vfm_rng *r, uint64_t block, uint32_t w[4][NB])
{
	uint32_t *c0 = w[0], *c1 = w[1], *c2 = w[2], *c3 = w[3];
	uint32_t k0 = r->key[0], k1 = r->key[1];

	for (int i = 0; i < NB; i++) {
		c0[i] = (uint32_t)(block + (uint64_t)i);
		c1[i] = (uint32_t)((block + (uint64_t)i) >> 32);
		c2[i] = r->ctr_hi[0];
		c3[i] = r->ctr_hi[1];
	}
	for (int n = 0; n < 10; n++) {
#pragma omp simd
		for (int i = 0; i < NB; i++) {
			uint64_t p0 = (uint64_t)0xD2511F53u * c0[i], p1 = (uint64_t)0xCD9E8D57u * c2[i];
			uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1[i] ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3[i] ^ k1;

			c1[i] = (uint32_t)p1;
			c3[i] = (uint32_t)p0;
			c0[i] = n0;
			c2[i] = n2;
		}
		k0 += 0x9E3779B9u;
		k1 += 0xBB67AE85u;
	}
}

/* Returns -ln((x + 1/2) / 2^32) in float, as Cephes' logf.  Near 1 the logarithm depends on 1 - u, which is computed
 * from the integer. */
INLINE float neg_log_u(uint32_t x)
{
	float near1 = ((float)(uint32_t)~x + 0.5f) * -0x1p-32f, u = (float)x + 0.5f, f, e, z, p;
	uint32_t bits;
	int32_t ex;

	memcpy(&bits, &u, 4);
	ex = (int32_t)(bits - 0x3f3504f3u) >> 23; /* u = 2^ex m, m in [sqrt 1/2, sqrt 2) */
	bits -= (uint32_t)ex << 23;
	memcpy(&f, &bits, 4);
	f -= 1.0f;
	e = (float)(ex - 32);
	f = x >= 0xb504f334u ? near1 : f;
	e = x >= 0xb504f334u ? 0.0f : e;
	z = f * f;
	p = 7.0376836292e-2f * f - 1.1514610310e-1f;
	p = p * f + 1.1676998740e-1f;
	p = p * f - 1.2420140846e-1f;
	p = p * f + 1.4249322787e-1f;
	p = p * f - 1.6668057665e-1f;
	p = p * f + 2.0000714765e-1f;
	p = p * f - 2.4999993993e-1f;
	p = p * f + 3.3333331174e-1f;
	p = p * f * z - 0.5f * z - 2.12194440e-4f * e;
	return -(p + f + 0.693359375f * e);
}

/* Box-Muller in float (base/philox.h states the bound).  The angle is reduced to an eighth of a circle as an integer.
 */
INLINE void box_muller(const uint32_t *a, const uint32_t *b, float *c, float *s)
{
#pragma omp simd
	for (int i = 0; i < NB; i++) {
		float rad = sqrtf(2.0f * neg_log_u(a[i]));
		uint32_t q = (b[i] + 0x20000000u) >> 30; /* quarters of a circle, rounded */
		float t = ((float)(int32_t)(b[i] - (q << 30)) + 0.5f) * 1.46291807926715968e-9f; /* 2 pi / 2^32 */
		float z = t * t;
		float sn = t + t * z * (-1.6666654611e-1f + z * (8.3321608736e-3f - z * 1.9515295891e-4f));
		float cs = 1.0f - 0.5f * z +
			z * z * (4.166664568298827e-2f + z * (-1.388731625493765e-3f + z * 2.443315711809948e-5f));
		float cc = q & 1 ? sn : cs, ss = q & 1 ? cs : sn;

		c[i] = rad * ((q + 1) & 2 ? -cc : cc);
		s[i] = rad * (q & 2 ? -ss : ss);
	}
}

/* Generates the 64 normals of blocks [block, block + 16), in order. */
static void normals64(const struct vfm_rng *r, uint64_t block, float *out)
{
	uint32_t w[4][NB];
	float n[4][NB];

	philox_blocks(r, block, w);
	box_muller(w[0], w[1], n[0], n[1]);
	box_muller(w[2], w[3], n[2], n[3]);
	for (int i = 0; i < NB; i++)
		for (int j = 0; j < 4; j++)
			out[4 * i + j] = n[j][i];
}

static void normals(const struct vfm_rng *rng, int64_t first, int64_t n, float *out)
{
	float buf[4 * NB];
	int64_t skip = first % 4;

	for (uint64_t block = (uint64_t)first / 4; n > 0; block += NB, skip = 0) {
		int64_t take = 4 * NB - skip < n ? 4 * NB - skip : n;

		if (take == 4 * NB) {
			normals64(rng, block, out);
		} else {
			normals64(rng, block, buf);
			memcpy(out, buf + skip, (size_t)take * sizeof(*out));
		}
		out += take;
		n -= take;
	}
}

INLINE void diffuse_rows(
	const struct vfm_diffuse *a, int64_t t0, int64_t t1, int64_t s, float *tmp, enum vfm_dtype type, bool bf)
{
	int64_t f = a->x0.shape[1], size = type == VFM_F32 ? 4 : 2;
	float *noise = tmp, *wide = tmp + f;
	const float *c = (const float *)a->coef.data + 4 * s;
	const int32_t *idx = a->idx.data;
	struct vfm_rng rng =
		vfm_rng_stream(a->seed, a->step, (uint64_t)((const int64_t *)a->id.data)[s], VFM_RNG_NOISE);
	vf va = v_set(c[0]), vb = v_set(c[1]), vc = v_set(c[2]), ve = v_set(c[3]);

	for (int64_t t = t0; t < t1; t++) {
		const void *x = (const char *)a->x0.data + t * f * size;
		void *in = (char *)a->input.data + t * f * (bf ? 2 : 4);
		float *y = a->target.ndim ? (float *)a->target.data + t * f : NULL;

		if (type == VFM_F16) {
			v_widen_f16(wide, x, f);
			x = wide;
		}
		normals(&rng, idx[t] * f, f, noise);
		V_FOR(i, n, 0, f)
		{
			vf x0 = v_get(x, i, n, type == VFM_BF16), ns = v_get(noise, i, n, false);

			v_put(in, i, v_fma(va, x0, vb * ns), n, bf);
			if (y)
				v_put(y, i, v_fma(vc, x0, ve * ns), n, false);
		}
	}
}

static void diffuse(const struct vfm_diffuse *a, int64_t t0, int64_t t1, int64_t s, float *tmp)
{
	const enum vfm_dtype type = a->x0.dtype;
	const bool bf = is_bf(&a->input);

	if (type == VFM_BF16 && bf)
		diffuse_rows(a, t0, t1, s, tmp, VFM_BF16, true);
	else if (type == VFM_BF16)
		diffuse_rows(a, t0, t1, s, tmp, VFM_BF16, false);
	else if (type == VFM_F16)
		diffuse_rows(a, t0, t1, s, tmp, VFM_F16, bf);
	else if (bf)
		diffuse_rows(a, t0, t1, s, tmp, VFM_F32, true);
	else
		diffuse_rows(a, t0, t1, s, tmp, VFM_F32, false);
}

/* ---- frozen weights: the same bits on all instruction sets, also of subnormal values ---- */

INLINE void put_weights(void *y, int64_t i, vf x, bool bf)
{
	if (bf)
		v_storeb_exact((uint16_t *)y + i, x);
	else
		v_store((float *)y + i, x);
}

INLINE void nf4_block(void *y, int64_t at, bool bf, const uint8_t *code, const float *value, float factor)
{
	uint8_t index[VFM_NF4_BLOCK];

	for (int i = 0; i < VFM_NF4_BLOCK / 2; i++) {
		index[2 * i] = code[i] >> 4;
		index[2 * i + 1] = code[i] & 15;
	}
	for (int i = 0; i < VFM_NF4_BLOCK; i += VW)
		put_weights(y, at + i, v_lookup(value, index + i) * v_set(factor), bf);
}

static void decode_nf4(void *y, bool bf, const uint8_t *code, const float *value, const float *factor, int64_t blocks)
{
	for (int64_t b = 0; b < blocks; b++)
		BF1(bf, nf4_block(y, b * VFM_NF4_BLOCK, B0, code + b * (VFM_NF4_BLOCK / 2), value, factor[b]));
}

INLINE void int8_block(void *y, int64_t at, bool bf, const int8_t *code, float factor)
{
	for (int i = 0; i < 32; i += VW)
		put_weights(y, at + i, v_load_i8(code + i) * v_set(factor) * v_set(7.874015718698502e-3f), bf);
}

static void decode_int8(void *y, bool bf, const int8_t *code, const float *factor, int64_t blocks)
{
	for (int64_t b = 0; b < blocks; b++)
		BF1(bf, int8_block(y, b * 32, B0, code + b * 32, factor[b]));
}
