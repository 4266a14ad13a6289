#include "dev/mapped.h"

#include <stdlib.h>

#include "base/mem.h"

void vfm_mapped_init(struct vfm_mapped *m, const struct vfm_mapped_table *t, void *ctx)
{
	*m = (struct vfm_mapped){.t = t, .ctx = ctx};
}

int vfm_mapped_zone(struct vfm_mapped *m, uint64_t size, uint64_t chunk, uint64_t grain)
{
	struct vfm_mapped_zone *z = &m->zone[m->zones];

	z->size = size;
	z->chunk = chunk;
	z->heap = vfm_heap_new(size, grain);
	z->mapped = vfm_calloc(size / chunk, sizeof(*z->mapped));
	return m->zones++;
}

static bool unmap_chunk(struct vfm_mapped *m, int zone, uint64_t i)
{
	struct vfm_mapped_zone *z = &m->zone[zone];

	if (!z->mapped[i] || m->t->unmap(m->ctx, zone, i) < 0)
		return false;
	z->mapped[i] = false;
	m->bytes -= z->chunk;
	return true;
}

void vfm_mapped_release(struct vfm_mapped *m)
{
	for (int k = 0; k < m->zones; k++) {
		struct vfm_mapped_zone *z = &m->zone[k];

		for (uint64_t i = 0; i < z->size / z->chunk; i++)
			unmap_chunk(m, k, i);
		vfm_heap_free(z->heap);
		free(z->mapped);
	}
	*m = (struct vfm_mapped){0};
}

/* Unmaps chunks that lie completely in [from, to) until `want` bytes are free.  Returns the bytes freed. */
static uint64_t unmap_within(struct vfm_mapped *m, int zone, uint64_t from, uint64_t to, uint64_t want)
{
	uint64_t chunk = m->zone[zone].chunk, got = 0;

	for (uint64_t i = (from + chunk - 1) / chunk; got < want && (i + 1) * chunk <= to; i++)
		if (unmap_chunk(m, zone, i))
			got += chunk;
	return got;
}

/* Unmaps the space above all ranges in use first: its next use is the furthest away. */
static uint64_t reclaim(struct vfm_mapped *m, uint64_t want)
{
	struct vfm_heap_stats st;
	uint64_t got = 0;

	if (m->t->drain(m->ctx) < 0)
		return 0;
	for (int k = m->zones - 1; k >= 0 && got < want; k--) {
		struct vfm_mapped_zone *z = &m->zone[k];

		vfm_heap_stats(z->heap, &st);
		got += unmap_within(m, k, st.top, z->size, want - got);
	}
	for (int k = m->zones - 1; k >= 0 && got < want; k--) {
		uint64_t at = 0, size;

		for (; got < want && (size = vfm_heap_hole(m->zone[k].heap, at, &at)) != 0; at += size)
			got += unmap_within(m, k, at, at + size, want - got);
	}
	return got;
}

/* Maps the chunks of a range.  The heap has allocated the range, so reclaim does not unmap its chunks. */
static int map_range(struct vfm_mapped *m, int zone, uint64_t at, uint64_t bytes, struct vfm_err *err)
{
	struct vfm_mapped_zone *z = &m->zone[zone];
	uint64_t first = at / z->chunk, end = (at + bytes + z->chunk - 1) / z->chunk, missing = 0;
	bool again = true;

	for (uint64_t i = first; i < end; i++)
		missing += !z->mapped[i];
	for (uint64_t i = first; i < end && missing; i++) {
		int rc;

		if (z->mapped[i])
			continue;
		rc = m->t->map(m->ctx, zone, i, err);
		if (rc == VFM_MAPPED_FULL && again) {
			again = false;
			reclaim(m, missing * z->chunk);
			rc = m->t->map(m->ctx, zone, i, err);
		}
		if (rc != 0)
			return rc;
		z->mapped[i] = true;
		m->bytes += z->chunk;
		missing--;
	}
	return 0;
}

int vfm_mapped_take(struct vfm_mapped *m, int zone, uint64_t bytes, uint32_t tag, uint64_t *at, struct vfm_err *err)
{
	struct vfm_heap *h = m->zone[zone].heap;
	int64_t got = vfm_heap_take(h, bytes, tag);
	int rc;

	if (got < 0)
		return VFM_MAPPED_FULL;
	rc = map_range(m, zone, (uint64_t)got, bytes ? bytes : 1, err);
	if (rc != 0)
		vfm_heap_give(h, (uint64_t)got, NULL);
	*at = (uint64_t)got;
	return rc;
}

uint64_t vfm_mapped_give(struct vfm_mapped *m, int zone, uint64_t at, uint32_t *tag)
{
	return vfm_heap_give(m->zone[zone].heap, at, tag);
}
