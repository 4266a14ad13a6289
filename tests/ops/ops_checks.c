/* ops_checks.c - every op has a case and a CUDA kernel; operands of wrong shape, dtype or memory are errors before a
 * device is called. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "emu_dev.h"
#include "ops_test.h"

/* A device whose ops only count their calls. */
static int n_reached;
#define X(op)                                                                                                          \
	static int sink_##op(struct vfm_stream *s, const struct vfm_##op *a, struct vfm_err *err)                      \
	{                                                                                                              \
		(void)s, (void)a, (void)err;                                                                           \
		n_reached++;                                                                                           \
		return 0;                                                                                              \
	}
VFM_OP_LIST(X)
#undef X
static const struct vfm_ops sink_ops = {
#define X(op) .op = sink_##op,
	VFM_OP_LIST(X)
#undef X
};

static void expect_refusal(struct vfm_stream *s, struct vfm_case *c, const struct vfm_operand *o, const char *what)
{
	struct vfm_err err = {0};

	n_reached = 0;
	if (vfm_case_run(c, s, &err) != VFM_EUSAGE || n_reached)
		case_bad("checks", c, "operand '%s' with %s is not refused", o->name, what);
	else if (!strstr(err.msg, vfm_op_info(c->op)->name))
		case_bad("checks", c, "the error does not name the op: %s", err.msg);
}

static void refuse_wrong_operand(struct vfm_stream *s, struct vfm_case *c, const struct vfm_operand *o)
{
	struct vfm_tensor *t = vfm_operand_of(&c->args, o), keep = *t;
	bool any_size = c->op == VFM_OP_fill || (c->op == VFM_OP_sumsq && t == &c->args.sumsq.x) ||
		c->op == VFM_OP_moe_count || (c->op == VFM_OP_moe_topk_token && t == &c->args.moe_topk_token.score) ||
		(c->op == VFM_OP_quant && t == &c->args.quant.history) ||
		(c->op == VFM_OP_norm && t == &c->args.norm.history) ||
		(c->op == VFM_OP_amax_push && t == &c->args.amax_push.past) ||
		(c->op == VFM_OP_decode_weights && t == &c->args.decode_weights.scale) ||
		(c->op == VFM_OP_moe_own && t == &c->args.moe_own.own) ||
		(c->op == VFM_OP_row_dot && t == &c->args.row_dot.x && !vfm_has(&c->args.row_dot.y));
	int last = t->ndim - 1;

	t->shape[last]++;
	if (last > 0)
		t->stride[last - 1]++;
	if (!any_size)
		expect_refusal(s, c, o, "a longer row");
	*t = keep;
	t->dtype = VFM_I8;
	expect_refusal(s, c, o, "i8 elements");
	*t = keep;
	t->ndim = t->ndim == VFM_MAX_DIM ? VFM_MAX_DIM - 1 : t->ndim + 1;
	t->shape[t->ndim - 1] = t->stride[t->ndim - 1] = 1;
	expect_refusal(s, c, o, "another number of dimensions");
	*t = keep;
	if (vfm_numel(t)) {
		t->data = NULL;
		expect_refusal(s, c, o, "no memory");
		*t = keep;
		t->stride[last] = 2;
		if (t->shape[last] > 1)
			expect_refusal(s, c, o, "strided elements");
		*t = keep;
	}
}

/* Every op has a case, so that all tests run it, and a CUDA kernel. */
static void find_cases(void)
{
	for (int op = 0; op < VFM_OP_N; op++) {
		size_t k = 0;

		while (k < cases.n && !((int)cases.v[k]->op == op && cases.v[k]->flags & VFM_CASE_TEST))
			k++;
		if (k == cases.n)
			fail_msg("the op %s has no case", vfm_op_info(op)->name);
		if (!vfm_emu_has(op))
			fail_msg("the op %s has no CUDA kernel", vfm_op_info(op)->name);
	}
}

void test_checks(void **state)
{
	static const struct vfm_dev_table table = {.name = "sink", .ops = &sink_ops};
	struct vfm_dev dev = {.t = &table};
	struct vfm_stream s = {.dev = &dev};
	static _Alignas(16) char memory;

	(void)state;
	find_cases();
	n_bad = 0;
	for (size_t k = 0; k < cases.n; k++) {
		struct vfm_case *c = cases.v[k];
		const struct vfm_operand *o = vfm_op_info(c->op)->operands;
		struct vfm_err err = {0};

		for (int i = 0; o[i].name; i++)
			vfm_operand_of(&c->args, &o[i])->data = &memory;
		n_reached = 0;
		if (vfm_case_run(c, &s, &err) < 0 || n_reached != 1)
			case_bad("checks", c, "refused: %s", err.msg);
		for (int i = 0; o[i].name; i++)
			if (vfm_has(vfm_operand_of(&c->args, &o[i])))
				refuse_wrong_operand(&s, c, &o[i]);
		for (int i = 0; i < 2 && c->seqs[i].cu; i++) {
			c->seqs[i].total++;
			expect_refusal(&s, c, &o[0], "other seqs");
			c->seqs[i].total--;
		}
		for (int i = 0; o[i].name; i++)
			vfm_operand_of(&c->args, &o[i])->data = NULL;
	}
	assert_int_equal(n_bad, 0);
}
