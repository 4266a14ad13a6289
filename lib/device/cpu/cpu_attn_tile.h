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
static void multiply_tile(
	enum side side, int m, int nv, int k, const float *a, const float *b, int ldb, float *c, int ldc, bool add)
{
	const int units = (k + KWORDS - 1) / KWORDS;

	(void)side, (void)ldb;
	for (int v = 0; v < nv; v += 2)
		for (int i = 0; i < m; i += WIDE) {
			const float *x = a + i / WIDE * PANEL, *y = b + v / 2 * PANEL;
			float *out = c + (size_t)i * (size_t)ldc + v * VW;

			if (m - i > 16 && nv - v > 1)
				bf16x3_tile(true, true, units, x, y, out, ldc, add);
			else
				bf16x3_tile(m - i > 16, nv - v > 1, units, x, y, out, ldc, add);
		}
}

#else
/* Computes up to 32 x 32 of C in tiles 0 to 3; writes whole tiles, so C has room for a multiple of 16 rows. */
static inline void tile_2x2(
	bool rows2, bool cols2, int k, const float *a, const float *b, int ldb, float *c, int ldc, bool add)
{
	const size_t sa = ATTN_LD * 4, sb = (size_t)ldb * 4, sc = (size_t)ldc * 4;
	float *c1 = c + 16 * ldc;

	if (add) {
		TILE_LOAD(0, c, sc);
		if (cols2)
			TILE_LOAD(1, c + 16, sc);
		if (rows2)
			TILE_LOAD(2, c1, sc);
		if (rows2 && cols2)
			TILE_LOAD(3, c1 + 16, sc);
	} else {
		TILE_ZERO(0);
		TILE_ZERO(1);
		TILE_ZERO(2);
		TILE_ZERO(3);
	}
	for (int p = 0; p < k; p += KWORDS) {
		const float *bp = b + (size_t)p * (size_t)ldb;

		TILE_LOAD(4, a + p, sa);
		TILE_LOAD(6, bp, sb);
		TILE_MAC(0, 4, 6);
		if (cols2) {
			TILE_LOAD(7, bp + 16, sb);
			TILE_MAC(1, 4, 7);
		}
		if (rows2) {
			TILE_LOAD(5, a + 16 * ATTN_LD + p, sa);
			TILE_MAC(2, 5, 6);
			if (cols2)
				TILE_MAC(3, 5, 7);
		}
	}
	TILE_STORE(0, c, sc);
	if (cols2)
		TILE_STORE(1, c + 16, sc);
	if (rows2)
		TILE_STORE(2, c1, sc);
	if (rows2 && cols2)
		TILE_STORE(3, c1 + 16, sc);
}

static void multiply_tile(
	enum side side, int m, int nv, int k, const float *a, const float *b, int ldb, float *c, int ldc, bool add)
{
	(void)side;
	for (int v = 0; v < nv; v += 2)
		for (int i = 0; i < m; i += 32)
			tile_2x2(m - i > 16, nv - v > 1, k, a + i * ATTN_LD, b + v * VW, ldb,
				c + (size_t)i * (size_t)ldc + v * VW, ldc, add);
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

typedef void tile_fn(int k, const float *a, const float *b, int ldb, float *c, int ldc, bool add);

/* sm, sk: words between neighbours in m and in k of A; r, nv, sm and sk are compile-time constants at each call.  The
 * loop over k is unrolled for the reason given in cpu_gemm.inc.h. */
static inline __attribute__((always_inline)) void tile(
	int r, int nv, int sm, int sk, int k, const float *a, const float *b, int ldb, float *c, int ldc, bool add)
{
	vf acc[12][4], bv[4];

#pragma GCC unroll 12
	for (int i = 0; i < r; i++)
#pragma GCC unroll 4
		for (int j = 0; j < nv; j++)
			acc[i][j] = v_set(0);
#pragma GCC unroll 4
	for (int p = 0; p < k; p++, a += sk, b += ldb) {
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
	static void tile_row_##r##_##nv(int k, const float *a, const float *b, int ldb, float *c, int ldc, bool add)   \
	{                                                                                                              \
		tile(r, nv, ATTN_LD, 1, k, a, b, ldb, c, ldc, add);                                                    \
	}                                                                                                              \
	static void tile_col_##r##_##nv(int k, const float *a, const float *b, int ldb, float *c, int ldc, bool add)   \
	{                                                                                                              \
		tile(r, nv, 1, ATTN_LD, k, a, b, ldb, c, ldc, add);                                                    \
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

/* m >= 1, lanes in vectors, k in words.  Rows and lanes are divided evenly over tiles. */
static void multiply_tile(
	enum side side, int m, int nv, int k, const float *a, const float *b, int ldb, float *c, int ldc, bool add)
{
	int parts = (nv + NVMAX - 1) / NVMAX;

	for (int x = 0, v0 = 0; x < parts; x++) {
		int v = (nv - v0 + parts - x - 1) / (parts - x), rows = (m + TILE_ROWS(v) - 1) / TILE_ROWS(v);

		for (int y = 0, m0 = 0; y < rows; y++) {
			int r = (m - m0 + rows - y - 1) / (rows - y);

			tiles[v][r][side](k, a + m0 * (side == BY_ROW ? ATTN_LD : 1), b + v0 * VW, ldb,
				c + (int64_t)m0 * ldc + v0 * VW, ldc, add);
			m0 += r;
		}
		v0 += v;
	}
}
#endif

#endif
