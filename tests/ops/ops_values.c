/* ops_values.c - properties that a list of cases cannot state: unread operands, NaN, operations in place, order of
 * sums, random numbers. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/philox.h"
#include "emu_dev.h"
#include "device/cuda/gemm.h"
#include "ops_test.h"

/* Operands that an op does not read may hold any value. */
void test_unread(void **state)
{
	struct vfm_err err = {0};
	float x[40], y[40];

	(void)state;
	for (int i = 0; i < n_full; i++)
		for (int v = 0; v < 4; v++) {
			float alpha = v & 1 ? 2 : 0, beta = v & 2 ? 3 : 0;
			struct vfm_axpby a = {alpha, beta, vfm_t1(x, VFM_F32, 40), vfm_t1(y, VFM_F32, 40)};

			for (int k = 0; k < 40; k++)
				x[k] = alpha ? (float)k : NAN, y[k] = beta ? 7 : NAN;
			assert_int_equal(vfm_op_axpby(levels[i].s, &a, &err), 0);
			for (int k = 0; k < 40; k++)
				assert_true(y[k] == alpha * (float)k + beta * 7);
		}
}

/* A scale that is not finite leaves every bit of weights, moments and average, also that of a NaN in them. */
void test_skipped_update(void **state)
{
	static const float scales[] = {NAN, INFINITY, -INFINITY};
	enum { N = 1037 };
	static float f[4][N], was[4][N], g[N];
	static uint16_t w[N], had[N];
	struct vfm_err err = {0};
	float gs;

	(void)state;
	for (int i = 0; i < N; i++) {
		for (int k = 0; k < 4; k++)
			was[k][i] = i == 5 ? NAN : (float)(i * 4 + k) / 7;
		had[i] = (uint16_t)(i * 61);
		g[i] = i % 3 ? 1e30f : NAN;
	}
	for (int i = 0; i < n_full; i++)
		for (int split = 0; split < 2; split++)
			for (int k = 0; k < 3; k++) {
				struct vfm_adamw a = {.lr = 1,
					.wd = 1,
					.c1 = 1,
					.c2 = 1,
					.m = vfm_t1(f[1], VFM_F32, N),
					.v = vfm_t1(f[2], VFM_F32, N),
					.ema = vfm_t1(f[3], VFM_F32, N),
					.g = vfm_t1(g, VFM_F32, N),
					.grad_scale = vfm_t1(&gs, VFM_F32, 1),
					.w = vfm_t1(w, VFM_BF16, N)};

				gs = scales[k];
				if (split)
					a.p_lo = vfm_t1(f[0], VFM_I16, N);
				else
					a.p = vfm_t1(f[0], VFM_F32, N);
				memcpy(f, was, sizeof(f));
				memcpy(w, had, sizeof(w));
				assert_int_equal(vfm_op_adamw(levels[i].s, &a, &err), 0);
				assert_memory_equal(f, was, sizeof(f));
				assert_memory_equal(w, had, sizeof(w));
			}
}

/* The scale of a step is NaN if its norm or its loss is not finite, whatever max_norm is. */
void test_clip_nonfinite(void **state)
{
	static const double x[] = {4, NAN, INFINITY, -INFINITY};
	struct vfm_err err = {0};
	float norm, scale;

	(void)state;
	for (int i = 0; i < n_full; i++)
		for (int s = 0; s < 3; s++)
			for (int l = 0; l < 4; l++)
				for (int m = 0; m < 2; m++) {
					double sum = x[s], loss = x[l];
					struct vfm_clip c = {.sum = vfm_t1(&sum, VFM_F64, 1),
						.loss = vfm_t1(&loss, VFM_F64, 1),
						.norm = vfm_t1(&norm, VFM_F32, 1),
						.scale = vfm_t1(&scale, VFM_F32, 1),
						.max_norm = (float)m};

					assert_int_equal(vfm_op_clip(levels[i].s, &c, &err), 0);
					assert_true(isnan(scale) == (s > 0 || l > 0));
					assert_true(isfinite(norm) == (s == 0));
				}
}

