/* dry_run_page.c - the HTML section of a dry run: cards, tables, timeline, scaling. */
#include "train/predict/dry_run_page.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "media/draw/html.h"
#include "spec/cost/hw.h"
#include "train/predict/memory_chart.h"

enum { LANE = 14, LABEL = 150 };

double vfm_goodput_sentence(struct vfm_buf *b, const struct vfm_failures *f)
{
	double tau, goodput, hours = f->mtbf_s / 3600;

	if (hours >= 1)
		vfm_buf_addf(b, "a failure every %.1f hours: ", hours);
	else
		vfm_buf_addf(b, "a failure every %.3g s: ", f->mtbf_s);
	if (!vfm_goodput_applies(f)) {
		vfm_buf_addf(b,
			"no goodput, because a restart (%g s) and a checkpoint (%g s) take longer than that: the job "
			"makes "
			"hardly any progress",
			f->restart_s, f->save_s);
		return 0;
	}
	tau = vfm_best_interval(f);
	goodput = vfm_goodput(f, tau);
	vfm_buf_addf(b, "best a checkpoint every %.0f s, goodput %.3f (a checkpoint costs %g s, a restart %g s)", tau,
		goodput, f->save_s, f->restart_s);
	return goodput;
}

struct named_stall {
	const char *name;
	double part;
};

static int compare_stalls(const void *a, const void *b)
{
	const struct named_stall *x = a, *y = b;

	return x->part != y->part ? (x->part > y->part ? -1 : 1) : strcmp(x->name, y->name);
}

void vfm_stalls_sentence(struct vfm_buf *b, const struct vfm_stalls *s)
{
	struct named_stall v[] = {{"exposed communication", s->comm}, {"bubble", s->bubble}, {"copies", s->copy},
		{"imbalance", s->imbalance}};
	const int n = sizeof(v) / sizeof(v[0]);

	qsort(v, n, sizeof(*v), compare_stalls);
	for (int i = 0; i < n && v[i].part >= 0.0005; i++)
		vfm_buf_addf(b, "%s%s %.1f %%", i ? ", " : "", v[i].name, v[i].part * 100);
	if (v[0].part < 0.0005)
		vfm_buf_adds(b, "nothing");
}

static void add_dry_cards(struct vfm_buf *b, const struct vfm_dry_run_page *p)
{
	const struct vfm_dry_run *d = p->d;
	double s = d->s[VFM_MID], tflops = d->flops / s / 1e12 / p->o->ranks;
	double peak = vfm_hw_peak(p->o->machine->name, p->o->config->train.dtype);
	struct vfm_buf failures = {0};
	double goodput = p->failures ? vfm_goodput_sentence(&failures, p->failures) : 1;

	vfm_buf_adds(b, "<div class=cards>\n");
	vfm_html_card(b, "GPUs", "%d", p->o->ranks);
	vfm_html_card(b, "step", "%.1f<small> ms</small>", s * 1e3);
	vfm_html_card(b, "at low rates", "%.1f<small> ms</small>", d->s[VFM_LOW] * 1e3);
	vfm_html_card(b, "at high rates", "%.1f<small> ms</small>", d->s[VFM_HIGH] * 1e3);
	vfm_html_card(b, "TFLOP/s a GPU", "%.0f", tflops);
	if (peak > 0)
		vfm_html_card(b, "MFU", "%.1f<small> %%</small>", tflops / peak * 100);
	vfm_html_card(b, "tokens/s a GPU", "%.0f", d->tokens / s / p->o->ranks);
	vfm_html_card(b, d->fits ? "memory, fits" : "memory, does not fit", "%.1f<small> GiB</small>",
		(double)(d->mem_peak + d->mem_beside) / 0x1p30);
	vfm_html_card(b, "exposed communication", "%.1f<small> %%</small>", d->comm_s / s * 100);
	vfm_html_card(b, "waiting for pp stages", "%.1f<small> %%</small>", d->bubble_s / s * 100);
	vfm_html_card(b, "stalls for copies", "%.1f<small> %%</small>", d->copy_s / s * 100);
	if (p->failures && goodput > 0)
		vfm_html_card(b, "goodput", "%.1f<small> %%</small>", goodput * 100);
	if (d->steps && goodput > 0)
		vfm_html_card(b, p->o->plan ? "hours of the plan" : "hours of all steps", "%.1f",
			d->total_s * d->straggler / goodput / 3600);
	vfm_buf_adds(b, "</div>\n");
	if (p->failures)
		vfm_html_addf(b, "<p>%s.</p>\n", failures.data);
	vfm_buf_release(&failures);
}

