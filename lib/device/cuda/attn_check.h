/* attn_check.h - comparison of results of cuDNN with our own kernels (attn.h), at the first run of a plan: o and lse,
 * or dq, dk and dv, in rows of up to three samples and all heads of a piece.
 */
#ifndef VFM_DEVICE_CUDA_ATTN_CHECK_H
#define VFM_DEVICE_CUDA_ATTN_CHECK_H

#include "device/cuda/attn_pack.h"

enum vfm_attn_verdict {
	VFM_ATTN_AGREES,
	VFM_ATTN_DIFFERS,
	VFM_ATTN_SILENT, /* nothing is proven: dout is zero, as behind a gate of zero, or there is no memory */
};

/* Compares the operands of an op that has been enqueued on s, in the samples and heads of a piece.  Without dout the op
 * is the forward.  *why: which result differs, and by how much.  Blocks the host until s has passed, so it fails within
 * a capture.  Takes scratch (vfm_cuda_ws).  Returns enum vfm_attn_verdict, or a failure. */
int vfm_attn_check(struct vfm_stream *s, const struct vfm_attn_bwd *a, const struct vfm_attn_piece *p,
	struct vfm_err *why, struct vfm_err *err);

#endif
