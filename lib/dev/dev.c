#include "dev/dev.h"

void *vfm_dev_alloc(struct vfm_stream *s, size_t bytes, const char *what, struct vfm_err *err)
{
	struct vfm_dev *d = s->dev;
	void *p = d->t->alloc(s, bytes, what, err);

	if (p) {
		d->mem_now += (int64_t)bytes;
		if (d->mem_now > d->mem_peak)
			d->mem_peak = d->mem_now;
	}
	return p;
}

void vfm_dev_free(struct vfm_stream *s, void *p, size_t bytes)
{
	if (!p)
		return;
	s->dev->mem_now -= (int64_t)bytes;
	s->dev->t->free(s, p, bytes);
}

void vfm_dev_peak_reset(struct vfm_dev *d)
{
	d->mem_peak = d->mem_now;
}
