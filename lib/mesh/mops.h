/* mops.h - collectives as differentiable ops.  Each has its adjoint; all are collective over the group named.
 *
 * Rows of a variable are contiguous; shares of rows may differ from rank to rank and be empty; the numbers are known to
 * all ranks from the tokens' layout (spec/tokens.h), which must stay until the backward has passed.  Over a group of
 * one each returns its input.  All of them run on the communication stream of the mesh, if it has one
 * (mesh->comm_stream), and those of a backward have deferred gradients of weights computed meanwhile; the ring has a
 * stream of its own.  The linear layers that are cut over tp are in tp_linear.h.
 */
#ifndef VFM_MESH_MOPS_H
#define VFM_MESH_MOPS_H

#include "grad/gops.h"
#include "mesh/mesh.h"
#include "spec/tokens.h"

/* What attention over the tokens of a cp group needs to know, made once a pack on the host and the device. */
struct vfm_attn_layout {
	const struct vfm_mesh *mesh;
	const struct vfm_tokens *tok;
	struct vfm_seqs own; /* samples in this cp rank's rows: the queries of cross-attention */
	int n_ring;
	/* [n_ring] samples in the rows of each ring position, on host and device; [ring_i] is this rank's own */
	struct vfm_seqs *block;
	/* a2a: [rows of this ring position] i32 (vfm_tokens_ring_order); absent: a2a is 1 */
	struct vfm_tensor order;
	struct vfm_tensor inverse; /* its inverse */
	struct vfm_stream *stream;
	void *mem;
	size_t bytes;
};
/* tok must outlive it. */
int vfm_attn_layout_make(struct vfm_attn_layout *l, const struct vfm_mesh *m, const struct vfm_tokens *tok,
	struct vfm_stream *s, struct vfm_err *err);
void vfm_attn_layout_release(struct vfm_attn_layout *l);

/* Self-attention over all tokens of each sample.  q [R,H,d], k, v [R,Hkv,d]: R = this cp rank's rows, H this tp rank's
 * heads (views are welcome) -> [R, H*d].  a2a: heads are exchanged for rows (H and Hkv are multiples of a2a), then
 * back; ring: blocks of k, v travel around the ring while blocks are computed, partial results merge by their
 * log-sum-exp; in the backward the gradients of a block travel with it.  With cp 1 this is vfm_g_attn.  Output and lse
 * survive selective recompute. */
struct vfm_var *vfm_m_attn(struct vfm_tape *t, struct vfm_var *q, struct vfm_var *k, struct vfm_var *v,
	const struct vfm_attn_layout *l, float scale);

/* Rows from one division of tokens to another: what a rank sends and receives, and in which order. */
struct vfm_redist {
	int64_t *send, *recv; /* [size of the group] rows to and from each rank */
	int64_t n_send, n_recv;
	struct vfm_tensor gather; /* [n_send] i32: row of x at each place of the send buffer; absent: x as it is */
	/* [n_recv] i32: row of the receive buffer at each place of y; absent: as it comes */
	struct vfm_tensor place;
	struct vfm_tensor gather_inv, place_inv; /* their inverses: both are permutations */
};
/* y = the rows of the new division, over m->group[axis]; backward: the way back. */
struct vfm_var *vfm_m_redist(struct vfm_tape *t, const struct vfm_mesh *m, enum vfm_axis axis, struct vfm_var *x,
	const struct vfm_redist *r);

#endif
