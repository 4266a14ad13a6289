/* extra.c - the table of extra arrays: key, part of the name, dimensions, flag. */
#include "data/record/extra.h"

const struct vfm_extra_kind vfm_extra_kinds[VFM_EXTRAS] = {
	[VFM_EXTRA_COND] = {.key = "cond", .part = "cond.npy", .name = "condition", .ndim = 4, .flag = 4},
	[VFM_EXTRA_IMAGE] = {.key = "image", .part = "image.npy", .name = "image rows", .ndim = 2, .flag = 8},
};
