/* metadataset.h - reads a metadataset of Megatron-Energon (YAML), which describes a mix of datasets.
 *
 * Reads both versions (classes Metadataset and MetadatasetV2) and nested metadatasets: a single dataset, a blend by
 * weights, and a blend by repetitions.  Each dataset has a split (data/dataset/energon_split.h) or a subset of it.
 * `subflavor`, `subflavors`, `dataset_config` and `shuffle_over_epochs_multiplier` do not affect the mix and are
 * ignored.  Joins and auxiliary datasets are refused.
 */
#ifndef VFM_DATA_PLAN_METADATASET_H
#define VFM_DATA_PLAN_METADATASET_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/mem.h"
#include "data/dataset/selection.h"

struct vfm_metadataset_set {
	const char *dir;
	double weight;                  /* share of the samples; 0 without weights */
	double repetitions;             /* > 0, per pass; 1 with weights */
	struct vfm_selection selection; /* the records that belong to the set, if is_part; sealed */
	bool is_part;
};

struct vfm_metadataset { /* `= {0}` before; release in any case */
	struct vfm_metadataset_set *sets;
	size_t n, cap;
	bool weighted; /* the sets have weights, whose sum is 1 */
	struct vfm_arena arena;
};

/* Reads the split ("train") of the metadataset at path.  VFM_EUSAGE names the wrong or unsupported key or line;
 * VFM_EINPUT: a file cannot be read. */
int vfm_metadataset_read(struct vfm_metadataset *m, const char *path, const char *split, struct vfm_err *err);
void vfm_metadataset_release(struct vfm_metadataset *m);

#endif
