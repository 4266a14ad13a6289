/* vfm-bench launches - the launches of a training step on a simulated machine, with bytes, FLOPs and estimated time. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "step_opts.h"

static struct bench_step_opts step_opts = BENCH_STEP_OPTS_INIT;
static struct vfm_table_opts table_opts;
static bool block;
static struct vfm_context_opts rank_opts = VFM_CONTEXT_OPTS_INIT;

static const struct vfm_opt opts[] = {
	BENCH_STEP_OPTS(&step_opts),
	{VFM_OPT_FLAG, 0, "block", NULL, "of one block and pack instead of a step", &block},
	VFM_TABLE_OPTS(&table_opts),
	{0},
};

static const struct vfm_cmd cmd = {
	.name = "vfm-bench launches",
	.synopsis = "[OPTION ...]",
	.summary = "print the launches of a training step and predict their time",
	.opts = opts,
	.no_operands = true,
};

/* Launches of one op and shape, or a total. */
struct launch_group {
	enum vfm_sim_class class;
	const char *op, *shape;
	double n[2], kernels, flops, bytes, work[VFM_ESTIMATES], gap[VFM_ESTIMATES]; /* n: of each model */
};

struct launch_groups {
	struct launch_group *v;
	size_t n, cap;
};

struct launches {
	struct vfm_config config;
	struct vfm_bench_step step;
	struct vfm_arena arena;
	struct launch_groups groups;
	struct vfm_bench_predicted predicted;
	double flops; /* of the model */
	double mem_peak;
	char recompute[VFM_RECOMPUTE_TEXT]; /* of struct vfm_bench_result */
};

static struct launch_group *find_group(struct launches *l, enum vfm_sim_class class, const char *op, const char *shape)
{
	struct launch_groups *g = &l->groups;

	for (size_t i = 0; i < g->n; i++)
		if (g->v[i].class == class && !strcmp(g->v[i].op, op) && !strcmp(g->v[i].shape, shape))
			return &g->v[i];
	vfm_grow(&g->v, &g->cap, g->n + 1, sizeof(*g->v));
	g->v[g->n] = (struct launch_group){
		.class = class, .op = vfm_arena_strdup(&l->arena, op), .shape = vfm_arena_strdup(&l->arena, shape)};
	return &g->v[g->n++];
}

static void add_to_group(struct launch_group *to, const struct launch_group *x)
{
	to->n[0] += x->n[0];
	to->n[1] += x->n[1];
	to->kernels += x->kernels;
	to->flops += x->flops;
	to->bytes += x->bytes;
	for (int e = 0; e < VFM_ESTIMATES; e++) {
		to->work[e] += x->work[e];
		to->gap[e] += x->gap[e];
	}
}

/* Adds the recorded launches, each `weight` times, to the groups of model 0 or 1. */
static void add_launches(struct launches *l, const struct vfm_dev *dev, int model, double weight)
{
	size_t n;
	const struct vfm_sim_launch *v = vfm_sim_launches(dev, &n);

	for (size_t i = 0; i < n; i++) {
		struct launch_group x = {
			.kernels = weight * v[i].kernels, .flops = weight * v[i].flops, .bytes = weight * v[i].bytes};

		if (block && v[i].class == VFM_SIM_OPTIMIZER)
			continue;
		x.n[model] = weight;
		for (int e = 0; e < VFM_ESTIMATES; e++) {
			x.work[e] = weight * (double)v[i].work[e];
			x.gap[e] = weight * (double)v[i].gap[e];
		}
		add_to_group(find_group(l, (enum vfm_sim_class)v[i].class, v[i].op, v[i].shape), &x);
	}
}

static int record_step(struct vfm_context *x, struct launches *l, int model, double weight, struct vfm_err *err)
{
	struct vfm_bench_result r;

	TRY(vfm_context_open(x, &l->config, err));
	vfm_bench_predict(&l->step, VFM_PREDICTED_WARMUP, &l->predicted);
	TRY(vfm_bench_run(x, &l->config, &l->step, &r, err));
	add_launches(l, x->device.dev, model, weight);
	l->flops += weight * r.flops;
	l->mem_peak = (double)r.mem_peak_bytes;
	memcpy(l->recompute, r.recompute, sizeof(l->recompute));
	return 0;
}

