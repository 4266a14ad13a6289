/* file.h - files that are whole or absent. */
#ifndef VFM_BASE_FILE_H
#define VFM_BASE_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

/* Written under a temporary name in the same folder; commit = flush, fsync, rename,
 * fsync of the folder.  After abort nothing is left.  An existing file keeps its mode; a
 * symbolic link is followed.  A path that is no regular file (/dev/stdout, a pipe) is written
 * directly.  Errors: VFM_EENV.  Every open needs a commit or an abort; abort is allowed after
 * both a good and a failed commit. */
struct vfm_atomic {
	FILE *f;          /* write here */
	char *path, *tmp; /* tmp NULL: written directly */
};
int vfm_atomic_open(struct vfm_atomic *a, const char *path, struct vfm_err *err);
int vfm_atomic_commit(struct vfm_atomic *a, struct vfm_err *err);
void vfm_atomic_abort(struct vfm_atomic *a); /* also after commit: does nothing then */

int vfm_write_file(const char *path, const void *data, size_t len, struct vfm_err *err); /* atomic */
/* Errors of reading are VFM_EINPUT, of writing VFM_EENV. */
/* NUL is added after the data (not counted in *len).  More than max bytes is an error. */
int vfm_read_file(const char *path, size_t max, char **data, size_t *len, struct vfm_err *err);

/* A read-only mmap of a regular file; an empty file has data == NULL, size == 0.  If another
 * process cuts the file short while it is mapped, reading it raises SIGBUS. */
struct vfm_map {
	const uint8_t *data;
	size_t size;
};
int vfm_map_open(struct vfm_map *m, const char *path, struct vfm_err *err);
void vfm_map_close(struct vfm_map *m);

int vfm_mkdir_p(const char *path, struct vfm_err *err);
int vfm_fsync_dir(const char *path, struct vfm_err *err);
int vfm_rm_rf(const char *path, struct vfm_err *err); /* does not follow links; absent is fine */
int vfm_full_pread(int fd, void *buf, size_t len, uint64_t off, const char *name,
	struct vfm_err *err); /* short = error "truncated" */

#endif
