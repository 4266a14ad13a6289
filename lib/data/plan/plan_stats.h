/* plan_stats.h - the statistics of a plan: its mix by set and, if it changes, by steps; fill, imbalance, and samples
 * per pack. */
#ifndef VFM_DATA_PLAN_PLAN_STATS_H
#define VFM_DATA_PLAN_PLAN_STATS_H

#include <stdint.h>

#include "data/plan/plan.h"

#define VFM_PLAN_RANGES 10

struct vfm_plan_stats {
	int64_t packs, samples, tokens;
	double cost;             /* the sum over all packs */
	double fill, fill_least; /* tokens / (packs x context), or parts instead of packs; of the emptiest pack */
	/* The largest pack of a step over the mean pack: the mean and the maximum over the steps.  With packs of
	 * several parts, both are per part. */
	struct vfm_plan_imbalance {
		double mean, most;
	} by_tokens, by_cost;
	struct vfm_plan_set_stats {
		int64_t samples, tokens;
	} * sets; /* [n_sets] of the header */
	/* packs by their number of samples: bucket k counts packs of 2^k to 2^(k+1) - 1 samples */
	int64_t per_pack[32];
	int64_t by_cp[8]; /* packs of 2^k parts */
	int32_t per_pack_least, per_pack_most;
	/* if weights change: equal ranges of steps, at most VFM_PLAN_RANGES; else 0 */
	int32_t n_ranges;
	struct vfm_plan_range {
		int64_t from, end; /* steps; end is excluded */
		int64_t tokens;
		int64_t *set_tokens; /* [n_sets] */
		double *requested;   /* [n_sets] mean share */
	} ranges[VFM_PLAN_RANGES];
};

/* Reads all steps of the plan, one at a time.  The caller releases the statistics, even after an error. */
int vfm_plan_stats_read(struct vfm_plan_stats *s, const struct vfm_plan *m, struct vfm_err *err);
void vfm_plan_stats_release(struct vfm_plan_stats *s);

#endif
