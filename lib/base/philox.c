/* philox.c - streams of uniform and normal numbers from Philox counters. */
#include "base/philox.h"

static uint64_t splitmix64(uint64_t x)
{
	x += 0x9E3779B97F4A7C15u;
	x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
	x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
	return x ^ (x >> 31);
}

struct vfm_rng vfm_rng_stream(uint64_t seed, uint64_t step, uint64_t id, enum vfm_purpose purpose)
{
	uint64_t k = splitmix64(splitmix64(splitmix64(seed) ^ step) ^ (uint64_t)purpose);

	return (struct vfm_rng){{(uint32_t)k, (uint32_t)(k >> 32)}, {(uint32_t)id, (uint32_t)(id >> 32)}};
}

static void box_muller(uint32_t a, uint32_t b, float out[2])
{
	double r = sqrt(-2.0 * log(vfm_u01(a))), angle = 6.283185307179586 * vfm_u01(b);

	out[0] = (float)(r * cos(angle));
	out[1] = (float)(r * sin(angle));
}

void vfm_rng_normal4(const struct vfm_rng *r, uint64_t block, float out[4])
{
	uint32_t w[4];

	vfm_rng_block(r, block, w);
	box_muller(w[0], w[1], out);
	box_muller(w[2], w[3], out + 2);
}

double vfm_rng_uniform(const struct vfm_rng *r, uint64_t i)
{
	uint32_t w[4];

	vfm_rng_block(r, i / 4, w);
	return vfm_u01(w[i % 4]);
}

float vfm_rng_normal(const struct vfm_rng *r, uint64_t i)
{
	uint32_t w[4];
	float out[2];

	vfm_rng_block(r, i / 4, w);
	box_muller(w[i % 4 & 2], w[(i % 4 & 2) + 1], out);
	return out[i % 2];
}

uint64_t vfm_rng_below(const struct vfm_rng *r, uint64_t i, uint64_t n)
{
	uint32_t w[4];
	uint64_t x;

	vfm_rng_block(r, i / 2, w);
	x = (uint64_t)w[2 * (i % 2) + 1] << 32 | w[2 * (i % 2)];
	return (uint64_t)(((unsigned __int128)x * n) >> 64);
}
