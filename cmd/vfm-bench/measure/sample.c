/* vfm-bench sample - times the sampling of videos by one model, or predicts it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/par.h"
#include "bench.h"
#include "spec/cost/hw.h"
#include "spec/model/tuning.h"
#include "step_opts.h"
#include "train/predict/bench_sampling.h"
#include "train/predict/dry_run_page.h"
#include "train/predict/memory_chart.h"

static struct bench_step_opts model_opts = BENCH_STEP_OPTS_INIT;
static struct vfm_table_opts table_opts;
static int64_t repeat = 5, warmup = 2, steps = 32;
static struct vfm_context_opts rank_opts = VFM_CONTEXT_OPTS_INIT;
static double seconds = 3, cfg = 3;
static const char *offload;
static int stored, solver;

static const struct vfm_opt opts[] = {
	BENCH_MODEL_OPTS(&model_opts),
	{VFM_OPT_NAME, 0, "weights", "same|fp8|int8|nf4", "dtype in which weights of blocks are stored (same: --dtype)",
		&stored},
	{VFM_OPT_STR, 0, "offload-weights", "N|auto",
		"blocks with weights in host memory; auto: as many as memory requires (0)", &offload},
	BENCH_GRID_OPTS(&model_opts),
	{VFM_OPT_INT, 0, "steps", "N", "sampler steps (32)", &steps},
	{VFM_OPT_NAME, 0, "sampler", "auto|euler|heun|unipc|dpm++|res", "auto: heun for edm, euler for flow", &solver},
	{VFM_OPT_NUM, 0, "cfg", "X", "classifier-free guidance scale; 1: none (3)", &cfg},
	BENCH_MACHINE_OPTS(&model_opts),
	{VFM_OPT_INT, 'r', "repeat", "N", "minimum measured evaluations (5)", &repeat},
	{VFM_OPT_NUM, 0, "seconds", "S", "minimum seconds (3)", &seconds},
	{VFM_OPT_INT, 0, "warmup", "N", "unmeasured evaluations before, at least (2)", &warmup},
	VFM_CONTEXT_OPTS_SIM(&rank_opts),
	VFM_TABLE_OPTS(&table_opts),
	{0},
};

static const struct vfm_cmd cmd = {
	.name = "vfm-bench sample",
	.synopsis = "[OPTION ...]",
	.summary = "measure the sampling of videos, or predict it",
	.opts = opts,
	.no_operands = true,
};

static const struct vfm_table_column columns[] = {{"model", "model", 0}, {"hidden", "hidden", 0, VFM_COLUMN_DETAIL},
	{"layers", "layers", 0, VFM_COLUMN_DETAIL}, {"dtype", "dtype", 0, VFM_COLUMN_DETAIL},
	{"weights", "weights", 0, VFM_COLUMN_DETAIL}, {"tokens", "tokens", 0},
	{"videos", "videos", 0, VFM_COLUMN_DETAIL}, {"cfg", "cfg", 1, VFM_COLUMN_DETAIL},
	{"sampler", "sampler", 0, VFM_COLUMN_DETAIL}, {"steps", "steps", 0, VFM_COLUMN_DETAIL}, {"evals", "evals", 0},
	{"eval_ms", "eval ms", 1}, {"min_ms", "min", 1}, {"max_ms", "max", 1}, {"n", "n", 0, VFM_COLUMN_DETAIL},
	{"video_s", "video s", 2}, {"tflops_gpu", "TFLOP/s/GPU", 1}, {"mfu", "MFU", 3}, {"mem_gib", "GiB", 2},
	{"fits", "fits", 0}, {"beside_gib", "beside GiB", 2, VFM_COLUMN_DETAIL},
	{"capacity_gib", "of GiB", 2, VFM_COLUMN_DETAIL}, {"offloaded", "blocks on host", 0, VFM_COLUMN_DETAIL},
	{"host_gib", "host GiB", 2, VFM_COLUMN_DETAIL}, {"ranks", "ranks", 0, VFM_COLUMN_DETAIL},
	{"threads", "threads", 0, VFM_COLUMN_DETAIL}, {"layout", "layout", VFM_TABLE_STRINGS, VFM_COLUMN_DETAIL},
	{"comm", "comm", 3, VFM_COLUMN_DETAIL}, {"copy", "copy", 3, VFM_COLUMN_DETAIL},
	{"slow_attn", "slow attn", 0, VFM_COLUMN_DETAIL}, {"slow_gemm", "slow gemm", 0, VFM_COLUMN_DETAIL},
	{"heuristic_gemm", "heur gemm", 0, VFM_COLUMN_DETAIL}, {"how", "how", 0, VFM_COLUMN_DETAIL},
	{"memory_at_peak", "", 0, VFM_COLUMN_JSON}, {0}};

struct sample_bench {
	struct vfm_config config;
	struct vfm_bench_sampling bench;
	struct vfm_strlist layout; /* assignments to the section parallel */
};

