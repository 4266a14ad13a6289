/* file.h - files that are complete or absent, reads, and directories. */
#ifndef VFM_IO_FILE_H
#define VFM_IO_FILE_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

/* The suffix of temporary files.  A process holds a lock (flock) on its temporary file.  The next process that writes
 * the same path therefore recognises the file of a killed one and replaces it. */
#define VFM_TEMP_SUFFIX ".vfm-tmp"

/* Removes the temporary files that killed processes left in a folder. */
void vfm_temp_sweep(const char *dir);

/* Creates the folder DIR/PREFIXxxxxxx (six random characters) with access for this user only.  The caller frees *path.
 * *lock is a descriptor that holds the lock of PATH/lock, if the file system has locks; the caller removes the folder,
 * then closes it.  Fails with VFM_EENV. */
int vfm_temp_dir_make(const char *dir, const char *prefix, char **path, int *lock, struct vfm_err *err);
/* Removes this user's folders with the prefix whose processes were killed. */
void vfm_temp_dir_sweep(const char *dir, const char *prefix);

/* An atomic write.  The data go to a temporary file in the same folder.  commit flushes and syncs it, renames it and
 * syncs the folder; abort removes it.  Each open needs a commit or an abort.  An existing file keeps its mode, and a
 * symbolic link is followed.  Several processes and threads may write the same path; the last rename wins.  A path that
 * is no regular file (/dev/stdout, a pipe) is written directly.  Errors are VFM_EENV. */
struct vfm_atomic {
	FILE *f;          /* write here */
	char *path, *tmp; /* tmp is NULL if the path is written directly */
	bool unsynced;    /* set after open to commit without a sync; for many files, vfm_sync_folder syncs once */
};
int vfm_atomic_open(struct vfm_atomic *a, const char *path, struct vfm_err *err);
int vfm_atomic_commit(struct vfm_atomic *a, struct vfm_err *err);
void vfm_atomic_abort(struct vfm_atomic *a); /* no-op after commit */

/* Writes a file atomically. */
int vfm_write_file(const char *path, const void *data, size_t len, struct vfm_err *err);
/* As vfm_write_file without a sync; the caller calls vfm_sync_folder. */
int vfm_write_unsynced(const char *path, const void *data, size_t len, struct vfm_err *err);
/* Syncs the file system of a folder.  VFM_EENV. */
int vfm_sync_folder(const char *dir, struct vfm_err *err);

/* Creates an unlinked file in TMPDIR, or else in /tmp, for reading and writing; the caller closes it.  Fails with
 * VFM_EENV. */
int vfm_unlinked_temp(FILE **f, struct vfm_err *err);
/* As vfm_unlinked_temp in the folder `dir`. */
int vfm_unlinked_in(const char *dir, FILE **f, struct vfm_err *err);

/* The errors of the functions below are VFM_EINPUT for reads and VFM_EENV for writes. */

/* Reads a file of at most max bytes and appends a NUL, which *len does not count.  The caller frees *data.  Reads a
 * pipe to its end; vfm_read_regular (input.h) refuses pipes. */
int vfm_read_file(const char *path, size_t max, char **data, size_t *len, struct vfm_err *err);
/* As vfm_read_file from an open file.  `name` is for messages. */
int vfm_read_all(int fd, const char *name, size_t max, char **data, size_t *len, struct vfm_err *err);

/* Returns the folder of a file, "." for a name without a folder; the caller frees it. */
char *vfm_dir_of(const char *path);
/* Returns whether the name of a file ends in `end` and is longer.  Ignores case. */
bool vfm_name_ends(const char *name, const char *end);
/* Returns FOLDER/NAME of the first name that exists, or NULL; the caller frees it.  `names` ends with NULL. */
char *vfm_first_in(const char *folder, const char *const *names);

/* Locks an open file or folder (flock).  If another process holds the lock, waits up to 10 seconds: a killed process,
 * or its child, holds locks until the system has ended it.  Returns false if the lock is still held then, or if *stop
 * becomes nonzero (stop may be NULL).  Returns true on a file system without locks. */
bool vfm_lock(int fd, const volatile sig_atomic_t *stop);

/* Returns whether path still names the open file fd. */
bool vfm_is_same_file(int fd, const char *path);

int vfm_mkdir_p(const char *path, struct vfm_err *err); /* also makes missing parents; no-op if the folder exists */
int vfm_fsync_dir(const char *path, struct vfm_err *err);
int vfm_rm_rf(const char *path, struct vfm_err *err); /* does not follow links; no-op if the path does not exist */
/* Reads exactly len bytes.  A shorter file is an error that says "truncated".  `name` is for messages. */
int vfm_full_pread(int fd, void *buf, size_t len, uint64_t off, const char *name, struct vfm_err *err);

#endif
