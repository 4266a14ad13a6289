/* image_compare.h - compares two pictures by their signatures (image_detail.h). */
#ifndef VFM_MEDIA_MATCH_IMAGE_COMPARE_H
#define VFM_MEDIA_MATCH_IMAGE_COMPARE_H

#include <stdbool.h>

#include "media/match/image_detail.h"

struct vfm_image_match {
	double shape;  /* correlation of luma in the common part */
	double detail; /* that of luma without its local mean, divided by its local deviation plus 4 levels, both of 5 x
			  5 cells of 32 x 32: the outline of a logo does not hide what differs within it */
	double distance; /* the larger one of 1 - shape and (1 - detail) / 1.6 */
	bool mirrored;
};

/* Finds only distances below `most`: otherwise m->distance is most. */
void vfm_image_compare(
	const struct vfm_image_view *a, const struct vfm_image_view *b, double most, struct vfm_image_match *m);

#endif
