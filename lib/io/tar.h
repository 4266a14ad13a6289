/* tar.h - tar archives, the format of WebDataset shards.
 *
 * - Writes POSIX ustar with mode 0644, owner 0 and time 0, so that equal members give equal bytes.  A pax header
 *   precedes only a member whose name or size ustar cannot hold.
 * - Reads ustar, pax (path and size), GNU (long names, base-256 sizes) and v7.  Sparse members, unknown pax syntax, bad
 *   checksums, sizes beyond the file and a missing end are errors.
 *
 * Local calls; a reader or writer belongs to one thread.
 */
#ifndef VFM_IO_TAR_H
#define VFM_IO_TAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

#define VFM_TAR_BLOCK    512
#define VFM_TAR_NAME_MAX 4096

/* ---- reading from memory, usually a vfm_map, or only the headers of an open file ---- */

struct vfm_tar {             /* plain data; borrows data, fd and what */
	const uint8_t *data; /* NULL: fd is read */
	int fd;
	uint64_t size, pos; /* pos may be set to the header_offset of a member, which is then read next */
	const char *what;   /* the archive's name, for errors */
};

struct vfm_tar_member {
	char name[VFM_TAR_NAME_MAX + 1];
	uint64_t header_offset; /* of its first header, including a pax or GNU long-name header */
	uint64_t data_offset, size;
	char type; /* '0': a regular file */
};

void vfm_tar_init(struct vfm_tar *t, const void *data, uint64_t size, const char *what);
void vfm_tar_init_fd(struct vfm_tar *t, int fd, uint64_t size, const char *what); /* a regular file of `size` bytes */
/* Returns 1 with the next member in *m; 0 at the end, with t->pos at the first zero block; or VFM_EINPUT if the archive
 * is damaged or its file unreadable, after which nothing more can be read.  Uses no memory but *m and, when it reads a
 * file, an extended header of at most 1 MiB. */
int vfm_tar_next(struct vfm_tar *t, struct vfm_tar_member *m, struct vfm_err *err);

/* Returns the offset behind the header, data and padding of m. */
uint64_t vfm_tar_end_of(const struct vfm_tar_member *m);

/* Returns whether the name is that of a tar (".tar"), or of a compressed tar. */
bool vfm_tar_is_name(const char *name);

/* Splits a member name by WebDataset's rule.  The key is everything before the first dot of the last path component;
 * *part, the extension, is everything after it.  Returns the length of the key and sets *part within `name`.  Returns 0
 * if the member belongs to no sample:
 *
 * - its last path component has no dot or begins with one, or
 * - its name is "__NAME__", or begins with such a folder (Megatron-Energon's rule). */
size_t vfm_tar_split_name(const char *name, const char **part);

/* ---- writing ---- */

struct vfm_tar_writer { /* plain data; borrows f and what */
	FILE *f;
	uint64_t pos;  /* bytes written */
	uint64_t left; /* payload bytes that the current member still expects */
	const char *what;
};

void vfm_tar_writer_init(struct vfm_tar_writer *w, FILE *f, const char *what);
/* Call begin, then write until size bytes are written, then end.  VFM_EINPUT: no tar can hold the name; VFM_EENV: the
 * write failed.  data_offset may be NULL. */
int vfm_tar_begin(
	struct vfm_tar_writer *w, const char *name, uint64_t size, uint64_t *data_offset, struct vfm_err *err);
int vfm_tar_write(struct vfm_tar_writer *w, const void *data, size_t len, struct vfm_err *err);
int vfm_tar_end(struct vfm_tar_writer *w, struct vfm_err *err);
int vfm_tar_add(struct vfm_tar_writer *w, const char *name, const void *data, size_t len, uint64_t *data_offset,
	struct vfm_err *err);                                      /* the three in one */
int vfm_tar_finish(struct vfm_tar_writer *w, struct vfm_err *err); /* the two zero blocks */

#endif
