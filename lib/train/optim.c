#include "train/optim.h"

#include <math.h>

enum { SCALARS = 64 }; /* bytes */

static float *state_new(struct vfm_params *ps, const char *what, struct vfm_err *err)
{
	size_t bytes = (size_t)ps->n_own * 4;
	float *p = vfm_dev_alloc(ps->stream, bytes, what, err);

	if (p && ps->stream->dev->t->zero(ps->stream, p, bytes, err) < 0) {
		vfm_dev_free(ps->stream, p, bytes);
		return NULL;
	}
	return p;
}

int vfm_optim_new(struct vfm_optim *o, struct vfm_params *ps, bool with_ema, struct vfm_err *err)
{
	*o = (struct vfm_optim){.ps = ps};
	o->m = state_new(ps, "AdamW's first moments", err);
	o->v = o->m ? state_new(ps, "AdamW's second moments", err) : NULL;
	if (o->v && with_ema)
		o->ema = state_new(ps, "the moving average of the weights", err);
	o->scalars =
		o->v && (o->ema || !with_ema) ? vfm_dev_alloc(ps->stream, SCALARS, "optimizer scalars", err) : NULL;
	if (!o->scalars) {
		vfm_optim_release(o);
		return VFM_EENV;
	}
	o->sum = vfm_t1(o->scalars, VFM_F64, 1);
	o->norm = vfm_t1((char *)o->scalars + 8, VFM_F32, 1);
	o->scale = vfm_t1((char *)o->scalars + 12, VFM_F32, 1);
	return 0;
}

int vfm_optim_start(struct vfm_optim *o, struct vfm_err *err)
{
	struct vfm_axpby copy = {.alpha = 1, .x = vfm_t1(o->ps->master, VFM_F32, o->ps->n_own)};

	if (!o->ema)
		return 0;
	copy.y = vfm_t1(o->ema, VFM_F32, o->ps->n_own);
	return vfm_op_axpby(o->ps->stream, &copy, err);
}

void vfm_optim_release(struct vfm_optim *o)
{
	size_t bytes;

	if (!o->ps)
		return;
	bytes = (size_t)o->ps->n_own * 4;
	vfm_dev_free(o->ps->stream, o->m, bytes);
	vfm_dev_free(o->ps->stream, o->v, bytes);
	vfm_dev_free(o->ps->stream, o->ema, bytes);
	vfm_dev_free(o->ps->stream, o->scalars, SCALARS);
	*o = (struct vfm_optim){0};
}

/* Every element is counted by one rank.  The norm and the scale that clips it stay on the device: no host decision hangs on them. */
static int clip(struct vfm_optim *o, double max_norm, struct vfm_err *err)
{
	const struct vfm_params *ps = o->ps;
	struct vfm_clip c = {.sum = o->sum, .norm = o->norm, .scale = o->scale, .max_norm = (float)max_norm};

	TRY(ps->stream->dev->t->zero(ps->stream, o->sum.data, 8, err));
	for (int i = 0; i < ps->n_sec; i++) {
		const struct vfm_section *s = &ps->sec[i];

		if (s->counts)
			TRY(vfm_op_sumsq(ps->stream,
				&(struct vfm_sumsq){.x = vfm_t1(s->g, VFM_F32, s->own_n), .sum = o->sum}, err));
	}
	TRY(vfm_all_reduce(ps->mesh->world, ps->stream, o->sum, err));
	return vfm_op_clip(ps->stream, &c, err);
}

int vfm_optim_step(struct vfm_optim *o, const struct vfm_adam *a, double lr, int64_t t, struct vfm_err *err)
{
	struct vfm_params *ps = o->ps;

	TRY(clip(o, a->clip_norm, err));
	for (int i = 0; i < ps->n_sec; i++) {
		const struct vfm_section *s = &ps->sec[i];
		int64_t at = s->own_off, n = s->own_n;
		struct vfm_adamw k = {.lr = (float)lr,
			.beta1 = (float)a->beta1,
			.beta2 = (float)a->beta2,
			.eps = (float)a->eps,
			.wd = s->matrix ? (float)a->weight_decay : 0,
			.c1 = (float)(1 - pow(a->beta1, (double)t)),
			.c2 = (float)(1 - pow(a->beta2, (double)t)),
			.ema_decay = (float)a->ema_decay,
			.p = vfm_t1(ps->master + at, VFM_F32, n),
			.m = vfm_t1(o->m + at, VFM_F32, n),
			.v = vfm_t1(o->v + at, VFM_F32, n),
			.g = vfm_t1(s->g, VFM_F32, n),
			.grad_scale = o->scale};

		if (s->w)
			k.w = vfm_t1(s->w, ps->dtype, n);
		if (o->ema)
			k.ema = vfm_t1(o->ema + at, VFM_F32, n);
		TRY(vfm_op_adamw(ps->stream, &k, err));
	}
	return vfm_params_publish(ps, false, err);
}
