/* cpu_vec.h - a vector of VW floats, so that one kernel source serves every instruction set.  Include only in files
 * compiled for one instruction set.  `_n` variants access the first n <= VW elements and read zeros beyond.
 */
#ifndef VFM_DEVICE_CPU_CPU_VEC_H
#define VFM_DEVICE_CPU_CPU_VEC_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "spec/model/dtype.h"

#define INLINE static inline __attribute__((always_inline, unused))

#if defined(__AVX512F__)
#include <immintrin.h>
enum { VW = 16 };
typedef __m512 vf;
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
enum { VW = 8 };
typedef __m256 vf;
#else /* any CPU: four floats of GCC vector extensions */
enum { VW = 4 };
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vmask __attribute__((vector_size(16)));
#endif

INLINE vf v_load(const float *p)
{
	vf x;

	memcpy(&x, p, sizeof(x));
	return x;
}
INLINE void v_store(float *p, vf x)
{
	memcpy(p, &x, sizeof(x));
}

#if defined(__AVX512F__)
INLINE vf v_set(float x)
{
	return _mm512_set1_ps(x);
}
INLINE __mmask16 v_mask(int64_t n)
{
	return (__mmask16)((1u << n) - 1);
}
INLINE vf v_load_n(const float *p, int64_t n)
{
	return _mm512_maskz_loadu_ps(v_mask(n), p);
}
INLINE void v_store_n(float *p, vf x, int64_t n)
{
	_mm512_mask_storeu_ps(p, v_mask(n), x);
}
INLINE vf v_from_bf(__m256i h)
{
	return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
INLINE __m256i v_round_bf(vf x)
{
	__m512i u = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
	__m512i r = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd), 16);
	__mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);

	return _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(nan, r, _mm512_set1_epi32(0x7fc0)));
}
INLINE __m256i v_to_bf(vf x)
{
#ifdef __AVX512BF16__
	return (__m256i)_mm512_cvtneps_pbh(x); /* subnormal values become 0 */
#else
	return v_round_bf(x);
#endif
}
INLINE vf v_loadb(const uint16_t *p)
{
	return v_from_bf(_mm256_loadu_si256((const __m256i *)p));
}
INLINE vf v_loadh(const uint16_t *p) /* float16 */
{
	return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
INLINE vf v_loadb_n(const uint16_t *p, int64_t n)
{
	return v_from_bf(_mm256_maskz_loadu_epi16(v_mask(n), p));
}
INLINE void v_storeb(uint16_t *p, vf x)
{
	_mm256_storeu_si256((__m256i *)p, v_to_bf(x));
}
INLINE void v_storeb_exact(uint16_t *p, vf x) /* also subnormal values */
{
	_mm256_storeu_si256((__m256i *)p, v_round_bf(x));
}
INLINE vf v_load_i8(const int8_t *p)
{
	return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
INLINE void v_storeb_n(uint16_t *p, vf x, int64_t n)
{
	_mm256_mask_storeu_epi16(p, v_mask(n), v_to_bf(x));
}
INLINE vf v_fma(vf a, vf b, vf c)
{
	return _mm512_fmadd_ps(a, b, c);
}
INLINE vf v_sqrt(vf x)
{
	return _mm512_sqrt_ps(x);
}
INLINE vf v_max(vf a, vf b)
{
	return _mm512_max_ps(a, b);
}
INLINE vf v_min(vf a, vf b)
{
	return _mm512_min_ps(a, b);
}
INLINE float v_sum(vf x)
{
	return _mm512_reduce_add_ps(x);
}
INLINE vf v_round(vf x)
{
	return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
INLINE vf v_scale2(vf x, vf n) /* x * 2^n, n an integer */
{
	return _mm512_scalef_ps(x, n);
}
INLINE vf v_dup_even(vf x)
{
	return _mm512_moveldup_ps(x);
}
INLINE vf v_dup_odd(vf x)
{
	return _mm512_movehdup_ps(x);
}
INLINE vf v_swap(vf x) /* swaps neighbours */
{
	return _mm512_permute_ps(x, 0xb1);
}
INLINE vf v_addsub(vf a, vf b, vf c) /* a b - c in even elements, a b + c in odd ones */
{
	return _mm512_fmaddsub_ps(a, b, c);
}
INLINE vf v_subadd(vf a, vf b, vf c)
{
	return _mm512_fmsubadd_ps(a, b, c);
}
INLINE vf v_lookup(const float t[16], const uint8_t *index) /* t[index[0 .. VW - 1]] */
{
	return _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)index)), v_load(t));
}
INLINE void v_transpose(vf r[VW])
{
	__m512d t[16];
	vf u[16];

	for (int i = 0; i < 16; i += 2) {
		t[i] = _mm512_castps_pd(_mm512_unpacklo_ps(r[i], r[i + 1]));
		t[i + 1] = _mm512_castps_pd(_mm512_unpackhi_ps(r[i], r[i + 1]));
	}
	for (int i = 0; i < 16; i += 4) {
		u[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(t[i], t[i + 2]));
		u[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(t[i], t[i + 2]));
		u[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(t[i + 1], t[i + 3]));
		u[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(t[i + 1], t[i + 3]));
	}
	for (int i = 0; i < 4; i++) {
		vf a = _mm512_shuffle_f32x4(u[i], u[4 + i], 0x88), b = _mm512_shuffle_f32x4(u[i], u[4 + i], 0xdd);
		vf c = _mm512_shuffle_f32x4(u[8 + i], u[12 + i], 0x88);
		vf e = _mm512_shuffle_f32x4(u[8 + i], u[12 + i], 0xdd);

		r[i] = _mm512_shuffle_f32x4(a, c, 0x88);
		r[8 + i] = _mm512_shuffle_f32x4(a, c, 0xdd);
		r[4 + i] = _mm512_shuffle_f32x4(b, e, 0x88);
		r[12 + i] = _mm512_shuffle_f32x4(b, e, 0xdd);
	}
}
INLINE vf v_clamp2(vf x)
{
	return x;
}
INLINE vf v_reciprocal_bf16(vf x) /* relative error 6e-5 */
{
	return _mm512_rcp14_ps(x);
}

