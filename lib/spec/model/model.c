/* model.c - presets, defaults, checks of dimensions, and rows and patches. */
#include "spec/model/model.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/mem.h"
#include "spec/model/foreign.h"

enum { LOW_RANK = 256 }; /* of the published models with VFM_MOD_LOW_RANK */

static const char *const pos_names[] = {"rope", "sincos", "both", "learned", NULL};
static const char *const router_names[] = {"expert_choice", "token_choice", NULL};

#define OFF(f) offsetof(struct vfm_model_spec, f)

const struct vfm_key vfm_model_keys[] = {
	{"model.arch", VFM_KEY_NAME, OFF(arch), 0, 0, vfm_arch_names, NULL, "architecture"},
	{"model.layers", VFM_KEY_INT, OFF(layers), 1, 1024, NULL, NULL, "transformer blocks"},
	{"model.single_layers", VFM_KEY_INT, OFF(single_layers), 0, 1023, NULL, NULL,
		"hunyuan1, flux: single-stream blocks, which are the last"},
	{"model.hidden", VFM_KEY_INT, OFF(hidden), 8, 65536, NULL, NULL, "width of the residual stream"},
	{"model.heads", VFM_KEY_INT, OFF(heads), 1, 1024, NULL, NULL, "attention heads"},
	{"model.kv_heads", VFM_KEY_INT, OFF(kv_heads), 0, 1024, NULL, NULL,
		"key and value heads (grouped-query attention); 0: as many as heads"},
	{"model.ffn", VFM_KEY_INT, OFF(ffn), 0, 1 << 20, NULL, NULL, "inner width of the MLP; 0: 4 * hidden"},
	{"model.cross_attention", VFM_KEY_BOOL, OFF(cross_attention), 0, 0, NULL, NULL,
		"cross-attention to the text in every block"},
	{"model.pooled_text", VFM_KEY_BOOL, OFF(pooled_text), 0, 0, NULL, NULL,
		"mean of the text added to the conditioning"},
	{"model.qk_norm", VFM_KEY_BOOL, OFF(qk_norm), 0, 0, NULL, NULL, "RMS norm of q and k per head"},
	{"model.adaln_lora", VFM_KEY_INT, OFF(adaln_lora), 0, 65536, NULL, NULL,
		"rank of a block's modulation; 0: a full matrix (cosmos: 256)"},
	{"model.pos", VFM_KEY_ENUM, OFF(pos), 0, 0, pos_names, NULL,
		"positions: rotary, sine-cosine added to the tokens, both, or learned tables"},
	{"model.pos_max", VFM_KEY_INT3, OFF(pos_max), 1, 32767, NULL, NULL,
		"learned positions: maximum patches of a sample in t, h, w"},
	{"model.experts", VFM_KEY_INT, OFF(experts), 1, 4096, NULL, NULL, "moe: experts per block"},
	{"model.expert_ffn", VFM_KEY_INT, OFF(expert_ffn), 1, 1 << 20, NULL, NULL, "moe: inner width of an expert"},
	{"model.shared_experts", VFM_KEY_INT, OFF(shared_experts), 0, 1024, NULL, NULL,
		"moe: experts that compute every token"},
	{"model.moe_router", VFM_KEY_ENUM, OFF(moe_router), 0, 0, router_names, NULL,
		"moe: whether experts choose tokens or tokens choose experts"},
	{"model.moe_capacity", VFM_KEY_NUM, OFF(moe_capacity), 0, 4096, NULL, NULL,
		"moe: experts per token, on average (expert choice) or exactly"},
	{"model.moe_aux", VFM_KEY_NUM, OFF(moe_aux), 0, 1e6, NULL, NULL,
		"moe: weight of the load-balance loss of token choice"},
	{"model.channels", VFM_KEY_INT, OFF(channels), 1, 1024, NULL, NULL, "channels of the latents"},
	{"model.cond_channels", VFM_KEY_INT, OFF(cond_channels), 0, 1024, NULL, NULL,
		"channels of a condition after the latents in the input (image to video); 0: none"},
	{"model.mask_channels", VFM_KEY_INT, OFF(mask_channels), 1, 2, NULL, NULL,
		"cosmos: masks after the latents in the input; 1: padding; 2: given frames, padding"},
	{"model.patch", VFM_KEY_INT3, OFF(patch), 1, 16, NULL, NULL, "patch size t, h, w"},
	{"model.text_dim", VFM_KEY_INT, OFF(text_dim), 1, 1 << 20, NULL, NULL, "features of a text row"},
	{"model.text_proj", VFM_KEY_INT, OFF(text_proj), 0, 65536, NULL, NULL,
		"cosmos: outputs of the layer that embeds the text; 0: the blocks read the text as it is"},
	{"model.text_len", VFM_KEY_INT, OFF(text_len), 1, 65536, NULL, NULL,
		"maximum text rows of a sample; longer texts are truncated"},
	{"model.text_pad", VFM_KEY_BOOL, OFF(text_pad), 0, 0, NULL, NULL,
		"rows of zeros after shorter texts, up to model.text_len"},
	{"model.text2_dim", VFM_KEY_INT, OFF(text2_dim), 0, 65535, NULL, NULL,
		"hunyuan, hunyuan1, flux: features of a row of a second text encoder; 0: none"},
	{"model.text2_len", VFM_KEY_INT, OFF(text2_len), 1, 65536, NULL, NULL,
		"hunyuan: maximum rows of the second text encoder; longer texts are truncated"},
	{"model.guidance_dim", VFM_KEY_INT, OFF(guidance_dim), 0, 4096, NULL, NULL,
		"hunyuan1, flux: features of the guidance scale that a distilled model reads; 0: none"},
	{"model.image_dim", VFM_KEY_INT, OFF(image_dim), 0, 65536, NULL, NULL,
		"features of an image row, which the blocks read by cross-attention; 0: no image rows"},
	{"model.image_len", VFM_KEY_INT, OFF(image_len), 1, 65536, NULL, NULL, "image rows of every sample"},
	{"model.image_pos", VFM_KEY_INT, OFF(image_pos), 0, 65536, NULL, NULL,
		"learned positions that are added to the image rows: model.image_len, or 0: none"},
	{"model.norm_eps", VFM_KEY_NUM, OFF(norm_eps), 1e-12, 1, NULL, NULL, "epsilon of the norms"},
	{"model.rope_theta", VFM_KEY_NUM, OFF(rope_theta), 1, 1e9, NULL, NULL, "base of the rotary frequencies"},
	{"model.rope_axes", VFM_KEY_INT3, OFF(rope_axes), 0, 128, NULL, NULL,
		"hunyuan, hunyuan1, flux: features of a head that rotate with t, h, w; 0: two thirds with h and w"},
	{"model.refiner_layers", VFM_KEY_INT, OFF(refiner_layers), 1, 64, NULL, NULL,
		"hunyuan, hunyuan1: blocks of self-attention that refine the text"},
	{"model.rope_scale", VFM_KEY_NUM3, OFF(rope_scale), 1e-3, 1e3, NULL, NULL,
		"cosmos: range of the rotary positions t, h, w, relative to 10000"},
	{"model.rope_fps", VFM_KEY_NUM, OFF(rope_fps), 0, 1e4, NULL, NULL,
		"ltx, cosmos: frames per second of the videos, for positions in time; 0: 25 and 24"},
	{"model.rope_stride", VFM_KEY_INT3, OFF(rope_stride), 1, 256, NULL, NULL,
		"ltx: frames and pixels t, h, w of a latent element, for positions in seconds and pixels"},
};

