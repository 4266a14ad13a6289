/* cpu_attn_f32_amx.c - attention kernels: f32 with AMX tiles. */
#define ATTN_SPLIT
#define ATTN_AMX
#define ATTN_ISA   vfm_attn_amx_f32
#define ATTN_LEVEL VFM_ISA_AMX
#include "device/cpu/cpu_attn_core.h"
