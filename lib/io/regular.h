/* regular.h - opens input files: regular files alone, so that no read waits for another process or a device. */
#ifndef VFM_IO_REGULAR_H
#define VFM_IO_REGULAR_H

#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* Opens a regular file for reading, close-on-exec, and sets *bytes to its size unless it is NULL.  Returns the
 * descriptor, or a negative code: VFM_EINPUT with a message that names the kind of file ("is a FIFO"), or VFM_EENV
 * (vfm_errno_code).  The open does not wait for the other end of a FIFO, and the check applies to the opened file. */
int vfm_open_regular(const char *path, uint64_t *bytes, struct vfm_err *err);

/* As vfm_read_file (file.h), of a regular file. */
int vfm_read_regular(const char *path, size_t max, char **data, size_t *len, struct vfm_err *err);

/* Whether a text begins with the byte order mark of UTF-8, which has 3 bytes. */
bool vfm_has_byte_order_mark(const void *head, size_t len);

/* Returns what a file is, and what to do about it, if its first `len` bytes (64 suffice) are those of a text that a
 * download leaves in the place of the file: a Git LFS pointer, or a page of a web server.  NULL: neither. */
const char *vfm_placeholder(const char *head, size_t len);

#endif
