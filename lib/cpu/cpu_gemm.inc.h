/* cpu_gemm.inc.h - packing, the register tile and the epilogue of the GEMM.
 * Included by cpu_kern_<isa>.c after cpu_elem.inc.h.
 *
 * The tile keeps MR x 2 vectors of C in registers; each step reads two vectors of the
 * B panel and MR broadcast elements of the A panel (Goto & van de Geijn, "Anatomy of
 * High-Performance Matrix Multiplication", 2008). */

#ifdef __AVX512F__
enum { MR = 14, NR = 2 * VW };
#else
enum { MR = 6, NR = 2 * VW };
#endif

INLINE void tile_load(vf c[MR][2], const float *tile, bool first)
{
#pragma GCC unroll 14
	for (int i = 0; i < MR; i++) {
		c[i][0] = first ? v_set(0) : v_load(tile + i * NR);
		c[i][1] = first ? v_set(0) : v_load(tile + i * NR + VW);
	}
}
INLINE void tile_store(vf c[MR][2], float *tile)
{
#pragma GCC unroll 14
	for (int i = 0; i < MR; i++) {
		v_store(tile + i * NR, c[i][0]);
		v_store(tile + i * NR + VW, c[i][1]);
	}
}

static void tile_f32(int64_t units, const float *a, const float *b, float *tile, bool first)
{
	vf c[MR][2];

	tile_load(c, tile, first);
	for (int64_t k = 0; k < units; k++) {
		vf b0 = v_load(b), b1 = v_load(b + VW);

#pragma GCC unroll 14
		for (int i = 0; i < MR; i++) {
			vf x = v_set(a[i]);

#ifdef __AVX512F__
			__asm__("" : "+v"(x)); /* one broadcast for all products */
#endif
			c[i][0] = v_fma(x, b0, c[i][0]);
			c[i][1] = v_fma(x, b1, c[i][1]);
		}
		a += MR;
		b += NR;
	}
	tile_store(c, tile);
}

/* ---- packing --------------------------------------------------------------------------- */

#ifdef __AVX512F__
INLINE void transpose16(__m512i w[16])
{
	__m512i x[16];

#pragma GCC unroll 8
	for (int i = 0; i < 8; i++) {
		x[2 * i] = _mm512_unpacklo_epi32(w[2 * i], w[2 * i + 1]);
		x[2 * i + 1] = _mm512_unpackhi_epi32(w[2 * i], w[2 * i + 1]);
	}
#pragma GCC unroll 4
	for (int i = 0; i < 4; i++) {
		w[4 * i] = _mm512_unpacklo_epi64(x[4 * i], x[4 * i + 2]);
		w[4 * i + 1] = _mm512_unpackhi_epi64(x[4 * i], x[4 * i + 2]);
		w[4 * i + 2] = _mm512_unpacklo_epi64(x[4 * i + 1], x[4 * i + 3]);
		w[4 * i + 3] = _mm512_unpackhi_epi64(x[4 * i + 1], x[4 * i + 3]);
	}
#pragma GCC unroll 4
	for (int c = 0; c < 4; c++) {
		__m512i a = _mm512_shuffle_i32x4(w[c], w[4 + c], 0x88), b = _mm512_shuffle_i32x4(w[c], w[4 + c], 0xdd);
		__m512i e = _mm512_shuffle_i32x4(w[8 + c], w[12 + c], 0x88);
		__m512i f = _mm512_shuffle_i32x4(w[8 + c], w[12 + c], 0xdd);

		x[c] = _mm512_shuffle_i32x4(a, e, 0x88);
		x[c + 8] = _mm512_shuffle_i32x4(a, e, 0xdd);
		x[c + 4] = _mm512_shuffle_i32x4(b, f, 0x88);
		x[c + 12] = _mm512_shuffle_i32x4(b, f, 0xdd);
	}
#pragma GCC unroll 16
	for (int i = 0; i < 16; i++)
		w[i] = x[i];
}

/* Conversions of operand elements to units: f32 unchanged, bf16 widened, bf16 in pairs. */
enum unit { UNIT_F32, UNIT_WIDEN, UNIT_PAIR };

