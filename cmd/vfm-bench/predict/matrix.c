/* vfm-bench matrix - measures training steps over models, contexts and configurations. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/par.h"
#include "io/host_memory.h"
#include "io/opt.h"
#include "bench.h"
#include "device/ops/ops.h"
#include "predict/matrix_page.h"
#include "predict/matrix_rows.h"
#include "predict/matrix_table.h"
#include "spec/cost/hw.h"
#include "step_opts.h"
#include "train/job/plan_check.h"
#include "train/predict/bench.h"
#include "train/predict/dry_run.h"
#include "train/predict/step_memory.h"

static struct matrix_lists lists;
static struct vfm_table_opts table_opts;
static const char *predict, *against, *compare, *html, *data;
static struct vfm_uneven_opts uneven;
static int64_t top = VFM_UNSET;
static bool search;
static int64_t text_len = VFM_UNSET, repeat = VFM_UNSET, warmup = VFM_UNSET;
static struct vfm_context_opts rank_opts = VFM_CONTEXT_OPTS_INIT;
static double seconds = NAN; /* not given */

static const struct vfm_opt opts[] = {
	{VFM_OPT_GROUP, 0, NULL, NULL, "Rows:", NULL},
	{VFM_OPT_STR, 0, "model", "LIST", "presets (dit-s,dit-b)", &lists.models},
	{VFM_OPT_STR, 0, "context", "LIST", "tokens of a pack, one sample (1024,4096)", &lists.contexts},
	{VFM_OPT_STR, 0, "dtype", "LIST", "fp32, bf16 (both)", &lists.dtypes},
	{VFM_OPT_STR, 0, "recompute", "LIST", "auto, none, light, outputs, selective, full (none; auto with --search)",
		&lists.recomputes},
	{VFM_OPT_LIST, 0, "set", "KEY=LIST", "values of a key of the configuration (vfm-config(5)); may be repeated",
		&lists.sets},
	{VFM_OPT_STR, 0, "packs", "LIST", "packs per step (1)", &lists.packs},
	{VFM_OPT_INT, 0, "text-len", "N", "text rows of a sample (128)", &text_len},
	{VFM_OPT_GROUP, 0, NULL, NULL, "Measurement:", NULL},
	{VFM_OPT_INT, 'r', "repeat", "N", "minimum measured steps per row (3)", &repeat},
	{VFM_OPT_NUM, 0, "seconds", "S", "minimum seconds per row (2)", &seconds},
	{VFM_OPT_INT, 0, "warmup", "N", "unmeasured steps before, at least (1)", &warmup},
	VFM_CONTEXT_OPTS(&rank_opts),
	{VFM_OPT_GROUP, 0, NULL, NULL, "Prediction:", NULL},
	{VFM_OPT_STR, 0, "predict", "MACHINE", "predict each row for this machine instead (vfm-machine(5))", &predict},
	{VFM_OPT_STR, 0, "gpus", "LIST", "with --predict: GPUs of a row that names none (1)", &lists.gpus},
	{VFM_OPT_STR, 0, "data", "PLAN", "with --predict: the packs of a plan of vfm-pack(1), instead of --context",
		&data},
	VFM_UNEVEN_OPTS("--predict", &uneven),
	{VFM_OPT_GROUP, 0, NULL, NULL, "Search for layouts:", NULL},
	{VFM_OPT_FLAG, 0, "search", NULL, "with --predict: the best layouts of the GPUs of each row", &search},
	{VFM_OPT_INT, 0, "top", "N", "with --search: layouts of a row (10)", &top, 1, 1000},
	{VFM_OPT_GROUP, 0, NULL, NULL, "Comparison:", NULL},
	{VFM_OPT_STR, 0, "against", "FILE", "with --predict: the rows of published figures, and the difference",
		&against},
	{VFM_OPT_STR, 0, "compare", "OLD", "an earlier --format json FILE: the change of each row", &compare},
	{VFM_OPT_GROUP, 0, NULL, NULL, "Output:", NULL},
	{VFM_OPT_STR, 0, "html", "FILE", "also write a page about the rows", &html},
	VFM_TABLE_OPTS(&table_opts),
	{0},
};

static const struct vfm_cmd cmd = {
	.name = "vfm-bench matrix",
	.synopsis = "[OPTION ...] [FILE]\n"
		    "--predict MACHINE [--search | --data PLAN] [OPTION ...] [FILE]\n"
		    "--against FILE [OPTION ...]",
	.summary = "the performance table: models, contexts, configurations",
	.opts = opts,
};

