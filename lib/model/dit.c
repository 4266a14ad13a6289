#include "model/dit.h"

#include <stdio.h>
#include <stdlib.h>

enum { SHIFT1, SCALE1, GATE1, SHIFT2, SCALE2, GATE2, N_MOD };
enum { TIME_FEATURES = 256 };

struct block {
	struct vfm_dit *dit;
	struct vfm_linear ada, ada_a, ada_b; /* ada, or with adaln_lora a and b */
	struct vfm_self_attn attn;
	struct vfm_param *ln_w, *ln_b; /* of the cross-attention */
	struct vfm_cross_attn cross;
	struct vfm_linear fc1, fc2;
};

struct vfm_dit {
	struct vfm_model_spec m;
	struct vfm_params *ps;
	struct vfm_linear patch, t0, t2, ctx_proj, ada_shared, ada, out;
	struct block *block;
};

/* One run of a block; lives on the tape until the backward has passed it. */
struct block_run {
	const struct block *b;
	const struct vfm_model_in *in;
	struct vfm_var *h, *sc, *ctx, *shared;
};

static void declare_block(struct block *b, struct vfm_dit *d, int i)
{
	const struct vfm_model_spec *m = &d->m;
	struct vfm_params *ps = d->ps;
	int64_t h = m->hidden;
	float eps = (float)m->norm_eps;
	char prefix[64];
	int unit = 1 + i;

	b->dit = d;
	if (m->adaln_lora) {
		vfm_linear_declare(&b->ada_a, ps, &(struct vfm_linear_desc){.unit = unit, .in = h, .out = m->adaln_lora, .no_bias = true},
			"blocks.%d.ada_a", i);
		vfm_linear_declare(&b->ada_b, ps, &(struct vfm_linear_desc){.unit = unit, .in = m->adaln_lora, .out = N_MOD * h, .zero = true},
			"blocks.%d.ada_b", i);
	} else {
		vfm_linear_declare(&b->ada, ps, &(struct vfm_linear_desc){.unit = unit, .in = h, .out = N_MOD * h, .zero = true},
			"blocks.%d.ada", i);
	}
	snprintf(prefix, sizeof(prefix), "blocks.%d.attn", i);
	vfm_self_attn_declare(&b->attn, ps, unit, h, m->heads, m->qk_norm, eps, prefix);
	if (m->cross_attention) {
		b->ln_w = vfm_vector_declare(ps, unit, h, VFM_INIT_ONE, "blocks.%d.ln_c.weight", i);
		b->ln_b = vfm_vector_declare(ps, unit, h, VFM_INIT_ZERO, "blocks.%d.ln_c.bias", i);
		snprintf(prefix, sizeof(prefix), "blocks.%d.cross", i);
		vfm_cross_attn_declare(&b->cross, ps, unit, h, m->heads, m->qk_norm, eps, prefix);
	}
	vfm_linear_declare(&b->fc1, ps, &(struct vfm_linear_desc){.unit = unit, .in = h, .out = m->ffn, .split = VFM_SPLIT_COLUMN}, "blocks.%d.fc1", i);
	vfm_linear_declare(&b->fc2, ps, &(struct vfm_linear_desc){.unit = unit, .in = m->ffn, .out = h, .split = VFM_SPLIT_ROW}, "blocks.%d.fc2", i);
}

struct vfm_dit *vfm_dit_new(const struct vfm_model_spec *m, struct vfm_params *ps)
{
	struct vfm_dit *d = vfm_calloc(1, sizeof(*d));
	int64_t h = m->hidden, f = vfm_model_patch_dim(m);
	int head = 1 + (int)m->layers;

	d->m = *m;
	d->ps = ps;
	vfm_linear_declare(&d->patch, ps, &(struct vfm_linear_desc){.in = f, .out = h}, "patch");
	vfm_linear_declare(&d->t0, ps, &(struct vfm_linear_desc){.in = TIME_FEATURES, .out = h}, "t_mlp.0");
	vfm_linear_declare(&d->t2, ps, &(struct vfm_linear_desc){.in = h, .out = h}, "t_mlp.2");
	if (m->cross_attention || m->pooled_text)
		vfm_linear_declare(&d->ctx_proj, ps, &(struct vfm_linear_desc){.in = m->text_dim, .out = h}, "ctx_proj");
	if (m->adaln_lora)
		vfm_linear_declare(&d->ada_shared, ps, &(struct vfm_linear_desc){.in = h, .out = N_MOD * h, .zero = true}, "ada_shared");
	d->block = vfm_calloc((size_t)m->layers, sizeof(*d->block));
	for (int i = 0; i < m->layers; i++)
		declare_block(&d->block[i], d, i);
	vfm_linear_declare(&d->ada, ps, &(struct vfm_linear_desc){.unit = head, .in = h, .out = 2 * h, .zero = true}, "ada");
	vfm_linear_declare(&d->out, ps, &(struct vfm_linear_desc){.unit = head, .in = h, .out = f, .zero = true}, "out");
	return d;
}

void vfm_dit_free(struct vfm_dit *d)
{
	if (!d)
		return;
	free(d->block);
	free(d);
}

