/* oom_hints.h - lists settings that reduce the memory of a training step, for the message of an out-of-memory error
 * (struct vfm_dev_oom_hints).  They are settings that are off, each with the bytes that it alone would save on the
 * fullest rank of this pp stage: the difference of two simulated steps (step_memory.h) with the longest pack so far. */
#ifndef VFM_TRAIN_PREDICT_OOM_HINTS_H
#define VFM_TRAIN_PREDICT_OOM_HINTS_H

#include "device/dev/dev.h"
#include "net/mesh/mesh.h"
#include "spec/layout/pack.h"
#include "train/job/config.h"
#include "train/step/pipeline.h"
#include "train/step/synthetic.h"

struct vfm_oom_hints { /* `= {0}` may be removed */
	const struct vfm_config *c;
	const struct vfm_mesh *mesh;
	struct vfm_dev *dev;
	int64_t packs; /* of a dp rank in a step */
	const struct vfm_pack_source *src;
	/* The longest pack so far, counted as if all cp ranks computed it. */
	int64_t tokens;
	struct vfm_synthetic *sample; /* [n], owned */
	int n, cp;                    /* cp: the ranks that computed it; 0: all */
	size_t cap;
};

/* Makes h the device's source of hints until vfm_oom_hints_remove; no-op on a device that predicts.  h, c and mesh must
 * not move meanwhile.  Call it before the trainer is made, whose allocations may fail. */
void vfm_oom_hints_install(
	struct vfm_oom_hints *h, const struct vfm_config *c, const struct vfm_mesh *mesh, struct vfm_dev *dev);
void vfm_oom_hints_remove(struct vfm_oom_hints *h);
/* Returns a source of the same packs, `packs` per step, that records the sizes of the longest. */
struct vfm_pack_source vfm_oom_hints_source(struct vfm_oom_hints *h, const struct vfm_pack_source *src, int64_t packs);

#endif