#elif defined(__AVX2__) && defined(__FMA__)
INLINE vf v_set(float x)
{
	return _mm256_set1_ps(x);
}
INLINE vf v_loadb(const uint16_t *p)
{
	return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
INLINE vf v_loadh(const uint16_t *p) /* float16 */
{
	return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
INLINE void v_storeb(uint16_t *p, vf x)
{
	__m256i u = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
	__m256i r = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd), 16);
	__m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));

	r = _mm256_blendv_epi8(r, _mm256_set1_epi32(0x7fc0), nan);
	r = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08);
	_mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(r));
}
INLINE vf v_load_i8(const int8_t *p)
{
	return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
INLINE vf v_fma(vf a, vf b, vf c)
{
	return _mm256_fmadd_ps(a, b, c);
}
INLINE vf v_sqrt(vf x)
{
	return _mm256_sqrt_ps(x);
}
INLINE vf v_max(vf a, vf b)
{
	return _mm256_max_ps(a, b);
}
INLINE vf v_min(vf a, vf b)
{
	return _mm256_min_ps(a, b);
}
INLINE float v_sum(vf x)
{
	__m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

	s = _mm_add_ps(s, _mm_movehl_ps(s, s));
	return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
INLINE vf v_round(vf x)
{
	return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
INLINE vf v_scale2(vf x, vf n)
{
	__m256i e = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);

	return x * _mm256_castsi256_ps(e);
}
INLINE vf v_dup_even(vf x)
{
	return _mm256_moveldup_ps(x);
}
INLINE vf v_dup_odd(vf x)
{
	return _mm256_movehdup_ps(x);
}
INLINE vf v_swap(vf x)
{
	return _mm256_permute_ps(x, 0xb1);
}
INLINE vf v_addsub(vf a, vf b, vf c)
{
	return _mm256_fmaddsub_ps(a, b, c);
}
INLINE vf v_subadd(vf a, vf b, vf c)
{
	return _mm256_fmsubadd_ps(a, b, c);
}
INLINE vf v_lookup(const float t[16], const uint8_t *index) /* t[index[0 .. VW - 1]] */
{
	__m256i i = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)index)), high = _mm256_slli_epi32(i, 28);

	return _mm256_blendv_ps(_mm256_permutevar8x32_ps(v_load(t), i), _mm256_permutevar8x32_ps(v_load(t + 8), i),
		_mm256_castsi256_ps(high));
}
INLINE void v_transpose(vf r[VW])
{
	vf t[8], u[8];

	for (int i = 0; i < 8; i += 2) {
		t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
		t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
	}
	for (int i = 0; i < 8; i += 4) {
		u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
		u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
		u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
		u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
	}
	for (int i = 0; i < 4; i++) {
		r[i] = _mm256_permute2f128_ps(u[i], u[4 + i], 0x20);
		r[4 + i] = _mm256_permute2f128_ps(u[i], u[4 + i], 0x31);
	}
}

