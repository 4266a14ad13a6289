/* html_chart.h - curves of any number of points, in bounded memory, as charts within a page.
 *
 * A trace keeps at most VFM_TRACE_COLUMNS columns of equal width with the smallest, largest and mean value of each; the
 * width doubles when a point lies outside.   Not thread-safe.
 */
#ifndef VFM_MEDIA_DRAW_HTML_CHART_H
#define VFM_MEDIA_DRAW_HTML_CHART_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"

enum { VFM_TRACE_COLUMNS = 1024 }; /* a chart has about 500 columns of pixels, or of two pixels each */

struct vfm_trace_column {
	double min, max, sum;
	int64_t n, gaps; /* points with a value, and without */
};

struct vfm_trace {                       /* `= {0}` is empty */
	struct vfm_trace_column *column; /* [VFM_TRACE_COLUMNS], NULL: no point yet */
	int64_t first, width;            /* column i has the points first + i * width <= x < first + (i + 1) * width */
	int64_t n;                       /* points with a value */
	double last;                     /* value of the last of them */
};

/* Adds a point at |x| <= 2^53, in any order.  A y that is NaN is a gap. */
void vfm_trace_add(struct vfm_trace *t, int64_t x, double y);
void vfm_trace_release(struct vfm_trace *t);
/* Returns the mean of the points in the last fortieth of the columns that have any; NaN: there is no point. */
double vfm_trace_recent(const struct vfm_trace *t);
/* Returns the smallest value; NaN: there is no point. */
double vfm_trace_min(const struct vfm_trace *t);

/* Colours of curves repeat after VFM_HTML_COLOURS; the second time they are dashed. */
enum { VFM_HTML_COLOURS = 8 };

struct vfm_html_curve {
	const char *name;
	const struct vfm_trace *trace; /* may be empty: no curve */
	const int64_t *marks;          /* [n_marks] x of dotted vertical lines */
	int n_marks;
	int colour; /* 0, 1, ... */
};

struct vfm_html_chart {
	const char *title, *note; /* plain text; note NULL: none */
	int64_t lo, hi;           /* range of x, the same for charts that are compared */
	bool may_log;             /* logarithmic if all values are positive and span more than a factor of 10 */
	bool from_zero;           /* the axis begins at 0 */
	bool percent;             /* values are shares, 1 is 100 % */
	bool smooth;              /* a moving average in front of the pale values */
	const struct vfm_html_curve *curves; /* [n] */
	int n;
};

/* Appends the swatch of a colour, as the legends of charts have it. */
void vfm_html_swatch(struct vfm_buf *b, int colour);
/* Appends a number in four digits, "0.01234", "12.34k". */
void vfm_html_number(struct vfm_buf *b, double x);
/* Appends a box with the chart; of a curve its extremes in each column are drawn, so that no outlier is lost. */
void vfm_html_chart(struct vfm_buf *b, const struct vfm_html_chart *c);

#endif
