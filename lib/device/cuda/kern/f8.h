/* f8.h - conversions to 8-bit floats in kernels, with the results of dtype.h: finite values saturate; infinities and
 * NaN become NaN. */
#ifndef VFM_DEVICE_CUDA_KERN_F8_H
#define VFM_DEVICE_CUDA_KERN_F8_H

#include "device/cuda/kern/kern.h"

struct f8e4m3 {
	uint8_t u;
	static const int mantissa = 3, bias = 7;
	static const uint32_t most = 0x43e00000u; /* 448 */
};
struct f8e5m2 {
	uint8_t u;
	static const int mantissa = 2, bias = 15;
	static const uint32_t most = 0x47600000u; /* 57344 */
};

template <class F> __device__ static inline float f8_value(uint8_t v)
{
	uint32_t s = (uint32_t)(v & 0x80) << 24, a = v & 0x7f;
	/* A multiplication adjusts the exponent, so subnormals are right, too. */
	float f = __uint_as_float(a << (23 - F::mantissa)) * __uint_as_float((uint32_t)(254 - F::bias) << 23);

	if (a >= (F::mantissa == 3 ? 0x7fu : 0x7cu))
		f = __uint_as_float(F::mantissa == 2 && a == 0x7c ? 0x7f800000u : 0x7fc00000u);
	return __uint_as_float(__float_as_uint(f) | s);
}
__device__ static inline float to_f(f8e4m3 x)
{
	return f8_value<f8e4m3>(x.u);
}
__device__ static inline float to_f(f8e5m2 x)
{
	return f8_value<f8e5m2>(x.u);
}

/* Returns x * scale, clamped to the range of the conversion; NaN stays. */
template <class F> __device__ static inline float f8_fit(float x, float scale)
{
	const float most = __uint_as_float(F::most);
	float s = fminf(fmaxf(x * scale, -most), most);

	return fabsf(x) <= FLT_MAX ? s : __uint_as_float(0x7fc00000u);
}

/* Converts a value in range, or NaN. */
template <class F> __device__ static inline uint8_t f8_code(float f)
{
	uint32_t u = __float_as_uint(f), a = u & 0x7fffffffu, s = u >> 24 & 0x80;

	if (a > 0x7f800000u)
		return (uint8_t)(s | 0x7f);
	if (a >= (128u - F::bias) << 23) {
		a += (1u << (22 - F::mantissa)) - 1 + (a >> (23 - F::mantissa) & 1);
		return (uint8_t)(s | ((a >> (23 - F::mantissa)) - ((127u - F::bias) << F::mantissa)));
	}
	u = (uint32_t)(127 + 23 + 1 - F::bias - F::mantissa) << 23;
	return (uint8_t)(s | (__float_as_uint(__uint_as_float(a) + __uint_as_float(u)) - u));
}

/* Converts two values; lo goes to the low byte. */
template <class F> __device__ static inline uint32_t f8_pack2(float lo, float hi)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
	uint16_t r;

	if (F::mantissa == 3)
		asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo));
	else
		asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo));
	return r;
#else
	return f8_code<F>(lo) | (uint32_t)f8_code<F>(hi) << 8;
#endif
}

/* As f8_pack2 after f8_fit. */
template <class F> __device__ static inline uint32_t f8_fit2(float lo, float hi, float scale)
{
	return f8_pack2<F>(f8_fit<F>(lo, scale), f8_fit<F>(hi, scale));
}

/* vfm_f8_exponent */
template <class F> __device__ static inline int f8_exponent(float amax)
{
	uint32_t u = __float_as_uint(amax);
	int e;

	if (u == 0 || u >= 0x7f800000u)
		return 0;
	e = (F::mantissa == 3 ? 9 : 16) - ((int)(u >> 23) - 126) - ((u & 0x7fffffu) > 0x600000u);
	return e > 100 ? 100 : e;
}

#endif
