/* dry_run.c - the tables and the page of a dry run, and the checks that set its exit status. */
#include "dry_run.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "device/sim/network.h"
#include "io/file.h"
#include "io/opt.h"
#include "io/table.h"
#include "io/version.h"
#include "spec/cost/hw.h"
#include "spec/cost/goodput.h"
#include "train/job/context.h"
#include "train/predict/dry_run.h"
#include "train/predict/dry_run_page.h"
#include "train/predict/memory_chart.h"

static const char *const class_keys[VFM_SIM_CLASSES] = {
	"gemm_ms", "attention_ms", "memory_ms", "optimizer_ms", "transfer_ms", "comm_ms"};

static const struct vfm_table_column rank_columns[] = {{"rank", "rank", 0}, {"stage", "pp stage", 0},
	{"stands_for", "stands for", 0}, {"packs", "packs", 0}, {"mem_gib", "GiB", 2}, {"fits", "fits", 0},
	{"step_ms", "step ms", 1}, {"low_ms", "at low rates", 1}, {"high_ms", "at high", 1},
	{"tflops_gpu", "TFLOP/s/GPU", 1}, {"mfu", "MFU", 3}, {"tok_s_gpu", "token/s/GPU", 0}, {"gemm_ms", "gemm", 1},
	{"attention_ms", "attention", 1}, {"memory_ms", "memory", 1}, {"optimizer_ms", "optimizer", 1},
	{"transfer_ms", "transfer", 1}, {"comm_ms", "comm", 1}, {"exposed_comm", "exposed", 3}, {"bubble", "bubble", 3},
	{"copy", "copy", 3}, {"imbalance", "imbalance", 3}, {"straggler_ms", "with stragglers", 1},
	{"steps", "steps", 0}, {"hours", "hours", 2}, {"goodput", "goodput", 3},
	{"recompute", "recompute", VFM_TABLE_STRINGS}, {"memory_at_peak", "", 0, VFM_COLUMN_JSON}, {0}};

/* Prints a table of ranks, or without --columns in text and md a summary. */
struct dry_report {
	const struct dry_run_cli *o;
	const struct vfm_dry_run_opts *opts;
	const struct vfm_dry_run *d;
	struct vfm_table *t;
	bool summary;
};

static bool is_summary(const struct vfm_table_opts *o)
{
	return !o->columns && (o->format == VFM_TABLE_TEXT || o->format == VFM_TABLE_MD);
}

/* Adds a row of the summary, or a note of the table. */
__attribute__((format(printf, 3, 4))) static void add_fact(
	const struct dry_report *r, const char *fact, const char *fmt, ...)
{
	char *s;
	va_list ap;

	va_start(ap, fmt);
	s = vfm_vstrfmt(fmt, ap);
	va_end(ap);
	if (r->summary) {
		vfm_table_row(r->t);
		vfm_table_str(r->t, "fact", fact);
		vfm_table_str(r->t, "value", s);
	} else {
		vfm_table_note(r->t, "%s: %s", fact, s);
	}
	free(s);
}

/* ---- facts of the summary and notes of the table ---- */

static void add_fit(const struct dry_report *r)
{
	const struct vfm_dry_run *d = r->d;
	const struct vfm_machine *m = r->opts->machine;
	const struct vfm_dry_run_rank *full = &d->rank[d->fullest];
	struct vfm_buf b = {0};

	add_fact(r, d->fits ? "fits" : "does not fit", "%.1f of %.1f GiB of each %s%s",
		(double)(d->mem_peak + d->mem_beside) / 0x1p30, (double)m->capacity / 0x1p30, m->name,
		d->fits ? "" : "; times are those of a GPU with enough memory");
	vfm_memory_sentence(&b, &full->memory);
	if (!d->fits)
		add_fact(r, "to fit", "--levers prints the settings that save memory, and what they cost");
	add_fact(r, "memory", "GiB at the peak of rank %d: %s; driver, libraries, unused parts of pool chunks %.2f",
		full->rank, b.data, (double)d->mem_beside / 0x1p30);
	vfm_buf_release(&b);
}

