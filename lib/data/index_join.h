/* index_join.h - joins datasets by key: an index of samples whose arrays lie in the shards of several.
 *
 * The samples are those of the first dataset, in its order, with its latents, JSON and media.  Texts, conditions and
 * image rows come from the first dataset behind it that has such arrays, or else from the first.  Nothing is copied:
 * the index names the shards of all datasets, by folders relative to its own.
 *
 * Samples are the same if their ids are (vfm_sample_id): 64 bits of the sha256 of the key.  While two datasets have the
 * same order, no memory is needed; after the first difference, 16 bytes a record of the other one.  Local.
 */
#ifndef VFM_DATA_INDEX_JOIN_H
#define VFM_DATA_INDEX_JOIN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct vfm_join_stats {
	int64_t samples; /* of the join */
	int64_t left;    /* of the first dataset, that another one lacks */
};

/* Writes DIR/index.vfmi of the datasets parts [n], folders with an index; n >= 2.  skip: leaves out samples that a
 * dataset lacks, instead of failing.  VFM_EUSAGE: no index, such a sample, two datasets behind the first with the same
 * kind of arrays, or two samples of one id; VFM_EENV: cannot write. */
int vfm_index_join(
	const char *dir, const char *const *parts, int n, bool skip, struct vfm_join_stats *stats, struct vfm_err *err);

#endif