/* ---- the table ---- */

static const char *solver_name(const struct sample_bench *s)
{
	static const char *const names[VFM_SOLVER_KINDS] = {"auto", "euler", "heun", "unipc", "dpm++", "res"};
	const bool automatic = s->bench.sampler.solver.kind == VFM_SOLVER_AUTO;

	return automatic ? names[s->config.diffusion.kind == VFM_EDM ? VFM_SOLVER_HEUN : VFM_SOLVER_EULER]
			 : names[s->bench.sampler.solver.kind];
}

static double seconds_of_video(const struct vfm_bench_sampled *r)
{
	return (double)r->video_evals * r->eval_s.median / (double)r->videos;
}

static void add_model_cells(struct vfm_table *t, const struct sample_bench *s)
{
	const struct vfm_config *c = &s->config;

	vfm_table_str(t, "model", model_opts.preset);
	vfm_table_i64(t, "hidden", c->model.hidden);
	vfm_table_i64(t, "layers", c->model.layers);
	vfm_table_str(t, "dtype", c->train.dtype == VFM_BF16 ? "bf16" : "fp32");
	vfm_table_str(t, "weights", vfm_frozen_names[s->bench.inference.stored]);
	vfm_table_f64(t, "cfg", s->bench.sampler.cfg);
	vfm_table_str(t, "sampler", solver_name(s));
	vfm_table_i64(t, "steps", s->bench.sampler.solver.steps);
}

/* device: the name of one device of `world`. */
static void add_sampling_row(struct vfm_table *t, const struct sample_bench *s, const struct vfm_bench_sampled *r,
	const char *device, const struct vfm_parallel *p, int world)
{
	const double eval_s = r->eval_s.median, tflops = r->flops / eval_s / 1e12 / world;
	const double peak = vfm_hw_peak(device, s->config.train.dtype);
	struct vfm_buf layout = {0};

	vfm_table_row(t);
	add_model_cells(t, s);
	vfm_table_i64(t, "tokens", r->tokens);
	vfm_table_i64(t, "videos", r->videos);
	vfm_table_i64(t, "evals", r->video_evals);
	vfm_table_f64(t, "eval_ms", eval_s * 1e3);
	vfm_table_i64(t, "n", r->n);
	vfm_table_f64(t, "video_s", seconds_of_video(r));
	vfm_table_f64(t, "tflops_gpu", tflops);
	if (peak > 0)
		vfm_table_f64(t, "mfu", tflops / peak);
	vfm_table_f64(t, "mem_gib", (double)r->mem_peak / 0x1p30);
	vfm_table_i64(t, "offloaded", r->offloaded);
	vfm_table_f64(t, "host_gib", r->host_bytes / 0x1p30);
	vfm_table_i64(t, "ranks", world);
	vfm_parallel_text(p, &layout);
	vfm_table_str(t, "layout", layout.data);
	vfm_table_f64(t, "comm", r->comm_s / eval_s);
	vfm_table_f64(t, "copy", r->copy_s / eval_s);
	if (world > 1)
		vfm_table_note(t, "%d ranks: %s", world, layout.data);
	vfm_buf_release(&layout);
}

static void note_sampling(
	struct vfm_table *t, const struct sample_bench *s, const struct vfm_bench_sampled *r, int world)
{
	const struct vfm_stalls stalls = {.comm = r->comm_s / r->eval_s.median, .copy = r->copy_s / r->eval_s.median};
	struct vfm_buf b = {0};

