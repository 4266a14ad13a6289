/* dit.h - diffusion transformers (Peebles & Xie 2023): adaLN-Zero blocks, with
 * cross-attention to text or with pooled text in the conditioning.
 *
 *   h   = patch(x) [+ positions]                                     [T,D], f32
 *   c   = t_mlp(timestep(1000 t_cond)) [+ ctx_proj(mean of the text)]  [S,D]
 *   mod = ada(silu(c)), six of [S,D]: shift1, scale1, gate1, shift2, scale2, gate2
 *   h  += gate1 * attn(LN(h) * (1 + scale1) + shift1)                  QK-norm, 3-D RoPE
 *   h  += cross(LN_affine(h), ctx_proj(text))                          with cross_attention
 *   h  += gate2 * fc2(gelu(fc1(LN(h) * (1 + scale2) + shift2)))
 *   out = head(LN(h) * (1 + scale) + shift),  (shift, scale) = ada(silu(c))
 *
 * adaln_lora r: mod = ada_shared(silu(c)) + ada_b(ada_a(silu(c))), ada_a, ada_b of rank r a block.
 */
#ifndef VFM_MODEL_DIT_H
#define VFM_MODEL_DIT_H

#include "model/input.h"
#include "nn/layers.h"

struct vfm_dit;

/* Declares its parameters in ps, which must outlive it. */
struct vfm_dit *vfm_dit_new(const struct vfm_model_spec *m, struct vfm_params *ps);
void vfm_dit_free(struct vfm_dit *d);

/* -> prediction [T,F] f32.  `in` must stay until the backward has passed. */
struct vfm_var *vfm_dit_forward(struct vfm_dit *d, struct vfm_tape *t, const struct vfm_model_in *in, enum vfm_recompute recompute);

#endif
