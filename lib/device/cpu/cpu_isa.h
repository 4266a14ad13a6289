/* cpu_isa.h - the instruction sets of this CPU, and the selection among them. */
#ifndef VFM_DEVICE_CPU_CPU_ISA_H
#define VFM_DEVICE_CPU_CPU_ISA_H

#include <stdbool.h>

#include "base/err.h"

/* Each level includes those before it. */
enum vfm_isa {
	VFM_ISA_BASE,   /* the default target of the compiler */
	VFM_ISA_AVX2,   /* with FMA and F16C */
	VFM_ISA_AVX512, /* F, BW, DQ, VL */
	VFM_ISA_AVX512_BF16,
	VFM_ISA_AMX, /* AMX tiles with bf16, if the kernel permits their use */
	VFM_ISA_N
};

enum vfm_isa vfm_isa_best(void); /* of this CPU */
/* Selects the best level, lowered by VFM_CPU_ISA.  VFM_EUSAGE: VFM_CPU_ISA is not a level, or this CPU lacks it. */
int vfm_isa_choose(enum vfm_isa *isa, struct vfm_err *err);
/* Returns whether vdpbf16ps multiplies faster than FMAs of f32.  Of Intel's CPUs, only Cooper Lake's does: it is half as
 * fast on Sapphire Rapids. */
bool vfm_isa_fast_pairs(void);
const char *vfm_isa_name(enum vfm_isa isa); /* "avx512_bf16" */

#endif
