/* extra.c - the table of extra arrays: key, part of the name, dimensions, flag, encoder. */
#include "data/record/extra.h"

const struct vfm_extra_kind vfm_extra_kinds[VFM_EXTRAS] = {
	[VFM_EXTRA_COND] = {.key = "cond",
		.part = "cond.npy",
		.name = "condition",
		.ndim = 4,
		.flag = 4,
		.encoder = VFM_ENCODER_TOKENIZER},
	[VFM_EXTRA_IMAGE] = {.key = "image",
		.part = "image.npy",
		.name = "image rows",
		.ndim = 2,
		.flag = 8,
		.encoder = VFM_ENCODER_IMAGE},
	[VFM_EXTRA_TEXT2] = {.key = "text2",
		.part = "text2.npy",
		.name = "second text",
		.ndim = 2,
		.flag = 128,
		.encoder = VFM_ENCODER_TEXT2},
};
