#include "spec/saved.h"

/* Sets of recompute modes that save a tensor. */
enum {
	NONE = 1 << VFM_RECOMPUTE_NONE,
	LIGHT = 1 << VFM_RECOMPUTE_LIGHT,
	PRODUCT = NONE | LIGHT, /* the output of a matrix product that the backward reads */
	ATTENTION = PRODUCT | 1 << VFM_RECOMPUTE_SELECTIVE,
	INPUT = ATTENTION | 1 << VFM_RECOMPUTE_FULL,
};

struct list {
	struct vfm_saved *v;
	int n;
};

static void add_saved(struct list *l, const char *name, enum vfm_saved_rows rows, double width,
	enum vfm_saved_dtype dtype, unsigned modes)
{
	if (width > 0 && l->n < VFM_SAVED_MAX)
		l->v[l->n++] =
			(struct vfm_saved){.name = name, .rows = rows, .width = width, .dtype = dtype, .modes = modes};
}

static void add_tokens(struct list *l, const char *name, double width, unsigned modes)
{
	add_saved(l, name, VFM_ROWS_TOKENS, width, VFM_SAVED_COMPUTE, modes);
}

/* A norm of the residual stream; its backward reads the input. */
static void add_norm(struct list *l, const struct vfm_model_spec *m, bool block_input)
{
	double h = (double)m->hidden;

	add_saved(l, "residual stream", VFM_ROWS_TOKENS, h, VFM_SAVED_RESIDUAL, block_input ? INPUT : NONE);
	add_saved(l, "norm statistics", VFM_ROWS_TOKENS, vfm_model_arch(m)->rms_norm ? 1 : 2, VFM_SAVED_F32, NONE);
	add_tokens(l, "norm output", h, NONE);
}

/* q or k with `heads` heads, after the projection. */
static void add_qk(struct list *l, const struct vfm_model_spec *m, enum vfm_saved_rows rows, int64_t heads, bool rope)
{
	bool turned = rope && (m->pos == VFM_POS_ROPE || m->pos == VFM_POS_BOTH);

	if (m->qk_norm)
		add_saved(l, "qk-norm statistics", rows, (double)heads, VFM_SAVED_F32, NONE);
	if (m->qk_norm || turned)
		add_saved(
			l, "normalised q or k", rows, (double)(heads * vfm_model_head_dim(m)), VFM_SAVED_COMPUTE, NONE);
}

static void add_attention_output(struct list *l, const struct vfm_model_spec *m)
{
	add_tokens(l, "attention output", (double)m->hidden, ATTENTION);
	add_saved(l, "attention lse", VFM_ROWS_TOKENS, (double)m->heads, VFM_SAVED_F32, ATTENTION);
}

static void add_self_attention(struct list *l, const struct vfm_model_spec *m, int i)
{
	double h = (double)m->hidden, kv = (double)(m->kv_heads * vfm_model_head_dim(m));
	const struct vfm_arch *a = vfm_model_arch(m);

	add_norm(l, m, i == 0 && a->pos != VFM_POS_LEARNED);
	add_tokens(l, "qkv", h + 2 * kv, PRODUCT);
	add_qk(l, m, VFM_ROWS_TOKENS, m->heads, true);
	add_qk(l, m, VFM_ROWS_TOKENS, m->kv_heads, true);
	add_attention_output(l, m);
	if (a->attn[i] == VFM_ATTN_TEMPORAL) /* the output is permuted back to the order (t, h, w) */
		add_tokens(l, "permuted attention output", h, NONE);
	add_tokens(l, "attention projection", h, PRODUCT);
}

/* The block adds the projection without a gate, so the backward does not read it. */
static void add_cross_attention(struct list *l, const struct vfm_model_spec *m)
{
	double h = (double)m->hidden, kv = (double)(m->kv_heads * vfm_model_head_dim(m));

	if (vfm_model_arch(m)->plain_cross)
		add_saved(l, "cast residual stream", VFM_ROWS_TOKENS, h, VFM_SAVED_COMPUTE, NONE);
	else
		add_norm(l, m, false);
	add_tokens(l, "cross q", h, PRODUCT);
	add_saved(l, "cross kv", VFM_ROWS_TEXT, 2 * kv, VFM_SAVED_COMPUTE, PRODUCT);
	add_qk(l, m, VFM_ROWS_TOKENS, m->heads, false);
	add_qk(l, m, VFM_ROWS_TEXT, m->kv_heads, false);
	add_attention_output(l, m);
	add_tokens(l, "cross projection", h, LIGHT);
}

