#include "device/dev/dev.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"

void *vfm_dev_alloc(struct vfm_stream *s, size_t bytes, const char *what, struct vfm_err *err)
{
	struct vfm_dev *d = s->dev;
	void *p = d->t->alloc(s, bytes, what, err);

	if (p)
		vfm_dev_count(d, (int64_t)bytes);
	return p;
}

void *vfm_dev_borrow(struct vfm_stream *s, size_t bytes, const char *what)
{
	int64_t peak = s->dev->mem_peak;
	void *p = vfm_dev_alloc(s, bytes, what, NULL);

	s->dev->mem_peak = peak;
	return p;
}

int64_t vfm_dev_version(struct vfm_dev *d)
{
	return ++d->versions;
}

void vfm_dev_drop_copies(struct vfm_stream *s)
{
	if (s->dev->t->drop_copies)
		s->dev->t->drop_copies(s);
}

void vfm_dev_count(struct vfm_dev *d, int64_t bytes)
{
	d->mem_now += bytes;
	if (d->mem_now > d->mem_peak)
		d->mem_peak = d->mem_now;
}

void vfm_dev_free(struct vfm_stream *s, void *p, size_t bytes)
{
	if (!p)
		return;
	s->dev->mem_now -= (int64_t)bytes;
	s->dev->t->free(s, p, bytes);
}

int vfm_stream_follow(struct vfm_stream *s, struct vfm_stream *leader, struct vfm_event **e, struct vfm_err *err)
{
	const struct vfm_dev_table *t = s->dev->t;

	if (s == leader)
		return 0;
	if (!*e)
		*e = t->event_new(s->dev, err);
	if (!*e)
		return VFM_EENV;
	TRY(t->event_record(*e, leader, err));
	return t->event_wait(*e, s, err);
}

double vfm_dev_now(struct vfm_dev *d)
{
	return d->t->now ? d->t->now(d) : vfm_now();
}

void vfm_dev_peak_reset(struct vfm_dev *d)
{
	d->mem_peak = d->mem_now;
}

/* The words are never freed: a thread may be reading them. */
void vfm_dev_poison(struct vfm_dev *d, const char *why)
{
	const char *none = NULL;
	char *copy = vfm_strdup(why);

	if (!__atomic_compare_exchange_n(
		    &d->poison, &none, (const char *)copy, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		free(copy);
}

int vfm_dev_check(const struct vfm_dev *d, struct vfm_err *err)
{
	const char *why = __atomic_load_n(&d->poison, __ATOMIC_ACQUIRE);

	return why ? vfm_fail(err, VFM_EENV, "%s", why) : 0;
}
