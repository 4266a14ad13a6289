/* pipeline_view.c - rates, remaining time and counts of the stages as text and HTML. */
#include "curate/pipeline/pipeline_view.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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

double vfm_view_left_s(const struct vfm_view *v)
{
	double total = (double)v->total, left = 0;

	if (v->stage[0].state == VFM_VIEW_DONE)
		total = (double)records_in(&v->stage[0]);
	if (total < 0)
		return -1;
	for (int k = 0; k < v->n; k++) {
		const struct vfm_view_stage *s = &v->stage[k];
		double in = (double)records_in(s), rate;

		if (s->state != VFM_VIEW_DONE) {
			rate = v->elapsed_s > 0 ? (in - (double)s->at_start) / v->elapsed_s : 0;
			if (total > in && rate <= 0)
				return -1;
			if (total > in)
				left = fmax(left, (total - in) / rate);
		}
		if (in > 0)
			total *= (double)s->c.counts.written / in;
	}
	return left;
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

/* Appends a line, cut to the columns of the terminal. */
static void add_table_line(struct vfm_buf *b, const char *line, int columns)
{
	vfm_buf_addf(b, "%.*s\033[K\n", columns, line);
}

int vfm_view_table(struct vfm_buf *b, const struct vfm_view *v, int columns)
{
	char line[512], rate[32], spent[32], left[32];
	int lines = 2;

	add_table_line(b, "  stage               in       out   dropped    failed   waiting  work       rate", columns);
	for (int k = 0; k < v->n; k++, lines++) {
		const struct vfm_view_stage *s = &v->stage[k];
		const struct vfm_stage_counts *c = &s->c.counts;
		char waiting[24];

		waiting_text(waiting, sizeof(waiting), s);
		rate_text(rate, sizeof(rate), s->rate);
		snprintf(line, sizeof(line), "  %-10s %11lld %9lld %9lld %9lld %9s %5d %10s", s->name, (long long)c->in,
			(long long)c->out, (long long)c->dropped, (long long)c->failed, waiting, s->busy,
			s->state == VFM_VIEW_RUNS ? rate : state_names[s->state]);
		add_table_line(b, line, columns);
	}
	for (int k = 0; k < v->n; k++)
		for (int i = 0; i < VFM_PROGRESS_REASONS && i < 3 && v->stage[k].c.reasons[i].n; i++, lines++) {
			const struct vfm_progress_reason *r = &v->stage[k].c.reasons[i];

			snprintf(line, sizeof(line), "    %9lld  %s: %s", (long long)r->n, v->stage[k].name, r->text);
			add_table_line(b, line, columns);
		}
	time_text(spent, sizeof(spent), v->elapsed_s);
	time_text(left, sizeof(left), vfm_view_left_s(v));
	snprintf(line, sizeof(line), "  %s, %s left", spent, left);
	add_table_line(b, line, columns);
	return lines;
}

/* ---- the page ---- */

static void add_stage_table(struct vfm_buf *b, const struct vfm_view *v)
{
	double total = v->stage[0].state == VFM_VIEW_DONE ? (double)records_in(&v->stage[0]) : (double)v->total;

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
				: total > 0       ? (double)c->in / total
						  : 0,
			(long long)c->in, (long long)c->out, (long long)c->dropped, (long long)c->failed, waiting,
			s->busy, s->state == VFM_VIEW_RUNS ? rate : "-");
		if (c->in > 0)
			total *= (double)c->written / (double)c->in;
	}
	vfm_html_table_end(b);
}

static void add_reason_table(struct vfm_buf *b, const struct vfm_view *v)
{
	vfm_buf_adds(b, "<h2>Dropped and failed</h2>\n");
	vfm_html_table(b, "stage|reason|#records|of those of the stage");
	for (int k = 0; k < v->n; k++)
		for (int i = 0; i < VFM_PROGRESS_REASONS; i++) {
			const struct vfm_progress_reason *r = &v->stage[k].c.reasons[i];

			if (r->n)
				vfm_html_row(b, "%s|%s|#%'lld|=%f", v->stage[k].name, r->text, (long long)r->n,
					(double)r->n / (double)records_in(&v->stage[k]));
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
