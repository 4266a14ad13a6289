/* scales.h - delayed scaling of fp8 (Micikevicius et al., arXiv 2209.05433, section 3.2; the window of maxima as in
 * NVIDIA's Transformer Engine): the scale of a tensor follows from its largest |x| in the previous steps.
 *
 * In each fp8 linear layer, the tensors x, weight and gradient have a history of `window` steps, which is constant
 * within a step.  The ops collect the maxima of a step.  At its end the ranks that hold the layer take the maximum over
 * all of them, so a history does not depend on the layout.  One exception: each cp rank sees only its own term of the
 * gradient of the text's keys and values.
 *
 * An empty history (all 0) selects current scaling in the first step.  In later steps it means that all previous steps
 * were skipped; a norm that quantizes for the reading layer then uses the scale 1.
 *
 * struct vfm_params owns the scales and releases them.
 */
#ifndef VFM_NET_NN_SCALES_H
#define VFM_NET_NN_SCALES_H

#include "net/nn/param.h"
#include "net/tape/gops.h"

struct vfm_scales {
	int64_t window;
	struct vfm_param **p; /* [n]: the weights of the layers, in the order of their declaration */
	int64_t n;
	float *past; /* device [n, VFM_FP8_TENSORS, window] = [n_past], the oldest step first */
	int64_t n_past;
	bool writes; /* this rank writes the histories to checkpoints, as the only one of the ranks that hold them */
	struct vfm_fp8_past *of; /* [n] */
	/* private */
	/* device [ranks, room]: the maxima of the step.  The ops of this rank write its row. */
	float *all;
	int64_t ranks, room;
};

/* Creates empty histories for all fp8 layers, after vfm_params_alloc; window >= 1.  Collective over the world. */
int vfm_scales_new(struct vfm_params *ps, int64_t window, struct vfm_err *err);
void vfm_scales_free(struct vfm_params *ps); /* no-op without scales */

/* Discards the maxima that forwards have collected since the last vfm_scales_step, such as those of an evaluation.
 * Local.  No-op without scales. */
int vfm_scales_discard(struct vfm_params *ps, struct vfm_err *err);
/* Ends a step, after its last backward: appends the maxima to the histories.  If grad_scale [1] f32 (absent: 1) is not
 * finite, the step was skipped, and the histories stay unchanged.  Collective over the world.  No-op without scales. */
int vfm_scales_step(struct vfm_params *ps, struct vfm_tensor grad_scale, struct vfm_err *err);

#endif
