/* sampler.h - samples latents: a solver (solver.h) integrates the probability-flow ODE.
 *
 * Classifier-free guidance: F = F(negative) + cfg (F(text) - F(negative)).  The negative text defaults to the null
 * text, which is the dropped text of training: rows of zeros.  A sample whose two texts are null is not guided: F =
 * F(null).  The scale may depend on the noise level (guidance in an interval: Kynkaanniemi et al. 2024, arXiv
 * 2404.07724).  At scale 1 an evaluation skips the negative texts.
 *
 * Two networks may share the noise levels (the experts of Wan 2.2): `net` computes levels of at least `boundary`, and
 * `low_noise` those below, each with its own scale.  As in diffusers, the time input is compared with 1000 boundary.
 *
 * Noise depends only on (seed, sample id), so a sample depends neither on others of its pack nor on the layout.  A
 * given first frame (flow only) stays clean, at time 0, and is part of the result.
 */
#ifndef VFM_NET_DIFFUSION_SAMPLER_H
#define VFM_NET_DIFFUSION_SAMPLER_H

#include "net/diffusion/diffusion.h"
#include "net/diffusion/model.h"
#include "net/diffusion/solver.h"

struct vfm_sampler {
	struct vfm_solver solver;
	uint64_t seed;
	double cfg;             /* 1: no guidance */
	double cfg_end;         /* the scale changes linearly over the levels from cfg to cfg_end; NaN: constant */
	double cfg_interval[2]; /* noise levels, both included; the scale is 1 outside */
	double boundary;        /* the smallest t that `net` computes; 0: it computes all */
	double low_noise_cfg;   /* the scale of low_noise; NaN: cfg */
	double guidance;        /* the scale that a distilled network reads (model.guidance_dim) */
	/* Called before each evaluation of the network is enqueued; may be NULL.  Then the device lags by at most one
	 * evaluation. */
	void (*progress)(void *ctx, int64_t done, int64_t total);
	void *ctx;
};
void vfm_sampler_defaults(struct vfm_sampler *s);
/* Returns VFM_EUSAGE for invalid settings. */
int vfm_sampler_check(const struct vfm_sampler *s, const struct vfm_diffusion *d, struct vfm_err *err);
/* Returns whether any scale is not 1. */
bool vfm_sampler_is_guided(const struct vfm_sampler *s);
/* Returns the guidance scale of an evaluation. */
double vfm_sampler_cfg(
	const struct vfm_sampler *s, const struct vfm_solver_plan *plan, const struct vfm_solver_eval *e);

struct vfm_sample_job {
	const struct vfm_model_spec *model;
	const struct vfm_diffusion *diffusion;
	struct vfm_model *net;
	const struct vfm_mesh *mesh;
	struct vfm_stream *stream;
	enum vfm_dtype dtype; /* compute dtype of the parameters */
	/* The network below the boundary, with the same model; NULL: net for all levels. */
	struct vfm_model *low_noise;
	/* NULL, or called before each evaluation: both networks may be one whose weights it exchanges on the stream.
	 * Returns 1 to end the run, on all ranks alike. */
	int (*enter)(void *ctx, bool low_noise, struct vfm_err *err);
	void *enter_ctx;
	/* Guidance over two groups of ranks: a communicator of the two ranks with the same place in both meshes.  Its
	 * rank 0 computes the texts, rank 1 the negative texts, and both obtain the latents.  NULL: one pack contains
	 * both. */
	struct vfm_comm *cfg_pair;
};

/* n samples to generate.  The text rows of sample i are cu_text[i] .. cu_text[i+1] - 1, likewise for `negative`.  A
 * sample without rows has the null text. */
struct vfm_sample_request {
	int n;
	const uint64_t *id;         /* [n] */
	const int32_t (*grid)[3];   /* [n]: t, h, w in patches */
	const float *text;          /* [cu_text[n], text_dim] */
	const int32_t *cu_text;     /* [n + 1] */
	const float *negative;      /* [cu_negative[n], text_dim] */
	const int32_t *cu_negative; /* [n + 1]; NULL: the null text for all samples */
	/* Rows of a second text encoder, for the texts and the negative texts.  A null text has none, whatever these say. */
	const float *text2;                     /* [cu_text2[n], text2_dim] */
	const float *negative2;                 /* [cu_negative2[n], text2_dim] */
	const int32_t *cu_text2, *cu_negative2; /* [n + 1]; NULL: none for all samples */
	/* Image to video; both passes of guidance use the same values. */
	const float *cond;               /* [sum of grids, cond_dim], patchified; NULL: none */
	const float *image;              /* [n * image_len, image_dim]; NULL: none */
	const float *const *first_frame; /* [n]: patchified first latent frame [h * w, F], or NULL; NULL: none given */
};
/* Samples the request, which is the same on all ranks.  Writes the latents to tokens [sum of grids, F] f32, on the
 * host, in the order of the samples.  Collective over job->mesh->seq, cfg_pair (and ep).  VFM_EUSAGE: the request lacks
 * the condition or the image rows that the model reads; or it gives a first frame, and the model is edm or a sample has
 * one frame.  Returns 1, without latents, if job->enter ended the run. */
int vfm_sampler_run(const struct vfm_sampler *s, const struct vfm_sample_job *job, const struct vfm_sample_request *r,
	float *tokens, struct vfm_err *err);

#endif
