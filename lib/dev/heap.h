/* heap.h - ranges of addresses, given out and taken back: what a device's memory pool is made of.
 *
 * A heap deals in offsets 0 .. limit and touches no memory.  It gives the smallest hole that fits (of equal ones the
 * lowest), else the space above everything that is in use.  So where a range lies depends on what is in use and on
 * nothing else, not on how high the heap has been: the same calls give the same offsets, and a program that goes round
 * (a training step) does not grow after its second round. Neighbouring holes become one.  O(log n) a call, n the number
 * of ranges in use.  Not thread-safe.
 */
#ifndef VFM_DEV_HEAP_H
#define VFM_DEV_HEAP_H

#include <stddef.h>
#include <stdint.h>

struct vfm_heap;

struct vfm_heap_stats {
	uint64_t used;    /* bytes in use, rounded up to the grain */
	uint64_t top;     /* the end of the highest range in use */
	uint64_t end;     /* the highest that top has been */
	uint64_t largest; /* the largest hole below top */
	size_t ranges, holes;
};

/* Offsets and sizes are multiples of `grain`, a power of 2. */
struct vfm_heap *vfm_heap_new(uint64_t limit, uint64_t grain);
void vfm_heap_free(struct vfm_heap *h); /* NULL is fine */

/* A range of `bytes` (of 0: one grain); `tag` is the caller's own.  -1: nothing fits below the limit. */
int64_t vfm_heap_take(struct vfm_heap *h, uint64_t bytes, uint32_t tag);
/* Gives back the range that vfm_heap_take said begins at `at`: its size, with *tag (may be NULL).  0: there is none
 * (nothing is done). */
uint64_t vfm_heap_give(struct vfm_heap *h, uint64_t at, uint32_t *tag);

void vfm_heap_stats(const struct vfm_heap *h, struct vfm_heap_stats *s);
/* The first hole that begins at `from` or above and ends below top, in order of addresses (linear; for rare use): its
 * size, 0: none. */
uint64_t vfm_heap_hole(const struct vfm_heap *h, uint64_t from, uint64_t *at);

#endif
