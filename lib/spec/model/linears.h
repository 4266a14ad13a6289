/* linears.h - the linear layers of a model, and its parameters and FLOPs, which follow from them.  Local; no device.
 */
#ifndef VFM_SPEC_MODEL_LINEARS_H
#define VFM_SPEC_MODEL_LINEARS_H

#include "spec/model/model.h"
#include "spec/model/tuning.h"

/* The linear layers of a block.  Those of self-attention i are shifted by i * VFM_LAYERS_ATTN. */
enum vfm_block_layer {
	VFM_LAYER_Q = 1 << 0, /* or qkv */
	VFM_LAYER_KV = 1 << 1,
	VFM_LAYER_PROJ = 1 << 2,
	VFM_LAYERS_ATTN = 3,
	VFM_LAYER_CROSS_Q = 1 << 9,
	VFM_LAYER_CROSS_KV = 1 << 10,     /* or its input, the text, or its norm */
	VFM_LAYER_CROSS_KV_IMG = 1 << 11, /* the same of the image rows */
	VFM_LAYER_CROSS_PROJ = 1 << 12,
	VFM_LAYER_FC1 = 1 << 13, /* or w13; of shared experts */
	VFM_LAYER_FC2 = 1 << 14, /* or w2 */
	VFM_LAYER_ROUTER = 1 << 15,
	VFM_LAYER_EXPERTS_FC1 = 1 << 16,
	VFM_LAYER_EXPERTS_FC2 = 1 << 17,
	VFM_LAYER_ADA_B = 1 << 18,
	VFM_LAYER_MODULATION = 1 << 19, /* all that computes the modulation */
	VFM_LAYERS_ALL = (1 << 20) - 1,
};

struct vfm_linear_shape {
	const char *name; /* of the parameter, without ".weight" and, in a block, without "blocks.N." */
	int64_t block;    /* -1: outside the blocks */
	/* enum vfm_block_layer: in a block its own; outside, those of blocks that read its output */
	unsigned layer;
	int64_t in, out;
	int blocks;  /* of outputs, as 3 of a fused qkv; 0: of experts, which have no adapters */
	double rows; /* that it multiplies of a pack; of experts those of all */
	bool bias;
	bool tokens; /* the rows are tokens; else text or image rows, or samples */
};

/* Writes the name of the parameter with "blocks.N." and the suffix, as ".weight". */
void vfm_linear_name(const struct vfm_linear_shape *l, const char *suffix, char *name, size_t size);

/* Calls fn for each linear layer of layers [first, end) of the model and, if first is 0, of those outside the blocks.
 */
void vfm_model_linears(const struct vfm_model_spec *m, const struct vfm_pack_sums *p, int64_t first, int64_t end,
	void (*fn)(void *ctx, const struct vfm_linear_shape *l), void *ctx);

int64_t vfm_model_params(const struct vfm_model_spec *m);

/* Returns the FLOPs of a forward over a pack: 2 rows in out of each linear layer, and 4 pairs hidden of each attention.
 * With image rows, cross-attention has samples * image_len further keys. */
double vfm_model_flops(const struct vfm_model_spec *m, const struct vfm_pack_sums *p);
/* Returns the FLOPs of forward and backward over a pack.  Without tuning that is 3 times vfm_model_flops: a product in
 * the forward, and two for the gradients of its operands.  A frozen weight saves the product of its own gradient, and,
 * outside of the blocks' tokens, also that of its input, which nothing trained precedes.  Each product of an adapter
 * counts 3 times.  Recompute does not count. */
double vfm_model_train_flops(const struct vfm_model_spec *m, const struct vfm_tuning *t, const struct vfm_pack_sums *p);

#endif
