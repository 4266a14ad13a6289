/* conv_dnn.h - convolutions by cuDNN. */
#ifndef VFM_DEVICE_CUDA_CONV_DNN_H
#define VFM_DEVICE_CUDA_CONV_DNN_H

#include "device/cuda/cuda_dev.h"

/* Called as vfm_cuda_gemm_free (gemm_lt.h). */
void vfm_cuda_conv_free(struct vfm_cuda_conv *c) __attribute__((weak));

#endif
