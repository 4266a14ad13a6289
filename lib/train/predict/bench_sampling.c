/* bench_sampling.c - times evaluations of the sampler, on devices or on simulated ranks. */
#include "train/predict/bench_sampling.h"

#include <stdlib.h>
#include <string.h>

#include "comm/coll/comm.h"
#include "device/dev/stall.h"
#include "net/nn/param.h"
#include "spec/model/linears.h"
#include "train/predict/bench.h"
#include "train/predict/simulate.h"
#include "train/step/stats.h"
#include "train/step/synthetic.h"

/* ---- the request ---- */

static int make_request_inputs(struct vfm_pack *p, const struct vfm_bench_sampling *b, const struct vfm_model_spec *m,
	bool values, struct vfm_err *err)
{
	struct vfm_synthetic *all = vfm_calloc((size_t)b->samples, sizeof(*all));
	int rc;

	for (int64_t i = 0; i < b->samples; i++)
		all[i] = (struct vfm_synthetic){
			{b->grid[0], b->grid[1], b->grid[2]}, (int32_t)b->text_len, (uint64_t)i + 1};
	rc = values ? vfm_synthetic_pack(p, all, (int)b->samples, m, 1, err)
		    : vfm_synthetic_shapes(p, all, (int)b->samples, m, err);
	free(all);
	return rc;
}

static struct vfm_sample_request sampling_request(const struct vfm_pack *p)
{
	return (struct vfm_sample_request){.n = p->n,
		.id = p->id,
		.grid = (const int32_t(*)[3])p->grid,
		.text = p->text,
		.cu_text = p->cu_text,
		.text2 = p->text2,
		.cu_text2 = p->cu_text2,
		.cond = p->cond,
		.image = p->image};
}

/* Returns the forwards of an evaluation: guidance adds that of the negative text. */
static int forwards_of(const struct vfm_bench_sampling *b)
{
	return vfm_sampler_is_guided(&b->sampler) ? 2 : 1;
}

static double flops_of(const struct vfm_bench_sampling *b, const struct vfm_model_spec *m)
{
	struct vfm_pack_sums sums = {0};

	for (int64_t i = 0; i < b->samples; i++)
		vfm_synthetic_add_sums(&sums, b->grid, b->text_len, (uint64_t)i + 1, m);
	return forwards_of(b) * vfm_model_flops(m, &sums);
}

static int64_t tokens_of(const struct vfm_bench_sampling *b)
{
	return b->samples * b->grid[0] * b->grid[1] * b->grid[2];
}

/* ---- evaluations ---- */

/* The measurement of a rank.  The sampler calls begin_evaluation, which also ends the evaluation before. */
struct eval_timing {
	const struct vfm_bench_sampling *b;
	struct vfm_context *x;
	struct vfm_stalls *stalls;
	double *eval_s; /* [n] measured */
	size_t n, cap;
	struct vfm_rank_stats total;
	int64_t done, warmup;
	/* the open evaluation */
	bool open;
	double t0, waited;
	int64_t tuned, from;
	double begin[VFM_ESTIMATES], s[VFM_ESTIMATES]; /* of a simulated device; s: of the last one that has ended */
};

static double waited_for_ranks(const struct vfm_dev *d)
{
	return vfm_comm_stats().wait_s + d->wait_s;
}

/* Waits for the evaluation, and reduces its times over the ranks, so that all ranks decide alike when to stop. */
static int end_evaluation(struct eval_timing *t, struct vfm_err *err)
{
	struct vfm_dev *d = t->x->device.dev;
	struct vfm_rank_stats r = {.comm_s = waited_for_ranks(d) - t->waited};
	double stall[VFM_STALLS];
	int n;

	t->open = false;
	TRY(d->t->stream_sync(t->x->device.stream, err));
	r.step_s = vfm_dev_now(d) - t->t0;
	vfm_stalls_between(t->stalls, t->from, vfm_stalls_mark(t->stalls), stall);
	r.copy_s = stall[VFM_STALL_COPY];
	r.comm_s = d->async ? stall[VFM_STALL_COMM] : r.comm_s - r.copy_s;
	r.tuned = (double)(d->tuned - t->tuned);
	if (vfm_dev_predicts(d))
		vfm_sim_host_now(d, t->s);
	for (int e = 0; e < VFM_ESTIMATES; e++)
		t->s[e] -= t->begin[e];
	n = vfm_rank_stats_reduce(t->x->mesh.world, &r, 1, 1, err);
	TRY(n < 0 ? n : 0);
	t->done++;
	if (t->done == t->warmup && r.tuned > 0 && t->warmup < t->b->warmup + VFM_BENCH_MORE_WARMUP)
		t->warmup++;
	if (t->done <= t->warmup)
		return 0;
	vfm_grow(&t->eval_s, &t->cap, t->n + 1, sizeof(*t->eval_s));
	t->eval_s[t->n++] = r.step_s;
	for (int k = 0; k < VFM_STATS; k++)
		*vfm_stat_at(&t->total, k) += *vfm_stat_at(&r, k);
	return 0;
}

