/* vae_run.c - runs the planned layers on one frame at a time, with up- and downsampling over time. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/philox.h"
#include "encoder/vae/vae_impl.h"

enum {
	STRIP = 32 << 20,
	ROOM_SLACK = 1 << 12, /* frames are aligned */
};

/* size [H,W,C]: the inputs of layer l -> its results */
static void size_behind(const struct vae_layer *l, int64_t size[3])
{
	const struct vae_conv *v = &l->conv[0];

	switch (l->kind) {
	case VAE_LAYER_CONV:
	case VAE_LAYER_DOWN:
	case VAE_LAYER_UP:
		for (int i = 0; i < 2; i++)
			size[i] = ((size[i] << v->up) + v->pad[2 * i] + v->pad[2 * i + 1] + 2 * v->edge -
					  v->kernel[1 + i]) /
					v->stride[1 + i] +
				1;
		size[2] = v->out;
		break;
	case VAE_LAYER_RES:
		size[2] = v->out;
		break;
	case VAE_LAYER_NEAREST:
		size[0] *= 2, size[1] *= 2;
		break;
	case VAE_LAYER_SHUFFLE:
		size[0] *= 2, size[1] *= 2, size[2] /= l->temporal ? 8 : 4;
		break;
	default:
		break;
	}
}

/* Returns the most bytes that the frames of a layer take: those of RES, or the input and the results. */
static size_t count_room(const struct vae_run *r, int64_t h, int64_t w)
{
	int64_t size[3] = {h, w, r->net->layer[0].in};
	size_t most = 0;

	for (int i = 0; i < r->net->n; i++) {
		const struct vae_layer *l = &r->net->layer[i];
		const int64_t in = size[0] * size[1] * size[2];
		size_t room;

		size_behind(l, size);
		room = (size_t)(in + size[0] * size[1] * size[2]) * vfm_dtype_size(r->dtype);
		if (l->kind == VAE_LAYER_RES)
			room = vae_res_room(r, l, size[0], size[1]);
		most = room > most ? room : most;
	}
	return most + ROOM_SLACK;
}

void vae_run_init(
	struct vae_run *r, struct vfm_stream *s, enum vfm_dtype dtype, const struct vae_net *net, int64_t h, int64_t w)
{
	*r = (struct vae_run){.s = s, .dtype = dtype, .net = net, .strip = STRIP};
	r->room = count_room(r, h, w);
	r->state = vfm_calloc((size_t)net->n, sizeof(*r->state));
}

void vae_run_release(struct vae_run *r)
{
	for (int i = 0; r->state && i < r->net->n; i++) {
		struct vae_layer_state *st = &r->state[i];

		for (int j = 0; j < 2; j++)
			vae_past_release(r, &st->past[j]);
		vae_frame_drop(r, st->spare);
		vae_frame_drop(r, st->noise);
		for (int k = 0; k < st->n_saved; k++)
			vae_frame_drop(r, st->saved[k]);
		for (int k = 0; k < VAE_SAVED_MAX; k++)
			vae_frame_drop(r, st->ring[k]);
		for (size_t k = 0; k < st->n_kv; k++)
			vae_frame_drop(r, st->kv[k]);
		free(st->kv);
	}
	vae_order_release(r);
	vae_frame_release(r);
	free(r->state);
	r->state = NULL;
}

/* ---- ops ---- */

/* [1, N, C] */
static struct vfm_tensor as_pixels(const struct vae_frame *f)
{
	return vfm_t3(f->t.data, f->t.dtype, 1, f->t.shape[1] * f->t.shape[2], f->t.shape[3]);
}

