/* sim_memory.c - memory by owner over a step, in a bounded number of intervals. */
#include "device/sim/sim_memory.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "device/sim/sim_impl.h"

/* An interval of launches, at the call with the largest sum. */
struct memory_interval {
	size_t launch; /* number of the next launch since open */
	int64_t used;  /* -1: no state yet */
};

struct sim_memory {
	struct memory_interval at[VFM_SIM_MEMORY_POINTS];
	int64_t *bytes; /* [VFM_SIM_MEMORY_POINTS + 1, owners]: of each interval; the last row at the peak */
	size_t owners;
	size_t first, width; /* interval i has the launches from first + i * width on */
	size_t last;         /* interval of the last call */
	int64_t used, peak;
	size_t peak_launch;
	bool peak_in_step; /* a call since the last clear reached the peak */
};

static int64_t *memory_row(const struct sim_memory *m, size_t i)
{
	return m->bytes + i * m->owners;
}

static void widen_rows(struct sim_memory *m, size_t owners)
{
	size_t wide = m->owners ? m->owners : 32;
	int64_t *bytes;

	while (wide < owners)
		wide *= 2;
	if (wide == m->owners)
		return;
	bytes = vfm_calloc((VFM_SIM_MEMORY_POINTS + 1) * wide, sizeof(*bytes));
	for (size_t i = 0; i <= VFM_SIM_MEMORY_POINTS && m->owners; i++)
		memcpy(bytes + i * wide, memory_row(m, i), m->owners * sizeof(*bytes));
	free(m->bytes);
	m->bytes = bytes;
	m->owners = wide;
}

static void keep_state(struct sim_memory *m, const struct vfm_holders *h, size_t row)
{
	int64_t *to;

	widen_rows(m, h->n);
	to = memory_row(m, row);
	for (size_t k = 0; k < h->n; k++)
		to[k] = (int64_t)h->v[k].bytes;
	memset(to + h->n, 0, (m->owners - h->n) * sizeof(*to));
}

/* The state now is that of an interval, if its sum is the largest there. */
static void offer_state(struct sim_memory *m, const struct vfm_holders *h, size_t i, size_t launch)
{
	if (m->used <= m->at[i].used)
		return;
	m->at[i] = (struct memory_interval){launch, m->used};
	keep_state(m, h, i);
}

/* Halves the number of intervals. */
static void join_intervals(struct sim_memory *m)
{
	for (size_t i = 0; i < VFM_SIM_MEMORY_POINTS; i++) {
		size_t from = 2 * i;

		if (from >= VFM_SIM_MEMORY_POINTS) {
			m->at[i].used = -1;
			continue;
		}
		from += m->at[from + 1].used > m->at[from].used;
		m->at[i] = m->at[from];
		memmove(memory_row(m, i), memory_row(m, from), m->owners * sizeof(*m->bytes));
	}
	m->width *= 2;
	m->last /= 2;
}

/* Moves on to the launch that is next; the state now is that of all launches since the last call. */
static size_t reach_launch(struct sim_memory *m, const struct vfm_holders *h, size_t launch)
{
	size_t i;

	while ((launch - m->first) / m->width >= VFM_SIM_MEMORY_POINTS)
		join_intervals(m);
	i = (launch - m->first) / m->width;
	for (size_t k = m->last + 1; k < i; k++)
		offer_state(m, h, k, m->first + k * m->width);
	if (i > m->last && launch > m->first + i * m->width)
		offer_state(m, h, i, m->first + i * m->width);
	m->last = i;
	return i;
}

static void forget_step(struct sim_memory *m)
{
	for (size_t i = 0; i < VFM_SIM_MEMORY_POINTS; i++)
		m->at[i].used = -1;
	m->width = 1;
	m->last = 0;
}

/* A step before may have had as much. */
static void note_peak(struct sim_memory *m, const struct vfm_holders *h, size_t launch)
{
	if (m->used < m->peak || (m->used == m->peak && m->peak_in_step))
		return;
	m->peak = m->used;
	m->peak_launch = launch;
	m->peak_in_step = true;
	keep_state(m, h, VFM_SIM_MEMORY_POINTS);
}

void vfm_sim_record_memory(struct vfm_dev *dev)
{
	struct sim *d = sim_of(dev);

	d->memory = vfm_calloc(1, sizeof(*d->memory));
	forget_step(d->memory);
	d->memory->first = d->cleared + d->n;
	for (size_t k = 0; k < d->holders.n; k++)
		d->memory->used += (int64_t)d->holders.v[k].bytes;
	widen_rows(d->memory, 1);
	note_peak(d->memory, &d->holders, d->memory->first);
	offer_state(d->memory, &d->holders, 0, d->memory->first);
}

void sim_memory_change(struct sim *d, uint32_t owner, int64_t bytes)
{
	struct sim_memory *m = d->memory;
	size_t launch = d->cleared + d->n, i = m ? reach_launch(m, &d->holders, launch) : 0;

	d->holders.v[owner].bytes += (uint64_t)bytes;
	if (!m)
		return;
	m->used += bytes;
	offer_state(m, &d->holders, i, launch);
	note_peak(m, &d->holders, launch);
}

