/* arch.c - the rows of the architectures, with presets and names. */
#include "spec/model/arch.h"

#include <stddef.h>
#include <string.h>

/* dit: adaLN-Zero blocks (Peebles & Xie 2023), with cross-attention to text. */
static const struct vfm_preset presets_dit[] = {
	{.name = "dit-s", .layers = 12, .hidden = 384, .heads = 6},
	{.name = "dit-b", .layers = 12, .hidden = 768, .heads = 12},
	{.name = "dit-l", .layers = 24, .hidden = 1024, .heads = 16},
	{.name = "dit-xl", .layers = 28, .hidden = 1152, .heads = 16},
	{.name = "dit-7b", .layers = 28, .hidden = 4096, .heads = 32, .ffn = 16384, .adaln_lora = 256},
	{.name = "dit-28b", .layers = 48, .hidden = 6144, .heads = 48, .ffn = 24576, .adaln_lora = 256},
	{0},
};

const struct vfm_arch vfm_arch_dit = {
	.name = "dit",
	.n_attn = 1,
	.n_mod = 6,
	.presets = presets_dit,
};

/* moviegen: Llama-style (arXiv 2410.13720): RMS norm, SwiGLU, no biases, learned positions in front of every block. */
static const char *const pos_keys[] = {"model.pos_max", NULL};

static const struct vfm_preset presets_moviegen[] = {
	{.name = "moviegen-1b", .layers = 16, .hidden = 2048, .heads = 32, .kv_heads = 8, .ffn = 8192},
	{.name = "moviegen-5b", .layers = 32, .hidden = 3072, .heads = 24, .kv_heads = 8, .ffn = 8192},
	{.name = "moviegen-30b", .layers = 48, .hidden = 6144, .heads = 48, .kv_heads = 8, .ffn = 16384},
	{0},
};

const struct vfm_arch vfm_arch_moviegen = {
	.name = "moviegen",
	.n_attn = 1,
	.n_mod = 6,
	.mlp = VFM_MLP_SWIGLU,
	.rms_norm = true,
	.no_bias = true,
	.pos = VFM_POS_LEARNED,
	.keys = pos_keys,
	.presets = presets_moviegen,
};

/* stdit: three self-attentions a block: within a frame, along time, over the whole sample. */
static const struct vfm_preset presets_stdit[] = {
	{.name = "stdit-xl", .layers = 28, .hidden = 1152, .heads = 16},
	{0},
};

const struct vfm_arch vfm_arch_stdit = {
	.name = "stdit",
	.n_attn = 3,
	.attn = {VFM_ATTN_SPATIAL, VFM_ATTN_TEMPORAL, VFM_ATTN_FULL},
	.n_mod = 12,
	.presets = presets_stdit,
};

/* moe: dit with a mixture of experts instead of the MLP. */
static const char *const expert_keys[] = {"model.experts", "model.expert_ffn", "model.shared_experts",
	"model.moe_router", "model.moe_capacity", "model.moe_aux", NULL};

static const struct vfm_preset presets_moe[] = {
	{.name = "moe-1b",
		.layers = 16,
		.hidden = 2048,
		.heads = 32,
		.kv_heads = 8,
		.experts = 64,
		.expert_ffn = 1024,
		.shared_experts = 1},
	{0},
};

const struct vfm_arch vfm_arch_moe = {
	.name = "moe",
	.n_attn = 1,
	.n_mod = 6,
	.mlp = VFM_MLP_EXPERTS,
	.keys = expert_keys,
	.presets = presets_moe,
};

/* pixart: PixArt-alpha (arXiv 2310.00426): adaLN-single, one modulation for all blocks plus a table in each block. */
static const struct vfm_preset presets_pixart[] = {
	{.name = "pixart-xl", .layers = 28, .hidden = 1152, .heads = 16, .no_qk_norm = true},
	{0},
};

const struct vfm_arch vfm_arch_pixart = {
	.name = "pixart",
	.n_attn = 1,
	.n_mod = 6,
	.mod = VFM_MOD_TABLE,
	.plain_cross = true,
	.pos = VFM_POS_SINCOS,
	.presets = presets_pixart,
};

const struct vfm_arch *const vfm_archs[] = {
#define X(name) &vfm_arch_##name,
	VFM_ARCH_LIST(X)
#undef X
		NULL};

const char *const vfm_arch_names[] = {
#define X(name) #name,
	VFM_ARCH_LIST(X)
#undef X
		NULL};

const struct vfm_preset *vfm_preset_at(int i)
{
	for (int a = 0; vfm_archs[a]; a++)
		for (const struct vfm_preset *p = vfm_archs[a]->presets; p->name; p++)
			if (i-- == 0)
				return p;
	return NULL;
}

bool vfm_arch_lists_key(const struct vfm_arch *a, const char *path)
{
	for (const char *const *k = a->keys; k && *k; k++)
		if (!strcmp(*k, path))
			return true;
	return false;
}

const struct vfm_arch *vfm_arch_find(const char *name)
{
	for (int i = 0; name && vfm_arch_names[i]; i++)
		if (!strcmp(name, vfm_arch_names[i]))
			return vfm_archs[i];
	return NULL;
}