int vae_run_conv(struct vae_run *r, const struct vae_conv *v, const struct vae_past *past, const struct vae_frame *x,
	const struct vae_frame *add, struct vae_frame **y, struct vfm_err *err)
{
	struct vfm_conv3d a = {.x = x->t, .weight = v->w, .bias = v->b, .up = v->up, .packed = v->packed};
	struct vae_past newest = past ? *past : (struct vae_past){0};

	if (newest.n == v->kernel[0]) /* 2: the older is not read */
		newest = (struct vae_past){.f = {past->f[1]}, .n = 1};
	a.past = vae_past_tensor(&newest);
	a.zeros = v->kernel[0] - 1 - newest.n;
	memcpy(a.kernel, v->kernel, sizeof(a.kernel));
	memcpy(a.stride, v->stride, sizeof(a.stride));
	memcpy(a.pad, v->pad, sizeof(a.pad));
	if (!*y)
		TRY(vae_frame_new(r, vfm_conv3d_size(&a, 1), vfm_conv3d_size(&a, 2), v->out, y, err));
	a.y = (*y)->t;
	if (add)
		a.add = add->t;
	return vfm_op_conv3d(r->s, &a, err);
}

/* The same over 3 frames; x becomes the newest of `past`. */
static int run_causal(struct vae_run *r, const struct vae_conv *v, struct vae_past *past, struct vae_frame *x,
	const struct vae_frame *add, struct vae_frame **y, struct vfm_err *err)
{
	TRY(vae_run_conv(r, v, v->kernel[0] > 1 ? past : NULL, x, add, y, err));
	return v->kernel[0] > 1 ? vae_past_add(r, past, x, err) : 0;
}

int vae_run_norm(struct vae_run *r, const struct vae_norm *n, enum vfm_act act, const struct vae_frame *x,
	const struct vae_frame *y, struct vfm_err *err)
{
	static const enum vfm_channel_norm_kind kinds[] = {[VAE_NORM_RMS] = VFM_CHANNEL_NORM_RMS,
		[VAE_NORM_GROUP] = VFM_CHANNEL_NORM_GROUP,
		[VAE_NORM_MEAN_SQUARE] = VFM_CHANNEL_NORM_MEAN_SQUARE};

	if (n->kind == VAE_NORM_LAYER)
		return vfm_op_norm(r->s,
			&(struct vfm_norm){.kind = VFM_NORM_LAYER,
				.eps = n->eps,
				.x = vae_frame_rows(x),
				.y = vae_frame_rows(y),
				.weight = n->w,
				.bias = n->b},
			err);
	return vfm_op_channel_norm(r->s,
		&(struct vfm_channel_norm){.kind = kinds[n->kind],
			.groups = n->kind == VAE_NORM_GROUP,
			.eps = n->eps,
			.act = act,
			.x = as_pixels(x),
			.weight = n->w,
			.bias = n->b,
			.y = as_pixels(y)},
		err);
}

/* ---- layers: each takes the reference of x, and *y becomes its result ---- */

static int layer_norm(
	struct vae_run *r, const struct vae_layer *l, struct vae_frame *x, struct vae_frame **y, struct vfm_err *err)
{
	int rc = 0;

	if (x->refs == 1)
		*y = vae_frame_keep(x);
	else
		rc = vae_frame_new(r, x->t.shape[1], x->t.shape[2], l->in, y, err);
	if (rc >= 0)
		rc = vae_run_norm(r, &l->norm[0], VFM_ACT_SILU, x, *y, err);
	vae_frame_drop(r, x);
	return rc;
}

/* ---- frames for shortcuts ---- */

/* Sets *f to shortcut[0](norm[0](x)); the norm is optional. */
static int run_shortcut(struct vae_run *r, const struct vae_layer *l, const struct vae_frame *x, struct vae_frame **f,
	struct vfm_err *err)
{
	struct vae_frame *a = NULL;
	int rc = 0;

	if (l->norm[0].dim) {
		TRY_OUT(vae_frame_new(r, x->t.shape[1], x->t.shape[2], l->in, &a, err));
		TRY_OUT(vae_run_norm(r, &l->norm[0], VFM_ACT_NONE, x, a, err));
	}
	TRY_OUT(vae_run_conv(r, &l->shortcut[0], NULL, a ? a : x, NULL, f, err));
out:
	vae_frame_drop(r, a);
	return rc;
}