/* An update on few units of the device gives the same bits. */
void test_adamw_units(void **state)
{
	enum { N = 20011, ARRAYS = 4 }; /* more than a pass of two units */
	static _Alignas(64) float first[ARRAYS][N], x[ARRAYS][N], all[ARRAYS][N];
	struct vfm_rng rng = vfm_rng_stream(1, 2, 3, VFM_RNG_TEST);
	struct vfm_err err = {0};

	(void)state;
	for (int i = 0; i < ARRAYS * N; i++)
		first[i / N][i % N] = fabsf(vfm_rng_normal(&rng, (uint64_t)i));
	for (int l = 0; l < n_full; l++)
		for (int units = 0; units < 4; units++) {
			struct vfm_adamw a = {.lr = 0.1f,
				.beta1 = 0.9f,
				.beta2 = 0.95f,
				.eps = 1e-8f,
				.c1 = 0.1f,
				.c2 = 0.05f,
				.p = vfm_t1(x[0], VFM_F32, N),
				.m = vfm_t1(x[1], VFM_F32, N),
				.v = vfm_t1(x[2], VFM_F32, N),
				.g = vfm_t1(x[3], VFM_F32, N)};

			memcpy(x, first, sizeof(x));
			levels[l].s->units = units;
			assert_int_equal(vfm_op_adamw(levels[l].s, &a, &err), 0);
			levels[l].s->units = 0;
			assert_true(memcmp(x[0], first[0], sizeof(x[0])) != 0);
			if (units == 0)
				memcpy(all, x, sizeof(x));
			assert_memory_equal(all, x, sizeof(x));
		}
}

/* NaN propagates, so that a diverged run is noticed. */
void test_nan(void **state)
{
	struct vfm_err err = {0};
	float x[40], y[40];

	(void)state;
	for (int i = 0; i < n_full; i++) {
		struct vfm_unary silu = {.act = VFM_ACT_SILU, .x = vfm_t1(x, VFM_F32, 40), .y = vfm_t1(y, VFM_F32, 40)},
				 gelu = silu;
		struct vfm_softmax soft = {vfm_t2(x, VFM_F32, 1, 40), vfm_t2(y, VFM_F32, 1, 40)};
		uint8_t codes[40];
		float amax, inv;
		struct vfm_quant quant = {.x = vfm_t2(x, VFM_F32, 1, 40),
			.y = vfm_t2(codes, VFM_F8E4M3, 1, 40),
			.amax = vfm_t1(&amax, VFM_F32, 1),
			.inv = vfm_t1(&inv, VFM_F32, 1)};

		for (int k = 0; k < 40; k++)
			x[k] = k == 21 ? NAN : (float)k;
		assert_int_equal(vfm_op_unary(levels[i].s, &silu, &err), 0);
		assert_true(isnan(y[21]) && !isnan(y[20]));
		for (int k = 0; k < 2; k++) {
			gelu.act = k ? VFM_ACT_GELU : VFM_ACT_GELU_TANH;
			assert_int_equal(vfm_op_unary(levels[i].s, &gelu, &err), 0);
			assert_true(isnan(y[21]) && !isnan(y[20]));
		}
		assert_int_equal(vfm_op_softmax(levels[i].s, &soft, &err), 0);
		assert_true(isnan(y[0]) && isnan(y[21]));
		x[22] = -INFINITY;
		assert_int_equal(vfm_op_quant(levels[i].s, &quant, &err), 0);
		assert_true(amax == 39 && inv == 0.125f && (codes[21] & 0x7f) == 0x7f && (codes[22] & 0x7f) == 0x7f &&
			codes[23] == vfm_f32_to_f8(184, VFM_F8E4M3));
		/* with a history: finite values saturate; amax keeps the maximum over tensors; an empty history uses
		 * amax of the tensor */
		for (int k = 0; k < 3; k++) {
			float past[3] = {0, k ? 20 : 0, k ? 3 : 0};

			amax = k == 2 ? 50 : 7;
			quant.history = vfm_t1(past, VFM_F32, 3);
			assert_int_equal(vfm_op_quant(levels[i].s, &quant, &err), 0);
			assert_true(amax == (k == 2 ? 50 : 39) && inv == (k ? 0.0625f : 0.125f));
			assert_true((codes[21] & 0x7f) == 0x7f && (codes[22] & 0x7f) == 0x7f &&
				codes[39] == vfm_f32_to_f8(k ? 448 : 312, VFM_F8E4M3));
		}
	}
}

/* Runs the norm of a case without its fp8, to bf16, and then quant. */
static void norm_and_quant(struct vfm_stream *s, struct vfm_norm a, uint8_t *y8, float *amax, float *inv)
{
	struct vfm_err err = {0};
	void *y = vfm_malloc((size_t)vfm_numel(&a.y) * 2 + 1);
	struct vfm_quant q = {.x = vfm_t2(y, VFM_BF16, a.y.shape[0], a.y.shape[1]),
		.y = a.y,
		.history = a.history,
		.amax = vfm_t1(amax, VFM_F32, 1),
		.inv = vfm_t1(inv, VFM_F32, 1)};

	q.y.data = y8;
	*amax = *(float *)a.amax.data;
	a.y = q.x;
	a.history = a.inv = a.amax = (struct vfm_tensor){0};
	assert_int_equal(vfm_op_norm(s, &a, &err), 0);
	assert_int_equal(vfm_op_quant(s, &q, &err), 0);
	free(y);
}

