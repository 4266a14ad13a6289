/* trainer.c - one step: pipeline, reductions, update, and sums read back after the next is enqueued. */
#include "train/step/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "device/dev/stall.h"
#include "net/nn/scales.h"
#include "spec/layout/schedule.h"

/* Values summed over the world at the end of a step; see reduce_sums for the contributing ranks. */
enum { SUM_LOSS, SUM_PLAIN, SUM_TOKENS, SUM_SAMPLES, SUM_FLOPS, N_SUMS };

/* Results of a step, in pinned host memory. */
struct readback {
	double sums[N_SUMS];
	float norm;
};

/* A step in flight. */
struct flight {
	struct vfm_event *done;
	struct readback *read;
	struct vfm_step_stats stats; /* rank.bubble_s and comm_s: as the host measures them, until the step is read */
	double t0;                   /* start of the step on the host */
	int64_t from, to;            /* range of its stalls (device/dev/stall.h) */
	int64_t n_packs;
	struct vfm_tensor *each; /* [n_packs] device: losses of the segments; without data on other pp stages */
	int32_t **sample;        /* [n_packs] their samples (pipeline.h) */
	int64_t *index;          /* [n_packs] of the packs within the step */
};

struct vfm_trainer {
	struct vfm_config c;
	const struct vfm_mesh *mesh;
	struct vfm_stream *stream;
	struct vfm_params ps;
	struct vfm_model *model;
	struct vfm_optim optim;
	struct vfm_pipeline *pipe;
	struct vfm_recompute_plan plan;
	char plan_text[VFM_RECOMPUTE_TEXT];
	struct vfm_tensor sums;                    /* [N_SUMS] f64, device */
	struct flight flight[VFM_STEPS_IN_FLIGHT]; /* step i at i % VFM_STEPS_IN_FLIGHT */
	int64_t put, read, dropped;                /* number of steps enqueued, read, dropped */
	double t_read;                             /* when the host observed the end of the last step that it read */
	struct vfm_event *hold;                    /* the next update waits for it */
	struct vfm_stalls *stalls;
	int64_t others; /* steps that trained another network */
};

static int flight_new(struct vfm_trainer *tr, struct vfm_err *err)
{
	struct vfm_dev *d = tr->stream->dev;

	for (int i = 0; i < VFM_STEPS_IN_FLIGHT; i++) {
		struct flight *u = &tr->flight[i];

		u->done = d->t->event_new(d, err);
		u->read = u->done ? d->t->alloc_host(d, sizeof(*u->read), "the loss of a step", err) : NULL;
		if (!u->read)
			return VFM_EENV;
	}
	return 0;
}

static void release_sample_losses(struct vfm_trainer *tr, struct flight *u)
{
	for (int64_t i = 0; i < u->n_packs; i++) {
		vfm_dev_free(tr->stream, u->each[i].data, vfm_nbytes(&u->each[i]));
		free(u->sample[i]);
	}
	free(u->each);
	free(u->sample);
	free(u->index);
	u->each = NULL;
	u->sample = NULL;
	u->index = NULL;
	u->n_packs = 0;
}

static void flight_free(struct vfm_trainer *tr)
{
	struct vfm_dev *d = tr->stream->dev;

	for (int i = 0; i < VFM_STEPS_IN_FLIGHT; i++) {
		struct flight *u = &tr->flight[i];

		release_sample_losses(tr, u);
		if (u->read) {
			d->t->event_sync(u->done, NULL);
			d->t->free_host(d, u->read, sizeof(*u->read));
		}
		if (u->done)
			d->t->event_free(u->done);
	}
}

/* Collective: patterns that match nothing are errors.  Logs how much of the model is trained, and the memory of the
 * frozen parameters, of all ranks together without copies. */
