/* layout.h - computes the slices of a model's state that each rank of a layout writes into a checkpoint.  Uses only the
 * parameter descriptions: no ranks, no device.
 */
#ifndef VFM_TRAIN_STEP_LAYOUT_H
#define VFM_TRAIN_STEP_LAYOUT_H

#include "ckpt/ckpt.h"
#include "train/job/config.h"

struct vfm_layout; /* opaque; creates the descriptions of a rank on first use */

/* Parses "tp=2,pp=2,dp=4,fsdp": keys in section `parallel`; a bare word means true.  Fills and checks c->parallel.
 * Sets *ranks = tp cp pp dp, where dp is 1 by default. */
int vfm_layout_parse(struct vfm_config *c, const char *text, int *ranks, struct vfm_err *err);

/* Copies c, whose c->parallel must be valid (vfm_parallel_check). */
struct vfm_layout *vfm_layout_new(const struct vfm_config *c, int ranks);
void vfm_layout_free(struct vfm_layout *l);
/* For struct vfm_ckpt_cut (ckpt/convert.h); ctx is the layout.  Tensors that do not belong to the model are written by
 * rank 0. */
int vfm_layout_own(void *ctx, int rank, const struct vfm_ckpt_tensor *t, struct vfm_slice *out, struct vfm_err *err);

#endif
