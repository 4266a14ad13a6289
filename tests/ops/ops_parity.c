/* ops_parity.c - every case on every level against the reference in float64. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/sim/kernels.h"
#include "emu_dev.h"
#include "ops_test.h"
#include "device/sim/estimate.h"

/* Split master weights: p_lo is compared as a part of w. */
static bool split_master(const struct vfm_case *c)
{
	return c->op == VFM_OP_adamw && vfm_has(&c->args.adamw.p_lo);
}

static double stored_value(const struct vfm_case *c, const struct vfm_tensor *t, int64_t i)
{
	if (split_master(c) && t == &c->args.adamw.w)
		return (double)vfm_master_join(
			((const uint16_t *)t->data)[i], ((const int16_t *)c->args.adamw.p_lo.data)[i]);
	return operand_get(t, t->data, i);
}

/* Returns the tolerance for a bias that a library rounds to bf16 before adding it (ops.h); the CPU does not.  CUDA
 * rounds that of a convolution for all products. */
static double bias_room(const struct op_level *l, const struct vfm_case *c)
{
	const struct vfm_tensor *b = c->op == VFM_OP_gemm ? &c->args.gemm.bias
		: c->op == VFM_OP_grouped_gemm            ? &c->args.grouped_gemm.bias
		: c->op == VFM_OP_conv3d                  ? &c->args.conv3d.bias
							  : NULL;
	bool rounds = device || l->rounds || (c->op == VFM_OP_conv3d && l == &levels[n_isa]);
	double most = 0;

	for (int64_t i = 0; rounds && b && i < vfm_numel(b); i++)
		most = fmax(most, fabs(operand_get(b, b->data, i)));
	return most * 0x1p-8;
}

/* Returns the tolerance for z, or with dact for the product, that is rounded to the dtype of c (ops.h): by a library,
 * and everywhere as far as it is an output.  With z < 0 the activation is small, but |z act'(z)| may be 0.25. */
static double act_room(const struct op_level *l, const struct vfm_case *c, double want)
{
	bool act = (c->op == VFM_OP_gemm && (c->args.gemm.act || c->args.gemm.dact)) ||
		(c->op == VFM_OP_grouped_gemm && (c->args.grouped_gemm.act || c->args.grouped_gemm.dact));

	bool output = c->op == VFM_OP_gemm ? c->args.gemm.act && vfm_has(&c->args.gemm.aux)
					   : c->args.grouped_gemm.act && vfm_has(&c->args.grouped_gemm.aux);

	return act && (device || l->rounds || output) ? (fabs(want) + 0.25) * 0x1p-8 : 0;
}

/* Returns the tolerance for the sums of a convolution that a library rounds before our kernel adds the bias, whose
 * tolerance is `bias`. */
static double conv_room(const struct op_level *l, const struct vfm_case *c, double want, double bias)
{
	return c->op == VFM_OP_conv3d && vfm_has(&c->args.conv3d.bias) && (device || l->rounds)
		? fabs(want) * 0x1p-8 + bias
		: 0;
}

/* A norm rounds y to bf16 before its maximum, and before fp8: the result is the next 8-bit float at the furthest. */
static double norm8_room(const struct vfm_case *c, const struct vfm_tensor *t, double want)
{
	if (c->op != VFM_OP_norm)
		return 0;
	if (t == &c->args.norm.amax)
		return fabs(want) * 0x1p-8;
	return t->dtype == VFM_F8E4M3 ? fmax(fabs(want) * 0x1p-3, 0x1p-9) : 0;
}

/* Whether the case is attention of bf16, which rounds probabilities, too. */
static bool rounds_probabilities(const struct vfm_case *c)
{
	if (c->op == VFM_OP_attn_bias)
		return c->args.attn_bias.q.dtype == VFM_BF16;
	return (c->op == VFM_OP_attn || c->op == VFM_OP_attn_bwd) && c->args.attn.q.dtype == VFM_BF16;
}

