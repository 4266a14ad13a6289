/* The AMX kernels of attention on the model of the tile instructions, so that their arithmetic and packing is tested on
 * machines without AMX.  (The name of this file makes it compiled for AVX-512 BF16, which they use, too.) */
#define TILES_MODEL
#define ATTN_PAIR
#define ATTN_AMX
#define ATTN_ISA   attn_amx_model
#define ATTN_LEVEL VFM_ISA_AVX512_BF16
#include "device/cpu/cpu_attn_impl.h"
extern const struct attn_isa attn_amx_model;
#include "device/cpu/cpu_attn_core.h"

#define ATTN_KERNELS &attn_amx_model
#include "test_attn.c"
