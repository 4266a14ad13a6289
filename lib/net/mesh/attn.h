/* attn.h - self-attention over the tokens of a cp group, as a differentiable op.  Collective; see mops.h. */
#ifndef VFM_NET_MESH_ATTN_H
#define VFM_NET_MESH_ATTN_H

#include "net/mesh/mesh.h"
#include "net/tape/gops.h"
#include "spec/layout/tokens.h"

/* The layout of attention over the tokens of a cp group.  It is computed once per pack, on host and device. */
struct vfm_attn_layout {
	const struct vfm_mesh *mesh;
	const struct vfm_tokens *tok;
	struct vfm_seqs own; /* samples in the rows of this cp rank, for the queries of cross-attention */
	int n_ring;
	/* [n_ring]: samples in the rows of each ring position, on host and device; this rank is at position ring_i */
	struct vfm_seqs *block;
	/* a2a > 1: [rows of this ring position] i32 (vfm_tokens_ring_order); else absent */
	struct vfm_tensor order;
	struct vfm_tensor inverse; /* of order */
	struct vfm_stream *stream;
	void *mem;
	size_t bytes;
};
/* Makes the layout; tok must outlive l.  Local. */
int vfm_attn_layout_make(struct vfm_attn_layout *l, const struct vfm_mesh *m, const struct vfm_tokens *tok,
	struct vfm_stream *s, struct vfm_err *err);
void vfm_attn_layout_release(struct vfm_attn_layout *l);

/* Self-attention over all tokens of each sample.  q [R,H,d], k, v [R,Hkv,d] -> [R, H*d], with R the rows of this cp
 * rank and H the heads of this tp rank; H and Hkv are multiples of a2a.  q, k, v may be views.  The ring merges partial
 * results by their log-sum-exp.  With cp 1 this is vfm_g_attn.  Selective recompute keeps the output and lse. */
struct vfm_var *vfm_m_attn(struct vfm_tape *t, struct vfm_var *q, struct vfm_var *k, struct vfm_var *v,
	const struct vfm_attn_layout *l, float scale);

#endif
