/* clip_groups.h - finds the duplicates in a set of hashed clips: vfm-dedup(5), "Candidates".
 *
 * Clips with a common key (clip_keys.h) are compared by the signs of their slots, and similar ones by vfm_clip_compare.
 * Time is linear in the clips.  Clips are ranked: those of `fixed` first, then by quality, the highest first, then by
 * name.  groups.h describes the groups.  The result does not depend on the number of threads.
 *
 * - Memory: 12 bytes per slot, about 100 per clip with its name, 128 per clip for pairs (up to 0.5 GiB), and 0.25 GiB
 *   for keys.
 * - TMPDIR: 256 bytes per clip for keys, 512 with images, and the hashes.
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
	int64_t fixed;    /* the number of first clips, from an index, which are never members */
};

struct vfm_clip_groups_stats {
	int64_t flat;     /* clips whose slots are all flat: they have no duplicates */
	int64_t compared; /* pairs of clips */
	int64_t cut_off;  /* matches with more representatives under a key than are compared */
};

struct vfm_clip_groups {
	struct vfm_groups groups; /* by rank */
	uint32_t *clip;           /* [n] the clip of a rank */
	uint32_t *rank;           /* [n] the rank of a clip */
	struct vfm_clip_groups_stats stats;
};

/* Finds the groups of a flushed set.  Release g in any case. */
int vfm_clip_groups_find(struct vfm_clip_groups *g, const struct vfm_clip_set *s, const struct vfm_clip_groups_opts *o,
	struct vfm_err *err);
void vfm_clip_groups_release(struct vfm_clip_groups *g);

#endif
