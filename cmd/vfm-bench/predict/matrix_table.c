/* matrix_table.c - columns, rows and notes of the table, with comparisons and why a searched layout loses. */
#include "predict/matrix_table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "step_opts.h"

/* The first kind that applies to a table decides its main columns. */
enum matrix_kind { MEASURED = 1, PREDICTED = 2, UNEVEN = 4, SEARCHED = 8, PUBLISHED = 16, COMPARED = 32, ALL = 63 };

static enum matrix_kind kind_of_matrix(const struct matrix_report *p)
{
	return p->old                     ? COMPARED
		: p->source               ? PUBLISHED
		: p->found                ? SEARCHED
		: p->imbalance || p->plan ? UNEVEN
		: p->straggler_cv > 0     ? UNEVEN
		: p->machine              ? PREDICTED
					  : MEASURED;
}

enum { MATRIX_COLUMNS = 40 };

/* Fills v with the columns, up to one without a key. */
static void list_columns(const struct matrix_report *p, struct vfm_table_column v[MATRIX_COLUMNS])
{
	const bool stragglers = p->straggler_cv > 0;
	const struct {
		bool has;
		const char *key, *heading;
		int digits;
		int main_of; /* enum matrix_kind, several */
	} of[] = {{true, "model", "model", 0, ALL}, {true, "context", "context", 0, ALL},
		{true, "config", "config", 0, ALL}, {true, "gpus", "GPUs", 0, ALL}, {true, "gbs", "gbs", 0, 0},
		{true, "mbs", "mbs", 0, 0}, {true, "layout", "layout", VFM_TABLE_STRINGS, SEARCHED},
		{true, "tflops", "TFLOP/s", 3, 0}, {true, "tflops_gpu", "TFLOP/s/GPU", 3, ALL & ~(SEARCHED | UNEVEN)},
		{true, "mfu", "MFU", 3, MEASURED | PREDICTED | SEARCHED}, {true, "tok_s", "token/s", 0, 0},
		{true, "tok_s_gpu", "token/s/GPU", 0, MEASURED | PREDICTED},
		{true, "step_ms", "step ms", 1, MEASURED | PREDICTED | SEARCHED | UNEVEN},
		{true, "spread_pct", "spread %", 0, MEASURED}, {true, "n", "n", 0, 0},
		{true, "mem_gib", "GiB", 2, ALL & ~COMPARED}, {true, "threads", "threads", 0, 0},
		{true, "how", "how", 0, 0}, {p->machine, "comm", "comm", 3, 0}, {p->machine, "bubble", "bubble", 3, 0},
		{p->machine, "tflops_low", "low", 0, 0}, {p->machine, "tflops_high", "high", 0, 0},
		/* of unequal ranks and of plans */
		{p->imbalance, "imbalance", "imbalance", 3, UNEVEN},
		{stragglers, "straggler_ms", "with stragglers", 1, UNEVEN}, {p->plan, "step", "step", 0, 0},
		{p->plan, "hours", "hours", 2, UNEVEN},
		/* of published figures */
		{p->source, "published_tflops", "published", 0, PUBLISHED},
		{p->source, "published_tok_s_gpu", "published token/s/GPU", 0, 0},
		{p->source, "published", "", VFM_TABLE_STRINGS, PUBLISHED},
		{p->source, "error_pct", "error %", 1, PUBLISHED},
		/* of a search */
		{p->found, "loses_by", "loses by", VFM_TABLE_STRINGS, SEARCHED},
		/* of a comparison */
		{p->old, "old_tflops_gpu", "old", 3, COMPARED}, {p->old, "change_pct", "change %", 1, COMPARED},
		{p->old, "beyond_spread", "beyond spread", VFM_TABLE_STRINGS, COMPARED},

		{true, "recompute", "recompute", VFM_TABLE_STRINGS, 0}};
	const enum matrix_kind kind = kind_of_matrix(p);
	size_t n = 0;

	for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++)
		if (of[i].has)
			v[n++] = (struct vfm_table_column){of[i].key, of[i].heading, of[i].digits,
				!(of[i].main_of & kind)                            ? VFM_COLUMN_DETAIL
					: kind == SEARCHED && of[i].main_of == ALL ? VFM_COLUMN_GROUP
										   : VFM_COLUMN_MAIN};
	v[n] = (struct vfm_table_column){0};
}

int matrix_table_check(const struct matrix_report *p, const struct vfm_table_opts *o, struct vfm_err *err)
{
	struct vfm_table_column columns[MATRIX_COLUMNS];

	list_columns(p, columns);
	return vfm_table_check(columns, o, err);
}

/* Returns the predicted TFLOP/s a GPU over the published; 0: they are not compared. */
static double compare_row(const struct matrix_row *w, const struct matrix_outcome *o)
{
	return o->fits && !w->elsewhere && w->tflops_gpu > 0
		? o->r.flops / o->s[VFM_MID] / 1e12 / w->ranks / w->tflops_gpu
		: 0;
}

