/* pipeline_view.c - rates, remaining time and counts of the stages as text and HTML. */
#include "curate/pipeline/pipeline_view.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "media/draw/html.h"

static const char *const state_names[] = {"runs", "done", "stopped", "failed"};

static void time_text(char *text, size_t size, double s)
{
	int64_t t = s >= 0 && s < 1e9 ? (int64_t)(s + 0.5) : -1;

	if (t < 0)
		snprintf(text, size, "?");
	else if (t >= 3600)
		snprintf(text, size, "%lld:%02lld:%02lld", (long long)(t / 3600), (long long)(t / 60 % 60),
			(long long)(t % 60));
	else
		snprintf(text, size, "%lld:%02lld", (long long)(t / 60), (long long)(t % 60));
}

static void rate_text(char *text, size_t size, double rate)
{
	snprintf(text, size, rate >= 100 ? "%.0f/s" : rate >= 0.95 ? "%.1f/s" : "%.2f/s", rate);
}

static void waiting_text(char *text, size_t size, const struct vfm_view_stage *s)
{
	if (s->waiting >= 0 && s->state == VFM_VIEW_RUNS)
		snprintf(text, size, "%lld", (long long)s->waiting);
	else
		snprintf(text, size, "-");
}

static int64_t records_in(const struct vfm_view_stage *s)
{
	return s->c.counts.in;
}

/* Estimates for each stage the records in at the end and the seconds until then; < 0: unknown. */
static void estimate_end(const struct vfm_view *v, double *totals, double *left)
{
	double total = (double)v->total, before = 0;

	if (v->stage[0].state == VFM_VIEW_DONE)
		total = (double)records_in(&v->stage[0]);
	for (int k = 0; k < v->n; k++) {
		const struct vfm_view_stage *s = &v->stage[k];
		double in = (double)records_in(s), rate;

		rate = s->work_s > 0 ? (in - (double)s->at_start) / s->work_s : 0;
		totals[k] = total;
		if (s->state == VFM_VIEW_DONE)
			left[k] = 0;
		else if (before < 0 || total < 0 || (total > in && rate <= 0))
			left[k] = -1;
		else
			left[k] = fmax(before, total > in ? (total - in) / rate : 0);
		before = left[k];
		if (in > 0 && total > 0)
			total *= (double)s->c.counts.written / in;
	}
}

double vfm_view_left_s(const struct vfm_view *v)
{
	double totals[VFM_PROGRESS_STAGES], left[VFM_PROGRESS_STAGES];

	estimate_end(v, totals, left);
	return left[v->n - 1];
}

/* Records that are dropped or failed pass on to the last stage. */
static void get_losses(const struct vfm_view *v, int64_t *dropped, int64_t *failed)
{
	*dropped = *failed = 0;
	for (int k = 0; k < v->n; k++) {
		const struct vfm_stage_counts *c = &v->stage[k].c.counts;

		*dropped = c->dropped > *dropped ? c->dropped : *dropped;
		*failed = c->failed > *failed ? c->failed : *failed;
	}
}

void vfm_view_line(struct vfm_buf *b, const struct vfm_view *v)
{
	char rate[32], left[32];
	int64_t dropped, failed;

	for (int k = 0; k < v->n; k++) {
		const struct vfm_view_stage *s = &v->stage[k];

		rate_text(rate, sizeof(rate), s->rate);
		vfm_buf_addf(b, "%s%s %lld", k ? ", " : "", s->name, (long long)records_in(s));
		if (s->state == VFM_VIEW_RUNS)
			vfm_buf_addf(b, " (%s", rate);
		if (s->state == VFM_VIEW_RUNS && s->waiting > 0)
			vfm_buf_addf(b, ", %lld wait", (long long)s->waiting);
		vfm_buf_adds(b, s->state == VFM_VIEW_RUNS ? ")" : "");
	}
	get_losses(v, &dropped, &failed);
	time_text(left, sizeof(left), vfm_view_left_s(v));
	vfm_buf_addf(b, "; %lld dropped, %lld failed; %s left", (long long)dropped, (long long)failed, left);
}

/* ---- the table ---- */

enum { NAME_WIDTH = 12, RECORDS_WIDTH = 11, LEFT_WIDTH = 9, DROPPED_WIDTH = 9, RATE_WIDTH = 10, FAILED_WIDTH = 8 };
enum { BAR_LEAST = 8, BAR_MOST = 30 };

