/* vfm-bench step - times a training step of one model on synthetic samples. */
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "base/opt.h"
#include "base/par.h"
#include "bench.h"
#include "spec/hw.h"
#include "train/bench.h"

static const char *preset = "dit-s", *grid = "4,16,16", *dtype = "fp32", *recompute = "none", *format = "text";
static int64_t hidden = VFM_UNSET, layers = VFM_UNSET, heads = VFM_UNSET, text_dim = VFM_UNSET, samples = 1,
	       text_len = 77, packs = 1, steps = 5, warmup = 2;
static struct vfm_context_opts rank_opts = VFM_CONTEXT_OPTS_INIT;
static struct vfm_strlist sets;
static double seconds = 3;

static const struct vfm_opt opts[] = {
	{VFM_OPT_STR, 0, "model", "PRESET", "dimensions to start from (dit-s)", &preset},
	{VFM_OPT_INT, 0, "hidden", "N", "override the width", &hidden},
	{VFM_OPT_INT, 0, "layers", "N", "override the number of blocks", &layers},
	{VFM_OPT_INT, 0, "heads", "N", "override the number of heads", &heads},
	{VFM_OPT_INT, 0, "text-dim", "N", "override the features of a text row", &text_dim},
	{VFM_OPT_INT, 0, "text-len", "N", "text rows of a sample (77)", &text_len},
	{VFM_OPT_INT, 0, "samples", "N", "samples in a pack (1)", &samples},
	{VFM_OPT_STR, 0, "grid", "T,H,W", "tokens of a sample as a grid of patches (4,16,16)", &grid},
	{VFM_OPT_INT, 0, "packs", "N", "packs per step, over all ranks (1)", &packs},
	{VFM_OPT_STR, 0, "dtype", "fp32|bf16", "of matrices and activations (fp32)", &dtype},
	{VFM_OPT_STR, 0, "recompute", "none|light|outputs|selective|full", "what the backward recomputes (none)",
		&recompute},
	{VFM_OPT_INT, 0, "steps", "N", "minimum measured steps (5)", &steps},
	{VFM_OPT_NUM, 0, "seconds", "S", "minimum seconds (3)", &seconds},
	{VFM_OPT_INT, 0, "warmup", "N", "unmeasured steps before (2)", &warmup},
	{VFM_OPT_LIST, 0, "set", "KEY=VALUE",
		"a key of the configuration (vfm-config(5)), such as parallel.tp=2; may be repeated", &sets},
	VFM_CONTEXT_OPTS(&rank_opts),
	{VFM_OPT_STR, 'o', "output", VFM_TABLE_FORMATS, "how to print the table", &format},
	{0},
};

static const struct vfm_cmd cmd = {
	.name = "vfm-bench step",
	.synopsis = "[-q] [--model PRESET] [--hidden N] [--layers N] [--heads N] [--text-dim N] "
		    "[--text-len N] [--samples N] [--grid T,H,W] [--packs N] [--dtype fp32|bf16] "
		    "[--recompute none|light|outputs|selective|full] [--steps N] [--seconds S] [--warmup N] "
		    "[--set KEY=VALUE ...] " VFM_CONTEXT_SYNOPSIS " [-o " VFM_TABLE_FORMATS "]",
	.summary = "measure one training step",
	.opts = opts,
};

static int parse_grid(const char *text, int32_t out[3], struct vfm_err *err)
{
	char buf[64], *save = NULL, *part;
	int64_t v;
	int n = 0;

	if (strlen(text) >= sizeof(buf))
		return vfm_fail(err, VFM_EUSAGE, "--grid: expected T,H,W, got '%s'", text);
	strcpy(buf, text);
	for (part = strtok_r(buf, ",", &save); part && n < 3; part = strtok_r(NULL, ",", &save)) {
		TRY(vfm_parse_i64(part, 1, 4096, &v, err) < 0 ? vfm_err_context(err, "--grid") : 0);
		out[n++] = (int32_t)v;
	}
	return n == 3 && !part ? 0 : vfm_fail(err, VFM_EUSAGE, "--grid: expected T,H,W, got '%s'", text);
}

static int read_step_config(struct vfm_config *c, struct vfm_err *err)
{
	char set[64];

	vfm_config_defaults(c);
	c->train.ema_decay = 0;
	TRY(vfm_model_preset(preset, &c->model, err) < 0 ? vfm_err_context(err, "--model") : 0);
	if (hidden != VFM_UNSET) {
		c->model.hidden = hidden;
		c->model.ffn = 0;
	}
	if (layers != VFM_UNSET)
		c->model.layers = layers;
	if (heads != VFM_UNSET)
		c->model.heads = heads;
	if (text_dim != VFM_UNSET)
		c->model.text_dim = text_dim;
	snprintf(set, sizeof(set), "train.dtype=%s", dtype);
	TRY(vfm_bench_set(c, set, err));
	snprintf(set, sizeof(set), "train.recompute=%s", recompute);
	TRY(vfm_bench_set(c, set, err));
	for (int i = 0; i < sets.n; i++)
		TRY(vfm_bench_set(c, sets.v[i], err));
	return vfm_config_check(c, err);
}

struct measurement {
	struct vfm_config config;
	struct vfm_bench_step step;
	enum vfm_table_format format;
};

