/* emu_dev.h - a device whose ops are our CUDA kernels, run on the host (lib/device/cuda/kern/emu.h). */
#ifndef TESTS_OPS_EMU_DEV_H
#define TESTS_OPS_EMU_DEV_H

#include "device/ops/cases.h"

/* Opens the CPU device with the ops replaced that have a CUDA kernel; others (GEMM, attention by cuDNN) are those of
 * the CPU. */
struct vfm_dev *vfm_emu_open(struct vfm_err *err);
/* The same with a library for matrix products (emu_lt.c): with its epilogues, or with plain products only. */
struct vfm_dev *vfm_emu_open_epilogues(struct vfm_err *err);
struct vfm_dev *vfm_emu_open_plain(struct vfm_err *err);
void vfm_emu_close_libraries(void);
void vfm_emu_backwards(bool yes); /* emu.h: run the last thread first */
/* Called for every launch of a kernel, and for every product of the library; NULL: no one counts. */
extern void (*vfm_emu_launched)(const char *kernel);
bool vfm_emu_has(enum vfm_op_id op);
void vfm_emu_forget_faults(
	void); /* clears the bad indices that kernels reported; stream_sync fails for them as on the device */

/* emu_philox.cu: computes the words and normals of `blocks` (at most 1024) blocks, 4 each, and -ln((x + 1/2) / 2^32) as
 * the kernels do. */
void vfm_emu_philox(const struct vfm_rng *r, uint64_t first, int blocks, uint32_t *out, float *normal);
void vfm_emu_neg_log(const uint32_t *x, int n, float *out);

#endif
