/* Diffusion transformers (Peebles & Xie 2023): adaLN-Zero blocks, with cross-attention to text.
 *
 *   h += gate1 * attn(LN(h) * (1 + scale1) + shift1)                  QK-norm, 3-D RoPE
 *   h += cross(LN_affine(h), text)                                    with cross_attention
 *   h += gate2 * mlp(LN(h) * (1 + scale2) + shift2)                   mlp(x) = fc2(gelu(fc1(x)))
 *
 * moe: mlp(x) is a mixture of experts (nn/moe.h) plus a shared MLP for all tokens, as wide as shared_experts experts.
 */
#include <stdio.h>

#include "model/block.h"

enum { SHIFT1, SCALE1, GATE1, SHIFT2, SCALE2, GATE2, N_MOD };

struct block {
	struct vfm_self_attn attn;
	struct vfm_text_attn text;
	struct vfm_mlp mlp; /* moe: the shared experts, if any */
	struct vfm_moe moe;
	bool has_mlp, has_moe;
	float eps;
};

static void declare_mlp(struct block *b, const struct vfm_model_spec *m, struct vfm_params *ps, int unit, int layer)
{
	int64_t width = m->ffn;
	char prefix[64];

	b->has_moe = vfm_model_has_experts(m);
	if (b->has_moe) {
		snprintf(prefix, sizeof(prefix), "blocks.%d.moe", layer);
		vfm_moe_declare(&b->moe, ps, unit, m, prefix);
		width = m->shared_experts * m->expert_ffn;
	}
	b->has_mlp = width > 0;
	snprintf(prefix, sizeof(prefix), b->has_moe ? "blocks.%d.shared." : "blocks.%d.", layer);
	if (b->has_mlp)
		vfm_mlp_declare(&b->mlp, ps, unit, m->hidden, width, prefix);
}

static void declare_dit(void *block, const struct vfm_model_spec *m, struct vfm_params *ps, int unit, int layer)
{
	struct block *b = block;
	struct vfm_attn_desc attn = vfm_block_attn(m, unit);
	char prefix[64];

	b->eps = (float)m->norm_eps;
	snprintf(prefix, sizeof(prefix), "blocks.%d.attn", layer);
	vfm_self_attn_declare(&b->attn, ps, &attn, prefix);
	vfm_text_attn_declare(&b->text, m, ps, &attn, layer);
	declare_mlp(b, m, ps, unit, layer);
}

/* The sum over experts has the dtype of the residual stream. */
static struct vfm_var *mlp(struct vfm_tape *t, const struct block *b, struct vfm_var *x, const struct vfm_model_in *in,
	enum vfm_dtype stream)
{
	struct vfm_var *y = b->has_moe ? vfm_moe(t, &b->moe, x, &in->moe, stream) : NULL;

	if (!b->has_mlp)
		return y;
	return y ? vfm_g_gate(t, y, vfm_mlp(t, &b->mlp, x, &in->attn), NULL, NULL) : vfm_mlp(t, &b->mlp, x, &in->attn);
}

static struct vfm_var *forward_dit(struct vfm_tape *t, const void *block, const struct vfm_block_in *r)
{
	const struct block *b = block;
	const struct vfm_attn_layout *l = &r->in->attn;
	struct vfm_residual s = {.h = r->h, .seqs = &r->in->seqs};
	const struct vfm_norm_args norm = {.kind = VFM_NORM_LAYER, .eps = b->eps, .out = r->in->x.dtype};
	struct vfm_var *const *mod = r->mod, *y;

	y = vfm_modulated_norm(t, &s, &norm, mod[SHIFT1], mod[SCALE1], vfm_self_attn_norm(&b->attn, l));
	y = vfm_self_attn(t, &b->attn, y, l, r->in->rope);
	vfm_residual_add(t, &s, y, mod[GATE1]);

	vfm_text_attn(t, &b->text, r, &s);
	y = vfm_modulated_norm(t, &s, &norm, mod[SHIFT2], mod[SCALE2],
		b->has_moe ? (struct vfm_norm_fp8){0} : vfm_mlp_norm(&b->mlp, l));
	vfm_residual_add(t, &s, mlp(t, b, y, r->in, s.h->v.dtype), mod[GATE2]);
	return vfm_residual_value(t, &s);
}

const struct vfm_block_kind vfm_block_dit = {
	.size = sizeof(struct block),
	.declare = declare_dit,
	.forward = forward_dit,
};

const struct vfm_block_kind vfm_block_moe = {
	.size = sizeof(struct block),
	.declare = declare_dit,
	.forward = forward_dit,
};
