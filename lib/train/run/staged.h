/* staged.h - training stages in turn: each is a run of its own in RUN/NAME, from its own step 0 with the weights of the
 * stage before it.
 */
#ifndef VFM_TRAIN_RUN_STAGED_H
#define VFM_TRAIN_RUN_STAGED_H

#include "data/plan/stages.h"
#include "train/run/run.h"

struct vfm_staged {
	const struct vfm_stages *list;
	const struct vfm_config *config; /* [list->n], checked */
	/* Of the stages: init and init_part are those of the first; plan, plan_sha256, stage and held_out are set
	 * for each.  dir is RUN. */
	struct vfm_run_opts run;
};

/* Returns RUN/NAME of stage k; the caller frees it. */
char *vfm_staged_dir(const char *run, const struct vfm_stages *l, int k);
/* Returns the folder of the last stage before or at k that has a checkpoint; NULL: none has.  The caller frees it. */
char *vfm_staged_begun(const char *run, const struct vfm_stages *l, int k);

/* Collective over the job of x, in which no device is open.  Before the first stage trains, the plans of all are
 * checked against their configurations and each other.  A stage whose steps are done is passed by after a comparison of
 * its identity.  Returns as vfm_run.  VFM_EUSAGE also if a stage has begun although one before it has steps left. */
int vfm_run_stages(struct vfm_context *x, const struct vfm_staged *s, struct vfm_err *err);

#endif
