/* sample_set.h - a set of sample keys that may exceed memory.
 *
 * An entry is the first 128 bits of the SHA-256 of a key, its place, and a hash of the contents there.  The 128 bits
 * identify the key (probability of any collision among a billion keys: 1.5e-21).
 *
 * The newest entries are in a hash table.  When it holds 1.5 million (by default), they become a sorted run in an
 * unlinked file.  16 runs of similar size are merged, as in a log-structured merge tree (O'Neil et al., 1996).  For
 * each run, memory holds a blocked Bloom filter (Putze, Sanders and Singler, 2007) and the first hash of each 4096
 * bytes.
 *
 * - Memory: at most 64 MiB for the table, 48 MiB to sort it, and 1.6 to 2.6 bytes for each key beyond 1.5 million,
 *   twice that during a merge.
 * - Files: 32 bytes per key, twice that during a merge.
 *
 * One thread at a time.
 */
#ifndef VFM_DATA_RECORD_SAMPLE_SET_H
#define VFM_DATA_RECORD_SAMPLE_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct vfm_sample_seen {
	uint64_t hash[2]; /* vfm_sample_hash (sample_key.h); 0, 0 in a free slot, and stored as 0, 1 */
	int64_t place;
	uint64_t content;
};

struct vfm_sample_set {   /* `= {0}` is empty */
	const char *dir;  /* of the files, borrowed; NULL: TMPDIR, else /tmp */
	size_t max_slots; /* of the table, a power of two from 1024; 0: 2^21 */
	uint64_t n;       /* keys */
	/* private */
	struct vfm_sample_seen *slots;
	size_t used, cap;
	struct vfm_sample_run *runs; /* from old and large to new and small */
	size_t n_runs, cap_runs;
};

/* Returns 1 with the entry of this hash, or 0 if there is none.  VFM_EENV: a file cannot be read. */
int vfm_sample_set_find(
	struct vfm_sample_set *set, const uint64_t hash[2], struct vfm_sample_seen *out, struct vfm_err *err);
/* Stores an entry.  is_known means that the set has an entry of the same hash, which is replaced.  VFM_EENV: a file
 * cannot be written. */
int vfm_sample_set_put(struct vfm_sample_set *set, const struct vfm_sample_seen *s, bool is_known, struct vfm_err *err);
/* Stores s and returns 0, or returns 1 with the existing entry of the same hash.  VFM_EENV as above. */
int vfm_sample_set_add(struct vfm_sample_set *set, const struct vfm_sample_seen *s, struct vfm_sample_seen *first,
	struct vfm_err *err);
void vfm_sample_set_release(struct vfm_sample_set *s);

#endif
