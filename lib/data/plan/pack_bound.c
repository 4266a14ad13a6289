#include "data/plan/pack_bound.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "data/plan/pack_impl.h"

enum { MAX_K = 64 };
#define MAX_SUM_WORK ((int64_t)1 << 31) /* words of bits that the sums may take; beyond, the gcd replaces them */

struct lens { /* the lengths that occur, ascending */
	int32_t *len, n, context;
	const int64_t *count;
	double tokens;
};

/* sums |= sums << by */
static void or_shifted(uint64_t *sums, size_t words, int64_t by)
{
	size_t w = (size_t)(by / 64);
	int bit = (int)(by % 64);

	for (size_t i = words; i-- > w;) {
		uint64_t x = sums[i - w] << bit;

		if (bit && i > w)
			x |= sums[i - w - 1] >> (64 - bit);
		sums[i] |= x;
	}
}

/* Fills `sums` with all sums up to the context.  Returns false if that takes too long. */
static bool find_sums(const struct lens *l, struct vfm_numbers *sums)
{
	int64_t work = 0;

	sums->bits[0] = 1;
	for (int32_t i = 0; i < l->n; i++) {
		int32_t len = l->len[i];

		if (sums->bits[len / 64] >> (len % 64) & 1)
			continue;
		for (int64_t by = len; by <= l->context; by *= 2, work += (int64_t)sums->words)
			or_shifted(sums->bits, sums->words, by);
		if (work > MAX_SUM_WORK)
			return false;
	}
	for (int32_t x = 0; x <= l->context; x += 64)
		if (sums->bits[x / 64])
			sums->coarse[x / 4096] |= 1ull << (x / 64 % 64);
	return true;
}

/* The largest sum, and in *bins the bound by the room that no sum can fill. */
static int32_t bound_by_sums(const struct lens *l, double *bins)
{
	struct vfm_numbers sums;
	double waste = 0, large = 0;
	int32_t most;

	vfm_numbers_init(&sums, l->context);
	if (find_sums(l, &sums)) {
		most = vfm_numbers_down_from(&sums, l->context);
		for (int32_t i = 0; i < l->n; i++) {
			int32_t room = l->context - l->len[i], used;

			if (l->len[i] <= l->context / 2)
				continue;
			used = vfm_numbers_down_from(&sums, room);
			waste += (double)l->count[l->len[i]] * (room - used);
			large += (double)l->count[l->len[i]];
		}
		*bins = (l->tokens + waste - large * (l->context - most)) / most;
	} else {
		int32_t gcd = 0;

		for (int32_t i = 0; i < l->n; i++)
			gcd = vfm_gcd(gcd, l->len[i]);
		most = l->context / gcd * gcd;
		*bins = l->tokens / most;
	}
	vfm_numbers_release(&sums);
	return most;
}

/* L2, for every limit of small items. */
static double bound_l2(const struct lens *l, int32_t room)
{
	int32_t half = 0;
	double large = 0, large_tokens = 0, small_tokens = 0, best = 0;

	while (half < l->n && l->len[half] <= room / 2)
		half++;
	for (int32_t i = half; i < l->n; i++)
		large += (double)l->count[l->len[i]];
	/* The limit falls; items of up to room - limit tokens take part with their room, longer ones do not. */
	for (int32_t i = half - 1, k = half; i >= 0; i--) {
		double more;

		small_tokens += (double)l->count[l->len[i]] * l->len[i];
		for (; k < l->n && l->len[k] <= room - l->len[i]; k++)
			large_tokens += (double)l->count[l->len[k]] * (room - l->len[k]);
		more = ceil((small_tokens - large_tokens) / room);
		if (more > best)
			best = more;
	}
	return large + best;
}

static double bound_dual(const struct lens *l, int32_t room)
{
	double best = 0;

	for (int64_t k = 1; k <= MAX_K; k++) {
		double sum = 0; /* in units of 1 / (k room) */

		for (int32_t i = 0; i < l->n; i++) {
			int64_t x = l->len[i], times = (k + 1) * x;

			sum += (double)l->count[x] * (double)(times % room ? times / room * room : x * k);
		}
		sum /= (double)k * room;
		best = sum > best ? sum : best;
	}
	return best;
}

static double bound_by_contents(const struct lens *l)
{
	int32_t *len = vfm_calloc((size_t)l->n, sizeof(*len));
	double *items = vfm_calloc((size_t)l->n, sizeof(*items)), all = 0;
	struct vfm_contents c;

	for (int32_t i = 0; i < l->n; i++) {
		len[i] = l->len[l->n - 1 - i];
		items[i] = (double)l->count[len[i]];
		all += items[i];
	}
	vfm_contents_find(&c, len, items, l->n, l->context);
	all *= c.bound;
	vfm_contents_release(&c);
	free(len);
	free(items);
	return all;
}

int64_t vfm_bins_bound(const int64_t *count, int32_t context)
{
	struct lens l = {.context = context, .count = count};
	double bins[4] = {0};
	int32_t room, gcd = 0;

	l.len = vfm_calloc((size_t)context + 1, sizeof(*l.len));
	for (int32_t x = 1; x <= context; x++) {
		if (!count[x])
			continue;
		l.len[l.n++] = x;
		l.tokens += (double)count[x] * x;
		gcd = vfm_gcd(x, gcd);
	}
	if (l.n == 0) {
		free(l.len);
		return 0;
	}
	room = bound_by_sums(&l, &bins[0]);
	bins[1] = bound_l2(&l, room);
	bins[2] = bound_dual(&l, room);
	if (vfm_contents_time(l.n, context, gcd) != VFM_CONTENTS_TOO_SLOW)
		bins[3] = bound_by_contents(&l) * (1 - 1e-9);
	free(l.len);
	for (int i = 1; i < 4; i++)
		bins[0] = bins[i] > bins[0] ? bins[i] : bins[0];
	return (int64_t)ceil(bins[0] * (1 - 1e-12));
}

int64_t vfm_parts_bound(const int64_t *count, int32_t context, int32_t max_parts)
{
	double tokens = 0, most = 0;

	for (int32_t parts = 1, x = 1; parts <= max_parts; parts *= 2) {
		double needed = 0;

		for (; x <= context * parts; x++) {
			tokens += (double)count[x] * x;
			needed += parts > 1 ? (double)count[x] * parts : 0;
		}
		most = needed > most ? needed : most;
	}
	return (int64_t)fmax(ceil(tokens / context), most);
}