/* Returns the sum over the elements of each unit, as floats. */
INLINE vf unit_sum(__m512i u, enum unit how)
{
	if (how != UNIT_PAIR)
		return _mm512_castsi512_ps(u);
	return _mm512_castsi512_ps(_mm512_slli_epi32(u, 16)) +
		_mm512_castsi512_ps(_mm512_and_si512(u, _mm512_set1_epi32((int)0xffff0000)));
}

/* Loads up to 16 units of one row, from element k; `left` elements remain. */
INLINE __m512i row_units(const void *p, int64_t left, enum unit how)
{
	if (how == UNIT_PAIR) {
		int64_t n = left < 32 ? left : 32;

		return n == 32 ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16((__mmask32)((1ull << n) - 1), p);
	}
	return _mm512_castps_si512(v_get(p, 0, left < VW ? left : VW, how == UNIT_WIDEN));
}

/* Loads up to 16 rows of one unit from a k-major operand; `two`: the second element exists. */
INLINE __m512i col_units(const void *p, int64_t ld, int64_t rows, bool two, enum unit how)
{
	if (how == UNIT_PAIR) {
		__mmask16 m = rows >= 16 ? 0xffff : v_mask(rows);
		__m512i lo = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, p)), hi;

		if (!two)
			return lo;
		hi = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, (const uint16_t *)p + ld));
		return _mm512_or_si512(lo, _mm512_slli_epi32(hi, 16));
	}
	return _mm512_castps_si512(v_get(p, 0, rows < VW ? rows : VW, how == UNIT_WIDEN));
}

INLINE void add_sums(float *sum, const vf acc[2], int width)
{
	for (int g = 0; g * 16 < width; g++) {
		int n = width - g * 16 < 16 ? width - g * 16 : 16;

		v_put(sum + g * 16, 0, acc[g] + v_get(sum + g * 16, 0, n, false), n, false);
	}
}

/* Packs a panel from rows that are contiguous along K: transposes 16 x 16 units at a time. */
INLINE void pack_rows(float *dst, int width, const struct vfm_mat *m, int64_t r0, int64_t rows, int64_t k0, int64_t k1,
	float *sum, enum unit how)
{
	int esize = how == UNIT_F32 ? 4 : 2, ku = how == UNIT_PAIR ? 2 : 1;
	vf acc[2] = {v_set(0), v_set(0)};

	for (int64_t k = k0; k < k1; k += 16 * ku) {
		int64_t units = (k1 - k + ku - 1) / ku < 16 ? (k1 - k + ku - 1) / ku : 16;

		for (int g = 0; g * 16 < width; g++) {
			__m512i w[16];

			for (int i = 0; i < 16; i++) {
				int64_t r = g * 16 + i;

				w[i] = r < rows
					? row_units((const char *)m->p + ((r0 + r) * m->ld + k) * esize, k1 - k, how)
					: _mm512_setzero_si512();
				__builtin_prefetch((const char *)m->p + ((r0 + r) * m->ld + k) * esize + 512, 0, 3);
			}
			transpose16(w);
			for (int64_t u = 0; u < units; u++) {
				_mm512_storeu_si512(dst + u * width + g * 16, w[u]);
				if (sum)
					acc[g] += unit_sum(w[u], how);
			}
		}
		dst += units * width;
	}
	if (sum)
		add_sums(sum, acc, width);
}

/* Packs up to COLS_K elements of K of a panel from a k-major operand. */
enum { COLS_K = 16 };
INLINE void pack_cols(float *dst, int width, const struct vfm_mat *m, int64_t r0, int64_t rows, int64_t k0, int64_t k1,
	float *sum, enum unit how)
{
	int esize = how == UNIT_F32 ? 4 : 2, ku = how == UNIT_PAIR ? 2 : 1;
	vf acc[2] = {v_set(0), v_set(0)};

	for (int64_t k = k0; k < k1; k += ku, dst += width) {
		const char *p = (const char *)m->p + (k * m->ld + r0) * esize;

		for (int g = 0; g * 16 < width; g++) {
			int64_t left = rows - g * 16, most = width - g * 16;
			__m512i u = left > 0
				? col_units(p + g * 16 * esize, m->ld, left < most ? left : most, k + 1 < k1, how)
				: _mm512_setzero_si512();

			_mm512_storeu_si512(dst + g * 16, u);
			if (sum)
				acc[g] += unit_sum(u, how);
		}
	}
	if (sum)
		add_sums(sum, acc, width);
}

