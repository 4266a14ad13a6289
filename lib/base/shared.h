/* shared.h - memory that processes of one host share, and waiting for a word of it.
 *
 * One process makes a large, sparse anonymous file (memfd) and passes its descriptor to the others; no name is left
 * behind, and the limit of /dev/shm does not apply.  A counter in its first page allocates parts of it, so that a
 * process names memory to another by its offset.
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

/* Makes a file.  `name` appears in /proc. */
int vfm_shared_make(struct vfm_shared *s, const char *name, struct vfm_err *err);
/* Opens the file that another process made; takes ownership of fd. */
int vfm_shared_open(struct vfm_shared *s, int fd, struct vfm_err *err);
void vfm_shared_close(struct vfm_shared *s); /* no-op for VFM_SHARED_NONE */

/* Returns the offset of the first reservation. */
uint64_t vfm_shared_first(void);
/* Reserves bytes and returns their offset, a multiple of VFM_SHARED_PAGE.  They are zero, and take memory once they are
 * written.  An offset is never returned again. */
uint64_t vfm_shared_reserve(const struct vfm_shared *s, size_t bytes);
/* Maps reserved bytes; `what` names them in errors. */
int vfm_shared_map(
	const struct vfm_shared *s, uint64_t at, size_t bytes, const char *what, void **p, struct vfm_err *err);
void vfm_shared_unmap(void *p, size_t bytes); /* p NULL is fine */
/* Gives the memory of reserved bytes back.  No process uses them any more. */
void vfm_shared_discard(const struct vfm_shared *s, uint64_t at, size_t bytes);

/* Sleeps until a wake of the word or for ms milliseconds, unless the word is no longer `value`.  Returns early at
 * times: the caller tests its condition again.  The word may be in shared or private memory. */
void vfm_word_wait(_Atomic uint32_t *word, uint32_t value, int ms);
/* Wakes all that wait for the word. */
void vfm_word_wake(_Atomic uint32_t *word);

#endif
