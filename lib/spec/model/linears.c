/* linears.c - lists every linear layer of a model, and sums parameters and FLOPs over the list. */
#include "spec/model/linears.h"

#include <stdio.h>
#include <string.h>

struct listing {
	const struct vfm_model_spec *m;
	const struct vfm_pack_sums *p;
	void (*fn)(void *ctx, const struct vfm_linear_shape *l);
	void *ctx;
	int64_t block;
};

static bool has_bias(const struct listing *l, const char *name, unsigned layer)
{
	const struct vfm_arch *a = vfm_model_arch(l->m);

	if (layer & (VFM_LAYER_ROUTER | VFM_LAYER_EXPERTS_FC1 | VFM_LAYER_EXPERTS_FC2) || !strcmp(name, "ada_a"))
		return false;
	if (!strcmp(name, "ctx_proj"))
		return true;
	if (l->block >= 0 && vfm_model_is_single(l->m, l->block) && !strcmp(name, "attn.proj"))
		return false; /* fc2 has the bias of the sum */
	return l->block < 0 || layer & (VFM_LAYER_ADA_B | VFM_LAYER_MODULATION) ? !a->no_bias_ends : !a->no_bias;
}

static void list_linear(const struct listing *l, const char *name, unsigned layer, double rows, bool tokens, int64_t in,
	int64_t out, int blocks)
{
	const struct vfm_linear_shape s = {.name = name,
		.block = l->block,
		.layer = layer,
		.in = in,
		.out = out,
		.blocks = blocks,
		.rows = rows,
		.bias = has_bias(l, name, layer),
		.tokens = tokens};

	l->fn(l->ctx, &s);
}

void vfm_linear_name(const struct vfm_linear_shape *l, const char *suffix, char *name, size_t size)
{
	if (l->block < 0)
		snprintf(name, size, "%s%s", l->name, suffix);
	else
		snprintf(name, size, "blocks.%lld.%s%s", (long long)l->block, l->name, suffix);
}

static void list_text(const struct listing *l)
{
	const struct vfm_model_spec *m = l->m;
	const double n = (m->cross_attention ? l->p->text_rows : 0) + (m->pooled_text ? l->p->samples : 0);
	const unsigned layers =
		(vfm_model_has_cross(m) ? VFM_LAYER_CROSS_KV : 0) | (m->pooled_text ? VFM_LAYER_MODULATION : 0);
	const bool mlp = vfm_model_arch(m)->text == VFM_TEXT_MLP;

	if (n == 0 || (vfm_model_arch(m)->text == VFM_TEXT_ROWS && !m->text_proj))
		return;
	list_linear(l, mlp ? "ctx_mlp.0" : "ctx_proj", layers, n, false, m->text_dim, vfm_model_context_dim(m), 1);
	if (mlp)
		list_linear(l, "ctx_mlp.2", layers, n, false, m->hidden, m->hidden, 1);
}

/* The vector of the second text and the guidance scale, which the conditioning adds. */
static void list_added(const struct listing *l)
{
	const struct vfm_model_spec *m = l->m;
	const int64_t h = m->hidden;

	if (m->text2_dim && vfm_model_arch(m)->text2_vector) {
		list_linear(l, "vec_mlp.0", VFM_LAYER_MODULATION, l->p->samples, false, m->text2_dim, h, 1);
		list_linear(l, "vec_mlp.2", VFM_LAYER_MODULATION, l->p->samples, false, h, h, 1);
	}
	if (m->guidance_dim) {
		list_linear(l, "guidance_mlp.0", VFM_LAYER_MODULATION, 1, false, m->guidance_dim, h, 1);
		list_linear(l, "guidance_mlp.2", VFM_LAYER_MODULATION, 1, false, h, h, 1);
	}
}

