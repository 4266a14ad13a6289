#include "spec/model.h"

#include <string.h>

static const char *const archs[] = {"dit", "moviegen", "stdit", "moe", NULL};

struct preset {
	const char *name;
	enum vfm_arch arch;
	int64_t layers, hidden, heads, kv_heads, ffn, lora;
	int64_t experts, expert_ffn, shared;
};

static const struct preset presets[] = {
	{"dit-s", VFM_ARCH_DIT, 12, 384, 6, 0, 0, 0, 0, 0, 0},
	{"dit-b", VFM_ARCH_DIT, 12, 768, 12, 0, 0, 0, 0, 0, 0},
	{"dit-l", VFM_ARCH_DIT, 24, 1024, 16, 0, 0, 0, 0, 0, 0},
	{"dit-xl", VFM_ARCH_DIT, 28, 1152, 16, 0, 0, 0, 0, 0, 0},
	{"dit-7b", VFM_ARCH_DIT, 28, 4096, 32, 0, 16384, 256, 0, 0, 0},
	{"dit-28b", VFM_ARCH_DIT, 48, 6144, 48, 0, 24576, 256, 0, 0, 0},
	{"moviegen-1b", VFM_ARCH_MOVIEGEN, 16, 2048, 32, 8, 8192, 0, 0, 0, 0},
	{"moviegen-5b", VFM_ARCH_MOVIEGEN, 32, 3072, 24, 8, 8192, 0, 0, 0, 0},
	{"moviegen-30b", VFM_ARCH_MOVIEGEN, 48, 6144, 48, 8, 16384, 0, 0, 0, 0},
	{"stdit-xl", VFM_ARCH_STDIT, 28, 1152, 16, 0, 0, 0, 0, 0, 0},
	{"moe-1b", VFM_ARCH_MOE, 16, 2048, 32, 8, 0, 0, 64, 1024, 1},
};

enum { N_PRESETS = sizeof(presets) / sizeof(presets[0]) };

const char *const vfm_model_presets[] = {"dit-s", "dit-b", "dit-l", "dit-xl", "dit-7b", "dit-28b", "moviegen-1b",
	"moviegen-5b", "moviegen-30b", "stdit-xl", "moe-1b", NULL};

void vfm_model_defaults(struct vfm_model_spec *m)
{
	*m = (struct vfm_model_spec){.arch = "dit",
		.layers = 12,
		.hidden = 384,
		.heads = 6,
		.cross_attention = true,
		.qk_norm = true,
		.pos = VFM_POS_ROPE,
		.pos_max = {256, 256, 256},
		.experts = 64,
		.expert_ffn = 1024,
		.shared_experts = 1,
		.moe_capacity = 8,
		.moe_aux = 0.01,
		.channels = 16,
		.patch = {1, 2, 2},
		.text_dim = 1024,
		.text_len = 512,
		.norm_eps = 1e-6,
		.rope_theta = 10000};
}

int vfm_model_preset(const char *name, struct vfm_model_spec *m, struct vfm_err *err)
{
	for (int i = 0; i < N_PRESETS; i++) {
		const struct preset *p = &presets[i];

		if (strcmp(p->name, name) != 0)
			continue;
		vfm_model_defaults(m);
		strcpy(m->arch, archs[p->arch]);
		m->layers = p->layers;
		m->hidden = p->hidden;
		m->heads = p->heads;
		m->kv_heads = p->kv_heads;
		m->ffn = p->ffn;
		m->adaln_lora = p->lora;
		if (p->arch == VFM_ARCH_MOVIEGEN)
			m->pos = VFM_POS_LEARNED;
		if (p->experts) {
			m->experts = p->experts;
			m->expert_ffn = p->expert_ffn;
			m->shared_experts = p->shared;
		}
		return 0;
	}
	return vfm_fail(err, VFM_EUSAGE,
		"unknown model '%s' (there are dit-s, dit-b, dit-l, dit-xl, dit-7b, dit-28b, moviegen-1b, moviegen-5b, "
		"moviegen-30b, stdit-xl, moe-1b)",
		name);
}

/* ---- checks ---- */

static int check_range(const char *key, int64_t v, int64_t lo, int64_t hi, struct vfm_err *err)
{
	if (v >= lo && v <= hi)
		return 0;
	return vfm_fail(err, VFM_EUSAGE, "%s: expected %lld to %lld, got %lld", key, (long long)lo, (long long)hi,
		(long long)v);
}

static int check_heads(struct vfm_model_spec *m, struct vfm_err *err)
{
	int64_t d;

	if (m->hidden % m->heads)
		return vfm_fail(err, VFM_EUSAGE, "model.heads: %lld does not divide model.hidden %lld",
			(long long)m->heads, (long long)m->hidden);
	d = m->hidden / m->heads;
	if (d % 8 || d > 128)
		return vfm_fail(err, VFM_EUSAGE,
			"model.heads: head dim %lld (hidden / heads) must be a multiple of 8, at most 128",
			(long long)d);
	TRY(check_range("model.kv_heads", m->kv_heads, 0, m->heads, err));
	if (m->kv_heads == 0)
		m->kv_heads = m->heads;
	if (m->heads % m->kv_heads)
		return vfm_fail(err, VFM_EUSAGE, "model.kv_heads: %lld does not divide model.heads %lld",
			(long long)m->kv_heads, (long long)m->heads);
	return 0;
}

