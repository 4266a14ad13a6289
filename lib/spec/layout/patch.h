/* patch.h - latents to tokens and back: a pure permutation.
 *
 *   tokens[((it*Gh + ih)*Gw + iw), ((c*pt + jt)*ph + jh)*pw + jw] = latent[c, it*pt + jt, ih*ph + jh, iw*pw + jw]
 *
 * with G = (T/pt, H/ph, W/pw): token order (t, h, w), feature order (c, pt, ph, pw).
 * T, H, W must be divisible by the patch (vfm_patch_grid checks it).
 */
#ifndef VFM_SPEC_LAYOUT_PATCH_H
#define VFM_SPEC_LAYOUT_PATCH_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "io/npy.h"
#include "spec/model/dtype.h"

/* Parses "1x2x2", each 1 to 64.  VFM_EUSAGE otherwise. */
int vfm_patch_parse(const char *s, int32_t patch[3], struct vfm_err *err);

/* Sets grid = dims / patch, with dims = {t, h, w}.  Returns the number of tokens (> 0).  VFM_EINPUT: a dimension is not
 * positive or not divisible, or the product is not below 2^31. */
int64_t vfm_patch_grid(const int32_t dims[3], const int32_t patch[3], int32_t grid[3], struct vfm_err *err);

/* Converts latent [channels, t, h, w] to tokens [n_tokens, channels*pt*ph*pw].  dtype is f32 or that of the latent. */
void vfm_patchify(const void *latent, enum vfm_npy_type type, int32_t channels, const int32_t dims[3],
	const int32_t patch[3], void *tokens, enum vfm_dtype dtype);
/* The inverse, for f32. */
void vfm_unpatchify(
	const float *tokens, int32_t channels, const int32_t dims[3], const int32_t patch[3], float *latent);

#endif
