/* tree.h - the tree of the monitors (monitor_impl.h), which follows from the placement of the ranks.  Rank 0 is the
 * root.
 *
 * The children of the first rank of a node are the other ranks of the node, and the first ranks of up to FANOUT other
 * nodes: of node k those of nodes FANOUT k + 1 to FANOUT k + FANOUT.  With 8 ranks on a node, a rank has at most 16
 * connections, and a message to the root takes at most 4 hops at 4,096 ranks.
 */
#ifndef VFM_COMM_HOST_TREE_H
#define VFM_COMM_HOST_TREE_H

#include <stdbool.h>

enum { VFM_TREE_FANOUT = 8 };

struct vfm_rank_tree {
	const int *node_of; /* [size] numbered in the order of their first ranks (launch.h) */
	int size, nodes;
	int *first; /* [nodes] the first rank of each node */
	int parent; /* of this rank; -1: it is the root */
	int n;      /* children of this rank */
	int *child; /* [n] */
};

/* Fills the tree as rank `self` sees it.  node_of must outlive it. */
void vfm_tree_init(struct vfm_rank_tree *t, const int *node_of, int size, int self);
void vfm_tree_release(struct vfm_rank_tree *t);

int vfm_tree_parent(const struct vfm_rank_tree *t, int rank); /* -1: the root */
/* Returns whether `above` is an ancestor of the rank, or the rank itself. */
bool vfm_tree_is_above(const struct vfm_rank_tree *t, int above, int rank);

#endif
