/* model.h - a network, or the part of it that a pipeline stage holds.
 *
 * Every architecture has the same backbone (backbone.c: patches and positions, conditioning, text, head), a row in the
 * table of architectures (spec/arch.h) and a block of its own (block.h).
 *
 *   h   = patch(x) [+ positions]                                       [T,D], f32 or bf16
 *   c   = t_mlp(timestep(1000 t_cond)) [+ ctx_proj(mean of the text)]  [S,D]
 *   h   = block(h, silu(c), ctx_proj(text))                            for each layer
 *   out = head(norm(h) * (1 + scale) + shift),  (shift, scale) = ada(silu(c))
 *
 * The conditioning is computed on every stage (its parameters are held by all of them), patches on the first, the head
 * on the last.
 */
#ifndef VFM_MODEL_MODEL_H
#define VFM_MODEL_MODEL_H

#include "model/input.h"
#include "nn/layers.h"

struct vfm_model;

struct vfm_recompute_how {
	enum vfm_recompute mode; /* of `blocks` of the model's blocks, spread evenly; the others keep all */
	int64_t blocks;          /* 0: all */
};

/* Declares in ps the parameters of this rank's stage.  ps must outlive it. */
struct vfm_model *vfm_model_new(const struct vfm_model_spec *m, struct vfm_params *ps);
void vfm_model_free(struct vfm_model *m);
/* Of the residual stream and its gradient, from the patches to the last norm: VFM_F32 (the default), or VFM_BF16 where
 * parameters are in bf16, too. Norms and gates compute in f32 in any case. */
void vfm_model_set_residual(struct vfm_model *m, enum vfm_dtype dtype);
enum vfm_dtype vfm_model_residual(const struct vfm_model *m);
int vfm_model_chunks(const struct vfm_model *m);               /* vpp */
bool vfm_model_is_first(const struct vfm_model *m, int chunk); /* holds the patches */
bool vfm_model_is_last(const struct vfm_model *m, int chunk);  /* holds the head */

/* One chunk.  h: the residual stream [T,D] that the part before gave; NULL on the first, which reads in->x.
 * Gives the residual stream, or the prediction [T,F] f32 on the last.  `in` must stay until the backward has passed.
 * Collective over cp x tp (and ep). */
struct vfm_var *vfm_model_forward(struct vfm_model *m, struct vfm_tape *t, const struct vfm_model_in *in, int chunk,
	struct vfm_var *h, struct vfm_recompute_how how);

#endif
