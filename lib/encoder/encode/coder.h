/* coder.h - a video autoencoder and a text encoder that compute in this process, as tables of functions.
 *
 * encoders.h provides them, of the models of lib/encoder.  All calls are thread-safe and block.  One clip is
 * encoded or decoded at a time; texts of several threads are embedded together.
 */
#ifndef VFM_ENCODER_ENCODE_CODER_H
#define VFM_ENCODER_ENCODE_CODER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "data/record/clip_reader.h"
#include "data/record/maker.h"
#include "encoder/vae/condition.h"

struct vfm_video_coder {
	struct vfm_maker maker; /* with the geometry: `first` frames, then groups of `step` */
	void *ctx;

	bool whole; /* push must get all pictures of a clip at once */

	/* Begins to encode a clip; blocks until no other clip is being worked on. */
	int (*begin)(void *ctx, int height, int width, struct vfm_err *err);
	/* Encodes the next n pictures, rgb [n, height, width, 3].  n is first + k step in the first call, and k step in
	 * others.  Appends normalized latent frames to latent [., C, h, w] and returns their number, which the geometry
	 * gives. */
	int64_t (*push)(void *ctx, const uint8_t *rgb, int64_t n, float *latent, struct vfm_err *err);
	/* Ends the clip, whether it is complete or not.  Must follow a successful begin. */
	void (*end)(void *ctx);
	/* Encodes a clip of `frames` pictures, of which those of p are given and the others grey: latent [T, C, h, w].
	 */
	int (*encode_given)(
		void *ctx, const struct vfm_pictures *p, int64_t frames, float *latent, struct vfm_err *err);

	/* Decodes a normalized latent [C, T, h, w] (dims: T, h, w) to rgb [frames, h * stride, w * stride, 3]. */
	int (*decode)(void *ctx, const float *latent, const int32_t dims[3], int64_t frames, uint8_t *rgb,
		struct vfm_err *err);
};

struct vfm_text_coder {
	struct vfm_maker maker;
	void *ctx;
	bool bf16; /* rows are exact in bf16 */

	/* *rows [n, dim], n the result, from malloc; the caller frees it. */
	int64_t (*embed)(void *ctx, const char *text, float **rows, struct vfm_err *err);
};

/* The latents of a clip. */
struct vfm_coder_latent { /* `= {0}` before; the caller frees x */
	float *x;         /* [t, C, h, w] */
	size_t cap;       /* elements */
	int64_t t;
};

/* Encodes the pictures of a clip, as many as fill groups, in memory of a few groups.  pictures NULL, or
 * [given, height, width, 3]: gets the first, and with given = 2 the last of those that whole patches of patch_t latent
 * frames cover.  VFM_EINPUT: the clip is damaged or too long, or an element is not finite. */
int vfm_coder_encode_clip(const struct vfm_video_coder *v, struct vfm_clip_reader *r, int32_t patch_t,
	uint8_t *pictures, int given, struct vfm_coder_latent *out, struct vfm_err *err);
/* [a, b, area] -> [b, a, area]: latents as a coder encodes them, [T, C, h, w], to [C, T, h, w], or back. */
void vfm_swap_planes(const float *x, size_t a, size_t b, size_t area, float *out);

#endif