static void list_conditioning(const struct listing *l)
{
	const struct vfm_model_spec *m = l->m;
	const struct vfm_arch *a = vfm_model_arch(m);
	const bool low = a->mod == VFM_MOD_LOW_RANK;
	const double n = l->p->samples;
	const int64_t h = m->hidden;

	list_linear(l, "t_mlp.0", VFM_LAYER_MODULATION, n, false, low ? h : VFM_TIME_FEATURES, h, 1);
	list_linear(l, "t_mlp.2", VFM_LAYER_MODULATION, n, false, h, low ? 3 * h : h, 1);
	list_added(l);
	list_text(l);
	if (m->image_dim) {
		const unsigned image = a->joint ? 0 : VFM_LAYER_CROSS_KV_IMG;
		const double rows = a->joint ? l->p->image_rows : n * (double)m->image_len;

		list_linear(l, "img_mlp.1", image, rows, false, m->image_dim, m->image_dim, 1);
		list_linear(l, "img_mlp.3", image, rows, false, m->image_dim, h, 1);
	}
	if (vfm_model_has_shared_mod(m))
		list_linear(l, "ada_shared", VFM_LAYER_MODULATION, n, false, h, a->n_mod * h, 1);
}

static void list_ends(const struct listing *l)
{
	const struct vfm_model_spec *m = l->m;
	const int64_t h = m->hidden;

	list_linear(l, "patch", 0, l->p->tokens, true, vfm_model_input_dim(m), h, 1);
	if (vfm_model_arch(m)->mod == VFM_MOD_LOW_RANK) {
		list_linear(l, "ada_a", 0, l->p->samples, false, h, m->adaln_lora, 1);
		list_linear(l, "ada_b", 0, l->p->samples, false, m->adaln_lora, 2 * h, 1);
	} else if (!vfm_model_arch(m)->head_table) {
		list_linear(l, "ada", 0, l->p->samples, false, h, 2 * h, 1);
	}
	list_linear(l, "out", 0, l->p->tokens, true, h, vfm_model_patch_dim(m), 1);
}

/* The rows of both streams. */
static double stream_rows(const struct vfm_pack_sums *p)
{
	return p->tokens + p->text_rows + p->text2_rows + p->image_rows;
}

/* The text stream of a block with joint attention. */
static void list_text_stream(const struct listing *l)
{
	const struct vfm_model_spec *m = l->m;
	const int64_t h = m->hidden, kv = m->kv_heads * vfm_model_head_dim(m);
	const double n = l->p->text_rows + l->p->text2_rows + l->p->image_rows;

	if (m->kv_heads == m->heads) {
		list_linear(l, "text.qkv", VFM_LAYER_Q << VFM_LAYERS_ATTN, n, true, h, 3 * h, 3);
	} else {
		list_linear(l, "text.q", VFM_LAYER_Q << VFM_LAYERS_ATTN, n, true, h, h, 1);
		list_linear(l, "text.kv", VFM_LAYER_KV << VFM_LAYERS_ATTN, n, true, h, 2 * kv, 2);
	}
	list_linear(l, "text.proj", VFM_LAYER_PROJ << VFM_LAYERS_ATTN, n, true, h, h, 1);
	list_linear(l, "text.fc1", VFM_LAYER_TEXT_FC1, n, true, h, m->ffn, 1);
	list_linear(l, "text.fc2", VFM_LAYER_TEXT_FC2, n, true, m->ffn, h, 1);
}

