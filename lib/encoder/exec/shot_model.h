/* shot_model.h - shots by a learned detector in a child (capability "shots" of vfm-exec(7)), as a vfm_shot_detector.
 * An object belongs to the thread of its slot. */
#ifndef VFM_ENCODER_EXEC_SHOT_MODEL_H
#define VFM_ENCODER_EXEC_SHOT_MODEL_H

#include "encoder/exec/outside.h"
#include "media/shots/shots.h"

struct vfm_shot_model;

/* Makes a detector for one video.  id is that of the record, borrowed.  VFM_EENV: no memory for a window. */
int vfm_shot_model_new(struct vfm_shot_model **m, struct vfm_exec_slot *slot, const struct vfm_hello *hello,
	const char *id, struct vfm_err *err);
void vfm_shot_model_free(struct vfm_shot_model *m); /* no-op for NULL */
/* Returns the detector that calls the child; `m` must outlive it.  A cut is a run of frames with at least the
 * probability `threshold` (0: 0.5).  The old shot ends with the first frame of the run, and the new one begins after
 * the last.  The confidence of a cut is the highest probability of its run. */
struct vfm_shot_detector vfm_shot_model_detector(struct vfm_shot_model *m, double threshold);

#endif
