/* chart.h - charts of curves or stacked areas, as SVG. */
#ifndef VFM_MEDIA_DRAW_CHART_H
#define VFM_MEDIA_DRAW_CHART_H

#include <stdbool.h>

#include "base/mem.h"
#include "media/draw/trace.h"

struct vfm_curve {
	const char *name;
	const struct vfm_trace *trace; /* may be empty: no curve */
	const int64_t *marks;          /* [n_marks] x of dotted vertical lines */
	int n_marks;
};

struct vfm_chart {
	const char *title, *note;       /* plain text; note NULL: none */
	int64_t lo, hi;                 /* range of x, the same for charts that are compared */
	double x_scale;                 /* of the labels of x; 0: 1 */
	bool log;                       /* logarithmic; leaves out values that are not positive */
	bool may_log;                   /* logarithmic if all values are positive and span more than a factor of 10 */
	bool from_zero;                 /* the axis begins at 0 */
	bool percent;                   /* values are fractions; 1 is 100 % */
	bool smooth;                    /* a moving average over the pale values */
	bool stacked;                   /* areas from 0; the first is on top; all traces have the same points */
	double limit;                   /* a dashed line, if values come within a third of it; 0: none */
	int64_t window;                 /* of the average, in x; 0: 1/40 of the columns that have values */
	const struct vfm_curve *curves; /* [n], with colours 0, 1, ... */
	int n;
};

/* Appends a box with the chart.  For each column, a curve is drawn with its extremes, so that no outlier is lost.  The
 * legend has the last values, recent means for smooth curves, and the values at the peak for areas. */
void vfm_chart_html(struct vfm_buf *b, const struct vfm_chart *c);
/* Appends the chart as an SVG file. */
void vfm_chart_svg(struct vfm_buf *b, const struct vfm_chart *c);

#endif
