/* ops_tiles.c - the bf16 GEMM of AMX on the model of the tile instructions. */
#define TILES_MODEL
#include "cpu/cpu_gemm_tile.h"

#include "ops_test.h"

const struct vfm_gemm_kern amx_model = GEMM_TILES;
