/* turns.h - which of two networks the packs of a plan train, such as the experts of Wan 2.2 (arXiv 2503.20314).
 *
 * They take turns in blocks of experts.turn steps, or of experts.turn_packs packs.  Of the blocks, a network gets the
 * share that its range has of the distribution of t, spread evenly: over a run, t has the distribution of a single
 * network.  The network of a block follows from step and pack alone, so that it does not depend on the ranks.
 */
#ifndef VFM_TRAIN_JOB_TURNS_H
#define VFM_TRAIN_JOB_TURNS_H

#include "data/plan/plan.h"
#include "train/job/config.h"

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
/* Returns the network whose packs a step trains first; those of the other follow, if any. */
int vfm_turns_first(const struct vfm_turns *t, int64_t step);
int64_t vfm_turns_before(const struct vfm_turns *t, int expert, int64_t step); /* updates in the steps below `step` */
double vfm_turns_share(const struct vfm_turns *t);                             /* of the high network, 0 to 1 */
double vfm_turns_exchanges(const struct vfm_turns *t); /* of the two networks, per step on average */

#endif
