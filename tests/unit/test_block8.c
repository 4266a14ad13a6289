/* Block-wise 8-bit moments: their values and an optimization against bitsandbytes' algorithm in float64
 * (tests/ref/make_block8.py), and that dequantized values quantize to the same codes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/philox.h"
#include "block8_values.h"
#include "ok.h"
#include "device/open/open.h"
#include "device/ops/dynamic8.h"
#include "device/ops/ops.h"

static struct vfm_device d;

static int open_cpu(void **state)
{
	(void)state;
	return vfm_device_open(&d, "cpu", &err);
}

static int close_cpu(void **state)
{
	(void)state;
	vfm_device_close(&d);
	return 0;
}

static void test_values(void **state)
{
	struct vfm_dynamic8 t;

	(void)state;
	for (int is_signed = 0; is_signed < 2; is_signed++) {
		const double *expected = is_signed ? signed_values : unsigned_values;

		vfm_dynamic8_init(&t, is_signed);
		for (int c = 0; c < 256; c++) {
			float x = vfm_dynamic8_value(&t, (uint8_t)c);

			assert_true(fabs((double)x - expected[c]) <= 1e-6 * fabs(expected[c]));
			assert_int_equal(vfm_dynamic8_code(&t, x), c);
		}
	}
}

static void convert(float *x, uint8_t *code, float *scale, int64_t n, bool is_signed, bool back)
{
	struct vfm_block8 a = {.back = back,
		.is_signed = is_signed,
		.x = vfm_t1(x, VFM_F32, n),
		.code = vfm_t1(code, VFM_U8, n),
		.scale = vfm_t1(scale, VFM_F32, (n + VFM_BLOCK8 - 1) / VFM_BLOCK8)};

	OK(vfm_op_block8(d.stream, &a, &err));
}

/* Blocks of random values over many decades: with a negative largest one, with a tie of both signs, of zeros only. */
static void test_again(void **state)
{
	enum { N = 40 * VFM_BLOCK8 + 77, SCALES = 41 };
	static float x[N], scale[2][SCALES];
	static uint8_t code[2][N];
	struct vfm_rng rng = vfm_rng_stream(1, 2, 3, VFM_RNG_TEST);

	(void)state;
	for (int is_signed = 0; is_signed < 2; is_signed++) {
		int n[2] = {0};

		for (int i = 0; i < N; i++) {
			x[i] = vfm_rng_normal(&rng, (uint64_t)i) * expf(3 * vfm_rng_normal(&rng, (uint64_t)(i + N)));
			x[i] *= ldexpf(1, -4 * (i / VFM_BLOCK8 % 16)); /* down to 1e-20 */
			x[i] = is_signed ? x[i] : fabsf(x[i]);
		}
		for (int i = 0; i < VFM_BLOCK8; i++)
			x[i] = 0;
		x[VFM_BLOCK8] = 1e6f;
		x[VFM_BLOCK8 + 1] = is_signed ? -1e6f : 1e6f;
		x[2 * VFM_BLOCK8] = is_signed ? -1e6f : 1e6f;
		convert(x, code[0], scale[0], N, is_signed, false);
		for (int i = 0; i < N; i++)
			if (!is_signed && x[i] > 0)
				assert_int_not_equal(code[0][i], 0);
		convert(x, code[0], scale[0], N, is_signed, true);
		convert(x, code[1], scale[1], N, is_signed, false);
		assert_memory_equal(code[0], code[1], sizeof(code[0]));
		assert_memory_equal(scale[0], scale[1], sizeof(scale[0]));
		for (int b = 0; b < SCALES; b++)
			n[scale[0][b] < 0]++;
		assert_true(is_signed ? n[0] > 5 && n[1] > 5 : n[1] == 0);
	}
}

static double mean_distance(const double *a, const double *b)
{
	enum { KEPT = VALUES_N / VALUES_STRIDE };
	double sum = 0;

	for (int i = 0; i < KEPT; i++)
		sum += fabs(a[i] - b[i]) / KEPT;
	return sum;
}

/* Returns the mean distance of the weights from those of a reference. */
static double distance(const float *p, const double *expected)
{
	double sum = 0;
	int n = 0;

	for (int i = 0; i < VALUES_N; i += VALUES_STRIDE)
		sum += fabs((double)p[i] - expected[n++]);
	return sum / n;
}

static void test_optimization(void **state)
{
	enum { SCALES = VALUES_N / VFM_BLOCK8 + 1 };
	static float p[VALUES_N], m[VALUES_N], v[VALUES_N], g[VALUES_N], scale[VALUES_N], ms[SCALES], vs[SCALES];
	static uint8_t mc[VALUES_N], vc[VALUES_N];
	struct vfm_rng rng = vfm_rng_stream(VALUES_SEED, 0, 1, VFM_RNG_TEST);
	struct vfm_rng spread = vfm_rng_stream(VALUES_SEED, 0, 2, VFM_RNG_TEST);

	(void)state;
	for (int i = 0; i < VALUES_N; i++) {
		p[i] = vfm_rng_normal(&rng, (uint64_t)i);
		scale[i] = (float)exp(2 * (double)vfm_rng_normal(&spread, (uint64_t)i));
	}
	for (int t = 1; t <= VALUES_STEPS; t++) {
		struct vfm_adamw a = {.lr = 1e-2f,
			.beta1 = 0.9f,
			.beta2 = 0.95f,
			.eps = 1e-8f,
			.wd = 0.01f,
			.c1 = (float)(1 - pow(0.9, t)),
			.c2 = (float)(1 - pow(0.95, t)),
			.p = vfm_t1(p, VFM_F32, VALUES_N),
			.m = vfm_t1(m, VFM_F32, VALUES_N),
			.v = vfm_t1(v, VFM_F32, VALUES_N),
			.g = vfm_t1(g, VFM_F32, VALUES_N)};

		rng = vfm_rng_stream(VALUES_SEED, (uint64_t)t, 3, VFM_RNG_TEST);
		for (int i = 0; i < VALUES_N; i++)
			g[i] = vfm_rng_normal(&rng, (uint64_t)i) * scale[i];
		convert(m, mc, ms, VALUES_N, true, true);
		convert(v, vc, vs, VALUES_N, false, true);
		OK(vfm_op_adamw(d.stream, &a, &err));
		convert(m, mc, ms, VALUES_N, true, false);
		convert(v, vc, vs, VALUES_N, false, false);
	}
	print_message("mean distance of the weights: %.1e from float64, %.1e from the published rules, %.1e from exact "
		      "moments; published from exact %.1e\n",
		distance(p, after_ours), distance(p, after_published), distance(p, after_exact),
		mean_distance(after_published, after_exact));
	assert_true(distance(p, after_ours) < 2e-5);
	assert_true(distance(p, after_exact) < 1e-2); /* of 20 steps of about 1e-2 */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_values),
		cmocka_unit_test(test_again),
		cmocka_unit_test(test_optimization),
	};

	return cmocka_run_group_tests_name("block8", tests, open_cpu, close_cpu);
}
