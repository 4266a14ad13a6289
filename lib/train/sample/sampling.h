/* sampling.h - samples a list of prompts with a network and writes videos, latents and records: for vfm-sample, and for
 * the samples of a run (train/run/preview.h).
 *
 *	struct vfm_sampling s = {.o = &opts, .job = job, .device = "cpu"};
 *	if (rank 0)
 *		it = vfm_sampling_add(&s, "a cat", NULL), it->path = vfm_strdup("cat.mp4");
 *	TRY(vfm_sampling_share(&s, err));
 *	s.c = ..., s.trained = ...;                      // the configuration and the encoders of the checkpoint or run
 *	TRY(vfm_sampling_open(&s, err));                 // encoders and sizes
 *	s.net = ...;                                     // the network and its ranks
 *	TRY(vfm_sampling_run(&s, err));
 *	vfm_sampling_release(&s);
 *
 * A prompt with its own keys (prompts.h) overrides opts.prompt.  The noise of item i is that of (seed, noise); a sample
 * depends on no other item and, but for the rounding of sums, on no layout.  Ranks that sample together are a group;
 * the groups divide the items.  A leader is the first rank of its group: only leaders have encoders and write files.
 */
#ifndef VFM_TRAIN_SAMPLE_SAMPLING_H
#define VFM_TRAIN_SAMPLE_SAMPLING_H

#include <jansson.h>
#include <signal.h>

#include "base/log.h"
#include "base/mem.h"
#include "encoder/encode/encoder.h"
#include "net/diffusion/sampler.h"
#include "train/job/config.h"
#include "train/job/job.h"
#include "train/sample/prompts.h"

struct vfm_sampling_opts {
	struct vfm_sampler sampler;      /* seed, steps and cfg are those of the prompts */
	struct vfm_prompt prompt;        /* the values of prompts without their own; caption is not used */
	struct vfm_encoder_opts encoder; /* tokenizer NULL without vae and exec: the built-in one */
	int64_t context;                 /* tokens of a batch, guidance included; a single video may exceed it */
	bool split_cfg;                  /* of struct vfm_sample_net_opts */
	bool reads_guidance;             /* the network must read sampler.guidance */
	bool keep_latents;               /* also write the latents next to each video, in .latent.npy */
	bool first_frame;                /* start each video with the first latent frame of latent.path in its line */
	bool force;                      /* accept other encoders than those of the training, with a warning */
	/* For samples of a run: a file that cannot be decoded or written fails its item, not the call, and groups
	 * without an item repeat one of another group, since all take part in the collectives of sharded weights. */
	bool in_training;
};

/* The inputs of an item besides its noise, on the leader of its group; f32. */
struct vfm_sample_inputs {
	bool ready, has_texts;
	int32_t n_text, n_negative, n_text2, n_negative2;
	float *text, *negative;   /* [n_text, text_dim], [n_negative, text_dim] */
	float *text2, *negative2; /* [n_text2, text2_dim], [n_negative2, text2_dim] */
	float *cond;              /* [tokens, cond_dim]; NULL: none */
	float *image;             /* [image_len, image_dim]; NULL: none */
	float *first;             /* [h * w, patch_dim]: the first latent frame; NULL: not given */
};

struct vfm_sample_item {
	json_t *rec; /* the record of its video */
	struct vfm_prompt p;
	uint64_t noise; /* id of its noise (sampler.h) */
	char *path;     /* of the video .mp4, .gif, .png, or of the latents .npy */
	char *why;      /* the error of an item that failed; NULL: none */
	int32_t dims[3], grid[3];
	bool given_first;
	struct vfm_sample_inputs in;
};

/* Of a picture that starts videos, and perhaps one that ends them. */
struct vfm_sample_picture {
	const char *image, *last_image; /* NULL: none is loaded */
	int width, height;
	int64_t frames;
	float *x;        /* [C, T, h, w]: a condition, or the latents of one picture */
	int32_t dims[3]; /* T, h, w */
	size_t bytes;
	float *rows; /* NULL: none.  [image_len, image_dim] */
	size_t rows_bytes;
};

struct vfm_sampling { /* `= {0}` apart from the fields of the first group */
	const struct vfm_sampling_opts *o;
	struct vfm_job *job;
	const char *device;

	/* before vfm_sampling_open */
	const struct vfm_config *c;
	const char *trained_by;         /* the checkpoint or run, for messages */
	struct vfm_encoder_ids trained; /* of its data; may be unknown */
	int64_t size[3];                /* frames, height, width of a sample of its data: the default; zeros: unknown */
	json_t *forced;                 /* accepted differences between encoders; NULL: none.  Owned */
	bool leader;
	int64_t groups, group;

	/* before vfm_sampling_run; the diffusion of net is that of c */
	struct vfm_sample_job net;
	struct vfm_comm *together; /* the ranks of the group, host memory */
	/* Prints records, lines of JSON in the order of the items, on rank 0. */
	int (*print)(void *ctx, const char *lines, size_t len, struct vfm_err *err);
	void *ctx;
	const volatile sig_atomic_t *stop; /* not 0 on a rank: the call ends after the videos in progress; NULL: none */

	/* results */
	struct vfm_sample_item *v;
	size_t n, cap;
	struct vfm_encoder_ids encoder_ids; /* of the latents, the texts, the image rows and the second texts; may be
					     * unknown */
	struct vfm_geometry geometry;       /* of the latents */
	double decode_s;                    /* seconds of this rank in decoding and writing */

	/* private */
	struct vfm_encoder_set encoders; /* of a leader */
	struct vfm_sample_picture picture;
	struct vfm_buf records;
	struct vfm_progress progress;
	size_t texts_next; /* the first item of a round whose texts are not encoded yet */
	bool logged_cut, logged_cut2, warned;
	int64_t evals, shown, failed;
	int64_t *passes; /* [evals + 1]: passes of the network before each evaluation of a batch */
};

/* Adds a prompt on rank 0.  line: that of a file of prompts, or NULL.  Returns the item, valid until the next call; the
 * caller sets its path. */
struct vfm_sample_item *vfm_sampling_add(struct vfm_sampling *s, const char *caption, const json_t *line);
/* Broadcasts the items of rank 0.  Collective. */
int vfm_sampling_share(struct vfm_sampling *s, struct vfm_err *err);
/* Opens the encoders, compares them with those of the training data, sets the size of each video and checks what each
 * prompt needs.  Encodes texts and the first picture, then frees the device memory of the encoders.  Collective.
 * VFM_EUSAGE names the prompt. */
int vfm_sampling_open(struct vfm_sampling *s, struct vfm_err *err);
/* Returns the most tokens of a batch, and sets *samples to the most samples, both with the copies of guidance.  Local.
 */
int64_t vfm_sampling_tokens(const struct vfm_sampling *s, int64_t *samples);
/* Encodes the texts and pictures of all items, which else each batch does, and closes the encoders.  Local. */
int vfm_sampling_prepare(struct vfm_sampling *s, struct vfm_err *err);
/* Samples all items, and writes their files and records.  While the network computes, no encoder has device memory.
 * After vfm_sampling_prepare it opens the decoder for the call,
 * and may be called again.  Collective.  VFM_EINPUT: some videos failed; their records say why. */
int vfm_sampling_run(struct vfm_sampling *s, struct vfm_err *err);
void vfm_sampling_release(struct vfm_sampling *s);

#endif
