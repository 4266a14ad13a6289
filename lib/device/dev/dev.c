/* dev.c - allocation with owners, versions of held contents, and the measured rate of the host link. */
#include "device/dev/dev.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

void vfm_dev_trim(struct vfm_stream *s)
{
	if (s->dev->t->trim)
		s->dev->t->trim(s);
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

/* ---- the link to the host ---- */

enum { BYTES = 64 << 20, RUNS = 3 };

/* Copies once to and once from the device.  *s: seconds of the slower direction. */
static int copy_both_ways(struct vfm_stream *st, void *device, void *host, double *s)
{
	const struct vfm_dev_table *t = st->dev->t;
	double t0 = vfm_dev_now(st->dev), t1;

	TRY(t->to_device(st, device, host, BYTES, NULL));
	TRY(t->stream_sync(st, NULL));
	t1 = vfm_dev_now(st->dev);
	TRY(t->to_host(st, host, device, BYTES, NULL));
	TRY(t->stream_sync(st, NULL));
	*s = fmax(t1 - t0, vfm_dev_now(st->dev) - t1);
	return 0;
}

static int measure_host_rate(struct vfm_stream *st, void *device, void *host, double *rate)
{
	double best = INFINITY, s;

	memset(host, 0, BYTES);
	TRY(st->dev->t->stream_sync(st, NULL));
	for (int i = -1; i < RUNS; i++) { /* the first is not measured */
		TRY(copy_both_ways(st, device, host, &s));
		best = i < 0 ? best : fmin(best, s);
	}
	*rate = best > 0 ? exp2(floor(4 * log2(BYTES / best)) / 4) : 0;
	return 0;
}

double vfm_dev_host_rate(struct vfm_stream *st)
{
	static const char what[] = "a test of the link to the host";
	struct vfm_dev *d = st->dev;
	void *device, *host;

	if (d->host_rate > 0)
		return d->host_rate;
	device = vfm_dev_borrow(st, BYTES, what);
	host = device ? d->t->alloc_host(d, BYTES, what, NULL) : NULL;
	if (host && measure_host_rate(st, device, host, &d->host_rate) < 0)
		d->host_rate = 0;
	if (host)
		d->t->free_host(d, host, BYTES);
	if (device)
		vfm_dev_free(st, device, BYTES);
	return d->host_rate;
}
