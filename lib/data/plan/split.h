/* split.h - the split of samples into training data and held-out data.
 *
 * A sample is held out if the hash of its source is below a fraction of the range of hashes.  The source is the
 * "parent" of its record, the video that it was cut from, or else the sample itself (vfm_sample_id of either).  The
 * side of a sample therefore depends only on its key, not on other samples, their order, the seed or the set.  All
 * clips of a video are on one side.  A larger fraction also holds out every sample that a smaller one holds out.
 */
#ifndef VFM_DATA_PLAN_SPLIT_H
#define VFM_DATA_PLAN_SPLIT_H

#include "data/dataset/index.h"
#include "data/plan/plan.h"

/* Returns the hash of a record's source: of `parent`, or `id` if it is NULL. */
uint64_t vfm_split_source(uint64_t id, const char *parent);
/* Returns whether a source is held out; 0 <= fraction <= 1. */
bool vfm_split_is_held_out(uint64_t source, double fraction);

/* Sets held[i] for each sample of a dataset, [n_records of vfm_index_info].  Reads the JSON of each sample, on all
 * compute threads.  VFM_EINPUT: a sample is damaged; VFM_EENV: a read failed. */
int vfm_split_read(struct vfm_index *ix, double fraction, bool *held, struct vfm_err *err);

/* VFM_EUSAGE unless the headers prove that the plans share no sample: each set belongs to only one of them
 * (index_sha256), or `train` was packed without the held-out samples of `held`. */
int vfm_split_check_disjoint(const struct vfm_plan_header *train, const char *train_path,
	const struct vfm_plan_header *held, const char *held_path, struct vfm_err *err);

#endif
