/* Divisions into frames and columns, compared with brute force: random packs on all ranks, whose rows are moved. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/philox.h"
#include "spec/layout/division.h"
#include "spec/layout/tokens.h"

enum { SAMPLES = 5, RANKS = 7 };

struct world {
	int n, cp;
	int32_t cu[SAMPLES + 1], grid[SAMPLES][3];
	struct vfm_division d[RANKS];
	struct vfm_tokens t[RANKS];
	int32_t *at_home[RANKS]; /* the pack's rows that a rank holds */
};

static uint32_t draw(struct vfm_rng *r, uint64_t *k)
{
	uint32_t x[4];

	vfm_rng_block(r, (*k)++, x);
	return x[0];
}

static void random_pack(struct world *w, struct vfm_rng *r, uint64_t *k)
{
	w->n = 1 + (int)(draw(r, k) % SAMPLES);
	w->cp = 1 + (int)(draw(r, k) % RANKS);
	for (int s = 0; s < w->n; s++) {
		for (int a = 0; a < 3; a++)
			w->grid[s][a] = 1 + (int32_t)(draw(r, k) % (a == 0 ? 6 : 4));
		w->cu[s + 1] = w->cu[s] + w->grid[s][0] * w->grid[s][1] * w->grid[s][2];
	}
}

/* Returns what rank `me` receives from an all-to-all by the plans of all ranks. */
static int32_t *simulate_all_to_all(const struct world *w, int me, int32_t *const *sent, bool back)
{
	int64_t n = back ? w->d[me].home : w->d[me].rows, at = 0;
	int32_t *out = vfm_calloc((size_t)n + 1, sizeof(*out));

	for (int r = 0; r < w->cp; r++) {
		const int64_t *theirs = back ? w->d[r].recv : w->d[r].send,
			      *mine = back ? w->d[me].send : w->d[me].recv;
		int64_t first = 0;

		for (int i = 0; i < me; i++)
			first += theirs[i];
		assert_int_equal(theirs[me], mine[r]);
		memcpy(out + at, sent[r] + first, (size_t)theirs[me] * sizeof(*out));
		at += theirs[me];
	}
	assert_int_equal(at, n);
	return out;
}

static int32_t *select_rows(const int32_t *x, const int32_t *index, int64_t n)
{
	int32_t *y = vfm_calloc((size_t)n + 1, sizeof(*y));

	for (int64_t i = 0; i < n; i++)
		y[i] = x[index[i]];
	return y;
}

/* Returns the unit of row `row` of the pack, numbered over the pack, and in *len its length. */
static int64_t unit_of(const struct world *w, enum vfm_division_kind kind, int32_t row, int64_t *len)
{
	int64_t base = 0;
	int s = 0;

	for (; row >= w->cu[s + 1]; s++)
		base += kind == VFM_DIV_FRAMES ? w->grid[s][0] : w->grid[s][1] * w->grid[s][2];
	row -= w->cu[s];
	*len = kind == VFM_DIV_FRAMES ? w->grid[s][1] * w->grid[s][2] : w->grid[s][0];
	return base + (kind == VFM_DIV_FRAMES ? row / *len : row % (w->grid[s][1] * w->grid[s][2]));
}

static void check_rank(const struct world *w, enum vfm_division_kind kind, int r, char *seen, int64_t *last_unit)
{
	const struct vfm_division *d = &w->d[r];
	int64_t longest = 0;

	assert_int_equal(d->cu[0], 0);
	assert_int_equal(d->cu[d->units], d->rows);
	for (int u = 0; u < d->units; u++) {
		for (int32_t i = d->cu[u]; i < d->cu[u + 1]; i++) {
			int64_t len, unit = unit_of(w, kind, d->pack_row[i], &len);

			assert_int_equal(len, d->cu[u + 1] - d->cu[u]); /* units are whole, */
			if (i == d->cu[u])
				assert_int_equal(unit, ++*last_unit); /* in order and complete */
			else
				assert_true(unit == *last_unit && d->pack_row[i] > d->pack_row[i - 1]);
			assert_int_equal(seen[d->pack_row[i]]++, 0); /* each token occurs once */
			longest = len > longest ? len : longest;
		}
	}
	/* Balanced: at most one sample or unit above the equal share. */
	for (int s = 0; s < w->n; s++)
		longest = w->grid[s][0] * w->grid[s][1] * w->grid[s][2] > longest
			? w->grid[s][0] * w->grid[s][1] * w->grid[s][2]
			: longest;
	assert_true(d->rows * w->cp <= w->cu[w->n] + longest * w->cp);
}

