/* run.h - a training run from plan to weights, with checkpoints, resume, signals and metrics.
 *
 * RUN/config.json       the resolved configuration
 * RUN/run.json          plan, encoders and initial weights (vfm_identity_json)
 * RUN/metrics.jsonl     exactly one line per step, also after a resume
 * RUN/ckpt/step-…/      checkpoints (vfm-checkpoint(5)); of two networks RUN/high/ckpt, RUN/low/ckpt (experts.h)
 * RUN/samples/step-…/   samples (preview.h)
 * RUN/events.out…       the same scalars for TensorBoard
 * RUN/end.json          how the newest start ended; absent while it is active, and after a kill
 * RUN/track/            logs and positions of trackers (trackers.h)
 */
#ifndef VFM_TRAIN_RUN_RUN_H
#define VFM_TRAIN_RUN_RUN_H

#include <signal.h>

#include "data/dataset/shard_cache.h"
#include "io/json.h"
#include "train/job/context.h"
#include "train/run/identity.h"
#include "train/run/preview.h"
#include "train/run/trackers.h"

struct vfm_run_opts {
	const char *plan;        /* path */
	const char *plan_sha256; /* required sha256 of the plan; NULL: any */
	const char *phase;       /* name of the training phase, for the records of the steps; NULL: none */
	const char *dir;         /* RUN */
	/* "auto": newest complete checkpoint in RUN; "no": RUN must have none; else the path of a checkpoint, which is
	 * used until RUN has a later one. */
	const char *resume;
	/* NULL, or a checkpoint or weights file.  If RUN has no checkpoint, the run starts at step 0 from these
	 * weights. init_part: "model" or "ema"; ignored for a weights file. */
	const char *init, *init_part;
	/* NULL, or the initial weights of a second network, for t below experts.boundary (experts.h) */
	const char *low_noise;
	/* NULL, or adapters of another program for `init` (vfm_ckpt_open_adapters), which the run trains further. */
	const char *init_lora;
	const char *low_noise_lora;        /* the same for low_noise */
	bool skip_missing;                 /* leaves out adapters of layers that the model lacks */
	struct vfm_shard_cache_opts cache; /* for remote shards; url NULL: none */
	const char *held_out;              /* plan of held-out data (held_out.h); NULL: none */
	struct vfm_preview_opts preview;   /* samples of the run (preview.h) */
	unsigned allow_change;             /* bits of enum vfm_run_difference, for resume and init */
	struct vfm_trackers *trackers;     /* follow the run; on rank 0, NULL: none */
	/* Changed by a signal handler on any rank: all ranks finish the step, save and return VFM_ESIGNAL. */
	volatile sig_atomic_t *stop;
	/* Called once per step with its record.  A negative result ends the run; VFM_EPIPE ends it like a signal, but
	 * without a message. */
	int (*on_step)(void *ctx, const json_t *record, struct vfm_err *err);
	void *ctx;
};

/* Collective over the ranks of the job.  Requires vfm_context_open(x, c).  All ranks write checkpoints; only rank 0
 * writes the other files of RUN and reports.  Returns 0 if all steps are done and saved, VFM_ESIGNAL if the run stopped
 * early and saved, else an error (see vfm_job_end).  Complete checkpoints remain complete after an error. */
int vfm_run(struct vfm_context *x, const struct vfm_config *c, const struct vfm_run_opts *o, struct vfm_err *err);

#endif