/* ---- why a layout of a search loses ---- */

struct lost {
	const char *part;
	double s; /* more than in the step of the best layout */
};
enum { LOST_PARTS = 8 };

static int compare_lost(const void *a, const void *b)
{
	const struct lost *x = a, *y = b;

	return x->s != y->s ? (x->s > y->s ? -1 : 1) : strcmp(x->part, y->part);
}

/* Fills v, the largest first.  The time of products and attention is FLOPs over a rate: more FLOPs (recompute) count at
 * the rate of the best layout, the rest of the difference is another rate (smaller kernels). */
static void find_lost(const struct matrix_outcome *best, const struct matrix_outcome *o, struct lost v[LOST_PARTS])
{
	static const char *const slower[] = {"slower products", "slower attention"};
	const double *s = best->class_s, *flops = best->class_flops;
	double recompute = 0;
	int n = 0;

	for (int k = VFM_SIM_GEMM; k <= VFM_SIM_ATTENTION; k++) {
		double more = flops[k] > 0 ? s[k] * (o->class_flops[k] / flops[k] - 1) : 0;

		recompute += more;
		v[n++] = (struct lost){slower[k], o->class_s[k] - s[k] - more};
	}
	v[n++] = (struct lost){"more FLOPs", recompute};
	v[n++] = (struct lost){"other kernels", o->class_s[VFM_SIM_MEMORY] - s[VFM_SIM_MEMORY]};
	v[n++] = (struct lost){"optimizer", o->class_s[VFM_SIM_OPTIMIZER] - s[VFM_SIM_OPTIMIZER]};
	v[n++] = (struct lost){"communication", o->r.comm_s - best->r.comm_s};
	v[n++] = (struct lost){"bubble", o->r.bubble_s - best->r.bubble_s};
	v[n++] = (struct lost){"copies", o->copy_s - best->copy_s};
	qsort(v, (size_t)n, sizeof(*v), compare_lost);
}

/* "bubble 5.1 %, recompute 3.0 %": of the best step. */
static void add_lost_cell(struct vfm_table *t, const struct matrix_outcome *best, const struct matrix_outcome *o)
{
	struct lost v[LOST_PARTS];
	struct vfm_buf b = {0};

	find_lost(best, o, v);
	for (int i = 0; i < LOST_PARTS && v[i].s >= 0.0005 * best->s[VFM_MID]; i++)
		vfm_buf_addf(&b, "%s%s %.1f %%", i ? ", " : "", v[i].part, v[i].s / best->s[VFM_MID] * 100);
	vfm_table_str(t, "loses_by", b.len ? b.data : NULL);
	vfm_buf_release(&b);
}

static void add_published_cells(struct vfm_table *t, const struct matrix_row *w, const struct matrix_outcome *o)
{
	double ratio = compare_row(w, o);

	if (w->tflops_gpu > 0)
		vfm_table_f64(t, "published_tflops", w->tflops_gpu);
	if (w->tok_s_gpu > 0)
		vfm_table_f64(t, "published_tok_s_gpu", w->tok_s_gpu);
	if (w->oom || w->software)
		vfm_table_str(t, "published", w->oom ? "OOM" : w->software);
	if (ratio > 0)
		vfm_table_f64(t, "error_pct", (ratio - 1) * 100);
}

static void add_uneven_cells(struct vfm_table *t, const struct matrix_report *p, const struct matrix_outcome *o)
{
	if (p->imbalance)
		vfm_table_f64(t, "imbalance", o->imbalance);
	if (p->straggler_cv > 0)
		vfm_table_f64(t, "straggler_ms", o->s[VFM_MID] * o->straggler * 1e3);
	if (!p->plan)
		return;
	vfm_table_i64(t, "step", o->step);
	vfm_table_f64(t, "hours", o->total_s / 3600);
}

