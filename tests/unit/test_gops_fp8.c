/* Linear layers in fp8 through the tape, against the same computed in doubles by the definition: every operand of every
 * product rounded with its own scale, gradients straight through. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "device/open/open.h"
#include "net/tape/gops.h"
#include "ok.h"

enum { T = 37, IN = 48, MID = 64, OUT = 32 };

struct matrix {
	int rows, cols;
	double *v;
};

static struct vfm_arena arena;

static struct matrix make(int rows, int cols)
{
	return (struct matrix){rows, cols, vfm_arena_alloc(&arena, (size_t)(rows * cols) * sizeof(double))};
}

static struct matrix transposed(struct matrix a)
{
	struct matrix r = make(a.cols, a.rows);

	for (int i = 0; i < a.rows; i++)
		for (int j = 0; j < a.cols; j++)
			r.v[j * a.rows + i] = a.v[i * a.cols + j];
	return r;
}

/* a b^T */
static struct matrix times(struct matrix a, struct matrix b)
{
	struct matrix r = make(a.rows, b.rows);

	for (int i = 0; i < a.rows; i++)
		for (int j = 0; j < b.rows; j++)
			for (int k = 0; k < a.cols; k++)
				r.v[i * b.rows + j] += a.v[i * a.cols + k] * b.v[j * b.cols + k];
	return r;
}

static struct matrix rounded(struct matrix a, int mantissa, int low, double most)
{
	struct matrix r = make(a.rows, a.cols);
	double amax = 0, scale;

	for (int i = 0; i < a.rows * a.cols; i++)
		amax = fmax(amax, fabs(a.v[i]));
	scale = exp2(floor(log2(most / amax)));
	for (int i = 0; i < a.rows * a.cols; i++) {
		double x = a.v[i] * scale, last;
		int e;

		(void)frexp(x, &e);
		last = ldexp(1, (e - 1 < low ? low : e - 1) - mantissa);
		r.v[i] = rint(x / last) * last / scale;
	}
	return r;
}

static struct matrix e4m3(struct matrix a)
{
	return rounded(a, 3, -6, 448);
}

static struct matrix e5m2(struct matrix a)
{
	return rounded(a, 2, -14, 57344);
}