/* The layers in front of the text stream, and the refiner. */
static void list_encoder_linears(const struct listing *l)
{
	static const char *const refiner[5] = {"qkv", "proj", "fc1", "fc2", "ada"};
	const struct vfm_model_spec *m = l->m;
	const double n = l->p->samples, text = l->p->text_rows, text2 = l->p->text2_rows;
	const int64_t h = m->hidden;

	if (m->text2_dim && !vfm_model_arch(m)->text2_vector) {
		list_linear(l, "text2.1", 0, text2, false, m->text2_dim, VFM_TEXT2_WIDTH, 1);
		list_linear(l, "text2.3", 0, text2, false, VFM_TEXT2_WIDTH, VFM_TEXT2_WIDTH, 1);
		list_linear(l, "text2.5", 0, text2, false, VFM_TEXT2_WIDTH, h, 1);
	}
	if (vfm_model_arch(m)->text != VFM_TEXT_REFINER)
		return;
	list_linear(l, "refiner.t.0", 0, n, false, VFM_TIME_FEATURES, h, 1);
	list_linear(l, "refiner.t.2", 0, n, false, h, h, 1);
	list_linear(l, "refiner.pool.0", 0, n, false, m->text_dim, h, 1);
	list_linear(l, "refiner.pool.2", 0, n, false, h, h, 1);
	for (int64_t i = 0; i < m->refiner_layers; i++) {
		const int64_t in[] = {h, h, h, 4 * h, h}, out[] = {3 * h, h, 4 * h, h, 2 * h};
		char name[64];

		for (int k = 0; k < 5; k++) {
			snprintf(name, sizeof(name), "refiner.%d.%s", (int)i, refiner[k]);
			list_linear(l, name, 0, k < 4 ? text : n, false, in[k], out[k], k ? 1 : 3);
		}
	}
}

static void list_attentions(const struct listing *l)
{
	static const char *const names[][4] = {[VFM_ATTN_FULL] = {"attn.qkv", "attn.q", "attn.kv", "attn.proj"},
		[VFM_ATTN_SPATIAL] = {"attn_s.qkv", "attn_s.q", "attn_s.kv", "attn_s.proj"},
		[VFM_ATTN_TEMPORAL] = {"attn_t.qkv", "attn_t.q", "attn_t.kv", "attn_t.proj"}};
	const struct vfm_model_spec *m = l->m;
	const struct vfm_arch *a = vfm_model_arch(m);
	const int64_t h = m->hidden, kv = m->kv_heads * vfm_model_head_dim(m);
	const double q = vfm_model_is_single(m, l->block) ? stream_rows(l->p) : l->p->tokens;

	for (int i = 0; i < a->n_attn; i++) {
		const char *const *name = names[a->attn[i]];
		const int at = i * VFM_LAYERS_ATTN;

		if (m->kv_heads == m->heads) {
			list_linear(l, name[0], VFM_LAYER_Q << at, q, true, h, 3 * h, 3);
		} else {
			list_linear(l, name[1], VFM_LAYER_Q << at, q, true, h, h, 1);
			list_linear(l, name[2], VFM_LAYER_KV << at, q, true, h, 2 * kv, 2);
		}
		list_linear(l, name[3], VFM_LAYER_PROJ << at, q, true, h, h, 1);
	}
	if (!vfm_model_has_cross(m))
		return;
	list_linear(l, "cross.q", VFM_LAYER_CROSS_Q, q, true, h, h, 1);
	list_linear(l, "cross.kv", VFM_LAYER_CROSS_KV, l->p->text_rows, false, vfm_model_context_dim(m), 2 * kv, 2);
	if (m->image_dim)
		list_linear(l, "cross.kv_img", VFM_LAYER_CROSS_KV_IMG, l->p->samples * (double)m->image_len, false, h,
			2 * kv, 2);
	list_linear(l, "cross.proj", VFM_LAYER_CROSS_PROJ, q, true, h, h, 1);
}

