/* optim.c - order and streams of updates, clipping, and moments in f32 or 8 bits. */
#include "train/step/optim.h"

#include <math.h>
#include <stdlib.h>

#include "device/ops/dynamic8.h"
#include "net/nn/scales.h"

enum { SCALARS = 64 };   /* bytes */
enum { HOST_UNITS = 4 }; /* that fill the bus to host memory */
/* Elements whose 8-bit moments are unpacked at once, multiples of a block.  They stay in the cache of a GPU. */
enum { LEAST_CHUNK8 = 1 << 14, MOST_CHUNK8 = 1 << 20 };

static size_t array_bytes(const struct vfm_optim *o, const struct vfm_array *a)
{
	return (size_t)o->ps->n_own * vfm_dtype_size(a->dtype);
}

static size_t scale_bytes(const struct vfm_optim *o)
{
	return (size_t)vfm_params_blocks8(o->ps) * sizeof(float);
}

static void *alloc_moments(struct vfm_optim *o, size_t bytes, const char *what, struct vfm_err *err)
{
	struct vfm_stream *s = o->ps->stream;

	return o->on_host ? s->dev->t->alloc_host(s->dev, bytes, what, err) : vfm_dev_alloc(s, bytes, what, err);
}

static void free_moments(struct vfm_optim *o, void *p, size_t bytes)
{
	struct vfm_stream *s = o->ps->stream;

	if (p && o->on_host)
		s->dev->t->free_host(s->dev, p, bytes);
	else
		vfm_dev_free(s, p, bytes);
}

static int array_new(struct vfm_optim *o, struct vfm_array *a, enum vfm_dtype dt, const char *what, struct vfm_err *err)
{
	struct vfm_stream *s = o->ps->stream;
	size_t bytes;

	a->dtype = dt;
	bytes = array_bytes(o, a);
	a->data = alloc_moments(o, bytes, what, err);
	if (!a->data)
		return VFM_EENV;
	TRY(s->dev->t->zero(s, a->data, bytes, err));
	if (dt == VFM_U8) {
		a->scale = alloc_moments(o, scale_bytes(o), what, err);
		if (!a->scale)
			return VFM_EENV;
		TRY(s->dev->t->zero(s, a->scale, scale_bytes(o), err)); /* 0, whatever the codes are */
	}
	return o->on_host ? s->dev->t->stream_sync(s, err) : 0; /* the host may write to it next */
}

static void array_free(struct vfm_optim *o, struct vfm_array *a)
{
	free_moments(o, a->data, array_bytes(o, a));
	if (a->scale)
		free_moments(o, a->scale, scale_bytes(o));
}

static struct vfm_tensor array_at(const struct vfm_array *a, int64_t at, int64_t n)
{
	return vfm_t1((char *)a->data + (size_t)at * vfm_dtype_size(a->dtype), a->dtype, n);
}

/* Sets the order of the updates: vectors, then matrices as the forward reads them.  The updates of vectors and of the
 * first two ranges of units stay on the compute stream.  The next step zeroes the gradients of vectors first, and its
 * forward reads these ranges before it has done work that could hide their updates. */
static void order_updates(struct vfm_optim *o)
{
	const struct vfm_params *ps = o->ps;
	int n = 0, first = -1, second = -1;

	o->order = vfm_calloc((size_t)ps->n_trained + 1, sizeof(*o->order));
	for (int i = 0; i < ps->n_trained; i++)
		if (!ps->bucket[i].matrix)
			o->order[n++] = i;
	for (int u = 0; u < ps->units; u++)
		for (int i = 0; i < ps->n_trained; i++) {
			if (!ps->bucket[i].matrix || ps->bucket[i].first_unit != u)
				continue;
			if (first < 0 || first == u)
				first = u;
			else if (second < 0)
				second = u;
			if (u == first || u == second)
				o->n_first = n + 1;
			o->order[n++] = i;
		}
}

static int side_new(struct vfm_optim *o, struct vfm_err *err)
{
	struct vfm_dev *d = o->ps->stream->dev;

	o->side = d->t->stream_new(d, true, err);
	if (!o->side)
		return VFM_EENV;
	o->side->units = o->on_host ? HOST_UNITS : d->side.units;
	return 0;
}

/* Allocates the moments of a chunk in f32, for each stream that updates: few compared with the bytes that 8 bits
 * save. */
static int unpacked_new(struct vfm_optim *o, struct vfm_err *err)
{
	int64_t n = o->ps->n_own / 32, least = LEAST_CHUNK8;
	int streams = o->ps->stream->dev->side.units > 0 ? 2 : 1;

	o->chunk = (n < least ? least : n > MOST_CHUNK8 ? MOST_CHUNK8 : n) / VFM_BLOCK8 * VFM_BLOCK8;
	o->unpacked_bytes = (size_t)streams * 2 * (size_t)o->chunk * sizeof(float);
	o->unpacked = vfm_dev_alloc(o->ps->stream, o->unpacked_bytes, "unpacked moments", err);
	return o->unpacked ? 0 : VFM_EENV;
}

