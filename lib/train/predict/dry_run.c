/* dry_run.c - simulates a step, the steps of a plan and the whole run, with goodput. */
#include "train/predict/dry_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/plan/plan.h"
#include "device/sim/uneven.h"
#include "spec/cost/goodput.h"
#include "train/job/plan_check.h"
#include "train/job/turns.h"
#include "train/predict/bench.h"
#include "train/predict/dry_run_packs.h"
#include "train/predict/memory_chart.h"
#include "train/predict/simulate.h"

/* Most simulated ranks, if possible.  Each class of dp ranks has
 *   - each pp stage
 *   - up to 3 ranks of tp
 *   - all of cp, with packs of their own
 * Ranks of these in different groups count separately. */
enum { RANKS_SIMULATED = 36 };

/* ---- a simulated step ---- */

struct dry_step {
	const struct vfm_dry_run_opts *o;
	const struct vfm_dry_packs *packs;
	int cp; /* of the plan */
	struct vfm_dry_run *out;
	struct vfm_pack_sums largest; /* of the plan */
	bool traced;                  /* a rank has written to the trace; ranks end in any order */
};

/* When a launch has begun to work, or to wait for other ranks. */
static double start_of(const struct vfm_sim_launch *l)
{
	return l->begin[VFM_MID] + (double)l->gap[VFM_MID];
}

/* Writes what a stream does: "compute", or the groups of its collectives ("shard, replica"), or "other work"; nothing
 * if it does none. */
static void name_stream(char name[VFM_STREAM_NAME], const struct vfm_sim_launch *l, size_t n, int stream)
{
	bool works = false;
	size_t len = 0;

	name[0] = 0;
	for (size_t i = 0; stream && i < n; i++) {
		const char *end = l[i].stream == stream && l[i].shape[0] == '\'' ? strchr(l[i].shape + 1, '\'') : NULL;
		int size = end ? (int)(end - l[i].shape - 1) : 0;
		char group[32];

		works |= l[i].stream == stream;
		snprintf(group, sizeof(group), "%.*s", size, l[i].shape + 1);
		if (!end || strstr(name, group) || len + (size_t)size + 3 > VFM_STREAM_NAME)
			continue;
		len += (size_t)snprintf(name + len, VFM_STREAM_NAME - len, "%s%s", len ? ", " : "", group);
	}
	if (!len)
		snprintf(name, VFM_STREAM_NAME, "%s", !stream ? "compute" : works ? "other work" : "");
}

/* Of the last digit of the trace. */
static const double CLOCK_S = 1e-9;

/* A process of the trace is a rank, a thread a stream; times are microseconds from the begin of the step.  Updates of
 * offloaded states and all-gathers of parameters may end after the step, which the next one does not wait for. */
static void trace_rank(struct vfm_context *x, struct dry_step *d, const struct vfm_bench_predicted *p)
{
	double begin = p->begin[VFM_MID], step_s = p->s[VFM_MID];
	FILE *f = d->o->trace;
	int rank = x->mesh.rank, streams = 0;
	const struct vfm_sim_launch *l;
	char name[VFM_STREAM_NAME];
	size_t n;

	l = vfm_sim_launches(x->device.dev, &n);
	fprintf(f, "%s{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"rank %d, pp stage %d\"}}",
		d->traced ? ",\n" : "[\n", rank, rank, x->mesh.coord[VFM_AX_PP]);
	d->traced = true;
	for (size_t i = 0; i < n; i++) {
		double wait = (double)l[i].wait[VFM_MID], at = start_of(&l[i]) - begin;
		double end = at + wait + (double)l[i].work[VFM_MID];

		streams = l[i].stream > streams ? l[i].stream : streams;
		fprintf(f,
			",\n{\"ph\":\"X\",\"name\":\"%s\",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%."
			"3f,"
			"\"args\":{\"shape\":\"%s\",\"gflop\":%.3f,\"mb\":%.3f,\"waits_us\":%.3f%s}}",
			l[i].op, vfm_sim_class_name((enum vfm_sim_class)l[i].class), rank, l[i].stream, at * 1e6,
			(end - at) * 1e6, l[i].shape, l[i].flops / 1e9, l[i].bytes / 1e6, wait * 1e6,
			end > step_s + CLOCK_S ? ",\"beside_next_step\":true" : "");
	}
	for (int s = 0; s <= streams; s++) {
		name_stream(name, l, n, s);
		if (!name[0])
			continue;
		fprintf(f,
			",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}",
			rank, s, name);
	}
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
	r->stream_name = vfm_calloc((size_t)r->streams + 1, sizeof(*r->stream_name));
	for (int s = 0; s < r->streams; s++)
		name_stream(r->stream_name[s], l, n, s);
	for (size_t i = 0; i < n; i++) {
		double begin = start_of(&l[i]) - p->begin[VFM_MID];
		double work = begin + (double)l[i].wait[VFM_MID], end = work + (double)l[i].work[VFM_MID];
		float *to = r->busy + (size_t)l[i].stream * lane;

		add_busy(to, VFM_SIM_CLASSES, begin * scale, work * scale);
		add_busy(to, l[i].class, work * scale, end * scale);
	}
}

