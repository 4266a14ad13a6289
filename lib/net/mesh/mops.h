/* mops.h - collectives as differentiable ops, each with its adjoint.  Each op is collective over the group that it
 * names.
 *
 * The rows of a variable on a rank are contiguous.  Ranks may have different numbers of rows, or none.  The token
 * layout (spec/layout/tokens.h) has these numbers and must stay alive until the end of the backward.  Over a group of
 * one, each op returns its input.  The ops run on mesh->comm_stream, if there is one, and a backward computes deferred
 * weight gradients meanwhile.  Ring attention has its own stream.  tp_linear.h has the tensor-parallel linear layers.
 */
#ifndef VFM_NET_MESH_MOPS_H
#define VFM_NET_MESH_MOPS_H

#include "net/mesh/mesh.h"
#include "net/tape/gops.h"
#include "spec/layout/tokens.h"

/* vfm_g_row_norm_rope for the heads of this tp rank: the norm is over the heads of all tp ranks. */
void vfm_m_row_norm_rope(
	struct vfm_tape *t, const struct vfm_mesh *m, const struct vfm_qk_args *args, struct vfm_var **y);

/* A redistribution of rows between two layouts of tokens: this rank's numbers of rows and permutations. */
struct vfm_redist {
	int64_t *send, *recv; /* [size of the group]: rows to and from each rank */
	int64_t n_send, n_recv;
	struct vfm_tensor gather; /* [n_send] i32: row of x for each row of the send buffer; absent: identity */
	/* [n_recv] i32: row of the receive buffer for each row of y; absent: identity */
	struct vfm_tensor place;
	struct vfm_tensor gather_inv, place_inv; /* the inverse permutations */
};
/* Redistributes the rows of x over m->group[axis].  Returns y, the rows in the new layout.  Backward: the inverse. */
struct vfm_var *vfm_m_redist(struct vfm_tape *t, const struct vfm_mesh *m, enum vfm_axis axis, struct vfm_var *x,
	const struct vfm_redist *r);

#endif
