/* kernels.h - the kernels that a CUDA device launches for an op. */
#ifndef VFM_DEVICE_SIM_KERNELS_H
#define VFM_DEVICE_SIM_KERNELS_H

#include "device/ops/ops.h"

/* Returns the number of kernels.  Our own kernels of lib/device/cuda are counted for operands aligned to 16 bytes
 * (tests/ops/test_ops compares with the emulated kernels).  GEMM and attention count the library's kernel and our
 * kernels around it. */
int vfm_sim_kernels(enum vfm_op_id op, const void *args);
/* Returns the pixels per block of conv3d.  CUDA runs an im2col (unless `direct`) and a product for each block. */
int64_t vfm_sim_conv_rows(const struct vfm_conv3d *a);
bool vfm_sim_conv_direct(const struct vfm_conv3d *a);

#endif