/* Half the difference to a model with two blocks fewer, which is the mean of two blocks where kinds alternate. */
static int record_block(struct vfm_context *x, struct launches *l, struct vfm_err *err)
{
	double weight = 0.5 / (double)l->step.packs;

	if (l->config.model.layers < 3)
		return vfm_fail(err, VFM_EUSAGE, "--block: expected a model of 3 or more blocks");
	if (l->config.train.recompute == VFM_RECOMPUTE_AUTO)
		return vfm_fail(err, VFM_EUSAGE,
			"--block: with --recompute auto the smaller model would have another plan; name a mode");
	TRY(record_step(x, l, 0, weight, err));
	vfm_context_close(x);
	l->config.model.layers -= 2;
	return record_step(x, l, 1, -weight, err);
}

/* Groups whose shape only one of the two models has are the launches for all blocks: their difference is one group. */
static void merge_unmatched(struct launches *l)
{
	struct launch_groups old = l->groups;

	l->groups = (struct launch_groups){0};
	for (size_t i = 0; i < old.n; i++) {
		const struct launch_group *g = &old.v[i];
		bool matched = g->n[0] != 0 && g->n[1] != 0;
		bool equal = fabs(g->n[0] + g->n[1]) < 1e-9;

		if (matched && equal)
			continue;
		add_to_group(find_group(l, g->class, g->op, matched ? g->shape : "(its share of all blocks)"), g);
	}
	free(old.v);
}

/* ---- printing ---- */

static int compare_groups(const void *a, const void *b)
{
	const struct launch_group *x = a, *y = b;
	double wx = x->work[VFM_MID] + x->gap[VFM_MID], wy = y->work[VFM_MID] + y->gap[VFM_MID];
	int op = strcmp(x->op, y->op);

	if (x->class != y->class)
		return x->class < y->class ? -1 : 1;
	if (wx != wy)
		return wx > wy ? -1 : 1;
	return op ? op : strcmp(x->shape, y->shape);
}

static const struct vfm_table_column columns[] = {{"class", "class", 0}, {"op", "op", 0}, {"shape", "shape", 0},
	{"count", "count", -4}, {"launches", "launches", -5, VFM_COLUMN_DETAIL},
	{"gflop", "GFLOP", 1, VFM_COLUMN_DETAIL}, {"gb", "GB", 3, VFM_COLUMN_DETAIL}, {"tflops", "TFLOP/s", 0},
	{"gb_s", "GB/s", 0}, {"ms", "ms", 3}, {"low_ms", "at low rates", 3, VFM_COLUMN_DETAIL},
	{"high_ms", "at high", 3, VFM_COLUMN_DETAIL}, {"how", "how", 0, VFM_COLUMN_DETAIL}, {0}};

static void add_times(struct vfm_table *t, const double s[VFM_ESTIMATES])
{
	vfm_table_f64(t, "ms", s[VFM_MID] * 1e3);
	vfm_table_f64(t, "low_ms", s[VFM_LOW] * 1e3);
	vfm_table_f64(t, "high_ms", s[VFM_HIGH] * 1e3);
	vfm_table_str(t, "how", "predicted");
}

static void add_group_row(struct vfm_table *t, const char *class, const char *op, const struct launch_group *g)
{
	vfm_table_row(t);
	vfm_table_str(t, "class", class);
	vfm_table_str(t, "op", op);
	vfm_table_str(t, "shape", g->shape);
	vfm_table_f64(t, "count", g->n[0] + g->n[1]);
	vfm_table_f64(t, "launches", g->kernels);
	vfm_table_f64(t, "gflop", g->flops / 1e9);
	vfm_table_f64(t, "gb", g->bytes / 1e9);
	if (g->flops > 0 && g->work[VFM_MID] > 0)
		vfm_table_f64(t, "tflops", g->flops / g->work[VFM_MID] / 1e12);
	if (g->bytes > 0 && g->work[VFM_MID] > 0)
		vfm_table_f64(t, "gb_s", g->bytes / g->work[VFM_MID] / 1e9);
	add_times(t, g->work);
}

