/* dit: adaLN-Zero blocks (Peebles & Xie 2023), with cross-attention to text. */
#include <stddef.h>

#include "spec/model/arch.h"

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
