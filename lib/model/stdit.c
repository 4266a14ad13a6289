/* Spatio-temporal diffusion transformer: three self-attentions per block, each with its own modulation.
 *
 *   h += gate_s * attn_s(LN(h) * (1 + scale_s) + shift_s)      tokens of a frame
 *   h += gate_t * attn_t(LN(h) * (1 + scale_t) + shift_t)      tokens of a column, along time
 *   h += gate_f * attn(LN(h) * (1 + scale_f) + shift_f)        all tokens of the sample
 *   h += cross(LN_affine(h), text)                             with cross_attention
 *   h += gate_m * fc2(gelu(fc1(LN(h) * (1 + scale_m) + shift_m)))
 *
 * All three apply the same 3-D RoPE to q and k.  Only differences of positions count, so within a frame it acts as a
 * RoPE of (h, w), and along time as a RoPE of t.  Over cp, an all-to-all redistributes rows so that each frame, then
 * each column, is on one rank.  Full attention uses the original distribution, by ring or all-to-all over heads.
 */
#include <stdio.h>

#include "model/block.h"

enum { SPATIAL, TEMPORAL, FULL, ATTNS };
enum { SHIFT, SCALE, GATE, PER_PART, N_MOD = 4 * PER_PART };

struct block {
	struct vfm_self_attn attn[ATTNS];
	struct vfm_text_attn text;
	struct vfm_mlp mlp;
	float eps;
};

static void declare_stdit(void *block, const struct vfm_model_spec *m, struct vfm_params *ps, int unit, int layer)
{
	static const char *const names[] = {"attn_s", "attn_t", "attn"};
	struct block *b = block;
	struct vfm_attn_desc attn = vfm_block_attn(m, unit);
	char prefix[64];

	b->eps = (float)m->norm_eps;
	for (int i = 0; i < ATTNS; i++) {
		snprintf(prefix, sizeof(prefix), "blocks.%d.%s", layer, names[i]);
		vfm_self_attn_declare(&b->attn[i], ps, &attn, prefix);
	}
	vfm_text_attn_declare(&b->text, m, ps, &attn, layer);
	snprintf(prefix, sizeof(prefix), "blocks.%d.", layer);
	vfm_mlp_declare(&b->mlp, ps, unit, m->hidden, m->ffn, prefix);
}

static struct vfm_var *forward_stdit(struct vfm_tape *t, const void *block, const struct vfm_block_in *r)
{
	const struct block *b = block;
	const struct vfm_attn_layout *l = &r->in->attn;
	const struct vfm_attn_units *units[] = {&r->in->frames.a, &r->in->columns.a};
	struct vfm_residual s = {.h = r->h, .seqs = &r->in->seqs};
	const struct vfm_norm_args norm = {.kind = VFM_NORM_LAYER, .eps = b->eps, .out = r->in->x.dtype};
	struct vfm_var *const *part = r->mod, *y;
	const struct vfm_norm_fp8 none = {0}; /* the norm is redistributed first */

	for (int i = 0; i < ATTNS; i++, part += PER_PART) {
		y = vfm_modulated_norm(
			t, &s, &norm, part[SHIFT], part[SCALE], i == FULL ? vfm_self_attn_norm(&b->attn[i], l) : none);
		y = i == FULL ? vfm_self_attn(t, &b->attn[i], y, l, r->in->rope)
			      : vfm_self_attn_units(t, &b->attn[i], y, l, units[i]);
		vfm_residual_add(t, &s, y, part[GATE]);
	}

	vfm_text_attn(t, &b->text, r, &s);
	y = vfm_modulated_norm(t, &s, &norm, part[SHIFT], part[SCALE], vfm_mlp_norm(&b->mlp, l));
	vfm_residual_add(t, &s, vfm_mlp(t, &b->mlp, y, l), part[GATE]);
	return vfm_residual_value(t, &s);
}

const struct vfm_block_kind vfm_block_stdit = {
	.size = sizeof(struct block),
	.declare = declare_stdit,
	.forward = forward_stdit,
};
