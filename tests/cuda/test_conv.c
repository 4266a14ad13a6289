/* Convolutions of the CUDA device through cuDNN, without either: conv_dnn.c unchanged, im2col and the
 * products after it emulated, and graphs executed on the host (dnn_ref.c).  Every case of the list is compared with the
 * CPU. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "device/cuda/conv_dnn.h"
#include "device/cuda/cuda_dev.h"
#include "dev_stub.h"
#include "dnn_ref.h"

static bool no_cudnn;
static int n_opened, n_warned;
static char warned[512];

cudnnStatus_t cudnnCreate(cudnnHandle_t *h)
{
	static int it;

	n_opened++;
	*h = (cudnnHandle_t)(void *)&it;
	return no_cudnn ? CUDNN_STATUS_NOT_INITIALIZED : CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t h)
{
	(void)h;
	n_opened--;
	return CUDNN_STATUS_SUCCESS;
}

static void warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void warn(const char *fmt, ...)
{
	va_list ap;

	n_warned++;
	va_start(ap, fmt);
	vsnprintf(warned, sizeof(warned), fmt, ap);
	va_end(ap);
}

static double at(const struct vfm_tensor *t, const char *mem, int64_t i)
{
	return t->dtype == VFM_F32 ? (double)((const float *)(const void *)mem)[i]
				   : (double)vfm_bf16_to_f32(((const uint16_t *)(const void *)mem)[i]);
}

/* Of bf16, one rounding on either side. */
static void compare_y(const struct vfm_case *c, const char *want, const char *got)
{
	const struct vfm_tensor *t = &c->args.conv3d.y;
	const double tol = 2 * c->tol + (t->dtype == VFM_F32 ? 0 : 0x1p-7);
	double rms = 0;

	for (int64_t i = 0; i < vfm_numel(t); i++)
		rms += pow(at(t, want, i), 2) / (double)vfm_numel(t);
	rms = sqrt(rms);
	for (int64_t i = 0; i < vfm_numel(t); i++)
		if (!(fabs(at(t, want, i) - at(t, got, i)) <= tol * (fabs(at(t, want, i)) + rms)))
			fail_msg("%s: y[%ld] is %g, not %g (rms %g)", c->name, (long)i, at(t, got, i), at(t, want, i),
				rms);
}

/* Runs a case on the device and on the CPU. */
static void check(struct vfm_case *c, struct vfm_cuda *dev)
{
	const struct vfm_operand *o = vfm_op_info(VFM_OP_conv3d)->operands;
	struct vfm_stream s = {.dev = &dev->dev};
	struct vfm_err err = {0};
	char *want;

	assert_int_equal(vfm_case_alloc(c, cpu_s, 1, &err), 0);
	assert_int_equal(vfm_case_run(c, cpu_s, &err), 0);
	want = vfm_malloc(vfm_nbytes(&c->args.conv3d.y) + 1);
	memcpy(want, c->args.conv3d.y.data, vfm_nbytes(&c->args.conv3d.y));
	vfm_case_free(c, cpu_s);
	assert_int_equal(vfm_case_alloc(c, cpu_s, 1, &err), 0);
	if (vfm_cuda_conv3d(&s, &c->args.conv3d, &err) < 0)
		fail_msg("%s: %s", c->name, err.msg);
	compare_y(c, want, c->args.conv3d.y.data);
	for (int i = 0; o[i].name; i++) /* the guard */
		if (vfm_has(vfm_operand_of(&c->args, &o[i])))
			for (size_t b = vfm_nbytes(vfm_operand_of(&c->args, &o[i])); b < c->bytes[i]; b++)
				assert_int_equal(
					((unsigned char *)vfm_operand_of(&c->args, &o[i])->data)[b], VFM_CASE_FILLER);
	free(want);
	vfm_case_free(c, cpu_s);
}

/* Runs all cases whose names contain `among`.  Returns the number of those that cuDNN computed. */
static int all(struct vfm_cuda *dev, const char *mode, const char *among)
{
	int n = 0, ran = 0;

	setenv("VFM_CUDA_CONV", mode, 1);
	for (size_t i = 0; i < cases.n; i++) {
		struct vfm_case *c = cases.v[i];

		if (c->op != VFM_OP_conv3d || !(c->flags & VFM_CASE_TEST) || !strstr(c->name, among))
			continue;
		dnn_ref_ran = 0;
		check(c, dev);
		if (dnn_ref_ran)
			assert_false(c->args.conv3d.up);
		n++;
		ran += dnn_ref_ran == DNN_REF_CONV;
	}
	print_message("%d cases, %d by cuDNN\n", n, ran);
	assert_true(n > 1);
	vfm_cuda_conv_free(dev->conv);
	dev->conv = NULL;
	assert_int_equal(n_opened, 0);
	return ran;
}

static void test_cases(void **state)
{
	struct vfm_cuda dev = {.sm = 90, .warn = warn};

	(void)state;
	n_warned = 0;
	assert_true(all(&dev, "cudnn", "") > 60);
	assert_int_equal(n_warned, 0);
}

/* By default cuDNN is not opened; another word is an error. */
static void test_modes(void **state)
{
	struct vfm_cuda dev = {.sm = 90, .warn = warn};
	struct vfm_stream s = {.dev = &dev.dev};
	struct vfm_conv3d a = {0};
	struct vfm_err err = {0};

	(void)state;
	no_cudnn = true;
	n_warned = 0;
	assert_int_equal(all(&dev, "", "x32-16"), 0);
	assert_int_equal(all(&dev, "im2col", "x16-32"), 0);
	assert_int_equal(n_warned, 0);
	no_cudnn = false;
	setenv("VFM_CUDA_CONV", "fast", 1);
	assert_int_equal(vfm_cuda_conv3d(&s, &a, &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "'fast'"));
	setenv("VFM_CUDA_CONV", "", 1);
}