/* Frames that wait for later inputs stay in memory of their own. */
static int layer_save(struct vae_run *r, const struct vae_layer *l, struct vae_layer_state *st, struct vae_frame *x,
	struct vfm_err *err)
{
	const int64_t h = x->t.shape[1], w = x->t.shape[2], c = l->has_shortcut ? l->shortcut[0].out : l->in;
	struct vae_frame *f = NULL, **own = &st->ring[st->frames++ % VAE_SAVED_MAX];
	int rc = 0;

	if (l->ahead) {
		if (!*own)
			TRY(vae_frame_lasting(r, h, w, c, own, err));
		f = vae_frame_keep(*own);
	}
	if (l->has_shortcut)
		rc = run_shortcut(r, l, x, &f, err);
	else if (f)
		rc = vae_frame_copy(r, x, f, err);
	else
		f = vae_frame_keep(x);
	if (rc >= 0)
		st->saved[st->n_saved++] = f;
	else
		vae_frame_drop(r, f);
	return rc;
}

/* The layer that saved the inputs of the level that ends at layer i. */
static struct vae_layer_state *saved_of(struct vae_run *r, int i)
{
	while (r->net->layer[i].kind != VAE_LAYER_SAVE)
		i--;
	return &r->state[i];
}

static struct vae_frame *take_saved(struct vae_layer_state *st)
{
	struct vae_frame *f = st->saved[0];

	st->n_saved--;
	memmove(st->saved, st->saved + 1, (size_t)st->n_saved * sizeof(*st->saved));
	return f;
}

/* ---- resampling ---- */

/* y += AvgDown3D of the saved frames: one; with `temporal` two: the one before the first frame is 0. */
static int add_avg_down(struct vae_run *r, const struct vae_layer *l, int i, struct vae_frame *y, struct vfm_err *err)
{
	struct vae_layer_state *st = saved_of(r, i);
	struct vae_past past = {0};
	struct vae_frame *x = take_saved(st);
	int rc;

	if (st->n_saved) {
		past = (struct vae_past){.f = {x}, .n = 1};
		x = take_saved(st);
	}
	rc = vae_run_conv(r, &l->shortcut[0], &past, x, y, &y, err);
	vae_frame_drop(r, x);
	vae_frame_drop(r, past.f[0]);
	return rc;
}

/* Sets the frame that layer i adds before its shortcut, and the one before it if the shortcut covers two. */
static void take_addend(
	struct vae_run *r, int i, struct vae_frame *x, struct vae_frame **whole, struct vae_past *before)
{
	const struct vae_layer *l = &r->net->layer[i];
	const struct vae_past *past = &r->state[i].past[0];
	struct vae_layer_state *saved;

	if (l->add == VAE_ADD_INPUT) {
		*whole = vae_frame_keep(l->ahead ? past->f[past->n - 1] : x);
		if (l->shortcut[0].kernel[0] == 2)
			*before = (struct vae_past){.f = {vae_frame_keep(past->f[past->n - 1])}, .n = 1};
		return;
	}
	saved = saved_of(r, i);
	*whole = take_saved(saved);
	if (l->shortcut[0].kernel[0] != 2)
		return;
	*before = (struct vae_past){.f = {*whole}, .n = 1};
	*whole = saved->n_saved ? take_saved(saved) : vae_frame_keep(*whole); /* the first frame is its own past */
}

