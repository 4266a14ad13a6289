/* dataset_impl.h - shared by dataset.c, which adds samples, and dataset_shards.c, which handles complete shards. */
#ifndef VFM_DATA_DATASET_DATASET_IMPL_H
#define VFM_DATA_DATASET_DATASET_IMPL_H

#include "data/dataset/dataset.h"
#include "data/dataset/energon.h"
#include "data/dataset/index.h"
#include "data/record/encoder_id.h"
#include "data/record/sample_set.h"
#include "io/file.h"
#include "io/tar.h"

struct vfm_dataset {
	struct vfm_dataset_opts o;
	char *dir, *index_path;
	int lock;                    /* of the folder: one run at a time */
	struct vfm_sample_set known; /* the samples of all shards; content: vfm_binding_number of their records */
	/* the open shard */
	struct vfm_atomic file;
	struct vfm_tar_writer tar;
	bool open;
	uint32_t n_shards, n_in_shard;
	struct vfm_dataset_stats stats;
	/* contents of the indexes, in the order of shards */
	struct vfm_index_writer *index;
	struct vfm_energon *energon;
	/* properties that all samples share */
	struct vfm_encoder_ids encoder_ids;
	int64_t n_latents, n_texts;
	int64_t channels, text_dim;
	int64_t width[VFM_EXTRAS]; /* of extra arrays with rows; 0: no sample has them */
	/* provenance of the samples (data/record/provenance.h) */
	json_t *chain, *marked;        /* from headers; from marks of this run's records */
	bool has_chain, chain_changed; /* since provenance.json was written */
};

/* A place, in 63 bits: shard, index, and whether an earlier run wrote the sample and this one has not added it again
 * yet. */
struct vfm_dataset_place {
	uint32_t shard, index;
	bool before;
};

int64_t vfm_dataset_pack_place(struct vfm_dataset_place p);
struct vfm_dataset_place vfm_dataset_place_of(int64_t packed);

struct vfm_dataset *vfm_dataset_new(const struct vfm_dataset_opts *o);
/* VFM_EUSAGE: another process has the lock of the folder. */
int vfm_dataset_lock(struct vfm_dataset *d, struct vfm_err *err);
int vfm_dataset_open_indexes(struct vfm_dataset *d, struct vfm_err *err);

/* Properties that all samples of a dataset share. */
struct vfm_dataset_common {
	struct vfm_encoder_ids encoder_ids;
	int64_t channels, text_dim; /* text_dim 0: no text */
	int64_t width[VFM_EXTRAS];  /* of extra arrays with rows; 0: none */
};

/* VFM_EINPUT: the encoders of the sample, or the widths of its arrays, differ from those before. */
int vfm_dataset_check_common(const struct vfm_dataset *d, const struct vfm_dataset_common *c, struct vfm_err *err);
void vfm_dataset_note_common(struct vfm_dataset *d, const struct vfm_dataset_common *c);

/* Reads a complete shard and adds it to the indexes.  before: an earlier run wrote it.  VFM_EINPUT: it is damaged, or a
 * key occurs twice. */
int vfm_dataset_register(struct vfm_dataset *d, const char *name, bool before, struct vfm_err *err);

#endif
