/* pack.c - the order of a run: windows of samples -> packs -> groups of packs -> steps. */
#include "data/plan/pack.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/philox.h"
#include "data/plan/pack_groups.h"
#include "data/plan/pack_mbs.h"
#include "data/plan/steer.h"

#define DEFAULT_WINDOW 262144
#define MAX_PACKS      ((int64_t)1 << 40)

enum {
	DENSE = 2048,   /* a pack with less room than context / DENSE is final */
	CARRIED = 8,    /* at most 1 / CARRIED of the tokens of a window go to the next one */
	MAX_ROUNDS = 8, /* that a sample may be carried for */
	/* with this many windows before the last one of a pass, exact contents of that one are worth a second */
	LONG_PASS = 1,
	POOL_STEPS = 16,  /* steps of packs, and */
	POOL_PACKS = 8192 /* packs, that may wait for others of similar cost */
};
#define SIMILAR 1.01 /* largest cost of a step over the mean */

/* ---- planning ---- */

struct drawn_sample { /* a sample that is to be packed */
	struct vfm_blend_sample s;
	int32_t rounds; /* that it was carried for */
};

struct planner {
	struct vfm_packing *p;
	struct vfm_blend *blend;
	const struct vfm_packing_opts *o;
	int (*take)(void *ctx, const struct vfm_packing_pack *pack, struct vfm_err *err);
	void *ctx;
	int64_t window;
	struct drawn_sample *heap, *kept; /* samples to be packed: those carried, then new ones */
	size_t n_heap, n_carried, cap_heap, cap_kept;
	int32_t *tokens; /* [n_heap] */
	size_t cap_tokens;
	struct vfm_mbs mbs;
	struct vfm_bins bins;
	struct vfm_pack_groups g; /* not yet assigned to steps */
	size_t per_step;          /* groups of a step */
	size_t pool;              /* groups that may wait for others of similar cost */
	size_t n_first;           /* ready groups that the next step has, however costly they are */
	double *sum_before;       /* scratch of find_similar */
	size_t cap_sum;
	int64_t n_windows; /* of this pass */
	double tokens_taken;
};

/* Draws until the window is full, the budget is spent or a pass ends; returns whether one did.  budget: tokens, or
 * samples, that may still be drawn. */
static bool draw_window(struct planner *pl, double *budget, bool in_tokens)
{
	bool ends = false;

	while (!ends && (int64_t)pl->n_heap<pl->window && * budget> 0) {
		struct vfm_blend_sample s = vfm_blend_next(pl->blend, &ends);

		vfm_grow(&pl->heap, &pl->cap_heap, pl->n_heap + 1, sizeof(*pl->heap));
		pl->heap[pl->n_heap++] = (struct drawn_sample){.s = s};
		*budget -= in_tokens ? s.tokens : 1;
	}
	return ends;
}

/* ---- steps ---- */

static int take_pack(struct planner *pl, const struct vfm_ready_pack *k, const struct vfm_blend_sample *samples,
	int32_t at, struct vfm_err *err)
{
	struct vfm_packing *p = pl->p;
	struct vfm_packing_pack out = {.step = p->steps,
		.pack = at,
		.parts = k->parts,
		.n = k->n,
		.tokens = k->tokens,
		.cost = k->cost,
		.samples = samples};

	for (int32_t i = 0; i < k->n; i++) {
		const struct vfm_blend_sample *s = &out.samples[i];
		int64_t record;
		int32_t set = vfm_blend_find(pl->blend, s->sample, &record);

		p->set_samples[set]++;
		p->set_tokens[set] += s->tokens;
	}
	p->n_samples += k->n;
	return pl->take ? pl->take(pl->ctx, &out, err) : 0;
}

