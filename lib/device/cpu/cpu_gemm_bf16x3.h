/* cpu_gemm_bf16x3.h - packing and the tile of the f32 GEMM with AMX: its elements are split into three bf16
 * (cpu_bf16x3.h).  One source for the CPU and for the model of the tile instructions (cpu_tiles.h).
 *
 * Word w of a unit holds its elements w and w + 16, so packing needs only transposes.  A unit of a 32 x 32 tile has 24
 * products of 16 cycles and 14 KiB of loads from L2.  A chunk of K is as long as possible while the panels of a block
 * fit L2.
 */
#ifndef VFM_DEVICE_CPU_CPU_GEMM_BF16X3_H
#define VFM_DEVICE_CPU_CPU_GEMM_BF16X3_H

#include "device/cpu/cpu_bf16x3.h"
#include "device/cpu/cpu_gemm_tile.h"

/* x[i] = 16 elements of row r0 + i from element k on; zeros for missing ones. */
TSTATIC void load_row_floats(words16 x[16], const struct vfm_mat *m, int64_t r0, int64_t rows, int64_t k, int64_t left)
{
	const float *p = (const float *)m->p + r0 * m->ld + k;

	if (rows >= 16 && left >= 16) {
#pragma GCC unroll 16
		for (int i = 0; i < 16; i++)
			memcpy(&x[i], p + i * m->ld, 64);
		return;
	}
	memset(x, 0, 16 * sizeof *x);
	for (int64_t i = 0; i < rows && i < 16 && left > 0; i++)
		memcpy(&x[i], p + i * m->ld, (size_t)(left < 16 ? left : 16) * 4);
}

/* x[i] = element k + i of rows r0 to r0 + 15 of a k-major operand; zeros for missing ones. */
TSTATIC void load_col_floats(words16 x[16], const struct vfm_mat *m, int64_t r0, int64_t rows, int64_t k, int64_t left)
{
	const struct vfm_mat turned = {m->p, m->ld, m->bf, !m->kmajor};

	load_row_floats(x, &turned, k, left, r0, rows);
}

/* Splits 16 pairs of vectors, and stores part p of pair i at dst + p PART + i ld. */
TSTATIC void store_parts(float *dst, int ld, const words16 x[2][16])
{
	words16 seen = {0}, part[PARTS];

#pragma GCC unroll 16
	for (int i = 0; i < 16; i++) {
		bf16x3_note(&seen, &x[0][i]);
		bf16x3_note(&seen, &x[1][i]);
		bf16x3_split(part, &x[0][i], &x[1][i]);
		for (int p = 0; p < PARTS; p++)
			memcpy(dst + p * PART + i * ld, &part[p], 64);
	}
	for (int i = 0; bf16x3_noted(&seen) && i < 16; i++) {
		bf16x3_split_any(part, &x[0][i], &x[1][i]);
		for (int p = 0; p < PARTS; p++)
			memcpy(dst + p * PART + i * ld, &part[p], 64);
	}
}

TSTATIC void pack_unit(
	float *dst, bool by_row, const struct vfm_mat *m, int64_t r0, int64_t rows, int64_t k, int64_t k1, float *sum)
{
	words16 x[2][16];
	floats16 acc = {0};

	for (int h = 0; h < 2; h++) {
		bool transpose = m->kmajor == by_row;

		if (m->kmajor)
			load_col_floats(x[h], m, r0, rows, k + 16 * h, k1 - k - 16 * h);
		else
			load_row_floats(x[h], m, r0, rows, k + 16 * h, k1 - k - 16 * h);
		if (sum && m->kmajor)
			for (int u = 0; u < 16; u++)
				acc += (floats16)x[h][u];
		if (transpose)
			transpose_words(x[h]);
		if (sum && !m->kmajor) {
			words16 t[16];

			memcpy(t, x[h], sizeof t);
			if (!transpose)
				transpose_words(t);
			for (int u = 0; u < 16; u++)
				acc += (floats16)t[u];
		}
	}
	for (int64_t i = 0; sum && i < 16 && i < rows; i++)
		sum[i] += acc[i];
	store_parts(dst, by_row ? 16 : WIDE, x);
}

static void pack_split(float *dst, bool of_a, int64_t stride, const struct vfm_mat *m, int64_t r0, int64_t n,
	int64_t k0, int64_t k1, float *sum)
{
	if (of_a)
		pack_panels(pack_unit, UNIT, dst, true, stride, m, r0, n, k0, k1, sum);
	else
		pack_panels(pack_unit, UNIT, dst, false, stride, m, r0, n, k0, k1, sum);
}

static void tile_split(const struct vfm_panel_product *p)
{
	bf16x3_tile(true, true, p->units, p->a, p->b, p->c, p->ldc, !p->first);
}

TSTATIC void split_line(float *dst, int64_t part, const float *p, size_t bytes)
{
	words16 w[2] = {{0}}, seen = {0}, to[PARTS];

	memcpy(w, p, bytes);
	bf16x3_note(&seen, &w[0]);
	bf16x3_note(&seen, &w[1]);
	if (__builtin_expect(bf16x3_noted(&seen), 0))
		bf16x3_split_any(to, &w[0], &w[1]);
	else
		bf16x3_split(to, &w[0], &w[1]);
	for (int k = 0; k < PARTS; k++)
		memcpy(dst + k * part, &to[k], 64);
}

static void lines_split(const struct vfm_patch_lines *x)
{
	const float *p = x->p;
	float *dst = x->dst;

	for (int64_t i = 0; i < x->n; i++, dst += x->step, p += x->pitch) {
		float *d = dst;
		int64_t c = 0;

		for (; c + 32 <= x->c; c += 32, d += x->line)
			split_line(d, x->part, p + c, 128);
		if (c < x->c)
			split_line(d, x->part, p + c, (size_t)(x->c - c) * 4);
	}
}

static void conv_split(
	const struct vfm_conv_units *u, const float *a, const float *b, float *tile, int64_t cols, bool first)
{
	const struct bf16x3_rows rows = {a, u->off, u->part};

	if (cols > 16)
		bf16x3_multiply(true, true, u->n, &rows, b, tile, WIDE, !first);
	else
		bf16x3_multiply(true, false, u->n, &rows, b, tile, WIDE, !first);
}

/* Uses the epilogue of the table of kernels. */
#define GEMM_BF16X3                                                                                                    \
	{                                                                                                              \
		.mr = WIDE, .nr = WIDE, .ku = 32, .words = PARTS * 16, .kc = 12, .kc_whole = 16, .mc = 320,            \
		.held_rows = 1024, .pack = pack_split, .tile = tile_split, .lines = lines_split, .conv = conv_split,   \
		.begin = tiles_begin, .end = tiles_end                                                                 \
	}
#endif