static void list_mlp(const struct listing *l)
{
	const struct vfm_model_spec *m = l->m;
	const int64_t h = m->hidden, shared = m->shared_experts * m->expert_ffn;
	const double q = vfm_model_is_single(m, l->block) ? stream_rows(l->p) : l->p->tokens;

	switch (vfm_model_arch(m)->mlp) {
	case VFM_MLP_SWIGLU:
		list_linear(l, "w13", VFM_LAYER_FC1, q, true, h, 2 * m->ffn, 2);
		list_linear(l, "w2", VFM_LAYER_FC2, q, true, m->ffn, h, 1);
		return;
	case VFM_MLP_EXPERTS:
		list_linear(l, "moe.router", VFM_LAYER_ROUTER, q, true, h, m->experts, 1);
		list_linear(l, "moe.fc1", VFM_LAYER_EXPERTS_FC1, q * m->moe_capacity, true, h, m->expert_ffn, 0);
		list_linear(l, "moe.fc2", VFM_LAYER_EXPERTS_FC2, q * m->moe_capacity, true, m->expert_ffn, h, 0);
		if (!shared)
			return;
		list_linear(l, "shared.fc1", VFM_LAYER_FC1, q, true, h, shared, 1);
		list_linear(l, "shared.fc2", VFM_LAYER_FC2, q, true, shared, h, 1);
		return;
	default:
		list_linear(l, "fc1", VFM_LAYER_FC1, q, true, h, m->ffn, 1);
		list_linear(l, "fc2", VFM_LAYER_FC2, q, true, m->ffn, h, 1);
	}
}

static void list_modulation(const struct listing *l)
{
	static const char *const names[] = {"ada_b.0", "ada_b.1", "ada_b.2", "ada_b.3"};
	const struct vfm_model_spec *m = l->m;
	const int64_t h = m->hidden, mods = vfm_model_n_mod(m, l->block) * h, parts = vfm_model_arch(m)->n_mod / 3;

	if (vfm_model_arch(m)->mod == VFM_MOD_TABLE)
		return;
	if (vfm_model_arch(m)->mod == VFM_MOD_LOW_RANK) {
		list_linear(l, "ada_a", VFM_LAYER_MODULATION, l->p->samples, false, h, parts * m->adaln_lora, 1);
		for (int64_t i = 0; i < parts; i++)
			list_linear(l, names[i], VFM_LAYER_ADA_B, l->p->samples, false, m->adaln_lora, 3 * h, 1);
	} else if (m->adaln_lora) {
		list_linear(l, "ada_a", VFM_LAYER_MODULATION, l->p->samples, false, h, m->adaln_lora, 1);
		list_linear(l, "ada_b", VFM_LAYER_ADA_B, l->p->samples, false, m->adaln_lora, mods, 1);
	} else {
		list_linear(l, "ada", VFM_LAYER_MODULATION, l->p->samples, false, h, mods, 1);
	}
}

void vfm_model_linears(const struct vfm_model_spec *m, const struct vfm_pack_sums *p, int64_t first, int64_t end,
	void (*fn)(void *ctx, const struct vfm_linear_shape *l), void *ctx)
{
	struct listing l = {.m = m, .p = p, .fn = fn, .ctx = ctx, .block = -1};

	if (first == 0) {
		list_conditioning(&l);
		list_encoder_linears(&l);
		list_ends(&l);
	}
	for (int64_t i = first; i < end; i++) {
		l.block = i;
		list_attentions(&l);
		list_mlp(&l);
		if (vfm_model_arch(m)->joint && !vfm_model_is_single(m, i))
			list_text_stream(&l);
		list_modulation(&l);
	}
}

/* ---- parameters ---- */

struct weight_sum {
	const struct vfm_model_spec *m;
	int64_t n;
};

static void count_weights(void *ctx, const struct vfm_linear_shape *l)
{
	struct weight_sum *s = ctx;

	s->n += l->in * l->out * (l->blocks ? 1 : s->m->experts) + (l->bias ? l->out : 0);
}

