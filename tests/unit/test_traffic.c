/* Bytes that the ops of a block read and write outside matrix products and attention, at the dimensions of training on
 * a GPU.  The device of this test only adds up the costs of the ops that the tape issues: its memory has addresses and
 * no contents. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/par.h"
#include "ok.h"
#include "net/diffusion/model.h"
#include "net/nn/scales.h"
#include "train/step/micro.h"
#include "train/step/synthetic.h"

/* ---- the device ---- */

static struct traffic {
	double bytes[VFM_OP_N], zeroed;
	int calls[VFM_OP_N];
} total;

#define X(op)                                                                                                          \
	static int count_##op(struct vfm_stream *s, const struct vfm_##op *a, struct vfm_err *e)                       \
	{                                                                                                              \
		(void)s, (void)e;                                                                                      \
		total.bytes[VFM_OP_##op] += vfm_cost_##op(a).bytes;                                                    \
		total.calls[VFM_OP_##op]++;                                                                            \
		return 0;                                                                                              \
	}
VFM_OP_LIST(X)
#undef X
static const struct vfm_ops counting_ops = {
#define X(op) .op = count_##op,
	VFM_OP_LIST(X)
#undef X
};
static const char *const op_names[] = {
#define X(op) #op,
	VFM_OP_LIST(X)
#undef X
};

static void *fake_alloc(struct vfm_stream *s, size_t bytes, const char *what, struct vfm_err *e)
{
	static char *next = (char *)((uintptr_t)1 << 40);
	char *p = next;

	(void)s, (void)what, (void)e;
	next += (bytes + 256) / 256 * 256;
	return p;
}

static void fake_free(struct vfm_stream *s, void *p, size_t bytes)
{
	(void)s, (void)p, (void)bytes;
}

static int fake_to_device(struct vfm_stream *s, void *dst, const void *host, size_t bytes, struct vfm_err *e)
{
	(void)s, (void)dst, (void)host, (void)bytes, (void)e;
	return 0;
}

static int count_zero(struct vfm_stream *s, void *dst, size_t bytes, struct vfm_err *e)
{
	(void)s, (void)dst, (void)e;
	total.zeroed += (double)bytes;
	return 0;
}

static const struct vfm_dev_table table = {.name = "counter",
	.ops = &counting_ops,
	.alloc = fake_alloc,
	.free = fake_free,
	.to_device = fake_to_device,
	.zero = count_zero};
static struct vfm_dev dev = {.t = &table, .name = "counter"};
static struct vfm_stream stream = {.dev = &dev};

/* ---- a step ---- */

/* Counts forward and backward of a pack of one sample. */
static struct traffic count_step(struct vfm_config *c, int64_t layers, struct vfm_synthetic sample)
{
	struct vfm_tape *tape = vfm_tape_new(&stream);
	struct vfm_params ps;
	struct vfm_model *net;
	struct vfm_pack b;
	struct vfm_micro u;
	struct vfm_var *y;
	struct vfm_tensor seed;

	c->model.layers = layers;
	vfm_params_init(&ps, &stream, vfm_mesh_one());
	net = vfm_model_new(&c->model, &ps);
	vfm_model_set_residual(net, (enum vfm_dtype)c->train.residual);
	ps.fp8 = c->train.fp8 != VFM_FP8_NONE;
	OK(vfm_params_alloc(&ps, (enum vfm_dtype)c->train.dtype, true, &err));
	if (c->train.fp8 == VFM_FP8_DELAYED) {
		OK(vfm_scales_new(&ps, 16, &err));
		OK(vfm_scales_step(&ps, (struct vfm_tensor){0}, &err));
	}
	OK(vfm_synthetic_pack(&b, &sample, 1, &c->model, 5, &err));
	OK(vfm_micro_make(
		&u, &stream, &(struct vfm_micro_opts){.config = c, .mesh = vfm_mesh_one(), .ends = true}, &b, &err));
	OK(vfm_params_grad_begin(&ps, &err));
	total = (struct traffic){0};
	y = vfm_model_forward(net, tape, &u.in, 0, NULL, NULL);
	OK(vfm_tape_status(tape, &err));
	seed = y->v;
	OK(vfm_tape_seed(tape, y, seed, &err));
	OK(vfm_tape_backward(tape, &err));
	vfm_tape_free(tape);
	vfm_micro_release(&u);
	vfm_pack_release(&b);
	vfm_model_free(net);
	vfm_params_release(&ps);
	return total;
}

static bool is_product(int op)
{
	return op == VFM_OP_gemm || op == VFM_OP_grouped_gemm || op == VFM_OP_attn || op == VFM_OP_attn_bwd;
}

/* Returns the bytes that one block adds, and prints them by op. */
static double block_bytes(const char *what, struct vfm_config *c, struct vfm_synthetic sample)
{
	struct traffic few = count_step(c, 2, sample), many = count_step(c, 3, sample);
	double sum = many.zeroed - few.zeroed;
	int calls = 0;

	for (int op = 0; op < VFM_OP_N; op++) {
		double bytes = many.bytes[op] - few.bytes[op];

		if (many.calls[op] > few.calls[op])
			print_message("  %-18s %2d calls %9.1f MB%s\n", op_names[op], many.calls[op] - few.calls[op],
				bytes / 1e6, is_product(op) ? "  (not in the sum)" : "");
		sum += is_product(op) ? 0 : bytes;
		calls += many.calls[op] - few.calls[op];
	}
	print_message("  zeroed                      %9.1f MB\n  %s: %d calls, %.2f GB outside products\n",
		(many.zeroed - few.zeroed) / 1e6, what, calls, sum / 1e9);
	return sum;
}

static void check_block(const char *preset, int residual, int fp8, struct vfm_synthetic sample, double most)
{
	struct vfm_config c;
	char what[64];
	double bytes;

	vfm_config_defaults(&c);
	OK(vfm_model_preset(preset, &c.model, &err));
	OK(vfm_model_check(&c.model, &err));
	c.train.dtype = VFM_BF16;
	c.train.residual = residual;
	c.train.fp8 = fp8;
	snprintf(what, sizeof(what), "%s, residual %s%s", preset, vfm_dtype_name((enum vfm_dtype)residual),
		fp8 == VFM_FP8_DELAYED           ? ", fp8 delayed"
			: fp8 == VFM_FP8_CURRENT ? ", fp8 current"
						 : "");
	bytes = block_bytes(what, &c, sample);
	if (!(bytes <= most))
		fail_msg("%s: a block moves %.3f GB, at most %.3f are allowed", what, bytes / 1e9, most / 1e9);
}

/* dit-7b at 8,192 tokens.  A pass over [T,D] in bf16 is 67.1 MB; a block makes 46 and some for statistics, RoPE tables
 * and modulation. */
static void test_dit_7b(void **state)
{
	struct vfm_synthetic sample = {{32, 16, 16}, 512, 1};

	(void)state;
	check_block("dit-7b", VFM_BF16, VFM_FP8_NONE, sample, 3.3e9);
	check_block("dit-7b", VFM_F32, VFM_FP8_NONE, sample, 4.5e9);
}

/* Norms compute the amax of their results with current scaling; with delayed scaling they quantize them, from the
 * second step on.  That saves 1.5 and 4.5 passes over [T,D] in bf16; weights, of which a block has 268 million, are
 * quantized twice for each pack. */
static void test_fp8(void **state)
{
	struct vfm_synthetic sample = {{32, 16, 16}, 512, 1};

	(void)state;
	check_block("dit-7b", VFM_BF16, VFM_FP8_CURRENT, sample, 9.7e9);
	check_block("dit-7b", VFM_BF16, VFM_FP8_DELAYED, sample, 7.2e9);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_dit_7b),
		cmocka_unit_test(test_fp8),
	};

	vfm_par_set_threads(1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
