/* preview.h - samples that a run generates while it trains, with the current weights, on the ranks and the layout of
 * the training (train/sample/sampling.h).  Like an evaluation (held_out.h), this does not affect the training.
 *
 * Prompts come from a file (train/sample/prompts.h), and texts and sizes of the first eval.samples samples of the
 * held-out plan.  The noise is that of (seed, number of the prompt), or (0, sample id), so all steps and runs can be
 * compared.  With diffusion.image_cond, the first latent frame of each video of the held-out plan is given.  A run
 * writes
 *
 *     RUN/samples/step-00000500/00-a-fox-in-the-snow.mp4   or .png for a still image
 *     RUN/samples/step-00000500/03-0123456789abcdef.mp4    of the held-out plan: the number and the id of the sample
 *     RUN/samples/step-00000500/samples.jsonl              their records, as vfm-sample prints them
 *
 * Without a decoder for the latents of the data, it writes latents, .npy [C,T,H,W] f32.
 */
#ifndef VFM_TRAIN_RUN_PREVIEW_H
#define VFM_TRAIN_RUN_PREVIEW_H

#include <signal.h>

#include "data/dataset/shard_cache.h"
#include "data/plan/plan.h"
#include "encoder/encode/encoder.h"
#include "train/job/context.h"
#include "train/run/tfevents.h"
#include "train/step/trainer.h"

struct vfm_previews;
struct vfm_experts; /* experts.h */

struct vfm_preview_opts {
	const char *prompts;  /* a file; NULL: none */
	const char *expert;   /* checkpoint of the other of two networks (diffusion.t_min, t_max); NULL: none */
	int fps_num, fps_den; /* of the files of prompts without their own */
	struct vfm_encoder_opts encoder; /* of prompts and pictures; the decoder of all samples */
};
/* Initialiser for options that are not given. */
#define VFM_PREVIEW_DEFAULTS                                                                                           \
	{                                                                                                              \
		.fps_num = 8, .fps_den = 1, .encoder = {.decodes = true, .f32 = true, VFM_ENCODER_DEFAULTS }           \
	}

struct vfm_preview_run { /* what the samples are for; all pointers must outlive them */
	struct vfm_context *x;
	const struct vfm_config *c;
	const char *name; /* RUN, for messages */
	struct vfm_plan *plan;
	const char *held_out;
	const struct vfm_encoder_ids *encoders; /* of the plan */
	struct vfm_shard_cache *cache;
	double boundary;                   /* of a run of two networks; 0: one */
	const volatile sig_atomic_t *stop; /* changed by a signal: the samples end after those in progress */
};

/* Collective.  Reads the prompts and encodes them; the encoders are closed again.  Sets *out to NULL if there is
 * nothing to sample.  VFM_EUSAGE: a bad prompt, or encoders that are not those of the plan. */
int vfm_previews_open(struct vfm_previews **out, const struct vfm_preview_opts *o, const struct vfm_preview_run *r,
	struct vfm_err *err);
void vfm_previews_free(struct vfm_previews *p); /* accepts NULL */

/* Collective.  Samples between two steps, after `step` steps, to the folder `dir`, which it creates.  Logs the time; a
 * video that cannot be decoded or written is logged and has a record with an error.  On rank 0, writes animations of
 * the videos to `events`.  x: the networks of a run of two, which are exchanged for each batch; NULL: one. */
int vfm_previews_run(struct vfm_previews *p, struct vfm_trainer *tr, struct vfm_experts *x, int64_t step,
	const char *dir, struct vfm_tfevents *events, struct vfm_err *err);

#endif
