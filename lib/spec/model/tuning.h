/* tuning.h - the parameters that a run trains: all of them, those that no pattern freezes, or low-rank adapters.
 * Local.
 *
 * LoRA (Hu et al., arXiv 2106.09685): a linear layer with the frozen weight W [out,in] computes
 *
 *     y = x W^T + b + s (x A^T) B^T,   s = alpha / rank,   A [rank,in], B [out,rank],
 *
 * and only A and B are trained.  B starts from zeros.  A layer with several blocks of outputs, as a fused qkv, has an A
 * for each block, one below the other: A [blocks * rank, in], and block i of B's rows multiplies the features of block
 * i.  So each block equals the adapter of a separate layer.
 */
#ifndef VFM_SPEC_MODEL_TUNING_H
#define VFM_SPEC_MODEL_TUNING_H

#include <stdbool.h>

#include "io/key.h"

/* How the frozen weights of the linear layers of blocks, and of experts, are stored.  MXFP8 takes 33 bits for 4
 * elements: e4m3 in blocks of 32 elements of a row, each with a power of two (vfm_mxfp8 in device/ops/ops.h). */
enum vfm_frozen_dtype { VFM_FROZEN_SAME /* the compute dtype */, VFM_FROZEN_FP8 };

struct vfm_tuning {
	int64_t rank;                /* of the adapters; 0: none */
	double alpha;                /* 0: rank */
	struct vfm_patterns targets; /* of names of linear layers, as blocks.3.attn.qkv */
	struct vfm_patterns freeze;  /* of names of parameters, as blocks.3.attn.qkv.weight; not of adapters */
	int frozen_dtype;            /* enum vfm_frozen_dtype */
};

void vfm_tuning_defaults(struct vfm_tuning *t);
/* Whether the parameter of the base model is frozen.  With adapters and no pattern, all of them are. */
bool vfm_tuning_freezes(const struct vfm_tuning *t, const char *param);
/* Whether the linear layer has an adapter. */
bool vfm_tuning_adapts(const struct vfm_tuning *t, const char *layer);
double vfm_tuning_scale(const struct vfm_tuning *t); /* s above */

#endif
