/* clip_signs.h - a cheap filter before clip_compare.h, for many clips at once. */
#ifndef VFM_MEDIA_MATCH_CLIP_SIGNS_H
#define VFM_MEDIA_MATCH_CLIP_SIGNS_H

#include <stdint.h>

#include "media/match/clip_compare.h"

/* A cheap filter before vfm_clip_compare, for up to 64 clips.  Sets bit i of the result if 1 - agreement of a[i] and b
 * is at most `most` at some shift by whole slots.  Does not read x of the rows. */
#define VFM_CLIP_RESEMBLE_MAX 64
uint64_t vfm_clip_signs_resemble(
	const struct vfm_clip_rows *const *a, int n, const struct vfm_clip_rows *b, double most);

#endif
