/* sig.h - signatures of frames (downscaled frames) and their differences, for shot detection.  Plain data,
 * thread-safe. */
#ifndef VFM_MEDIA_SHOTS_SIG_H
#define VFM_MEDIA_SHOTS_SIG_H

#include "media/av/thumb.h"

#define VFM_SIG_W      VFM_THUMB_W
#define VFM_SIG_H      VFM_THUMB_H
#define VFM_SIG_HIST   128 /* 8 luma x 4 x 4 chroma */
#define VFM_SIG_BLOCK  8
#define VFM_SIG_SEARCH 4 /* maximum motion of blocks, in pixels of 64 x 48 */
#define VFM_SIG_STRIDE (VFM_SIG_W + 2 * VFM_SIG_SEARCH)

struct vfm_sig {
	struct vfm_thumb thumb;
	/* Luma minus its local mean, divided by its local deviation plus a floor for noise: 128 + 48 x.  Light,
	 * exposure and fades hardly change it.  It is surrounded by VFM_SIG_SEARCH pixels of 128. */
	uint8_t form[(VFM_SIG_H + 2 * VFM_SIG_SEARCH) * VFM_SIG_STRIDE];
	uint16_t hist[VFM_SIG_HIST]; /* of 768 half-size pixels; luma in steps of equal square roots */
	float mean, std;             /* of luma */
	float range;                 /* of luma, without the darkest and the brightest 0.5 % */
};

void vfm_sig_of(struct vfm_sig *s, const struct vfm_thumb *thumb);

struct vfm_sig_diff {
	float pixel; /* mean absolute difference of luma and chroma, 0..255 */
	float hist;  /* 1 - overlap of the colour histograms, 0..1 */
	/* residual of block matching as a fraction of the texture: 0 for pure motion, about 0.8 if unrelated */
	float moved;
	float blocks; /* fraction of blocks without a match, 0..1 */
};

/* Returns only `pixel`, which is cheap. */
float vfm_sig_pixel(const struct vfm_sig *a, const struct vfm_sig *b);
/* Returns how evenly luma differs over the picture: the median over blocks of the mean absolute difference, divided by
 * its mean.  It is about 0.8 for two different pictures, and near 0 if only a part changed (a title, an explosion). */
float vfm_sig_spread(const struct vfm_sig *a, const struct vfm_sig *b);
/* Returns the correlation of luma at the same place: near 1 if only the light changed. */
float vfm_sig_correlation(const struct vfm_sig *a, const struct vfm_sig *b);
/* Returns the share of blocks with clear texture, 0..1: the rest is of one colour, or noise. */
float vfm_sig_textured(const struct vfm_sig *s);
/* Returns the share of pixels whose luma differs clearly, 0..1. */
float vfm_sig_area(const struct vfm_sig *a, const struct vfm_sig *b);
/* Returns the residual of the best shift of the whole picture by up to 24 x 12 pixels, in the part that both show, as a
 * fraction of the texture there.  It is near 0 for a fast pan, and 0.7 or more for unrelated pictures. */
float vfm_sig_shifted(const struct vfm_sig *a, const struct vfm_sig *b);
/* Compares two frames.  b is the later one; its blocks are searched in a. */
void vfm_sig_compare(const struct vfm_sig *a, const struct vfm_sig *b, struct vfm_sig_diff *d);

#endif