const int vfm_model_n_keys = sizeof(vfm_model_keys) / sizeof(vfm_model_keys[0]);

/* Returns whether the architecture reads the key: the key is in its row, or in no row. */
static bool has_key(const struct vfm_arch *a, const struct vfm_key *key)
{
	bool special = false;

	for (int i = 0; vfm_archs[i]; i++)
		special = special || vfm_arch_lists_key(vfm_archs[i], key->path);
	return !special || vfm_arch_lists_key(a, key->path);
}

static const char *name_in_section(const struct vfm_key *k)
{
	return strchr(k->path, '.') + 1;
}

json_t *vfm_model_json(const struct vfm_model_spec *m)
{
	const struct vfm_arch *a = vfm_arch_find(m->arch);
	json_t *o = json_object();

	for (int i = 0; i < vfm_model_n_keys; i++) {
		const struct vfm_key *k = &vfm_model_keys[i];

		if (has_key(a, k))
			json_object_set_new(o, name_in_section(k), vfm_key_json(m, k));
	}
	return o;
}

int vfm_model_read(struct vfm_model_spec *m, const json_t *section, const char *where, struct vfm_err *err)
{
	if (!json_is_object(section))
		return vfm_fail(err, VFM_EUSAGE, "%s: expected an object", where);
	for (int i = 0; i < vfm_model_n_keys; i++) {
		const struct vfm_key *k = &vfm_model_keys[i];
		const json_t *v = json_object_get(section, name_in_section(k));

		if (v && vfm_key_set(m, k, v, err) < 0)
			return vfm_err_context(err, "%s", where);
	}
	return 0;
}

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
		.image_len = 257,
		.mask_channels = 2,
		.text2_len = 256,
		.refiner_layers = 2,
		.norm_eps = 1e-6,
		.rope_theta = 10000,
		.rope_scale = {1, 1, 1},
		.rope_stride = {8, 32, 32}};
}

