/* matrix_predict.c - predicts a row by a dry run on simulated ranks. */
#include "predict/matrix_predict.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "bench.h"
#include "spec/cost/hw.h"

struct vfm_dry_run_opts matrix_dry_opts(const struct matrix_row *w, const struct vfm_dry_run_opts *asked)
{
	struct vfm_dry_run_opts o = *asked;

	o.config = &w->config;
	o.ranks = w->ranks;
	o.context = w->tokens;
	return o;
}

static void describe_predicted(const struct vfm_dry_run_opts *o, struct matrix_outcome *out)
{
	struct vfm_parallel p = o->config->parallel;
	struct vfm_buf layout = {0};

	vfm_parallel_check(&p, &o->config->model, o->ranks, NULL); /* sets dp; vfm_dry_run reports a failure */
	vfm_parallel_text(&p, &layout);
	out->peak = vfm_hw_peak(o->machine->name, o->config->train.dtype);
	snprintf(out->device, sizeof(out->device), "%s", o->machine->name);
	snprintf(out->descr, sizeof(out->descr), "%s", vfm_sim_descr);
	snprintf(out->layout, sizeof(out->layout), "%s", layout.len ? layout.data : "");
	vfm_buf_release(&layout);
}

static void take_classes(const struct vfm_dry_run *d, struct matrix_outcome *o)
{
	double ranks = 0;

	for (int i = 0; i < d->n; i++)
		ranks += d->rank[i].stands_for;
	for (int i = 0; i < d->n; i++)
		for (int k = 0; k < VFM_SIM_CLASSES; k++) {
			o->class_s[k] += d->rank[i].class_s[k] * d->rank[i].stands_for / ranks;
			o->class_flops[k] += d->rank[i].class_flops[k] * d->rank[i].stands_for / ranks;
		}
}

static void take_dry_run(const struct vfm_dry_run *d, struct matrix_outcome *o)
{
	int64_t peak = 0;

	for (int i = 0; i < d->n; i++)
		peak = d->rank[i].mem_peak > peak ? d->rank[i].mem_peak : peak;
	for (int e = 0; e < VFM_ESTIMATES; e++)
		o->s[e] = d->s[e];
	o->r = (struct vfm_bench_result){.step_s = {.median = d->s[VFM_MID]},
		.flops = d->flops,
		.tokens = (int64_t)d->tokens,
		.mem_peak_bytes = peak,
		.comm_s = d->comm_s,
		.bubble_s = d->bubble_s};
	memcpy(o->r.recompute, d->rank[0].recompute, sizeof(o->r.recompute));
	o->need = (double)(d->mem_peak + d->mem_beside);
	o->straggler = d->straggler;
	o->imbalance = d->imbalance;
	o->step = d->step;
	o->total_s = d->total_s * d->straggler;
	o->copy_s = d->copy_s;
	take_classes(d, o);
}

int matrix_predict_row(
	const struct matrix_row *w, const struct vfm_dry_run_opts *asked, struct matrix_outcome *o, struct vfm_err *err)
{
	struct vfm_dry_run_opts opts = matrix_dry_opts(w, asked);
	struct vfm_dry_run d;
	int rc = vfm_dry_run(&opts, &d, err);

	*o = (struct matrix_outcome){.fits = d.fits, .need = INFINITY, .first = -1};
	describe_predicted(&opts, o);
	if (rc < 0) {
		rc = d.beyond ? 0 : rc;
		vfm_dry_run_release(&d);
		return rc;
	}
	take_dry_run(&d, o);
	if (opts.timeline) {
		o->run = vfm_calloc(1, sizeof(*o->run));
		*o->run = d;
	} else {
		vfm_dry_run_release(&d);
	}
	return 0;
}

void matrix_outcome_drop_run(struct matrix_outcome *o)
{
	if (o->run)
		vfm_dry_run_release(o->run);
	free(o->run);
	o->run = NULL;
}