static void check(struct world *w, enum vfm_division_kind kind)
{
	int32_t *sent[RANKS], *got[RANKS], *moved[RANKS], *buf;
	char *seen = vfm_calloc((size_t)w->cu[w->n], 1);
	int64_t last = -1;

	for (int r = 0; r < w->cp; r++) {
		vfm_division_make(&w->d[r], kind, w->n, w->cu, (const int32_t(*)[3])w->grid, w->cp, r);
		vfm_tokens_make(&w->t[r], w->n, w->cu, w->cp, r, 1, 1, 0);
		assert_int_equal(w->d[r].home, w->t[r].rows_cp[r]);
		sent[r] = select_rows(w->t[r].pack_row, w->d[r].gather, w->d[r].home);
	}
	for (int r = 0; r < w->cp; r++) {
		check_rank(w, kind, r, seen, &last);
		got[r] = simulate_all_to_all(w, r, sent, false);
		moved[r] = select_rows(got[r], w->d[r].place, w->d[r].rows);
		assert_memory_equal(moved[r], w->d[r].pack_row, (size_t)w->d[r].rows * 4);
	}
	assert_null(memchr(seen, 0, (size_t)w->cu[w->n]));
	for (int r = 0; r < w->cp; r++) {
		free(got[r]);
		got[r] = select_rows(moved[r], w->d[r].place_inv, w->d[r].rows);
	}
	for (int r = 0; r < w->cp; r++) {
		int32_t *home;

		buf = simulate_all_to_all(w, r, got, true);
		home = select_rows(buf, w->d[r].gather_inv, w->d[r].home);
		assert_memory_equal(home, w->t[r].pack_row, (size_t)w->d[r].home * 4);
		free(home);
		free(buf);
	}
	for (int r = 0; r < w->cp; r++) {
		free(sent[r]);
		free(got[r]);
		free(moved[r]);
		vfm_division_release(&w->d[r]);
		vfm_tokens_release(&w->t[r]);
	}
	free(seen);
}

static void test_random(void **state)
{
	struct vfm_rng r = vfm_rng_stream(1, 2, 3, VFM_RNG_TEST);
	uint64_t k = 0;

	(void)state;
	for (int i = 0; i < 500; i++) {
		struct world w = {0};

		random_pack(&w, &r, &k);
		check(&w, VFM_DIV_FRAMES);
		check(&w, VFM_DIV_COLUMNS);
	}
}

/* A video and an image on two ranks.  Rank 0 gets two of three frames, rank 1 the third and the whole image. */
static void test_known(void **state)
{
	static const int32_t cu[] = {0, 12, 16}, grid[][3] = {{3, 2, 2}, {1, 2, 2}};
	static const int32_t frames1[] = {8, 9, 10, 11, 12, 13, 14, 15}, columns0[] = {0, 4, 8, 1, 5, 9, 2, 6, 10};
	struct vfm_division d;

	(void)state;
	vfm_division_make(&d, VFM_DIV_FRAMES, 2, cu, grid, 2, 1);
	assert_int_equal(d.units, 2);
	assert_int_equal(d.rows, 8);
	assert_memory_equal(d.pack_row, frames1, sizeof(frames1));
	assert_true(d.send[0] == 2 && d.send[1] == 6 && d.recv[0] == 2 && d.recv[1] == 6);
	vfm_division_release(&d);
	vfm_division_make(&d, VFM_DIV_COLUMNS, 2, cu, grid, 2, 0);
	assert_int_equal(d.rows, 9);
	assert_memory_equal(d.pack_row, columns0, sizeof(columns0));
	vfm_division_release(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_known),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