static int unknown_preset(const char *name, struct vfm_err *err)
{
	struct vfm_buf all = {0};

	for (int i = 0; vfm_preset_at(i); i++)
		vfm_buf_addf(&all, "%s%s", i ? ", " : "", vfm_preset_at(i)->name);
	vfm_fail(err, VFM_EUSAGE, "unknown model '%s' (expected one of %s)", name, all.data);
	vfm_buf_release(&all);
	return VFM_EUSAGE;
}

static const struct vfm_preset *find_preset(const char *name, const struct vfm_arch **arch)
{
	for (int a = 0; vfm_archs[a]; a++)
		for (const struct vfm_preset *p = vfm_archs[a]->presets; p->name; p++)
			if (!strcmp(p->name, name)) {
				*arch = vfm_archs[a];
				return p;
			}
	return NULL;
}

int vfm_model_preset(const char *name, struct vfm_model_spec *m, struct vfm_err *err)
{
	const struct vfm_arch *arch;
	const struct vfm_preset *p = find_preset(name, &arch);

	if (!p)
		return unknown_preset(name, err);
	vfm_model_defaults(m);
	strcpy(m->arch, arch->name);
	m->layers = p->layers;
	m->hidden = p->hidden;
	m->heads = p->heads;
	m->kv_heads = p->kv_heads;
	m->ffn = p->ffn;
	m->adaln_lora = p->adaln_lora;
	m->pos = vfm_model_arch(m)->pos;
	m->qk_norm = !p->no_qk_norm;
	m->text_pad = arch->foreign && arch->foreign->text_pad;
	if (p->channels)
		m->channels = p->channels;
	if (p->text_dim)
		m->text_dim = p->text_dim;
	if (p->patch[0])
		memcpy(m->patch, p->patch, sizeof(m->patch));
	m->cond_channels = p->cond_channels;
	m->text_proj = p->text_proj;
	m->text2_dim = p->text2_dim;
	m->single_layers = p->single_layers;
	m->guidance_dim = p->guidance_dim;
	if (p->text_len)
		m->text_len = p->text_len;
	if (p->image_len)
		m->image_len = p->image_len;
	memcpy(m->rope_axes, p->rope_axes, sizeof(m->rope_axes));
	if (p->rope_theta > 0)
		m->rope_theta = p->rope_theta;
	if (p->mask_channels)
		m->mask_channels = p->mask_channels;
	for (int i = 0; i < 3; i++)
		m->rope_scale[i] = p->rope_scale[i] > 0 ? p->rope_scale[i] : 1;
	m->image_dim = p->image_dim;
	m->image_pos = p->image_pos;
	if (p->image_pos)
		m->image_len = p->image_pos;
	if (p->experts) {
		m->experts = p->experts;
		m->expert_ffn = p->expert_ffn;
		m->shared_experts = p->shared_experts;
	}
	return 0;
}

