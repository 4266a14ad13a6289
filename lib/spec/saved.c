#include "spec/saved.h"

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

struct list {
	struct vfm_saved *v;
	int n;
	struct vfm_pack_sums p;
};

static struct vfm_saved *add_saved(struct list *l, const char *name, enum vfm_saved_rows rows, double width,
	enum vfm_saved_dtype dtype, enum vfm_keep keep)
{
	static struct vfm_saved none;
	struct vfm_saved *s = width > 0 && l->n < VFM_SAVED_MAX ? &l->v[l->n++] : &none;

	*s = (struct vfm_saved){.name = name, .rows = rows, .width = width, .dtype = dtype, .keep = keep};
	return s;
}

static void add_tokens(struct list *l, const char *name, double width)
{
	add_saved(l, name, VFM_ROWS_TOKENS, width, VFM_SAVED_COMPUTE, VFM_KEEP_REST);
}

static double saved_rows(const struct vfm_pack_sums *p, enum vfm_saved_rows rows)
{
	const double n[VFM_ROW_KINDS] = {[VFM_ROWS_TOKENS] = p->q,
		[VFM_ROWS_TEXT] = p->c,
		[VFM_ROWS_SAMPLES] = p->n,
		[VFM_ROWS_SEGMENTS] = p->g};

	return n[rows];
}

/* The output of a product with matrices [width, in]. */
static struct vfm_saved *add_product(
	struct list *l, const char *name, enum vfm_saved_rows rows, double in, double width, enum vfm_keep keep)
{
	struct vfm_saved *s = add_saved(l, name, rows, width, VFM_SAVED_COMPUTE, keep);

	s->flops = 2 * saved_rows(&l->p, rows) * in * width;
	return s;
}

/* A norm of the residual stream; its backward reads the input. */
static void add_norm(struct list *l, const struct vfm_model_spec *m, bool block_input)
{
	double h = (double)m->hidden;

	add_saved(l, "residual stream", VFM_ROWS_TOKENS, h, VFM_SAVED_RESIDUAL,
		block_input ? VFM_KEEP_INPUT : VFM_KEEP_REST);
	add_saved(l, "norm statistics", VFM_ROWS_TOKENS, vfm_model_arch(m)->rms_norm ? 1 : 2, VFM_SAVED_F32,
		VFM_KEEP_REST);
	add_tokens(l, "norm output", h);
}

/* q or k with `heads` heads, after the projection. */
static void add_qk(struct list *l, const struct vfm_model_spec *m, enum vfm_saved_rows rows, int64_t heads, bool rope)
{
	bool turned = rope && (m->pos == VFM_POS_ROPE || m->pos == VFM_POS_BOTH);

	if (m->qk_norm)
		add_saved(l, "qk-norm statistics", rows, vfm_model_arch(m)->row_qk_norm ? 1 : (double)heads,
			VFM_SAVED_F32, VFM_KEEP_REST);
	if (m->qk_norm || turned)
		add_saved(l, "normalised q or k", rows, (double)(heads * vfm_model_head_dim(m)), VFM_SAVED_COMPUTE,
			VFM_KEEP_REST);
}

/* pairs: the sum of the numbers of keys over the queries. */
static void add_attention_output(struct list *l, const struct vfm_model_spec *m, double pairs)
{
	double h = (double)m->hidden;

	add_saved(l, "attention output", VFM_ROWS_TOKENS, h, VFM_SAVED_COMPUTE, VFM_KEEP_ATTN)->flops = 4 * pairs * h;
	add_saved(l, "attention lse", VFM_ROWS_TOKENS, (double)m->heads, VFM_SAVED_F32, VFM_KEEP_ATTN);
}

