/* chart.c - axes with round ticks, curves, stacked areas and legends as SVG text. */
#include "media/draw/chart.h"

#include <math.h>
#include <stdio.h>

#include "media/draw/html.h"

/* The chart in units of its view box, which are about pixels; HEAD: above it, in a file. */
enum { WIDTH = 540, HEIGHT = 230, LEFT = 44, RIGHT = 522, TOP = 8, BOTTOM = 208, HEAD = 26 };

/* ---- axes ---- */

struct chart_axis {
	double scale;    /* of the values, before their logarithms */
	double lo, hi;   /* values at its ends, or their logarithms to 10 */
	double from, to; /* coordinates of its ends in the drawing */
	bool log;
	double tick[24];
	int n_ticks;
};

static double value_on_axis(const struct chart_axis *a, double v)
{
	return a->log ? log10(a->scale * v) : a->scale * v;
}

/* Ticks at 1, 2 or 5 times a power of ten (Heckbert, "Nice numbers for graph labels", 1990). */
static void set_linear_ticks(struct chart_axis *a, int about)
{
	double raw = (a->hi - a->lo) / about, mag = pow(10, floor(log10(raw))), f = raw / mag;
	double step = mag * (f < 1.5 ? 1 : f < 3.5 ? 2 : f < 7.5 ? 5 : 10);

	for (double t = ceil(a->lo / step - 1e-9) * step;
		t <= a->hi + 1e-9 * step && a->n_ticks < (int)(sizeof(a->tick) / sizeof(a->tick[0])); t += step)
		a->tick[a->n_ticks++] = fabs(t) < 1e-9 * step ? 0 : t;
}

static void set_log_ticks(struct chart_axis *a)
{
	static const double marks[] = {1, 2, 5};
	int n_marks = a->hi - a->lo < 2.5 ? 3 : 1;
	int every = (int)fmax(1, ceil((a->hi - a->lo) / 10));

	for (int e = (int)floor(a->lo); e <= (int)ceil(a->hi); e += every)
		for (int m = 0; m < n_marks; m++) {
			double t = e + log10(marks[m]);

			if (t >= a->lo - 1e-9 && t <= a->hi + 1e-9)
				a->tick[a->n_ticks++] = t;
		}
	if (a->n_ticks < 2) {
		a->n_ticks = 2;
		a->tick[0] = a->lo;
		a->tick[1] = a->hi;
	}
}

/* Adds `margin` times the range at both ends and places the ticks, about `about` of them on a linear axis. */
static void place_ticks(struct chart_axis *a, int about, double margin)
{
	double room;

	if (!(a->lo <= a->hi)) { /* no finite value at all */
		a->lo = 0;
		a->hi = 1;
	}
	room = (a->hi - a->lo) * margin;
	if (!(a->hi - a->lo > 1e-12 * fmax(fabs(a->hi), fabs(a->lo))))
		room = a->log ? 0.5 : fmax(fabs(a->hi) * 0.1, 0.5);
	a->lo -= room;
	a->hi += room;
	if (a->log)
		set_log_ticks(a);
	else
		set_linear_ticks(a, about);
}

static double coordinate(const struct chart_axis *a, double x)
{
	return a->from + (x - a->lo) / (a->hi - a->lo) * (a->to - a->from);
}

/* Returns the coordinate of v; not finite: v is not on the axis. */
static double place_value(const struct chart_axis *a, double v)
{
	return coordinate(a, value_on_axis(a, v));
}

/* Returns the label of a tick: "2.5", "40k", "1.5e-4". */
static const char *tick_label(char text[VFM_NUMBER_TEXT], const struct chart_axis *a, int i)
{
	double v = a->log ? pow(10, a->tick[i]) : a->tick[i];
	int e = v == 0 ? 0 : (int)floor(log10(fabs(v)) + 1e-9);

	if (e >= -3)
		return vfm_html_number(text, v);
	snprintf(text, VFM_NUMBER_TEXT, "%.3ge%d", v / pow(10, e), e);
	return text;
}

