/* trace.h - a curve of any number of points in bounded memory.
 *
 * A trace keeps at most VFM_TRACE_COLUMNS columns of equal width, each with its smallest, largest and mean value.  The
 * width doubles when a point lies outside.  Not thread-safe.
 */
#ifndef VFM_MEDIA_DRAW_TRACE_H
#define VFM_MEDIA_DRAW_TRACE_H

#include <stdint.h>

enum { VFM_TRACE_COLUMNS = 1024 }; /* a chart has about 500 columns of pixels, or of two pixels each */

struct vfm_trace_column {
	double min, max, sum;
	int64_t n, gaps; /* points with a value, and without */
};

struct vfm_trace {                       /* `= {0}` is empty */
	struct vfm_trace_column *column; /* [VFM_TRACE_COLUMNS], NULL: no point yet */
	int64_t first, width;            /* column i has the points first + i * width <= x < first + (i + 1) * width */
	int64_t n;                       /* points with a value */
	double last;                     /* value of the last such point */
};

/* Adds a point at |x| <= 2^53, in any order.  A NaN y is a gap. */
void vfm_trace_add(struct vfm_trace *t, int64_t x, double y);
void vfm_trace_release(struct vfm_trace *t);
/* Returns the number of columns that have values. */
int vfm_trace_used(const struct vfm_trace *t);
/* Returns the mean of the points in columns i - half to i + half, or NaN if there are none. */
double vfm_trace_mean(const struct vfm_trace *t, int i, int half);
/* Returns the mean of the points in the last 1/40 of the columns with points, or NaN if there is no point. */
double vfm_trace_recent(const struct vfm_trace *t);
/* Extends *min and *max to contain all values. */
void vfm_trace_extend_range(const struct vfm_trace *t, double *min, double *max);

#endif
