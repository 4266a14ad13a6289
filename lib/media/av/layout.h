/* layout.h - the bytes of a picture, between readers and writers of videos. */
#ifndef VFM_MEDIA_AV_LAYOUT_H
#define VFM_MEDIA_AV_LAYOUT_H

#include <stddef.h>

enum vfm_layout {
	VFM_LAYOUT_RGB, /* [height, width, 3] */
	/* Y'CbCr 4:2:0 of limited range: Y [height, width], Cb and Cr [height / 2, width / 2], of even sizes, with this
	 * matrix */
	VFM_LAYOUT_BT601,
	VFM_LAYOUT_BT709,
};
static inline size_t vfm_layout_bytes(enum vfm_layout l, int width, int height)
{
	size_t pixels = (size_t)width * (size_t)height;

	return l == VFM_LAYOUT_RGB ? 3 * pixels : pixels / 2 * 3;
}

#endif
