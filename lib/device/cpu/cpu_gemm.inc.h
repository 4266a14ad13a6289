/* cpu_gemm.inc.h - packing, the register tile and the epilogue of the GEMM.  Included by cpu_kern_<isa>.c after
 * cpu_elem.inc.h.
 *
 * The tile keeps MR x 2 vectors of C in registers.  Each step reads two vectors of the B panel and broadcasts MR
 * elements of the A panel (Goto & van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008). */

/* KC steps of a panel of B fill an L1 cache of 32 KiB. */
#ifdef __AVX512F__
enum { MR = 14, NR = 2 * VW, KC = 256, KC_WHOLE = 400 };
#else
enum { MR = 6, NR = 2 * VW, KC = 512, KC_WHOLE = 640 };
#endif

INLINE void tile_zero(vf c[MR][2])
{
#pragma GCC unroll 14
	for (int i = 0; i < MR; i++)
		c[i][0] = c[i][1] = v_set(0);
}

/* tile = (first ? 0 : tile) + c */
INLINE void tile_add(vf c[MR][2], float *tile, int64_t ld, bool first)
{
	if (!first)
#pragma GCC unroll 14
		for (int i = 0; i < MR; i++) {
			c[i][0] += v_load(tile + i * ld);
			c[i][1] += v_load(tile + i * ld + VW);
		}
#pragma GCC unroll 14
	for (int i = 0; i < MR; i++) {
		v_store(tile + i * ld, c[i][0]);
		v_store(tile + i * ld + VW, c[i][1]);
	}
}

/* Conversions of operand elements to units: f32 unchanged, bf16 widened, bf16 in pairs (with AVX-512). */
enum unit { UNIT_F32, UNIT_WIDEN, UNIT_PAIR };

/* Returns c + a b; for pairs, c + the sum of both products. */
INLINE vf unit_fma(vf a, vf b, vf c, enum unit how)
{
#ifdef __AVX512BF16__
	if (how == UNIT_PAIR)
		return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
#endif
	(void)how;
	return v_fma(a, b, c);
}

/* Adds to the tile in runs; each run is a sum from zero. */
INLINE void tile_units(const struct vfm_panel_product *p, enum unit how)
{
	const float *a = p->a, *b = p->b;
	bool first = p->first;

	for (int64_t k0 = 0; k0 < p->units; k0 += VFM_GEMM_RUN, first = false) {
		int64_t n = p->units - k0 < VFM_GEMM_RUN ? p->units - k0 : VFM_GEMM_RUN;
		vf c[MR][2];

		tile_zero(c);
		/* unrolled: on a core whose other hyperthread is busy, each instruction that is not a product costs
		 * time */
#pragma GCC unroll 8
		for (int64_t k = 0; k < n; k++, a += MR, b += NR) {
			vf b0 = v_load(b), b1 = v_load(b + VW);

#pragma GCC unroll 14
			for (int i = 0; i < MR; i++) {
				vf x = v_set(a[i]);

#ifdef __AVX512F__
				__asm__("" : "+v"(x)); /* one broadcast for all products */
#endif
				c[i][0] = unit_fma(x, b0, c[i][0], how);
				c[i][1] = unit_fma(x, b1, c[i][1], how);
			}
		}
		tile_add(c, p->c, p->ldc, first);
	}
}

static void tile_f32(const struct vfm_panel_product *p)
{
	tile_units(p, UNIT_F32);
}

/* ---- packing --------------------------------------------------------------------------- */

/* Returns the sum over the elements of each unit. */
INLINE vf unit_sum(vf u, enum unit how)
{
#ifdef __AVX512F__
	__m512i w = _mm512_castps_si512(u);

	if (how == UNIT_PAIR)
		return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16)) +
			_mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32((int)0xffff0000)));
#endif
	(void)how;
	return u;
}

/* Loads up to VW units of one row, from element k; `left` elements remain. */
INLINE vf row_units(const void *p, int64_t left, enum unit how)
{
#ifdef __AVX512F__
	if (how == UNIT_PAIR) {
		int64_t n = left < 32 ? left : 32;

		return _mm512_castsi512_ps(
			n == 32 ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16((__mmask32)((1ull << n) - 1), p));
	}
#endif
	return v_get(p, 0, left < VW ? left : VW, how == UNIT_WIDEN);
}

/* Loads up to VW rows of one unit from a k-major operand; `two`: the second element exists. */
INLINE vf col_units(const void *p, int64_t ld, int64_t rows, bool two, enum unit how)
{
#ifdef __AVX512F__
	if (how == UNIT_PAIR) {
		__mmask16 m = rows >= 16 ? 0xffff : v_mask(rows);
		__m512i lo = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, p)), hi;

		if (!two)
			return _mm512_castsi512_ps(lo);
		hi = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, (const uint16_t *)p + ld));
		return _mm512_castsi512_ps(_mm512_or_si512(lo, _mm512_slli_epi32(hi, 16)));
	}
#endif
	(void)ld, (void)two;
	return v_get(p, 0, rows < VW ? rows : VW, how == UNIT_WIDEN);
}

