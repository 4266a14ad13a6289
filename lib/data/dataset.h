/* dataset.h - writes a dataset: DIR/000000.tar, 000001.tar, … with KEY.latent.npy, KEY.text.npy, KEY.json (and
 * KEY.mp4), Energon's files beside them, and DIR/index.vfmi.
 *
 * A tar has its name only when it is complete; index and .nv-meta are written at the end, and taken away while
 * shards are being added, so that no reader ever sees an index of other shards than those that are there.  A run that
 * was killed loses the shard under way; opening with `resume` goes on behind the complete ones.  One thread at a time.
 */
#ifndef VFM_DATA_DATASET_H
#define VFM_DATA_DATASET_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct vfm_dataset_opts {
	const char *dir;
	int64_t max_bytes;   /* of a tar, unless one sample alone is larger; 0: 256 MiB */
	int64_t max_samples; /* of a tar; 0: no limit */
	bool with_media;     /* adds the clip itself */
	bool resume;         /* DIR may hold shards already: they stay */
};

struct vfm_dataset;

/* VFM_EUSAGE: DIR holds shards already and `resume` is off, or one of them is damaged. */
int vfm_dataset_open(struct vfm_dataset **d, const struct vfm_dataset_opts *o, struct vfm_err *err);

/* Adds the sample of a record that `encode` made, and sets rec["shard"], rec["index"].  A sample that a shard of an
 * earlier run holds is not written again.  VFM_EINPUT: this record's fault (no latents, unreadable
 * files, a key that was there before); VFM_EENV: cannot write. */
int vfm_dataset_add(struct vfm_dataset *d, json_t *rec, struct vfm_err *err);

struct vfm_dataset_stats {
	int64_t samples, shards, bytes;
	int64_t kept; /* samples that were there before */
};

/* Completes the last shard and writes the indexes.  Frees d in any case.  VFM_EINPUT: not a single sample. */
int vfm_dataset_commit(struct vfm_dataset *d, struct vfm_dataset_stats *stats, struct vfm_err *err);
void vfm_dataset_abort(struct vfm_dataset *d); /* complete shards stay; NULL is fine */

#endif