static void add_x_axis(struct vfm_buf *b, const struct chart_axis *a)
{
	char text[VFM_NUMBER_TEXT];

	for (int i = 0; i < a->n_ticks; i++) {
		double x = coordinate(a, a->tick[i]);

		vfm_html_addf(b,
			"<line x1='%.1f' y1='%d' x2='%.1f' y2='%d'/><text x='%.1f' y='%d' "
			"text-anchor='middle'>%s</text>",
			x, BOTTOM, x, BOTTOM + 4, x, BOTTOM + 15, tick_label(text, a, i));
	}
	vfm_html_addf(b, "<line x1='%d' y1='%d' x2='%d' y2='%d'/>", LEFT, BOTTOM, RIGHT, BOTTOM);
}

static void add_y_axis(struct vfm_buf *b, const struct chart_axis *a, const char *unit)
{
	char text[VFM_NUMBER_TEXT];

	for (int i = 0; i < a->n_ticks; i++) {
		double y = coordinate(a, a->tick[i]);

		vfm_html_addf(b,
			"<line x1='%d' y1='%.1f' x2='%d' y2='%.1f'/><text x='%d' y='%.1f' "
			"text-anchor='end'>%s%s</text>",
			LEFT, y, RIGHT, y, LEFT - 6, y + 3.5, tick_label(text, a, i), unit);
	}
}

/* ---- curves ---- */

struct plot {
	const struct vfm_chart *c;
	struct chart_axis x, y;
};

/* Returns the sum of the curves from k on in a column. */
static double stack_height(const struct vfm_chart *c, int k, int column)
{
	double sum = 0;

	for (; k < c->n; k++)
		sum += c->curves[k].trace->column[column].max;
	return sum;
}

/* Returns the column of the highest stack. */
static int find_peak(const struct vfm_chart *c)
{
	int best = 0;

	for (int i = 1; i < VFM_TRACE_COLUMNS; i++)
		if (stack_height(c, 0, i) > stack_height(c, 0, best))
			best = i;
	return best;
}

/* The range of y; of a logarithmic axis, from the smallest positive value. */
static void set_range(struct chart_axis *y, const struct vfm_chart *c)
{
	double min = INFINITY, max = -INFINITY, positive = INFINITY;

	for (int k = 0; k < c->n; k++) {
		const struct vfm_trace *t = c->curves[k].trace;

		vfm_trace_extend_range(t, &min, &max);
		for (int i = 0; t->column && i < VFM_TRACE_COLUMNS; i++)
			if (t->column[i].n && t->column[i].max > 0)
				positive = fmin(positive, t->column[i].min > 0 ? t->column[i].min : t->column[i].max);
	}
	if (c->stacked)
		max = stack_height(c, 0, find_peak(c));
	if (c->limit < 3 * max)
		max = fmax(max, c->limit);
	y->log = c->log || (c->may_log && min > 0 && max > 10 * min);
	y->lo = value_on_axis(y, y->log ? positive : min);
	y->hi = value_on_axis(y, max);
	if ((c->from_zero || c->stacked) && min <= max) {
		y->hi = max > 0 ? 1.05 * y->hi : 1;
		y->lo = 0;
	}
}

static void set_plot_axes(struct plot *p, const struct vfm_chart *c)
{
	p->c = c;
	p->x = (struct chart_axis){.scale = c->x_scale ? c->x_scale : 1, .from = LEFT, .to = RIGHT};
	p->x.lo = value_on_axis(&p->x, (double)c->lo);
	p->x.hi = value_on_axis(&p->x, (double)c->hi);
	p->y = (struct chart_axis){.scale = c->percent ? 100 : 1, .from = BOTTOM, .to = TOP};
	set_range(&p->y, c);
	place_ticks(&p->x, (int)fmin(fmax((double)(c->hi - c->lo), 1), 5), 0);
	place_ticks(&p->y, 4, c->from_zero || c->stacked ? 0 : 0.05);
}

