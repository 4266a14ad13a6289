/* elem.cu - element by element: activations. */
#include "cuda/kern.h"

/* tanh-GELU and SiLU as the CPU device computes them (Hendrycks & Gimpel, arXiv 1606.08415, and x sigmoid(x)). */
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

template <int N, class X, class DY, class Y>
__global__ static void unary(enum vfm_act act, const X *x, const DY *dy, Y *y, int64_t n)
{
	for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N; i < n; i += (int64_t)gridDim.x * blockDim.x * N) {
		vec<N> v = ld_vec<N>(x + i);

		if (dy) {
			vec<N> g = ld_vec<N>(dy + i);

#pragma unroll
			for (int k = 0; k < N; k++)
				v.v[k] = g.v[k] * dact_of(act, v.v[k]);
		} else {
#pragma unroll
			for (int k = 0; k < N; k++)
				v.v[k] = act_of(act, v.v[k]);
		}
		st_vec<N>(y + i, v);
	}
}

template <int N, class X, class DY, class Y> static void launch_unary(struct vfm_stream *s, const struct vfm_unary *a, int64_t n)
{
	int64_t blocks = ceil_div(n / N, 256), most = (int64_t)vfm_cuda_sms(s) * 8;

	VFM_LAUNCH(s, (unary<N, X, DY, Y>), blocks < most ? blocks : most, 256, 0, a->act, (const X *)a->x.data, (const DY *)a->dy.data,
		(Y *)a->y.data, n);
}

template <int N> static void unary_types(struct vfm_stream *s, const struct vfm_unary *a, int64_t n)
{
	VFM_ACT_TYPE(a->x.dtype, X, VFM_ACT_TYPE(vfm_has(&a->dy) ? a->dy.dtype : a->x.dtype, DY,
		VFM_ACT_TYPE(a->y.dtype, Y, (launch_unary<N, X, DY, Y>(s, a, n)))));
}

extern "C" int vfm_cuda_unary(struct vfm_stream *s, const struct vfm_unary *a, struct vfm_err *err)
{
	int64_t n = vfm_numel(&a->x);
	bool wide = n % 8 == 0 && ((uintptr_t)a->x.data | (uintptr_t)a->y.data | (uintptr_t)a->dy.data) % 16 == 0;

	if (n == 0)
		return 0;
	if (wide)
		unary_types<8>(s, a, n);
	else
		unary_types<1>(s, a, n);
	return vfm_cuda_launched(s, "unary", err);
}
