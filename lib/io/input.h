/* input.h - opens inputs: regular files, members of tars, and pipes that are read twice.  Opens only regular files, so
 * that no read waits for another process or a device.  A member of a tar on disk is named
 *
 *	TAR@OFFSET+SIZE/MEMBER		shards/000001.tar@1536+48211/clips/a.mp4
 *
 * - OFFSET is the byte of TAR where the first header of the member begins (that of its long name, if it has one).
 * - SIZE is the bytes of its content.  Both are decimal without leading zeros.
 * - MEMBER is its name in the tar.
 *
 * The parse uses only the name: TAR ends at the first "@DIGITS+DIGITS/".  Opening reads one header, compares name and
 * size, and never searches the tar.
 */
#ifndef VFM_IO_INPUT_H
#define VFM_IO_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

/* ---- regular files ---- */

/* Opens a regular file for reading, close-on-exec, and sets *bytes to its size unless it is NULL.  Returns the
 * descriptor, or a negative code: VFM_EINPUT with a message that names the kind of file ("is a FIFO"), or VFM_EENV
 * (vfm_errno_code).  The open does not wait for the other end of a FIFO, and the check applies to the opened file. */
int vfm_open_regular(const char *path, uint64_t *bytes, struct vfm_err *err);

/* Reads a regular file like vfm_read_file (file.h). */
int vfm_read_regular(const char *path, size_t max, char **data, size_t *len, struct vfm_err *err);

/* Returns whether the data begin with the byte order mark of UTF-8, 3 bytes. */
bool vfm_has_byte_order_mark(const void *head, size_t len);

/* Checks the first `len` bytes of a file (64 suffice) for a Git LFS pointer or a web page that a download left in place
 * of the file.  Returns a sentence that names it and the remedy, or NULL. */
const char *vfm_placeholder(const char *head, size_t len);

/* ---- members of tars ---- */

struct vfm_member_name { /* points into the parsed name */
	size_t tar_len;  /* bytes of TAR */
	uint64_t offset, size;
	const char *member;
};

/* Returns whether `name` is that of a member, and sets its parts unless n is NULL. */
bool vfm_member_parse(struct vfm_member_name *n, const char *name);

/* Returns the name of a member; the caller frees it.  The tar's own path must not have the form of a member. */
char *vfm_member_name(const char *tar, uint64_t offset, uint64_t size, const char *member);

/* The bytes of an input: [at, at + size) of an open regular file. */
struct vfm_input {
	int fd; /* close-on-exec; the caller closes it */
	uint64_t at, size;
};

/* Opens a file, or the member of a tar.  VFM_EINPUT: there is no such file, it is not a regular file, or the tar has no
 * such member at this offset (it was changed or truncated).  VFM_EENV as vfm_open_regular. */
int vfm_input_open(struct vfm_input *in, const char *name, struct vfm_err *err);

/* ---- inputs that are read twice: pipes are copied to unlinked temporary files in TMPDIR ---- */

struct vfm_twice { /* `= {0}` before open; close in any case */
	int n;
	char **paths; /* [n] regular files to open by name: the inputs or their copies; valid until close */
	/* private */
	FILE **copies; /* [n], NULL for an input that is a regular file */
};

/* files [n]; n 0, or the name "-": stdin.  VFM_EINPUT: an input cannot be read; VFM_EENV: it cannot be copied. */
int vfm_twice_open(struct vfm_twice *t, char *const *files, int n, struct vfm_err *err);
void vfm_twice_close(struct vfm_twice *t);

#endif
