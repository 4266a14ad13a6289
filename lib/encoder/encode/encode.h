/* encode.h - encodes the frames of a record to latents, its first picture to a condition and image rows, and its
 * captions to text embeddings, as .npy files.
 *
 * Frames are scaled to cover the target size and cropped at the centre.  Memory holds a few groups of frames and the
 * latents.  Thread-safe.
 */
#ifndef VFM_ENCODER_ENCODE_ENCODE_H
#define VFM_ENCODER_ENCODE_ENCODE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "encoder/encode/encoder.h"
#include "io/npy.h"

struct vfm_encode {                             /* a specification */
	const struct vfm_encoder_set *encoders; /* of videos, of texts, and optionally of pictures */
	const char *dir;   /* output folder: DIR/ID.latent.npy, DIR/ID.text.npy or ID.text.NAME.npy */
	int32_t patch[3];  /* t, h, w: of the models that will read the latents */
	int width, height; /* multiples of stride x patch; 0, 0: the source's, rounded down to such multiples */
	int64_t frames;    /* maximum number of frames; 0: all that fill patches */
	/* take the size, or the number of frames and their rate, from the record's bucket (data/record/bucket.h) */
	bool bucket_size, bucket_frames;
	double fps;       /* frames per second; 0: every frame of the source */
	double timeout_s; /* 0: 3600 */
	int threads;      /* of the decoder */
	/* also writes the condition of image to video, from the first picture (encoder/vae/condition.h) */
	bool condition;
	bool last_frame; /* includes the last picture in the condition and image rows */
};

/* Encodes the pictures of a record (src, start_frame, end_frame; with bucket_size or bucket_frames: bucket).
 * VFM_EINPUT: the record is at fault; VFM_EENV: a write failed.  Sets
 *
 * - rec["latent"] = {path, sha256, shape, dtype, frames, width, height, fps, maker} and, with e->fps, `resampled`: true
 * - with `condition`, rec["cond"] = {path, sha256, shape, dtype, given, maker} of DIR/ID.cond.npy
 * - with an encoder of pictures, rec["image"] = {path, sha256, shape, dtype, maker} of DIR/ID.image.npy, the rows of
 *   the given pictures at the size of the latents */
int vfm_encode_media(json_t *rec, const struct vfm_encode *e, int worker, struct vfm_err *err);

/* Encodes the captions of rec (data/record/caption.h; missing: "") and sets rec["text"] = {path, sha256,
 * caption_sha256, shape, dtype, maker}; for named captions, {captions: {NAME: {path, sha256, caption_sha256, shape,
 * dtype}, …}, maker}. */
int vfm_encode_text(json_t *rec, const struct vfm_encode *e, int worker, struct vfm_err *err);

/* With a second encoder of texts, encodes the first caption of rec and sets rec["text2"] = {path, sha256,
 * caption_sha256, shape, dtype, maker} of DIR/ID.text2.npy; null if the encoder makes no rows of this caption. */
int vfm_encode_text2(json_t *rec, const struct vfm_encode *e, int worker, struct vfm_err *err);

/* A file of latents, for rec["latent"]. */
struct vfm_latent_file {
	const char *path, *sha256;
	const struct vfm_npy *npy; /* [C, T, h, w] */
	int64_t frames;            /* that the latents cover */
	int width, height;         /* of the pictures */
	double fps;                /* 0: unknown, or an image */
	bool resampled;            /* pictures were taken at fps; false: every frame of the source */
	const struct vfm_encoder_id *encoder_id;
};
json_t *vfm_latent_json(const struct vfm_latent_file *f); /* the caller owns it */

#endif
