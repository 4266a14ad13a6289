/* mops.h - collectives as differentiable ops.  Each has its adjoint; all are collective over the group named.
 *
 * Rows of a variable are contiguous; shares of rows may differ from rank to rank and be empty; the numbers are known to
 * all ranks from the tokens' layout (spec/tokens.h), which must stay until the backward has passed.  Over a group of
 * one each returns its input.  All of them run on the tape's stream for that (vfm_tape_set_aside: mesh->rows_side), if
 * it has one; the ring has its own.
 */
#ifndef VFM_MESH_MOPS_H
#define VFM_MESH_MOPS_H

#include "grad/gops.h"
#include "grad/node.h"
#include "mesh/mesh.h"
#include "spec/tokens.h"

/* x [rows[rank], D] -> [sum of rows, D]; backward: reduce-scatter. */
struct vfm_var *vfm_m_gather_rows(struct vfm_tape *t, struct vfm_comm *c, struct vfm_var *x, const int64_t *rows);
/* x [sum of rows, D], a partial sum -> this rank's rows of the sum; backward: all-gather. */
struct vfm_var *vfm_m_scatter_rows(struct vfm_tape *t, struct vfm_comm *c, struct vfm_var *x, const int64_t *rows);

/* The same of a product x = a w^T, which one linear layer makes between begin and end, x being what it gave.  Where the
 * tape has a stream for collectives, the product is computed in pieces, the rows of other ranks first, and each is on
 * its way to its rank while the next is computed; y is then summed here, in f32 in the order of the ranks: the bits of
 * vfm_reduce_scatter on groups that sum so, too (all but NCCL's own sums of f32). The second run of light recompute may
 * leave x undefined. */
struct vfm_scatter {
	struct vfm_comm *c;
	const int64_t *rows; /* [size] */
	int64_t width;
	enum vfm_dtype dtype; /* of x */
	/* pieces of any size; else a product that is too small for them is made at once (PIECE in mops.c) */
	bool small;
	/* private */
	struct vfm_tape *t;
	struct vfm_pieces pieces;
	int sent, *last;         /* ranks behind this one that have their rows; those that have them after each piece */
	struct vfm_tensor parts; /* [size - 1, rows * width]: this rank's rows, from the others */
	struct vfm_store *mem;
};
void vfm_m_scatter_begin(struct vfm_tape *t, struct vfm_scatter *s);
struct vfm_var *vfm_m_scatter_end(struct vfm_scatter *s, struct vfm_var *x);

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
/* y = the rows of the new division; backward: the way back. */
struct vfm_var *vfm_m_redist(struct vfm_tape *t, struct vfm_comm *c, struct vfm_var *x, const struct vfm_redist *r);

#endif
