/* The permutation of data: a bijection for any size, uniform and without order; lengths in two bytes or four. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/permute.h"
#include "data/plan/lengths.h"

static struct vfm_permutation permutation(uint64_t n, uint64_t pass)
{
	struct vfm_rng r = vfm_rng_stream(11, pass, 0, VFM_RNG_TEST);
	struct vfm_permutation p;

	vfm_permutation_init(&p, n, &r);
	return p;
}

static void every_element_once(void **state)
{
	static const uint64_t sizes[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 63, 64, 65, 1000, 65535, 65536, 65537, 1000003};

	(void)state;
	for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
		struct vfm_permutation p = permutation(sizes[k], k);
		char *seen = vfm_calloc(sizes[k], 1);

		for (uint64_t i = 0; i < sizes[k]; i++) {
			uint64_t x = vfm_permuted(&p, i);

			assert_true(x < sizes[k]);
			assert_int_equal(seen[x]++, 0);
		}
		free(seen);
	}
}

/* The largest domain: values stay in it, and near inputs have outputs in all parts of it. */
static void large_domain(void **state)
{
	const uint64_t n = (uint64_t)1 << 32;
	struct vfm_permutation p = permutation(n, 1);
	int part[16] = {0};

	(void)state;
	for (uint64_t i = 0; i < 16000; i++) {
		uint64_t x = vfm_permuted(&p, n - 1 - i);

		assert_true(x < n);
		part[x >> 28]++;
	}
	for (int i = 0; i < 16; i++)
		assert_true(abs(part[i] - 1000) < 6 * 31); /* six standard deviations */
}

/* All orders of four elements are equally frequent: chi-squared of 24 classes, 24000 permutations. */
static void small_orders_are_uniform(void **state)
{
	int count[256] = {0}, classes = 0;
	double chi = 0;

	(void)state;
	for (uint64_t pass = 0; pass < 24000; pass++) {
		struct vfm_permutation p = permutation(4, pass);
		int code = 0;

		for (uint64_t i = 0; i < 4; i++)
			code = code * 4 + (int)vfm_permuted(&p, i);
		count[code]++;
	}
	for (int i = 0; i < 256; i++) {
		classes += count[i] > 0;
		chi += count[i] ? (count[i] - 1000.0) * (count[i] - 1000.0) / 1000 : 0;
	}
	assert_int_equal(classes, 24);
	assert_true(chi < 60); /* 23 degrees of freedom: exceeded with probability 4e-5 */
}

/* Neighbours of one pass are no neighbours in the next, positions do not correlate, and cycles are as of chance. */
static void no_order_is_left(void **state)
{
	enum { N = 100003 };
	struct vfm_permutation p = permutation(N, 5), q = permutation(N, 6);
	double sum = 0, next = 0, other = 0;
	int fixed = 0, ascending = 0;

	(void)state;
	for (uint64_t i = 0; i < N; i++) {
		double x = (double)vfm_permuted(&p, i) / N - 0.5, y = (double)vfm_permuted(&p, (i + 1) % N) / N - 0.5;

		sum += x * ((double)i / N - 0.5);
		next += x * y;
		other += x * ((double)vfm_permuted(&q, i) / N - 0.5);
		fixed += vfm_permuted(&p, i) == i;
		ascending += vfm_permuted(&p, i) < vfm_permuted(&p, (i + 1) % N);
	}
	/* correlations: standard deviation sqrt(N) / 12 */
	assert_true(fabs(sum) < 5 * sqrt(N) / 12 && fabs(next) < 5 * sqrt(N) / 12 && fabs(other) < 5 * sqrt(N) / 12);
	assert_true(fixed < 10);
	assert_true(abs(ascending - N / 2) < 5 * (int)sqrt(N / 12.0));
}

enum { MAX_LENGTH = 90000 };

/* wide: 90000 different values of even i, else 30000. */
static int32_t length_of(int i, bool wide)
{
	if (i % 2)
		return 0;
	return wide && i / MAX_LENGTH % 2 ? -(i % MAX_LENGTH) : i % (wide ? MAX_LENGTH : 60000);
}

static void lengths_are_kept(void **state)
{
	enum { N = 200000 };
	struct vfm_lengths l;

	(void)state;
	for (int wide = 0; wide < 2; wide++) {
		assert_int_equal(vfm_lengths_init(&l, N, MAX_LENGTH, NULL), 0);
		for (int i = 0; i < N; i += 2) /* the others stay 0 */
			assert_int_equal(vfm_lengths_put(&l, i, length_of(i, wide), NULL), 0);
		vfm_lengths_seal(&l);
		assert_int_equal(l.wide != NULL, wide);
		for (int i = 0; i < N; i++)
			assert_int_equal(vfm_lengths_get(&l, i), length_of(i, wide));
		vfm_lengths_release(&l);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_element_once),
		cmocka_unit_test(large_domain),
		cmocka_unit_test(small_orders_are_uniform),
		cmocka_unit_test(no_order_is_left),
		cmocka_unit_test(lengths_are_kept),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
