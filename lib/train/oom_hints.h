/* oom_hints.h - lists settings that reduce the memory of a training step, for the message of an out-of-memory error
 * (struct vfm_dev_oom_hints).
 *
 * Lists only settings that are off, each with an estimate of the bytes that it saves alone on this rank.  The state is
 * counted from the allocated arrays, activations from the saved bytes per block (spec/saved.h) of the longest pack so
 * far.
 */
#ifndef VFM_TRAIN_OOM_HINTS_H
#define VFM_TRAIN_OOM_HINTS_H

#include "mesh/mesh.h"
#include "nn/param.h"
#include "spec/saved.h"
#include "train/config.h"
#include "train/recompute.h"

struct vfm_oom_hints {
	const struct vfm_config *c;
	const struct vfm_mesh *mesh;
	const struct vfm_params *ps;
	int64_t rows[VFM_ROW_KINDS];           /* longest pack so far: tokens, text rows, samples */
	int64_t packs;                         /* packs per step */
	const struct vfm_recompute_plan *plan; /* of train.recompute=auto; NULL: none */
};
/* The `savings` callback of struct vfm_dev_oom_hints; ctx is a struct vfm_oom_hints. */
int vfm_oom_hints_savings(void *ctx, struct vfm_dev_saving *v, int n);

#endif
