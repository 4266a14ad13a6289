/* dtype.h - element types: sizes, names ("f32", "bf16"; safetensors has its own), scalar conversions.  Conversions
 * round to nearest, ties to even; NaN stays NaN (quiet).  All functions are pure.
 */
#ifndef VFM_SPEC_MODEL_DTYPE_H
#define VFM_SPEC_MODEL_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/err.h"

enum vfm_dtype { /* files contain the names, never the values */
	VFM_F32,
	VFM_BF16,
	VFM_F16,
	VFM_F64,
	VFM_I32,
	VFM_I64,
	VFM_U8,
	VFM_I8,
	VFM_I16,
	VFM_U16,
	VFM_U32,
	VFM_U64,
	VFM_BOOL,   /* one byte, 0 or 1 */
	VFM_F8E4M3, /* "fn": no infinity, largest 448 */
	VFM_F8E5M2,
	VFM_DTYPE_N
};

size_t vfm_dtype_size(enum vfm_dtype t);         /* bytes an element */
const char *vfm_dtype_name(enum vfm_dtype t);    /* "f32" */
const char *vfm_dtype_st_name(enum vfm_dtype t); /* "F32", as safetensors writes it */
int vfm_dtype_parse(
	const char *s, enum vfm_dtype *out, struct vfm_err *err); /* both spellings, also fp32, fp16 …; VFM_EUSAGE */
int vfm_dtype_is_float(enum vfm_dtype t);

/* Converts n elements.  src and dst do not overlap and need no alignment.  Equal types are copied bit by bit.  Between
 * two float types of at most 32 bits, values pass through float, otherwise through double.  Integers saturate. */
void vfm_dtype_convert(enum vfm_dtype dt, void *dst, enum vfm_dtype st, const void *src, size_t n);
/* Returns the dtype for an enum vfm_npy_type (io/npy.h) other than VFM_NPY_NONE. */
enum vfm_dtype vfm_dtype_of_npy(int npy_type);
void vfm_dtype_to_f64(double *dst, enum vfm_dtype st, const void *src, size_t n);
/* Counts the NaN and infinite values among n elements; 0 for integers.  x needs no alignment. */
int64_t vfm_dtype_count_nonfinite(enum vfm_dtype t, const void *x, size_t n);

static inline float vfm_bf16_to_f32(uint16_t h)
{
	uint32_t u = (uint32_t)h << 16;
	float f;

	memcpy(&f, &u, 4);
	return f;
}

static inline uint16_t vfm_f32_to_bf16(float f)
{
	uint32_t u;

	memcpy(&u, &f, 4);
	if ((u & 0x7fffffffu) > 0x7f800000u)
		return (uint16_t)((u >> 16) | 0x40); /* quiet; never rounds into infinity */
	return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}

/* Split master weights: the bits of x are (hi << 16) + lo exactly, except that a NaN may become another NaN.  hi is x
 * rounded to bf16, ties away from zero, so that the remainder always fits into lo. */
static inline void vfm_master_split(float x, uint16_t *hi, int16_t *lo)
{
	uint32_t u;

	memcpy(&u, &x, 4);
	if ((u & 0x7fffffffu) > 0x7f800000u)
		u = (u & 0xffff0000u) | 0x400000u;
	*hi = (uint16_t)((u + 0x8000u) >> 16);
	*lo = (int16_t)(uint16_t)u;
}

static inline float vfm_master_join(uint16_t hi, int16_t lo)
{
	uint32_t u = ((uint32_t)hi << 16) + (uint32_t)(int32_t)lo;
	float x;

	memcpy(&x, &u, 4);
	return x;
}

