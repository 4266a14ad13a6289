/* stall.c - a ring of pairs of timed events, one pair a stall, summed by cause. */
#include "device/dev/stall.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Stalls in the ring: initially, and at most.  A block under tp and fsdp has about twenty a pack, and two steps may be
 * unread. */
enum { MIN_RING = 64, MAX_RING = 1 << 18 };

struct stall {
	struct vfm_event *from, *to; /* on an asynchronous device */
	double s;                    /* on a synchronous device */
	enum vfm_stall why;
};

struct vfm_stalls {
	struct vfm_stream *stream;
	struct stall *ring; /* [cap], a power of 2; stall i at i % cap */
	int64_t cap, put, read;
	int depth;
	bool open; /* the outermost stall is being measured */
	double wait0;
};

struct vfm_stalls *vfm_stalls_new(struct vfm_stream *s)
{
	struct vfm_stalls *st = vfm_calloc(1, sizeof(*st));

	st->stream = s;
	s->dev->stalls = st;
	return st;
}

void vfm_stalls_free(struct vfm_stalls *st)
{
	struct vfm_dev *d;

	if (!st)
		return;
	d = st->stream->dev;
	for (int64_t i = 0; i < st->cap; i++) {
		if (st->ring[i].from)
			d->t->event_free(st->ring[i].from);
		if (st->ring[i].to)
			d->t->event_free(st->ring[i].to);
	}
	if (d->stalls == st)
		d->stalls = NULL;
	free(st->ring);
	free(st);
}

/* Returns the next stall of the ring, or NULL if the ring is full.  Stalls keep their events. */
static struct stall *next_stall(struct vfm_stalls *st)
{
	int64_t cap = st->cap ? 2 * st->cap : MIN_RING;
	struct stall *ring;

	if (st->cap > 0 && st->put - st->read < st->cap)
		return &st->ring[st->put % st->cap];
	if (cap > MAX_RING)
		return NULL;
	ring = vfm_calloc((size_t)cap, sizeof(*ring));
	for (int64_t i = st->read; st->cap > 0 && i < st->put; i++)
		ring[i % cap] = st->ring[i % st->cap];
	free(st->ring);
	st->ring = ring;
	st->cap = cap;
	return &ring[st->put % cap];
}

/* Drops a measurement that fails: the next use of the stream reports the error. */
static bool record_time(struct vfm_stalls *st, struct vfm_event **e)
{
	struct vfm_dev *d = st->stream->dev;

	if (!*e)
		*e = d->t->event_new_timed(d, NULL);
	return *e && d->t->event_record(*e, st->stream, NULL) == 0;
}

static struct vfm_stalls *stalls_of(const struct vfm_stream *s)
{
	return s->dev->stalls && s->dev->stalls->stream == s ? s->dev->stalls : NULL;
}

void vfm_stall_begin(struct vfm_stream *s, enum vfm_stall why)
{
	struct vfm_stalls *st = stalls_of(s);
	struct stall *p;

	if (!st || st->depth++ > 0)
		return;
	p = next_stall(st);
	st->open = p != NULL;
	if (!p)
		return;
	p->why = why;
	if (s->dev->async)
		st->open = record_time(st, &p->from);
	else
		st->wait0 = s->dev->wait_s;
}

void vfm_stall_end(struct vfm_stream *s)
{
	struct vfm_stalls *st = stalls_of(s);
	struct stall *p;

	if (!st || st->depth == 0 || --st->depth > 0 || !st->open)
		return;
	st->open = false;
	p = &st->ring[st->put % st->cap];
	if (!s->dev->async)
		p->s = s->dev->wait_s - st->wait0;
	else if (!record_time(st, &p->to))
		return;
	st->put++;
}

int vfm_stall_wait(struct vfm_event *e, struct vfm_stream *s, enum vfm_stall why, struct vfm_err *err)
{
	int rc;

	vfm_stall_begin(s, why);
	rc = s->dev->t->event_wait(e, s, err);
	vfm_stall_end(s);
	return rc;
}

int64_t vfm_stalls_mark(const struct vfm_stalls *st)
{
	return st->put;
}

void vfm_stalls_between(struct vfm_stalls *st, int64_t a, int64_t b, double s[VFM_STALLS])
{
	struct vfm_dev *d = st->stream->dev;
	double one;

	memset(s, 0, VFM_STALLS * sizeof(*s));
	for (; st->read < b; st->read++) {
		const struct stall *p = &st->ring[st->read % st->cap];

		if (st->read < a)
			continue;
		one = p->s;
		if (d->async && d->t->event_elapsed(p->from, p->to, &one, NULL) < 0)
			continue;
		s[p->why] += one;
	}
}
