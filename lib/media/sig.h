/* sig.h - signatures of frames (downscaled frames) and their differences, for scene cuts and scores.
 * Plain data, thread-safe. */
#ifndef VFM_MEDIA_SIG_H
#define VFM_MEDIA_SIG_H

#include <stdint.h>

#define VFM_SIG_W     64
#define VFM_SIG_H     48
#define VFM_SIG_HIST  128 /* 8 luma x 4 x 4 chroma */
#define VFM_SIG_BLOCK 8

struct vfm_sig {
	uint8_t y[VFM_SIG_H * VFM_SIG_W];
	uint8_t cb[VFM_SIG_H * VFM_SIG_W / 4], cr[VFM_SIG_H * VFM_SIG_W / 4]; /* half size */
	uint16_t hist[VFM_SIG_HIST];                                          /* of 768 half-size pixels */
	float mean, std;                                                      /* of luma */
};

/* From the frame scaled (not cropped) to rgb [48, 64, 3]. */
void vfm_sig_of(struct vfm_sig *s, const uint8_t *rgb);

struct vfm_sig_diff {
	float pixel;  /* mean absolute difference of luma and chroma, 0..255 */
	float hist;   /* 1 - overlap of the colour histograms, 0..1 */
	float moved;  /* residual of block matching as a share of the difference: 0 pure motion, about 1 unrelated */
	float blocks; /* share of blocks without a match, 0..1 */
};

/* b is the later one.  `search`: maximum motion of blocks in pixels of 64 x 48. */
void vfm_sig_compare(const struct vfm_sig *a, const struct vfm_sig *b, int search, struct vfm_sig_diff *d);

#endif