/* *plus: the frame that layer i adds to its convolution of x; NULL: none. */
static int find_addend(struct vae_run *r, int i, struct vae_frame *x, struct vae_frame **plus, struct vfm_err *err)
{
	const struct vae_layer *l = &r->net->layer[i];
	const bool first = r->state[i].frames == 1 && l->shortcut[1].out;
	struct vae_past before = {0};
	struct vae_frame *whole;
	int rc;

	if (l->add == VAE_ADD_NONE)
		return 0;
	take_addend(r, i, x, &whole, &before);
	if (!l->has_shortcut) {
		*plus = whole;
		return 0;
	}
	rc = vae_run_conv(r, &l->shortcut[first], first ? NULL : &before, whole, NULL, plus, err);
	vae_frame_drop(r, whole);
	vae_frame_drop(r, before.f[0]);
	return rc;
}

/* y += the noise of layer l, whose frame is made at the first call. */
static int add_noise(struct vae_run *r, const struct vae_layer *l, struct vae_layer_state *st, struct vae_frame *y,
	struct vfm_err *err)
{
	const int64_t h = y->t.shape[1], w = y->t.shape[2], n = h * w;
	const struct vfm_rng rng = vfm_rng_stream(0, 0, (uint64_t)l->noise_id, VFM_RNG_VAE);
	float *z;
	void *raw;
	int rc;

	if (st->noise)
		return vae_run_conv(r, &l->noise, NULL, st->noise, y, &y, err);
	TRY(vae_frame_lasting(r, h, w, 1, &st->noise, err));
	z = vfm_malloc((size_t)n * sizeof(*z));
	raw = vfm_malloc(vfm_nbytes(&st->noise->t));
	for (int64_t i = 0; i < n; i++)
		z[i] = vfm_rng_normal(&rng, (uint64_t)i);
	vfm_dtype_convert(r->dtype, raw, VFM_F32, z, (size_t)n);
	rc = r->s->dev->t->to_device(r->s, st->noise->t.data, raw, vfm_nbytes(&st->noise->t), err);
	free(raw);
	free(z);
	return rc < 0 ? rc : vae_run_conv(r, &l->noise, NULL, st->noise, y, &y, err);
}

/* *padded = x, with a border if the convolution wants one. */
static int add_edge(struct vae_run *r, const struct vae_conv *v, struct vae_frame *x, struct vae_frame **padded,
	struct vfm_err *err)
{
	const int64_t h = x->t.shape[1], w = x->t.shape[2];

	if (!v->edge) {
		*padded = vae_frame_keep(x);
		return 0;
	}
	TRY(vae_frame_new(r, h + 2 * v->edge, w + 2 * v->edge, v->in, padded, err));
	return vae_order_rows(r, VAE_ORDER_EDGE, h, w, x, *padded, err);
}

/* Without a result (*y NULL) on every second frame if the stride of time is 2, and on the first `ahead` frames. */
static int layer_conv(struct vae_run *r, int i, struct vae_frame *x, struct vae_frame **y, struct vfm_err *err)
{
	const struct vae_layer *l = &r->net->layer[i];
	const struct vae_conv *v = &l->conv[0];
	struct vae_layer_state *st = &r->state[i];
	const int64_t at = st->frames++;
	struct vae_frame *plus = NULL, *padded = NULL;
	int rc = 0;

	TRY_OUT(add_edge(r, v, x, &padded, err));
	for (int k = l->ahead; k < 2 && !at && r->net->repeat_first && v->kernel[0] > 1; k++)
		TRY_OUT(vae_past_add(r, &st->past[0], padded, err));
	if (at < l->ahead || at % v->stride[0]) {
		TRY_OUT(vae_past_add(r, &st->past[0], padded, err));
		goto out;
	}
	TRY_OUT(find_addend(r, i, x, &plus, err));
	vae_frame_drop(r, x);
	x = NULL;
	if (plus && plus->refs == 1)
		*y = vae_frame_keep(plus);
	TRY_OUT(run_causal(r, v, &st->past[0], padded, plus, y, err));
	if (l->noise.out)
		TRY_OUT(add_noise(r, l, st, *y, err));
out:
	vae_frame_drop(r, plus);
	vae_frame_drop(r, padded);
	vae_frame_drop(r, x);
	return rc;
}