/* Returns the number of the packs of a rank. */
static int class_of_packs(const struct vfm_context *x, const struct dry_step *d)
{
	return d->packs->class_of[vfm_parallel_place(&x->mesh.p, x->mesh.rank, VFM_GR_DATA).key];
}

static void release_rank(struct vfm_dry_run_rank *r)
{
	vfm_sim_memory_release(&r->memory);
	free(r->busy);
	free(r->stream_name);
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
		.packs = class_of_packs(x, d),
		.mem_peak = x->device.dev->mem_peak,
		.mem_beside = vfm_simulated_beside(x->device.dev)};
	memcpy(rank->recompute, r->recompute, sizeof(rank->recompute));
	rank->host_bytes = r->host_bytes;
	l = vfm_sim_launches(x->device.dev, &n);
	rank->launches = (int64_t)n;
	for (size_t i = 0; i < n; i++) {
		rank->class_s[l[i].class] += (double)l[i].work[VFM_MID];
		rank->class_flops[l[i].class] += l[i].flops;
	}
	rank->wait_s = vfm_sim_uneven_wait(l, n);
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
	const struct vfm_dry_class *own;

	TRY(vfm_context_open(x, d->o->config, err));
	TRY(vfm_job_agree(&x->job, vfm_mesh_add_views(&x->mesh, d->cp, err), err));
	if (d->o->memory || d->o->trace)
		vfm_sim_record_memory(x->device.dev);
	own = &d->packs->class[class_of_packs(x, d)];
	b = (struct vfm_bench_step){.packs = own->packs * x->mesh.size[VFM_AX_DP]};
	vfm_bench_predict(&b, VFM_PREDICTED_WARMUP, &predicted);
	TRY(vfm_bench_run_packs(x, d->o->config, &b, own->v, own->n, &d->largest, &r, err));
	if (d->o->trace)
		trace_rank(x, d, &predicted);
	note_rank(x, d, &r, &predicted);
	if (x->mesh.rank == 0) {
		memcpy(d->out->s, predicted.s, sizeof(d->out->s));
		d->out->exchange = r.exchange;
	}
	return 0;
}

static int simulate_packs(const struct vfm_dry_run_opts *o, const struct vfm_dry_packs *packs, int cp,
	const struct vfm_pack_sums *largest, struct vfm_dry_run *out, struct vfm_err *err)
{
	struct vfm_simulation s = {.config = o->config,
		.machine = o->machine,
		.ranks = o->ranks,
		.class_of = packs->class_of,
		.cp_apart = vfm_model_has_units(&o->config->model), /* the tokens that remain of a sample are few */
		.expert_skew = o->expert_skew,
		.slow_rank = o->slow_rank,
		.slow_factor = o->slow_factor,
		.all = o->all,
		.most = RANKS_SIMULATED,
		.retry = !o->once};
	struct dry_step d = {.o = o, .packs = packs, .cp = cp, .out = out, .largest = *largest};
	struct vfm_simulated how;
	int rc;

	out->rank = vfm_calloc((size_t)o->ranks, sizeof(*out->rank));
	rc = vfm_simulate(&s, step_on_rank, &d, &how, err);
	out->beyond = rc < 0 && (o->once ? how.full : how.beyond);
	TRY(rc);
	out->fits = !how.full;
	out->flops = packs->flops;
	out->tokens = packs->tokens;
	out->dp_distinct = packs->dp_distinct;
	out->dp_classes = packs->dp_classes;
	return 0;
}

