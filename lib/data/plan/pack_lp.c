/* pack_lp.c - column generation: a simplex method whose columns are knapsack solutions. */
#include "data/plan/pack_lp.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum {
	MAX_LENGTHS = 256,
	MAX_WORK = 1 << 19,  /* lengths x sums of a knapsack */
	FAST_WORK = 1 << 18, /* lengths^2 x sums */
	ROUNDS_PER_LENGTH = 40,
};
#define CLOSE_ENOUGH 1e-4 /* of bins to the bound, relative */
#define TINY         1e-9

int32_t vfm_gcd(int32_t a, int32_t b)
{
	while (b) {
		int32_t r = a % b;

		a = b;
		b = r;
	}
	return a;
}

enum vfm_contents_time vfm_contents_time(int32_t n, int32_t context, int32_t gcd)
{
	int64_t work = (int64_t)n * (context / gcd);

	if (n < 1 || n > MAX_LENGTHS || work > MAX_WORK)
		return VFM_CONTENTS_TOO_SLOW;
	return work * n <= FAST_WORK ? VFM_CONTENTS_FAST : VFM_CONTENTS_SLOW;
}

struct simplex {
	struct vfm_contents *c;
	int32_t n, units, gcd; /* units: of gcd tokens in the context */
	double *share;         /* [n] b */
	double *inverse;       /* [n, n] of the basis, whose columns are the contents */
	double *dual;          /* [n] */
	double *best;          /* [units + 1] largest profit of a sum */
	int32_t *last;         /* [units + 1] the length that was added last; -1: none */
	int32_t *column;       /* [n] the content that the knapsack found */
	double *step;          /* [n] inverse x column */
};

/* The first basis: each length by itself. */
static void start_basis(struct simplex *s, int32_t context)
{
	struct vfm_contents *c = s->c;

	for (int32_t i = 0; i < s->n; i++) {
		int32_t k = context / c->len[i];

		c->times[i * s->n + i] = k;
		s->inverse[i * s->n + i] = 1.0 / k;
		c->rate[i] = s->share[i] / k;
	}
}

static void find_duals(struct simplex *s)
{
	memset(s->dual, 0, (size_t)s->n * sizeof(*s->dual));
	for (int32_t p = 0; p < s->n; p++)
		for (int32_t i = 0; i < s->n; i++)
			s->dual[i] += s->inverse[p * s->n + i];
}

/* Fills s->column with the content of the largest profit, and returns that. */
static double price_column(struct simplex *s)
{
	const struct vfm_contents *c = s->c;
	int32_t at = s->units;

	for (int32_t u = 0; u <= s->units; u++) {
		s->best[u] = 0;
		s->last[u] = -1;
	}
	for (int32_t i = 0; i < s->n; i++) {
		int32_t len = c->len[i] / s->gcd;
		double profit = s->dual[i];

		if (profit <= 0)
			continue;
		for (int32_t u = len; u <= s->units; u++)
			if (s->best[u - len] + profit > s->best[u] + TINY * 1e-3) {
				s->best[u] = s->best[u - len] + profit;
				s->last[u] = i;
			}
	}
	memset(s->column, 0, (size_t)s->n * sizeof(*s->column));
	while (s->last[at] >= 0) {
		int32_t i = s->last[at];

		s->column[i]++;
		at -= c->len[i] / s->gcd;
	}
	return s->best[s->units];
}

/* Replaces a content of the basis by s->column.  Returns false if none can be: the numbers are too inexact. */
static bool pivot_basis(struct simplex *s)
{
	struct vfm_contents *c = s->c;
	const int32_t n = s->n;
	int32_t out = -1;
	double least = 0;

	for (int32_t p = 0; p < n; p++) {
		double x = 0;

		for (int32_t i = 0; i < n; i++)
			x += s->inverse[p * n + i] * s->column[i];
		s->step[p] = x;
		if (x > TINY && (out < 0 || c->rate[p] / x < least)) {
			out = p;
			least = c->rate[p] / x;
		}
	}
	if (out < 0)
		return false;
	for (int32_t i = 0; i < n; i++)
		s->inverse[out * n + i] /= s->step[out];
	for (int32_t p = 0; p < n; p++) {
		if (p == out)
			continue;
		c->rate[p] -= least * s->step[p];
		c->rate[p] = c->rate[p] > 0 ? c->rate[p] : 0;
		for (int32_t i = 0; i < n; i++)
			s->inverse[p * n + i] -= s->step[p] * s->inverse[out * n + i];
	}
	c->rate[out] = least;
	memcpy(c->times + out * n, s->column, (size_t)n * sizeof(*s->column));
	return true;
}

static void improve_basis(struct simplex *s)
{
	double bound = 0; /* bins per item: no packing has fewer */

	for (int round = 0; round < ROUNDS_PER_LENGTH * s->n + 100; round++) {
		double profit, bins = 0, dual = 0;

		find_duals(s);
		profit = price_column(s);
		for (int32_t i = 0; i < s->n; i++) {
			bins += s->c->rate[i];
			dual += s->share[i] * (s->dual[i] > 0 ? s->dual[i] : 0);
		}
		/* Duals over the largest profit of any content are a solution of the dual problem (Farley 1990). */
		profit = profit > 1 ? profit : 1;
		bound = dual / profit > bound ? dual / profit : bound;
		if (bins <= bound * (1 + CLOSE_ENOUGH) || profit <= 1 + TINY || !pivot_basis(s))
			break;
	}
}

void vfm_contents_find(
	struct vfm_contents *c, const int32_t *len, const double *items, int32_t n_lengths, int32_t context)
{
	size_t n = (size_t)n_lengths, units;
	struct simplex s = {.c = c, .n = n_lengths};
	double all = 0;

	*c = (struct vfm_contents){.n = n_lengths, .len = vfm_calloc(n, sizeof(*c->len))};
	c->times = vfm_calloc(n * n, sizeof(*c->times));
	c->rate = vfm_calloc(n, sizeof(*c->rate));
	s.share = vfm_calloc(n, sizeof(*s.share));
	memcpy(c->len, len, n * sizeof(*len));
	for (size_t i = 0; i < n; i++) {
		s.gcd = vfm_gcd(len[i], s.gcd);
		all += items[i];
	}
	for (size_t i = 0; i < n; i++)
		s.share[i] = items[i] / all;
	s.gcd = s.gcd > 0 ? s.gcd : 1;
	s.units = context / s.gcd;
	units = (size_t)s.units + 1;
	s.inverse = vfm_calloc(n * n, sizeof(*s.inverse));
	s.dual = vfm_calloc(n, sizeof(*s.dual));
	s.step = vfm_calloc(n, sizeof(*s.step));
	s.column = vfm_calloc(n, sizeof(*s.column));
	s.best = vfm_calloc(units, sizeof(*s.best));
	s.last = vfm_calloc(units, sizeof(*s.last));
	start_basis(&s, context);
	improve_basis(&s);
	free(s.share);
	free(s.inverse);
	free(s.dual);
	free(s.step);
	free(s.column);
	free(s.best);
	free(s.last);
}

void vfm_contents_release(struct vfm_contents *c)
{
	free(c->len);
	free(c->times);
	free(c->rate);
	*c = (struct vfm_contents){0};
}