static void add_self_attention(struct list *l, const struct vfm_model_spec *m, int i)
{
	double h = (double)m->hidden, kv = (double)(m->kv_heads * vfm_model_head_dim(m));
	const struct vfm_arch *a = vfm_model_arch(m);
	enum vfm_attn_span span = a->attn[i];

	add_norm(l, m, i == 0 && a->pos != VFM_POS_LEARNED);
	add_product(l, "qkv", VFM_ROWS_TOKENS, h, h + 2 * kv, VFM_KEEP_QKV);
	add_qk(l, m, VFM_ROWS_TOKENS, m->heads, true);
	add_qk(l, m, VFM_ROWS_TOKENS, m->kv_heads, true);
	add_attention_output(l, m, span == VFM_ATTN_SPATIAL ? l->p.Qs : span == VFM_ATTN_TEMPORAL ? l->p.Qt : l->p.Q);
	if (span == VFM_ATTN_TEMPORAL) /* the output is permuted back to the order (t, h, w) */
		add_tokens(l, "permuted attention output", h);
	add_product(l, "attention projection", VFM_ROWS_TOKENS, h, h, VFM_KEEP_PROJ);
}

/* Attention to the image rows, and its sum with that to the text.  A sample has image_len rows. */
static void add_image_attention(struct list *l, const struct vfm_model_spec *m)
{
	double h = (double)m->hidden, kv = (double)(m->kv_heads * vfm_model_head_dim(m)), rows = (double)m->image_len;
	bool row = vfm_model_arch(m)->row_qk_norm;

	add_product(l, "cross image kv", VFM_ROWS_SAMPLES, h, rows * 2 * kv, VFM_KEEP_QKV);
	if (m->qk_norm) {
		add_saved(l, "qk-norm statistics", VFM_ROWS_SAMPLES, rows * (row ? 1 : (double)m->kv_heads),
			VFM_SAVED_F32, VFM_KEEP_REST);
		add_saved(l, "normalised q or k", VFM_ROWS_SAMPLES, rows * kv, VFM_SAVED_COMPUTE, VFM_KEEP_REST);
	}
	add_attention_output(l, m, l->p.q * rows);
	add_tokens(l, "sum of cross-attentions", h);
}

/* The block adds the projection without a gate, so the backward does not read it. */
static void add_cross_attention(struct list *l, const struct vfm_model_spec *m)
{
	double h = (double)m->hidden, kv = (double)(m->kv_heads * vfm_model_head_dim(m));

	if (vfm_model_arch(m)->plain_cross)
		add_tokens(l, "cast residual stream", h);
	else
		add_norm(l, m, false);
	add_product(l, "cross q", VFM_ROWS_TOKENS, h, h, VFM_KEEP_QKV);
	add_product(l, "cross kv", VFM_ROWS_TEXT, h, 2 * kv, VFM_KEEP_QKV);
	add_qk(l, m, VFM_ROWS_TOKENS, m->heads, false);
	add_qk(l, m, VFM_ROWS_TEXT, m->kv_heads, false);
	add_attention_output(l, m, l->p.X);
	if (m->image_dim)
		add_image_attention(l, m);
	add_product(l, "cross projection", VFM_ROWS_TOKENS, h, h, VFM_KEEP_PROJ)->unread = true;
}

/* Input and output of the gelu of an MLP; `width` elements per token. */
static void add_gelu(struct list *l, double hidden, double width)
{
	add_product(l, "fc1", VFM_ROWS_TOKENS, hidden, width, VFM_KEEP_FC1);
	add_tokens(l, "fc1 activated", width);
}