static bool has_enough(const struct eval_timing *t)
{
	return (int64_t)t->n >= t->b->evals && t->total.step_s >= t->b->min_s;
}

/* Runs each evaluation in isolation, after a barrier. */
static int begin_evaluation(void *ctx, bool low_noise, struct vfm_err *err)
{
	struct eval_timing *t = ctx;
	struct vfm_dev *d = t->x->device.dev;

	(void)low_noise;
	if (t->open)
		TRY(end_evaluation(t, err));
	else
		TRY(d->t->stream_sync(t->x->device.stream, err));
	if (has_enough(t))
		return 1;
	if (vfm_dev_predicts(d)) {
		vfm_sim_clear(d);
		vfm_sim_host_now(d, t->begin);
	}
	TRY(vfm_barrier(t->x->mesh.world, NULL, err));
	t->open = true;
	t->tuned = d->tuned;
	t->from = vfm_stalls_mark(t->stalls);
	t->waited = waited_for_ranks(d);
	t->t0 = vfm_dev_now(d);
	return 0;
}

/* Runs the sampler until enough evaluations are measured.  The last one of a run is not: it has no successor. */
static int time_evaluations(
	struct eval_timing *t, struct vfm_sample_job *job, const struct vfm_sample_request *r, struct vfm_err *err)
{
	enum { STEPS = 64 };
	size_t bytes = (size_t)(tokens_of(t->b) * vfm_model_patch_dim(job->model)) * sizeof(float);
	struct vfm_sampler s = t->b->sampler;
	float *tokens = vfm_big_alloc(bytes, "the latents", err);
	int rc = tokens ? 0 : VFM_EENV;

	s.solver.steps = STEPS;
	s.progress = NULL;
	job->enter = begin_evaluation;
	job->enter_ctx = t;
	while (rc == 0) {
		rc = vfm_sampler_run(&s, job, r, tokens, err);
		t->open = false;
	}
	vfm_big_free(tokens, bytes);
	return rc < 0 ? rc : 0;
}

/* ---- a rank ---- */

static int count_evaluations(
	const struct vfm_bench_sampling *b, const struct vfm_diffusion *d, int64_t *n, struct vfm_err *err)
{
	struct vfm_solver_plan plan;
	int rc = vfm_solver_plan_make(&plan, &b->sampler.solver, d, err);

	*n = plan.evals;
	vfm_solver_plan_release(&plan);
	return rc;
}

static void note_result(
	struct vfm_bench_sampled *out, struct eval_timing *t, const struct vfm_config *c, const struct vfm_params *ps)
{
	const int64_t groups = t->x->mesh.size[VFM_AX_DP];
	const double n = (double)t->n;
	double store;

	vfm_params_stores(ps, &store);
	out->n = (int64_t)t->n;
	out->eval_s = vfm_spread_of(t->eval_s, t->n);
	memcpy(out->s, t->s, sizeof(out->s));
	out->comm_s = t->total.comm_s / n;
	out->copy_s = t->total.copy_s / n;
	out->flops = (double)groups * flops_of(t->b, &c->model);
	out->tokens = groups * tokens_of(t->b);
	out->videos = groups * t->b->samples;
	out->offloaded = ps->host_units;
	out->host_bytes = (double)ps->host_units * store;
}

/* Makes the network, with dense weights. */
static int make_network(struct vfm_params *ps, struct vfm_model **model, struct vfm_context *x,
	const struct vfm_config *c, const struct vfm_bench_sampling *b, struct vfm_err *err)
{
	struct vfm_inference_opts o = b->inference;

	o.tokens = forwards_of(b) * tokens_of(b);
	o.samples = forwards_of(b) * b->samples;
	o.text = b->text_len;
	o.beside = 0;
	o.networks = 1;
	TRY(vfm_job_agree(&x->job, vfm_inference_new(ps, model, c, &o, &x->mesh, x->device.stream, err), err));
	TRY(vfm_params_fill_dense(ps, c->train.seed, err));
	vfm_params_hold(ps);
	return 0;
}

static int max_over_ranks(struct vfm_context *x, int64_t *peak, struct vfm_err *err)
{
	struct vfm_rank_stats r = {.mem_peak_bytes = (double)x->device.dev->mem_peak};
	int n = vfm_rank_stats_reduce(x->mesh.world, &r, 1, 1, err);

	*peak = (int64_t)r.mem_peak_bytes;
	return n < 0 ? n : 0;
}