/* Without a result (*y NULL) on every second frame of a temporal layer. */
static int layer_down(struct vae_run *r, int i, struct vae_frame *x, struct vae_frame **y, struct vfm_err *err)
{
	const struct vae_layer *l = &r->net->layer[i];
	struct vae_layer_state *st = &r->state[i];
	struct vae_frame *half = NULL;
	const int64_t at = st->frames++;
	int rc = vae_run_conv(r, &l->conv[0], NULL, x, NULL, &half, err);

	vae_frame_drop(r, x);
	TRY_OUT(rc);
	if (!l->temporal || at == 0)
		*y = vae_frame_keep(half);
	else if (at % 2 == 0)
		TRY_OUT(vae_run_conv(r, &l->conv[1], &st->past[0], half, NULL, y, err));
	if (l->temporal)
		TRY_OUT(vae_past_add(r, &st->past[0], half, err));
	if (*y && l->has_shortcut) {
		TRY_OUT(vae_frame_own(r, y, err));
		TRY_OUT(add_avg_down(r, l, i, *y, err));
	}
out:
	vae_frame_drop(r, half);
	return rc;
}

/* y = frame t (of 2 if the layer is temporal) of DupUp3D of x. */
static int run_dup_up(struct vae_run *r, const struct vae_layer *l, int t, const struct vae_frame *x,
	const struct vae_frame *y, struct vfm_err *err)
{
	struct vae_frame *four = NULL;
	int rc;

	if (!l->shortcut[0].out) /* as many channels */
		return vfm_op_upsample(r->s, &(struct vfm_upsample){.x = x->t, .y = y->t}, err);
	rc = vae_run_conv(r, &l->shortcut[l->temporal ? t : 0], NULL, x, NULL, &four, err);
	if (rc >= 0)
		rc = vae_order_rows(r, VAE_ORDER_DUP, x->t.shape[1], x->t.shape[2], four, y, err);
	vae_frame_drop(r, four);
	return rc;
}

/* Makes frame t of the layer's results of *x.  Drops *x as early as possible in the last one. */
static int up_frame(struct vae_run *r, int i, int t, bool last, struct vae_frame **x, const struct vae_frame *saved,
	struct vae_frame **y, struct vfm_err *err)
{
	const struct vae_layer *l = &r->net->layer[i];
	struct vae_layer_state *st = &r->state[i];
	const int64_t h = (*x)->t.shape[1], w = (*x)->t.shape[2];
	struct vae_frame *now = NULL;
	int rc = 0;

	if (l->temporal && st->frames > 0)
		TRY_OUT(vae_run_conv(r, &l->conv[1 + t], &st->past[0], *x, NULL, &now, err));
	else
		now = vae_frame_keep(*x);
	if (last) {
		vae_frame_drop(r, *x);
		*x = NULL;
	}
	r->from_end = !r->from_end;
	if (saved) {
		TRY_OUT(vae_frame_new(r, 2 * h, 2 * w, l->conv[0].out, y, err));
		TRY_OUT(run_dup_up(r, l, t, saved, *y, err));
	}
	TRY_OUT(vae_run_conv(r, &l->conv[0], NULL, now, saved ? *y : NULL, y, err));
out:
	vae_frame_drop(r, now);
	return rc;
}

/* Moves *x to its own memory, as the newest frame of `past` after the layer.  It replaces *spare. */
static int move_to_spare(struct vae_run *r, struct vae_layer_state *st, struct vae_frame **x, struct vfm_err *err)
{
	const int64_t *size = (*x)->t.shape + 1;

	if (!st->spare)
		TRY(vae_frame_lasting(r, size[0], size[1], size[2], &st->spare, err));
	TRY(vae_frame_copy(r, *x, st->spare, err));
	vae_frame_drop(r, *x);
	*x = vae_frame_keep(st->spare);
	return 0;
}

