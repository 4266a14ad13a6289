/* saved.c - lists the saved tensors of a block layer by layer, with bytes and FLOPs. */
#include "spec/cost/saved.h"

#include <stdio.h>
#include <string.h>

#include "spec/model/linears.h"

unsigned vfm_recompute_keeps(enum vfm_recompute mode)
{
	static const unsigned keeps[VFM_RECOMPUTE_MODES + 1] = {
		[VFM_RECOMPUTE_NONE] = VFM_KEEP_ALL,
		[VFM_RECOMPUTE_AUTO] = VFM_KEEP_ALL,
		[VFM_RECOMPUTE_LIGHT] = VFM_KEEP_PRODUCTS,
		[VFM_RECOMPUTE_OUTPUTS] = VFM_KEEP_ATTN | VFM_KEEP_MLP,
		[VFM_RECOMPUTE_SELECTIVE] = VFM_KEEP_ATTN,
	};

	return keeps[mode];
}

void vfm_keeps_fill(struct vfm_keeps *how, int64_t layers, enum vfm_recompute mode, int64_t blocks, unsigned offload)
{
	for (int64_t i = 0; i < layers; i++) {
		bool again = blocks == 0 || blocks >= layers || (i + 1) * blocks / layers > i * blocks / layers;

		how[i] = again && !(vfm_recompute_keeps(mode) & VFM_KEEP_REST)
			? (struct vfm_keeps){vfm_recompute_keeps(mode), offload}
			: (struct vfm_keeps){VFM_KEEP_ALL, 0};
	}
}

enum { MOST_LINEARS = 32 };

struct saved_list {
	struct vfm_saved *v;
	int n;
	const struct vfm_saved_how *how;
	struct vfm_linear_shape linear[MOST_LINEARS]; /* of a block */
	int n_linear;
};

/* Returns whether the backward of any of these layers reads its input. */
static bool reads_input(const struct saved_list *l, unsigned layers)
{
	return (l->how->tuning.fixed & layers) != layers;
}

static struct vfm_saved *add_saved(struct saved_list *l, const char *name, enum vfm_saved_rows rows, double width,
	enum vfm_saved_dtype dtype, enum vfm_keep keep)
{
	static struct vfm_saved none;
	struct vfm_saved *s = width > 0 && l->n < VFM_SAVED_MAX ? &l->v[l->n++] : &none;

	*s = (struct vfm_saved){.name = name, .rows = rows, .width = width, .dtype = dtype, .keep = keep};
	return s;
}

/* The input of layers, which nothing else reads. */
static void add_input(struct saved_list *l, const char *name, double width, unsigned layers, bool gathered)
{
	struct vfm_saved *s = add_saved(l, name, VFM_ROWS_TOKENS, width, VFM_SAVED_COMPUTE, VFM_KEEP_REST);

	s->unread = !reads_input(l, layers);
	s->gathered = gathered;
}

static double saved_rows(const struct vfm_pack_sums *p, enum vfm_saved_rows rows)
{
	const double n[VFM_ROW_KINDS] = {[VFM_ROWS_TOKENS] = p->tokens,
		[VFM_ROWS_TEXT] = p->text_rows + p->text2_rows + p->image_rows,
		[VFM_ROWS_SAMPLES] = p->samples,
		[VFM_ROWS_SEGMENTS] = p->segments};

	return n[rows];
}

/* The output of linear layers with one input, `per` of their rows to each row; with the FLOPs of their adapters. */
static struct vfm_saved *add_product(struct saved_list *l, const char *name, enum vfm_saved_rows rows, unsigned layers,
	double per, enum vfm_keep keep)
{
	double in = 0, out = 0, added = 0;
	struct vfm_saved *s;

	for (int i = 0; i < l->n_linear; i++) {
		const struct vfm_linear_shape *x = &l->linear[i];

		if (!(x->layer & layers))
			continue;
		in = (double)x->in;
		out += (double)x->out;
		if (l->how->tuning.adapted & x->layer)
			added += l->how->tuning.rank * (double)(x->blocks * x->in + x->out);
	}
	s = add_saved(l, name, rows, per * out, VFM_SAVED_COMPUTE, keep);
	s->in = per * in;
	s->flops = 2 * saved_rows(&l->how->pack, rows) * per * (in * out + added);
	return s;
}

