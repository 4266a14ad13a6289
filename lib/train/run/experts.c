/* experts.c - two networks that one trainer trains in turn: their configurations, starts and folders. */
#include "train/run/experts.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "ckpt/find.h"
#include "ckpt/prune.h"
#include "io/file.h"
#include "io/json.h"

/* ---- configurations ---- */

int vfm_experts_configure(struct vfm_config of[VFM_EXPERTS], const struct vfm_config *c, struct vfm_err *err)
{
	double boundary = c->experts.boundary;

	if (c->diffusion.kind != VFM_FLOW)
		return vfm_fail(err, VFM_EUSAGE, "experts.boundary: two networks are for flow");
	if (!(boundary > 0 && boundary < 1))
		return vfm_fail(err, VFM_EUSAGE,
			"experts.boundary: the noise level between the two networks is not known "
			"(Wan 2.2: 0.875, image to video 0.9)");
	for (int e = 0; e < VFM_EXPERTS; e++) {
		of[e] = *c;
		of[e].diffusion.t_min = e == VFM_EXPERT_HIGH ? boundary : 0;
		of[e].diffusion.t_max = e == VFM_EXPERT_HIGH ? 1 : boundary;
		TRY(vfm_config_check(&of[e], err) < 0 ? vfm_err_context(err, "%s-noise network", vfm_expert_names[e])
						      : 0);
	}
	if (c->experts.low_lr > 0) {
		if (c->train.lr > 0)
			of[VFM_EXPERT_LOW].train.min_lr *= c->experts.low_lr / c->train.lr;
		of[VFM_EXPERT_LOW].train.lr = c->experts.low_lr;
	}
	return 0;
}

int vfm_experts_refuse(const struct vfm_config *c, struct vfm_err *err)
{
	const char *key = c->experts.boundary > 0 ? "boundary"
		: c->experts.low_lr > 0           ? "low_lr"
		: c->experts.turn_packs           ? "turn_packs"
						  : NULL;

	return key ? vfm_fail(err, VFM_EUSAGE, "experts.%s: it needs --low-noise", key) : 0;
}

/* ---- starts ---- */

static void describe_expert(struct vfm_expert *e, int k, const struct vfm_origin *run)
{
	e->dir = vfm_strfmt("%s/%s", run->run->dir, vfm_expert_names[k]);
	e->ckpt_dir = vfm_strfmt("%s/ckpt", e->dir);
	e->config = vfm_config_to_json(&e->c);
	e->o = *run->run;
	e->o.dir = e->dir;
	if (k == VFM_EXPERT_LOW) {
		e->o.init = run->run->low_noise;
		e->o.init_lora = run->run->low_noise_lora;
	}
	e->id = *run->id;
	e->id.config = &e->c;
	e->id.config_json = e->config;
	e->origin = *run;
	e->origin.config = &e->c;
	e->origin.run = &e->o;
	e->origin.ckpt_dir = e->ckpt_dir;
	e->origin.id = &e->id;
}

/* Collective.  Loads network k into the trainer. */
static int begin_expert(struct vfm_experts *x, int k, const struct vfm_origin *run, struct vfm_err *err)
{
	struct vfm_expert *e = &x->v[k];

	describe_expert(e, k, run);
	if (vfm_origin_begin(&e->origin, err) < 0)
		return vfm_err_context(err, "%s-noise network", vfm_expert_names[k]);
	return 0;
}

static bool has_step(const int64_t *steps, size_t n, int64_t step)
{
	for (size_t i = 0; i < n; i++)
		if (steps[i] == step)
			return true;
	return false;
}

/* Sets aside the checkpoints of one network that the other lacks: a save of both was interrupted. */
static int drop_single_checkpoints(const struct vfm_origin *run, struct vfm_err *err)
{
	char *dir[VFM_EXPERTS];
	int64_t *steps[VFM_EXPERTS] = {NULL};
	size_t n[VFM_EXPERTS] = {0};
	int rc = 0;

	for (int k = 0; k < VFM_EXPERTS; k++) {
		dir[k] = vfm_strfmt("%s/%s/ckpt", run->run->dir, vfm_expert_names[k]);
		if (rc == 0)
			rc = vfm_ckpt_steps(dir[k], false, &steps[k], &n[k], err);
	}
	for (int k = 0; k < VFM_EXPERTS; k++)
		for (size_t i = 0; i < n[k] && rc == 0; i++) {
			char *name = NULL;

			if (has_step(steps[!k], n[!k], steps[k][i]))
				continue;
			rc = vfm_ckpt_set_aside(dir[k], steps[k][i], &name, err);
			if (rc == 0)
				vfm_warn("only one of the two networks has a checkpoint of step %lld; it is now '%s'",
					(long long)steps[k][i], name);
			free(name);
		}
	for (int k = 0; k < VFM_EXPERTS; k++) {
		free(steps[k]);
		free(dir[k]);
	}
	return rc;
}

/* Warns if a network gets no step. */
static void check_shares(const struct vfm_experts *x, int64_t last)
{
	for (int k = 0; k < VFM_EXPERTS; k++)
		if (last > 0 && vfm_turns_before(&x->turns, k, last) == 0)
			vfm_warn("none of the %lld steps trains the %s-noise network: experts.%s is too long",
				(long long)last, vfm_expert_names[k],
				x->v[k].c.experts.turn_packs ? "turn_packs" : "turn");
}

