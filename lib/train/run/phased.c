/* phased.c - checks the plans of all phases, and runs the phases that are not done. */
#include "train/run/phased.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "ckpt/ckpt.h"
#include "comm/coll/comm.h"
#include "data/plan/plan.h"
#include "device/ops/tensor.h"
#include "train/job/plan_check.h"
#include "train/run/candidates.h"

/* Returns RUN/NAME of phase k; the caller frees it. */
static char *phase_dir(const char *run, const struct vfm_phases *l, int k)
{
	return vfm_strfmt("%s/%s", run, l->v[k].name);
}

char *vfm_phased_begun(const char *run, const struct vfm_phases *l, int k)
{
	char *dir = NULL;

	for (; k >= 0 && !dir; k--) {
		struct vfm_ckpt *c;
		struct vfm_err ignore;

		dir = phase_dir(run, l, k);
		if (vfm_candidates_newest(dir, &c, NULL, &ignore) == 0 && !c) {
			free(dir);
			dir = NULL;
		}
		vfm_ckpt_close(c);
	}
	return dir;
}

/* ---- plans ---- */

/* The weights of a phase continue in the next, so their encoders must be the same. */
static int check_encoders(const struct vfm_phase *s, struct vfm_encoder_ids own, const struct vfm_phase *first,
	struct vfm_encoder_ids *all, unsigned allowed, struct vfm_err *err)
{
	if (!(allowed & VFM_CHANGE_ENCODERS))
		TRY(vfm_encoder_ids_check(&own, s->plan, all, first->plan, err));
	vfm_encoder_ids_fill(all, &own);
	return 0;
}

/* Sets last[k], the number of steps of each phase. */
static int check_plans(const struct vfm_context *x, const struct vfm_phased *s, int64_t *last, struct vfm_err *err)
{
	struct vfm_encoder_ids all = {0};

	for (int k = 0; k < s->list->n; k++) {
		const struct vfm_phase *phase = &s->list->v[k];
		struct vfm_plan *m =
			vfm_plan_open_checked(phase->plan, &s->config[k], x->job.world->size, &last[k], err);
		int rc = m ? 0 : err->code;

		if (rc == 0)
			rc = check_encoders(
				phase, vfm_plan_header(m)->encoder_ids, &s->list->v[0], &all, s->run.allow_change, err);
		vfm_plan_close(m);
		if (rc < 0)
			return vfm_err_context(err, "phase '%s'", phase->name);
	}
	return 0;
}

/* ---- which phase is next ---- */

/* Compares a phase whose steps are done with its newest checkpoint c. */
static int check_done(const struct vfm_phased *s, int k, int64_t last, const struct vfm_ckpt *c, struct vfm_err *err)
{
	const struct vfm_phase *phase = &s->list->v[k];
	json_t *config = vfm_config_to_json(&s->config[k]);
	struct vfm_identity id = {
		.config = &s->config[k], .config_json = config, .plan_path = phase->plan, .last = last};
	struct vfm_plan *m = vfm_plan_open(phase->plan, err);
	int rc = m ? 0 : err->code;

	memcpy(id.plan_sha256, phase->sha256, VFM_SHA256_HEX);
	if (rc == 0) {
		id.plan_steps = vfm_plan_header(m)->steps;
		id.encoders = vfm_plan_header(m)->encoder_ids;
		rc = vfm_identity_resume(&id, c, s->run.allow_change, "; another -o RUN starts anew", err);
	}
	vfm_plan_close(m);
	json_decref(config);
	return rc;
}

/* Looks at phase k, as find_next continues.  *why: the reasons of the damaged checkpoints of phase *next, or NULL. */
static int check_phase(
	const struct vfm_phased *s, int k, const int64_t *last, int *next, char **why, struct vfm_err *err)
{
	char *dir = phase_dir(s->run.dir, s->list, k), *damage = NULL;
	struct vfm_ckpt *c;
	int rc = vfm_candidates_newest(dir, &c, &damage, err);

	if (rc == 0 && *next < k && c)
		rc = vfm_fail(err, VFM_EUSAGE,
			"phase '%s' has begun in '%s', but phase '%s' before it has not done its %lld steps%s%s; "
			"another -o RUN starts anew",
			s->list->v[k].name, s->run.dir, s->list->v[*next].name, (long long)last[*next],
			*why ? ": " : "", *why ? *why : "");
	else if (rc == 0 && c && c->step >= last[k])
		rc = check_done(s, k, last[k], c, err);
	else if (rc == 0 && *next > k) {
		*next = k;
		*why = damage;
		damage = NULL;
	}
	vfm_ckpt_close(c);
	free(damage);
	free(dir);
	return rc;
}

/* Returns the first phase that has steps left, or the number of phases. */
static int find_next(const struct vfm_phased *s, const int64_t *last, struct vfm_err *err)
{
	int next = s->list->n, rc = 0;
	char *why = NULL;

	for (int k = 0; k < s->list->n && rc == 0; k++)
		rc = check_phase(s, k, last, &next, &why, err);
	free(why);
	return rc < 0 ? rc : next;
}

/* Collective: rank 0 reads RUN, which the others may see later. */
static int agree_next(struct vfm_context *x, const struct vfm_phased *s, const int64_t *last, struct vfm_err *err)
{
	int rc = x->job.world->rank == 0 ? find_next(s, last, err) : 0;
	int64_t next = rc;

	TRY(vfm_job_agree(&x->job, rc < 0 ? rc : 0, err));
	TRY(vfm_broadcast(x->job.world, NULL, vfm_t1(&next, VFM_I64, 1), 0, err));
	return (int)next;
}

/* ---- running ---- */

static int run_phase(struct vfm_context *x, const struct vfm_phased *s, int k, struct vfm_err *err)
{
	const struct vfm_phase *phase = &s->list->v[k];
	char *dir = phase_dir(s->run.dir, s->list, k), *before = k > 0 ? phase_dir(s->run.dir, s->list, k - 1) : NULL;
	struct vfm_run_opts o = s->run;
	int rc;

	o.plan = phase->plan;
	o.plan_sha256 = phase->sha256;
	o.phase = phase->name;
	o.held_out = phase->held_out;
	o.dir = dir;
	if (before) {
		o.init = before;
		o.init_part = "model";
		o.init_lora = NULL;
	}
	vfm_info("phase %s (%d of %d)", phase->name, k + 1, s->list->n);
	rc = vfm_context_open(x, &s->config[k], err);
	if (rc == 0)
		rc = vfm_run(x, &s->config[k], &o, err);
	vfm_job_failed(&x->job, rc, err);
	vfm_context_close(x);
	free(dir);
	free(before);
	return rc;
}

int vfm_run_phases(struct vfm_context *x, const struct vfm_phased *s, struct vfm_err *err)
{
	int64_t *last = vfm_calloc((size_t)s->list->n, sizeof(*last));
	int next = 0, rc = vfm_job_agree(&x->job, check_plans(x, s, last, err), err);

	TRY_OUT(rc);
	next = agree_next(x, s, last, err);
	TRY_OUT(next < 0 ? next : 0);
	if (next > 0)
		vfm_info("%d of %d phases are done in '%s'", next, s->list->n, s->run.dir);
	for (int k = next; k < s->list->n && rc == 0; k++)
		rc = run_phase(x, s, k, err);
out:
	free(last);
	return rc;
}
