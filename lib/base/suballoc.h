/* suballoc.h - several arrays in one block of memory, in two passes over the same code.  With base NULL the first pass
 * counts the bytes; the second returns addresses in the block.
 *
 *	static void place(struct thing *x, struct vfm_suballoc *a)
 *	{
 *		x->key = vfm_suballoc(a, x->n, sizeof(*x->key));
 *		x->cu = vfm_suballoc(a, x->n + 1, sizeof(*x->cu));
 *	}
 *
 *	struct vfm_suballoc count = {0}, give;
 *
 *	place(&x, &count);
 *	x.mem = vfm_dev_alloc(s, count.used, "a thing", err);
 *	give = (struct vfm_suballoc){.base = x.mem};
 *	place(&x, &give);
 *
 * The memory, of the host or a device, is never touched.  The caller owns the block; arrays are not freed one by one.
 * device/ops/tensor.h returns the arrays as tensors.
 */
#ifndef VFM_BASE_SUBALLOC_H
#define VFM_BASE_SUBALLOC_H

#include <stddef.h>
#include <stdint.h>

struct vfm_suballoc {
	char *base;   /* NULL: count only */
	size_t used;  /* bytes so far, a multiple of align */
	size_t align; /* of every array, relative to base; a power of 2; 0: 64 */
};

/* Returns the address of n elements of `size` bytes, or NULL in the first pass.  A total beyond a size_t stays at
 * SIZE_MAX / 2, rounded down to align, which no allocation can satisfy. */
void *vfm_suballoc(struct vfm_suballoc *a, int64_t n, size_t size);

#endif