/* Passes the packs of one step on. */
static int emit_step(struct planner *pl, const struct vfm_pack_group *a, struct vfm_err *err)
{
	const int32_t batch = pl->o->batch;
	double sum_t = 0, max_t = 0, sum_c = 0, max_c = 0;

	for (size_t i = 0; i < pl->per_step; i++) {
		const struct vfm_blend_sample *samples = pl->g.samples + a[i].first;
		int32_t at = (int32_t)i * pl->g.parts;

		for (int32_t k = 0; k < a[i].n_packs; k++) {
			const struct vfm_ready_pack *p = &pl->g.packs[a[i].first_pack + k];

			TRY(take_pack(pl, p, samples, at, err));
			at += p->parts;
			samples += p->n;
			sum_t += p->tokens;
			sum_c += p->cost;
			max_t = fmax(max_t, (double)p->tokens / p->parts);
			max_c = fmax(max_c, p->cost / p->parts);
		}
		pl->p->n_packs += a[i].n_packs;
	}
	pl->tokens_taken += sum_t;
	pl->p->imbalance_tokens += max_t * batch / sum_t; /* sums, until the end */
	pl->p->imbalance_cost += max_c * batch / sum_c;
	pl->p->steps++;
	return 0;
}

static bool has_all_steps(const struct planner *pl)
{
	return pl->o->steps > 0 && pl->p->steps == pl->o->steps;
}

/* Emits at most `most` steps of the ready groups, in their order. */
static int emit_in_order(struct planner *pl, size_t most, struct vfm_err *err)
{
	size_t n = pl->per_step, at = 0;

	for (; at + n <= pl->g.n_ready && at / n < most && !has_all_steps(pl); at += n) {
		TRY(emit_step(pl, pl->g.ready + at, err));
		for (size_t i = at; i < at + n; i++)
			pl->g.ready[i].n = 0;
	}
	if (at)
		vfm_pack_groups_compact(&pl->g);
	return 0;
}

/* Finds steps of ready groups that are consecutive in the order of cost and whose largest cost is at most `similar`
 * times the mean.  Returns the number of steps; step[i] is the first group of one.  Goes through the groups from the
 * most (from_end) or from the least expensive: those at the end of the order remain, and must not always be the same.
 */
static size_t find_similar(struct planner *pl, size_t n, double similar, bool from_end, uint32_t *step)
{
	size_t per_step = pl->per_step, found = 0, at = 0;
	double *sum;

	vfm_grow(&pl->sum_before, &pl->cap_sum, n + 1, sizeof(*pl->sum_before));
	sum = pl->sum_before;
	sum[0] = 0;
	for (size_t i = 0; i < n; i++)
		sum[i + 1] = sum[i] + pl->g.ready[i].cost;
	while (at + per_step <= n) {
		size_t first = from_end ? n - at - per_step : at;

		if (pl->g.ready[first].cost * (double)per_step > similar * (sum[first + per_step] - sum[first])) {
			at++;
			continue;
		}
		step[found++] = (uint32_t)first;
		at += per_step;
	}
	return found;
}

/* Steps of groups of similar cost, in random order.  The first n ready groups take part. */
static int emit_similar(struct planner *pl, size_t n, double similar, struct vfm_err *err)
{
	size_t per_step = pl->per_step, found;
	struct vfm_rng r = vfm_rng_stream(pl->o->seed, pl->g.round, VFM_SHUFFLE_PACKS + 2, VFM_RNG_DATA);
	uint32_t *step = vfm_calloc(n / per_step + 1, sizeof(*step));
	int rc = 0;

	qsort(pl->g.ready, n, sizeof(*pl->g.ready), vfm_pack_group_by_cost);
	found = find_similar(pl, n, similar, vfm_rng_below(&r, 0, 2) == 1, step);
	vfm_shuffle(step, (int64_t)found, pl->o->seed, pl->g.round, VFM_SHUFFLE_PACKS + 1);
	for (size_t i = 0; i < found && rc == 0 && !has_all_steps(pl); i++) {
		struct vfm_pack_group *a = pl->g.ready + step[i];

		rc = emit_step(pl, a, err);
		for (size_t k = 0; k < per_step; k++)
			a[k].n = 0;
	}
	free(step);
	if (found && rc == 0)
		vfm_pack_groups_compact(&pl->g);
	return rc;
}

/* Forms complete steps of the ready groups; the last n_new groups are of this window.  With balance_cost, a step has
 * groups of similar cost: others wait in the pool of ready groups, unless this is the end of the plan. */