/* ---- the steps of a plan ---- */

/* A step, and the cost of the rank with the most. */
struct step_cost {
	int64_t step;
	double cost;
};

struct plan_costs {
	struct step_cost *v; /* [n] by ascending cost */
	int64_t n, largest_step;
	struct vfm_pack_sums largest; /* as if all cp ranks computed it */
	int cp;                       /* of the header */
};

static int compare_step_costs(const void *a, const void *b)
{
	const struct step_cost *x = a, *y = b;

	return x->cost != y->cost ? (x->cost < y->cost ? -1 : 1) : x->step < y->step ? -1 : 1;
}

/* Counts a pack that `of` of the cp ranks compute as if all did. */
static struct vfm_pack_sums scale_sums(struct vfm_pack_sums s, double cp, double of)
{
	double *by_token[] = {
		&s.tokens, &s.pairs_full, &s.pairs_spatial, &s.pairs_temporal, &s.pairs_cross, &s.pairs_joint};

	for (size_t i = 0; i < sizeof(by_token) / sizeof(by_token[0]); i++)
		*by_token[i] *= cp / of;
	return s;
}

enum { STEPS_SAMPLED = 1000 };

/* Reads at most STEPS_SAMPLED steps of the first n, at equal distances. */
static int read_costs(struct plan_costs *p, const struct vfm_plan *m, const struct vfm_config *c, int64_t n,
	const struct vfm_parallel *layout, struct vfm_err *err)
{
	struct vfm_plan_step s = {0};
	double most = -1;
	int rc = 0;

	p->n = n < STEPS_SAMPLED ? n : STEPS_SAMPLED;
	p->v = vfm_calloc((size_t)p->n, sizeof(*p->v));
	p->cp = vfm_plan_header(m)->cp;
	for (int64_t i = 0; i < p->n; i++) {
		p->v[i].step = i * n / p->n;
		TRY_OUT(vfm_plan_step(m, p->v[i].step, &s, err));
		p->v[i].cost = vfm_dry_packs_cost(layout, &s, p->cp);
		for (int32_t k = 0; k < s.n_packs; k++) {
			double cp = (double)layout->cp, of = p->cp && s.packs[k].cp < cp ? s.packs[k].cp : cp;

			if (!s.packs[k].n_samples || (double)s.packs[k].tokens / of <= most)
				continue;
			most = (double)s.packs[k].tokens / of;
			p->largest_step = p->v[i].step;
			p->largest = scale_sums(vfm_dry_pack_sums(c, &s.packs[k], c->model.text_len), cp, of);
		}
	}
	qsort(p->v, (size_t)p->n, sizeof(*p->v), compare_step_costs);
out:
	vfm_plan_step_release(&s);
	return rc;
}

static int most_dp_classes(const struct vfm_dry_run_opts *o, const struct vfm_parallel *p, int cp)
{
	int64_t each = p->pp * (p->tp < 3 ? p->tp : 3) * (cp ? p->cp : 1) * (o->expert_skew > 0 ? p->ep : 1);

	return o->all ? (int)p->dp : each < RANKS_SIMULATED ? (int)(RANKS_SIMULATED / each) : 1;
}

