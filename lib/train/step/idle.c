/* idle.c - lists the arrays of a trainer's state, and swaps them with copies through a buffer on the device. */
#include "train/step/idle.h"

#include <stdlib.h>

#include "base/mem.h"
#include "device/ops/tensor.h"
#include "net/nn/scales.h"

enum { MOST_BLOCK = 32 << 20 /* bytes of a block */ };

static void list_array(struct vfm_idle *s, void *own, size_t bytes)
{
	if (!own || !bytes)
		return;
	vfm_grow(&s->v, &s->cap, s->n + 1, sizeof(*s->v));
	s->v[s->n++] = (struct vfm_idle_array){.own = own, .bytes = bytes};
}

static void list_scale(void *ctx, void *data, size_t bytes)
{
	list_array(ctx, data, bytes);
}

static void list_moments(struct vfm_idle *s, const struct vfm_params *ps, const struct vfm_array *a)
{
	list_array(s, a->data, (size_t)ps->n_own * vfm_dtype_size(a->dtype));
	list_array(s, a->scale, (size_t)vfm_params_blocks8(ps) * sizeof(float));
}

static void list_state(struct vfm_idle *s)
{
	const struct vfm_params *ps = vfm_trainer_params(s->tr);
	const struct vfm_optim *o = vfm_trainer_optim(s->tr);

	list_array(s, ps->master, (size_t)ps->n_master * sizeof(float));
	list_array(s, ps->master_lo, (size_t)ps->n_master_lo * sizeof(int16_t));
	list_array(s, ps->copy, ps->copy_bytes);
	list_moments(s, ps, &o->m);
	list_moments(s, ps, &o->v);
	list_moments(s, ps, &o->ema);
	vfm_params_each_scale(ps, list_scale, s);
	if (ps->scales)
		list_array(s, ps->scales->past, (size_t)ps->scales->n_past * sizeof(float));
}

static int open_exchange(struct vfm_idle *s, struct vfm_stream *stream, struct vfm_err *err)
{
	struct vfm_dev *d = stream->dev;
	double store;
	size_t most = 0;

	if (vfm_params_stores(vfm_trainer_params(s->tr), &store) > 0)
		most = (size_t)store;
	for (size_t i = 0; i < s->n; i++)
		most = s->v[i].bytes > most ? s->v[i].bytes : most;
	s->block = most < MOST_BLOCK ? (most + 63) / 64 * 64 : MOST_BLOCK;
	s->scratch = vfm_dev_alloc(stream, 2 * s->block, "the exchange of two networks", err);
	s->out = s->scratch ? d->t->stream_new(d, true, err) : NULL;
	for (int i = 0; i < 2 && s->out; i++) {
		s->written[i] = d->t->event_new(d, err);
		s->sent[i] = s->written[i] ? d->t->event_new(d, err) : NULL;
		if (!s->sent[i])
			return VFM_EENV;
	}
	return s->out ? 0 : VFM_EENV;
}

int vfm_idle_new(struct vfm_idle *s, struct vfm_trainer *tr, bool on_device, struct vfm_err *err)
{
	struct vfm_params *ps = vfm_trainer_params(tr);
	struct vfm_stream *stream = ps->stream;
	const struct vfm_dev_table *t = stream->dev->t;

	*s = (struct vfm_idle){.tr = tr, .on_device = on_device};
	list_state(s);
	TRY(open_exchange(s, stream, err));
	TRY(vfm_params_wait(ps, err));
	TRY(t->stream_sync(stream, err)); /* moments in host memory are complete */
	if (ps->scales) {
		s->filled = vfm_calloc((size_t)ps->scales->n + 1, sizeof(*s->filled));
		for (int64_t i = 0; i < ps->scales->n; i++)
			s->filled[i] = ps->scales->of[i].filled;
	}
	if (ps->stores)
		s->store = vfm_calloc((size_t)ps->units, sizeof(*s->store));
	for (int u = 0; u < ps->units && s->store; u++) {
		TRY(vfm_params_copy_store(ps, u, on_device, &s->store[u], err));
		s->bytes += s->store[u].bytes;
	}
	for (size_t i = 0; i < s->n; i++) {
		struct vfm_idle_array *a = &s->v[i];

		a->idle = on_device ? vfm_dev_alloc(stream, a->bytes, "the idle network", err)
				    : t->alloc_host(stream->dev, a->bytes, "the idle network", err);
		if (!a->idle)
			return VFM_EENV;
		s->bytes += a->bytes;
		TRY(t->to_host(stream, a->idle, a->own, a->bytes, err));
	}
	return t->stream_sync(stream, err);
}

