/* Element types: exhaustive round trips of the 16- and 8-bit types, rounding by definition. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "spec/model/dtype.h"

static void test_names(void **st)
{
	struct vfm_err err = {0};
	enum vfm_dtype t;

	(void)st;
	for (int i = 0; i < VFM_DTYPE_N; i++) {
		assert_int_equal(vfm_dtype_parse(vfm_dtype_name((enum vfm_dtype)i), &t, &err), 0);
		assert_int_equal(t, i);
		assert_int_equal(vfm_dtype_parse(vfm_dtype_st_name((enum vfm_dtype)i), &t, &err), 0);
		assert_int_equal(t, i);
		assert_in_range(vfm_dtype_size(t), 1, 8);
	}
	assert_int_equal(vfm_dtype_parse("fp32", &t, &err), 0);
	assert_int_equal(t, VFM_F32);
	assert_int_equal(vfm_dtype_parse("float", &t, &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "'float'"));
}

/* Every 16-bit pattern to float and back; NaN stays NaN. */
static void test_round_trip16(void **st)
{
	(void)st;
	for (uint32_t h = 0; h < 0x10000; h++) {
		float b = vfm_bf16_to_f32((uint16_t)h), f = vfm_f16_to_f32((uint16_t)h);

		if (isnan(b))
			assert_true(isnan(vfm_bf16_to_f32(vfm_f32_to_bf16(b))));
		else
			assert_int_equal(vfm_f32_to_bf16(b), h);
		if (isnan(f))
			assert_true(isnan(vfm_f16_to_f32(vfm_f32_to_f16(f))));
		else
			assert_int_equal(vfm_f32_to_f16(f), h);
	}
}

/* Between two neighbours the nearer is chosen, in the middle the even one. */
static void test_rounding(void **st)
{
	(void)st;
	for (uint32_t h = 0; h < 0x7c00; h++) {
		double a = (double)vfm_f16_to_f32((uint16_t)h);
		double b = h == 0x7bff ? 65536.0 : (double)vfm_f16_to_f32((uint16_t)(h + 1));
		float mid = (float)((a + b) / 2);

		assert_int_equal(vfm_f32_to_f16(mid), h & 1 ? h + 1 : h);
		assert_int_equal(vfm_f32_to_f16(nextafterf(mid, 0)), h);
		assert_int_equal(vfm_f32_to_f16(nextafterf(mid, INFINITY)), h + 1);
		assert_int_equal(vfm_f32_to_f16(-nextafterf(mid, INFINITY)), (h + 1) | 0x8000);
	}
	for (uint32_t h = 0x0080; h < 0x7f7f; h++) {
		double a = (double)vfm_bf16_to_f32((uint16_t)h), b = (double)vfm_bf16_to_f32((uint16_t)(h + 1));
		float mid = (float)((a + b) / 2);

		assert_int_equal(vfm_f32_to_bf16(mid), h & 1 ? h + 1 : h);
		assert_int_equal(vfm_f32_to_bf16(nextafterf(mid, 0)), h);
		assert_int_equal(vfm_f32_to_bf16(nextafterf(mid, INFINITY)), h + 1);
	}
	assert_int_equal(vfm_f32_to_bf16(3.4e38f), 0x7f80); /* rounds up to infinity */
	assert_int_equal(vfm_f32_to_f16(1e-9f), 0);
	assert_int_equal(vfm_f32_to_f16(-1e-9f), 0x8000);
}

static void test_f8(void **st)
{
	static const enum vfm_dtype t8[2] = {VFM_F8E4M3, VFM_F8E5M2};
	double big[2] = {448, 57344};

	(void)st;
	for (int k = 0; k < 2; k++) {
		double prev = -1;

		for (int v = 0; v < 256; v++) {
			uint8_t c = (uint8_t)v, back;
			double x;

			vfm_dtype_to_f64(&x, t8[k], &c, 1);
			vfm_dtype_convert(t8[k], &back, VFM_F64, &x, 1);
			if (isnan(x)) {
				vfm_dtype_to_f64(&x, t8[k], &back, 1);
				assert_true(isnan(x));
				continue;
			}
			assert_int_equal(back, v);
			if (v < 128) {
				assert_true(x > prev);
				prev = x;
				if (!isinf(x))
					assert_true(x <= big[k]);
			}
		}
	}
}