/* A norm that quantizes gives the bits of a norm and quant, also of rows with NaN. */
void test_norm8(void **state)
{
	struct vfm_err err = {0};
	int n = 0;

	(void)state;
	n_bad = 0;
	for (size_t k = 0; k < cases.n; k++) {
		struct vfm_case *c = cases.v[k];
		struct vfm_norm *a = &c->args.norm;
		struct image m;
		uint8_t *want;

		if (!case_wanted(c) || c->op != VFM_OP_norm || !vfm_has(&a->history) || c->bound[0])
			continue;
		image_take(&m, c, false);
		want = vfm_malloc(vfm_nbytes(&a->y) + 1);
		for (int i = 0; i < n_full; i++, n++) {
			float amax, inv;

			image_put(&m, c);
			if (a->weight.ndim && n % 2)
				((float *)a->weight.data)[0] = NAN;
			norm_and_quant(levels[i].s, *a, want, &amax, &inv);
			assert_int_equal(vfm_case_run(c, levels[i].s, &err), 0);
			if (memcmp(a->y.data, want, vfm_nbytes(&a->y)) != 0)
				case_bad(levels[i].name, c, "other bits than norm and quant");
			if (memcmp(a->amax.data, &amax, 4) != 0 || memcmp(a->inv.data, &inv, 4) != 0)
				case_bad(levels[i].name, c, "amax %g, inv %g, but quant gives %g and %g",
					(double)*(float *)a->amax.data, (double)*(float *)a->inv.data, (double)amax,
					(double)inv);
		}
		free(want);
		image_release(&m, c);
	}
	print_message("%d runs\n", n);
	assert_true(n > 0 || case_words);
	assert_int_equal(n_bad, 0);
}

enum { MX_N = 12 * VFM_MX_BLOCK };

/* Blocks whose maxima span most of the range of f32; one of zeros; one with NaN and infinity. */
static void fill_mx(float *x)
{
	struct vfm_rng rng = vfm_rng_stream(1, 2, 3, VFM_RNG_TEST);

	for (int i = 0; i < MX_N; i++)
		x[i] = ldexpf(vfm_rng_normal(&rng, (uint64_t)i), i / VFM_MX_BLOCK * 18 - 80);
	memset(x + 3 * VFM_MX_BLOCK, 0, VFM_MX_BLOCK * sizeof(*x));
	x[4 * VFM_MX_BLOCK] *= 1e4f;
	x[5 * VFM_MX_BLOCK + 7] = NAN;
	x[5 * VFM_MX_BLOCK + 9] = -INFINITY;
}

/* The error of an element is at most 2^-4 of it, or half of the smallest subnormal: with a maximum beyond 224, 2^-10 /
 * 224 of the maximum.  Elements that are not finite do not change their block. */
static void check_mx_errors(const float *x, const float *y)
{
	for (int b = 0; b < MX_N / VFM_MX_BLOCK; b++, x += VFM_MX_BLOCK, y += VFM_MX_BLOCK) {
		float amax = 0;

		for (int i = 0; i < VFM_MX_BLOCK; i++)
			amax = isfinite(x[i]) ? fmaxf(amax, fabsf(x[i])) : amax;
		for (int i = 0; i < VFM_MX_BLOCK; i++)
			if (isfinite(x[i]) ? fabsf(y[i] - x[i]) > fmaxf(fabsf(x[i]) / 16, amax * 0x1p-10f / 224)
					   : !isnan(y[i]))
				fail_msg("block %d: %g becomes %g, the maximum is %g", b, (double)x[i], (double)y[i],
					(double)amax);
	}
}

