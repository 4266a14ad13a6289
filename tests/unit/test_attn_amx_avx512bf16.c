/* The AMX kernels of attention on a model of the tile instructions in C, so that their arithmetic and packing is
 * tested on machines without AMX.  (The name of this file makes it compiled for AVX-512 BF16, which they use, too.) */
#include <stdint.h>
#include <string.h>

/* Eight tiles of 16 rows of 64 bytes; what no load or product has set is NaN. */
static _Thread_local uint32_t amx_tile[8][16][16];

static float amx_half(uint32_t word, int hi)
{
	uint32_t u = hi ? word & 0xffff0000u : word << 16;
	float f;

	memcpy(&f, &u, 4);
	return f;
}

static void amx_load(int t, const void *p, size_t stride)
{
	for (size_t r = 0; r < 16; r++)
		memcpy(amx_tile[t][r], (const char *)p + r * stride, 64);
}

static void amx_store(int t, void *p, size_t stride)
{
	for (size_t r = 0; r < 16; r++)
		memcpy((char *)p + r * stride, amx_tile[t][r], 64);
}

/* TDPBF16PS (Intel SDM): c[m][n] += a[m][k] b[k][n], words being pairs over k */
static void amx_mac(int c, int a, int b)
{
	for (int m = 0; m < 16; m++)
		for (int k = 0; k < 16; k++) {
			float lo = amx_half(amx_tile[a][m][k], 0), hi = amx_half(amx_tile[a][m][k], 1), row[16];

			memcpy(row, amx_tile[c][m], 64);
			for (int n = 0; n < 16; n++)
				row[n] += lo * amx_half(amx_tile[b][k][n], 0) + hi * amx_half(amx_tile[b][k][n], 1);
			memcpy(amx_tile[c][m], row, 64);
		}
}

#define AMX_CONFIG(c) ((void)(c), memset(amx_tile, 0xff, sizeof amx_tile))
#define AMX_RELEASE() ((void)0)
#define AMX_ZERO(t)   memset(amx_tile[t], 0, sizeof amx_tile[t])
#define AMX_LOAD      amx_load
#define AMX_STORE     amx_store
#define AMX_MAC       amx_mac

#define ATTN_PAIR
#define ATTN_AMX
#define ATTN_ISA   attn_amx_model
#define ATTN_LEVEL VFM_ISA_AVX512_BF16
extern const struct attn_isa attn_amx_model;
#include "cpu/cpu_attn_core.h"

#define ATTN_KERNELS &attn_amx_model
#include "test_attn.c"
