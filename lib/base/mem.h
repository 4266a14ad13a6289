/* mem.h - memory.  A failed small allocation ends the process: vfm_out_of_memory.  A large allocation (vfm_big_alloc)
 * returns an error.
 */
#ifndef VFM_BASE_MEM_H
#define VFM_BASE_MEM_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Prints "out of memory" and ends the process with status 3.  Flushes no streams and runs no exit handlers, since these
 * may need memory.  Temporary files stay. */
void vfm_out_of_memory(void) __attribute__((noreturn));

void *vfm_malloc(size_t size);                     /* never NULL */
void *vfm_calloc(size_t n, size_t size);           /* never NULL, overflow checked */
void *vfm_realloc(void *p, size_t n, size_t size); /* never NULL, overflow checked */
char *vfm_strdup(const char *s);
void *vfm_memdup(const void *p, size_t size); /* a copy of the bytes; never NULL */
char *vfm_strfmt(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
char *vfm_vstrfmt(const char *fmt, va_list ap);

/* Returns 64-byte aligned, uninitialized memory; free it with vfm_big_free(p, size).  On failure, returns NULL with an
 * error that contains `what`, such as "tensor blocks.3.fc1". */
void *vfm_big_alloc(size_t size, const char *what, struct vfm_err *err);
void vfm_big_free(void *p, size_t size);

/* Copies like memcpy, with stores that bypass the caches: for large results that are not read soon. */
void vfm_copy_streaming(void *to, const void *from, size_t n);

/* Grows the array *arr, of elements of size `elem`, to a capacity of at least n.  *arr is then not NULL, even for n =
 * 0. */
void vfm_grow(void *arr, size_t *cap, size_t n, size_t elem);
/* Shows compilers and analysers that *arr is not NULL afterwards. */
#define vfm_grow(arr, cap, n, elem)                                                                                    \
	do {                                                                                                           \
		(vfm_grow)(arr, cap, n, elem);                                                                         \
		if (!*(arr))                                                                                           \
			__builtin_unreachable();                                                                       \
	} while (0)

/* An arena: many small objects that are freed together.  Not thread-safe. */
struct vfm_arena {
	struct vfm_arena_chunk *head;
};
void *vfm_arena_alloc(struct vfm_arena *a, size_t size); /* 16-byte aligned, zeroed */
char *vfm_arena_strdup(struct vfm_arena *a, const char *s);
void vfm_arena_release(struct vfm_arena *a);

/* A growing text; `= {0}` is empty.  data is NUL-terminated after the first addition, NULL before. */
struct vfm_buf {
	char *data;
	size_t len, cap;
};
void vfm_buf_add(struct vfm_buf *b, const void *data, size_t len);
void vfm_buf_adds(struct vfm_buf *b, const char *s);
void vfm_buf_addf(struct vfm_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void vfm_buf_clear(struct vfm_buf *b);
void vfm_buf_release(struct vfm_buf *b);

#endif