static int check_tuning(const struct vfm_params *ps, enum vfm_dtype dtype, struct vfm_err *err)
{
	const struct vfm_tuning *t = &ps->tuning;
	const int *at = ps->mesh->coord;
	enum { ADAPTERS, TRAINED, FROZEN, BASE, CODED, FROZEN_BYTES, COUNTS };
	int64_t n[COUNTS] = {0}; /* elements; bytes */
	char coded[64] = "";

	for (size_t i = 0; i < ps->n; i++) {
		const struct vfm_param *p = ps->p[i];
		int64_t numel = vfm_shape_numel(p->d.ndim, p->d.shape);

		if (at[VFM_AX_DP] || at[VFM_AX_CP] || at[VFM_AX_TP] || (at[VFM_AX_PP] && p->all_pp_stages))
			continue; /* another rank counts it */
		n[ADAPTERS] += p->adapter ? numel : 0;
		n[p->frozen ? FROZEN : TRAINED] += numel;
		n[BASE] += p->base ? numel : 0;
		n[CODED] += p->stored != VFM_FROZEN_SAME ? numel : 0;
		n[FROZEN_BYTES] += p->frozen ? vfm_param_frozen_bytes(p, dtype) : 0;
	}
	TRY(vfm_all_reduce(ps->mesh->save, NULL, vfm_t1(n, VFM_I64, COUNTS), err));
	if (t->rank > 0 && !n[ADAPTERS])
		return vfm_fail(err, VFM_EUSAGE,
			"lora.targets: no linear layer of the model matches '%s' (such as *.attn.qkv)",
			t->targets.text);
	if (!n[TRAINED])
		return vfm_fail(err, VFM_EUSAGE, "train.freeze: '%s' leaves no parameter to train", t->freeze.text);
	if ((t->frozen_dtype != VFM_FROZEN_SAME || ps->stores) && !n[BASE])
		return vfm_fail(err, VFM_EUSAGE,
			"%s%s is for linear layers of blocks, and train.freeze '%s' freezes none",
			t->frozen_dtype == VFM_FROZEN_SAME ? "train.offload_weights: it" : "train.frozen_dtype: ",
			t->frozen_dtype == VFM_FROZEN_SAME ? "" : vfm_frozen_names[t->frozen_dtype], t->freeze.text);
	/* A simulated rank represents several ranks, so these sums would be wrong. */
	if (n[FROZEN] && ps->mesh->rank == 0 && !vfm_dev_predicts(ps->stream->dev)) {
		if (n[CODED])
			snprintf(coded, sizeof(coded), " (%lld in %s)", (long long)n[CODED],
				vfm_frozen_names[t->frozen_dtype]);
		vfm_info("%lld parameters are trained (%lld in adapters of rank %lld), %lld are frozen%s and take %.1f "
			 "MiB",
			(long long)n[TRAINED], (long long)n[ADAPTERS], (long long)t->rank, (long long)n[FROZEN], coded,
			(double)n[FROZEN_BYTES] / 0x1p20);
	}
	return 0;
}

/* Returns how many blocks of this pp stage train.offload_weights means; all: what auto means. */
static int64_t offloaded_blocks(const struct vfm_config *c, const struct vfm_mesh *m, int64_t all)
{
	const int64_t of = c->model.layers, blocks = c->train.offload_weights < 0 ? all : c->train.offload_weights;
	const int pp = m->size[VFM_AX_PP], chunks = (int)m->p.vpp;
	int64_t n = 0;

	for (int k = 0; k < chunks; k++) {
		int64_t first, end;

		vfm_pp_stage_layers(&c->model, pp * chunks, k * pp + m->coord[VFM_AX_PP], &first, &end);
		n += end * blocks / of - first * blocks / of;
	}
	return n;
}