static int simulate_plan_step(const struct vfm_dry_run_opts *o, const struct vfm_plan *m, int64_t step,
	const struct vfm_parallel *p, const struct plan_costs *costs, bool memory, struct vfm_dry_run *out,
	struct vfm_err *err)
{
	/* One class is enough for the memory, unless experts get rows of other dp ranks. */
	bool one = memory && !o->all && p->ep == 1;
	struct vfm_dry_packs_opts how = {.cp = costs->cp,
		.most = one ? 1 : most_dp_classes(o, p, costs->cp),
		.text = o->config->model.text_len,
		.by_size = memory};
	struct vfm_plan_step s = {0};
	struct vfm_dry_packs packs = {0};
	int rc;

	TRY_OUT(vfm_plan_step(m, step, &s, err));
	TRY_OUT(vfm_dry_packs_make(&packs, o->config, p, &s, &how, err));
	TRY_OUT(simulate_packs(o, &packs, costs->cp, &costs->largest, out, err));
	out->step = step;
	for (int i = 0; i < out->n; i++)
		out->rank[i].memory_step = step;
out:
	vfm_dry_packs_release(&packs);
	vfm_plan_step_release(&s);
	return rc;
}

/* ---- the time of all steps ---- */

enum { STEPS_TIMED = 5, RANKS_FEW = 16 };

/* The seconds of simulated steps, by ascending cost. */
struct timed_steps {
	double cost[STEPS_TIMED], s[STEPS_TIMED];
	int n;
};

/* Returns the seconds of a step of a cost between those of the first and the last. */
static double interpolate_step(const struct timed_steps *t, double cost)
{
	int i = 1;

	if (t->n == 1)
		return t->s[0];
	while (i < t->n - 1 && cost > t->cost[i])
		i++;
	return t->s[i - 1] + (t->s[i] - t->s[i - 1]) * (cost - t->cost[i - 1]) / (t->cost[i] - t->cost[i - 1]);
}

/* Simulates steps at equal distances in the order of their cost; *out is the middle one.  With many ranks, which take
 * long, also only the least and the most expensive one. */
static int time_all_steps(const struct vfm_dry_run_opts *o, const struct vfm_plan *m, const struct vfm_parallel *p,
	const struct plan_costs *costs, struct vfm_dry_run *out, struct vfm_err *err)
{
	struct timed_steps t = {.n = 0};
	double sum = 0;

	for (int k = 0; k < STEPS_TIMED; k++) {
		int64_t at = k == STEPS_TIMED / 2 ? costs->n / 2 : k * (costs->n - 1) / (STEPS_TIMED - 1);
		struct vfm_dry_run one = {0};
		int rc = 0;

		if (k % 2 && out->n > RANKS_FEW)
			continue;
		if (t.n && costs->v[at].cost <= t.cost[t.n - 1])
			continue;
		if (costs->v[at].cost == costs->v[costs->n / 2].cost)
			t.s[t.n] = out->s[VFM_MID];
		else
			rc = simulate_plan_step(o, m, costs->v[at].step, p, costs, false, &one, err);
		if (one.n)
			t.s[t.n] = one.s[VFM_MID];
		t.cost[t.n++] = costs->v[at].cost;
		out->beyond = one.beyond;
		vfm_dry_run_release(&one);
		TRY(rc);
	}
	for (int64_t i = 0; i < costs->n; i++)
		sum += interpolate_step(&t, costs->v[i].cost);
	out->timed_steps = t.n;
	out->total_s = sum / (double)costs->n * (double)out->steps;
	return 0;
}

/* Returns a number of the share of the model that a rank has. */
static int model_share(const struct vfm_dry_run_opts *o, const struct vfm_parallel *p, int rank)
{
	int coord[VFM_AXES];

	vfm_parallel_coord(p, rank, coord);
	return (coord[VFM_AX_PP] * (int)p->tp + coord[VFM_AX_TP]) * (int)p->ep +
		(o->expert_skew > 0 ? coord[VFM_AX_EP] : 0);
}

