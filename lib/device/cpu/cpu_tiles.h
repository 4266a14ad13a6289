/* cpu_tiles.h - AMX tiles: eight registers of 16 rows of 64 bytes, and their product of bf16 pairs (Intel SDM,
 * TDPBF16PS): c[m][n] += sum over k of a[m][k] b[k][n], where a word of a and b holds two neighbouring bf16.
 *
 * tiles_begin and tiles_end set up and release the state of the calling thread.  TILES_MODEL replaces the instructions
 * by a model in plain C, so that tests run on any machine.  The model aborts if tiles are used outside begin and end;
 * registers that were not set hold NaN.
 */
#ifndef VFM_DEVICE_CPU_CPU_TILES_H
#define VFM_DEVICE_CPU_CPU_TILES_H

#include <stddef.h>
#include <stdint.h>

#ifdef TILES_MODEL
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local struct {
	bool on;
	uint32_t tile[8][16][16];
} tiles_state;

static void tiles_check(void)
{
	if (!tiles_state.on) {
		fprintf(stderr, "model of AMX: a tile is used without a configuration\n");
		abort();
	}
}

static void tiles_load(int t, const void *p, size_t stride)
{
	tiles_check();
	for (size_t r = 0; r < 16; r++)
		memcpy(tiles_state.tile[t][r], (const char *)p + r * stride, 64);
}

static void tiles_store(int t, void *p, size_t stride)
{
	tiles_check();
	for (size_t r = 0; r < 16; r++)
		memcpy((char *)p + r * stride, tiles_state.tile[t][r], 64);
}

static void tiles_zero(int t)
{
	tiles_check();
	memset(tiles_state.tile[t], 0, sizeof tiles_state.tile[t]);
}

/* Returns an element of a word; subnormals are zero. */
static float tiles_element(uint32_t w, bool odd)
{
	uint32_t bits = odd ? w & 0xffff0000u : w << 16;
	float x;

	memcpy(&x, &bits, 4);
	return bits & 0x7f800000u ? x : 0;
}

/* Sums even and odd elements separately, from zero; products of bf16 are exact.  Flushes only subnormal inputs and
 * results, not partial sums. */
static void tiles_mac(int c, int a, int b)
{
	float even[16][16], odd[16][16];

	tiles_check();
	for (int k = 0; k < 16; k++)
		for (int n = 0; n < 16; n++) {
			even[k][n] = tiles_element(tiles_state.tile[b][k][n], false);
			odd[k][n] = tiles_element(tiles_state.tile[b][k][n], true);
		}
	for (int m = 0; m < 16; m++) {
		float row[16], sum[2][16] = {{0}};

		memcpy(row, tiles_state.tile[c][m], 64);
		for (int k = 0; k < 16; k++) {
			uint32_t w = tiles_state.tile[a][m][k];
			float x = tiles_element(w, false), y = tiles_element(w, true);

			for (int n = 0; n < 16; n++) {
				sum[0][n] += x * even[k][n];
				sum[1][n] += y * odd[k][n];
			}
		}
		for (int n = 0; n < 16; n++) {
			row[n] += sum[0][n] + sum[1][n];
			if (row[n] < 0x1p-126f && row[n] > -0x1p-126f)
				row[n] = 0;
		}
		memcpy(tiles_state.tile[c][m], row, 64);
	}
}

#define TILE_LOAD(t, p, stride)  tiles_load(t, p, stride)
#define TILE_STORE(t, p, stride) tiles_store(t, p, stride)
#define TILE_ZERO(t)             tiles_zero(t)
#define TILE_MAC(c, a, b)        tiles_mac(c, a, b)

static void tiles_begin(void)
{
	memset(tiles_state.tile, 0xff, sizeof tiles_state.tile);
	tiles_state.on = true;
}

static void tiles_end(void)
{
	tiles_state.on = false;
}
#else
#include <immintrin.h>

/* Macros, because the register numbers are immediates.  The compiler does not know that _tile_loadd reads memory; the
 * barrier keeps it from moving stores after the load. */
#define TILE_LOAD(t, p, stride)                                                                                        \
	do {                                                                                                           \
		__asm__ volatile("" : : : "memory");                                                                   \
		_tile_loadd(t, p, stride);                                                                             \
	} while (0)
#define TILE_STORE(t, p, stride) _tile_stored(t, p, stride)
#define TILE_ZERO(t)             _tile_zero(t)
#define TILE_MAC(c, a, b)        _tile_dpbf16ps(c, a, b)

static void tiles_begin(void)
{
	struct {
		uint8_t palette, start_row, reserved[14];
		uint16_t colsb[16];
		uint8_t rows[16];
	} cfg = {.palette = 1};

	for (int i = 0; i < 8; i++) {
		cfg.colsb[i] = 64;
		cfg.rows[i] = 16;
	}
	/* GCC 12 believes that _tile_loadconfig reads 8 bytes, and would not store the others. */
	__asm__ volatile("" : : "m"(cfg));
	_tile_loadconfig(&cfg);
}

static void tiles_end(void)
{
	_tile_release();
}
#endif

#endif
