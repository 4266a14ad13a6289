/* cpu_gemm_tile.h - packing and the register tile of the bf16 GEMM with AMX.  One source for the CPU and for the model
 * of the tile instructions (cpu_tiles.h).
 *
 * A word is two bf16 that are neighbours along K; a step is 16 words, the depth of a tile.
 *   panel of A   per step, 32 rows of 16 words, i.e. two tiles
 *   panel of B   words of K in rows of 32 columns, so two tiles per step
 * Words past the end of K and rows past the end of a panel are zero.
 *
 * The register tile is 32 x 32: four accumulators, two tiles of A and two of B.  The driver keeps a chunk of a panel of
 * B in L1 and streams panels of A from L2, where the prefetchers of the CPU follow them.  Both chunks and a tile of C
 * must fit L1: 2 x 128 kc + 4096 bytes <= 48 KiB, kc <= 176 words.
 */
#ifndef VFM_DEVICE_CPU_CPU_GEMM_TILE_H
#define VFM_DEVICE_CPU_CPU_GEMM_TILE_H

#include "device/cpu/cpu_bf16x3.h"
#include "device/cpu/cpu_kern.h"

enum {
	TROWS = 32,  /* rows of a panel of A, columns of a panel of B */
	STEP = 16,   /* words of a step */
	TWORDS = 512 /* words of a step of a panel */
};

typedef uint16_t halves16 __attribute__((vector_size(32)));

