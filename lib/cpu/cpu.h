/* cpu.h - the CPU device: the reference that is always built.
 *
 * The kernels are our own, one source compiled for the compiler's default, AVX2, AVX-512 and
 * AVX-512 bf16, and chosen at run time.  oneDNN multiplies bf16 matrices where there is AMX
 * (only cpu_gemm_dnnl.c knows it).  bf16 needs avx512_bf16 or AMX for its speed; elsewhere
 * bf16 operands are computed in f32.
 *
 * Environment: VFM_CPU_ISA=base|avx2|avx512|avx512_bf16|amx lowers the choice, for tests;
 * VFM_CPU_GEMM=own|dnnl sends all matrix products one way, to compare.
 *
 * Results are the same bits from run to run and, but for oneDNN's, on any number of threads.
 */
#ifndef VFM_CPU_CPU_H
#define VFM_CPU_CPU_H

#include "dev/dev.h"

struct vfm_dev *vfm_cpu_open(struct vfm_err *err); /* freed by dev->t->dev_free */

#endif
