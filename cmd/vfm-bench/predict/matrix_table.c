/* matrix_table.c - columns, rows and notes of the table, with comparisons and why a searched layout loses. */
#include "predict/matrix_table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "step_opts.h"

static void add_columns(struct vfm_table *t, const struct matrix_report *p)
{
	static const struct vfm_table_column all[] = {{"model", "model", 0}, {"context", "context", 0},
		{"config", "config", 0}, {"gpus", "GPUs", 0}, {"gbs", "gbs", 0}, {"mbs", "mbs", 0},
		{"layout", "layout", VFM_TABLE_STRINGS}, {"tflops", "TFLOP/s", 3}, {"tflops_gpu", "TFLOP/s/GPU", 3},
		{"mfu", "MFU", 3}, {"tok_s", "token/s", 0}, {"tok_s_gpu", "token/s/GPU", 0}, {"step_ms", "step ms", 1},
		{"spread_pct", "spread %", 0}, {"n", "n", 0}, {"mem_gib", "GiB", 2}, {"threads", "threads", 0},
		{"how", "how", 0}, {0}};
	static const struct vfm_table_column more[] = {{"comm", "comm", 3}, {"bubble", "bubble", 3},
		{"tflops_low", "low", 0}, {"tflops_high", "high", 0},
		/* of unequal ranks and of plans */
		{"imbalance", "imbalance", 3}, {"straggler_ms", "with stragglers", 1}, {"step", "step", 0},
		{"hours", "hours", 2},
		/* of published figures */
		{"published_tflops", "published", 0}, {"published_tok_s_gpu", "published token/s/GPU", 0},
		{"published", "", VFM_TABLE_STRINGS}, {"error_pct", "error %", 1},
		/* of a search */
		{"loses_by", "loses by", VFM_TABLE_STRINGS}};

	const bool has[] = {p->machine, p->machine, p->machine, p->machine, p->imbalance, p->straggler_cv > 0, p->plan,
		p->plan, p->source, p->source, p->source, p->source, p->found};

	vfm_table_columns(t, all);
	for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++)
		if (has[i])
			vfm_table_col(t, more[i].key, more[i].heading, more[i].digits);
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
	if (p->imbalance)
		vfm_table_note(t,
			"imbalance: part of the step that the ranks wait for ranks with other packs, experts or speed");
	if (p->straggler_cv > 0)
		vfm_table_note(t,
			"with stragglers: the mean step where the times of GPUs are log-normal with a coefficient of "
			"variation of %g",
			p->straggler_cv);
	if (p->plan)
		vfm_table_note(t,
			"packs of %s: the step of median cost, but GiB of that with the largest pack; context: %s; "
			"hours: "
			"of all steps, without checkpoints and failures",
			p->plan, p->parts ? "most tokens of a part of a pack" : "most tokens of a pack");
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
	vfm_table_note(t, "comm, bubble: parts of the step that the ranks wait for communication, for other pp stages");
	vfm_table_note(t,
		"low, high: TFLOP/s/GPU at the low and high rates of the machine; GiB of a row that does not "
		"fit: what it needs");
	if (p->found)
		vfm_table_note(t,
			"loses by: parts of the step that are longer than in the first layout, of its step; kernels "
			"may overlap, shorter parts are not named; more FLOPs: recompute");
	note_uneven(t, p);
	if (!p->source)
		return;
	vfm_table_note(t, "published: %s", p->source);
	note_elsewhere(t, p);
	note_error(t, p, false);
	note_error(t, p, true);
}

struct vfm_table *matrix_table(const struct matrix_report *p)
{
	struct vfm_table *t = vfm_table_new(NULL);

	add_columns(t, p);
	if (p->old)
		matrix_old_columns(t);
	for (size_t i = 0; i < p->n; i++) {
		add_matrix_row(t, p, i);
		if (p->old)
			matrix_old_cells(p->old, t);
	}
	for (size_t i = 0; i < p->n; i++)
		if (i == 0 || strcmp(p->out[i].descr, p->out[i - 1].descr) != 0)
			vfm_table_note(t, "device %s: %s", p->out[i].device, p->out[i].descr);
	if (p->machine)
		note_prediction(t, p);
	else
		bench_note_machine(t, 0);
	vfm_table_note(t,
		"a step is forward, backward and AdamW; FLOPs of the model (3 x forward, recompute not counted); "
		"spread is (max - min) / median");
	vfm_table_note(
		t, "GPUs: ranks of the row (processes on a CPU); threads: per rank; GiB: maximum over the ranks");
	if (p->old)
		matrix_old_notes(p->old, t);
	return t;
}
