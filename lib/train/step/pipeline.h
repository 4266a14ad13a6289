/* pipeline.h - runs forward and backward of a step's packs on one rank, in the order of spec/layout/schedule.h.  A
 * single pp stage is a pipeline of one.
 *
 * Each pack in a chunk has its own tape.  Each pp stage uploads a pack once and then releases the host arrays.  The pp
 * stages send the residual stream forward ([rows of this rank, hidden] in its dtype) and its gradient backward; a rank
 * without rows of a pack sends nothing.  With train.graphs the forward and backward of a pack are one graph
 * (capture.h).
 *
 * Sends run on separate streams, one per direction, so that no pp stage waits for another to receive.  On asynchronous
 * devices, receives also run on a separate stream, one action early.  VFM_PP_EARLY=0 runs them on the compute stream
 * when needed; 1 runs them early on all devices.
 */
#ifndef VFM_TRAIN_STEP_PIPELINE_H
#define VFM_TRAIN_STEP_PIPELINE_H

#include "net/diffusion/model.h"
#include "spec/layout/pack.h"
#include "train/job/config.h"

struct vfm_pipeline;

/* The source of a step's packs, called by the thread that runs the step.  The pipeline releases a pack after its
 * upload. */
struct vfm_pack_source {
	/* Gets the next pack of this rank.  Returns a negative code with a message if there is none. */
	int (*next)(void *ctx, struct vfm_pack **p, struct vfm_err *err);
	void (*release)(void *ctx, struct vfm_pack *p);
	void *ctx;
};

/* Totals over the packs of this rank. */
struct vfm_pipeline_sums {
	/* only packs for which this rank is the first cp rank, so each pack counts once in a cp group */
	double flops;
	int64_t tokens, samples;
	double own_flops; /* of all packs, divided by the cp ranks of each */
};

/* Returns NULL on failure.  All arguments must outlive the pipeline. */
struct vfm_pipeline *vfm_pipeline_new(const struct vfm_config *c, const struct vfm_mesh *mesh, struct vfm_stream *s,
	struct vfm_model *m, struct vfm_params *ps, struct vfm_err *err);
void vfm_pipeline_free(struct vfm_pipeline *p); /* accepts NULL; blocks until pending sends complete */

/* Returns the choice of each layer of the model for its backward, [layers].  The caller may change the layers of this
 * pp stage before the first step.  train.recompute determines the initial values. */
struct vfm_keeps *vfm_pipeline_keeps(struct vfm_pipeline *p);

struct vfm_pipeline_losses {
	struct vfm_tensor sum;   /* f64 [1], device */
	struct vfm_tensor plain; /* optional f64 [1], device: squared errors without weights, summed over tokens */
	struct vfm_tensor *each; /* [n_packs], or NULL: not requested */
	/* with each: [n_packs] arrays of the samples of its elements, [segments]; ~sample: of the given frame.  Made by
	 * the pipeline; the caller frees them */
	int32_t **sample;
	int64_t *index; /* with each: [n_packs] of the packs within their step */
};

/* Collective: all pp stages pass the same n_packs, and the ranks of a cp x tp group the same packs.  Accumulates
 * gradients in the parameters.  On the last pp stage, adds this rank's share of the loss to loss->sum and of the
 * squared errors to loss->plain.  Sets loss->each[i] to the losses of the segments of pack i over this rank's tokens:
 * f32 [segments] in new device memory, which the caller frees (vfm_nbytes), even after a failure. */
int vfm_pipeline_run(struct vfm_pipeline *p, int64_t step, int64_t n_packs, const struct vfm_pack_source *src,
	const struct vfm_pipeline_losses *loss, struct vfm_pipeline_sums *sums, struct vfm_err *err);
/* Return the seconds that the host has waited for other pp stages, and for packs, since vfm_pipeline_new. */
double vfm_pipeline_bubble(const struct vfm_pipeline *p);
double vfm_pipeline_pack_wait(const struct vfm_pipeline *p);
/* Returns the number of packs launched as a graph (capture.h). */
int64_t vfm_pipeline_graphs(const struct vfm_pipeline *p);

#endif
