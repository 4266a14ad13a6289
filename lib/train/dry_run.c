#include "train/dry_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/manifest.h"
#include "spec/linears.h"
#include "train/bench.h"
#include "train/memory_chart.h"
#include "train/plan.h"
#include "train/simulate.h"
#include "train/synthetic.h"

/* ---- the packs of a rank ---- */

/* The packs of the dp rank with the most cost in a step. */
struct rank_packs {
	struct vfm_pack *v;
	int64_t n;
	double tokens, flops; /* of the whole step */
};

/* Samples count with the most rows of text. */
static struct vfm_pack_sums sums_of(const struct vfm_config *c, const struct vfm_manifest_pack *p)
{
	struct vfm_pack_sums sums = {0};

	for (int32_t i = 0; i < p->n_samples; i++) {
		int32_t grid[3];

		vfm_bench_grid(p->samples[i].tokens, grid);
		vfm_pack_sums_add(&sums, grid, vfm_model_text_rows(&c->model, c->model.text_len));
	}
	return sums;
}

static int make_shapes(
	struct vfm_pack *out, const struct vfm_config *c, const struct vfm_manifest_pack *p, struct vfm_err *err)
{
	struct vfm_synthetic *s = vfm_calloc((size_t)p->n_samples + 1, sizeof(*s));
	int rc;

	for (int32_t i = 0; i < p->n_samples; i++) {
		s[i] = (struct vfm_synthetic){.text_len = (int32_t)c->model.text_len, .id = (uint64_t)i + 1};
		vfm_bench_grid(p->samples[i].tokens, s[i].grid);
	}
	rc = vfm_synthetic_shapes(out, s, p->n_samples, &c->model, err);
	free(s);
	return rc;
}

/* Returns the largest cost of a dp rank in a step; *rank: which. */
static double cost_of_step(const struct vfm_manifest_step *s, int64_t dp, int64_t *rank)
{
	double most = -1;

	for (int64_t r = 0; r < dp; r++) {
		double cost = 0;

		for (int32_t i = 0; i < s->n_packs; i++)
			cost += s->packs[i].pack % dp == r ? s->packs[i].cost : 0;
		if (cost > most) {
			most = cost;
			*rank = r;
		}
	}
	return most;
}

static int make_rank_packs(struct rank_packs *r, const struct vfm_config *c, const struct vfm_manifest_step *s,
	int64_t dp, struct vfm_err *err)
{
	int64_t rank = 0;

	cost_of_step(s, dp, &rank);
	*r = (struct rank_packs){.v = vfm_calloc((size_t)s->n_packs, sizeof(*r->v))};
	for (int32_t i = 0; i < s->n_packs; i++) {
		struct vfm_pack_sums sums = sums_of(c, &s->packs[i]);

		r->flops += vfm_model_train_flops(&c->model, &c->tuning, &sums);
		r->tokens += (double)s->packs[i].tokens;
		if (s->packs[i].pack % dp == rank)
			TRY(make_shapes(&r->v[r->n++], c, &s->packs[i], err));
	}
	for (int64_t i = 0; i < r->n; i++)
		r->v[i].step_tokens = (int64_t)r->tokens;
	return 0;
}

static void release_rank_packs(struct rank_packs *r)
{
	for (int64_t i = 0; i < r->n; i++)
		vfm_pack_release(&r->v[i]);
	free(r->v);
	*r = (struct rank_packs){0};
}

/* ---- a simulated step ---- */

struct dry_step {
	const struct vfm_dry_run_opts *o;
	const struct rank_packs *packs;
	struct vfm_dry_run *out;
	struct vfm_pack_sums largest; /* of the plan */
	bool traced;                  /* a rank has written to the trace; ranks end in any order */
};

/* When a launch has begun to work, or to wait for other ranks. */
static double start_of(const struct vfm_sim_launch *l)
{
	return l->begin[VFM_MID] + (double)l->gap[VFM_MID];
}