/* Dequantized values are exact in bf16 and quantize to themselves; all devices have the same codes. */
void test_mxfp8(void **state)
{
	static _Alignas(16) float memory[MX_N + 1], x[MX_N], y[MX_N], again[MX_N];
	static _Alignas(16) uint8_t code[MX_N], first[MX_N];
	static _Alignas(16) uint16_t h[MX_N];
	uint8_t scale[MX_N / VFM_MX_BLOCK];
	struct vfm_mxfp8 to = {.x = vfm_t2(x, VFM_F32, 1, MX_N),
				 .code = vfm_t2(code, VFM_F8E4M3, 1, MX_N),
				 .scale = vfm_t2(scale, VFM_U8, 1, MX_N / VFM_MX_BLOCK)},
			 back = to, back_h = to, odd;
	struct vfm_err err = {0};

	(void)state;
	back.back = back_h.back = true;
	back.x.data = y;
	back_h.x = vfm_t2(h, VFM_BF16, 1, MX_N);
	odd = back;
	odd.x.data = memory + 1; /* which no vector of elements is aligned to */
	for (int l = 0; l < n_full; l++) {
		struct vfm_stream *s = levels[l].s;

		fill_mx(x);
		assert_int_equal(vfm_op_mxfp8(s, &to, &err), 0);
		if (l == 0)
			memcpy(first, code, sizeof(first));
		for (int i = 0; i < MX_N; i++) /* the sign of NaN is open */
			assert_true(code[i] == first[i] || (code[i] & first[i] & 0x7f) == 0x7f);
		assert_int_equal(vfm_op_mxfp8(s, &back, &err), 0);
		assert_int_equal(vfm_op_mxfp8(s, &back_h, &err), 0);
		assert_int_equal(vfm_op_mxfp8(s, &odd, &err), 0);
		assert_memory_equal(memory + 1, y, sizeof(y));
		check_mx_errors(x, y);
		for (int i = 0; i < MX_N; i++)
			assert_true(isnan(y[i]) || vfm_bf16_to_f32(h[i]) == y[i]);
		memcpy(x, y, sizeof(x));
		memcpy(again, y, sizeof(x));
		odd.back = false;
		assert_int_equal(vfm_op_mxfp8(s, l % 2 ? &odd : &to, &err), 0);
		odd.back = true;
		assert_int_equal(vfm_op_mxfp8(s, &back, &err), 0);
		for (int i = 0; i < MX_N; i++)
			assert_true(isnan(y[i]) ? isnan(again[i]) : y[i] == again[i]);
	}
}

/* A matrix [WROWS,WCOLS] of random codes with its scales. */
enum { WROWS = 128, WCOLS = 320, WN = WROWS * WCOLS, WBLOCKS = WN / VFM_NF4_BLOCK };
struct coded_matrix {
	_Alignas(8) uint8_t code[WN];
	uint8_t absmax[WBLOCKS];
	float scale[WROWS], offset;
};

static void fill_coded_matrix(struct coded_matrix *m)
{
	struct vfm_rng rng = vfm_rng_stream(1, 2, 3, VFM_RNG_TEST);

	for (int i = 0; i < WN; i++)
		m->code[i] = (uint8_t)vfm_rng_below(&rng, (uint64_t)i, 256);
	for (int i = 0; i < WBLOCKS; i++)
		m->absmax[i] = (uint8_t)vfm_rng_below(&rng, (uint64_t)(WN + i), 256);
	for (int i = 0; i < WROWS; i++)
		m->scale[i] = (float)(i + 1) * 0.0123f * (i % 8 == 1 ? 0x1p-125f : 1); /* also subnormal values */
}

/* Copies columns [c0, c0 + cols) of all rows of the codes. */
static void cut_columns(uint8_t *to, const uint8_t *from, int64_t row, int64_t c0, int64_t cols)
{
	for (int64_t r = 0; r < WROWS; r++)
		memcpy(to + r * cols, from + r * row + c0, (size_t)cols);
}

/* Decodes elements [e0, e0 + n) of the columns [c0, c0 + cols) of the matrix. */
static void decode_part(struct vfm_stream *s, const struct coded_matrix *m, bool nf4, int64_t c0, int64_t cols,
	int64_t e0, int64_t n, struct vfm_tensor x)
{
	static _Alignas(8) uint8_t code[WN], absmax[WBLOCKS];
	int64_t each = nf4 ? 2 : 1;
	struct vfm_weight_segment g = {.begin = -e0,
		.rows = WROWS,
		.cols = cols,
		.first = nf4 ? c0 / VFM_NF4_BLOCK : 0,
		.pitch = nf4 ? WCOLS / VFM_NF4_BLOCK : 1};
	struct vfm_decode_weights a = {.format = nf4 ? VFM_WEIGHTS_NF4 : VFM_WEIGHTS_INT8,
		.x = x,
		.code = vfm_t2(code + e0 / each, VFM_U8, 1, n / each),
		.segment = vfm_t2(&g, VFM_I64, 1, 6),
		.scale = vfm_t1((void *)m->scale, VFM_F32, nf4 ? (WBLOCKS + 255) / 256 : WROWS)};
	struct vfm_err err = {0};

	cut_columns(code, m->code, WCOLS / each, c0 / each, cols / each);
	cut_columns(absmax, m->absmax, WCOLS / VFM_NF4_BLOCK, c0 / VFM_NF4_BLOCK, cols / VFM_NF4_BLOCK);
	if (nf4) {
		a.absmax = vfm_t2(absmax + e0 / VFM_NF4_BLOCK, VFM_U8, 1, n / VFM_NF4_BLOCK);
		a.offset = vfm_t1((void *)&m->offset, VFM_F32, 1);
	}
	if (vfm_op_decode_weights(s, &a, &err) < 0)
		fail_msg("%s", err.msg);
}

