/* PixArt-alpha (Chen et al. 2023, arXiv 2310.00426): one modulation for all blocks (adaLN-single), to which each block
 * adds its table.
 *
 *   [shift1 .. gate2] = ada_shared(silu(c)) + scale_shift_table
 *   h += gate1 * attn(LN(h) * (1 + scale1) + shift1)
 *   h += cross(h, text)                                  with cross_attention: neither norm nor modulation
 *   h += gate2 * fc2(gelu(fc1(LN(h) * (1 + scale2) + shift2)))
 *
 * Embedders and head are those of the backbone.  The paper instead embeds the text with an MLP and adds a table in the
 * head.
 */
#include <stdio.h>

#include "model/block.h"

enum { SHIFT1, SCALE1, GATE1, SHIFT2, SCALE2, GATE2, N_MOD };

struct block {
	struct vfm_self_attn attn;
	struct vfm_text_attn text;
	struct vfm_mlp mlp;
	float eps;
};

static void declare_pixart(void *block, const struct vfm_model_spec *m, struct vfm_params *ps, int unit, int layer)
{
	struct block *b = block;
	struct vfm_attn_desc attn = vfm_block_attn(m, unit);
	char prefix[64];

	b->eps = (float)m->norm_eps;
	snprintf(prefix, sizeof(prefix), "blocks.%d.attn", layer);
	vfm_self_attn_declare(&b->attn, ps, &attn, prefix);
	vfm_text_attn_declare(&b->text, m, ps, &attn, layer);
	snprintf(prefix, sizeof(prefix), "blocks.%d.", layer);
	vfm_mlp_declare(&b->mlp, ps, unit, m->hidden, m->ffn, prefix);
}

static struct vfm_var *forward_pixart(struct vfm_tape *t, const void *block, const struct vfm_block_in *r)
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
	y = vfm_modulated_norm(t, &s, &norm, mod[SHIFT2], mod[SCALE2], vfm_mlp_norm(&b->mlp, l));
	vfm_residual_add(t, &s, vfm_mlp(t, &b->mlp, y, l), mod[GATE2]);
	return vfm_residual_value(t, &s);
}

const struct vfm_block_kind vfm_block_pixart = {
	.size = sizeof(struct block),
	.declare = declare_pixart,
	.forward = forward_pixart,
};
