/* Sets of keys that are larger than their table: all answers are those of a set in memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "data/dataset/index.h"
#include "data/record/sample_key.h"
#include "data/record/sample_set.h"

/* A mixing function instead of SHA-256 (splitmix64, Steele, Lea and Flood, 2014), for speed. */
static uint64_t mix(uint64_t x)
{
	x += 0x9E3779B97F4A7C15u;
	x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
	x = (x ^ x >> 27) * 0x94D049BB133111EBu;
	return x ^ x >> 31;
}

static struct vfm_sample_seen entry(uint64_t i)
{
	return (struct vfm_sample_seen){{mix(i), mix(~i)}, (int64_t)i, i ^ 7};
}

static void hash_of_a_key(void **state)
{
	uint64_t h[2];

	(void)state;
	vfm_sample_hash("abc", h); /* FIPS 180-4 */
	assert_int_equal(h[0], 0xba7816bf8f01cfeau);
	assert_int_equal(h[1], 0x414140de5dae2223u);
	assert_int_equal(vfm_sample_id("abc"), h[0]);
}

static void small_set(void **state)
{
	struct vfm_sample_set set = {0};
	struct vfm_sample_seen first, zero = {.place = 5}, one = {.hash = {7, 1}}, other = {.hash = {7, 2}};

	(void)state;
	assert_int_equal(vfm_sample_set_find(&set, one.hash, &first, NULL), 0);
	assert_int_equal(vfm_sample_set_add(&set, &zero, &first, NULL), 0);
	assert_int_equal(vfm_sample_set_add(&set, &zero, &first, NULL), 1);
	assert_int_equal(first.place, 5);
	assert_int_equal(vfm_sample_set_add(&set, &one, &first, NULL), 0);
	assert_int_equal(vfm_sample_set_add(&set, &other, &first, NULL), 0); /* the ids are equal, the keys are not */
	assert_int_equal(set.n, 3);
	vfm_sample_set_release(&set);
}

/* Enough for merges of merged runs, and then some in the table. */
static void large_set(void **state)
{
	enum { N = 1000000 };
	struct vfm_sample_set set = {.max_slots = 4096};
	struct vfm_sample_seen s, first;
	struct vfm_err err;
	int64_t found = 0;

	(void)state;
	for (uint64_t i = 0; i < N; i++) {
		if (i == 300000) { /* that of 12 is in a run by now */
			s = entry(12);
			s.content = 99;
			assert_int_equal(vfm_sample_set_put(&set, &s, true, &err), 0);
		}
		s = entry(i);
		assert_int_equal(vfm_sample_set_add(&set, &s, &first, &err), 0);
	}
	assert_int_equal(set.n, N);
	assert_in_range(set.n_runs, 3, 45);
	for (uint64_t i = 0; i < N; i += 13) {
		s = entry(i);
		assert_int_equal(vfm_sample_set_add(&set, &s, &first, &err), 1);
		assert_int_equal(first.place, i);
		s.hash[1] ^= 1; /* another key with the same id */
		found += vfm_sample_set_find(&set, s.hash, &first, &err);
	}
	assert_int_equal(found, 0);
	s = entry(12);
	assert_int_equal(vfm_sample_set_find(&set, s.hash, &first, &err), 1);
	assert_int_equal(first.content, 99);
	assert_int_equal(set.n, N);
	vfm_sample_set_release(&set);
}

/* The temporary file cannot be made. */
static void errors(void **state)
{
	struct vfm_sample_set set = {.dir = "/nonexistent", .max_slots = 1024};
	struct vfm_sample_seen s, first;
	struct vfm_err err;
	int rc = 0;

	(void)state;
	for (uint64_t i = 0; rc == 0 && i < 2000; i++) {
		s = entry(i);
		rc = vfm_sample_set_add(&set, &s, &first, &err);
	}
	assert_int_equal(rc, VFM_EENV);
	assert_non_null(strstr(err.msg, "/nonexistent"));
	vfm_sample_set_release(&set);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(hash_of_a_key), cmocka_unit_test(small_set),
		cmocka_unit_test(large_set), cmocka_unit_test(errors)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