/* All devices give the bits of a whole matrix, at any address, of columns, and of a range of elements that begins
 * within a row. */
static void compare_parts(struct vfm_stream *s, const struct coded_matrix *m, bool nf4, const float *want)
{
	enum { C0 = 64, COLS = 128, E0 = 512, N = 8192 };
	static _Alignas(16) float x[WN + 1];
	static _Alignas(16) uint16_t h[WN];

	decode_part(s, m, nf4, 0, WCOLS, 0, WN, vfm_t2(x, VFM_F32, 1, WN));
	assert_memory_equal(x, want, WN * sizeof(*x));
	decode_part(s, m, nf4, 0, WCOLS, 0, WN, vfm_t2(x + 1, VFM_F32, 1, WN));
	assert_memory_equal(x + 1, want, WN * sizeof(*x));
	decode_part(s, m, nf4, 0, WCOLS, 0, WN, vfm_t2(h, VFM_BF16, 1, WN));
	for (int i = 0; i < WN; i++)
		assert_int_equal(h[i], vfm_f32_to_bf16(want[i]));
	decode_part(s, m, nf4, 0, WCOLS, E0, N, vfm_t2(x, VFM_F32, 1, N)); /* from column 192 of row 1 on */
	assert_memory_equal(x, want + E0, N * sizeof(*x));
	decode_part(s, m, nf4, C0, COLS, 2 * E0, N, vfm_t2(x, VFM_F32, 1, N));
	for (int i = 0; i < N; i++) {
		int e = i + 2 * E0;

		assert_true(x[i] == want[e / COLS * WCOLS + C0 + e % COLS]);
	}
}

/* Factors that are not finite make every element NaN, also those whose code is that of 0. */
static void decode_nan(struct vfm_stream *s, struct coded_matrix *m, bool nf4)
{
	static float x[WN];
	int64_t n = nf4 ? 256 * VFM_NF4_BLOCK : WCOLS; /* elements with the scale */
	float keep = m->scale[0];

	m->scale[0] = NAN;
	decode_part(s, m, nf4, 0, WCOLS, 0, WN, vfm_t2(x, VFM_F32, 1, WN));
	for (int64_t i = 0; i < WN; i++)
		assert_true(isnan(x[i]) == (i < n));
	m->scale[0] = keep;
}

void test_decode_weights(void **state)
{
	static struct coded_matrix m;
	static float want[WN];

	(void)state;
	fill_coded_matrix(&m);
	for (int k = 0; k < 3; k++) {
		bool nf4 = k > 0;

		m.offset = k == 2 ? 0x1p-125f : 0.0321f;
		decode_part(levels[0].s, &m, nf4, 0, WCOLS, 0, WN, vfm_t2(want, VFM_F32, 1, WN));
		for (int l = 0; l < n_full; l++) {
			compare_parts(levels[l].s, &m, nf4, want);
			decode_nan(levels[l].s, &m, nf4);
		}
	}
}

/* Results of a case in the memory of an operand, x, are those of results y in memory of their own. */
static void compare_in_place(struct vfm_case *c, const struct vfm_tensor *x, struct vfm_tensor *y)
{
	struct vfm_err err = {0};
	void *apart, *want;
	struct image m;

	image_take(&m, c, false);
	apart = y->data;
	want = vfm_malloc(vfm_nbytes(y) + 1);
	for (int i = 0; i < n_full; i++) {
		image_put(&m, c);
		assert_int_equal(vfm_case_run(c, levels[i].s, &err), 0);
		memcpy(want, apart, vfm_nbytes(y));
		y->data = x->data;
		assert_int_equal(vfm_case_run(c, levels[i].s, &err), 0);
		if (memcmp(y->data, want, vfm_nbytes(y)) != 0)
			case_bad(levels[i].name, c, "other bits in place");
		y->data = apart;
	}
	free(want);
	image_release(&m, c);
}

