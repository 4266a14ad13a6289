/* clip_distance.h - the distance of two hashes of clips, for tests. */
#ifndef TESTS_UNIT_CLIP_DISTANCE_H
#define TESTS_UNIT_CLIP_DISTANCE_H

#include <stdlib.h>

#include "base/mem.h"
#include "media/match/clip_compare.h"
#include "media/match/clip_hash.h"

static inline double clip_distance(
	const struct vfm_clip_hash *a, const struct vfm_clip_hash *b, struct vfm_clip_match *m)
{
	struct vfm_clip_rows *x = vfm_malloc(sizeof(*x)), *y = vfm_malloc(sizeof(*y)),
			     *half = vfm_malloc(sizeof(*half));

	vfm_clip_rows_of(x, a);
	vfm_clip_rows_of(y, b);
	vfm_clip_half_of(half, y);
	vfm_clip_compare(x, y, half, 1, m);
	free(half);
	free(x);
	free(y);
	return m->distance;
}

#endif