static void add_experts(struct list *l, const struct vfm_model_spec *m)
{
	double h = (double)m->hidden, e = (double)m->experts, c = m->moe_capacity, ffn = (double)m->expert_ffn,
	       shared = (double)(m->shared_experts * m->expert_ffn);
	bool tokens_choose = vfm_model_tokens_choose(m);
	struct vfm_saved *router = add_product(l, "router logits", VFM_ROWS_TOKENS, h, e, VFM_KEEP_OTHER);

	router->dtype = VFM_SAVED_F32;
	router->unread = true;
	add_saved(l, "router scores", VFM_ROWS_TOKENS, e, VFM_SAVED_F32, VFM_KEEP_REST);
	/* i32 row indices and weight offsets; token choice adds the chosen experts and their weights */
	add_saved(l, "dispatch lists", VFM_ROWS_TOKENS, (tokens_choose ? 4 : 2) * c, VFM_SAVED_F32, VFM_KEEP_REST);
	add_saved(l, "dispatch weights", VFM_ROWS_TOKENS, c, VFM_SAVED_F32, VFM_KEEP_REST);
	add_tokens(l, "dispatched tokens", c * h);
	add_gelu(l, h, c * ffn);
	add_product(l, "expert outputs", VFM_ROWS_TOKENS, ffn, c * h, VFM_KEEP_MLP);
	if (shared > 0) {
		add_gelu(l, h, shared);
		add_product(l, "shared experts' output", VFM_ROWS_TOKENS, shared, h, VFM_KEEP_MLP)->unread = true;
	}
	add_saved(l, "MLP output", VFM_ROWS_TOKENS, h, VFM_SAVED_RESIDUAL, VFM_KEEP_REST);
}

static void add_mlp(struct list *l, const struct vfm_model_spec *m)
{
	double h = (double)m->hidden, f = (double)m->ffn;

	add_norm(l, m, false);
	switch (vfm_model_arch(m)->mlp) {
	case VFM_MLP_EXPERTS:
		add_experts(l, m);
		return;
	case VFM_MLP_SWIGLU:
		add_product(l, "w13", VFM_ROWS_TOKENS, h, 2 * f, VFM_KEEP_FC1);
		add_tokens(l, "gated", f);
		break;
	case VFM_MLP_GELU:
		add_gelu(l, h, f);
		break;
	}
	add_product(l, "MLP output", VFM_ROWS_TOKENS, f, h, VFM_KEEP_MLP);
}

/* It is computed in front of the block's region (model/modulation.h), which keeps it in every mode. */
static void add_modulation(struct list *l, const struct vfm_model_spec *m)
{
	double h = (double)m->hidden;

	if (vfm_model_arch(m)->mod == VFM_MOD_MATRIX)
		add_saved(l, "low-rank modulation", VFM_ROWS_SEGMENTS, (double)m->adaln_lora, VFM_SAVED_COMPUTE,
			VFM_KEEP_MODULATION);
	add_saved(l, "modulation", VFM_ROWS_SEGMENTS, vfm_model_arch(m)->n_mod * h, VFM_SAVED_F32, VFM_KEEP_MODULATION);
}

int vfm_block_saved(
	const struct vfm_model_spec *m, const struct vfm_pack_sums *pack, struct vfm_saved out[VFM_SAVED_MAX])
{
	struct list l = {out, 0, *pack};

	add_modulation(&l, m);
	if (vfm_model_arch(m)->pos == VFM_POS_LEARNED) /* the input of the position embedding */
		add_saved(&l, "block input", VFM_ROWS_TOKENS, (double)m->hidden, VFM_SAVED_RESIDUAL, VFM_KEEP_INPUT)
			->unread = true;
	for (int i = 0; i < vfm_model_arch(m)->n_attn; i++)
		add_self_attention(&l, m, i);
	if (m->cross_attention)
		add_cross_attention(&l, m);
	add_mlp(&l, m);
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

	for (int i = 0, n = vfm_block_saved(m, &how->pack, all); i < n; i++)
		if ((all[i].keep & keep) && !(all[i].unread && (how->keep & VFM_KEEP_REST)))
			bytes += bytes_of(&all[i], how);
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

	for (int i = 0, n = vfm_block_saved(m, &how->pack, all); i < n; i++) {
		if (all[i].keep & (how->keep | VFM_KEEP_INPUT | VFM_KEEP_MODULATION))
			continue;
		again.flops += all[i].flops;
		if (all[i].keep == VFM_KEEP_REST)
			again.traffic += 2 * bytes_of(&all[i], how);
	}
	return again;
}
