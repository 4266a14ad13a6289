/* vfm-bench step - times a training step of one model on synthetic samples. */
#include <stdlib.h>
#include <string.h>

#include "base/par.h"
#include "bench.h"
#include "spec/cost/hw.h"
#include "step_opts.h"
#include "train/predict/dry_run_page.h"
#include "train/predict/simulate.h"

static struct bench_step_opts step_opts = BENCH_STEP_OPTS_INIT;
static struct vfm_table_opts table_opts;
static int64_t repeat = 5, warmup = 2;
static struct vfm_context_opts rank_opts = VFM_CONTEXT_OPTS_INIT;
static double seconds = 3;
static bool turns;

static const struct vfm_opt opts[] = {
	BENCH_STEP_OPTS(&step_opts),
	{VFM_OPT_INT, 'r', "repeat", "N", "minimum measured steps (5)", &repeat},
	{VFM_OPT_NUM, 0, "seconds", "S", "minimum seconds (3)", &seconds},
	{VFM_OPT_INT, 0, "warmup", "N", "unmeasured steps before, at least (2)", &warmup},
	{VFM_OPT_FLAG, 0, "turns", NULL, "before each step, print \"ready\" and wait for a line on stdin", &turns},
	VFM_CONTEXT_OPTS_SIM(&rank_opts),
	VFM_TABLE_OPTS(&table_opts),
	{0},
};

static const struct vfm_cmd cmd = {
	.name = "vfm-bench step",
	.synopsis = "[OPTION ...]",
	.summary = "measure one training step, or predict it",
	.opts = opts,
	.no_operands = true,
};

struct measurement {
	struct vfm_config config;
	struct vfm_bench_step step;
	struct vfm_bench_predicted predicted; /* of the last step, on a simulated device */
};

static const struct vfm_table_column columns[] = {{"model", "model", 0}, {"hidden", "hidden", 0, VFM_COLUMN_DETAIL},
	{"layers", "layers", 0, VFM_COLUMN_DETAIL}, {"dtype", "dtype", 0, VFM_COLUMN_DETAIL},
	{"residual", "residual", 0, VFM_COLUMN_DETAIL}, {"tokens", "tokens", 0},
	{"samples", "samples", 0, VFM_COLUMN_DETAIL}, {"step_ms", "step ms", 1}, {"min_ms", "min", 1},
	{"max_ms", "max", 1}, {"n", "n", 0, VFM_COLUMN_DETAIL}, {"tflops", "TFLOP/s", 3}, {"mfu", "MFU", 3},
	{"tok_s", "token/s", 0}, {"mem_gib", "GiB", 2}, {"ranks", "ranks", 0, VFM_COLUMN_DETAIL},
	{"threads", "threads", 0, VFM_COLUMN_DETAIL}, {"layout", "layout", VFM_TABLE_STRINGS, VFM_COLUMN_DETAIL},
	{"comm", "comm", 3, VFM_COLUMN_DETAIL}, {"bubble", "bubble", 3, VFM_COLUMN_DETAIL},
	{"copy", "copy", 3, VFM_COLUMN_DETAIL}, {"host_ms", "host ms", 1, VFM_COLUMN_DETAIL},
	{"ahead_ms", "ahead", 1, VFM_COLUMN_DETAIL}, {"slow_attn", "slow attn", 0, VFM_COLUMN_DETAIL},
	{"slow_gemm", "slow gemm", 0, VFM_COLUMN_DETAIL}, {"heuristic_gemm", "heur gemm", 0, VFM_COLUMN_DETAIL},
	{"compactions", "compactions", 0, VFM_COLUMN_DETAIL}, {"how", "how", 0, VFM_COLUMN_DETAIL},
	{"recompute", "recompute", VFM_TABLE_STRINGS, VFM_COLUMN_DETAIL}, {0}};

static void note_step(struct vfm_table *t, int ranks, const char *layout, const struct vfm_bench_result *r)
{
	double s = r->step_s.median;
	struct vfm_stalls stalls = {r->comm_s / s, r->bubble_s / s, r->copy_s / s, 0};
	struct vfm_buf b = {0};

	if (ranks > 1)
		vfm_table_note(t, "%d ranks: %s", ranks, layout);
	if (*r->recompute)
		vfm_table_note(t, "recompute: %s", r->recompute);
	vfm_stalls_sentence(&b, &stalls);
	if (ranks > 1 || r->copy_s > 0)
		vfm_table_note(t, "waits for: %s", b.data);
	vfm_buf_release(&b);
}

static void add_step_row(
	struct vfm_table *t, const struct measurement *m, const struct vfm_bench_result *r, const struct vfm_context *x)
{
	const struct vfm_config *c = &m->config;
	const struct vfm_bench_step *b = &m->step;
	const struct vfm_dev *dev = x->device.dev;
	int world = x->mesh.world_size;
	double peak = vfm_hw_peak(dev->name, c->train.dtype);
	struct vfm_buf layout = {0};

