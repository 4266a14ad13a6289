/* gemm.h - enqueues chosen products.  C and C++; kern/gemm.cu defines the functions. */
#ifndef VFM_DEVICE_CUDA_GEMM_H
#define VFM_DEVICE_CUDA_GEMM_H

#ifdef __cplusplus
extern "C" {
#endif

#include "device/cuda/gemm_choice.h"

/* Enqueues an op by a choice.  ws: vfm_gemm_ws(op, c) bytes at a 256-byte boundary. */
size_t vfm_gemm_ws(const struct vfm_gemm_op *op, const struct vfm_gemm_choice *c);
int vfm_gemm_enqueue(struct vfm_stream *s, const struct vfm_gemm_op *op, const struct vfm_gemm_choice *c, void *ws,
	struct vfm_err *err);
/* Fills x with n normally distributed elements of variance 1, f32, bf16 or fp8: a GPU multiplies zeros faster
 * than the numbers of a training step. */
int vfm_gemm_noise(struct vfm_stream *s, enum vfm_dtype dt, void *x, int64_t n, uint64_t seed, struct vfm_err *err);

#ifdef __cplusplus
}
#endif
#endif
