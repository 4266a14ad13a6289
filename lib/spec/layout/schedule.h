/* schedule.h - pipeline schedules: the layers of each pp stage and the order of its actions.  Pure functions.
 *
 * The layers are divided into pp * vpp parts; chunk c of pp stage s is part c * pp + s.  A microbatch (a pack) passes
 * the parts in order.  F is a forward, B a backward, and W the weight gradients if they are separate from B.
 */
#ifndef VFM_SPEC_LAYOUT_SCHEDULE_H
#define VFM_SPEC_LAYOUT_SCHEDULE_H

#include <stdint.h>

#include "base/err.h"
#include "spec/layout/parallel.h"
#include "spec/model/model.h"

/* Returns the layers [*first, *end) of part `part` of `parts`, balanced by FLOPs including patch embedding and head.
 * Every part has at least one layer if there are enough layers. */
void vfm_pp_stage_layers(const struct vfm_model_spec *m, int parts, int part, int64_t *first, int64_t *end);

enum vfm_action_kind { VFM_DO_F, VFM_DO_B, VFM_DO_W };
struct vfm_action {
	enum vfm_action_kind kind;
	int chunk;  /* of this pp stage */
	int64_t mb; /* microbatch */
};
struct vfm_schedule {
	struct vfm_action *a;
	size_t n, cap;
};
/* Makes the actions of a pp stage; any mb >= 1 is allowed.  VFM_EUSAGE: mb < 1.
 *
 * - 1F1B: Narayanan et al. 2019.
 * - Interleaved 1F1B, with vpp > 1: Narayanan et al. 2021.  It works best if mb is a multiple of pp.
 * - ZB-H1: Qi et al. 2023.  It delays W to fill the drain phase. */
int vfm_schedule_make(
	struct vfm_schedule *s, int schedule, int pp, int vpp, int pp_stage, int64_t mb, struct vfm_err *err);
void vfm_schedule_release(struct vfm_schedule *s);

#endif