/* A norm of the residual stream; its backward reads the input.  readers: the layers that read its output.  all_rows:
 * over tp they keep the rows of all ranks. */
static void add_norm(
	struct saved_list *l, const struct vfm_model_spec *m, bool block_input, unsigned readers, bool all_rows)
{
	double h = (double)m->hidden;

	add_saved(l, "residual stream", VFM_ROWS_TOKENS, h, VFM_SAVED_RESIDUAL,
		block_input ? VFM_KEEP_INPUT : VFM_KEEP_REST);
	add_saved(l, "norm statistics", VFM_ROWS_TOKENS, vfm_model_arch(m)->rms_norm ? 1 : 2, VFM_SAVED_F32,
		VFM_KEEP_REST);
	add_input(l, "norm output", all_rows && l->how->tp > 1 ? l->how->tp * h : h, readers, !all_rows);
}

/* A branch: its output is read for the gradient of its gate. */
static struct vfm_saved *add_branch(struct saved_list *l, const char *name, unsigned layer, enum vfm_keep keep)
{
	struct vfm_saved *s = add_product(l, name, VFM_ROWS_TOKENS, layer, 1, keep);

	s->unread = !reads_input(l, VFM_LAYER_MODULATION);
	return s;
}

/* q or k with `heads` heads, after the projection.  source: the layer without which it has no gradient, or 0.
 * exchanged: attention reads another copy; the norm of whole rows, which then is an op of its own, leaves its
 * result. */
static void add_qk(struct saved_list *l, const struct vfm_model_spec *m, enum vfm_saved_rows rows, int64_t heads,
	bool rope, unsigned source, bool exchanged)
{
	bool turned = rope && (m->pos == VFM_POS_ROPE || m->pos == VFM_POS_BOTH);

	if (m->qk_norm)
		add_saved(l, "qk-norm statistics", rows, vfm_model_arch(m)->row_qk_norm ? 1 : (double)heads,
			VFM_SAVED_F32, VFM_KEEP_REST)
			->unread = source && !reads_input(l, source);
	if (m->qk_norm || turned)
		add_saved(l, "normalised q or k", rows, (double)(heads * vfm_model_head_dim(m)), VFM_SAVED_COMPUTE,
			VFM_KEEP_REST)
			->unread = exchanged && !vfm_model_arch(m)->row_qk_norm;
}

/* pairs: the sum of the numbers of keys over the queries. */
static void add_attention_output(struct saved_list *l, const struct vfm_model_spec *m, double pairs)
{
	double h = (double)m->hidden;

	add_saved(l, "attention output", VFM_ROWS_TOKENS, h, VFM_SAVED_COMPUTE, VFM_KEEP_ATTN)->flops = 4 * pairs * h;
	add_saved(l, "attention lse", VFM_ROWS_TOKENS, (double)m->heads, VFM_SAVED_F32, VFM_KEEP_ATTN);
}

static void add_self_attention(struct saved_list *l, const struct vfm_model_spec *m, int i)
{
	double h = (double)m->hidden, kv = (double)(m->kv_heads * vfm_model_head_dim(m));
	const struct vfm_arch *a = vfm_model_arch(m);
	enum vfm_attn_span span = a->attn[i];
	const int at = i * VFM_LAYERS_ATTN;
	const bool fused = m->kv_heads == m->heads, exchanged = l->how->exchanges_heads && span == VFM_ATTN_FULL;
	struct vfm_saved *qkv;

	add_norm(l, m, i == 0 && a->pos != VFM_POS_LEARNED, (VFM_LAYER_Q | (fused ? 0 : VFM_LAYER_KV)) << at,
		span != VFM_ATTN_FULL);
	qkv = add_product(l, "qkv", VFM_ROWS_TOKENS, (VFM_LAYER_Q | VFM_LAYER_KV) << at, 1, VFM_KEEP_QKV);
	qkv->unread = exchanged && !m->qk_norm;
	add_qk(l, m, VFM_ROWS_TOKENS, m->heads, true, 0, exchanged);
	add_qk(l, m, VFM_ROWS_TOKENS, m->kv_heads, true, 0, exchanged);
	if (exchanged) {
		add_saved(l, "exchanged q, k and v", VFM_ROWS_TOKENS, h + 2 * kv, VFM_SAVED_COMPUTE, VFM_KEEP_REST);
		add_input(l, "exchanged attention output", h, VFM_LAYER_PROJ << at, false);
	}
	add_attention_output(l, m,
		span == VFM_ATTN_SPATIAL            ? l->how->pack.pairs_spatial
			: span == VFM_ATTN_TEMPORAL ? l->how->pack.pairs_temporal
						    : l->how->pack.pairs_full);
	/* the output is permuted back to the order (t, h, w), or sent back to the ranks of its rows */
	if (span == VFM_ATTN_TEMPORAL || (span == VFM_ATTN_SPATIAL && l->how->exchanges_units))
		add_input(l, "permuted attention output", h, VFM_LAYER_PROJ << at, false);
	add_branch(l, "attention projection", VFM_LAYER_PROJ << at, VFM_KEEP_PROJ);
}

