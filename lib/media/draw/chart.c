#include "media/draw/chart.h"

#include <stdio.h>

#include "media/draw/html.h"

/* The chart in units of its view box, which are about pixels; HEAD: above it, in a file. */
enum { WIDTH = 540, HEIGHT = 230, LEFT = 44, RIGHT = 522, TOP = 8, BOTTOM = 208, HEAD = 26 };

/* ---- axes ---- */

static double value_on_axis(const struct vfm_chart_axis *a, double v)
{
	if (!a->log)
		return v;
	return v > 0 ? log10(v) : NAN;
}

void vfm_chart_axis_extend(struct vfm_chart_axis *a, double v)
{
	double x = value_on_axis(a, v);

	if (!isfinite(x))
		return;
	a->lo = fmin(a->lo, x);
	a->hi = fmax(a->hi, x);
}

/* Ticks at 1, 2 or 5 times a power of ten (Heckbert, "Nice numbers for graph labels", 1990). */
static void set_linear_ticks(struct vfm_chart_axis *a, int about)
{
	double raw = (a->hi - a->lo) / about, mag = pow(10, floor(log10(raw))), f = raw / mag;

	a->step = mag * (f < 1.5 ? 1 : f < 3.5 ? 2 : f < 7.5 ? 5 : 10);
	for (double t = ceil(a->lo / a->step - 1e-9) * a->step;
		t <= a->hi + 1e-9 * a->step && a->n_ticks < (int)(sizeof(a->tick) / sizeof(a->tick[0])); t += a->step)
		a->tick[a->n_ticks++] = fabs(t) < 1e-9 * a->step ? 0 : t;
}

static void set_log_ticks(struct vfm_chart_axis *a)
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

