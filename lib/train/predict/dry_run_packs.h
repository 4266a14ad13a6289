/* dry_run_packs.h - the packs of each rank in a step of a simulated job (data/loader/loader.h), and the classes of
 * ranks with equal packs.
 *
 * dp ranks with packs of equal shapes in the same order are one class.  If there are more than `most` classes, the most
 * expensive one represents itself.  The others, in the order of their cost, are divided into most - 1 equal parts, each
 * represented by its middle class.  In packs with their own cp, ranks along cp also differ and stay separate.
 */
#ifndef VFM_TRAIN_PREDICT_DRY_RUN_PACKS_H
#define VFM_TRAIN_PREDICT_DRY_RUN_PACKS_H

#include "data/plan/plan.h"
#include "train/job/config.h"

/* The packs of a rank along dp and cp, without contents. */
struct vfm_dry_class {
	struct vfm_pack *v; /* [n], in turn; one if all are equal */
	int64_t n;
	int64_t packs; /* packs of the rank in the step, a multiple of n */
};

struct vfm_dry_packs {
	int *class_of;               /* [dp x cp] class of each rank, as in struct vfm_simulation */
	struct vfm_dry_class *class; /* [n] */
	int n;
	int dp_classes, dp_distinct; /* dp ranks: simulated; with different packs */
	double tokens, flops;        /* of the whole step; flops without recompute */
};

/* text: rows of each sample before padding. */
struct vfm_pack_sums vfm_dry_pack_sums(const struct vfm_config *c, const struct vfm_plan_pack *p, int64_t text);
/* Returns the largest cost of a rank in a step.  p has passed vfm_parallel_check; cp is that of the plan's header. */
double vfm_dry_packs_cost(const struct vfm_parallel *p, const struct vfm_plan_step *s, int cp);
struct vfm_dry_packs_opts {
	int cp;       /* of the plan's header */
	int most;     /* maximum classes of dp ranks, >= 1 */
	int64_t text; /* rows of each sample, before padding */
	bool by_size; /* the cost of a rank is the tokens of its largest pack */
};
/* Local.  The caller releases *out, even after a failure. */
int vfm_dry_packs_make(struct vfm_dry_packs *out, const struct vfm_config *c, const struct vfm_parallel *p,
	const struct vfm_plan_step *s, const struct vfm_dry_packs_opts *o, struct vfm_err *err);
void vfm_dry_packs_release(struct vfm_dry_packs *p);

#endif