INLINE void pack_as(float *dst, int width, int64_t stride, const struct vfm_mat *m, int64_t r0, int64_t n, int64_t k0,
	int64_t k1, float *sum, enum unit how)
{
	int ku = how == UNIT_PAIR ? 2 : 1;

	if (!m->kmajor) {
		for (int64_t r = 0; r < n; r += width, dst += stride)
			pack_rows(dst, width, m, r0 + r, n - r < width ? n - r : width, k0, k1, sum ? sum + r : NULL,
				how);
		return;
	}
	/* Packs a few rows at a time across all panels, in the order of memory.  K must ascend within each panel,
	 * because each store overwrites the excess of the one before. */
	for (int64_t k = k0; k < k1; k += COLS_K) {
		int64_t ke = k + COLS_K < k1 ? k + COLS_K : k1;
		float *d = dst + (k - k0) / ku * width;

		for (int64_t r = 0; r < n; r += width, d += stride)
			pack_cols(d, width, m, r0 + r, n - r, k, ke, sum ? sum + r : NULL, how);
	}
}

static void pack_f32(float *dst, int width, int64_t stride, const struct vfm_mat *m, int64_t r0, int64_t n, int64_t k0,
	int64_t k1, float *sum)
{
	if (m->bf)
		pack_as(dst, width, stride, m, r0, n, k0, k1, sum, UNIT_WIDEN);
	else
		pack_as(dst, width, stride, m, r0, n, k0, k1, sum, UNIT_F32);
}

#else /* plain loops */

INLINE float elem(const struct vfm_mat *m, int64_t r, int64_t k, bool bf)
{
	int64_t i = m->kmajor ? k * m->ld + r : r * m->ld + k;

	return bf ? vfm_bf16_to_f32(((const uint16_t *)m->p)[i]) : ((const float *)m->p)[i];
}

INLINE void pack_any(
	float *dst, int width, const struct vfm_mat *m, int64_t r0, int64_t rows, int64_t k0, int64_t k1, bool bf)
{
	if (m->kmajor)
		for (int64_t k = k0; k < k1; k++, dst += width) {
			for (int64_t r = 0; r < rows; r++)
				dst[r] = elem(m, r0 + r, k, bf);
			for (int64_t r = rows; r < width; r++)
				dst[r] = 0;
		}
	else
		for (int64_t r = 0; r < width; r++)
			for (int64_t k = k0; k < k1; k++)
				dst[(k - k0) * width + r] = r < rows ? elem(m, r0 + r, k, bf) : 0;
}

static void pack_f32(float *dst, int width, int64_t stride, const struct vfm_mat *m, int64_t r0, int64_t n, int64_t k0,
	int64_t k1, float *sum)
{
	for (int64_t r = 0; r < n; r += width, dst += stride) {
		if (m->bf)
			pack_any(dst, width, m, r0 + r, n - r < width ? n - r : width, k0, k1, true);
		else
			pack_any(dst, width, m, r0 + r, n - r < width ? n - r : width, k0, k1, false);
		for (int64_t k = 0; sum && k < k1 - k0; k++)
			for (int i = 0; i < width; i++)
				sum[r + i] += dst[k * width + i];
	}
}
#endif

