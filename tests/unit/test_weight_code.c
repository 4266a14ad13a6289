/* NF4 and int8 codes of frozen weights: codes, scales and decoded values against bitsandbytes (tests/ref/make_nf4.py);
 * weights that are not finite; chunks. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/philox.h"
#include "device/open/open.h"
#include "device/ops/ops.h"
#include "device/ops/weight_code.h"
#include "io/hash.h"
#include "ok.h"
#include "weight_code_values.h"

enum {
	N = VALUES_ROWS * VALUES_COLS,
	BLOCKS = N / VFM_NF4_BLOCK,
	GROUPS = (BLOCKS + VFM_NF4_GROUP - 1) / VFM_NF4_GROUP
};

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

/* The weights of make_nf4.py. */
static void fill_weights(float *x)
{
	struct vfm_rng rng = vfm_rng_stream(VALUES_SEED, 0, 0, VFM_RNG_TEST);

	for (int i = 0; i < N; i++) {
		double sum = -1.5;

		for (int k = 0; k < 3; k++)
			sum += vfm_rng_uniform(&rng, (uint64_t)(3 * i + k));
		sum = ldexp(sum, -(4 + i / VALUES_COLS % 5)) * (i % 997 == 5 ? 32 : 1);
		x[i] = (float)(i / 64 == 7 ? 0 : i / 64 == 11 ? ldexp(sum, -96) : sum);
	}
}

/* Compares codes: every 16th, then the fingerprint of all. */
static void check_codes(const void *code, size_t n, const unsigned char *some, uint64_t all)
{
	const unsigned char *c = code;

	for (size_t i = 0; i < n; i += 16)
		if (c[i] != some[i / 16])
			fail_msg("code %zu is %d, expected %d", i, c[i], some[i / 16]);
	assert_true(vfm_fnv64(code, n) == all);
}

/* Encodes x [n], one whole matrix, with the offset `offset`; NaN: its own. */
struct nf4 {
	float absmax[BLOCKS], scale[GROUPS], offset;
	_Alignas(8) uint8_t code[N / 2];
	uint8_t absmax_code[BLOCKS];
};

static void encode_nf4(struct nf4 *q, const float *x, float offset)
{
	vfm_nf4_absmax(x, N, q->absmax);
	vfm_nf4_encode(x, N, q->absmax, q->code);
	q->offset = isnan(offset) ? vfm_nf4_offset(q->absmax, BLOCKS) : offset;
	vfm_nf4_encode_absmax(q->absmax, BLOCKS, q->offset, q->absmax_code, q->scale);
}

static void decode_nf4(struct nf4 *q, struct vfm_tensor x)
{
	struct vfm_weight_segment g = {.rows = VALUES_ROWS, .cols = VALUES_COLS, .pitch = VALUES_COLS / VFM_NF4_BLOCK};
	struct vfm_decode_weights a = {.format = VFM_WEIGHTS_NF4,
		.x = x,
		.code = vfm_t2(q->code, VFM_U8, 1, N / 2),
		.absmax = vfm_t2(q->absmax_code, VFM_U8, 1, BLOCKS),
		.segment = vfm_t2(&g, VFM_I64, 1, 6),
		.scale = vfm_t1(q->scale, VFM_F32, GROUPS),
		.offset = vfm_t1(&q->offset, VFM_F32, 1)};

	OK(vfm_op_decode_weights(d.stream, &a, &err));
}

static void test_absmax_values(void **state)
{
	float v[256];

	(void)state;
	vfm_nf4_absmax_values(v);
	for (int c = 1; c < 256; c++)
		assert_true(v[c] > v[c - 1]);
	assert_true(v[127] == 0 && v[255] == 1);
	assert_true(vfm_fnv64(v, sizeof(v)) == absmax_values);
}

