/* plan_check.h - checks of a plan (data/plan/plan.h) against the configuration of a run.  Local. */
#ifndef VFM_TRAIN_JOB_PLAN_CHECK_H
#define VFM_TRAIN_JOB_PLAN_CHECK_H

#include "data/plan/plan.h"
#include "train/job/config.h"

/* VFM_EUSAGE: patch, channels or text width of the plan differ from those of the model. */
int vfm_plan_check_model(
	const struct vfm_plan_header *h, const char *path, const struct vfm_model_spec *m, struct vfm_err *err);
/* Like vfm_plan_check_model.  VFM_EUSAGE also if the plan has fewer steps than c->train.steps, or if a step cannot be
 * divided among the dp ranks of p (among dp and cp ranks, if the plan divides packs into parts).  Sets *last to the
 * number of steps to train. */
int vfm_plan_check(const struct vfm_plan_header *h, const char *path, const struct vfm_config *c,
	const struct vfm_parallel *p, int64_t *last, struct vfm_err *err);
/* Opens the plan of a run with `ranks` ranks and checks it like vfm_plan_check; needs no device.  Returns NULL on
 * failure; VFM_EUSAGE also if the ranks do not fit c->parallel.  The caller closes the result. */
struct vfm_plan *vfm_plan_open_checked(
	const char *path, const struct vfm_config *c, int ranks, int64_t *last, struct vfm_err *err);

#endif