static struct vfm_var *modulation(struct vfm_tape *t, const struct block *b, struct vfm_var *sc, struct vfm_var *shared)
{
	enum vfm_dtype dt = b->dit->ps->dtype;

	if (!shared)
		return vfm_linear(t, &b->ada, sc, VFM_ACT_NONE, VFM_F32);
	return vfm_g_add(t, vfm_linear(t, &b->ada_b, vfm_linear(t, &b->ada_a, sc, VFM_ACT_NONE, dt), VFM_ACT_NONE, VFM_F32), shared);
}

static struct vfm_var *block_forward(struct vfm_tape *t, void *arg)
{
	const struct block_run *r = arg;
	const struct block *b = r->b;
	const struct vfm_seqs *seqs = &r->in->seqs;
	int64_t D = b->dit->m.hidden;
	enum vfm_dtype dt = b->dit->ps->dtype;
	float eps = (float)b->dit->m.norm_eps;
	struct vfm_var *mod[N_MOD], *m = modulation(t, b, r->sc, r->shared), *h = r->h, *y;

	for (int i = 0; i < N_MOD; i++)
		mod[i] = vfm_view_cols(t, m, i, D);

	y = vfm_g_norm_mod(t, h, VFM_NORM_LAYER, eps, mod[SHIFT1], mod[SCALE1], seqs, dt);
	y = vfm_self_attn(t, &b->attn, y, seqs, r->in->rope);
	h = vfm_g_gate(t, h, y, mod[GATE1], seqs);

	if (r->ctx) {
		y = vfm_g_norm(t, h, VFM_NORM_LAYER, eps, &b->ln_w->var, &b->ln_b->var, dt);
		y = vfm_cross_attn(t, &b->cross, y, r->ctx, seqs, &r->in->text_seqs);
		h = vfm_g_gate(t, h, y, NULL, NULL);
	}

	y = vfm_g_norm_mod(t, h, VFM_NORM_LAYER, eps, mod[SHIFT2], mod[SCALE2], seqs, dt);
	y = vfm_linear(t, &b->fc1, y, VFM_ACT_GELU_TANH, dt);
	y = vfm_linear(t, &b->fc2, y, VFM_ACT_NONE, dt);
	return vfm_g_gate(t, h, y, mod[GATE2], seqs);
}

/* silu of the conditioning: [S,D] */
static struct vfm_var *conditioning(struct vfm_dit *d, struct vfm_tape *t, const struct vfm_model_in *in)
{
	struct vfm_var *c = vfm_g_timestep(t, in->t_cond, TIME_FEATURES, 10000.0f, VFM_F32);

	c = vfm_linear(t, &d->t0, c, VFM_ACT_SILU, VFM_F32);
	c = vfm_linear(t, &d->t2, c, VFM_ACT_NONE, VFM_F32);
	if (d->m.pooled_text)
		c = vfm_g_add(t, c, vfm_linear(t, &d->ctx_proj, vfm_input(t, in->text_mean), VFM_ACT_NONE, VFM_F32));
	return vfm_g_act(t, c, VFM_ACT_SILU);
}

struct vfm_var *vfm_dit_forward(struct vfm_dit *d, struct vfm_tape *t, const struct vfm_model_in *in, enum vfm_recompute recompute)
{
	enum vfm_dtype dt = d->ps->dtype;
	int64_t D = d->m.hidden;
	int all = vfm_scope_begin(t), stream;
	struct vfm_var *sc = conditioning(d, t, in), *ctx = NULL, *shared = NULL, *h, *m, *y;

	if (d->m.cross_attention)
		ctx = vfm_linear(t, &d->ctx_proj, vfm_input(t, in->text), VFM_ACT_NONE, dt);
	if (d->m.adaln_lora)
		shared = vfm_linear(t, &d->ada_shared, sc, VFM_ACT_NONE, VFM_F32);

	stream = vfm_scope_begin(t); /* of the residual stream: only its newest value is held */
	h = vfm_linear(t, &d->patch, vfm_input(t, in->x), VFM_ACT_NONE, VFM_F32);
	if (vfm_has(&in->pos_embed))
		h = vfm_g_add(t, h, vfm_input(t, in->pos_embed));
	for (int i = 0; i < d->m.layers; i++) {
		struct vfm_var *read[] = {h, sc, ctx, shared};
		struct block_run *r = vfm_tape_alloc(t, sizeof(*r));

		*r = (struct block_run){&d->block[i], in, h, sc, ctx, shared};
		h = vfm_region(t, recompute, block_forward, r, read, 4);
		vfm_scope_end(t, stream, h);
	}

	m = vfm_linear(t, &d->ada, sc, VFM_ACT_NONE, VFM_F32);
	y = vfm_g_norm_mod(t, h, VFM_NORM_LAYER, (float)d->m.norm_eps, vfm_view_cols(t, m, 0, D), vfm_view_cols(t, m, 1, D), &in->seqs, dt);
	y = vfm_linear(t, &d->out, y, VFM_ACT_NONE, VFM_F32);
	vfm_scope_end(t, all, y);
	return y;
}
