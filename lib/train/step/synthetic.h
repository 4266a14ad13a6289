/* synthetic.h - packs of normally distributed latents, texts, conditions and image rows, for benchmarks and tests.  If
 * the model reads a second text, samples with odd ids have one, of 1 to model.text2_len rows.
 */
#ifndef VFM_TRAIN_STEP_SYNTHETIC_H
#define VFM_TRAIN_STEP_SYNTHETIC_H

#include "spec/layout/pack.h"
#include "spec/model/model.h"

struct vfm_synthetic {
	int32_t grid[3];  /* in patches t, h, w */
	int32_t text_len; /* rows; may be 0 */
	uint64_t id;
};

/* Makes a pack of n samples; the caller releases it.  step_tokens counts only this pack.  Values depend only on (seed,
 * sample id).  VFM_EENV: out of memory. */
int vfm_synthetic_pack(struct vfm_pack *p, const struct vfm_synthetic *s, int n, const struct vfm_model_spec *m,
	uint64_t seed, struct vfm_err *err);

/* Like vfm_synthetic_pack, for devices that compute no data: latents, texts, conditions and image rows are
 * undefined.  Their sizes are those of vfm_synthetic_pack. */
int vfm_synthetic_shapes(
	struct vfm_pack *p, const struct vfm_synthetic *s, int n, const struct vfm_model_spec *m, struct vfm_err *err);

/* Adds such a sample to sums of packs.  Local. */
void vfm_synthetic_add_sums(struct vfm_pack_sums *sums, const int32_t grid[3], int64_t text_len, uint64_t id,
	const struct vfm_model_spec *m);

#endif
