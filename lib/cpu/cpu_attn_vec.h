/* cpu_attn_vec.h - vectors of f32 for the attention kernels: one interface, the widest set that the
 * file is compiled for.  bf16 is converted at loads and stores. */
#ifndef VFM_CPU_CPU_ATTN_VEC_H
#define VFM_CPU_CPU_ATTN_VEC_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "spec/dtype.h"

#if defined(__AVX512F__)
#include <immintrin.h>
enum { VL = 16, NVMAX = 4 };
#define TILE_ROWS(nv) ((nv) == 4 ? 6 : (nv) == 3 ? 8 : 12)
typedef __m512 vf;
static inline vf v_set1(float x) { return _mm512_set1_ps(x); }
static inline vf v_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void v_store(float *p, vf v) { _mm512_storeu_ps(p, v); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline float v_sum(vf a) { return _mm512_reduce_add_ps(a); }
static inline vf v_xor(vf a, uint32_t bits)
{
	return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(a), _mm512_set1_epi32((int)bits)));
}
static inline bool v_any_lt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ) != 0; }
static inline vf v_round(vf x) { return _mm512_roundscale_ps(x, 0); }
static inline vf v_scale2(vf p, vf n) { return _mm512_scalef_ps(p, n); }
static inline vf v_clamp2(vf x) { return x; }

static inline __mmask16 v_mask(int n) { return (__mmask16)((1u << (n < 16 ? n : 16)) - 1); }
/* The first n of VL elements; the others are 0. */
static inline vf v_load_n(const void *p, bool bf16, int n)
{
	if (bf16)
		return _mm512_castsi512_ps(_mm512_slli_epi32(
			_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(v_mask(n), p)), 16));
	return _mm512_maskz_loadu_ps(v_mask(n), p);
}
static inline vf v_load_words(const void *p, int n) { return _mm512_maskz_loadu_ps(v_mask(n), p); }
static inline void v_store_n(void *p, bool bf16, int n, vf v)
{
	if (!bf16) {
		_mm512_mask_storeu_ps(p, v_mask(n), v);
		return;
	}
	/* round to nearest even; a NaN keeps its upper half, made quiet */
	__m512i u = _mm512_castps_si512(v), one = _mm512_set1_epi32(1);
	__m512i r = _mm512_add_epi32(u, _mm512_add_epi32(_mm512_set1_epi32(0x7fff),
		_mm512_and_si512(_mm512_srli_epi32(u, 16), one)));
	__mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);

	r = _mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x400000));
	_mm256_mask_storeu_epi16(p, v_mask(n), _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16)));
}

static inline void v_transpose(vf r[VL])
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

#elif defined(__AVX2__)
#include <immintrin.h>
enum { VL = 8, NVMAX = 2 };
#define TILE_ROWS(nv) ((nv) == 2 ? 6 : 10)
typedef __m256 vf;
static inline vf v_set1(float x) { return _mm256_set1_ps(x); }
static inline vf v_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void v_store(float *p, vf v) { _mm256_storeu_ps(p, v); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf v_max(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline float v_sum(vf a)
{
	__m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

	s = _mm_add_ps(s, _mm_movehl_ps(s, s));
	return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
static inline vf v_xor(vf a, uint32_t bits)
{
	return _mm256_xor_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32((int)bits)));
}
static inline bool v_any_lt(vf a, vf b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ)) != 0; }
static inline vf v_round(vf x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vf v_scale2(vf p, vf n)
{
	__m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));

	return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(e, 23)));
}
static inline vf v_clamp2(vf x) { return _mm256_max_ps(_mm256_set1_ps(-126.0f), x); } /* x second: NaN stays */

static inline vf v_load_n(const void *p, bool bf16, int n)
{
	(void)n; /* head dims are multiples of 8 */
	if (bf16)
		return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
	return _mm256_loadu_ps(p);
}
static inline void v_store_n(void *p, bool bf16, int n, vf v)
{
	(void)n;
	if (!bf16) {
		_mm256_storeu_ps(p, v);
		return;
	}
	__m256i u = _mm256_castps_si256(v), nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
	__m256i r = _mm256_add_epi32(u, _mm256_add_epi32(_mm256_set1_epi32(0x7fff),
		_mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1))));

	r = _mm256_blendv_epi8(r, _mm256_or_si256(u, _mm256_set1_epi32(0x400000)), nan);
	r = _mm256_srli_epi32(r, 16);
	r = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08);
	_mm_storeu_si128(p, _mm256_castsi256_si128(r));
}

