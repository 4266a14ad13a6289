/* parity.h - one training step written down, for another program to compute again (tests/ref/README.md). */
#ifndef VFM_TRAIN_PARITY_H
#define VFM_TRAIN_PARITY_H

#include "dev/dev.h"
#include "train/config.h"

/* Fills all weights, also those that training starts at zero, with normal numbers, makes two synthetic packs of mixed
 * grids and text lengths, and runs the trainer's own forward and backward on them.  Writes to `dir`, which is made when
 * missing: dump.json, init.safetensors (weights), step.safetensors (input and predictions), grads.safetensors. */
int vfm_parity_dump(const struct vfm_config *c, struct vfm_stream *s, const char *dir, struct vfm_err *err);

#endif