struct vfm_trainer *vfm_trainer_new(
	const struct vfm_config *c, const struct vfm_mesh *mesh, struct vfm_stream *s, struct vfm_err *err)
{
	struct vfm_trainer *tr = vfm_calloc(1, sizeof(*tr));
	void *sums;
	int rc;

	tr->c = *c;
	tr->mesh = mesh;
	tr->stream = s;
	vfm_params_init(&tr->ps, s, mesh);
	tr->ps.fp8 = c->train.fp8 != VFM_FP8_NONE;
	tr->ps.split = c->train.master == VFM_MASTER_SPLIT;
	tr->ps.tuning = c->tuning;
	tr->ps.stores = c->train.offload_weights != 0;
	tr->ps.host_limit = c->train.host_gib * 0x1p30;
	tr->model = vfm_model_new(&c->model, &tr->ps);
	vfm_model_set_residual(tr->model, (enum vfm_dtype)c->train.residual);
	TRY_OUT(check_tuning(&tr->ps, (enum vfm_dtype)c->train.dtype, err));
	TRY_OUT(vfm_params_alloc(&tr->ps, (enum vfm_dtype)c->train.dtype, true, err));
	TRY_OUT(vfm_params_place(&tr->ps, offloaded_blocks(c, mesh, c->model.layers), err));
	if (c->train.fp8 == VFM_FP8_DELAYED)
		TRY_OUT(vfm_scales_new(&tr->ps, c->train.fp8_history, err));
	TRY_OUT(vfm_params_fill(&tr->ps, c->train.seed, err));
	TRY_OUT(vfm_optim_new(&tr->optim, &tr->ps, &tr->c.train, err));
	TRY_OUT(vfm_optim_start(&tr->optim, err));
	tr->pipe = vfm_pipeline_new(&tr->c, mesh, s, tr->model, &tr->ps, err);
	sums = tr->pipe ? vfm_dev_alloc(s, N_SUMS * sizeof(double), "the loss", err) : NULL;
	rc = sums ? 0 : VFM_EENV;
	tr->sums = vfm_t1(sums, VFM_F64, N_SUMS);
	TRY_OUT(rc);
	TRY_OUT(flight_new(tr, err));
	tr->stalls = vfm_stalls_new(s);
out:
	if (rc == 0)
		return tr;
	vfm_trainer_free(tr);
	return NULL;
}

void vfm_trainer_free(struct vfm_trainer *tr)
{
	if (!tr)
		return;
	if (tr->stream->dev->oom_hints.plan == tr->plan_text)
		tr->stream->dev->oom_hints.plan = NULL;
	vfm_pipeline_free(tr->pipe);
	flight_free(tr);
	vfm_stalls_free(tr->stalls);
	vfm_optim_release(&tr->optim);
	vfm_model_free(tr->model);
	vfm_params_release(&tr->ps);
	vfm_dev_free(tr->stream, tr->sums.data, N_SUMS * sizeof(double));
	free(tr);
}

int vfm_trainer_plan(struct vfm_trainer *tr, const struct vfm_load *load, struct vfm_err *err)
{
	struct vfm_load rest = *load;

	rest.host_bytes = fmax(0, rest.host_bytes - vfm_optim_host_bytes(&tr->optim));
	TRY(vfm_recompute_plan(&tr->c, &tr->ps, &rest, &tr->plan, vfm_pipeline_keeps(tr->pipe), err));
	/* Activations are always pinned.  The weights that they leave no room for move to a file. */
	if (tr->plan.blocks.host > 0 && isfinite(tr->plan.host))
		tr->ps.host_limit = fmax(1, tr->plan.host - tr->plan.blocks.host);
	if (tr->c.train.offload_weights)
		TRY(vfm_params_place(
			&tr->ps, tr->plan.made ? tr->plan.offloaded : offloaded_blocks(&tr->c, tr->mesh, 0), err));
	if (!tr->plan.made)
		return 0;
	vfm_recompute_text(&tr->plan, tr->plan_text, sizeof(tr->plan_text));
	tr->stream->dev->oom_hints.plan = tr->plan_text;
	return 0;
}

const struct vfm_recompute_plan *vfm_trainer_recompute(const struct vfm_trainer *tr)
{
	return &tr->plan;
}

void vfm_trainer_set_network(struct vfm_trainer *tr, const struct vfm_config *c, int64_t others)
{
	tr->c.diffusion = c->diffusion;
	tr->c.train = c->train;
	tr->others = others;
}

void vfm_trainer_hold(struct vfm_trainer *tr, struct vfm_event *e)
{
	tr->hold = e;
}

int vfm_trainer_wait_held(struct vfm_trainer *tr, struct vfm_err *err)
{
	struct vfm_event *e = tr->hold;

	tr->hold = NULL;
	return e ? tr->stream->dev->t->event_wait(e, tr->stream, err) : 0;
}