/* Attention to the image rows, and its sum with that to the text.  A sample has image_len rows. */
static void add_image_attention(struct saved_list *l, const struct vfm_model_spec *m)
{
	double h = (double)m->hidden, kv = (double)(m->kv_heads * vfm_model_head_dim(m)), rows = (double)m->image_len;
	bool row = vfm_model_arch(m)->row_qk_norm;

	add_product(l, "cross image kv", VFM_ROWS_SAMPLES, VFM_LAYER_CROSS_KV_IMG, rows, VFM_KEEP_QKV);
	if (m->qk_norm)
		add_saved(l, "qk-norm statistics", VFM_ROWS_SAMPLES, rows * (row ? 1 : (double)m->kv_heads),
			VFM_SAVED_F32, VFM_KEEP_REST)
			->unread = !reads_input(l, VFM_LAYER_CROSS_KV_IMG);
	if (m->qk_norm)
		add_saved(l, "normalised q or k", VFM_ROWS_SAMPLES, rows * kv, VFM_SAVED_COMPUTE, VFM_KEEP_REST);
	add_attention_output(l, m, l->how->pack.tokens * rows);
	add_input(l, "sum of cross-attentions", h, VFM_LAYER_CROSS_PROJ, false);
}

/* Without a gate the backward does not read the projection. */
static void add_cross_attention(struct saved_list *l, const struct vfm_model_spec *m)
{
	double h = (double)m->hidden;

	if (!vfm_model_arch(m)->plain_cross)
		add_norm(l, m, false, VFM_LAYER_CROSS_Q, false);
	else
		add_input(l, "cast residual stream", h, VFM_LAYER_CROSS_Q, true);
	add_product(l, "cross q", VFM_ROWS_TOKENS, VFM_LAYER_CROSS_Q, 1, VFM_KEEP_QKV);
	add_product(l, "cross kv", VFM_ROWS_TEXT, VFM_LAYER_CROSS_KV, 1, VFM_KEEP_QKV);
	add_qk(l, m, VFM_ROWS_TOKENS, m->heads, false, 0, false);
	add_qk(l, m, VFM_ROWS_TEXT, m->kv_heads, false, VFM_LAYER_CROSS_KV, false);
	add_attention_output(l, m, l->how->pack.pairs_cross);
	if (m->image_dim)
		add_image_attention(l, m);
	if (vfm_model_arch(m)->cross_mod)
		add_branch(l, "cross projection", VFM_LAYER_CROSS_PROJ, VFM_KEEP_PROJ);
	else
		add_product(l, "cross projection", VFM_ROWS_TOKENS, VFM_LAYER_CROSS_PROJ, 1, VFM_KEEP_PROJ)->unread =
			true;
}

/* Input and output of the gelu of an MLP, `per` rows for each token.  Returns the input. */
static struct vfm_saved *add_gelu(struct saved_list *l, double per, unsigned fc1, unsigned fc2)
{
	struct vfm_saved *s = add_product(l, "fc1", VFM_ROWS_TOKENS, fc1, per, VFM_KEEP_FC1);

	add_input(l, "fc1 activated", s->width, fc2, false);
	return s;
}

