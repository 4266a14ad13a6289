/* advice.h - what would make a training step smaller: said when the memory of a device has run out (struct
 * vfm_dev_advice).
 *
 * Only what is not on already, each with about how many bytes of this rank's memory it saves by itself.  State is
 * counted from the arrays there are; activations from what a block keeps a token (below), for the longest pack so far.
 */
#ifndef VFM_TRAIN_ADVICE_H
#define VFM_TRAIN_ADVICE_H

#include "mesh/mesh.h"
#include "nn/param.h"
#include "train/config.h"

struct vfm_advice {
	const struct vfm_config *c;
	const struct vfm_mesh *mesh;
	const struct vfm_params *ps;
	int64_t tokens, packs; /* of the longest pack so far, and how many a step has */
};
/* As savings of struct vfm_dev_advice; ctx: struct vfm_advice. */
int vfm_advice_savings(void *ctx, struct vfm_dev_saving *v, int n);

/* Bytes a token that a block keeps from the forward to the backward with this mode of recompute (enum vfm_recompute):
 * of t, only the dtypes count.  Experts and grouped queries: about. */
double vfm_advice_kept(const struct vfm_model_spec *m, int mode, const struct vfm_train_config *t);

#endif
