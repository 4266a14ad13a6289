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

/* The storage of the frozen weights of experts and of the blocks' linear layers (device/ops/ops.h):
 *
 * - FP8: MXFP8, 33 bytes for 32 elements of a row, which share a power of two
 * - INT8: a byte an element; a row shares its largest magnitude
 * - NF4: 33 bytes for 64 elements of a row, which share their largest magnitude (QLoRA, Dettmers et al. 2023, arXiv
 *   2305.14314), itself in 8 bits */
enum vfm_frozen_dtype { VFM_FROZEN_SAME /* the compute dtype */, VFM_FROZEN_FP8, VFM_FROZEN_INT8, VFM_FROZEN_NF4 };
extern const char *const vfm_frozen_names[]; /* "same", "fp8", "int8", "nf4", NULL */

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
