/* mapped.h - a pool for which addresses and memory are two things.
 *
 * Zones are ranges of addresses, ruled by heaps (heap.h) and cut into chunks.  Memory is mapped below a chunk when a
 * range is given out that lies in it.  When there is no more, chunks that lie in holes lose theirs: so holes cost
 * addresses, which should be plenty, and never memory.  What maps is the device's (lib/cuda/cuda_mem.c).  Not
 * thread-safe.
 */
#ifndef VFM_DEV_MAPPED_H
#define VFM_DEV_MAPPED_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "dev/heap.h"

enum { VFM_MAPPED_ZONES = 4, VFM_MAPPED_FULL = 1 };

struct vfm_mapped_table {
	/* Memory for a chunk: 0; FULL: there is no more; negative: err is set. */
	int (*map)(void *ctx, int zone, uint64_t chunk, struct vfm_err *err);
	/* negative: it stays. */
	int (*unmap)(void *ctx, int zone, uint64_t chunk);
	/* Returns when nothing uses any more what was given back; negative: that cannot be waited for. */
	int (*settle)(void *ctx);
};

struct vfm_mapped {
	const struct vfm_mapped_table *t;
	void *ctx;
	uint64_t bytes; /* mapped now */
	int zones;
	struct vfm_mapped_zone {
		uint64_t size, chunk; /* bytes */
		struct vfm_heap *heap;
		bool *mapped; /* [size / chunk] */
	} zone[VFM_MAPPED_ZONES];
};

/* ctx goes to the table's functions. */
void vfm_mapped_init(struct vfm_mapped *m, const struct vfm_mapped_table *t, void *ctx);
void vfm_mapped_release(struct vfm_mapped *m); /* unmaps all */

/* size: a multiple of chunk; chunk: one of grain, a power of 2.  Its number. */
int vfm_mapped_zone(struct vfm_mapped *m, uint64_t size, uint64_t chunk, uint64_t grain);

/* A range with memory: its offset in *at.  FULL: neither holes nor new memory suffice.  Negative: as map said. */
int vfm_mapped_take(struct vfm_mapped *m, int zone, uint64_t bytes, uint32_t tag, uint64_t *at, struct vfm_err *err);
/* As vfm_heap_give. */
uint64_t vfm_mapped_give(struct vfm_mapped *m, int zone, uint64_t at, uint32_t *tag);

#endif
