/* tuning.h - the parameters that a run trains: all, those that no pattern freezes, or low-rank adapters.  Local.
 *
 * LoRA (Hu et al., arXiv 2106.09685): a linear layer with the frozen weight W [out,in] computes
 *
 *     y = x W^T + b + s (x A^T) B^T,   s = alpha / rank,   A [rank,in], B [out,rank],
 *
 * and only A and B are trained.  B starts at zero.  A layer with several blocks of outputs, such as a fused qkv, has
 * one A per block, stacked as A [blocks * rank, in].  The rows of B for block i multiply the features of block i, so
 * each block equals the adapter of a separate layer.
 */
#ifndef VFM_SPEC_MODEL_TUNING_H
#define VFM_SPEC_MODEL_TUNING_H

#include <stdbool.h>

#include "io/key.h"

/* The storage of the frozen weights of experts and of the blocks' linear layers.  MXFP8 takes 33 bytes per 32 elements:
 * 32 e4m3 elements of a row share a power of two (vfm_mxfp8 in device/ops/ops.h). */
enum vfm_frozen_dtype { VFM_FROZEN_SAME /* the compute dtype */, VFM_FROZEN_FP8 };

struct vfm_tuning {
	int64_t rank;                /* of the adapters; 0: none */
	double alpha;                /* 0: rank */
	struct vfm_patterns targets; /* patterns for names of linear layers, such as blocks.3.attn.qkv */
	struct vfm_patterns freeze;  /* patterns for names of base parameters, such as blocks.3.attn.qkv.weight */
	int frozen_dtype;            /* enum vfm_frozen_dtype */
};

void vfm_tuning_defaults(struct vfm_tuning *t);
/* Returns whether a parameter of the base model is frozen.  With adapters and no pattern, all of them are. */
bool vfm_tuning_freezes(const struct vfm_tuning *t, const char *param);
/* Returns whether a linear layer has an adapter. */
bool vfm_tuning_adapts(const struct vfm_tuning *t, const char *layer);
double vfm_tuning_scale(const struct vfm_tuning *t); /* s above */

#endif