/* A process of the trace is a rank, a thread a stream; times are microseconds from the begin of the step. */
static void trace_rank(struct vfm_context *x, struct dry_step *d, double begin)
{
	FILE *f = d->o->trace;
	int rank = x->mesh.rank, streams = 0;
	const struct vfm_sim_launch *l;
	size_t n;

	l = vfm_sim_launches(x->device.dev, &n);
	fprintf(f, "%s{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"rank %d, stage %d\"}}",
		d->traced ? ",\n" : "[\n", rank, rank, x->mesh.coord[VFM_AX_PP]);
	d->traced = true;
	for (size_t i = 0; i < n; i++) {
		double wait = (double)l[i].wait[VFM_MID], at = start_of(&l[i]) - begin;

		streams = l[i].stream > streams ? l[i].stream : streams;
		fprintf(f,
			",\n{\"ph\":\"X\",\"name\":\"%s\",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%."
			"3f,"
			"\"args\":{\"shape\":\"%s\",\"gflop\":%.3f,\"mb\":%.3f,\"waits_us\":%.3f}}",
			l[i].op, vfm_sim_class_name((enum vfm_sim_class)l[i].class), rank, l[i].stream, at * 1e6,
			(wait + (double)l[i].work[VFM_MID]) * 1e6, l[i].shape, l[i].flops / 1e9, l[i].bytes / 1e6,
			wait * 1e6);
	}
	for (int s = 0; s <= streams; s++)
		fprintf(f,
			",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s "
			"%d\"}}",
			rank, s, s ? "stream" : "compute", s);
}

/* Adds [from, to) in columns to one kind of a lane. */
static void add_busy(float *lane, int kind, double from, double to)
{
	from = fmax(from, 0);
	to = fmin(to, VFM_TIMELINE_COLUMNS);
	for (int i = (int)from; i < to && i < VFM_TIMELINE_COLUMNS; i++)
		lane[i * (VFM_SIM_CLASSES + 1) + kind] += (float)(fmin(to, i + 1) - fmax(from, i));
}

static void fill_timeline(
	struct vfm_dry_run_rank *r, const struct vfm_sim_launch *l, size_t n, const struct vfm_bench_predicted *p)
{
	const size_t lane = VFM_TIMELINE_COLUMNS * (size_t)(VFM_SIM_CLASSES + 1);
	double scale = VFM_TIMELINE_COLUMNS / p->s[VFM_MID];

	for (size_t i = 0; i < n; i++)
		r->streams = l[i].stream + 1 > r->streams ? l[i].stream + 1 : r->streams;
	r->busy = vfm_calloc((size_t)r->streams * lane + 1, sizeof(*r->busy));
	for (size_t i = 0; i < n; i++) {
		double begin = start_of(&l[i]) - p->begin[VFM_MID];
		double work = begin + (double)l[i].wait[VFM_MID], end = work + (double)l[i].work[VFM_MID];
		float *to = r->busy + (size_t)l[i].stream * lane;

		add_busy(to, VFM_SIM_CLASSES, begin * scale, work * scale);
		add_busy(to, l[i].class, work * scale, end * scale);
	}
}

static void release_rank(struct vfm_dry_run_rank *r)
{
	vfm_sim_memory_release(&r->memory);
	free(r->busy);
	*r = (struct vfm_dry_run_rank){0};
}

static void note_rank(struct vfm_context *x, struct dry_step *d, const struct vfm_bench_result *r,
	const struct vfm_bench_predicted *p)
{
	struct vfm_dry_run *out = d->out;
	struct vfm_dry_run_rank *rank = &out->rank[x->sim->rep];
	const struct vfm_sim_launch *l;
	size_t n;

	out->n = x->sim->job->n_reps;
	release_rank(rank); /* of a simulation that ran out of memory */
	*rank = (struct vfm_dry_run_rank){.rank = x->mesh.rank,
		.stage = x->mesh.coord[VFM_AX_PP],
		.stands_for = x->sim->job->stands_for[x->sim->rep],
		.mem_peak = x->device.dev->mem_peak,
		.mem_beside = vfm_sim_held(x->device.dev).beside};
	l = vfm_sim_launches(x->device.dev, &n);
	rank->launches = (int64_t)n;
	for (size_t i = 0; i < n; i++)
		rank->class_s[l[i].class] += (double)l[i].work[VFM_MID];
	if (d->o->timeline)
		fill_timeline(rank, l, n, p);
	if (d->o->memory || d->o->trace)
		vfm_sim_memory(x->device.dev, p->begin[VFM_MID], &rank->memory);
	if (d->o->trace)
		vfm_memory_trace(d->o->trace, &rank->memory, rank->rank);
	rank->memory_s = p->s[VFM_MID];
	if (x->mesh.rank == 0) {
		out->comm_s = r->comm_s;
		out->bubble_s = r->bubble_s;
		out->copy_s = r->copy_s;
	}
}

