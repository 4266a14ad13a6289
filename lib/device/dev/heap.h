/* heap.h - a best-fit allocator of address ranges, for the memory pool of a device.  Not thread-safe.
 *
 * A heap manages the offsets 0 .. limit and accesses no memory.  It allocates, in O(log n), the smallest hole that
 * fits and the lowest of equal ones, or else the space above all ranges in use.  Offsets depend only on the ranges in
 * use, so a periodic program (a training step) does not grow after its second period.  Adjacent holes merge.
 */
#ifndef VFM_DEVICE_DEV_HEAP_H
#define VFM_DEVICE_DEV_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vfm_heap;

struct vfm_heap_stats {
	uint64_t used;    /* bytes in use, rounded up to the grain */
	uint64_t top;     /* the end of the highest range in use */
	uint64_t end;     /* the highest value of top so far */
	uint64_t largest; /* the largest hole below top */
	size_t ranges, holes;
};

/* Offsets and sizes are multiples of `grain`, a power of 2. */
struct vfm_heap *vfm_heap_new(uint64_t limit, uint64_t grain);
void vfm_heap_free(struct vfm_heap *h); /* no-op for NULL */

/* Allocates a range of `bytes` (0: one grain) and returns its offset, or -1 if it does not fit below the limit.  The
 * heap stores the caller's `tag`. */
int64_t vfm_heap_take(struct vfm_heap *h, uint64_t bytes, uint32_t tag);
/* Allocates the range of `bytes` that begins at `at`, a multiple of the grain.  Returns false if it is not free or
 * exceeds the limit.  Linear time. */
bool vfm_heap_take_at(struct vfm_heap *h, uint64_t at, uint64_t bytes, uint32_t tag);
/* Frees the range that begins at `at`.  Returns its size, or 0 if there is no such range.  Sets *tag to its tag unless
 * tag is NULL. */
uint64_t vfm_heap_give(struct vfm_heap *h, uint64_t at, uint32_t *tag);

void vfm_heap_stats(const struct vfm_heap *h, struct vfm_heap_stats *s);
/* Iterates over the holes below top in the order of addresses; the heap must not change meanwhile.  `after` is 0 at
 * first, then the last result.  Returns 0 after the last hole.
 *
 *	for (k = 0; (k = vfm_heap_next_hole(h, k, &at, &size)) != 0;) */
uint32_t vfm_heap_next_hole(const struct vfm_heap *h, uint32_t after, uint64_t *at, uint64_t *size);

#endif
