/* sample.h - one run of vfm-sample: its options and its state.
 *
 * main.c parses and calls; encoder.c chooses tokenizer and encoders; picture.c encodes the picture of --image;
 * batch.c encodes and samples the prompts; write.c writes videos and records.  The networks: train/run/sample_net.h.
 */
#ifndef VFM_SAMPLE_SAMPLE_H
#define VFM_SAMPLE_SAMPLE_H

#include "base/log.h"
#include "encoder/encode/encoder.h"
#include "io/opt.h"
#include "items.h"
#include "train/run/sample_net.h"

enum { SAMPLE_NOT_GIVEN = INT32_MIN }; /* an integer option that was not given */

struct sample_opts {
	struct vfm_sample_net_opts net;
	struct vfm_sampler sampler;
	struct vfm_encoder_opts encoder;
	const char *out_file, *out_dir, *format, *prompt_file, *negative, *caption, *image, *last_image;
	struct vfm_strlist prompts, sets;
	int width, height, fps_num, fps_den; /* width 0: not given */
	int64_t frames, context, seed;
	bool force, keep_latents, first_frame;
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
	struct vfm_makers makers;      /* of the latents, the prompts and the image rows; or unknown */
	struct vfm_geometry geometry;  /* of the tokenizer that decodes, or of that of the training data for .npy */
	int32_t dims[3];               /* of a latent: t, h, w */
	struct sample_picture picture; /* of a leader */
	struct vfm_sample_net net;
	struct vfm_context *x;
	struct vfm_encoder_set encoders; /* native ones and children: of a leader, who writes files */
	struct vfm_buf records;          /* lines of this rank that are not printed yet */
	bool logged_cut;                 /* whether a note about a prompt longer than model.text_len was printed */
	json_t *forced; /* differences of encoders that were accepted (data/record/maker.h); NULL: none */
	struct vfm_progress progress;
	int64_t evals;   /* of the network for a batch */
	int64_t *passes; /* [evals + 1]: passes of the network before each evaluation, and in all */
	int64_t shown;   /* passes of the batch that the progress counts */
	int64_t failed;  /* videos without a file, of this rank */
};

/* Opens what the request uses; native encoders and children only on leaders.  Local. */
int open_sample_encoders(struct sample_job *j, struct vfm_err *err);
/* Chooses tokenizer, text encoder and the sizes of the videos, and compares them with those of the checkpoint.
 * Collective. */
int choose_sample_encoders(struct sample_job *j, struct vfm_err *err);

/* Reads the pictures that all videos start with (--image) and end with (--last-image), and encodes them to j->picture on
 * leaders: to latents, with grey pictures in the places of the others for a model with conditions, else alone; with
 * --image-exec also to image rows.  No-op without the option.  Collective.  VFM_EUSAGE: the model or the tokenizer takes
 * no picture; VFM_EINPUT: the file is bad. */
int picture_load(struct sample_job *j, struct vfm_err *err);
void picture_release(struct sample_picture *p); /* accepts `{0}` */

/* Samples all prompts, writes their files and prints their records.  Collective. */
int sample_all(struct sample_job *j, struct vfm_err *err);

/* Writes the files of an item from its latent of n elements and queues its record.  An item that failed has a record
 * that says why, and the result is 0. */
int finish_item(struct sample_job *j, struct item *it, const float *latent, size_t n, struct vfm_err *err);
/* Rank 0 prints the queued records of all ranks in the order of the prompts.  Collective. */
int print_records(struct sample_job *j, struct vfm_err *err);

#endif