/* The plan of each pp stage, once where they are equal. */
static void add_recompute(const struct dry_report *r)
{
	const struct vfm_dry_run *d = r->d;
	bool equal = true;

	for (int i = 1; i < d->n; i++)
		equal &= !strcmp(d->rank[i].recompute, d->rank[0].recompute);
	for (int i = 0; i < (equal ? 1 : d->n); i++) {
		char stage[32] = "";

		if (!*d->rank[i].recompute || (i && d->rank[i].stage == d->rank[i - 1].stage))
			continue;
		if (!equal)
			snprintf(stage, sizeof(stage), "pp stage %d: ", d->rank[i].stage);
		add_fact(r, "recompute", "%s%s", stage, d->rank[i].recompute);
	}
}

static void add_distinct_packs(const struct dry_report *r)
{
	const struct vfm_dry_run *d = r->d;

	if (d->dp_distinct > 1)
		add_fact(r, "packs", "%d dp ranks have different ones, of which %d are simulated%s", d->dp_distinct,
			d->dp_classes,
			d->dp_classes < d->dp_distinct ? ", the most expensive and some by their cost" : "");
}

static void add_stragglers(const struct dry_report *r)
{
	double cv = r->o->uneven.straggler_cv;

	if (cv > 0)
		add_fact(r, "stragglers", "the mean step takes %.1f ms; the slowest of %d GPUs takes %.3f of the mean",
			r->d->s[VFM_MID] * 1e3 * r->d->straggler, r->opts->ranks,
			vfm_straggler_factor(cv, r->opts->ranks));
}

static struct vfm_failures failures_of(const struct dry_run_cli *o)
{
	return (struct vfm_failures){o->mtbf_h * 3600 / (double)o->ranks, o->save_s, o->restart_s};
}

/* Returns the goodput; 0 if there is none, 1 without failures. */
static double goodput_of(const struct dry_run_cli *o)
{
	struct vfm_failures f = failures_of(o);

	return o->mtbf_h <= 0 ? 1 : vfm_goodput_applies(&f) ? vfm_goodput(&f, vfm_best_interval(&f)) : 0;
}

static double hours_of(const struct dry_report *r)
{
	return r->d->total_s * r->d->straggler / 3600 / goodput_of(r->o);
}

static void add_hours(const struct dry_report *r)
{
	const struct vfm_dry_run *d = r->d;
	const char *with = r->o->mtbf_h > 0 ? "with failures" : "without checkpoints and failures";
	struct vfm_failures f = failures_of(r->o);
	struct vfm_buf b = {0};

	if (d->steps && goodput_of(r->o) <= 0)
		add_fact(r, "hours", "unknown without goodput");
	else if (d->steps && r->o->plan)
		add_fact(r, "hours",
			"%.2f for the %lld steps of the plan, %s; from %d of different cost; shown: step %lld",
			hours_of(r), (long long)d->steps, with, d->timed_steps, (long long)d->step);
	else if (d->steps)
		add_fact(r, "hours", "%.2f for %lld such steps, %s", hours_of(r), (long long)d->steps, with);
	if (r->o->mtbf_h > 0) {
		vfm_goodput_sentence(&b, &f);
		add_fact(r, "failures", "%s", b.data);
		vfm_buf_release(&b);
	}
}

/* The allocation of a job of several ranks. */
static void add_allocation(const struct dry_report *r)
{
	const struct vfm_machine *m = r->opts->machine;
	struct vfm_buf b = {0};

	if (r->opts->ranks == 1)
		return;
	vfm_nodes_sentence(&b, m, r->opts->ranks);
	add_fact(r, "allocation", "%s, %s", b.data,
		r->o->step.nodes                     ? "as in this Slurm step"
			: m->kind == VFM_MACHINE_CPU ? "the machine"
						     : "as many on a node as the machine has");
	vfm_buf_release(&b);
}

/* ---- facts of the summary ---- */

