#include "media/draw/html_chart.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "media/draw/html.h"
#include "media/draw/plot_axis.h"

/* The chart in units of its view box, which are about pixels. */
enum { WIDTH = 540, HEIGHT = 230, LEFT = 44, RIGHT = 532, TOP = 8, BOTTOM = 208 };

/* ---- traces ---- */

static void merge_columns(struct vfm_trace_column *to, const struct vfm_trace_column *from)
{
	to->gaps += from->gaps;
	if (!from->n)
		return;
	to->min = to->n ? fmin(to->min, from->min) : from->min;
	to->max = to->n ? fmax(to->max, from->max) : from->max;
	to->sum += from->sum;
	to->n += from->n;
}

/* Doubles the width of the columns.  The old range becomes the left or the right half of the new one. */
static void widen_trace(struct vfm_trace *t, bool to_the_left)
{
	struct vfm_trace_column *old = t->column, *half;

	t->column = vfm_calloc(VFM_TRACE_COLUMNS, sizeof(*t->column));
	half = t->column + (to_the_left ? VFM_TRACE_COLUMNS / 2 : 0);
	for (int i = 0; i < VFM_TRACE_COLUMNS; i++)
		merge_columns(&half[i / 2], &old[i]);
	free(old);
	if (to_the_left)
		t->first -= VFM_TRACE_COLUMNS * t->width;
	t->width *= 2;
}

void vfm_trace_add(struct vfm_trace *t, int64_t x, double y)
{
	struct vfm_trace_column point = {.gaps = 1};

	if (!t->column) {
		t->column = vfm_calloc(VFM_TRACE_COLUMNS, sizeof(*t->column));
		t->first = x;
		t->width = 1;
	}
	while (x < t->first)
		widen_trace(t, true);
	while (x - t->first >= VFM_TRACE_COLUMNS * t->width)
		widen_trace(t, false);
	if (!isnan(y)) {
		point = (struct vfm_trace_column){.min = y, .max = y, .sum = y, .n = 1};
		t->n++;
		t->last = y;
	}
	merge_columns(&t->column[(x - t->first) / t->width], &point);
}

void vfm_trace_release(struct vfm_trace *t)
{
	free(t->column);
	*t = (struct vfm_trace){0};
}

static int count_used_columns(const struct vfm_trace *t)
{
	int used = 0;

	for (int i = 0; t->column && i < VFM_TRACE_COLUMNS; i++)
		used += t->column[i].n > 0;
	return used;
}

double vfm_trace_recent(const struct vfm_trace *t)
{
	struct vfm_trace_column recent = {0};
	int left = count_used_columns(t) / 40 + 1;

	for (int i = VFM_TRACE_COLUMNS - 1; t->n && i >= 0 && left > 0; i--) {
		merge_columns(&recent, &t->column[i]);
		left -= t->column[i].n > 0;
	}
	return recent.n ? recent.sum / (double)recent.n : NAN;
}

double vfm_trace_min(const struct vfm_trace *t)
{
	double min = NAN;

	for (int i = 0; t->column && i < VFM_TRACE_COLUMNS; i++)
		min = t->column[i].n ? fmin(min, t->column[i].min) : min;
	return min;
}

/* ---- numbers and colours ---- */

void vfm_html_number(struct vfm_buf *b, double x)
{
	static const char *const suffix[] = {"", "k", "M", "G", "T"};
	int k = 0;

	for (; fabs(x) >= 9999.5 && k < 4; k++)
		x /= 1000;
	vfm_buf_addf(b, "%.4g%s", x, suffix[k]);
}

/* Appends the class of a colour. */
static void add_colour(struct vfm_buf *b, int colour)
{
	vfm_buf_addf(b, "c%d%s", colour % VFM_HTML_COLOURS, colour / VFM_HTML_COLOURS % 2 ? " dashed" : "");
}

void vfm_html_swatch(struct vfm_buf *b, int colour)
{
	vfm_buf_adds(b, "<svg class=\"swatch\" viewBox=\"0 0 22 10\"><path class=\"");
	add_colour(b, colour);
	vfm_buf_adds(b, "\" d=\"M1 5H21\"/></svg>");
}

/* ---- charts ---- */

struct html_plot {
	const struct vfm_html_chart *c;
	struct vfm_plot_axis x, y;
};

static double plot_x(const struct html_plot *p, double x)
{
	return LEFT + (x - p->x.lo) / (p->x.hi - p->x.lo) * (RIGHT - LEFT);
}

