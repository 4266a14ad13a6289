#include "device/dev/host_rate.h"

#include <math.h>
#include <string.h>

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
