/* clip_change.h - a signature of the temporal differences of a clip's pictures, for clips that are still almost
 * everywhere.  vfm-dedup(5) defines the steps of the signature.  Norms are as for an area of 128 x 128 pixels.
 *
 * Two clips are compared at a shift in steps, upright or mirrored, by their common steps:
 *
 * - The correlation of shapes is sum a b / sqrt(sum a^2 sum b^2) over steps and coefficients, with n noise^2 added to
 *   each of the three sums of n steps.
 * - The correlation of places, with weights sqrt(|a| |b|), uses the mean square of their differences around the mean
 *   difference, relative to their variances plus 0.02^2.
 *
 * The distance is the larger 1 - correlation, divided by 1.6.  Plain data; thread-safe.
 */
#ifndef VFM_MEDIA_MATCH_CLIP_CHANGE_H
#define VFM_MEDIA_MATCH_CLIP_CHANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VFM_CHANGE_NOISE 6
#define VFM_CHANGE_SIDE  4 /* coefficients per direction */
#define VFM_CHANGE_COEFS (VFM_CHANGE_SIDE * VFM_CHANGE_SIDE)
#define VFM_CHANGE_STEPS 253 /* maximum */

struct vfm_change {
	uint8_t size;                  /* 0: no change; else 1 + 8 log2 of the norm of the coefficients */
	uint8_t x, y;                  /* position, in 1/255 of the picture without bars */
	int8_t coef[VFM_CHANGE_COEFS]; /* by u, then v; 127 is their norm */
};

struct vfm_clip_changes {
	int n; /* steps; 0: no signature */
	struct vfm_change steps[VFM_CHANGE_STEPS];
};

/* Sets the signature from means over quarters of a second: quarters [n, size, size] in 1/256 of luma.  box: top,
 * bottom, left and right of the area without bars, in pixels.  Sets no signature for fewer than 5 quarters.  Returns
 * true if there is one and |d| is below 3 levels in all of its steps, so that the clip shows one picture throughout. */
bool vfm_clip_changes_of(struct vfm_clip_changes *c, const uint16_t *quarters, int n, int size, const int box[4]);

/* Returns the distance, 0 to 1.25 or more, of two signatures with steps, where step k of b is at step k + shift of a.
 * Returns 0 for fewer than two common steps. */
double vfm_clip_changes_compare(
	const struct vfm_clip_changes *a, const struct vfm_clip_changes *b, int shift, bool mirrored);

/* ---- bytes: u8 steps, u8 first, u8 end; then steps first to end - 1, VFM_CHANGE_BYTES each.  All other steps are
 * zero.  ---- */

#define VFM_CHANGE_HEAD      3
#define VFM_CHANGE_BYTES     (3 + VFM_CHANGE_COEFS)
#define VFM_CHANGE_BYTES_MAX (VFM_CHANGE_HEAD + VFM_CHANGE_STEPS * VFM_CHANGE_BYTES)

/* Returns the size in bytes of a signature with steps. */
size_t vfm_clip_changes_size(const struct vfm_clip_changes *c);
/* Writes the bytes to out and returns their number. */
size_t vfm_clip_changes_pack(const struct vfm_clip_changes *c, uint8_t *out);
/* Reads a signature at the start of `len` bytes.  Returns its bytes, or 0 if there is none. */
size_t vfm_clip_changes_unpack(struct vfm_clip_changes *c, const uint8_t *in, size_t len);

#endif
