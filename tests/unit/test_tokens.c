/* Token layouts against brute force: every token of a pack is held once, in order, and all ranks agree on the numbers.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "spec/layout/tokens.h"

enum { N_LENS = 5 };

static const int lens[N_LENS][6] = {
	{17, 1, 40, 3, 0, 0},
	{0, 7, 0, 0, 5, 1},
	{1, 1, 1, 1, 1, 1},
	{64, 64, 0, 0, 0, 0},
	{0, 0, 0, 0, 0, 0},
};

static void boundaries(const int *len, int n, int32_t *cu)
{
	cu[0] = 0;
	for (int i = 0; i < n; i++)
		cu[i + 1] = cu[i] + len[i];
}

static int sample_of(const int32_t *cu, int n, int32_t row)
{
	int s = 0;

	while (s < n - 1 && row >= cu[s + 1])
		s++;
	return s;
}

/* All ranks of one layout: their pieces, one after the other, name each token once; within a sample in order. */
static void check_layout(const int32_t *cu, int n, int cp, int a2a, int tp)
{
	int32_t *held = vfm_calloc((size_t)cu[n] + 1, sizeof(*held)), most = 0, least = INT32_MAX;

	for (int i = 0; i < cp; i++) {
		int64_t first = 0;

		for (int j = 0; j < tp; j++) {
			struct vfm_tokens t;
			int32_t last = -1;

			vfm_tokens_make(&t, n, cu, cp, i, a2a, tp, j);
			assert_int_equal(t.first, first);
			assert_int_equal(t.rows, t.rows_tp[j]);
			assert_int_equal(t.cu[n], t.rows);
			first += t.rows;
			for (int64_t r = 0; r < t.rows; r++) {
				int32_t row = t.pack_row[t.first + r];
				int s = sample_of(cu, n, row);

				assert_true(row > last);
				last = row;
				held[row]++;
				assert_true(r >= t.cu[s] && r < t.cu[s + 1]);
				assert_true(t.first + r >= t.cu_cp[i * (n + 1) + s] &&
					t.first + r < t.cu_cp[i * (n + 1) + s + 1]);
			}
			if (j == tp - 1)
				assert_int_equal(first, t.rows_cp[i]);
			if (t.rows_cp[i] > most)
				most = (int32_t)t.rows_cp[i];
			if (t.rows_cp[i] < least)
				least = (int32_t)t.rows_cp[i];
			vfm_tokens_release(&t);
		}
	}
	for (int32_t r = 0; r < cu[n]; r++)
		assert_int_equal(held[r], 1);
	/* What is over of a sample is at most one token a rank, and goes round. */
	assert_true(most - least <= n);
	free(held);
}

static void test_every_token_once(void **state)
{
	static const int shape[][3] = {{1, 1, 1}, {2, 1, 1}, {4, 1, 2}, {4, 2, 3}, {4, 4, 4}, {6, 3, 1}, {8, 2, 2}};
	int32_t cu[7];

	(void)state;
	for (int k = 0; k < N_LENS; k++) {
		boundaries(lens[k], 6, cu);
		for (size_t i = 0; i < sizeof(shape) / sizeof(shape[0]); i++)
			check_layout(cu, 6, shape[i][0], shape[i][1], shape[i][2]);
	}
}

/* The rows of a ring position, put into order, are contiguous ranges of the samples, in the order of the pack. */
static void test_ring_order(void **state)
{
	int32_t cu[7];

	(void)state;
	for (int k = 0; k < N_LENS; k++) {
		boundaries(lens[k], 6, cu);
		for (int r = 0; r < 2; r++) {
			int32_t come[512], order[512];
			struct vfm_tokens t;
			int n = 0;

			for (int i = 0; i < 3; i++) {
				vfm_tokens_make(&t, 6, cu, 6, r * 3 + i, 3, 1, 0);
				memcpy(come + n, t.pack_row, (size_t)t.rows * 4);
				n += (int)t.rows;
				if (i < 2)
					vfm_tokens_release(&t);
			}
			assert_int_equal(t.cu_ring[r * 7 + 6], n);
			vfm_tokens_ring_order(&t, r, order);
			for (int p = 0; p < n; p++) {
				int32_t row = come[order[p]];
				int s = sample_of(cu, 6, row);

				assert_true(p >= t.cu_ring[r * 7 + s] && p < t.cu_ring[r * 7 + s + 1]);
				if (p > t.cu_ring[r * 7 + s])
					assert_int_equal(row, come[order[p - 1]] + 1);
			}
			vfm_tokens_release(&t);
		}
	}
}

static void test_chunks(void **state)
{
	int64_t a, b;

	(void)state;
	/* 10 tokens over 4: 3 3 2 2, the longer ones begin at rank sample % 4. */
	vfm_tokens_chunk(10, 0, 4, 0, &a, &b);
	assert_true(a == 0 && b == 3);
	vfm_tokens_chunk(10, 1, 4, 0, &a, &b);
	assert_true(a == 0 && b == 2);
	vfm_tokens_chunk(10, 3, 4, 3, &a, &b);
	assert_true(a == 7 && b == 10);
	vfm_tokens_chunk(0, 2, 4, 1, &a, &b);
	assert_true(a == 0 && b == 0);
}

/* The rows of all ranks, sorted into the pack's order, are the pack. */
static void test_pack_order(void **state)
{
	int32_t cu[7], all[256], order[256];

	(void)state;
	for (int k = 0; k < N_LENS; k++) {
		boundaries(lens[k], 6, cu);
		for (int cp = 1; cp <= 5; cp++) {
			struct vfm_tokens t;
			int64_t at = 0;

			for (int i = 0; i < cp; i++) {
				for (int j = 0; j < 3; j++) {
					vfm_tokens_make(&t, 6, cu, cp, i, 1, 3, j);
					assert_int_equal(vfm_tokens_rows(&t, i, j), t.rows);
					memcpy(all + at, t.pack_row + t.first, (size_t)t.rows * 4);
					at += t.rows;
					if (i < cp - 1 || j < 2)
						vfm_tokens_release(&t);
				}
			}
			vfm_tokens_pack_order(&t, order);
			for (int32_t p = 0; p < cu[6]; p++)
				assert_int_equal(all[order[p]], p);
			vfm_tokens_release(&t);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pack_order),
		cmocka_unit_test(test_every_token_once),
		cmocka_unit_test(test_ring_order),
		cmocka_unit_test(test_chunks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
