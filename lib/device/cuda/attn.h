/* attn.h - attention: our own kernels, the check of cuDNN's results, and the end of cuDNN's plans.  For C and C++. */
#ifndef VFM_DEVICE_CUDA_ATTN_H
#define VFM_DEVICE_CUDA_ATTN_H

#include "device/cuda/attn_pack.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Our own kernels (attn_own.cu).  They accept all operands that the ops allow, compute in f32, and are deterministic.
 * In the backward, dq, or dk and dv, may be absent. */
int vfm_cuda_attn_own(struct vfm_stream *s, const struct vfm_attn *a, struct vfm_err *err);
int vfm_cuda_attn_bwd_own(struct vfm_stream *s, const struct vfm_attn_bwd *a, struct vfm_err *err);

/* ---- comparison of results of cuDNN with our own kernels, at the first run of a plan (attn_check.c) ----
 * A plan that cuDNN builds and runs may still be wrong: another base of lse, another layout, missing rows.  The check
 * compares rows of up to three samples: o and lse, or dq, dk and dv, of all heads of a piece. */
enum vfm_attn_verdict {
	VFM_ATTN_AGREES,
	VFM_ATTN_DIFFERS,
	VFM_ATTN_SILENT, /* no evidence: dout is zero, as after a gate of zero, or there is no memory */
};

/* Compares the operands of an op that has been enqueued on s, in the samples and heads of a piece.  Without dout the op
 * is the forward.  Sets *why to the result that differs and its error.  Blocks the host until s has passed, so it fails
 * within a capture.  Uses scratch (vfm_cuda_ws).  Returns enum vfm_attn_verdict, or a failure. */
int vfm_attn_check(struct vfm_stream *s, const struct vfm_attn_bwd *a, const struct vfm_attn_piece *p,
	struct vfm_err *why, struct vfm_err *err);

struct vfm_cuda_attn;
/* Keeps cuDNN's plans for the next opening of the same device in this process.  Called like vfm_cuda_gemm_free
 * (gemm.h). */
void vfm_cuda_attn_close(struct vfm_cuda_attn *a) __attribute__((weak));

#ifdef __cplusplus
}
#endif
#endif
