/* cpu_attn_split.h - operands of attention as three bf16 (cpu_bf16x3.h), for f32 with AMX tiles.
 *
 * Operands are panels of UNITS units.  A word holds two elements along k: elements w and w + 16 of each 32 if k is the
 * head dim or the queries, neighbours if k is the keys.  All functions fill their units, with zeros past the end.
 */
#ifndef VFM_DEVICE_CPU_CPU_ATTN_SPLIT_H
#define VFM_DEVICE_CPU_CPU_ATTN_SPLIT_H

#include "device/cpu/cpu_attn_tile.h"

/* Returns the address of the 16 words of a unit of a row of an operand A; word is a multiple of 16. */
static inline float *at_a(float *dst, int row, int word)
{
	return dst + row / WIDE * PANEL + word / 16 * UNIT + row % WIDE * 16;
}

/* Returns the address of 16 lanes of a word of an operand B. */
static inline float *at_b(float *dst, int word, int lane)
{
	return dst + lane / WIDE * PANEL + word / 16 * UNIT + word % 16 * WIDE + lane % WIDE;
}

/* Stores the parts of even and odd. */
static inline __attribute__((always_inline)) void put_split(float *dst, vf even, vf odd)
{
	words16 x = (words16)even, y = (words16)odd, seen = {0}, w[PARTS];

	bf16x3_note(&seen, &x);
	bf16x3_note(&seen, &y);
	bf16x3_split(w, &x, &y);
	if (__builtin_expect(bf16x3_noted(&seen), 0))
		bf16x3_split_any(w, &x, &y);
	for (int p = 0; p < PARTS; p++)
		v_store(dst + p * PART, (vf)w[p]);
}

/* Stores lanes 16 v to 16 v + 15 (a) and the next 16 (b) of a row of P or dS as words of an operand A; v is even. */
static inline __attribute__((always_inline)) void put_row(float *dst, int row, int v, vf a, vf b)
{
	put_split(at_a(dst, row, v * VW / 2), a, b);
}

/* Stores steps j (a) and j + 1 (b) of the lanes of vector v as a word of an operand B; j is even. */
static inline __attribute__((always_inline)) void put_steps(float *dst, int j, int v, vf a, vf b)
{
	put_split(at_b(dst, j / 2, v * VW), a, b);
}

/* Appends zero words up to a whole unit. */
static void pad_steps(float *dst, int n, int nv)
{
	for (int i = n; i < (n + 15) / 16 * 16; i++)
		for (int v = 0; v < nv; v++)
			put_split(at_b(dst, i, v * VW), v_set(0), v_set(0));
}

/* Loads elements c to c + VW of a row of d; zeros beyond its end, and for an absent row. */
static inline vf load_part(const char *row, bool bf16, int c, int d)
{
	return row && c < d ? v_read(row + (bf16 ? 2 : 4) * c, bf16, d - c) : v_set(0);
}

/* Sets x to the transpose of elements c to c + VW of 16 rows: first, first + step, ...; zeros from row n on. */
static inline void load_turned(vf x[VW], char *const *rows, int first, int step, bool bf16, int n, int c, int d)
{
	for (int i = 0; i < VW; i++) {
		int r = first + i * step;

		x[i] = load_part(r < n ? rows[r] : NULL, bf16, c, d);
	}
	v_transpose(x);
}

/* Packs n rows as lanes, an operand B [words of d][lanes]; negated with `neg`. */
static void pack_lanes(float *dst, char *const *rows, bool bf16, int n, int d, bool neg)
{
	uint32_t sign = neg ? 0x80000000u : 0;

	for (int r = 0; r < n; r += VW)
		for (int c = 0; c < d; c += 2 * VW) {
			vf x[VW], y[VW];

			load_turned(x, rows, r, 1, bf16, n, c, d);
			load_turned(y, rows, r, 1, bf16, n, c + VW, d);
			for (int i = 0; i < VW; i++)
				put_split(at_b(dst, c / 2 + i, r), v_xor(x[i], sign), v_xor(y[i], sign));
		}
}

/* Packs n rows as an operand A [rows][words of d]. */
static void pack_rows(float *dst, char *const *rows, bool bf16, int n, int d)
{
	for (int i = 0; i < n; i++)
		for (int c = 0; c < d; c += 2 * VW)
			put_split(at_a(dst, i, c / 2), load_part(rows[i], bf16, c, d),
				load_part(rows[i], bf16, c + VW, d));
}

/* Packs n queries as steps, an operand B [words of queries][d lanes]. */
static void pack_queries(float *dst, char *const *rows, bool bf16, int n, int d)
{
	for (int i = 0; i < n; i += 2 * VW)
		for (int j = 0; j < VW; j++) {
			const char *even = i + j < n ? rows[i + j] : NULL;
			const char *odd = i + j + VW < n ? rows[i + j + VW] : NULL;

			for (int c = 0; c < d; c += VW)
				put_split(at_b(dst, i / 2 + j, c), load_part(even, bf16, c, d),
					load_part(odd, bf16, c, d));
		}
}

/* Packs n rows as an operand A [columns of d][words of rows]. */
static void pack_cols(float *dst, char *const *rows, bool bf16, int n, int d)
{
	for (int i = 0; i < n; i += 2 * VW)
		for (int c = 0; c < d; c += VW) {
			vf x[VW], y[VW];

			load_turned(x, rows, i, 2, bf16, n, c, d);
			load_turned(y, rows, i + 1, 2, bf16, n, c, d);
			for (int j = 0; j < VW; j++)
				put_split(at_a(dst, c + j, i / 2), x[j], y[j]);
		}
}

#endif
