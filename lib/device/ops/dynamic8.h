/* dynamic8.h - the 8-bit floats of the block-wise optimizer ("dynamic quantization": Dettmers et al. 2022, arXiv
 * 2110.02861, section 2.1, in the form of bitsandbytes).
 * The magnitudes of (0.1, 1) times 10^-e, e = 0 .. 6, are the midpoints of n equal intervals: n = 2^(6-e) with a sign
 * bit, 2^(7-e) without.  0 and 1 are exact.  A block of VFM_BLOCK8 elements has one f32 scale, and element x is
 * value(code) * scale.
 *
 * Two rules differ from bitsandbytes:
 *
 * - The scale of a signed block is its element of largest magnitude, including the sign (+a among +a and -a).
 *   Dequantized values therefore quantize to the same codes and scale, unless they are subnormal.
 * - An unsigned element above 0 never becomes 0, because AdamW divides by its root (Li et al. 2023, arXiv
 * 2309.01507).
 */
#ifndef VFM_DEVICE_OPS_DYNAMIC8_H
#define VFM_DEVICE_OPS_DYNAMIC8_H

#include <stdbool.h>
#include <stdint.h>

enum { VFM_BLOCK8 = 256, VFM_ZERO8 = 127 /* the code of 0 with a sign */ };

struct vfm_dynamic8 {
	int n; /* magnitudes: 129 with a sign, 256 without */
	float mag[256];
	float mid[255]; /* between two magnitudes; a value equal to it rounds towards zero */
	bool is_signed;
};

void vfm_dynamic8_init(struct vfm_dynamic8 *t, bool is_signed);

/* Returns the code of y = x / scale; y is 0 if the scale is 0.  Without a sign bit, y < 0 has the code of 0. */
static inline uint8_t vfm_dynamic8_code(const struct vfm_dynamic8 *t, float y)
{
	float a = y > 0 ? y : t->is_signed ? -y : 0;
	int k = 0;

	for (int step = 128; step > 0; step /= 2)
		if (k + step < t->n && t->mid[k + step - 1] < a)
			k += step;
	if (!t->is_signed)
		return (uint8_t)(k == 0 && y > 0 ? 1 : k);
	return (uint8_t)(y < 0 ? VFM_ZERO8 - (k < VFM_ZERO8 ? k : VFM_ZERO8) : VFM_ZERO8 + k);
}

static inline float vfm_dynamic8_value(const struct vfm_dynamic8 *t, uint8_t code)
{
	if (!t->is_signed)
		return t->mag[code];
	return code < VFM_ZERO8 ? -t->mag[VFM_ZERO8 - code] : t->mag[code - VFM_ZERO8];
}

#endif