static double plot_y(const struct html_plot *p, double y)
{
	return BOTTOM - (vfm_plot_axis_value(&p->y, y) - p->y.lo) / (p->y.hi - p->y.lo) * (BOTTOM - TOP);
}

static double column_x(const struct html_plot *p, const struct vfm_trace *t, int i)
{
	return plot_x(p, (double)(t->first + i * t->width) + (double)(t->width - 1) / 2);
}

static void set_plot_axes(struct html_plot *p)
{
	const struct vfm_html_chart *c = p->c;
	double min = INFINITY, max = -INFINITY;

	for (int k = 0; k < c->n; k++)
		for (int i = 0; c->curves[k].trace->column && i < VFM_TRACE_COLUMNS; i++) {
			const struct vfm_trace_column *col = &c->curves[k].trace->column[i];

			min = col->n ? fmin(min, col->min) : min;
			max = col->n ? fmax(max, col->max) : max;
		}
	p->x = (struct vfm_plot_axis){.lo = (double)c->lo, .hi = (double)c->hi};
	p->y = (struct vfm_plot_axis){VFM_PLOT_AXIS_EMPTY, .log = c->may_log && min > 0 && max > 10 * min};
	vfm_plot_axis_finish(&p->x, c->hi - c->lo < 1 ? 1 : c->hi - c->lo < 6 ? (int)(c->hi - c->lo) : 6, 0);
	if (min <= max) {
		vfm_plot_axis_extend(&p->y, min);
		vfm_plot_axis_extend(&p->y, max > 0 || !c->from_zero ? max : 1);
	}
	if (c->from_zero && p->y.lo <= p->y.hi) {
		p->y.hi += 0.05 * p->y.hi;
		p->y.lo = 0;
	}
	vfm_plot_axis_finish(&p->y, 4, c->from_zero ? 0 : 0.05);
}

static void add_plot_axes(const struct html_plot *p, struct vfm_buf *b)
{
	struct vfm_plot_axis percent = p->y;
	char text[VFM_PLOT_LABEL];

	percent.lo *= 100, percent.hi *= 100, percent.step *= 100;
	for (int i = 0; i < p->y.n_ticks; i++) {
		double y = BOTTOM - (p->y.tick[i] - p->y.lo) / (p->y.hi - p->y.lo) * (BOTTOM - TOP);

		if (p->c->percent)
			vfm_plot_axis_label(&percent, 100 * p->y.tick[i], text);
		else
			vfm_plot_axis_label(&p->y, p->y.tick[i], text);
		vfm_buf_addf(b,
			"<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/><text x=\"%d\" y=\"%.1f\" "
			"text-anchor=\"end\">%s%s</text>",
			LEFT, y, RIGHT, y, LEFT - 6, y + 3.5, text, p->c->percent ? "%" : "");
	}
	for (int i = 0; i < p->x.n_ticks; i++) {
		double x = plot_x(p, p->x.tick[i]);

		vfm_plot_axis_label(&p->x, p->x.tick[i], text);
		vfm_buf_addf(b,
			"<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\"/><text x=\"%.1f\" y=\"%d\" "
			"text-anchor=\"%s\">%s</text>",
			x, BOTTOM, x, BOTTOM + 4, x, HEIGHT - 6, x > RIGHT - 12 ? "end" : "middle", text);
	}
	vfm_buf_addf(b, "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\"/>", LEFT, BOTTOM, RIGHT, BOTTOM);
}

static void begin_path(struct vfm_buf *b, const char *kind, const struct vfm_html_curve *curve)
{
	vfm_buf_addf(b, "<path class=\"%s", kind);
	add_colour(b, curve->colour);
	vfm_buf_adds(b, "\" d=\"");
}

/* Appends a point of a path; *pen: whether a line leads there.  A point alone becomes a dot, by a line of no length. */
static void add_plot_point(const struct html_plot *p, struct vfm_buf *b, double x, double y, bool *pen)
{
	double at = plot_y(p, y);

	if (!isfinite(at)) /* not on a logarithmic axis */
		return;
	vfm_buf_addf(b, *pen ? "L%.1f %.1f" : "M%.1f %.1fh0", x, at);
	*pen = true;
}