/* Transposes 16 x 16 words. */
TSTATIC void transpose_words(words16 w[16])
{
#define SHUF(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
	words16 x[16];

#pragma GCC unroll 8
	for (int i = 0; i < 16; i += 2) {
		x[i] = SHUF(w[i], w[i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
		x[i + 1] = SHUF(w[i], w[i + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
	}
#pragma GCC unroll 4
	for (int i = 0; i < 16; i += 4)
#pragma GCC unroll 2
		for (int j = 0; j < 2; j++) {
			words16 a = x[i + j], b = x[i + 2 + j];

			w[i + 2 * j] = SHUF(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
			w[i + 2 * j + 1] = SHUF(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
		}
		/* w[4 g + c] holds columns c, c + 4, c + 8, c + 12 of rows 4 g to 4 g + 3 */
#pragma GCC unroll 4
	for (int c = 0; c < 4; c++) {
		words16 a = SHUF(w[c], w[4 + c], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
		words16 b = SHUF(w[c], w[4 + c], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
		words16 e = SHUF(w[8 + c], w[12 + c], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
		words16 f = SHUF(w[8 + c], w[12 + c], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);

		x[c] = SHUF(a, e, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
		x[c + 4] = SHUF(b, f, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
		x[c + 8] = SHUF(a, e, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
		x[c + 12] = SHUF(b, f, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
	}
#undef SHUF
	memcpy(w, x, sizeof x);
}

/* w[i] = the words of row r0 + i from element k on, of an operand with rows contiguous along K. */
TSTATIC void load_row_words(words16 w[16], const struct vfm_mat *m, int64_t r0, int64_t rows, int64_t k, int64_t left)
{
	const uint16_t *p = (const uint16_t *)m->p + r0 * m->ld + k;

	if (rows >= 16 && left >= 2 * STEP) {
#pragma GCC unroll 16
		for (int i = 0; i < 16; i++)
			memcpy(&w[i], p + i * m->ld, 64);
		return;
	}
	memset(w, 0, 16 * sizeof *w);
	for (int64_t i = 0; i < rows && i < 16; i++)
		memcpy(&w[i], p + i * m->ld, (size_t)(left < 2 * STEP ? left : 2 * STEP) * 2);
}

TSTATIC void zip_halves(words16 *w, const halves16 *lo, const halves16 *hi)
{
#ifdef __AVX512F__
	*w = (words16)_mm512_or_si512(
		_mm512_cvtepu16_epi32((__m256i)*lo), _mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)*hi), 16));
#else
	*w = __builtin_convertvector(*lo, words16) | __builtin_convertvector(*hi, words16) << 16;
#endif
}

/* w[u] = word u from element k on of rows r0 to r0 + 15, of a k-major operand. */
TSTATIC void load_col_words(words16 w[16], const struct vfm_mat *m, int64_t r0, int64_t rows, int64_t k, int64_t left)
{
	const uint16_t *p = (const uint16_t *)m->p + k * m->ld + r0;
	size_t n = (size_t)(rows < 16 ? rows : 16) * 2;
	halves16 lo, hi;

	if (rows >= 16 && left >= 2 * STEP) {
#pragma GCC unroll 16
		for (int u = 0; u < 16; u++, p += 2 * m->ld) {
			memcpy(&lo, p, 32);
			memcpy(&hi, p + m->ld, 32);
			zip_halves(&w[u], &lo, &hi);
		}
		return;
	}
	memset(w, 0, 16 * sizeof *w);
	for (int u = 0; 2 * u < left && u < 16; u++, p += 2 * m->ld) {
		lo = hi = (halves16){0};
		memcpy(&lo, p, n);
		if (2 * u + 1 < left)
			memcpy(&hi, p + m->ld, n);
		zip_halves(&w[u], &lo, &hi);
	}
}

/* sum[i] += both halves of lane i of w, for the first n lanes. */
TSTATIC void add_word_sums(float *sum, const words16 w[16], int64_t n)
{
	floats16 acc = {0};

	for (int u = 0; u < 16; u++)
		acc += (floats16)(w[u] << 16) + (floats16)(w[u] & 0xffff0000u);
	for (int64_t i = 0; i < 16 && i < n; i++)
		sum[i] += acc[i];
}

/* Packs 16 rows of a unit of 32 elements.  by_row: dst receives rows of 16 words (A); else words of 16 rows (B). */
typedef void pack_unit_fn(
	float *dst, bool by_row, const struct vfm_mat *m, int64_t r0, int64_t rows, int64_t k, int64_t k1, float *sum);

TSTATIC void pack_step(
	float *dst, bool by_row, const struct vfm_mat *m, int64_t r0, int64_t rows, int64_t k, int64_t k1, float *sum)
{
	words16 w[16];

	if (rows <= 0)
		memset(w, 0, sizeof w);
	else if (m->kmajor)
		load_col_words(w, m, r0, rows, k, k1 - k);
	else
		load_row_words(w, m, r0, rows, k, k1 - k);
	if (sum && rows > 0) {
		words16 t[16];

		memcpy(t, w, sizeof t);
		if (!m->kmajor)
			transpose_words(t);
		add_word_sums(sum, t, rows);
	}
	if (m->kmajor == by_row && rows > 0)
		transpose_words(w);
#pragma GCC unroll 16
	for (int i = 0; i < 16; i++)
		memcpy(dst + i * (by_row ? STEP : TROWS), &w[i], 64);
}

/* Packs panels of units of `words` floats with `pack`.  Operands are read in the order of memory: k-major ones unit by
 * unit across all panels, others panel by panel. */
TSTATIC void pack_panels(pack_unit_fn *pack, int words, float *dst, bool by_row, int64_t stride,
	const struct vfm_mat *m, int64_t r0, int64_t n, int64_t k0, int64_t k1, float *sum)
{
	int64_t units = (k1 - k0 + 2 * STEP - 1) / (2 * STEP), panels = (n + TROWS - 1) / TROWS;

	for (int64_t i = 0; i < units * panels; i++) {
		int64_t u = m->kmajor ? i / panels : i % units, p = m->kmajor ? i % panels : i / units;
		int64_t r = p * TROWS, k = k0 + u * 2 * STEP;
		float *d = dst + p * stride + u * words;

		pack(d, by_row, m, r0 + r, n - r, k, k1, sum ? sum + r : NULL);
		pack(d + (by_row ? TWORDS / 2 : STEP), by_row, m, r0 + r + 16, n - r - 16, k, k1,
			sum ? sum + r + 16 : NULL);
	}
}

static void pack_tile(float *dst, bool of_a, int64_t stride, const struct vfm_mat *m, int64_t r0, int64_t n, int64_t k0,
	int64_t k1, float *sum)
{
	if (of_a)
		pack_panels(pack_step, TWORDS, dst, true, stride, m, r0, n, k0, k1, sum);
	else
		pack_panels(pack_step, TWORDS, dst, false, stride, m, r0, n, k0, k1, sum);
}

/* The epilogue of the tile before runs between the products, which leave the vector units idle. */
static void tile_32x32(const struct vfm_panel_product *p)
{
	enum { SA = STEP * 4, SB = TROWS * 4 };
	const float *a = p->a, *b = p->b;
	float *low = p->c + 16 * p->ldc;
	size_t row = (size_t)p->ldc * 4;
	int64_t part = (p->tail->rows + p->units - 1) / p->units;

	if (p->first) {
		TILE_ZERO(0);
		TILE_ZERO(1);
		TILE_ZERO(2);
		TILE_ZERO(3);
	} else {
		TILE_LOAD(0, p->c, row);
		TILE_LOAD(1, p->c + 16, row);
		TILE_LOAD(2, low, row);
		TILE_LOAD(3, low + 16, row);
	}
	for (int64_t u = 0; u < p->units; u++, a += TWORDS, b += TWORDS) {
		TILE_LOAD(4, a, SA);
		TILE_LOAD(6, b, SB);
		TILE_MAC(0, 4, 6);
		TILE_LOAD(7, b + 16, SB);
		TILE_MAC(1, 4, 7);
		TILE_LOAD(5, a + TWORDS / 2, SA);
		TILE_MAC(2, 5, 6);
		TILE_MAC(3, 5, 7);
		vfm_tail_run(p->tail, part);
	}
	TILE_STORE(0, p->c, row);
	TILE_STORE(1, p->c + 16, row);
	TILE_STORE(2, low, row);
	TILE_STORE(3, low + 16, row);
}

static void lines_tile(const struct vfm_patch_lines *x)
{
	const uint16_t *p = x->p;
	float *dst = x->dst;

	for (int64_t i = 0; i < x->n; i++, dst += x->step, p += x->pitch) {
		float *d = dst;
		int64_t c = 0;
		words16 w;

		for (; c + 2 * STEP <= x->c; c += 2 * STEP, d += x->line) {
			memcpy(&w, p + c, sizeof(w));
			memcpy(d, &w, sizeof(w));
		}
		if (c < x->c) {
			w = (words16){0};
			memcpy(&w, p + c, (size_t)(x->c - c) * 2);
			memcpy(d, &w, sizeof(w));
		}
	}
}

TSTATIC void conv_tile_as(
	bool cols2, const struct vfm_conv_units *u, const float *a, const float *b, float *tile, bool first)
{
	enum { SA = STEP * 4, SB = TROWS * 4 };
	float *low = tile + 16 * TROWS;

	TILE_ZERO(0);
	TILE_ZERO(1);
	TILE_ZERO(2);
	TILE_ZERO(3);
	if (!first) {
		TILE_LOAD(0, tile, SB);
		TILE_LOAD(2, low, SB);
		if (cols2) {
			TILE_LOAD(1, tile + 16, SB);
			TILE_LOAD(3, low + 16, SB);
		}
	}
	for (int64_t i = 0; i < u->n; i++, b += TWORDS) {
		const float *x = a + u->off[i];

		TILE_LOAD(4, x, SA);
		TILE_LOAD(6, b, SB);
		TILE_MAC(0, 4, 6);
		TILE_LOAD(5, x + TWORDS / 2, SA);
		TILE_MAC(2, 5, 6);
		if (cols2) {
			TILE_LOAD(7, b + 16, SB);
			TILE_MAC(1, 4, 7);
			TILE_MAC(3, 5, 7);
		}
	}
	TILE_STORE(0, tile, SB);
	TILE_STORE(2, low, SB);
	if (cols2) {
		TILE_STORE(1, tile + 16, SB);
		TILE_STORE(3, low + 16, SB);
	}
}

static void conv_tile(
	const struct vfm_conv_units *u, const float *a, const float *b, float *tile, int64_t cols, bool first)
{
	if (cols > 16)
		conv_tile_as(true, u, a, b, tile, first);
	else
		conv_tile_as(false, u, a, b, tile, first);
}

/* Uses the epilogue of the table of kernels. */
#define GEMM_TILES                                                                                                     \
	{                                                                                                              \
		.mr = TROWS, .nr = TROWS, .ku = 2 * STEP, .words = STEP, .kc = 10, .kc_whole = 12, .mc = 320,          \
		.held_rows = 4096, .pack = pack_tile, .tile = tile_32x32, .lines = lines_tile, .conv = conv_tile,      \
		.begin = tiles_begin, .end = tiles_end                                                                 \
	}

#endif
