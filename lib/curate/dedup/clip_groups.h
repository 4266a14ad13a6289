/* clip_groups.h - finds the duplicates in a set of hashed clips: vfm-dedup(5), "Candidates".
 *
 * Clips with a common key (clip_keys.h) are compared by the signs of their slots, and those that resemble each other
 * by vfm_clip_compare.  Time is linear in the clips.  Clips are ranked: those of `fixed` first, then by quality, the
 * highest first, then by name.  Groups follow groups.h.
 *
 * Memory: 12 bytes a slot, about 100 a clip with its name, for pairs 128 a clip up to 0.5 GiB, and 0.25 GiB for keys.
 * TMPDIR: 256 bytes a clip for keys, 512 with images, and the hashes.  The result does not depend on the number of
 * threads.
 */
#ifndef VFM_CURATE_DEDUP_CLIP_GROUPS_H
#define VFM_CURATE_DEDUP_CLIP_GROUPS_H

#include <stdint.h>

#include "base/err.h"
#include "curate/dedup/clip_set.h"
#include "curate/dedup/groups.h"
#include "media/match/clip_compare.h"

#define VFM_CLIP_THRESHOLD 0.25

struct vfm_clip_groups_opts {
	double threshold; /* distance of duplicates, above 0 and below 1 */
	int64_t fixed;    /* the first clips of the set, which are of an index: they are never members */
};

struct vfm_clip_groups_stats {
	int64_t flat;     /* clips without a slot that is not flat: they have no duplicates */
	int64_t compared; /* pairs of clips */
	int64_t cut_off;  /* meetings with more representatives under a key than are compared */
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