	vfm_table_row(t);
	vfm_table_str(t, "model", step_opts.preset);
	vfm_table_i64(t, "hidden", c->model.hidden);
	vfm_table_i64(t, "layers", c->model.layers);
	vfm_table_str(t, "dtype", c->train.dtype == VFM_BF16 ? "bf16" : "fp32");
	vfm_table_str(t, "residual", c->train.residual == VFM_BF16 ? "bf16" : "fp32");
	vfm_table_i64(t, "tokens", r->tokens);
	vfm_table_i64(t, "samples", b->samples * b->packs);
	vfm_table_f64(t, "step_ms", r->step_s.median * 1e3);
	vfm_table_i64(t, "n", r->n);
	vfm_table_f64(t, "tflops", r->flops / r->step_s.median / 1e12);
	if (peak > 0)
		vfm_table_f64(t, "mfu", r->flops / r->step_s.median / 1e12 / peak / world);
	vfm_table_f64(t, "tok_s", (double)r->tokens / r->step_s.median);
	vfm_table_f64(t, "mem_gib", (double)r->mem_peak_bytes / 0x1p30);
	vfm_table_i64(t, "ranks", world);
	vfm_parallel_text(&x->mesh.p, &layout);
	vfm_table_str(t, "layout", layout.data);
	vfm_table_f64(t, "comm", r->comm_s / r->step_s.median);
	vfm_table_f64(t, "bubble", r->bubble_s / r->step_s.median);
	vfm_table_f64(t, "copy", r->copy_s / r->step_s.median);
	vfm_table_str(t, "recompute", *r->recompute ? r->recompute : NULL);
	note_step(t, world, layout.data, r);
	vfm_buf_release(&layout);
}

static void add_measured(struct vfm_table *t, const struct vfm_bench_result *r, const struct vfm_dev *dev, int world)
{
	vfm_table_f64(t, "min_ms", r->step_s.min * 1e3);
	vfm_table_f64(t, "max_ms", r->step_s.max * 1e3);
	vfm_table_i64(t, "threads", vfm_par_threads());
	vfm_table_f64(t, "host_ms", r->host_s * 1e3);
	vfm_table_f64(t, "ahead_ms", r->ahead_s * 1e3);
	bench_fallback_cells(t, dev, &(struct bench_fallbacks){0});
	vfm_table_i64(t, "compactions", r->compactions);
	vfm_table_str(t, "how", "measured");
	bench_fallback_notes(t, dev);
	bench_note_machine(t, vfm_par_threads(), dev->name, dev->descr);
	vfm_table_note(t, "step ms: median of %lld steps; FLOPs without recompute%s", (long long)r->n,
		world > 1 ? "; speeds of all ranks together, GiB of the rank with the most" : "");
}

static void add_predicted(struct vfm_table *t, const struct vfm_bench_predicted *p)
{
	vfm_table_f64(t, "min_ms", p->s[VFM_HIGH] * 1e3);
	vfm_table_f64(t, "max_ms", p->s[VFM_LOW] * 1e3);
	vfm_table_str(t, "how", "predicted");
	bench_note_predicted(t, step_opts.machine);
	vfm_table_note(t, "min, max: at the high and low rates of the machine; FLOPs without recompute");
}

static int print(
	const struct measurement *m, const struct vfm_bench_result *r, const struct vfm_context *x, struct vfm_err *err)
{
	struct vfm_table *t = vfm_table_new(columns);
	int rc;

	add_step_row(t, m, r, x);
	if (vfm_dev_predicts(x->device.dev))
		add_predicted(t, &m->predicted);
	else
		add_measured(t, r, x->device.dev, x->mesh.world_size);
	rc = vfm_table_print(t, &table_opts, stdout, err);
	vfm_table_free(t);
	return rc;
}

/* Lets another program run between the steps. */
static void wait_for_turn(void *ctx, struct vfm_dev *dev)
{
	int c;

	(void)ctx, (void)dev;
	puts("ready");
	fflush(stdout);
	do
		c = getchar();
	while (c != '\n' && c != EOF);
}

static int measure_step(struct vfm_context *x, void *ctx, struct vfm_err *err)
{
	struct measurement m = *(struct measurement *)ctx; /* simulated ranks share ctx */
	struct vfm_bench_result r;

	TRY(vfm_context_open(x, &m.config, err));
	if (vfm_dev_predicts(x->device.dev))
		vfm_bench_predict(&m.step, VFM_PREDICTED_WARMUP, &m.predicted);
	if (turns && x->mesh.rank == 0)
		m.step.before = wait_for_turn;
	TRY(vfm_bench_run(x, &m.config, &m.step, &r, err));
	return x->mesh.rank == 0 ? print(&m, &r, x, err) : 0;
}

static int parse_step(struct measurement *m, int argc, char **argv, struct vfm_err *err)
{
	int n, rc = vfm_opt_parse(&cmd, argc, argv, &n, err);

	if (rc != 0)
		return rc;
	TRY(vfm_table_check(columns, &table_opts, err));
	m->step = (struct vfm_bench_step){.warmup = warmup, .steps = repeat, .min_s = seconds};
	TRY(bench_step_parse(&step_opts, &m->config, &m->step, err));
	rank_opts.machine = step_opts.machine;
	if (turns && !strcmp(rank_opts.device, "sim"))
		return vfm_fail(err, VFM_EUSAGE, "--turns: a simulated device measures no step");
	return vfm_context_check(&rank_opts, err);
}

static int predict_step(struct measurement *m, struct vfm_err *err)
{
	struct vfm_simulation s = {.config = &m->config,
		.ranks = rank_opts.ranks == VFM_UNSET ? 1 : (int)rank_opts.ranks,
		.cp_apart = vfm_bench_cp_apart(&m->step, &m->config)};
	struct vfm_machine machine;
	struct vfm_simulated simulated;

	TRY(vfm_machine_load(&machine, step_opts.machine, err));
	s.machine = &machine;
	return vfm_simulate(&s, measure_step, m, &simulated, err);
}

int bench_step(int argc, char **argv, struct vfm_err *err)
{
	struct measurement m = {.predicted = {{0}, {0}}};
	int rc = vfm_job_say_once(parse_step(&m, argc, argv, err), err);

	if (rc != 0)
		return rc;
	return strcmp(rank_opts.device, "sim") ? vfm_context_run(&rank_opts, measure_step, &m, err)
					       : predict_step(&m, err);
}
