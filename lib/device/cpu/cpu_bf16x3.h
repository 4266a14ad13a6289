/* cpu_bf16x3.h - products of f32 with AMX tiles of bf16.
 *
 * An f32 is the exact sum of three bf16: h is x rounded to 8 bits, m is x - h rounded, l is x - h - m.  A product sums
 * six of the nine products of these parts in f32: l h, m h, m m, h m, h l and h h (Henry, Tang, Heinecke, arXiv
 * 1904.06376).  The error of K elements is at most (6 ceil(K / 32) + 18) u sum |a b| to first order, u = 2^-24; that of
 * K FMAs is K u sum |a b|.  Subnormal bf16 and sums are flushed to zero, which adds at most 2^-125 (sum |a| + sum |b|)
 * + 2^-123 K.  NaN and infinity are those of f32.
 */
#ifndef VFM_DEVICE_CPU_CPU_BF16X3_H
#define VFM_DEVICE_CPU_CPU_BF16X3_H

#include <stdbool.h>
#include <string.h>

#include "device/cpu/cpu_tiles.h"

typedef uint32_t words16 __attribute__((vector_size(64)));
typedef float floats16 __attribute__((vector_size(64)));

#define TSTATIC static inline __attribute__((always_inline))

/* Error: |m| <= 2^-8 |x| and |l| <= 2^-17 |x|, so the three absent products are at most u |a b|, u = 2^-24, and of
 * either sign.  An instruction sums 16 words from zero (17 roundings) and adds the sum to the accumulator.
 *
 * Results of the tiles that are not finite are computed again from the parts with f32 FMAs (inf 0, or an h h that
 * overflows).
 *
 * A panel holds 32 rows of A or columns of B.  A unit of it is 32 elements of K, in three parts of 16 words: of A
 * [row][word], of B [word][column].  A word holds two of the 32 elements, in any order that A and B share. */
enum {
	PARTS = 3,          /* h, m, l */
	WIDE = 32,          /* rows of a panel of A, columns of a panel of B */
	PART = 16 * WIDE,   /* words of a part of a unit of a panel */
	UNIT = PARTS * PART /* words of a unit */
};

/* The sign bit of a lane of *seen is set if the lane of x was NaN, infinite or would round to infinity. */
TSTATIC void bf16x3_note(words16 *seen, const words16 *x)
{
	*seen |= (*x & 0x7fffffffu) + 0x00808000u;
}

TSTATIC bool bf16x3_noted(const words16 *seen)
{
#ifdef __AVX512DQ__
	return _mm512_movepi32_mask((__m512i)*seen) != 0;
#else
	uint32_t any = 0;

	for (int i = 0; i < 16; i++)
		any |= (*seen)[i];
	return any >> 31;
#endif
}

/* part[h, m, l] = words of two elements each.  No lane may be one that bf16x3_note marks. */
TSTATIC void bf16x3_split(words16 part[PARTS], const words16 *even, const words16 *odd)
{
	words16 x = *even, y = *odd;

#pragma GCC unroll 2
	for (int p = 0; p < 2; p++) {
		words16 a = (x + 0x8000u) & 0xffff0000u, b = (y + 0x8000u) & 0xffff0000u;

		part[p] = a >> 16 | b;
		x = (words16)((floats16)x - (floats16)a);
		y = (words16)((floats16)y - (floats16)b);
	}
	part[2] = x >> 16 | (y & 0xffff0000u);
}

/* One element of any value: h is truncated, so that it is finite if x is; NaN and infinity have no other part. */
static void bf16x3_split_one(uint32_t part[PARTS], uint32_t x)
{
	float left, h;

	memset(part, 0, PARTS * sizeof(*part));
	part[0] = x & 0xffff0000u;
	if ((x & 0x7f800000u) == 0x7f800000u) {
		part[0] |= x & 0xffffu ? 0x00400000u : 0; /* a NaN stays one */
		return;
	}
	memcpy(&left, &x, 4);
	for (int p = 1; p < PARTS; p++) {
		memcpy(&h, &part[p - 1], 4);
		left -= h;
		memcpy(&part[p], &left, 4);
		part[p] &= 0xffff0000u;
	}
}

