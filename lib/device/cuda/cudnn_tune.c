#include "device/cuda/cudnn_tune.h"

#include <math.h>
#include <stdlib.h>

#include "device/cuda/cuda_dev.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/first_use.h"

enum {
	RUNS = 3,
	TIMES = 3
}; /* runs that are timed, whose median counts; calls in each, so that none waits for the host */

/* The plans of a graph with the operands of a call. */
struct plan_timing {
	struct vfm_stream *s;
	struct vfm_dnn_graph *g;
	const struct vfm_dnn_bind *b;
	int n;
	void *workspace;
	struct vfm_event *from, *to;
};

static int by_seconds(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Calls plan i some times.  *seconds: of one call; infinity if cuDNN refuses it. */
static int time_run(const struct plan_timing *m, int i, double *seconds, struct vfm_err *err)
{
	const struct vfm_dev_table *t = m->s->dev->t;
	struct vfm_err why = {0};

	*seconds = INFINITY;
	TRY(t->event_record(m->from, m->s, err));
	for (int k = 0; k < TIMES; k++)
		if (vfm_dnn_run(m->g, i, vfm_cuda_stream(m->s), m->b, m->n, m->workspace, &why) < 0) {
			vfm_cuda_launched(m->s, "cuDNN", NULL); /* forgets a launch that was refused */
			return t->stream_sync(m->s, err);
		}
	TRY(t->event_record(m->to, m->s, err));
	TRY(t->event_sync(m->to, err));
	TRY(t->event_elapsed(m->from, m->to, seconds, err));
	*seconds /= TIMES;
	return 0;
}

/* Sets *seconds to the median of the runs of plan i; stops early if it takes far more than `best`. */
static int time_plan(const struct plan_timing *m, int i, double best, double *seconds, struct vfm_err *err)
{
	double x[RUNS];
	int n = 0;

	TRY(time_run(m, i, seconds, err)); /* loads the kernels */
	while (n < RUNS && isfinite(*seconds)) {
		TRY(time_run(m, i, &x[n++], err));
		if (x[0] > 1.25 * best)
			break;
	}
	qsort(x, (size_t)n, sizeof(*x), by_seconds);
	if (n)
		*seconds = x[n / 2];
	return 0;
}

/* Chooses a plan, with the events at hand. */
static int choose_plan(const struct plan_timing *m, struct vfm_err *err)
{
	int plans = vfm_dnn_facts(m->g).plans, keep = 0;
	double best = INFINITY, seconds;

	TRY(m->s->dev->t->stream_sync(m->s, err));
	(void)vfm_cuda_idle(vfm_cuda_of(m->s), 0.1);
	for (int i = 0; i < plans; i++) {
		TRY(time_plan(m, i, best, &seconds, err));
		if (seconds < 0.97 * best) {
			best = seconds;
			keep = i;
		}
	}
	vfm_dnn_use(m->g, keep);
	return 0;
}

int vfm_dnn_tune(struct vfm_stream *s, struct vfm_dnn_graph *g, const struct vfm_dnn_bind *b, int n, void *workspace,
	struct vfm_err *err)
{
	const struct vfm_dev_table *t = s->dev->t;
	struct plan_timing m = {s, g, b, n, workspace, t->event_new_timed(s->dev, err), NULL};
	int rc;

	m.to = m.from ? t->event_new_timed(s->dev, err) : NULL;
	rc = m.to ? choose_plan(&m, err) : VFM_EENV;
	if (rc < 0)
		t->stream_sync(s, NULL); /* events must have passed before they are freed */
	if (m.from)
		t->event_free(m.from);
	if (m.to)
		t->event_free(m.to);
	return rc;
}
