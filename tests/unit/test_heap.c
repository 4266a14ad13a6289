/* The pool's heap against a model that looks at everything, and what it promises of programs that go round. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "device/dev/heap.h"

enum { GRAIN = 512 };

static uint64_t seed;

static uint32_t next(uint32_t below)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(seed >> 33) % below;
}

/* ---- the model: one cell a grain, best fit by looking at all holes ---- */

struct model {
	uint32_t n;     /* cells there are */
	uint32_t *cell; /* [n] 0: free, else 1 + number of the range */
	uint32_t top;
};

static int64_t model_take(struct model *m, uint32_t want, uint32_t id)
{
	uint32_t best = UINT32_MAX, best_size = UINT32_MAX;

	for (uint32_t i = 0; i < m->top;) {
		uint32_t j = i;

		while (j < m->top && m->cell[j] == 0)
			j++;
		if (j - i >= want && j - i < best_size) {
			best = i;
			best_size = j - i;
		}
		i = j > i ? j : i + 1;
	}
	if (best == UINT32_MAX) {
		if (m->n - m->top < want)
			return -1;
		best = m->top;
	}
	for (uint32_t i = 0; i < want; i++) {
		assert_int_equal(m->cell[best + i], 0); /* no overlap */
		m->cell[best + i] = id + 1;
	}
	if (best + want > m->top)
		m->top = best + want;
	return best;
}

/* Takes the cells at `at`, if all are free. */
static bool model_take_at(struct model *m, uint32_t at, uint32_t want, uint32_t id)
{
	if (at > m->n || m->n - at < want)
		return false;
	for (uint32_t i = 0; i < want; i++)
		if (m->cell[at + i] != 0)
			return false;
	for (uint32_t i = 0; i < want; i++)
		m->cell[at + i] = id + 1;
	if (at + want > m->top)
		m->top = at + want;
	return true;
}

static void model_give(struct model *m, uint32_t at, uint32_t id)
{
	for (uint32_t i = at; i < m->n && m->cell[i] == id + 1; i++)
		m->cell[i] = 0;
	while (m->top && m->cell[m->top - 1] == 0)
		m->top--;
}

static void model_check(const struct model *m, const struct vfm_heap *h)
{
	struct vfm_heap_stats s;
	uint64_t used = 0, largest = 0, at, size;
	uint32_t hole = 0;
	size_t holes = 0;

	vfm_heap_stats(h, &s);
	for (uint32_t i = 0; i < m->top;) {
		uint32_t j = i;

		while (j < m->top && m->cell[j] == 0)
			j++;
		if (j > i) {
			hole = vfm_heap_next_hole(h, hole, &at, &size);
			assert_int_not_equal(hole, 0);
			assert_int_equal(size, (uint64_t)(j - i) * GRAIN);
			assert_int_equal(at, (uint64_t)i * GRAIN);
			largest = size > largest ? size : largest;
			holes++;
			i = j;
		} else {
			used += GRAIN;
			i++;
		}
	}
	assert_int_equal(vfm_heap_next_hole(h, hole, &at, &size), 0);
	assert_int_equal(s.used, used);
	assert_int_equal(s.top, (uint64_t)m->top * GRAIN);
	assert_int_equal(s.largest, largest);
	assert_int_equal(s.holes, holes);
	assert_true(s.end >= s.top);
}

enum { IDS = 400 };