static void test_nf4(void **state)
{
	static struct nf4 q;
	static float x[N], y[N];
	static uint16_t h[N];

	(void)state;
	fill_weights(x);
	encode_nf4(&q, x, nf4_offset);
	check_codes(q.code, sizeof(q.code), nf4_some_codes, nf4_codes);
	check_codes(q.absmax_code, sizeof(q.absmax_code), nf4_some_absmax_codes, nf4_absmax_codes);
	assert_memory_equal(q.scale, nf4_scales, sizeof(q.scale));
	decode_nf4(&q, vfm_t2(y, VFM_F32, 1, N));
	assert_true(vfm_fnv64(y, sizeof(y)) == nf4_decoded);
	decode_nf4(&q, vfm_t2(h, VFM_BF16, 1, N));
	assert_true(vfm_fnv64(h, sizeof(h)) == nf4_decoded_bf16);
	/* the mean of bitsandbytes is a sum in f32 */
	assert_true(fabsf(vfm_nf4_offset(q.absmax, BLOCKS) - nf4_offset) <= 2 * FLT_EPSILON * nf4_offset);
}

/* Chunks that begin at a group give the bytes of the whole matrix. */
static void test_chunks(void **state)
{
	enum { CHUNK = VFM_NF4_GROUP * VFM_NF4_BLOCK };
	static struct nf4 all, part;
	static float x[N];

	(void)state;
	fill_weights(x);
	encode_nf4(&all, x, NAN);
	for (int i = 0; i < N; i += CHUNK) {
		int n = i + CHUNK < N ? CHUNK : N - i, b = i / VFM_NF4_BLOCK;

		vfm_nf4_absmax(x + i, n, part.absmax + b);
		vfm_nf4_encode(x + i, n, part.absmax + b, part.code + i / 2);
		vfm_nf4_encode_absmax(part.absmax + b, n / VFM_NF4_BLOCK, all.offset, part.absmax_code + b,
			part.scale + b / VFM_NF4_GROUP);
	}
	part.offset = all.offset;
	assert_memory_equal(&part, &all, sizeof(all));
}

/* NaN and infinity make the blocks with their scale NaN, and change no other. */
static void test_nf4_nonfinite(void **state)
{
	enum { GROUP = VFM_NF4_GROUP * VFM_NF4_BLOCK };
	static const float bad[] = {NAN, INFINITY, -INFINITY};
	static struct nf4 q, finite;
	static float x[N], y[N], want[N];

	(void)state;
	for (int k = 0; k < 3; k++) {
		fill_weights(x);
		memset(x + GROUP, 0, VFM_NF4_BLOCK * sizeof(*x));
		encode_nf4(&finite, x, NAN);
		decode_nf4(&finite, vfm_t2(want, VFM_F32, 1, N));
		x[GROUP + 7] = bad[k];
		encode_nf4(&q, x, finite.offset);
		assert_true(isnan(bad[k]) ? isnan(q.absmax[VFM_NF4_GROUP]) : isinf(q.absmax[VFM_NF4_GROUP]));
		for (int i = 0; i < VFM_NF4_BLOCK / 2; i++) /* the codes of 0, as before */
			assert_int_equal(q.code[GROUP / 2 + i], 0x77);
		decode_nf4(&q, vfm_t2(y, VFM_F32, 1, N));
		for (int i = 0; i < N; i++)
			assert_true(i / GROUP == 1 ? isnan(y[i]) : y[i] == want[i]);
		q.offset = vfm_nf4_offset(q.absmax, BLOCKS); /* without the block */
		assert_true(isfinite(q.offset) && q.offset > finite.offset);
	}
	for (int b = 0; b < BLOCKS; b++)
		q.absmax[b] = NAN;
	assert_true(vfm_nf4_offset(q.absmax, BLOCKS) == 0 && vfm_nf4_offset(q.absmax, 0) == 0);
}

struct int8_rows {
	_Alignas(8) int8_t code[N];
	float scale[VALUES_ROWS];
};

