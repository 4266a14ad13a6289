/* mapped.c - places ranges where the fewest chunks must be mapped, and unmaps unused ones at the limit. */
#include "device/dev/mapped.h"

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
	z->users = vfm_calloc(size / chunk, sizeof(*z->users));
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
		free(z->users);
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
	m->compactions++;
	for (int k = m->zones - 1; k >= 0 && got < want; k--) {
		struct vfm_mapped_zone *z = &m->zone[k];

		vfm_heap_stats(z->heap, &st);
		got += unmap_within(m, k, st.top, z->size, want - got);
	}
	for (int k = m->zones - 1; k >= 0 && got < want; k--) {
		uint64_t at, size;

		for (uint32_t i = 0; got < want && (i = vfm_heap_next_hole(m->zone[k].heap, i, &at, &size)) != 0;)
			got += unmap_within(m, k, at, at + size, want - got);
	}
	return got;
}

uint64_t vfm_mapped_trim(struct vfm_mapped *m)
{
	uint64_t had = m->bytes;

	if (m->bytes == m->used || m->t->drain(m->ctx) < 0)
		return 0;
	for (int k = 0; k < m->zones; k++)
		for (uint64_t i = 0; i < m->zone[k].size / m->zone[k].chunk; i++)
			if (!m->zone[k].users[i])
				unmap_chunk(m, k, i);
	return had - m->bytes;
}

/* Chunks of [at, at + bytes) without memory. */
static uint64_t count_missing(const struct vfm_mapped_zone *z, uint64_t at, uint64_t bytes)
{
	uint64_t n = 0, end = (at + bytes + z->chunk - 1) / z->chunk;

	for (uint64_t i = at / z->chunk; i < end; i++)
		n += !z->mapped[i];
	return n;
}

/* Maps the chunks of a range.  The heap has allocated the range, so reclaim does not unmap its chunks. */
static int map_range(struct vfm_mapped *m, int zone, uint64_t at, uint64_t bytes, struct vfm_err *err)
{
	struct vfm_mapped_zone *z = &m->zone[zone];
	uint64_t first = at / z->chunk, end = (at + bytes + z->chunk - 1) / z->chunk,
		 missing = count_missing(z, at, bytes);
	bool again = true;

	for (uint64_t i = first; i < end && missing; i++) {
		int rc;

		if (z->mapped[i])
			continue;
		if (again && m->limit && m->bytes + missing * z->chunk > m->limit) {
			again = false;
			reclaim(m, m->bytes + missing * z->chunk - m->limit);
			m->limit = m->bytes + missing * z->chunk > m->limit ? m->bytes + missing * z->chunk : m->limit;
		}
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

static void count_users(struct vfm_mapped *m, int zone, uint64_t at, uint64_t bytes, int change)
{
	struct vfm_mapped_zone *z = &m->zone[zone];
	uint64_t end = (at + bytes + z->chunk - 1) / z->chunk;

	for (uint64_t i = at / z->chunk; i < end; i++) {
		if (change > 0)
			m->used += z->users[i]++ ? 0 : z->chunk;
		else
			m->used -= --z->users[i] ? 0 : z->chunk;
	}
	m->used_peak = m->used > m->used_peak ? m->used : m->used_peak;
}

struct mapped_place {
	uint64_t at, missing, hole; /* hole: bytes of the hole that it is in */
};

/* Compares the placements in the free space [from, to) with the best: at its begin, and where each run of mapped
 * chunks in it begins. */
static void try_space(
	const struct vfm_mapped_zone *z, uint64_t from, uint64_t to, uint64_t bytes, struct mapped_place *best)
{
	uint64_t at = from, i;

	while (to - from >= bytes && at <= to - bytes) {
		uint64_t n = count_missing(z, at, bytes);

		if (n < best->missing || (n == best->missing && to - from < best->hole))
			*best = (struct mapped_place){at, n, to - from};
		for (i = at / z->chunk + 1; i * z->chunk < to && (!z->mapped[i] || z->mapped[i - 1]); i++)
			;
		at = i * z->chunk;
	}
}

/* Returns the placement that requires the fewest new chunks; among equals, the one in the smallest hole, then the
 * lowest. */
static struct mapped_place cheapest_place(const struct vfm_mapped_zone *z, uint64_t bytes)
{
	struct mapped_place best = {.missing = UINT64_MAX, .hole = UINT64_MAX};
	struct vfm_heap_stats st;
	uint64_t at, size;

	for (uint32_t i = 0; best.missing && (i = vfm_heap_next_hole(z->heap, i, &at, &size)) != 0;)
		try_space(z, at, at + size, bytes, &best);
	vfm_heap_stats(z->heap, &st);
	try_space(z, st.top, z->size, bytes, &best);
	return best;
}

void vfm_mapped_set_limit(struct vfm_mapped *m, int64_t bytes)
{
	if ((int64_t)m->limit < bytes)
		m->limit = (uint64_t)bytes;
}

int vfm_mapped_take(struct vfm_mapped *m, int zone, uint64_t bytes, uint32_t tag, uint64_t *at, struct vfm_err *err)
{
	struct vfm_mapped_zone *z = &m->zone[zone];
	int64_t got = vfm_heap_take(z->heap, bytes, tag);
	int rc;

	if (got < 0)
		return VFM_MAPPED_FULL;
	*at = (uint64_t)got;
	bytes = bytes ? bytes : 1;
	if (m->compactions && count_missing(z, *at, bytes)) {
		vfm_heap_give(z->heap, *at, NULL);
		*at = cheapest_place(z, bytes).at;
		if (!vfm_heap_take_at(z->heap, *at, bytes, tag))
			return VFM_MAPPED_FULL;
	}
	rc = map_range(m, zone, *at, bytes, err);
	if (rc != 0)
		vfm_heap_give(z->heap, *at, NULL);
	else
		count_users(m, zone, *at, bytes, 1);
	return rc;
}

uint64_t vfm_mapped_give(struct vfm_mapped *m, int zone, uint64_t at, uint32_t *tag)
{
	uint64_t bytes = vfm_heap_give(m->zone[zone].heap, at, tag);

	if (bytes)
		count_users(m, zone, at, bytes, -1);
	return bytes;
}