static int step_on_rank(struct vfm_context *x, void *ctx, struct vfm_err *err)
{
	struct dry_step *d = ctx;
	struct vfm_bench_predicted predicted;
	struct vfm_bench_step b;
	struct vfm_bench_result r;

	TRY(vfm_context_open(x, d->o->config, err));
	if (d->o->memory || d->o->trace)
		vfm_sim_record_memory(x->device.dev);
	b = (struct vfm_bench_step){.packs = d->packs->n * x->mesh.size[VFM_AX_DP]};
	vfm_bench_predict(&b, d->o->warmup ? d->o->warmup : 1, &predicted);
	TRY(vfm_bench_run_packs(x, d->o->config, &b, d->packs->v, d->packs->n, &d->largest, &r, err));
	if (d->o->trace)
		trace_rank(x, d, predicted.begin[VFM_MID]);
	note_rank(x, d, &r, &predicted);
	if (x->mesh.rank == 0)
		memcpy(d->out->s, predicted.s, sizeof(d->out->s));
	return 0;
}

static int simulate_packs(const struct vfm_dry_run_opts *o, const struct rank_packs *packs,
	const struct vfm_pack_sums *largest, struct vfm_dry_run *out, struct vfm_err *err)
{
	struct vfm_simulation s = {.config = o->config, .machine = o->machine, .ranks = o->ranks, .retry = true};
	struct dry_step d = {.o = o, .packs = packs, .out = out, .largest = *largest};
	struct vfm_simulated how;

	out->rank = vfm_calloc((size_t)o->ranks, sizeof(*out->rank));
	TRY(vfm_simulate(&s, step_on_rank, &d, &how, err));
	out->fits = !how.full;
	out->flops = packs->flops;
	out->tokens = packs->tokens;
	return 0;
}

/* ---- the steps of a plan ---- */

struct plan_costs {
	double *cost; /* [n] of the dp rank with the most */
	int64_t n, largest_step;
	struct vfm_pack_sums largest;
};

/* Returns the step with as many below it as above, of at most STEPS_SAMPLED. */
static int64_t find_median(const double *cost, int64_t n)
{
	int64_t best = 0, least = n;

	for (int64_t i = 0; i < n; i++) {
		int64_t below = 0, away;

		for (int64_t k = 0; k < n; k++)
			below += cost[k] < cost[i] || (cost[k] <= cost[i] && k < i);
		away = llabs(below - n / 2);
		if (away < least) {
			least = away;
			best = i;
		}
	}
	return best;
}

enum { STEPS_SAMPLED = 1000 };

/* Reads at most STEPS_SAMPLED steps of the first n, at equal distances. */
static int read_costs(struct plan_costs *p, const struct vfm_manifest *m, const struct vfm_config *c, int64_t n,
	int64_t dp, struct vfm_err *err)
{
	struct vfm_manifest_step s = {0};
	int64_t most = -1, rank;
	int rc = 0;

	p->n = n < STEPS_SAMPLED ? n : STEPS_SAMPLED;
	p->cost = vfm_calloc((size_t)p->n, sizeof(*p->cost));
	for (int64_t i = 0; i < p->n; i++) {
		int64_t step = i * n / p->n;

		TRY_OUT(vfm_manifest_step(m, step, &s, err));
		p->cost[i] = cost_of_step(&s, dp, &rank);
		for (int32_t k = 0; k < s.n_packs; k++) {
			if (s.packs[k].tokens <= most)
				continue;
			most = s.packs[k].tokens;
			p->largest_step = step;
			p->largest = sums_of(c, &s.packs[k]);
		}
	}
out:
	vfm_manifest_step_release(&s);
	return rc;
}

static int simulate_plan_step(const struct vfm_dry_run_opts *o, const struct vfm_manifest *m, int64_t step, int64_t dp,
	const struct plan_costs *p, struct vfm_dry_run *out, struct vfm_err *err)
{
	struct vfm_manifest_step s = {0};
	struct rank_packs packs = {0};
	int rc;

	TRY_OUT(vfm_manifest_step(m, step, &s, err));
	TRY_OUT(make_rank_packs(&packs, o->config, &s, dp, err));
	TRY_OUT(simulate_packs(o, &packs, &p->largest, out, err));
	out->step = step;
	for (int i = 0; i < out->n; i++)
		out->rank[i].memory_step = step;
out:
	release_rank_packs(&packs);
	vfm_manifest_step_release(&s);
	return rc;
}