static void add_matrix_row(struct vfm_table *t, const struct matrix_report *p, size_t i)
{
	const struct matrix_row *w = &p->row[i];
	const struct matrix_outcome *o = &p->out[i];
	const struct vfm_bench_result *r = &o->r;
	double tflops = r->flops / r->step_s.median / 1e12, tok_s = (double)r->tokens / r->step_s.median;

	vfm_table_row(t);
	vfm_table_str(t, "model", w->model);
	vfm_table_i64(t, "context", w->tokens);
	vfm_table_str(t, "config", w->label);
	vfm_table_i64(t, "gpus", w->ranks);
	vfm_table_str(t, "layout", *o->layout ? o->layout : NULL);
	if (!p->machine)
		vfm_table_i64(t, "threads", o->threads);
	if (!p->parts)
		vfm_table_i64(t, "gbs", w->packs);
	if (!p->plan)
		vfm_table_i64(t, "mbs", 1);
	vfm_table_str(t, "how", !o->fits ? "does not fit" : p->machine ? "predicted" : "measured");
	if (p->source)
		add_published_cells(t, w, o);
	vfm_table_str(t, "recompute", *r->recompute ? r->recompute : NULL);
	vfm_table_f64(t, "mem_gib", (o->fits ? (double)r->mem_peak_bytes : o->need) / 0x1p30);
	if (!o->fits)
		return;
	vfm_table_f64(t, "tflops", tflops);
	vfm_table_f64(t, "tflops_gpu", tflops / w->ranks);
	if (o->peak > 0)
		vfm_table_f64(t, "mfu", tflops / w->ranks / o->peak);
	vfm_table_f64(t, "tok_s", tok_s);
	vfm_table_f64(t, "tok_s_gpu", tok_s / w->ranks);
	vfm_table_f64(t, "step_ms", r->step_s.median * 1e3);
	if (p->machine) {
		vfm_table_f64(t, "comm", r->comm_s / o->s[VFM_MID]);
		vfm_table_f64(t, "bubble", r->bubble_s / o->s[VFM_MID]);
		vfm_table_f64(t, "tflops_low", r->flops / o->s[VFM_LOW] / 1e12 / w->ranks);
		vfm_table_f64(t, "tflops_high", r->flops / o->s[VFM_HIGH] / 1e12 / w->ranks);
		add_uneven_cells(t, p, o);
		if (p->found && o->first >= 0)
			add_lost_cell(t, &p->out[o->first], o);
		return;
	}
	vfm_table_f64(t, "spread_pct", (r->step_s.max - r->step_s.min) / r->step_s.median * 100);
	vfm_table_i64(t, "n", r->n);
}

static void note_error(struct vfm_table *t, const struct matrix_report *p, bool other_software)
{
	double sum = 0;
	int n = 0;

	for (size_t i = 0; i < p->n; i++) {
		double ratio = compare_row(&p->row[i], &p->out[i]);

		if (ratio > 0 && other_software == !!p->row[i].software) {
			sum += fabs(log(ratio));
			n++;
		}
	}
	if (n)
		vfm_table_note(t, "geometric mean error of TFLOP/s/GPU over %d rows%s: %.1f %%", n,
			other_software ? " whose software is slow for a reason of its own" : "",
			(exp(sum / n) - 1) * 100);
}

static void note_elsewhere(struct vfm_table *t, const struct matrix_report *p)
{
	int n = 0;

	for (size_t i = 0; i < p->n; i++)
		n += p->row[i].elsewhere;
	if (n)
		vfm_table_note(t, "%d of %zu rows were published for other machines than this; they have no error %%",
			n, p->n);
}

static void note_uneven(struct vfm_table *t, const struct matrix_report *p)
{
	if (p->straggler_cv > 0)
		vfm_table_note(t, "with stragglers: the times of GPUs differ by a coefficient of variation of %g",
			p->straggler_cv);
	if (p->plan)
		vfm_table_note(t,
			"packs of %s: the step of median cost, GiB of the step with the largest pack; context: most "
			"tokens of a %s; hours: of all steps, without checkpoints and failures",
			p->plan, p->parts ? "part of a pack" : "pack");
}

static void note_prediction(struct vfm_table *t, const struct matrix_report *p)
{
	for (size_t i = 0; i < p->n; i++) {
		if (i == 0 || strcmp(p->machine[i], p->machine[i - 1]) != 0)
			bench_note_predicted(t, p->machine[i]);
	}
	for (const char *line = p->found, *end; line && *line; line = end + 1) {
		end = strchr(line, '\n');
		vfm_table_note(t, "%.*s", (int)(end - line), line);
	}
	if (p->found)
		vfm_table_note(
			t, "loses by: what takes longer than in the first layout, in %% of the step of that layout");
	note_uneven(t, p);
	if (!p->source)
		return;
	vfm_table_note(t, "published: %s", p->source);
	note_elsewhere(t, p);
	note_error(t, p, false);
	note_error(t, p, true);
}

static void note_rows_that_do_not_fit(struct vfm_table *t, const struct matrix_report *p)
{
	size_t n = 0;

	for (size_t i = 0; i < p->n; i++)
		n += !p->out[i].fits;
	if (n)
		vfm_table_note(t, "%zu of %zu rows do not fit: they have no step; GiB: what they need", n, p->n);
}

struct vfm_table *matrix_table(const struct matrix_report *p)
{
	struct vfm_table_column columns[MATRIX_COLUMNS];
	struct vfm_table *t;

	list_columns(p, columns);
	t = vfm_table_new(columns);
	for (size_t i = 0; i < p->n; i++) {
		add_matrix_row(t, p, i);
		if (p->old)
			matrix_old_cells(p->old, t);
	}
	if (p->machine)
		note_prediction(t, p);
	else
		bench_note_machine(t, 0, p->out->device, p->out->descr);
	note_rows_that_do_not_fit(t, p);
	if (p->old)
		matrix_old_notes(p->old, t);
	return t;
}
