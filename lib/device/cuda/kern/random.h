/* random.h - Philox4x32-10 and normals on the device: the integers of base/philox.h, and normals within the error bound
 * stated there. */
#ifndef VFM_DEVICE_CUDA_KERN_RANDOM_H
#define VFM_DEVICE_CUDA_KERN_RANDOM_H

#include "device/cuda/kern/kern.h"

__device__ static inline void philox(const struct vfm_rng &r, uint64_t block, uint32_t (&w)[4])
{
	uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32), c2 = r.ctr_hi[0], c3 = r.ctr_hi[1], k0 = r.key[0],
		 k1 = r.key[1];

#pragma unroll
	for (int n = 0; n < 10; n++) {
		uint32_t n0 = __umulhi(0xCD9E8D57u, c2) ^ c1 ^ k0, n2 = __umulhi(0xD2511F53u, c0) ^ c3 ^ k1;

		c1 = 0xCD9E8D57u * c2;
		c3 = 0xD2511F53u * c0;
		c0 = n0;
		c2 = n2;
		k0 += 0x9E3779B9u;
		k1 += 0xBB67AE85u;
	}
	w[0] = c0, w[1] = c1, w[2] = c2, w[3] = c3;
}

/* Returns -ln((x + 1/2) / 2^32) with a relative error of at most 3e-7.  All steps are in float, because many GPUs have
 * few double units.  Near 1 the logarithm depends on 1 - u, which is computed from the integer with one rounding.
 * Elsewhere u = 2^ex m with m in [sqrt 1/2, sqrt 2), and ln 2 is split in two parts. */
__device__ static inline float neg_log_u(uint32_t x)
{
	float u = (float)x + 0.5f, f, e, z, p;
	uint32_t bits = __float_as_uint(u);
	int32_t ex = (int32_t)(bits - 0x3f3504f3u) >> 23;

	if (x >= 0xb504f334u) {
		f = ((float)(uint32_t)~x + 0.5f) * -0x1p-32f;
		e = 0.0f;
	} else {
		f = __uint_as_float(bits - ((uint32_t)ex << 23)) - 1.0f;
		e = (float)(ex - 32);
	}
	z = f * f;
	p = 7.0376836292e-2f * f - 1.1514610310e-1f; /* Cephes' logf */
	p = p * f + 1.1676998740e-1f;
	p = p * f - 1.2420140846e-1f;
	p = p * f + 1.4249322787e-1f;
	p = p * f - 1.6668057665e-1f;
	p = p * f + 2.0000714765e-1f;
	p = p * f - 2.4999993993e-1f;
	p = p * f + 3.3333331174e-1f;
	p = p * f * z - 0.5f * z - 2.12194440e-4f * e;
	return -(p + f + 0.693359375f * e);
}

/* Box-Muller.  The angle 2 pi (b + 1/2) / 2^32 is reduced to an eighth of a circle as an integer.  So no bit of b is
 * lost, and short polynomials give sine and cosine. */
__device__ static inline void box_muller(uint32_t a, uint32_t b, float &c, float &s)
{
	float rad = sqrtf(2.0f * neg_log_u(a));
	uint32_t q = (b + 0x20000000u) >> 30; /* quarters of a circle, rounded */
	float t = ((float)(int32_t)(b - (q << 30)) + 0.5f) * 1.46291807926715968e-9f; /* 2 pi / 2^32 */
	float z = t * t;
	float sn = t + t * z * (-1.6666654611e-1f + z * (8.3321608736e-3f - z * 1.9515295891e-4f));
	float cs = 1.0f - 0.5f * z +
		z * z * (4.166664568298827e-2f + z * (-1.388731625493765e-3f + z * 2.443315711809948e-5f));
	float cc = q & 1 ? sn : cs, ss = q & 1 ? cs : sn;

	c = rad * ((q + 1) & 2 ? -cc : cc);
	s = rad * (q & 2 ? -ss : ss);
}

/* Returns normals 4 block to 4 block + 3 of the stream. */
__device__ static inline vec<4> normal4(const struct vfm_rng &r, uint64_t block)
{
	uint32_t w[4];
	vec<4> n;

	philox(r, block, w);
	box_muller(w[0], w[1], n.v[0], n.v[1]);
	box_muller(w[2], w[3], n.v[2], n.v[3]);
	return n;
}

#endif