void test_in_place(void **state)
{
	int n = 0;

	(void)state;
	n_bad = 0;
	for (size_t k = 0; k < cases.n; k++) {
		const struct vfm_operand *y = vfm_op_info(cases.v[k]->op)->operands, *x = y;

		while (y->name && !y->over)
			y++;
		if (!y->name || !case_wanted(cases.v[k]))
			continue;
		while (strcmp(x->name, y->over) != 0)
			x++;
		compare_in_place(
			cases.v[k], vfm_operand_of(&cases.v[k]->args, x), vfm_operand_of(&cases.v[k]->args, y));
		n++;
	}
	assert_true(n > 0 || case_words);
	assert_int_equal(n_bad, 0);
}

/* Parts are summed in their order, element by element, for every location of the result and of the own part. */
void test_sum_in_place(void **state)
{
	enum { PARTS = 5, N = 4099, ROW = 4104 };
	static _Alignas(64) float x[PARTS * ROW + 1], keep[PARTS * ROW + 1], own[N], want[N];
	struct vfm_rng rng = vfm_rng_stream(1, 2, 3, VFM_RNG_TEST);
	struct vfm_err err = {0};

	(void)state;
	for (int i = 0; i < PARTS * ROW + 1; i++)
		keep[i] = i % 7 ? vfm_rng_normal(&rng, (uint64_t)i) * (i / ROW % 2 ? 3e7f : 1) : -0.0f;
	for (int l = 0; l < n_full; l++)
		/* the result is a row of x; the own part is a row, or a separate operand at place 2 that may be the
		 * result; aligned and unaligned */
		for (int way = 0; way < 6; way++) {
			int off = way % 2, n = way < 2 ? PARTS : PARTS - 1;
			struct vfm_sum_parts a = {
				.x = vfm_t2(x + off, VFM_F32, n, N), .y = vfm_t1(x + off + ROW, VFM_F32, N)};

			a.x.stride[0] = ROW;
			memcpy(x, keep, sizeof(x));
			memcpy(own, x + off + (PARTS - 1) * ROW, sizeof(own));
			for (int i = 0; i < N; i++) {
				const float *p = x + off + i;

				want[i] = way < 2 ? (((p[0] + p[ROW]) + p[2 * ROW]) + p[3 * ROW]) + p[4 * ROW]
						  : (((p[0] + p[ROW]) + own[i]) + p[2 * ROW]) + p[3 * ROW];
			}
			if (way >= 2) {
				a.own = vfm_t1(own, VFM_F32, N);
				a.at = 2;
			}
			if (way >= 4)
				a.y = a.own;
			assert_int_equal(vfm_op_sum_parts(levels[l].s, &a, &err), 0);
			assert_memory_equal(a.y.data, want, sizeof(want));
		}
}

/* The frames before x may lie anywhere: the newer one first, with a gap between them; or both at one place. */
void test_conv_past(void **state)
{
	enum { H = 5, W = 6, C = 20, O = 9, SIZE = H * W * C, AWAY = SIZE + 8, N_W = O * 27 * C };
	struct vfm_rng rng = vfm_rng_stream(3, 1, 4, VFM_RNG_TEST);
	static float past[2][SIZE], twice[2][SIZE], apart[AWAY + SIZE], x[SIZE], weight[N_W], want[H * W * O],
		got[H * W * O];
	struct vfm_err err = {0};

	(void)state;
	for (int i = 0; i < SIZE; i++) {
		past[0][i] = twice[0][i] = twice[1][i] = apart[AWAY + i] = vfm_rng_normal(&rng, (uint64_t)i);
		past[1][i] = apart[i] = vfm_rng_normal(&rng, (uint64_t)(SIZE + i));
		x[i] = vfm_rng_normal(&rng, (uint64_t)(2 * SIZE + i));
	}
	for (int i = 0; i < N_W; i++)
		weight[i] = vfm_rng_normal(&rng, (uint64_t)(3 * SIZE + i));
	for (int l = 0; l < n_full; l++) {
		struct vfm_conv3d a = {.x = vfm_t4(x, VFM_F32, 1, H, W, C),
			.past = vfm_t4(past, VFM_F32, 2, H, W, C),
			.weight = vfm_t3(weight, VFM_F32, O, 27, C),
			.y = vfm_t4(want, VFM_F32, 1, H, W, O),
			.kernel = {3, 3, 3},
			.stride = {1, 1, 1},
			.pad = {1, 1, 1, 1}};

		memset(want, 0, sizeof(want));
		memset(got, 0, sizeof(got));
		assert_int_equal(vfm_op_conv3d(levels[l].s, &a, &err), 0);
		a.past.data = apart + AWAY;
		a.past.stride[0] = -AWAY;
		a.y.data = got;
		assert_int_equal(vfm_op_conv3d(levels[l].s, &a, &err), 0);
		assert_memory_equal(got, want, sizeof(want));
		a.past.stride[0] = 0;
		assert_int_equal(vfm_op_conv3d(levels[l].s, &a, &err), 0);
		a.past = vfm_t4(twice, VFM_F32, 2, H, W, C);
		a.y.data = want;
		assert_int_equal(vfm_op_conv3d(levels[l].s, &a, &err), 0);
		assert_memory_equal(got, want, sizeof(want));
	}
}

