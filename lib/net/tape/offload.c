/* offload.c - copies kept values to pinned blocks and back on two streams. */
#include "net/tape/offload.h"

#include <stdlib.h>

#include "device/dev/stall.h"
#include "net/tape/tape_impl.h"

/* Stream order.  Stream `out` copies values to the host after the compute stream has made them.  The compute stream
 * waits for that copy before the device memory is freed, which happens when the next region evicts its values.  Stream
 * `in` copies to memory of the compute stream, which waits for it before the value is used.  `out` overwrites a host
 * block only after the compute stream has waited for the copy of `in` from that block. */

struct host_block { /* of pinned host memory */
	struct host_block *next;
	void *p;
	size_t bytes;
};

enum offload_state { COPYING_OUT, ON_HOST, COPYING_IN };

struct vfm_offloaded {
	struct vfm_offload *o;
	enum offload_state state;
	struct host_block *host;
	struct vfm_event *copied; /* the last copy, out or in */
};

struct vfm_offload {
	struct vfm_stream *compute, *out, *in;
	struct vfm_event *fork;
	struct vfm_store **evicting; /* [n_evicting] values of the last region, still on the device */
	size_t n_evicting, cap_evicting;
	struct host_block *idle;
	int64_t bytes;
	struct vfm_offloaded *free_list[64]; /* free structs, with their events */
	int n_free;
};

static void block_free(struct vfm_offload *o, struct host_block *b)
{
	struct vfm_dev *d = o->compute->dev;

	o->bytes -= (int64_t)b->bytes;
	d->t->free_host(d, b->p, b->bytes);
	free(b);
}

static struct host_block *take(struct host_block **p)
{
	struct host_block *b = *p;

	*p = b->next;
	return b;
}

struct vfm_offload *vfm_offload_new(struct vfm_stream *compute, struct vfm_err *err)
{
	const struct vfm_dev_table *t = compute->dev->t;
	struct vfm_offload *o = vfm_calloc(1, sizeof(*o));

	o->compute = compute;
	o->out = t->stream_new(compute->dev, true, err);
	o->in = o->out ? t->stream_new(compute->dev, true, err) : NULL;
	if (o->in)
		return o;
	vfm_offload_free(o);
	return NULL;
}

void vfm_offload_free(struct vfm_offload *o)
{
	const struct vfm_dev_table *t;

	if (!o)
		return;
	t = o->compute->dev->t;
	if (o->out)
		t->stream_sync(o->out, &(struct vfm_err){0}); /* failures were reported by the waits */
	if (o->in)
		t->stream_sync(o->in, &(struct vfm_err){0});
	for (int i = 0; i < o->n_free; i++) {
		t->event_free(o->free_list[i]->copied);
		free(o->free_list[i]);
	}
	while (o->idle)
		block_free(o, take(&o->idle));
	if (o->fork)
		t->event_free(o->fork);
	t->stream_free(o->out);
	t->stream_free(o->in);
	free(o->evicting);
	free(o);
}

int64_t vfm_offload_bytes(const struct vfm_offload *o)
{
	return o->bytes;
}

/* Returns the place in the list of the smallest idle block of at least `least` and less than `end` bytes; NULL if there
 * is none. */
static struct host_block **idle_block(struct vfm_offload *o, size_t least, size_t end)
{
	struct host_block **best = NULL;

	for (struct host_block **p = &o->idle; *p; p = &(*p)->next)
		if ((*p)->bytes >= least && (*p)->bytes < end && (!best || (*p)->bytes < (*best)->bytes))
			best = p;
	return best;
}

static struct host_block *block_new(struct vfm_offload *o, size_t bytes, struct vfm_err *err)
{
	struct vfm_dev *d = o->compute->dev;
	struct host_block *b = vfm_calloc(1, sizeof(*b));

	b->p = d->t->alloc_host(d, bytes, "offloaded activations", err);
	if (!b->p) {
		free(b);
		vfm_err_context(err,
			"train.offload=activations, with %.2f GiB on the host (train.host_gib limits them)",
			(double)o->bytes / (1 << 30));
		return NULL;
	}
	b->bytes = bytes;
	o->bytes += (int64_t)bytes;
	return b;
}

/* Returns a block of at least this size.  Packs differ, so a block serves values down to half its size, and a value
 * that is too large for an idle block replaces it. */
static struct host_block *block_get(struct vfm_offload *o, size_t bytes, struct vfm_err *err)
{
	const struct vfm_dev_table *t = o->compute->dev->t;
	struct host_block **p = idle_block(o, bytes, 2 * bytes + 1);

