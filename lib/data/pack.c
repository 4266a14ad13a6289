/* pack.c - the order of a run: windows of samples -> packs -> steps. */
#include "data/pack.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"

#define DEFAULT_WINDOW 65536
#define DENSE          0.98 /* fill at which a pack is final; others receive samples of the next window */
#define MAX_PACKS      ((int64_t)1 << 40)
#define SHUFFLE_PACKS  (1ull << 40) /* stream ids above those of the sets */

struct vfm_pack_cost vfm_pack_cost_default(void)
{
	return (struct vfm_pack_cost){.a = 1, .b = 1.0 / (7 * 1152)};
}

int vfm_pack_cost_load(const char *path, struct vfm_pack_cost *cost, struct vfm_err *err)
{
	static const char *const keys[] = {"v", "type", "a", "b", "c", "unit", "note", NULL};
	struct vfm_pack_cost c = {0};
	const char *type = "";
	json_t *o = vfm_json_load(path, 1 << 20, err);
	int rc;

	if (!o)
		return err ? err->code : VFM_EUSAGE;
	TRY_OUT(vfm_json_str(o, "", "type", true, &type, err));
	TRY_OUT(vfm_json_only_keys(o, "", keys, err));
	TRY_OUT(vfm_json_f64(o, "", "a", true, &c.a, err));
	TRY_OUT(vfm_json_f64(o, "", "b", true, &c.b, err));
	TRY_OUT(vfm_json_f64(o, "", "c", false, &c.c, err));
	if (strcmp(type, "vfm-cost"))
		rc = vfm_fail(err, VFM_EUSAGE, "type: expected 'vfm-cost', got '%.40s'", type);
	else if (!(c.a >= 0 && c.b >= 0 && c.c >= 0 && c.a + c.b > 0))
		rc = vfm_fail(err, VFM_EUSAGE, "a, b and c must be >= 0, and not both a and b 0");
	else
		*cost = c;
out:
	json_decref(o);
	if (rc < 0)
		vfm_err_context(err, "'%s'", path);
	return rc;
}

/* ---- planning ---- */

struct planner {
	struct vfm_plan *p;
	struct vfm_blend *blend;
	const struct vfm_plan_opts *o;
	int64_t window, want_packs; /* want_packs 0: until the samples are drawn */
	uint32_t *heap;             /* samples to be packed: those left over, then new ones */
	size_t n_heap, cap_heap;
	struct vfm_plan_pack *ready; /* packs not yet assigned to steps (balance_cost) */
	size_t n_ready, cap_ready;
	uint64_t round;
};

/* Draws until the window is full or a pass ends; returns whether one did.  budget: tokens, or samples, that may
 * still be drawn. */
static bool draw_window(struct planner *pl, double *budget, bool in_tokens)
{
	bool ends = false;

	while (!ends && (int64_t)pl->n_heap<pl->window && * budget> 0) {
		uint32_t s = vfm_blend_next(pl->blend, &ends);

		vfm_grow(&pl->heap, &pl->cap_heap, pl->n_heap + 1, sizeof(*pl->heap));
		pl->heap[pl->n_heap++] = s;
		*budget -= in_tokens ? vfm_blend_tokens(pl->blend, s) : 1;
	}
	return ends || *budget <= 0;
}

static int by_cost(const void *a, const void *b)
{
	const struct vfm_plan_pack *x = a, *y = b;

	if (x->cost != y->cost)
		return x->cost < y->cost ? -1 : 1;
	return (x->first > y->first) - (x->first < y->first);
}

static void shuffle_packs(struct planner *pl, struct vfm_plan_pack *a, size_t n, uint64_t id)
{
	uint32_t *order = vfm_calloc(n + 1, sizeof(*order));
	struct vfm_plan_pack *copy = vfm_calloc(n + 1, sizeof(*copy));

	for (size_t i = 0; i < n; i++)
		order[i] = (uint32_t)i;
	vfm_shuffle(order, (int64_t)n, pl->o->seed, pl->round, id);
	for (size_t i = 0; i < n; i++)
		copy[i] = a[i];
	for (size_t i = 0; i < n; i++)
		a[i] = copy[order[i]];
	free(order);
	free(copy);
}

static void emit(struct planner *pl, const struct vfm_plan_pack *a, size_t n)
{
	struct vfm_plan *p = pl->p;

	if (n == 0)
		return;
	vfm_grow(&p->packs, &p->cap_packs, (size_t)p->n_packs + n, sizeof(*p->packs));
	memcpy(p->packs + p->n_packs, a, n * sizeof(*a));
	p->n_packs += (int64_t)n;
}

/* Forms complete steps of the ready packs; with balance_cost, of packs with similar cost.  Chooses the packs for later
 * steps at random, not by cost. */