int vfm_bench_sampling_run(struct vfm_context *x, const struct vfm_config *c, const struct vfm_bench_sampling *b,
	struct vfm_bench_sampled *out, struct vfm_err *err)
{
	struct eval_timing t = {.b = b, .x = x, .warmup = b->warmup};
	struct vfm_diffusion d = c->diffusion;
	struct vfm_sample_job job = {.model = &c->model,
		.diffusion = &d,
		.mesh = &x->mesh,
		.stream = x->device.stream,
		.dtype = (enum vfm_dtype)c->train.dtype};
	struct vfm_sample_request r;
	struct vfm_params ps = {0};
	struct vfm_pack pack = {0};
	int rc;

	*out = (struct vfm_bench_sampled){.fits = true};
	d.shift = vfm_diffusion_shift(&d, tokens_of(b) / b->samples);
	d.shift_tokens = 0;
	vfm_dev_peak_reset(x->device.dev);
	rc = make_request_inputs(&pack, b, &c->model, !vfm_dev_predicts(x->device.dev), err);
	TRY_OUT(vfm_job_agree(&x->job, rc, err));
	TRY_OUT(count_evaluations(b, &d, &out->video_evals, err));
	r = sampling_request(&pack);
	t.stalls = vfm_stalls_new(x->device.stream);
	TRY_OUT(vfm_job_failed(&x->job, make_network(&ps, &job.net, x, c, b, err), err));
	TRY_OUT(vfm_job_failed(&x->job, time_evaluations(&t, &job, &r, err), err));
	TRY_OUT(max_over_ranks(x, &out->mem_peak, err));
	note_result(out, &t, c, &ps);
out:
	x->device.dev->t->stream_sync(x->device.stream, &(struct vfm_err){0}); /* after a failure */
	vfm_stalls_free(t.stalls);
	vfm_model_free(job.net);
	vfm_params_release(&ps);
	vfm_pack_release(&pack);
	free(t.eval_s);
	return rc;
}

int vfm_bench_sampling_check(const struct vfm_bench_sampling *b, const struct vfm_config *c, struct vfm_err *err)
{
	const struct vfm_bench_step step = {.samples = b->samples,
		.packs = 1,
		.text_len = b->text_len,
		.steps = b->evals,
		.warmup = b->warmup,
		.min_s = b->min_s};

	TRY(vfm_bench_check(&step, err));
	return vfm_sampler_check(&b->sampler, &c->diffusion, err);
}

void vfm_bench_sampled_release(struct vfm_bench_sampled *r)
{
	vfm_sim_memory_release(&r->memory);
	*r = (struct vfm_bench_sampled){0};
}

/* ---- predictions ---- */

struct sampling_prediction {
	const struct vfm_config *c;
	struct vfm_bench_sampling b;
	struct vfm_bench_sampled *out; /* of the first rank; memory of the fullest */
};

/* Simulated ranks run one at a time. */
static int predict_on_rank(struct vfm_context *x, void *ctx, struct vfm_err *err)
{
	struct sampling_prediction *p = ctx;
	struct vfm_bench_sampled *out = p->out, r, fullest;
	int64_t beside;

	TRY(vfm_context_open(x, p->c, err));
	vfm_sim_record_memory(x->device.dev);
	TRY(vfm_bench_sampling_run(x, p->c, &p->b, &r, err));
	beside = vfm_simulated_beside(x->device.dev);
	fullest = *out;
	if (x->mesh.rank == 0)
		*out = r;
	out->mem_peak = fullest.mem_peak;
	out->mem_beside = fullest.mem_beside;
	out->memory = fullest.memory;
	if (x->device.dev->mem_peak + beside <= out->mem_peak + out->mem_beside)
		return 0;
	vfm_sim_memory_release(&out->memory);
	out->mem_peak = x->device.dev->mem_peak;
	out->mem_beside = beside;
	vfm_sim_memory(x->device.dev, 0, &out->memory);
	return 0;
}

int vfm_bench_sampling_predict(const struct vfm_bench_sampling *b, const struct vfm_config *c,
	const struct vfm_machine *m, int ranks, struct vfm_bench_sampled *out, struct vfm_err *err)
{
	struct vfm_bench_step step = {.samples = forwards_of(b) * b->samples};
	struct vfm_simulation s = {.config = c, .machine = m, .ranks = ranks, .retry = true};
	struct sampling_prediction p = {.c = c, .b = *b, .out = out};
	struct vfm_simulated how = {0};
	int rc;

	memcpy(step.grid, b->grid, sizeof(step.grid));
	s.cp_apart = vfm_bench_cp_apart(&step, c);
	p.b.warmup = VFM_PREDICTED_WARMUP;
	p.b.evals = 1;
	p.b.min_s = 0;
	*out = (struct vfm_bench_sampled){0};
	rc = vfm_simulate(&s, predict_on_rank, &p, &how, err);
	out->fits = !how.full;
	out->beyond = how.beyond;
	return rc;
}
