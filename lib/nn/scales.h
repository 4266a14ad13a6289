/* scales.h - delayed scaling of fp8 (Micikevicius et al., arXiv 2209.05433, section 3.2; the window of maxima as in
 * NVIDIA's Transformer Engine): the scale of a tensor comes from its largest |x| in the steps before, so that no pass
 * over it has to come first.
 *
 * Of each linear layer in fp8 the three tensors x, weight and gradient have a history of `window` steps.  Within a step
 * it does not change: all packs, and what recompute runs again, are scaled alike.  What the ops see meanwhile is
 * collected beside it, by maximum; at the end of the step the ranks that hold the layer put theirs together, so that a
 * history does not depend on how they divide tensors and packs.  (Of a gradient that is a sum over cp, that of the
 * text's keys and values, each rank sees its own part of the sum.) An empty history (all 0: the first step) makes a
 * tensor scale itself.
 *
 * Lives with the parameters, which release it.
 */
#ifndef VFM_NN_SCALES_H
#define VFM_NN_SCALES_H

#include "grad/gops.h"
#include "nn/param.h"

struct vfm_scales {
	int64_t window;
	struct vfm_param **p; /* [n]: the layers' weights, in the order of their declaration */
	int64_t n;
	float *past; /* device [n, VFM_FP8_TENSORS, window] = [n_past], the oldest step first */
	int64_t n_past;
	bool writes; /* of the ranks with the same histories this one writes them to checkpoints */
	/* private */
	struct vfm_fp8_past *of; /* [n] */
	/* device [ranks, room]: the maxima of the step; the ops of this rank write its own row */
	float *all;
	int64_t ranks, room;
};

/* Empty histories for all layers in fp8 of parameters that have been laid out (vfm_params_alloc).  window >= 1.
 * Collective over the world. */
int vfm_scales_new(struct vfm_params *ps, int64_t window, struct vfm_err *err);
void vfm_scales_free(struct vfm_params *ps); /* there may be none */

/* The end of a step, after its last backward.  Collective over the world; without scales it does nothing. */
int vfm_scales_step(struct vfm_params *ps, struct vfm_err *err);

#endif
