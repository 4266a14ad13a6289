/* emu_dev.h - a device whose ops are our CUDA kernels, run on the host (lib/cuda/emu.h). */
#ifndef TESTS_OPS_EMU_DEV_H
#define TESTS_OPS_EMU_DEV_H

#include "ops/cases.h"

/* The CPU device with the ops that have a kernel replaced; the others (GEMM, attention by cuDNN) are the CPU's own. */
struct vfm_dev *vfm_emu_open(struct vfm_err *err);
void vfm_emu_backwards(bool yes); /* emu.h: the last thread first */
bool vfm_emu_has(enum vfm_op_id op);
void vfm_emu_forget_faults(
	void); /* of kernels that met bad indices, which stream_sync and event_sync say as on the device */

/* emu_philox.cu: the words and the normals of `blocks` (at most 1024) blocks, 4 each; -ln((x + 1/2) / 2^32) as normals
 * use it. */
void vfm_emu_philox(const struct vfm_rng *r, uint64_t first, int blocks, uint32_t *out, float *normal);
void vfm_emu_neg_log(const uint32_t *x, int n, float *out);

#endif
