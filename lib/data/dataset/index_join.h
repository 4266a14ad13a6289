/* index_join.h - joins datasets by key: an index of samples whose arrays are in the shards of several datasets.
 *
 * The samples are those of the first dataset, in its order, with its latents, JSON and media.  Texts, conditions and
 * image rows come from the later dataset that has such arrays, or else from the first.  Nothing is copied: the index
 * names the shards of all datasets, by folders relative to its own.
 *
 * Samples with equal ids (vfm_sample_id) are the same.  A dataset in the order of the first needs no memory; from the
 * first difference on, a set of its ids finds its samples (data/record/sample_set.h).  Local.
 */
#ifndef VFM_DATA_DATASET_INDEX_JOIN_H
#define VFM_DATA_DATASET_INDEX_JOIN_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum vfm_nonmatch { /* the treatment of a sample that a later dataset lacks */
	VFM_NONMATCH_ERROR,
	VFM_NONMATCH_SKIP, /* leaves it out */
	VFM_NONMATCH_NONE, /* keeps it without those arrays */
};

struct vfm_join_how {
	const char *dir;          /* of the index; created if missing */
	const char *const *parts; /* [n] folders with an index; n >= 2 */
	int n;
	enum vfm_nonmatch nonmatch;
	size_t max_slots; /* of the set of ids; 0: the default; fewer in tests */
};

struct vfm_index_join_stats {
	int64_t samples; /* of the join */
	int64_t left;    /* of the first dataset that another one lacks */
	int64_t partial; /* of the join, without the arrays of a dataset */
};

/* Writes DIR/index.vfmi.  VFM_EENV: a write failed.  VFM_EUSAGE:
 *
 * - a part has no index, is not a folder, or its path is not UTF-8
 * - a part lacks a sample
 * - two parts after the first have the same kind of arrays
 * - conditions and latents are from different tokenizers
 * - two samples have the same id
 * - DIR has an index that is not a join */
int vfm_index_join(const struct vfm_join_how *how, struct vfm_index_join_stats *stats, struct vfm_err *err);

/* Compares the index of part i with its state when it was joined.  Returns 1 if it is the same, 0 if it is absent (its
 * shards may be elsewhere), VFM_EUSAGE if it differs. */
struct vfm_index;
int vfm_join_check_part(const struct vfm_index *ix, uint32_t i, struct vfm_err *err);
/* As vfm_join_check_part for all present parts.  Returns 0 if ix is not a join. */
int vfm_join_check_parts(const struct vfm_index *ix, struct vfm_err *err);

#endif
