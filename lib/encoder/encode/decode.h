/* decode.h - decodes the latents of a record to a video or an image, to measure a tokenizer or to look at samples.
 *
 * Thread-safe, with one worker per thread.
 */
#ifndef VFM_ENCODER_ENCODE_DECODE_H
#define VFM_ENCODER_ENCODE_DECODE_H

#include <jansson.h>
#include <stdbool.h>

#include "base/err.h"
#include "encoder/encode/encoder.h"
#include "media/av/video_out.h"

struct vfm_decode {                               /* a specification */
	const struct vfm_encoder_handle *encoder; /* the decoder */
	const char *dir;                          /* output folder */
	const char *video_codec;                  /* as in media/av/video_out.h; "ffv1" is lossless */
	int crf;
	int threads; /* of the video encoder */
	bool force;  /* also decodes latents of another tokenizer */
};

/* Decodes rec["latent"] to DIR/ID.mp4, DIR/ID.mkv (ffv1), or DIR/ID.png for an image.  Sets rec["reconstruction"] =
 * {path, codec, width, height, frames}; `vfm-bench eval --reconstruction` compares it with the clip.  Also sets `fps`
 * if encode took the pictures at another rate, and `forced` to a tokenizer that `force` accepted.  VFM_EINPUT: the
 * record is at fault, or its tokenizer is not the decoder; VFM_EENV: a write failed. */
int vfm_decode_media(json_t *rec, const struct vfm_decode *d, int worker, struct vfm_err *err);

struct vfm_decoded_file {
	const char *path;
	struct vfm_video_out_opts opts;
	int64_t most; /* pictures written; later ones are dropped */
};
/* Decodes latent [C, T, h, w] (dims: T, h, w) to a file of `frames` pictures, and writes each when it is decoded. */
int vfm_decode_latent(const struct vfm_encoder_handle *decoder, int worker, const float *latent, const int32_t dims[3],
	int64_t frames, const struct vfm_decoded_file *f, struct vfm_video_out_facts *facts, struct vfm_err *err);

#endif
