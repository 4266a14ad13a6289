/* bench.h - the training step as a measurement: forward, backward and AdamW on synthetic
 * samples, warmed up, repeated.
 */
#ifndef VFM_TRAIN_BENCH_H
#define VFM_TRAIN_BENCH_H

#include "base/spread.h"
#include "train/context.h"
#include "train/trainer.h"

struct vfm_bench_step {
	int64_t samples;       /* in a pack */
	int32_t grid[3];       /* of a sample, in patches t, h, w */
	int64_t text_len;      /* rows of a sample */
	int64_t packs;         /* a step, of all ranks: a multiple of dp */
	int64_t warmup, steps; /* steps not counted, and at least so many that are */
	double min_s;          /* go on until the counted steps took this long */
};

struct vfm_bench_result {
	int64_t n;                /* steps measured */
	struct vfm_spread step_s; /* seconds of a step, on the slowest rank */
	/* of the mean step, reduced over the ranks (stats.h) */
	double comm_s, bubble_s, copy_s, host_s, ahead_s;
	double flops;           /* model FLOPs of a step (spec/model.h) */
	int64_t tokens;         /* of the global step */
	int64_t mem_peak_bytes; /* of the rank with the most */
	double loss;            /* of the last step: must be finite */
};

/* Splits `tokens` into a grid t x h x w near a video's shape: square frames of at most 16 x 16 patches. */
void vfm_bench_grid(int64_t tokens, int32_t grid[3]);

/* Sets a key of a configuration to measure; refuses one that a step on synthetic samples does not use, such as
 * data.threads. */
int vfm_bench_set(struct vfm_config *c, const char *assignment, struct vfm_err *err);
/* Local: refuses counts that are out of range. */
int vfm_bench_check(const struct vfm_bench_step *b, struct vfm_err *err);

/* Local: refuses packs of a step that dp does not divide. */
int vfm_bench_divides(int64_t packs, int64_t dp, struct vfm_err *err);

/* Collective: a trainer with dense random weights (vfm_params_fill_dense), the same for every layout.  Training starts
 * with gates and modulations of zero, whose products devices compute at another speed, and kernels are chosen by timing
 * them.  NULL: an error.  x is open for c (vfm_context_open). */
struct vfm_trainer *vfm_bench_trainer(struct vfm_context *x, const struct vfm_config *c, struct vfm_err *err);

/* Collective over the ranks of x, which is open for c; every rank gets the result. */
int vfm_bench_run(struct vfm_context *x, const struct vfm_config *c, const struct vfm_bench_step *b,
	struct vfm_bench_result *out, struct vfm_err *err);

#endif
