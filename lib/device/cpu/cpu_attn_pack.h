/* cpu_attn_pack.h - operands of attention as f32 or as pairs of bf16. */
#ifndef VFM_DEVICE_CPU_CPU_ATTN_PACK_H
#define VFM_DEVICE_CPU_CPU_ATTN_PACK_H

#include "device/cpu/cpu_attn_tile.h"

/* Loads words c to c + VW of a row of d elements; zeros beyond its end. */
static inline vf load_words(const char *row, bool bf16, int c, int d)
{
#ifdef ATTN_PAIR
	(void)bf16;
	return v_read(row + 4 * c, false, d / 2 - c);
#else
	return v_read(row + (bf16 ? 2 : 4) * c, bf16, d - c);
#endif
}

/* dst[word of d][LD] = n rows as lanes; negated with `neg`. */
static void pack_lanes(float *dst, char *const *rows, bool bf16, int n, int d, bool neg)
{
	uint32_t sign = !neg ? 0 : PAIR ? 0x80008000u : 0x80000000u;

	for (int r = 0; r < n; r += VW)
		for (int c = 0; c < words(d); c += VW) {
			vf x[VW];

			for (int i = 0; i < VW; i++)
				x[i] = r + i < n ? load_words(rows[r + i], bf16, c, d) : v_set(0);
			v_transpose(x);
			for (int i = 0; i < VW; i++)
				v_store(dst + (c + i) * ATTN_LD + r, v_xor(x[i], sign));
		}
}

/* dst[row][LD] = words of d in order. */
static void pack_rows(float *dst, char *const *rows, bool bf16, int n, int d)
{
	for (int i = 0; i < n; i++)
		for (int c = 0; c < words(d); c += VW)
			v_store(dst + (int64_t)i * ATTN_LD + c, load_words(rows[i], bf16, c, d));
}

#ifdef ATTN_PAIR
/* Loads columns c to c + VW of two rows, one word for each pair; zeros for an absent second row. */
static inline vf zip_rows(const char *even, const char *odd, int c, int d)
{
	__m512i lo = _mm512_castps_si512(v_read(even + 2 * c, true, d - c));
	__m512i hi = odd ? _mm512_castps_si512(v_read(odd + 2 * c, true, d - c)) : _mm512_setzero_si512();

	return _mm512_castsi512_ps(_mm512_or_si512(_mm512_srli_epi32(lo, 16), hi));
}
#endif

/* dst[step][LD] = d words in order; with pairs a word holds the same column of two rows. */
static void pack_steps(float *dst, char *const *rows, bool bf16, int n, int d)
{
#ifdef ATTN_PAIR
	for (int i = 0; i < n; i += 2)
		for (int c = 0; c < d; c += VW)
			v_store(dst + (int64_t)(i / 2) * ATTN_LD + c,
				zip_rows(rows[i], i + 1 < n ? rows[i + 1] : NULL, c, d));
	(void)bf16;
#else
	pack_rows(dst, rows, bf16, n, d);
#endif
}

/* Packs n rows as steps: the operand of a product BY_COL. */
static void pack_cols(float *dst, char *const *rows, bool bf16, int n, int d)
{
#ifdef ATTN_AMX
	(void)bf16;
	for (int i = 0; i < words(n); i += VW)
		for (int c = 0; c < d; c += VW) {
			vf x[VW];

			for (int j = 0; j < VW; j++) {
				int r = 2 * (i + j);

				x[j] = r < n ? zip_rows(rows[r], r + 1 < n ? rows[r + 1] : NULL, c, d) : v_set(0);
			}
			v_transpose(x);
			for (int j = 0; j < VW; j++)
				v_store(dst + (c + j) * ATTN_LD + i, x[j]);
		}
#else
	pack_steps(dst, rows, bf16, n, d);
#endif
}

/* Appends zero steps up to the multiple that products read. */
static void pad_words(float *p, int n, int lanes)
{
	for (int i = n; i < (n + KWORDS - 1) / KWORDS * KWORDS; i++)
		for (int j = 0; j < lanes; j += VW)
			v_store(p + i * ATTN_LD + j, v_set(0));
}

/* Packs n queries as steps, and zeros up to a whole vector, because P is 1 there. */
static void pack_queries(float *dst, char *const *rows, bool bf16, int n, int d)
{
	const int lanes = vecs(n) * VW;

	pack_steps(dst, rows, bf16, n, d);
	for (int i = words(n); i < words(lanes); i++)
		for (int j = 0; j < d; j += VW)
			v_store(dst + i * ATTN_LD + j, v_set(0));
	pad_words(dst, words(lanes), d);
}

#ifdef ATTN_PAIR
/* Stores lanes 16 v to 16 v + 15 (a) and the next 16 (b) of a row of P or dS as 16 words; v is even. */
static inline void put_row(float *dst, int row, int v, vf a, vf b)
{
	v_store(dst + row * ATTN_LD + v * VW / 2, _mm512_castsi512_ps((__m512i)_mm512_cvtne2ps_pbh(b, a)));
}

/* Stores steps j (a) and j + 1 (b) of the lanes of vector v as a word; j is even. */
static inline void put_steps(float *dst, int j, int v, vf a, vf b)
{
	const __m512i zip = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
		21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);

	v_store(dst + j / 2 * ATTN_LD + v * VW,
		_mm512_castsi512_ps(_mm512_permutexvar_epi16(zip, (__m512i)_mm512_cvtne2ps_pbh(b, a))));
}
#endif

/* Appends zero steps to those of put_steps. */
static void pad_steps(float *p, int n, int nv)
{
	pad_words(p, n, nv * VW);
}

#endif
