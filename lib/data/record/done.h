/* done.h - the records that an earlier run of a stage has finished, by key.
 *
 * by.STAGE of an output record is the stage fingerprint: a hash of the stage, its options and the input record
 * (stage.h).  A finished record is copied only for an input with the same fingerprint.
 *
 * An index of 40 bytes per slot is in memory; the records stay in the file.  Lookups are thread-safe.
 */
#ifndef VFM_DATA_RECORD_DONE_H
#define VFM_DATA_RECORD_DONE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

struct vfm_done;

struct vfm_done_opts {
	const char *stage; /* its fingerprints are in by.STAGE */
	const char *key;   /* the string of a record that is its key; if missing or NULL, "id", else "src" */
	/* NULL, or dotted paths, ending in NULL.  Each path leads to the name of a file, or to an object in which every
	 * key "path", at any depth, is the name of a file, or to null: no file.  A record counts only if these files
	 * exist. */
	const char *const *outputs;
};

#define VFM_FINGERPRINT_TEXT 17 /* bytes of a fingerprint: 16 hexadecimal digits and a NUL */

/* Returns by.STAGE of a record, or NULL. */
const char *vfm_done_fingerprint(const json_t *rec, const char *stage);

/* Indexes a file of JSON Lines; a file that does not exist is empty.  Records with "error", without a fingerprint of
 * the stage, or of a version other than 1 are not finished.  With the key "parent", a parent is finished if the file
 * has all its records, as many as the sum of "siblings" and "transitions".  Ignores a truncated last line, as of a
 * killed run.  The strings of `o` must outlive *d. */
int vfm_done_open(struct vfm_done **d, const char *path, const struct vfm_done_opts *o, struct vfm_err *err);

/* Returns the merged chain of the file's headers (provenance.h); it belongs to d. */
const json_t *vfm_done_chain(const struct vfm_done *d);

struct vfm_done_found {
	int64_t lines; /* copied; 0: the key is not finished */
	bool stale;    /* lines is 0, because the key has another fingerprint or lacks its files */
};

/* Appends the lines of `key` to `text` if they have this fingerprint. */
int vfm_done_copy(struct vfm_done *d, const char *key, const char *fingerprint, struct vfm_buf *text,
	struct vfm_done_found *found, struct vfm_err *err);

void vfm_done_close(struct vfm_done *d); /* accepts NULL */

#endif
