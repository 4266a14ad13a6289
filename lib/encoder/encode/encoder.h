/* encoder.h - encoders of clips, texts and pictures, and the options that choose them.
 *
 * An encoder is built in (wavelet, bytes of a text), native (Wan, Cosmos, LTX-Video, HunyuanVideo, T5 or CLIP in this process, on a
 * device) or a
 * child (vfm-exec(7)).  Each kind is a row of struct vfm_encoder_ops:
 *
 *	TRY(vfm_encoder_check_opts(&o, err));
 *	TRY(vfm_encoder_open(&set, &o, err));
 *	threads = vfm_encoder_threads(&set, jobs);
 *	TRY(vfm_encoder_make_workers(&set, threads, err));
 *	rc = set.text.ops->encode_text(set.text.ctx, worker, "a cat", &rows, err);
 *	vfm_encoded_release(&rows);
 *	vfm_encoder_close(&set);
 *
 * The ops block.  They are thread-safe if each thread has its own worker.  A native encoder has one thread, which owns
 * the device.  It encodes a clip or a picture at a time, or all waiting texts together.
 */
#ifndef VFM_ENCODER_ENCODE_ENCODER_H
#define VFM_ENCODER_ENCODE_ENCODER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "data/record/clip_reader.h"
#include "data/record/encoder_id.h"
#include "encoder/exec/exec.h"
#include "encoder/vae/condition.h"
#include "encoder/vae/vae.h"
#include "io/npy.h"
#include "io/opt.h"

/* ---- the interface ---- */

/* Latents [C, T, h, w] or rows [n, dim] that an encoder made; `= {0}` before. */
struct vfm_encoded {
	struct vfm_npy npy;
	const void *data; /* the elements; from a child: valid until the worker's next call */
	void *memory;     /* NULL, or holds the elements */
};
void vfm_encoded_release(struct vfm_encoded *x); /* accepts `{0}` */

struct vfm_encode_clip {
	const char *id; /* of the record */
	int worker;
	struct vfm_clip_reader *reader; /* returns the pictures */
	int32_t patch_t;                /* drop latent frames that do not fill a patch of this many */
	int given;                      /* pictures to keep: 1: the first; 2: also the last that the latents cover */
	uint8_t *pictures;              /* [given, height, width, 3], which encode_clip writes; NULL: none */
	int64_t frames;                 /* that the latents cover; encode_clip sets it */
};

/* A clip of `frames` pictures: those of p, and grey ones. */
struct vfm_encode_given {
	const char *id; /* of the record */
	int worker;
	struct vfm_pictures p;
	int64_t frames;
	const struct vfm_clip_reader *clip; /* the clip of p, if this worker encoded it in its last call; else NULL */
};

/* A row of the table: builtin.c, native.c or child.c.  A function is NULL if the kind does not need it. */
struct vfm_encoder_ops {
	/* Encodes the pictures of a clip that fill patches.  VFM_EINPUT: the clip is damaged, too short or too long. */
	int (*encode_clip)(void *ctx, struct vfm_encode_clip *c, struct vfm_encoded *latents, struct vfm_err *err);
	/* Encodes given pictures.  VFM_EUSAGE: the encoder does not support this. */
	int (*encode_given)(
		void *ctx, const struct vfm_encode_given *g, struct vfm_encoded *latents, struct vfm_err *err);
	/* Returns the capability that encode_given needs for this number of pictures and the encoder lacks, or NULL.
	 * given 0: a clip of one picture.  NULL in kinds that lack nothing. */
	const char *(*lacks)(void *ctx, int given);
	/* Decodes latents [C, T, h, w] (dims: T, h, w) to `frames` pictures of h * stride x w * stride.  The calling
	 * thread passes them to `to`, perhaps before all are decoded. */
	int (*decode)(void *ctx, int worker, const float *latent, const int32_t dims[3], int64_t frames,
		const struct vfm_picture_sink *to, struct vfm_err *err);

	/* Encodes a text.  Only a second text may have no rows; its data is then NULL. */
	int (*encode_text)(void *ctx, int worker, const char *text, struct vfm_encoded *rows, struct vfm_err *err);
	/* Encodes n texts together, faster than one by one.  Each has the result rc[i], with err[i] on failure.  NULL
	 * in kinds that gain nothing. */
	void (*encode_texts)(
		void *ctx, const char *const *texts, int n, struct vfm_encoded *rows, int *rc, struct vfm_err *err);

	/* Encodes given pictures to image rows.  id is that of the record. */
	int (*encode_image)(void *ctx, int worker, const char *id, const struct vfm_pictures *p,
		struct vfm_encoded *rows, struct vfm_err *err);

	/* For the functions of the set below.  Waits until the encoder is ready, and sets its identity. */
	int (*wait)(void *ctx, struct vfm_encoder_id *id, struct vfm_err *err);
	/* Returns the number of threads that keep the encoder busy; 0: no preference. */
	int (*threads)(void *ctx, int64_t jobs);
	int (*make_workers)(void *ctx, int n, struct vfm_err *err);
	/* Frees the device memory, weights included, until the next call.  NULL in kinds without a device. */
	void (*unload)(void *ctx);
	void (*close)(void *ctx);
};

struct vfm_encoder_handle {
	const struct vfm_encoder_ops *ops; /* NULL: no encoder */
	void *ctx;
	struct vfm_encoder_id id; /* unknown without ops */
};

struct vfm_encoder_set { /* `= {0}` may be closed */
	struct vfm_encoder_handle video, text, image, text2;
};

/* ---- opening ---- */

