/* pack_groups.h - packs that wait for a step, in groups.
 *
 * With packs of several parts, a complete group has as many parts as the largest pack may have: it is one such pack, or
 * two groups of half as many.  So the first part of a pack of k parts is a multiple of k.  Else a group is a pack.
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

struct vfm_pack_group {            /* its packs, and their samples, stand together */
	int64_t first_pack, first; /* into packs, samples */
	int32_t n_packs, n;        /* n: samples; 0: it was removed */
	int32_t parts;
	double cost; /* the largest of its packs, over their parts */
};

struct vfm_pack_groups {
	uint64_t seed, round;                  /* of shuffles */
	bool by_cost;                          /* groups of similar cost are joined */
	int32_t parts;                         /* of a complete group */
	struct vfm_pack_group *ready, *sorted; /* complete groups; scratch */
	struct vfm_pack_group *partial;        /* groups of fewer parts */
	size_t n_ready, n_partial, cap_ready, cap_partial, cap_sorted;
	struct vfm_ready_pack *packs, *old_packs; /* of all these groups */
	size_t n_packs, cap_packs, cap_old_packs;
	struct vfm_blend_sample *samples, *old_samples; /* of these packs */
	size_t n_samples, cap_samples, cap_old;
};

/* Adds a group whose packs and samples are there. */
void vfm_pack_groups_add(struct vfm_pack_groups *g, const struct vfm_pack_group *x);
/* Joins groups of equal parts, two and two: of similar cost with by_cost, else by chance.  At most one of each number
 * of parts is left.  end: no more will come, so that its packs get more parts than they need. */
void vfm_pack_groups_join(struct vfm_pack_groups *g, bool end);
/* Removes the groups with n 0, and packs and samples that belong to no group. */
void vfm_pack_groups_compact(struct vfm_pack_groups *g);
/* Shuffles n groups at a, by the stream `id` of this round. */
void vfm_pack_groups_shuffle(struct vfm_pack_groups *g, struct vfm_pack_group *a, size_t n, uint64_t id);
/* Parts of all groups. */
int64_t vfm_pack_groups_parts(const struct vfm_pack_groups *g);
void vfm_pack_groups_release(struct vfm_pack_groups *g);

/* For qsort: from expensive to cheap. */
int vfm_pack_group_by_cost(const void *a, const void *b);

#endif
