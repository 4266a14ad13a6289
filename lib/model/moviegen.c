/* Movie Gen (Polyak et al. 2024, arXiv 2410.13720): Llama-style blocks with adaLN modulation.
 *
 *   h += pos                                              learned tables of t, h, w, the same in every block
 *   h += gate1 * attn(RMS(h) * (1 + scale1) + shift1)     grouped queries, QK-norm, no RoPE
 *   h += cross(RMS_affine(h), text)                       with cross_attention
 *   h += gate2 * w2(silu(a) * b)                          [a | b] = w13(RMS(h) * (1 + scale2) + shift2)
 *
 * The linear layers of attention and MLP have no biases.
 */
#include <stdio.h>

#include "model/block.h"

enum { SHIFT1, SCALE1, GATE1, SHIFT2, SCALE2, GATE2, N_MOD };

struct block {
	struct vfm_self_attn attn;
	struct vfm_text_attn text;
	struct vfm_linear w13, w2;
	float eps;
};

static void declare_moviegen(void *block, const struct vfm_model_spec *m, struct vfm_params *ps, int unit, int layer)
{
	struct block *b = block;
	struct vfm_attn_desc attn = vfm_block_attn(m, unit);
	struct vfm_linear_desc w13 = {.unit = unit,
		.in = m->hidden,
		.out = 2 * m->ffn,
		.split = VFM_SPLIT_COLUMN,
		.keep = VFM_KEEP_FC1,
		.groups = 2,
		.no_bias = true,
		.fp8 = true};
	struct vfm_linear_desc w2 = {.unit = unit,
		.in = m->ffn,
		.out = m->hidden,
		.split = VFM_SPLIT_ROW,
		.keep = VFM_KEEP_MLP,
		.no_bias = true,
		.fp8 = true};
	char prefix[64];

	b->eps = (float)m->norm_eps;
	snprintf(prefix, sizeof(prefix), "blocks.%d.attn", layer);
	vfm_self_attn_declare(&b->attn, ps, &attn, prefix);
	vfm_text_attn_declare(&b->text, m, ps, &attn, layer);
	vfm_linear_declare(&b->w13, ps, &w13, "blocks.%d.w13", layer);
	vfm_linear_declare(&b->w2, ps, &w2, "blocks.%d.w2", layer);
}

static struct vfm_var *swiglu_mlp(
	struct vfm_tape *t, const struct block *b, struct vfm_var *x, const struct vfm_attn_layout *l)
{
	enum vfm_dtype dt = x->v.dtype;

	x = vfm_linear_column(t, &b->w13, x, VFM_ACT_NONE, dt, l);
	return vfm_linear_row(t, &b->w2, vfm_g_swiglu(t, x), dt, l);
}

static struct vfm_var *forward_moviegen(struct vfm_tape *t, const void *block, const struct vfm_block_in *r)
{
	const struct block *b = block;
	const struct vfm_attn_layout *l = &r->in->attn;
	struct vfm_residual s = {.h = r->h, .seqs = &r->in->seqs};
	const struct vfm_norm_args norm = {.kind = VFM_NORM_RMS, .eps = b->eps, .out = r->in->x.dtype};
	struct vfm_var *const *mod = r->mod, *y;

	vfm_residual_add(t, &s, r->pos, NULL);
	y = vfm_modulated_norm(t, &s, &norm, mod[SHIFT1], mod[SCALE1], vfm_self_attn_norm(&b->attn, l));
	y = vfm_self_attn(t, &b->attn, y, l, r->in->rope);
	vfm_residual_add(t, &s, y, mod[GATE1]);

	vfm_text_attn(t, &b->text, r, &s);
	y = vfm_modulated_norm(t, &s, &norm, mod[SHIFT2], mod[SCALE2], vfm_linear_norm(&b->w13, l));
	vfm_residual_add(t, &s, swiglu_mlp(t, b, y, l), mod[GATE2]);
	return vfm_residual_value(t, &s);
}

const struct vfm_block_kind vfm_block_moviegen = {
	.size = sizeof(struct block),
	.declare = declare_moviegen,
	.forward = forward_moviegen,
};