/* Draws the extremes of each column, first the one that is nearer to the last point. */
static void add_extremes(const struct html_plot *p, struct vfm_buf *b, const struct vfm_html_curve *curve)
{
	const struct vfm_trace *t = curve->trace;
	double last = 0;
	bool pen = false;

	begin_path(b, p->c->smooth ? "pale " : "", curve);
	for (int i = 0; i < VFM_TRACE_COLUMNS; i++) {
		const struct vfm_trace_column *col = &t->column[i];
		bool falls = fabs(last - col->max) < fabs(last - col->min);

		if (!col->n && col->gaps)
			pen = false;
		if (!col->n)
			continue;
		add_plot_point(p, b, column_x(p, t, i), falls ? col->max : col->min, &pen);
		if (col->max > col->min)
			add_plot_point(p, b, column_x(p, t, i), falls ? col->min : col->max, &pen);
		last = falls ? col->min : col->max;
	}
	vfm_buf_adds(b, "\"/>");
}

/* The centred average over a fortieth of the columns that have points. */
static void add_average(const struct html_plot *p, struct vfm_buf *b, const struct vfm_html_curve *curve)
{
	const struct vfm_trace *t = curve->trace;
	int half = count_used_columns(t) / 80;
	bool pen = false;

	begin_path(b, "", curve);
	for (int i = 0; i < VFM_TRACE_COLUMNS; i++) {
		struct vfm_trace_column around = {0};

		if (!t->column[i].n && t->column[i].gaps)
			pen = false;
		if (!t->column[i].n)
			continue;
		for (int k = i - half; k <= i + half; k++)
			if (k >= 0 && k < VFM_TRACE_COLUMNS)
				merge_columns(&around, &t->column[k]);
		add_plot_point(p, b, column_x(p, t, i), around.sum / (double)around.n, &pen);
	}
	vfm_buf_adds(b, "\"/>");
}

static void add_marks(const struct html_plot *p, struct vfm_buf *b, const struct vfm_html_curve *curve)
{
	if (!curve->n_marks)
		return;
	begin_path(b, "mark ", curve);
	for (int i = 0; i < curve->n_marks; i++) {
		double x = plot_x(p, (double)curve->marks[i]);

		if (x > LEFT && x <= RIGHT)
			vfm_buf_addf(b, "M%.1f %dV%d", x, TOP, BOTTOM);
	}
	vfm_buf_adds(b, "\"/>");
}

static void add_chart_legend(struct vfm_buf *b, const struct vfm_html_chart *c)
{
	vfm_buf_adds(b, "<p class=\"legend\">");
	for (int k = 0; k < c->n; k++) {
		const struct vfm_trace *t = c->curves[k].trace;

		if (!t->n)
			continue;
		vfm_buf_adds(b, "<span>");
		vfm_html_swatch(b, c->curves[k].colour);
		if (c->n > 1) {
			vfm_buf_adds(b, " ");
			vfm_html_text(b, c->curves[k].name);
		}
		vfm_buf_adds(b, c->n > 1 ? " <b>" : c->smooth ? " recent mean <b>" : " last <b>");
		if (c->percent)
			vfm_buf_addf(b, "%.3g %%", 100 * (c->smooth ? vfm_trace_recent(t) : t->last));
		else
			vfm_html_number(b, c->smooth ? vfm_trace_recent(t) : t->last);
		vfm_buf_adds(b, "</b></span> ");
	}
	vfm_buf_adds(b, "</p>");
}

void vfm_html_chart(struct vfm_buf *b, const struct vfm_html_chart *c)
{
	struct html_plot p = {.c = c};

	set_plot_axes(&p);
	vfm_buf_adds(b, "<div class=\"box chart\"><h3>");
	vfm_html_text(b, c->title);
	vfm_buf_adds(b, " <span class=\"dim\">");
	vfm_html_text(b, c->note ? c->note : "");
	if (p.y.log)
		vfm_buf_adds(b, c->note ? ", logarithmic" : "logarithmic");
	vfm_buf_adds(b, "</span></h3>");
	add_chart_legend(b, c);
	vfm_buf_addf(b, "<svg viewBox=\"0 0 %d %d\" role=\"img\">", WIDTH, HEIGHT);
	add_plot_axes(&p, b);
	for (int k = 0; k < c->n; k++)
		add_marks(&p, b, &c->curves[k]);
	for (int k = 0; k < c->n; k++)
		if (c->curves[k].trace->n)
			add_extremes(&p, b, &c->curves[k]);
	for (int k = 0; k < c->n && c->smooth; k++)
		if (c->curves[k].trace->n)
			add_average(&p, b, &c->curves[k]);
	vfm_buf_adds(b, "</svg></div>\n");
}
