/* stdit: three self-attentions a block: within a frame, along time, over the whole sample. */
#include <stddef.h>

#include "spec/model/arch.h"

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
