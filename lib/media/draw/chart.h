/* chart.h - axes, and charts of curves, as SVG. */
#ifndef VFM_MEDIA_DRAW_CHART_H
#define VFM_MEDIA_DRAW_CHART_H

#include <math.h>
#include <stdbool.h>

#include "base/mem.h"
#include "media/draw/trace.h"

/* An axis: set lo and hi, or extend an empty one, then place the ticks, then use it. */
struct vfm_chart_axis {
	double lo, hi;    /* values at its ends, or their logarithms to 10; lo > hi: no value yet */
	double from, to;  /* coordinates of its ends in the drawing */
	const char *unit; /* behind the labels, " ms"; NULL: none */
	bool log;         /* set before the first value */
	double tick[24];
	int n_ticks;
	double step; /* between the ticks of a linear axis */
};
#define VFM_CHART_AXIS_EMPTY .lo = INFINITY, .hi = -INFINITY /* in an initialiser */

/* Extends the range to contain v, unless v is not on the axis. */
void vfm_chart_axis_extend(struct vfm_chart_axis *a, double v);
/* Adds `margin` times the range at both ends and places the ticks, about `about` of them on a linear axis.  An empty
 * range becomes 0 to 1. */
void vfm_chart_axis_place_ticks(struct vfm_chart_axis *a, int about, double margin);
/* Returns the coordinate of v; not finite: v is not on the axis. */
double vfm_chart_axis_at(const struct vfm_chart_axis *a, double v);
/* Appends a horizontal axis with lines from `top` through the edge `bottom`, and labels below. */
void vfm_chart_x_axis(struct vfm_buf *b, const struct vfm_chart_axis *a, double top, double bottom);
/* Appends a vertical axis with lines between `left` and `right`, and labels on the left. */
void vfm_chart_y_axis(struct vfm_buf *b, const struct vfm_chart_axis *a, double left, double right);

struct vfm_curve {
	const char *name;
	const struct vfm_trace *trace; /* may be empty: no curve */
	const int64_t *marks;          /* [n_marks] x of dotted vertical lines */
	int n_marks;
};

struct vfm_chart {
	const char *title, *note;       /* plain text; note NULL: none */
	int64_t lo, hi;                 /* range of x, the same for charts that are compared */
	bool log;                       /* logarithmic; leaves out values that are not positive */
	bool may_log;                   /* logarithmic if all values are positive and span more than a factor of 10 */
	bool from_zero;                 /* the axis begins at 0 */
	bool percent;                   /* values are shares, 1 is 100 % */
	bool smooth;                    /* a moving average in front of the pale values */
	int64_t window;                 /* of the average, in x; 0: a fortieth of the columns that have values */
	const struct vfm_curve *curves; /* [n], of the colours 0, 1, ... */
	int n;
};

/* Appends a box with the chart; of a curve its extremes in each column are drawn, so that no outlier is lost. */
void vfm_chart_html(struct vfm_buf *b, const struct vfm_chart *c);
/* Appends the chart as a file of SVG. */
void vfm_chart_svg(struct vfm_buf *b, const struct vfm_chart *c);

#endif
