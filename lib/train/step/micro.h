/* micro.h - a microbatch: a pack on the device with its noisy input and target. */
#ifndef VFM_TRAIN_STEP_MICRO_H
#define VFM_TRAIN_STEP_MICRO_H

#include "device/dev/upload.h"
#include "net/diffusion/model.h"
#include "spec/layout/pack.h"
#include "train/job/config.h"

struct vfm_micro {
	struct vfm_model_in in;
	struct vfm_stream *stream;
	void *mem; /* one allocation for the tensors below */
	size_t bytes;
	struct vfm_tensor x0, target; /* [T,F] the pack's dtype, f32; absent unless opts.ends */
	struct vfm_tensor coef;       /* [G,4] f32: by segments (net/diffusion/input.h) */
	/* [G] f32: weight of a token's loss, which is that of its draw / tokens of the global step.  A given frame has
	 * weight 0, and the other tokens of its sample share its weight.  Without a weighting, the weights of a global
	 * step therefore sum to 1, and those of a sample are proportional to its tokens. */
	struct vfm_tensor w;
	/* private */
	struct vfm_event *uploaded; /* NULL: the compute stream has waited for the upload */
	struct vfm_diffuse noise;   /* the op that computes the noisy input and the target; without x0: none */
};

/* Fixed noise instead of draws: the quantile (level + 1/2) / levels of the distribution, with noise and given frames of
 * (seed 0, step `level`).  No text or image is dropped. */
struct vfm_fixed_noise {
	int level, levels;
	float weight;        /* of a token's loss */
	double t_min, t_max; /* a sample at another noise level has no weight: t_min <= t < t_max */
};

struct vfm_micro_opts {
	const struct vfm_config *config;
	const struct vfm_mesh *mesh;
	int64_t step;
	bool ends; /* this pp stage holds the patches or the head: compute the noisy input and the target */
	const struct vfm_fixed_noise *fixed; /* NULL: the draws of the step */
	/* uploads during the work of the compute stream (device/dev/upload.h); NULL: in its order */
	struct vfm_upload *upload;
};

/* Makes a microbatch.  Random draws depend only on (seed, step, sample id).  The caller may release the pack on return,
 * and must release u even after a failure. */
int vfm_micro_make(struct vfm_micro *u, struct vfm_stream *s, const struct vfm_micro_opts *o, const struct vfm_pack *p,
	struct vfm_err *err);
/* Makes the compute stream wait for the upload, and computes the noisy input and the target.  Call it before other ops
 * read u; no-op the second time. */
int vfm_micro_ready(struct vfm_micro *u, struct vfm_err *err);
void vfm_micro_release(struct vfm_micro *u);
/* Returns the number of latent frames of sample i that a draw gives; at least one is not given. */
int32_t vfm_micro_given(const struct vfm_pack *p, int i, const struct vfm_draw *r);
/* Returns the loss weight of a token of sample i that is predicted.  given: the frames of the sample that are not.  weight: the
 * loss weight of a token in a sample without given frames. */
float vfm_micro_weight(const struct vfm_pack *p, int i, int32_t given, double weight);

#endif