struct vfm_encoder_opts {
	/* At most one per row; NULL: not used. */
	const char *tokenizer, *vae, *exec;          /* of videos: "wavelet:16"; weights; a command */
	const char *text, *text_encoder, *text_exec; /* of texts: "bytes:1024"; weights; a command */
	const char *image_encoder, *image_exec;      /* of given pictures: weights; a command */
	const char *text2, *text2_exec;              /* the second one of texts: "bytes:1472"; a command */

	int pictures;          /* pictures of a video for the encoder of given pictures: 1 or 2 */
	bool encodes, decodes; /* the uses of the encoder of videos */
	/* Produce float32.  Otherwise elements are as in files: float16, bfloat16 for a T5 in bf16, the dtype of a
	 * child. */
	bool f32;

	/* of native encoders */
	const char *vae_dtype, *text_dtype; /* NULL: "fp32", "bf16" */
	const char *tile;                   /* "WxH" of the tiles of the autoencoder; NULL: none */
	int64_t text_rows;                  /* where texts are cut; INT64_MIN: 512 */
	bool text_raw;                      /* encode texts without clean-up */
	/* copies the text encoder's blocks to the device for each batch, instead of keeping them there */
	bool text_stream;
	/* A call frees the device memory of the other models.  The halves of the autoencoder are two models.
	 * Otherwise the weights of all models stay on the device after their first use. */
	bool one_model;
	const char *device; /* NULL: "cpu" */
	int local_rank;     /* selects the GPU; -1: the number of this task on its node (io/task.h) */

	struct vfm_exec_opts children; /* without command and capability */

	/* The command's options of text encoders, for messages; NULL: none. */
	const char *text_options;
};
/* Initialisers for options that are not given. */
#define VFM_ENCODER_DEFAULTS .text_rows = INT64_MIN, .local_rank = -1, .children = VFM_EXEC_DEFAULTS

/* Rows of a struct vfm_opt table; `o` is a struct vfm_encoder_opts *. */
#define VFM_ENCODER_VAE_OPTS(o)                                                                                        \
	{VFM_OPT_STR, 0, "vae", "PATH", "video autoencoder: a folder of diffusers, or the file of a release",          \
		&(o)->vae},                                                                                            \
		{VFM_OPT_STR, 0, "vae-dtype", "fp32|bf16", "of the autoencoder (fp32)", &(o)->vae_dtype},              \
	{                                                                                                              \
		VFM_OPT_STR, 0, "vae-tile", "WxH", "Wan: work in tiles of W x H pixels, blended: less memory",         \
			&(o)->tile                                                                                     \
	}
#define VFM_ENCODER_IMAGE_OPTS(o)                                                                                      \
	{                                                                                                              \
		VFM_OPT_STR, 0, "image-encoder", "PATH",                                                               \
			"vision tower of CLIP for image rows: a folder of transformers or Wan's release",              \
			&(o)->image_encoder                                                                            \
	}
#define VFM_ENCODER_TEXT_OPTS(o)                                                                                       \
	{VFM_OPT_STR, 0, "text-encoder", "PATH", "T5 or UMT5: a folder of transformers or Wan's release",              \
		&(o)->text_encoder},                                                                                   \
		{VFM_OPT_STR, 0, "text-dtype", "fp32|bf16", "of the text encoder (bf16)", &(o)->text_dtype},           \
		{VFM_OPT_INT, 0, "text-rows", "N", "cut texts after N tokens (512)", &(o)->text_rows},                 \
	{                                                                                                              \
		VFM_OPT_FLAG, 0, "text-raw", NULL, "do not clean up texts before they are embedded", &(o)->text_raw    \
	}
/* VFM_EUSAGE: options exclude each other, or belong to an encoder that is not used. */
int vfm_encoder_check_opts(const struct vfm_encoder_opts *o, struct vfm_err *err);
/* Sets the geometry of the encoder of videos without loading its weights.  Starts a child to read its hello. */
int vfm_encoder_read_geometry(struct vfm_geometry *g, const struct vfm_encoder_opts *o, struct vfm_err *err);
/* Opens the encoders that the options name and waits until they are ready; children load their weights at the same
 * time.  The caller closes the set even after a failure.  VFM_EUSAGE: an option or weights are wrong; VFM_EENV: no
 * device, or out of memory. */
int vfm_encoder_open(struct vfm_encoder_set *s, const struct vfm_encoder_opts *o, struct vfm_err *err);
/* Returns the option that names the encoder of given pictures, or NULL. */
static inline const char *vfm_encoder_image_option(const struct vfm_encoder_opts *o)
{
	return o->image_encoder ? "--image-encoder" : o->image_exec ? "--image-exec" : NULL;
}
/* Returns the option that names the second encoder of texts, or NULL. */
static inline const char *vfm_encoder_text2_option(const struct vfm_encoder_opts *o)
{
	return o->text2 ? "--text2" : o->text2_exec ? "--text2-exec" : NULL;
}
/* Returns the number of threads that keep all encoders busy, at least 1.  jobs is -j; 0: not given. */
int vfm_encoder_threads(const struct vfm_encoder_set *s, int64_t jobs);
/* Makes workers 0 to n - 1.  Call once, before any op. */
int vfm_encoder_make_workers(struct vfm_encoder_set *s, int n, struct vfm_err *err);
/* Frees the device memory of all encoders, weights included; the next call of an encoder loads its weights again.  The
 * memory is then free for other devices of this process.  Does not affect children.  No op may be in progress. */
void vfm_encoder_unload(struct vfm_encoder_set *s);
/* Closes one encoder of the set.  No op may be in progress; accepts `{0}`. */
void vfm_encoder_close_one(struct vfm_encoder_handle *h);
/* No op may be in progress. */
void vfm_encoder_close(struct vfm_encoder_set *s);
struct vfm_encoder_ids vfm_encoder_set_ids(const struct vfm_encoder_set *s);

#endif