int vfm_optim_new(struct vfm_optim *o, struct vfm_params *ps, const struct vfm_train_config *c, struct vfm_err *err)
{
	bool q8 = c->moments == VFM_U8;
	int rc;

	*o = (struct vfm_optim){.ps = ps, .c = c, .on_host = c->offload & VFM_OFFLOAD_OPTIMIZER};
	o->m.is_signed = true;
	TRY_OUT(array_new(o, &o->m, (enum vfm_dtype)c->moments, "AdamW's first moments", err));
	TRY_OUT(array_new(o, &o->v, q8 ? VFM_U8 : VFM_F32, "AdamW's second moments", err));
	if (q8)
		TRY_OUT(unpacked_new(o, err));
	if (c->ema_decay > 0)
		TRY_OUT(array_new(o, &o->ema, VFM_F32, "the moving average of the weights", err));
	o->scalars = vfm_dev_alloc(ps->stream, SCALARS, "optimizer scalars", err);
	rc = o->scalars ? 0 : VFM_EENV;
	order_updates(o);
	if (rc == 0 && ps->stream->dev->side.units > 0)
		rc = side_new(o, err);
out:
	if (rc < 0) {
		vfm_optim_release(o);
		return rc;
	}
	o->norm = vfm_t1(o->scalars, VFM_F32, 1);
	o->scale = vfm_t1((char *)o->scalars + 4, VFM_F32, 1);
	return 0;
}

double vfm_optim_host_bytes(const struct vfm_optim *o)
{
	const struct vfm_array *const a[] = {&o->m, &o->v, &o->ema};
	double bytes = 0;

	for (int i = 0; i < 3 && o->on_host; i++)
		bytes += a[i]->data ? (double)o->ps->n_own * (double)vfm_dtype_size(a[i]->dtype) : 0;
	return bytes;
}

int vfm_optim_start(struct vfm_optim *o, struct vfm_err *err)
{
	struct vfm_params *ps = o->ps;

	for (size_t i = 0; o->ema.data && i < ps->n; i++) {
		const struct vfm_owned own = vfm_param_owned(ps, ps->p[i]);

		if (!ps->p[i]->frozen)
			TRY(vfm_param_get(ps, NULL, ps->p[i], (float *)o->ema.data + own.at, err));
	}
	return 0;
}

static void finish_updates(struct vfm_optim *o)
{
	const struct vfm_dev_table *t = o->ps->stream->dev->t;

	vfm_params_wait(o->ps, &(struct vfm_err){0}); /* failures were reported before, or no longer matter */
	t->stream_sync(o->side, &(struct vfm_err){0});
	t->stream_free(o->side);
	if (o->forked)
		t->event_free(o->forked);
}

void vfm_optim_release(struct vfm_optim *o)
{
	if (!o->ps)
		return;
	if (o->side)
		finish_updates(o);
	if (o->on_host && o->v.data)
		o->ps->stream->dev->t->stream_sync(
			o->ps->stream, &(struct vfm_err){0}); /* finish the updates that access them */
	free(o->order);
	array_free(o, &o->m);
	array_free(o, &o->v);
	array_free(o, &o->ema);
	vfm_dev_free(o->ps->stream, o->unpacked, o->unpacked_bytes);
	vfm_dev_free(o->ps->stream, o->scalars, SCALARS);
	*o = (struct vfm_optim){0};
}

/* Computes the global norm and the clipping scale, from the squares that vfm_params_grad_end has completed.  Norm and
 * scale stay on the device, so the host does not wait for them. */
static int clip(struct vfm_optim *o, double max_norm, struct vfm_tensor loss, struct vfm_err *err)
{
	const struct vfm_params *ps = o->ps;
	struct vfm_clip c = {
		.sum = ps->sumsq, .loss = loss, .norm = o->norm, .scale = o->scale, .max_norm = (float)max_norm};

	TRY(vfm_all_reduce(ps->mesh->world, ps->stream, ps->sumsq, err));
	return vfm_op_clip(ps->stream, &c, err);
}

/* Converts n 8-bit moments from element `at` of bucket i, a multiple of the block, to x or back. */
static int convert_moments(struct vfm_optim *o, const struct vfm_array *a, int i, int64_t at, struct vfm_tensor x,
	bool back, struct vfm_stream *s, struct vfm_err *err)
{
	const struct vfm_params *ps = o->ps;
	int64_t n = vfm_numel(&x);
	float *scale = a->scale + vfm_bucket_block8(ps, i) + at / VFM_BLOCK8;

	return vfm_op_block8(s,
		&(struct vfm_block8){.back = back,
			.is_signed = a->is_signed,
			.x = x,
			.code = vfm_t1((uint8_t *)a->data + ps->bucket[i].own_off + at, VFM_U8, n),
			.scale = vfm_t1(scale, VFM_F32, (n + VFM_BLOCK8 - 1) / VFM_BLOCK8)},
		err);
}

