/* vfm-bench cost - times forward and backward of samples of several lengths: the cost of packs, for vfm-pack --cost. */
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "base/par.h"
#include "io/json.h"
#include "bench.h"
#include "step_opts.h"

enum { MAX_LENGTHS = 64, MORE_PACKS = 2, LAYERS = 2 };

static struct bench_step_opts step_opts = BENCH_STEP_OPTS_INIT;
static struct vfm_table_opts table_opts;
static const char *out_path;
static int64_t repeat = 5, warmup = 2;
static double seconds = 2;
static struct vfm_context_opts rank_opts = VFM_CONTEXT_OPTS_INIT;

static const struct vfm_opt opts[] = {
	{VFM_OPT_STR, 0, "model", "PRESET", "dimensions to start from (dit-s)", &step_opts.preset},
	{VFM_OPT_INT, 0, "hidden", "N", "override the width", &step_opts.hidden},
	{VFM_OPT_INT, 0, "layers", "N", "blocks that are measured (2)", &step_opts.layers},
	{VFM_OPT_INT, 0, "heads", "N", "override the number of heads", &step_opts.heads},
	{VFM_OPT_INT, 0, "text-len", "N", "text rows of a sample (77)", &step_opts.text_len},
	{VFM_OPT_STR, 0, "dtype", "fp32|bf16", "of matrices and activations (fp32)", &step_opts.dtype},
	{VFM_OPT_STR, 0, "recompute", "auto|none|light|outputs|selective|full", "what the backward recomputes (none)",
		&step_opts.recompute},
	{VFM_OPT_LIST, 0, "set", "KEY=VALUE", "a key of the configuration (vfm-config(5)); may be repeated",
		&step_opts.sets},
	{VFM_OPT_INT, 'r', "repeat", "N", "minimum measured steps of each length (5)", &repeat},
	{VFM_OPT_NUM, 0, "seconds", "S", "minimum seconds of each length (2)", &seconds},
	{VFM_OPT_INT, 0, "warmup", "N", "unmeasured steps before, at least (2)", &warmup},
	{VFM_OPT_STR, 0, "write", "FILE", "write the table that vfm-pack --cost reads", &out_path},
	VFM_CONTEXT_OPTS(&rank_opts),
	VFM_TABLE_OPTS(&table_opts),
	{0},
};

static const struct vfm_cmd cmd = {
	.name = "vfm-bench cost",
	.synopsis = "[OPTION ...] [TOKENS ...]",
	.summary = "measure the cost of samples by their length",
	.opts = opts,
};

struct cost_job {
	struct vfm_config config;
	struct vfm_bench_step step;
	int n;
	int64_t tokens[MAX_LENGTHS];
	double ms[MAX_LENGTHS]; /* of one sample, without pack_ms */
	double pack_ms;         /* of a pack, whatever its samples */
};

/* Milliseconds of forward and backward of one pack: what a step takes longer with more packs.  AdamW and all that a
 * step does once are not in it.  The fastest step of each counts: other programs only add time. */
static int time_pack(
	struct vfm_context *x, struct cost_job *j, int64_t tokens, int64_t samples, double *ms, struct vfm_err *err)
{
	struct vfm_bench_result one, more;

	TRY(vfm_bench_grid(&j->config.model, tokens, j->step.grid, err));
	j->step.samples = samples;
	j->step.packs = x->mesh.p.dp;
	TRY(vfm_bench_run(x, &j->config, &j->step, &one, err));
	j->step.packs = (1 + MORE_PACKS) * x->mesh.p.dp;
	TRY(vfm_bench_run(x, &j->config, &j->step, &more, err));
	*ms = (more.step_s.min - one.step_s.min) / MORE_PACKS * 1e3;
	return *ms > 0 ? 0
		       : vfm_fail(err, VFM_EENV,
				 "%lld tokens take no measurable time: the machine is too busy (--seconds, --repeat)",
				 (long long)tokens);
}

static int time_lengths(struct vfm_context *x, struct cost_job *j, struct vfm_err *err)
{
	double two;

	for (int i = 0; i < j->n; i++)
		TRY(time_pack(x, j, j->tokens[i], 1, &j->ms[i], err));
	TRY(time_pack(x, j, j->tokens[0], 2, &two, err));
	j->pack_ms = 2 * j->ms[0] - two;
	if (j->pack_ms < 0 || j->pack_ms >= j->ms[0])
		j->pack_ms = 0;
	for (int i = 0; i < j->n; i++) { /* a longer sample cannot cost less: noise */
		j->ms[i] -= j->pack_ms;
		if (i && j->ms[i] < j->ms[i - 1])
			j->ms[i] = j->ms[i - 1];
	}
	return 0;
}

