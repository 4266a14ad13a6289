/* preview.h - samples that a run generates while it trains.  Like an evaluation (held_out.h), this does not affect the
 * training.
 *
 * The first eval.samples samples of the held-out plan provide texts and sizes.  The noise is that of (seed 0, sample
 * id) (net/diffusion/sampler.h), so all steps and runs can be compared.  With diffusion.image_cond, the first latent
 * frame of each video is given.  A run writes
 *
 *     RUN/samples/step-00000500/00-0123456789abcdef.npy   latents [C,T,H,W] f32; the number and the id of the sample
 *     RUN/samples/step-00000500/00-0123456789abcdef.mp4   or .png for a still image; only for latents of the built-in
 *                                                         tokenizer
 *
 * The data parallel ranks divide the samples; the ranks of a tp x cp group generate each sample together.  One pp stage
 * only.
 */
#ifndef VFM_TRAIN_RUN_PREVIEW_H
#define VFM_TRAIN_RUN_PREVIEW_H

#include "base/mem.h"
#include "data/dataset/shard_cache.h"
#include "train/step/trainer.h"

struct vfm_previews;

/* Local.  Reads the texts from the held-out plan.  Returns NULL on failure.  All arguments must outlive the result.
 * VFM_EUSAGE: pp > 1, the model reads conditions, or the settings of the sampler are invalid. */
struct vfm_previews *vfm_previews_open(const char *held_out, const struct vfm_config *c, const struct vfm_mesh *mesh,
	struct vfm_shard_cache *cache, struct vfm_err *err);
void vfm_previews_free(struct vfm_previews *p); /* accepts NULL */

struct vfm_preview_image {  /* the first frame of the first sample, on rank 0 */
	struct vfm_buf png; /* empty: the latents were not decoded. The caller releases it */
	int width, height;
};

/* Collective.  Generates the samples between two steps and writes them to the folder `dir`, which it creates.  Logs a
 * failure to decode, or to write a video, without returning an error. */
int vfm_previews_run(struct vfm_previews *p, struct vfm_trainer *tr, const char *dir, struct vfm_preview_image *image,
	struct vfm_err *err);

#endif