struct matrix {
	struct matrix_rows rows;
	struct matrix_outcome *out;    /* [rows.n], shared with forked ranks; rank 0 writes */
	struct vfm_buf found;          /* lines about the searches */
	struct matrix_old *old;        /* NULL: none to compare with */
	struct vfm_plan *plan;         /* of --data; NULL: none */
	struct vfm_dry_run_opts asked; /* of every prediction: the plan, and how the ranks are unequal */
	bool is_rank, is_first;        /* this process has run rows; it did so as rank 0 */
};

/* Names the row of a failure.  Returns its code. */
static int fail_at_row(struct vfm_err *err, const struct matrix_row *w)
{
	vfm_err_context(err, "%s%srow '%s %lld %s'", against ? against : "", against ? ": " : "", w->model,
		(long long)w->tokens, w->label);
	return err->code;
}

/* ---- ranks ---- */

static int64_t text_of(const struct matrix_row *w)
{
	return w->text ? w->text : text_len;
}

/* Sets the number of ranks of a row.  If the ranks are `started`, `world` is their number and each row uses all of
 * them. Else `world` is -n, and a row with parallel.dp set may use fewer. */
static int place_row(const struct matrix *m, struct matrix_row *w, int world, bool started, struct vfm_err *err)
{
	struct vfm_parallel p = w->config.parallel;
	int64_t model = p.tp * p.cp * p.pp, need = p.dp ? model * p.dp : world, steps;
	const char *option = predict ? "--gpus" : "-n";

	if (need % model)
		return vfm_fail(err, VFM_EUSAGE, "needs a multiple of %lld ranks, there %s %d: use %s %lld",
			(long long)model, world == 1 ? "is" : "are", world, option, (long long)model);
	if (started ? need != world : need > world)
		return vfm_fail(err, VFM_EUSAGE, "needs %lld rank%s, there %s %d: use %s %lld", (long long)need,
			need == 1 ? "" : "s", world == 1 ? "is" : "are", world, option, (long long)need);
	w->ranks = (int)need;
	TRY(vfm_parallel_check(&p, &w->config.model, w->ranks, err));
	if (m->asked.slow_factor > 0 && m->asked.slow_rank >= w->ranks)
		return vfm_fail(err, VFM_EUSAGE, "--slow-rank: the row has ranks 0 to %d, not %d", w->ranks - 1,
			m->asked.slow_rank);
	return m->plan ? vfm_plan_check(vfm_plan_header(m->plan), data, &w->config, &p, &steps, err)
		       : vfm_bench_divides(w->packs, p.dp, err);
}

/* Places the rows on `world` ranks, or on w->ranks if it is 0.  Leaves out combinations of lists that do not fit, but
 * not all of them. */
static int place_rows(struct matrix *m, int world, bool started, bool says, struct vfm_err *err)
{
	struct matrix_rows *r = &m->rows;
	struct vfm_err first = {0};
	size_t kept = 0;

	for (size_t i = 0; i < r->n; i++) {
		struct matrix_row *w = &r->v[i];

		if (place_row(m, w, world ? world : w->ranks, started, err) == 0) {
			r->v[kept++] = *w;
			continue;
		}
		fail_at_row(err, w);
		if (!r->is_product)
			return err->code;
		if (!first.code)
			first = *err;
	}
	if (first.code && !kept) {
		*err = first;
		return r->n > 1 ? vfm_err_context(err, "none of %zu rows fits", r->n) : err->code;
	}
	if (first.code && says)
		vfm_warn("%zu of %zu rows do not fit and are left out; the first: %s", r->n - kept, r->n, first.msg);
	r->n = kept;
	return 0;
}

/* ---- measuring ---- */

/* The fraction of a device's memory that the libraries and the rest of a process take. */
#define MEMORY_OF_OTHERS 0.05

/* Sets o->need and o->fits by a simulated step (train/predict/step_memory.h).  Collective. */
static int check_memory(struct vfm_context *x, const struct matrix_row *w, const struct vfm_bench_step *b,
	struct matrix_outcome *o, struct vfm_err *err)
{
	const struct vfm_dev *d = x->device.dev;
	double have = d->mem_total ? (double)d->mem_total : vfm_host_memory() / x->job.launch.local_size;
	struct vfm_synthetic sample = {{b->grid[0], b->grid[1], b->grid[2]}, (int32_t)b->text_len, 1};
	struct vfm_step_memory m = {.config = &w->config,
		.ranks = w->ranks,
		.sample = &sample,
		.n = 1,
		.packs = b->packs / x->mesh.size[VFM_AX_DP],
		.dev = d};
	int64_t *peak = vfm_calloc((size_t)x->mesh.p.pp, sizeof(*peak)), most[2] = {0};
	int rc = x->job.world->rank == 0 ? vfm_step_memory(&m, peak, err) : 0;

