/* oom_hints.h - lists settings that reduce the memory of a training step, for the message of an out-of-memory error
 * (struct vfm_dev_oom_hints).
 *
 * Lists only settings that are off, each with the bytes that it alone saves on the fullest rank of this stage: the
 * difference of two simulated steps (step_memory.h) with the longest pack so far.
 */
#ifndef VFM_TRAIN_OOM_HINTS_H
#define VFM_TRAIN_OOM_HINTS_H

#include "dev/dev.h"
#include "mesh/mesh.h"
#include "spec/pack.h"
#include "train/config.h"
#include "train/synthetic.h"

struct vfm_oom_hints {
	const struct vfm_config *c;
	const struct vfm_mesh *mesh;
	const struct vfm_dev *dev;
	int64_t packs; /* of a dp rank in a step */
	/* The longest pack so far, counted as if all cp ranks computed it. */
	int64_t tokens;
	struct vfm_synthetic *sample; /* [n], owned */
	int n, cp;                    /* cp: the ranks that computed it; 0: all */
	size_t cap;
};

/* Keeps the sizes of a pack if it is the longest so far. */
void vfm_oom_hints_saw(struct vfm_oom_hints *h, const struct vfm_pack *p);
/* The `savings` callback of struct vfm_dev_oom_hints; ctx is a struct vfm_oom_hints. */
int vfm_oom_hints_savings(void *ctx, struct vfm_dev_saving *v, int n);
void vfm_oom_hints_release(struct vfm_oom_hints *h);

#endif
