/* dtype.c - conversions between float formats, one element or eight at a time. */
#include "spec/model/dtype.h"

#include <math.h>
#include <stdbool.h>
#include <strings.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "base/finite.h"
#include "io/npy.h"

static const struct {
	const char *name, *st, *alias;
	uint8_t size;
	bool is_float;
} types[VFM_DTYPE_N] = {
	[VFM_F32] = {"f32", "F32", "fp32", 4, true},
	[VFM_BF16] = {"bf16", "BF16", NULL, 2, true},
	[VFM_F16] = {"f16", "F16", "fp16", 2, true},
	[VFM_F64] = {"f64", "F64", "fp64", 8, true},
	[VFM_I32] = {"i32", "I32", NULL, 4, false},
	[VFM_I64] = {"i64", "I64", NULL, 8, false},
	[VFM_U8] = {"u8", "U8", NULL, 1, false},
	[VFM_I8] = {"i8", "I8", NULL, 1, false},
	[VFM_I16] = {"i16", "I16", NULL, 2, false},
	[VFM_U16] = {"u16", "U16", NULL, 2, false},
	[VFM_U32] = {"u32", "U32", NULL, 4, false},
	[VFM_U64] = {"u64", "U64", NULL, 8, false},
	[VFM_BOOL] = {"bool", "BOOL", NULL, 1, false},
	[VFM_F8E4M3] = {"f8_e4m3", "F8_E4M3", NULL, 1, true},
	[VFM_F8E5M2] = {"f8_e5m2", "F8_E5M2", NULL, 1, true},
};

size_t vfm_dtype_size(enum vfm_dtype t)
{
	return types[t].size;
}

const char *vfm_dtype_name(enum vfm_dtype t)
{
	return types[t].name;
}

const char *vfm_dtype_st_name(enum vfm_dtype t)
{
	return types[t].st;
}

int vfm_dtype_is_float(enum vfm_dtype t)
{
	return types[t].is_float;
}

int vfm_dtype_parse(const char *s, enum vfm_dtype *out, struct vfm_err *err)
{
	for (int i = 0; i < VFM_DTYPE_N; i++) {
		if (!strcmp(s, types[i].name) || !strcmp(s, types[i].st) ||
			(types[i].alias && !strcmp(s, types[i].alias))) {
			*out = (enum vfm_dtype)i;
			return 0;
		}
	}
	return vfm_fail(err, VFM_EUSAGE, "expected an element type (f32, bf16, f16, …), got '%.32s'", s);
}

/* 8-bit floats: 1 sign, 7 - m exponent, m mantissa bits (Micikevicius et al., "FP8
 * Formats for Deep Learning", 2022).  Beyond the largest number: infinity, or NaN without it. */
static uint8_t f8_encode(double x, int m, int bias, bool has_inf)
{
	uint8_t s = signbit(x) ? 0x80 : 0, top = has_inf ? 0x7c : 0x7f, code;
	double a = fabs(x), q;
	int e;

	if (isnan(x))
		return s | 0x7f;
	if (a == 0)
		return s;
	if (isinf(a))
		return s | top;
	e = ilogb(a);
	if (e < 1 - bias)
		e = 1 - bias;
	q = nearbyint(ldexp(a, m - e));
	if (e + bias > 1 << (7 - m))
		return s | top;
	if (q >= (double)(1 << (m + 1))) {
		e++;
		q /= 2;
	}
	if (q < (double)(1 << m))
		return s | (uint8_t)q;
	if (((e + bias) << m) + (int)q - (1 << m) >= top)
		return s | top;
	code = (uint8_t)(((e + bias) << m) + (int)q - (1 << m));
	return s | code;
}

#define LOAD(T)                                                                                                        \
	for (size_t i = 0; i < n; i++) {                                                                               \
		T v_;                                                                                                  \
		memcpy(&v_, p + i * sizeof(v_), sizeof(v_));                                                           \
		dst[i] = (double)v_;                                                                                   \
	}                                                                                                              \
	break
#define LOAD16(fn)                                                                                                     \
	for (size_t i = 0; i < n; i++) {                                                                               \
		uint16_t v_;                                                                                           \
		memcpy(&v_, p + i * 2, 2);                                                                             \
		dst[i] = (double)fn(v_);                                                                               \
	}                                                                                                              \
	break