	vfm_table_note(t,
		"video s: %lld evaluations (%lld steps of %s) of %.4g s%s%s; without texts, latents and decoding",
		(long long)r->video_evals, (long long)steps, solver_name(s), r->eval_s.median,
		vfm_sampler_is_guided(&s->bench.sampler) ? ", each with text and negative text" : "",
		r->videos > 1 ? ", divided by the videos that are sampled together" : "");
	if (s->bench.inference.offload)
		vfm_table_note(t, "weights of %lld of %lld blocks on the host (%.1f GiB%s)", (long long)r->offloaded,
			(long long)s->config.model.layers, r->host_bytes / 0x1p30, world > 1 ? " of each rank" : "");
	vfm_stalls_sentence(&b, &stalls);
	if (world > 1 || s->bench.inference.offload)
		vfm_table_note(t, "waits for: %s", b.data);
	vfm_buf_release(&b);
}

static int print_sampling(struct vfm_table *t, struct vfm_err *err)
{
	int rc = vfm_table_print(t, &table_opts, stdout, err);

	vfm_table_free(t);
	return rc;
}

static int print_measured(const struct sample_bench *s, const struct vfm_bench_sampled *r, const struct vfm_context *x,
	struct vfm_err *err)
{
	const struct vfm_dev *dev = x->device.dev;
	const int world = x->mesh.world_size;
	struct vfm_table *t = vfm_table_new(columns);

	add_sampling_row(t, s, r, dev->name, &x->mesh.p, world);
	vfm_table_f64(t, "min_ms", r->eval_s.min * 1e3);
	vfm_table_f64(t, "max_ms", r->eval_s.max * 1e3);
	vfm_table_i64(t, "threads", vfm_par_threads());
	bench_fallback_cells(t, dev, &(struct bench_fallbacks){0});
	vfm_table_str(t, "how", "measured");
	note_sampling(t, s, r, world);
	bench_fallback_notes(t, dev);
	bench_note_machine(t, vfm_par_threads(), dev->name, dev->descr);
	vfm_table_note(t, "eval ms: median of %lld evaluations%s", (long long)r->n,
		world > 1 ? "; TFLOP/s of a rank, GiB of the rank with the most" : "");
	return print_sampling(t, err);
}

static void add_predicted_memory(struct vfm_table *t, const struct vfm_bench_sampled *r, const struct vfm_machine *m)
{
	struct vfm_buf b = {0};

	vfm_memory_json(&b, &r->memory);
	vfm_table_json(t, "memory_at_peak", b.data);
	vfm_buf_release(&b);
	vfm_table_str(t, "fits", r->fits ? "yes" : "no");
	vfm_table_f64(t, "beside_gib", (double)r->mem_beside / 0x1p30);
	vfm_table_f64(t, "capacity_gib", (double)m->capacity / 0x1p30);
	vfm_table_note(t, "%s: %.1f of %.1f GiB of each %s%s", r->fits ? "fits" : "does not fit",
		(double)(r->mem_peak + r->mem_beside) / 0x1p30, (double)m->capacity / 0x1p30, m->name,
		r->fits ? "" : "; times are those of a device with enough memory");
	vfm_memory_sentence(&b, &r->memory);
	if (r->mem_peak > r->memory.peak) /* a CPU keeps them in another layout */
		vfm_buf_addf(&b, ", packed weights %.2f", (double)(r->mem_peak - r->memory.peak) / 0x1p30);
	vfm_table_note(t, "GiB at the peak: %s; driver, libraries, unused parts of pool chunks %.2f", b.data,
		(double)r->mem_beside / 0x1p30);
	vfm_buf_release(&b);
}

static int print_predicted(const struct sample_bench *s, const struct vfm_bench_sampled *r, const struct vfm_machine *m,
	int world, struct vfm_err *err)
{
	struct vfm_table *t = vfm_table_new(columns);

	add_sampling_row(t, s, r, m->name, &s->config.parallel, world);
	vfm_table_f64(t, "min_ms", r->s[VFM_HIGH] * 1e3);
	vfm_table_f64(t, "max_ms", r->s[VFM_LOW] * 1e3);
	vfm_table_str(t, "how", "predicted");
	add_predicted_memory(t, r, m);
	note_sampling(t, s, r, world);
	bench_note_predicted(t, model_opts.machine);
	vfm_table_note(t, "min, max: at the high and low rates of the machine%s",
		world > 1 ? "; TFLOP/s of a GPU, GiB of the rank with the most" : "");
	return print_sampling(t, err);
}

