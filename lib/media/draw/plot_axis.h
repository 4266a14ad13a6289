/* plot_axis.h - the range of an axis of a chart, its ticks and their labels.  Plain data. */
#ifndef VFM_MEDIA_DRAW_PLOT_AXIS_H
#define VFM_MEDIA_DRAW_PLOT_AXIS_H

#include <math.h>
#include <stdbool.h>

enum { VFM_PLOT_TICKS = 24, VFM_PLOT_LABEL = 32 };

struct vfm_plot_axis {
	double lo, hi; /* of the data, or of its logarithm to 10; lo > hi: no value yet */
	bool log;      /* set before the first value */
	double tick[VFM_PLOT_TICKS];
	int n_ticks;
	double step; /* between the ticks of a linear axis */
};
#define VFM_PLOT_AXIS_EMPTY .lo = INFINITY, .hi = -INFINITY /* in an initialiser */

/* Returns v on the axis: v or its logarithm, NaN if it has none. */
double vfm_plot_axis_value(const struct vfm_plot_axis *a, double v);
/* Extends the range to contain v, unless v is not on the axis. */
void vfm_plot_axis_extend(struct vfm_plot_axis *a, double v);
/* Adds `margin` times the range at both ends and places the ticks, about `about` of them on a linear axis.  An empty
 * range becomes 0 to 1. */
void vfm_plot_axis_finish(struct vfm_plot_axis *a, int about, double margin);
/* Writes the label of a tick, "2.5", "40k". */
void vfm_plot_axis_label(const struct vfm_plot_axis *a, double tick, char text[VFM_PLOT_LABEL]);

#endif