static void against_model(uint32_t cells, uint32_t most, int steps)
{
	struct model m = {.n = cells, .cell = calloc(cells, sizeof(uint32_t))};
	struct vfm_heap *h = vfm_heap_new((uint64_t)cells * GRAIN + GRAIN - 1, GRAIN);
	int64_t at[IDS];
	uint32_t tag, refused = 0, placed = 0;

	memset(at, 0xff, sizeof(at));
	for (int i = 0; i < steps; i++) {
		uint32_t id = next(IDS);

		if (at[id] < 0) {
			uint32_t bytes = next(8) ? 1 + next(most * GRAIN) : next(2) * GRAIN,
				 want = bytes ? (bytes + GRAIN - 1) / GRAIN : 1, place = next(cells);
			int64_t expected;

			if (next(4) == 0) {
				bool fits = model_take_at(&m, place, want, id);

				placed += fits;
				assert_int_equal(vfm_heap_take_at(h, (uint64_t)place * GRAIN, bytes, id), fits);
				at[id] = fits ? (int64_t)place * GRAIN : -1;
				continue;
			}
			expected = model_take(&m, want, id);

			at[id] = vfm_heap_take(h, bytes, id);
			assert_int_equal(at[id], expected < 0 ? -1 : expected * GRAIN);
			refused += expected < 0;
		} else {
			uint32_t cell = (uint32_t)(at[id] / GRAIN);

			model_give(&m, cell, id);
			assert_true(vfm_heap_give(h, (uint64_t)at[id], &tag) > 0);
			assert_int_equal(tag, id);
			assert_int_equal(vfm_heap_give(h, (uint64_t)at[id], NULL), 0); /* gone */
			at[id] = -1;
		}
		if (i % 50 == 0)
			model_check(&m, h);
	}
	assert_true(placed > 0);
	assert_true(most < 64 || refused > 0); /* the limit was met where it was meant to be */
	for (int id = 0; id < IDS; id++)
		if (at[id] >= 0)
			assert_true(vfm_heap_give(h, (uint64_t)at[id], NULL) > 0);
	memset(m.cell, 0, cells * sizeof(*m.cell));
	m.top = 0;
	model_check(&m, h);
	vfm_heap_free(h);
	free(m.cell);
}

static void test_model(void **state)
{
	(void)state;
	for (int i = 0; i < 6; i++) {
		seed = 77 + (uint64_t)i;
		against_model(6000, 8, 6000);   /* many small */
		against_model(3000, 100, 3000); /* runs into its limit */
	}
}

static void test_edges(void **state)
{
	struct vfm_heap *h = vfm_heap_new(4 * GRAIN, GRAIN);
	struct vfm_heap_stats s;
	(void)state;

	assert_int_equal(vfm_heap_take(h, UINT64_MAX, 0), -1);
	assert_false(vfm_heap_take_at(h, GRAIN, UINT64_MAX, 0));
	assert_false(vfm_heap_take_at(h, 1, 1, 0)); /* not a multiple of the grain */
	assert_false(vfm_heap_take_at(h, UINT64_MAX & ~(uint64_t)(GRAIN - 1), 1, 0));
	assert_int_equal(vfm_heap_take(h, UINT64_MAX - GRAIN, 0), -1);
	assert_int_equal(vfm_heap_take(h, 4 * GRAIN + 1, 0), -1);
	assert_int_equal(vfm_heap_take(h, 0, 0), 0);
	assert_int_equal(vfm_heap_take(h, 0, 0), GRAIN); /* an address of its own */
	assert_int_equal(vfm_heap_take(h, 2 * GRAIN, 0), 2 * GRAIN);
	assert_int_equal(vfm_heap_take(h, 1, 0), -1);
	assert_int_equal(vfm_heap_give(h, 5, NULL), 0);
	assert_int_equal(vfm_heap_give(h, 3 * GRAIN, NULL), 0); /* the middle of one */
	assert_int_equal(vfm_heap_give(h, GRAIN, NULL), GRAIN);
	assert_int_equal(vfm_heap_take(h, 7, 0), GRAIN);
	vfm_heap_stats(h, &s);
	assert_int_equal(s.used, 4 * GRAIN);
	assert_int_equal(s.ranges, 3);
	vfm_heap_free(h);
	vfm_heap_free(NULL);
}

/* ---- a training step: what stays, activations forward and backward, scratch that comes and goes ---- */

enum { LAYERS = 48, PER_LAYER = 12, KEPT = 200, CALLS = 4 * LAYERS * PER_LAYER };

