/* Adapters on two small layers: each kind against its formula in double, any slice, several files, and what is
 * refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/mem.h"
#include "ckpt/adapters.h"
#include "ckpt/safetensors.h"
#include "io/file.h"

enum { OUT = 6, IN = 4, INNER = 2 /* of the convolution */, RANK = 2 };

static char folder[] = "/tmp/vfm-test-adapters-XXXXXX";

/* The value of element i of a tensor: any numbers that differ from tensor to tensor. */
static double value(const char *name, int64_t i)
{
	uint32_t h = 2166136261U;

	for (const char *p = name; *p; p++)
		h = (h ^ (uint8_t)*p) * 16777619U;
	h = (h ^ (uint32_t)i) * 2654435761U;
	return (float)((double)(h >> 8) / (1 << 24) - .4);
}

static int put_value(void *ctx, const struct vfm_st_tensor *t, FILE *f, struct vfm_err *err)
{
	for (int64_t i = 0; i < vfm_shape_numel(t->ndim, t->shape); i++) {
		const float x = strstr(t->name, ".alpha") ? 3 : (float)value(t->name, i);
		int rc = vfm_st_put_bytes(ctx, &x, sizeof(x), f, err);

		if (rc < 0)
			return rc;
	}
	return 0;
}

static char *write_file(const char *name, struct vfm_st_tensor *t, size_t n)
{
	char *path = vfm_strfmt("%s/%s.safetensors", folder, name);
	struct vfm_err err;

	assert_int_equal(vfm_st_write(path, t, n, NULL, 0, put_value, folder, &err), 0);
	return path;
}

#define TENSOR(n, ...)                                                                                                 \
	{                                                                                                              \
		.name = (n), .dtype = VFM_F32, .ndim = sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), .shape = {  \
			__VA_ARGS__                                                                                    \
		}                                                                                                      \
	}

/* A linear layer and a convolution. */
static struct vfm_ckpt *open_base(void)
{
	struct vfm_st_tensor t[] = {TENSOR("b.0.fc.weight", OUT, IN), TENSOR("b.0.conv.weight", OUT, IN, INNER)};
	char *path = write_file("base", t, 2);
	struct vfm_ckpt *c;
	struct vfm_err err;

	assert_int_equal(vfm_ckpt_open(&c, path, &err), 0);
	free(path);
	return c;
}

static int attach_file(struct vfm_ckpt *c, const char *path, double scale, struct vfm_err *err)
{
	return vfm_ckpt_attach(c, &(struct vfm_attach){.path = path, .part = "model", .scale = scale}, err);
}

/* Compares all slices of a tensor with want [n]. */
static void check_slices(struct vfm_ckpt *c, const char *name, const double *want)
{
	const struct vfm_ckpt_tensor *t = vfm_ckpt_find(c, name);
	struct vfm_err err;
	float x[OUT * IN * INNER];

	for (int64_t a = 0; a < t->numel; a++)
		for (int64_t b = a + 1; b <= t->numel; b++) {
			struct vfm_slice s = {.a = a, .b = b};

			assert_int_equal(vfm_ckpt_read_tensor(c, t, &s, VFM_F32, x, &err), 0);
			for (int64_t i = a; i < b; i++)
				if (fabs(x[i - a] - want[i]) > 2e-6 * (1 + fabs(want[i])))
					fail_msg("%s[%d, %d): element %d is %.9g, not %.9g", name, (int)a, (int)b,
						(int)i, x[i - a], want[i]);
		}
}

static double factor(const char *up, const char *down, int64_t cols, int64_t i, int64_t j)
{
	double sum = 0;

	for (int64_t k = 0; k < RANK; k++)
		sum += value(up, i * RANK + k) * value(down, k * cols + j);
	return sum;
}

/* Sets want to W + d (m (W + p) / |W + p| - W); by_input: one norm for each `inner` columns; magnitude NULL: W + d
 * p. */
static void decompose(
	const char *weight, const double *p, const char *magnitude, int64_t cols, int64_t inner, double d, double *want)
{
	double square[OUT * IN * INNER] = {0};

	for (int64_t i = 0; i < OUT * cols; i++)
		square[inner ? i % cols / inner : i / cols] += pow(value(weight, i) + p[i], 2);
	for (int64_t i = 0; i < OUT * cols; i++) {
		const int64_t k = inner ? i % cols / inner : i / cols;
		const double w = value(weight, i), g = magnitude ? value(magnitude, k) / sqrt(square[k]) : 1;

		want[i] = w + d * (g * (w + p[i]) - w);
	}
}

static void test_lora_with_magnitude(void **state)
{
	struct vfm_st_tensor t[] = {TENSOR("x.b.0.fc.lora_A.weight", RANK, IN),
		TENSOR("x.b.0.fc.lora_B.weight", OUT, RANK), TENSOR("x.b.0.fc.alpha", 1),
		TENSOR("x.b.0.fc.lora_magnitude_vector", OUT)};
	struct vfm_ckpt *c = open_base();
	char *path = write_file("dora", t, 4);
	double p[OUT * IN], want[OUT * IN];
	struct vfm_err err;

	(void)state;
	for (int64_t i = 0; i < OUT * IN; i++)
		p[i] = 1.5 * factor("x.b.0.fc.lora_B.weight", "x.b.0.fc.lora_A.weight", IN, i / IN, i % IN);
	assert_int_equal(attach_file(c, path, .5, &err), 0);
	decompose("b.0.fc.weight", p, "x.b.0.fc.lora_magnitude_vector", IN, 0, .5, want);
	check_slices(c, "b.0.fc.weight", want);
	vfm_ckpt_close(c);
	free(path);
}