/* Returns whether the packs of a network do not divide among the dp ranks in some of the first steps. */
static bool is_uneven(const struct vfm_turns *t, int64_t dp)
{
	enum { STEPS = 64 };
	bool uneven = false;

	for (int64_t step = 0; step < STEPS; step++)
		uneven = uneven || vfm_turns_packs(t, VFM_EXPERT_HIGH, step) % dp;
	return uneven;
}

/* Logs the share of each network, and the memory of the one that waits. */
static void log_turns(const struct vfm_experts *x, const struct vfm_origin *run)
{
	const int64_t dp = vfm_trainer_params(x->tr)->mesh->p.dp;

	vfm_info("%.1f %% of the %s train the high-noise network (t from %g); the other waits in %.4g MiB of %s memory",
		100 * vfm_turns_share(&x->turns), vfm_turns_divide(&x->turns) ? "packs" : "steps",
		run->config->experts.boundary, (double)x->idle.bytes / 0x1p20, x->idle.on_device ? "device" : "host");
	if (is_uneven(&x->turns, dp))
		vfm_info("the packs of a network do not divide among parallel.dp = %lld ranks: some wait for others",
			(long long)dp);
}

int vfm_experts_begin(struct vfm_experts *x, const struct vfm_origin *run, int64_t *first, int64_t *saved,
	int64_t *skipped, struct vfm_err *err)
{
	const struct vfm_config *c = run->config;
	struct vfm_config of[VFM_EXPERTS];
	struct vfm_origin *high = &x->v[VFM_EXPERT_HIGH].origin, *low = &x->v[VFM_EXPERT_LOW].origin;

	x->tr = run->tr;
	TRY(vfm_experts_configure(of, c, err));
	for (int k = 0; k < VFM_EXPERTS; k++)
		x->v[k].c = of[k];
	TRY(vfm_job_agree(run->job, vfm_idle_new(&x->idle, x->tr, c->experts.idle == VFM_IDLE_DEVICE, err), err));
	TRY(vfm_job_agree(run->job, run->job->world->rank == 0 ? drop_single_checkpoints(run, err) : 0, err));
	TRY(begin_expert(x, VFM_EXPERT_LOW, run, err));
	TRY(vfm_idle_exchange(&x->idle, err));
	x->active = VFM_EXPERT_HIGH;
	TRY(begin_expert(x, VFM_EXPERT_HIGH, run, err));
	if (high->first != low->first)
		return vfm_job_agree(run->job,
			vfm_fail(err, VFM_EUSAGE,
				"'%s' is after step %lld and '%s' after step %lld: "
				"remove the newer checkpoints, so that both continue from one step",
				x->v[VFM_EXPERT_HIGH].ckpt_dir, (long long)high->first, x->v[VFM_EXPERT_LOW].ckpt_dir,
				(long long)low->first),
			err);
	for (int k = 0; k < VFM_EXPERTS; k++) {
		int64_t before = vfm_turns_before(&x->turns, k, high->first), had = x->v[k].origin.updates;

		x->v[k].more = had >= 0 ? had - before : 0; /* another experts.turn or boundary was in effect */
	}
	if (run->job->world->rank == 0) {
		check_shares(x, run->id->last);
		log_turns(x, run);
	}
	*first = high->first;
	*saved = high->saved < low->saved ? high->saved : low->saved;
	*skipped = high->skipped;
	return 0;
}

int vfm_experts_enter(struct vfm_experts *x, int expert, struct vfm_err *err)
{
	if (!x->tr || x->active == expert)
		return 0;
	TRY(vfm_idle_exchange(&x->idle, err));
	x->active = expert;
	return 0;
}

int64_t vfm_experts_updates(const struct vfm_experts *x, const struct vfm_expert *e, int64_t step)
{
	return vfm_turns_before(&x->turns, (int)(e - x->v), step) + e->more;
}

double vfm_experts_prepare(struct vfm_experts *x, int64_t step, int64_t last)
{
	const struct vfm_expert *e = &x->v[x->active];

	vfm_trainer_set_network(x->tr, &e->c, step - vfm_experts_updates(x, e, step));
	return vfm_lr_at(&e->c.train, step, last);
}

int vfm_experts_record(struct vfm_experts *x, struct vfm_err *err)
{
	for (int k = 0; k < VFM_EXPERTS; k++) {
		struct vfm_expert *e = &x->v[k];
		json_t *id = vfm_identity_json(&e->id);
		int rc = vfm_mkdir_p(e->dir, err);

		json_object_set_new(id, "expert", json_string(vfm_expert_names[k]));
		rc = rc < 0 ? rc : vfm_json_save(e->dir, "config.json", e->config, 2, err);
		if (rc == 0)
			rc = vfm_json_save(e->dir, "run.json", id, 2, err);
		json_decref(id);
		TRY(rc);
	}
	return 0;
}

void vfm_experts_release(struct vfm_experts *x)
{
	for (int k = 0; k < VFM_EXPERTS; k++) {
		struct vfm_expert *e = &x->v[k];

		vfm_origin_release(&e->origin);
		json_decref(e->config);
		free(e->dir);
		free(e->ckpt_dir);
	}
	vfm_idle_release(&x->idle);
	*x = (struct vfm_experts){0};
}
