/* cpu.h - the CPU device: the reference that is always built.
 *
 * GEMM comes from oneDNN (cpu_gemm.c alone includes its header), the rest is our
 * own, vectorised for AVX2, AVX-512, AVX-512 bf16 and AMX, chosen at run time
 * (VFM_CPU_ISA=avx2|avx512|avx512_bf16|amx lowers the choice, for tests).  bf16 needs
 * avx512_bf16 or amx for its speed; elsewhere bf16 operands are computed in f32.
 */
#ifndef VFM_CPU_CPU_H
#define VFM_CPU_CPU_H

#include "dev/dev.h"

struct vfm_dev *vfm_cpu_open(struct vfm_err *err); /* freed by dev->t->dev_free */

#endif
