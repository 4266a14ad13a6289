/* run.h - a whole training run: manifest in, weights out, and everything that keeps it
 * alive in between (checkpoints, resume, signals, metrics).
 *
 * RUN/config.json       the resolved configuration
 * RUN/run.json          plan, encoders and initial weights (vfm_identity_json)
 * RUN/metrics.jsonl     one line a step; after a resume exactly one line for each step
 * RUN/ckpt/step-…/      checkpoints (vfm-checkpoint(5))
 * RUN/events.out…       the same scalars for TensorBoard
 */
#ifndef VFM_TRAIN_RUN_H
#define VFM_TRAIN_RUN_H

#include <signal.h>

#include "base/json.h"
#include "train/context.h"
#include "train/identity.h"

struct vfm_run_opts {
	const char *manifest;
	const char *dir; /* RUN */
	/* "auto": newest complete checkpoint in RUN; "no": RUN must have none; else a checkpoint, which counts
	 * until RUN has one of its own that is further. */
	const char *resume;
	/* NULL, or a checkpoint or file of weights: where RUN has no checkpoint, the run begins with these weights, at
	 * step 0.  init_part: "model" or "ema"; a file has no parts. */
	const char *init, *init_part;
	unsigned allow_change; /* bits of enum vfm_change, for resume and init */
	/* set by a signal handler, of any rank: finish the step, save, return VFM_ESIGNAL */
	volatile sig_atomic_t *stop;
	/* Called once a step with the record of vfm-train's stdout; a negative result ends the run: VFM_EPIPE as a
	 * signal would, but without a message. */
	int (*on_step)(void *ctx, const json_t *record, struct vfm_err *err);
	void *ctx;
};

/* Collective over the ranks of the job; x is open for c (vfm_context_open).  Rank 0 alone writes RUN (but for its
 * checkpoints) and reports.  On failure see vfm_job_end.
 * 0: all steps are done and saved.  VFM_ESIGNAL: stopped early, saved.  Else an error; whatever
 * checkpoints were complete before still are. */
int vfm_run(struct vfm_context *x, const struct vfm_config *c, const struct vfm_run_opts *o, struct vfm_err *err);

#endif
