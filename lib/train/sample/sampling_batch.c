/* sampling_batch.c - samples the items in batches, which the groups of ranks divide. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "device/dev/dev.h"
#include "device/ops/tensor.h"
#include "spec/layout/patch.h"
#include "train/sample/sampling_impl.h"

/* The diffusion of videos of so many tokens. */
static struct vfm_diffusion diffusion_of(const struct vfm_sampling *s, int64_t tokens)
{
	struct vfm_diffusion d = s->c->diffusion;

	d.shift = vfm_diffusion_shift(&d, tokens);
	d.shift_tokens = 0;
	return d;
}

/* ---- which items are sampled together ---- */

static bool may_share_batch(const struct vfm_sample_item *a, const struct vfm_sample_item *b)
{
	const struct vfm_prompt *p = &a->p, *q = &b->p;

	return !memcmp(a->grid, b->grid, sizeof(a->grid)) && p->seed == q->seed && p->steps == q->steps &&
		p->cfg == q->cfg && a->given_first == b->given_first;
}

/* Returns the batch that begins with an item: as many as fit in o->context, at least one. */
static struct sample_batch batch_from(const struct vfm_sampling *s, size_t first)
{
	struct vfm_sampler sampler = sampling_sampler(s, &s->v[first]);
	bool both = vfm_sampler_is_guided(&sampler) && !s->o->split_cfg;
	int64_t most = s->o->context / (sampling_tokens(&s->v[first]) * (both ? 2 : 1));
	struct sample_batch b = {.first = first, .n = 1};

	while (b.n < most && b.first + (size_t)b.n < s->n &&
		may_share_batch(&s->v[first], &s->v[b.first + (size_t)b.n]))
		b.n++;
	return b;
}

int64_t vfm_sampling_tokens(const struct vfm_sampling *s, int64_t *samples)
{
	int64_t most = 0;

	*samples = 0;
	for (size_t i = 0; i < s->n; i += (size_t)batch_from(s, i).n) {
		struct vfm_sampler sampler = sampling_sampler(s, &s->v[i]);
		bool both = vfm_sampler_is_guided(&sampler) && !s->o->split_cfg;
		int64_t n = batch_from(s, i).n * (both ? 2 : 1), tokens = n * sampling_tokens(&s->v[i]);

		most = tokens > most ? tokens : most;
		*samples = n > *samples ? n : *samples;
	}
	return most;
}

/* Whether two items have the same steps and, as the shift may depend on the tokens, the same noise levels. */
static bool has_same_levels(const struct vfm_sample_item *a, const struct vfm_sample_item *b)
{
	return a->p.steps == b->p.steps && sampling_tokens(a) == sampling_tokens(b);
}

/* Batches that the groups sample at the same time. */
struct sample_round {
	struct sample_batch own;  /* of this group; n 0: none */
	struct sample_batch head; /* of the first group */
	size_t next;              /* the first item of the next round */
};

/* In training, the batches of a round have the same noise levels, since all groups take part in each evaluation. */
static struct sample_round round_from(const struct vfm_sampling *s, size_t first)
{
	struct sample_round r = {.next = first};

	for (int64_t g = 0; g < s->groups && r.next < s->n; g++) {
		if (s->o->in_training && !has_same_levels(&s->v[first], &s->v[r.next]))
			break;
		struct sample_batch b = batch_from(s, r.next);

		if (g == 0)
			r.head = b;
		if (g == s->group)
			r.own = b;
		r.next += (size_t)b.n;
	}
	return r;
}

struct sample_batch sampling_own_batch(const struct vfm_sampling *s, size_t first, size_t *next)
{
	const struct sample_round r = round_from(s, first);

	*next = r.next;
	return r.own;
}

/* ---- progress ---- */

/* Shows the progress of a batch: `done` evaluations are complete. */
static void show_evaluations(void *ctx, int64_t done, int64_t total)
{
	struct vfm_sampling *s = ctx;

	(void)total;
	vfm_progress_step(&s->progress, s->passes[done] - s->shown);
	s->shown = s->passes[done];
}

/* Sets s->evals and s->passes for the batch of an item.  A guided evaluation takes two passes of the network, unless
 * two groups of ranks compute them. */