static void add_experts(struct saved_list *l, const struct vfm_model_spec *m)
{
	double h = (double)m->hidden, e = (double)m->experts, c = m->moe_capacity;
	bool tokens_choose = vfm_model_tokens_choose(m);
	struct vfm_saved *fc1, *fc2, *router;

	router = add_product(l, "router logits", VFM_ROWS_TOKENS, VFM_LAYER_ROUTER, 1, VFM_KEEP_OTHER);
	router->dtype = VFM_SAVED_F32;
	router->unread = true;
	router->local = true;
	add_saved(l, "router scores", VFM_ROWS_TOKENS, e, VFM_SAVED_F32, VFM_KEEP_REST);
	/* i32 row indices and weight offsets; token choice adds the chosen experts and their weights */
	add_saved(l, "dispatch lists", VFM_ROWS_TOKENS, (tokens_choose ? 4 : 2) * c, VFM_SAVED_F32, VFM_KEEP_REST);
	add_saved(l, "dispatch weights", VFM_ROWS_TOKENS, c, VFM_SAVED_F32, VFM_KEEP_REST);
	add_input(l, "dispatched tokens", c * h, VFM_LAYER_EXPERTS_FC1, false);
	fc1 = add_gelu(l, c, VFM_LAYER_EXPERTS_FC1, VFM_LAYER_EXPERTS_FC2);
	fc2 = add_product(l, "expert outputs", VFM_ROWS_TOKENS, VFM_LAYER_EXPERTS_FC2, c, VFM_KEEP_MLP);
	fc1->local = fc2->local = true;
	if (m->shared_experts) {
		add_gelu(l, 1, VFM_LAYER_FC1, VFM_LAYER_FC2);
		add_product(l, "shared experts' output", VFM_ROWS_TOKENS, VFM_LAYER_FC2, 1, VFM_KEEP_MLP)->unread =
			true;
	}
	add_saved(l, "MLP output", VFM_ROWS_TOKENS, h, VFM_SAVED_RESIDUAL, VFM_KEEP_REST)->unread =
		!reads_input(l, VFM_LAYER_MODULATION);
}

static void add_mlp(struct saved_list *l, const struct vfm_model_spec *m)
{
	bool experts = vfm_model_arch(m)->mlp == VFM_MLP_EXPERTS;

	add_norm(l, m, false, experts ? VFM_LAYER_ROUTER | (m->shared_experts ? VFM_LAYER_FC1 : 0) : VFM_LAYER_FC1,
		false);
	switch (vfm_model_arch(m)->mlp) {
	case VFM_MLP_EXPERTS:
		add_experts(l, m);
		return;
	case VFM_MLP_SWIGLU:
		add_product(l, "w13", VFM_ROWS_TOKENS, VFM_LAYER_FC1, 1, VFM_KEEP_FC1);
		add_input(l, "gated", (double)m->ffn, VFM_LAYER_FC2, false);
		break;
	case VFM_MLP_GELU:
	case VFM_MLP_GELU_EXACT:
		add_gelu(l, 1, VFM_LAYER_FC1, VFM_LAYER_FC2);
		break;
	}
	add_branch(l, "MLP output", VFM_LAYER_FC2, VFM_KEEP_MLP);
}

/* ---- joint attention: tokens and text ---- */

/* The attention of one side, from its norm to its projection.  The copies of rows in the order of the sequences, and
 * back, are as the exchange of heads over cp: attention reads the copies.  at: the bits of the side's layers; more: the
 * other layers that read the norm. */
