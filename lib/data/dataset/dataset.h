/* dataset.h - writes a dataset: shards, Energon's files, DIR/index.vfmi and DIR/provenance.json.  Shards are
 * DIR/000000.tar, 000001.tar, … with KEY.latent.npy, KEY.text.npy (or KEY.text.NAME.npy for each caption), KEY.json
 * (and KEY.mp4).
 *
 * A tar gets its name when it is complete.  The writer removes index and .nv-meta before it adds shards and writes them
 * at the end, so an index always matches the shards.  A killed run loses its incomplete shard; `resume` continues after
 * the complete ones.  provenance.json is written before the first shard that it describes, and holds the chains of all
 * runs that wrote shards.  One thread at a time.
 */
#ifndef VFM_DATA_DATASET_DATASET_H
#define VFM_DATA_DATASET_DATASET_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#define VFM_DATASET_MAX_BYTES ((int64_t)256 << 20)

struct vfm_dataset_opts {
	const char *dir;
	int64_t max_bytes;   /* of a tar, unless a single sample is larger; 0: VFM_DATASET_MAX_BYTES */
	int64_t max_samples; /* of a tar; 0: no limit */
	bool with_media;     /* also adds the clip itself */
	bool resume;         /* keeps the shards that DIR already has */
};

struct vfm_dataset;

/* Indexes the tars of `dir`, in the order of their names, which have at most 31 bytes.  Writes index.vfmi, NAME.tar.idx
 * and .nv-meta, and changes no tar.  The samples have the members of vfm-shard(5).  The compute threads share the work.
 * VFM_EUSAGE: there is no shard, or the index cannot describe a sample.
 *
 * - headers_only: reads only headers and JSON; the contents of the arrays get no checksums.
 * - for_join: samples may lack latents (index_join.h).
 * - columns: as for vfm_mds_open.  A folder without tars that has an index.json is one of MosaicML Streaming (mds.h);
 *   its shards, in their order, get only an index.vfmi. */
struct vfm_dataset_stats;
struct vfm_dataset_how {
	bool headers_only, for_join;
	const char *columns;
};
int vfm_dataset_index(
	const char *dir, const struct vfm_dataset_how *how, struct vfm_dataset_stats *stats, struct vfm_err *err);

/* VFM_EUSAGE: DIR already has shards and `resume` is off, or one of them is damaged. */
int vfm_dataset_open(struct vfm_dataset **d, const struct vfm_dataset_opts *o, struct vfm_err *err);

/* Sets the chain of the following records (data/record/provenance.h), including the entry of the calling program.
 * Datasets without a chain get no provenance.json.  VFM_EUSAGE: together with those of earlier runs it is too long. */
int vfm_dataset_set_chain(struct vfm_dataset *d, const json_t *chain, struct vfm_err *err);

/* Adds the sample of a record from `encode` and sets rec["shard"], rec["index"].  Does not rewrite samples that are in
 * shards of an earlier run.  VFM_EINPUT: the record is bad (no latents, unreadable files, duplicate key); VFM_EENV: a
 * write failed. */
int vfm_dataset_add(struct vfm_dataset *d, json_t *rec, struct vfm_err *err);

struct vfm_dataset_stats {
	int64_t samples, shards, bytes;
	int64_t kept;    /* samples of earlier runs */
	int64_t unbound; /* new samples whose record lacks digests (binding.h) */
};

/* Completes the last shard and writes the indexes.  Frees d on success and on failure.  VFM_EINPUT: no samples. */
int vfm_dataset_commit(struct vfm_dataset *d, struct vfm_dataset_stats *stats, struct vfm_err *err);
void vfm_dataset_abort(struct vfm_dataset *d); /* keeps complete shards; accepts NULL */

#endif
