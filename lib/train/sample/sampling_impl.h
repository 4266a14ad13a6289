/* sampling_impl.h - private to train/sample. */
#ifndef VFM_TRAIN_SAMPLE_SAMPLING_IMPL_H
#define VFM_TRAIN_SAMPLE_SAMPLING_IMPL_H

#include "train/sample/sampling.h"

/* ---- encoders.c ---- */

/* Whether pictures become image rows here. */
bool sampling_makes_rows(const struct vfm_sampling *s);
/* Returns how many of the rows of a second text the model reads, and logs the first cut. */
int64_t sampling_cut_text2(struct vfm_sampling *s, int64_t rows);
/* Opens the encoders on leaders.  Local. */
int sampling_open_encoders(struct vfm_sampling *s, struct vfm_err *err);
/* Opens the decoder alone.  Local; no-op without one. */
int sampling_open_decoder(struct vfm_sampling *s, struct vfm_err *err);
/* Compares the encoders with those of the training data, and sets s->encoder_ids, s->geometry and the sizes of the
 * items.  Collective. */
int sampling_choose_encoders(struct vfm_sampling *s, struct vfm_err *err);

/* ---- texts.c ---- */

/* Encodes the texts of the next items of this group: of all that are left, or in vfm-sample of as many as fit into
 * about 1 GiB of host memory, at least one batch.  Closes the text encoder after the last.  Of a leader.  An item whose
 * text fails has a `why`. */
int sampling_encode_texts(struct vfm_sampling *s, struct vfm_err *err);

/* ---- inputs.c ---- */

/* Returns whether the line of an item names a file of its second text, so that no encoder makes it. */
bool sampling_names_text2(const struct vfm_sample_item *it);
/* Checks that each item has each input that the model reads.  Local. */
int sampling_check_inputs(struct vfm_sampling *s, struct vfm_err *err);
/* Encodes the picture of an item to s->picture, unless it is there.  Of a leader; no-op without a picture. */
int sampling_load_picture(struct vfm_sampling *s, const struct vfm_sample_item *it, struct vfm_err *err);
/* Makes the inputs of an item, unless it has them.  Of a leader.  Items are prepared in their order. */
int sampling_prepare_item(struct vfm_sampling *s, struct vfm_sample_item *it, struct vfm_err *err);
void sampling_release_inputs(struct vfm_sample_inputs *in); /* accepts `{0}` */
void sampling_release_picture(struct vfm_sample_picture *p);

/* The inputs of a batch on all ranks of a group. */
struct batch_inputs {
	float *text, *negative, *text2, *negative2, *cond, *image, *first;
	int32_t *cu_text, *cu_negative, *cu_text2, *cu_negative2;
	const float **frames;
	size_t bytes[7];
};
/* Joins the inputs of n items on the leader, broadcasts them, and points r at them.  Collective over the group. */
int sampling_join_inputs(struct batch_inputs *b, struct vfm_sample_request *r, const struct vfm_sampling *s,
	const struct vfm_sample_item *it, int n, struct vfm_err *err);
void batch_inputs_release(struct batch_inputs *b); /* accepts `{0}` */

/* ---- sampling_batch.c ---- */

/* Items [first, first + n) of one size, seed, steps and scale, which are sampled together. */
struct sample_batch {
	size_t first;
	int n;
};
/* Returns the batch of this group (n 0: none) in the round that begins with an item.  *next: the first item of the next
 * round. */
struct sample_batch sampling_own_batch(const struct vfm_sampling *s, size_t first, size_t *next);

/* ---- output.c ---- */

/* Writes the files of an item from its latent of n elements and queues its record.  An item that failed has a record
 * that says why, and the result is 0. */
int sampling_finish_item(
	struct vfm_sampling *s, struct vfm_sample_item *it, const float *latent, size_t n, struct vfm_err *err);
/* Rank 0 prints the queued records of all ranks in the order of the items.  Collective. */
int sampling_print_records(struct vfm_sampling *s, struct vfm_err *err);

/* ---- items ---- */

static inline int64_t sampling_tokens(const struct vfm_sample_item *it)
{
	return (int64_t)it->grid[0] * it->grid[1] * it->grid[2];
}
/* The sampler of an item: its seed, steps and scale. */
struct vfm_sampler sampling_sampler(const struct vfm_sampling *s, const struct vfm_sample_item *it);

#endif
