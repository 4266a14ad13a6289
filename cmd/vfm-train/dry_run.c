/* dry_run.c - the tables and the page of a dry run, and the checks that set its exit status. */
#include "dry_run.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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

static void add_dry_run_columns(struct vfm_table *t)
{
	static const struct vfm_table_column front[] = {{"rank", "rank", 0}, {"stage", "pp stage", 0},
		{"stands_for", "stands for", 0}, {"packs", "packs", 0}, {"mem_gib", "GiB", 2}, {"fits", "fits", 0},
		{"step_ms", "step ms", 1}, {"low_ms", "at low rates", 1}, {"high_ms", "at high", 1},
		{"tflops_gpu", "TFLOP/s/GPU", 1}, {"mfu", "MFU", 3}, {"tok_s_gpu", "token/s/GPU", 0}, {0}};
	static const struct vfm_table_column behind[] = {{"exposed_comm", "exposed", 3}, {"bubble", "bubble", 3},
		{"copy", "copy", 3}, {"imbalance", "imbalance", 3}, {"straggler_ms", "with stragglers", 1},
		{"steps", "steps", 0}, {"hours", "hours", 2}, {"goodput", "goodput", 3}, {0}};

	vfm_table_columns(t, front);
	for (int c = 0; c < VFM_SIM_CLASSES; c++)
		vfm_table_col(t, class_keys[c], vfm_sim_class_name((enum vfm_sim_class)c), 1);
	vfm_table_columns(t, behind);
	vfm_table_json_col(t, "memory_at_peak");
}

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
	add_memory_cell(t, r);
}

/* What the rank with the highest peak holds then. */
static void add_highest_peak(struct vfm_table *t, const struct vfm_dry_run *d)
{
	const struct vfm_dry_run_rank *r = &d->rank[d->fullest];
	struct vfm_buf b = {0};

	add_memory_cell(t, r);
	vfm_memory_sentence(&b, &r->memory);
	vfm_table_note(t, "memory at the peak of rank %d: %s", r->rank, b.data);
	vfm_buf_release(&b);
}

static struct vfm_failures failures_of(const struct dry_run_cli *o)
{
	return (struct vfm_failures){o->mtbf_h * 3600 / (double)o->ranks, o->save_s, o->restart_s};
}

/* Returns the goodput; 0 if there is none. */
static double add_goodput(struct vfm_table *t, const struct dry_run_cli *o)
{
	struct vfm_failures f = failures_of(o);
	struct vfm_buf b = {0};
	double goodput = vfm_goodput_sentence(&b, &f);

	if (goodput > 0)
		vfm_table_f64(t, "goodput", goodput);
	vfm_table_note(t, "%s", b.data);
	vfm_buf_release(&b);
	return goodput;
}

static void add_hours(struct vfm_table *t, const struct vfm_dry_run *d, const struct dry_run_cli *o, double goodput)
{
	const char *with = o->mtbf_h > 0 ? "with failures" : "without checkpoints and failures";

	vfm_table_i64(t, "steps", d->steps);
	if (goodput > 0)
		vfm_table_f64(t, "hours", d->total_s * d->straggler / 3600 / goodput);
	else
		vfm_table_note(t, "hours: unknown without goodput");
	if (o->plan)
		vfm_table_note(t, "hours: of all steps, from %d of different cost, %s; shown: step %lld",
			d->timed_steps, with, (long long)d->step);
	else if (goodput > 0)
		vfm_table_note(t, "hours: of %lld such steps, %s", (long long)d->steps, with);
}

static void note_distinct_packs(struct vfm_table *t, const struct vfm_dry_run *d)
{
	if (d->dp_distinct > 1)
		vfm_table_note(t, "dp ranks with different packs: %d, of which %d are simulated%s", d->dp_distinct,
			d->dp_classes,
			d->dp_classes < d->dp_distinct ? ", the most expensive and some by their cost" : "");
}

