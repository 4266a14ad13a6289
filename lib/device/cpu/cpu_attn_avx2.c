/* cpu_attn_avx2.c - attention kernels: f32 with AVX2 and FMA. */
#define ATTN_ISA   vfm_attn_avx2
#define ATTN_LEVEL VFM_ISA_AVX2
#include "device/cpu/cpu_attn_core.h"