/* ---- the ranks ---- */

/* The kinds of work, and last waiting. */
static const char *kind_name(int kind)
{
	return kind == VFM_SIM_CLASSES ? "wait in a collective" : vfm_sim_class_name((enum vfm_sim_class)kind);
}

static int kind_colour(int kind)
{
	return kind == VFM_SIM_CLASSES ? VFM_COLOURS - 1 : kind;
}

static void add_rank_table(struct vfm_buf *b, const struct vfm_dry_run *d)
{
	vfm_buf_adds(b,
		"<h3>Simulated ranks</h3>\n<p class=dim>Milliseconds of kernels in a step by kind; kinds on "
		"different streams overlap.</p>\n");
	vfm_html_table(b, "rank|pp stage|#stands for|#GiB");
	for (int c = 0; c < VFM_SIM_CLASSES; c++)
		vfm_html_addf(b, "<th class=num>%s", kind_name(c));
	for (int i = 0; i < d->n; i++) {
		const struct vfm_dry_run_rank *r = &d->rank[i];

		vfm_html_row(b, "%d|%d|#%d|#%.2f", r->rank, r->stage, r->stands_for, (double)r->mem_peak / 0x1p30);
		for (int c = 0; c < VFM_SIM_CLASSES; c++)
			vfm_html_cells(b, "#%.1f", r->class_s[c] * 1e3);
	}
	vfm_html_table_end(b);
}

/* ---- the timeline ---- */

/* Returns the kind that fills most of a column, with the share that all kinds fill in quarters; -1: none. */
static int look_at_column(const float *busy, int *quarters)
{
	float sum = 0;
	int best = 0;

	for (int k = 0; k <= VFM_SIM_CLASSES; k++) {
		sum += busy[k];
		best = busy[k] > busy[best] ? k : best;
	}
	*quarters = (int)lrintf(fminf(sum, 1) * 4);
	return *quarters ? best : -1;
}

/* A box for each stretch of columns that look the same. */
static void add_lane(struct vfm_buf *b, const struct vfm_dry_run_rank *r, int stream, int y)
{
	const float *lane = r->busy + (size_t)stream * VFM_TIMELINE_COLUMNS * (VFM_SIM_CLASSES + 1);
	int begin = 0, kind = -1, quarters = 0, k = -1, q = 0;

	for (int i = 0; i <= VFM_TIMELINE_COLUMNS; i++) {
		if (i < VFM_TIMELINE_COLUMNS)
			k = look_at_column(lane + (size_t)i * (VFM_SIM_CLASSES + 1), &q);
		if (i < VFM_TIMELINE_COLUMNS && k == kind && q == quarters)
			continue;
		if (kind >= 0)
			vfm_html_addf(b, "<path class=a%d opacity='%.2f' d='M%d %dh%dv%dH%dz'/>", kind_colour(kind),
				0.25 * quarters, LABEL + begin, y, i - begin, LANE - 3, LABEL + begin);
		begin = i;
		kind = k;
		quarters = q;
	}
}

/* Returns the height of the lanes. */
static int add_lanes(struct vfm_buf *b, const struct vfm_dry_run *d)
{
	int y = 0;

	for (int i = 0; i < d->n; i++, y += 6)
		for (int s = 0; s < d->rank[i].streams; s++) {
			if (!d->rank[i].stream_name[s][0])
				continue;
			vfm_html_addf(b, "<text x='0' y='%d'>", y + LANE - 5);
			if (s == 0)
				vfm_html_addf(b, "rank %d, pp stage %d: ", d->rank[i].rank, d->rank[i].stage);
			vfm_html_addf(b, "%s</text>", d->rank[i].stream_name[s]);
			add_lane(b, &d->rank[i], s, y);
			vfm_buf_adds(b, "\n");
			y += LANE;
		}
	return y;
}

static void add_timeline(struct vfm_buf *b, const struct vfm_dry_run *d)
{
	struct vfm_buf lanes = {0};
	int height = add_lanes(&lanes, d);

	vfm_html_addf(b,
		"<h3>Timeline of a step</h3>\n<p class=dim>%.1f ms from left to right; a lane for each stream of a "
		"simulated rank, named after the groups of its collectives.</p>\n<p class=legend>",
		d->s[VFM_MID] * 1e3);
	for (int k = 0; k <= VFM_SIM_CLASSES; k++) {
		vfm_buf_adds(b, "<span>");
		vfm_html_swatch(b, 'a', kind_colour(k));
		vfm_html_addf(b, "%s</span>", kind_name(k));
	}
	vfm_html_addf(b, "</p>\n<div class=box><svg viewBox='0 0 %d %d'>\n", LABEL + VFM_TIMELINE_COLUMNS, height);
	vfm_buf_add(b, lanes.data, lanes.len);
	vfm_buf_adds(b, "</svg></div>\n");
	vfm_buf_release(&lanes);
}

