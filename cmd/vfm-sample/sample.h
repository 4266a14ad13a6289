/* sample.h - one run of vfm-sample: its options and its state.
 *
 * main.c parses and calls; items.c collects the prompts; encoder.c chooses tokenizer and encoders; given.c reads what
 * videos start from; batch.c samples the prompts and writes videos and records.  The networks: train/run/sample_net.h.
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
	char *why;                      /* it failed: the message; NULL: it did not */
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
	struct vfm_encoder_ids encoder_ids; /* of the latents, the prompts and the image rows; or unknown */
	struct vfm_geometry geometry;  /* of the tokenizer that decodes, or of that of the training data for .npy */
	int32_t dims[3];               /* of a latent: t, h, w */
	struct sample_picture picture; /* of a leader */
	struct vfm_sample_net net;
	struct vfm_context *x;
	struct vfm_encoder_set encoders; /* native ones and children: of a leader, who writes files */
	struct vfm_buf records;          /* lines of this rank that are not printed yet */
	bool logged_cut;                 /* whether a note about a prompt longer than model.text_len was printed */
	json_t *forced; /* differences of encoders that were accepted (data/record/encoder_id.h); NULL: none */
	struct vfm_progress progress;
	int64_t evals;   /* of the network for a batch */
	int64_t *passes; /* [evals + 1]: passes of the network before each evaluation, and in all */
	int64_t shown;   /* passes of the batch that the progress counts */
	int64_t failed;  /* videos without a file, of this rank */
};

/* Whether -o FILE names a file for each of several prompts: "{prompt}" and "{n}" in its last component become the
 * prompt, and the number of earlier items with the same prompt. */
bool items_has_template(const char *out_file);
/* Adds the prompts of -p and --prompts to j->items.  VFM_EUSAGE names the fault: no prompt, several prompts for one
 * file, a name that is no file name. */
int items_collect(struct sample_job *j, struct vfm_err *err);
/* Broadcasts the items of rank 0, the only rank that reads stdin.  Collective. */
int items_share(struct sample_job *j, struct vfm_err *err);
void items_release(struct items *s);

/* Opens what the request uses; native encoders and children only on leaders.  Local. */
int open_sample_encoders(struct sample_job *j, struct vfm_err *err);
/* Chooses tokenizer, text encoder and the sizes of the videos, and compares them with those of the checkpoint.
 * Collective. */
int choose_sample_encoders(struct sample_job *j, struct vfm_err *err);

/* Reads the pictures that all videos start with (--image) and end with (--last-image), and encodes them to j->picture
 * on leaders.  They become latents, for a model with conditions with grey pictures in place of the others, else alone.
 * With --image-exec they also become image rows.  No-op without the option.  Collective.  VFM_EUSAGE: the model or the
 * tokenizer takes no picture; VFM_EINPUT: the file is bad. */
int picture_load(struct sample_job *j, struct vfm_err *err);
void picture_release(struct sample_picture *p); /* accepts `{0}` */

/* The parts of prompts besides their text, for image to video: conditions, image rows, first frames.  Their records
 * name the files, as vfm-curate encode and shard know them (vfm-shard(5)); a picture replaces some of them. */
struct given_pictures {
	float *cond, *image, *first;
	const float **frames;
	size_t bytes[3];
};
/* Checks that each prompt names what the model reads and --image does not give.  Local.  VFM_EUSAGE names the prompt,
 * the key and the option. */
int check_given(const struct sample_job *j, struct vfm_err *err);
/* Reads what the model needs for n prompts and sets it in r; rank 0 of those that sample together reads.  Collective
 * over the ranks that sample together.  VFM_EUSAGE: a prompt lacks it; VFM_EINPUT: a file is bad or has another size.
 */
int given_load(struct given_pictures *g, struct vfm_sample_request *r, const struct sample_job *j,
	const struct item *items, int n, struct vfm_err *err);
void given_release(struct given_pictures *g); /* accepts `{0}` */

/* Samples all prompts, writes their files and prints their records.  Collective. */
int sample_all(struct sample_job *j, struct vfm_err *err);

#endif