/* The generator of the CUDA kernels gives the integers of base/philox.h exactly, and normals within the bound, also if
 * the argument of the logarithm is close to 0 or 1. */
void test_philox(void **state)
{
	static const uint64_t at[] = {0, 1, 0xfffffff0u, 0x123456789abcdef0u, UINT64_MAX - 300};
	uint32_t w[4 * 256], x[256];
	float z[4 * 256], want[4], l[256];

	(void)state;
	for (size_t k = 0; k < sizeof(at) / sizeof(at[0]); k++) {
		struct vfm_rng r = vfm_rng_stream(k * 0x9e3779b97f4a7c15u, k, ~k << 31, VFM_RNG_TEST);

		vfm_emu_philox(&r, at[k], 256, w, z);
		for (uint64_t i = 0; i < 256; i++) {
			uint32_t out[4];

			vfm_rng_block(&r, at[k] + i, out);
			assert_memory_equal(out, w + 4 * i, sizeof(out));
			vfm_rng_normal4(&r, at[k] + i, want);
			/* relative to the radius: a sine near 0 has the rounding error of its angle */
			for (int j = 0; j < 4; j++)
				assert_true(fabsf(z[4 * i + (uint64_t)j] - want[j]) <=
					6e-7f * hypotf(want[j & 2], want[(j & 2) + 1]));
		}
	}
	for (uint32_t i = 0; i < 256; i++) /* both ends, powers of two, and the branch point */
		x[i] = i < 64     ? i
			: i < 128 ? UINT32_MAX - (i - 64)
			: i < 192 ? 0xb504f334u - 32 + (i - 128)
				  : 1u << (i % 32);
	vfm_emu_neg_log(x, 256, l);
	for (int i = 0; i < 256; i++) {
		double u = (x[i] + 0.5) * 0x1p-32,
		       log_u = x[i] >> 31 ? log1p(-(UINT32_MAX - x[i] + 0.5) * 0x1p-32) : log(u);

		assert_true(fabs((double)l[i] + log_u) <= 3e-7 * fabs(log_u));
	}
}

/* The normals of fill, on every level, are those of base/philox.h to the bound stated there. */
/* The operands on which products are timed: dense, of mean 0 and variance 1. */
void test_gemm_noise(void **state)
{
	static const enum vfm_dtype types[] = {VFM_F32, VFM_BF16, VFM_F8E4M3, VFM_F8E5M2};
	enum { N = 1 << 16 };
	static char x[4 * N + 4];
	struct vfm_err err = {0};

	(void)state;
	for (int t = 0; t < 4; t++) {
		size_t size = vfm_dtype_size(types[t]);
		double sum = 0, squares = 0, zeros = 0;

		memset(x, 0x5a, sizeof(x));
		assert_int_equal(vfm_gemm_noise(levels[n_isa].s, types[t], x, N, 3, &err), 0);
		for (int i = 0; i < N; i++) {
			double v;

			vfm_dtype_to_f64(&v, types[t], x + (size_t)i * size, 1);
			sum += v;
			squares += v * v;
			zeros += v == 0;
		}
		assert_true(fabs(sum / N) < 0.02 && fabs(squares / N - 1) < 0.02 && zeros / N < 0.01);
		assert_int_equal(x[N * size], 0x5a);
	}
}

