/* experts.h - a run of two networks for two ranges of t, such as the experts of Wan 2.2 (arXiv 2503.20314): "high"
 * for t from the boundary to 1, "low" below.  One trainer trains them in turn (train/job/turns.h); the state of the
 * other waits (train/step/idle.h).  A step that is divided updates each network once, with the mean loss over its own
 * tokens.
 *
 * Each network has its initial weights, adapters, optimizer, count of updates and learning rate, and a folder that
 * is like a run:
 *
 *     RUN/high/ckpt/step-…, RUN/low/ckpt/step-…    checkpoints after the same steps
 *     RUN/high/config.json, run.json               as of a run of this network alone
 */
#ifndef VFM_TRAIN_RUN_EXPERTS_H
#define VFM_TRAIN_RUN_EXPERTS_H

#include "train/job/turns.h"
#include "train/run/origin.h"
#include "train/run/run.h"
#include "train/step/idle.h"

struct vfm_expert {
	char *dir, *ckpt_dir;
	struct vfm_config c;
	json_t *config;
	struct vfm_run_opts o;
	struct vfm_identity id;
	struct vfm_origin origin;
	int64_t more; /* updates before this start, beyond those that the turns of today give */
};

struct vfm_experts { /* `= {0}`: the run has one network */
	struct vfm_expert v[VFM_EXPERTS];
	struct vfm_turns turns;
	struct vfm_idle idle;
	struct vfm_trainer *tr; /* NULL: one network */
	int active;
};

/* Sets *of [VFM_EXPERTS] to the configurations of the two networks.  VFM_EUSAGE: c has no boundary, or its kind is not
 * flow. */
int vfm_experts_configure(struct vfm_config of[VFM_EXPERTS], const struct vfm_config *c, struct vfm_err *err);
/* For a run of one network.  VFM_EUSAGE: c has a key of a second one. */
int vfm_experts_refuse(const struct vfm_config *c, struct vfm_err *err);

/* Collective.  Begins both networks from their newest checkpoints, or from o->init and o->low_noise, and makes the high
 * one active.  x->turns is set.  run: that of the caller, with its identity.  *first: completed steps; *saved, *skipped
 * as in struct vfm_origin.  VFM_EUSAGE: the checkpoints of the two are of different steps. */
int vfm_experts_begin(struct vfm_experts *x, const struct vfm_origin *run, int64_t *first, int64_t *saved,
	int64_t *skipped, struct vfm_err *err);
/* Collective.  Makes a network active.  All steps in flight have been read. */
int vfm_experts_enter(struct vfm_experts *x, int expert, struct vfm_err *err);
/* Returns the updates of a network in the steps below `step`. */
int64_t vfm_experts_updates(const struct vfm_experts *x, const struct vfm_expert *e, int64_t step);
/* Sets the range of t and the count of updates for a step of the active network, and returns its learning rate. */
double vfm_experts_prepare(struct vfm_experts *x, int64_t step, int64_t last);
/* Rank 0: writes config.json and run.json of both. */
int vfm_experts_record(struct vfm_experts *x, struct vfm_err *err);
void vfm_experts_release(struct vfm_experts *x);

#endif
