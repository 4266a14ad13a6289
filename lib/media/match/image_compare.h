/* image_compare.h - compares two pictures by their signatures (image_detail.h). */
#ifndef VFM_MEDIA_MATCH_IMAGE_COMPARE_H
#define VFM_MEDIA_MATCH_IMAGE_COMPARE_H

#include <stdbool.h>

#include "media/match/image_detail.h"

struct vfm_image_match {
	double distance; /* as defined in man/vfm-dedup.5 */
	bool mirrored;
};

/* Finds only distances below `most`; otherwise m->distance is most. */
void vfm_image_compare(
	const struct vfm_image_view *a, const struct vfm_image_view *b, double most, struct vfm_image_match *m);

#endif