static int push_from(struct vae_run *r, int i, struct vae_frame *x, struct vfm_err *err);

/* The first frame stays one and is no past of the second; every other one becomes two (conv[1], conv[2]). */
static int push_up(struct vae_run *r, int i, struct vae_frame *x, struct vfm_err *err)
{
	const struct vae_layer *l = &r->net->layer[i];
	struct vae_layer_state *st = &r->state[i];
	struct vae_frame *saved = l->has_shortcut ? take_saved(saved_of(r, i)) : NULL, *y;
	const bool two = l->temporal && st->frames > 0, from_end = r->from_end;
	int rc = 0;

	if (two)
		TRY_OUT(move_to_spare(r, st, &x, err));
	for (int t = 0; t < (two ? 2 : 1) && rc >= 0; t++) {
		y = NULL;
		rc = up_frame(r, i, t, t == two, &x, saved, &y, err);
		if (rc < 0)
			vae_frame_drop(r, y);
		else
			rc = push_from(r, i + 1, y, err);
		r->from_end = from_end;
	}
	if (two && rc >= 0)
		vae_past_swap(&st->past[0], &st->spare);
	st->frames++;
out:
	vae_frame_drop(r, saved);
	vae_frame_drop(r, x);
	return rc;
}

static int shuffle_frame(struct vae_run *r, const struct vae_layer *l, enum vae_order order, const struct vae_frame *x,
	struct vae_frame **y, struct vfm_err *err)
{
	const int64_t h = x->t.shape[1], w = x->t.shape[2];

	TRY(vae_frame_new(r, 2 * h, 2 * w, l->in / (l->temporal ? 8 : 4), y, err));
	return vae_order_rows(r, order, h, w, x, *y, err);
}

static int push_shuffle(struct vae_run *r, int i, struct vae_frame *x, struct vfm_err *err)
{
	static const enum vae_order slots[] = {VAE_ORDER_SLOT_0, VAE_ORDER_SLOT_1},
				    firsts[] = {[VAE_FIRST_LAST] = VAE_ORDER_SLOT_1, [VAE_FIRST_EVEN] = VAE_ORDER_EVEN};
	const struct vae_layer *l = &r->net->layer[i];
	struct vae_layer_state *st = &r->state[i];
	const bool from_end = r->from_end, two = l->temporal && st->frames++ > 0;
	int rc = 0;

	if (two)
		TRY_OUT(move_to_spare(r, st, &x, err));
	for (int t = 0; t < (two ? 2 : 1) && rc >= 0; t++) {
		const enum vae_order order = !l->temporal ? VAE_ORDER_DUP : two ? slots[t] : firsts[l->first];
		struct vae_frame *y = NULL;

		r->from_end = !from_end;
		rc = shuffle_frame(r, l, order, x, &y, err);
		if (t == two) {
			vae_frame_drop(r, x);
			x = NULL;
		}
		if (rc < 0)
			vae_frame_drop(r, y);
		else
			rc = push_from(r, i + 1, y, err);
		r->from_end = from_end;
	}
out:
	vae_frame_drop(r, x);
	return rc;
}

/* The first frame stays one; every other one passes through the next layers two times. */
static int push_twice(struct vae_run *r, int i, struct vae_frame *x, struct vfm_err *err)
{
	int rc = 0;

	if (r->state[i].frames++ > 0)
		rc = push_from(r, i + 1, vae_frame_keep(x), err);
	if (rc >= 0)
		return push_from(r, i + 1, x, err);
	vae_frame_drop(r, x);
	return rc;
}

static int layer_nearest(struct vae_run *r, struct vae_frame *x, struct vae_frame **y, struct vfm_err *err)
{
	int rc = vae_frame_new(r, 2 * x->t.shape[1], 2 * x->t.shape[2], x->t.shape[3], y, err);

	if (rc >= 0)
		rc = vfm_op_upsample(r->s, &(struct vfm_upsample){.x = x->t, .y = (*y)->t}, err);
	vae_frame_drop(r, x);
	return rc;
}