static int print(
	const struct measurement *m, const struct vfm_bench_result *r, const struct vfm_context *x, struct vfm_err *err)
{
	const struct vfm_config *c = &m->config;
	const struct vfm_bench_step *b = &m->step;
	const struct vfm_dev *dev = x->device.dev;
	int world = x->mesh.world_size;
	double peak = vfm_hw_peak(dev->name, c->train.dtype);
	struct vfm_buf layout = {0};
	struct vfm_table *t = vfm_table_new();
	int rc;

	vfm_table_col(t, "model", "model", 0);
	vfm_table_col(t, "hidden", "hidden", 0);
	vfm_table_col(t, "layers", "layers", 0);
	vfm_table_col(t, "dtype", "dtype", 0);
	vfm_table_col(t, "tokens", "tokens", 0);
	vfm_table_col(t, "samples", "samples", 0);
	vfm_table_col(t, "step_ms", "step ms", 1);
	vfm_table_col(t, "min_ms", "min", 1);
	vfm_table_col(t, "max_ms", "max", 1);
	vfm_table_col(t, "n", "n", 0);
	vfm_table_col(t, "gflops", "GFLOP/s", 0);
	vfm_table_col(t, "mfu", "MFU", 3);
	vfm_table_col(t, "tok_s", "token/s", 0);
	vfm_table_col(t, "mem_gib", "GiB", 2);
	vfm_table_col(t, "ranks", "ranks", 0);
	vfm_table_col(t, "threads", "threads", 0);
	vfm_table_col(t, "layout", "layout", 0);
	vfm_table_col(t, "comm", "comm", 3);
	vfm_table_col(t, "bubble", "bubble", 3);
	vfm_table_col(t, "copy", "copy", 3);
	vfm_table_col(t, "host_ms", "host ms", 1);
	vfm_table_col(t, "ahead_ms", "ahead", 1);
	bench_fallback_columns(t);
	vfm_table_col(t, "compactions", "compactions", 0);
	vfm_table_row(t);
	vfm_table_str(t, "model", preset);
	vfm_table_i64(t, "hidden", c->model.hidden);
	vfm_table_i64(t, "layers", c->model.layers);
	vfm_table_str(t, "dtype", c->train.dtype == VFM_BF16 ? "bf16" : "fp32");
	vfm_table_i64(t, "tokens", r->tokens);
	vfm_table_i64(t, "samples", b->samples * b->packs);
	vfm_table_f64(t, "step_ms", r->step_s.median * 1e3);
	vfm_table_f64(t, "min_ms", r->step_s.min * 1e3);
	vfm_table_f64(t, "max_ms", r->step_s.max * 1e3);
	vfm_table_i64(t, "n", r->n);
	vfm_table_f64(t, "gflops", r->flops / r->step_s.median / 1e9);
	if (peak > 0)
		vfm_table_f64(t, "mfu", r->flops / r->step_s.median / 1e12 / peak / world);
	vfm_table_f64(t, "tok_s", (double)r->tokens / r->step_s.median);
	vfm_table_f64(t, "mem_gib", (double)r->mem_peak_bytes / 0x1p30);
	vfm_table_i64(t, "threads", vfm_par_threads());
	vfm_table_i64(t, "ranks", world);
	bench_layout(&x->mesh.p, &layout);
	vfm_table_str(t, "layout", layout.data);
	vfm_table_f64(t, "comm", r->comm_s / r->step_s.median);
	vfm_table_f64(t, "bubble", r->bubble_s / r->step_s.median);
	vfm_table_f64(t, "copy", r->copy_s / r->step_s.median);
	vfm_table_f64(t, "host_ms", r->host_s * 1e3);
	vfm_table_f64(t, "ahead_ms", r->ahead_s * 1e3);
	bench_fallback_cells(t, dev, &(struct bench_fallbacks){0});
	vfm_table_i64(t, "compactions", r->compactions);
	vfm_buf_release(&layout);
	vfm_table_note(t, "device %s: %s", dev->name, dev->descr);
	bench_fallback_notes(t, dev);
	bench_note_machine(t, vfm_par_threads());
	vfm_table_note(t, "median of n steps: forward, backward, AdamW; FLOPs of the model, 3 x forward");
	if (world > 1)
		vfm_table_note(t,
			"sums over all ranks; threads: per rank; GiB: maximum over the ranks; comm, bubble: fractions "
			"of "
			"the step that a rank waited for communication, for other stages");
	rc = vfm_table_print(t, m->format, stdout, err);
	vfm_table_free(t);
	return rc;
}

static int measure_step(struct vfm_context *x, void *ctx, struct vfm_err *err)
{
	const struct measurement *m = ctx;
	struct vfm_bench_result r;

	TRY(vfm_context_open(x, &m->config, err));
	TRY(vfm_bench_run(x, &m->config, &m->step, &r, err));
	return x->mesh.rank == 0 ? print(m, &r, x, err) : 0;
}

static int parse_step(struct measurement *m, int argc, char **argv, struct vfm_err *err)
{
	int n, rc = vfm_opt_parse(&cmd, argc, argv, &n, err);

	if (rc != 0)
		return rc;
	if (n > 0)
		return vfm_fail(err, VFM_EUSAGE, "unexpected operand '%s'", argv[1]);
	TRY(vfm_table_format(format, &m->format, err));
	TRY(read_step_config(&m->config, err));
	vfm_strlist_release(&sets);
	m->step = (struct vfm_bench_step){.samples = samples,
		.text_len = text_len,
		.packs = packs,
		.warmup = warmup,
		.steps = steps,
		.min_s = seconds};
	TRY(parse_grid(grid, m->step.grid, err));
	TRY(vfm_bench_check(&m->step, err));
	return vfm_context_check(&rank_opts, err);
}

int bench_step(int argc, char **argv, struct vfm_err *err)
{
	struct measurement m;
	int rc = vfm_job_say_once(parse_step(&m, argc, argv, err), err);

	return rc != 0 ? rc : vfm_context_run(&rank_opts, measure_step, &m, err);
}