struct trace {
	int64_t at[CALLS];
	int n;
};

static uint64_t step(struct vfm_heap *h, uint64_t step_seed, struct trace *tr)
{
	static int64_t act[LAYERS][PER_LAYER];
	struct vfm_heap_stats s;

	seed = step_seed;
	tr->n = 0;
	for (int l = 0; l < LAYERS; l++)
		for (int k = 0; k < PER_LAYER; k++) {
			int64_t scratch = vfm_heap_take(h, 1 + next(30 << 20), 2);

			act[l][k] = vfm_heap_take(h, 1 + next(60 << 20), 1);
			assert_true(scratch >= 0 && act[l][k] >= 0);
			vfm_heap_give(h, (uint64_t)scratch, NULL);
			tr->at[tr->n++] = scratch;
			tr->at[tr->n++] = act[l][k];
		}
	for (int l = LAYERS - 1; l >= 0; l--)
		for (int k = PER_LAYER - 1; k >= 0; k--) {
			int64_t grad = vfm_heap_take(h, 1 + next(60 << 20), 3);

			vfm_heap_give(h, (uint64_t)act[l][k], NULL);
			tr->at[tr->n++] = grad;
			vfm_heap_give(h, (uint64_t)grad, NULL);
		}
	vfm_heap_stats(h, &s);
	return s.end;
}

static void test_rounds(void **state)
{
	struct vfm_heap *h = vfm_heap_new(1ull << 46, GRAIN), *again = vfm_heap_new(1ull << 46, GRAIN);
	static struct trace a, b;
	int64_t kept[KEPT];
	uint64_t end = 0;
	(void)state;

	for (uint64_t i = 0; i < 8; i++) {
		/* The first round leaves something behind, as the optimizer's first step does. */
		for (int k = 0; i == 1 && k < KEPT; k++) {
			seed = (uint64_t)k;
			kept[k] = vfm_heap_take(h, 1 + next(20 << 20), 0);
			assert_int_equal(vfm_heap_take(again, 1 + (seed >> 33) % (20 << 20), 0), kept[k]);
		}
		uint64_t e = step(h, 99, &a), e2 = step(again, 99, &b);

		assert_int_equal(e, e2);
		assert_memory_equal(&a, &b, sizeof(a)); /* the same calls, the same addresses */
		if (i >= 2)
			assert_int_equal(e, end); /* and nothing grows */
		end = e;
	}
	/* Steps of different sizes, as packs are: what is needed in the end is little more than the largest. */
	for (uint64_t i = 0; i < 60; i++)
		step(h, i, &a);
	assert_true(step(h, 7, &a) < end + end / 4);
	for (int k = 0; k < KEPT; k++)
		assert_true(vfm_heap_give(h, (uint64_t)kept[k], NULL) > 0);
	vfm_heap_free(h);
	vfm_heap_free(again);
}

/* 10^5 calls a step must cost nothing beside it. */
static void test_cost(void **state)
{
	enum { LIVE = 4000, N = 200000 };
	struct vfm_heap *h = vfm_heap_new(1ull << 46, GRAIN);
	static int64_t at[LIVE];
	double t0 = vfm_now(), us;
	(void)state;

	seed = 5;
	memset(at, 0xff, sizeof(at));
	for (int i = 0; i < N; i++) {
		uint32_t k = next(LIVE);

		if (at[k] >= 0)
			assert_true(vfm_heap_give(h, (uint64_t)at[k], NULL) > 0);
		at[k] = vfm_heap_take(h, 1 + next(1 << next(26)), 0);
	}
	us = (vfm_now() - t0) / N * 1e6;
	print_message("%.2f us for a range taken and one given back, %d in use\n", us, LIVE);
	assert_true(us < 50); /* far above what it takes on a busy machine */
	vfm_heap_free(h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_model),
		cmocka_unit_test(test_edges),
		cmocka_unit_test(test_rounds),
		cmocka_unit_test(test_cost),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
