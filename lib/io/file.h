/* file.h - files that are complete or absent, reads, and directories. */
#ifndef VFM_IO_FILE_H
#define VFM_IO_FILE_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

/* The end of the names of temporary files.  A process holds a lock (flock) on its temporary file; so the next process
 * that writes the same path recognises the file of a killed one, and replaces it. */
#define VFM_TEMP_SUFFIX ".vfm-tmp"

/* Removes the temporary files that killed processes left in a folder. */
void vfm_temp_sweep(const char *dir);

/* Makes a folder of this process, DIR/PREFIX with six characters, for this user alone.  *path is for the caller to
 * free; *lock is a descriptor that holds the lock of PATH/lock: the caller removes the folder, then closes it.  On a
 * file system without locks it holds none.  VFM_EENV. */
int vfm_temp_dir_make(const char *dir, const char *prefix, char **path, int *lock, struct vfm_err *err);
/* Removes this user's folders of that prefix whose processes were killed. */
void vfm_temp_dir_sweep(const char *dir, const char *prefix);

/* An atomic write.  The data go to a temporary file in the same folder; commit flushes, syncs and renames it and syncs
 * the folder; abort removes it.  An existing file keeps its mode; a symbolic link is followed.  Several processes and
 * threads may write the same path; the last rename wins.  A path that is no regular file (/dev/stdout, a pipe) is
 * written directly.  Errors are VFM_EENV.  Each open needs a commit or an abort. */
struct vfm_atomic {
	FILE *f;          /* write here */
	char *path, *tmp; /* tmp NULL: written directly */
	bool unsynced;    /* set after open: commit does not sync; vfm_sync_folder does, for many files at once */
};
int vfm_atomic_open(struct vfm_atomic *a, const char *path, struct vfm_err *err);
int vfm_atomic_commit(struct vfm_atomic *a, struct vfm_err *err);
void vfm_atomic_abort(struct vfm_atomic *a); /* no-op after commit */

/* Writes a file atomically. */
int vfm_write_file(const char *path, const void *data, size_t len, struct vfm_err *err);
/* The same without a sync, which vfm_sync_folder makes up for. */
int vfm_write_unsynced(const char *path, const void *data, size_t len, struct vfm_err *err);
/* Syncs the file system of a folder.  VFM_EENV. */
int vfm_sync_folder(const char *dir, struct vfm_err *err);

/* Creates an unlinked file in TMPDIR, else /tmp, for reading and writing; the caller closes it.  VFM_EENV: it cannot.
 */
int vfm_unlinked_temp(FILE **f, struct vfm_err *err);
/* The same in the folder `dir`. */
int vfm_unlinked_in(const char *dir, FILE **f, struct vfm_err *err);

/* Below, errors of reading are VFM_EINPUT, errors of writing VFM_EENV. */

/* Reads a file of at most max bytes and appends a NUL, which *len does not count.  The caller frees *data.  A pipe is
 * read to its end; vfm_read_regular (input.h) refuses it. */
int vfm_read_file(const char *path, size_t max, char **data, size_t *len, struct vfm_err *err);
/* The same from an open file.  name is for messages. */
int vfm_read_all(int fd, const char *name, size_t max, char **data, size_t *len, struct vfm_err *err);

/* Returns the folder of a file, "." of a name without one; the caller frees it. */
char *vfm_dir_of(const char *path);
/* Whether the name of a file is longer than `end` and ends in it, whatever the case of the letters. */
bool vfm_name_ends(const char *name, const char *end);
/* Returns FOLDER/NAME of the first name that exists; NULL: none does.  The list of names ends with NULL.  The caller
 * frees it. */
char *vfm_first_in(const char *folder, const char *const *names);

/* Locks an open file or folder (flock).  Waits up to 10 seconds for its holder, since a killed process, or a child of
 * one, holds its locks until the system has ended it.  Returns false if another process still holds it, or if *stop
 * becomes other than 0 (NULL: nothing stops it).  On a file system without locks it returns true. */
bool vfm_lock(int fd, const volatile sig_atomic_t *stop);

/* Returns whether path still names the open file fd. */
bool vfm_is_same_file(int fd, const char *path);

int vfm_mkdir_p(const char *path, struct vfm_err *err); /* also makes missing parents; no-op if it exists */
int vfm_fsync_dir(const char *path, struct vfm_err *err);
int vfm_rm_rf(const char *path, struct vfm_err *err); /* does not follow links; no-op if it is absent */
/* Reads all len bytes.  A file that ends before is an error that says "truncated".  name is for messages. */
int vfm_full_pread(int fd, void *buf, size_t len, uint64_t off, const char *name, struct vfm_err *err);

#endif
