/* cpu_attn_base.c - attention kernels: f32 on any CPU. */
#define ATTN_ISA   vfm_attn_base
#define ATTN_LEVEL VFM_ISA_BASE
#include "device/cpu/cpu_attn_core.h"