/* ---- checks ---- */

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
	TRY(vfm_key_check_int("model.kv_heads", m->kv_heads, 0, m->heads, err));
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
	     learned = vfm_model_arch(m)->pos == VFM_POS_LEARNED;

	if (sincos && m->hidden % 16)
		return vfm_fail(err, VFM_EUSAGE, "model.hidden: %lld must be a multiple of 16 for sincos positions",
			(long long)m->hidden);
	if (learned != (m->pos == VFM_POS_LEARNED))
		return vfm_fail(err, VFM_EUSAGE, "model.pos: model.arch '%s' %s 'learned'", m->arch,
			learned ? "has only" : "does not have");
	if (!vfm_model_has_row_rope(m))
		return 0;
	if (!m->qk_norm)
		return vfm_fail(
			err, VFM_EUSAGE, "model.qk_norm: the rotary positions of model.arch '%s' need it", m->arch);
	if (m->kv_heads != m->heads)
		return vfm_fail(err, VFM_EUSAGE,
			"model.kv_heads: the rotary positions of model.arch '%s' are over all heads, so %lld key heads "
			"do not fit model.heads %lld",
			m->arch, (long long)m->kv_heads, (long long)m->heads);
	return 0;
}

/* Sets the axes if they are 0.  An axis of two features has one frequency, 1, whatever the base. */
static int check_rope_axes(struct vfm_model_spec *m, struct vfm_err *err)
{
	const struct vfm_arch *a = vfm_model_arch(m);
	const bool reads = vfm_arch_lists_key(a, "model.rope_scale");
	struct vfm_rope_axes r;

	vfm_model_rope_axes(m, &r);
	if (r.features[0] + r.features[1] + r.features[2] != vfm_model_head_dim(m))
		return vfm_fail(err, VFM_EUSAGE,
			"model.rope_axes: %lld, %lld and %lld features are not the %lld of a head",
			(long long)r.features[0], (long long)r.features[1], (long long)r.features[2],
			(long long)vfm_model_head_dim(m));
	for (int i = 0; i < 3; i++)
		if (r.features[i] % 2)
			return vfm_fail(err, VFM_EUSAGE, "model.rope_axes: %lld features of %c are no pairs",
				(long long)r.features[i], "thw"[i]);
	for (int i = 0; reads && i < 3; i++)
		if (m->rope_scale[i] != 1 && r.features[i] < 3)
			return vfm_fail(err, VFM_EUSAGE,
				"model.rope_scale: heads of %lld features rotate %lld with %c, which have no range",
				(long long)vfm_model_head_dim(m), (long long)r.features[i], "thw"[i]);
	if (vfm_arch_lists_key(a, "model.rope_axes"))
		memcpy(m->rope_axes, r.features, sizeof(m->rope_axes));
	return 0;
}

/* What the blocks read besides the latents. */
static int check_model_conditions(const struct vfm_model_spec *m, struct vfm_err *err)
{
	if (m->cond_channels && vfm_model_arch(m)->given != VFM_GIVEN_CLEAN)
		return vfm_fail(err, VFM_EUSAGE,
			"model.cond_channels: model.arch '%s' makes what it reads of given frames itself; 0 would fit",
			m->arch);
	if (m->image_dim && !m->cross_attention)
		return vfm_fail(err, VFM_EUSAGE,
			"model.image_dim: only cross-attention reads image rows, and model.cross_attention is false");
	if (m->image_pos && (!m->image_dim || m->image_pos != m->image_len))
		return vfm_fail(err, VFM_EUSAGE,
			"model.image_pos: %lld positions of image rows, but model.image_len and model.image_dim give "
			"[%lld, %lld]",
			(long long)m->image_pos, (long long)m->image_len, (long long)m->image_dim);
	if (m->pooled_text && (vfm_model_arch(m)->text == VFM_TEXT_ROWS || vfm_model_arch(m)->joint))
		return vfm_fail(err, VFM_EUSAGE, "model.pooled_text: model.arch '%s' adds no text to the conditioning",
			m->arch);
	if (!m->cross_attention && (vfm_model_arch(m)->cross_mod || vfm_model_arch(m)->joint))
		return vfm_fail(err, VFM_EUSAGE,
			"model.cross_attention: the blocks of model.arch '%s' always read the text", m->arch);
	if (vfm_model_arch(m)->joint && m->text_pad)
		return vfm_fail(err, VFM_EUSAGE,
			"model.text_pad: model.arch '%s' would attend to rows of zeros; false would fit", m->arch);
	return 0;
}

