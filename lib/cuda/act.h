/* act.h - activations in kernels: tanh-GELU and SiLU as the CPU device computes them (Hendrycks & Gimpel, arXiv 1606.08415, and x sigmoid(x)). */
#ifndef VFM_CUDA_ACT_H
#define VFM_CUDA_ACT_H

#include "cuda/kern.h"

__device__ static inline float act_of(enum vfm_act act, float x)
{
	if (act == VFM_ACT_SILU)
		return x / (1.0f + __expf(-x));
	if (act == VFM_ACT_GELU_TANH)
		return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
	return x;
}

__device__ static inline float dact_of(enum vfm_act act, float x)
{
	if (act == VFM_ACT_SILU) {
		float s = 1.0f / (1.0f + __expf(-x));

		return s * (1.0f + x * (1.0f - s));
	}
	if (act == VFM_ACT_GELU_TANH) {
		float u = 0.7978845608f * (x + 0.044715f * x * x * x), t = tanhf(u);

		return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.7978845608f * (1.0f + 3.0f * 0.044715f * x * x);
	}
	return 1.0f;
}

#endif
