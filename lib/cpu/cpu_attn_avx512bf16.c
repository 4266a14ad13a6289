/* cpu_attn_avx512bf16.c - attention kernels: bf16 with AVX-512 BF16 (vdpbf16ps). */
#define ATTN_PAIR
#define ATTN_ISA vfm_attn_avx512bf16
#define ATTN_NAME "avx512_bf16"
#include "cpu/cpu_attn_core.h"