/* bf16x3_split for any values. */
static __attribute__((noinline, cold, unused)) void bf16x3_split_any(
	words16 part[PARTS], const words16 *even, const words16 *odd)
{
	for (int i = 0; i < 16; i++) {
		uint32_t a[PARTS], b[PARTS];

		bf16x3_split_one(a, (*even)[i]);
		bf16x3_split_one(b, (*odd)[i]);
		for (int p = 0; p < PARTS; p++)
			part[p][i] = a[p] >> 16 | b[p];
	}
}

/* Sets even and odd to the sums of the parts of 16 words at p, which are `part` words apart and hold two elements
 * each. */
TSTATIC void bf16x3_join(floats16 *even, floats16 *odd, const float *p, int64_t part)
{
	words16 w[PARTS];

	for (int i = 0; i < PARTS; i++)
		memcpy(&w[i], p + i * part, sizeof(w[i]));
	*even = ((floats16)(w[2] << 16) + (floats16)(w[1] << 16)) + (floats16)(w[0] << 16);
	*odd = ((floats16)(w[2] & 0xffff0000u) + (floats16)(w[1] & 0xffff0000u)) + (floats16)(w[0] & 0xffff0000u);
}

/* The units of 16 or 32 rows of A: unit u at p + off[u], or at p + u UNIT without off; its parts `part` words apart. */
struct bf16x3_rows {
	const float *p;
	const int32_t *off;
	int64_t part;
};

TSTATIC const float *bf16x3_unit(const struct bf16x3_rows *a, int64_t u)
{
	return a->p + (a->off ? a->off[u] : u * UNIT);
}

/* Computes a 16 x 16 tile with f32 FMAs, and replaces the elements of c that are not finite. */
static __attribute__((noinline, cold, unused)) void bf16x3_repair(
	const struct bf16x3_rows *a, const float *b, int64_t units, float *c, int64_t ldc)
{
	floats16 x[16][2], sum[16] = {0};

	for (int64_t u = 0; u < units; u++, b += UNIT) {
		for (int i = 0; i < 16; i++)
			bf16x3_join(&x[i][0], &x[i][1], bf16x3_unit(a, u) + i * 16, a->part);
		for (int k = 0; k < 16; k++) {
			floats16 even, odd;

			bf16x3_join(&even, &odd, b + k * WIDE, PART);
			for (int i = 0; i < 16; i++) {
				sum[i] += x[i][0][k] * even;
				sum[i] += x[i][1][k] * odd;
			}
		}
	}
	for (int i = 0; i < 16; i++)
		for (int j = 0; j < 16; j++)
			if (!__builtin_isfinite(c[i * ldc + j]))
				c[i * ldc + j] = sum[i][j];
}

/* Returns whether all of a 16 x 16 tile is finite. */
TSTATIC bool bf16x3_finite(const float *c, int64_t ldc)
{
	words16 seen = {0};

#pragma GCC unroll 16
	for (int i = 0; i < 16; i++) {
		floats16 v;

		memcpy(&v, c + i * ldc, sizeof(v));
		seen |= (words16)(v - v); /* not 0 if v is infinite or NaN */
	}
#ifdef __AVX512F__
	return !_mm512_test_epi32_mask((__m512i)seen, (__m512i)seen);
#else
	for (int i = 0; i < 16; i++)
		if (seen[i])
			return false;
	return true;
#endif
}

#define BF16X3_A(k)                                                                                                    \
	do {                                                                                                           \
		TILE_LOAD(4, x + (k)*a->part, SA);                                                                     \
		if (rows2)                                                                                             \
			TILE_LOAD(5, x + (k)*a->part + PART / 2, SA);                                                  \
	} while (0)
