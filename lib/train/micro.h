/* micro.h - a pack on the device with all that a training step draws for it: the model's input, and on the last stage
 * the target. */
#ifndef VFM_TRAIN_MICRO_H
#define VFM_TRAIN_MICRO_H

#include "model/model.h"
#include "spec/pack.h"
#include "train/config.h"

struct vfm_micro {
	struct vfm_model_in in;
	struct vfm_stream *stream;
	void *mem; /* holds all below */
	size_t bytes;
	struct vfm_tensor x0, target; /* [T,F] f32; absent where first and last are false */
	struct vfm_tensor coef;       /* [S,4] f32 */
	struct vfm_tensor w;          /* [S] f32: weight of a token's loss, 1 / tokens of the global step */
};

struct vfm_micro_opts {
	const struct vfm_config *config;
	const struct vfm_mesh *mesh;
	int64_t step;
	bool ends; /* this stage holds the patches or the head: the noisy input and the target are made */
};

/* Draws come from (seed, step, sample id) alone.  The pack may be released when it returns.  Release in any case. */
int vfm_micro_make(struct vfm_micro *u, struct vfm_stream *s, const struct vfm_micro_opts *o, const struct vfm_pack *p,
	struct vfm_err *err);
void vfm_micro_release(struct vfm_micro *u);

#endif
