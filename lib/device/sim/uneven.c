/* uneven.c - counts of tokens by expert under Zipf's law, rates of a slow GPU, and time spent waiting for others. */
#include "device/sim/uneven.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "io/hash.h"

static void scale_rate(struct vfm_rate_range *r, double by)
{
	for (int e = 0; e < VFM_ESTIMATES; e++)
		r->v[e] *= by;
}

void vfm_sim_slow_kernels(struct vfm_machine *m, double factor)
{
	struct vfm_rate_range *rate[] = {&m->gemm_bf16, &m->gemm_f32, &m->gemm_f8, &m->copy, &m->sm_bw};

	for (size_t i = 0; i < sizeof(rate) / sizeof(rate[0]); i++)
		scale_rate(rate[i], 1 / factor);
	for (int i = 0; i < m->n_attn; i++) {
		scale_rate(&m->attn[i].forward, 1 / factor);
		scale_rate(&m->attn[i].backward, 1 / factor);
	}
	scale_rate(&m->least, factor);
	for (int i = 0; i < m->n_cpu; i++)
		m->cpu[i].rate /= factor;
}

/* ---- routing ---- */

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

/* Sets the shares: the most popular experts, as many as necessary, get `most`. */
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

/* ---- waits ---- */

/* A stream begins or ends to work, or to wait. */
struct wait_change {
	double at;
	int works, waits; /* +1, -1 */
};

static int compare_changes(const void *a, const void *b)
{
	const struct wait_change *x = a, *y = b;

	return x->at < y->at ? -1 : x->at > y->at;
}

static size_t add_interval(struct wait_change *v, size_t n, double begin, double end, bool waits)
{
	if (end <= begin)
		return n;
	v[n] = (struct wait_change){begin, !waits, waits};
	v[n + 1] = (struct wait_change){end, -!waits, -(int)waits};
	return n + 2;
}

double vfm_sim_uneven_wait(const struct vfm_sim_launch *l, size_t n)
{
	struct wait_change *v = vfm_calloc(6 * n + 1, sizeof(*v));
	int works = 0, waits = 0;
	size_t changes = 0;
	double sum = 0;

	for (size_t i = 0; i < n; i++) {
		double there = l[i].begin[VFM_MID] + (double)l[i].gap[VFM_MID];
		double start = there + (double)l[i].wait[VFM_MID];

		changes = add_interval(v, changes, l[i].begin[VFM_MID], there, false);
		if (l[i].uneven)
			changes = add_interval(v, changes, there, start, true);
		changes = add_interval(v, changes, start, start + (double)l[i].work[VFM_MID], false);
	}
	qsort(v, changes, sizeof(*v), compare_changes);
	for (size_t i = 0; i < changes; i++) {
		if (i && waits > 0 && works == 0)
			sum += v[i].at - v[i - 1].at;
		works += v[i].works;
		waits += v[i].waits;
	}
	free(v);
	return sum;
}
