#include "grad/offload.h"

#include <stdlib.h>

#include "dev/stall.h"
#include "grad/tape_impl.h"

/* Order of things.  `out` copies to the host what the compute stream has made (event `made`); the compute stream waits
 * for that copy before the memory is freed, which is put off until the next value leaves, so that it never waits in
 * fact.  `in` copies to memory that the compute stream has allocated; the compute stream waits for it before the value
 * is used.  A block of host memory is used again by `out` after the compute stream has waited for `in`: reads come
 * before writes. */

struct block { /* of the host */
	struct block *next;
	void *p;
	size_t bytes;
};

enum state { LEAVING, GONE, COMING };

struct vfm_away {
	struct vfm_offload *o;
	enum state state;
	struct block *host;
	struct vfm_event *moved; /* by the last copy, out or in */
};

struct vfm_offload {
	struct vfm_stream *compute, *out, *in;
	struct vfm_event *fork;
	struct vfm_store *leaving; /* the last one that left, still on the device; NULL: none */
	struct block *idle;
	int64_t bytes;
	struct vfm_away *free_away[64]; /* with their events */
	int n_free;
};

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
		t->stream_sync(o->out, &(struct vfm_err){0}); /* failures came out where they were waited for */
	if (o->in)
		t->stream_sync(o->in, &(struct vfm_err){0});
	for (int i = 0; i < o->n_free; i++) {
		t->event_free(o->free_away[i]->moved);
		free(o->free_away[i]);
	}
	while (o->idle) {
		struct block *b = o->idle;

		o->idle = b->next;
		t->free_host(o->compute->dev, b->p, b->bytes);
		free(b);
	}
	if (o->fork)
		t->event_free(o->fork);
	t->stream_free(o->out);
	t->stream_free(o->in);
	free(o);
}

int64_t vfm_offload_bytes(const struct vfm_offload *o)
{
	return o->bytes;
}

/* Regions keep the same sizes over and over: a block serves its own size alone. */
static struct block *block_take(struct vfm_offload *o, size_t bytes, struct vfm_err *err)
{
	struct vfm_dev *d = o->compute->dev;
	struct block *b;

	for (struct block **p = &o->idle; *p; p = &(*p)->next)
		if ((*p)->bytes == bytes) {
			b = *p;
			*p = b->next;
			return b;
		}
	b = vfm_calloc(1, sizeof(*b));
	b->p = d->t->alloc_host(d, bytes, "activations on the host", err);
	if (!b->p) {
		free(b);
		return NULL;
	}
	b->bytes = bytes;
	o->bytes += (int64_t)bytes;
	return b;
}

static struct vfm_away *away_take(struct vfm_offload *o, struct vfm_err *err)
{
	struct vfm_away *a;

	if (o->n_free > 0)
		return o->free_away[--o->n_free];
	a = vfm_calloc(1, sizeof(*a));
	a->o = o;
	a->moved = o->compute->dev->t->event_new(o->compute->dev, err);
	if (a->moved)
		return a;
	free(a);
	return NULL;
}

static void away_give(struct vfm_away *a)
{
	struct vfm_offload *o = a->o;

	if (a->host) {
		a->host->next = o->idle;
		o->idle = a->host;
		a->host = NULL;
	}
	if (o->n_free < (int)(sizeof(o->free_away) / sizeof(o->free_away[0]))) {
		o->free_away[o->n_free++] = a;
		return;
	}
	o->compute->dev->t->event_free(a->moved);
	free(a);
}

/* Frees the device memory of the store that left before, after its copy. */
static int drain_leaving(struct vfm_offload *o, struct vfm_err *err)
{
	struct vfm_store *s = o->leaving;

	o->leaving = NULL;
	if (!s)
		return 0;
	TRY(vfm_stall_wait(s->away->moved, o->compute, VFM_STALL_COPY, err));
	vfm_dev_free(s->stream, s->data, s->bytes);
	s->data = NULL;
	s->away->state = GONE;
	return 0;
}

int vfm_store_evict(struct vfm_offload *o, struct vfm_store *s, struct vfm_err *err)
{
	const struct vfm_dev_table *t = o->compute->dev->t;
	struct vfm_away *a;

	if (s->away || s->bytes == 0)
		return 0;
	TRY(drain_leaving(o, err));
	a = away_take(o, err);
	if (!a)
		return VFM_EENV;
	a->state = LEAVING;
	a->host = block_take(o, s->bytes, err);
	if (!a->host) {
		away_give(a);
		return VFM_EENV;
	}
	s->away = a;
	TRY(vfm_stream_follow(o->out, o->compute, &o->fork, err));
	TRY(t->to_host(o->out, a->host->p, s->data, s->bytes, err));
	TRY(t->event_record(a->moved, o->out, err));
	o->leaving = s;
	return 0;
}

int vfm_store_fetch(struct vfm_offload *o, struct vfm_store *s, struct vfm_err *err)
{
	const struct vfm_dev_table *t = o->compute->dev->t;

	if (!s->away || s->away->state != GONE)
		return 0;
	s->data = vfm_dev_alloc(s->stream, s->bytes, "activations", err);
	if (!s->data)
		return VFM_EENV;
	s->away->state = COMING;
	TRY(vfm_stream_follow(o->in, o->compute, &o->fork,
		err)); /* the copy to the host, too: the compute stream has waited for it */
	TRY(t->to_device(o->in, s->data, s->away->host->p, s->bytes, err));
	return t->event_record(s->away->moved, o->in, err);
}

int vfm_store_arrive(struct vfm_offload *o, struct vfm_store *s, struct vfm_err *err)
{
	if (!s->away)
		return 0;
	if (o->leaving == s)
		o->leaving = NULL;
	/* Leaving: it never went, but nobody may write to it before it has been copied. */
	TRY(vfm_stall_wait(s->away->moved, o->compute, VFM_STALL_COPY, err));
	away_give(s->away);
	s->away = NULL;
	return 0;
}

void vfm_store_away_drop(struct vfm_store *s)
{
	struct vfm_away *a = s->away;

	if (!a)
		return;
	if (a->o->leaving == s)
		a->o->leaving = NULL;
	/* A failure shows at the next use of these streams. */
	if (a->state != GONE)
		(void)vfm_stall_wait(a->moved, a->o->compute, VFM_STALL_COPY, &(struct vfm_err){0});
	away_give(a);
	s->away = NULL;
}