/* The parts that only some architectures have. */
static int check_parts_of_arch(const struct vfm_model_spec *m, struct vfm_err *err)
{
	const struct vfm_arch *a = vfm_model_arch(m);
	const struct {
		const char *key, *lacks;
		int64_t value;
		bool reads;
	} parts[] = {{"model.text2_dim", "reads no second text", m->text2_dim, a->joint},
		{"model.image_dim", "reads no image rows", m->image_dim, !a->joint || a->row_type},
		{"model.single_layers", "has no single-stream blocks", m->single_layers,
			vfm_arch_lists_key(a, "model.single_layers")},
		{"model.guidance_dim", "reads no guidance scale", m->guidance_dim,
			vfm_arch_lists_key(a, "model.guidance_dim")}};

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
		if (parts[i].value && !parts[i].reads)
			return vfm_fail(
				err, VFM_EUSAGE, "%s: model.arch '%s' %s", parts[i].key, m->arch, parts[i].lacks);
	if (m->single_layers >= m->layers)
		return vfm_fail(err, VFM_EUSAGE,
			"model.single_layers: %lld of %lld blocks (model.layers) leave no double-stream block",
			(long long)m->single_layers, (long long)m->layers);
	if (m->guidance_dim % 2)
		return vfm_fail(err, VFM_EUSAGE, "model.guidance_dim: %lld is odd", (long long)m->guidance_dim);
	return 0;
}

static int check_modulation(struct vfm_model_spec *m, struct vfm_err *err)
{
	const struct vfm_arch *a = vfm_model_arch(m);

	TRY(vfm_key_check_int("model.adaln_lora", m->adaln_lora, 0, m->hidden, err));
	if (m->adaln_lora && a->mod == VFM_MOD_TABLE)
		return vfm_fail(err, VFM_EUSAGE,
			"model.adaln_lora: the blocks of model.arch '%s' have no modulation matrices; 0 would fit",
			m->arch);
	if (!m->adaln_lora && a->mod == VFM_MOD_LOW_RANK)
		m->adaln_lora = m->hidden < LOW_RANK ? m->hidden : LOW_RANK;
	return 0;
}

static int check_moe(const struct vfm_model_spec *m, struct vfm_err *err)
{
	if (!(m->moe_capacity > 0 && m->moe_capacity <= (double)m->experts))
		return vfm_fail(err, VFM_EUSAGE,
			"model.moe_capacity: expected more than 0, at most model.experts %lld, got %g",
			(long long)m->experts, m->moe_capacity);
	if (m->moe_router == VFM_MOE_TOKEN_CHOICE && m->moe_capacity != (double)(int64_t)m->moe_capacity)
		return vfm_fail(err, VFM_EUSAGE,
			"model.moe_capacity: token choice needs an integer, the experts per token; got %g",
			m->moe_capacity);
	return 0;
}

