/* parity.h - dumps one training step, for comparison with another implementation (tests/ref/README.md). */
#ifndef VFM_TRAIN_PREDICT_PARITY_H
#define VFM_TRAIN_PREDICT_PARITY_H

#include "device/dev/dev.h"
#include "train/job/config.h"

struct vfm_parity_opts {
	/* a checkpoint or weight files; NULL: normal random numbers, even for parameters that start at zero.  Adapters
	 * are always random. */
	const char *init, *init_part;
	const char *dir; /* created if missing */
};

/* Runs the trainer's forward and backward on two synthetic packs with mixed grids and text lengths.  Writes to `dir`:
 * dump.json, init.safetensors (weights), step.safetensors (input and predictions), grads.safetensors (without frozen
 * parameters).  If train.steps > 0, then trains that many steps on the same packs, and writes trained.json and
 * trained.safetensors. */
int vfm_parity_dump(
	const struct vfm_config *c, const struct vfm_parity_opts *o, struct vfm_stream *s, struct vfm_err *err);

#endif