#else
INLINE vf v_set(float x)
{
	return (vf){x, x, x, x};
}
INLINE vf v_loadb(const uint16_t *p)
{
	vf x;

	for (int i = 0; i < VW; i++)
		x[i] = vfm_bf16_to_f32(p[i]);
	return x;
}
INLINE void v_storeb(uint16_t *p, vf x)
{
	for (int i = 0; i < VW; i++)
		p[i] = vfm_f32_to_bf16(x[i]);
}
INLINE vf v_load_i8(const int8_t *p)
{
	return (vf){p[0], p[1], p[2], p[3]};
}
INLINE vf v_loadh(const uint16_t *p) /* float16 */
{
	return (vf){vfm_f16_to_f32(p[0]), vfm_f16_to_f32(p[1]), vfm_f16_to_f32(p[2]), vfm_f16_to_f32(p[3])};
}
INLINE vf v_fma(vf a, vf b, vf c)
{
	return a * b + c;
}
INLINE vf v_sqrt(vf x)
{
	return (vf){sqrtf(x[0]), sqrtf(x[1]), sqrtf(x[2]), sqrtf(x[3])};
}
INLINE vf v_max(vf a, vf b)
{
	vmask m = a > b;

	return (vf)(((vmask)a & m) | ((vmask)b & ~m));
}
INLINE vf v_min(vf a, vf b)
{
	return -v_max(-a, -b);
}
INLINE float v_sum(vf x)
{
	return (x[0] + x[2]) + (x[1] + x[3]);
}
INLINE vf v_round(vf x)
{
	return (vf){nearbyintf(x[0]), nearbyintf(x[1]), nearbyintf(x[2]), nearbyintf(x[3])};
}
INLINE vf v_scale2(vf x, vf n)
{
	for (int i = 0; i < VW; i++)
		x[i] = n[i] == n[i] ? ldexpf(x[i], (int)n[i]) : n[i];
	return x;
}
INLINE vf v_dup_even(vf x)
{
	return (vf){x[0], x[0], x[2], x[2]};
}
INLINE vf v_dup_odd(vf x)
{
	return (vf){x[1], x[1], x[3], x[3]};
}
INLINE vf v_swap(vf x)
{
	return (vf){x[1], x[0], x[3], x[2]};
}
INLINE vf v_addsub(vf a, vf b, vf c)
{
	return a * b + (vf){-c[0], c[1], -c[2], c[3]};
}
INLINE vf v_subadd(vf a, vf b, vf c)
{
	return a * b + (vf){c[0], -c[1], c[2], -c[3]};
}
INLINE vf v_lookup(const float t[16], const uint8_t *index) /* t[index[0 .. VW - 1]] */
{
	return (vf){t[index[0]], t[index[1]], t[index[2]], t[index[3]]};
}
INLINE void v_transpose(vf r[VW])
{
	vf t[VW];

	for (int i = 0; i < VW; i++)
		for (int j = 0; j < VW; j++)
			t[i][j] = r[j][i];
	memcpy(r, t, sizeof t);
}
#endif

