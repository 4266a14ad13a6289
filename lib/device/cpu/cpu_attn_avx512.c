/* cpu_attn_avx512.c - attention kernels: f32 with AVX-512. */
#define ATTN_ISA   vfm_attn_avx512
#define ATTN_LEVEL VFM_ISA_AVX512
#include "device/cpu/cpu_attn_core.h"