/* Exchanges a block: in on the compute stream, out on another, beside the next block. */
static int exchange_block(struct vfm_idle *s, char *own, char *idle, size_t bytes, struct vfm_err *err)
{
	struct vfm_stream *in = vfm_trainer_params(s->tr)->stream;
	const struct vfm_dev_table *t = in->dev->t;
	int64_t i = s->blocks % 2;
	char *scratch = (char *)s->scratch + (size_t)i * s->block;

	if (s->blocks >= 2)
		TRY(t->event_wait(s->sent[i], in, err));
	TRY(t->to_host(in, scratch, own, bytes, err));
	TRY(t->to_device(in, own, idle, bytes, err));
	TRY(t->event_record(s->written[i], in, err));
	TRY(t->event_wait(s->written[i], s->out, err));
	TRY(t->to_host(s->out, idle, scratch, bytes, err));
	s->blocks++;
	return t->event_record(s->sent[i], s->out, err);
}

static int exchange_array(struct vfm_idle *s, char *own, char *idle, size_t bytes, struct vfm_err *err)
{
	for (size_t at = 0; at < bytes; at += s->block)
		TRY(exchange_block(s, own + at, idle + at, bytes - at < s->block ? bytes - at : s->block, err));
	return 0;
}

/* Base weights in host memory are exchanged without copies. */
static int exchange_stores(struct vfm_idle *s, struct vfm_err *err)
{
	struct vfm_params *ps = vfm_trainer_params(s->tr);

	TRY(vfm_params_update_begin(ps, err));
	TRY(ps->stream->dev->t->stream_sync(ps->stream, err));
	for (int u = 0; u < ps->units; u++) {
		void *own;
		size_t bytes = vfm_params_swap_store(ps, u, &s->store[u], &own);

		s->moved += bytes;
		TRY(exchange_array(s, own, s->store[u].p, bytes, err));
	}
	return 0;
}

int vfm_idle_exchange(struct vfm_idle *s, struct vfm_err *err)
{
	struct vfm_params *ps = vfm_trainer_params(s->tr);
	const struct vfm_dev_table *t = ps->stream->dev->t;

	s->moved = 0;
	TRY(vfm_params_wait(ps, err));
	TRY(vfm_trainer_wait_held(s->tr, err));
	vfm_dev_drop_copies(ps->stream);
	if (s->store)
		TRY(exchange_stores(s, err));
	for (size_t i = 0; i < s->n; i++) {
		TRY(exchange_array(s, s->v[i].own, s->v[i].idle, s->v[i].bytes, err));
		s->moved += s->v[i].bytes;
	}
	for (int64_t i = 0; ps->scales && i < ps->scales->n; i++) {
		bool filled = ps->scales->of[i].filled;

		ps->scales->of[i].filled = s->filled[i];
		s->filled[i] = filled;
	}
	for (int64_t i = 0; i < s->blocks && i < 2; i++)
		TRY(t->event_wait(s->sent[i], ps->stream, err));
	TRY(vfm_params_refresh(ps, err));
	return t->stream_sync(ps->stream, err);
}

void vfm_idle_release(struct vfm_idle *s)
{
	struct vfm_stream *stream = s->tr ? vfm_trainer_params(s->tr)->stream : NULL;
	const struct vfm_dev_table *t;

	if (!stream)
		return;
	t = stream->dev->t;
	t->stream_sync(stream, NULL);
	if (s->out) {
		t->stream_sync(s->out, NULL);
		t->stream_free(s->out);
	}
	for (int i = 0; i < 2; i++) {
		if (s->written[i])
			t->event_free(s->written[i]);
		if (s->sent[i])
			t->event_free(s->sent[i]);
	}
	for (int u = 0; s->store && u < vfm_trainer_params(s->tr)->units; u++)
		vfm_params_free_store(vfm_trainer_params(s->tr), u, &s->store[u]);
	for (size_t i = 0; i < s->n; i++) {
		if (s->v[i].idle && s->on_device)
			vfm_dev_free(stream, s->v[i].idle, s->v[i].bytes);
		else if (s->v[i].idle)
			t->free_host(stream->dev, s->v[i].idle, s->v[i].bytes);
	}
	if (s->scratch)
		vfm_dev_free(stream, s->scratch, 2 * s->block);
	free(s->filled);
	free(s->store);
	free(s->v);
	*s = (struct vfm_idle){0};
}