/* The row of the whole job. */
static void add_job_row(struct vfm_table *t, const struct vfm_dry_run *d, const struct vfm_machine *m,
	const struct dry_run_cli *o, int dtype)
{
	int ranks = (int)o->ranks;
	double s = d->s[VFM_MID], goodput = 1, tflops = d->flops / s / 1e12 / ranks, peak = vfm_hw_peak(m->name, dtype);

	vfm_table_row(t);
	vfm_table_str(t, "rank", "all");
	vfm_table_i64(t, "stands_for", ranks);
	vfm_table_f64(t, "mem_gib", (double)d->mem_peak / 0x1p30);
	vfm_table_str(t, "fits", d->fits ? "yes" : "no");
	vfm_table_note(t,
		"%s: %.1f GiB, with %.1f of the driver, libraries and unused parts of pool chunks, of %.1f of %s",
		d->fits ? "fits" : "does not fit; times are those of a GPU with enough memory",
		(double)(d->mem_peak + d->mem_beside) / 0x1p30, (double)d->mem_beside / 0x1p30,
		(double)m->capacity / 0x1p30, m->name);
	add_highest_peak(t, d);
	vfm_table_f64(t, "step_ms", s * 1e3);
	vfm_table_f64(t, "low_ms", d->s[VFM_LOW] * 1e3);
	vfm_table_f64(t, "high_ms", d->s[VFM_HIGH] * 1e3);
	vfm_table_f64(t, "tflops_gpu", tflops);
	if (peak > 0)
		vfm_table_f64(t, "mfu", tflops / peak);
	vfm_table_f64(t, "tok_s_gpu", d->tokens / s / ranks);
	vfm_table_f64(t, "exposed_comm", d->comm_s / s);
	vfm_table_f64(t, "bubble", d->bubble_s / s);
	vfm_table_f64(t, "copy", d->copy_s / s);
	vfm_table_f64(t, "imbalance", d->imbalance);
	note_distinct_packs(t, d);
	if (o->uneven.straggler_cv > 0) {
		vfm_table_f64(t, "straggler_ms", s * 1e3 * d->straggler);
		vfm_table_note(t,
			"with stragglers: the mean step where the times of GPUs are log-normal with a coefficient of "
			"variation "
			"of %g: the slowest of %d takes %.3f of the mean",
			o->uneven.straggler_cv, ranks, vfm_straggler_factor(o->uneven.straggler_cv, ranks));
	}
	if (o->mtbf_h > 0)
		goodput = add_goodput(t, o);
	if (!d->steps)
		return;
	add_hours(t, d, o, goodput);
}

/* The allocation of a job of several ranks. */
static void note_nodes(struct vfm_table *t, const struct vfm_machine *m, const struct dry_run_cli *o)
{
	struct vfm_buf b = {0};

	if (o->ranks == 1)
		return;
	vfm_nodes_sentence(&b, m, (int)o->ranks);
	vfm_table_note(t, "allocation: %s, %s", b.data,
		o->step.nodes                        ? "as in this Slurm step"
			: m->kind == VFM_MACHINE_CPU ? "the machine"
						     : "as many on a node as the machine has");
	vfm_buf_release(&b);
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
	struct vfm_dry_run d;
	struct vfm_table *t;
	int rc;

	TRY(vfm_uneven_parse(&o->uneven, o->ranks, &opts, err));
	TRY(vfm_machine_load(&machine, o->machine, err));
	if (o->device && !strcmp(o->device, "cuda") != (machine.kind == VFM_MACHINE_GPU))
		return vfm_fail(err, VFM_EUSAGE, "--device %s: the machine '%s' has %s", o->device, machine.name,
			machine.kind == VFM_MACHINE_GPU ? "GPUs" : "no GPUs");
	if (o->step.nodes)
		TRY(vfm_sim_set_node(&machine, o->step.nodes, o->step.per_node, err));
	if (run_traced(&opts, o->trace, &d, err) < 0) {
		vfm_dry_run_release(&d);
		return err->code;
	}
	t = vfm_table_new(NULL);
	add_dry_run_columns(t);
	for (int i = 0; i < d.n; i++)
		add_rank_row(t, &d.rank[i], d.s[VFM_MID]);
	add_job_row(t, &d, &machine, o, c->train.dtype);
	vfm_table_note(t,
		"ms of a rank: of kernels of each kind, which overlap; exposed, bubble, copy: parts of a step that "
		"the ranks wait for communication, other pp stages, copies; imbalance: for ranks with other packs, "
		"experts or speed");
	note_nodes(t, &machine, o);
	vfm_table_note(t, "predicted for %d GPUs of the machine %s, not measured; vfm %s", opts.ranks, o->machine,
		vfm_version());
	rc = vfm_table_print(t, o->format < 0 ? VFM_TABLE_TEXT : (enum vfm_table_format)o->format, stdout, err);
	if (rc == 0 && o->html)
		rc = write_dry_page(&opts, &d, o, err);
	vfm_table_free(t);
	vfm_dry_run_release(&d);
	return rc;
}
