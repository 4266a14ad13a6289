/* suballoc.c - places the next array in the block, or counts its bytes. */
#include "base/suballoc.h"

void *vfm_suballoc(struct vfm_suballoc *a, int64_t n, size_t size)
{
	size_t align = a->align ? a->align : 64, most = SIZE_MAX / 2 / align * align, bytes;
	void *p = a->base ? a->base + a->used : NULL;

	if (n < 0 || __builtin_mul_overflow((size_t)n, size, &bytes) || bytes > most - a->used)
		a->used = most;
	else
		a->used += (bytes + align - 1) / align * align;
	return p;
}
