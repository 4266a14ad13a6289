/* encoders.h - the video autoencoder and the text encoder of a process, with a device and a thread of their own.
 *
 * The thread owns the device.  It serves the calls of coder.h from any thread: the work of a clip first, and
 * otherwise all texts that are waiting, in one batch.
 */
#ifndef VFM_ENCODER_ENCODE_ENCODERS_H
#define VFM_ENCODER_ENCODE_ENCODERS_H

#include "encoder/encode/coder.h"
#include "io/opt.h"

struct vfm_encoders_opts {                  /* options of commands; see VFM_ENCODERS_OPTS */
	const char *vae, *text;             /* folders or files of weights; NULL: none */
	const char *vae_dtype, *text_dtype; /* NULL: "fp32", "bf16" */
	const char *tile;                   /* "WxH" of the tiles of the autoencoder; NULL: none */
	int64_t text_rows;                  /* where texts are cut; INT64_MIN: 512 */
	bool text_clean_off;                /* embed texts as they are */
	const char *device;                 /* NULL: "cpu" */
	int local_rank;                     /* chooses the GPU */
	bool decode_only, encode_only;      /* of the autoencoder */
	bool stream; /* bring the text encoder's blocks to the device for each batch, instead of keeping them there */
};
#define VFM_ENCODERS_DEFAULTS ((struct vfm_encoders_opts){.text_rows = INT64_MIN})

/* Rows of a struct vfm_opt table; `o` is a struct vfm_encoders_opts *. */
#define VFM_ENCODERS_VAE_OPTS(o)                                                                                       \
	{VFM_OPT_STR, 0, "vae", "PATH", "video autoencoder of Wan or Cosmos: a folder of diffusers, or Wan's .pth",    \
		&(o)->vae},                                                                                            \
		{VFM_OPT_STR, 0, "vae-dtype", "fp32|bf16", "of the autoencoder (fp32)", &(o)->vae_dtype},              \
	{                                                                                                              \
		VFM_OPT_STR, 0, "vae-tile", "WxH", "Wan: work in tiles of W x H pixels, blended: less memory",         \
			&(o)->tile                                                                                     \
	}
#define VFM_ENCODERS_OPTS(o)                                                                                           \
	VFM_ENCODERS_VAE_OPTS(o),                                                                                      \
		{VFM_OPT_STR, 0, "text-encoder", "PATH", "T5 or UMT5: a folder of transformers or Wan's release",      \
			&(o)->text},                                                                                   \
		{VFM_OPT_STR, 0, "text-dtype", "fp32|bf16", "of the text encoder (bf16)", &(o)->text_dtype},           \
		{VFM_OPT_INT, 0, "text-rows", "N", "cut texts after N tokens (512)", &(o)->text_rows},                 \
	{                                                                                                              \
		VFM_OPT_FLAG, 0, "text-raw", NULL, "do not clean up texts before they are embedded",                   \
			&(o)->text_clean_off                                                                           \
	}
#define VFM_ENCODERS_VAE_SYNOPSIS "[--vae-dtype T] [--vae-tile WxH]"
#define VFM_ENCODERS_SYNOPSIS     VFM_ENCODERS_VAE_SYNOPSIS " [--text-dtype T] [--text-rows N] [--text-raw]"

/* VFM_EUSAGE: an option of an encoder that was not asked for. */
int vfm_encoders_refuse_opts(const struct vfm_encoders_opts *o, struct vfm_err *err);

struct vfm_encoders;
/* Starts the thread, which opens the device and the models, and waits for it.  VFM_EUSAGE: an option or weights are
 * wrong; VFM_EENV: no device or memory. */
int vfm_encoders_open(struct vfm_encoders **e, const struct vfm_encoders_opts *o, struct vfm_err *err);
/* Ends the thread.  No call may be in progress.  Accepts NULL. */
void vfm_encoders_close(struct vfm_encoders *e);

/* NULL: was not asked for, or e is NULL. */
const struct vfm_video_coder *vfm_encoders_video(const struct vfm_encoders *e);
const struct vfm_text_coder *vfm_encoders_texts(const struct vfm_encoders *e);

#endif
