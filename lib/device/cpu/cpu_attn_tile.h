/* cpu_attn_tile.h - the matrix product of the attention kernels, C[m][lane] (+)= sum over k of A(m, k) * B[k][lane].
 *
 * A is read a word at a time and broadcast, B is read in vectors, C is kept in registers.  A word is a float or, with
 * ATTN_PAIR, two bf16 of consecutive steps of k.  No product needs a transposed copy of keys or values:
 *   - lanes are queries: S^T = K Q^T, dP^T = V dO^T, O^T = V^T P^T, dQ^T = K^T dS^T
 *   - lanes are the head dim: dV = P^T dO, dK = dS^T Q
 *
 * With ATTN_AMX the product uses AMX tiles (16 rows of 16 words).  Their operand A is rows of m, so operands that other
 * instruction sets read by column are packed transposed.  With ATTN_SPLIT, operands are also three bf16
 * (cpu_attn_split.h).
 */
#ifndef VFM_DEVICE_CPU_CPU_ATTN_TILE_H
#define VFM_DEVICE_CPU_CPU_ATTN_TILE_H

#include "device/cpu/cpu_attn_impl.h"
#include "device/cpu/cpu_attn_vec.h"
#ifdef ATTN_AMX
#include "device/cpu/cpu_bf16x3.h"
#endif

#ifdef ATTN_SPLIT
enum {
	SPLIT = 1,
	PANEL = ATTN_D / 32 * UNIT,    /* words of a panel: up to ATTN_D elements of k */
	A_WORDS = ATTN_D / 32 * PANEL, /* words of an operand A: up to ATTN_BK or ATTN_D rows */
};
#else
enum { SPLIT = 0, PANEL = 1, A_WORDS = ATTN_BK * ATTN_LD };
#endif

#if defined(ATTN_PAIR) || defined(ATTN_SPLIT)
enum { PAIR = 1 }; /* elements of consecutive steps share a word */
#else
enum { PAIR = 0 };
#endif

/* Returns the number of words of n steps of k. */
static inline int words(int n)
{
	return PAIR ? (n + 1) / 2 : n;
}

static inline int vecs(int n)
{
	return (n + VW - 1) / VW;
}

#ifdef ATTN_PAIR
static inline vf v_mac(vf acc, const float *a, vf b)
{
	return _mm512_dpbf16_ps(
		acc, (__m512bh)_mm512_castps_si512(_mm512_set1_ps(*a)), (__m512bh)_mm512_castps_si512(b));
}
#else
static inline vf v_mac(vf acc, const float *a, vf b)
{
	return v_fma(v_set(*a), b, acc);
}
#endif

enum side {
	BY_ROW, /* A(m, k) = a[m * LD + k] */
	BY_COL, /* A(m, k) = a[k * LD + m]; with AMX as above */
};

struct attn_product {
	enum side side;
	int m, nv, k;       /* rows, at least 1; lanes, in vectors; words */
	const float *a, *b; /* b: [k][LD], or panels with ATTN_SPLIT */
	float *c;           /* (add ? c : 0) + a b */
	int ldc;
	bool add;
};

#ifdef ATTN_AMX
/* Words of k are read 16 at a time: operands are padded with zeros to a multiple of 16. */
enum { KWORDS = 16 };

static void product_begin(void)
{
	tiles_begin();
}

static void product_end(void)
{
	tiles_end();
}

#ifdef ATTN_SPLIT
static void multiply_tile(const struct attn_product *p)
{
	const int units = (p->k + KWORDS - 1) / KWORDS;

	for (int v = 0; v < p->nv; v += 2)
		for (int i = 0; i < p->m; i += WIDE) {
			const float *a = p->a + i / WIDE * PANEL, *b = p->b + v / 2 * PANEL;
			float *c = p->c + (size_t)i * (size_t)p->ldc + v * VW;

			if (p->m - i > 16 && p->nv - v > 1)
				bf16x3_tile(true, true, units, a, b, c, p->ldc, p->add);
			else
				bf16x3_tile(p->m - i > 16, p->nv - v > 1, units, a, b, c, p->ldc, p->add);
		}
}

