/* origin.h - the start of a run: a checkpoint, initial weights, or the seed.  Adapters (spec/model/tuning.h) begin on a
 * base model; their checkpoints name it by path and sha256.
 */
#ifndef VFM_TRAIN_RUN_ORIGIN_H
#define VFM_TRAIN_RUN_ORIGIN_H

#include "ckpt/adapters.h"
#include "ckpt/ckpt.h"
#include "train/job/job.h"
#include "train/run/run.h"
#include "train/step/trainer.h"

struct vfm_origin {
	/* set by the caller, borrowed */
	struct vfm_job *job;
	struct vfm_trainer *tr;
	const struct vfm_config *config;
	const struct vfm_run_opts *run; /* dir, resume, init, init_part, init_lora, skip_missing, allow_change */
	const char *ckpt_dir;           /* the directory of checkpoints of RUN */
	const json_t *plan_forced;      /* of the plan's header; NULL: none */
	struct vfm_identity *id;        /* begin adds encoders, init and forced */
	/* set by vfm_origin_begin */
	int64_t first;            /* completed steps */
	int64_t saved;            /* step of the newest checkpoint of this run; -1: none */
	int64_t skipped;          /* steps skipped before */
	int64_t updates;          /* of one of two networks (experts.h); -1: not recorded */
	int64_t size[3];          /* frames, height, width of a sample of the data; zeros: unknown */
	json_t *of_init, *forced; /* owned: id->init and id->forced */
};

/* Collective over the job.  Loads the newest good checkpoint of the run, or else the initial weights, or else keeps the
 * weights of the seed.  Compares the identities.  All ranks return the same result.  The caller releases *o in any
 * case. */
int vfm_origin_begin(struct vfm_origin *o, struct vfm_err *err);
void vfm_origin_release(struct vfm_origin *o);

/* Sets the section "model" of *c, and kind, t_min and t_max of "diffusion", to those of the weights in `path`, as
 * far as their configuration is known.  If the run in `dir` (NULL: none) has a checkpoint to resume from, uses the
 * newest instead, since --init is not read then.  lora: adapters for the weights, which set rank and alpha of
 * "lora"; path NULL: none.  After the first checkpoint of a run that began with such adapters, that sets them.
 * No-op if path is NULL and that run did not begin with --init.  Local.  VFM_EUSAGE, VFM_EENV as in vfm_ckpt_open;
 * VFM_EUSAGE also for a LoRA file. */
int vfm_config_initial(
	struct vfm_config *c, const char *path, const struct vfm_attach *lora, const char *dir, struct vfm_err *err);

#endif
