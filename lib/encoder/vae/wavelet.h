/* wavelet.h - a video encoder without learned weights: the 3D Haar wavelet packet.
 *
 * Compression 4 x 8 x 8 (time, height, width).  Per block of 4 x 8 x 8 pixels:
 *
 *   1. colour: full-range BT.601 (JFIF) of R, G, B in [0, 1]:
 *          Y = 0.299 R + 0.587 G + 0.114 B - 0.5,  Cb = (B - Y') / 1.772,  Cr = (R - Y') / 1.402   (Y' = Y + 0.5)
 *   2. the full Haar wavelet packet along t (2 levels), y and x (3 levels each), orthonormal; its basis
 *      functions are the Walsh functions in order of their number of sign changes, so a coefficient is
 *      (component, kt, ky, kx) with kt in 0..3, ky and kx in 0..7, and k = 0 is the mean
 *   3. order: with l(k) = 0, 1, 2, 2, 3, 3, 3, 3 the level of a coefficient and u = 0 for Y, 1 for Cb and Cr,
 *      ascending by max(l(kx), l(ky), l(kt) + u), then l(kx) + l(ky) + l(kt) + u, component, kt, ky, kx
 *   4. channel c = (coefficient c - shift_c) * scale_c: roughly mean 0 and standard deviation 1 or less over
 *      natural video (constants in wavelet.c, measured; see vfm_wavelet_norm)
 *
 * With all 768 channels this is exactly invertible; with C of them decoding gives the orthogonal
 * projection.  The rounds are 1, 16, 128 and 768; the default 16 keep 2 x 2 means a block and frame pair of Y
 * and 2 x 2 means a block of Cb and Cr.
 *
 * Frames: an image is one latent frame (the picture four times; decoded to one picture, the mean of the four).
 * F frames of video are ceil(F / 4) latent frames, the last picture repeated; the true number is kept by the
 * caller.  H and W must be multiples of 8.
 *
 * All functions are local and thread-safe; each call works in one thread.
 */
#ifndef VFM_ENCODER_VAE_WAVELET_H
#define VFM_ENCODER_VAE_WAVELET_H

#include <stdint.h>

#include "base/err.h"
#include "data/record/maker.h"

#define VFM_WAVELET_SPACE    8
#define VFM_WAVELET_TIME     4
#define VFM_WAVELET_CHANNELS 16 /* default */
#define VFM_WAVELET_MAX      768
#define VFM_WAVELET_VERSION  "1" /* change it if the latents of a video change */

struct vfm_wavelet {   /* plain data: made by parse, may be copied */
	int channels;  /* C, 1..VFM_WAVELET_MAX */
	int space_log; /* the finest spatial level that the C channels use: 2^space_log cells a side */
	int time_log;
};

/* spec: "wavelet" or "wavelet:C".  VFM_EUSAGE for anything else. */
int vfm_wavelet_parse(struct vfm_wavelet *t, const char *spec, struct vfm_err *err);
/* "wavelet:16" with its geometry, which pads. */
struct vfm_maker vfm_wavelet_maker(const struct vfm_wavelet *t);

/* Sets the coefficient of channel c and its constants; any pointer may be NULL. */
void vfm_wavelet_channel(int c, int *component, int *kt, int *ky, int *kx);
void vfm_wavelet_norm(int c, float *shift, float *scale);

/* rgb [frames, height, width, 3] -> latent [C, T, height/8, width/8], T = ceil(frames / 4).
 * VFM_EINPUT: sizes that are not positive multiples of 8, or no frame. */
int vfm_wavelet_encode(const struct vfm_wavelet *t, const uint8_t *rgb, int64_t frames, int height, int width,
	float *latent, struct vfm_err *err);

/* latent [C, T, h, w] -> rgb [frames, h*8, w*8, 3], rounded and clamped.  `frames` in 1..4T; further frames are
 * not written.  frames == 1 and T == 1: a still image. */
int vfm_wavelet_decode(const struct vfm_wavelet *t, const float *latent, int64_t latent_frames, int h, int w,
	int64_t frames, uint8_t *rgb, struct vfm_err *err);

#endif
