/* condition.h - the condition of image to video: the mask and the latents of the given pictures (vfm-shard(5)). */
#ifndef VFM_DATA_CONDITION_H
#define VFM_DATA_CONDITION_H

#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"
#include "data/npy.h"
#include "spec/geometry.h"

/* Writes a condition of `given` pictures to the file `path`: channels [stride of time | channels of the latents], in
 * the dtype of the latents, float16, bfloat16 or float32.  latent [C, T, h, w] with its elements `data`: those of the
 * pictures with the others grey.  *n describes the file.  VFM_EINPUT: an element is not finite, or it has too many
 * channels; VFM_EENV: cannot write. */
int vfm_condition_save(const char *path, const struct vfm_geometry *g, int64_t given, const struct vfm_npy *latent,
	const void *data, struct vfm_npy *n, char sha256[VFM_SHA256_HEX], struct vfm_err *err);

#endif
