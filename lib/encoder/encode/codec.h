/* codec.h - the decoder of latents and the encoders of prompts and pictures of vfm-sample: built-in, of
 * coder.h, or children.
 *
 * One thread, except for vfm_codec_decode.  A codec without children and without built-in encoders (`= {0}`) may be
 * released.
 */
#ifndef VFM_ENCODER_ENCODE_CODEC_H
#define VFM_ENCODER_ENCODE_CODEC_H

#include "data/record/maker.h"
#include "encoder/encode/coder.h"
#include "encoder/exec/exec.h"
#include "encoder/text/textbytes.h"
#include "encoder/vae/condition.h"
#include "encoder/vae/wavelet.h"

struct vfm_codec {
	/* Those of this process (coder.h), which the caller sets before any call and keeps; NULL: none. */
	const struct vfm_video_coder *video;
	const struct vfm_text_coder *texts;

	struct vfm_tokenizer tokenizer; /* unless exec or video */
	struct vfm_exec *exec;          /* children that decode */
	struct vfm_textbytes *text;     /* unless text_exec or texts; NULL: none was opened */
	struct vfm_exec *text_exec;     /* children that embed texts */
	struct vfm_exec *image_exec;    /* children that encode pictures to image rows; NULL: none was opened */
	int pictures;                   /* of a video, which image_exec encodes */
	float *rows;                    /* of the last text */
	size_t rows_cap;
};

/* Opens the decoder.  command NULL: the built-in one, `spec` ("wavelet:16").  o: the other options of children. */
int vfm_codec_open_decoder(
	struct vfm_codec *c, const char *spec, const char *command, const struct vfm_exec_opts *o, struct vfm_err *err);
/* Opens the text encoder.  command NULL: the built-in one of width dim. */
int vfm_codec_open_text(
	struct vfm_codec *c, const char *command, const struct vfm_exec_opts *o, int64_t dim, struct vfm_err *err);
/* Opens the encoder of the given pictures of a video, 1 or 2, to image rows. */
int vfm_codec_open_image(
	struct vfm_codec *c, const char *command, const struct vfm_exec_opts *o, int pictures, struct vfm_err *err);
/* Waits for the children; to be called before any other use.  VFM_EUSAGE: the decoder, if one was opened, has not
 * `channels` channels, or the texts are not dim wide. */
int vfm_codec_wait(struct vfm_codec *c, int64_t channels, int64_t dim, struct vfm_err *err);
void vfm_codec_release(struct vfm_codec *c);

/* Unknown if none was opened. */
struct vfm_maker vfm_codec_tokenizer(const struct vfm_codec *c);
struct vfm_maker vfm_codec_text_maker(const struct vfm_codec *c);
struct vfm_maker vfm_codec_image_maker(const struct vfm_codec *c);

/* Embeds a text.  *rows [n, dim], n the result, belongs to the codec until its next text. */
int64_t vfm_codec_embed(struct vfm_codec *c, const char *text, const float **rows, struct vfm_err *err);
/* Encodes the given pictures, with grey ones in the places of the others, `frames` in all: latent [C, T, h, w].
 * VFM_EUSAGE: the decoder cannot do this. */
int vfm_codec_encode_pictures(
	struct vfm_codec *c, const struct vfm_pictures *p, int64_t frames, float *latent, struct vfm_err *err);
/* Encodes the pictures with the image encoder: rows [rows, dim] of its maker. */
int vfm_codec_encode_image(struct vfm_codec *c, const struct vfm_pictures *p, float *rows, struct vfm_err *err);
/* Decodes latents [C, T, h, w] (dims: T, h, w) to rgb [frames, h * stride, w * stride, 3].  Children: with slot
 * `worker` of c->exec, 0 after vfm_codec_wait.  Thread-safe if each thread has a worker of its own. */
int vfm_codec_decode(const struct vfm_codec *c, int worker, const float *latent, const int32_t dims[3], int64_t frames,
	uint8_t *rgb, struct vfm_err *err);

#endif
