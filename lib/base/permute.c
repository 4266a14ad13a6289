/* permute.c - draws the round keys of a permutation from a random stream. */
#include "base/permute.h"

void vfm_permutation_init(struct vfm_permutation *p, uint64_t n, const struct vfm_rng *stream)
{
	uint32_t a = (uint32_t)sqrt((double)n);

	while ((uint64_t)a * a < n)
		a++;
	*p = (struct vfm_permutation){.n = n, .a = a, .b = (uint32_t)((n + a - 1) / a)};
	for (int k = 0; k < VFM_PERMUTE_ROUNDS; k++) {
		uint32_t w[4];

		vfm_rng_block(stream, (uint64_t)k, w);
		p->key[k] = (uint64_t)w[1] << 32 | w[0];
	}
}
