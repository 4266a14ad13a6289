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
		char waiting[24] = "-";

		if (s->waiting >= 0 && s->state == VFM_VIEW_RUNS)
			snprintf(waiting, sizeof(waiting), "%lld", (long long)s->waiting);
		rate_text(rate, sizeof(rate), s->rate);
		snprintf(line, sizeof(line), "  %-10s %11lld %9lld %9lld %9lld %9s %5d %10s", s->name, (long long)c->in,
			(long long)c->out, (long long)c->dropped, (long long)c->failed, waiting, s->busy,
			s->state == VFM_VIEW_RUNS ? rate : state_names[s->state]);
		add_table_line(b, line, columns);
	}
	for (int k = 0; k < v->n; k++)
		for (int i = 0; i < VFM_BOARD_REASONS && i < 3 && v->stage[k].c.reasons[i].n; i++, lines++) {
			const struct vfm_board_reason *r = &v->stage[k].c.reasons[i];

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

static void add_card(struct vfm_buf *b, const char *name, const char *value)
{
	vfm_buf_adds(b, "<div class=\"card\"><span class=\"dim\">");
	vfm_html_text(b, name);
	vfm_buf_adds(b, "</span><b>");
	vfm_html_text(b, value);
	vfm_buf_adds(b, "</b></div>\n");
}

static void add_count_card(struct vfm_buf *b, const char *name, int64_t n)
{
	vfm_buf_addf(b, "<div class=\"card\"><span class=\"dim\">%s</span><b>", name);
	vfm_html_count(b, n);
	vfm_buf_adds(b, "</b></div>\n");
}

static void add_count_cell(struct vfm_buf *b, int64_t n)
{
	vfm_buf_adds(b, "<td class=\"num\">");
	if (n >= 0)
		vfm_html_count(b, n);
	else
		vfm_buf_adds(b, "-");
	vfm_buf_adds(b, "</td>");
}

static void add_stage_row(struct vfm_buf *b, const struct vfm_view_stage *s, double total)
{
	const struct vfm_stage_counts *c = &s->c.counts;
	double share = s->state == VFM_VIEW_DONE ? 1 : total > 0 ? fmin(1, (double)c->in / total) : 0;
	char rate[32];

	rate_text(rate, sizeof(rate), s->rate);
	vfm_buf_addf(b, "<tr><td><b>%s</b></td><td class=\"state %s\">%s</td>", s->name, state_names[s->state],
		state_names[s->state]);
	vfm_buf_addf(b, "<td><div class=\"bar\"><i class=\"%s\" style=\"width:%.1f%%\"></i></div></td>",
		s->state == VFM_VIEW_DONE             ? "green"
			: s->state == VFM_VIEW_FAILED ? "red"
						      : "",
		100 * share);
	add_count_cell(b, c->in);
	add_count_cell(b, c->out);
	add_count_cell(b, c->dropped);
	add_count_cell(b, c->failed);
	add_count_cell(b, s->state == VFM_VIEW_RUNS ? s->waiting : -1);
	add_count_cell(b, s->state == VFM_VIEW_RUNS ? s->busy : -1);
	vfm_buf_addf(b, "<td class=\"num\">%s</td></tr>\n", s->state == VFM_VIEW_RUNS ? rate : "-");
}

static void add_stage_table(struct vfm_buf *b, const struct vfm_view *v)
{
	double total = v->stage[0].state == VFM_VIEW_DONE ? (double)records_in(&v->stage[0]) : (double)v->total;

	vfm_buf_adds(b,
		"<h2>Stages</h2>\n<table><tr><th>stage</th><th>state</th><th>progress</th>"
		"<th class=\"num\">in</th><th class=\"num\">out</th><th class=\"num\">dropped</th>"
		"<th class=\"num\">failed</th><th class=\"num\">waiting</th><th class=\"num\">in work</th>"
		"<th class=\"num\">rate</th></tr>\n");
	for (int k = 0; k < v->n; k++) {
		const struct vfm_view_stage *s = &v->stage[k];

		add_stage_row(b, s, total);
		if (records_in(s) > 0)
			total *= (double)s->c.counts.written / (double)records_in(s);
	}
	vfm_buf_adds(b, "</table>\n");
}

static void add_reason_table(struct vfm_buf *b, const struct vfm_view *v)
{
	int64_t most = 0;

	for (int k = 0; k < v->n; k++)
		for (int i = 0; i < VFM_BOARD_REASONS; i++)
			if (v->stage[k].c.reasons[i].n > most)
				most = v->stage[k].c.reasons[i].n;
	vfm_buf_adds(b, "<h2>Dropped and failed</h2>\n");
	if (!most) {
		vfm_buf_adds(b,
			v->state == VFM_VIEW_RUNS ? "<p class=\"dim\">No record yet.</p>\n"
						  : "<p class=\"dim\">No record.</p>\n");
		return;
	}
	vfm_buf_adds(b, "<table><tr><th>stage</th><th>reason</th><th class=\"num\">records</th><th></th></tr>\n");
	for (int k = 0; k < v->n; k++)
		for (int i = 0; i < VFM_BOARD_REASONS; i++) {
			const struct vfm_board_reason *r = &v->stage[k].c.reasons[i];

			if (!r->n)
				continue;
			vfm_buf_addf(b, "<tr><td>%s</td><td>", v->stage[k].name);
			vfm_html_text(b, r->text);
			vfm_buf_adds(b, "</td>");
			add_count_cell(b, r->n);
			vfm_buf_addf(b,
				"<td style=\"width:24%%\"><div class=\"bar\"><i class=\"%s\" "
				"style=\"width:%.1f%%\"></i></div></td></tr>\n",
				strncmp(r->text, "failed: ", 8) ? "amber" : "red", 100.0 * (double)r->n / (double)most);
		}
	vfm_buf_adds(b, "</table>\n");
}

void vfm_view_page(struct vfm_buf *b, const struct vfm_view *v)
{
	char text[64];
	double left = vfm_view_left_s(v);
	int64_t dropped, failed;

	vfm_html_begin(b, v->config, v->state == VFM_VIEW_RUNS ? 2 : 0);
	vfm_buf_addf(b, "<p><span class=\"state %s\">%s</span> <span class=\"dim\">in ", state_names[v->state],
		state_names[v->state]);
	vfm_html_text(b, v->dir);
	vfm_buf_adds(b, "</span></p>\n");
	if (v->message) {
		vfm_buf_adds(b, "<p>");
		vfm_html_text(b, v->message);
		vfm_buf_adds(b, "</p>\n");
	}
	vfm_buf_adds(b, "<div class=\"cards\">\n");
	time_text(text, sizeof(text), v->elapsed_s);
	add_card(b, "time spent", text);
	if (v->state == VFM_VIEW_RUNS) {
		time_text(text, sizeof(text), left);
		add_card(b, "time left", left < 0 ? "unknown" : text);
	}
	get_losses(v, &dropped, &failed);
	add_count_card(b, "records in", records_in(&v->stage[0]));
	add_count_card(b, "records out", v->stage[v->n - 1].c.counts.out);
	add_count_card(b, "dropped", dropped);
	add_count_card(b, "failed", failed);
	add_count_card(b, "workers", v->jobs);
	vfm_buf_adds(b, "</div>\n");
	add_stage_table(b, v);
	add_reason_table(b, v);
	vfm_html_end(b);
}
