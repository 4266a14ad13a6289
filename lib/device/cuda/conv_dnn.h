/* conv_dnn.h - convolutions by cuDNN: one frame as a graph (cudnn_graph.h), with sums in f32, then bias and `add` in the
 * same kernel.
 *
 * A plan is for a shape.  All frames of a shape are computed by the same plan, whose engine is deterministic, so a
 * frame has the same bits in any clip.  f32 is multiplied as f32, never as TF32.
 */
#ifndef VFM_DEVICE_CUDA_CONV_DNN_H
#define VFM_DEVICE_CUDA_CONV_DNN_H

#include "device/cuda/cuda_dev.h"
#include "device/cuda/cudnn_graph.h"
#include "spec/model/dtype.h"

/* Plain data, compared as bytes: zero it first.  Names as in struct vfm_conv3d. */
struct vfm_dnn_conv_key {
	enum vfm_dtype dtype;
	int kernel[3], stride[2], pad[4]; /* stride: height, width */
	int64_t h, w, c, yh, yw, o;
	bool bias, add;
};

struct vfm_dnn_conv {
	struct vfm_dnn_conv_key key;
	struct vfm_dnn_graph *g;
	vfm_dnn_t x;      /* [kt, h, w, c] */
	vfm_dnn_t w;      /* [o, kt, kh, kw, c] */
	vfm_dnn_t bias;   /* [o] f32, or 0 */
	vfm_dnn_t add, y; /* [yh, yw, o]; add: or 0; they do not overlap */
};

/* Returns NULL and VFM_EENV if cuDNN has no plan. */
struct vfm_dnn_conv *vfm_dnn_conv_new(
	const struct vfm_dnn_on *on, const struct vfm_dnn_conv_key *key, struct vfm_err *err);
void vfm_dnn_conv_free(struct vfm_dnn_conv *c); /* NULL is fine */

/* Called as vfm_cuda_gemm_free (gemm.h). */
void vfm_cuda_conv_free(struct vfm_cuda_conv *c) __attribute__((weak));

#endif
