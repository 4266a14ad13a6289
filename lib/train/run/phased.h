/* phased.h - training phases in turn: each is a run of its own in RUN/NAME, from its own step 0 with the weights of the
 * phase before it.
 */
#ifndef VFM_TRAIN_RUN_PHASED_H
#define VFM_TRAIN_RUN_PHASED_H

#include "data/plan/phases.h"
#include "train/run/run.h"

struct vfm_phased {
	const struct vfm_phases *list;
	const struct vfm_config *config; /* [list->n], checked */
	/* Of the phases: init and init_part are those of the first; plan, plan_sha256, phase and held_out are set
	 * for each.  dir is RUN. */
	struct vfm_run_opts run;
};

/* Returns the folder of the last phase before or at k that has a checkpoint to resume from; NULL: none has.  The caller
 * frees it. */
char *vfm_phased_begun(const char *run, const struct vfm_phases *l, int k);

/* Collective over the job of x, which has no open device.  Before the first phase trains, the plans of all are checked
 * against their configurations and each other.  A phase whose steps are done is passed by after a comparison of its
 * identity.  Returns as vfm_run.  VFM_EUSAGE also if a phase has begun although one before it has steps left. */
int vfm_run_phases(struct vfm_context *x, const struct vfm_phased *s, struct vfm_err *err);

#endif
