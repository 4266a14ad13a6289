/* skipped.h - steps whose loss or gradient norm is not finite, which the device does not apply (vfm_optim_step).  The
 * host counts them when it reads their statistics, names their samples, and ends the run after too many.
 */
#ifndef VFM_TRAIN_RUN_SKIPPED_H
#define VFM_TRAIN_RUN_SKIPPED_H

#include "data/plan/plan.h"
#include "train/job/job.h"
#include "train/step/trainer.h"

struct vfm_skipped {
	struct vfm_job *job;
	const struct vfm_mesh *mesh;
	const struct vfm_plan *plan;
	int64_t n, most; /* steps skipped so far, over all resumes; maximum number for the run */
	int64_t last;    /* the step that was skipped last, from 1; 0: none in this start */
};

/* Collective over the job.  Counts step k in flight, which the trainer has not applied; of two networks, a step counts
 * once.  network: which of two, or NULL.  Within the limit, rank 0 logs the step with its samples.  Beyond it, returns
 * VFM_EENV on every rank, with the same text as the message. */
int vfm_skipped_add(struct vfm_skipped *s, struct vfm_trainer *tr, int k, const char *network, struct vfm_err *err);

#endif
