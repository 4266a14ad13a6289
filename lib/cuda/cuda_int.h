/* cuda_int.h - what the files of the CUDA device share; C11 and C++ read it.
 *
 *   plugin.c        the exported symbol, versions, opening a device
 *   cuda_dev.c      streams, events, copies, page-locked memory, calls on the host
 *   cuda_graph.c    work written down and launched as one
 *   cuda_mem.c      the pool (dev/heap.h) on mapped memory; what to say when it is full
 *   gemm.c …        cuBLASLt; attn.c …: cuDNN; *.cu: our own kernels
 *
 * A .cu file holds kernels and the fillings of ops that launch them, `vfm_cuda_OP`.  It is compiled twice: by nvcc, and
 * as C++ against emu.h, which runs it on the host (kern.h).  So it uses of the device only what stands in the first
 * part of this header, which the emulation fills as well.
 */
#ifndef VFM_CUDA_CUDA_INT_H
#define VFM_CUDA_CUDA_INT_H

#ifdef __cplusplus
extern "C" {
#endif

#include "dev/dev.h"
#include "ops/ops.h"

/* ---- for .cu files ---- */

/* Scratch in device memory for one op: `bytes` at a 256-byte boundary, contents undefined, valid for what the op puts
 * on this stream; the next op on the stream may get the same memory.  One call an op.  NULL: err is set. */
void *vfm_cuda_ws(struct vfm_stream *s, size_t bytes, struct vfm_err *err);
/* Multiprocessors, to size persistent grids and partial sums.  The emulation has few, so that loops over a grid are
 * gone through. */
int vfm_cuda_sms(struct vfm_stream *s);
/* Where kernels of this op write that an index is none: row_of in kern.h, fault.h. */
uint64_t *vfm_cuda_fault(struct vfm_stream *s, enum vfm_op_id op);
/* After launches: VFM_EENV, "norm: invalid configuration argument", if one was refused. */
int vfm_cuda_launched(struct vfm_stream *s, const char *op, struct vfm_err *err);

/* A filling that no file has yet is NULL in the table, and the op says so. */
#define X(name)                                                                                                        \
	int vfm_cuda_##name(struct vfm_stream *s, const struct vfm_##name *a, struct vfm_err *err)                     \
		__attribute__((weak));
VFM_OP_LIST(X)
#undef X

#ifdef __cplusplus
}
#endif
#endif
