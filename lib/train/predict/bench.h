/* bench.h - measures the training step: forward, backward and AdamW on synthetic samples, with warm-up and repetition.
 */
#ifndef VFM_TRAIN_PREDICT_BENCH_H
#define VFM_TRAIN_PREDICT_BENCH_H

#include "base/stats.h"
#include "device/sim/sim.h"
#include "train/job/context.h"
#include "train/step/recompute.h"
#include "train/step/trainer.h"

struct vfm_bench_step {
	int64_t samples;       /* samples per pack */
	int32_t grid[3];       /* grid of each sample, in patches t, h, w */
	int32_t second[3];     /* grid of every second sample; zeros: the same grid */
	int64_t text_len;      /* text rows per sample */
	int64_t packs;         /* packs per step over all ranks: a multiple of dp */
	int64_t warmup, steps; /* minimum numbers of warm-up steps (0: none) and of measured steps */
	double min_s;          /* minimum total time of the measured steps */
	/* host memory of a rank for offloading; 0: that of this machine, or of the simulated one */
	double host_bytes;
	/* optional: called before and after each step, when the compute stream has passed all earlier work */
	void (*before)(void *ctx, struct vfm_dev *dev);
	void (*after)(void *ctx, struct vfm_dev *dev);
	void *ctx;
};

/* An exchange of two networks (train/step/idle.h). */
struct vfm_bench_exchange {
	double s[VFM_ESTIMATES];
	int64_t bytes;
};

struct vfm_bench_result {
	int64_t n;                /* steps measured */
	struct vfm_spread step_s; /* seconds per step on the slowest rank */
	/* means over the measured steps, reduced over the ranks (stats.h) */
	double comm_s, bubble_s, copy_s, host_s, ahead_s;
	double flops;           /* model FLOPs per step (spec/model/linears.h) */
	int64_t tokens;         /* tokens per global step */
	int64_t mem_peak_bytes; /* maximum over the ranks */
	double host_bytes;      /* pinned host memory of this rank; only of a simulated device, else 0 */
	/* compactions of this rank's memory pool during the measured steps (device/dev/mapped.h) */
	int64_t compactions;
	struct vfm_bench_exchange exchange; /* of a configuration with two networks, on a simulated device; else 0 */
	double loss;                        /* loss of the last step; always finite */
	char recompute[VFM_RECOMPUTE_TEXT]; /* the plan of this rank's blocks (recompute.h); "": none */
};

/* Factors `tokens` into a video-like grid t x h x w with square frames of at most 16 x 16 patches.  If model.pos_max
 * has no positions for that grid, uses frames that fit pos_max: those nearest to squares, and the smallest of them.
 * VFM_EUSAGE, with the grid of square frames, if no shape of this many patches fits. */
int vfm_bench_grid(const struct vfm_model_spec *m, int64_t tokens, int32_t grid[3], struct vfm_err *err);

/* Sets a configuration key like vfm_config_set.  VFM_EUSAGE: a step on synthetic samples does not use the key, such as
 * data.threads. */
int vfm_bench_set(struct vfm_config *c, const char *assignment, struct vfm_err *err);
/* Local.  Returns VFM_EUSAGE if a count is out of range. */
int vfm_bench_check(const struct vfm_bench_step *b, struct vfm_err *err);

/* Local.  Returns VFM_EUSAGE if dp does not divide `packs`, the number of packs per step. */
int vfm_bench_divides(int64_t packs, int64_t dp, struct vfm_err *err);

/* Returns whether the ranks of a cp group do unequal work on the packs, because tokens of a sample, or frames and
 * columns, are not divisible among them (spec/layout/tokens.h, spec/layout/division.h). */
bool vfm_bench_cp_apart(const struct vfm_bench_step *b, const struct vfm_config *c);

/* Collective.  Returns a trainer with dense random weights (vfm_params_fill_dense), identical in every layout, or NULL
 * on failure.  The zero-initialized gates and modulations of training would distort the timing: the speed of a matrix
 * product depends on its values, and kernels are selected by timing.  Requires vfm_context_open(x, c). */
struct vfm_trainer *vfm_bench_trainer(struct vfm_context *x, const struct vfm_config *c, struct vfm_err *err);

/* Maximum number of warm-up steps beyond those of *b.  Warm-up ends with a step in which no rank timed an op
 * (vfm_dev.tuned), since a step may time an op at its first use.  With train.overlap_update, products that overlap the
 * last step's update leave it multiprocessors and therefore use other implementations. */
enum { VFM_BENCH_MORE_WARMUP = 10 };

/* Collective over the ranks of x.  Every rank receives the result.  Requires vfm_context_open(x, c). */
int vfm_bench_run(struct vfm_context *x, const struct vfm_config *c, const struct vfm_bench_step *b,
	struct vfm_bench_result *out, struct vfm_err *err);

/* Like vfm_bench_run, with packs [n] of this rank in turn; grid, samples and text_len of *b are unused.  largest: the
 * pack with the most tokens, for which recompute is planned. */
int vfm_bench_run_packs(struct vfm_context *x, const struct vfm_config *c, const struct vfm_bench_step *b,
	struct vfm_pack *packs, int64_t n, const struct vfm_pack_sums *largest, struct vfm_bench_result *out,
	struct vfm_err *err);

/* Number of steps before the predicted one.  The previous step tells how much of a launch overlaps (device/sim/sim.h).
 * With this number, the time of a step is within 0.1 % of that after many more steps. */
enum { VFM_PREDICTED_WARMUP = 2 };
/* A step on a simulated device: its start time and its seconds, at each estimate. */
struct vfm_bench_predicted {
	double begin[VFM_ESTIMATES], s[VFM_ESTIMATES];
};
/* Makes *b run one step after `warmup` steps, whose time *p receives; the record of the device (device/sim/sim.h)
 * begins with that step.  *p is valid after vfm_bench_run. */
void vfm_bench_predict(struct vfm_bench_step *b, int64_t warmup, struct vfm_bench_predicted *p);

#endif