static int write_cost_file(const struct cost_job *j, struct vfm_err *err)
{
	json_t *table = json_array(), *o;
	int rc;

	for (int i = 0; i < j->n; i++)
		json_array_append_new(table, json_pack("[I,f]", (json_int_t)j->tokens[i], j->ms[i]));
	o = json_pack("{s:i,s:s,s:o,s:f,s:s,s:s}", "v", 1, "type", "vfm-cost", "table", table, "c", j->pack_ms, "unit",
		"ms", "note", step_opts.preset);
	rc = vfm_json_save(NULL, out_path, o, 0, err);
	json_decref(o);
	return rc;
}

static const struct vfm_table_column columns[] = {{"model", "model", 0, VFM_COLUMN_GROUP},
	{"layers", "layers", 0, VFM_COLUMN_GROUP}, {"dtype", "dtype", 0, VFM_COLUMN_GROUP}, {"tokens", "tokens", 0},
	{"ms", "ms a sample", 3}, {"us_token", "us a token", 3}, {"how", "how", 0, VFM_COLUMN_DETAIL}, {0}};

static int print_costs(const struct cost_job *j, const struct vfm_context *x, struct vfm_err *err)
{
	struct vfm_table *t = vfm_table_new(columns);
	int rc;

	for (int i = 0; i < j->n; i++) {
		vfm_table_row(t);
		vfm_table_str(t, "model", step_opts.preset);
		vfm_table_i64(t, "layers", j->config.model.layers);
		vfm_table_str(t, "dtype", j->config.train.dtype == VFM_BF16 ? "bf16" : "fp32");
		vfm_table_i64(t, "tokens", j->tokens[i]);
		vfm_table_f64(t, "ms", j->ms[i]);
		vfm_table_f64(t, "us_token", j->ms[i] * 1e3 / (double)j->tokens[i]);
		vfm_table_str(t, "how", "measured");
	}
	vfm_table_note(t,
		"forward and backward of one more pack, in the fastest steps; %.3f ms of each pack do not depend on "
		"its samples",
		j->pack_ms);
	bench_note_machine(t, vfm_par_threads(), x->device.dev->name, x->device.dev->descr);
	rc = vfm_table_print(t, &table_opts, stdout, err);
	vfm_table_free(t);
	return rc;
}

static int measure_costs(struct vfm_context *x, void *ctx, struct vfm_err *err)
{
	struct cost_job *j = ctx;

	TRY(vfm_context_open(x, &j->config, err));
	TRY(time_lengths(x, j, err));
	if (x->mesh.rank != 0)
		return 0;
	if (out_path)
		TRY(write_cost_file(j, err));
	return print_costs(j, x, err);
}

static int parse_tokens(struct cost_job *j, char **words, int n, struct vfm_err *err)
{
	static char some[][8] = {"256", "1024", "4096", "8192"};

	if (n > MAX_LENGTHS || n == 1)
		return vfm_fail(err, VFM_EUSAGE, "expected 2 to %d lengths", MAX_LENGTHS);
	j->n = n ? n : 4;
	for (int i = 0; i < j->n; i++) {
		const char *word = n ? words[i] : some[i];

		if (vfm_parse_size(word, &j->tokens[i], err) < 0)
			return vfm_err_context(err, "%s", word);
		if (j->tokens[i] < 1 || j->tokens[i] > 1 << 24 || (i && j->tokens[i] <= j->tokens[i - 1]))
			return vfm_fail(
				err, VFM_EUSAGE, "'%s': lengths are ascending, from 1 to %d tokens", word, 1 << 24);
	}
	return 0;
}

static int parse_cost_opts(struct cost_job *j, int argc, char **argv, struct vfm_err *err)
{
	int n, rc;

	step_opts.layers = LAYERS;
	rc = vfm_opt_parse(&cmd, argc, argv, &n, err);
	if (rc != 0)
		return rc;
	TRY(vfm_table_check(columns, &table_opts, err));
	TRY(parse_tokens(j, argv + 1, n, err));
	j->step = (struct vfm_bench_step){.warmup = warmup, .steps = repeat, .min_s = seconds};
	TRY(bench_step_parse(&step_opts, &j->config, &j->step, err));
	return vfm_context_check(&rank_opts, err);
}

int bench_cost(int argc, char **argv, struct vfm_err *err)
{
	static struct cost_job j;
	int rc = vfm_job_say_once(parse_cost_opts(&j, argc, argv, err), err);

	return rc != 0 ? rc : vfm_context_run(&rank_opts, measure_costs, &j, err);
}
