/* wavelet.h - a video encoder without learned weights: the 3D Haar wavelet packet.  vfm-shard(5), "LATENTS", has the
 * formula.
 *
 * Compression is 4 x 8 x 8 (time, height, width).  With all 768 channels the transform is exactly invertible; with
 * fewer, decoding gives the orthogonal projection.  1, 16, 128 and 768 channels are complete levels.  Over natural
 * video, latents have roughly mean 0 and a standard deviation of 1 or less (vfm_wavelet_channel).
 *
 * An image is one latent frame (the picture four times; decoded to the mean of the four).  F frames of video are ceil(F
 * / 4) latent frames, with the last picture repeated; the caller keeps the true number.  H and W must be multiples of
 * 8.
 *
 * All functions are local and thread-safe; each call runs in one thread. */
#ifndef VFM_ENCODER_VAE_WAVELET_H
#define VFM_ENCODER_VAE_WAVELET_H

#include <stdint.h>

#include "base/err.h"
#include "data/record/encoder_id.h"

#define VFM_WAVELET_SPACE    8
#define VFM_WAVELET_TIME     4
#define VFM_WAVELET_CHANNELS 16 /* default */
#define VFM_WAVELET_MAX      768
#define VFM_WAVELET_VERSION  "1" /* change it if the latents of any video change */

struct vfm_wavelet {   /* plain data: made by parse, may be copied */
	int channels;  /* C, 1..VFM_WAVELET_MAX */
	int space_log; /* the finest spatial level of the C channels: 2^space_log cells per side */
	int time_log;
};

/* spec: "wavelet" or "wavelet:C".  VFM_EUSAGE otherwise. */
int vfm_wavelet_parse(struct vfm_wavelet *t, const char *spec, struct vfm_err *err);
/* Returns "wavelet:16" with its geometry, which pads. */
struct vfm_encoder_id vfm_wavelet_id(const struct vfm_wavelet *t);

struct vfm_wavelet_channel { /* the coefficient of a channel and its constants */
	uint8_t comp, kt, ky, kx;
	float shift, scale;
};
const struct vfm_wavelet_channel *vfm_wavelet_channel(int c);

/* Encodes rgb [frames, height, width, 3] to latent [C, T, height/8, width/8], T = ceil(frames / 4).  VFM_EINPUT: the
 * sizes are not positive multiples of 8, or there is no frame. */
int vfm_wavelet_encode(const struct vfm_wavelet *t, const uint8_t *rgb, int64_t frames, int height, int width,
	float *latent, struct vfm_err *err);

/* Decodes latent [C, T, h, w] to rgb [frames, h*8, w*8, 3], rounded and clamped.  `frames` is in 1..4T; only these are
 * written.  frames == 1 and T == 1: a still image. */
int vfm_wavelet_decode(const struct vfm_wavelet *t, const float *latent, int64_t latent_frames, int h, int w,
	int64_t frames, uint8_t *rgb, struct vfm_err *err);

#endif