static void test_loha(void **state)
{
	struct vfm_st_tensor t[] = {TENSOR("b_0_fc.hada_w1_a", OUT, RANK), TENSOR("b_0_fc.hada_w1_b", RANK, IN),
		TENSOR("b_0_fc.hada_w2_a", OUT, RANK), TENSOR("b_0_fc.hada_w2_b", RANK, IN)};
	struct vfm_ckpt *c = open_base();
	char *path = write_file("loha", t, 4);
	double p[OUT * IN], want[OUT * IN];
	struct vfm_err err;

	(void)state;
	for (int64_t i = 0; i < OUT * IN; i++)
		p[i] = factor("b_0_fc.hada_w1_a", "b_0_fc.hada_w1_b", IN, i / IN, i % IN) *
			factor("b_0_fc.hada_w2_a", "b_0_fc.hada_w2_b", IN, i / IN, i % IN);
	assert_int_equal(attach_file(c, path, -1, &err), 0);
	decompose("b.0.fc.weight", p, NULL, IN, 0, -1, want);
	check_slices(c, "b.0.fc.weight", want);
	vfm_ckpt_close(c);
	free(path);
}

/* w1 [3, 2] is whole, w2 [2, 2 inner] a product; the magnitudes are those of input channels. */
static void test_lokr_of_convolution(void **state)
{
	enum { COLS = IN * INNER, COLS2 = COLS / 2 };
	struct vfm_st_tensor t[] = {TENSOR("b_0_conv.lokr_w1", 3, 2), TENSOR("b_0_conv.lokr_w2_a", 2, RANK),
		TENSOR("b_0_conv.lokr_w2_b", RANK, COLS2), TENSOR("b_0_conv.alpha", 1),
		TENSOR("b_0_conv.dora_scale", 1, IN, 1)};
	struct vfm_ckpt *c = open_base();
	char *path = write_file("lokr", t, 5);
	double p[OUT * COLS], want[OUT * COLS];
	struct vfm_err err;

	(void)state;
	for (int64_t i = 0; i < OUT * COLS; i++) {
		const int64_t row = i / COLS, col = i % COLS;

		p[i] = 1.5 * value("b_0_conv.lokr_w1", row / 2 * 2 + col / COLS2) *
			factor("b_0_conv.lokr_w2_a", "b_0_conv.lokr_w2_b", COLS2, row % 2, col % COLS2);
	}
	assert_int_equal(attach_file(c, path, 1, &err), 0);
	decompose("b.0.conv.weight", p, "b_0_conv.dora_scale", COLS, INNER, 1, want);
	check_slices(c, "b.0.conv.weight", want);
	vfm_ckpt_close(c);
	free(path);
}

/* Differences follow from the base model alone, so the order of files has no effect; a refused one adds nothing. */
static void test_several_files(void **state)
{
	struct vfm_st_tensor dora[] = {TENSOR("x.b.0.fc.lora_A.weight", RANK, IN),
		TENSOR("x.b.0.fc.lora_B.weight", OUT, RANK), TENSOR("x.b.0.fc.lora_magnitude_vector", OUT)};
	struct vfm_st_tensor lokr[] = {TENSOR("b_0_fc.lokr_w1", 3, 2), TENSOR("b_0_fc.lokr_w2", 2, 2)};
	struct vfm_st_tensor bad[] = {
		TENSOR("b.0.fc.diff", OUT, IN), TENSOR("b.0.fc.lokr_w1", 3, 2), TENSOR("b.0.fc.lokr_w2", 2, 3)};
	char *path[] = {write_file("first", dora, 3), write_file("second", lokr, 2), write_file("bad", bad, 3)};
	struct vfm_ckpt *c[3] = {open_base(), open_base(), open_base()};
	const struct vfm_ckpt_tensor *t;
	double p[OUT * IN], want[OUT * IN];
	struct vfm_err err;

	(void)state;
	for (int64_t i = 0; i < OUT * IN; i++)
		p[i] = factor("x.b.0.fc.lora_B.weight", "x.b.0.fc.lora_A.weight", IN, i / IN, i % IN);
	decompose("b.0.fc.weight", p, "x.b.0.fc.lora_magnitude_vector", IN, 0, 1, want);
	for (int64_t i = 0; i < OUT * IN; i++)
		want[i] += 2 * value("b_0_fc.lokr_w1", i / IN / 2 * 2 + i % IN / 2) *
			value("b_0_fc.lokr_w2", i / IN % 2 * 2 + i % IN % 2);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(attach_file(c[i], path[i], i ? 2 : 1, &err), 0);
		assert_int_equal(attach_file(c[i], path[2], 1, &err), VFM_EUSAGE);
		assert_non_null(strstr(err.msg, "b.0.fc (LoKr) [6, 6] in the place of [6, 4]"));
		assert_int_equal(attach_file(c[i], path[!i], i ? 1 : 2, &err), 0);
		check_slices(c[i], "b.0.fc.weight", want);
	}
	assert_int_equal(attach_file(c[2], path[2], 1, &err), VFM_EUSAGE);
	t = vfm_ckpt_find(c[2], "b.0.fc.weight");
	for (int64_t i = 0; i < t->numel; i++)
		want[i] = value("b.0.fc.weight", i);
	check_slices(c[2], "b.0.fc.weight", want);
	for (int i = 0; i < 3; i++) {
		vfm_ckpt_close(c[i]);
		free(path[i]);
	}
}

static int make_folder(void **state)
{
	(void)state;
	return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
	(void)state;
	return vfm_rm_rf(folder, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_lora_with_magnitude), cmocka_unit_test(test_loha),
		cmocka_unit_test(test_lokr_of_convolution), cmocka_unit_test(test_several_files)};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