	if (p)
		return take(p);
	p = idle_block(o, bytes / 2, bytes);
	if (p) {
		if (t->stream_sync(o->out, err) < 0 || t->stream_sync(o->in, err) < 0)
			return NULL;
		block_free(o, take(p));
	}
	return block_new(o, bytes, err);
}

static struct vfm_offloaded *offloaded_new(struct vfm_offload *o, struct vfm_err *err)
{
	struct vfm_offloaded *a;

	if (o->n_free > 0)
		return o->free_list[--o->n_free];
	a = vfm_calloc(1, sizeof(*a));
	a->o = o;
	a->copied = o->compute->dev->t->event_new(o->compute->dev, err);
	if (a->copied)
		return a;
	free(a);
	return NULL;
}

static void offloaded_release(struct vfm_offloaded *a)
{
	struct vfm_offload *o = a->o;

	if (a->host) {
		a->host->next = o->idle;
		o->idle = a->host;
		a->host = NULL;
	}
	if (o->n_free < (int)(sizeof(o->free_list) / sizeof(o->free_list[0]))) {
		o->free_list[o->n_free++] = a;
		return;
	}
	o->compute->dev->t->event_free(a->copied);
	free(a);
}

int vfm_offload_drain(struct vfm_offload *o, struct vfm_err *err)
{
	while (o->n_evicting > 0) {
		struct vfm_store *s = o->evicting[--o->n_evicting];

		TRY(vfm_stall_wait(s->offloaded->copied, o->compute, VFM_STALL_COPY, err));
		vfm_dev_free(s->stream, s->data, s->bytes);
		s->data = NULL;
		s->offloaded->state = ON_HOST;
	}
	return 0;
}

/* Forgets the eviction of a value that stays on the device. */
static void forget_eviction(struct vfm_offload *o, const struct vfm_store *s)
{
	size_t n = 0;

	for (size_t i = 0; i < o->n_evicting; i++)
		if (o->evicting[i] != s)
			o->evicting[n++] = o->evicting[i];
	o->n_evicting = n;
}

int vfm_store_evict(struct vfm_offload *o, struct vfm_store *s, struct vfm_err *err)
{
	const struct vfm_dev_table *t = o->compute->dev->t;
	struct vfm_offloaded *a;

	if (s->offloaded || s->bytes == 0)
		return 0;
	a = offloaded_new(o, err);
	if (!a)
		return VFM_EENV;
	a->state = COPYING_OUT;
	a->host = block_get(o, s->bytes, err);
	if (!a->host) {
		offloaded_release(a);
		return VFM_EENV;
	}
	s->offloaded = a;
	TRY(vfm_stream_follow(o->out, o->compute, &o->fork, err));
	TRY(t->to_host(o->out, a->host->p, s->data, s->bytes, err));
	TRY(t->event_record(a->copied, o->out, err));
	vfm_grow(&o->evicting, &o->cap_evicting, o->n_evicting + 1, sizeof(*o->evicting));
	o->evicting[o->n_evicting++] = s;
	return 0;
}

int vfm_store_fetch(struct vfm_offload *o, struct vfm_store *s, struct vfm_err *err)
{
	const struct vfm_dev_table *t = o->compute->dev->t;

	if (!s->offloaded || s->offloaded->state != ON_HOST)
		return 0;
	s->data = vfm_dev_alloc(s->stream, s->bytes, "activations", err);
	if (!s->data)
		return VFM_EENV;
	s->offloaded->state = COPYING_IN;
	TRY(vfm_stream_follow(o->in, o->compute, &o->fork,
		err)); /* also orders the copy to the host first: the compute stream has waited for it */
	TRY(t->to_device(o->in, s->data, s->offloaded->host->p, s->bytes, err));
	return t->event_record(s->offloaded->copied, o->in, err);
}

int vfm_store_arrive(struct vfm_offload *o, struct vfm_store *s, struct vfm_err *err)
{
	if (!s->offloaded)
		return 0;
	forget_eviction(o, s);
	/* A value that is still on the device must not be overwritten before its copy is done. */
	TRY(vfm_stall_wait(s->offloaded->copied, o->compute, VFM_STALL_COPY, err));
	offloaded_release(s->offloaded);
	s->offloaded = NULL;
	return 0;
}

void vfm_store_drop_offloaded(struct vfm_store *s)
{
	struct vfm_offloaded *a = s->offloaded;

	if (!a)
		return;
	forget_eviction(a->o, s);
	/* The next use of these streams reports a failure. */
	if (a->state != ON_HOST)
		(void)vfm_stall_wait(a->copied, a->o->compute, VFM_STALL_COPY, &(struct vfm_err){0});
	offloaded_release(a);
	s->offloaded = NULL;
}

void vfm_tape_set_offload(struct vfm_tape *t, struct vfm_offload *o)
{
	t->offload = o;
}
