/* pack_groups.c - groups packs of similar cost that can form a step, and joins incomplete groups. */
#include "data/plan/pack_groups.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

void vfm_pack_groups_shuffle(struct vfm_pack_groups *g, struct vfm_pack_group *a, size_t n, uint64_t id)
{
	uint32_t *order = vfm_calloc(n + 1, sizeof(*order));

	vfm_grow(&g->sorted, &g->cap_sorted, n, sizeof(*g->sorted));
	for (size_t i = 0; i < n; i++)
		order[i] = (uint32_t)i;
	vfm_shuffle(order, (int64_t)n, g->seed, g->round, id);
	for (size_t i = 0; i < n; i++)
		g->sorted[i] = a[order[i]];
	if (n)
		memcpy(a, g->sorted, n * sizeof(*a));
	free(order);
}

static void reserve_packs(struct vfm_pack_groups *g, int32_t n_packs, int32_t n_samples)
{
	vfm_grow(&g->packs, &g->cap_packs, g->n_packs + (size_t)n_packs, sizeof(*g->packs));
	vfm_grow(&g->samples, &g->cap_samples, g->n_samples + (size_t)n_samples, sizeof(*g->samples));
}

/* Copies the packs of a group, and their samples, after all others, where there is room for them. */
static void copy_packs(struct vfm_pack_groups *g, const struct vfm_ready_pack *packs,
	const struct vfm_blend_sample *samples, const struct vfm_pack_group *x)
{
	memcpy(g->packs + g->n_packs, packs + x->first_pack, (size_t)x->n_packs * sizeof(*packs));
	memcpy(g->samples + g->n_samples, samples + x->first, (size_t)x->n * sizeof(*samples));
	g->n_packs += (size_t)x->n_packs;
	g->n_samples += (size_t)x->n;
}

/* Removes the groups with n 0 of a list. */
static void compact_groups(struct vfm_pack_groups *g, struct vfm_pack_group *a, size_t *n_groups)
{
	size_t n = 0;

	for (size_t i = 0; i < *n_groups; i++) {
		struct vfm_pack_group x = a[i];

		if (x.n == 0)
			continue;
		reserve_packs(g, x.n_packs, x.n);
		copy_packs(g, g->old_packs, g->old_samples, &x);
		x.first_pack = (int64_t)g->n_packs - x.n_packs;
		x.first = (int64_t)g->n_samples - x.n;
		a[n++] = x;
	}
	*n_groups = n;
}

void vfm_pack_groups_compact(struct vfm_pack_groups *g)
{
	struct vfm_blend_sample *samples = g->old_samples;
	struct vfm_ready_pack *packs = g->old_packs;
	size_t cap = g->cap_old, cap_packs = g->cap_old_packs;

	g->old_samples = g->samples;
	g->old_packs = g->packs;
	g->cap_old = g->cap_samples;
	g->cap_old_packs = g->cap_packs;
	g->samples = samples;
	g->packs = packs;
	g->cap_samples = cap;
	g->cap_packs = cap_packs;
	g->n_samples = g->n_packs = 0;
	compact_groups(g, g->ready, &g->n_ready);
	compact_groups(g, g->partial, &g->n_partial);
}

void vfm_pack_groups_add(struct vfm_pack_groups *g, const struct vfm_pack_group *x)
{
	bool ready = x->parts == g->parts;
	struct vfm_pack_group **to = ready ? &g->ready : &g->partial;
	size_t *n = ready ? &g->n_ready : &g->n_partial;

	vfm_grow(to, ready ? &g->cap_ready : &g->cap_partial, *n + 1, sizeof(**to));
	(*to)[(*n)++] = *x;
}

int vfm_pack_group_by_cost(const void *a, const void *b)
{
	const struct vfm_pack_group *x = a, *y = b;

	if (x->cost != y->cost)
		return x->cost > y->cost ? -1 : 1;
	return (x->first > y->first) - (x->first < y->first);
}

/* Makes one group of two. */
static void join_groups(struct vfm_pack_groups *g, struct vfm_pack_group *a, struct vfm_pack_group *b)
{
	struct vfm_pack_group x = {.first_pack = (int64_t)g->n_packs,
		.first = (int64_t)g->n_samples,
		.n_packs = a->n_packs + b->n_packs,
		.n = a->n + b->n,
		.parts = a->parts + b->parts,
		.cost = a->cost > b->cost ? a->cost : b->cost};

	reserve_packs(g, x.n_packs, x.n);
	copy_packs(g, g->packs, g->samples, a);
	copy_packs(g, g->packs, g->samples, b);
	a->n = b->n = 0;
	vfm_pack_groups_add(g, &x);
}

/* Gives each pack of a group twice as many parts. */
static void double_parts(struct vfm_pack_groups *g, struct vfm_pack_group *old)
{
	struct vfm_pack_group x = *old;

	old->n = 0;
	for (int32_t i = 0; i < x.n_packs; i++)
		g->packs[x.first_pack + i].parts *= 2;
	x.parts *= 2;
	x.cost /= 2;
	vfm_pack_groups_add(g, &x);
}

/* Moves the incomplete groups with `parts` parts to the end of the incomplete ones.  Returns their number. */
static size_t gather_partial(struct vfm_pack_groups *g, int32_t parts)
{
	size_t n = g->n_partial, kept = 0, found = 0;

	vfm_grow(&g->sorted, &g->cap_sorted, n, sizeof(*g->sorted));
	for (size_t i = 0; i < n; i++)
		if (g->partial[i].n && g->partial[i].parts == parts)
			g->sorted[found++] = g->partial[i];
		else if (g->partial[i].n)
			g->partial[kept++] = g->partial[i];
	if (found)
		memcpy(g->partial + kept, g->sorted, found * sizeof(*g->sorted));
	g->n_partial = kept + found;
	return found;
}

void vfm_pack_groups_join(struct vfm_pack_groups *g, bool end)
{
	for (int32_t parts = 1; parts < g->parts; parts *= 2) {
		size_t n = gather_partial(g, parts), first = g->n_partial - n, at = first;

		if (g->by_cost && n)
			qsort(g->partial + first, n, sizeof(*g->partial), vfm_pack_group_by_cost);
		else
			vfm_pack_groups_shuffle(g, g->partial + first, n, VFM_SHUFFLE_PACKS + 4);
		for (; at + 2 <= first + n; at += 2) {
			struct vfm_pack_group two[] = {g->partial[at], g->partial[at + 1]};

			g->partial[at].n = g->partial[at + 1].n = 0;
			join_groups(g, &two[0], &two[1]);
		}
		if (end && at < first + n) {
			struct vfm_pack_group last = g->partial[at];

			g->partial[at].n = 0;
			double_parts(g, &last);
		}
	}
	gather_partial(g, 0); /* drops those with n 0 */
}

int64_t vfm_pack_groups_parts(const struct vfm_pack_groups *g)
{
	int64_t parts = (int64_t)g->n_ready * g->parts;

	for (size_t i = 0; i < g->n_partial; i++)
		parts += g->partial[i].parts;
	return parts;
}

void vfm_pack_groups_release(struct vfm_pack_groups *g)
{
	free(g->ready);
	free(g->sorted);
	free(g->partial);
	free(g->packs);
	free(g->old_packs);
	free(g->samples);
	free(g->old_samples);
}