static void add_joint_attention(struct saved_list *l, const struct vfm_model_spec *m, bool text, int at, unsigned more)
{
	const enum vfm_saved_rows rows = text ? VFM_ROWS_TEXT : VFM_ROWS_TOKENS;
	const unsigned q = (VFM_LAYER_Q | (m->kv_heads == m->heads ? 0 : VFM_LAYER_KV)) << at;
	const double h = (double)m->hidden, kv = (double)(m->kv_heads * vfm_model_head_dim(m));
	const bool exchanged = l->how->exchanges_heads;

	add_norm(l, m, true, q | more, false);
	add_product(l, "qkv", rows, (VFM_LAYER_Q | VFM_LAYER_KV) << at, 1, VFM_KEEP_QKV)->unread =
		!m->qk_norm && (text || m->pos == VFM_POS_SINCOS);
	add_qk(l, m, rows, m->heads, !text, 0, true);
	add_qk(l, m, rows, m->kv_heads, !text, 0, true);
	add_saved(l, "joined q, k and v", rows, h + 2 * kv, VFM_SAVED_COMPUTE, VFM_KEEP_REST)->unread = exchanged;
	if (exchanged)
		add_saved(l, "exchanged q, k and v", rows, h + 2 * kv, VFM_SAVED_COMPUTE, VFM_KEEP_REST);
	add_saved(l, "attention output", rows, h, VFM_SAVED_COMPUTE, VFM_KEEP_ATTN)->flops =
		text ? 0 : 4 * l->how->pack.pairs_joint * h;
	add_saved(l, "attention lse", rows, (double)m->heads, VFM_SAVED_F32, VFM_KEEP_ATTN);
	if (exchanged)
		add_saved(l, "exchanged attention output", rows, h, VFM_SAVED_COMPUTE, VFM_KEEP_REST)->unread = true;
	add_input(l, "attention output of a stream", h, VFM_LAYER_PROJ << at, false);
	add_product(l, "attention projection", rows, VFM_LAYER_PROJ << at, 1, VFM_KEEP_PROJ)->unread =
		more || !reads_input(l, VFM_LAYER_MODULATION);
}

/* One side of a block.  In a single-stream block both sides have the same layers; its gate reads a sum. */
static void add_joint_side(struct saved_list *l, const struct vfm_model_spec *m, bool text, bool single)
{
	const enum vfm_saved_rows rows = text ? VFM_ROWS_TEXT : VFM_ROWS_TOKENS;
	const bool own = text && !single;
	const unsigned fc1 = own ? VFM_LAYER_TEXT_FC1 : VFM_LAYER_FC1, fc2 = own ? VFM_LAYER_TEXT_FC2 : VFM_LAYER_FC2;
	const double h = (double)m->hidden;
	const int first = l->n;

	add_joint_attention(l, m, text, own ? VFM_LAYERS_ATTN : 0, single ? fc1 : 0);
	if (!single)
		add_norm(l, m, false, fc1, false);
	add_input(l, "fc1 activated", add_product(l, "fc1", rows, fc1, 1, VFM_KEEP_FC1)->width, fc2, false);
	add_product(l, "MLP output", rows, fc2, 1, VFM_KEEP_MLP)->unread =
		single || !reads_input(l, VFM_LAYER_MODULATION);
	if (single)
		add_saved(l, "sum of attention and MLP", rows, h, VFM_SAVED_COMPUTE, VFM_KEEP_REST)->unread =
			!reads_input(l, VFM_LAYER_MODULATION);
	add_saved(l, "stream after the block", rows, h, VFM_SAVED_RESIDUAL, VFM_KEEP_REST)->unread = true;
	for (int i = first; i < l->n; i++)
		l->v[i].rows = rows;
}

static void add_joint(struct saved_list *l, const struct vfm_model_spec *m, bool single)
{
	add_joint_side(l, m, false, single);
	add_joint_side(l, m, true, single);
}

/* It is computed in front of the block's region (net/diffusion/modulation.h), which keeps it in every mode. */
static void add_modulation(struct saved_list *l, const struct vfm_model_spec *m, int64_t layer)
{
	const int parts = vfm_model_arch(m)->mod == VFM_MOD_LOW_RANK ? vfm_model_arch(m)->n_mod / 3 : 1;
	double h = (double)m->hidden;

	if (vfm_model_arch(m)->mod != VFM_MOD_TABLE && reads_input(l, VFM_LAYER_ADA_B))
		add_saved(l, "low-rank modulation", VFM_ROWS_SEGMENTS, (double)(parts * m->adaln_lora),
			VFM_SAVED_COMPUTE, VFM_KEEP_MODULATION);
	add_saved(
		l, "modulation", VFM_ROWS_SEGMENTS, vfm_model_n_mod(m, layer) * h, VFM_SAVED_F32, VFM_KEEP_MODULATION);
}

/* ---- what a run trains ---- */

struct gradients {
	const struct vfm_model_spec *m;
	const struct vfm_tuning *t;
	struct vfm_saved_tuning out;
};

static bool trains(const struct gradients *g, const char *layer, const char *part)
{
	char name[96];

	snprintf(name, sizeof(name), "%s%s", layer, part);
	return !vfm_tuning_freezes(g->t, name);
}

