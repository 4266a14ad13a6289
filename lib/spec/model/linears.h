/* linears.h - the linear layers of a model, and the FLOPs of a training step that follow from them.
 * All calls are local; no device.
 */
#ifndef VFM_SPEC_MODEL_LINEARS_H
#define VFM_SPEC_MODEL_LINEARS_H

#include "spec/model/model.h"
#include "spec/model/tuning.h"

struct vfm_linear_shape {
	char name[64]; /* of the parameter, without ".weight" */
	int64_t in, out;
	int blocks;  /* of outputs, as 3 of a fused qkv; 0: of experts, which have no adapters */
	double rows; /* that it multiplies of a pack; of experts those of all */
	bool tokens; /* the rows are tokens; else text or image rows, or samples */
};

/* Calls fn for each linear layer of layers [first, end) of the model and, if first is 0, of those outside the blocks.
 */
void vfm_model_linears(const struct vfm_model_spec *m, const struct vfm_pack_sums *p, int64_t first, int64_t end,
	void (*fn)(void *ctx, const struct vfm_linear_shape *l), void *ctx);

/* Returns the FLOPs of forward and backward over a pack.  Without tuning that is 3 times vfm_model_flops: a product in
 * the forward, and two for the gradients of its operands.  A frozen weight saves the product of its own gradient, and,
 * outside of the blocks' tokens, also that of its input, which nothing trained precedes.  Each product of an adapter
 * counts 3 times.  Recompute does not count. */
double vfm_model_train_flops(const struct vfm_model_spec *m, const struct vfm_tuning *t, const struct vfm_pack_sums *p);

/* The parameters of a run.  Vectors and tables of a model of which a part is frozen count as frozen. */
struct vfm_param_counts {
	double trained;  /* adapters included */
	double frozen;   /* in the compute dtype */
	double in_mxfp8; /* frozen, too */
};
struct vfm_param_counts vfm_model_count_params(const struct vfm_model_spec *m, const struct vfm_tuning *t);

#endif