int64_t vfm_trainer_graphs(const struct vfm_trainer *tr)
{
	return vfm_pipeline_graphs(tr->pipe);
}

struct vfm_model *vfm_trainer_model(struct vfm_trainer *tr)
{
	return tr->model;
}

struct vfm_params *vfm_trainer_params(struct vfm_trainer *tr)
{
	return &tr->ps;
}

struct vfm_optim *vfm_trainer_optim(struct vfm_trainer *tr)
{
	return &tr->optim;
}

/* Returns the seconds that the host has waited for ranks and the device. */
static double waited(const struct vfm_trainer *tr)
{
	return vfm_comm_stats().wait_s + tr->stream->dev->wait_s;
}

/* Returns the seconds of all host waits within steps. */
static double waited_in_all(const struct vfm_trainer *tr)
{
	return waited(tr) + tr->stream->dev->behind_s + vfm_pipeline_pack_wait(tr->pipe);
}

/* Sums the results of the step over the world.  All ranks of the last pp stage contribute their share of the loss.  The
 * counts of a pack are those of its first cp rank, of tp rank 0 of the first pp stage. */
static int reduce_sums(struct vfm_trainer *tr, const struct vfm_pipeline_sums *mine, struct vfm_err *err)
{
	const struct vfm_mesh *m = tr->mesh;
	bool counts = m->coord[VFM_AX_PP] == 0 && m->coord[VFM_AX_TP] == 0;
	double x[N_SUMS] = {0};

	if (counts) {
		x[SUM_TOKENS] = (double)mine->tokens;
		x[SUM_SAMPLES] = (double)mine->samples;
		x[SUM_FLOPS] = mine->flops;
	}
	TRY(tr->stream->dev->t->to_device(tr->stream, (double *)tr->sums.data + SUM_TOKENS, x + SUM_TOKENS,
		(N_SUMS - SUM_TOKENS) * sizeof(double), err));
	return vfm_all_reduce(m->world, tr->stream, tr->sums, err);
}

/* Enqueues the copies of the results to the host. */
static int stage_readback(struct vfm_trainer *tr, struct flight *u, struct vfm_err *err)
{
	const struct vfm_dev_table *t = tr->stream->dev->t;

	TRY(t->to_host(tr->stream, u->read->sums, tr->sums.data, sizeof(u->read->sums), err));
	TRY(t->to_host(tr->stream, &u->read->norm, tr->optim.norm.data, sizeof(u->read->norm), err));
	return t->event_record(u->done, tr->stream, err);
}

/* Returns whether most of the update should overlap the next forward.
 *
 * A unit must not wait for its weights, so the forward of a pack lasts as long as the update: an element is 26 bytes or
 * 13 ns on an H200, enough for 10,000 FLOPs of products.  An update of a gigabyte or less costs no more than a launch
 * without a graph (capture.h).  Moments in host memory move over a slow bus, which needs no units of the device. */
static bool update_overlaps(const struct vfm_trainer *tr, int64_t n_packs, double own_flops)
{
	enum { LEAST_ELEMENTS = 1 << 28, LEAST_FLOPS = 10000 };
	const struct vfm_mesh *m = tr->mesh;
	double own = (double)tr->ps.n_own, forward;

	if (tr->c.train.overlap_update != VFM_OVERLAP_AUTO || tr->c.train.deterministic)
		return tr->c.train.overlap_update == VFM_OVERLAP_ON;
	if (tr->optim.on_host)
		return true;
	forward = own_flops / 3 / (double)(m->size[VFM_AX_TP] * m->size[VFM_AX_PP]);
	return own >= LEAST_ELEMENTS && n_packs > 0 && forward / (double)n_packs >= LEAST_FLOPS * own;
}