static void encode_int8(struct int8_rows *q, const float *x)
{
	for (int r = 0; r < VALUES_ROWS; r++) {
		q->scale[r] = vfm_int8_absmax(x + r * VALUES_COLS, VALUES_COLS);
		vfm_int8_encode(x + r * VALUES_COLS, VALUES_COLS, q->scale[r], q->code + r * VALUES_COLS);
	}
}

static void decode_int8(struct int8_rows *q, struct vfm_tensor x)
{
	struct vfm_weight_segment g = {.rows = VALUES_ROWS, .cols = VALUES_COLS, .pitch = 1};
	struct vfm_decode_weights a = {.format = VFM_WEIGHTS_INT8,
		.x = x,
		.code = vfm_t2(q->code, VFM_U8, 1, N),
		.segment = vfm_t2(&g, VFM_I64, 1, 6),
		.scale = vfm_t1(q->scale, VFM_F32, VALUES_ROWS)};

	OK(vfm_op_decode_weights(d.stream, &a, &err));
}

static void test_int8(void **state)
{
	static struct int8_rows q;
	static float x[N], y[N];
	static uint16_t h[N];

	(void)state;
	fill_weights(x);
	encode_int8(&q, x);
	check_codes(q.code, sizeof(q.code), int8_some_codes, int8_codes);
	assert_true(vfm_fnv64(q.scale, sizeof(q.scale)) == int8_scales);
	decode_int8(&q, vfm_t2(y, VFM_F32, 1, N));
	assert_true(vfm_fnv64(y, sizeof(y)) == int8_decoded);
	decode_int8(&q, vfm_t2(h, VFM_BF16, 1, N));
	assert_true(vfm_fnv64(h, sizeof(h)) == int8_decoded_bf16);
	for (size_t i = 0; i < sizeof(int8_rounded) / sizeof(int8_rounded[0]); i++) {
		int8_t code;

		vfm_int8_encode(&int8_rounded[i][0], 1, int8_rounded[i][1], &code);
		assert_int_equal(code, (int)int8_rounded[i][2]);
	}
}

/* A row with NaN or infinity becomes NaN, a row of zeros stays zero, and rows of any finite size keep their errors
 * below half a step. */
static void test_int8_rows(void **state)
{
	static const float scales[] = {2e36f, 1e-30f, 1e-36f, 1e-37f, 1e-38f, 1e-40f, FLT_TRUE_MIN};
	static const float bad[] = {NAN, INFINITY, -INFINITY};
	enum { SCALES = sizeof(scales) / sizeof(*scales) };
	static struct int8_rows q;
	static float x[N], y[N];

	(void)state;
	fill_weights(x);
	for (int r = 0; r < SCALES; r++)
		for (int i = 0; i < VALUES_COLS; i++)
			x[r * VALUES_COLS + i] = scales[r] * ((float)(i - VALUES_COLS / 2) / (VALUES_COLS / 2));
	for (int k = 0; k < 3; k++)
		x[(SCALES + k) * VALUES_COLS + k] = bad[k];
	memset(x + (SCALES + 3) * VALUES_COLS, 0, VALUES_COLS * sizeof(*x));
	encode_int8(&q, x);
	decode_int8(&q, vfm_t2(y, VFM_F32, 1, N));
	for (int i = 0; i < N; i++) {
		int r = i / VALUES_COLS;
		double step = (double)q.scale[r] / 127;

		if (r >= SCALES && r < SCALES + 3)
			assert_true(isnan(y[i]) && q.code[i] == 0);
		else if (!(fabs((double)y[i] - (double)x[i]) <= 0.50001 * step + 2e-45))
			fail_msg("row %d: %g becomes %g", r, (double)x[i], (double)y[i]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_absmax_values),
		cmocka_unit_test(test_nf4),
		cmocka_unit_test(test_chunks),
		cmocka_unit_test(test_nf4_nonfinite),
		cmocka_unit_test(test_int8),
		cmocka_unit_test(test_int8_rows),
	};

	return cmocka_run_group_tests_name("weight_code", tests, open_cpu, close_cpu);
}