#ifndef __AVX512F__ /* which has masks */
INLINE void v_storeb_exact(uint16_t *p, vf x)
{
	v_storeb(p, x);
}
INLINE vf v_load_n(const float *p, int64_t n)
{
	vf x = {0};

	memcpy(&x, p, (size_t)n * sizeof(*p));
	return x;
}
INLINE void v_store_n(float *p, vf x, int64_t n)
{
	memcpy(p, &x, (size_t)n * sizeof(*p));
}
INLINE vf v_loadb_n(const uint16_t *p, int64_t n)
{
	uint16_t t[VW] = {0};

	memcpy(t, p, (size_t)n * sizeof(*p));
	return v_loadb(t);
}
INLINE void v_storeb_n(uint16_t *p, vf x, int64_t n)
{
	uint16_t t[VW];

	v_storeb(t, x);
	memcpy(p, t, (size_t)n * sizeof(*p));
}
INLINE vf v_clamp2(vf x)
{
	return v_max(v_set(-126.0f), x);
}
INLINE vf v_reciprocal_bf16(vf x)
{
	return v_set(1.0f) / x;
}
#endif

/* Accesses n elements of an f32 (bf false) or bf16 array from element i, as VW floats. */
INLINE vf v_get(const void *p, int64_t i, int64_t n, bool bf)
{
	if (bf)
		return n == VW ? v_loadb((const uint16_t *)p + i) : v_loadb_n((const uint16_t *)p + i, n);
	return n == VW ? v_load((const float *)p + i) : v_load_n((const float *)p + i, n);
}
INLINE void v_put(void *p, int64_t i, vf x, int64_t n, bool bf)
{
	if (bf && n == VW)
		v_storeb((uint16_t *)p + i, x);
	else if (bf)
		v_storeb_n((uint16_t *)p + i, x, n);
	else if (n == VW)
		v_store((float *)p + i, x);
	else
		v_store_n((float *)p + i, x, n);
}
/* Widens n elements of f16. */
INLINE void v_widen_f16(float *y, const uint16_t *x, int64_t n)
{
	uint16_t rest[VW] = {0};
	int64_t i = 0;

	for (; i + VW <= n; i += VW)
		v_store(y + i, v_loadh(x + i));
	memcpy(rest, x + i, (size_t)(n - i) * sizeof(*x));
	v_store_n(y + i, v_loadh(rest), n - i);
}
/* Returns the first n elements, then zeros. */
INLINE vf v_first(vf x, int64_t n)
{
	float t[VW];

	v_store_n(t, x, n);
	return v_load_n(t, n);
}
/* Loops over [i0, i1) in steps of VW; n is VW except in the last step. */
#define V_FOR(i, n, i0, i1) for (int64_t i = (i0), n; i < (i1) && (n = (i1)-i < VW ? (i1)-i : VW, true); i += VW)

/* e^x with an error of about 1 ulp; 0 below -87.3, at most e^88. */
INLINE vf v_exp(vf x)
{
	vf n, r, p;

	x = v_min(v_set(88.0f), v_max(v_set(-87.33f), x)); /* NaN in the second operand propagates */
	n = v_round(x * v_set(1.44269504f));
	r = v_fma(n, v_set(-0.693359375f), x);
	r = v_fma(n, v_set(2.12194440e-4f), r);
	p = v_fma(v_set(1.9875691500e-4f), r, v_set(1.3981999507e-3f));
	p = v_fma(p, r, v_set(8.3334519073e-3f));
	p = v_fma(p, r, v_set(4.1665795894e-2f));
	p = v_fma(p, r, v_set(1.6666665459e-1f));
	p = v_fma(p, r, v_set(5.0000001201e-1f));
	p = v_fma(p, r * r, r + v_set(1.0f));
	return v_scale2(p, n);
}