int vfm_trainer_step(struct vfm_trainer *tr, int64_t step, int64_t n_packs, const struct vfm_pack_source *src,
	double lr, struct vfm_err *err)
{
	struct flight *u = &tr->flight[tr->put % VFM_STEPS_IN_FLIGHT];
	double t0 = vfm_now(), wait0 = waited(tr), all0 = waited_in_all(tr), bubble0 = vfm_pipeline_bubble(tr->pipe);
	struct vfm_rank_stats *own = &u->stats.rank;
	struct vfm_pipeline_losses losses = {.sum = vfm_t1(tr->sums.data, VFM_F64, 1)};
	struct vfm_pipeline_sums sums;

	if (vfm_trainer_in_flight(tr) == VFM_STEPS_IN_FLIGHT)
		vfm_trainer_drop(tr, 1);
	release_sample_losses(tr, u);
	u->stats = (struct vfm_step_stats){.step = step};
	u->t0 = t0;
	u->n_packs = n_packs;
	if (vfm_diffusion_has_mse(&tr->c.diffusion))
		losses.plain = vfm_t1((double *)tr->sums.data + SUM_PLAIN, VFM_F64, 1);
	losses.each = u->each = vfm_calloc((size_t)n_packs + 1, sizeof(*u->each));
	losses.sample = u->sample = vfm_calloc((size_t)n_packs + 1, sizeof(*u->sample));
	losses.index = u->index = vfm_calloc((size_t)n_packs + 1, sizeof(*u->index));
	u->from = vfm_stalls_mark(tr->stalls);
	TRY(tr->stream->dev->t->zero(tr->stream, tr->sums.data, vfm_nbytes(&tr->sums), err));
	TRY(vfm_params_grad_begin(&tr->ps, err));
	vfm_params_set_packs(&tr->ps, n_packs);
	if (n_packs > 1 && !tr->plan.made) /* a plan fills the memory that copies would take */
		vfm_params_hold(&tr->ps);
	TRY(vfm_pipeline_run(tr->pipe, step, n_packs, src, &losses, &sums, err));
	TRY(vfm_params_grad_end(&tr->ps, err));
	TRY(reduce_sums(tr, &sums, err));
	if (tr->hold)
		TRY(vfm_stall_wait(tr->hold, tr->stream, VFM_STALL_COPY, err));
	tr->hold = NULL;
	tr->optim.overlaps = update_overlaps(tr, n_packs, sums.own_flops);
	TRY(vfm_optim_step(&tr->optim, lr, step + 1 - tr->others, losses.sum, err));
	TRY(stage_readback(tr, u, err));
	own->bubble_s = vfm_pipeline_bubble(tr->pipe) - bubble0;
	own->comm_s = waited(tr) - wait0 - own->bubble_s;
	own->host_s = vfm_now() - t0 - (waited_in_all(tr) - all0);
	own->mem_peak_bytes = (double)tr->stream->dev->mem_peak;
	u->to = vfm_stalls_mark(tr->stalls);
	tr->put++;
	return 0;
}

int vfm_trainer_in_flight(const struct vfm_trainer *tr)
{
	return (int)(tr->put - tr->dropped);
}

int vfm_trainer_have_read(const struct vfm_trainer *tr)
{
	return (int)(tr->read - tr->dropped);
}

/* Returns step k in flight. */
static struct flight *flight_of(const struct vfm_trainer *tr, int k)
{
	return (struct flight *)&tr->flight[(tr->dropped + k) % VFM_STEPS_IN_FLIGHT];
}

struct vfm_step_stats *vfm_trainer_stats_of(struct vfm_trainer *tr, int k)
{
	return &flight_of(tr, k)->stats;
}

bool vfm_trainer_done(const struct vfm_trainer *tr)
{
	const struct flight *u = &tr->flight[tr->read % VFM_STEPS_IN_FLIGHT];

	return tr->read < tr->put && tr->stream->dev->t->event_passed(u->done);
}

/* On a synchronous device all host waits are stalls, including copies. */
static void read_stalls(const struct vfm_trainer *tr, struct flight *u)
{
	struct vfm_rank_stats *own = &u->stats.rank;
	double s[VFM_STALLS];

	vfm_stalls_between(tr->stalls, u->from, u->to, s);
	own->copy_s = s[VFM_STALL_COPY];
	if (tr->stream->dev->async) {
		own->bubble_s = s[VFM_STALL_BUBBLE];
		own->comm_s = s[VFM_STALL_COMM];
	} else {
		own->comm_s -= own->copy_s;
	}
}