static void note_layer(void *ctx, const struct vfm_linear_shape *s)
{
	const unsigned by_bias = VFM_LAYER_CROSS_KV | VFM_LAYER_CROSS_KV_IMG | VFM_LAYER_MODULATION;
	struct gradients *g = ctx;
	char weight[80], bias[80], name[80];
	bool adapted, has_gradient;

	vfm_linear_name(s, "", name, sizeof(name));
	vfm_linear_name(s, ".weight", weight, sizeof(weight));
	vfm_linear_name(s, ".bias", bias, sizeof(bias));
	adapted = s->blocks > 0 && vfm_tuning_adapts(g->t, name);
	has_gradient = adapted || !vfm_tuning_freezes(g->t, weight);
	if (has_gradient)
		g->out.fixed &= ~s->layer;
	/* A trained bias alone makes the backward read what precedes these layers. */
	if (has_gradient || !vfm_tuning_freezes(g->t, bias))
		g->out.fixed &= ~(s->layer & VFM_LAYER_ADA_B ? (unsigned)VFM_LAYER_MODULATION : s->layer & by_bias);
	if (adapted && s->block >= 0)
		g->out.adapted |= s->layer;
}

struct vfm_saved_tuning vfm_saved_tuning(const struct vfm_model_spec *m, const struct vfm_tuning *t)
{
	struct gradients g = {m, t, {.fixed = VFM_LAYERS_ALL, .rank = (double)t->rank}};
	char block[32];

	if (!t->rank && !t->freeze.text[0])
		return (struct vfm_saved_tuning){0};
	vfm_model_linears(m, &(struct vfm_pack_sums){.samples = 1, .text_rows = 1}, 0, m->layers, note_layer, &g);
	if (trains(&g, "img_mlp", ".pos") || trains(&g, "img_mlp.0", ".weight") || trains(&g, "img_mlp.0", ".bias") ||
		trains(&g, "img_mlp.4", ".weight") || trains(&g, "img_mlp.4", ".bias"))
		g.out.fixed &= ~VFM_LAYER_CROSS_KV_IMG;
	for (int64_t i = 0; i < m->layers; i++) {
		snprintf(block, sizeof(block), "blocks.%d.", (int)i);
		if (vfm_model_arch(m)->mod == VFM_MOD_TABLE && trains(&g, block, "scale_shift_table"))
			g.out.fixed &= ~VFM_LAYER_MODULATION;
		if (m->qk_norm && trains(&g, block, "cross.kn.weight"))
			g.out.fixed &= ~VFM_LAYER_CROSS_KV;
		if (m->qk_norm && trains(&g, block, "cross.kn_img.weight"))
			g.out.fixed &= ~VFM_LAYER_CROSS_KV_IMG;
	}
	return g.out;
}

/* ---- interface ---- */

static void keep_linear(void *ctx, const struct vfm_linear_shape *s)
{
	struct saved_list *l = ctx;

	if (s->block >= 0 && l->n_linear < MOST_LINEARS)
		l->linear[l->n_linear++] = *s;
}

static void list_block(struct saved_list *l, const struct vfm_model_spec *m, int64_t layer)
{
	const struct vfm_arch *a = vfm_model_arch(m);

	l->n_linear = 0;
	vfm_model_linears(m, &l->how->pack, layer, layer + 1, keep_linear, l);
	add_modulation(l, m, layer);
	if (a->joint) {
		add_joint(l, m, vfm_model_is_single(m, layer));
		return;
	}
	if (a->pos == VFM_POS_LEARNED) /* the input of the position embedding */
		add_saved(l, "block input", VFM_ROWS_TOKENS, (double)m->hidden, VFM_SAVED_RESIDUAL, VFM_KEEP_INPUT)
			->unread = true;
	for (int i = 0; i < a->n_attn; i++)
		add_self_attention(l, m, i);
	if (vfm_model_has_cross(m))
		add_cross_attention(l, m);
	add_mlp(l, m);
}

/* Scales tensors [first, n) to the share of the blocks that have them. */
static void scale_saved(struct saved_list *l, int first, double share)
{
	for (int i = first; i < l->n; i++) {
		l->v[i].width *= share;
		l->v[i].in *= share;
		l->v[i].flops *= share;
	}
}

