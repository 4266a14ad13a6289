/* shared.h - memory shared by processes of one host, and waits for a word of it.
 *
 * One process creates a large, sparse anonymous file (memfd) and passes its descriptor to the others.  The file has no
 * name, and the limit of /dev/shm does not apply.  A counter in the first page allocates ranges of the file.  Processes
 * refer to shared memory by its offset.
 */
#ifndef VFM_BASE_SHARED_H
#define VFM_BASE_SHARED_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { VFM_SHARED_PAGE = 4096 };

struct vfm_shared {
	int fd; /* -1: none */
	struct vfm_shared_head *head;
};

#define VFM_SHARED_NONE ((struct vfm_shared){.fd = -1})

/* Creates a file.  `name` appears in /proc. */
int vfm_shared_make(struct vfm_shared *s, const char *name, struct vfm_err *err);
/* Opens the file that another process made; takes ownership of fd. */
int vfm_shared_open(struct vfm_shared *s, int fd, struct vfm_err *err);
void vfm_shared_close(struct vfm_shared *s); /* no-op for VFM_SHARED_NONE */

/* Returns the offset of the first reservation. */
uint64_t vfm_shared_first(void);
/* Reserves bytes and returns their offset, a multiple of VFM_SHARED_PAGE.  The bytes are zero and occupy memory only
 * once written.  An offset is never returned again. */
uint64_t vfm_shared_reserve(const struct vfm_shared *s, size_t bytes);
/* Maps reserved bytes; `what` names them in errors. */
int vfm_shared_map(
	const struct vfm_shared *s, uint64_t at, size_t bytes, const char *what, void **p, struct vfm_err *err);
void vfm_shared_unmap(void *p, size_t bytes); /* accepts NULL */
/* Returns the memory of reserved bytes to the system.  The caller ensures that no process uses them any more. */
void vfm_shared_discard(const struct vfm_shared *s, uint64_t at, size_t bytes);

/* Sleeps until the word is woken or ms milliseconds pass; returns at once if the word is not `value`.  May return
 * early, so the caller tests its condition again.  The word may be in shared or private memory. */
void vfm_word_wait(_Atomic uint32_t *word, uint32_t value, int ms);
/* Wakes all threads that wait for the word. */
void vfm_word_wake(_Atomic uint32_t *word);

#endif
