/* schedule.h - pipelines: which layers a stage holds, and in which order it works.  Pure functions of a few numbers:
 * training runs them, predictions count their bubbles, tests prove that they end.
 *
 * The layers are cut into pp * vpp chunks; chunk c of stage s is part c * pp + s of the model.  A microbatch (pack)
 * passes the parts in order.  F forward, B backward, W the gradients of the weights (only where the schedule splits
 * them from B).
 */
#ifndef VFM_SPEC_SCHEDULE_H
#define VFM_SPEC_SCHEDULE_H

#include <stdint.h>

#include "base/err.h"
#include "spec/model.h"
#include "spec/parallel.h"

/* Layers [*first, *end) of part `part` of `parts`, balanced by FLOPs: patches and head count.  Every part has a layer
 * where there are as many. */
void vfm_stage_layers(const struct vfm_model_spec *m, int parts, int part, int64_t *first, int64_t *end);

enum vfm_action_kind { VFM_DO_F, VFM_DO_B, VFM_DO_W };
struct vfm_action {
	enum vfm_action_kind kind;
	int chunk;  /* of this stage */
	int64_t mb; /* microbatch */
};
struct vfm_schedule {
	struct vfm_action *a;
	size_t n, cap;
	/* most microbatch-chunks that are held at a time: F done, but not B (or W, where it is split) */
	int64_t in_flight;
};
/* 1F1B (Narayanan et al. 2019); with vpp > 1 interleaved (2021), for any mb, best a multiple of pp; ZB-H1 (Qi et al.
 * 2023): W lags behind B so that it fills the end, and with vpp > 1 the same over the interleaved order. VFM_EUSAGE: mb
 * < 1. */
int vfm_schedule_make(
	struct vfm_schedule *s, int schedule, int pp, int vpp, int stage, int64_t mb, struct vfm_err *err);
void vfm_schedule_release(struct vfm_schedule *s);

/* Runs all stages by the clock with the given times of F, B and W of one chunk (B includes W where it is not split) and
 * of a message: the time of the step, and the share of it that stages stand idle.  VFM_EUSAGE if it would hang. */
int vfm_schedule_time(int schedule, int pp, int vpp, int64_t mb, double f, double b, double w, double send,
	double *total, double *bubble, struct vfm_err *err);

#endif
