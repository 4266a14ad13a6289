/* norm.h - operands of norms, shared by norm.cu and norm_bwd.cu. */
#ifndef VFM_DEVICE_CUDA_KERN_NORM_H
#define VFM_DEVICE_CUDA_KERN_NORM_H

#include "device/cuda/kern/colsum.h"

/* Whether an operand is absent or made of 16-byte vectors. */
static inline bool norm_vectorized(const struct vfm_tensor *t)
{
	return !vfm_has(t) || vec_ok(t, 8);
}

static inline const void *norm_operand(const struct vfm_tensor *t)
{
	return vfm_has(t) ? t->data : nullptr;
}

static inline int64_t sample_stride(const struct vfm_tensor *t)
{
	return vfm_has(t) && t->ndim == 2 ? t->stride[0] : 0;
}

#endif