int vfm_block_saved(
	const struct vfm_model_spec *m, const struct vfm_saved_how *how, struct vfm_saved out[VFM_SAVED_MAX])
{
	struct saved_list l = {.v = out, .how = how};
	int n;

	if (how->single < 1)
		list_block(&l, m, 0);
	scale_saved(&l, 0, 1 - how->single);
	n = l.n;
	if (how->single > 0)
		list_block(&l, m, m->layers - 1);
	scale_saved(&l, n, how->single);
	return l.n;
}

static double bytes_of(const struct vfm_saved *s, const struct vfm_saved_how *how)
{
	const double size[] = {[VFM_SAVED_COMPUTE] = (double)vfm_dtype_size(how->dtype),
		[VFM_SAVED_RESIDUAL] = (double)vfm_dtype_size(how->residual),
		[VFM_SAVED_F32] = 4};

	return saved_rows(&how->pack, s->rows) * s->width * size[s->dtype];
}

double vfm_block_saved_part(const struct vfm_model_spec *m, const struct vfm_saved_how *how, unsigned of)
{
	unsigned keep = (how->keep | VFM_KEEP_INPUT | VFM_KEEP_MODULATION) & of;
	struct vfm_saved all[VFM_SAVED_MAX];
	double bytes = 0;

	for (int i = 0, n = vfm_block_saved(m, how, all); i < n; i++)
		if ((all[i].keep & keep) && !(all[i].unread && (how->keep & VFM_KEEP_REST)))
			bytes += bytes_of(&all[i], how);
	return bytes;
}

double vfm_block_forward_bytes(const struct vfm_model_spec *m, const struct vfm_saved_how *how)
{
	struct vfm_saved all[VFM_SAVED_MAX];
	const double text = vfm_model_arch(m)->joint ? saved_rows(&how->pack, VFM_ROWS_TEXT) : 0;
	double bytes = (how->pack.tokens + text) * (double)m->hidden * (double)vfm_dtype_size(how->residual);

	for (int i = 0, n = vfm_block_saved(m, how, all); i < n; i++)
		bytes += bytes_of(&all[i], how);
	return bytes;
}

double vfm_block_gathered_bytes(const struct vfm_model_spec *m, const struct vfm_saved_how *how)
{
	struct vfm_saved all[VFM_SAVED_MAX];
	double bytes = 0;

	for (int i = 0, n = vfm_block_saved(m, how, all); i < n; i++)
		if (all[i].gathered && !all[i].unread)
			bytes += bytes_of(&all[i], how);
	return bytes;
}

double vfm_block_deferred_bytes(const struct vfm_model_spec *m, const struct vfm_saved_how *how, int tp)
{
	const double size = (double)vfm_dtype_size(how->dtype);
	struct vfm_saved all[VFM_SAVED_MAX];
	double bytes = 0;

	/* Over tp a column layer reads the rows of all ranks, and a row layer has the gradients of all rows. */
	for (int i = 0, n = vfm_block_saved(m, how, all); i < n; i++) {
		bool splits_rows = all[i].keep & (VFM_KEEP_PROJ | VFM_KEEP_MLP);
		int all_rows = all[i].rows == VFM_ROWS_TOKENS && !all[i].local ? tp : 1;

		if (all[i].in > 0)
			bytes += saved_rows(&how->pack, all[i].rows) * size *
				(all[i].in * (splits_rows ? 1 : all_rows) +
					all[i].width * (splits_rows ? all_rows : 1));
	}
	return bytes;
}

double vfm_block_saved_bytes(const struct vfm_model_spec *m, const struct vfm_saved_how *how)
{
	return vfm_block_saved_part(m, how, VFM_KEEP_ALL | VFM_KEEP_INPUT | VFM_KEEP_MODULATION);
}

struct vfm_block_again vfm_block_again(const struct vfm_model_spec *m, const struct vfm_saved_how *how)
{
	struct vfm_block_again again = {0};
	struct vfm_saved all[VFM_SAVED_MAX];

	for (int i = 0, n = vfm_block_saved(m, how, all); i < n; i++) {
		if (all[i].keep & (how->keep | VFM_KEEP_INPUT | VFM_KEEP_MODULATION))
			continue;
		again.flops += all[i].flops;
		if (all[i].keep == VFM_KEEP_REST)
			again.traffic += 2 * bytes_of(&all[i], how);
	}
	return again;
}
