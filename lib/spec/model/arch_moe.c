/* moe: dit with a mixture of experts instead of the MLP. */
#include <stddef.h>

#include "spec/model/arch.h"

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
