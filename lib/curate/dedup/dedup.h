/* dedup.h - deduplication of records: each becomes the representative of a group or a duplicate of one.
 *
 * Records are read once to collect hashes or vectors (vfm_dedup_read), grouped (vfm_dedup_group), and read again
 * (vfm_dedup_mark).  Their keys are "id".  Headers, and records with "error" or "drop", do not take part.
 *
 * The representative of a group has the highest quality, by default width x height, and among equal ones the smallest
 * id.  A record without the keys of the quality ranks last.
 *
 * vfm_dedup_mark is thread-safe after vfm_dedup_group.
 */
#ifndef VFM_CURATE_DEDUP_DEDUP_H
#define VFM_CURATE_DEDUP_DEDUP_H

#include <jansson.h>
#include <stdint.h>

#include "base/err.h"
#include "curate/dedup/clip_groups.h"
#include "curate/dedup/clip_set.h"
#include "curate/dedup/groups.h"
#include "curate/dedup/record_text.h"
#include "curate/dedup/semantic.h"
#include "data/record/features.h"

#define VFM_DEDUP_QUALITY "width*height"

struct vfm_dedup_opts {
	const char *quality; /* "KEY" or "KEY*KEY", dotted paths of numbers; NULL: VFM_DEDUP_QUALITY.  With vectors also
				"far" and "near": the record that is farthest from the centroid of its cluster, or
				nearest to it */
	const char *vectors; /* NULL: uses hashes; or the dotted path of vectors, "embedding" */
	const char *matrix;  /* NULL, or an npy file whose row i belongs to the i-th record with a vector, as
				vfm_search_save writes it: the files that the records name are not read */
	double threshold;    /* distance, see clip_hash.h; with vectors 1 - the cosine; 0: VFM_CLIP_THRESHOLD,
				VFM_SEMANTIC_THRESHOLD */
	const char *against; /* an index whose clips are kept before all others; NULL: none. Only with hashes */
	struct vfm_semantic_opts semantic;
};

struct vfm_dedup_stats {
	int64_t items;   /* records that take part, including those of the index */
	int64_t members; /* duplicates */
	struct vfm_clip_groups_stats clips;
	struct vfm_semantic_stats semantic;
};

struct vfm_dedup; /* free in any case */

/* VFM_EUSAGE: an option or the index is bad. */
int vfm_dedup_new(struct vfm_dedup **d, const struct vfm_dedup_opts *o, struct vfm_err *err);
void vfm_dedup_free(struct vfm_dedup *d);

/* Collects the records of files [n] of JSON Lines.  Skips records that cannot take part; vfm_dedup_mark handles
 * them. */
int vfm_dedup_read(struct vfm_dedup *d, char *const *paths, int n, struct vfm_err *err);
/* Groups the collected records. */
int vfm_dedup_group(struct vfm_dedup *d, struct vfm_dedup_stats *stats, struct vfm_err *err);
/* Sets "dedup" of a record, and "drop" if it is a duplicate.  VFM_EINPUT: it has no id, no hash or no vector. */
int vfm_dedup_mark(const struct vfm_dedup *d, json_t *rec, struct vfm_err *err);
/* As vfm_dedup_mark for a record as text: appends the keys, each as ,"KEY":VALUE.  Sets *reason to the reason of its
 * drop, a constant without the stage, or to NULL.  Returns false for a record that needs vfm_dedup_mark. */
bool vfm_dedup_mark_text(
	const struct vfm_dedup *d, const struct vfm_record_text *t, struct vfm_buf *keys, const char **reason);
/* Writes the index of the representatives, including those of `against`.  Only with hashes. */
int vfm_dedup_save(const struct vfm_dedup *d, const char *path, struct vfm_err *err);
/* Returns the options that affect records, as text; valid as long as d. */
const char *vfm_dedup_settings(const struct vfm_dedup *d);

#endif
