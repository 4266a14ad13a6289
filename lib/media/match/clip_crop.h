/* clip_crop.h - hashes of parts of a picture, from the hash of the whole. */
#ifndef VFM_MEDIA_MATCH_CLIP_CROP_H
#define VFM_MEDIA_MATCH_CLIP_CROP_H

#include "media/match/clip_compare.h"

/* Sets out to the coefficients of a part of a picture, with 94 % of its width and height.  The nine parts lie at the
 * corners, edges and centre: crop 0 is the upper left and crop 8 the lower right.  Frequencies that the hash lacks
 * count as 0. */
#define VFM_CLIP_CROPS 9
void vfm_clip_hash_crop(float out[VFM_CLIP_HASH_COEFS], const float in[VFM_CLIP_HASH_COEFS], int crop);

/* Sets parts [VFM_IMAGE_PARTS] to the coefficients of the parts that an image with detail may share with its copies:
 * its boxes after the first (image_detail.h), then its crops as above.  Returns their number. */
#define VFM_IMAGE_PARTS (VFM_IMAGE_BOXES - 1 + VFM_CLIP_CROPS)
int vfm_clip_image_parts(float parts[VFM_IMAGE_PARTS][VFM_CLIP_HASH_COEFS], const struct vfm_clip_rows *r);

#endif