static inline void v_transpose(vf r[VL])
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

#else /* any CPU: GCC's and Clang's vector extension */
#include <math.h>
enum { VL = 4, NVMAX = 2 };
#define TILE_ROWS(nv) ((nv) == 2 ? 4 : 8)
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
static inline vf v_set1(float x) { return (vf){x, x, x, x}; }
static inline vf v_load(const float *p)
{
	vf v;

	memcpy(&v, p, sizeof v);
	return v;
}
static inline void v_store(float *p, vf v) { memcpy(p, &v, sizeof v); }
static inline vf v_fma(vf a, vf b, vf c) { return a * b + c; }
static inline vf v_max(vf a, vf b)
{
	vi m = a > b;

	return (vf)(((vi)a & m) | ((vi)b & ~m));
}
static inline float v_sum(vf a) { return (a[0] + a[2]) + (a[1] + a[3]); }
static inline vf v_xor(vf a, uint32_t bits)
{
	int32_t b = (int32_t)bits;

	return (vf)((vi)a ^ (vi){b, b, b, b});
}
static inline bool v_any_lt(vf a, vf b)
{
	vi m = a < b;

	return (m[0] | m[1] | m[2] | m[3]) != 0;
}
static inline vf v_round(vf x)
{
	for (int i = 0; i < VL; i++)
		x[i] = rintf(x[i]);
	return x;
}
static inline vf v_scale2(vf p, vf n)
{
	for (int i = 0; i < VL; i++)
		p[i] = n[i] == n[i] ? ldexpf(p[i], (int)n[i]) : n[i];
	return p;
}
static inline vf v_clamp2(vf x) { return v_max(v_set1(-126.0f), x); }

static inline vf v_load_n(const void *p, bool bf16, int n)
{
	const uint16_t *h = p;

	(void)n;
	if (!bf16)
		return v_load(p);
	return (vf){vfm_bf16_to_f32(h[0]), vfm_bf16_to_f32(h[1]), vfm_bf16_to_f32(h[2]), vfm_bf16_to_f32(h[3])};
}
static inline void v_store_n(void *p, bool bf16, int n, vf v)
{
	uint16_t *h = p;

	(void)n;
	if (!bf16)
		v_store(p, v);
	else
		for (int i = 0; i < VL; i++)
			h[i] = vfm_f32_to_bf16(v[i]);
}
static inline void v_transpose(vf r[VL])
{
	vf t[VL];

	for (int i = 0; i < VL; i++)
		for (int j = 0; j < VL; j++)
			t[i][j] = r[j][i];
	memcpy(r, t, sizeof t);
}
#endif

/* 2^x, relative error 8e-8 (minimax on [-1/2, 1/2]). */
static inline vf v_exp2(vf x)
{
	x = v_clamp2(x);
	vf n = v_round(x), f = x - n;
	vf p = v_fma(v_set1(1.327647217e-3f), f, v_set1(9.675541331e-3f));

	p = v_fma(p, f, v_set1(5.550713273e-2f));
	p = v_fma(p, f, v_set1(2.402211972e-1f));
	p = v_fma(p, f, v_set1(6.931469671e-1f));
	p = v_fma(p, f, v_set1(1.000000072f));
	return v_scale2(p, n);
}

/* 2^x, relative error 8e-5: a fiftieth of a bf16 rounding. */
static inline vf v_exp2_bf16(vf x)
{
	x = v_clamp2(x);
	vf n = v_round(x), f = x - n;
	vf p = v_fma(v_set1(5.517166909e-2f), f, v_set1(2.426111222e-1f));

	p = v_fma(p, f, v_set1(6.932609855e-1f));
	p = v_fma(p, f, v_set1(9.999280735e-1f));
	return v_scale2(p, n);
}

#endif
