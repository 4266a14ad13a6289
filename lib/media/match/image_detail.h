/* image_detail.h - a signature of a picture, finer than that of a clip's slot in clip_hash.h, and the comparison of
 * two.
 *
 * man/vfm-dedup.5 defines both; the coefficients are those of picture_dct.h.  Two pictures are aligned by the method of
 * Lucas and Kanade ("An iterative image registration technique", 1981) with a factor and an offset of light, from
 * coarse to fine.
 *
 * Plain data; thread-safe.
 */
#ifndef VFM_MEDIA_MATCH_IMAGE_DETAIL_H
#define VFM_MEDIA_MATCH_IMAGE_DETAIL_H

#include <stdbool.h>
#include <stdint.h>

#include "media/match/picture_dct.h"

#define VFM_IMAGE_CUTOFF 306
#define VFM_IMAGE_COEFS  258
#define VFM_IMAGE_BYTES  (5 + VFM_IMAGE_COEFS) /* of the signature in a hash */
#define VFM_IMAGE_UNIT   128                   /* of a box */
#define VFM_IMAGE_COARSE 16
#define VFM_IMAGE_BOXES  3

struct vfm_image_detail {
	uint8_t box[4]; /* top, bottom, left, right of the area without bars, in 1/128 of the picture */
	uint8_t mean;
	int8_t coef[VFM_IMAGE_COEFS];
};

/* Sets the signature of a picture [size, size] of luma 0..255, size at most VFM_PICTURE_MAX; box: in pixels. */
void vfm_image_detail_of(struct vfm_image_detail *d, const float *picture, int size, const int box[4]);
/* Returns a coefficient in its stored form. */
int8_t vfm_image_detail_quantize(float c);
/* Returns whether the box of a signature is valid. */
bool vfm_image_detail_is_valid(const struct vfm_image_detail *d);

struct vfm_image_box {
	float top, bottom, left, right; /* 0 to 1 is the area of the signature; bars lie outside */
};

struct vfm_image_view { /* a signature prepared for comparisons; plain data */
	float fine[VFM_PICTURE_SIDE * VFM_PICTURE_SIDE], coarse[VFM_IMAGE_COARSE * VFM_IMAGE_COARSE]; /* luma */
	/* areas that may be the picture; the first is the one without bars */
	struct vfm_image_box boxes[VFM_IMAGE_BOXES];
	int n_boxes;
};

void vfm_image_view_of(struct vfm_image_view *v, const struct vfm_image_detail *d);

#endif
