/* model.h - a network, or the chunks of it on one pp stage.
 *
 * All architectures share a backbone (model.c: patches and positions, conditioning, text, head).  Each has a row in the
 * table of architectures (spec/model/arch.h) and its own block (block.h).  Every pp stage computes the conditioning,
 * the first the patches, the last the head.
 *
 *   h   = patch([x | condition]) [+ positions]                         [T,D], f32 or bf16
 *   c   = t_mlp(timestep(1000 t_cond)) [+ ctx_proj(mean of the text)]  [G,D], G: segments (input.h)
 *         [+ vec_mlp(second text) + guidance_mlp(timestep(1000 guidance))]
 *   h   = block(h, silu(c), ctx_proj(text), img_mlp(image rows))       for each layer
 *   out = head(norm(h) * (1 + scale) + shift),  (shift, scale) = ada(silu(c))
 */
#ifndef VFM_NET_DIFFUSION_MODEL_H
#define VFM_NET_DIFFUSION_MODEL_H

#include "net/diffusion/input.h"
#include "net/nn/layers.h"
#include "spec/cost/saved.h"

struct vfm_model;

/* Declares the parameters of this rank's pp stage in ps.  ps must outlive the model. */
struct vfm_model *vfm_model_new(const struct vfm_model_spec *m, struct vfm_params *ps);
void vfm_model_free(struct vfm_model *m);
/* Sets the dtype of the residual stream and its gradient, from the patches to the last norm: VFM_F32 (default), or
 * VFM_BF16 if the parameters are bf16.  Norms and gates always compute in f32. */
void vfm_model_set_residual(struct vfm_model *m, enum vfm_dtype dtype);
enum vfm_dtype vfm_model_residual(const struct vfm_model *m);
int64_t vfm_model_width(const struct vfm_model *m);            /* of the residual stream */
int vfm_model_chunks(const struct vfm_model *m);               /* returns vpp, the number of chunks on this rank */
bool vfm_model_is_first(const struct vfm_model *m, int chunk); /* chunk holds the patches */
bool vfm_model_is_last(const struct vfm_model *m, int chunk);  /* chunk holds the head */

/* Runs one chunk.  Collective over cp x tp (and ep).
 *
 * - h: the residual stream [T,D] from the previous chunk; NULL on the first chunk, which reads in->x
 * - in: must stay valid until the backward is done
 * - keeps [layers of the model]: what each block keeps for its backward (spec/cost/saved.h); NULL: everything
 *
 * Returns the residual stream, or the prediction [T,F] f32 on the last chunk. */
struct vfm_var *vfm_model_forward(struct vfm_model *m, struct vfm_tape *t, const struct vfm_model_in *in, int chunk,
	struct vfm_var *h, const struct vfm_keeps *keeps);

#endif