static int emit_ready(struct planner *pl, size_t n_new, bool end, struct vfm_err *err)
{
	size_t per_step = pl->per_step;
	double similar = SIMILAR;

	if (!pl->o->balance_cost || per_step == 1) {
		vfm_pack_groups_shuffle(&pl->g, pl->g.ready + pl->g.n_ready - n_new, n_new, VFM_SHUFFLE_PACKS);
		return emit_in_order(pl, SIZE_MAX, err);
	}
	if (pl->n_first && pl->g.n_ready >= per_step) {
		vfm_pack_groups_shuffle(
			&pl->g, pl->g.ready + pl->n_first, pl->g.n_ready - pl->n_first, VFM_SHUFFLE_PACKS + 6);
		TRY(emit_in_order(pl, 1, err));
		pl->n_first = 0;
	}
	vfm_pack_groups_shuffle(&pl->g, pl->g.ready, pl->g.n_ready, VFM_SHUFFLE_PACKS);
	TRY(emit_similar(pl, pl->g.n_ready, similar, err));
	while (pl->g.n_ready > pl->pool && !has_all_steps(pl)) {
		similar = 1 + 2 * (similar - 1);
		TRY(emit_similar(pl, pl->g.n_ready, similar, err));
	}
	if (!end || pl->g.n_ready < per_step || has_all_steps(pl))
		return 0;
	vfm_pack_groups_shuffle(
		&pl->g, pl->g.ready, pl->g.n_ready, VFM_SHUFFLE_PACKS + 3); /* chance decides which are too many */
	return emit_similar(pl, pl->g.n_ready / per_step * per_step, INFINITY, err);
}

/* ---- packs ---- */

static void make_pack(struct planner *pl, const struct vfm_bins *b, int64_t bin, int32_t parts)
{
	int64_t n = b->first[bin + 1] - b->first[bin];
	struct vfm_ready_pack k = {.parts = parts, .n = (int32_t)n, .cost = pl->o->cost.c};
	struct vfm_pack_group g = {.first_pack = (int64_t)pl->g.n_packs,
		.first = (int64_t)pl->g.n_samples,
		.n_packs = 1,
		.n = (int32_t)n,
		.parts = parts};

	vfm_grow(&pl->g.samples, &pl->g.cap_samples, pl->g.n_samples + (size_t)n, sizeof(*pl->g.samples));
	for (int64_t i = b->first[bin]; i < b->first[bin + 1]; i++) {
		struct vfm_blend_sample s = pl->heap[b->item[i]].s;

		pl->g.samples[pl->g.n_samples++] = s;
		k.tokens += s.tokens;
		k.cost += vfm_pack_cost_of(&pl->o->cost, s.tokens);
	}
	vfm_grow(&pl->g.packs, &pl->g.cap_packs, pl->g.n_packs + 1, sizeof(*pl->g.packs));
	pl->g.packs[pl->g.n_packs++] = k;
	g.cost = k.cost / parts;
	vfm_pack_groups_add(&pl->g, &g);
}

/* Moves the samples of a pack to those that are kept for the next window. */
static void carry_bin(struct planner *pl, const struct vfm_bins *b, int64_t bin, size_t *n_kept)
{
	size_t n = (size_t)(b->first[bin + 1] - b->first[bin]);

	vfm_grow(&pl->kept, &pl->cap_kept, *n_kept + n, sizeof(*pl->kept));
	for (int64_t i = b->first[bin]; i < b->first[bin + 1]; i++) {
		pl->kept[*n_kept] = pl->heap[b->item[i]];
		pl->kept[(*n_kept)++].rounds++;
	}
}

static bool may_carry(const struct planner *pl, const struct vfm_bins *b, int64_t bin)
{
	for (int64_t i = b->first[bin]; i < b->first[bin + 1]; i++)
		if (pl->heap[b->item[i]].rounds >= MAX_ROUNDS)
			return false;
	return true;
}

/* Returns the tokens of a bin, and in *longest those of its longest sample. */
static int64_t bin_tokens(const struct planner *pl, const struct vfm_bins *b, int64_t bin, int32_t *longest)
{
	int64_t sum = 0;

	*longest = 0;
	for (int64_t i = b->first[bin]; i < b->first[bin + 1]; i++) {
		int32_t tokens = pl->tokens[b->item[i]];

		sum += tokens;
		*longest = tokens > *longest ? tokens : *longest;
	}
	return sum;
}

/* Divides the bins into packs and samples that are carried to the next window.  The samples of the last bins are
 * carried unless these are dense: few samples were left to choose from. */