static void add_speed(const struct dry_report *r)
{
	const struct vfm_dry_run *d = r->d;
	double s = d->s[VFM_MID], tflops = d->flops / s / 1e12 / r->opts->ranks;
	double peak = vfm_hw_peak(r->opts->machine->name, r->opts->config->train.dtype);
	struct vfm_stalls stalls = {d->comm_s / s, d->bubble_s / s, d->copy_s / s, d->imbalance};
	struct vfm_buf b = {0};

	add_fact(r, "step", "%.1f ms (%.1f at the high rates of the machine, %.1f at the low ones)", s * 1e3,
		d->s[VFM_HIGH] * 1e3, d->s[VFM_LOW] * 1e3);
	if (peak > 0)
		vfm_buf_addf(&b, ", MFU %.1f %%", tflops / peak * 100);
	add_fact(r, "speed", "%.1f TFLOP/s per GPU%s, %.0f tokens/s per GPU, %.0f in all", tflops, b.len ? b.data : "",
		d->tokens / s / r->opts->ranks, d->tokens / s);
	vfm_buf_release(&b);
	vfm_stalls_sentence(&b, &stalls);
	add_fact(r, "waits for", "%s", b.data);
	vfm_buf_release(&b);
}

static void add_networks_fact(const struct dry_report *r)
{
	const struct vfm_dry_run *d = r->d;
	double s = d->exchange.s[VFM_MID];

	if (d->exchanges > 0)
		add_fact(r, "networks", "two in turn: an exchange of %.4g GiB takes %.1f ms, %.1f ms a step on average",
			(double)d->exchange.bytes / 0x1p30, s * 1e3, d->exchanges * s * 1e3);
}

static void add_layout_fact(const struct dry_report *r)
{
	struct vfm_parallel p = r->opts->config->parallel;
	struct vfm_buf b = {0};

	if (r->opts->ranks == 1 || vfm_parallel_check(&p, &r->opts->config->model, r->opts->ranks, NULL) < 0)
		return;
	vfm_parallel_text(&p, &b);
	add_fact(r, "layout", "%s", b.data);
	vfm_buf_release(&b);
}

static void add_data_fact(const struct dry_report *r)
{
	if (r->opts->plan)
		add_fact(r, "data", "step %lld of %s, %.0f tokens", (long long)r->d->step, r->opts->plan,
			(double)r->d->tokens);
	else
		add_fact(r, "data", "%lld packs of %lld tokens a step", (long long)r->opts->packs,
			(long long)r->opts->context);
}

static struct vfm_table *new_summary(const struct dry_report *r)
{
	struct vfm_table *t = vfm_table_new(NULL);
	char *head = vfm_strfmt("for %d %s of the machine %s, in %s, not measured", r->opts->ranks,
		r->opts->machine->kind == VFM_MACHINE_CPU ? "ranks"
			: r->opts->ranks == 1             ? "GPU"
							  : "GPUs",
		r->o->machine, r->opts->config->train.dtype == VFM_F32 ? "fp32" : "bf16");

	vfm_table_col(t, "fact", "predicted", 0);
	vfm_table_col(t, "value", head, 0);
	free(head);
	return t;
}

/* ---- the table of ranks ---- */

static void add_memory_cell(struct vfm_table *t, const struct vfm_dry_run_rank *r)
{
	struct vfm_buf b = {0};

	vfm_memory_json(&b, &r->memory);
	vfm_table_json(t, "memory_at_peak", b.data);
	vfm_buf_release(&b);
}

static void add_rank_row(struct vfm_table *t, const struct vfm_dry_run_rank *r, double step_s)
{
	vfm_table_row(t);
	vfm_table_i64(t, "rank", r->rank);
	vfm_table_i64(t, "stage", r->stage);
	vfm_table_i64(t, "stands_for", r->stands_for);
	vfm_table_i64(t, "packs", r->packs);
	vfm_table_f64(t, "mem_gib", (double)r->mem_peak / 0x1p30);
	for (int c = 0; c < VFM_SIM_CLASSES; c++)
		vfm_table_f64(t, class_keys[c], r->class_s[c] * 1e3);
	vfm_table_f64(t, "imbalance", r->wait_s / step_s);
	vfm_table_str(t, "recompute", *r->recompute ? r->recompute : NULL);
	add_memory_cell(t, r);
}