/* Input and output of the gelu of an MLP; `width` elements per token. */
static void add_gelu(struct list *l, double width)
{
	add_tokens(l, "fc1", width, PRODUCT);
	add_tokens(l, "fc1 activated", width, NONE);
}

static void add_experts(struct list *l, const struct vfm_model_spec *m)
{
	double h = (double)m->hidden, e = (double)m->experts, c = m->moe_capacity,
	       shared = (double)(m->shared_experts * m->expert_ffn);
	bool tokens_choose = vfm_model_tokens_choose(m);

	add_saved(l, "router logits", VFM_ROWS_TOKENS, e, VFM_SAVED_F32, LIGHT);
	add_saved(l, "router scores", VFM_ROWS_TOKENS, e, VFM_SAVED_F32, NONE);
	/* i32 row indices and weight offsets; token choice adds the chosen experts and their weights */
	add_saved(l, "dispatch lists", VFM_ROWS_TOKENS, (tokens_choose ? 4 : 2) * c, VFM_SAVED_F32, NONE);
	add_saved(l, "dispatch weights", VFM_ROWS_TOKENS, c, VFM_SAVED_F32, NONE);
	add_tokens(l, "dispatched tokens", c * h, NONE);
	add_gelu(l, c * (double)m->expert_ffn);
	add_tokens(l, "expert outputs", c * h, PRODUCT);
	add_gelu(l, shared);
	if (shared > 0)
		add_tokens(l, "shared experts' output", h, LIGHT);
	add_saved(l, "MLP output", VFM_ROWS_TOKENS, h, VFM_SAVED_RESIDUAL, NONE);
}

static void add_mlp(struct list *l, const struct vfm_model_spec *m)
{
	double f = (double)m->ffn;

	add_norm(l, m, false);
	switch (vfm_model_arch(m)->mlp) {
	case VFM_MLP_EXPERTS:
		add_experts(l, m);
		return;
	case VFM_MLP_SWIGLU:
		add_tokens(l, "w13", 2 * f, PRODUCT);
		add_tokens(l, "gated", f, NONE);
		break;
	case VFM_MLP_GELU:
		add_gelu(l, f);
		break;
	}
	add_tokens(l, "MLP output", (double)m->hidden, PRODUCT);
}

static void add_modulation(struct list *l, const struct vfm_model_spec *m)
{
	double h = (double)m->hidden, mods = vfm_model_arch(m)->n_mod * h;
	bool sum = vfm_model_has_shared_mod(m);

	if (vfm_model_arch(m)->mod == VFM_MOD_MATRIX) {
		add_saved(l, "cast conditioning", VFM_ROWS_SAMPLES, h, VFM_SAVED_COMPUTE, NONE);
		l->v[l->n - 1].cast = true;
		add_saved(
			l, "low-rank modulation", VFM_ROWS_SAMPLES, (double)m->adaln_lora, VFM_SAVED_COMPUTE, PRODUCT);
		add_saved(l, "modulation", VFM_ROWS_SAMPLES, mods, VFM_SAVED_F32, sum ? LIGHT : PRODUCT);
	}
	if (sum)
		add_saved(l, "modulation, summed", VFM_ROWS_SAMPLES, mods, VFM_SAVED_F32, NONE);
}

int vfm_block_saved(const struct vfm_model_spec *m, struct vfm_saved out[VFM_SAVED_MAX])
{
	struct list l = {out, 0};

	add_modulation(&l, m);
	if (vfm_model_arch(m)->pos == VFM_POS_LEARNED) /* the input of the position embedding */
		add_saved(&l, "block input", VFM_ROWS_TOKENS, (double)m->hidden, VFM_SAVED_RESIDUAL, INPUT & ~NONE);
	for (int i = 0; i < vfm_model_arch(m)->n_attn; i++)
		add_self_attention(&l, m, i);
	if (m->cross_attention)
		add_cross_attention(&l, m);
	add_mlp(&l, m);
	return l.n;
}

double vfm_block_saved_bytes(const struct vfm_model_spec *m, const struct vfm_saved_how *how)
{
	const double size[] = {[VFM_SAVED_COMPUTE] = (double)vfm_dtype_size(how->dtype),
		[VFM_SAVED_RESIDUAL] = (double)vfm_dtype_size(how->residual),
		[VFM_SAVED_F32] = 4};
	struct vfm_saved all[VFM_SAVED_MAX];
	double bytes = 0;

	for (int i = 0, n = vfm_block_saved(m, all); i < n; i++)
		if ((all[i].modes >> how->mode & 1) && !(all[i].cast && how->dtype == VFM_F32))
			bytes += how->rows[all[i].rows] * all[i].width * size[all[i].dtype];
	return bytes;
}
