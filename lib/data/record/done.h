/* done.h - the records that an earlier run of a stage has finished, found by their key.
 *
 * by.STAGE of an output record is the stage fingerprint: a hash of the stage, its options and the input record
 * (stage.h).  A record is copied only for an input with the same fingerprint.
 *
 * An index of 40 bytes a slot is kept in memory; the records stay in the file.  Looking up is thread-safe.
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
	const char *stage; /* its fingerprints are by.STAGE */
	const char *key;   /* a record's key is this string; if it is missing or NULL, "id", else "src" */
	/* NULL, or dotted paths, ending in NULL: each of names of a file, or of an object whose keys "path", at any
	 * depth, are names of files.  A record counts only if these files exist. */
	const char *const *outputs;
};

#define VFM_FINGERPRINT_TEXT 17 /* bytes of a fingerprint: 16 hexadecimal digits and a NUL */

/* Returns by.STAGE of a record, or NULL. */
const char *vfm_done_fingerprint(const json_t *rec, const char *stage);

/* Indexes a file of JSON Lines.  Records with "error", without a fingerprint of the stage or of another version than 1
 * are not finished.  With the key "parent" a parent is finished if the file has all its records, as many as "siblings".
 * Ignores a truncated last line (of a killed run).  A file that does not exist is empty.  The strings of `o` must
 * outlive *d. */
int vfm_done_open(struct vfm_done **d, const char *path, const struct vfm_done_opts *o, struct vfm_err *err);

/* Returns the merged chain of the file's headers (provenance.h); it belongs to d. */
const json_t *vfm_done_chain(const struct vfm_done *d);

struct vfm_done_found {
	int64_t lines; /* copied; 0: the key is not finished */
	bool dropped;  /* all of them have "drop" */
	bool stale;    /* lines is 0, and the file has the key with another fingerprint or without its files */
};

/* Appends the lines of `key` to `text` if their fingerprint is `fingerprint`. */
int vfm_done_copy(struct vfm_done *d, const char *key, const char *fingerprint, struct vfm_buf *text,
	struct vfm_done_found *found, struct vfm_err *err);

void vfm_done_close(struct vfm_done *d); /* accepts NULL */

#endif
