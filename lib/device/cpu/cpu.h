/* cpu.h - the CPU device: the reference backend, which is always built.  Results are bitwise reproducible, and do not
 * depend on the number of threads.
 *
 * Its kernels are one source compiled for the compiler's default, AVX2, AVX-512 and AVX-512 bf16, and selected at run
 * time.  With AMX, GEMM and attention use tiles: for bf16 (cpu_gemm_tile.h), and for f32 as six products of bf16, whose
 * error is at most that of f32 FMAs except for values near 2^-126 (cpu_bf16x3.h).
 * VFM_CPU_ISA=base|avx2|avx512|avx512_bf16|amx lowers the selection; avx512_bf16 selects FMAs.
 */
#ifndef VFM_DEVICE_CPU_CPU_H
#define VFM_DEVICE_CPU_CPU_H

#include "device/dev/dev.h"
#include "spec/model/dtype.h"

struct vfm_dev *vfm_cpu_open(struct vfm_err *err); /* freed by dev->t->dev_free */

/* The packed copies of held operands b (device/ops/tensor.h), which count as memory of the device.  A product with more
 * than `few` rows, or with a transposed b, and with at most `rows` rows keeps one, of `bytes` for each element of b
 * with its dimensions rounded up to multiples of columns (of c) and depth (of the sums). */
struct vfm_cpu_copies {
	int few, rows, columns, depth, bytes;
};
/* dtype: f32 or bf16.  A device of another kind keeps none. */
struct vfm_cpu_copies vfm_cpu_copies_of(const struct vfm_dev *d, enum vfm_dtype dtype);

#endif
