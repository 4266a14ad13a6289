/* held_out.c - evaluates the held-out plan at fixed levels, and sums losses over the ranks. */
#include "train/run/held_out.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "comm/coll/comm.h"
#include "data/loader/loader.h"
#include "data/plan/split.h"
#include "device/dev/dev.h"
#include "device/ops/ops.h"
#include "device/ops/tensor.h"
#include "net/diffusion/stages.h"
#include "net/nn/scales.h"
#include "train/job/plan_check.h"
#include "train/run/experts.h"
#include "train/run/readers.h"
#include "train/step/micro.h"

struct vfm_held_out {
	const struct vfm_config *c;
	struct vfm_shard_cache *cache; /* of its shards */
	struct vfm_plan *plan;
	char sha256[VFM_SHA256_HEX];
	int64_t tokens; /* of the plan */
	bool opened;    /* the indexes were compared with the plan */
};

/* ---- the plan ---- */

static int count_tokens(struct vfm_held_out *h, struct vfm_err *err)
{
	struct vfm_plan_step s = {0};
	int rc = 0;

	for (int64_t i = 0; i < vfm_plan_header(h->plan)->steps && rc == 0; i++) {
		rc = vfm_plan_step(h->plan, i, &s, err);
		h->tokens += rc == 0 ? s.tokens : 0;
	}
	vfm_plan_step_release(&s);
	return rc;
}

static int check_plan(const struct vfm_held_out *h, const struct vfm_plan *train, struct vfm_err *err)
{
	const struct vfm_plan_header *held = vfm_plan_header(h->plan), *t = vfm_plan_header(train);
	const char *path = vfm_plan_path(h->plan);
	struct vfm_encoder_ids mine = held->encoder_ids, expected = t->encoder_ids;

	TRY(vfm_plan_check_model(held, path, &h->c->model, err));
	if (held->cp)
		return vfm_fail(err, VFM_EUSAGE,
			"%s was packed with --cp; held-out data is computed by all cp ranks (vfm-pack --held-out-plan)",
			path);
	TRY(vfm_encoder_ids_check(&mine, path, &expected, vfm_plan_path(train), err));
	return vfm_split_check_disjoint(t, vfm_plan_path(train), held, path, err);
}

struct vfm_held_out *vfm_held_out_open(const char *path, const struct vfm_plan *train, const struct vfm_config *c,
	struct vfm_shard_cache *cache, struct vfm_err *err)
{
	struct vfm_held_out *h = vfm_calloc(1, sizeof(*h));
	int rc;

	h->c = c;
	h->cache = cache;
	h->plan = vfm_plan_open(path, err);
	rc = h->plan ? check_plan(h, train, err) : err->code;
	TRY_OUT(rc);
	TRY_OUT(vfm_plan_sha256(h->plan, h->sha256, NULL, NULL, err));
	rc = count_tokens(h, err);
out:
	if (rc == 0)
		return h;
	vfm_held_out_close(h);
	return NULL;
}

void vfm_held_out_close(struct vfm_held_out *h)
{
	if (!h)
		return;
	vfm_plan_close(h->plan);
	free(h);
}

const char *vfm_held_out_sha256(const struct vfm_held_out *h)
{
	return h->sha256;
}

/* ---- an evaluation ---- */

struct held_out_run {
	struct vfm_held_out *h;
	struct vfm_model *model;
	struct vfm_params *ps;
	struct vfm_stream *stream;
	const struct vfm_mesh *mesh;
	struct vfm_stages stages;
	struct vfm_tensor sums; /* [levels] f64, device: squared errors */
	double t_min, t_max;    /* the levels that the network computes: t_min <= t < t_max */
};

static int add_errors(struct held_out_run *r, const struct vfm_micro *u, const struct vfm_tensor *pred, int level,
	struct vfm_err *err)
{
	struct vfm_mse mse = {.pred = *pred, .target = u->target, .w = u->w, .seqs = &u->in.segs};

	mse.loss = vfm_t1((double *)r->sums.data + level, VFM_F64, 1);
	return vfm_op_mse(r->stream, &mse, err);
}

/* weight 0: the pack is another rank's, and this one takes part in collectives only. */
static int run_level(struct held_out_run *r, const struct vfm_pack *p, int level, float weight, struct vfm_err *err)
{
	int chunks = vfm_model_chunks(r->model), rc;
	struct vfm_fixed_noise fixed = {.level = level,
		.levels = (int)r->h->c->eval.times,
		.weight = weight,
		.t_min = r->t_min,
		.t_max = r->t_max};
	struct vfm_micro_opts o = {.config = r->h->c,
		.mesh = r->mesh,
		.ends = vfm_model_is_first(r->model, 0) || vfm_model_is_last(r->model, chunks - 1),
		.fixed = &fixed};
	struct vfm_tensor pred;
	struct vfm_micro u;

	rc = vfm_micro_make(&u, r->stream, &o, p, err);
	if (rc == 0)
		rc = vfm_stages_forward(&r->stages, r->model, &u.in, &pred, err);
	if (rc == 0 && vfm_has(&pred))
		rc = add_errors(r, &u, &pred, level, err);
	vfm_stages_end(&r->stages);
	vfm_micro_release(&u);
	return rc;
}

