/* permute.h - a pseudorandom permutation of 0 .. n-1, computed element by element from 100 bytes of state.
 *
 * It is a generalized Feistel cipher with cycle walking (Black and Rogaway, "Ciphers with Arbitrary Finite Domains",
 * CT-RSA 2002).  With a b >= n, an element is x = l b + r; each round adds a keyed hash of one half to the other,
 * modulo a or b.  Elements that leave the domain are encrypted again; since a b - n < 2 sqrt(n) + 1, few do.  The keys
 * come from Philox.  The permutation shuffles data and is no protection.
 */
#ifndef VFM_BASE_PERMUTE_H
#define VFM_BASE_PERMUTE_H

#include <stdint.h>

#include "base/philox.h"

enum { VFM_PERMUTE_ROUNDS = 8 };

struct vfm_permutation { /* plain data */
	uint64_t n;
	uint32_t a, b; /* of the halves: a b >= n */
	uint64_t key[VFM_PERMUTE_ROUNDS];
};

/* 1 <= n <= 2^32.  The stream determines the permutation, which is part of the order of plans: a change of it changes
 * the plans of equal inputs. */
void vfm_permutation_init(struct vfm_permutation *p, uint64_t n, const struct vfm_rng *stream);

/* Adds to `to` a hash of `from` in 0 .. m-1, modulo m. */
static inline uint32_t vfm_permute_round(uint32_t to, uint32_t from, uint32_t m, uint64_t key)
{
	uint64_t x = (from ^ key) * 0xBF58476D1CE4E5B9u, sum;

	x = (x ^ (x >> 32)) * 0x94D049BB133111EBu;
	sum = to + ((x >> 32) * m >> 32);
	return (uint32_t)(sum >= m ? sum - m : sum);
}

/* Returns element i < n of the permutation. */
static inline uint64_t vfm_permuted(const struct vfm_permutation *p, uint64_t i)
{
	do {
		uint32_t l = (uint32_t)(i / p->b), r = (uint32_t)(i % p->b);

		for (int k = 0; k < VFM_PERMUTE_ROUNDS; k += 2) {
			l = vfm_permute_round(l, r, p->a, p->key[k]);
			r = vfm_permute_round(r, l, p->b, p->key[k + 1]);
		}
		i = (uint64_t)l * p->b + r;
	} while (i >= p->n);
	return i;
}

#endif
