/* comm_nodes.h - two-level sums of gradients, over a group whose ranks are on several nodes.
 *
 * The ranks of a node sum in f32.  Ranks with the same place on their nodes then exchange these sums in bf16 and add
 * them in f32, in the order of the nodes.  With the sums s[i] of the nodes, an element of the result differs from the
 * exact sum by at most 2^-8 (|s[0]| + |s[1]| + ...) after a reduce_scatter.  An all_reduce also rounds the result to
 * bf16.  The order is fixed, and an all_reduce gives all ranks the same bits.
 *
 * A struct vfm_comm_nodes belongs to its group and is used on one stream at a time.
 */
#ifndef VFM_COMM_COLL_COMM_NODES_H
#define VFM_COMM_COLL_COMM_NODES_H

#include "comm/coll/comm.h"

struct vfm_comm_nodes {
	struct vfm_comm *all;    /* the group; NULL: all its ranks are on one node, and the sums have one level */
	struct vfm_comm *node;   /* its ranks on this node */
	struct vfm_comm *across; /* its ranks with the same place on their nodes; the rank in it is the node */
};

/* Collective over c, which must outlive *n.  VFM_EUSAGE: the ranks of c, in their order, do not form equal parts on the
 * nodes. */
int vfm_comm_nodes_new(struct vfm_comm *c, struct vfm_comm_nodes *n, struct vfm_err *err);
void vfm_comm_nodes_release(struct vfm_comm_nodes *n);

/* Returns the number of the node of a rank of c, a host or device communicator; 0 for self (local). */
int vfm_comm_node(struct vfm_comm *c, int rank);
/* Returns whether the ranks of c are on several nodes (local). */
bool vfm_comm_spans_nodes(struct vfm_comm *c);
/* Returns the bytes of device scratch for a reduce_scatter to shares of this size, or an all_reduce (local). */
size_t vfm_nodes_scratch(const struct vfm_comm_nodes *n, int64_t elements, bool scatter);
/* x [size * share] f32: this rank's share becomes its share of the sum; the rest of x is then undefined. */
int vfm_nodes_reduce_scatter(
	const struct vfm_comm_nodes *n, struct vfm_stream *s, struct vfm_tensor x, void *scratch, struct vfm_err *err);
/* x f32 = the sum of x. */
int vfm_nodes_all_reduce(
	const struct vfm_comm_nodes *n, struct vfm_stream *s, struct vfm_tensor x, void *scratch, struct vfm_err *err);

#endif
