/* index_join.h - joins datasets by key: an index of samples whose arrays lie in the shards of several.
 *
 * The samples are those of the first dataset, in its order, with its latents, JSON and media.  Texts, conditions and
 * image rows come from the later dataset that has such arrays, or else from the first.  Nothing is copied: the index
 * names the shards of all datasets, by folders relative to its own.
 *
 * Samples are the same if their ids are (vfm_sample_id).  A dataset in the order of the first needs no memory; from
 * the first difference on, a set of its ids finds its samples (data/record/sample_set.h).  Local.
 */
#ifndef VFM_DATA_DATASET_INDEX_JOIN_H
#define VFM_DATA_DATASET_INDEX_JOIN_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum vfm_nonmatch { /* what happens to a sample that a dataset after the first lacks */
	VFM_NONMATCH_ERROR,
	VFM_NONMATCH_SKIP, /* it is left out */
	VFM_NONMATCH_NONE, /* it has no such arrays */
};

struct vfm_join_how {
	const char *dir;          /* of the index; created if missing */
	const char *const *parts; /* [n] folders with an index; n >= 2 */
	int n;
	enum vfm_nonmatch nonmatch;
	size_t max_slots; /* of the set of ids: 0 for the default, less in tests */
};

struct vfm_index_join_stats {
	int64_t samples; /* of the join */
	int64_t left;    /* of the first dataset, that another one lacks */
	int64_t partial; /* of the join, without the arrays of a dataset */
};

/* Writes DIR/index.vfmi.  VFM_EUSAGE: a part without an index, a sample that a part lacks, two parts after the first
 * with the same kind of arrays, conditions of another tokenizer than the latents, or two samples of one id.  Also
 * VFM_EUSAGE: a part that is no folder or whose path is not UTF-8, or DIR has an index that is no join.  VFM_EENV:
 * cannot write. */
int vfm_index_join(const struct vfm_join_how *how, struct vfm_index_join_stats *stats, struct vfm_err *err);

/* Compares the index of part i with what it was when it was joined.  Returns 1 if it is the same, 0 if it is not there
 * (its shards may be elsewhere), VFM_EUSAGE if it is another. */
struct vfm_index;
int vfm_join_check_part(const struct vfm_index *ix, uint32_t i, struct vfm_err *err);
/* The same of all present parts; 0 if ix is no join. */
int vfm_join_check_parts(const struct vfm_index *ix, struct vfm_err *err);

#endif
