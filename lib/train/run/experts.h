/* experts.h - a run of two networks for two ranges of t, such as the experts of Wan 2.2 (arXiv 2503.20314): "high"
 * for t from the boundary to 1, "low" below.  They are trained in turn, each in blocks of experts.turn steps of the
 * plan, or of experts.turn_packs packs, by one trainer; the state of the other waits (train/step/idle.h).
 *
 * Of the blocks, a network gets the share that its range has of the distribution of t, spread evenly: over a run, t has
 * the distribution of a single network.  The network of a block follows from step and pack alone, so that it does not
 * depend on the ranks.  With blocks of packs, a step updates each network once, with the mean over its own tokens.
 *
 * Each network has its initial weights, adapters, optimizer, count of updates and learning rate, and a folder that
 * is like a run:
 *
 *     RUN/high/ckpt/step-…, RUN/low/ckpt/step-…    checkpoints after the same steps
 *     RUN/high/config.json, run.json               as of a run of this network alone
 */
#ifndef VFM_TRAIN_RUN_EXPERTS_H
#define VFM_TRAIN_RUN_EXPERTS_H

#include "data/plan/plan.h"
#include "train/run/origin.h"
#include "train/run/run.h"
#include "train/step/idle.h"

enum { VFM_EXPERT_HIGH, VFM_EXPERT_LOW, VFM_EXPERTS };
extern const char *const vfm_expert_names[VFM_EXPERTS]; /* "high", "low" */

/* Which network each pack trains. */
struct vfm_turns {
	int64_t block; /* packs of a block: a multiple of batch, or a divisor */
	int64_t batch; /* packs of a step */
	int64_t share; /* of the high network, in units of 2^-20 */
};
/* The share is that of samples as long as the plan's context.  VFM_EUSAGE: experts.turn_packs does not fit the plan. */
int vfm_turns_of(
	struct vfm_turns *t, const struct vfm_config *c, const struct vfm_plan_header *plan, struct vfm_err *err);
int vfm_turns_at(const struct vfm_turns *t, int64_t step, int64_t pack); /* VFM_EXPERT_… of a pack; both from 0 */
bool vfm_turns_divide(const struct vfm_turns *t);                        /* a step may train both networks */
int64_t vfm_turns_packs(const struct vfm_turns *t, int expert, int64_t step); /* of a step that train a network */
/* Returns the network of which a step trains the packs first; the other's follow, if any. */
int vfm_turns_first(const struct vfm_turns *t, int64_t step);
int64_t vfm_turns_before(const struct vfm_turns *t, int expert, int64_t step); /* updates in the steps below `step` */

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

/* Collective.  Begins both networks from their newest checkpoints, or from o->init and o->low_noise, and makes the high
 * one active.  x->turns is set.  run: that of the caller, with its identity.  *first: completed steps; *saved, *skipped
 * as in struct vfm_origin.  VFM_EUSAGE: the checkpoints of the two are of different steps. */
int vfm_experts_begin(struct vfm_experts *x, const struct vfm_origin *run, int64_t *first, int64_t *saved,
	int64_t *skipped, struct vfm_err *err);
/* Collective.  Makes a network active.  No step may be in flight. */
int vfm_experts_enter(struct vfm_experts *x, int expert, struct vfm_err *err);
/* Returns the updates of a network in the steps below `step`. */
int64_t vfm_experts_updates(const struct vfm_experts *x, const struct vfm_expert *e, int64_t step);
/* Sets the range of t and the count of updates for a step of the active network, and returns its learning rate. */
double vfm_experts_prepare(struct vfm_experts *x, int64_t step, int64_t last);
/* Rank 0: writes config.json and run.json of both. */
int vfm_experts_record(struct vfm_experts *x, struct vfm_err *err);
void vfm_experts_release(struct vfm_experts *x);

#endif