/* ---- the run ---- */

static int measure_sampling(struct vfm_context *x, void *ctx, struct vfm_err *err)
{
	struct sample_bench s = *(const struct sample_bench *)ctx;
	struct vfm_bench_sampled r = {0};
	int rc;

	rc = vfm_inference_layout(&s.config, s.layout.v, s.layout.n, false, x->job.world->size, err);
	TRY(vfm_job_agree(&x->job, rc, err));
	TRY(vfm_context_open(x, &s.config, err));
	rc = vfm_bench_sampling_run(x, &s.config, &s.bench, &r, err);
	if (rc == 0 && x->mesh.rank == 0)
		rc = print_measured(&s, &r, x, err);
	vfm_bench_sampled_release(&r);
	return rc;
}

static int predict_sampling(struct sample_bench *s, struct vfm_err *err)
{
	const int ranks = rank_opts.ranks == VFM_UNSET ? 1 : (int)rank_opts.ranks;
	struct vfm_bench_sampled r;
	struct vfm_machine machine;
	int rc;

	TRY(vfm_inference_layout(&s->config, s->layout.v, s->layout.n, false, ranks, err));
	TRY(vfm_machine_load(&machine, model_opts.machine, err));
	rc = vfm_bench_sampling_predict(&s->bench, &s->config, &machine, ranks, &r, err);
	if (rc == 0)
		rc = print_predicted(s, &r, &machine, ranks, err);
	vfm_bench_sampled_release(&r);
	return rc;
}

/* ---- options ---- */

/* Moves the assignments to the section parallel to *layout, and refuses keys that sampling does not use. */
static int divide_sets(struct vfm_strlist *sets, struct vfm_strlist *layout, struct vfm_err *err)
{
	static const char *const used[] = {
		"model.", "diffusion.", "train.residual=", "train.seed=", "train.deterministic="};
	int kept = 0;

	for (int i = 0; i < sets->n; i++) {
		const char *set = sets->v[i];
		bool known = false;

		if (!strncmp(set, "parallel.", 9)) {
			vfm_strlist_add(layout, set);
			continue;
		}
		for (size_t k = 0; k < sizeof(used) / sizeof(used[0]); k++)
			known = known || !strncmp(set, used[k], strlen(used[k]));
		if (!known)
			return vfm_fail(err, VFM_EUSAGE, "%.*s: a benchmark of sampling does not use this key",
				(int)strcspn(set, "="), set);
		sets->v[kept++] = set;
	}
	sets->n = kept;
	return 0;
}

static int parse_sampling(struct sample_bench *s, int argc, char **argv, struct vfm_err *err)
{
	struct vfm_bench_sampling *b = &s->bench;
	struct vfm_bench_step step = {.steps = 1};
	int n, rc = vfm_opt_parse(&cmd, argc, argv, &n, err);

	if (rc != 0)
		return rc;
	TRY(vfm_table_check(columns, &table_opts, err));
	TRY(divide_sets(&model_opts.sets, &s->layout, err));
	TRY(bench_step_parse(&model_opts, &s->config, &step, err));
	*b = (struct vfm_bench_sampling){.samples = step.samples,
		.text_len = step.text_len,
		.inference.stored = stored,
		.warmup = warmup,
		.evals = repeat,
		.min_s = seconds};
	memcpy(b->grid, step.grid, sizeof(b->grid));
	vfm_sampler_defaults(&b->sampler);
	b->sampler.cfg = cfg;
	b->sampler.solver.kind = solver;
	b->sampler.solver.steps = steps;
	if (offload)
		TRY(vfm_inference_parse_offload(&b->inference, offload, &s->config.model, err));
	TRY(vfm_bench_sampling_check(b, &s->config, err));
	rank_opts.machine = model_opts.machine;
	return vfm_context_check(&rank_opts, err);
}

int bench_sample(int argc, char **argv, struct vfm_err *err)
{
	struct sample_bench s = {.layout = {0}};
	int rc = vfm_job_say_once(parse_sampling(&s, argc, argv, err), err);

	if (rc == 0)
		rc = strcmp(rank_opts.device, "sim") ? vfm_context_run(&rank_opts, measure_sampling, &s, err)
						     : predict_sampling(&s, err);
	vfm_strlist_release(&s.layout);
	return rc;
}