int vfm_model_check(struct vfm_model_spec *m, struct vfm_err *err)
{
	const struct vfm_arch *a = vfm_arch_find(m->arch);

	if (!a)
		return vfm_key_fail_name("model.arch", vfm_arch_names, m->arch, err);
	for (int i = 0; i < vfm_model_n_keys; i++)
		if (has_key(a, &vfm_model_keys[i]))
			TRY(vfm_key_check_value(m, &vfm_model_keys[i], err));
	TRY(check_modulation(m, err));
	TRY(check_model_conditions(m, err));
	TRY(check_parts_of_arch(m, err));
	TRY(check_heads(m, err));
	TRY(check_positions(m, err));
	TRY(check_rope_axes(m, err));
	if (m->rope_fps == 0)
		m->rope_fps = a->rope_fps;
	if (m->ffn == 0)
		m->ffn = 4 * m->hidden;
	if (a->text2_vector)
		m->text2_len = 1;
	if (m->ffn < 8)
		return vfm_fail(err, VFM_EUSAGE, "model.ffn: expected 0 (4 * hidden) or at least 8, got %lld",
			(long long)m->ffn);
	if (a->mlp == VFM_MLP_EXPERTS)
		TRY(check_moe(m, err));
	if (!(m->rope_theta > 1))
		return vfm_fail(err, VFM_EUSAGE, "model.rope_theta: expected more than 1, got %g", m->rope_theta);
	return 0;
}

const struct vfm_arch *vfm_model_arch(const struct vfm_model_spec *m)
{
	const struct vfm_arch *a = vfm_arch_find(m->arch);

	return a ? a : vfm_archs[0];
}

bool vfm_model_has_experts(const struct vfm_model_spec *m)
{
	return vfm_model_arch(m)->mlp == VFM_MLP_EXPERTS;
}

bool vfm_model_has_cross(const struct vfm_model_spec *m)
{
	return m->cross_attention && !vfm_model_arch(m)->joint;
}

bool vfm_model_reads_text(const struct vfm_model_spec *m)
{
	return m->cross_attention || m->pooled_text;
}

bool vfm_model_pools_text(const struct vfm_model_spec *m)
{
	return m->pooled_text || vfm_model_arch(m)->text == VFM_TEXT_REFINER;
}

bool vfm_model_is_single(const struct vfm_model_spec *m, int64_t layer)
{
	return layer >= m->layers - m->single_layers;
}

int vfm_model_n_mod(const struct vfm_model_spec *m, int64_t layer)
{
	return vfm_model_is_single(m, layer) ? 3 : vfm_model_arch(m)->n_mod;
}

int64_t vfm_model_text2_rows(const struct vfm_model_spec *m, int64_t rows)
{
	return vfm_model_arch(m)->text2_vector ? 0 : rows;
}

int64_t vfm_model_text2_cut(const struct vfm_model_spec *m)
{
	return vfm_model_arch(m)->text2_vector ? 0 : m->text2_len;
}

bool vfm_model_has_units(const struct vfm_model_spec *m)
{
	const struct vfm_arch *a = vfm_model_arch(m);

	for (int i = 0; i < a->n_attn; i++)
		if (a->attn[i] != VFM_ATTN_FULL)
			return true;
	return false;
}

bool vfm_model_has_shared_mod(const struct vfm_model_spec *m)
{
	const struct vfm_arch *a = vfm_model_arch(m);

	return a->mod == VFM_MOD_TABLE || (a->mod == VFM_MOD_MATRIX && m->adaln_lora);
}

bool vfm_model_has_row_rope(const struct vfm_model_spec *m)
{
	return vfm_model_arch(m)->rope_extent[0] > 0 && (m->pos == VFM_POS_ROPE || m->pos == VFM_POS_BOTH);
}

void vfm_model_rope_scale(const struct vfm_model_spec *m, double scale[3])
{
	const struct vfm_arch *a = vfm_model_arch(m);
	const bool row = vfm_model_has_row_rope(m);

	for (int i = 0; i < 3; i++)
		scale[i] = row ? (double)(m->rope_stride[i] * m->patch[i]) / a->rope_extent[i] : 1;
	if (a->rope_fps > 0)
		scale[0] *= (row ? 1 : a->rope_fps) / m->rope_fps;
}

static bool has_own_axes(const struct vfm_model_spec *m)
{
	return vfm_arch_lists_key(vfm_model_arch(m), "model.rope_axes") &&
		(m->rope_axes[0] || m->rope_axes[1] || m->rope_axes[2]);
}

