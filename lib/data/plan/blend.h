/* blend.h - the sets of a plan and the order of their samples.
 *
 * Without weights, a pass covers the samples of all sets once, in a permutation that (seed, pass) determines.
 *
 * With weights, the next sample comes from the set with the smallest quotient of tokens so far and weight.  Weights are
 * therefore shares of the *tokens*, exact to within one sample at any time.
 *
 * If all sets have a number of passes, a pass over all sets contains each sample of a set that many times, rounded down
 * or up; fractions add up over the passes.
 *
 * A steered blend has weights that change over the steps of the plan, or some sets with a number of passes in the whole
 * plan.  The caller announces the step of the next samples (vfm_blend_steer).
 *
 * A set stores the length of each sample in two bytes (lengths.h).  The order takes no memory (base/permute.h).
 */
#ifndef VFM_DATA_PLAN_BLEND_H
#define VFM_DATA_PLAN_BLEND_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "data/dataset/index.h"
#include "data/dataset/selection.h"
#include "data/plan/lengths.h"
#include "data/plan/mix.h"
#include "io/hash.h"

/* `= {0}`, then set name, dir and weight, then scan.  Release frees the allocations of scan. */
struct vfm_blend_set {
	const char *name, *dir;         /* borrowed */
	double weight;                  /* requested share, if it is constant; 0 in all sets: no weights */
	struct vfm_mix_weights weights; /* if it has points, replaces weight; owned */
	double passes;                  /* > 0: number of passes over its samples, instead of a weight */
	/* with weights: after this many passes the other sets take over its share; 0: unlimited */
	double max_passes;
	const struct vfm_subset *subset; /* set before the scan: a subset of the records; NULL: all */
	struct vfm_selection selection;  /* the records of the set, if is_part; owned */
	bool is_part;                    /* set by the scan, or before it together with a sealed selection */
	struct vfm_index *ix;
	char sha256[VFM_SHA256_HEX];
	int64_t records;            /* in the index */
	int64_t n;                  /* usable records among the selected ones */
	struct vfm_lengths lengths; /* [records] tokens; 0: left out; negative: held out */
	int64_t total_tokens, n_long, n_ragged;
	int64_t longest;             /* tokens of the longest sample that is too long; 0: none */
	int64_t n_held, held_tokens; /* usable, but held out */
	bool is_held_out;            /* the usable samples are the held-out ones */
	bool may_be_empty;           /* n may be 0, without weights */
	bool is_scanned;             /* private */
	uint32_t *shard_first;       /* [n_shards + 1] number of the first record of each shard, and of all records */
	uint32_t *shard_hint;        /* the shard of each record whose number is a multiple of 2^hint_shift */
	uint32_t n_shards;
	int hint_shift;
	int32_t channels, text_dim;
	int32_t cond_channels, image_len, image_dim; /* of all samples; 0: they have none */
	int32_t text2_dim;                           /* of the samples with a second text; 0: none has one */
};

/* Reads the index of set->dir: lengths in tokens for this patch.  Leaves out and counts samples of more than `context`
 * tokens, and samples whose size the patch does not divide.  held_out: the fraction of the samples that is held out
 * (split.h).  VFM_EUSAGE: there is no index, or it has latents, texts or extra arrays of different sizes. */
int vfm_blend_scan(
	struct vfm_blend_set *set, const int32_t patch[3], int32_t context, double held_out, struct vfm_err *err);
/* Returns the held-out samples of a set, as a set without weight.  It borrows from `set`; do not release it. */
struct vfm_blend_set vfm_blend_held_out(const struct vfm_blend_set *set);
void vfm_blend_set_release(struct vfm_blend_set *set);

/* Returns the shard of a record of a scanned set. */
uint32_t vfm_blend_shard(const struct vfm_blend_set *set, uint32_t record);
/* Returns the number of records that belong to the set. */
int64_t vfm_blend_selected(const struct vfm_blend_set *set);

/* A blend.  A sample's number is that of its record, counted over the records of all sets. */
struct vfm_blend;

struct vfm_blend_sample {
	uint32_t sample;
	int32_t tokens;
};

/* The sets must outlive the blend.  VFM_EUSAGE: only some sets have a weight or passes; a set is empty; or the order
 * would end, because all sets with a weight at some step have max_passes. */
struct vfm_blend *vfm_blend_new(const struct vfm_blend_set *sets, int32_t n_sets, uint64_t seed, struct vfm_err *err);
void vfm_blend_free(struct vfm_blend *b); /* accepts NULL */

/* Returns the next sample.  Sets *ends_pass if it is the last one of a pass over all sets (never with weights).  Call
 * vfm_blend_steer before, if the blend is steered. */
struct vfm_blend_sample vfm_blend_next(struct vfm_blend *b, bool *ends_pass);
/* Splits a sample number into the set and the number of the record. */
int32_t vfm_blend_find(const struct vfm_blend *b, uint32_t sample, int64_t *record);
/* Returns the size of `epochs` passes over all sets: in tokens with weights, else in samples. */
double vfm_blend_budget(const struct vfm_blend *b, double epochs, bool *in_tokens);
int32_t vfm_blend_n_sets(const struct vfm_blend *b);
int64_t vfm_blend_n(const struct vfm_blend *b); /* usable samples of all sets */

/* ---- steered blends ---- */

bool vfm_blend_is_steered(const struct vfm_blend *b);
/* Sets the shares to those of `step`.  tokens_left: the number of tokens, over all sets, after which the sets with
 * passes must have returned their last sample; they are spread evenly until then. */
void vfm_blend_steer(struct vfm_blend *b, double step, double tokens_left);
/* Returns the number of samples, and in *tokens the approximate number of tokens, that the sets with passes have yet to
 * return. */
int64_t vfm_blend_left(const struct vfm_blend *b, double *tokens);
/* Returns the next sample of a set with passes; at least one must be left. */
struct vfm_blend_sample vfm_blend_next_left(struct vfm_blend *b);
/* VFM_EUSAGE: a set with passes has returned fewer samples than its passes require.  got [n_sets]: samples in the
 * plan. */
int vfm_blend_check_passes(const struct vfm_blend *b, const int64_t *got, struct vfm_err *err);
/* Returns the first step after `step` at which the weights have a point, or INFINITY. */
double vfm_blend_next_point(const struct vfm_blend *b, double step);
/* Returns the last step up to `to`, without a point in between, until which no share changes by more than `change`. */
double vfm_blend_steady(const struct vfm_blend *b, double step, double to, double change);

/* Fills share [n] with the requested shares of the tokens: of a plan with this many tokens and steps, if known, or of
 * one pass over all sets. */
void vfm_blend_requested(const struct vfm_blend_set *sets, int32_t n, int64_t steps, double tokens, double *share);

/* Shuffles a[n] by Fisher-Yates with the stream (seed, step, id, VFM_RNG_DATA). */
void vfm_shuffle(uint32_t *a, int64_t n, uint64_t seed, uint64_t step, uint64_t id);

#endif
