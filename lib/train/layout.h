/* layout.h - which slices of a model's state the ranks of a layout write into a checkpoint.  Arithmetic on the
 * descriptions of the parameters: no ranks, no device.
 */
#ifndef VFM_TRAIN_LAYOUT_H
#define VFM_TRAIN_LAYOUT_H

#include "ckpt/ckpt.h"
#include "train/config.h"

struct vfm_layout; /* opaque; a rank's descriptions are made when they are first asked for */

/* "tp=2,pp=2,dp=4,fsdp": keys of the section `parallel`, a bare word is true.  Fills c->parallel and checks it; the
 * number of ranks is tp cp pp dp (dp 1 where it is not named). */
int vfm_layout_parse(struct vfm_config *c, const char *text, int *ranks, struct vfm_err *err);

/* c->parallel must have passed its check.  c is copied. */
struct vfm_layout *vfm_layout_new(const struct vfm_config *c, int ranks);
void vfm_layout_free(struct vfm_layout *l);
/* For struct vfm_ckpt_cut (ckpt/convert.h): ctx is the layout.  What the model does not know belongs to rank 0. */
int vfm_layout_own(void *ctx, int rank, const struct vfm_ckpt_tensor *t, struct vfm_slice *out, struct vfm_err *err);

#endif