static double column_x(const struct plot *p, const struct vfm_trace *t, int i)
{
	return place_value(&p->x, (double)(t->first + i * t->width) + (double)(t->width - 1) / 2);
}

/* Begins a path in the colour of curve k. */
static void begin_path(struct vfm_buf *b, const char *kind, int k)
{
	vfm_html_addf(b, "<path class='%sc%d%s' d='", kind, k % VFM_COLOURS_CURVES,
		k / VFM_COLOURS_CURVES % 2 ? " dashed" : "");
}

/* Continues a path at a point, or begins anew with a dot if the pen is up. */
static void add_plot_point(const struct plot *p, struct vfm_buf *b, double x, double y, bool *pen)
{
	double at = place_value(&p->y, y);

	if (!isfinite(at)) /* not on a logarithmic axis */
		return;
	vfm_html_addf(b, *pen ? "L%.1f %.1f" : "M%.1f %.1fh0", x, at);
	*pen = true;
}

/* Draws the moving average, or the extremes of each column, first the one that is nearer to the last point. */
static void add_curve(const struct plot *p, struct vfm_buf *b, int k, bool average)
{
	const struct vfm_trace *t = p->c->curves[k].trace;
	int half = p->c->window ? (int)fmin((double)p->c->window / 2 / (double)t->width, VFM_TRACE_COLUMNS)
				: vfm_trace_used(t) / 80;
	double last = 0;
	bool pen = false;

	begin_path(b, p->c->smooth && !average ? "pale " : "", k);
	for (int i = 0; i < VFM_TRACE_COLUMNS; i++) {
		const struct vfm_trace_column *col = &t->column[i];
		bool falls = fabs(last - col->max) < fabs(last - col->min);
		double x = column_x(p, t, i), y = falls ? col->max : col->min;

		pen = pen && (col->n || !col->gaps);
		if (!col->n)
			continue;
		last = falls ? col->min : col->max;
		add_plot_point(p, b, x, average ? vfm_trace_mean(t, i, half) : y, &pen);
		if (!average && last != y)
			add_plot_point(p, b, x, last, &pen);
	}
	vfm_buf_adds(b, "'/>");
}

static void add_marks(const struct plot *p, struct vfm_buf *b, int k)
{
	const struct vfm_curve *curve = &p->c->curves[k];

	if (!curve->n_marks)
		return;
	begin_path(b, "mark ", k);
	for (int i = 0; i < curve->n_marks; i++) {
		double x = place_value(&p->x, (double)curve->marks[i]);

		if (x > LEFT && x <= RIGHT)
			vfm_html_addf(b, "M%.1f %dV%d", x, TOP, BOTTOM);
	}
	vfm_buf_adds(b, "'/>");
}

/* Fills the area below the upper edge of curve k; later curves are drawn over it. */
static void fill_area(const struct plot *p, struct vfm_buf *b, int k)
{
	const struct vfm_trace *t = p->c->curves[k].trace;
	double y = BOTTOM, next;

	vfm_html_addf(b, "<path class=a%d d='M%d %d", k % VFM_COLOURS, LEFT, BOTTOM);
	for (int i = 0; i < VFM_TRACE_COLUMNS; i++) {
		next = place_value(&p->y, stack_height(p->c, k, i));
		if (!t->column[i].n || fabs(next - y) < 0.05)
			continue;
		y = next;
		vfm_html_addf(b, "H%.1fV%.1f", place_value(&p->x, (double)(t->first + i * t->width)), y);
	}
	vfm_html_addf(b, "H%d", RIGHT);
	vfm_html_addf(b, "V%dz'/>\n", BOTTOM);
}

static void add_drawing(const struct plot *p, struct vfm_buf *b)
{
	double limit = place_value(&p->y, p->c->limit);

	add_y_axis(b, &p->y, p->c->percent ? "%" : "");
	add_x_axis(b, &p->x);
	for (int k = 0; k < p->c->n; k++)
		if (p->c->stacked)
			fill_area(p, b, k);
		else if (p->c->curves[k].trace->n)
			add_curve(p, b, k, false);
	for (int k = 0; k < p->c->n && p->c->smooth; k++)
		if (p->c->curves[k].trace->n)
			add_curve(p, b, k, true);
	for (int k = 0; k < p->c->n; k++)
		add_marks(p, b, k);
	if (p->c->limit > 0 && limit >= TOP)
		vfm_html_addf(b, "<path class='limit dashed' d='M%d %.1fH%d'/>", LEFT, limit, RIGHT);
	vfm_buf_adds(b, "</svg>\n");
}

