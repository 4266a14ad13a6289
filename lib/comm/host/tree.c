/* tree.c - parent and children of a rank in the tree of monitors. */
#include <stdlib.h>

#include "base/mem.h"
#include "comm/host/monitor_impl.h"

int vfm_tree_parent(const struct vfm_rank_tree *t, int rank)
{
	int node = t->node_of[rank];

	if (t->first[node] != rank)
		return t->first[node];
	return node == 0 ? -1 : t->first[(node - 1) / VFM_TREE_FANOUT];
}

bool vfm_tree_is_above(const struct vfm_rank_tree *t, int above, int rank)
{
	while (rank >= 0 && rank != above)
		rank = vfm_tree_parent(t, rank);
	return rank == above;
}

void vfm_tree_init(struct vfm_rank_tree *t, const int *node_of, int size, int self)
{
	int node = node_of[self];

	*t = (struct vfm_rank_tree){.node_of = node_of, .size = size};
	t->first = vfm_calloc((size_t)size, sizeof(*t->first));
	t->child = vfm_calloc((size_t)size, sizeof(*t->child));
	for (int r = 0; r < size; r++)
		if (node_of[r] == t->nodes)
			t->first[t->nodes++] = r;
	t->parent = vfm_tree_parent(t, self);
	if (t->first[node] != self)
		return;
	for (int k = VFM_TREE_FANOUT * node + 1; k <= VFM_TREE_FANOUT * (node + 1) && k < t->nodes; k++)
		t->child[t->n++] = t->first[k];
	for (int r = self + 1; r < size; r++)
		if (node_of[r] == node)
			t->child[t->n++] = r;
}

void vfm_tree_release(struct vfm_rank_tree *t)
{
	free(t->first);
	free(t->child);
	*t = (struct vfm_rank_tree){0};
}
