/* groups.h - groups of duplicates: a representative, and members that resemble it.
 *
 * Items are numbered by rank: item 0 is preferred to item 1, and so on.  Pairs (member, of) with of < member are
 * duplicates.  A member belongs only to a representative that it resembles itself: with A ~ B ~ C but not A ~ C, B is a
 * duplicate of A, and C stays.  The result depends only on the pairs and the order of their addition.
 *
 * Not thread-safe.
 */
#ifndef VFM_CURATE_DEDUP_GROUPS_H
#define VFM_CURATE_DEDUP_GROUPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct vfm_duplicate { /* a pair and its similarity */
	uint32_t member, of;
	float distance, offset_s; /* offset_s: the member begins this much later */
	bool mirrored;
};

struct vfm_groups {
	int64_t n;
	int64_t fixed;            /* items below this number are never members */
	struct vfm_duplicate *of; /* [n]; of[i].of == i: item i is a representative */
};

/* Compares two items.  Returns 1 with the pair in *d, 0 if they are not duplicates, or a negative code. */
typedef int (*vfm_groups_compare)(
	void *ctx, uint32_t member, uint32_t of, struct vfm_duplicate *d, struct vfm_err *err);

void vfm_groups_init(struct vfm_groups *g, int64_t n, int64_t fixed);
void vfm_groups_release(struct vfm_groups *g);
static inline bool vfm_groups_is_member(const struct vfm_groups *g, int64_t i)
{
	return g->of[i].of != (uint32_t)i;
}

/* Sorts pairs [n] by member, distance and of, and adds each member that is still a representative to a group.  If `of`
 * has become a member, tries its representative. */
int vfm_groups_add(struct vfm_groups *g, struct vfm_duplicate *pairs, size_t n, vfm_groups_compare compare, void *ctx,
	struct vfm_err *err);
/* Call after the last pairs.  Compares each member whose representative has become a member with the new
 * representative, and makes it a representative itself if they differ. */
int vfm_groups_finish(struct vfm_groups *g, vfm_groups_compare compare, void *ctx, struct vfm_err *err);

#endif