/* The row of the whole job. */
static void add_job_row(const struct dry_report *r)
{
	struct vfm_table *t = r->t;
	const struct vfm_dry_run *d = r->d;
	double s = d->s[VFM_MID], goodput = goodput_of(r->o), tflops = d->flops / s / 1e12 / r->opts->ranks;
	double peak = vfm_hw_peak(r->opts->machine->name, r->opts->config->train.dtype);

	vfm_table_row(t);
	vfm_table_str(t, "rank", "all");
	vfm_table_i64(t, "stands_for", r->opts->ranks);
	vfm_table_f64(t, "mem_gib", (double)d->mem_peak / 0x1p30);
	vfm_table_str(t, "fits", d->fits ? "yes" : "no");
	add_memory_cell(t, &d->rank[d->fullest]);
	vfm_table_f64(t, "step_ms", s * 1e3);
	vfm_table_f64(t, "low_ms", d->s[VFM_LOW] * 1e3);
	vfm_table_f64(t, "high_ms", d->s[VFM_HIGH] * 1e3);
	vfm_table_f64(t, "tflops_gpu", tflops);
	if (peak > 0)
		vfm_table_f64(t, "mfu", tflops / peak);
	vfm_table_f64(t, "tok_s_gpu", d->tokens / s / r->opts->ranks);
	vfm_table_f64(t, "exposed_comm", d->comm_s / s);
	vfm_table_f64(t, "bubble", d->bubble_s / s);
	vfm_table_f64(t, "copy", d->copy_s / s);
	vfm_table_f64(t, "imbalance", d->imbalance);
	if (r->o->uneven.straggler_cv > 0)
		vfm_table_f64(t, "straggler_ms", s * 1e3 * d->straggler);
	if (r->o->mtbf_h > 0 && goodput > 0)
		vfm_table_f64(t, "goodput", goodput);
	if (d->steps)
		vfm_table_i64(t, "steps", d->steps);
	if (d->steps && goodput > 0)
		vfm_table_f64(t, "hours", hours_of(r));
}

static int print_prediction(struct dry_report *r, const struct vfm_table_opts *table, struct vfm_err *err)
{
	int rc;

	r->summary = is_summary(table);
	r->t = r->summary ? new_summary(r) : vfm_table_new(rank_columns);
	for (int i = 0; i < r->d->n && !r->summary; i++)
		add_rank_row(r->t, &r->d->rank[i], r->d->s[VFM_MID]);
	if (!r->summary)
		add_job_row(r);
	add_fit(r);
	add_recompute(r);
	if (r->summary) {
		add_speed(r);
		add_networks_fact(r);
		add_data_fact(r);
		add_layout_fact(r);
	}
	add_allocation(r);
	add_distinct_packs(r);
	add_stragglers(r);
	add_hours(r);
	if (!r->summary)
		vfm_table_note(r->t, "predicted for %d GPUs of the machine %s, not measured; vfm %s", r->opts->ranks,
			r->o->machine, vfm_version());
	rc = vfm_table_print(r->t, table, stdout, err);
	vfm_table_free(r->t);
	return rc;
}

/* The trace appears complete or not at all. */
static int run_traced(struct vfm_dry_run_opts *opts, const char *path, struct vfm_dry_run *d, struct vfm_err *err)
{
	struct vfm_atomic f;
	int rc;

	if (!path)
		return vfm_dry_run(opts, d, err);
	TRY(vfm_atomic_open(&f, path, err));
	opts->trace = f.f;
	rc = vfm_dry_run(opts, d, err);
	if (rc < 0)
		vfm_atomic_abort(&f);
	else
		rc = vfm_atomic_commit(&f, err);
	return rc;
}

static int write_dry_page(const struct vfm_dry_run_opts *o, const struct vfm_dry_run *d, const struct dry_run_cli *cli,
	struct vfm_err *err)
{
	struct vfm_failures failures = failures_of(cli);
	struct vfm_scaled_run scaled[VFM_SCALED_MOST];
	struct vfm_dry_run_page page = {
		.o = o, .d = d, .scaled = scaled, .failures = cli->mtbf_h > 0 ? &failures : NULL};
	struct vfm_buf b = {0};
	int rc = o->plan ? 0 : vfm_scale_run(o, d, scaled, &page.n_scaled, err);