/* ---- charts ---- */

static void add_note(const struct plot *p, struct vfm_buf *b)
{
	const char *note = p->c->note;

	vfm_html_addf(b, "%s%s%s", note ? note : "", note && p->y.log ? ", " : "", p->y.log ? "logarithmic" : "");
}

static double legend_value(const struct vfm_chart *c, const struct vfm_trace *t)
{
	if (c->stacked)
		return t->column[find_peak(c)].max;
	return c->smooth ? vfm_trace_recent(t) : t->last;
}

static void add_chart_legend(struct vfm_buf *b, const struct vfm_chart *c)
{
	vfm_buf_adds(b, "<p class=legend>");
	for (int k = 0; k < c->n; k++) {
		char number[VFM_NUMBER_TEXT];

		if (!c->curves[k].trace->n)
			continue;
		vfm_buf_adds(b, "<span>");
		vfm_html_swatch(b, c->stacked ? 'a' : 'c', k);
		vfm_html_addf(b, "%s <b>%s%s</b></span> ",
			c->n > 1            ? c->curves[k].name
				: c->smooth ? "recent mean"
					    : "last",
			vfm_html_number(number, (c->percent ? 100 : 1) * legend_value(c, c->curves[k].trace)),
			c->percent ? " %" : "");
	}
	vfm_buf_adds(b, "</p>\n");
}

void vfm_chart_html(struct vfm_buf *b, const struct vfm_chart *c)
{
	struct plot p;

	set_plot_axes(&p, c);
	vfm_html_addf(b, "<div class='box chart'><h3>%s <span class=dim>", c->title);
	add_note(&p, b);
	vfm_buf_adds(b, "</span></h3>\n");
	add_chart_legend(b, c);
	vfm_html_addf(b, "<svg viewBox='0 0 %d %d' role=img>", WIDTH, HEIGHT);
	add_drawing(&p, b);
	vfm_buf_adds(b, "</div>\n");
}

void vfm_chart_svg(struct vfm_buf *b, const struct vfm_chart *c)
{
	struct plot p;

	set_plot_axes(&p, c);
	vfm_html_addf(b,
		"<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%d' viewBox='0 %d %d %d'>\n"
		"<style>text{font:10px sans-serif;fill:#444}text.title{font-size:13px}line{stroke:#e4e4e4}"
		"path{fill:none;stroke-width:1.4;stroke-linejoin:round;stroke-linecap:round}"
		".pale{stroke-width:.8;opacity:.32}.dashed{stroke-dasharray:6 3}\n",
		2 * WIDTH, 2 * (HEIGHT + HEAD), -HEAD, WIDTH, HEIGHT + HEAD);
	vfm_html_palette(b);
	vfm_html_addf(b, "</style>\n<rect y='%d' width='%d' height='%d' fill='#fff'/>", -HEAD, WIDTH, HEIGHT + HEAD);
	vfm_html_addf(b, "<text class='title' x='10' y='-8'>%s</text><text x='%d' y='-8' text-anchor='end'>", c->title,
		RIGHT);
	add_note(&p, b);
	vfm_buf_adds(b, "</text>\n");
	for (int k = 0; k < c->n; k++) {
		vfm_html_addf(b, "<text x='%d' y='%d' text-anchor='end'>%s</text>", RIGHT - 34, TOP + 14 + 12 * k,
			c->curves[k].name);
		begin_path(b, "", k);
		vfm_html_addf(b, "M%d %dh22'/>\n", RIGHT - 28, TOP + 10 + 12 * k);
	}
	add_drawing(&p, b);
}