void test_normals(void **state)
{
	enum { N = 1 << 14, FIRST = 4093 };
	static float z[N];
	struct vfm_err err = {0};

	(void)state;
	for (int l = 0; l < n_full; l++)
		for (uint64_t id = 0; id < 4; id++) {
			struct vfm_fill a = {.x = vfm_t1(z, VFM_F32, N),
				.rng = vfm_rng_stream(11, id, ~id << 40, VFM_RNG_TEST),
				.first = FIRST,
				.std = 1};

			assert_int_equal(vfm_op_fill(levels[l].s, &a, &err), 0);
			for (uint64_t i = 0; i < N; i++) {
				uint64_t e = FIRST + i;
				float want[4];

				vfm_rng_normal4(&a.rng, e / 4, want);
				if (!(fabsf(z[i] - want[e % 4]) <= 6e-7f * hypotf(want[e & 2], want[(e & 2) + 1])))
					fail_msg("%s: normal %llu is %.9g, not %.9g", levels[l].name,
						(unsigned long long)e, (double)z[i], (double)want[e % 4]);
			}
		}
}

/* A pixel of zeros gets the bias; NaN spreads over its pixel alone; SiLU far from 0 neither overflows nor vanishes. */
void test_channel_rms_values(void **state)
{
	enum { N = 3, C = 20 };
	float x[N * C], y[N * C], weight[C], bias[C];
	struct vfm_err err = {0};

	(void)state;
	for (int i = 0; i < C; i++) {
		weight[i] = i % 2 ? 1000 : -1000;
		bias[i] = (float)i;
	}
	for (int l = 0; l < n_full; l++)
		for (int silu = 0; silu < 2; silu++) {
			struct vfm_channel_norm a = {.kind = VFM_CHANNEL_NORM_RMS,
				.eps = 1e-12f,
				.act = silu ? VFM_ACT_SILU : VFM_ACT_NONE,
				.x = vfm_t3(x, VFM_F32, 1, N, C),
				.weight = vfm_t1(weight, VFM_F32, C),
				.bias = vfm_t1(bias, VFM_F32, C),
				.y = vfm_t3(y, VFM_F32, 1, N, C)};

			for (int i = 0; i < N * C; i++)
				x[i] = i < C ? 0 : i == C + 7 ? NAN : 1;
			assert_int_equal(vfm_op_channel_norm(levels[l].s, &a, &err), 0);
			for (int i = 0; i < C; i++) {
				float far = y[2 * C + i], want = weight[i] + bias[i];

				assert_true(
					silu ? fabsf(y[i] - bias[i] / (1 + expf(-bias[i]))) < 1e-4f : y[i] == bias[i]);
				assert_true(isnan(y[C + i]));
				if (silu)
					want = fmaxf(want, 0);
				assert_true(fabsf(far - want) <= 1e-6f * fabsf(want) + 1e-30f);
			}
		}
}

/* The statistics of a group keep their precision when the mean is 10,000 times the deviation, and over many pixels. */
void test_channel_group_values(void **state)
{
	enum { T = 2, N = 5001, C = 6, GROUPS = 2, WIDTH = C / GROUPS };
	static float x[T * N * C], y[T * N * C];
	float weight[C] = {1, 1, 1, 1, 1, 1};
	struct vfm_rng rng = vfm_rng_stream(1, 2, 4, VFM_RNG_TEST);
	struct vfm_err err = {0};

	(void)state;
	for (int i = 0; i < T * N * C; i++)
		x[i] = (i % C < WIDTH ? 1e4f : -0.1f) + vfm_rng_normal(&rng, (uint64_t)i);
	for (int l = 0; l < n_full; l++) {
		struct vfm_channel_norm a = {.kind = VFM_CHANNEL_NORM_GROUP,
			.groups = GROUPS,
			.eps = 1e-6f,
			.x = vfm_t3(x, VFM_F32, T, N, C),
			.weight = vfm_t1(weight, VFM_F32, C),
			.y = vfm_t3(y, VFM_F32, T, N, C)};

		assert_int_equal(vfm_op_channel_norm(levels[l].s, &a, &err), 0);
		for (int k = 0; k < T * GROUPS; k++) {
			double sum = 0, squares = 0;

			for (int i = 0; i < N * WIDTH; i++) {
				double v = (double)y[(k / GROUPS * N + i / WIDTH) * C + k % GROUPS * WIDTH + i % WIDTH];

				sum += v / (N * WIDTH);
				squares += v * v / (N * WIDTH);
			}
			if (!(fabs(sum) < 1e-3 && fabs(squares - 1) < 1e-3))
				fail_msg("%s: frame and group %d have the mean %g and the mean square %g",
					levels[l].name, k, sum, squares);
		}
	}
}