	for (int64_t i = 0; i < x->mesh.p.pp; i++)
		most[0] = peak[i] > most[0] ? peak[i] : most[0];
	free(peak);
	if (rc == VFM_EENV) { /* the host alone has too little memory to prepare such a step */
		vfm_warn("%s", err->msg);
		most[0] = INT64_MAX;
		rc = 0;
	}
	TRY(vfm_job_agree(&x->job, rc, err));
	TRY(vfm_broadcast(x->job.world, NULL, vfm_t1(most, VFM_I64, 1), 0, err));
	o->need = most[0] == INT64_MAX ? INFINITY : (double)most[0];
	most[1] = o->need > (1 - MEMORY_OF_OTHERS) * have;
	TRY(vfm_all_reduce(x->job.world, NULL, vfm_t1(&most[1], VFM_I64, 1), err));
	o->fits = most[1] == 0;
	return 0;
}

static int measure_row(struct vfm_context *x, const struct matrix_row *w, struct matrix_outcome *o, struct vfm_err *err)
{
	struct vfm_bench_step b = {.samples = 1,
		.text_len = text_of(w),
		.packs = w->packs,
		.warmup = warmup,
		.steps = repeat,
		.min_s = seconds};
	struct vfm_buf layout = {0};

	TRY(vfm_context_open(x, &w->config, err));
	TRY(vfm_bench_grid(&w->config.model, w->tokens, b.grid, err));
	TRY(check_memory(x, w, &b, o, err));
	if (o->fits) {
		vfm_info("%s, %lld tokens, %s", w->model, (long long)w->tokens, w->label);
		TRY(vfm_bench_run(x, &w->config, &b, &o->r, err));
	}
	o->peak = vfm_hw_peak(x->device.dev->name, w->config.train.dtype);
	o->threads = vfm_par_threads();
	snprintf(o->device, sizeof(o->device), "%s", x->device.dev->name);
	snprintf(o->descr, sizeof(o->descr), "%s", x->device.dev->descr);
	vfm_parallel_text(&x->mesh.p, &layout);
	snprintf(o->layout, sizeof(o->layout), "%s", layout.len ? layout.data : "");
	vfm_buf_release(&layout);
	vfm_context_close(x);
	return 0;
}

/* Measures the rows whose number of ranks equals the size of the job.  Collective. */
static int measure_matrix(struct vfm_context *x, void *ctx, struct vfm_err *err)
{
	bool started = rank_opts.ranks == VFM_UNSET;
	struct matrix *m = ctx;

	m->is_rank = true;
	m->is_first = x->job.world->rank == 0;
	if (started)
		TRY(vfm_job_agree(&x->job, place_rows(m, x->job.world->size, true, m->is_first, err), err));
	for (size_t i = 0; i < m->rows.n; i++) {
		const struct matrix_row *w = &m->rows.v[i];
		struct matrix_outcome o = {0};

		if (w->ranks != x->job.world->size)
			continue;
		if (measure_row(x, w, &o, err) < 0)
			return fail_at_row(err, w);
		if (m->is_first)
			m->out[i] = o;
	}
	return 0;
}

/* Measures the rows, grouped by their number of ranks; forks the ranks once per group.  The rows with one rank come
 * last, since they run in this process, which cannot fork once it has threads. */
static int measure_forked(struct matrix *m, struct vfm_err *err)
{
	int most = (int)rank_opts.ranks;

	TRY(place_rows(m, most, false, true, err));
	for (int n = most; n > 0 && !m->is_rank; n--) {
		bool any = false;

		for (size_t i = 0; i < m->rows.n; i++)
			any = any || m->rows.v[i].ranks == n;
		rank_opts.ranks = n;
		if (any)
			TRY(vfm_context_run(&rank_opts, measure_matrix, m, err));
	}
	if (m->is_rank && rank_opts.ranks > 1)
		m->is_first = false; /* the parent prints */
	return 0;
}

/* ---- predicting ---- */

