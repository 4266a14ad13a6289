#include "spec/model.h"

#include <string.h>

struct preset {
	const char *name;
	int64_t layers, hidden, heads, ffn, lora;
};

static const struct preset presets[] = {
	{"dit-s", 12, 384, 6, 0, 0},
	{"dit-b", 12, 768, 12, 0, 0},
	{"dit-l", 24, 1024, 16, 0, 0},
	{"dit-xl", 28, 1152, 16, 0, 0},
	{"dit-7b", 28, 4096, 32, 16384, 256},
	{"dit-28b", 48, 6144, 48, 24576, 256},
};

enum { N_PRESETS = sizeof(presets) / sizeof(presets[0]) };

const char *const vfm_model_presets[] = {"dit-s", "dit-b", "dit-l", "dit-xl", "dit-7b", "dit-28b", NULL};

void vfm_model_defaults(struct vfm_model_spec *m)
{
	*m = (struct vfm_model_spec){.arch = "dit", .layers = 12, .hidden = 384, .heads = 6, .cross_attention = true, .qk_norm = true,
		.pos = VFM_POS_ROPE, .channels = 16, .patch = {1, 2, 2}, .text_dim = 1024, .text_len = 512, .norm_eps = 1e-6,
		.rope_theta = 10000};
}

int vfm_model_preset(const char *name, struct vfm_model_spec *m, struct vfm_err *err)
{
	for (int i = 0; i < N_PRESETS; i++) {
		const struct preset *p = &presets[i];

		if (strcmp(p->name, name) != 0)
			continue;
		vfm_model_defaults(m);
		m->layers = p->layers;
		m->hidden = p->hidden;
		m->heads = p->heads;
		m->ffn = p->ffn;
		m->adaln_lora = p->lora;
		return 0;
	}
	return vfm_fail(err, VFM_EUSAGE, "unknown model '%s' (there are dit-s, dit-b, dit-l, dit-xl, dit-7b, dit-28b)", name);
}

static int check_range(const char *key, int64_t v, int64_t lo, int64_t hi, struct vfm_err *err)
{
	if (v >= lo && v <= hi)
		return 0;
	return vfm_fail(err, VFM_EUSAGE, "%s: expected %lld to %lld, got %lld", key, (long long)lo, (long long)hi, (long long)v);
}

int vfm_model_check(struct vfm_model_spec *m, struct vfm_err *err)
{
	int64_t d;

	if (strcmp(m->arch, "dit") != 0)
		return vfm_fail(err, VFM_EUSAGE, "model.arch: expected 'dit', got '%s'", m->arch);
	TRY(check_range("model.layers", m->layers, 1, 1024, err));
	TRY(check_range("model.hidden", m->hidden, 8, 65536, err));
	TRY(check_range("model.heads", m->heads, 1, 1024, err));
	TRY(check_range("model.channels", m->channels, 1, 1024, err));
	TRY(check_range("model.text_dim", m->text_dim, 1, 65536, err));
	TRY(check_range("model.text_len", m->text_len, 1, 65536, err));
	TRY(check_range("model.adaln_lora", m->adaln_lora, 0, m->hidden, err));
	for (int i = 0; i < 3; i++)
		TRY(check_range("model.patch", m->patch[i], 1, 16, err));
	if (m->hidden % m->heads)
		return vfm_fail(err, VFM_EUSAGE, "model.heads: %lld does not divide model.hidden %lld", (long long)m->heads,
			(long long)m->hidden);
	d = m->hidden / m->heads;
	if (d % 8 || d > 128)
		return vfm_fail(err, VFM_EUSAGE, "model.heads: head dim %lld (hidden / heads) must be a multiple of 8, at most 128",
			(long long)d);
	if (m->pos != VFM_POS_ROPE && m->hidden % 16)
		return vfm_fail(err, VFM_EUSAGE, "model.hidden: %lld must be a multiple of 16 for sincos positions", (long long)m->hidden);
	if (m->kv_heads == 0)
		m->kv_heads = m->heads;
	if (m->ffn == 0)
		m->ffn = 4 * m->hidden;
	TRY(check_range("model.ffn", m->ffn, 8, 1 << 20, err));
	if (!(m->norm_eps > 0) || !(m->rope_theta > 1))
		return vfm_fail(err, VFM_EUSAGE, "model.norm_eps and model.rope_theta: expected > 0 and > 1");
	return 0;
}

int64_t vfm_model_patch_dim(const struct vfm_model_spec *m)
{
	return m->channels * m->patch[0] * m->patch[1] * m->patch[2];
}

int64_t vfm_model_head_dim(const struct vfm_model_spec *m)
{
	return m->hidden / m->heads;
}

static int64_t lin(int64_t in, int64_t out)
{
	return in * out + out;
}

int64_t vfm_model_params(const struct vfm_model_spec *m)
{
	int64_t h = m->hidden, r = m->adaln_lora, hd = vfm_model_head_dim(m), n = 0, block = 0;

	n += lin(vfm_model_patch_dim(m), h) + lin(256, h) + lin(h, h);
	if (m->cross_attention || m->pooled_text)
		n += lin(m->text_dim, h);
	if (r)
		n += lin(h, 6 * h);
	n += lin(h, 2 * h) + lin(h, vfm_model_patch_dim(m));

	block += r ? h * r + lin(r, 6 * h) : lin(h, 6 * h);
	block += lin(h, 3 * h) + lin(h, h) + lin(h, m->ffn) + lin(m->ffn, h);
	if (m->qk_norm)
		block += 2 * hd;
	if (m->cross_attention)
		block += 2 * h + lin(h, h) + lin(h, 2 * h) + lin(h, h) + (m->qk_norm ? 2 * hd : 0);
	return n + m->layers * block;
}

void vfm_pack_sums_add(struct vfm_pack_sums *p, int64_t tokens, int64_t text_tokens)
{
	double s = (double)tokens, c = (double)text_tokens;

	p->q += s;
	p->Q += s * s;
	p->c += c;
	p->X += s * c;
	p->n += 1;
}

double vfm_model_flops(const struct vfm_model_spec *m, const struct vfm_pack_sums *p)
{
	double h = (double)m->hidden, f = (double)m->ffn, r = (double)m->adaln_lora, td = (double)m->text_dim;
	double layer = 8 * p->q * h * h + 4 * p->Q * h + 4 * p->q * h * f;
	double once = 2 * p->q * (double)vfm_model_patch_dim(m) * h * 2 + p->n * 2 * (256 * h + h * h + 2 * h * h);

	if (m->cross_attention) {
		layer += 4 * p->q * h * h + 4 * p->c * h * h + 4 * p->X * h;
		once += 2 * p->c * td * h;
	}
	if (m->pooled_text)
		once += 2 * p->n * td * h;
	if (m->adaln_lora) {
		layer += p->n * 2 * (h * r + r * 6 * h);
		once += p->n * 2 * h * 6 * h;
	} else {
		layer += p->n * 2 * h * 6 * h;
	}
	return (double)m->layers * layer + once;
}
