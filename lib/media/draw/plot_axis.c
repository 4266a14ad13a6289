#include "media/draw/plot_axis.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>

double vfm_plot_axis_value(const struct vfm_plot_axis *a, double v)
{
	if (!a->log)
		return v;
	return v > 0 ? log10(v) : NAN;
}

void vfm_plot_axis_extend(struct vfm_plot_axis *a, double v)
{
	double x = vfm_plot_axis_value(a, v);

	if (!isfinite(x))
		return;
	a->lo = fmin(a->lo, x);
	a->hi = fmax(a->hi, x);
}

/* Ticks at 1, 2 or 5 times a power of ten (Heckbert, "Nice numbers for graph labels", 1990). */
static void set_linear_ticks(struct vfm_plot_axis *a, int about)
{
	double raw = (a->hi - a->lo) / about, mag = pow(10, floor(log10(raw))), f = raw / mag;

	a->step = mag * (f < 1.5 ? 1 : f < 3.5 ? 2 : f < 7.5 ? 5 : 10);
	for (double t = ceil(a->lo / a->step - 1e-9) * a->step;
		t <= a->hi + 1e-9 * a->step && a->n_ticks < VFM_PLOT_TICKS; t += a->step)
		a->tick[a->n_ticks++] = fabs(t) < 1e-9 * a->step ? 0 : t;
}

static void set_log_ticks(struct vfm_plot_axis *a)
{
	static const double marks[] = {1, 2, 5};
	int n_marks = a->hi - a->lo < 2.5 ? 3 : 1;
	int every = (int)fmax(1, ceil((a->hi - a->lo) / 10));

	for (int e = (int)floor(a->lo); e <= (int)ceil(a->hi); e += every)
		for (int m = 0; m < n_marks; m++) {
			double t = e + log10(marks[m]);

			if (t >= a->lo - 1e-9 && t <= a->hi + 1e-9 && a->n_ticks < VFM_PLOT_TICKS)
				a->tick[a->n_ticks++] = t;
		}
	if (a->n_ticks < 2) {
		a->n_ticks = 0;
		a->tick[a->n_ticks++] = a->lo;
		a->tick[a->n_ticks++] = a->hi;
	}
}

void vfm_plot_axis_finish(struct vfm_plot_axis *a, int about, double margin)
{
	double room;

	if (a->lo > a->hi) { /* no finite value at all */
		a->lo = 0;
		a->hi = 1;
	}
	room = (a->hi - a->lo) * margin;
	if (!(a->hi - a->lo > 1e-12 * fmax(fabs(a->hi), fabs(a->lo))))
		room = a->log ? 0.5 : fmax(fabs(a->hi) * 0.1, 0.5);
	if (room > 0) {
		a->lo -= room;
		a->hi += room;
	}
	if (a->log)
		set_log_ticks(a);
	else
		set_linear_ticks(a, about);
}

void vfm_plot_axis_label(const struct vfm_plot_axis *a, double tick, char text[VFM_PLOT_LABEL])
{
	int digits = a->log ? 0 : (int)fmax(0, -floor(log10(a->step) + 1e-9));
	double top = fmax(fabs(a->lo), fabs(a->hi));

	if (a->log) {
		snprintf(text, VFM_PLOT_LABEL, "%.3g", pow(10, tick));
	} else if (top >= 1e5 || digits > 5) {
		const char *suffix[] = {"", "k", "M", "G", "T"};
		int k = 0;

		while (top >= 1e4 && k < 4) {
			top /= 1000;
			tick /= 1000;
			k++;
		}
		snprintf(text, VFM_PLOT_LABEL, "%.4g%s", tick, tick == 0 ? "" : suffix[k]);
	} else {
		snprintf(text, VFM_PLOT_LABEL, "%.*f", digits, tick);
	}
}