static void take_larger_memory(struct vfm_dry_run_rank *r, struct vfm_dry_run_rank *other)
{
	struct vfm_sim_memory own = r->memory;

	if (other->mem_peak <= r->mem_peak)
		return;
	r->mem_peak = other->mem_peak;
	r->mem_beside = other->mem_beside;
	r->memory_s = other->memory_s;
	r->memory_step = other->memory_step;
	r->memory = other->memory;
	other->memory = own;
}

/* The memory is that of the step with the largest pack, the time that of the median step. */
static int run_plan(
	const struct vfm_dry_run_opts *o, const struct vfm_parallel *p, struct vfm_dry_run *out, struct vfm_err *err)
{
	struct vfm_manifest *m = vfm_manifest_open(o->plan, err);
	const struct vfm_manifest_header *h = m ? vfm_manifest_header(m) : NULL;
	struct plan_costs costs = {0};
	struct vfm_dry_run_opts untraced = *o;
	struct vfm_dry_run large = {0};
	int64_t n, median;
	double sum = 0;
	int rc;

	if (!m)
		return err->code;
	untraced.trace = NULL;
	untraced.timeline = false;
	TRY_OUT(vfm_plan_check(h, o->plan, o->config, p, &n, err));
	if (h->cp) {
		rc = vfm_fail(err, VFM_EUSAGE, "%s: --dry-run knows no packs with a cp of their own (vfm-pack --cp)",
			o->plan);
		goto out;
	}
	TRY_OUT(read_costs(&costs, m, o->config, n, p->dp, err));
	median = find_median(costs.cost, costs.n);
	TRY_OUT(simulate_plan_step(&untraced, m, costs.largest_step, p->dp, &costs, &large, err));
	TRY_OUT(simulate_plan_step(o, m, median * n / costs.n, p->dp, &costs, out, err));
	for (int64_t i = 0; i < costs.n; i++)
		sum += costs.cost[i];
	out->steps = n;
	out->total_s = out->s[VFM_MID] * sum / costs.cost[median] / (double)costs.n * (double)n;
	out->fits = out->fits && large.fits;
	for (int i = 0; i < out->n; i++)
		take_larger_memory(&out->rank[i], &large.rank[i]);
out:
	free(costs.cost);
	vfm_dry_run_release(&large);
	vfm_manifest_close(m);
	return rc;
}

/* One sample of `context` tokens a pack. */
static int run_equal_packs(
	const struct vfm_dry_run_opts *o, const struct vfm_parallel *p, struct vfm_dry_run *out, struct vfm_err *err)
{
	struct vfm_manifest_sample sample = {.tokens = (int32_t)o->context};
	struct vfm_manifest_step s = {.n_packs = (int32_t)o->packs};
	struct plan_costs costs = {0};
	struct rank_packs packs = {0};
	int rc;

	TRY(vfm_bench_divides(o->packs, p->dp, err));
	s.packs = vfm_calloc((size_t)o->packs, sizeof(*s.packs));
	for (int32_t i = 0; i < s.n_packs; i++)
		s.packs[i] = (struct vfm_manifest_pack){
			.pack = i, .n_samples = 1, .tokens = o->context, .cost = 1, .samples = &sample};
	costs.largest = sums_of(o->config, &s.packs[0]);
	TRY_OUT(make_rank_packs(&packs, o->config, &s, p->dp, err));
	TRY_OUT(simulate_packs(o, &packs, &costs.largest, out, err));
out:
	release_rank_packs(&packs);
	free(s.packs);
	return rc;
}

int vfm_dry_run(const struct vfm_dry_run_opts *o, struct vfm_dry_run *out, struct vfm_err *err)
{
	struct vfm_parallel p = o->config->parallel;

	*out = (struct vfm_dry_run){0};
	TRY(vfm_parallel_check(&p, &o->config->model, o->ranks, err));
	TRY(o->plan ? run_plan(o, &p, out, err) : run_equal_packs(o, &p, out, err));
	for (int i = 0; i < out->n; i++) {
		out->launches += out->rank[i].launches;
		if (out->rank[i].mem_peak + out->rank[i].mem_beside > out->mem_peak + out->mem_beside) {
			out->mem_peak = out->rank[i].mem_peak;
			out->mem_beside = out->rank[i].mem_beside;
		}
	}
	if (o->trace)
		fputs("\n]\n", o->trace);
	return 0;
}

void vfm_dry_run_release(struct vfm_dry_run *d)
{
	for (int i = 0; i < d->n; i++)
		release_rank(&d->rank[i]);
	free(d->rank);
	*d = (struct vfm_dry_run){0};
}
