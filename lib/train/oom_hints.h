/* oom_hints.h - what would make a training step smaller: said when the memory of a device has run out (struct
 * vfm_dev_oom_hints).
 *
 * Only what is not on already, each with about how many bytes of this rank's memory it saves by itself.  State is
 * counted from the arrays there are; activations from what a block saves (spec/saved.h), for the longest pack so far.
 */
#ifndef VFM_TRAIN_OOM_HINTS_H
#define VFM_TRAIN_OOM_HINTS_H

#include "mesh/mesh.h"
#include "nn/param.h"
#include "spec/saved.h"
#include "train/config.h"

struct vfm_oom_hints {
	const struct vfm_config *c;
	const struct vfm_mesh *mesh;
	const struct vfm_params *ps;
	int64_t rows[VFM_ROW_KINDS]; /* of the longest pack so far: tokens, text rows, samples */
	int64_t packs;               /* of a step */
};
/* As savings of struct vfm_dev_oom_hints; ctx: struct vfm_oom_hints. */
int vfm_oom_hints_savings(void *ctx, struct vfm_dev_saving *v, int n);

#endif
