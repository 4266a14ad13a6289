/* act.h - activations with fast exponentials. */
#ifndef VFM_DEVICE_CUDA_KERN_ACT_H
#define VFM_DEVICE_CUDA_KERN_ACT_H

#include "device/cuda/kern/kern.h"

__device__ static inline float sigmoid(float x)
{
	return __fdividef(1.0f, 1.0f + __expf(-x));
}
/* SiLU x sigmoid(x), GELU x Phi(x), and GELU by tanh (Hendrycks & Gimpel, arXiv 1606.08415):  (1 + tanh u) / 2 =
 * sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).  NaN propagates. */
__device__ static inline float act_of(enum vfm_act act, float x)
{
	if (act == VFM_ACT_SILU)
		return x * sigmoid(x);
	if (act == VFM_ACT_GELU_TANH)
		return x * sigmoid(1.5957691216f * x * (1.0f + 0.044715f * x * x));
	if (act == VFM_ACT_GELU)
		return 0.5f * x * (1.0f + erff(0.70710678f * x));
	return x;
}
__device__ static inline float dact_of(enum vfm_act act, float x)
{
	if (act == VFM_ACT_SILU) {
		float s = sigmoid(x);

		return s * (1.0f + x * (1.0f - s));
	}
	if (act == VFM_ACT_GELU_TANH) {
		float q = 0.044715f * x * x, s = sigmoid(1.5957691216f * x * (1.0f + q));

		return s + x * s * (1.0f - s) * 1.5957691216f * (1.0f + 3.0f * q);
	}
	if (act == VFM_ACT_GELU)
		return 0.5f * (1.0f + erff(0.70710678f * x)) + 0.39894228f * x * __expf(-0.5f * x * x);
	return 1.0f;
}

#endif
