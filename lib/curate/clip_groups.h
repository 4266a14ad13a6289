/* clip_groups.h - finds the duplicates in a set of hashed clips.
 *
 * Candidates come from locality-sensitive hashing by sampling bits (Indyk, Motwani, "Approximate nearest neighbors",
 * STOC 1998): each of VFM_CLIP_TABLES tables has keys of some sign bits of a slot, also with the bits of its weakest
 * coefficients flipped (multi-probe).  Slots with equal keys are compared by their bits, and then the clips by
 * vfm_clip_compare.  Mirroring changes no key.  The number of bits grows with the set, so that keys seldom agree by
 * chance; the time is nearly linear in the slots.
 *
 * Clips are ranked: those of `fixed` first, then by quality, the highest first, then by name.  Groups follow
 * curate/groups.h: the representative is the best of its group, and each member is within the threshold of it.
 *
 * Memory: 20 bytes a slot, about 60 a clip, and 1 GiB at most for a part of a table.  The result does not depend on the
 * number of threads.
 */
#ifndef VFM_CURATE_CLIP_GROUPS_H
#define VFM_CURATE_CLIP_GROUPS_H

#include <stdint.h>

#include "base/err.h"
#include "curate/clip_set.h"
#include "curate/groups.h"

#define VFM_CLIP_TABLES    12
#define VFM_CLIP_THRESHOLD 0.25

struct vfm_clip_groups_opts {
	double threshold; /* distance of duplicates, above 0 and below 1 */
	int64_t fixed;    /* the first clips of the set, which are of an index: they are never members */
};

struct vfm_clip_groups_stats {
	int64_t flat;     /* clips without a slot that is not flat: they have no duplicates */
	int64_t compared; /* pairs of clips */
	int64_t cut_off;  /* slots that met more representatives under a key than are compared */
	int bits;         /* of a key */
};

struct vfm_clip_groups {
	struct vfm_groups groups; /* by rank */
	uint32_t *clip;           /* [n] the clip of a rank */
	uint32_t *rank;           /* [n] the rank of a clip */
	struct vfm_clip_groups_stats stats;
};

/* The set must be flushed.  `g` must be released in any case. */
int vfm_clip_groups_find(struct vfm_clip_groups *g, const struct vfm_clip_set *s, const struct vfm_clip_groups_opts *o,
	struct vfm_err *err);
void vfm_clip_groups_release(struct vfm_clip_groups *g);

#endif
