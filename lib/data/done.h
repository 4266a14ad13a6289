/* done.h - the records that an earlier run of a stage has finished, found by their key.
 *
 * An index of 32 bytes a record is kept in memory; the records stay in the file.
 * Looking up is thread-safe.
 */
#ifndef VFM_DATA_DONE_H
#define VFM_DATA_DONE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

struct vfm_done;

/* Indexes a file of JSON Lines.  A record's key is its string `key` (NULL: none), else "id",
 * else "src".  Records with "error" are not finished.  With the key "parent"
 * a parent is finished if the file has all its records, as many as "siblings".  Ignores a truncated last line (of a
 * killed run). */
int vfm_done_open(struct vfm_done **d, const char *path, const char *key, struct vfm_err *err);

/* Appends the lines of `key` to `text`; sets *lines to 0 if the key is not finished. */
int vfm_done_copy(
	struct vfm_done *d, const char *key, struct vfm_buf *text, int64_t *lines, bool *dropped, struct vfm_err *err);

void vfm_done_close(struct vfm_done *d); /* accepts NULL */

#endif
