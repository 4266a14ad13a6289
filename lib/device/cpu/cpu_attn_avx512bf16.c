/* cpu_attn_avx512bf16.c - attention kernels: bf16 with AVX-512 BF16 (vdpbf16ps). */
#define ATTN_PAIR
#define ATTN_ISA   vfm_attn_avx512bf16
#define ATTN_LEVEL VFM_ISA_AVX512_BF16
#include "device/cpu/cpu_attn_core.h"