static int count_passes(struct vfm_sampling *s, const struct vfm_sample_item *it, struct vfm_err *err)
{
	const struct vfm_diffusion d = diffusion_of(s, sampling_tokens(it));
	const struct vfm_sampler sampler = sampling_sampler(s, it);
	struct vfm_solver_plan plan;
	struct vfm_solver_eval e;
	int rc = vfm_solver_plan_make(&plan, &sampler.solver, &d, err);

	s->evals = rc < 0 ? 0 : plan.evals;
	free(s->passes);
	s->passes = vfm_calloc((size_t)s->evals + 1, sizeof(*s->passes));
	for (int64_t k = 0; k < s->evals; k++) {
		vfm_solver_at(&plan, k, &e);
		s->passes[k + 1] =
			s->passes[k] + (vfm_sampler_cfg(&sampler, &plan, &e) != 1 && !s->o->split_cfg ? 2 : 1);
	}
	vfm_solver_plan_release(&plan);
	s->shown = 0;
	return rc;
}

/* Starts the progress, with the passes of the batches of rank 0. */
static int start_progress(struct vfm_sampling *s, struct vfm_err *err)
{
	int64_t total = 0;

	for (size_t i = 0; i < s->n;) {
		struct sample_round r = round_from(s, i);

		TRY(count_passes(s, &s->v[i], err));
		total += s->passes[s->evals];
		i = r.next;
	}
	vfm_progress_start(&s->progress, "passes", total);
	return 0;
}

/* ---- sampling ---- */

/* Collective over the group: the leader prepares the items. */
static int prepare_batch(struct vfm_sampling *s, const struct sample_batch *b, struct vfm_err *err)
{
	int rc = 0;

	for (int i = 0; i < b->n && s->leader && rc >= 0; i++)
		rc = sampling_prepare_item(s, &s->v[b->first + (size_t)i], err);
	return vfm_agree(s->together, rc, err);
}

/* The leader writes the files of a batch; tokens: those of its items, one after another. */
static int finish_batch(struct vfm_sampling *s, const struct sample_batch *b, const float *tokens, struct vfm_err *err)
{
	const struct vfm_model_spec *m = &s->c->model;
	struct vfm_sample_item *it = &s->v[b->first];
	size_t per = (size_t)(sampling_tokens(it) * vfm_model_patch_dim(m));
	float *latent = vfm_big_alloc(per * sizeof(float), "a latent", err);
	int32_t patch[3];
	int rc = latent ? 0 : VFM_EENV;

	vfm_model_patch(m, patch);
	for (int i = 0; i < b->n && rc >= 0; i++) {
		vfm_unpatchify(tokens + (size_t)i * per, (int32_t)m->channels, it[i].dims, patch, latent);
		rc = sampling_finish_item(s, &it[i], latent, per, err);
	}
	vfm_big_free(latent, per * sizeof(float));
	return rc;
}

/* Samples a batch, and writes its files if `writes`.  Collective over the ranks that sample together. */
static int sample_one_batch(struct vfm_sampling *s, const struct sample_batch *b, bool writes, struct vfm_err *err)
{
	struct vfm_sample_item *it = &s->v[b->first];
	const struct vfm_diffusion d = diffusion_of(s, sampling_tokens(it));
	struct vfm_sampler sampler = sampling_sampler(s, it);
	struct vfm_sample_job job = s->net;
	size_t n = (size_t)b->n,
	       bytes = n * (size_t)(sampling_tokens(it) * vfm_model_patch_dim(&s->c->model)) * sizeof(float);
	uint64_t *id = vfm_calloc(n, sizeof(*id));
	int32_t(*grids)[3] = vfm_calloc(n, sizeof(*grids));
	struct batch_inputs in = {0};
	float *tokens = vfm_big_alloc(bytes, "the latents", err);
	struct vfm_sample_request r = {.n = b->n, .id = id, .grid = (const int32_t(*)[3])grids};
	int rc = tokens ? 0 : VFM_EENV;

	TRY_OUT(rc);
	job.diffusion = &d;
	TRY_OUT(prepare_batch(s, b, err));
	TRY_OUT(sampling_join_inputs(&in, &r, s, it, b->n, err));
	for (size_t i = 0; i < n; i++) {
		id[i] = it[i].noise;
		memcpy(grids[i], it[i].grid, sizeof(grids[i]));
	}
	vfm_encoder_unload(&s->encoders);
	TRY_OUT(vfm_sampler_run(&sampler, &job, &r, tokens, err));
	if (!s->o->in_training) /* a training step would map the memory again */
		vfm_dev_trim(job.stream);
	if (s->leader && writes)
		TRY_OUT(finish_batch(s, b, tokens, err));
out:
	for (size_t i = 0; i < n && !s->o->in_training; i++)
		sampling_release_inputs(&it[i].in);
	vfm_big_free(tokens, bytes);
	batch_inputs_release(&in);
	free(grids);
	free(id);
	return rc;
}