static const char *machine_of(const struct matrix *m, const struct matrix_row *w)
{
	return *predict ? predict : *w->machine ? w->machine : m->rows.machine;
}

/* Returns whether the figures of a row were published for another machine than *predicted, which was loaded as `name`:
 * one with another name of its device. */
static bool published_elsewhere(
	const struct matrix *m, const struct matrix_row *w, const char *name, const struct vfm_machine *predicted)
{
	const char *published = *w->machine ? w->machine : m->rows.machine;
	struct vfm_machine other;
	struct vfm_err unused;

	if (!w->is_published || !published || !strcmp(published, name))
		return false;
	return vfm_machine_load(&other, published, &unused) < 0 || strcmp(other.name, predicted->name) != 0;
}

static int load_machine_of(
	const struct matrix *m, struct matrix_row *w, struct vfm_machine *machine, struct vfm_err *err)
{
	const char *name = machine_of(m, w);

	w->ranks = (int)w->gpus;
	if (!name) {
		vfm_fail(err, VFM_EUSAGE, "machine: neither the row, nor the file, nor --predict names one");
		return fail_at_row(err, w);
	}
	if (vfm_machine_load(machine, name, err) < 0)
		return *predict ? err->code : fail_at_row(err, w);
	w->elsewhere = published_elsewhere(m, w, name, machine);
	return 0;
}

static struct vfm_dry_run_opts ask_row(const struct matrix *m, const struct matrix_row *w, const struct vfm_machine *on)
{
	struct vfm_dry_run_opts o = m->asked;

	o.machine = on;
	o.text = text_of(w);
	o.packs = w->packs;
	o.timeline = o.memory = html != NULL;
	return o;
}

static int predict_matrix(struct matrix *m, struct vfm_err *err)
{
	struct vfm_machine machine;

	for (size_t i = 0; i < m->rows.n; i++) /* all, before the first is predicted */
		TRY(load_machine_of(m, &m->rows.v[i], &machine, err));
	TRY(place_rows(m, 0, true, true, err));
	for (size_t i = 0; i < m->rows.n; i++) {
		struct matrix_row *w = &m->rows.v[i];
		struct vfm_dry_run_opts asked;

		TRY(load_machine_of(m, w, &machine, err));
		asked = ask_row(m, w, &machine);
		if (i >= MATRIX_PAGE_ROWS)
			asked.timeline = asked.memory = false;
		if (matrix_predict_row(w, &asked, &m->out[i], err) < 0)
			return fail_at_row(err, w);
	}
	return 0;
}

/* A sentence about the layouts that were tried. */
static void describe_search(
	struct vfm_buf *b, const struct matrix_row *w, const struct vfm_machine *m, const struct matrix_found *f)
{
	vfm_buf_addf(b, "%s, %lld tokens, %d GPUs: %d layouts tried, %d do not fit", w->model, (long long)w->tokens,
		w->ranks, f->tried, f->full);
	for (int i = 0, n = 0; i < MATRIX_DEGREES; i++)
		if (f->degree[i].full)
			vfm_buf_addf(b, "%s %lld: %d of %d", n++ ? "," : "; with tp x cp x pp =", 1LL << i,
				f->degree[i].full, f->degree[i].tried);
	if (f->full)
		vfm_buf_addf(b, "; a GPU has %.2f GiB", (double)m->capacity / 0x1p30);
	vfm_buf_adds(b, "\n");
}

struct best_rows {
	struct matrix_rows rows;
	struct matrix_outcome *out; /* [rows.n] */
	size_t cap;
};

static int search_row(struct matrix *m, struct matrix_row *w, struct best_rows *best, struct vfm_err *err)
{
	int first = (int)best->rows.n;
	int runs = best->rows.n < MATRIX_PAGE_ROWS ? MATRIX_PAGE_ROWS - (int)best->rows.n : 0;
	struct vfm_dry_run_opts asked;
	struct vfm_machine machine;
	struct matrix_found f;

	TRY(load_machine_of(m, w, &machine, err));
	asked = ask_row(m, w, &machine);
	if (matrix_search(w, &asked, (int)top, runs, &f, err) < 0)
		return fail_at_row(err, w);
	describe_search(&m->found, w, &machine, &f);
	for (int k = 0; k < f.n; k++) {
		vfm_grow(&best->rows.v, &best->rows.cap, best->rows.n + 1, sizeof(*best->rows.v));
		vfm_grow(&best->out, &best->cap, best->rows.n + 1, sizeof(*best->out));
		best->rows.v[best->rows.n] = f.v[k].row;
		best->out[best->rows.n] = f.v[k].out;
		best->out[best->rows.n++].first = k ? first : -1;
	}
	free(f.v);
	return 0;
}

