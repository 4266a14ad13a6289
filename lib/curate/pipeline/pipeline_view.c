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

/* The time left: "0:12", ">0:12" if stages have not begun, or "?" if nothing is known. */
static void left_text(char *text, size_t size, const struct vfm_view_left *left)
{
	bool known = left->s >= (left->is_least ? 1 : 0);
	char time[32];

	time_text(time, sizeof(time), known ? left->s : -1);
	snprintf(text, size, "%s%s", known && left->is_least ? ">" : "", time);
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

/* An amount of records counts their seconds, and each record as a frame, so that images count, too. */
#define FRAME_S 0.04

static double amount_in(const struct vfm_stage_counts *c)
{
	int64_t passed = (c->dropped - c->dropped_here) + (c->failed - c->failed_here);

	return c->in_s + FRAME_S * (double)(c->in - passed);
}

static double amount_kept(const struct vfm_stage_counts *c)
{
	return c->kept_s + FRAME_S * (double)c->kept;
}

/* Returns the part of the inputs of the run that are n with these bytes; < 0: unknown. */
static double share_of_inputs(const struct vfm_view *v, int64_t n, int64_t bytes)
{
	if (v->stage[0].state == VFM_VIEW_DONE)
		return 1;
	if (v->total < 0)
		return -1;
	if (v->total_bytes > 0 && bytes > 0)
		return fmin(1, (double)bytes / (double)v->total_bytes);
	return v->total ? fmin(1, (double)n / (double)v->total) : 1;
}

/* Adds the time of a stage to the sums of those before: *shared of the jobs, *apart of the slowest stage with workers of
 * its own.  Returns whether the stage has begun. */
static bool add_stage_time(const struct vfm_view *v, const struct vfm_view_stage *s, double done, double work_s,
	double *shared, double *apart)
{
	double work_left, workers;

	if (s->state == VFM_VIEW_DONE)
		return true;
	if (done <= 0 || work_s <= 0)
		return false;
	work_left = work_s * (1 - done) / done;
	if (!s->is_apart) {
		*shared += work_left / (double)(v->jobs > 0 ? v->jobs : 1);
	} else {
		workers = s->wall_s > 0 ? work_s / s->wall_s : 1;
		*apart = fmax(*apart, work_left / fmax(1, workers));
	}
	return true;
}

void vfm_view_estimate(const struct vfm_view *v, struct vfm_view_left *left)
{
	const struct vfm_view_stage *first = &v->stage[0];
	double done = share_of_inputs(v, first->c.counts.in, first->c.counts.in_bytes), total = -1;
	double worked = share_of_inputs(v, first->worked, first->worked_bytes), shared = 0, apart = 0;
	bool is_least = false, any = false;

	for (int k = 0; k < v->n; k++) {
		const struct vfm_view_stage *s = &v->stage[k];
		const struct vfm_stage_counts *c = &s->c.counts;
		bool begun;

		if (s->state == VFM_VIEW_DONE)
			done = 1;
		else if (k)
			done = total > 0 ? fmin(1, amount_in(c) / total) : total < 0 ? -1 : 0;
		begun = k ? add_stage_time(v, s, done, c->work_s, &shared, &apart)
			  : add_stage_time(v, s, worked, s->worked_s, &shared, &apart);
		any |= begun;
		is_least |= !begun;
		left[k] = (struct vfm_view_left){
			.s = any ? fmax(shared, apart) : -1, .is_least = is_least, .done = fmax(done, 0)};
		if (s->state == VFM_VIEW_DONE)
			left[k].s = 0;
		if (done > 0) /* else it is taken to keep all */
			total = amount_kept(c) / done;
	}
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
	struct vfm_view_left ends[VFM_PROGRESS_STAGES];
	char rate[32], left[40];
	int64_t dropped, failed;

	vfm_view_estimate(v, ends);
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
	left_text(left, sizeof(left), &ends[v->n - 1]);
	vfm_buf_addf(b, "; %lld dropped, %lld failed; %s left", (long long)dropped, (long long)failed, left);
}

/* ---- the table ---- */

enum {
	NAME_WIDTH = 12,
	RECORDS_WIDTH = 9,
	LEFT_WIDTH = 9,
	DROPPED_WIDTH = 9,
	RATE_WIDTH = 9,
	FAILED_WIDTH = 8,
	VIDEO_WIDTH = 11
};
enum { BAR_LEAST = 8, BAR_MOST = 30 };

/* The columns of a table; 0: left out, because the terminal is too narrow. */
struct view_columns {
	int bar, dropped, failed, rate, left, video_in, video_kept, video_dropped;
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
	add_view_column(&w.video_kept, VIDEO_WIDTH, &room);
	add_view_column(&w.video_in, VIDEO_WIDTH, &room);
	add_view_column(&w.video_dropped, VIDEO_WIDTH, &room);
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

/* Returns the records that this stage dropped, or could not process.  These are outputs, in contrast to the counts. */
static int64_t count_reasons(const struct vfm_view_stage *s, bool is_error)
{
	int64_t n = 0;

	for (int i = 0; i < VFM_REASONS; i++)
		n += s->c.reasons.v[i].is_error == is_error ? s->c.reasons.v[i].n : 0;
	return n;
}

static void add_video_cell(struct vfm_buf *b, int width, double s)
{
	char text[VFM_DURATION_TEXT];

	if (width)
		vfm_buf_addf(b, "%*s", width, s > 0 ? vfm_duration_text(text, s) : "-");
}

/* The row of a stage.  Records: those neither dropped nor failed in earlier stages; dropped and failed: those of this
 * stage. */
static void add_stage_row(struct vfm_buf *b, const struct vfm_view_stage *s, const struct view_columns *w,
	const struct vfm_view_left *left)
{
	const struct vfm_stage_counts *c = &s->c.counts;
	int64_t passed = (c->dropped - c->dropped_here) + (c->failed - c->failed_here);
	bool runs = s->state == VFM_VIEW_RUNS && records_in(s) > s->at_start;
	char text[40];

	vfm_buf_addf(b, "  %-*s", NAME_WIDTH - 2, s->name);
	if (w->bar)
		add_bar_text(b, w->bar - 1, left->done);
	vfm_buf_addf(b, "%*lld", RECORDS_WIDTH, (long long)(c->in - passed));
	if (w->dropped)
		vfm_buf_addf(b, "%*lld", w->dropped, (long long)count_reasons(s, false));
	if (w->failed)
		vfm_buf_addf(b, "%*lld", w->failed, (long long)count_reasons(s, true));
	add_video_cell(b, w->video_in, c->in_s);
	add_video_cell(b, w->video_kept, c->kept_s);
	add_video_cell(b, w->video_dropped, c->dropped_s);
	rate_text(text, sizeof(text), s->rate);
	if (w->rate)
		vfm_buf_addf(b, "%*s", w->rate, runs ? text : "-");
	left_text(text, sizeof(text), left);
	if (w->left)
		vfm_buf_addf(b, "%*s", w->left, s->state == VFM_VIEW_RUNS ? text : state_names[s->state]);
	vfm_buf_adds(b, "\n");
}

void vfm_view_table(struct vfm_buf *b, const struct vfm_view *v, int columns, int rows)
{
	struct view_columns w = choose_view_columns(columns);
	struct vfm_view_left left[VFM_PROGRESS_STAGES];
	char spent[32], until[40];
	int n = v->n + 2 > rows ? (rows > 3 ? rows - 2 : 1) : v->n, first = 0;

	vfm_view_estimate(v, left);
	while (first + n < v->n && v->stage[first].state == VFM_VIEW_DONE) /* too many: those that run */
		first++;
	vfm_buf_addf(b, "  %-*s", NAME_WIDTH - 2, "stage");
	if (w.bar)
		vfm_buf_addf(b, " %-*s", w.bar - 1, "progress");
	vfm_buf_addf(b, "%*s%*.*s%*.*s%*.*s%*.*s%*.*s%*.*s%*.*s\n", RECORDS_WIDTH, "records", w.dropped, w.dropped,
		"dropped", w.failed, w.failed, "failed", w.video_in, w.video_in, "video in", w.video_kept, w.video_kept,
		"kept", w.video_dropped, w.video_dropped, "dropped", w.rate, w.rate, "rate", w.left, w.left, "left");
	for (int k = first; k < first + n; k++)
		add_stage_row(b, &v->stage[k], &w, &left[k]);
	time_text(spent, sizeof(spent), v->elapsed_s);
	left_text(until, sizeof(until), &left[v->n - 1]);
	if (v->state != VFM_VIEW_RUNS || until[0] == '?')
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
	struct vfm_view_left left[VFM_PROGRESS_STAGES];

	vfm_view_estimate(v, left);
	vfm_buf_adds(b, "<h2>Stages</h2>\n");
	vfm_html_table(b, "stage|state|progress|#in|#out|#dropped|#failed|#video in|#kept|#waiting|#in work|#rate");
	for (int k = 0; k < v->n; k++) {
		const struct vfm_view_stage *s = &v->stage[k];
		const struct vfm_stage_counts *c = &s->c.counts;
		const char *state = state_names[s->state];
		char waiting[24], rate[32], video_in[VFM_DURATION_TEXT], kept[VFM_DURATION_TEXT];

		waiting_text(waiting, sizeof(waiting), s);
		rate_text(rate, sizeof(rate), s->rate);
		vfm_html_row(b,
			"<b>%s</b>|<span class='state "
			"%s'>%s</span>|=%f|#%'lld|#%'lld|#%'lld|#%'lld|#%s|#%s|#%s|#%d|#%s",
			s->name, state, state, left[k].done, (long long)c->in, (long long)c->out, (long long)c->dropped,
			(long long)c->failed, vfm_duration_text(video_in, c->in_s), vfm_duration_text(kept, c->kept_s),
			waiting, s->busy, s->state == VFM_VIEW_RUNS ? rate : "-");
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
	struct vfm_view_left left[VFM_PROGRESS_STAGES];
	char text[64];
	int64_t dropped, failed;

	vfm_view_estimate(v, left);
	vfm_html_begin(b, v->config, v->state == VFM_VIEW_RUNS ? 2 : 0);
	vfm_html_addf(
		b, "<p><span class='state %s'>%s</span> <span class=dim>in %s</span></p>\n", state, state, v->dir);
	if (v->message)
		vfm_html_addf(b, "<p>%s</p>\n", v->message);
	vfm_buf_adds(b, "<div class=cards>\n");
	time_text(text, sizeof(text), v->elapsed_s);
	vfm_html_card(b, "time spent", "%s", text);
	left_text(text, sizeof(text), &left[v->n - 1]);
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
