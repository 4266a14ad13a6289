#include "matrix_predict.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "spec/hw.h"
#include "step_opts.h"
#include "train/simulate.h"

struct prediction {
	const struct matrix_row *row;
	int64_t text, packs;
	struct matrix_outcome *out;
};

static int predict_on_rank(struct vfm_context *x, void *ctx, struct vfm_err *err)
{
	const struct prediction *p = ctx;
	const struct matrix_row *w = p->row;
	struct vfm_bench_step b = {.samples = 1, .text_len = p->text, .packs = p->packs};
	struct bench_predicted predicted = {.dev = NULL};
	struct vfm_bench_result r;
	struct vfm_buf layout = {0};

	TRY(vfm_context_open(x, &w->config, err));
	vfm_bench_grid(w->tokens, b.grid);
	bench_predict(&predicted, &b);
	TRY(vfm_bench_run(x, &w->config, &b, &r, err));
	if (x->mesh.rank != 0)
		return 0;
	p->out->r = r;
	memcpy(p->out->s, predicted.s, sizeof(p->out->s));
	p->out->peak = vfm_hw_peak(x->device.dev->name, w->config.train.dtype);
	snprintf(p->out->device, sizeof(p->out->device), "%s", x->device.dev->name);
	snprintf(p->out->descr, sizeof(p->out->descr), "%s", x->device.dev->descr);
	bench_layout(&x->mesh.p, &layout);
	snprintf(p->out->layout, sizeof(p->out->layout), "%s", layout.len ? layout.data : "");
	vfm_buf_release(&layout);
	return 0;
}

/* A step that does not fit is predicted once more with memory without end, for the bytes that it needs. */
int matrix_predict_row(const struct matrix_row *w, int64_t text, int64_t packs, const struct vfm_machine *m,
	bool needed, struct matrix_outcome *o, struct vfm_err *err)
{
	struct vfm_machine machine = *m;
	struct prediction p = {w, text, packs, o};
	struct vfm_simulation s = {.config = &w->config, .machine = &machine, .ranks = w->ranks};
	struct vfm_simulated how = {0};
	int rc = vfm_simulate(&s, predict_on_rank, &p, &how, err);

	free(how.stands_for);
	o->fits = rc >= 0;
	if (rc >= 0 || !how.full)
		return rc;
	if (!needed)
		return 0;
	machine.capacity *= 8;
	rc = vfm_simulate(&s, predict_on_rank, &p, &how, err);
	free(how.stands_for);
	o->need = (double)o->r.mem_peak_bytes + (double)m->context;
	return rc;
}
