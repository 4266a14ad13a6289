#include "train/optim.h"

#include <math.h>

#include "nn/scales.h"

enum { SCALARS = 64 }; /* bytes */

static size_t array_bytes(const struct vfm_optim *o, const struct vfm_array *a)
{
	return (size_t)o->ps->n_own * vfm_dtype_size(a->dtype);
}

static int array_new(struct vfm_optim *o, struct vfm_array *a, enum vfm_dtype dt, const char *what, struct vfm_err *err)
{
	struct vfm_stream *s = o->ps->stream;
	size_t bytes;

	a->dtype = dt;
	bytes = array_bytes(o, a);
	a->data = o->o.on_host ? s->dev->t->alloc_host(s->dev, bytes, what, err) : vfm_dev_alloc(s, bytes, what, err);
	if (!a->data)
		return VFM_EENV;
	TRY(s->dev->t->zero(s, a->data, bytes, err));
	return o->o.on_host ? s->dev->t->stream_sync(s, err) : 0; /* the host may write to it next */
}

static void array_free(struct vfm_optim *o, struct vfm_array *a)
{
	struct vfm_stream *s = o->ps->stream;

	if (a->data && o->o.on_host)
		s->dev->t->free_host(s->dev, a->data, array_bytes(o, a));
	else
		vfm_dev_free(s, a->data, array_bytes(o, a));
}

static struct vfm_tensor array_at(const struct vfm_array *a, int64_t at, int64_t n)
{
	return vfm_t1((char *)a->data + (size_t)at * vfm_dtype_size(a->dtype), a->dtype, n);
}

int vfm_optim_new(struct vfm_optim *o, struct vfm_params *ps, const struct vfm_optim_opts *opts, struct vfm_err *err)
{
	int rc;

	*o = (struct vfm_optim){.ps = ps, .o = *opts};
	TRY_OUT(array_new(o, &o->m, opts->m_bf16 ? VFM_BF16 : VFM_F32, "AdamW's first moments", err));
	TRY_OUT(array_new(o, &o->v, VFM_F32, "AdamW's second moments", err));
	if (opts->ema)
		TRY_OUT(array_new(o, &o->ema, VFM_F32, "the moving average of the weights", err));
	o->scalars = vfm_dev_alloc(ps->stream, SCALARS, "optimizer scalars", err);
	rc = o->scalars ? 0 : VFM_EENV;
out:
	if (rc < 0) {
		vfm_optim_release(o);
		return rc;
	}
	o->sum = vfm_t1(o->scalars, VFM_F64, 1);
	o->norm = vfm_t1((char *)o->scalars + 8, VFM_F32, 1);
	o->scale = vfm_t1((char *)o->scalars + 12, VFM_F32, 1);
	return 0;
}

int vfm_optim_start(struct vfm_optim *o, struct vfm_err *err)
{
	struct vfm_params *ps = o->ps;

	for (size_t i = 0; o->ema.data && i < ps->n; i++) {
		const struct vfm_owned own = vfm_param_owned(ps, ps->p[i]);

		TRY(vfm_param_get(ps, NULL, ps->p[i], (float *)o->ema.data + own.at, err));
	}
	return 0;
}

void vfm_optim_release(struct vfm_optim *o)
{
	if (!o->ps)
		return;
	if (o->o.on_host && o->v.data)
		o->ps->stream->dev->t->stream_sync(
			o->ps->stream, &(struct vfm_err){0}); /* finish the updates that access them */
	array_free(o, &o->m);
	array_free(o, &o->v);
	array_free(o, &o->ema);
	vfm_dev_free(o->ps->stream, o->scalars, SCALARS);
	*o = (struct vfm_optim){0};
}

/* Computes the global norm and the clipping scale.  Exactly one rank counts each element.  Norm and scale stay on the
 * device, so the host does not wait for them. */
static int clip(struct vfm_optim *o, double max_norm, struct vfm_tensor loss, struct vfm_err *err)
{
	const struct vfm_params *ps = o->ps;
	struct vfm_clip c = {
		.sum = o->sum, .loss = loss, .norm = o->norm, .scale = o->scale, .max_norm = (float)max_norm};

	TRY(ps->stream->dev->t->zero(ps->stream, o->sum.data, 8, err));
	for (int i = 0; i < ps->n_buckets; i++) {
		const struct vfm_bucket *s = &ps->bucket[i];

		if (s->counts_norm)
			TRY(vfm_op_sumsq(ps->stream,
				&(struct vfm_sumsq){.x = vfm_t1(s->g, VFM_F32, s->own_n), .sum = o->sum}, err));
	}
	TRY(vfm_all_reduce(ps->mesh->world, ps->stream, o->sum, err));
	return vfm_op_clip(ps->stream, &c, err);
}

int vfm_optim_step(struct vfm_optim *o, const struct vfm_adam *a, double lr, int64_t t, struct vfm_tensor loss,
	struct vfm_err *err)
{
	struct vfm_params *ps = o->ps;

	TRY(clip(o, a->clip_norm, loss, err));
	TRY(vfm_scales_step(ps, o->scale, err));
	for (int i = 0; i < ps->n_buckets; i++) {
		const struct vfm_bucket *s = &ps->bucket[i];
		int64_t at = s->own_off, n = s->own_n;
		struct vfm_adamw k = {.lr = (float)lr,
			.beta1 = (float)a->beta1,
			.beta2 = (float)a->beta2,
			.eps = (float)a->eps,
			.wd = s->matrix ? (float)a->weight_decay : 0,
			.c1 = (float)(1 - pow(a->beta1, (double)t)),
			.c2 = (float)(1 - pow(a->beta2, (double)t)),
			.ema_decay = (float)a->ema_decay,
			.m = array_at(&o->m, at, n),
			.v = array_at(&o->v, at, n),
			.g = vfm_t1(s->g, VFM_F32, n),
			.grad_scale = o->scale};

		if (s->w)
			k.w = vfm_t1(s->w, ps->dtype, n);
		if (ps->split && s->matrix)
			k.p_lo = vfm_t1(ps->master_lo + s->master_off, VFM_I16, n);
		else
			k.p = vfm_t1(ps->master + s->master_off, VFM_F32, n);
		if (o->ema.data)
			k.ema = array_at(&o->ema, at, n);
		TRY(vfm_op_adamw(ps->stream, &k, err));
	}
	return vfm_params_all_gather(ps, false, err);
}