int vfm_optim_quantize(struct vfm_optim *o, const struct vfm_array *a, const float *x, struct vfm_err *err)
{
	for (int i = 0; i < o->ps->n_trained; i++) {
		const struct vfm_param_bucket *b = &o->ps->bucket[i];

		if (b->own_n)
			TRY(convert_moments(o, a, i, 0, vfm_t1((float *)x + b->own_off, VFM_F32, b->own_n), false,
				o->ps->stream, err));
	}
	return 0;
}

static struct vfm_tensor slice_of(const struct vfm_tensor *t, int64_t at, int64_t n)
{
	return vfm_has(t) ? vfm_row_slice(t, at, n) : *t;
}

/* Updates the elements of bucket i with 8-bit moments, whole chunks at a time, according to k except its m and v. */
static int update_chunks(
	struct vfm_optim *o, int i, const struct vfm_adamw *k, struct vfm_stream *s, struct vfm_err *err)
{
	float *x = o->unpacked + (s == o->ps->stream ? 0 : 2 * o->chunk);
	int64_t own_n = o->ps->bucket[i].own_n;

	for (int64_t at = 0; at < own_n; at += o->chunk) {
		int64_t n = own_n - at < o->chunk ? own_n - at : o->chunk;
		struct vfm_adamw c = *k;

		c.m = vfm_t1(x, VFM_F32, n);
		c.v = vfm_t1(x + o->chunk, VFM_F32, n);
		c.p = slice_of(&k->p, at, n);
		c.g = slice_of(&k->g, at, n);
		c.w = slice_of(&k->w, at, n);
		c.p_lo = slice_of(&k->p_lo, at, n);
		c.ema = slice_of(&k->ema, at, n);
		TRY(convert_moments(o, &o->m, i, at, c.m, true, s, err));
		TRY(convert_moments(o, &o->v, i, at, c.v, true, s, err));
		TRY(vfm_op_adamw(s, &c, err));
		TRY(convert_moments(o, &o->m, i, at, c.m, false, s, err));
		TRY(convert_moments(o, &o->v, i, at, c.v, false, s, err));
	}
	return 0;
}

/* Returns the decay of the moving average in update t, from 1.  It warms up as in EMAModel of diffusers, so that the
 * average of a short run does not consist of its initial weights. */
static double ema_decay_at(double decay, int64_t t)
{
	return t > 1 ? fmin(decay, (double)t / (double)(t + 9)) : 0;
}

/* Updates the owned elements of a bucket on s. */
static int update_bucket(struct vfm_optim *o, const struct vfm_param_bucket *b, double lr, int64_t t,
	struct vfm_stream *s, struct vfm_err *err)
{
	const struct vfm_train_config *a = o->c;
	struct vfm_params *ps = o->ps;
	int64_t at = b->own_off, n = b->own_n;
	struct vfm_adamw k = {.lr = (float)lr,
		.beta1 = (float)a->beta1,
		.beta2 = (float)a->beta2,
		.eps = (float)a->eps,
		.wd = b->matrix ? (float)a->weight_decay : 0,
		.c1 = (float)(1 - pow(a->beta1, (double)t)),
		.c2 = (float)(1 - pow(a->beta2, (double)t)),
		.ema_decay = (float)ema_decay_at(a->ema_decay, t),
		.m = array_at(&o->m, at, n), /* not read if it has 8 bits */
		.v = array_at(&o->v, at, n),
		.g = vfm_t1(b->g, VFM_F32, n),
		.grad_scale = o->scale};

	if (b->w)
		k.w = vfm_t1(b->w, ps->dtype, n);
	if (ps->split && b->matrix)
		k.p_lo = vfm_t1(ps->master_lo + b->master_off, VFM_I16, n);
	else
		k.p = vfm_t1(ps->master + b->master_off, VFM_F32, n);
	if (o->ema.data)
		k.ema = array_at(&o->ema, at, n);
	TRY(o->m.dtype == VFM_U8 ? update_chunks(o, (int)(b - ps->bucket), &k, s, err) : vfm_op_adamw(s, &k, err));
	if (s != ps->stream) {
		struct vfm_dev_side *side = &s->dev->side;

		side->taken = s->units;
		side->flops = o->on_host ? INFINITY : side->flops + vfm_cost_adamw(&k).bytes * side->flops_per_byte;
	}
	return 0;
}

int vfm_optim_step(struct vfm_optim *o, double lr, int64_t t, struct vfm_tensor loss, struct vfm_err *err)
{
	struct vfm_params *ps = o->ps;

	TRY(clip(o, o->c->clip_norm, loss, err));
	TRY(vfm_scales_step(ps, o->scale, err));
	TRY(vfm_params_update_begin(ps, err));
	for (int k = 0; k < ps->n_trained; k++) {
		bool overlaps = o->overlaps && o->side && k >= o->n_first;
		struct vfm_stream *s = overlaps ? o->side : ps->stream;

		if (overlaps && k == o->n_first)
			TRY(vfm_stream_follow(s, ps->stream, &o->forked, err));
		TRY(update_bucket(o, &ps->bucket[o->order[k]], lr, t, s, err));
		TRY(vfm_params_updated(ps, o->order[k], s, false, err));
	}
	return vfm_params_update_end(ps, err);
}
