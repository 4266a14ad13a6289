/* cpu_attn_avx512.c - attention kernels: f32 with AVX-512. */
#define ATTN_ISA vfm_attn_avx512
#define ATTN_NAME "avx512"
#include "cpu/cpu_attn_core.h"