static void take_bins(struct planner *pl, double tokens, bool flush)
{
	const struct vfm_bins *b = &pl->bins;
	double carried = flush || pl->o->one_each ? 0 : tokens / CARRIED, left = tokens;
	struct drawn_sample *swap = pl->heap;
	size_t n_kept = 0, cap = pl->cap_heap;

	for (int64_t i = 0; i < b->n_bins; i++) {
		int32_t longest;
		int64_t sum = bin_tokens(pl, b, i, &longest);
		int32_t parts = vfm_bin_parts(longest, pl->o->context), size = parts * pl->o->context;

		if (left <= carried && sum < size - size / DENSE && may_carry(pl, b, i))
			carry_bin(pl, b, i, &n_kept);
		else
			make_pack(pl, b, i, parts);
		left -= (double)sum;
	}
	pl->heap = pl->kept;
	pl->cap_heap = pl->cap_kept;
	pl->n_heap = pl->n_carried = n_kept;
	pl->kept = swap;
	pl->cap_kept = cap;
}

static void put_one_each(struct vfm_bins *b, int64_t n)
{
	vfm_bins_reserve(b, n);
	for (int64_t i = 0; i < n; i++) {
		b->item[i] = (uint32_t)i;
		b->first[++b->n_bins] = i + 1;
	}
}

/* Packs the heap, and forms steps of the packs. */
static int pack_heap(struct planner *pl, bool flush, bool end, struct vfm_err *err)
{
	size_t before = pl->g.n_ready;
	double tokens = 0;

	vfm_grow(&pl->tokens, &pl->cap_tokens, pl->n_heap, sizeof(*pl->tokens));
	for (size_t i = 0; i < pl->n_heap; i++) {
		pl->tokens[i] = pl->heap[i].s.tokens;
		tokens += pl->tokens[i];
	}
	if (pl->o->one_each)
		put_one_each(&pl->bins, (int64_t)pl->n_heap);
	else
		vfm_mbs_pack(&pl->mbs, &pl->bins, pl->tokens, (int64_t)pl->n_heap, (int64_t)pl->n_carried,
			flush && pl->n_windows >= LONG_PASS && !vfm_blend_is_steered(pl->blend));
	take_bins(pl, tokens, flush);
	vfm_pack_groups_join(&pl->g, end);
	pl->g.round++;
	pl->n_windows = flush ? 0 : pl->n_windows + 1;
	if (pl->p->n_packs + (int64_t)pl->g.n_ready > MAX_PACKS)
		return vfm_fail(err, VFM_EUSAGE, "a plan of more than 2^40 packs");
	return emit_ready(pl, pl->g.n_ready - before, end, err);
}

/* ---- the whole plan ---- */

/* The samples of all epochs. */
static int plan_epochs(struct planner *pl, struct vfm_err *err)
{
	bool in_tokens, more = true;
	double budget = vfm_blend_budget(pl->blend, pl->o->epochs, &in_tokens);

	while (more) {
		bool ends = draw_window(pl, &budget, in_tokens);

		more = budget > 0;
		TRY(pack_heap(pl, ends || !more, !more, err));
	}
	return 0;
}

/* Makes packs until there are `steps` steps.  Draws only a little more than they require: a plan takes some packs of
 * its last window, but sets have their shares and their passes in all of it. */
static int plan_steps(struct planner *pl, int64_t steps, struct vfm_err *err)
{
	while (pl->p->steps < steps) {
		int64_t want = (steps - pl->p->steps) * pl->o->batch - vfm_pack_groups_parts(&pl->g);
		double budget = (1.02 * (double)want + 2) * pl->o->context;
		bool ends = draw_window(pl, &budget, true);

		TRY(pack_heap(pl, ends, false, err));
		want = (steps - pl->p->steps) * (int64_t)pl->per_step;
		if ((int64_t)pl->g.n_ready >= want && pl->p->steps < steps) /* they wait for others of their cost */
			TRY(emit_ready(pl, 0, true, err));
	}
	return 0;
}

/* ---- plans whose mix changes ---- */

static double count_heap_tokens(const struct planner *pl)
{
	double tokens = 0;

	for (size_t i = 0; i < pl->n_heap; i++)
		tokens += pl->heap[i].s.tokens;
	return tokens;
}