#ifdef __AVX512BF16__
static void tile_bf16(int64_t units, const float *a, const float *b, float *tile, bool first)
{
	vf c[MR][2];

	tile_load(c, tile, first);
	for (int64_t k = 0; k < units; k++) {
		__m512bh b0 = (__m512bh)_mm512_loadu_si512(b), b1 = (__m512bh)_mm512_loadu_si512(b + VW);

#pragma GCC unroll 14
		for (int i = 0; i < MR; i++) {
			__m512 x = _mm512_set1_ps(a[i]);

			__asm__("" : "+v"(x));
			c[i][0] = _mm512_dpbf16_ps(c[i][0], (__m512bh)x, b0);
			c[i][1] = _mm512_dpbf16_ps(c[i][1], (__m512bh)x, b1);
		}
		a += MR;
		b += NR;
	}
	tile_store(c, tile);
}

static void pack_bf16(float *dst, int width, int64_t stride, const struct vfm_mat *m, int64_t r0, int64_t n, int64_t k0,
	int64_t k1, float *sum)
{
	pack_as(dst, width, stride, m, r0, n, k0, k1, sum, UNIT_PAIR);
}
#endif

/* ---- epilogue ----------------------------------------------------------------------------- */

INLINE void epilogue_as(const struct vfm_epi *e, const float *tile, int64_t ld, int64_t m, int64_t n0, int64_t mr,
	int64_t nr, bool bf, enum vfm_act act, enum vfm_act dact)
{
	int esize = bf ? 2 : 4;

	for (int64_t i = 0; i < mr; i++, tile += ld) {
		char *c = (char *)e->c + ((m + i) * e->ldc + n0) * esize;
		char *aux = e->aux ? (char *)e->aux + ((m + i) * e->ld_aux + n0) * esize : NULL;

		V_FOR(j, n, 0, nr)
		{
			vf z = v_load(tile + j);

			if (e->bias)
				z += v_get(e->bias, n0 + j, n, false);
			if (act) {
				if (aux) {
					v_put(aux, j, z, n, bf);
					/* of the rounded input, as a backward computes it that kept only aux */
					z = bf ? v_get(aux, j, n, bf) : z;
				}
				z = act_fwd(act, z);
			}
			if (dact)
				z *= act_bwd(dact, v_get(aux, j, n, bf));
			if (e->accumulate)
				z += v_get(c, j, n, bf);
			v_put(c, j, z, n, bf);
		}
	}
}

static void epilogue(
	const struct vfm_epi *e, const float *tile, int64_t ld, int64_t m, int64_t n, int64_t mr, int64_t nr)
{
#define EPI(bf)                                                                                                        \
	do {                                                                                                           \
		if (e->act == VFM_ACT_GELU_TANH)                                                                       \
			epilogue_as(e, tile, ld, m, n, mr, nr, bf, VFM_ACT_GELU_TANH, VFM_ACT_NONE);                   \
		else if (e->act == VFM_ACT_SILU)                                                                       \
			epilogue_as(e, tile, ld, m, n, mr, nr, bf, VFM_ACT_SILU, VFM_ACT_NONE);                        \
		else if (e->dact == VFM_ACT_GELU_TANH)                                                                 \
			epilogue_as(e, tile, ld, m, n, mr, nr, bf, VFM_ACT_NONE, VFM_ACT_GELU_TANH);                   \
		else if (e->dact == VFM_ACT_SILU)                                                                      \
			epilogue_as(e, tile, ld, m, n, mr, nr, bf, VFM_ACT_NONE, VFM_ACT_SILU);                        \
		else                                                                                                   \
			epilogue_as(e, tile, ld, m, n, mr, nr, bf, VFM_ACT_NONE, VFM_ACT_NONE);                        \
	} while (0)
	if (e->c_bf)
		EPI(true);
	else
		EPI(false);
#undef EPI
}

#define GEMM_KERN(units, type)                                                                                         \
	{                                                                                                              \
		.mr = MR, .nr = NR, .ku = (units), .step = 1, .kc = 256, .kc_whole = 400, .mc = 168,                   \
		.pack_a = pack_##type, .pack_b = pack_##type, .tile = tile_##type, .epilogue = epilogue                \
	}
#define GEMM_F32 GEMM_KERN(1, f32)
#ifdef __AVX512BF16__
#define GEMM_BF16 GEMM_KERN(2, bf16)
#else
#define GEMM_BF16 GEMM_F32
#endif