static int check_positions(const struct vfm_model_spec *m, struct vfm_err *err)
{
	bool sincos = m->pos == VFM_POS_SINCOS || m->pos == VFM_POS_BOTH,
	     learned = vfm_model_arch(m) == VFM_ARCH_MOVIEGEN;

	if (sincos && m->hidden % 16)
		return vfm_fail(err, VFM_EUSAGE, "model.hidden: %lld must be a multiple of 16 for sincos positions",
			(long long)m->hidden);
	if (learned != (m->pos == VFM_POS_LEARNED))
		return vfm_fail(err, VFM_EUSAGE, "model.pos: model.arch '%s' %s 'learned'", m->arch,
			learned ? "has only" : "does not have");
	for (int i = 0; learned && i < 3; i++)
		TRY(check_range("model.pos_max", m->pos_max[i], 1, 32767, err));
	return 0;
}

static int check_moe(const struct vfm_model_spec *m, struct vfm_err *err)
{
	TRY(check_range("model.experts", m->experts, 1, 4096, err));
	TRY(check_range("model.expert_ffn", m->expert_ffn, 1, 1 << 20, err));
	TRY(check_range("model.shared_experts", m->shared_experts, 0, 1024, err));
	if (!(m->moe_capacity > 0 && m->moe_capacity <= (double)m->experts))
		return vfm_fail(err, VFM_EUSAGE,
			"model.moe_capacity: expected more than 0, at most model.experts %lld, got %g",
			(long long)m->experts, m->moe_capacity);
	if (m->moe_router == VFM_MOE_TOKEN_CHOICE && m->moe_capacity != (double)(int64_t)m->moe_capacity)
		return vfm_fail(err, VFM_EUSAGE,
			"model.moe_capacity: with token choice it is the experts of a token, an integer; got %g",
			m->moe_capacity);
	if (!(m->moe_aux >= 0))
		return vfm_fail(err, VFM_EUSAGE, "model.moe_aux: expected 0 or more");
	return 0;
}

int vfm_model_check(struct vfm_model_spec *m, struct vfm_err *err)
{
	int arch = 0;

	while (archs[arch] && strcmp(m->arch, archs[arch]) != 0)
		arch++;
	if (!archs[arch])
		return vfm_fail(
			err, VFM_EUSAGE, "model.arch: expected one of dit, moviegen, stdit, moe, got '%s'", m->arch);
	TRY(check_range("model.layers", m->layers, 1, 1024, err));
	TRY(check_range("model.hidden", m->hidden, 8, 65536, err));
	TRY(check_range("model.heads", m->heads, 1, 1024, err));
	TRY(check_range("model.channels", m->channels, 1, 1024, err));
	TRY(check_range("model.text_dim", m->text_dim, 1, 65536, err));
	TRY(check_range("model.text_len", m->text_len, 1, 65536, err));
	TRY(check_range("model.adaln_lora", m->adaln_lora, 0, m->hidden, err));
	for (int i = 0; i < 3; i++)
		TRY(check_range("model.patch", m->patch[i], 1, 16, err));
	TRY(check_heads(m, err));
	TRY(check_positions(m, err));
	if (m->ffn == 0)
		m->ffn = 4 * m->hidden;
	TRY(check_range("model.ffn", m->ffn, 8, 1 << 20, err));
	if (arch == VFM_ARCH_MOE)
		TRY(check_moe(m, err));
	if (!(m->norm_eps > 0) || !(m->rope_theta > 1))
		return vfm_fail(err, VFM_EUSAGE, "model.norm_eps and model.rope_theta: expected > 0 and > 1");
	return 0;
}

enum vfm_arch vfm_model_arch(const struct vfm_model_spec *m)
{
	for (int i = 0; archs[i]; i++)
		if (!strcmp(m->arch, archs[i]))
			return (enum vfm_arch)i;
	return VFM_ARCH_DIT;
}

int vfm_model_mods(const struct vfm_model_spec *m)
{
	return vfm_model_arch(m) == VFM_ARCH_STDIT ? 12 : 6;
}

int64_t vfm_model_patch_dim(const struct vfm_model_spec *m)
{
	return m->channels * m->patch[0] * m->patch[1] * m->patch[2];
}

int64_t vfm_model_head_dim(const struct vfm_model_spec *m)
{
	return m->hidden / m->heads;
}

/* Outputs of k (and of v). */
static int64_t kv_dim(const struct vfm_model_spec *m)
{
	return m->kv_heads * vfm_model_head_dim(m);
}

/* ---- parameters ---- */

static int64_t lin(int64_t in, int64_t out, bool bias)
{
	return in * out + (bias ? out : 0);
}

