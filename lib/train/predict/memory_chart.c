/* memory_chart.c - memory by owner as charts, trace counters, JSON and a sentence. */
#include "train/predict/memory_chart.h"

#include <math.h>
#include <stdlib.h>

#include "io/json.h"
#include "media/draw/chart.h"
#include "media/draw/html.h"

enum { COLUMNS = 500, SHOWN = 9 };

static double gib(int64_t bytes)
{
	return (double)bytes / 0x1p30;
}

/* ---- text ---- */

/* How many owners have at least a hundredth of the peak each, at most SHOWN. */
static int count_large(const struct vfm_sim_memory *m)
{
	int n = 0;

	while (n < m->owners && n < SHOWN && m->owner[n].at_peak * 100 >= m->peak && m->owner[n].at_peak > 0)
		n++;
	return n;
}

void vfm_memory_json(struct vfm_buf *b, const struct vfm_sim_memory *m)
{
	json_t *o = json_object();

	for (int i = 0; i < m->owners; i++)
		if (m->owner[i].at_peak > 0)
			json_object_set_new(o, m->owner[i].name, json_integer(m->owner[i].at_peak));
	vfm_json_text(b, o, 0);
	json_decref(o);
}

void vfm_memory_sentence(struct vfm_buf *b, const struct vfm_sim_memory *m)
{
	int n = count_large(m);
	int64_t rest = m->peak;

	for (int i = 0; i < n; i++) {
		vfm_buf_addf(b, "%s%s %.2f", i ? ", " : "", m->owner[i].name, gib(m->owner[i].at_peak));
		rest -= m->owner[i].at_peak;
	}
	if (rest > 0)
		vfm_buf_addf(b, "%sother %.2f", n ? ", " : "", gib(rest));
}

void vfm_memory_trace(FILE *f, const struct vfm_sim_memory *m, int rank)
{
	int n = count_large(m);

	for (int i = 0; i < m->points; i++) {
		const int64_t *bytes = m->bytes + (size_t)i * (size_t)m->owners;
		int64_t rest = m->point[i].used;

		fprintf(f, ",\n{\"ph\":\"C\",\"name\":\"memory, MiB\",\"pid\":%d,\"ts\":%.3f,\"args\":{", rank,
			m->point[i].s * 1e6);
		for (int k = 0; k < n; k++) {
			fprintf(f, "\"%s\":%.3f,", m->owner[k].name, (double)bytes[k] / 0x1p20);
			rest -= bytes[k];
		}
		fprintf(f, "\"other\":%.3f}}", (double)rest / 0x1p20);
	}
}

/* ---- charts ---- */

/* Returns the state of the largest sum in a column; *at: the state at the begin of the column, then of the next. */
static int find_highest_state(const struct vfm_dry_run_rank *r, int column, int *at)
{
	const struct vfm_sim_memory *m = &r->memory;
	double end = r->memory_s * (column + 1) / COLUMNS;
	int best = *at;

	while (*at + 1 < m->points && m->point[*at + 1].s < end)
		if (m->point[++*at].used > m->point[best].used)
			best = *at;
	return best;
}

/* The traces of the first n owners, of the others, and of memory outside the program. */
static void trace_owners(struct vfm_trace *trace, const struct vfm_dry_run_rank *r, int n)
{
	for (int column = 0, at = 0; column < COLUMNS; column++) {
		int state = find_highest_state(r, column, &at);
		const int64_t *bytes = r->memory.bytes + (size_t)state * (size_t)r->memory.owners;
		int64_t rest = r->memory.point[state].used;

		for (int k = 0; k < n; k++) {
			vfm_trace_add(&trace[k], column, gib(bytes[k]));
			rest -= bytes[k];
		}
		vfm_trace_add(&trace[n], column, gib(rest));
		vfm_trace_add(&trace[n + 1], column, gib(r->mem_beside));
	}
}

static void add_memory_chart(struct vfm_buf *b, const struct vfm_dry_run_rank *r, double capacity)
{
	const struct vfm_sim_memory *m = &r->memory;
	int n = count_large(m);
	double all = gib(m->peak + r->mem_beside);
	int64_t peak_column = (int64_t)(m->peak_s / r->memory_s * COLUMNS);
	struct vfm_trace trace[SHOWN + 2] = {0};
	struct vfm_curve curves[SHOWN + 2] = {{.marks = &peak_column, .n_marks = m->peak_s >= 0}};
	char *title = vfm_strfmt("Rank %d, pp stage %d", r->rank, r->stage);
	char *note = vfm_strfmt("peak %.2f GiB, %.1f GiB %s the capacity %.1f GiB", all, fabs(capacity - all),
		all <= capacity ? "below" : "above", capacity);

	trace_owners(trace, r, n);
	for (int k = 0; k < n + 2; k++) {
		curves[k].trace = &trace[k];
		curves[k].name = k < n ? m->owner[k].name
			: k == n       ? "other"
				       : "driver, libraries, unused parts of pool chunks";
	}
	vfm_chart_html(b,
		&(struct vfm_chart){.title = title,
			.note = note,
			.hi = COLUMNS,
			.x_scale = r->memory_s * 1e3 / COLUMNS,
			.stacked = true,
			.limit = capacity,
			.curves = curves,
			.n = n + 2});
	for (int k = 0; k < n + 2; k++)
		vfm_trace_release(&trace[k]);
	free(title);
	free(note);
}

/* Returns whether no rank of its pp stage has a higher peak; of equal ones, the first. */
static bool is_fullest_of_stage(const struct vfm_dry_run *d, const struct vfm_dry_run_rank *r)
{
	for (int i = 0; i < d->n; i++) {
		const struct vfm_dry_run_rank *o = &d->rank[i];

		if (o->stage == r->stage &&
			(o->memory.peak > r->memory.peak || (o->memory.peak == r->memory.peak && o < r)))
			return false;
	}
	return true;
}

void vfm_memory_section(struct vfm_buf *b, const struct vfm_dry_run *d, const struct vfm_machine *machine)
{
	if (!d->n || !d->rank[0].memory.owners)
		return;
	vfm_html_addf(b,
		"<h3>Memory by owner</h3>\n<p class=dim>GiB over the milliseconds of a step%s: of each pp stage, the "
		"simulated rank with the highest peak. The dotted line and the figures are at the peak. The host "
		"allocates ahead of the device: memory counts from when the compute stream begins the work that is "
		"enqueued after the allocation.</p>\n<div class=charts>\n",
		d->steps ? ", of the one of the plan that needs the most memory" : "");
	for (int i = 0; i < d->n; i++)
		if (is_fullest_of_stage(d, &d->rank[i]))
			add_memory_chart(b, &d->rank[i], gib(machine->capacity));
	vfm_buf_adds(b, "</div>\n");
}
