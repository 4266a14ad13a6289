/* state.h - a trainer's state in checkpoints: "model/NAME" (f32 masters), "optim/m/NAME",
 * "optim/v/NAME", "ema/NAME".
 *
 * Each rank writes what it owns (nn/param.h), replicas share the work, and reads what it will own: the layouts of
 * those that write and those that read need not be the same.  All calls but poll are collective over the job; a failure
 * of one rank is that of all.  They use mesh->save: one at a time, and nobody else may.
 */
#ifndef VFM_TRAIN_STATE_H
#define VFM_TRAIN_STATE_H

#include "ckpt/ckpt.h"
#include "train/trainer.h"

/* Saves beside training: start copies the state to the host and returns; the files are written by
 * a thread.  One save is under way at a time. */
struct vfm_saver {
	struct vfm_ckpt_job *job;
	struct vfm_ckpt_comm comm;
	struct vfm_dev *dev;
	float *host;     /* the copy that is being written: memory of alloc_host */
	size_t bytes;
};
/* Waits for the save before, whose failure it returns.  rank, size and comm of the spec are filled in. */
int vfm_saver_start(struct vfm_saver *s, struct vfm_trainer *tr, const struct vfm_ckpt_spec *spec, struct vfm_err *err);
/* Returns the result of a save that is done; 0 while one is under way or none was. */
int vfm_saver_poll(struct vfm_saver *s, struct vfm_err *err);
int vfm_saver_wait(struct vfm_saver *s, struct vfm_err *err);

/* Fills the trainer from a checkpoint; every tensor must be there in its shape. */
int vfm_state_load(struct vfm_trainer *tr, struct vfm_ckpt *c, struct vfm_err *err);
/* Weights alone, from "model" or "ema"; a plain .safetensors file has no parts. */
int vfm_state_load_weights(struct vfm_params *ps, struct vfm_ckpt *c, const char *part, struct vfm_err *err);

/* The gradients of the step before as a checkpoint of one part, "grad/NAME": to compare layouts with (vfm-ckpt diff). */
int vfm_state_save_grads(struct vfm_params *ps, const char *dir, int64_t step, struct vfm_err *err);

#endif
