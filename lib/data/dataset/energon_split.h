/* energon_split.h - the samples of a split of a dataset, by the .nv-meta/split.yaml of Megatron-Energon.
 *
 * split_parts lists the shards of each split; exclude lists shards and samples (SHARD/KEY) that no split has.  Both are
 * names or brace patterns ({000..127}, {a,b}).  Names that the index lacks are ignored.
 */
#ifndef VFM_DATA_DATASET_ENERGON_SPLIT_H
#define VFM_DATA_DATASET_ENERGON_SPLIT_H

#include <stdbool.h>

#include "base/err.h"
#include "data/dataset/selection.h"

/* Selects the samples of `split` of the dataset in `dir`, by split.yaml or split.json; without either, all samples.
 *
 * - subset: a range of the split's samples in the order of its shards, counted before samples are excluded; NULL: all
 * - *is_part: true if the selection, which is then sealed, has fewer records than the index; false leaves it empty
 *
 * VFM_EUSAGE: a bad file, no index, a shard that is named twice, or no sample. */
int vfm_energon_split_read(struct vfm_selection *selection, bool *is_part, const char *dir, const char *split,
	const struct vfm_subset *subset, struct vfm_err *err);

#endif
