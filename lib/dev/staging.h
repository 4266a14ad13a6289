/* staging.h - the arithmetic of copies from ordinary memory to a device: a ring of page-locked memory in segments, and
 * which addresses are page-locked already.  No device is needed here.
 */
#ifndef VFM_DEV_STAGING_H
#define VFM_DEV_STAGING_H

#include <stdbool.h>
#include <stddef.h>

/* Copies fill one segment after the other.  Behind a full one an event is recorded; the segment is filled again when
 * that event has passed. So any number of small copies costs one event a segment, and a big copy goes in pieces while
 * the next is being filled. */
struct vfm_staging {
	size_t segment; /* bytes of one, a multiple of 64 */
	int n;          /* segments, 2 or more */
	int cur;
	size_t used; /* of the current one */
};
struct vfm_staging_piece {
	size_t at, bytes; /* place in the ring; how much of what was asked for goes there, at least 1 byte */
	/* before anything else: record the event of segment `leave`, wait for that of `enter`; -1: neither */
	int leave, enter;
};
/* Where the next of `want` > 0 bytes go. */
struct vfm_staging_piece vfm_staging_next(struct vfm_staging *s, size_t want);

/* Ranges of addresses; `= {0}` is empty.  Not thread-safe. */
struct vfm_ranges {
	struct vfm_range {
		const char *p;
		size_t bytes;
	} * v; /* [n], ascending, disjoint */
	size_t n, cap;
};
void vfm_ranges_add(struct vfm_ranges *r, const void *p, size_t bytes);
bool vfm_ranges_remove(struct vfm_ranges *r, const void *p);                   /* false: no range begins there */
bool vfm_ranges_hold(const struct vfm_ranges *r, const void *p, size_t bytes); /* all of it in one range */
void vfm_ranges_release(struct vfm_ranges *r);

#endif
