/* conv.h - convolutions without cuDNN.  C and C++. */
#ifndef VFM_DEVICE_CUDA_KERN_CONV_H
#define VFM_DEVICE_CUDA_KERN_CONV_H

#include "device/cuda/cuda_impl.h"

#ifdef __cplusplus
extern "C" {
#endif

/* im2col and products of cuBLASLt (conv.cu): all operands that the op allows. */
int vfm_cuda_conv3d_im2col(struct vfm_stream *s, const struct vfm_conv3d *a, struct vfm_err *err);

#ifdef __cplusplus
}
#endif
#endif