	if (rc == 0) {
		vfm_dry_run_html(&b, &page);
		rc = vfm_write_file(cli->html, b.data, b.len, err);
	}
	vfm_buf_release(&b);
	return rc;
}

/* ---- the options ---- */

static int check_failures(struct dry_run_cli *o, struct vfm_err *err)
{
	double *const seconds[] = {&o->save_s, &o->restart_s};
	static const char *const names[] = {"--save-s", "--restart-s"};
	static const double defaults[] = {10, 300};

	for (int i = 0; i < 2; i++) {
		if (!isnan(*seconds[i]) && isnan(o->mtbf_h))
			return vfm_fail(err, VFM_EUSAGE, "%s: only with --mtbf-hours", names[i]);
		if (isnan(*seconds[i]))
			*seconds[i] = defaults[i];
	}
	if (isnan(o->mtbf_h))
		o->mtbf_h = 0;
	return 0;
}

static int check_packs(struct dry_run_cli *o, const struct vfm_parallel *p, struct vfm_err *err)
{
	enum { PACKS_OF_DP = 8 };
	int64_t of_model = p->tp * p->cp * p->pp, dp = o->ranks > of_model ? o->ranks / of_model : 1;

	if (o->plan && (o->context != VFM_UNSET || o->packs != VFM_UNSET))
		return vfm_fail(err, VFM_EUSAGE, "--data: the plan has the packs; leave out --context and --packs");
	if (o->context == VFM_UNSET)
		o->context = 8192;
	if (o->packs == VFM_UNSET) {
		o->packs = PACKS_OF_DP * dp;
		if (o->packs > DRY_RUN_PACKS && !o->plan)
			return vfm_fail(err, VFM_EUSAGE,
				"--packs is missing: %d for each of %lld dp ranks are more than %d packs a step",
				PACKS_OF_DP, (long long)dp, DRY_RUN_PACKS);
	}
	return 0;
}

int check_dry_run(struct dry_run_cli *o, const struct vfm_parallel *p, struct vfm_err *err)
{
	if (o->levers && (o->html || o->trace))
		return vfm_fail(
			err, VFM_EUSAGE, "--levers: it prints a table; leave out %s", o->html ? "--html" : "--trace");
	TRY(check_packs(o, p, err));
	return check_failures(o, err);
}

int print_dry_run(const struct vfm_config *c, const struct dry_run_cli *o, struct vfm_err *err)
{
	struct vfm_machine machine;
	struct vfm_dry_run_opts opts = {.config = c,
		.machine = &machine,
		.ranks = (int)o->ranks,
		.plan = o->plan,
		.context = o->context,
		.packs = o->packs,
		.timeline = o->html != NULL,
		.memory = true};
	struct vfm_table_opts table = {(int)o->table.format < 0 ? VFM_TABLE_TEXT : o->table.format, o->table.columns};
	struct vfm_dry_run d;
	int rc;

	TRY(o->levers ? check_levers(&table, err) : vfm_table_check(rank_columns, &table, err));
	TRY(vfm_uneven_parse(&o->uneven, o->ranks, &opts, err));
	TRY(vfm_machine_load(&machine, o->machine, err));
	if (o->device && !strcmp(o->device, "cuda") != (machine.kind == VFM_MACHINE_GPU))
		return vfm_fail(err, VFM_EUSAGE, "--device %s: the machine '%s' has %s", o->device, machine.name,
			machine.kind == VFM_MACHINE_GPU ? "GPUs" : "no GPUs");
	if (o->step.nodes)
		TRY(vfm_sim_set_node(&machine, o->step.nodes, o->step.per_node, err));
	if (o->levers)
		return print_levers(&opts, o->machine, &table, err);
	if (run_traced(&opts, o->trace, &d, err) < 0) {
		vfm_dry_run_release(&d);
		return err->code;
	}
	rc = print_prediction(&(struct dry_report){.o = o, .opts = &opts, .d = &d}, &table, err);
	if (rc == 0 && o->html)
		rc = write_dry_page(&opts, &d, o, err);
	vfm_dry_run_release(&d);
	return rc;
}
