/* attn.h - attention: our own kernels, and the end of the plans of cuDNN.  C and C++. */
#ifndef VFM_DEVICE_CUDA_ATTN_H
#define VFM_DEVICE_CUDA_ATTN_H

#include "device/cuda/cuda_impl.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Our own kernels (attn_own.cu): they accept all operands that the ops allow, compute in f32, and are deterministic.
 * The backward may lack dq, or dk and dv. */
int vfm_cuda_attn_own(struct vfm_stream *s, const struct vfm_attn *a, struct vfm_err *err);
int vfm_cuda_attn_bwd_own(struct vfm_stream *s, const struct vfm_attn_bwd *a, struct vfm_err *err);

struct vfm_cuda_attn;
/* Keeps the plans of cuDNN for the next opening of the same device in this process.  Called as vfm_cuda_gemm_free
 * (gemm.h). */
void vfm_cuda_attn_close(struct vfm_cuda_attn *a) __attribute__((weak));

#ifdef __cplusplus
}
#endif
#endif