#define BF16X3_B(k)                                                                                                    \
	do {                                                                                                           \
		TILE_LOAD(6, b + (k)*PART, SB);                                                                        \
		if (cols2)                                                                                             \
			TILE_LOAD(7, b + (k)*PART + 16, SB);                                                           \
	} while (0)
#define BF16X3_MAC()                                                                                                   \
	do {                                                                                                           \
		TILE_MAC(0, 4, 6);                                                                                     \
		if (cols2)                                                                                             \
			TILE_MAC(1, 4, 7);                                                                             \
		if (rows2)                                                                                             \
			TILE_MAC(2, 5, 6);                                                                             \
		if (rows2 && cols2)                                                                                    \
			TILE_MAC(3, 5, 7);                                                                             \
	} while (0)

/* Stores the product of two panels in up to 2 x 2 tiles. */
TSTATIC void bf16x3_product(
	bool rows2, bool cols2, int64_t units, const struct bf16x3_rows *a, const float *b, float *c, int64_t ldc)
{
	enum { SA = 16 * 4, SB = WIDE * 4 };
	const size_t sc = (size_t)ldc * 4;

	TILE_ZERO(0);
	TILE_ZERO(1);
	TILE_ZERO(2);
	TILE_ZERO(3);
	for (int64_t u = 0; u < units; u++, b += UNIT) {
		const float *x = bf16x3_unit(a, u);

		BF16X3_A(2);
		BF16X3_B(0);
		BF16X3_MAC();
		BF16X3_A(1);
		BF16X3_MAC();
		BF16X3_B(1);
		BF16X3_MAC();
		BF16X3_A(0);
		BF16X3_MAC();
		BF16X3_B(2);
		BF16X3_MAC();
		BF16X3_B(0);
		BF16X3_MAC();
	}
	TILE_STORE(0, c, sc);
	if (cols2)
		TILE_STORE(1, c + 16, sc);
	if (rows2)
		TILE_STORE(2, c + 16 * ldc, sc);
	if (rows2 && cols2)
		TILE_STORE(3, c + 16 * ldc + 16, sc);
}

/* c = (add ? c : 0) + a b for `units` units, in up to 2 x 2 tiles of 16 x 16; rows2, cols2: the second ones exist. */
TSTATIC void bf16x3_multiply(bool rows2, bool cols2, int64_t units, const struct bf16x3_rows *a, const float *b,
	float *c, int64_t ldc, bool add)
{
	float sums[WIDE * WIDE] __attribute__((aligned(64))), *t = add ? sums : c;
	int64_t ld = add ? WIDE : ldc;

	bf16x3_product(rows2, cols2, units, a, b, t, ld);
	for (int i = 0; i <= 16 * rows2; i += 16)
		for (int j = 0; j <= 16 * cols2; j += 16)
			if (__builtin_expect(!bf16x3_finite(t + i * ld + j, ld), 0)) {
				struct bf16x3_rows half = {a->p + i * 16, a->off, a->part};

				bf16x3_repair(&half, b + j, units, t + i * ld + j, ld);
			}
	for (int i = 0; add && i < 16 + 16 * rows2; i++)
		for (int j = 0; j <= 16 * cols2; j += 16) {
			floats16 v, old;

			memcpy(&v, t + i * ld + j, sizeof(v));
			memcpy(&old, c + i * ldc + j, sizeof(old));
			v += old;
			memcpy(c + i * ldc + j, &v, sizeof(v));
		}
}

/* bf16x3_multiply for a panel of A. */
TSTATIC void bf16x3_tile(
	bool rows2, bool cols2, int64_t units, const float *a, const float *b, float *c, int64_t ldc, bool add)
{
	const struct bf16x3_rows rows = {a, NULL, PART};

	bf16x3_multiply(rows2, cols2, units, &rows, b, c, ldc, add);
}

#endif