static double count_made_parts(const struct planner *pl)
{
	return (double)(pl->p->steps * pl->o->batch + vfm_pack_groups_parts(&pl->g));
}

/* Draws all that is left of the sets with passes. */
static void draw_left(struct planner *pl)
{
	double tokens;

	while (vfm_blend_left(pl->blend, &tokens) > 0) {
		vfm_grow(&pl->heap, &pl->cap_heap, pl->n_heap + 1, sizeof(*pl->heap));
		pl->heap[pl->n_heap++] = (struct drawn_sample){.s = vfm_blend_next_left(pl->blend)};
	}
}

static int plan_window(struct planner *pl, struct vfm_steering *s, struct vfm_err *err)
{
	double made = count_made_parts(pl), tokens, samples;
	struct vfm_steered_window w = vfm_steering_begin(s, made, count_heap_tokens(pl));

	pl->pool = POOL_STEPS * pl->per_step + POOL_PACKS;
	if (w.parts / pl->g.parts < 4 * (double)pl->pool)
		pl->pool = (size_t)(w.parts / pl->g.parts / 4) + pl->per_step;
	draw_window(pl, &w.budget, !s->by_samples);
	if (w.takes_passes)
		draw_left(pl);
	tokens = count_heap_tokens(pl);
	samples = (double)pl->n_heap;
	if (pl->n_heap) {
		TRY(pack_heap(pl, w.flush, w.flush, err));
	} else {
		vfm_pack_groups_join(&pl->g, w.flush);
		TRY(emit_ready(pl, 0, w.flush, err));
	}
	vfm_steering_measure(
		s, count_made_parts(pl) - made, tokens - count_heap_tokens(pl), samples - (double)pl->n_heap);
	if (vfm_steering_passes(s, &w, count_made_parts(pl), count_heap_tokens(pl)))
		pl->n_first = pl->g.n_ready;
	return 0;
}

static int plan_steered(struct planner *pl, int64_t steps, struct vfm_err *err)
{
	struct vfm_steering s = {.blend = pl->blend,
		.batch = pl->o->batch,
		.total = (double)steps * pl->o->batch,
		.window = (double)pl->window,
		.by_samples = pl->o->one_each && !pl->o->cp,
		.tokens = pl->o->context};

	TRY(vfm_steering_init(&s, err));
	while (pl->p->steps < steps) {
		TRY(plan_window(pl, &s, err));
		if ((int64_t)pl->g.n_ready >= (steps - pl->p->steps) * (int64_t)pl->per_step && pl->p->steps < steps)
			TRY(emit_ready(pl, 0, true, err));
	}
	return vfm_blend_check_passes(pl->blend, pl->p->set_samples, err);
}

/* Drops the packs that make no complete step, or completes it. */
static int finish_last_step(struct planner *pl, struct vfm_err *err)
{
	int64_t left = vfm_pack_groups_parts(&pl->g);
	const struct vfm_packing_opts *o = pl->o;
	struct vfm_packing_opts one_more = *o;
	int rc;

	if (pl->o->drop_last || left == 0) {
		pl->p->dropped_packs = left;
		for (size_t i = 0; i < pl->g.n_ready; i++)
			pl->p->dropped_samples += pl->g.ready[i].n;
		return 0;
	}
	pl->p->filled_packs = pl->o->batch - left;
	one_more.steps = pl->p->steps + 1;
	one_more.balance_cost = pl->g.by_cost = false; /* all packs that are left are part of it */
	pl->o = &one_more;
	rc = plan_steps(pl, one_more.steps, err);
	pl->o = o;
	return rc;
}

static void measure_plan(struct planner *pl)
{
	struct vfm_packing *p = pl->p;
	const struct vfm_packing_opts *o = pl->o;

	p->fill = pl->tokens_taken / ((double)p->steps * o->batch * o->context);
	p->imbalance_tokens /= (double)p->steps;
	p->imbalance_cost /= (double)p->steps;
}

static void release_planner(struct planner *pl)
{
	free(pl->heap);
	free(pl->kept);
	free(pl->tokens);
	vfm_pack_groups_release(&pl->g);
	free(pl->sum_before);
	vfm_mbs_release(&pl->mbs);
	vfm_bins_release(&pl->bins);
}