/* The columns of a table; 0: left out, because the terminal is too narrow. */
struct view_columns {
	int bar, dropped, failed, rate, left;
};

static void add_view_column(int *column, int width, int *room)
{
	*column = width <= *room ? width : 0;
	*room -= *column;
}

static struct view_columns choose_view_columns(int columns)
{
	struct view_columns w = {0};
	int room = columns - NAME_WIDTH - RECORDS_WIDTH;

	add_view_column(&w.left, LEFT_WIDTH, &room);
	add_view_column(&w.bar, BAR_LEAST + 1, &room);
	add_view_column(&w.dropped, DROPPED_WIDTH, &room);
	add_view_column(&w.rate, RATE_WIDTH, &room);
	add_view_column(&w.failed, FAILED_WIDTH, &room);
	if (w.bar)
		w.bar = w.bar + room < BAR_MOST + 1 ? w.bar + room : BAR_MOST + 1;
	return w;
}

static void add_bar_text(struct vfm_buf *b, int width, double share)
{
	int full = (int)(fmin(1, fmax(0, share)) * width);

	vfm_buf_adds(b, " ");
	for (int i = 0; i < width; i++)
		vfm_buf_adds(b, i < full ? "\u2588" : "\u2591");
}

/* The row of a stage.  Records: those neither dropped nor failed in earlier stages; dropped and failed: those of this
 * stage. */
static void add_stage_row(
	struct vfm_buf *b, const struct vfm_view_stage *s, const struct view_columns *w, double total, double left)
{
	const struct vfm_stage_counts *c = &s->c.counts;
	int64_t own = c->dropped_here + c->failed_here;
	bool runs = s->state == VFM_VIEW_RUNS && records_in(s) > s->at_start;
	char text[32];

	vfm_buf_addf(b, "  %-*s", NAME_WIDTH - 2, s->name);
	if (w->bar)
		add_bar_text(b, w->bar - 1, s->state == VFM_VIEW_DONE ? 1 : total > 0 ? (double)c->in / total : 0);
	vfm_buf_addf(b, "%*lld", RECORDS_WIDTH, (long long)(c->in - (c->dropped + c->failed - own)));
	if (w->dropped)
		vfm_buf_addf(b, "%*lld", w->dropped, (long long)c->dropped_here);
	if (w->failed)
		vfm_buf_addf(b, "%*lld", w->failed, (long long)c->failed_here);
	rate_text(text, sizeof(text), s->rate);
	if (w->rate)
		vfm_buf_addf(b, "%*s", w->rate, runs ? text : "-");
	time_text(text, sizeof(text), left);
	if (w->left)
		vfm_buf_addf(b, "%*s", w->left, s->state == VFM_VIEW_RUNS ? text : state_names[s->state]);
	vfm_buf_adds(b, "\n");
}

void vfm_view_table(struct vfm_buf *b, const struct vfm_view *v, int columns, int rows)
{
	struct view_columns w = choose_view_columns(columns);
	double totals[VFM_PROGRESS_STAGES], left[VFM_PROGRESS_STAGES];
	char spent[32], until[32];
	int n = v->n + 2 > rows ? (rows > 3 ? rows - 2 : 1) : v->n, first = 0;

	estimate_end(v, totals, left);
	while (first + n < v->n && v->stage[first].state == VFM_VIEW_DONE) /* too many: those that run */
		first++;
	vfm_buf_addf(b, "  %-*s", NAME_WIDTH - 2, "stage");
	if (w.bar)
		vfm_buf_addf(b, " %-*s", w.bar - 1, "progress");
	vfm_buf_addf(b, "%*s%*.*s%*.*s%*.*s%*.*s\n", RECORDS_WIDTH, "records", w.dropped, w.dropped, "dropped",
		w.failed, w.failed, "failed", w.rate, w.rate, "rate", w.left, w.left, "left");
	for (int k = first; k < first + n; k++)
		add_stage_row(b, &v->stage[k], &w, totals[k], left[k]);
	time_text(spent, sizeof(spent), v->elapsed_s);
	time_text(until, sizeof(until), left[v->n - 1]);
	if (v->state != VFM_VIEW_RUNS || left[v->n - 1] < 0)
		vfm_buf_addf(b, "  %s elapsed\n", spent);
	else
		vfm_buf_addf(b, "  %s elapsed, %s left\n", spent, until);
}

