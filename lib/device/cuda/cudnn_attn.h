/* cudnn_attn.h - attention, forward and backward, as graphs of cuDNN (cudnn_graph.h).
 *
 * A plan has a shape: b samples of at most sq queries and sk keys.  Ragged offsets and lengths of packed samples are
 * device values, so one plan serves every pack that is not larger (attn.c rounds up).  Without them, samples have sq
 * queries and sk keys.  `ragged`, `apart` and `unified` choose among graphs with the same result, since a version of
 * cuDNN or a device may support only some.
 */
#ifndef VFM_DEVICE_CUDA_CUDNN_ATTN_H
#define VFM_DEVICE_CUDA_CUDNN_ATTN_H

#include "device/cuda/cudnn_graph.h"
#include "device/dev/dev.h"
#include "spec/model/dtype.h"

/* The tensors [rows, heads, d], each with its own row stride and offsets. */
enum vfm_dnn_rows {
	VFM_DNN_Q,
	VFM_DNN_K,
	VFM_DNN_V,
	VFM_DNN_O,
	VFM_DNN_DOUT,
	VFM_DNN_DQ,
	VFM_DNN_DK,
	VFM_DNN_DV,
	VFM_DNN_ROWS
};

/* Plain data, compared as bytes: zero it first. */
struct vfm_dnn_attn_key {
	int64_t b, h, hkv, sq, sk, d;
	int64_t row[VFM_DNN_ROWS];        /* elements from one row to the next */
	int64_t lse_row;                  /* the same for lse, whose heads are contiguous */
	enum vfm_dtype dq_type, dkv_type; /* bf16 or f32 */
	bool bwd, deterministic;
	bool ragged;  /* the samples have offsets and lengths */
	bool apart;   /* lse is [b, h, sq] instead of [rows, heads]; ragged backward: likewise its scratch */
	bool unified; /* forward: cuDNN's single attention operation instead of a graph of its steps */
};

struct vfm_dnn_attn {
	struct vfm_dnn_attn_key key;
	struct vfm_dnn_graph *g;
	vfm_dnn_t x[VFM_DNN_ROWS], offset[VFM_DNN_ROWS];
	vfm_dnn_t lse, len_q, len_k, lse_offset;
	vfm_dnn_t scale, none, one; /* values in host memory: the scale, -inf, 1 */
	vfm_dnn_t dsum, dq_sum;     /* scratch of the backward */
	vfm_dnn_t dk_all, dv_all;   /* scratch: dk and dv of each query head, if several share one head of keys */
};

/* most: maximum plans that vfm_dnn_build builds.  Returns NULL and VFM_EENV if cuDNN has no plan, for instance for the
 * head dimension. */
struct vfm_dnn_attn *vfm_dnn_attn_new(
	const struct vfm_dnn_on *on, const struct vfm_dnn_attn_key *key, int most, struct vfm_err *err);
void vfm_dnn_attn_free(struct vfm_dnn_attn *a); /* no-op for NULL */

/* Bytes of scratch for tq and tk rows in total; the contents are undefined. */
struct vfm_dnn_attn_scratch {
	size_t dsum, dq_sum, dkv_all /* each of two */, workspace;
};
struct vfm_dnn_attn_scratch vfm_dnn_attn_scratch(const struct vfm_dnn_attn *a, int64_t tq, int64_t tk);

/* Runs each plan of g several times with the operands of a call, whose outputs it overwrites, and keeps the fastest
 * (vfm_dnn_use).  A plan other than cuDNN's first must be 3 % faster.  Drops plans that cuDNN refuses to run; if it
 * refuses all, keeps the first.  Blocks the host.  Returns a failure of the device. */
int vfm_dnn_tune(struct vfm_stream *s, struct vfm_dnn_graph *g, const struct vfm_dnn_bind *b, int n, void *workspace,
	struct vfm_err *err);

#endif