/* x + the saved frame, or a mean of its channels. */
static int layer_add(struct vae_run *r, int i, struct vae_frame **x, struct vfm_err *err)
{
	const struct vae_layer *l = &r->net->layer[i];
	struct vae_frame *saved;
	int rc;

	TRY(vae_frame_own(r, x, err));
	if (l->has_shortcut)
		return add_avg_down(r, l, i, *x, err);
	saved = take_saved(saved_of(r, i));
	rc = vfm_op_axpby(r->s, &(struct vfm_axpby){.alpha = 1, .beta = 1, .x = saved->t, .y = (*x)->t}, err);
	vae_frame_drop(r, saved);
	return rc;
}

/* ---- the whole ---- */

static int run_layer(struct vae_run *r, int i, struct vae_frame *x, struct vae_frame **y, struct vfm_err *err)
{
	const struct vae_layer *l = &r->net->layer[i];
	struct vae_layer_state *st = &r->state[i];
	int rc;

	switch (l->kind) {
	case VAE_LAYER_RES:
		return vae_layer_res(r, l, st, x, y, err);
	case VAE_LAYER_ATTN:
		return vae_layer_attn(r, l, x, y, err);
	case VAE_LAYER_ATTN_TIME:
	case VAE_LAYER_ATTN_CAUSAL:
		return vae_layer_attn_past(r, l, st, x, y, err);
	case VAE_LAYER_NEAREST:
		return layer_nearest(r, x, y, err);
	case VAE_LAYER_NORM:
		return layer_norm(r, l, x, y, err);
	case VAE_LAYER_DOWN:
		return layer_down(r, i, x, y, err);
	case VAE_LAYER_SAVE:
		rc = layer_save(r, l, st, x, err);
		*y = x;
		return rc;
	case VAE_LAYER_ADD:
		rc = layer_add(r, i, &x, err);
		*y = x;
		return rc;
	default:
		return layer_conv(r, i, x, y, err);
	}
}

/* Runs x through the layers from i on.  Where a layer makes two frames, the first passes through all others before the
 * second is computed. */
static int push_from(struct vae_run *r, int i, struct vae_frame *x, struct vfm_err *err)
{
	for (; i < r->net->n && x; i++) {
		struct vae_frame *y = NULL;
		int rc;

		if (r->net->layer[i].kind == VAE_LAYER_UP)
			return push_up(r, i, x, err);
		if (r->net->layer[i].kind == VAE_LAYER_TWICE)
			return push_twice(r, i, x, err);
		if (r->net->layer[i].kind == VAE_LAYER_SHUFFLE)
			return push_shuffle(r, i, x, err);
		rc = run_layer(r, i, x, &y, err);
		if (rc < 0) {
			vae_frame_drop(r, y);
			return rc;
		}
		x = y;
	}
	if (x) {
		int rc = r->emit(r->ctx, x, err);

		vae_frame_drop(r, x);
		return rc;
	}
	return 0;
}

int vae_run_push(struct vae_run *r, struct vae_frame *x, struct vfm_err *err)
{
	return push_from(r, 0, x, err);
}

/* The last frame of each layer that looks ahead is repeated; what it makes of it passes through all others first. */
int vae_run_finish(struct vae_run *r, struct vfm_err *err)
{
	for (int i = 0; i < r->net->n; i++) {
		const struct vae_layer *l = &r->net->layer[i];
		const struct vae_past *past = &r->state[i].past[0];

		for (int k = 0; l->kind == VAE_LAYER_CONV && k < l->ahead && past->n; k++)
			TRY(push_from(r, i, vae_frame_keep(past->f[past->n - 1]), err));
	}
	return 0;
}
