/* plan_check.c - compares a plan's shapes, text and ranks with the model and the layout. */
#include "train/job/plan_check.h"

#include "base/mem.h"

int vfm_plan_check_model(
	const struct vfm_plan_header *h, const char *path, const struct vfm_model_spec *m, struct vfm_err *err)
{
	for (int i = 0; i < 3; i++)
		if (h->patch[i] != m->patch[i])
			return vfm_fail(err, VFM_EUSAGE,
				"%s was packed with --patch %dx%dx%d, but model.patch is [%lld, %lld, %lld]", path,
				h->patch[0], h->patch[1], h->patch[2], (long long)m->patch[0], (long long)m->patch[1],
				(long long)m->patch[2]);
	if (h->latent_channels != m->channels)
		return vfm_fail(err, VFM_EUSAGE, "%s has latents of %d channels, but model.channels is %lld", path,
			h->latent_channels, (long long)m->channels);
	if (h->text_dim != m->text_dim)
		return vfm_fail(err, VFM_EUSAGE, "%s has text of %d features, but model.text_dim is %lld", path,
			h->text_dim, (long long)m->text_dim);
	if (m->cond_channels && h->cond_channels != m->cond_channels)
		return vfm_fail(err, VFM_EUSAGE, "%s has conditions of %d channels, but model.cond_channels is %lld",
			path, h->cond_channels, (long long)m->cond_channels);
	if (m->image_dim && (h->image_dim || !vfm_model_arch(m)->joint) &&
		(h->image_len != m->image_len || h->image_dim != m->image_dim))
		return vfm_fail(err, VFM_EUSAGE,
			"%s has image rows [%d, %d], but model.image_len and model.image_dim are %lld and %lld", path,
			h->image_len, h->image_dim, (long long)m->image_len, (long long)m->image_dim);
	if (m->text2_dim && h->text2_dim && h->text2_dim != m->text2_dim)
		return vfm_fail(err, VFM_EUSAGE, "%s has second texts of %d features, but model.text2_dim is %lld",
			path, h->text2_dim, (long long)m->text2_dim);
	return 0;
}

static int refuse_division(
	int64_t batch, const char *path, const char *what, const char *key, int64_t ranks, struct vfm_err *err)
{
	struct vfm_buf fit = {0};

	for (int64_t d = 1; d <= batch; d++)
		if (batch % d == 0)
			vfm_buf_addf(&fit, "%s%lld", d > 1 ? ", " : "", (long long)d);
	vfm_fail(err, VFM_EUSAGE,
		"%s has %lld %s a step, which %s = %lld does not divide; %s would fit, or another vfm-pack --batch",
		path, (long long)batch, what, key, (long long)ranks, fit.data);
	vfm_buf_release(&fit);
	return VFM_EUSAGE;
}

/* Checks that every rank gets the same number of packs per step. */
static int check_division(
	const struct vfm_plan_header *h, const char *path, const struct vfm_parallel *p, struct vfm_err *err)
{
	if (!h->cp)
		return h->batch % p->dp == 0 ? 0 : refuse_division(h->batch, path, "packs", "parallel.dp", p->dp, err);
	if (h->cp % p->cp && p->cp % h->cp)
		return vfm_fail(err, VFM_EUSAGE,
			"%s has packs for up to %d cp ranks (vfm-pack --cp); parallel.cp = %lld is neither a multiple "
			"nor a divisor of that",
			path, h->cp, (long long)p->cp);
	return h->batch % (p->dp * p->cp) == 0
		? 0
		: refuse_division(h->batch, path, "parts", "parallel.dp x cp", p->dp * p->cp, err);
}

int vfm_plan_check(const struct vfm_plan_header *h, const char *path, const struct vfm_config *c,
	const struct vfm_parallel *p, int64_t *last, struct vfm_err *err)
{
	TRY(vfm_plan_check_model(h, path, &c->model, err));
	*last = c->train.steps ? c->train.steps : h->steps;
	if (*last > h->steps)
		return vfm_fail(err, VFM_EUSAGE,
			"train.steps is %lld, but %s has %lld steps: leave out --steps, or pack more (vfm-pack "
			"--steps)",
			(long long)*last, path, (long long)h->steps);
	return check_division(h, path, p, err);
}

struct vfm_plan *vfm_plan_open_checked(
	const char *path, const struct vfm_config *c, int ranks, int64_t *last, struct vfm_err *err)
{
	struct vfm_parallel p = c->parallel;
	struct vfm_plan *plan;

	if (vfm_parallel_check(&p, &c->model, ranks, err) < 0)
		return NULL;
	plan = vfm_plan_open(path, err);
	if (plan && vfm_plan_check(vfm_plan_header(plan), path, c, &p, last, err) < 0) {
		vfm_plan_close(plan);
		return NULL;
	}
	return plan;
}