#else
/* Stores tile t at due, and begins its next sum, at c. */
#define NEXT_TILE(t, at)                                                                                               \
	do {                                                                                                           \
		if (due)                                                                                               \
			TILE_STORE(t, due + (at), sc);                                                                 \
		if (p->add)                                                                                            \
			TILE_LOAD(t, c + (at), sc);                                                                    \
		else                                                                                                   \
			TILE_ZERO(t);                                                                                  \
	} while (0)

/* Computes 32 x 32 of C in tiles 0 to 3, and leaves them there.  Their previous sums are stored at due, which may be
 * NULL, between the first products: a store right after its product would wait for it. */
static inline void tile_whole(const struct attn_product *p, const float *a, const float *b, float *c, float *due)
{
	const size_t ld = ATTN_LD * 4, sc = (size_t)p->ldc * 4;
	const int low = 16 * p->ldc;

	TILE_LOAD(4, a, ld);
	TILE_LOAD(6, b, ld);
	TILE_LOAD(7, b + 16, ld);
	TILE_LOAD(5, a + 16 * ATTN_LD, ld);
	NEXT_TILE(0, 0);
	TILE_MAC(0, 4, 6);
	NEXT_TILE(1, 16);
	TILE_MAC(1, 4, 7);
	NEXT_TILE(2, low);
	TILE_MAC(2, 5, 6);
	NEXT_TILE(3, low + 16);
	TILE_MAC(3, 5, 7);
	for (int k = KWORDS; k < p->k; k += KWORDS) {
		const float *bk = b + (size_t)k * ATTN_LD;

		TILE_LOAD(4, a + k, ld);
		TILE_LOAD(6, bk, ld);
		TILE_MAC(0, 4, 6);
		TILE_LOAD(7, bk + 16, ld);
		TILE_MAC(1, 4, 7);
		TILE_LOAD(5, a + 16 * ATTN_LD + k, ld);
		TILE_MAC(2, 5, 6);
		TILE_MAC(3, 5, 7);
	}
}

static inline void store_whole(float *c, int ldc)
{
	const size_t sc = (size_t)ldc * 4;

	TILE_STORE(0, c, sc);
	TILE_STORE(1, c + 16, sc);
	TILE_STORE(2, c + 16 * ldc, sc);
	TILE_STORE(3, c + 16 * ldc + 16, sc);
}

/* Computes and stores up to three tiles of C.  All rows of a tile are written: C has room for them. */
static void tile_edge(const struct attn_product *p, bool rows2, bool cols2, const float *a, const float *b, float *c)
{
	const size_t ld = ATTN_LD * 4, sc = (size_t)p->ldc * 4;
	const int low = 16 * p->ldc;

	TILE_ZERO(0);
	TILE_ZERO(1);
	TILE_ZERO(2);
	if (p->add) {
		TILE_LOAD(0, c, sc);
		if (cols2)
			TILE_LOAD(1, c + 16, sc);
		if (rows2)
			TILE_LOAD(2, c + low, sc);
	}
	for (int k = 0; k < p->k; k += KWORDS) {
		const float *bk = b + (size_t)k * ATTN_LD;

		TILE_LOAD(4, a + k, ld);
		TILE_LOAD(6, bk, ld);
		TILE_MAC(0, 4, 6);
		if (cols2) {
			TILE_LOAD(7, bk + 16, ld);
			TILE_MAC(1, 4, 7);
		}
		if (rows2) {
			TILE_LOAD(5, a + 16 * ATTN_LD + k, ld);
			TILE_MAC(2, 5, 6);
		}
	}
	TILE_STORE(0, c, sc);
	if (cols2)
		TILE_STORE(1, c + 16, sc);
	if (rows2)
		TILE_STORE(2, c + low, sc);
}

static void multiply_tile(const struct attn_product *p)
{
	float *due = NULL;

	for (int v = 0; v < p->nv; v += 2)
		for (int i = 0; i < p->m; i += 32) {
			const float *a = p->a + i * ATTN_LD, *b = p->b + v * VW;
			float *c = p->c + (size_t)i * (size_t)p->ldc + v * VW;

			if (p->m - i > 16 && p->nv - v > 1) {
				tile_whole(p, a, b, c, due);
				due = c;
				continue;
			}
			if (due)
				store_whole(due, p->ldc);
			due = NULL;
			tile_edge(p, p->m - i > 16, p->nv - v > 1, a, b, c);
		}
	if (due)
		store_whole(due, p->ldc);
}
#endif

