/* state.h - a trainer's state in checkpoints: "model/NAME" (f32 masters), "optim/m/NAME",
 * "optim/v/NAME", "ema/NAME"; with train.fp8=delayed "fp8/NAME" [3, steps] f32 of each layer, NAME being its weight's
 * (nn/scales.h).
 *
 * Each rank writes what it owns (nn/param.h), replicas share the work, and reads what it will own: the layouts of
 * those that write and those that read need not be the same.  All calls but poll are collective over the job; a failure
 * of one rank is that of all.  They use mesh->save: one at a time, and nobody else may.
 */
#ifndef VFM_TRAIN_STATE_H
#define VFM_TRAIN_STATE_H

#include "ckpt/ckpt.h"
#include "train/trainer.h"

/* Saves beside training: start puts a copy of the state into page-locked memory on a stream of its own and returns; the
 * step that follows runs beside it up to its update of the weights.  When the copy is there (seen by poll, or wait) a
 * thread writes the files.  One save is under way at a time; the memory is kept for the next.  Starts as {0}. */
struct vfm_saver {
	struct vfm_dev *dev;
	struct vfm_trainer *tr;
	struct vfm_comm *c;
	struct vfm_stream *stream;
	struct vfm_event *ready; /* of vfm_stream_follow: the copies behind the compute stream */
	struct vfm_event *copied;
	struct vfm_ckpt_writer *w; /* the copy is under way */
	struct vfm_ckpt_job *job;  /* the files are */
	struct vfm_ckpt_comm comm;
	float *host;
	size_t bytes;
	int rc; /* of the copy */
	struct vfm_err err;
	double t_start;
	double stall_s, copy_s; /* of the last save: how long start took; until the copy was seen to be there */
};
/* Waits for the save before, whose failure it returns.  rank, size and comm of the spec are filled in.  While the save
 * is under way the trainer may step, but not be freed or loaded. */
int vfm_saver_start(struct vfm_saver *s, struct vfm_trainer *tr, const struct vfm_ckpt_spec *spec, struct vfm_err *err);
/* Returns the result of a save that is done; 0 while one is under way or none was. */
int vfm_saver_poll(struct vfm_saver *s, struct vfm_err *err);
int vfm_saver_wait(struct vfm_saver *s, struct vfm_err *err);
void vfm_saver_release(struct vfm_saver *s); /* waits, too; before trainer and device go */

/* Fills the trainer from a checkpoint; every tensor must be there in its shape.  But for histories of fp8: those that
 * are missing begin anew, of longer ones the newest steps are taken, and what a run cannot use it leaves, which the log
 * says. */
int vfm_state_load(struct vfm_trainer *tr, struct vfm_ckpt *c, struct vfm_err *err);
/* Collective: weights alone, from "model" or "ema"; a plain .safetensors file has no parts.  Any layout may have
 * written them.  VFM_EUSAGE names a tensor that is missing, has another shape, or is not one of the model's. */
int vfm_state_load_weights(struct vfm_params *ps, struct vfm_ckpt *c, const char *part, struct vfm_err *err);

#endif