void vfm_view_reasons(struct vfm_buf *b, const struct vfm_view *v, int columns)
{
	char seconds[VFM_DURATION_TEXT];

	for (int k = 0; k < v->n; k++)
		for (int i = 0; i < VFM_REASONS && v->stage[k].c.reasons.v[i].n; i++) {
			const struct vfm_reason *r = &v->stage[k].c.reasons.v[i];
			char *line = vfm_strfmt("  %9lld %11s  %s: %s%s", (long long)r->n,
				r->s > 0 ? vfm_duration_text(seconds, r->s) : "", v->stage[k].name,
				r->is_error ? "failed: " : "", r->text);

			vfm_buf_addf(b, "%.*s\n", (int)vfm_utf8_cut(line, columns), line);
			free(line);
		}
}

/* ---- the page ---- */

static void add_stage_table(struct vfm_buf *b, const struct vfm_view *v)
{
	double totals[VFM_PROGRESS_STAGES], left[VFM_PROGRESS_STAGES];

	estimate_end(v, totals, left);
	vfm_buf_adds(b, "<h2>Stages</h2>\n");
	vfm_html_table(b, "stage|state|progress|#in|#out|#dropped|#failed|#waiting|#in work|#rate");
	for (int k = 0; k < v->n; k++) {
		const struct vfm_view_stage *s = &v->stage[k];
		const struct vfm_stage_counts *c = &s->c.counts;
		const char *state = state_names[s->state];
		char waiting[24], rate[32];

		waiting_text(waiting, sizeof(waiting), s);
		rate_text(rate, sizeof(rate), s->rate);
		vfm_html_row(b,
			"<b>%s</b>|<span class='state %s'>%s</span>|=%f|#%'lld|#%'lld|#%'lld|#%'lld|#%s|#%d|#%s",
			s->name, state, state,
			s->state == VFM_VIEW_DONE ? 1
				: totals[k] > 0   ? (double)c->in / totals[k]
						  : 0,
			(long long)c->in, (long long)c->out, (long long)c->dropped, (long long)c->failed, waiting,
			s->busy, s->state == VFM_VIEW_RUNS ? rate : "-");
	}
	vfm_html_table_end(b);
}

static void add_reason_table(struct vfm_buf *b, const struct vfm_view *v)
{
	char seconds[VFM_DURATION_TEXT];

	vfm_buf_adds(b, "<h2>Dropped and failed</h2>\n");
	vfm_html_table(b, "stage|reason|#records|of those of the stage|#video");
	for (int k = 0; k < v->n; k++)
		for (int i = 0; i < VFM_REASONS && v->stage[k].c.reasons.v[i].n; i++) {
			const struct vfm_reason *r = &v->stage[k].c.reasons.v[i];

			vfm_html_row(b, "%s|%s%s|#%'lld|=%f|#%s", v->stage[k].name, r->is_error ? "failed: " : "",
				r->text, (long long)r->n, (double)r->n / (double)v->stage[k].c.counts.written,
				r->s > 0 ? vfm_duration_text(seconds, r->s) : "-");
		}
	vfm_html_table_end(b);
}

void vfm_view_page(struct vfm_buf *b, const struct vfm_view *v)
{
	const char *state = state_names[v->state];
	char text[64];
	int64_t dropped, failed;

	vfm_html_begin(b, v->config, v->state == VFM_VIEW_RUNS ? 2 : 0);
	vfm_html_addf(
		b, "<p><span class='state %s'>%s</span> <span class=dim>in %s</span></p>\n", state, state, v->dir);
	if (v->message)
		vfm_html_addf(b, "<p>%s</p>\n", v->message);
	vfm_buf_adds(b, "<div class=cards>\n");
	time_text(text, sizeof(text), v->elapsed_s);
	vfm_html_card(b, "time spent", "%s", text);
	time_text(text, sizeof(text), vfm_view_left_s(v));
	vfm_html_card(b, "time left", "%s", text);
	get_losses(v, &dropped, &failed);
	vfm_html_card(b, "records in", "%'lld", (long long)records_in(&v->stage[0]));
	vfm_html_card(b, "records out", "%'lld", (long long)v->stage[v->n - 1].c.counts.out);
	vfm_html_card(b, "dropped", "%'lld", (long long)dropped);
	vfm_html_card(b, "failed", "%'lld", (long long)failed);
	vfm_html_card(b, "workers", "%'lld", (long long)v->jobs);
	vfm_buf_adds(b, "</div>\n");
	add_stage_table(b, v);
	add_reason_table(b, v);
	vfm_html_end(b);
}
