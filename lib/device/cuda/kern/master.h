/* master.h - split master weights in kernels: vfm_master_split and vfm_master_join of spec/model/dtype.h. */
#ifndef VFM_DEVICE_CUDA_KERN_MASTER_H
#define VFM_DEVICE_CUDA_KERN_MASTER_H

#include "device/cuda/kern/kern.h"

/* Returns hi in the upper 16 bits, lo in the lower. */
__device__ static inline uint32_t master_split(float x)
{
	uint32_t u = __float_as_uint(x);

	if ((u & 0x7fffffffu) > 0x7f800000u)
		u = (u & 0xffff0000u) | 0x400000u;
	return ((u + 0x8000u) & 0xffff0000u) | (u & 0xffffu);
}

__device__ static inline float master_join(uint32_t hi, int32_t lo)
{
	return __uint_as_float((hi << 16) + (uint32_t)lo);
}

#endif