/* Of ranks with the same share of the model. */
static void take_larger_memory(const struct vfm_dry_run_opts *o, const struct vfm_parallel *p, struct vfm_dry_run *out,
	const struct vfm_dry_run *large)
{
	out->fits = out->fits && large->fits;
	for (int i = 0; i < out->n; i++)
		for (int k = 0; k < large->n; k++) {
			const struct vfm_dry_run_rank *from = &large->rank[k];
			struct vfm_dry_run_rank *to = &out->rank[i];

			if (model_share(o, p, from->rank) != model_share(o, p, to->rank) ||
				from->mem_peak <= to->mem_peak)
				continue;
			to->mem_peak = from->mem_peak;
			to->mem_beside = from->mem_beside;
			to->memory_s = from->memory_s;
			to->memory_step = from->memory_step;
			vfm_sim_memory_release(&to->memory);
			to->memory = vfm_sim_memory_copy(&from->memory);
		}
}

/* Sets the exchanges of two networks per step. */
static int count_exchanges(const struct vfm_dry_run_opts *o, const struct vfm_plan_header *plan,
	struct vfm_dry_run *out, struct vfm_err *err)
{
	struct vfm_turns turns;

	if (!(o->config->experts.boundary > 0))
		return 0;
	TRY(vfm_turns_of(&turns, o->config, plan, err));
	if (vfm_turns_divide(&turns))
		return vfm_fail(err, VFM_EUSAGE, "experts.turn_packs: --dry-run predicts steps of one network");
	out->exchanges = vfm_turns_exchanges(&turns);
	return 0;
}

/* The memory is that of the step with the largest pack, the time that of the median step. */
static int run_plan(
	const struct vfm_dry_run_opts *o, const struct vfm_parallel *p, struct vfm_dry_run *out, struct vfm_err *err)
{
	struct vfm_plan *m = vfm_plan_open(o->plan, err);
	struct plan_costs costs = {0};
	struct vfm_dry_run_opts untraced = *o, timed;
	struct vfm_dry_run large = {0};
	int64_t n;
	int rc;

	if (!m)
		return err->code;
	untraced.trace = NULL;
	untraced.timeline = false;
	timed = untraced;
	timed.memory = false;
	TRY_OUT(vfm_plan_check(vfm_plan_header(m), o->plan, o->config, p, &n, err));
	TRY_OUT(count_exchanges(o, vfm_plan_header(m), out, err));
	TRY_OUT(read_costs(&costs, m, o->config, n, p, err));
	TRY_OUT(simulate_plan_step(&untraced, m, costs.largest_step, p, &costs, true, &large, err));
	TRY_OUT(simulate_plan_step(o, m, costs.v[costs.n / 2].step, p, &costs, false, out, err));
	out->steps = n;
	TRY_OUT(time_all_steps(&timed, m, p, &costs, out, err));
	take_larger_memory(o, p, out, &large);
out:
	out->beyond |= large.beyond;
	free(costs.v);
	vfm_dry_run_release(&large);
	vfm_plan_close(m);
	return rc;
}

/* One sample of `context` tokens a pack. */
static int run_equal_packs(
	const struct vfm_dry_run_opts *o, const struct vfm_parallel *p, struct vfm_dry_run *out, struct vfm_err *err)
{
	struct vfm_plan_sample sample = {.tokens = (int32_t)o->context};
	struct vfm_plan_step s = {.n_packs = (int32_t)o->packs};
	struct vfm_dry_packs_opts how = {.most = 1, .text = o->text ? o->text : o->config->model.text_len};
	struct vfm_dry_packs packs = {0};
	const struct vfm_plan_header plan = {.batch = (int32_t)o->packs, .context = (int32_t)o->context};
	struct vfm_pack_sums largest;
	int rc;

	TRY(vfm_bench_divides(o->packs, p->dp, err));
	TRY(count_exchanges(o, &plan, out, err));
	s.packs = vfm_calloc((size_t)o->packs, sizeof(*s.packs));
	for (int32_t i = 0; i < s.n_packs; i++)
		s.packs[i] = (struct vfm_plan_pack){
			.pack = i, .n_samples = 1, .tokens = o->context, .cost = 1, .samples = &sample};
	s.tokens = o->packs * o->context;
	largest = vfm_dry_pack_sums(o->config, &s.packs[0], how.text);
	TRY_OUT(vfm_dry_packs_make(&packs, o->config, p, &s, &how, err));
	TRY_OUT(simulate_packs(o, &packs, 0, &largest, out, err));
	out->steps = o->config->train.steps;
	out->timed_steps = 1;
	out->total_s = out->s[VFM_MID] * (double)out->steps;
out:
	vfm_dry_packs_release(&packs);
	free(s.packs);
	return rc;
}