/* ---- scaling ---- */

static void add_scaling(struct vfm_buf *b, const struct vfm_dry_run_page *p)
{
	if (p->n_scaled < 2)
		return;
	vfm_buf_adds(b,
		"<h3>More GPUs</h3>\n<p class=dim>With as many packs for each data-parallel rank: TFLOP/s of a "
		"GPU, and of it the part of the first row.</p>\n");
	vfm_html_table(b, "#GPUs|#TFLOP/s a GPU|#low|#high|#with stragglers|#part|");
	for (int i = 0; i < p->n_scaled; i++) {
		const struct vfm_scaled_run *s = &p->scaled[i];
		double mid = s->tflops_gpu[VFM_MID], part = mid / p->scaled[0].tflops_gpu[VFM_MID];

		vfm_html_row(b, "#%d|#%.1f|#%.1f|#%.1f|#%.1f|#%.1f %%|=%f", s->ranks, mid, s->tflops_gpu[VFM_LOW],
			s->tflops_gpu[VFM_HIGH], mid / s->straggler, 100 * part, part);
	}
	vfm_html_table_end(b);
}

enum { SCALED_RANKS = 10000 };

int vfm_scale_run(const struct vfm_dry_run_opts *o, const struct vfm_dry_run *d, struct vfm_scaled_run *v, int *n,
	struct vfm_err *err)
{
	struct vfm_config config = *o->config;
	struct vfm_dry_run_opts more = *o;

	more.config = &config;
	more.trace = NULL;
	more.timeline = more.memory = false;
	config.parallel.dp = 0;
	for (*n = 0; *n < VFM_SCALED_MOST && more.ranks <= SCALED_RANKS; more.ranks *= 2, more.packs *= 2) {
		struct vfm_dry_run twice = {0};
		const struct vfm_dry_run *is = *n ? &twice : d;

		if (*n && vfm_dry_run(&more, &twice, err) < 0) {
			vfm_dry_run_release(&twice);
			return err->code;
		}
		v[*n].ranks = more.ranks;
		v[*n].straggler = is->straggler;
		for (int e = 0; e < VFM_ESTIMATES; e++)
			v[*n].tflops_gpu[e] = is->flops / is->s[e] / 1e12 / more.ranks;
		++*n;
		vfm_dry_run_release(&twice);
	}
	return 0;
}

void vfm_nodes_sentence(struct vfm_buf *b, const struct vfm_machine *m, int ranks)
{
	int each = (int)m->node_gpus, nodes = (ranks + each - 1) / each;
	const char *unit = m->kind == VFM_MACHINE_CPU ? "ranks" : "GPUs";

	if (ranks % each == 0)
		vfm_buf_addf(b, "%d %s, %d node%s of %d", ranks, unit, nodes, nodes > 1 ? "s" : "", each);
	else if (nodes == 1)
		vfm_buf_addf(b, "%d %s on one node of %d", ranks, unit, each);
	else
		vfm_buf_addf(b, "%d %s, %d nodes of %d and one of %d", ranks, unit, nodes - 1, each, ranks % each);
}

void vfm_dry_run_section(struct vfm_buf *b, const struct vfm_dry_run_page *p)
{
	struct vfm_buf nodes = {0};

	if (p->o->ranks > 1)
		vfm_nodes_sentence(&nodes, p->o->machine, p->o->ranks);
	vfm_html_addf(b, "<section><p class=dim>Predicted for %s of the machine %s, not measured.%s</p>\n",
		nodes.data ? nodes.data : "one GPU", p->o->machine->name,
		p->d->fits ? "" : " It does not fit: times are those of a GPU with enough memory.");
	vfm_buf_release(&nodes);
	add_dry_cards(b, p);
	add_timeline(b, p->d);
	vfm_memory_section(b, p->d, p->o->machine);
	add_rank_table(b, p->d);
	add_scaling(b, p);
	vfm_buf_adds(b, "</section>\n");
}

void vfm_dry_run_html(struct vfm_buf *b, const struct vfm_dry_run_page *p)
{
	vfm_html_begin(b, "A predicted run", 0);
	vfm_dry_run_section(b, p);
	vfm_html_end(b);
}
