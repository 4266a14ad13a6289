/* philox.h - Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC11).
 *
 * A random number is a pure function of a key and a counter, never of rank, thread or call order.  A stream is named by
 * (seed, step, id, purpose); its element i is word i%4 of block i/4.  Every device produces the same integers.
 */
#ifndef VFM_BASE_PHILOX_H
#define VFM_BASE_PHILOX_H

#include <math.h>
#include <stdint.h>

enum vfm_purpose {               /* the use of a stream; the values are part of the checkpoint contract */
	VFM_RNG_INIT = 1,        /* initial weights: id = fnv64(parameter name), step 0 */
	VFM_RNG_NOISE = 2,       /* diffusion noise: id = sample id, element = token-in-sample * features + feature */
	VFM_RNG_TIME = 3,        /* sigma or t: id = sample id */
	VFM_RNG_DROP = 4,        /* text dropping: id = sample id */
	VFM_RNG_SAMPLE = 5,      /* initial noise of sampling: id = number of the prompt, step 0 */
	VFM_RNG_DATA = 6,        /* shuffling and blending */
	VFM_RNG_TEXT = 7,        /* n-gram embeddings */
	VFM_RNG_CAPTION = 8,     /* choice of a caption: id = sample id */
	VFM_RNG_GIVEN = 12,      /* whether the first frame of a video is given: id = sample id */
	VFM_RNG_DROP_IMAGE = 13, /* dropping of the image condition: id = sample id */
	VFM_RNG_VAE = 14,        /* noise of a decoder: id = number of the layer; step 1: of the latents */
	VFM_RNG_TEST = 15,
	VFM_RNG_BOOTSTRAP = 16, /* rows of a resample: step = number of the resample, id = number of the set */
};

struct vfm_rng { /* a stream; plain data */
	uint32_t key[2];
	uint32_t ctr_hi[2]; /* the upper half of the counter; the lower half is the block number */
};

/* Makes key and counter from (seed, step, id, purpose).  This is part of the checkpoint contract: never change it.
 *   mix(x): x += 0x9E3779B97F4A7C15; x = (x ^ x>>30) * 0xBF58476D1CE4E5B9;
 *           x = (x ^ x>>27) * 0x94D049BB133111EB; x ^ x>>31             (splitmix64)
 *   key    = mix(mix(mix(seed) ^ step) ^ purpose), low word first
 *   ctr_hi = id, low word first
 * For one seed and purpose, all steps have different keys; other keys are equal with probability 2^-64. */
struct vfm_rng vfm_rng_stream(uint64_t seed, uint64_t step, uint64_t id, enum vfm_purpose purpose);

static inline void vfm_philox4x32(const uint32_t key[2], const uint32_t ctr[4], uint32_t out[4])
{
	uint32_t c0 = ctr[0], c1 = ctr[1], c2 = ctr[2], c3 = ctr[3], k0 = key[0], k1 = key[1];

	for (int r = 0; r < 10; r++) {
		uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
		uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;

		c1 = (uint32_t)p1;
		c3 = (uint32_t)p0;
		c0 = n0;
		c2 = n2;
		k0 += 0x9E3779B9u;
		k1 += 0xBB67AE85u;
	}
	out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

static inline void vfm_rng_block(const struct vfm_rng *r, uint64_t block, uint32_t out[4])
{
	uint32_t ctr[4] = {(uint32_t)block, (uint32_t)(block >> 32), r->ctr_hi[0], r->ctr_hi[1]};

	vfm_philox4x32(r->key, ctr, out);
}

/* Returns (x + 0.5) / 2^32, in (0, 1) and exact in double. */
static inline double vfm_u01(uint32_t x)
{
	return ((double)x + 0.5) * 0x1p-32;
}

/* Box-Muller on words (a, b) = (0,1) and (2,3) of a block: r = sqrt(-2 ln u01(a)), out = r cos(2 pi u01(b)), r sin(2 pi
 * u01(b)); 4 normals a block.
 *
 * The functions below compute this in double and round the result to float; sigma, time and text embeddings use them.
 * The ops fill and diffuse (initial weights, noise) evaluate the formula in float on every backend; each of their
 * normals differs from the one here by at most 6e-7 r, which tests/ops checks. */
void vfm_rng_normal4(const struct vfm_rng *r, uint64_t block, float out[4]);
double vfm_rng_uniform(const struct vfm_rng *r, uint64_t i); /* element i: word i%4 of block i/4 */
float vfm_rng_normal(const struct vfm_rng *r, uint64_t i);   /* element i: normal i%4 of block i/4 */
/* Returns an integer in [0, n): the upper 64 bits of x * n, where x is the 64-bit word i%2 of block i/2 (low word
 * first).  The bias is below n / 2^64.  n 0 gives 0. */
uint64_t vfm_rng_below(const struct vfm_rng *r, uint64_t i, uint64_t n);

#endif
