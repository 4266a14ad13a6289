/* linears.h - the linear layers of a model, and the parameters and FLOPs that follow from them.  Local; no device. */
#ifndef VFM_SPEC_MODEL_LINEARS_H
#define VFM_SPEC_MODEL_LINEARS_H

#include "spec/model/model.h"
#include "spec/model/tuning.h"

/* The linear layers of a block, as bits.  The bits of self-attention i are shifted by i * VFM_LAYERS_ATTN. */
enum vfm_block_layer {
	VFM_LAYER_Q = 1 << 0, /* or qkv */
	VFM_LAYER_KV = 1 << 1,
	VFM_LAYER_PROJ = 1 << 2,
	VFM_LAYERS_ATTN = 3,
	VFM_LAYER_CROSS_Q = 1 << 9,
	VFM_LAYER_CROSS_KV = 1 << 10,     /* or its input (the text) or the norm of that */
	VFM_LAYER_CROSS_KV_IMG = 1 << 11, /* the same of the image rows */
	VFM_LAYER_CROSS_PROJ = 1 << 12,
	VFM_LAYER_FC1 = 1 << 13, /* or w13; of shared experts */
	VFM_LAYER_FC2 = 1 << 14, /* or w2 */
	VFM_LAYER_ROUTER = 1 << 15,
	VFM_LAYER_EXPERTS_FC1 = 1 << 16,
	VFM_LAYER_EXPERTS_FC2 = 1 << 17,
	VFM_LAYER_ADA_B = 1 << 18,
	VFM_LAYER_MODULATION = 1 << 19, /* all that computes the modulation */
	/* of the text with joint attention; its attention has the bits of self-attention 1 */
	VFM_LAYER_TEXT_FC1 = 1 << 20,
	VFM_LAYER_TEXT_FC2 = 1 << 21,
	VFM_LAYERS_ALL = (1 << 22) - 1,
};

struct vfm_linear_shape {
	const char *name; /* of the parameter, without ".weight" and "blocks.N." */
	int64_t block;    /* -1: outside the blocks */
	/* enum vfm_block_layer: in a block, the layer itself; outside, the layers of blocks that read its output */
	unsigned layer;
	int64_t in, out;
	int blocks;  /* blocks of outputs: 3 for a fused qkv; 0 for experts, which have no adapters */
	double rows; /* rows of the pack that it multiplies; for experts, the sum over all experts */
	bool bias;
	bool tokens; /* the rows are those of the residual stream; else text or image rows, or samples */
};

/* Writes the name of the parameter, with "blocks.N." and a suffix such as ".weight". */
void vfm_linear_name(const struct vfm_linear_shape *l, const char *suffix, char *name, size_t size);

/* Calls fn for each linear layer in layers [first, end) of the model and, if first is 0, for those outside the
 * blocks. */
void vfm_model_linears(const struct vfm_model_spec *m, const struct vfm_pack_sums *p, int64_t first, int64_t end,
	void (*fn)(void *ctx, const struct vfm_linear_shape *l), void *ctx);

int64_t vfm_model_params(const struct vfm_model_spec *m);

/* Returns the FLOPs of a forward over a pack: 2 rows in out for each linear layer, and 4 pairs hidden for each
 * attention.  If the model has image rows, the pairs of cross-attention include image_len keys per sample. */
double vfm_model_flops(const struct vfm_model_spec *m, const struct vfm_pack_sums *p);
/* Returns the FLOPs of forward and backward over a pack, without recompute.  Without tuning this is 3 vfm_model_flops:
 * each product occurs once in the forward and twice in the backward, for the gradients of both operands.
 *
 * - A frozen weight saves the product for its gradient.  If the layer's rows are not tokens, or it is outside the
 *   blocks, it also saves that for its input, since nothing before it is trained.
 * - Each product of an adapter counts 3 times. */
double vfm_model_train_flops(const struct vfm_model_spec *m, const struct vfm_tuning *t, const struct vfm_pack_sums *p);

#endif
