/* state.h - a trainer's state in checkpoints: "model/NAME" (f32 master weights), "optim/m/NAME", "optim/v/NAME",
 * "ema/NAME".  Frozen parameters are only in "model/"; with adapters (spec/model/tuning.h) they are not stored, since
 * they are those of the base model.  With train.fp8=delayed, also "fp8/NAME" [3, steps] f32 for each layer, named after
 * its weight (net/nn/scales.h).
 *
 * Each rank writes and reads the elements that it owns (net/nn/param.h), in any layout; replicas share the writing.
 * All calls except poll are collective over the job, fail on all ranks or none, and use mesh->save, one call at a time.
 */
#ifndef VFM_TRAIN_STEP_STATE_H
#define VFM_TRAIN_STEP_STATE_H

#include "ckpt/ckpt.h"
#include "ckpt/save.h"
#include "data/record/encoder_id.h"
#include "train/step/trainer.h"

/* Asynchronous saves.  start enqueues a copy of the state to pinned memory on a copy stream and returns.  The copy
 * overlaps with the next step up to its weight update.  Once poll or wait finds the copy complete, a thread writes the
 * files.  At most one save is in progress; the pinned memory is reused.  Initialize with {0}. */
struct vfm_saver {
	struct vfm_dev *dev;
	struct vfm_trainer *tr;
	struct vfm_comm *c;
	struct vfm_stream *stream;
	struct vfm_event *ready; /* for vfm_stream_follow: orders the copies after the compute stream */
	struct vfm_event *copied;
	struct vfm_ckpt_writer *w; /* not NULL while the copy is in progress */
	struct vfm_ckpt_job *job;  /* not NULL while the files are being written */
	struct vfm_ckpt_comm comm;
	float *host;
	size_t bytes;
	int rc; /* result of the copy */
	struct vfm_err err;
	double t_start;
	double stall_s, copy_s; /* of the last save: duration of start; time until the copy completed */
};
/* Blocks until the previous save completes and returns its failure, if any.  Fills in rank, size and comm of the spec.
 * During a save the trainer may run steps, but must not be freed or loaded. */
int vfm_saver_start(struct vfm_saver *s, struct vfm_trainer *tr, const struct vfm_ckpt_spec *spec, struct vfm_err *err);
/* Returns the result of a completed save; 0 if a save is in progress or none was started. */
int vfm_saver_poll(struct vfm_saver *s, struct vfm_err *err);
int vfm_saver_wait(struct vfm_saver *s, struct vfm_err *err);
void vfm_saver_release(struct vfm_saver *s); /* also waits; call before freeing trainer and device */

/* Loads the trainer from a checkpoint.  Every tensor must be present with the expected shape, except the fp8 amax
 * histories: missing ones start empty, longer ones are cut to their newest steps, unused ones are ignored, and the log
 * reports missing and unused ones.  VFM_EUSAGE with c->damaged set on some rank: the data are damaged or not finite;
 * the trainer may load another checkpoint. */
int vfm_state_load(struct vfm_trainer *tr, struct vfm_ckpt *c, struct vfm_err *err);
/* Collective.  Loads only the weights, without adapters, from part "model" or "ema"; a plain .safetensors file has no
 * parts.  On VFM_EUSAGE the message names a tensor that is missing, has another shape, is not the model's, or has
 * values that are not finite. */
int vfm_state_load_weights(struct vfm_params *ps, struct vfm_ckpt *c, const char *part, struct vfm_err *err);
/* As vfm_state_load_weights for the parameters that are not frozen, from a checkpoint of a run that trains adapters.
 * The caller must have loaded the base model. */
int vfm_state_load_adapters(struct vfm_params *ps, struct vfm_ckpt *c, const char *part, struct vfm_err *err);
/* The same from adapters of another program (vfm_ckpt_open_adapters); layers, and parts of fused
 * layers, that c lacks keep their values. */
int vfm_state_load_some_adapters(struct vfm_params *ps, struct vfm_ckpt *c, struct vfm_err *err);

/* Local.  Sets frames, height and width of a sample that c was trained with, or zeros if it does not record them. */
void vfm_state_size(int64_t size[3], const struct vfm_ckpt *c);
/* Local.  Reads the encoders of the data that c was trained with.  VFM_EUSAGE: c->state is damaged. */
int vfm_state_encoders(struct vfm_encoder_ids *m, const struct vfm_ckpt *c, struct vfm_err *err);

#endif