/* Replaces the rows by the best layouts of each. */
static int search_matrix(struct matrix *m, struct vfm_err *err)
{
	struct best_rows best = {0};
	int rc = 0;

	for (size_t i = 0; i < m->rows.n && rc == 0; i++)
		rc = search_row(m, &m->rows.v[i], &best, err);
	free(m->rows.v);
	m->rows.v = best.rows.v;
	m->rows.n = best.rows.n;
	m->out = best.out;
	return rc;
}

/* ---- the table ---- */

static int write_rows_page(
	const struct matrix *m, const struct matrix_report *p, const struct vfm_table *t, struct vfm_err *err)
{
	struct matrix_page_row *v = vfm_calloc(p->n + 1, sizeof(*v));
	int rc;

	for (size_t i = 0; i < p->n; i++) {
		const struct matrix_row *w = &p->row[i];

		v[i] = (struct matrix_page_row){w, &p->out[i], p->machine ? p->machine[i] : NULL, ask_row(m, w, NULL)};
	}
	rc = matrix_write_page(html, t, v, (int)p->n, err);
	free(v);
	return rc;
}

/* machine: of the rows of a prediction. */
static struct matrix_report report_of(const struct matrix *m, const char *const *machine)
{
	return (struct matrix_report){.row = m->rows.v,
		.out = m->out,
		.n = m->rows.n,
		.machine = predict ? machine : NULL,
		.source = m->rows.source,
		.found = m->found.data ? m->found.data
			: search       ? ""
				       : NULL,
		.plan = m->plan ? data : NULL,
		.parts = m->plan && vfm_plan_header(m->plan)->cp,
		.imbalance = m->plan || vfm_uneven_given(&uneven),
		.straggler_cv = uneven.straggler_cv,
		.old = m->old};
}

static int print_table(const struct matrix *m, struct vfm_err *err)
{
	const char **machine = vfm_calloc(m->rows.n + 1, sizeof(*machine));
	struct matrix_report p = report_of(m, machine);
	struct vfm_table *t;
	int rc;

	for (size_t i = 0; i < p.n && predict; i++)
		machine[i] = machine_of(m, &m->rows.v[i]);
	t = matrix_table(&p);
	rc = vfm_table_print(t, &table_opts, stdout, err);
	if (rc == 0 && html)
		rc = write_rows_page(m, &p, t, err);
	vfm_table_free(t);
	free(machine);
	return rc;
}

/* operands: files of rows. */
static int check_plan_options(int operands, struct vfm_err *err)
{
	if (!data)
		return 0;
	if (operands || against)
		return vfm_fail(err, VFM_EUSAGE, "--data: the rows are those of lists, not of a file");
	if (!predict)
		return vfm_fail(err, VFM_EUSAGE, "--data: only with --predict");
	if (search)
		return vfm_fail(
			err, VFM_EUSAGE, "--data: not with --search, which compares layouts by steps of few packs");
	if (lists.contexts || lists.packs || text_len != VFM_UNSET)
		return vfm_fail(
			err, VFM_EUSAGE, "--data: the plan has the packs: it excludes --context, --packs, --text-len");
	return 0;
}

static int check_prediction(int operands, struct vfm_err *err)
{
	TRY(check_plan_options(operands, err));
	if (against && !predict)
		predict = ""; /* the machines of the file */
	if (against && operands)
		return vfm_fail(err, VFM_EUSAGE, "--against: the rows are those of the published figures");
	if (vfm_uneven_given(&uneven) && (!predict || against))
		return vfm_fail(err, VFM_EUSAGE,
			"--expert-skew, --slow-rank, --straggler-cv: only with --predict, and without --against");
	if (lists.gpus && !predict)
		return vfm_fail(err, VFM_EUSAGE, "--gpus: only with --predict");
	if (search && (!predict || against))
		return vfm_fail(err, VFM_EUSAGE, "--search: only with --predict, and without --against");
	if (top != VFM_UNSET && !search)
		return vfm_fail(err, VFM_EUSAGE, "--top: only with --search");
	if (predict && (repeat != VFM_UNSET || !isnan(seconds) || warmup != VFM_UNSET))
		return vfm_fail(err, VFM_EUSAGE, "%s: a prediction measures no steps",
			repeat != VFM_UNSET       ? "-r"
				: !isnan(seconds) ? "--seconds"
						  : "--warmup");
	top = top == VFM_UNSET ? 10 : top;
	if (predict && rank_opts.ranks != VFM_UNSET)
		return vfm_fail(err, VFM_EUSAGE, "-n: measured ranks; a prediction takes --gpus");
	if (predict && (rank_opts.threads != VFM_UNSET || rank_opts.device != vfm_device_default))
		return vfm_fail(err, VFM_EUSAGE, "%s: a prediction runs on simulated devices",
			rank_opts.threads != VFM_UNSET ? "--threads" : "--device");
	return 0;
}

