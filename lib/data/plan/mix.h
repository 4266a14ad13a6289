/* mix.h - the weights of sets over the steps of a plan.
 *
 * The share of a set at a step is its weight there over the sum of all weights.
 */
#ifndef VFM_DATA_PLAN_MIX_H
#define VFM_DATA_PLAN_MIX_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#define VFM_WEIGHTS_MAX_POINTS 4096

/* Linear between the points, constant before the first and after the last.  Two points at one step are a jump. */
struct vfm_mix_weights { /* `= {0}` before; without points the weight is 0; release in any case */
	struct vfm_weight_point {
		int64_t step;
		double weight; /* >= 0 */
	} * v;
	int32_t n;
};

/* Parses "W", or "W@STEP,W@STEP,..." with ascending steps; at most two are equal.  Steps may have the suffixes
 * K (1000) and M.  VFM_EUSAGE otherwise. */
int vfm_weights_parse(const char *text, struct vfm_mix_weights *w, struct vfm_err *err);
/* Appends a point.  VFM_EUSAGE: the weight is not a number >= 0, the step is out of order, or there are too many
 * points. */
int vfm_weights_add(struct vfm_mix_weights *w, int64_t step, double weight, struct vfm_err *err);
void vfm_weights_release(struct vfm_mix_weights *w);

/* Returns the weight at a step; at a jump, the weight after it. */
double vfm_weights_at(const struct vfm_mix_weights *w, double step);
/* Returns whether the weights of any set change. */
bool vfm_mix_changes(const struct vfm_mix_weights *w, int32_t n);
/* Returns the first step after `step` at which one of these sets has a point, or INFINITY. */
double vfm_mix_next_point(const struct vfm_mix_weights *w, int32_t n, double step);
/* Fills share [n] at a step; all shares are 0 if all weights are 0. */
void vfm_mix_shares(const struct vfm_mix_weights *w, int32_t n, double step, double *share);
/* Fills mean [n] with the shares averaged over the steps from..to, from < to. */
void vfm_mix_mean(const struct vfm_mix_weights *w, int32_t n, double from, double to, double *mean);
/* Returns the last step from `step` to `to`, without a point in between, until which no share changes by more than
 * `change`. */
double vfm_mix_steady(const struct vfm_mix_weights *w, int32_t n, double step, double to, double change);

#endif
