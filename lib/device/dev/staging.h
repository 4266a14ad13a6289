/* staging.h - arithmetic of copies from pageable memory to a device: a ring of pinned segments, and the set of address
 * ranges that are already pinned.  Needs no device.
 */
#ifndef VFM_DEVICE_DEV_STAGING_H
#define VFM_DEVICE_DEV_STAGING_H

#include <stdbool.h>
#include <stddef.h>

/* Copies fill one segment after the other.  The caller records an event after a full segment and reuses the segment
 * when that event has passed.  So small copies share an event, and a large copy is split into chunks: one is filled
 * while the previous one is sent. */
struct vfm_staging {
	size_t segment; /* bytes of a segment, a multiple of 64 */
	int n;          /* segments, 2 or more */
	int cur;
	size_t used; /* bytes of the current segment */
};
struct vfm_staging_chunk {
	size_t at, bytes; /* offset in the ring; bytes of the copy that fit there, at least 1 */
	/* first record the event of segment `leave` and wait for that of segment `enter`; -1: none */
	int leave, enter;
};
/* Returns the next chunk of a copy of `want` > 0 bytes. */
struct vfm_staging_chunk vfm_staging_next(struct vfm_staging *s, size_t want);

/* A set of address ranges; `= {0}` is empty.  Not thread-safe. */
struct vfm_ranges {
	struct vfm_range {
		const char *p;
		size_t bytes;
	} * v; /* [n], ascending, disjoint */
	size_t n, cap;
};
void vfm_ranges_add(struct vfm_ranges *r, const void *p, size_t bytes);
bool vfm_ranges_remove(struct vfm_ranges *r, const void *p); /* false: no range begins at p */
bool vfm_ranges_hold(
	const struct vfm_ranges *r, const void *p, size_t bytes); /* whether one range contains all of [p, p + bytes) */
void vfm_ranges_release(struct vfm_ranges *r);

#endif