static double gelu(double x)
{
	return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

/* Relative distance of what the tape made from what it should be. */
static double distance(const float *got, struct matrix want)
{
	double d = 0, n = 0;

	for (int i = 0; i < want.rows * want.cols; i++) {
		d += ((double)got[i] - want.v[i]) * ((double)got[i] - want.v[i]);
		n += want.v[i] * want.v[i];
	}
	return sqrt(d / n);
}

static struct matrix column_sums(struct matrix a)
{
	struct matrix r = make(1, a.cols);

	for (int i = 0; i < a.rows * a.cols; i++)
		r.v[i % a.cols] += a.v[i];
	return r;
}

struct leaf {
	float *v, *g;
	struct vfm_var *x;
	struct matrix m;
};

static struct leaf leaf(struct vfm_tape *t, int rows, int cols, uint64_t seed, double std, int ndim)
{
	struct leaf l = {vfm_arena_alloc(&arena, (size_t)(rows * cols) * 4),
		vfm_arena_alloc(&arena, (size_t)(rows * cols) * 4), NULL, make(rows, cols)};
	struct vfm_rng rng = vfm_rng_stream(seed, 7, 7, VFM_RNG_TEST);

	for (int i = 0; i < rows * cols; i++) {
		l.v[i] = (float)std * vfm_rng_normal(&rng, (uint64_t)i);
		l.m.v[i] = (double)l.v[i];
	}
	if (!t)
		return l;
	l.x = vfm_input(t, ndim == 1 ? vfm_t1(l.v, VFM_F32, cols) : vfm_t2(l.v, VFM_F32, rows, cols));
	l.x->g = ndim == 1 ? vfm_t1(l.g, VFM_F32, cols) : vfm_t2(l.g, VFM_F32, rows, cols);
	l.x->needs_grad = true;
	return l;
}

static void add_bias(struct matrix a, struct matrix b)
{
	for (int i = 0; i < a.rows * a.cols; i++)
		a.v[i] += b.v[i % a.cols];
}

/* y = fc2(gelu(fc1(x))): forward, and the gradients of everything. */
static void test_two_layers(void **state)
{
	struct vfm_device dev;
	struct vfm_tape *t;
	struct leaf x, w1, b1, w2, b2, dy;
	struct vfm_var *h, *y;
	struct matrix z, hm, want, dh, dz;

	(void)state;
	OK(vfm_device_open(&dev, "cpu", &err));
	t = vfm_tape_new(dev.stream);
	x = leaf(t, T, IN, 1, 3, 2);
	w1 = leaf(t, MID, IN, 2, 0.15, 2);
	b1 = leaf(t, 1, MID, 3, 0.3, 1);
	w2 = leaf(t, OUT, MID, 4, 0.002, 2);
	b2 = leaf(t, 1, OUT, 5, 0.01, 1);
	dy = leaf(NULL, T, OUT, 6, 1e-4, 2);
	h = vfm_g_linear(t, x.x,
		&(struct vfm_linear_args){.w = w1.x, .b = b1.x, .act = VFM_ACT_GELU_TANH, .out = VFM_F32, .fp8 = true});
	y = vfm_g_linear(t, h, &(struct vfm_linear_args){.w = w2.x, .b = b2.x, .out = VFM_F32, .fp8 = true});
	OK(vfm_tape_status(t, &err));

	z = times(e4m3(x.m), e4m3(w1.m));
	add_bias(z, b1.m);
	hm = make(T, MID);
	for (int i = 0; i < T * MID; i++)
		hm.v[i] = gelu(z.v[i]);
	want = times(e4m3(hm), e4m3(w2.m));
	add_bias(want, b2.m);
	assert_true(distance(y->v.data, want) < 5e-3);
	/* and it is a rounding: not the product of what was not rounded */
	assert_true(distance(h->v.data, hm) < 1e-5);
	{
		struct matrix plain = times(x.m, w1.m);

		add_bias(plain, b1.m);
		for (int i = 0; i < T * MID; i++)
			plain.v[i] = gelu(plain.v[i]);
		assert_true(distance(h->v.data, plain) > 5e-3 && distance(h->v.data, plain) < 0.1);
	}

	OK(vfm_tape_seed(t, y, vfm_t2(dy.v, VFM_F32, T, OUT), &err));
	OK(vfm_tape_backward(t, &err));
	dh = times(e5m2(dy.m), transposed(e4m3(w2.m)));
	dz = make(T, MID);
	for (int i = 0; i < T * MID; i++)
		dz.v[i] = dh.v[i] * (gelu(z.v[i] + 1e-5) - gelu(z.v[i] - 1e-5)) / 2e-5;
	assert_true(distance(b2.g, column_sums(dy.m)) < 1e-5);
	assert_true(distance(w2.g, times(transposed(e5m2(dy.m)), transposed(e4m3(hm)))) < 5e-3);
	assert_true(distance(b1.g, column_sums(dz)) < 1e-4);
	assert_true(distance(w1.g, times(transposed(e5m2(dz)), transposed(e4m3(x.m)))) < 5e-3);
	assert_true(distance(x.g, times(e5m2(dz), transposed(e4m3(w1.m)))) < 5e-3);

	vfm_tape_reset(t);
	vfm_tape_free(t);
	assert_int_equal(dev.dev->mem_now, 0);
	vfm_device_close(&dev);
	vfm_arena_release(&arena);
}

/* ---- a norm and the layer that reads it, in bf16 ---- */

struct normed {
	uint16_t y[T * MID], dx[T * IN];
	float dw[MID * IN];
	float amax[VFM_FP8_TENSORS];
};

/* Runs the two layers with what the norm does for the layer; past NULL: current scaling. */
static void run_normed(struct normed *r, struct vfm_norm_fp8 fp8, struct vfm_fp8_past *past)
{
	static uint16_t x[T * IN], w[MID * IN], dy[T * MID];
	struct vfm_rng rng = vfm_rng_stream(9, 7, 7, VFM_RNG_TEST);
	struct vfm_var *vx, *vw, *h, *y;
	struct vfm_device dev;
	struct vfm_tensor g;
	struct vfm_tape *t;

	for (int i = 0; i < T * IN; i++)
		x[i] = vfm_f32_to_bf16(vfm_rng_normal(&rng, (uint64_t)i));
	for (int i = 0; i < MID * IN; i++)
		w[i] = vfm_f32_to_bf16(0.1f * vfm_rng_normal(&rng, (uint64_t)i + 10000));
	for (int i = 0; i < T * MID; i++)
		dy[i] = vfm_f32_to_bf16(1e-3f * vfm_rng_normal(&rng, (uint64_t)i + 20000));
	*r = (struct normed){0};
	OK(vfm_device_open(&dev, "cpu", &err));
	t = vfm_tape_new(dev.stream);
	for (int k = 0; past && k < VFM_FP8_TENSORS; k++)
		past->amax[k] = vfm_t1(&r->amax[k], VFM_F32, 1);
	vx = vfm_leaf(t, vfm_t2(x, VFM_BF16, T, IN));
	vw = vfm_input(t, vfm_t2(w, VFM_BF16, MID, IN));
	vw->g = vfm_t2(r->dw, VFM_F32, MID, IN);
	vw->needs_grad = true;
	h = vfm_g_norm(
		t, vx, &(struct vfm_norm_args){.kind = VFM_NORM_LAYER, .eps = 1e-6f, .out = VFM_BF16, .fp8 = fp8});
	assert_true(!h->v.data == !!fp8.past);
	y = vfm_g_linear(t, h, &(struct vfm_linear_args){.w = vw, .out = VFM_BF16, .fp8 = true, .past = past});
	OK(vfm_tape_status(t, &err));
	memcpy(r->y, y->v.data, sizeof(r->y));
	OK(vfm_tape_seed(t, y, vfm_t2(dy, VFM_BF16, T, MID), &err));
	OK(vfm_tape_backward(t, &err));
	g = vfm_leaf_grad(vx);
	memcpy(r->dx, g.data, sizeof(r->dx));
	vfm_tape_reset(t);
	vfm_tape_free(t);
	assert_int_equal(dev.dev->mem_now, 0);
	vfm_device_close(&dev);
}

/* Results, gradients and maxima have the same bits whether a norm serves the layer or not. */
static void test_norm(void **state)
{
	static struct normed want, got;
	float history[VFM_FP8_TENSORS][3] = {{0, 2.5f, 1}, {0.3f, 0.2f, 0}, {0, 0, 0.004f}};
	struct vfm_fp8_past past = {.filled = true};

	(void)state;
	for (int k = 0; k < VFM_FP8_TENSORS; k++)
		past.history[k] = vfm_t1(history[k], VFM_F32, 3);
	run_normed(&want, (struct vfm_norm_fp8){0}, NULL);
	run_normed(&got, (struct vfm_norm_fp8){.amax = true}, NULL);
	assert_memory_equal(&got, &want, sizeof(want));
	run_normed(&want, (struct vfm_norm_fp8){0}, &past);
	run_normed(&got, (struct vfm_norm_fp8){.past = &past}, &past);
	assert_memory_equal(&got, &want, sizeof(want));
	assert_true(want.amax[VFM_FP8_X] > 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_two_layers),
		cmocka_unit_test(test_norm),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