#else
enum { KWORDS = 1 };
static void product_begin(void)
{
}
static void product_end(void)
{
}

typedef void tile_fn(int k, const float *a, const float *b, float *c, int ldc, bool add);

/* sm, sk: words between neighbours in m and in k of A; r, nv, sm and sk are compile-time constants at each call.  The
 * loop over k is unrolled for the reason given in cpu_gemm.inc.h. */
static inline __attribute__((always_inline)) void tile(
	int r, int nv, int sm, int sk, int k, const float *a, const float *b, float *c, int ldc, bool add)
{
	vf acc[12][4], bv[4];

#pragma GCC unroll 12
	for (int i = 0; i < r; i++)
#pragma GCC unroll 4
		for (int j = 0; j < nv; j++)
			acc[i][j] = v_set(0);
#pragma GCC unroll 4
	for (int p = 0; p < k; p++, a += sk, b += ATTN_LD) {
#pragma GCC unroll 4
		for (int j = 0; j < nv; j++)
			bv[j] = v_load(b + j * VW);
#pragma GCC unroll 12
		for (int i = 0; i < r; i++)
#pragma GCC unroll 4
			for (int j = 0; j < nv; j++)
				acc[i][j] = v_mac(acc[i][j], a + i * sm, bv[j]);
	}
	if (add)
#pragma GCC unroll 12
		for (int i = 0; i < r; i++)
#pragma GCC unroll 4
			for (int j = 0; j < nv; j++)
				acc[i][j] = acc[i][j] + v_load(c + i * ldc + j * VW);
#pragma GCC unroll 12
	for (int i = 0; i < r; i++)
#pragma GCC unroll 4
		for (int j = 0; j < nv; j++)
			v_store(c + i * ldc + j * VW, acc[i][j]);
}

#define TILE(r, nv)                                                                                                    \
	static void tile_row_##r##_##nv(int k, const float *a, const float *b, float *c, int ldc, bool add)            \
	{                                                                                                              \
		tile(r, nv, ATTN_LD, 1, k, a, b, c, ldc, add);                                                         \
	}                                                                                                              \
	static void tile_col_##r##_##nv(int k, const float *a, const float *b, float *c, int ldc, bool add)            \
	{                                                                                                              \
		tile(r, nv, 1, ATTN_LD, k, a, b, c, ldc, add);                                                         \
	}
#define TILES_4(M, nv)  M(1, nv) M(2, nv) M(3, nv) M(4, nv)
#define TILES_6(M, nv)  TILES_4(M, nv) M(5, nv) M(6, nv)
#define TILES_8(M, nv)  TILES_6(M, nv) M(7, nv) M(8, nv)
#define TILES_10(M, nv) TILES_8(M, nv) M(9, nv) M(10, nv)
#define TILES_12(M, nv) TILES_10(M, nv) M(11, nv) M(12, nv)
#if defined(__AVX512F__)
#define TILES(M) TILES_12(M, 1) TILES_12(M, 2) TILES_8(M, 3) TILES_6(M, 4)
#elif defined(__AVX2__)
#define TILES(M) TILES_10(M, 1) TILES_6(M, 2)
#else
#define TILES(M) TILES_8(M, 1) TILES_4(M, 2)
#endif
TILES(TILE)

#define TILE_ENTRY(r, nv) [nv][r] = {tile_row_##r##_##nv, tile_col_##r##_##nv},
static tile_fn *const tiles[NVMAX + 1][13][2] = {TILES(TILE_ENTRY)};

/* Rows and lanes are divided evenly over tiles. */
static void multiply_tile(const struct attn_product *p)
{
	int parts = (p->nv + NVMAX - 1) / NVMAX;

	for (int x = 0, v0 = 0; x < parts; x++) {
		int v = (p->nv - v0 + parts - x - 1) / (parts - x), rows = (p->m + TILE_ROWS(v) - 1) / TILE_ROWS(v);

		for (int y = 0, m0 = 0; y < rows; y++) {
			int r = (p->m - m0 + rows - y - 1) / (rows - y);

			tiles[v][r][p->side](p->k, p->a + m0 * (p->side == BY_ROW ? ATTN_LD : 1), p->b + v0 * VW,
				p->c + (int64_t)m0 * p->ldc + v0 * VW, p->ldc, p->add);
			m0 += r;
		}
		v0 += v;
	}
}
#endif

#endif