void vfm_dtype_to_f64(double *dst, enum vfm_dtype st, const void *src, size_t n)
{
	const uint8_t *p = src;

	switch (st) {
	case VFM_F32:
		LOAD(float);
	case VFM_F64:
		LOAD(double);
	case VFM_I32:
		LOAD(int32_t);
	case VFM_I64:
		LOAD(int64_t);
	case VFM_I8:
		LOAD(int8_t);
	case VFM_I16:
		LOAD(int16_t);
	case VFM_U16:
		LOAD(uint16_t);
	case VFM_U32:
		LOAD(uint32_t);
	case VFM_U64:
		LOAD(uint64_t);
	case VFM_U8:
	case VFM_BOOL:
		LOAD(uint8_t);
	case VFM_BF16:
		LOAD16(vfm_bf16_to_f32);
	case VFM_F16:
		LOAD16(vfm_f16_to_f32);
	case VFM_F8E4M3:
	case VFM_F8E5M2:
		for (size_t i = 0; i < n; i++)
			dst[i] = (double)vfm_f8_to_f32(p[i], st);
		break;
	case VFM_DTYPE_N:
		break;
	}
}

static double clamp(double x, double lo, double hi)
{
	return isnan(x) ? 0 : x < lo ? lo : x > hi ? hi : x;
}

/* A double near 2^63 or 2^64 rounds up to it, so the upper ends are named apart. */
#define STORE(T, expr)                                                                                                 \
	for (size_t i = 0; i < n; i++) {                                                                               \
		double x = src[i];                                                                                     \
		T v_ = (T)(expr);                                                                                      \
		memcpy(p + i * sizeof(v_), &v_, sizeof(v_));                                                           \
	}                                                                                                              \
	break

/* The analyser does not see that callers fill src[0..n). */
// NOLINTBEGIN(clang-analyzer-core.uninitialized.Assign)
static void from_f64(enum vfm_dtype dt, void *dst, const double *src, size_t n)
{
	uint8_t *p = dst;

	switch (dt) {
	case VFM_F32:
		STORE(float, x);
	case VFM_F64:
		STORE(double, x);
	case VFM_I32:
		STORE(int32_t, clamp(rint(x), INT32_MIN, INT32_MAX));
	case VFM_I64:
		STORE(int64_t, x >= 0x1p63 ? INT64_MAX : (int64_t)clamp(rint(x), -0x1p63, 0x1p62 * 1.9999999999999998));
	case VFM_U64:
		STORE(uint64_t, x >= 0x1p64 ? UINT64_MAX : (uint64_t)clamp(rint(x), 0, 0x1p63 * 1.9999999999999998));
	case VFM_I8:
		STORE(int8_t, clamp(rint(x), INT8_MIN, INT8_MAX));
	case VFM_I16:
		STORE(int16_t, clamp(rint(x), INT16_MIN, INT16_MAX));
	case VFM_U16:
		STORE(uint16_t, clamp(rint(x), 0, UINT16_MAX));
	case VFM_U32:
		STORE(uint32_t, clamp(rint(x), 0, UINT32_MAX));
	case VFM_U8:
		STORE(uint8_t, clamp(rint(x), 0, UINT8_MAX));
	case VFM_BOOL:
		STORE(uint8_t, x != 0);
	case VFM_BF16:
		STORE(uint16_t, vfm_f32_to_bf16((float)x));
	case VFM_F16:
		STORE(uint16_t, vfm_f32_to_f16((float)x));
	case VFM_F8E4M3:
		STORE(uint8_t, f8_encode(x, 3, 7, false));
	case VFM_F8E5M2:
		STORE(uint8_t, f8_encode(x, 2, 15, true));
	case VFM_DTYPE_N:
		break;
	}
}
// NOLINTEND(clang-analyzer-core.uninitialized.Assign)

enum vfm_dtype vfm_dtype_of_npy(int npy_type)
{
	static const enum vfm_dtype of[] = {[VFM_NPY_F16] = VFM_F16,
		[VFM_NPY_F32] = VFM_F32,
		[VFM_NPY_F64] = VFM_F64,
		[VFM_NPY_U8] = VFM_U8,
		[VFM_NPY_I32] = VFM_I32,
		[VFM_NPY_I64] = VFM_I64,
		[VFM_NPY_BF16] = VFM_BF16};