int vfm_packing_make(struct vfm_packing *p, struct vfm_blend *blend, const struct vfm_packing_opts *o,
	int (*take)(void *ctx, const struct vfm_packing_pack *pack, struct vfm_err *err), void *ctx,
	struct vfm_err *err)
{
	struct planner pl = {.p = p,
		.blend = blend,
		.o = o,
		.take = take,
		.ctx = ctx,
		.window = o->window > 0 ? o->window : DEFAULT_WINDOW,
		.g = {.parts = o->cp ? o->cp : 1, .seed = o->seed, .by_cost = o->balance_cost}};
	size_t n_sets = (size_t)vfm_blend_n_sets(blend);
	int rc;

	*p = (struct vfm_packing){.set_samples = vfm_calloc(n_sets, sizeof(*p->set_samples)),
		.set_tokens = vfm_calloc(n_sets, sizeof(*p->set_tokens))};
	pl.per_step = (size_t)(o->batch / pl.g.parts);
	vfm_mbs_init(&pl.mbs, o->context, pl.g.parts);
	pl.pool = POOL_STEPS * pl.per_step + POOL_PACKS;
	if (vfm_blend_is_steered(blend)) {
		TRY_OUT(o->steps > 0
				? plan_steered(&pl, o->steps, err)
				: vfm_fail(err, VFM_EUSAGE,
					  "weights that change, and passes besides weights, need a number of steps"));
	} else if (o->steps > 0) {
		TRY_OUT(plan_steps(&pl, o->steps, err));
	} else {
		TRY_OUT(plan_epochs(&pl, err));
		TRY_OUT(finish_last_step(&pl, err));
	}
	if (!p->steps)
		rc = vfm_fail(err, VFM_EUSAGE, "the samples make %lld packs, less than one step of %d",
			(long long)p->dropped_packs, o->batch);
	else
		measure_plan(&pl);
out:
	release_planner(&pl);
	return rc;
}

void vfm_packing_release(struct vfm_packing *p)
{
	free(p->set_samples);
	free(p->set_tokens);
	*p = (struct vfm_packing){0};
}

/* ---- writing ---- */

struct plan_writer {
	struct vfm_plan_writer *w;
	const struct vfm_blend *blend;
	const struct vfm_blend_set *sets;
	struct vfm_plan_sample *samples;
	size_t cap;
};

static int write_pack(void *ctx, const struct vfm_packing_pack *in, struct vfm_err *err)
{
	struct plan_writer *pw = ctx;
	struct vfm_plan_pack out = {.step = in->step,
		.pack = in->pack,
		.cp = in->parts,
		.n_samples = in->n,
		.tokens = in->tokens,
		.cost = in->cost};

	vfm_grow(&pw->samples, &pw->cap, (size_t)in->n, sizeof(*pw->samples));
	for (int32_t i = 0; i < in->n; i++) {
		int64_t record;
		int32_t set = vfm_blend_find(pw->blend, in->samples[i].sample, &record);
		uint32_t shard = vfm_blend_shard(&pw->sets[set], (uint32_t)record);

		pw->samples[i] = (struct vfm_plan_sample){
			set, (int32_t)shard, record - pw->sets[set].shard_first[shard], in->samples[i].tokens};
	}
	out.samples = pw->samples;
	return vfm_plan_writer_pack(pw->w, &out, err);
}

int vfm_packing_write(struct vfm_packing *p, struct vfm_blend *blend, const struct vfm_packing_opts *o,
	const struct vfm_blend_set *sets, const struct vfm_plan_header *h, enum vfm_plan_format format, FILE *f,
	struct vfm_err *err)
{
	struct plan_writer pw = {.w = vfm_plan_writer_new(f, format, h, err), .blend = blend, .sets = sets};
	int rc;

	*p = (struct vfm_packing){0};
	if (!pw.w)
		return err ? err->code : VFM_EENV;
	rc = vfm_packing_make(p, blend, o, write_pack, &pw, err);
	free(pw.samples);
	if (rc < 0)
		vfm_plan_writer_abort(pw.w);
	else
		rc = vfm_plan_writer_end(pw.w, p->steps, err);
	return rc;
}