/* im2col computes what cuDNN refuses when the plan is built, and when it first runs; one warning names the shape and
 * the reason, also if the shape comes again. */
static void check_refusal(const char *says)
{
	static const char among[] = "bf16/3x3x3/s111/z2p0/pad1111/2x5x7x16-32";
	struct vfm_cuda dev = {.sm = 90, .warn = warn};
	char want[128];

	n_warned = 0;
	setenv("VFM_CUDA_CONV", "cudnn", 1);
	dnn_ref_ran = 0;
	for (int again = 0; again < 2; again++)
		for (size_t i = 0; i < cases.n; i++)
			if (strstr(cases.v[i]->name, among))
				check(cases.v[i], &dev);
	assert_int_equal(n_warned, 1);
	assert_int_equal(dnn_ref_ran, 0);
	snprintf(want, sizeof(want),
		"conv3d of bf16, kernel 3x3x3, 5 x 7 pixels, 16 to 32 channels: computed by im2col (%s)", says);
	assert_string_equal(warned, want);
	vfm_cuda_conv_free(dev.conv);
	assert_int_equal(n_opened, 0);
}

static void test_refused(void **state)
{
	(void)state;
	dnn_ref_refuse_build = DNN_REF_CONV;
	check_refusal("no engine for form 32");
	dnn_ref_refuse_build = 0;
	dnn_ref_refuse_run = DNN_REF_CONV;
	check_refusal("no run of form 32");
	dnn_ref_refuse_run = 0;
}

/* A library that cannot be opened is tried once. */
static void test_no_library(void **state)
{
	struct vfm_cuda dev = {.sm = 90, .warn = warn};

	(void)state;
	no_cudnn = true;
	n_warned = n_opened = 0;
	setenv("VFM_CUDA_CONV", "cudnn", 1);
	for (size_t i = 0; i < cases.n; i++)
		if (strstr(cases.v[i]->name, "conv3d/bf16/3x3x3/s111/") && cases.v[i]->flags & VFM_CASE_TEST)
			check(cases.v[i], &dev);
	assert_int_equal(n_opened, 1);
	assert_int_equal(n_warned, 1);
	assert_non_null(strstr(warned, "convolutions: computed by im2col (opening it"));
	vfm_cuda_conv_free(dev.conv);
	assert_int_equal(n_opened, 1);
	no_cudnn = false;
	n_opened = 0;
}

/* A clip in parts, whose frames before x lie apart and in the other order, has the bits of the whole clip. */
static void test_parts(void **state)
{
	enum { T = 4, H = 5, W = 6, C = 8, O = 16, IN = H * W * C, OUT = H * W * O };
	static float x[T * IN], apart[2 * IN], w[27 * C * O], bias[O], whole[T * OUT], y[T * OUT];
	struct vfm_cuda dev = {.sm = 90, .warn = warn};
	struct vfm_stream s = {.dev = &dev.dev};
	struct vfm_err err = {0};
	struct vfm_conv3d a = {.weight = vfm_t3(w, VFM_F32, O, 27, C),
		.bias = vfm_t1(bias, VFM_F32, O),
		.kernel = {3, 3, 3},
		.stride = {1, 1, 1},
		.pad = {1, 1, 1, 1}};

	(void)state;
	setenv("VFM_CUDA_CONV", "cudnn", 1);
	for (int i = 0; i < T * IN; i++)
		x[i] = (float)(i * 37 % 101) / 17 - 3;
	for (int i = 0; i < 27 * C * O; i++)
		w[i] = (float)(i * 53 % 89) / 19 - 2;
	for (int i = 0; i < O; i++)
		bias[i] = (float)i;
	a.x = vfm_t4(x, VFM_F32, T, H, W, C), a.y = vfm_t4(whole, VFM_F32, T, H, W, O), a.zeros = 2;
	assert_int_equal(vfm_cuda_conv3d(&s, &a, &err), 0);
	for (int t = 0; t < T; t++) {
		a.zeros = t < 2 ? 2 - t : 0;
		a.x.shape[0] = a.y.shape[0] = 1;
		a.x.data = x + t * IN, a.y.data = y + t * OUT;
		memset(&a.past, 0, sizeof(a.past));
		if (t) {
			const int n = t < 2 ? 1 : 2;

			a.past = vfm_t4(apart + (n - 1) * IN, VFM_F32, n, H, W, C);
			a.past.stride[0] = -IN;
			for (int k = 0; k < n; k++)
				memcpy(apart + (n - 1 - k) * IN, x + (t - n + k) * IN, IN * sizeof(*x));
		}
		dnn_ref_ran = 0;
		assert_int_equal(vfm_cuda_conv3d(&s, &a, &err), 0);
		assert_int_equal(dnn_ref_ran, DNN_REF_CONV);
	}
	assert_memory_equal(whole, y, sizeof(y));
	vfm_cuda_conv_free(dev.conv);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cases),
		cmocka_unit_test(test_modes),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_no_library),
		cmocka_unit_test(test_parts),
	};

	return cmocka_run_group_tests(tests, start, end);
}