static void compare_operand(const struct op_level *l, const struct vfm_case *c, const struct vfm_operand *o,
	const struct vfm_tensor *t, const double *want)
{
	int64_t n = vfm_numel(t), worst = 0, there = 0;
	double rms = 0, most = 0, bias = t->dtype == VFM_BF16 ? bias_room(l, c) : 0;

	for (int64_t i = 0; i < n; i++) {
		there += want[i] != 0;
		rms += isfinite(want[i]) ? want[i] * want[i] : 0;
	}
	/* without the zeros, which would only make the rest look small */
	rms = there ? sqrt(rms / (double)there) : 0;
	for (int64_t i = 0; i < n; i++) {
		double x = stored_value(c, t, i), room = c->tol * (fabs(want[i]) + rms) + bias + 1e-30, e;

		if (t->dtype == VFM_BF16 && !(split_master(c) && t == &c->args.adamw.w))
			room += fabs(want[i]) * 0x1p-8 + act_room(l, c, want[i]) + conv_room(l, c, want[i], bias);
		if (rounds_probabilities(c))
			room += 0.04 * rms + fabs(want[i]) * 0x1p-8;
		room += norm8_room(c, t, want[i]);
		e = x == want[i] || (isnan(x) && isnan(want[i])) ? 0 : fabs(x - want[i]) / room;
		if (!(e <= most))
			most = isnan(e) ? INFINITY : e, worst = i;
	}
	if (most > 1)
		case_bad(l->name, c, "%s[%ld] = %.9g, expected %.9g (%.1f times the tolerance)", o->name, (long)worst,
			stored_value(c, t, worst), want[worst], most);
}

/* Gaps between rows and the guard at the end must be unchanged. */
static void check_gaps(const char *level, const struct vfm_case *c, const struct vfm_operand *o,
	const struct vfm_tensor *t, size_t bytes)
{
	size_t size = vfm_dtype_size(t->dtype);
	char *used = vfm_calloc(1, bytes);

	int64_t n = vfm_numel(t), cols = n ? t->shape[t->ndim - 1] : 0;

	for (int64_t i = 0; i < n; i += cols)
		memset(used + (size_t)operand_offset(t, i) * size, 1, (size_t)cols * size);
	for (size_t i = 0; i < bytes; i++)
		if (!used[i] && ((unsigned char *)t->data)[i] != VFM_CASE_FILLER) {
			case_bad(level, c, "%s: byte %zu, between or behind its rows, was overwritten", o->name, i);
			break;
		}
	free(used);
}

static int n_launched;

static void count_launch(const char *kernel)
{
	(void)kernel;
	n_launched++;
}

/* Whether launches are counted at this level: those of a convolution where its products are the library's. */
static bool counts_launches(const struct op_level *l, const struct vfm_case *c)
{
	return !device && l == &levels[c->op == VFM_OP_conv3d ? n_levels - 2 : n_isa];
}

/* The emulated kernels are those that a prediction counts (lib/device/sim/kernels.c), except around products of
 * NVIDIA's libraries. */
static void check_launches(const struct op_level *l, const struct vfm_case *c)
{
	int want = vfm_sim_kernels(c->op, &c->args);

	if (c->op == VFM_OP_gemm || c->op == VFM_OP_grouped_gemm || c->op == VFM_OP_attn || c->op == VFM_OP_attn_bwd)
		return;
	if (n_launched != want)
		case_bad(l->name, c, "%d launches, lib/device/sim/kernels.c counts %d", n_launched, want);
}

static void check_case(struct op_level *l, struct vfm_case *c, struct ref *want)
{
	const struct vfm_operand *o = vfm_op_info(c->op)->operands;
	bool emulated = counts_launches(l, c);
	struct vfm_err err = {0};
	int rc;

	n_launched = 0;
	vfm_emu_launched = emulated ? count_launch : NULL;
	rc = vfm_case_run(c, l->s, &err);
	vfm_emu_launched = NULL;
	if (rc < 0) {
		case_bad(l->name, c, "%s", err.msg);
		return;
	}
	if (emulated)
		check_launches(l, c);
	for (int i = 0; o[i].name; i++) {
		struct vfm_tensor *t = vfm_operand_of(&c->args, &o[i]);

		if (!vfm_has(t))
			continue;
		if (!split_master(c) || t != &c->args.adamw.p_lo)
			compare_operand(l, c, &o[i], t, want->v[i]); /* inputs too: ops must not change them */
		check_gaps(l->name, c, &o[i], t, c->bytes[i]);
	}
}

void test_parity(void **state)
{
	int n = 0;

	(void)state;
	n_bad = 0;
	for (size_t k = 0; k < cases.n; k++) {
		struct vfm_case *c = cases.v[k];
		struct ref want = {0};
		struct image m;

		if (!case_wanted(c))
			continue;
		image_take(&m, c, true);
		ref_of_case(&want, c);
		ref_run(&want);
		for (int i = 0; i < n_levels; i++) {
			if (!has_op(i, c->op))
				continue;
			image_put(&m, c);
			check_case(&levels[i], c, &want);
			n++;
		}
		image_release(&m, c);
		ref_release(&want);
	}
	print_message("%d runs of %zu cases on %d levels\n", n, cases.n, n_levels);
	assert_true(n > 0);
	assert_int_equal(n_bad, 0);
}
