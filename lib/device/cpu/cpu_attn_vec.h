/* cpu_attn_vec.h - vector functions of attention beyond cpu_vec.h. */
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

#endif
