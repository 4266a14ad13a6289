/* condition.h - the condition of image to video: the mask and the latents of the given pictures (vfm-shard(5)). */
#ifndef VFM_ENCODER_VAE_CONDITION_H
#define VFM_ENCODER_VAE_CONDITION_H

#include <stdint.h>

#include "base/err.h"
#include "encoder/vae/wavelet.h"
#include "io/hash.h"
#include "io/npy.h"
#include "spec/model/geometry.h"

#define VFM_CONDITION_GREY 128 /* the value of pictures that are not given */

struct vfm_pictures {       /* the given pictures of a video */
	const uint8_t *rgb; /* [n, height, width, 3]; borrowed */
	int n;              /* 1: the first; 2: the first and the last */
	int height, width;
};

/* Encodes `frames` pictures with the built-in tokenizer, the given ones and grey for the others: latent [T, C, height /
 * 8, width / 8].  VFM_EINPUT: the sizes are not multiples of 8. */
int vfm_condition_encode(
	const struct vfm_wavelet *t, const struct vfm_pictures *p, int64_t frames, float *latent, struct vfm_err *err);

/* Writes the mask [stride of time, T, area]: 1 at the given pictures of `frames`.  given: as n of vfm_pictures. */
void vfm_condition_mask(const struct vfm_geometry *g, int given, int64_t frames, int64_t t, size_t area, float *mask);

/* Writes a condition to the file `path`: channels [stride of time | channels of the latents], in the dtype of the
 * latents, float16, bfloat16 or float32.  latent [C, T, h, w] with the finite elements `data` has the latents of the
 * given pictures, with grey for the others.  Sets *n to describe the file.  VFM_EINPUT: there are too many channels;
 * VFM_EENV: a write failed. */
int vfm_condition_save(const char *path, const struct vfm_geometry *g, int given, int64_t frames,
	const struct vfm_npy *latent, const void *data, struct vfm_npy *n, char sha256[VFM_SHA256_HEX],
	struct vfm_err *err);

#endif