static void emit_ready(struct planner *pl, bool all)
{
	size_t batch = (size_t)pl->o->batch, n = pl->n_ready, steps;
	struct vfm_plan_pack *sorted;
	uint32_t *order;

	if (n == 0)
		return;
	shuffle_packs(pl, pl->ready, n, SHUFFLE_PACKS);
	if (!pl->o->balance_cost || batch == 1) {
		emit(pl, pl->ready, n);
		pl->n_ready = 0;
		return;
	}
	steps = n / batch;
	sorted = vfm_calloc(n + 1, sizeof(*sorted));
	order = vfm_calloc(steps + 1, sizeof(*order));
	memcpy(sorted, pl->ready, n * sizeof(*sorted));
	qsort(sorted, steps * batch, sizeof(*sorted), by_cost);
	for (size_t i = 0; i < steps; i++)
		order[i] = (uint32_t)i;
	vfm_shuffle(order, (int64_t)steps, pl->o->seed, pl->round, SHUFFLE_PACKS + 1);
	for (size_t i = 0; i < steps; i++)
		emit(pl, sorted + order[i] * batch, batch);
	pl->n_ready = n - steps * batch;
	memmove(pl->ready, pl->ready + steps * batch, pl->n_ready * sizeof(*pl->ready));
	if (all) {
		emit(pl, pl->ready, pl->n_ready);
		pl->n_ready = 0;
	}
	free(sorted);
	free(order);
}

static void make_pack(struct planner *pl, const struct vfm_bins *b, int64_t bin, int32_t tokens)
{
	struct vfm_plan *p = pl->p;
	int64_t n = b->first[bin + 1] - b->first[bin];
	struct vfm_plan_pack k = {.first = p->n_samples, .n = (int32_t)n, .tokens = tokens, .cost = pl->o->cost.c};

	vfm_grow(&p->samples, &p->cap_samples, (size_t)(p->n_samples + n), sizeof(*p->samples));
	for (int64_t i = 0; i < n; i++) {
		uint32_t s = pl->heap[b->item[b->first[bin] + i]];
		double t = vfm_blend_tokens(pl->blend, s);

		p->samples[p->n_samples++] = s;
		k.cost += pl->o->cost.a * t + pl->o->cost.b * t * t;
	}
	vfm_grow(&pl->ready, &pl->cap_ready, pl->n_ready + 1, sizeof(*pl->ready));
	pl->ready[pl->n_ready++] = k;
}

static int32_t bin_tokens(const struct vfm_bins *b, int64_t bin, const int32_t *tokens)
{
	int32_t sum = 0;

	for (int64_t i = b->first[bin]; i < b->first[bin + 1]; i++)
		sum += tokens[b->item[i]];
	return sum;
}

/* Packs the heap.  Packs that are not dense go back to the heap, unless `flush`, but at most a quarter of it, so
 * that every round makes progress. */
static int pack_heap(struct planner *pl, bool flush, struct vfm_err *err)
{
	int32_t *tokens = vfm_calloc(pl->n_heap, sizeof(*tokens));
	uint32_t *left = vfm_calloc(pl->n_heap, sizeof(*left));
	size_t n_left = 0;
	struct vfm_bins b = {0};
	int rc;

	for (size_t i = 0; i < pl->n_heap; i++)
		tokens[i] = vfm_blend_tokens(pl->blend, pl->heap[i]);
	TRY_OUT(vfm_bins_pack(&b, pl->o->algo, tokens, (int64_t)pl->n_heap, pl->o->context, err));
	for (int64_t i = b.n_bins - 1; i >= 0; i--) { /* from the end, where the less dense bins are */
		int32_t sum = bin_tokens(&b, i, tokens);
		size_t n = (size_t)(b.first[i + 1] - b.first[i]);

		if (flush || pl->o->algo == VFM_PACK_NONE || sum >= DENSE * pl->o->context ||
			n_left + n > pl->n_heap / 4) {
			make_pack(pl, &b, i, sum);
			continue;
		}
		for (size_t j = 0; j < n; j++)
			left[n_left++] = pl->heap[b.item[b.first[i] + (int64_t)j]];
	}
	if (n_left)
		memcpy(pl->heap, left, n_left * sizeof(*left));
	pl->n_heap = n_left;
	pl->round++;
	if (pl->p->n_packs + (int64_t)pl->n_ready > MAX_PACKS)
		rc = vfm_fail(err, VFM_EUSAGE, "a plan of more than 2^40 packs");
out:
	vfm_bins_release(&b);
	free(tokens);
	free(left);
	return rc;
}

/* The samples of all epochs. */
static int run_epochs(struct planner *pl, struct vfm_err *err)
{
	bool weighted = vfm_blend_weighted(pl->blend), more = true;
	double per_epoch = (double)(weighted ? vfm_blend_total_tokens(pl->blend) : vfm_blend_n(pl->blend));
	double budget = weighted ? per_epoch * pl->o->epochs : nearbyint(per_epoch * pl->o->epochs);

	while (more) {
		bool flush = draw_window(pl, &budget, weighted);

		more = budget > 0;
		TRY(pack_heap(pl, flush, err));
		emit_ready(pl, !more);
	}
	return 0;
}

