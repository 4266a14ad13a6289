/* mapped.h - a memory pool over virtual addresses, with physical memory mapped on demand.
 *
 * A zone is a range of virtual addresses that a heap (heap.h) manages, divided into chunks.  The pool maps physical
 * memory to a chunk when it allocates a range in it.  If physical memory runs out, the pool compacts: it unmaps chunks
 * that lie in holes, so fragmentation costs addresses but no memory.  The device provides the mapping functions
 * (lib/device/cuda/cuda_mem.c).  Not thread-safe.
 *
 * With a limit, the pool compacts before it maps more than the limit.  It exceeds the limit only for ranges in use, and
 * then no longer compacts for bytes that it already has.
 *
 * A compaction waits for the device, so it must not recur in a periodic program (a training step).  Best fit alone
 * would let it recur.  After the first compaction, the pool therefore uses the best fit only if it is completely
 * mapped, and otherwise the hole with the fewest unmapped chunks.
 */
#ifndef VFM_DEVICE_DEV_MAPPED_H
#define VFM_DEVICE_DEV_MAPPED_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "device/dev/heap.h"

enum { VFM_MAPPED_ZONES = 4, VFM_MAPPED_FULL = 1 };

struct vfm_mapped_table {
	/* Maps memory to a chunk.  Returns 0, FULL if there is no more memory, or a negative code with err set. */
	int (*map)(void *ctx, int zone, uint64_t chunk, struct vfm_err *err);
	/* A negative result leaves the chunk mapped. */
	int (*unmap)(void *ctx, int zone, uint64_t chunk);
	/* Blocks until the device has passed the last use of all freed ranges; negative: it cannot wait here. */
	int (*drain)(void *ctx);
};

struct vfm_mapped {
	const struct vfm_mapped_table *t;
	void *ctx;
	uint64_t bytes; /* mapped now */
	uint64_t used;  /* bytes of the chunks that hold allocated ranges: the minimum to map */
	uint64_t used_peak;
	uint64_t limit;      /* bytes to map before a compaction; 0: unlimited */
	int64_t compactions; /* waits for the device to unmap chunks */
	int zones;
	struct vfm_mapped_zone {
		uint64_t size, chunk; /* bytes */
		struct vfm_heap *heap;
		bool *mapped;    /* [size / chunk] */
		uint32_t *users; /* [size / chunk] number of allocated ranges in the chunk */
	} zone[VFM_MAPPED_ZONES];
};

/* Passes ctx to the functions of the table. */
void vfm_mapped_init(struct vfm_mapped *m, const struct vfm_mapped_table *t, void *ctx);
void vfm_mapped_release(struct vfm_mapped *m); /* unmaps everything */

/* Adds a zone and returns its number.  size is a multiple of chunk, chunk one of grain, and grain a power of 2. */
int vfm_mapped_zone(struct vfm_mapped *m, uint64_t size, uint64_t chunk, uint64_t grain);

/* Unmaps all chunks without allocated ranges.  Does not count as a compaction.  Returns the bytes unmapped; 0 if drain
 * fails. */
uint64_t vfm_mapped_trim(struct vfm_mapped *m);

/* Sets the limit.  No-op if bytes is 0, or if the pool has exceeded it. */
void vfm_mapped_set_limit(struct vfm_mapped *m, int64_t bytes);

/* Allocates a mapped range and returns its offset in *at.  Returns FULL if neither holes nor new memory suffice, or the
 * negative code of map. */
int vfm_mapped_take(struct vfm_mapped *m, int zone, uint64_t bytes, uint32_t tag, uint64_t *at, struct vfm_err *err);
/* Frees a range like vfm_heap_give. */
uint64_t vfm_mapped_give(struct vfm_mapped *m, int zone, uint64_t at, uint32_t *tag);

#endif
