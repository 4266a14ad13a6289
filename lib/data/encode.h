/* encode.h - encodes the frames of a record to latents and its caption to text embeddings, as .npy files.
 *
 * Frames are scaled to cover the target size and cropped at the centre.  Memory holds four frames and the latents.
 * Thread-safe.
 */
#ifndef VFM_DATA_ENCODE_H
#define VFM_DATA_ENCODE_H

#include <jansson.h>
#include <stdint.h>

#include "base/err.h"
#include "data/textbytes.h"
#include "data/wavelet.h"

struct vfm_encode { /* a specification */
	struct vfm_tokenizer tokenizer;
	const char *dir;   /* output folder: DIR/ID.latent.npy, DIR/ID.text.npy or ID.text.NAME.npy */
	int32_t patch[3];  /* t, h, w: of the models that will read the latents */
	int width, height; /* multiples of stride x patch; 0, 0: the source's, cropped to such multiples */
	int64_t frames;    /* maximum number of frames; 0: all */
	double fps;        /* frames per second; 0: every frame of the source */
	double timeout_s;  /* 0: 3600 */
	int threads;       /* of the decoder */
};

/* Encodes the pictures of a record (src, start_frame, end_frame) and sets rec["latent"] = {path, sha256, shape, dtype,
 * frames, width, height, fps, maker}.  VFM_EINPUT: this record's fault; VFM_EENV: cannot write. */
int vfm_encode_media(json_t *rec, const struct vfm_encode *e, struct vfm_err *err);

/* Embeds the captions of rec (data/caption.h; missing: "") and sets rec["text"] = {path, sha256, caption_sha256, shape,
 * dtype, maker}; of named captions, {captions: {NAME: {path, sha256, caption_sha256, shape, dtype}, …}, maker}. */
int vfm_encode_text(json_t *rec, struct vfm_textbytes *embedder, const char *dir, struct vfm_err *err);

#endif
