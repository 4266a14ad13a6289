/* plot.h - line charts as PNG. */
#ifndef VFM_MEDIA_DRAW_PLOT_H
#define VFM_MEDIA_DRAW_PLOT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct vfm_series {
	const char *name;    /* for the legend; NULL: none */
	const double *x, *y; /* [n]; NaN breaks the line */
	int64_t n;
	uint32_t colour; /* 0 = from the palette, by its place */
	bool faint;      /* thin and pale: raw values behind a smoothed line */
};

struct vfm_plot {
	int width, height; /* 0 = 900 x 500 */
	const char *title, *x_label, *y_label;
	bool log_y;
	const struct vfm_series *series;
	int n_series;
};

/* Draws a chart as PNG (atomic). */
int vfm_plot_png(const struct vfm_plot *p, const char *path, struct vfm_err *err);

#endif
