/* trace.c - merges points into a fixed number of columns, whose width doubles as the curve grows. */
#include "media/draw/trace.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/mem.h"

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

int vfm_trace_used(const struct vfm_trace *t)
{
	int used = 0;

	for (int i = 0; t->column && i < VFM_TRACE_COLUMNS; i++)
		used += t->column[i].n > 0;
	return used;
}

double vfm_trace_mean(const struct vfm_trace *t, int i, int half)
{
	struct vfm_trace_column around = {0};

	for (int k = i - half; k <= i + half; k++)
		if (k >= 0 && k < VFM_TRACE_COLUMNS)
			merge_columns(&around, &t->column[k]);
	return around.n ? around.sum / (double)around.n : NAN;
}

double vfm_trace_recent(const struct vfm_trace *t)
{
	struct vfm_trace_column recent = {0};
	int left = vfm_trace_used(t) / 40 + 1;

	for (int i = VFM_TRACE_COLUMNS - 1; t->n && i >= 0 && left > 0; i--) {
		merge_columns(&recent, &t->column[i]);
		left -= t->column[i].n > 0;
	}
	return recent.n ? recent.sum / (double)recent.n : NAN;
}

void vfm_trace_extend_range(const struct vfm_trace *t, double *min, double *max)
{
	for (int i = 0; t->column && i < VFM_TRACE_COLUMNS; i++)
		if (t->column[i].n) {
			*min = fmin(*min, t->column[i].min);
			*max = fmax(*max, t->column[i].max);
		}
}
