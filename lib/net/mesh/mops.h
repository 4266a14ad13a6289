/* mops.h - collectives as differentiable ops.  Each has an adjoint.  All are collective over the group named.
 *
 * The rows of a variable on a rank are contiguous.  Ranks may have different numbers of rows, also none.  All ranks
 * know these numbers from the token layout (spec/layout/tokens.h), which must stay alive until the end of the backward.
 * Over a group of one each op returns its input.  The ops run on the communication stream of the mesh, if it has one
 * (mesh->comm_stream).  Meanwhile those of a backward compute deferred gradients of weights.  Ring attention has its
 * own stream.  tp_linear.h has the tensor-parallel linear layers.
 */
#ifndef VFM_NET_MESH_MOPS_H
#define VFM_NET_MESH_MOPS_H

#include "net/mesh/mesh.h"
#include "net/tape/gops.h"
#include "spec/layout/tokens.h"

/* The layout of attention over the tokens of a cp group, computed once per pack on the host and the device. */
struct vfm_attn_layout {
	const struct vfm_mesh *mesh;
	const struct vfm_tokens *tok;
	struct vfm_seqs own; /* samples in the rows of this cp rank, for the queries of cross-attention */
	int n_ring;
	/* [n_ring]: samples in the rows of each ring position, on host and device; [ring_i] is this rank's position */
	struct vfm_seqs *block;
	/* a2a > 1: [rows of this ring position] i32 (vfm_tokens_ring_order); else absent */
	struct vfm_tensor order;
	struct vfm_tensor inverse; /* of order */
	struct vfm_stream *stream;
	void *mem;
	size_t bytes;
};
/* tok must outlive l.  Local. */
int vfm_attn_layout_make(struct vfm_attn_layout *l, const struct vfm_mesh *m, const struct vfm_tokens *tok,
	struct vfm_stream *s, struct vfm_err *err);
void vfm_attn_layout_release(struct vfm_attn_layout *l);

/* Self-attention over all tokens of each sample.  q [R,H,d], k, v [R,Hkv,d] -> [R, H*d], with R the rows of this cp
 * rank and H the heads of this tp rank.  q, k, v may be views.  The a2a group exchanges heads for rows before
 * attention, and back after it (H and Hkv are multiples of a2a).  In the ring, blocks of k, v move from rank to rank
 * while each rank computes attention to its current block.  Partial results are merged by their log-sum-exp.  In the
 * backward the gradients of a block move with it.  With cp 1 this is vfm_g_attn.  Selective recompute keeps the output
 * and lse. */
struct vfm_var *vfm_m_attn(struct vfm_tape *t, struct vfm_var *q, struct vfm_var *k, struct vfm_var *v,
	const struct vfm_attn_layout *l, float scale);

/* vfm_g_row_norm_rope of tensors with the heads of this tp rank: the norm is over those of all tp ranks. */
void vfm_m_row_norm_rope(
	struct vfm_tape *t, const struct vfm_mesh *m, const struct vfm_qk_args *args, struct vfm_var **y);

/* A redistribution of rows from one division of tokens to another: numbers of rows and permutations of this rank. */
struct vfm_redist {
	int64_t *send, *recv; /* [size of the group]: rows to and from each rank */
	int64_t n_send, n_recv;
	struct vfm_tensor gather; /* [n_send] i32: row of x for each row of the send buffer; absent: identity */
	/* [n_recv] i32: row of the receive buffer for each row of y; absent: identity */
	struct vfm_tensor place;
	struct vfm_tensor gather_inv, place_inv; /* their inverses: both are permutations */
};
/* Redistributes the rows of x over m->group[axis] -> y, the rows of the new division.  Backward: the inverse. */
struct vfm_var *vfm_m_redist(struct vfm_tape *t, const struct vfm_mesh *m, enum vfm_axis axis, struct vfm_var *x,
	const struct vfm_redist *r);

#endif
