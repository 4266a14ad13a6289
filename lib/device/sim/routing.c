#include "device/sim/routing.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "io/hash.h"

struct expert {
	uint64_t key;
	int64_t e;
	double share;
};

static int compare_experts(const void *a, const void *b)
{
	const struct expert *x = a, *y = b;

	return x->key != y->key ? (x->key < y->key ? -1 : 1) : x->e < y->e ? -1 : 1;
}

/* Returns the experts, the most popular first. */
static struct expert *order_experts(int64_t E, uint64_t layer)
{
	struct expert *v = vfm_calloc((size_t)E + 1, sizeof(*v));

	for (int64_t e = 0; e < E; e++) {
		uint64_t of[2] = {layer, (uint64_t)e};

		v[e] = (struct expert){.key = vfm_fnv64(of, sizeof(of)), .e = e};
	}
	qsort(v, (size_t)E, sizeof(*v), compare_experts);
	return v;
}

/* Sets the shares: as many experts as necessary, the most popular, get `most`. */
static void share_choices(struct expert *v, int64_t E, double n, double most, double skew)
{
	double left = n, weights = 0;

	for (int64_t r = 0; r < E; r++)
		weights += pow((double)r + 1, -skew);
	for (int64_t r = 0; r < E; r++) {
		double weight = pow((double)r + 1, -skew);

		v[r].share = fmin(most, left * (weights > 0 ? weight / weights : 1));
		left -= v[r].share;
		weights -= weight;
	}
}

void vfm_sim_route(int32_t *count, int64_t E, int64_t n, int64_t most, double skew, uint64_t layer)
{
	struct expert *v = order_experts(E, layer);
	double sum = 0;
	int64_t given = 0;

	share_choices(v, E, (double)n, (double)most, skew);
	for (int64_t r = 0; r < E; r++) { /* the sum so far is rounded, so that rounding cancels */
		int64_t until;

		sum += v[r].share;
		until = r == E - 1 ? n : llround(sum);
		until = until < given ? given : until > given + most ? given + most : until;
		count[v[r].e] = (int32_t)(until - given);
		given = until;
	}
	free(v);
}