INLINE void add_sums(float *sum, const vf acc[2], int width)
{
	for (int g = 0; g * VW < width; g++) {
		int n = width - g * VW < VW ? width - g * VW : VW;

		v_put(sum + g * VW, 0, acc[g] + v_get(sum + g * VW, 0, n, false), n, false);
	}
}

/* Packs a panel from rows that are contiguous along K: transposes VW x VW units at a time.  The last group may be
 * incomplete; it is packed first, because its stores overwrite the beginning of the next unit. */
INLINE void pack_rows(float *dst, int width, const struct vfm_mat *m, int64_t r0, int64_t rows, int64_t k0, int64_t k1,
	float *sum, enum unit how)
{
	int esize = how == UNIT_F32 ? 4 : 2, ku = how == UNIT_PAIR ? 2 : 1;
	vf acc[2] = {v_set(0), v_set(0)};

	for (int64_t k = k0; k < k1; k += VW * ku) {
		int64_t units = (k1 - k + ku - 1) / ku < VW ? (k1 - k + ku - 1) / ku : VW;

		for (int g = (width - 1) / VW; g >= 0; g--) {
			vf w[VW];

			for (int i = 0; i < VW; i++) {
				int64_t r = g * VW + i;

				w[i] = r < rows
					? row_units((const char *)m->p + ((r0 + r) * m->ld + k) * esize, k1 - k, how)
					: v_set(0);
				/* the next panel */
				__builtin_prefetch((const char *)m->p + ((r0 + r + width) * m->ld + k) * esize, 0, 3);
			}
			v_transpose(w);
			for (int64_t u = 0; u < units; u++)
				v_store(dst + u * width + g * VW, w[u]);
			if (sum) {
				vf run = v_set(0);

				for (int64_t u = 0; u < units; u++)
					run += unit_sum(w[u], how);
				acc[g] += run;
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

		if (VW < 16) /* the next rows of this panel */
			__builtin_prefetch(p + COLS_K * m->ld * esize, 0, 3);
		for (int g = 0; g * VW < width; g++) {
			int64_t left = rows - g * VW, most = width - g * VW;
			/* whole vectors where rows of the next panel follow: the excess is overwritten */
			int64_t lanes = left < VW && left > most ? most : left;
			vf u = left > 0 ? col_units(p + g * VW * esize, m->ld, lanes, k + 1 < k1, how) : v_set(0);

			v_store(dst + g * VW, u);
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

/* Specializes narrow vectors for each width; else the loops over groups would cost as much as the copies. */
INLINE void pack_width(float *dst, bool of_a, int64_t stride, const struct vfm_mat *m, int64_t r0, int64_t n,
	int64_t k0, int64_t k1, float *sum, enum unit how)
{
	if (VW == 16)
		pack_as(dst, of_a ? MR : NR, stride, m, r0, n, k0, k1, sum, how);
	else if (of_a)
		pack_as(dst, MR, stride, m, r0, n, k0, k1, sum, how);
	else
		pack_as(dst, NR, stride, m, r0, n, k0, k1, sum, how);
}

static void pack_f32(float *dst, bool of_a, int64_t stride, const struct vfm_mat *m, int64_t r0, int64_t n, int64_t k0,
	int64_t k1, float *sum)
{
	if (m->bf)
		pack_width(dst, of_a, stride, m, r0, n, k0, k1, sum, UNIT_WIDEN);
	else
		pack_width(dst, of_a, stride, m, r0, n, k0, k1, sum, UNIT_F32);
}

#ifdef __AVX512BF16__
static void tile_bf16(const struct vfm_panel_product *p)
{
	tile_units(p, UNIT_PAIR);
}

static void pack_bf16(float *dst, bool of_a, int64_t stride, const struct vfm_mat *m, int64_t r0, int64_t n, int64_t k0,
	int64_t k1, float *sum)
{
	pack_width(dst, of_a, stride, m, r0, n, k0, k1, sum, UNIT_PAIR);
}
#endif

/* ---- epilogue ----------------------------------------------------------------------------- */

INLINE void epilogue_as(const struct vfm_epi *e, const float *tile, int64_t m, int64_t n0, int64_t mr, int64_t nr,
	bool bf, enum vfm_act act, enum vfm_act dact)
{
	int esize = bf ? 2 : 4;

	for (int64_t i = 0; i < mr; i++, tile += NR) {
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
				z = act_fwd(act, z, bf);
			}
			if (dact)
				z *= act_bwd(dact, v_get(aux, j, n, bf));
			if (e->accumulate)
				z += v_get(c, j, n, bf);
			if (e->add)
				z += v_get(e->add, (m + i) * e->ldc + n0 + j, n, bf);
			v_put(c, j, z, n, bf);
		}
	}
}

INLINE void epilogue_of(const struct vfm_epi *e, const float *tile, int64_t m, int64_t n, int64_t mr, int64_t nr)
{
#define EPI(bf)                                                                                                        \
	do {                                                                                                           \
		if (e->act == VFM_ACT_GELU_TANH)                                                                       \
			epilogue_as(e, tile, m, n, mr, nr, bf, VFM_ACT_GELU_TANH, VFM_ACT_NONE);                       \
		else if (e->act == VFM_ACT_SILU)                                                                       \
			epilogue_as(e, tile, m, n, mr, nr, bf, VFM_ACT_SILU, VFM_ACT_NONE);                            \
		else if (e->dact == VFM_ACT_GELU_TANH)                                                                 \
			epilogue_as(e, tile, m, n, mr, nr, bf, VFM_ACT_NONE, VFM_ACT_GELU_TANH);                       \
		else if (e->dact == VFM_ACT_SILU)                                                                      \
			epilogue_as(e, tile, m, n, mr, nr, bf, VFM_ACT_NONE, VFM_ACT_SILU);                            \
		else                                                                                                   \
			epilogue_as(e, tile, m, n, mr, nr, bf, VFM_ACT_NONE, VFM_ACT_NONE);                            \
	} while (0)
	if (e->c_bf)
		EPI(true);
	else
		EPI(false);
#undef EPI
}

static void epilogue(const struct vfm_epi *e, const float *tile, int64_t m, int64_t n, int64_t mr, int64_t nr)
{
	if (nr == NR) /* a constant, so that it is compiled for whole vectors */
		epilogue_of(e, tile, m, n, mr, NR);
	else
		epilogue_of(e, tile, m, n, mr, nr);
}

/* ---- convolution -------------------------------------------------------------------------- */

enum { LINE = 16 }; /* words of a line */

INLINE void lines_widen(const struct vfm_patch_lines *x, bool bf)
{
	const char *p = x->p;
	float *dst = x->dst;

	for (int64_t i = 0; i < x->n; i++, dst += x->step, p += x->pitch * (bf ? 2 : 4)) {
		float *d = dst;

		for (int64_t c = 0; c < x->c; c += LINE, d += x->line)
			for (int64_t j = 0; j < LINE; j += VW) {
				int64_t n = x->c - c - j;

				v_store(d + j, n > 0 ? v_get(p, c + j, n < VW ? n : VW, bf) : v_set(0));
			}
	}
}

static void lines_f32(const struct vfm_patch_lines *x)
{
	BF1(x->bf, lines_widen(x, B0));
}

INLINE void conv_tile_units(const struct vfm_conv_units *u, const float *a, const float *b, float *tile, int vectors,
	bool first, enum unit how)
{
	for (int64_t i0 = 0; i0 < u->n; i0 += VFM_GEMM_RUN / LINE, first = false) {
		int64_t i1 = u->n - i0 < VFM_GEMM_RUN / LINE ? u->n : i0 + VFM_GEMM_RUN / LINE;
		vf c[MR][2];

		tile_zero(c);
		for (int64_t i = i0; i < i1; i++) {
			const float *x = a + u->off[i];

#pragma GCC unroll 4
			for (int k = 0; k < LINE; k++, b += NR) {
				vf b0 = v_load(b), b1 = v_load(b + VW);

#pragma GCC unroll 14
				for (int r = 0; r < MR; r++) {
					vf v = v_set(x[r * LINE + k]);

#ifdef __AVX512F__
					__asm__("" : "+v"(v)); /* one broadcast for all products */
#endif
					c[r][0] = unit_fma(v, b0, c[r][0], how);
					if (vectors > 1)
						c[r][1] = unit_fma(v, b1, c[r][1], how);
				}
			}
		}
		tile_add(c, tile, NR, first);
	}
}

static void conv_f32(
	const struct vfm_conv_units *u, const float *a, const float *b, float *tile, int64_t cols, bool first)
{
	if (cols > VW)
		conv_tile_units(u, a, b, tile, 2, first, UNIT_F32);
	else
		conv_tile_units(u, a, b, tile, 1, first, UNIT_F32);
}

#ifdef __AVX512BF16__
static void lines_bf16(const struct vfm_patch_lines *x)
{
	const uint16_t *p = x->p;
	float *dst = x->dst;

	for (int64_t i = 0; i < x->n; i++, dst += x->step, p += x->pitch) {
		float *d = dst;

		for (int64_t c = 0; c < x->c; c += 2 * LINE, d += x->line)
			v_store(d, row_units(p + c, x->c - c, UNIT_PAIR));
	}
}

static void conv_bf16(
	const struct vfm_conv_units *u, const float *a, const float *b, float *tile, int64_t cols, bool first)
{
	if (cols > VW)
		conv_tile_units(u, a, b, tile, 2, first, UNIT_PAIR);
	else
		conv_tile_units(u, a, b, tile, 1, first, UNIT_PAIR);
}
#endif

#define GEMM_KERN(units, type)                                                                                         \
	{                                                                                                              \
		.mr = MR, .nr = NR, .ku = (units), .words = 1, .kc = KC, .kc_whole = KC_WHOLE, .mc = 168,              \
		.held_rows = 512, .pack = pack_##type, .tile = tile_##type, .epilogue = epilogue,                      \
		.lines = lines_##type, .conv = conv_##type                                                             \
	}
#define GEMM_F32 GEMM_KERN(1, f32)
#ifdef __AVX512BF16__
#define GEMM_BF16 GEMM_KERN(2, bf16)
#else
#define GEMM_BF16 GEMM_F32
#endif
