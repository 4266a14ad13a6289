/* moviegen: Llama-style (arXiv 2410.13720): RMS norm, SwiGLU, no biases, learned positions in front of every block. */
#include <stddef.h>

#include "spec/model/arch.h"

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
