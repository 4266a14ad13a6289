/* clip_set.h - a set of hashed clips with names and qualities, and its file, the index of `vfm-curate dedup`
 * (vfm-dedup(5)).
 *
 * The hashes are in an unlinked temporary file in TMPDIR.  Memory has 48 bytes per clip, and its name.  A set belongs
 * to one thread; only vfm_clip_set_read is thread-safe.
 */
#ifndef VFM_CURATE_DEDUP_CLIP_SET_H
#define VFM_CURATE_DEDUP_CLIP_SET_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "io/names.h"
#include "media/match/clip_hash.h"

#define VFM_CLIP_NAME_MAX 4096

struct vfm_clip_entry {
	uint64_t offset; /* in the temporary file */
	double quality;
	int32_t slots, bytes; /* of the hash */
};

struct vfm_clip_set { /* `= {0}` before open; close in any case */
	int64_t n;
	struct vfm_clip_entry *entries; /* [n] */
	struct vfm_names names;         /* of the entries */
	uint32_t loaded_crc;            /* of the body of the loaded index; 0: none */
	/* private */
	FILE *spool;
	uint64_t spool_bytes;
	size_t cap;
};

/* Makes an empty set.  VFM_EENV: there is no temporary file. */
int vfm_clip_set_open(struct vfm_clip_set *s, struct vfm_err *err);
void vfm_clip_set_close(struct vfm_clip_set *s);

/* Adds a clip.  VFM_EINPUT: the name is empty, too long, or already in the set, or the quality is not finite.
 * VFM_EENV: the temporary file cannot be written. */
int vfm_clip_set_add(
	struct vfm_clip_set *s, const char *name, double quality, const struct vfm_clip_hash *h, struct vfm_err *err);
/* As vfm_clip_set_add with the bytes [len] of a hash with `slots` slots, as written by vfm_clip_hash_pack. */
int vfm_clip_set_add_packed(struct vfm_clip_set *s, const char *name, double quality, const uint8_t *hash, size_t len,
	int slots, struct vfm_err *err);
/* Makes all hashes readable.  Call after the last addition. */
int vfm_clip_set_flush(struct vfm_clip_set *s, struct vfm_err *err);
int vfm_clip_set_read(const struct vfm_clip_set *s, int64_t i, struct vfm_clip_hash *h, struct vfm_err *err);

/* Adds the clips of an index.  VFM_EUSAGE: the file is missing, not an index, of another version, truncated or
 * damaged. */
int vfm_clip_set_load(struct vfm_clip_set *s, const char *path, struct vfm_err *err);
/* As vfm_clip_set_load from an open file of `bytes` bytes; path is for messages. */
int vfm_clip_set_load_file(struct vfm_clip_set *s, FILE *f, uint64_t bytes, const char *path, struct vfm_err *err);
/* Atomically writes an index of the clips i with keep[i]; keep NULL: of all clips. */
int vfm_clip_set_save(const struct vfm_clip_set *s, const uint8_t *keep, const char *path, struct vfm_err *err);

#endif