/* Returns whether the network computes a level of any sample up to the context: t grows with the length. */
static bool computes_level(const struct held_out_run *r, int64_t level)
{
	const struct vfm_diffusion *d = &r->h->c->diffusion;
	double u = ((double)level + 0.5) / (double)r->h->c->eval.times;

	return vfm_diffusion_quantile(d, u, 1) < r->t_max &&
		vfm_diffusion_quantile(d, u, vfm_plan_header(r->h->plan)->context) >= r->t_min;
}

static int evaluate_packs(struct held_out_run *r, struct vfm_loader *l, struct vfm_err *err)
{
	int64_t steps = vfm_plan_header(r->h->plan)->steps, dp = r->mesh->p.dp, at = r->mesh->coord[VFM_AX_DP];
	int32_t per_step = vfm_loader_packs_per_step(l);
	struct vfm_pack *p;
	int rc = 1;

	for (int64_t i = 0; rc > 0; i++) {
		float weight = at + i / per_step * dp < steps ? 1 : 0;

		rc = vfm_loader_next(l, &p, err);
		if (rc <= 0)
			break;
		for (int level = 0; level < r->h->c->eval.times && rc > 0; level++) {
			int failed = computes_level(r, level) ? run_level(r, p, level, weight, err) : 0;

			rc = failed < 0 ? failed : rc;
		}
		vfm_loader_release(l, p);
	}
	return rc;
}

/* Only the ranks of the last pp stage have summed something, each over its tokens. */
static int read_losses(struct held_out_run *r, struct vfm_held_out_loss *out, struct vfm_err *err)
{
	const struct vfm_dev_table *t = r->stream->dev->t;

	out->levels = (int)r->h->c->eval.times;
	out->mean = 0;
	TRY(vfm_all_reduce(r->mesh->world, r->stream, r->sums, err));
	TRY(t->to_host(r->stream, out->level, r->sums.data, vfm_nbytes(&r->sums), err));
	TRY(t->stream_sync(r->stream, err));
	for (int i = 0; i < out->levels; i++) {
		out->level[i] /= (double)r->h->tokens;
		out->mean += out->level[i] / out->levels;
	}
	return 0;
}

static int set_up_run(struct held_out_run *r, struct vfm_err *err)
{
	int64_t n = r->h->c->eval.times;

	TRY(vfm_stages_new(&r->stages, r->mesh, r->stream, err));
	r->sums = vfm_t1(NULL, VFM_F64, n);
	r->sums.data = vfm_dev_alloc(r->stream, vfm_nbytes(&r->sums), "the held-out loss", err);
	return r->sums.data ? r->stream->dev->t->zero(r->stream, r->sums.data, vfm_nbytes(&r->sums), err) : VFM_EENV;
}

/* Adds the errors of the levels that the network in the trainer computes. */
static int evaluate_network(struct held_out_run *r, struct vfm_err *err)
{
	struct vfm_held_out *h = r->h;
	const struct vfm_loader_opts lo = {
		.cache = h->cache, .plan_sha256 = h->sha256, .skip_hash = h->opened, .by_step = true};
	struct vfm_loader *l = vfm_readers_open(h->plan, h->c, r->mesh, &lo, err);
	int rc = l ? evaluate_packs(r, l, err) : err->code;

	vfm_loader_close(l);
	h->opened = h->opened || rc == 0;
	return rc < 0 ? rc : vfm_scales_discard(r->ps, err);
}

/* Each network computes the levels in its range, the active one first. */
static int evaluate_networks(struct held_out_run *r, struct vfm_experts *x, struct vfm_err *err)
{
	if (!x)
		return evaluate_network(r, err);
	for (int i = 0; i < VFM_EXPERTS; i++) {
		const struct vfm_diffusion *d;

		if (i)
			TRY(vfm_experts_enter(x, !x->active, err));
		d = &x->v[x->active].c.diffusion;
		r->t_min = d->t_min;
		r->t_max = d->t_max < 1 ? d->t_max : INFINITY;
		TRY(evaluate_network(r, err));
	}
	return 0;
}

int vfm_held_out_run(struct vfm_held_out *h, struct vfm_trainer *tr, struct vfm_experts *x,
	struct vfm_held_out_loss *out, struct vfm_err *err)
{
	struct vfm_params *ps = vfm_trainer_params(tr);
	struct held_out_run r = {.h = h,
		.model = vfm_trainer_model(tr),
		.ps = ps,
		.stream = ps->stream,
		.mesh = ps->mesh,
		.t_max = INFINITY};
	int rc = set_up_run(&r, err);

	*out = (struct vfm_held_out_loss){0};
	if (rc == 0)
		rc = evaluate_networks(&r, x, err);
	if (rc == 0)
		rc = read_losses(&r, out, err);
	vfm_stages_release(&r.stages);
	vfm_dev_free(r.stream, r.sums.data, vfm_nbytes(&r.sums));
	return rc;
}
