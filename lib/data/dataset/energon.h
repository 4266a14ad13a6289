/* energon.h - the files that Megatron-Energon needs to read a WebDataset: NAME.tar.idx, and .nv-meta/{.info.json,
 * index.sqlite, index.uuid, split.yaml, dataset.yaml}.  .nv-meta/vfm.json, which Energon ignores, has the identities of
 * the encoders for programs that read the dataset without index.vfmi.
 *
 * The writer adds shards to a temporary database; commit renames all files into place.  One thread at a time.
 */
#ifndef VFM_DATA_DATASET_ENERGON_H
#define VFM_DATA_DATASET_ENERGON_H

#include <stdint.h>

#include "base/err.h"
#include "data/dataset/scan.h"

#define VFM_ENERGON_ENCODERS "vfm.json" /* {"v":1,"makers":{…}} as vfm_encoder_ids_json writes them */

struct vfm_energon;

int vfm_energon_open(struct vfm_energon **e, const char *dir, struct vfm_err *err);
/* Adds a shard; call in sorted order of the names.  Writes NAME.tar.idx (NAME ends in ".tar") at once.  The caller
 * ensures that keys of samples are unique. */
int vfm_energon_add(struct vfm_energon *e, const char *name, const struct vfm_scan *s, struct vfm_err *err);
/* Derives index.uuid from `uuid_hex`, at least 32 hex digits; equal datasets get equal uuids.  Frees e on success and
 * on failure. */
int vfm_energon_commit(
	struct vfm_energon *e, const char *uuid_hex, const struct vfm_encoder_ids *encoder_ids, struct vfm_err *err);
void vfm_energon_abort(struct vfm_energon *e); /* accepts NULL */

/* Returns 0 if NAME.tar.idx has exactly the offsets of s, else VFM_EINPUT with the reason. */
int vfm_energon_check_idx(const char *dir, const char *name, const struct vfm_scan *s, struct vfm_err *err);
/* Returns 0 if database and .info.json match s for shard number `shard`, else VFM_EINPUT with the first difference. */
int vfm_energon_check_meta(
	const char *dir, const char *name, uint32_t shard, const struct vfm_scan *s, struct vfm_err *err);
/* Returns 0 if .nv-meta/vfm.json has exactly these encoders, else VFM_EINPUT with the difference. */
int vfm_energon_check_encoders(const char *dir, const struct vfm_encoder_ids *encoder_ids, struct vfm_err *err);

#endif
