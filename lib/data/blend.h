/* blend.h - the sets of a manifest and the order of their samples.
 *
 * Without weights, a pass covers the samples of all sets once, in a permutation that (seed, pass) determines.  With
 * weights, each set has its own passes, as many as its share needs.  The next sample comes from the set with the fewest
 * tokens so far divided by its weight.  Weights are therefore shares of the *tokens*, exact to within one sample at any
 * time.
 *
 * Of each sample, a set holds its length, in two bytes (data/lengths.h); the order takes no memory (base/permute.h).
 */
#ifndef VFM_DATA_BLEND_H
#define VFM_DATA_BLEND_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"
#include "data/index.h"
#include "data/lengths.h"

/* `= {0}`, then name, dir and weight, then scan.  Release frees what scan allocated. */
struct vfm_blend_set {
	const char *name, *dir; /* borrowed */
	double weight;          /* requested share; 0 in all sets: no weights */
	double max_passes;      /* with weights: then the other sets share its place; 0: any number */
	struct vfm_index *ix;
	char sha256[VFM_SHA256_HEX];
	int64_t records;            /* in the index */
	int64_t n;                  /* of them usable */
	struct vfm_lengths lengths; /* [records] tokens; 0: left out; negative: of a sample that is held out */
	int64_t total_tokens, n_long, n_ragged;
	int64_t n_held, held_tokens; /* usable, but held out */
	bool is_held_out;            /* the usable samples are those that are held out */
	bool may_be_empty;           /* n may be 0, without weights */
	uint32_t *shard_first;       /* [n_shards + 1] number of the first record of each shard, and of all records */
	uint32_t *shard_hint;        /* the shard of each record whose number is a multiple of 2^hint_shift */
	uint32_t n_shards;
	int hint_shift;
	int32_t channels, text_dim;
	int32_t cond_channels, image_len, image_dim; /* of all samples; 0: they have none */
};

/* Reads the index of set->dir: lengths in tokens for this patch.  Samples of more than `context` tokens and
 * samples whose size the patch does not divide are left out and counted.  held_out: the fraction of the samples that is
 * held out (data/split.h); 0: none.
 * VFM_EUSAGE: no index, or latents, texts or extra arrays of different sizes in it. */
int vfm_blend_scan(
	struct vfm_blend_set *set, const int32_t patch[3], int32_t context, double held_out, struct vfm_err *err);
/* Returns the samples of a set that are held out, as a set without weight.  It borrows from `set` and is not released.
 */
struct vfm_blend_set vfm_blend_held_out(const struct vfm_blend_set *set);
void vfm_blend_set_release(struct vfm_blend_set *set);

/* Returns the shard of a record of a set that was scanned. */
uint32_t vfm_blend_shard(const struct vfm_blend_set *set, uint32_t record);

/* A sample's number is that of its record, counted over the records of all sets. */
struct vfm_blend;

struct vfm_blend_sample {
	uint32_t sample;
	int32_t tokens;
};

/* The sets must outlive the blend.  Weights all 0, or all > 0 (VFM_EUSAGE otherwise, when a set is empty, or
 * when all sets have max_passes, so that the order would end). */
struct vfm_blend *vfm_blend_new(const struct vfm_blend_set *sets, int32_t n_sets, uint64_t seed, struct vfm_err *err);
void vfm_blend_free(struct vfm_blend *b); /* accepts NULL */

/* Returns the next sample.  Sets *ends_pass if it is the last one of a pass over all sets (never with weights). */
struct vfm_blend_sample vfm_blend_next(struct vfm_blend *b, bool *ends_pass);
/* Tokens of a usable sample; of others, 0 or less. */
int32_t vfm_blend_tokens(const struct vfm_blend *b, uint32_t sample);
/* Splits a sample number into the set and the number of the record. */
int32_t vfm_blend_find(const struct vfm_blend *b, uint32_t sample, int64_t *record);
bool vfm_blend_weighted(const struct vfm_blend *b);
int32_t vfm_blend_n_sets(const struct vfm_blend *b);
int64_t vfm_blend_n(const struct vfm_blend *b);            /* usable samples of all sets */
int64_t vfm_blend_total_tokens(const struct vfm_blend *b); /* of one pass over all sets */

/* A Fisher-Yates shuffle of a[n] by the stream (seed, step, id, VFM_RNG_DATA). */
void vfm_shuffle(uint32_t *a, int64_t n, uint64_t seed, uint64_t step, uint64_t id);

#endif