/* 2^x, relative error 8e-8 (minimax on [-1/2, 1/2]). */
INLINE vf v_exp2(vf x)
{
	x = v_clamp2(x);
	vf n = v_round(x), f = x - n;
	vf p = v_fma(v_set(1.327647217e-3f), f, v_set(9.675541331e-3f));

	p = v_fma(p, f, v_set(5.550713273e-2f));
	p = v_fma(p, f, v_set(2.402211972e-1f));
	p = v_fma(p, f, v_set(6.931469671e-1f));
	p = v_fma(p, f, v_set(1.000000072f));
	return v_scale2(p, n);
}

/* 2^x, relative error 8e-5: a fiftieth of the rounding error of bf16. */
INLINE vf v_exp2_bf16(vf x)
{
	x = v_clamp2(x);
	vf n = v_round(x), f = x - n;
	vf p = v_fma(v_set(5.517166909e-2f), f, v_set(2.426111222e-1f));

	p = v_fma(p, f, v_set(6.932609855e-1f));
	p = v_fma(p, f, v_set(9.999280735e-1f));
	return v_scale2(p, n);
}

INLINE vf v_sigmoid(vf x)
{
	return v_set(1.0f) / (v_set(1.0f) + v_exp(-x));
}
/* The same for a result in bf16: the relative error is 6e-5, a thirtieth of the rounding error of bf16. */
INLINE vf v_sigmoid_bf16(vf x)
{
	/* NaN in the second operand propagates */
	return v_reciprocal_bf16(v_set(1.0f) + v_exp2(v_min(v_set(126.0f), x * v_set(-1.44269504f))));
}

/* gelu_tanh(x) = x sigmoid(2 u), u = sqrt(2/pi) (x + 0.044715 x^3): Hendrycks & Gimpel, 2016.
 * bf: for a result in bf16. */
INLINE vf v_gelu(vf x, bool bf)
{
	vf u2 = x * v_fma(x * x, v_set(0.07135481627f), v_set(1.5957691216f));

	return x * (bf ? v_sigmoid_bf16(u2) : v_sigmoid(u2));
}
INLINE vf v_dgelu(vf x)
{
	vf x2 = x * x, s = v_sigmoid(x * v_fma(x2, v_set(0.07135481627f), v_set(1.5957691216f)));
	vf du = v_fma(x2, v_set(0.21406444881f), v_set(1.5957691216f));

	return v_fma(x * s * (v_set(1.0f) - s), du, s);
}
/* gelu(x) = x Phi(x), one element at a time, because no block of a model computes it. */
INLINE vf v_gelu_erf(vf x)
{
	for (size_t i = 0; i < sizeof(x) / sizeof(float); i++)
		x[i] = 0.5f * x[i] * (1.0f + erff(0.70710678f * x[i]));
	return x;
}
INLINE vf v_dgelu_erf(vf x)
{
	for (size_t i = 0; i < sizeof(x) / sizeof(float); i++)
		x[i] = 0.5f * (1.0f + erff(0.70710678f * x[i])) + 0.39894228f * x[i] * expf(-0.5f * x[i] * x[i]);
	return x;
}
INLINE vf v_silu(vf x, bool bf)
{
	return x * (bf ? v_sigmoid_bf16(x) : v_sigmoid(x));
}
INLINE vf v_dsilu(vf x)
{
	vf s = v_sigmoid(x);

	return s * v_fma(x, v_set(1.0f) - s, v_set(1.0f));
}

#endif
