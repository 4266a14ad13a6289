/* parity.h - dumps one training step, for comparison with another implementation (tests/ref/README.md). */
#ifndef VFM_TRAIN_PARITY_H
#define VFM_TRAIN_PARITY_H

#include "dev/dev.h"
#include "train/config.h"

/* Fills all weights with normal random numbers, including the zero-initialized ones.  Runs the trainer's forward and
 * backward on two synthetic packs of mixed grids and text lengths.  Writes to `dir`, created if missing: dump.json,
 * init.safetensors (weights), step.safetensors (input and predictions), grads.safetensors. */
int vfm_parity_dump(const struct vfm_config *c, struct vfm_stream *s, const char *dir, struct vfm_err *err);

#endif
