/* pixart: PixArt-alpha (arXiv 2310.00426): adaLN-single, one modulation for all blocks plus a table in each block. */
#include <stddef.h>

#include "spec/model/arch.h"

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
