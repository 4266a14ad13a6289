/* mem.c - allocation that aborts on failure, large allocations that do not, arenas and text buffers. */
#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef __x86_64__
#include <emmintrin.h>
#endif

#include "base/log.h"

void vfm_out_of_memory(void)
{
	vfm_error("out of memory");
	_exit(-VFM_EENV);
}

static size_t checked_product(size_t n, size_t size)
{
	size_t bytes;

	if (__builtin_mul_overflow(n, size, &bytes))
		vfm_out_of_memory();
	return bytes;
}

void *vfm_malloc(size_t size)
{
	void *p = malloc(size ? size : 1);

	if (!p)
		vfm_out_of_memory();
	return p;
}

void *vfm_calloc(size_t n, size_t size)
{
	size_t bytes = checked_product(n, size);
	void *p = calloc(1, bytes ? bytes : 1);

	if (!p)
		vfm_out_of_memory();
	return p;
}

void *vfm_realloc(void *p, size_t n, size_t size)
{
	size_t bytes = checked_product(n, size);

	p = realloc(p, bytes ? bytes : 1);
	if (!p)
		vfm_out_of_memory();
	return p;
}

void *vfm_memdup(const void *p, size_t size)
{
	void *copy = vfm_malloc(size);

	return size ? memcpy(copy, p, size) : copy;
}

char *vfm_strdup(const char *s)
{
	size_t n = strlen(s) + 1;

	return memcpy(vfm_malloc(n), s, n);
}

char *vfm_vstrfmt(const char *fmt, va_list ap)
{
	char *s = NULL;

	if (vasprintf(&s, fmt, ap) < 0)
		vfm_out_of_memory();
	return s;
}

char *vfm_strfmt(const char *fmt, ...)
{
	char *s;
	va_list ap;

	va_start(ap, fmt);
	s = vfm_vstrfmt(fmt, ap);
	va_end(ap);
	return s;
}

enum { HUGE_PAGE = 2 << 20 };

void *vfm_big_alloc(size_t size, const char *what, struct vfm_err *err)
{
	/* Huge pages save most of the page faults and TLB misses of a large tensor. */
	size_t align = size >= 2 * (size_t)HUGE_PAGE ? HUGE_PAGE : 64;
	void *p = NULL;

	if (size > SIZE_MAX / 2 || posix_memalign(&p, align, size ? size : 1)) {
		vfm_fail(err, VFM_EENV, "no memory for %s (%.1f MiB)", what, (double)size / 1048576.0);
		return NULL;
	}
	if (align == HUGE_PAGE)
		madvise(p, size, MADV_HUGEPAGE);
	return p;
}

void vfm_big_free(void *p, size_t size)
{
	(void)size;
	free(p);
}

void vfm_copy_streaming(void *to, const void *from, size_t n)
{
	char *d = to;
	const char *s = from;
#ifdef __x86_64__
	size_t head = (size_t)(-(uintptr_t)d & 63);

	if (n >= 4096) {
		memcpy(d, s, head);
		for (d += head, s += head, n -= head; n >= 64; n -= 64, d += 64, s += 64) {
			__m128i a = _mm_loadu_si128((const __m128i *)s), b = _mm_loadu_si128((const __m128i *)s + 1);
			__m128i e = _mm_loadu_si128((const __m128i *)s + 2),
				f = _mm_loadu_si128((const __m128i *)s + 3);

			_mm_stream_si128((__m128i *)d, a);
			_mm_stream_si128((__m128i *)d + 1, b);
			_mm_stream_si128((__m128i *)d + 2, e);
			_mm_stream_si128((__m128i *)d + 3, f);
		}
		_mm_sfence();
	}
#endif
	if (n)
		memcpy(d, s, n);
}

void(vfm_grow)(void *arr, size_t *cap, size_t n, size_t elem)
{
	size_t want = *cap;
	void *p;

	if (n <= *cap && *cap > 0)
		return;
	if (want < 8)
		want = 8;
	while (want < n)
		want = want > SIZE_MAX / 2 ? n : want * 2;
	memcpy(&p, arr, sizeof(p)); /* arr is a T **: any pointer type */
	p = vfm_realloc(p, want, elem);
	memcpy(arr, &p, sizeof(p));
	*cap = want;
}

/* ---- arena ------------------------------------------------------------------- */

struct vfm_arena_chunk {
	struct vfm_arena_chunk *next;
	size_t used, size;
	_Alignas(16) char data[];
};

void *vfm_arena_alloc(struct vfm_arena *a, size_t size)
{
	struct vfm_arena_chunk *c = a->head;
	void *p;

	if (size > SIZE_MAX / 2)
		vfm_out_of_memory();
	size = (size + 15) & ~(size_t)15;
	if (!c || c->size - c->used < size) {
		size_t room = size > 65536 - sizeof(*c) ? size : 65536 - sizeof(*c);

		c = vfm_calloc(1, sizeof(*c) + room);
		c->size = room;
		/* A large object goes after the head, whose chunk keeps its free space. */
		if (a->head && size >= room) {
			c->next = a->head->next;
			a->head->next = c;
		} else {
			c->next = a->head;
			a->head = c;
		}
	}
	p = c->data + c->used;
	c->used += size;
	return p;
}

char *vfm_arena_strdup(struct vfm_arena *a, const char *s)
{
	size_t n = strlen(s) + 1;

	return memcpy(vfm_arena_alloc(a, n), s, n);
}

void vfm_arena_release(struct vfm_arena *a)
{
	struct vfm_arena_chunk *c = a->head, *next;

	for (; c; c = next) {
		next = c->next;
		free(c);
	}
	a->head = NULL;
}

/* ---- text -------------------------------------------------------------------- */

static void reserve_text(struct vfm_buf *b, size_t more)
{
	size_t n;

	if (__builtin_add_overflow(b->len, more, &n) || n == SIZE_MAX)
		vfm_out_of_memory();
	vfm_grow(&b->data, &b->cap, n + 1, 1);
}

void vfm_buf_add(struct vfm_buf *b, const void *data, size_t len)
{
	reserve_text(b, len);
	if (len)
		memcpy(b->data + b->len, data, len);
	b->len += len;
	b->data[b->len] = 0;
}

void vfm_buf_adds(struct vfm_buf *b, const char *s)
{
	vfm_buf_add(b, s, strlen(s));
}

void vfm_buf_addf(struct vfm_buf *b, const char *fmt, ...)
{
	va_list ap;
	int n;

	reserve_text(b, 64);
	va_start(ap, fmt);
	n = vsnprintf(b->data + b->len, b->cap - b->len, fmt, ap);
	va_end(ap);
	if (n < 0)
		vfm_out_of_memory();
	if ((size_t)n >= b->cap - b->len) {
		reserve_text(b, (size_t)n);
		va_start(ap, fmt);
		vsnprintf(b->data + b->len, b->cap - b->len, fmt, ap);
		va_end(ap);
	}
	b->len += (size_t)n;
}

void vfm_buf_clear(struct vfm_buf *b)
{
	b->len = 0;
	if (b->data)
		b->data[0] = 0;
}

void vfm_buf_release(struct vfm_buf *b)
{
	free(b->data);
	*b = (struct vfm_buf){0};
}
