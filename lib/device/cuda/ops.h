/* ops.h - the op table of the device. */
#ifndef VFM_DEVICE_CUDA_OPS_H
#define VFM_DEVICE_CUDA_OPS_H

#include "device/ops/ops.h"

/* ranges: each op is in an NVTX range. */
const struct vfm_ops *vfm_cuda_ops_table(bool ranges);

#endif
