/* cpu_attn_vec.h - vector functions of attention, and of norms over channels, beyond cpu_vec.h. */
#ifndef VFM_DEVICE_CPU_CPU_ATTN_VEC_H
#define VFM_DEVICE_CPU_CPU_ATTN_VEC_H

#include "device/cpu/cpu_vec.h"

#if defined(__AVX512F__)
enum { NVMAX = 4 };
#define TILE_ROWS(nv) ((nv) == 4 ? 6 : (nv) == 3 ? 8 : 12)
static inline vf v_xor(vf a, uint32_t bits)
{
	return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(a), _mm512_set1_epi32((int)bits)));
}
static inline bool v_any_lt(vf a, vf b)
{
	return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ) != 0;
}
static inline vf v_clamp2(vf x)
{
	return x;
}
static inline vf v_reciprocal_bf16(vf x) /* relative error 6e-5 */
{
	return _mm512_rcp14_ps(x);
}

#elif defined(__AVX2__) && defined(__FMA__)
enum { NVMAX = 2 };
#define TILE_ROWS(nv) ((nv) == 2 ? 6 : 10)
static inline vf v_xor(vf a, uint32_t bits)
{
	return _mm256_xor_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32((int)bits)));
}
static inline bool v_any_lt(vf a, vf b)
{
	return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ)) != 0;
}
static inline vf v_clamp2(vf x)
{
	return v_max(v_set(-126.0f), x); /* NaN in the second operand propagates */
}
static inline vf v_reciprocal_bf16(vf x)
{
	return v_set(1.0f) / x;
}

#else
enum { NVMAX = 2 };
#define TILE_ROWS(nv) ((nv) == 2 ? 4 : 8)
static inline vf v_xor(vf a, uint32_t bits)
{
	int32_t b = (int32_t)bits;

	return (vf)((vmask)a ^ (vmask){b, b, b, b});
}
static inline bool v_any_lt(vf a, vf b)
{
	vmask m = a < b;

	return (m[0] | m[1] | m[2] | m[3]) != 0;
}
static inline vf v_clamp2(vf x)
{
	return v_max(v_set(-126.0f), x);
}
static inline vf v_reciprocal_bf16(vf x)
{
	return v_set(1.0f) / x;
}
#endif

/* Loads the first n of VW elements of an f32 or bf16 row (all if n is larger); zeros beyond. */
static inline vf v_read(const void *p, bool bf16, int n)
{
	return v_get(p, 0, n < VW ? n : VW, bf16);
}
static inline void v_write(void *p, bool bf16, int n, vf v)
{
	v_put(p, 0, v, n < VW ? n : VW, bf16);
}

/* 2^x, relative error 8e-8 (minimax on [-1/2, 1/2]). */
static inline vf v_exp2(vf x)
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
static inline vf v_exp2_bf16(vf x)
{
	x = v_clamp2(x);
	vf n = v_round(x), f = x - n;
	vf p = v_fma(v_set(5.517166909e-2f), f, v_set(2.426111222e-1f));

	p = v_fma(p, f, v_set(6.932609855e-1f));
	p = v_fma(p, f, v_set(9.999280735e-1f));
	return v_scale2(p, n);
}

#endif
