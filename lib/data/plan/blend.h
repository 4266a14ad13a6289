/* blend.h - the sets of a plan and the order of their samples.
 *
 * Without weights, a pass covers the samples of all sets once, in a permutation that (seed, pass) determines.  With
 * weights, the next sample comes from the set with the fewest tokens so far divided by its weight.  So weights are
 * shares of the *tokens*, exact to within one sample at any time.  If all sets have a number of passes, a pass over all
 * sets has each sample of a set so many times, rounded down or up; fractions add up over the passes.
 *
 * A steered blend has weights that change over the steps of the plan, or some sets with a number of passes in the
 * whole plan.  The caller names the step of the next samples (vfm_blend_steer).
 *
 * A set holds the length of each sample in two bytes (lengths.h); the order takes no memory (base/permute.h).
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

/* `= {0}`, then name, dir and weight, then scan.  Release frees what scan allocated. */
struct vfm_blend_set {
	const char *name, *dir;          /* borrowed */
	double weight;                   /* requested share, if it is constant; 0 in all sets: no weights */
	struct vfm_mix_weights weights;  /* with points: instead of weight; owned */
	double passes;                   /* > 0: over its samples, instead of a weight */
	double max_passes;               /* with weights: then the other sets share its place; 0: any number */
	const struct vfm_subset *subset; /* before the scan: of all records; NULL: all of them */
	struct vfm_selection selection;  /* the records that belong to the set, if is_part; owned */
	bool is_part;                    /* set by the scan, or before it with a selection that is sealed */
	struct vfm_index *ix;
	char sha256[VFM_SHA256_HEX];
	int64_t records;            /* in the index */
	int64_t n;                  /* of the selected ones usable */
	struct vfm_lengths lengths; /* [records] tokens; 0: left out; negative: of a sample that is held out */
	int64_t total_tokens, n_long, n_ragged;
	int64_t longest;             /* tokens of the longest sample that is too long; 0: none */
	int64_t n_held, held_tokens; /* usable, but held out */
	bool is_held_out;            /* the usable samples are those that are held out */
	bool may_be_empty;           /* n may be 0, without weights */
	bool is_scanned;             /* private */
	uint32_t *shard_first;       /* [n_shards + 1] number of the first record of each shard, and of all records */
	uint32_t *shard_hint;        /* the shard of each record whose number is a multiple of 2^hint_shift */
	uint32_t n_shards;
	int hint_shift;
	int32_t channels, text_dim;
	int32_t cond_channels, image_len, image_dim; /* of all samples; 0: they have none */
};

/* Reads the index of set->dir: lengths in tokens for this patch.  Leaves out and counts samples of more than `context`
 * tokens, and samples whose size the patch does not divide.  held_out: the fraction of the samples that is held out
 * (split.h); 0: none.  VFM_EUSAGE: no index, or latents, texts or extra arrays of different sizes in it. */
int vfm_blend_scan(
	struct vfm_blend_set *set, const int32_t patch[3], int32_t context, double held_out, struct vfm_err *err);
/* Returns the samples of a set that are held out, as a set without weight.  It borrows from `set` and is not released.
 */
struct vfm_blend_set vfm_blend_held_out(const struct vfm_blend_set *set);
void vfm_blend_set_release(struct vfm_blend_set *set);

/* Returns the shard of a record of a set that was scanned. */
uint32_t vfm_blend_shard(const struct vfm_blend_set *set, uint32_t record);
/* Returns the number of records that belong to the set. */
int64_t vfm_blend_selected(const struct vfm_blend_set *set);

/* A sample's number is that of its record, counted over the records of all sets. */
struct vfm_blend;

struct vfm_blend_sample {
	uint32_t sample;
	int32_t tokens;
};

/* The sets must outlive the blend.  All sets have a weight or passes, or none has.  VFM_EUSAGE otherwise; when a set is
 * empty; or when the order would end, because the sets that have a weight at some step all have max_passes. */
struct vfm_blend *vfm_blend_new(const struct vfm_blend_set *sets, int32_t n_sets, uint64_t seed, struct vfm_err *err);
void vfm_blend_free(struct vfm_blend *b); /* accepts NULL */

/* Returns the next sample.  Sets *ends_pass if it is the last one of a pass over all sets (never with weights).  A
 * steered blend was steered before. */
struct vfm_blend_sample vfm_blend_next(struct vfm_blend *b, bool *ends_pass);
/* Splits a sample number into the set and the number of the record. */
int32_t vfm_blend_find(const struct vfm_blend *b, uint32_t sample, int64_t *record);
/* Returns what so many passes over all sets have: tokens with weights, else samples. */
double vfm_blend_budget(const struct vfm_blend *b, double epochs, bool *in_tokens);
int32_t vfm_blend_n_sets(const struct vfm_blend *b);
int64_t vfm_blend_n(const struct vfm_blend *b); /* usable samples of all sets */

/* ---- steered blends ---- */

bool vfm_blend_is_steered(const struct vfm_blend *b);
/* Sets the shares to those of this step.  tokens_left: how many tokens of all sets are drawn until the sets with passes
 * have returned their last sample, evenly over that time. */
void vfm_blend_steer(struct vfm_blend *b, double step, double tokens_left);
/* Returns the samples, and in *tokens about the tokens, that the sets with passes have yet to return. */
int64_t vfm_blend_left(const struct vfm_blend *b, double *tokens);
/* Returns the next sample of a set with passes; there is one left. */
struct vfm_blend_sample vfm_blend_next_left(struct vfm_blend *b);
/* Fails if a set with passes has returned fewer samples than so many passes have. got [n_sets]: samples in the plan.
 * VFM_EUSAGE. */
int vfm_blend_check_passes(const struct vfm_blend *b, const int64_t *got, struct vfm_err *err);
/* Returns the first step after `step` that the weights name; INFINITY: none. */
double vfm_blend_next_point(const struct vfm_blend *b, double step);
/* Returns the last step until which no share changes by more than `change`, at most `to`; no point is in between. */
double vfm_blend_steady(const struct vfm_blend *b, double step, double to, double change);

/* Fills share [n] with the shares of the tokens that are requested of a plan of so many tokens and steps, if that is
 * known, or of one pass over all sets. */
void vfm_blend_requested(const struct vfm_blend_set *sets, int32_t n, int64_t steps, double tokens, double *share);

/* A Fisher-Yates shuffle of a[n] by the stream (seed, step, id, VFM_RNG_DATA). */
void vfm_shuffle(uint32_t *a, int64_t n, uint64_t seed, uint64_t step, uint64_t id);

#endif