static void test_convert(void **st)
{
	double src[1500], out[1500];
	float f[1500];
	int32_t i32[4];
	int64_t i64[4];
	uint8_t u8[4];
	double wild[4] = {1e300, -1e300, (double)NAN, 254.5};

	(void)st;
	for (int i = 0; i < 1500; i++)
		src[i] = i * 0.37 - 200;
	vfm_dtype_convert(VFM_F32, f, VFM_F64, src, 1500);
	vfm_dtype_to_f64(out, VFM_F32, f, 1500);
	for (int i = 0; i < 1500; i++) {
		assert_true(f[i] == (float)src[i]);
		assert_true(out[i] == (double)f[i]);
	}
	vfm_dtype_convert(VFM_I32, i32, VFM_F64, wild, 4);
	assert_int_equal(i32[0], INT32_MAX);
	assert_int_equal(i32[1], INT32_MIN);
	assert_int_equal(i32[2], 0);
	assert_int_equal(i32[3], 254);
	vfm_dtype_convert(VFM_I64, i64, VFM_F64, wild, 4);
	assert_true(i64[0] == INT64_MAX && i64[1] == INT64_MIN && i64[2] == 0);
	vfm_dtype_convert(VFM_U8, u8, VFM_F64, wild, 4);
	assert_int_equal(u8[0], 255);
	assert_int_equal(u8[1], 0);
}

/* Every value comes back with its bits; the upper half is the nearest bf16. */
static void test_master(void **state)
{
	(void)state;
	for (uint64_t i = 0; i < 1ull << 32; i += 251) {
		uint32_t u = (uint32_t)i, back;
		uint16_t hi;
		int16_t lo;
		float x, y;

		memcpy(&x, &u, 4);
		vfm_master_split(x, &hi, &lo);
		y = vfm_master_join(hi, lo);
		memcpy(&back, &y, 4);
		if ((u & 0x7fffffff) > 0x7f800000) {
			assert_true(isnan(y) && isnan(vfm_bf16_to_f32(hi)));
			continue;
		}
		assert_int_equal(back, u);
		if ((u & 0xffff) != 0x8000)
			assert_int_equal(hi, vfm_f32_to_bf16(x));
	}
}

/* The conversion of products: that of files, but that finite numbers saturate and others are NaN. */
static void test_f8_saturating(void **state)
{
	static const enum vfm_dtype types[] = {VFM_F8E4M3, VFM_F8E5M2};

	(void)state;
	for (int k = 0; k < 2; k++) {
		float most = k ? 57344.0f : 448.0f;
		uint32_t u = 0;

		for (int i = 0; i < 256; i++) {
			uint8_t c = (uint8_t)i;
			float a = vfm_f8_to_f32(c, types[k]), b;

			vfm_dtype_convert(VFM_F32, &b, types[k], &c, 1);
			assert_true(isnan(a) ? isnan(b) : a == b && signbit(a) == signbit(b));
			if (isfinite(a))
				assert_int_equal(vfm_f32_to_f8(a, types[k]), c);
		}
		do { /* every 40961st number there is */
			float f;
			uint8_t want, got;

			memcpy(&f, &u, 4);
			got = vfm_f32_to_f8(f, types[k]);
			vfm_dtype_convert(types[k], &want, VFM_F32, &f, 1);
			if (!isfinite(f))
				assert_int_equal(got & 0x7f, 0x7f);
			else if (fabsf(f) >= most)
				assert_true(vfm_f8_to_f32(got, types[k]) == copysignf(most, f));
			else
				assert_int_equal(got, want);
			u += 40961;
		} while (u > 40961);
		assert_int_equal(vfm_f8_exponent(0, types[k]), 0);
		assert_int_equal(vfm_f8_exponent(INFINITY, types[k]), 0);
		assert_int_equal(vfm_f8_exponent(most, types[k]), 0);
		assert_int_equal(vfm_f8_exponent(nextafterf(most, INFINITY), types[k]), -1);
		assert_int_equal(vfm_f8_exponent(most / 2, types[k]), 1);
		assert_int_equal(vfm_f8_exponent(0x1p-149f, types[k]), 100);
		assert_int_equal(vfm_f8_exponent(3e38f, types[k]), k ? -113 : -120);
	}
}