static int64_t attn_params(const struct vfm_model_spec *m, bool bias)
{
	int64_t h = m->hidden;

	return lin(h, h, bias) + lin(h, 2 * kv_dim(m), bias) + lin(h, h, bias) +
		(m->qk_norm ? 2 * vfm_model_head_dim(m) : 0);
}

/* Of one expert, and of all that stand in the place of the MLP. */
static int64_t expert_params(const struct vfm_model_spec *m)
{
	return 2 * m->hidden * m->expert_ffn;
}

static int64_t mlp_params(const struct vfm_model_spec *m)
{
	int64_t h = m->hidden, shared = m->shared_experts * m->expert_ffn;

	switch (vfm_model_arch(m)) {
	case VFM_ARCH_MOVIEGEN:
		return 3 * h * m->ffn;
	case VFM_ARCH_MOE:
		return m->experts * h + m->experts * expert_params(m) +
			(shared ? lin(h, shared, true) + lin(shared, h, true) : 0);
	default:
		return lin(h, m->ffn, true) + lin(m->ffn, h, true);
	}
}

int64_t vfm_model_params(const struct vfm_model_spec *m)
{
	int64_t h = m->hidden, r = m->adaln_lora, mods = vfm_model_mods(m) * h, n = 0, block = 0;
	bool llama = vfm_model_arch(m) == VFM_ARCH_MOVIEGEN;
	int attns = vfm_model_arch(m) == VFM_ARCH_STDIT ? 3 : 1;

	n += lin(vfm_model_patch_dim(m), h, true) + lin(256, h, true) + lin(h, h, true);
	if (m->cross_attention || m->pooled_text)
		n += lin(m->text_dim, h, true);
	if (r)
		n += lin(h, mods, true);
	if (m->pos == VFM_POS_LEARNED)
		n += (m->pos_max[0] + m->pos_max[1] + m->pos_max[2]) * h;
	n += lin(h, 2 * h, true) + lin(h, vfm_model_patch_dim(m), true);

	block += r ? h * r + lin(r, mods, true) : lin(h, mods, true);
	block += attns * attn_params(m, !llama) + mlp_params(m);
	if (m->cross_attention)
		block += (llama ? 1 : 2) * h + attn_params(m, !llama);
	return n + m->layers * block;
}

int64_t vfm_model_active_params(const struct vfm_model_spec *m)
{
	double idle = vfm_model_arch(m) == VFM_ARCH_MOE ? (double)m->experts - m->moe_capacity : 0;

	return vfm_model_params(m) - (int64_t)(idle * (double)(m->layers * expert_params(m)));
}

/* ---- FLOPs ---- */

void vfm_pack_sums_grid(struct vfm_pack_sums *p, const int32_t grid[3], int64_t text_tokens)
{
	double t = grid[0], area = (double)grid[1] * grid[2], s = t * area, c = (double)text_tokens;

	p->q += s;
	p->Q += s * s;
	p->Qs += s * area;
	p->Qt += s * t;
	p->c += c;
	p->X += s * c;
	p->n += 1;
}

void vfm_pack_sums_add(struct vfm_pack_sums *p, int64_t tokens, int64_t text_tokens)
{
	double s = (double)tokens, c = (double)text_tokens;

	p->q += s;
	p->Q += s * s;
	p->Qs += s * s;
	p->Qt += s;
	p->c += c;
	p->X += s * c;
	p->n += 1;
}

static double mlp_flops(const struct vfm_model_spec *m, double q)
{
	double h = (double)m->hidden, f = (double)m->ffn;

	switch (vfm_model_arch(m)) {
	case VFM_ARCH_MOVIEGEN:
		return 6 * q * h * f;
	case VFM_ARCH_MOE:
		return 2 * q * h * (double)m->experts +
			4 * q * h * (double)m->expert_ffn * (m->moe_capacity + (double)m->shared_experts);
	default:
		return 4 * q * h * f;
	}
}

double vfm_model_flops(const struct vfm_model_spec *m, const struct vfm_pack_sums *p)
{
	double h = (double)m->hidden, r = (double)m->adaln_lora, td = (double)m->text_dim, kv = (double)kv_dim(m),
	       mods = vfm_model_mods(m) * h;
	double proj = 4 * p->q * h * h + 4 * p->q * h * kv; /* of one self-attention */
	double layer = proj + 4 * p->Q * h + mlp_flops(m, p->q);
	double once = 2 * p->q * (double)vfm_model_patch_dim(m) * h * 2 + p->n * 2 * (256 * h + h * h + 2 * h * h);

	if (vfm_model_arch(m) == VFM_ARCH_STDIT)
		layer += 2 * proj + 4 * (p->Qs + p->Qt) * h;
	if (m->cross_attention) {
		layer += 4 * p->q * h * h + 4 * p->c * h * kv + 4 * p->X * h;
		once += 2 * p->c * td * h;
	}
	if (m->pooled_text)
		once += 2 * p->n * td * h;
	if (m->adaln_lora) {
		layer += p->n * 2 * (h * r + r * mods);
		once += p->n * 2 * h * mods;
	} else {
		layer += p->n * 2 * h * mods;
	}
	return (double)m->layers * layer + once;
}
