/* thumb.h - a frame scaled to 64 x 48, for shot detection.  Plain data, thread-safe; no FFmpeg. */
#ifndef VFM_MEDIA_AV_THUMB_H
#define VFM_MEDIA_AV_THUMB_H

#include <stddef.h>
#include <stdint.h>

#define VFM_THUMB_W 64
#define VFM_THUMB_H 48

/* Y'CbCr of full range: the matrix is that of the video, or BT.601 if it came from RGB. */
struct vfm_thumb {
	uint8_t y[VFM_THUMB_H * VFM_THUMB_W];
	uint8_t cb[VFM_THUMB_H * VFM_THUMB_W / 4], cr[VFM_THUMB_H * VFM_THUMB_W / 4]; /* half the size */
};

void vfm_thumb_of_rgb(struct vfm_thumb *t, const uint8_t *rgb /* [48, 64, 3] */);

/* Returns the mean absolute difference of luma, 0..255. */
float vfm_thumb_change(const struct vfm_thumb *a, const struct vfm_thumb *b);

/* A plane of a picture.  Samples of 8 bits take one byte, samples of 9 to 16 bits take two, in native byte order. */
struct vfm_plane {
	const uint8_t *data;
	ptrdiff_t stride; /* bytes; may be negative */
	int width, height, depth;
};

/* Scales a plane down to dst [h, w], in units of 1/256 of an 8-bit level, by means over boxes.  In a box with many
 * rows, only 3 to 5 evenly spaced rows count.  plane->width >= w, plane->height >= h.  sums [plane->width] is
 * scratch. */
void vfm_plane_shrink(const struct vfm_plane *plane, int w, int h, uint16_t *sums, uint16_t *dst);

#endif
