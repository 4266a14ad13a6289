/* phased.h - runs training phases one after another: each is a separate run in RUN/NAME, from its own step 0 with the
 * weights of the previous phase.
 */
#ifndef VFM_TRAIN_RUN_PHASED_H
#define VFM_TRAIN_RUN_PHASED_H

#include "data/plan/phases.h"
#include "train/run/run.h"

struct vfm_phased {
	const struct vfm_phases *list;
	const struct vfm_config *config; /* [list->n], checked */
	/* For the phases: init and init_part are those of the first; plan, plan_sha256, phase and held_out are set for
	 * each.  dir is RUN. */
	struct vfm_run_opts run;
};

/* Returns the folder of the last phase up to k that has a checkpoint to resume from, or NULL.  The caller frees it. */
char *vfm_phased_begun(const char *run, const struct vfm_phases *l, int k);

/* Collective over the job of x, which must not have an open device.  Before the first phase trains, checks the plans of
 * all phases against their configurations and each other.  Skips a phase whose steps are done, after comparing its
 * identity.  Returns like vfm_run.  VFM_EUSAGE also if a phase has begun although an earlier one has steps left. */
int vfm_run_phases(struct vfm_context *x, const struct vfm_phased *s, struct vfm_err *err);

#endif