int64_t vfm_model_params(const struct vfm_model_spec *m)
{
	const struct vfm_arch *a = vfm_model_arch(m);
	int64_t h = m->hidden, dim = vfm_model_head_dim(m), q = a->row_qk_norm ? h : dim, /* norms of q and of k */
		k = a->row_qk_norm ? m->kv_heads * dim : dim;
	int64_t once = a->head_table ? 2 * h : a->mod == VFM_MOD_LOW_RANK ? h : 0;
	int64_t block = a->mod == VFM_MOD_TABLE ? a->n_mod * h : 0, double_only = 0;
	struct weight_sum s = {.m = m};

	vfm_model_linears(m, &(struct vfm_pack_sums){.samples = 1, .text_rows = 1}, 0, m->layers, count_weights, &s);
	if (m->image_dim)
		once += 2 * m->image_dim + 2 * h + m->image_pos * m->image_dim;
	if (a->pos == VFM_POS_LEARNED)
		once += (m->pos_max[0] + m->pos_max[1] + m->pos_max[2]) * h;
	if (m->qk_norm)
		block += (a->n_attn + vfm_model_has_cross(m)) * (q + k) + (m->image_dim && !a->joint ? k : 0);
	if (m->qk_norm && a->joint)
		double_only = q + k;
	if (m->text2_dim && !a->text2_vector)
		once += 2 * m->text2_dim;
	if (a->text == VFM_TEXT_REFINER)
		once += m->refiner_layers * 4 * h;
	if (a->row_type)
		once += (1 + (m->text2_dim > 0) + (m->image_dim > 0)) * h;
	if (vfm_model_has_cross(m) && !a->plain_cross && !a->cross_mod)
		block += (a->rms_norm ? 1 : 2) * h;
	return s.n + once + m->layers * block + (m->layers - m->single_layers) * double_only;
}

/* ---- FLOPs ---- */

struct flops_sum {
	const struct vfm_tuning *t; /* NULL: all is trained */
	double products, saved, added;
};

static void count_linear(void *ctx, const struct vfm_linear_shape *l)
{
	struct flops_sum *s = ctx;
	double product = 2 * l->rows * (double)l->in * (double)l->out;
	char weight[80], name[80];

	s->products += product;
	if (!s->t)
		return;
	vfm_linear_name(l, ".weight", weight, sizeof(weight));
	vfm_linear_name(l, "", name, sizeof(name));
	if (vfm_tuning_freezes(s->t, weight))
		s->saved += l->tokens && l->block >= 0 ? product : 2 * product;
	if (l->blocks > 0 && vfm_tuning_adapts(s->t, name))
		s->added += 3 * 2 * l->rows * (double)s->t->rank * (double)(l->blocks * l->in + l->out);
}

/* FLOPs of Q K^T and P V of all attentions. */
static double attention_flops(const struct vfm_model_spec *m, const struct vfm_pack_sums *p)
{
	const struct vfm_arch *a = vfm_model_arch(m);
	double pairs = 0;

	for (int i = 0; i < a->n_attn; i++)
		pairs += a->attn[i] == VFM_ATTN_SPATIAL   ? p->pairs_spatial
			: a->attn[i] == VFM_ATTN_TEMPORAL ? p->pairs_temporal
							  : p->pairs_full;
	if (a->joint)
		return 4 * (double)m->hidden *
			((double)m->layers * p->pairs_joint +
				(a->text == VFM_TEXT_REFINER ? (double)m->refiner_layers * p->pairs_text : 0));
	if (m->cross_attention)
		pairs += p->pairs_cross + (m->image_dim ? p->tokens * (double)m->image_len : 0);
	return 4 * (double)m->layers * (double)m->hidden * pairs;
}

static struct flops_sum sum_flops(
	const struct vfm_model_spec *m, const struct vfm_tuning *t, const struct vfm_pack_sums *p)
{
	struct flops_sum s = {.t = t};

	vfm_model_linears(m, p, 0, m->layers, count_linear, &s);
	s.products += attention_flops(m, p);
	return s;
}

double vfm_model_flops(const struct vfm_model_spec *m, const struct vfm_pack_sums *p)
{
	return sum_flops(m, NULL, p).products;
}

double vfm_model_train_flops(const struct vfm_model_spec *m, const struct vfm_tuning *t, const struct vfm_pack_sums *p)
{
	bool all = t->rank == 0 && !t->freeze.text[0];
	struct flops_sum s = sum_flops(m, all ? NULL : t, p);

	return 3 * s.products - s.saved + s.added;
}
