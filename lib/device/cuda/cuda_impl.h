/* cuda_impl.h - shared by the files of the CUDA device; for C11 and C++.
 *
 * - cuda_dev.c, cuda_stream.c: the device, streams, events, calls on the host
 * - cuda_copy.c: copies, pinned memory
 * - cuda_graph.c: captured graphs
 * - cuda_mem.c: the pool (device/dev/heap.h) on mapped memory
 * - first_use.c: loads our kernels; tests whether the device is idle
 * - ops.c: the op table
 * - gemm_*.c: cuBLASLt and the choice of its algorithms
 * - attn*.c, cudnn_*.c: cuDNN
 * - *.cu: our own kernels
 *
 * A .cu file holds kernels and the functions vfm_cuda_OP that launch them.  It is compiled twice: by nvcc, and as C++
 * with emu.h, which runs it on the host (kern.h).  It therefore uses only the functions in the first part of this
 * header, which the emulation also implements.
 */
#ifndef VFM_DEVICE_CUDA_CUDA_IMPL_H
#define VFM_DEVICE_CUDA_CUDA_IMPL_H

#ifdef __cplusplus
extern "C" {
#endif

#include "device/dev/dev.h"
#include "device/ops/ops.h"

/* ---- for .cu files ---- */

/* Returns scratch memory of the device for one op, at a 256-byte boundary, with undefined contents.  It is valid for
 * the work that the op enqueues on this stream; the next op may get the same memory.  At most one call per op.  On
 * NULL, err is set. */
void *vfm_cuda_ws(struct vfm_stream *s, size_t bytes, struct vfm_err *err);
/* Returns the number of multiprocessors, to size grids and partial sums.  The emulation has few, so that grid-stride
 * loops iterate. */
int vfm_cuda_sms(struct vfm_stream *s);
/* Returns vfm_stream.units of a stream. */
int vfm_cuda_units(struct vfm_stream *s);
/* Returns the maximum bytes of shared memory that a block may request.  A block with that many has its multiprocessor
 * alone. */
int vfm_cuda_most_shared(struct vfm_stream *s);
/* The same on the supported GPUs that have the least: compute capability 8.6, 8.9 and 12.0.  Kernels without a fallback
 * request no more, static arrays included. */
enum { VFM_CUDA_LEAST_SHARED = 99 << 10 };
/* Returns the word in which kernels of this op report an invalid index (row_of in kern.h, fault.h). */
uint64_t *vfm_cuda_fault(struct vfm_stream *s, enum vfm_op_id op);
/* Returns VFM_EENV, "norm: invalid configuration argument", if a launch failed. */
int vfm_cuda_launched(struct vfm_stream *s, const char *op, struct vfm_err *err);

/* NULL in the table if no file defines it; vfm_op_X then returns an error. */
#define X(name)                                                                                                        \
	int vfm_cuda_##name(struct vfm_stream *s, const struct vfm_##name *a, struct vfm_err *err)                     \
		__attribute__((weak));
VFM_OP_LIST(X)
#undef X

/* Returns the CUDA stream, a cudaStream_t.  Not in the emulation. */
struct CUstream_st *vfm_cuda_stream(struct vfm_stream *s);

/* ---- for .c files ---- */

struct vfm_cuda;

/* cuda_copy.c: as in struct vfm_dev_table. */
struct vfm_cuda_staged;
void *vfm_cuda_alloc_host(struct vfm_dev *d, size_t bytes, const char *what, struct vfm_err *err);
void vfm_cuda_free_host(struct vfm_dev *d, void *p, size_t bytes);
int vfm_cuda_to_device(struct vfm_stream *s, void *dst, const void *host, size_t bytes, struct vfm_err *err);
int vfm_cuda_to_host(struct vfm_stream *s, void *host, const void *src, size_t bytes, struct vfm_err *err);
int vfm_cuda_zero(struct vfm_stream *s, void *dst, size_t bytes, struct vfm_err *err);
void vfm_cuda_staged_free(struct vfm_cuda_staged *g);

/* cuda_graph.c: as in struct vfm_dev_table. */
struct vfm_cuda_graphs;
int vfm_cuda_graph_begin(struct vfm_stream *s, struct vfm_err *err);
int vfm_cuda_graph_end(struct vfm_stream *s, bool run, struct vfm_err *err);
void vfm_cuda_graphs_free(struct vfm_cuda_graphs *g);
/* captured: returns whether the stream is being captured into a graph.  refuse: for work that cannot be captured,
 * returns 0 outside of a capture, else VFM_EENV.  first: the work could be captured if it had run before. */
bool vfm_cuda_captured(const struct vfm_cuda *c, struct CUstream_st *st);
int vfm_cuda_refuse(struct vfm_cuda *c, struct CUstream_st *st, const char *what, bool first, struct vfm_err *err);

/* first_use.c: loads all our kernels, before the first collective. */
void vfm_cuda_load_kernels(void);
/* Waits until no stream of the device has work, for at most most_s seconds, and returns whether that is so.  The wait
 * has a limit because a stream may wait for another rank, and that rank for this host thread. */
bool vfm_cuda_idle(struct vfm_cuda *c, double most_s);

/* ops.c: the op table.  ranges: puts each op in an NVTX range. */
const struct vfm_ops *vfm_cuda_ops_table(bool ranges);

#ifdef __cplusplus
}
#endif
#endif
