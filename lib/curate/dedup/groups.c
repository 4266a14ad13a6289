/* groups.c - adds sorted pairs, and compares a member with the representative of its partner. */
#include "curate/dedup/groups.h"

#include <stdlib.h>

#include "base/mem.h"

void vfm_groups_init(struct vfm_groups *g, int64_t n, int64_t fixed)
{
	*g = (struct vfm_groups){.n = n, .fixed = fixed};
	g->of = vfm_calloc((size_t)n + 1, sizeof(*g->of));
	for (int64_t i = 0; i < n; i++)
		g->of[i].of = g->of[i].member = (uint32_t)i;
}

void vfm_groups_release(struct vfm_groups *g)
{
	free(g->of);
	*g = (struct vfm_groups){0};
}

static int compare_duplicates(const void *a, const void *b)
{
	const struct vfm_duplicate *p = a, *q = b;

	if (p->member != q->member)
		return p->member < q->member ? -1 : 1;
	if (p->distance != q->distance)
		return p->distance < q->distance ? -1 : 1;
	return p->of < q->of ? -1 : p->of > q->of;
}

int vfm_groups_add(struct vfm_groups *g, struct vfm_duplicate *pairs, size_t n, vfm_groups_compare compare, void *ctx,
	struct vfm_err *err)
{
	if (n)
		qsort(pairs, n, sizeof(*pairs), compare_duplicates);
	for (size_t i = 0; i < n; i++) {
		struct vfm_duplicate d = pairs[i];
		int rc = 1;

		if (d.member < g->fixed || vfm_groups_is_member(g, d.member))
			continue;
		if (vfm_groups_is_member(g, d.of)) {
			uint32_t root = g->of[d.of].of;

			rc = vfm_groups_is_member(g, root) || root >= d.member ? 0
									       : compare(ctx, d.member, root, &d, err);
		}
		TRY(rc);
		if (rc == 1)
			g->of[d.member] = d;
	}
	return 0;
}

int vfm_groups_finish(struct vfm_groups *g, vfm_groups_compare compare, void *ctx, struct vfm_err *err)
{
	for (int64_t i = g->fixed; i < g->n; i++) {
		uint32_t of = g->of[i].of, root = g->of[of].of;
		int rc;

		if (of == (uint32_t)i || root == of)
			continue;
		rc = compare(ctx, (uint32_t)i, root, &g->of[i], err); /* items before i are final */
		TRY(rc);
		if (rc == 0)
			g->of[i] = (struct vfm_duplicate){.member = (uint32_t)i, .of = (uint32_t)i};
	}
	return 0;
}
