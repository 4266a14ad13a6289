/* Known answers: Random123 1.x, tests/kat_vectors, philox4x32-10. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/philox.h"
#include "io/hash.h"

static void known_answers(void **state)
{
	static const struct {
		uint32_t ctr[4], key[2], want[4];
	} kat[] = {
		{{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff},
			{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0},
			{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	};
	uint32_t out[4];

	(void)state;
	for (size_t i = 0; i < sizeof(kat) / sizeof(kat[0]); i++) {
		vfm_philox4x32(kat[i].key, kat[i].ctr, out);
		assert_memory_equal(out, kat[i].want, sizeof(out));
	}
}

/* The key is part of the checkpoint contract.  splitmix64 of 0 is 0xe220a8397b1dcdaf, its published first output; the
 * rest repeats the formula of philox.h. */
static uint64_t mix(uint64_t x)
{
	x += 0x9E3779B97F4A7C15u;
	x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
	x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
	return x ^ (x >> 31);
}

static void folding(void **state)
{
	struct vfm_rng r = vfm_rng_stream(42, 7, 0x123456789abcdef0u, VFM_RNG_NOISE);
	uint64_t k = mix(mix(mix(42) ^ 7) ^ 2);

	(void)state;
	assert_true(mix(0) == 0xe220a8397b1dcdafu);
	assert_int_equal(r.key[0], (uint32_t)k);
	assert_int_equal(r.key[1], (uint32_t)(k >> 32));
	assert_int_equal(r.ctr_hi[0], 0x9abcdef0);
	assert_int_equal(r.ctr_hi[1], 0x12345678);
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void keys_differ(void **state)
{
	enum { SEEDS = 64, STEPS = 256, PURPOSES = 7, N = SEEDS * STEPS * PURPOSES };
	uint64_t *k = malloc(N * sizeof(*k));
	int n = 0;

	(void)state;
	assert_non_null(k);
	for (uint64_t seed = 0; seed < SEEDS; seed++)
		for (uint64_t step = 0; step < STEPS; step++)
			for (int p = 1; p <= PURPOSES; p++) {
				struct vfm_rng r = vfm_rng_stream(seed, step, 0, (enum vfm_purpose)p);

				k[n++] = (uint64_t)r.key[1] << 32 | r.key[0];
			}
	qsort(k, N, sizeof(*k), by_value);
	for (int i = 1; i < N; i++)
		assert_true(k[i] != k[i - 1]);
	free(k);
}

static void distributions(void **state)
{
	enum { N = 400000 };
	struct vfm_rng r = vfm_rng_stream(1, 2, 3, VFM_RNG_TEST);
	double u = 0, z = 0, z2 = 0, z4 = 0;
	int64_t below[7] = {0};

	(void)state;
	for (uint64_t i = 0; i < N; i++) {
		double x = vfm_rng_uniform(&r, i), g = (double)vfm_rng_normal(&r, i);

		assert_true(x > 0 && x < 1);
		u += x, z += g, z2 += g * g, z4 += g * g * g * g;
		below[vfm_rng_below(&r, i, 7)]++;
	}
	/* Five standard errors each. */
	assert_true(fabs(u / N - 0.5) < 5 * sqrt(1.0 / 12 / N));
	assert_true(fabs(z / N) < 5 * sqrt(1.0 / N));
	assert_true(fabs(z2 / N - 1) < 5 * sqrt(2.0 / N));
	assert_true(fabs(z4 / N - 3) < 5 * sqrt(96.0 / N));
	for (int i = 0; i < 7; i++)
		assert_true(fabs((double)below[i] - N / 7.0) < 5 * sqrt(N / 7.0));
	assert_int_equal(vfm_rng_below(&r, 0, 0), 0);
	assert_int_equal(vfm_rng_below(&r, 0, 1), 0);
}

static void elements_are_blocks(void **state)
{
	struct vfm_rng r = vfm_rng_stream(9, 8, 7, VFM_RNG_TEST);
	uint32_t w[4];
	float n4[4];

	(void)state;
	for (uint64_t b = 0; b < 100; b++) {
		vfm_rng_block(&r, b, w);
		vfm_rng_normal4(&r, b, n4);
		for (uint64_t i = 0; i < 4; i++) {
			assert_true(vfm_rng_uniform(&r, 4 * b + i) == vfm_u01(w[i]));
			assert_true(vfm_rng_normal(&r, 4 * b + i) == n4[i]);
		}
	}
	assert_true(vfm_u01(0) > 0 && vfm_u01(UINT32_MAX) < 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(known_answers),
		cmocka_unit_test(folding),
		cmocka_unit_test(keys_differ),
		cmocka_unit_test(distributions),
		cmocka_unit_test(elements_are_blocks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
