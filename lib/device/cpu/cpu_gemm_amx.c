/* The GEMMs with AMX tiles (flags: Makefile, ISA_amx). */
#ifdef __x86_64__
#include "device/cpu/cpu_gemm_bf16x3.h"
#include "device/cpu/cpu_gemm_tile.h"

const struct vfm_gemm_kern vfm_gemm_amx_f32 = GEMM_BF16X3;
const struct vfm_gemm_kern vfm_gemm_amx = GEMM_TILES;
#endif
