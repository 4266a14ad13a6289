/* idle.c - lists the arrays of a trainer's state, and swaps them with copies through a buffer on the device. */
#include "train/step/idle.h"

#include <stdlib.h>

#include "base/mem.h"
#include "device/ops/tensor.h"
#include "net/nn/scales.h"

enum { SCRATCH = 64 << 20 /* bytes that are exchanged at once */ };

static void list_array(struct vfm_idle *s, void *own, size_t bytes)
{
	if (own && bytes)
		s->v[s->n++] = (struct vfm_idle_array){.own = own, .bytes = bytes};
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
	if (ps->scales)
		list_array(s, ps->scales->past, (size_t)ps->scales->n_past * sizeof(float));
}

int vfm_idle_new(struct vfm_idle *s, struct vfm_trainer *tr, bool on_device, struct vfm_err *err)
{
	struct vfm_params *ps = vfm_trainer_params(tr);
	struct vfm_stream *stream = ps->stream;
	const struct vfm_dev_table *t = stream->dev->t;

	*s = (struct vfm_idle){.tr = tr, .on_device = on_device};
	list_state(s);
	s->scratch = vfm_dev_alloc(stream, SCRATCH, "the exchange of two networks", err);
	if (!s->scratch)
		return VFM_EENV;
	TRY(vfm_params_wait(ps, err));
	if (ps->scales) {
		s->filled = vfm_calloc((size_t)ps->scales->n + 1, sizeof(*s->filled));
		for (int64_t i = 0; i < ps->scales->n; i++)
			s->filled[i] = ps->scales->of[i].filled;
	}
	for (int i = 0; i < s->n; i++) {
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

static int exchange_array(const struct vfm_idle *s, const struct vfm_idle_array *a, struct vfm_err *err)
{
	struct vfm_stream *stream = vfm_trainer_params(s->tr)->stream;
	const struct vfm_dev_table *t = stream->dev->t;

	for (size_t at = 0; at < a->bytes; at += SCRATCH) {
		size_t n = a->bytes - at < SCRATCH ? a->bytes - at : SCRATCH;
		char *own = (char *)a->own + at, *idle = (char *)a->idle + at;

		TRY(t->to_host(stream, s->scratch, own, n, err));
		TRY(t->to_device(stream, own, idle, n, err));
		TRY(t->to_host(stream, idle, s->scratch, n, err));
	}
	return 0;
}

int vfm_idle_exchange(struct vfm_idle *s, struct vfm_err *err)
{
	struct vfm_params *ps = vfm_trainer_params(s->tr);

	TRY(vfm_params_wait(ps, err));
	TRY(vfm_trainer_wait_held(s->tr, err));
	vfm_dev_drop_copies(ps->stream);
	for (int i = 0; i < s->n; i++)
		TRY(exchange_array(s, &s->v[i], err));
	for (int64_t i = 0; ps->scales && i < ps->scales->n; i++) {
		bool filled = ps->scales->of[i].filled;

		ps->scales->of[i].filled = s->filled[i];
		s->filled[i] = filled;
	}
	TRY(vfm_params_refresh(ps, err));
	return ps->stream->dev->t->stream_sync(ps->stream, err);
}

void vfm_idle_release(struct vfm_idle *s)
{
	struct vfm_stream *stream = s->tr ? vfm_trainer_params(s->tr)->stream : NULL;

	if (!stream)
		return;
	stream->dev->t->stream_sync(stream, NULL);
	for (int i = 0; i < s->n; i++) {
		if (s->v[i].idle && s->on_device)
			vfm_dev_free(stream, s->v[i].idle, s->v[i].bytes);
		else if (s->v[i].idle)
			stream->dev->t->free_host(stream->dev, s->v[i].idle, s->v[i].bytes);
	}
	if (s->scratch)
		vfm_dev_free(stream, s->scratch, SCRATCH);
	free(s->filled);
	*s = (struct vfm_idle){0};
}