void sim_memory_clear(struct sim *d)
{
	struct sim_memory *m = d->memory;

	if (!m)
		return;
	forget_step(m);
	m->first = d->cleared;
	m->peak_in_step = false;
	note_peak(m, &d->holders, m->first);
	offer_state(m, &d->holders, 0, m->first);
}

void sim_memory_free(struct sim_memory *m)
{
	if (m)
		free(m->bytes);
	free(m);
}

/* ---- the result ---- */

/* Returns when the compute stream begins the next launch, from number `from` on; else when its last one ends.  *at:
 * where to search from, for ascending numbers. */
static double time_of_launch(const struct sim *d, size_t from, size_t *at)
{
	double end = 0;

	for (*at = *at > from - d->cleared ? *at : from - d->cleared; *at < d->n; ++*at)
		if (d->launch[*at].stream == 0)
			return d->launch[*at].begin[VFM_MID];
	for (size_t i = d->n; i-- > 0;)
		if (d->launch[i].stream == 0) {
			const struct vfm_sim_launch *l = &d->launch[i];

			end = l->begin[VFM_MID] + (double)l->gap[VFM_MID] + (double)l->wait[VFM_MID] +
				(double)l->work[VFM_MID];
			break;
		}
	return end;
}

struct owner_order {
	struct vfm_sim_owner o;
	size_t id;
};

static int compare_owners(const void *a, const void *b)
{
	const struct owner_order *x = a, *y = b;

	if (x->o.at_peak != y->o.at_peak)
		return x->o.at_peak > y->o.at_peak ? -1 : 1;
	return strcmp(x->o.name, y->o.name);
}

static struct owner_order *order_owners(const struct sim *d)
{
	const struct vfm_holders *h = &d->holders;
	struct owner_order *v = vfm_calloc(h->n + 1, sizeof(*v));

	for (size_t k = 0; k < h->n; k++) {
		memcpy(v[k].o.name, h->v[k].name, sizeof(v[k].o.name));
		v[k].o.at_peak = memory_row(d->memory, VFM_SIM_MEMORY_POINTS)[k];
		v[k].id = k;
	}
	qsort(v, h->n, sizeof(*v), compare_owners);
	return v;
}

void vfm_sim_memory(struct vfm_dev *dev, double begin, struct vfm_sim_memory *out)
{
	struct sim *d = sim_of(dev);
	struct sim_memory *m = d->memory;
	struct owner_order *order;
	size_t at = 0, n = d->holders.n;

	*out = (struct vfm_sim_memory){0};
	if (!m)
		return;
	widen_rows(m, n);
	reach_launch(m, &d->holders, d->cleared + d->n);
	offer_state(m, &d->holders, m->last, d->cleared + d->n);
	order = order_owners(d);
	*out = (struct vfm_sim_memory){.owner = vfm_calloc(n + 1, sizeof(*out->owner)),
		.owners = (int)n,
		.peak = m->peak,
		.peak_s = -1,
		.point = vfm_calloc(VFM_SIM_MEMORY_POINTS, sizeof(*out->point)),
		.bytes = vfm_calloc(VFM_SIM_MEMORY_POINTS * n + 1, sizeof(*out->bytes))};
	for (size_t k = 0; k < n; k++)
		out->owner[k] = order[k].o;
	for (size_t i = 0; i < VFM_SIM_MEMORY_POINTS; i++) {
		if (m->at[i].used < 0)
			continue;
		for (size_t k = 0; k < n; k++)
			out->bytes[(size_t)out->points * n + k] = memory_row(m, i)[order[k].id];
		out->point[out->points++] =
			(struct vfm_sim_memory_point){time_of_launch(d, m->at[i].launch, &at) - begin, m->at[i].used};
	}
	at = 0;
	if (m->peak_in_step)
		out->peak_s = time_of_launch(d, m->peak_launch, &at) - begin;
	free(order);
}

static void *copy_of(const void *p, size_t n, size_t size)
{
	void *copy = vfm_calloc(n + 1, size);

	if (n)
		memcpy(copy, p, n * size);
	return copy;
}

struct vfm_sim_memory vfm_sim_memory_copy(const struct vfm_sim_memory *m)
{
	size_t owners = (size_t)m->owners, points = (size_t)m->points;
	struct vfm_sim_memory c = *m;

	c.owner = copy_of(m->owner, owners, sizeof(*m->owner));
	c.point = copy_of(m->point, points, sizeof(*m->point));
	c.bytes = copy_of(m->bytes, points * owners, sizeof(*m->bytes));
	return c;
}

void vfm_sim_memory_release(struct vfm_sim_memory *m)
{
	free(m->owner);
	free(m->point);
	free(m->bytes);
	*m = (struct vfm_sim_memory){0};
}
