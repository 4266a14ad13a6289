/* madeup.h - packs without a data set: normal latents and texts of given sizes, for measuring and checking. */
#ifndef VFM_TRAIN_MADEUP_H
#define VFM_TRAIN_MADEUP_H

#include "data/loader.h"
#include "spec/model.h"

struct vfm_madeup {
	int32_t grid[3];  /* in patches t, h, w */
	int32_t text_len; /* rows; may be 0 */
	uint64_t id;
};

/* n samples in one pack; step_tokens is that of this pack alone.  Values follow from (seed, sample id). */
void vfm_madeup_pack(
	struct vfm_batch *b, const struct vfm_madeup *s, int n, const struct vfm_model_spec *m, uint64_t seed);
void vfm_madeup_release(struct vfm_batch *b);

#endif