/* Adds the exchanges of two networks to the times of the steps. */
static void add_exchanges(struct vfm_dry_run *out)
{
	const double *s = out->exchange.s;

	for (int e = 0; e < VFM_ESTIMATES; e++)
		out->s[e] += out->exchanges * s[e];
	out->copy_s += out->exchanges * s[VFM_MID];
	out->total_s += out->exchanges * s[VFM_MID] * (double)out->steps;
}

int vfm_dry_run(const struct vfm_dry_run_opts *o, struct vfm_dry_run *out, struct vfm_err *err)
{
	struct vfm_parallel p = o->config->parallel;

	*out = (struct vfm_dry_run){0};
	TRY(vfm_parallel_check(&p, &o->config->model, o->ranks, err));
	TRY(o->plan ? run_plan(o, &p, out, err) : run_equal_packs(o, &p, out, err));
	add_exchanges(out);
	for (int i = 0; i < out->n; i++) {
		out->launches += out->rank[i].launches;
		out->imbalance += out->rank[i].wait_s * out->rank[i].stands_for / o->ranks / out->s[VFM_MID];
		if (out->rank[i].mem_peak + out->rank[i].mem_beside > out->mem_peak + out->mem_beside) {
			out->fullest = i;
			out->mem_peak = out->rank[i].mem_peak;
			out->mem_beside = out->rank[i].mem_beside;
		}
	}
	out->straggler = 1;
	if (o->straggler_cv > 0)
		out->straggler += (vfm_straggler_factor(o->straggler_cv, o->ranks) - 1) *
			(1 - (out->comm_s + out->copy_s) / out->s[VFM_MID]);
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

/* ---- options ---- */

bool vfm_uneven_given(const struct vfm_uneven_opts *o)
{
	return o->expert_skew != 0 || o->straggler_cv != 0 || o->slow_rank;
}

/* "R:FACTOR" */
static int parse_slow_rank(const char *text, int64_t ranks, struct vfm_dry_run_opts *to, struct vfm_err *err)
{
	char *end;
	long rank = strtol(text, &end, 10);

	if (end != text && *end == ':' && rank >= 0 && rank < ranks) {
		to->slow_rank = (int)rank;
		to->slow_factor = strtod(end + 1, &end);
		if (!*end && to->slow_factor >= 1 && to->slow_factor <= 1000)
			return 0;
	}
	return vfm_fail(err, VFM_EUSAGE,
		"--slow-rank: expected R:FACTOR with a rank of 0 to %lld and a factor of 1 to 1000, got '%s'",
		(long long)ranks - 1, text);
}

int vfm_uneven_parse(const struct vfm_uneven_opts *o, int64_t ranks, struct vfm_dry_run_opts *to, struct vfm_err *err)
{
	if (!(o->expert_skew >= 0 && o->expert_skew <= 10))
		return vfm_fail(err, VFM_EUSAGE, "--expert-skew: expected 0 to 10, got %g", o->expert_skew);
	if (!(o->straggler_cv >= 0 && o->straggler_cv <= 1))
		return vfm_fail(err, VFM_EUSAGE, "--straggler-cv: expected 0 to 1, got %g", o->straggler_cv);
	to->expert_skew = o->expert_skew;
	to->straggler_cv = o->straggler_cv;
	return o->slow_rank ? parse_slow_rank(o->slow_rank, ranks, to, err) : 0;
}
