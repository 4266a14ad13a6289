/* emu_dev.h - a device whose ops are our CUDA kernels, run on the host (lib/cuda/emu.h). */
#ifndef TESTS_OPS_EMU_DEV_H
#define TESTS_OPS_EMU_DEV_H

#include "ops/cases.h"

/* The CPU device with the ops that have a kernel replaced; the others (GEMM, attention by cuDNN) are the CPU's own. */
struct vfm_dev *vfm_emu_open(struct vfm_err *err);
void vfm_emu_backwards(bool yes); /* emu.h: the last thread first */
bool vfm_emu_has(enum vfm_op_id op);

#endif
