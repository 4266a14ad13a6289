/* pack_groups.h - groups of packs that wait for a step.
 *
 * If packs have several parts, a complete group has as many parts as the largest possible pack.  It is one such pack,
 * or two groups of half as many parts.  The first part of a pack of k parts is therefore a multiple of k.  Otherwise a
 * group is a pack.
 */
#ifndef VFM_DATA_PLAN_PACK_GROUPS_H
#define VFM_DATA_PLAN_PACK_GROUPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/plan/pack.h"

#define VFM_SHUFFLE_PACKS (1ull << 40) /* stream ids of shuffles, above those of the sets */

struct vfm_ready_pack {
	int32_t parts, n, tokens;
	double cost;
};

struct vfm_pack_group {            /* its packs, and their samples, are contiguous */
	int64_t first_pack, first; /* into packs, samples */
	int32_t n_packs, n;        /* n: samples; 0: the group was removed */
	int32_t parts;
	double cost; /* maximum over its packs, per part */
};

struct vfm_pack_groups {
	uint64_t seed, round;                  /* of shuffles */
	bool by_cost;                          /* join groups of similar cost */
	int32_t parts;                         /* of a complete group */
	struct vfm_pack_group *ready, *sorted; /* complete groups; scratch */
	struct vfm_pack_group *partial;        /* groups with fewer parts */
	size_t n_ready, n_partial, cap_ready, cap_partial, cap_sorted;
	struct vfm_ready_pack *packs, *old_packs; /* of all groups */
	size_t n_packs, cap_packs, cap_old_packs;
	struct vfm_blend_sample *samples, *old_samples; /* of all these packs */
	size_t n_samples, cap_samples, cap_old;
};

/* Adds a group whose packs and samples are already stored. */
void vfm_pack_groups_add(struct vfm_pack_groups *g, const struct vfm_pack_group *x);
/* Joins pairs of groups with equal parts: of similar cost with by_cost, else at random.  At most one group remains for
 * each number of parts.  end: no more groups will be added, so the packs of the remaining groups get more parts than
 * they require. */
void vfm_pack_groups_join(struct vfm_pack_groups *g, bool end);
/* Removes the groups with n 0, and the packs and samples that belong to no group. */
void vfm_pack_groups_compact(struct vfm_pack_groups *g);
/* Shuffles n groups at a, with the stream `id` of this round. */
void vfm_pack_groups_shuffle(struct vfm_pack_groups *g, struct vfm_pack_group *a, size_t n, uint64_t id);
/* Returns the parts of all groups. */
int64_t vfm_pack_groups_parts(const struct vfm_pack_groups *g);
void vfm_pack_groups_release(struct vfm_pack_groups *g);

/* For qsort: from the most expensive to the cheapest. */
int vfm_pack_group_by_cost(const void *a, const void *b);

#endif