void vfm_chart_axis_place_ticks(struct vfm_chart_axis *a, int about, double margin)
{
	double room;

	if (a->lo > a->hi) { /* no finite value at all */
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

static double coordinate(const struct vfm_chart_axis *a, double x)
{
	return a->from + (x - a->lo) / (a->hi - a->lo) * (a->to - a->from);
}

double vfm_chart_axis_at(const struct vfm_chart_axis *a, double v)
{
	return coordinate(a, value_on_axis(a, v));
}

/* "2.5", "40k" */
static void add_tick_label(struct vfm_buf *b, const struct vfm_chart_axis *a, double tick)
{
	int digits = a->log ? 0 : (int)fmax(0, -floor(log10(a->step) + 1e-9));
	char text[VFM_NUMBER_TEXT];

	if (a->log)
		vfm_html_addf(b, "%s", vfm_html_number(text, pow(10, tick)));
	else if (fmax(fabs(a->lo), fabs(a->hi)) >= 1e5 || digits > 5)
		vfm_html_addf(b, "%s", vfm_html_number(text, tick));
	else
		vfm_html_addf(b, "%.*f", digits, tick);
	vfm_html_addf(b, "%s</text>", a->unit ? a->unit : "");
}

void vfm_chart_x_axis(struct vfm_buf *b, const struct vfm_chart_axis *a, double top, double bottom)
{
	for (int i = 0; i < a->n_ticks; i++) {
		double x = coordinate(a, a->tick[i]);

		vfm_html_addf(b,
			"<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f'/><text x='%.1f' y='%.1f' text-anchor='middle'>",
			x, top, x, bottom + 4, x, bottom + 15);
		add_tick_label(b, a, a->tick[i]);
	}
}

void vfm_chart_y_axis(struct vfm_buf *b, const struct vfm_chart_axis *a, double left, double right)
{
	for (int i = 0; i < a->n_ticks; i++) {
		double y = coordinate(a, a->tick[i]);

		vfm_html_addf(b,
			"<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f'/><text x='%.1f' y='%.1f' text-anchor='end'>",
			left, y, right, y, left - 6, y + 3.5);
		add_tick_label(b, a, a->tick[i]);
	}
}

/* ---- curves ---- */

struct plot {
	const struct vfm_chart *c;
	struct vfm_chart_axis x, y;
	double scale; /* of values on the axis */
};

static void extend_by_trace(struct plot *p, const struct vfm_trace *t)
{
	for (int i = 0; t->column && i < VFM_TRACE_COLUMNS; i++)
		if (t->column[i].n) {
			vfm_chart_axis_extend(&p->y, t->column[i].min * p->scale);
			vfm_chart_axis_extend(&p->y, t->column[i].max * p->scale);
		}
}

static void set_plot_axes(struct plot *p, const struct vfm_chart *c)
{
	double min = INFINITY, max = -INFINITY, span = (double)(c->hi - c->lo);

	p->c = c;
	p->scale = c->percent ? 100 : 1;
	for (int k = 0; k < c->n; k++)
		vfm_trace_extend_range(c->curves[k].trace, &min, &max);
	p->x = (struct vfm_chart_axis){.lo = (double)c->lo, .hi = (double)c->hi, .from = LEFT, .to = RIGHT};
	p->y = (struct vfm_chart_axis){VFM_CHART_AXIS_EMPTY, .from = BOTTOM, .to = TOP, .unit = c->percent ? "%" : NULL,
		.log = c->log || (c->may_log && min > 0 && max > 10 * min)};
	for (int k = 0; k < c->n; k++)
		extend_by_trace(p, c->curves[k].trace);
	if (c->from_zero && p->y.lo <= p->y.hi) {
		p->y.hi = p->y.hi > 0 ? 1.05 * p->y.hi : 1;
		p->y.lo = 0;
	}
	vfm_chart_axis_place_ticks(&p->x, (int)fmin(fmax(span, 1), 5), 0);
	vfm_chart_axis_place_ticks(&p->y, 4, c->from_zero ? 0 : 0.05);
}

static double column_x(const struct plot *p, const struct vfm_trace *t, int i)
{
	return vfm_chart_axis_at(&p->x, (double)(t->first + i * t->width) + (double)(t->width - 1) / 2);
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
	double at = vfm_chart_axis_at(&p->y, y * p->scale);

	if (!isfinite(at)) /* not on a logarithmic axis */
		return;
	vfm_html_addf(b, *pen ? "L%.1f %.1f" : "M%.1f %.1fh0", x, at);
	*pen = true;
}

/* Draws the extremes of each column, first the one that is nearer to the last point. */
static void add_extremes(const struct plot *p, struct vfm_buf *b, int k)
{
	const struct vfm_trace *t = p->c->curves[k].trace;
	double last = 0;
	bool pen = false;

	begin_path(b, p->c->smooth ? "pale " : "", k);
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
	vfm_buf_adds(b, "'/>");
}

static void add_average(const struct plot *p, struct vfm_buf *b, int k)
{
	const struct vfm_trace *t = p->c->curves[k].trace;
	int half = vfm_trace_used(t) / 80;
	bool pen = false;

	if (p->c->window)
		half = (int)fmin((double)p->c->window / 2 / (double)t->width, VFM_TRACE_COLUMNS);
	begin_path(b, "", k);
	for (int i = 0; i < VFM_TRACE_COLUMNS; i++) {
		if (!t->column[i].n && t->column[i].gaps)
			pen = false;
		if (t->column[i].n)
			add_plot_point(p, b, column_x(p, t, i), vfm_trace_mean(t, i, half), &pen);
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
		double x = vfm_chart_axis_at(&p->x, (double)curve->marks[i]);

		if (x > LEFT && x <= RIGHT)
			vfm_html_addf(b, "M%.1f %dV%d", x, TOP, BOTTOM);
	}
	vfm_buf_adds(b, "'/>");
}

static void add_drawing(const struct plot *p, struct vfm_buf *b)
{
	vfm_chart_y_axis(b, &p->y, LEFT, RIGHT);
	vfm_chart_x_axis(b, &p->x, BOTTOM, BOTTOM);
	vfm_html_addf(b, "<line x1='%d' y1='%d' x2='%d' y2='%d'/>", LEFT, BOTTOM, RIGHT, BOTTOM);
	for (int k = 0; k < p->c->n; k++)
		add_marks(p, b, k);
	for (int k = 0; k < p->c->n; k++)
		if (p->c->curves[k].trace->n)
			add_extremes(p, b, k);
	for (int k = 0; k < p->c->n && p->c->smooth; k++)
		if (p->c->curves[k].trace->n)
			add_average(p, b, k);
	vfm_buf_adds(b, "</svg>\n");
}

/* ---- charts ---- */

static void add_note(const struct plot *p, struct vfm_buf *b)
{
	const char *note = p->c->note;

	vfm_html_addf(b, "%s%s%s", note ? note : "", note && p->y.log ? ", " : "", p->y.log ? "logarithmic" : "");
}

static void add_chart_legend(struct vfm_buf *b, const struct vfm_chart *c)
{
	vfm_buf_adds(b, "<p class=legend>");
	for (int k = 0; k < c->n; k++) {
		const struct vfm_trace *t = c->curves[k].trace;
		double value = c->smooth ? vfm_trace_recent(t) : t->last;
		char number[VFM_NUMBER_TEXT];

		if (!t->n)
			continue;
		vfm_buf_adds(b, "<span>");
		vfm_html_swatch(b, k);
		vfm_html_addf(b, "%s <b>", c->n > 1 ? c->curves[k].name : c->smooth ? "recent mean" : "last");
		if (c->percent)
			vfm_html_addf(b, "%.3g %%", 100 * value);
		else
			vfm_html_addf(b, "%s", vfm_html_number(number, value));
		vfm_buf_adds(b, "</b></span> ");
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