static void add_totals(struct vfm_table *t, const struct launches *l)
{
	struct launch_group total[VFM_SIM_CLASSES] = {0}, all = {0};

	for (size_t i = 0; i < l->groups.n; i++) {
		add_to_group(&total[l->groups.v[i].class], &l->groups.v[i]);
		add_to_group(&all, &l->groups.v[i]);
	}
	for (int c = 0; c < VFM_SIM_CLASSES; c++)
		if (total[c].work[VFM_MID] > 0)
			add_group_row(t, vfm_sim_class_name((enum vfm_sim_class)c), "total", &total[c]);
	vfm_table_row(t);
	vfm_table_str(t, "class", "gaps");
	vfm_table_str(t, "op", "total");
	vfm_table_f64(t, "launches", all.kernels);
	add_times(t, all.gap);
	if (block)
		return;
	vfm_table_row(t);
	vfm_table_str(t, "class", "step");
	vfm_table_str(t, "op", "total");
	vfm_table_f64(t, "launches", all.kernels);
	vfm_table_f64(t, "gflop", l->flops / 1e9);
	vfm_table_f64(t, "gb", all.bytes / 1e9);
	vfm_table_f64(t, "tflops", l->flops / l->predicted.s[VFM_MID] / 1e12);
	add_times(t, l->predicted.s);
}

static int print_launches(struct launches *l, struct vfm_err *err)
{
	struct vfm_table *t = vfm_table_new(columns);
	int rc;

	if (block)
		merge_unmatched(l);
	if (l->groups.n)
		qsort(l->groups.v, l->groups.n, sizeof(*l->groups.v), compare_groups);
	for (size_t i = 0; i < l->groups.n; i++)
		add_group_row(t, vfm_sim_class_name(l->groups.v[i].class), l->groups.v[i].op, &l->groups.v[i]);
	add_totals(t, l);
	bench_note_predicted(t, step_opts.machine);
	if (*l->recompute)
		vfm_table_note(t, "recompute: %s", l->recompute);
	if (block)
		vfm_table_note(t,
			"one block and pack, without the optimizer: half the difference to a model with two "
			"blocks fewer, divided by the packs");
	else
		vfm_table_note(t,
			"step: on the clock, where copies and updates overlap; its GFLOP and TFLOP/s are those of "
			"forward and backward, without recompute; peak %.2f GiB",
			l->mem_peak / 0x1p30);
	rc = vfm_table_print(t, &table_opts, stdout, err);
	vfm_table_free(t);
	return rc;
}

static int run_launches(struct vfm_context *x, void *ctx, struct vfm_err *err)
{
	struct launches *l = ctx;

	TRY(block ? record_block(x, l, err) : record_step(x, l, 0, 1, err));
	return print_launches(l, err);
}

static int parse_launches(struct launches *l, int argc, char **argv, struct vfm_err *err)
{
	int n, rc = vfm_opt_parse(&cmd, argc, argv, &n, err);

	if (rc != 0)
		return rc;
	l->step = (struct vfm_bench_step){.steps = 1};
	TRY(vfm_table_check(columns, &table_opts, err));
	TRY(bench_step_parse(&step_opts, &l->config, &l->step, err));
	rank_opts.device = "sim";
	rank_opts.machine = step_opts.machine;
	return vfm_context_check(&rank_opts, err);
}

int bench_launches(int argc, char **argv, struct vfm_err *err)
{
	struct launches l = {.arena = {0}};
	int rc = vfm_job_say_once(parse_launches(&l, argc, argv, err), err);

	if (rc == 0)
		rc = vfm_context_run(&rank_opts, run_launches, &l, err);
	free(l.groups.v);
	vfm_arena_release(&l.arena);
	return rc;
}