void vfm_model_rope_axes(const struct vfm_model_spec *m, struct vfm_rope_axes *r)
{
	const bool ranges = vfm_arch_lists_key(vfm_model_arch(m), "model.rope_scale");
	const int64_t d = vfm_model_head_dim(m), side = 2 * (d / 6);
	const bool own = has_own_axes(m);

	vfm_model_rope_scale(m, r->scale);
	for (int i = 0; i < 3; i++) {
		const int64_t n = own ? m->rope_axes[i] : i ? side : d - 2 * side;

		r->features[i] = n;
		r->theta[i] = m->rope_theta;
		if (ranges && n > 2)
			r->theta[i] *= pow(m->rope_scale[i], (double)n / (double)(n - 2));
	}
}

bool vfm_model_tokens_choose(const struct vfm_model_spec *m)
{
	return vfm_model_has_experts(m) && m->moe_router == VFM_MOE_TOKEN_CHOICE;
}

void vfm_model_patch(const struct vfm_model_spec *m, int32_t patch[3])
{
	for (int a = 0; a < 3; a++)
		patch[a] = (int32_t)m->patch[a];
}

int64_t vfm_model_patch_dim(const struct vfm_model_spec *m)
{
	return m->channels * m->patch[0] * m->patch[1] * m->patch[2];
}

int64_t vfm_model_cond_dim(const struct vfm_model_spec *m)
{
	return m->cond_channels * m->patch[0] * m->patch[1] * m->patch[2];
}

int64_t vfm_model_given_dim(const struct vfm_model_spec *m)
{
	const int64_t volume = m->patch[0] * m->patch[1] * m->patch[2];

	switch (vfm_model_arch(m)->given) {
	case VFM_GIVEN_MASK:
		return m->mask_channels * volume;
	case VFM_GIVEN_COND:
		return (m->channels + 1) * volume;
	default:
		return 0;
	}
}

bool vfm_model_takes_given(const struct vfm_model_spec *m)
{
	return vfm_model_arch(m)->given != VFM_GIVEN_MASK || m->mask_channels > 1;
}

bool vfm_model_predicts_given(const struct vfm_model_spec *m)
{
	return vfm_model_arch(m)->given == VFM_GIVEN_COND;
}

int64_t vfm_model_input_dim(const struct vfm_model_spec *m)
{
	return vfm_model_patch_dim(m) + vfm_model_cond_dim(m) + vfm_model_given_dim(m);
}

int64_t vfm_model_context_dim(const struct vfm_model_spec *m)
{
	if (vfm_model_arch(m)->text != VFM_TEXT_ROWS)
		return m->hidden;
	return m->text_proj ? m->text_proj : m->text_dim;
}

int64_t vfm_model_head_dim(const struct vfm_model_spec *m)
{
	return m->hidden / m->heads;
}

int64_t vfm_model_text_rows(const struct vfm_model_spec *m, int64_t rows)
{
	return m->text_pad ? m->text_len : rows;
}

/* ---- packs ---- */

void vfm_pack_sums_add_joint(
	struct vfm_pack_sums *p, const int32_t grid[3], int64_t text_tokens, int64_t text2, int64_t image)
{
	double t = grid[0], area = (double)grid[1] * grid[2], s = t * area, c = (double)text_tokens,
	       all = s + c + (double)(text2 + image);

	p->tokens += s;
	p->pairs_full += s * s;
	p->pairs_spatial += s * area;
	p->pairs_temporal += s * t;
	p->text_rows += c;
	p->text2_rows += (double)text2;
	p->image_rows += (double)image;
	p->pairs_cross += s * c;
	p->pairs_joint += all * all;
	p->pairs_text += c * c;
	p->samples += 1;
	p->segments += 1;
}

void vfm_pack_sums_add(struct vfm_pack_sums *p, const int32_t grid[3], int64_t text_tokens)
{
	vfm_pack_sums_add_joint(p, grid, text_tokens, 0, 0);
}
