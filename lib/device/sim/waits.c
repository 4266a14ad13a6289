#include "device/sim/waits.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

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
