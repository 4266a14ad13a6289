#include "spec/arch.h"

#include <stddef.h>

enum {
#define X(name) ROW_##name,
	VFM_ARCH_LIST(X)
#undef X
};

const char *const vfm_arch_names[] = {
#define X(name) #name,
	VFM_ARCH_LIST(X)
#undef X
		NULL};

static const char *const pos_keys[] = {"model.pos_max", NULL};
static const char *const expert_keys[] = {"model.experts", "model.expert_ffn", "model.shared_experts",
	"model.moe_router", "model.moe_capacity", "model.moe_aux", NULL};

const struct vfm_arch vfm_archs[] = {
	[ROW_dit] = {.name = "dit", .n_attn = 1, .n_mod = 6},
	[ROW_moviegen] = {.name = "moviegen",
		.n_attn = 1,
		.n_mod = 6,
		.mlp = VFM_MLP_SWIGLU,
		.rms_norm = true,
		.no_bias = true,
		.pos = VFM_POS_LEARNED,
		.keys = pos_keys},
	[ROW_stdit] = {.name = "stdit",
		.n_attn = 3,
		.attn = {VFM_ATTN_SPATIAL, VFM_ATTN_TEMPORAL, VFM_ATTN_FULL},
		.n_mod = 12},
	[ROW_pixart] = {.name = "pixart",
		.n_attn = 1,
		.n_mod = 6,
		.mod = VFM_MOD_TABLE,
		.plain_cross = true,
		.pos = VFM_POS_SINCOS},
	[ROW_moe] = {.name = "moe", .n_attn = 1, .n_mod = 6, .mlp = VFM_MLP_EXPERTS, .keys = expert_keys},
};

const struct vfm_preset vfm_presets[] = {
	{.name = "dit-s", .arch = "dit", .layers = 12, .hidden = 384, .heads = 6},
	{.name = "dit-b", .arch = "dit", .layers = 12, .hidden = 768, .heads = 12},
	{.name = "dit-l", .arch = "dit", .layers = 24, .hidden = 1024, .heads = 16},
	{.name = "dit-xl", .arch = "dit", .layers = 28, .hidden = 1152, .heads = 16},
	{.name = "dit-7b", .arch = "dit", .layers = 28, .hidden = 4096, .heads = 32, .ffn = 16384, .adaln_lora = 256},
	{.name = "dit-28b", .arch = "dit", .layers = 48, .hidden = 6144, .heads = 48, .ffn = 24576, .adaln_lora = 256},
	{.name = "moviegen-1b",
		.arch = "moviegen",
		.layers = 16,
		.hidden = 2048,
		.heads = 32,
		.kv_heads = 8,
		.ffn = 8192},
	{.name = "moviegen-5b",
		.arch = "moviegen",
		.layers = 32,
		.hidden = 3072,
		.heads = 24,
		.kv_heads = 8,
		.ffn = 8192},
	{.name = "moviegen-30b",
		.arch = "moviegen",
		.layers = 48,
		.hidden = 6144,
		.heads = 48,
		.kv_heads = 8,
		.ffn = 16384},
	{.name = "stdit-xl", .arch = "stdit", .layers = 28, .hidden = 1152, .heads = 16},
	{.name = "moe-1b",
		.arch = "moe",
		.layers = 16,
		.hidden = 2048,
		.heads = 32,
		.kv_heads = 8,
		.experts = 64,
		.expert_ffn = 1024,
		.shared_experts = 1},
	{.name = "pixart-xl", .arch = "pixart", .layers = 28, .hidden = 1152, .heads = 16, .no_qk_norm = true},
	{0},
};