/* Until there are so many packs. */
static int run_packs(struct planner *pl, int64_t want, struct vfm_err *err)
{
	while (pl->p->n_packs < want) {
		double budget = INFINITY;
		bool flush = draw_window(pl, &budget, false);

		TRY(pack_heap(pl, flush, err));
		emit_ready(pl, pl->p->n_packs + (int64_t)pl->n_ready >= want);
	}
	return 0;
}

static int64_t samples_of(const struct vfm_plan *p, int64_t from, int64_t to)
{
	int64_t n = 0;

	for (int64_t i = from; i < to; i++)
		n += p->packs[i].n;
	return n;
}

static void measure_plan(struct vfm_plan *p, const struct vfm_plan_opts *o)
{
	double tokens = 0;

	for (int64_t s = 0; s < p->steps; s++) {
		double sum_t = 0, max_t = 0, sum_c = 0, max_c = 0;

		for (int64_t i = s * o->batch; i < (s + 1) * o->batch; i++) {
			const struct vfm_plan_pack *k = &p->packs[i];

			sum_t += k->tokens;
			sum_c += k->cost;
			max_t = k->tokens > max_t ? k->tokens : max_t;
			max_c = k->cost > max_c ? k->cost : max_c;
		}
		tokens += sum_t;
		p->imbalance_tokens += max_t * o->batch / sum_t / (double)p->steps;
		p->imbalance_cost += max_c * o->batch / sum_c / (double)p->steps;
	}
	p->fill = tokens / ((double)p->n_packs * o->context);
	p->n_samples = samples_of(p, 0, p->n_packs);
}

int vfm_plan_make(struct vfm_plan *p, struct vfm_blend *blend, const struct vfm_plan_opts *o, struct vfm_err *err)
{
	struct planner pl = {.p = p, .blend = blend, .o = o, .window = o->window > 0 ? o->window : DEFAULT_WINDOW};
	int64_t made, want;
	int rc;

	*p = (struct vfm_plan){0};
	if (o->steps > 0) {
		want = o->steps * o->batch;
		TRY_OUT(run_packs(&pl, want, err));
	} else {
		TRY_OUT(run_epochs(&pl, err));
		made = p->n_packs;
		want = made / o->batch * o->batch;
		if (o->drop_last) {
			p->dropped_packs = made - want;
			p->dropped_samples = samples_of(p, want, made);
		} else if (want < made) {
			want += o->batch;
			p->filled_packs = want - made;
			TRY_OUT(run_packs(&pl, want, err));
		}
	}
	p->n_packs = want;
	p->steps = want / o->batch;
	if (!p->steps)
		rc = vfm_fail(err, VFM_EUSAGE, "the samples make %lld packs, less than one step of %d",
			(long long)p->dropped_packs, o->batch);
	else
		measure_plan(p, o);
out:
	free(pl.heap);
	free(pl.ready);
	if (rc < 0)
		vfm_plan_release(p);
	return rc;
}

void vfm_plan_release(struct vfm_plan *p)
{
	free(p->packs);
	free(p->samples);
	*p = (struct vfm_plan){0};
}

/* ---- writing ---- */

static int write_pack(struct vfm_manifest_writer *w, const struct vfm_plan *p, int64_t k, int32_t batch,
	const struct vfm_blend *blend, const struct vfm_blend_set *sets, struct vfm_manifest_sample *buf,
	struct vfm_err *err)
{
	const struct vfm_plan_pack *in = &p->packs[k];
	struct vfm_manifest_pack out = {.step = k / batch,
		.pack = (int32_t)(k % batch),
		.n_samples = in->n,
		.tokens = in->tokens,
		.cost = in->cost,
		.samples = buf};

	for (int32_t i = 0; i < in->n; i++) {
		struct vfm_record r;
		int64_t at;
		int32_t set = vfm_blend_find(blend, p->samples[in->first + i], &at);

		TRY(vfm_index_at(sets[set].ix, sets[set].record[at], &r, err));
		buf[i] = (struct vfm_manifest_sample){set, (int32_t)r.shard, r.index, sets[set].tokens[at]};
	}
	return vfm_manifest_writer_pack(w, &out, err);
}

int vfm_plan_write(const struct vfm_plan *p, const struct vfm_blend *blend, const struct vfm_blend_set *sets,
	const struct vfm_manifest_header *h, enum vfm_manifest_format format, FILE *f, struct vfm_err *err)
{
	struct vfm_manifest_writer *w = vfm_manifest_writer_new(f, format, h, p->n_samples, err);
	struct vfm_manifest_sample *buf = NULL;
	size_t cap = 0;
	int rc = 0;

	if (!w)
		return err ? err->code : VFM_EENV;
	for (int64_t k = 0; rc >= 0 && k < p->n_packs; k++) {
		vfm_grow(&buf, &cap, (size_t)p->packs[k].n, sizeof(*buf));
		rc = write_pack(w, p, k, h->batch, blend, sets, buf, err);
	}
	free(buf);
	if (rc < 0) {
		struct vfm_err ignored; /* end only frees then: fewer packs than promised */

		vfm_manifest_writer_end(w, &ignored);
		return rc;
	}
	return vfm_manifest_writer_end(w, err);
}
