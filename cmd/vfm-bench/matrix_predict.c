#include "matrix_predict.h"

#include <math.h>
#include <stdio.h>
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
	struct vfm_bench_predicted predicted = {{0}, {0}};
	struct vfm_bench_result r;
	struct vfm_buf layout = {0};

	TRY(vfm_context_open(x, &w->config, err));
	vfm_bench_grid(w->tokens, b.grid);
	vfm_bench_predict(&b, BENCH_PREDICTED_WARMUP, &predicted);
	TRY(vfm_bench_run(x, &w->config, &b, &r, err));
	if (x->mesh.rank != 0)
		return 0;
	p->out->r = r;
	p->out->beside = vfm_sim_held(x->device.dev).beside;
	memcpy(p->out->s, predicted.s, sizeof(p->out->s));
	p->out->peak = vfm_hw_peak(x->device.dev->name, w->config.train.dtype);
	snprintf(p->out->device, sizeof(p->out->device), "%s", x->device.dev->name);
	snprintf(p->out->descr, sizeof(p->out->descr), "%s", x->device.dev->descr);
	bench_layout(&x->mesh.p, &layout);
	snprintf(p->out->layout, sizeof(p->out->layout), "%s", layout.len ? layout.data : "");
	vfm_buf_release(&layout);
	return 0;
}

int matrix_predict_row(const struct matrix_row *w, int64_t text, int64_t packs, const struct vfm_machine *m,
	bool needed, struct matrix_outcome *o, struct vfm_err *err)
{
	struct prediction p = {w, text, packs, o};
	struct vfm_simulation s = {.config = &w->config, .machine = m, .ranks = w->ranks, .retry = needed};
	struct vfm_simulated how;
	int rc = vfm_simulate(&s, predict_on_rank, &p, &how, err);

	o->fits = !how.full;
	if (how.full && !needed)
		return 0;
	o->need = how.beyond ? INFINITY : (double)(o->r.mem_peak_bytes + o->beside);
	return how.beyond ? 0 : rc;
}