/* Samples the batch of this group, or in training repeats the first one if it has none. */
static int sample_one_round(struct vfm_sampling *s, const struct sample_round *r, struct vfm_err *err)
{
	const struct sample_batch *b = r->own.n ? &r->own : &r->head;
	int rc = 0;

	if (!s->o->in_training)
		TRY(count_passes(s, &s->v[r->head.first], err));
	if (r->own.n || s->o->in_training)
		rc = sample_one_batch(s, b, r->own.n > 0, err);
	if (!s->o->in_training)
		show_evaluations(s, s->evals, s->evals);
	return rc;
}

/* Collective.  Returns whether any rank has had a signal. */
static int is_stopped(const struct vfm_sampling *s, struct vfm_err *err)
{
	int64_t stopped = s->stop && *s->stop;

	if (!s->stop)
		return 0;
	TRY(vfm_all_reduce(s->job->world, NULL, vfm_t1(&stopped, VFM_I64, 1), err));
	return stopped > 0;
}

/* Samples all batches, one of each group at a time. */
static int sample_batches(struct vfm_sampling *s, struct vfm_err *err)
{
	struct vfm_err why;
	int rc, printed;

	for (size_t i = 0; i < s->n;) {
		const struct sample_round r = round_from(s, i);

		rc = sample_one_round(s, &r, err);
		printed = sampling_print_records(s, &why);
		if (rc >= 0 && printed < 0) {
			rc = printed;
			*err = why;
		}
		/* All ranks learn of a failure on one rank, such as a failed write. */
		TRY(vfm_job_agree(s->job, rc, err));
		i = r.next;
		rc = i < s->n ? is_stopped(s, err) : 0;
		if (rc != 0)
			return rc < 0 ? rc : 0;
	}
	return 0;
}

/* Collective. */
static int report_failures(struct vfm_sampling *s, struct vfm_err *err)
{
	int64_t failed = s->leader ? s->failed : 0;
	int rc = 0;

	TRY(vfm_all_reduce(s->job->world, NULL, vfm_t1(&failed, VFM_I64, 1), err));
	if (failed && !s->o->in_training)
		rc = vfm_fail(err, VFM_EINPUT, "%lld of %zu videos failed and have no file; their records say why",
			(long long)failed, s->n);
	return vfm_job_agree(s->job, rc, err);
}

struct vfm_sampler sampling_sampler(const struct vfm_sampling *s, const struct vfm_sample_item *it)
{
	struct vfm_sampler sampler = s->o->sampler;

	sampler.seed = (uint64_t)it->p.seed;
	sampler.solver.steps = it->p.steps;
	sampler.cfg = it->p.cfg;
	if (!s->o->in_training) {
		sampler.progress = show_evaluations;
		sampler.ctx = (void *)(uintptr_t)s;
	}
	return sampler;
}

int vfm_sampling_run(struct vfm_sampling *s, struct vfm_err *err)
{
	const bool reopens = s->o->in_training; /* vfm_sampling_prepare has closed the encoders */
	int rc;

	s->failed = 0;
	s->decode_s = 0;
	if (reopens)
		TRY(vfm_job_agree(s->job, sampling_open_decoder(s, err), err));
	if (!s->o->in_training)
		TRY(start_progress(s, err));
	rc = sample_batches(s, err);
	if (reopens)
		vfm_encoder_close(&s->encoders);
	TRY(rc);
	if (!s->o->in_training)
		vfm_progress_end(&s->progress);
	return report_failures(s, err);
}
