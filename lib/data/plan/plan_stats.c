/* plan_stats.c - reads a plan once and counts tokens, fill, imbalance and samples by set. */
#include "data/plan/plan_stats.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

static void add_pack_stats(struct vfm_plan_stats *s, const struct vfm_plan_pack *p, int32_t context)
{
	double fill = (double)p->tokens / ((double)p->cp * context);

	for (int32_t i = 0; i < p->n_samples; i++) {
		struct vfm_plan_set_stats *set = &s->sets[p->samples[i].set];

		set->samples++;
		set->tokens += p->samples[i].tokens;
	}
	if (s->packs == 0 || fill < s->fill_least)
		s->fill_least = fill;
	if (s->packs == 0 || p->n_samples < s->per_pack_least)
		s->per_pack_least = p->n_samples;
	if (p->n_samples > s->per_pack_most)
		s->per_pack_most = p->n_samples;
	s->per_pack[31 - __builtin_clz((unsigned)p->n_samples)]++;
	s->packs++;
	s->by_cp[31 - __builtin_clz((unsigned)p->cp)]++;
	s->samples += p->n_samples;
	s->tokens += p->tokens;
	s->cost += p->cost;
}

static void add_imbalance(struct vfm_plan_imbalance *x, double most, double sum, int32_t packs)
{
	double ratio = sum > 0 ? most * packs / sum : 1;

	x->mean += ratio; /* a sum, until the end */
	x->most = ratio > x->most ? ratio : x->most;
}

static void add_step_stats(struct vfm_plan_stats *s, const struct vfm_plan_step *step, int32_t context)
{
	double tokens = 0, cost = 0, most_tokens = 0, most_cost = 0;

	for (int32_t i = 0; i < step->n_packs; i++) {
		const struct vfm_plan_pack *p = &step->packs[i];

		if (p->cp == 0)
			continue;
		add_pack_stats(s, p, context);
		tokens += (double)p->tokens;
		cost += p->cost;
		most_tokens = fmax(most_tokens, (double)p->tokens / p->cp);
		most_cost = fmax(most_cost, p->cost / p->cp);
	}
	add_imbalance(&s->by_tokens, most_tokens, tokens, step->n_packs);
	add_imbalance(&s->by_cost, most_cost, cost, step->n_packs);
}

/* Sets share [n_sets] to the mean shares that the plan requests of these steps. */
static void find_requested(const struct vfm_plan_header *h, int64_t from, int64_t end, double *share)
{
	struct vfm_mix_weights *w = vfm_calloc((size_t)h->n_sets, sizeof(*w));
	double of_passes = 0;

	for (int32_t i = 0; i < h->n_sets; i++) {
		w[i] = h->sets[i].schedule;
		of_passes += h->sets[i].passes > 0 ? h->sets[i].weight : 0;
	}
	vfm_mix_mean(w, h->n_sets, (double)from, (double)end, share);
	for (int32_t i = 0; i < h->n_sets; i++)
		share[i] = h->sets[i].passes > 0 ? h->sets[i].weight : share[i] * fmax(0, 1 - of_passes);
	free(w);
}

static void init_ranges(struct vfm_plan_stats *s, const struct vfm_plan_header *h)
{
	for (int32_t i = 0; i < h->n_sets; i++)
		if (h->sets[i].schedule.n)
			s->n_ranges = h->steps < VFM_PLAN_RANGES ? (int32_t)h->steps : VFM_PLAN_RANGES;
	for (int32_t k = 0; k < s->n_ranges; k++) {
		struct vfm_plan_range *r = &s->ranges[k];

		r->from = h->steps / s->n_ranges * k + h->steps % s->n_ranges * k / s->n_ranges;
		r->end = h->steps / s->n_ranges * (k + 1) + h->steps % s->n_ranges * (k + 1) / s->n_ranges;
		r->set_tokens = vfm_calloc((size_t)h->n_sets, sizeof(*r->set_tokens));
		r->requested = vfm_calloc((size_t)h->n_sets, sizeof(*r->requested));
		find_requested(h, r->from, r->end, r->requested);
	}
}

static void add_to_range(struct vfm_plan_range *r, const struct vfm_plan_step *step)
{
	r->tokens += step->tokens;
	for (int32_t i = 0; i < step->n_packs; i++)
		for (int32_t k = 0; k < step->packs[i].n_samples; k++)
			r->set_tokens[step->packs[i].samples[k].set] += step->packs[i].samples[k].tokens;
}

int vfm_plan_stats_read(struct vfm_plan_stats *s, const struct vfm_plan *m, struct vfm_err *err)
{
	const struct vfm_plan_header *h = vfm_plan_header(m);
	struct vfm_plan_step step = {0};
	int32_t range = 0;
	int rc = 0;

	*s = (struct vfm_plan_stats){.sets = vfm_calloc((size_t)h->n_sets, sizeof(*s->sets))};
	init_ranges(s, h);
	for (int64_t k = 0; k < h->steps && rc == 0; k++) {
		rc = vfm_plan_step(m, k, &step, err);
		if (rc < 0)
			break;
		add_step_stats(s, &step, h->context);
		while (range < s->n_ranges && k >= s->ranges[range].end)
			range++;
		if (range < s->n_ranges)
			add_to_range(&s->ranges[range], &step);
	}
	vfm_plan_step_release(&step);
	s->by_tokens.mean /= (double)h->steps;
	s->by_cost.mean /= (double)h->steps;
	s->fill = (double)s->tokens / ((double)h->steps * h->batch * h->context);
	return rc;
}

void vfm_plan_stats_release(struct vfm_plan_stats *s)
{
	for (int32_t k = 0; k < s->n_ranges; k++) {
		free(s->ranges[k].set_tokens);
		free(s->ranges[k].requested);
	}
	free(s->sets);
	*s = (struct vfm_plan_stats){0};
}
