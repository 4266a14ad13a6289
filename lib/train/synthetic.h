/* synthetic.h - synthetic packs: normal latents and texts of given sizes, to measure and to check without a data set.
 */
#ifndef VFM_TRAIN_SYNTHETIC_H
#define VFM_TRAIN_SYNTHETIC_H

#include "spec/model.h"
#include "spec/pack.h"

struct vfm_synthetic {
	int32_t grid[3];  /* in patches t, h, w */
	int32_t text_len; /* rows; may be 0 */
	uint64_t id;
};

/* n samples in one pack, which the caller releases; step_tokens counts this pack alone.  Values follow from (seed,
 * sample id).  VFM_EENV: no memory. */
int vfm_synthetic_pack(struct vfm_pack *p, const struct vfm_synthetic *s, int n, const struct vfm_model_spec *m,
	uint64_t seed, struct vfm_err *err);

#endif
