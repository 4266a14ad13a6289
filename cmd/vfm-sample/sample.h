/* sample.h - one run of vfm-sample: its options and its state.
 *
 * main.c parses and calls; items.c collects the prompts; encoder.c chooses tokenizer and encoders; given.c reads the
 * pictures, conditions and first frames; batch.c samples the prompts and writes videos and records.  The networks are
 * in train/run/sample_net.h.
 */
#ifndef VFM_SAMPLE_SAMPLE_H
#define VFM_SAMPLE_SAMPLE_H

#include "base/log.h"
#include "encoder/encode/encoder.h"
#include "io/opt.h"
#include "train/run/sample_net.h"

enum { SAMPLE_NOT_GIVEN = INT32_MIN }; /* an integer option that was not given */

struct sample_opts {
	struct vfm_sample_net_opts net;
	struct vfm_sampler sampler;
	struct vfm_encoder_opts encoder;
	const char *out_file, *out_dir, *format, *prompt_file, *negative, *caption, *image, *last_image;
	struct vfm_strlist prompts;
	int width, height, fps_num, fps_den; /* width 0: not given */
	int64_t frames, context, seed;
	bool keep_latents, first_frame;
};

/* A prompt, with the file of its video and its record. */
struct item {
	json_t *rec;
	const char *caption, *negative; /* belong to rec; "" is the null text */
	char *path;                     /* of the video, or of the latents */
	char *why;                      /* error message; NULL: no failure */
};

struct items {
	struct item *v;
	size_t n, cap;
	json_t *repeats; /* the number of items of each prompt */
};

struct sample_picture {
	float *x;        /* NULL: none.  [C, T, h, w]: a condition, or the latents of one picture */
	int32_t dims[3]; /* T, h, w */
	size_t bytes;
	float *rows; /* NULL: none.  [image_len, image_dim] */
	size_t rows_bytes;
};

struct sample_job {
	struct sample_opts *o;
	struct items items;
	int width, height;
	int64_t frames;
	struct vfm_encoder_ids encoder_ids; /* of the latents, the prompts and the image rows; may be unknown */
	struct vfm_geometry geometry;       /* of the decoding tokenizer; for .npy of the training data's tokenizer */
	int32_t dims[3];                    /* of a latent: t, h, w */
	struct sample_picture picture;      /* of a leader */
	struct vfm_sample_net net;
	struct vfm_context *x;
	struct vfm_encoder_set encoders; /* native ones and children: of a leader, who writes files */
	struct vfm_buf records;          /* lines of this rank that are not printed yet */
	bool logged_cut;                 /* whether the note about a truncated prompt (model.text_len) was printed */
	json_t *forced; /* accepted differences between encoders (data/record/encoder_id.h); NULL: none */
	struct vfm_progress progress;
	int64_t evals;   /* evaluations of the network per batch */
	int64_t *passes; /* [evals + 1]: passes of the network before each evaluation; the last: the total */
	int64_t shown;   /* passes of the current batch that the progress includes */
	int64_t failed;  /* videos of this rank that were not written */
};

/* Returns whether -o FILE has a name for each of several prompts: its last component contains "{prompt}" or "{n}".
 * They become the prompt, and the number of earlier items with the same prompt. */
bool items_has_template(const char *out_file);
/* Adds the prompts of -p and --prompts to j->items.  VFM_EUSAGE: no prompt, several prompts for one file, or an invalid
 * file name. */
int items_collect(struct sample_job *j, struct vfm_err *err);
/* Broadcasts the items from rank 0, the only rank that reads stdin.  Collective. */
int items_share(struct sample_job *j, struct vfm_err *err);
void items_release(struct items *s);

/* Opens the encoders of the request; native encoders and children only on leaders.  Local. */
int open_sample_encoders(struct sample_job *j, struct vfm_err *err);
/* Chooses the tokenizer, the text encoder and the sizes of the videos, and compares the encoders with those of the
 * checkpoint.  Collective. */
int choose_sample_encoders(struct sample_job *j, struct vfm_err *err);

/* Reads the pictures of --image (the start of all videos) and --last-image (their end), and encodes them to j->picture
 * on leaders.  Collective; no-op without --image.
 *
 *   picture.x      of a model with conditions: mask and latents of a video whose other pictures are grey; else the
 *                  latents of the first picture
 *   picture.rows   with an image encoder: image rows
 *
 * VFM_EUSAGE: the model or the tokenizer accepts no picture; VFM_EINPUT: a bad file. */
int picture_load(struct sample_job *j, struct vfm_err *err);
void picture_release(struct sample_picture *p); /* accepts `{0}` */

/* Inputs of prompts for image to video: conditions, image rows, first frames.  They come from the files that the
 * prompts name, in the format of vfm-curate encode and shard (vfm-shard(5)); j->picture replaces some of them. */
struct given_pictures {
	float *cond, *image, *first;
	const float **frames;
	size_t bytes[3];
};
/* Checks that each prompt names a file for each input of the model that --image does not supply.  Local.  VFM_EUSAGE: a
 * missing one; the message names prompt, key and option. */
int check_given(const struct sample_job *j, struct vfm_err *err);
/* Reads the inputs of n prompts and sets them in r; only rank 0 of the ranks that sample together reads files.
 * Collective over these ranks.  VFM_EUSAGE: a prompt names no file; VFM_EINPUT: a bad file, or one of another shape. */
int given_load(struct given_pictures *g, struct vfm_sample_request *r, const struct sample_job *j,
	const struct item *items, int n, struct vfm_err *err);
void given_release(struct given_pictures *g); /* accepts `{0}` */

/* Samples all prompts, writes their files and prints their records.  Collective. */
int sample_all(struct sample_job *j, struct vfm_err *err);

#endif
