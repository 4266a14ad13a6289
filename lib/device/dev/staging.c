/* staging.c - the next segment of a ring of pinned memory, and a sorted set of pinned ranges. */
#include "device/dev/staging.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct vfm_staging_chunk vfm_staging_next(struct vfm_staging *s, size_t want)
{
	struct vfm_staging_chunk p = {.leave = -1, .enter = -1};

	if (s->used == s->segment) {
		p.leave = s->cur;
		s->cur = (s->cur + 1) % s->n;
		s->used = 0;
		p.enter = s->cur;
	}
	p.at = (size_t)s->cur * s->segment + s->used;
	p.bytes = want < s->segment - s->used ? want : s->segment - s->used;
	s->used += (p.bytes + 63) / 64 * 64;
	return p;
}

/* Returns the first range that begins after p. */
static size_t range_after(const struct vfm_ranges *r, const char *p)
{
	size_t lo = 0, hi = r->n;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if ((uintptr_t)r->v[mid].p <= (uintptr_t)p)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

void vfm_ranges_add(struct vfm_ranges *r, const void *p, size_t bytes)
{
	size_t i = range_after(r, p);

	vfm_grow(&r->v, &r->cap, r->n + 1, sizeof(*r->v));
	memmove(&r->v[i + 1], &r->v[i], (r->n - i) * sizeof(*r->v));
	r->v[i] = (struct vfm_range){p, bytes};
	r->n++;
}

bool vfm_ranges_remove(struct vfm_ranges *r, const void *p)
{
	size_t i = range_after(r, p);

	if (i == 0 || r->v[i - 1].p != p)
		return false;
	memmove(&r->v[i - 1], &r->v[i], (r->n - i) * sizeof(*r->v));
	r->n--;
	return true;
}

bool vfm_ranges_hold(const struct vfm_ranges *r, const void *p, size_t bytes)
{
	size_t i = range_after(r, p), at;

	if (i == 0)
		return false;
	at = (uintptr_t)p - (uintptr_t)r->v[i - 1].p;
	return at < r->v[i - 1].bytes && bytes <= r->v[i - 1].bytes - at;
}

void vfm_ranges_release(struct vfm_ranges *r)
{
	free(r->v);
	*r = (struct vfm_ranges){0};
}
