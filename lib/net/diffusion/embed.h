/* embed.h - what the blocks read besides the tokens: the text, the rows of a second text encoder and the image rows.
 *
 * VFM_TEXT_REFINER (HunyuanVideo, arXiv 2412.03603): with x = ctx_proj(text), a conditioning r of the time and the mean
 * text row, and blocks of self-attention over the rows of a sample,
 *
 *   r  = refiner.t.2(silu(refiner.t.0(timestep))) + refiner.pool.2(silu(refiner.pool.0(mean of the text)))
 *   x += gate1 attn(LN1(x)),  x += gate2 mlp(LN2(x)),  [gate1 | gate2] = ada(silu(r)),  mlp = fc2(silu(fc1))
 *
 * The rows of each encoder may then get a vector of that encoder, row_type.  All ranks compute these rows of all
 * samples; a rank continues with its own (joint.h).
 */
#ifndef VFM_NET_DIFFUSION_EMBED_H
#define VFM_NET_DIFFUSION_EMBED_H

#include "net/diffusion/input.h"
#include "net/nn/layers.h"

struct vfm_refiner_block {
	struct vfm_linear qkv, proj, fc1, fc2, ada;
	struct vfm_param *ln_w[2], *ln_b[2];
};

struct vfm_embedders {
	struct vfm_model_spec m;
	const struct vfm_arch *arch;
	struct vfm_linear text[2]; /* as the architecture embeds the text */
	/* with image rows: the layers, and the norms in front of the first and after the second */
	struct vfm_linear image[2];
	struct vfm_param *image_w[2], *image_b[2];
	struct vfm_param *image_pos; /* [image_len, image_dim]; with model.image_pos */
	/* with rows of a second text: a norm and three layers */
	struct vfm_linear text2[3];
	struct vfm_param *text2_w, *text2_b;
	/* with VFM_TEXT_REFINER */
	struct vfm_linear time[2], pool[2];
	struct vfm_refiner_block *refiner;     /* [refiner_layers] */
	struct vfm_param *type[VFM_ROW_PARTS]; /* NULL: none */
};

/* Declares the parameters in `unit`. */
void vfm_embedders_declare(struct vfm_embedders *c, const struct vfm_model_spec *m, struct vfm_params *ps, int unit);
void vfm_embedders_release(struct vfm_embedders *c);

/* Embeds rows of text [rows, text_dim] f32 -> [rows, context dim]. */
struct vfm_var *vfm_embed_text(
	struct vfm_tape *t, const struct vfm_embedders *c, struct vfm_tensor text, enum vfm_dtype out);
/* Embeds image rows [rows, image_dim] f32 -> [rows, D]. */
struct vfm_var *vfm_embed_image(
	struct vfm_tape *t, const struct vfm_embedders *c, struct vfm_tensor image, enum vfm_dtype out);
/* With joint attention: this rank's rows of text, [T_text, D]. */
struct vfm_var *vfm_embed_rows(
	struct vfm_tape *t, const struct vfm_embedders *c, const struct vfm_model_in *in, enum vfm_dtype out);

#endif
