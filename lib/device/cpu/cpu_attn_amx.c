/* cpu_attn_amx.c - attention kernels: bf16 with AMX tiles. */
#define ATTN_PAIR
#define ATTN_AMX
#define ATTN_ISA   vfm_attn_amx
#define ATTN_LEVEL VFM_ISA_AMX
#include "device/cpu/cpu_attn_core.h"
