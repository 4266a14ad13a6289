/* trainer.h - one rank's training step, from packs to updated weights.
 *
 *	vfm_trainer_begin(tr, step, step_tokens, err);
 *	vfm_trainer_pack(tr, batch, err);       // forward and backward; once for each of the step's packs
 *	vfm_trainer_end(tr, lr, err);           // clip, update
 *	vfm_trainer_stats(tr, &stats, err);     // waits for the device
 *
 * The loss is the mean over the tokens of the global step; its denominator comes from the
 * manifest, so packs, ranks and accumulation do not change it.
 */
#ifndef VFM_TRAIN_TRAINER_H
#define VFM_TRAIN_TRAINER_H

#include "data/loader.h"
#include "mesh/mesh.h"
#include "model/model.h"
#include "train/config.h"
#include "train/optim.h"

struct vfm_trainer;

struct vfm_step_stats {
	double loss, grad_norm;
	double flops;           /* of the model: 3 x forward, recompute not counted */
	int64_t tokens, samples;
};

/* Builds the model on the device and fills its weights from the seed.  The mesh must outlive it. */
struct vfm_trainer *vfm_trainer_new(const struct vfm_config *c, const struct vfm_mesh *mesh, struct vfm_stream *s, struct vfm_err *err);
void vfm_trainer_free(struct vfm_trainer *tr); /* NULL is fine */

int vfm_trainer_begin(struct vfm_trainer *tr, int64_t step, int64_t step_tokens, struct vfm_err *err);
int vfm_trainer_pack(struct vfm_trainer *tr, const struct vfm_batch *b, struct vfm_err *err);
int vfm_trainer_end(struct vfm_trainer *tr, double lr, struct vfm_err *err); /* collective */
int vfm_trainer_stats(struct vfm_trainer *tr, struct vfm_step_stats *out, struct vfm_err *err);

struct vfm_params *vfm_trainer_params(struct vfm_trainer *tr);
struct vfm_optim *vfm_trainer_optim(struct vfm_trainer *tr);

#endif
