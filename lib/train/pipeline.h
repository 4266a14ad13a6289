/* pipeline.h - forward and backward of a step's packs on one rank, in the order that spec/schedule.h gives; one stage
 * is the simplest pipeline.
 *
 * A pack on the way through a chunk has a tape of its own; its input is made once a stage, from host arrays that are
 * handed back at once. Between stages the residual stream travels ([rows of the rank's piece, hidden] in its dtype, the
 * number of rows is known on both sides), and back its gradient; a rank that holds no rows of a pack sends nothing.
 * Noise and targets come from counters, where they are needed. With train.graphs the forward and backward of a pack are
 * captured and launched as one graph (train/capture.h). Sends run on streams of their own, one a direction, so that no
 * stage waits for another to receive.  On a device that runs behind its host messages are received on a stream of their
 * own, too, asked for one action before the one that needs them, so that they come while that one computes
 * (VFM_PP_EARLY=0: on the compute stream, where they are needed; 1: so on all devices).
 */
#ifndef VFM_TRAIN_PIPELINE_H
#define VFM_TRAIN_PIPELINE_H

#include "model/model.h"
#include "spec/pack.h"
#include "train/config.h"

struct vfm_pipeline;

/* Where the packs of a step come from; called by the thread of the step.  A pack is held only until it is on the
 * device. */
struct vfm_pack_source {
	/* the next of this rank's packs; negative: there is none, and why */
	int (*next)(void *ctx, struct vfm_pack **p, struct vfm_err *err);
	void (*release)(void *ctx, struct vfm_pack *p);
	void *ctx;
};

/* What the packs of this rank were; the loss is this rank's share of the sum. */
struct vfm_pipeline_sums {
	double flops;
	int64_t tokens, samples;
};

/* c, mesh, m and its parameters must outlive it.  NULL on failure. */
struct vfm_pipeline *vfm_pipeline_new(const struct vfm_config *c, const struct vfm_mesh *mesh, struct vfm_stream *s,
	struct vfm_model *m, struct vfm_params *ps, struct vfm_err *err);
void vfm_pipeline_free(struct vfm_pipeline *p); /* NULL is fine; waits for what is still being sent */

/* Gradients are added to the parameters', the losses of the packs to *loss (f64 [1], device) on the last stage.
 * Collective: all stages with the same n_packs, the ranks of a cp x tp group with the same packs. */
int vfm_pipeline_run(struct vfm_pipeline *p, int64_t step, int64_t n_packs, const struct vfm_pack_source *src,
	struct vfm_tensor loss, struct vfm_pipeline_sums *sums, struct vfm_err *err);
/* Seconds that this rank's host has waited for other stages, for packs, since the start. */
double vfm_pipeline_bubble(const struct vfm_pipeline *p);
double vfm_pipeline_pack_wait(const struct vfm_pipeline *p);
/* Returns the number of packs that were launched as a graph (train/capture.h). */
int64_t vfm_pipeline_graphs(const struct vfm_pipeline *p);

#endif