int vfm_trainer_read(struct vfm_trainer *tr, struct vfm_err *err)
{
	struct flight *u = &tr->flight[tr->read % VFM_STEPS_IN_FLIGHT];
	struct vfm_step_stats *s = &u->stats;
	const double *x = u->read->sums;
	double now;

	if (tr->read == tr->put)
		return vfm_fail(err, VFM_EUSAGE, "internal: all steps have been read");
	TRY(tr->stream->dev->t->event_sync(u->done, err));
	s->loss = x[SUM_LOSS];
	s->grad_norm = u->read->norm;
	s->mse = x[SUM_TOKENS] > 0 ? x[SUM_PLAIN] / x[SUM_TOKENS] : 0;
	s->flops = x[SUM_FLOPS];
	s->tokens = (int64_t)x[SUM_TOKENS];
	s->samples = (int64_t)x[SUM_SAMPLES];
	read_stalls(tr, u);
	now = vfm_now();
	s->rank.copy_s += s->exchange_s;
	s->rank.step_s = s->exchange_s + now - (u->t0 > tr->t_read ? u->t0 : tr->t_read);
	tr->t_read = now;
	tr->read++;
	return 0;
}

void vfm_trainer_drop(struct vfm_trainer *tr, int n)
{
	tr->dropped += n;
	if (tr->read < tr->dropped)
		tr->read = tr->dropped;
}

int vfm_trainer_stats(struct vfm_trainer *tr, struct vfm_step_stats *out, struct vfm_err *err)
{
	TRY(vfm_trainer_read(tr, err));
	*out = *vfm_trainer_stats_of(tr, vfm_trainer_have_read(tr) - 1);
	vfm_trainer_drop(tr, vfm_trainer_have_read(tr));
	return 0;
}

bool vfm_step_is_finite(const struct vfm_step_stats *s)
{
	return isfinite(s->loss) && isfinite(s->grad_norm);
}

/* Sums the losses of segments to those of samples, in place.  A given frame has no loss, but its value counts if it is
 * not finite.  Returns the number of samples. */
static int sum_segments(float *loss, const int32_t *sample, int64_t n)
{
	int last = -1;

	for (int64_t g = 0; g < n; g++) {
		int i = sample[g] < 0 ? ~sample[g] : sample[g];
		float x = sample[g] < 0 && isfinite(loss[g]) ? 0 : loss[g];

		loss[i] = i > last ? x : loss[i] + x;
		last = i;
	}
	return last + 1;
}

int64_t vfm_trainer_packs(const struct vfm_trainer *tr, int k)
{
	return flight_of(tr, k)->n_packs;
}

int vfm_trainer_sample_losses(
	struct vfm_trainer *tr, int k, int64_t pack, int64_t *index, float **loss, struct vfm_err *err)
{
	const struct vfm_dev_table *t = tr->stream->dev->t;
	const struct flight *u = flight_of(tr, k);
	const struct vfm_tensor *x = &u->each[pack];

	*loss = NULL;
	*index = u->index[pack];
	if (!vfm_has(x))
		return 0;
	*loss = vfm_calloc((size_t)vfm_numel(x), sizeof(**loss));
	TRY(t->to_host(tr->stream, *loss, x->data, vfm_nbytes(x), err));
	TRY(t->stream_sync(tr->stream, err));
	return sum_segments(*loss, u->sample[pack], vfm_numel(x));
}

static int next_in_array(void *ctx, struct vfm_pack **p, struct vfm_err *err)
{
	struct vfm_pack_array *a = ctx;

	(void)err;
	*p = &a->p[a->at++ % a->n];
	return 0;
}

static void stay_in_array(void *ctx, struct vfm_pack *p)
{
	(void)ctx, (void)p;
}

struct vfm_pack_source vfm_pack_array_source(struct vfm_pack_array *a)
{
	return (struct vfm_pack_source){next_in_array, stay_in_array, a};
}
