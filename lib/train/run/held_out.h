/* held_out.h - the loss of held-out data at fixed noise.
 *
 * A held-out plan (vfm-pack --held-out-plan) is evaluated at eval.times noise levels: the quantiles (k + 1/2) / times
 * of the distribution that training draws from (net/diffusion/diffusion.h).  (seed 0, step k) determines the noise of a
 * sample at level k, and whether its first frame is given (diffusion.image_cond).  No text is dropped, and captions are
 * chosen with seed 0.  The loss is the mean squared error over the tokens of the plan, without weights and balance
 * loss.  It depends on the layout of the ranks only through the order of sums.  Of two networks (experts.h), each
 * computes the levels in its range of t.
 *
 * An evaluation changes no weight, gradient, optimizer state or fp8 history, so a run without it has the same bits.
 */
#ifndef VFM_TRAIN_RUN_HELD_OUT_H
#define VFM_TRAIN_RUN_HELD_OUT_H

#include "data/dataset/shard_cache.h"
#include "data/plan/plan.h"
#include "train/step/trainer.h"

struct vfm_held_out;

/* Local.  Opens and reads the whole plan.  Returns NULL on failure.  All arguments must outlive the result.
 * VFM_EUSAGE: the plan does not fit the model or the encoders of the training plan, or shares samples with it
 * (data/plan/split.h). */
struct vfm_held_out *vfm_held_out_open(const char *path, const struct vfm_plan *train, const struct vfm_config *c,
	struct vfm_shard_cache *cache, struct vfm_err *err);
void vfm_held_out_close(struct vfm_held_out *h); /* accepts NULL */
/* Returns the identity of the plan (vfm-plan(5)). */
const char *vfm_held_out_sha256(const struct vfm_held_out *h);

struct vfm_held_out_loss {
	int levels;                       /* eval.times; 0: no evaluation */
	double level[VFM_EVAL_TIMES_MAX]; /* mean squared error at each level, from least to most noise */
	double mean;                      /* over the levels */
};

struct vfm_experts;
/* Collective.  Blocks until the evaluation is complete; all ranks get the same result.  Runs between two steps.  x: the
 * networks of a run of two; NULL: one. */
int vfm_held_out_run(struct vfm_held_out *h, struct vfm_trainer *tr, struct vfm_experts *x,
	struct vfm_held_out_loss *out, struct vfm_err *err);

#endif