/* Every bit pattern of the small types; long arrays without alignment; integers have none. */
static void test_count_nonfinite(void **st)
{
	static const enum vfm_dtype types[] = {VFM_F8E4M3, VFM_F8E5M2, VFM_BF16, VFM_F16, VFM_F32, VFM_F64};
	enum { N = 70000 };
	static char data[N * 8 + 1];

	(void)st;
	for (int k = 0; k < 6; k++) {
		size_t size = vfm_dtype_size(types[k]);

		for (uint32_t u = 0; size <= 2 && u < 1u << (8 * size); u++) {
			double x;

			vfm_dtype_to_f64(&x, types[k], &u, 1);
			assert_int_equal(vfm_dtype_count_nonfinite(types[k], &u, 1), !isfinite(x));
		}
		memset(data, 0, sizeof(data));
		for (int i = 0; i < N; i += 7) {
			double x = i % 2 ? (double)NAN : -(double)INFINITY;

			vfm_dtype_convert(types[k], data + 1 + (size_t)i * size, VFM_F64, &x, 1);
		}
		assert_int_equal(vfm_dtype_count_nonfinite(types[k], data + 1, N), N / 7);
		assert_int_equal(vfm_dtype_count_nonfinite(types[k], data + 1, 1), 1);
		assert_int_equal(vfm_dtype_count_nonfinite(types[k], data + 1, 0), 0);
		assert_int_equal(vfm_dtype_count_nonfinite(types[k], data + 1 + size, 6), 0);
	}
	memset(data, 0xff, sizeof(data));
	assert_int_equal(vfm_dtype_count_nonfinite(VFM_I32, data, N), 0);
	assert_int_equal(vfm_dtype_count_nonfinite(VFM_U8, data, N), 0);
}

/* Eight elements go through the vector path, the ninth through the scalar one. */
static void test_f16_vectors(void **state)
{
	static const struct {
		float f;
		uint16_t h;
	} known[] = {{0, 0}, {-0.0f, 0x8000}, {1, 0x3c00}, {-2, 0xc000}, {65504, 0x7bff}, {65519.996f, 0x7bff},
		{65520, 0x7c00}, {1e9f, 0x7c00}, {INFINITY, 0x7c00}, {-INFINITY, 0xfc00}, {0x1p-14f, 0x0400},
		{0x1p-24f, 1}, {0x1p-25f, 0}, {0x1.000002p-25f, 1}, {0x1.8p-24f, 2}, {1 + 0x1p-11f, 0x3c00},
		{1 + 0x3p-11f, 0x3c02}, {0x1.ff8p-15f, 0x3ff}, {0x1.ffbp-15f, 0x3ff}, {0x1.ffcp-15f, 0x400}};
	uint16_t all[9], back[9];
	float f[9];

	(void)state;
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		float in[9];
		uint16_t out[9];

		for (int k = 0; k < 9; k++)
			in[k] = known[i].f;
		vfm_dtype_convert(VFM_F16, out, VFM_F32, in, 9);
		assert_int_equal(out[0], known[i].h);
		assert_int_equal(out[8], known[i].h);
	}
	for (uint32_t h = 0; h < 65536; h++) {
		int nan = (h & 0x7c00) == 0x7c00 && (h & 0x3ff);

		for (int k = 0; k < 9; k++)
			all[k] = (uint16_t)h;
		vfm_dtype_convert(VFM_F32, f, VFM_F16, all, 9);
		if (nan) {
			assert_true(isnan(f[0]) && isnan(f[8]));
			continue;
		}
		assert_memory_equal(&f[0], &f[8], 4);
		vfm_dtype_convert(VFM_F16, back, VFM_F32, f, 9);
		assert_int_equal(back[0], h);
		assert_int_equal(back[8], h);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_round_trip16),
		cmocka_unit_test(test_rounding),
		cmocka_unit_test(test_f8),
		cmocka_unit_test(test_convert),
		cmocka_unit_test(test_f16_vectors),
		cmocka_unit_test(test_master),
		cmocka_unit_test(test_count_nonfinite),
		cmocka_unit_test(test_f8_saturating),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
