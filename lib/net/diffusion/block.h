/* block.h - a transformer block.  The architecture's row (spec/model/arch.h) determines its layers:
 *
 *   h += pos                                                        with learned positions
 *   h += gate_i * attn_i(norm(h) * (1 + scale_i) + shift_i)         for each self-attention
 *   h += cross(norm_affine(h), text)                                with cross_attention; plain_cross: no norm;
 *                                                                   with image_dim also attends to the image rows
 *   h += gate_c * cross(norm(h) * (1 + scale_c) + shift_c, text)    instead, with cross_mod
 *   h += gate_m * mlp(norm(h) * (1 + scale_m) + shift_m)
 *
 * With joint attention there is no cross-attention; tokens and text have a stream each, k = 0, 1, and y_0, y_1 are
 * the rows of attention over both:
 *
 *   h_k += gate_ik * proj_k(y_k),  y = attn(norm(h_k) * (1 + scale_ik) + shift_ik)
 *   h_k += gate_mk * mlp_k(norm(h_k) * (1 + scale_mk) + shift_mk)
 *
 * A single-stream block has one set of weights and modulation for both, and the MLP next to the attention (Dehghani et
 * al. 2023, arXiv 2302.05442):
 *
 *   h_k += gate * (proj(y_k) + mlp(x_k)),  y = attn(x),  x_k = norm(h_k) * (1 + scale) + shift
 *
 * Attention within frames or columns redistributes rows over cp by an all-to-all, so that each frame, then each column,
 * is on one rank.  Full attention uses the original distribution.  All self-attentions apply the same 3-D RoPE.  Only
 * differences of positions matter, so RoPE acts within a frame as one of (h, w), and along time as one of t.
 */
#ifndef VFM_NET_DIFFUSION_BLOCK_H
#define VFM_NET_DIFFUSION_BLOCK_H

#include "net/diffusion/input.h"
#include "net/nn/layers.h"

struct vfm_block {
	const struct vfm_arch *arch;
	struct vfm_self_attn attn[VFM_ARCH_ATTNS];
	struct vfm_self_attn text_attn; /* of the text, with joint attention in a double-stream block */
	struct vfm_mlp text_mlp;
	bool has_text, has_mlp, has_moe; /* has_text: cross-attention */
	bool single;
	struct vfm_param *ln_w, *ln_b; /* before the cross-attention; ln_w NULL: no norm; ln_b NULL: an RMS norm */
	struct vfm_cross_attn cross;
	struct vfm_mlp mlp; /* with experts: the shared ones, if any */
	struct vfm_moe moe;
	float eps;
};

/* Inputs of a block; allocated on the tape. */
struct vfm_block_in {
	const struct vfm_model_in *in;
	struct vfm_var *h;   /* [stream rows, D] f32 or bf16: the residual stream */
	struct vfm_var *ctx; /* [text, context dim] in the compute dtype; NULL without cross-attention */
	struct vfm_var *img; /* [image rows, D] in the compute dtype; NULL without image rows */
	struct vfm_var *pos; /* [T,D] f32: learned positions, added in every block; NULL without */
	/* [vfm_model_n_mod] shifts, scales and gates of this block, [G,D] f32 (modulation.h) */
	struct vfm_var *const *mod;
};

/* Declares the parameters "blocks.LAYER.…" in `unit`. */
void vfm_block_declare(
	struct vfm_block *b, const struct vfm_model_spec *m, struct vfm_params *ps, int unit, int64_t layer);
/* Returns the new residual stream.  Has no side effects, since recompute runs it again. */
struct vfm_var *vfm_block(struct vfm_tape *t, const struct vfm_block *b, const struct vfm_block_in *in);
/* Returns the rows of the tokens (k 0) or of the text (1) in the residual stream. */
struct vfm_var *vfm_stream_part(struct vfm_tape *t, struct vfm_var *h, const struct vfm_model_in *in, int k);
/* Returns the kind of the norms of an architecture. */
enum vfm_norm_kind vfm_block_norm(const struct vfm_arch *a);

#endif