static inline float vfm_f16_to_f32(uint16_t h)
{
	uint32_t s = (uint32_t)(h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 0x3ff, u;
	float f;

	if (e == 31) {
		u = s | 0x7f800000u | (m << 13) | (m ? 0x400000u : 0);
	} else if (e) {
		u = s | ((e + 112) << 23) | (m << 13);
	} else { /* zero, subnormal: m * 2^-24 is exact */
		f = (float)m * 0x1p-24f;
		memcpy(&u, &f, 4);
		u |= s;
	}
	memcpy(&f, &u, 4);
	return f;
}

static inline uint16_t vfm_f32_to_f16(float f)
{
	uint32_t u, s, m;
	int e, sh;

	memcpy(&u, &f, 4);
	s = (u >> 16) & 0x8000;
	u &= 0x7fffffffu;
	if (u > 0x7f800000u)
		return (uint16_t)(s | 0x7e00 | ((u >> 13) & 0x3ff));
	if (u >= 0x477ff000u) /* 65520 and more */
		return (uint16_t)(s | 0x7c00);
	if (u >= 0x38800000u) { /* normal: 2^-14 and more */
		u -= 112u << 23;
		return (uint16_t)(s | ((u + 0xfffu + ((u >> 13) & 1)) >> 13));
	}
	e = (int)(u >> 23);
	if (e < 102) /* below half of the smallest subnormal */
		return (uint16_t)s;
	m = (u & 0x7fffffu) | 0x800000u;
	sh = 126 - e; /* 14 … 24 */
	return (uint16_t)(s | ((m + (1u << (sh - 1)) - 1 + ((m >> sh) & 1)) >> sh));
}

/* Converts to an 8-bit float, ties to even.  Finite numbers saturate; infinity and NaN become NaN. */
static inline uint8_t vfm_f32_to_f8(float f, enum vfm_dtype t)
{
	const uint32_t m = t == VFM_F8E4M3 ? 3 : 2, bias = t == VFM_F8E4M3 ? 7 : 15;
	const uint32_t most = t == VFM_F8E4M3 ? 0x43e00000u : 0x47600000u; /* 448, 57344 */
	uint32_t u, a, s;

	memcpy(&u, &f, 4);
	a = u & 0x7fffffffu;
	s = u >> 24 & 0x80;
	if (a >= 0x7f800000u)
		return (uint8_t)(s | 0x7f);
	if (a > most)
		a = most;
	if (a >= (128 - bias) << 23) { /* normal */
		a += (1u << (22 - m)) - 1 + (a >> (23 - m) & 1);
		return (uint8_t)(s | ((a >> (23 - m)) - ((127 - bias) << m)));
	}
	/* the sum's last place is that of the subnormals */
	u = (127 + 23 + 1 - bias - m) << 23;
	memcpy(&f, &a, 4);
	{
		float magic;

		memcpy(&magic, &u, 4);
		f += magic;
	}
	memcpy(&a, &f, 4);
	return (uint8_t)(s | (a - u));
}

static inline float vfm_f8_to_f32(uint8_t v, enum vfm_dtype t)
{
	const uint32_t m = t == VFM_F8E4M3 ? 3 : 2, bias = t == VFM_F8E4M3 ? 7 : 15;
	uint32_t s = (uint32_t)(v & 0x80) << 24, a = v & 0x7f, u = s | ((a << (23 - m)) + ((127 - bias) << 23));
	float f, low = (float)a;

	if (t == VFM_F8E4M3 ? a == 0x7f : a > 0x7c)
		u = s | 0x7fc00000u;
	else if (t == VFM_F8E5M2 && a == 0x7c)
		u = s | 0x7f800000u;
	else if (a < 1u << m) { /* subnormal: exact */
		uint32_t last = (128 - bias - m) << 23;

		memcpy(&f, &last, 4);
		f *= low;
		memcpy(&u, &f, 4);
		u |= s;
	}
	memcpy(&f, &u, 4);
	return f;
}

/* Returns the largest e such that amax * 2^e fits the 8-bit float; 0 if amax is 0.  Scales are powers of two, so
 * scaling is exact and tensors with similar maxima are rounded alike. */
static inline int vfm_f8_exponent(float amax, enum vfm_dtype t)
{
	uint32_t u;
	int e;

	memcpy(&u, &amax, 4);
	if (u == 0 || u >= 0x7f800000u)
		return 0;
	/* amax = m 2^x with m in [1/2, 1); the largest numbers are 7/8 2^9 and 7/8 2^16 */
	e = (t == VFM_F8E4M3 ? 9 : 16) - ((int)(u >> 23) - 126) - ((u & 0x7fffffu) > 0x600000u);
	return e > 100 ? 100 : e;
}

#endif
