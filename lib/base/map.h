/* map.h - read-only mappings of files that other processes may change.
 *
 * A mapping shows the file at the time of each access.  If another process rewrites the file in place, a reader gets a
 * mixture; if it truncates the file, an access beyond its end raises SIGBUS.  A reader therefore calls vfm_map_check
 * after it has read, and before it uses the values.  Replacing the file by rename is harmless.
 */
#ifndef VFM_BASE_MAP_H
#define VFM_BASE_MAP_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/err.h"

/* A mapping of a regular file.  An empty file has data NULL and size 0. */
struct vfm_map { /* `= {0}` before open */
	const uint8_t *data;
	size_t size;
	/* private */
	char *path;
	int fd; /* kept open: the path may name another file later */
	struct vfm_map_stamp {
		struct timespec modified, changed; /* mtime, ctime */
	} stamp;
	pthread_mutex_t lock; /* guards stamp */
	struct vfm_map_guard *guard;
};

/* VFM_EINPUT: the file is missing, unreadable or not a regular file; VFM_EENV: it cannot be mapped. */
int vfm_map_open(struct vfm_map *m, const char *path, struct vfm_err *err);
void vfm_map_close(struct vfm_map *m);

/* Returns 0 if the file is as it was at open, else VFM_EENV.  Costs one system call if size, mtime and ctime are
 * unchanged.  A changed size is an error.  After a changed time, the call runs verify(ctx), which compares the content
 * and returns 0 or a negative code; on 0 the new time is accepted, so touch and chmod do no harm.  With verify NULL, a
 * changed time is an error.  Thread-safe; one thread verifies at a time. */
int vfm_map_check(struct vfm_map *m, int (*verify)(void *ctx, struct vfm_err *err), void *ctx, struct vfm_err *err);

/* Installs a SIGBUS handler.  If an access to a mapping faults, the process ends with status 3 (VFM_EENV) and a message
 * that names the file.  Any other SIGBUS ends the process as without the handler.  vfm_cmd_init calls it once. */
void vfm_map_catch_faults(void);

#endif
