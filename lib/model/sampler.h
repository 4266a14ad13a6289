/* sampler.h - samples latents by integrating the probability-flow ODE.
 *
 * heun   Karras et al. 2022, algorithm 1 without churn: second order; sigma_i =
 *        (smax^(1/rho) + i/(N-1) (smin^(1/rho) - smax^(1/rho)))^rho, then 0.  The corrector is evaluated at the new
 *        point.  For edm.
 * euler  first order along the probability-flow ODE: for flow t from 1 to 0 with its shift; for edm the
 *        same sigmas as heun.
 *
 * Classifier-free guidance: F = F(negative) + cfg (F(text) - F(negative)), with all predictions in one pack.  The
 * negative text defaults to the null text.  The null text is the dropped text of training: rows of zeros.  A sample
 * whose text and negative text are both null is not guided: F = F(null).
 *
 * The noise of a sample depends on (seed, sample id) only, so a sample does not depend on the other samples of its
 * pack.
 *
 * A given first frame stays clean, at time 0, in every evaluation, and is part of the result.  Only for flow.
 *
 * On a mesh (one pipeline stage) the ranks that share a pack each compute their tokens.  The noise is the same in every
 * layout, and all of these ranks obtain the same latents.
 */
#ifndef VFM_MODEL_SAMPLER_H
#define VFM_MODEL_SAMPLER_H

#include "model/diffusion.h"
#include "model/model.h"

enum vfm_sampler_kind { VFM_SAMPLER_AUTO, VFM_SAMPLER_HEUN, VFM_SAMPLER_EULER };

struct vfm_sampler {
	int kind; /* auto: heun for edm, euler for flow */
	int64_t steps;
	double cfg; /* 1: no guidance */
	uint64_t seed;
	double sigma_min, sigma_max, rho; /* edm */
	/* Called before each evaluation of the network is enqueued; may be NULL.  The device then lags by at most one
	 * evaluation. */
	void (*progress)(void *ctx, int64_t done, int64_t total);
	void *ctx;
};
void vfm_sampler_defaults(struct vfm_sampler *s);
/* Returns VFM_EUSAGE for invalid settings: heun with flow, steps < 1, sigma_min >= sigma_max … */
int vfm_sampler_check(const struct vfm_sampler *s, const struct vfm_diffusion *d, struct vfm_err *err);

struct vfm_sample_job {
	const struct vfm_model_spec *model;
	const struct vfm_diffusion *diffusion;
	struct vfm_model *net;
	const struct vfm_mesh *mesh;
	struct vfm_stream *stream;
	enum vfm_dtype dtype; /* compute dtype of the parameters */
};

/* n samples to generate.  The text rows of sample i are cu_text[i] .. cu_text[i+1] - 1, likewise for `negative`; a
 * sample without rows has the null text. */
struct vfm_sample_request {
	int n;
	const uint64_t *id;         /* [n] */
	const int32_t (*grid)[3];   /* [n]: t, h, w in patches */
	const float *text;          /* [cu_text[n], text_dim] */
	const int32_t *cu_text;     /* [n + 1] */
	const float *negative;      /* [cu_negative[n], text_dim] */
	const int32_t *cu_negative; /* [n + 1]; NULL: the null text for all samples */
	/* Image to video; the copies of guidance have the same. */
	const float *cond;               /* [sum of grids, cond_dim], patchified; NULL: none */
	const float *image;              /* [n * image_len, image_dim]; NULL: none */
	const float *const *first_frame; /* [n]: patchified first latent frame [h * w, F], or NULL; NULL: none given */
};
/* Collective over job->mesh->seq (and ep) with the same request.  Writes the latents to tokens [sum of grids, F] f32,
 * host, in the order of the samples.  VFM_EUSAGE: the request lacks the condition or the image rows that the model
 * reads, or gives a first frame with edm or to a sample of one frame. */
int vfm_sampler_run(const struct vfm_sampler *s, const struct vfm_sample_job *job, const struct vfm_sample_request *r,
	float *tokens, struct vfm_err *err);

#endif