	return of[npy_type];
}

/* ---- vectors of eight elements; each function returns how many it converted ---- */

/* Converts all, and keeps the bits of NaN. */
static size_t widen_bf16(uint8_t *dst, const uint8_t *src, size_t n)
{
	typedef uint16_t halves __attribute__((vector_size(16)));
	typedef uint32_t words __attribute__((vector_size(32)));
	size_t i = 0;

	for (; i + 8 <= n; i += 8) {
		halves h;
		words w;

		memcpy(&h, src + 2 * i, sizeof(h));
		w = __builtin_convertvector(h, words) << 16;
		memcpy(dst + 4 * i, &w, sizeof(w));
	}
	for (; i < n; i++) {
		uint16_t h;
		float f;

		memcpy(&h, src + 2 * i, sizeof(h));
		f = vfm_bf16_to_f32(h);
		memcpy(dst + 4 * i, &f, sizeof(f));
	}
	return n;
}

#ifdef __x86_64__
__attribute__((target("avx,f16c"))) static size_t widen_f16(uint8_t *dst, const uint8_t *src, size_t n)
{
	size_t i = 0;

	for (; i + 8 <= n; i += 8)
		_mm256_storeu_ps((float *)(void *)(dst + 4 * i),
			_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(src + 2 * i))));
	return i;
}

__attribute__((target("avx,f16c"))) static size_t narrow_f16(uint8_t *dst, const uint8_t *src, size_t n)
{
	size_t i = 0;

	for (; i + 8 <= n; i += 8)
		_mm_storeu_si128((__m128i *)(void *)(dst + 2 * i),
			_mm256_cvtps_ph(_mm256_loadu_ps((const float *)(const void *)(src + 4 * i)), 0));
	return i;
}
#endif

static size_t convert_vectors(enum vfm_dtype dt, uint8_t *dst, enum vfm_dtype st, const uint8_t *src, size_t n)
{
	if (dt == VFM_F32 && st == VFM_BF16)
		return widen_bf16(dst, src, n);
#ifdef __x86_64__
	if (__builtin_cpu_supports("avx2")) { /* has F16C too, which clang 14 cannot be asked about */
		if (dt == VFM_F32 && st == VFM_F16)
			return widen_f16(dst, src, n);
		if (dt == VFM_F16 && st == VFM_F32)
			return narrow_f16(dst, src, n);
	}
#endif
	return 0;
}

void vfm_dtype_convert(enum vfm_dtype dt, void *dst, enum vfm_dtype st, const void *src, size_t n)
{
	double tmp[512];
	const uint8_t *s = src;
	uint8_t *d = dst;

	if (dt == st) {
		memcpy(d, s, n * types[st].size);
		return;
	}
	if (dt == VFM_BF16 && st == VFM_F32) {
		for (size_t i = 0; i < n; i++) {
			float f;
			uint16_t h;

			memcpy(&f, s + i * 4, 4);
			h = vfm_f32_to_bf16(f);
			memcpy(d + i * 2, &h, 2);
		}
		return;
	}
	for (size_t i = convert_vectors(dt, d, st, s, n); i < n; i += 512) {
		size_t k = n - i < 512 ? n - i : 512;

		vfm_dtype_to_f64(tmp, st, s + i * types[st].size, k);
		from_f64(dt, d + i * types[dt].size, tmp, k);
	}
}

int64_t vfm_dtype_count_nonfinite(enum vfm_dtype t, const void *x, size_t n)
{
	static const uint64_t exponent[VFM_DTYPE_N] = {[VFM_F32] = 0x7f800000,
		[VFM_BF16] = 0x7f80,
		[VFM_F16] = 0x7c00,
		[VFM_F64] = 0x7ff0000000000000,
		[VFM_F8E4M3] = 0x7f,
		[VFM_F8E5M2] = 0x7c};

	return exponent[t] ? (int64_t)vfm_count_nonfinite(x, n * types[t].size, types[t].size, exponent[t], NULL) : 0;
}
