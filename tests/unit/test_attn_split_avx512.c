/* The AMX kernels of attention in f32 on the model of the tile instructions.  (The name of this file makes it compiled
 * for AVX-512, which they use, too.) */
#define TILES_MODEL
#define ATTN_SPLIT
#define ATTN_AMX
#define ATTN_ISA   attn_split_model
#define ATTN_LEVEL VFM_ISA_AVX512
#include "device/cpu/cpu_attn_impl.h"
extern const struct attn_isa attn_split_model;
#include "device/cpu/cpu_attn_core.h"

#define ATTN_KERNELS &attn_split_model
#include "test_attn.c"
