/* cpu.h - the CPU device: the reference backend, which is always built.  Results are bitwise reproducible and do not
 * depend on the number of threads.
 *
 * Its kernels are one source, compiled for the compiler's default target, AVX2, AVX-512 and AVX-512 bf16, and selected
 * at run time.  On CPUs with AMX, GEMM and attention use tiles: for bf16 (cpu_gemm_tile.h), and for f32 as six products
 * of bf16 (cpu_bf16x3.h), whose error is at most that of f32 FMAs except for values near 2^-126.
 * VFM_CPU_ISA=base|avx2|avx512|avx512_bf16|amx lowers the selection.  Without AMX, bf16 is multiplied by vdpbf16ps if
 * the CPU does that faster than FMAs of f32, else by these.
 */
#ifndef VFM_DEVICE_CPU_CPU_H
#define VFM_DEVICE_CPU_CPU_H

#include "device/dev/dev.h"
#include "spec/model/dtype.h"

struct vfm_dev *vfm_cpu_open(struct vfm_err *err); /* free with dev->t->dev_free */

/* Which products keep a packed copy of a held operand b (device/ops/tensor.h).  Copies count as memory of the device.
 *
 *   rows of the product   more than `few`, at most `rows`
 *   size of the copy      `bytes` for each element of b, with the columns of c rounded up to multiples of `columns` and
 *                         the depth of the sums to multiples of `depth` */
struct vfm_cpu_copies {
	int few, rows, columns, depth, bytes;
};
/* dtype: f32 or bf16.  Other kinds of devices keep no copies. */
struct vfm_cpu_copies vfm_cpu_copies_of(const struct vfm_dev *d, enum vfm_dtype dtype);

#endif