/* Opens the plan; its context and its packs are those of all rows. */
static int open_plan(struct matrix *m, struct vfm_err *err)
{
	static char context[24], packs[24];
	const struct vfm_plan_header *h;

	m->plan = vfm_plan_open(data, err);
	if (!m->plan)
		return err->code;
	h = vfm_plan_header(m->plan);
	snprintf(context, sizeof(context), "%d", h->context);
	snprintf(packs, sizeof(packs), "%d", h->batch);
	lists.contexts = context;
	lists.packs = packs;
	m->asked.plan = data;
	return 0;
}

static int parse_matrix(struct matrix *m, int argc, char **argv, struct vfm_err *err)
{
	struct matrix_report report;
	struct vfm_bench_step b;
	int n, rc = vfm_opt_parse(&cmd, argc, argv, &n, err);

	if (rc != 0)
		return rc;
	if (n > 1)
		return vfm_fail(err, VFM_EUSAGE, "unexpected operand '%s'", argv[2]);
	TRY(check_prediction(n, err));
	TRY(vfm_uneven_parse(&uneven, MATRIX_COUNT_MAX, &m->asked, err));
	if (data)
		TRY(open_plan(m, err));
	lists.search = search;
	lists.text = text_len != VFM_UNSET;
	text_len = text_len == VFM_UNSET ? 128 : text_len;
	repeat = repeat == VFM_UNSET ? 3 : repeat;
	warmup = warmup == VFM_UNSET ? 1 : warmup;
	seconds = isnan(seconds) ? 2 : seconds;
	b = (struct vfm_bench_step){
		.samples = 1, .text_len = text_len, .packs = 1, .warmup = warmup, .steps = repeat, .min_s = seconds};
	TRY(vfm_bench_check(&b, err));
	TRY(vfm_context_check(&rank_opts, err));
	TRY(against         ? matrix_rows_of_published(&m->rows, against, &lists, err)
			: n ? matrix_rows_of_file(&m->rows, argv[1], &lists, err)
			    : matrix_rows_of_lists(&m->rows, &lists, err));
	for (size_t i = 0; i < m->rows.n; i++)
		TRY(vfm_config_check(&m->rows.v[i].config, err)); /* sets derived dimensions */
	if (compare)
		TRY(matrix_old_load(&m->old, compare, err));
	report = report_of(m, &predict);
	return matrix_table_check(&report, &table_opts, err);
}

static int measure_all(struct matrix *m, struct vfm_err *err)
{
	size_t bytes = (m->rows.n + 1) * sizeof(*m->out);
	struct matrix_outcome *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int rc;

	if (shared == MAP_FAILED)
		return vfm_fail_errno(err, VFM_EENV, "cannot share memory with the ranks");
	m->out = shared;
	rc = search                            ? search_matrix(m, err)
		: predict                      ? predict_matrix(m, err)
		: rank_opts.ranks == VFM_UNSET ? vfm_context_run(&rank_opts, measure_matrix, m, err)
					       : measure_forked(m, err);
	if (rc == 0 && (m->is_first || !m->is_rank))
		rc = print_table(m, err);
	for (size_t i = 0; i < m->rows.n; i++)
		matrix_outcome_drop_run(&m->out[i]);
	if (m->out != shared)
		free(m->out);
	vfm_buf_release(&m->found);
	munmap(shared, bytes);
	return rc;
}

int bench_matrix(int argc, char **argv, struct vfm_err *err)
{
	struct matrix m = {.rows = {0}};
	int rc = vfm_job_say_once(parse_matrix(&m, argc, argv, err), err);

	if (rc == 0)
		rc = measure_all(&m, err);
	matrix_old_free(m.old);
	vfm_plan_close(m.plan);
	matrix_rows_release(&m.rows);
	vfm_strlist_release(&lists.sets);
	return rc;
}
