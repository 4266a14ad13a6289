/* ops_rules.c - which forward a backward differentiates. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ops_test.h"

#define B(op, f) offsetof(struct vfm_##op, f)
static const struct op_rule rules[] = {
	{VFM_OP_norm_bwd, VFM_OP_norm, B(norm_bwd, dy), B(norm, y),
		{{B(norm_bwd, dx), B(norm, x)}, {B(norm_bwd, dweight), B(norm, weight)},
			{B(norm_bwd, dbias), B(norm, bias)}, {B(norm_bwd, dshift), B(norm, shift)},
			{B(norm_bwd, dscale), B(norm, scale)}, {B(norm_bwd, dh), B(norm, h)},
			{B(norm_bwd, dgate), B(norm, gate)}},
		7, {{B(norm_bwd, mean), B(norm, mean)}, {B(norm_bwd, rstd), B(norm, rstd)}}, 2, 0, B(norm, sum)},
	{VFM_OP_gate_bwd, VFM_OP_gate, B(gate_bwd, dy), B(gate, y),
		{{B(gate_bwd, dh), B(gate, h)}, {B(gate_bwd, dgate), B(gate, gate)}}, 2, {{0}}, 0, 0, 0},
	{VFM_OP_add_row_bwd, VFM_OP_add_row, B(add_row_bwd, dy), B(add_row, y),
		{{B(add_row_bwd, drow), B(add_row, row)}}, 1, {{0}}, 0, 0, 0},
	{VFM_OP_qk_norm_rope_bwd, VFM_OP_qk_norm_rope, B(qk_norm_rope_bwd, dy), B(qk_norm_rope, y),
		{{B(qk_norm_rope_bwd, dx), B(qk_norm_rope, x)}, {B(qk_norm_rope_bwd, dweight), B(qk_norm_rope, weight)},
			{B(qk_norm_rope_bwd, dx2), B(qk_norm_rope, x2)},
			{B(qk_norm_rope_bwd, dweight2), B(qk_norm_rope, weight2)}},
		4,
		{{B(qk_norm_rope_bwd, rstd), B(qk_norm_rope, rstd)},
			{B(qk_norm_rope_bwd, rstd2), B(qk_norm_rope, rstd2)}},
		2, B(qk_norm_rope_bwd, dy2), B(qk_norm_rope, y2)},
	{VFM_OP_attn_bwd, VFM_OP_attn, B(attn_bwd, dout), B(attn, o),
		{{B(attn_bwd, dq), B(attn, q)}, {B(attn_bwd, dk), B(attn, k)}, {B(attn_bwd, dv), B(attn, v)}}, 3,
		{{B(attn_bwd, o), B(attn, o)}, {B(attn_bwd, lse), B(attn, lse)}}, 2, 0, 0},
	{VFM_OP_unary, VFM_OP_unary, B(unary, dy), B(unary, y), {{B(unary, y), B(unary, x)}}, 1, {{0}}, 0, 0, 0},
	{VFM_OP_swiglu_bwd, VFM_OP_swiglu, B(swiglu_bwd, dy), B(swiglu, y), {{B(swiglu_bwd, dx), B(swiglu, x)}}, 1,
		{{0}}, 0, 0, 0},
	{VFM_OP_embed3_bwd, VFM_OP_embed3, B(embed3_bwd, dy), B(embed3, out),
		{{B(embed3_bwd, dtable_t), B(embed3, table_t)}, {B(embed3_bwd, dtable_h), B(embed3, table_h)},
			{B(embed3_bwd, dtable_w), B(embed3, table_w)}},
		3, {{0}}, 0, 0, 0},
	{VFM_OP_softmax_bwd, VFM_OP_softmax, B(softmax_bwd, dy), B(softmax, y), {{B(softmax_bwd, dx), B(softmax, x)}},
		1, {{B(softmax_bwd, y), B(softmax, y)}}, 1, 0, 0},
	{VFM_OP_mse, VFM_OP_mse, SIZE_MAX, B(mse, loss), {{B(mse, dpred), B(mse, pred)}}, 1, {{0}}, 0, 0, 0},
};

const struct op_rule *op_rule_of(const struct vfm_case *c)
{
	if (c->op == VFM_OP_unary && !vfm_has(&c->args.unary.dy))
		return NULL;
	if (c->op == VFM_OP_mse && !vfm_has(&c->args.mse.dpred))
		return NULL;
	for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
		if (rules[i].bwd == c->op)
			return &rules[i];
	return NULL;
}

struct vfm_tensor *operand_at(void *args, size_t offset)
{
	return (struct vfm_tensor *)((char *)args + offset);
}

void forward_args(const struct vfm_case *c, union vfm_op_args *f)
{
	memset(f, 0, sizeof(*f));
	if (c->op == VFM_OP_norm_bwd) {
		const struct vfm_norm_bwd *a = &c->args.norm_bwd;

		f->norm = (struct vfm_norm){.kind = a->kind,
			.eps = 1e-6f,
			.x = a->x,
			.y = a->dy,
			.weight = a->weight,
			.bias = a->dbias,
			.shift = a->scale,
			.scale = a->scale,
			.h = a->dh,
			.gate = a->gate,
			.sum = vfm_has(&a->dh) ? a->x : a->dh,
			.seqs = a->seqs,
			.mean = a->rstd,
			.rstd = a->rstd};
	} else if (c->op == VFM_OP_gate_bwd) {
		const struct vfm_gate_bwd *a = &c->args.gate_bwd;

		f->gate = (struct vfm_gate){.x = a->dy, .y = a->dy, .h = a->dh, .gate = a->gate, .seqs = a->seqs};
	} else if (c->op == VFM_OP_add_row_bwd) {
		const struct vfm_add_row_bwd *a = &c->args.add_row_bwd;

		f->add_row = (struct vfm_add_row){.x = a->dy, .row = a->drow, .y = a->dy};
	} else if (c->op == VFM_OP_qk_norm_rope_bwd) {
		const struct vfm_qk_norm_rope_bwd *a = &c->args.qk_norm_rope_bwd;

		f->qk_norm_rope = (struct vfm_qk_norm_rope){.x = a->dy,
			.y = a->dy,
			.weight = a->weight,
			.rope = a->rope,
			.rstd = a->rstd,
			.eps = 1e-6f,
			.x2 = a->dy2,
			.y2 = a->dy2,
			.weight2 = a->weight2,
			.rope2 = a->rope2,
			.rstd2 = a->rstd2};
	} else if (c->op == VFM_OP_attn_bwd) {
		const struct vfm_attn_bwd *a = &c->args.attn_bwd;

		f->attn = (struct vfm_attn){.q = a->q,
			.k = a->k,
			.v = a->v,
			.o = a->o,
			.lse = a->lse,
			.seqs_q = a->seqs_q,
			.seqs_k = a->seqs_k,
			.scale = a->scale};
	} else if (c->op == VFM_OP_softmax_bwd) {
		f->softmax = (struct vfm_softmax){.x = c->args.softmax_bwd.dx, .y = c->args.softmax_bwd.y};
	} else if (c->op == VFM_OP_swiglu_bwd) {
		f->swiglu = (struct vfm_swiglu){.x = c->args.swiglu_bwd.x, .y = c->args.swiglu_bwd.dy};
	} else if (c->op == VFM_OP_embed3_bwd) {
		const struct vfm_embed3_bwd *a = &c->args.embed3_bwd;

		f->embed3 = (struct vfm_embed3){.table_t = a->dtable_t,
			.table_h = a->dtable_h,
			.table_w = vfm_has(&a->dtable_w) ? a->dtable_w
							 : vfm_t2(NULL, VFM_F32, c->bound[2], a->dy.shape[1]),
			.pos = a->pos,
			.out = a->dy};
	} else {
		*f = c->args;
		if (c->op == VFM_OP_unary)
			f->unary.dy = (struct vfm_tensor){0};
	}
}

/* The backward of a norm has the residual sum; its forward makes the sum of x and h. */
static void remove_branch(const struct ref *bwd, struct ref *f)
{
	const struct vfm_norm *a = f->args;
	const double *h = ref_at(f, offsetof(struct vfm_norm, h)), *s = ref_at(bwd, B(norm_bwd, x));
	double *x = ref_at(f, offsetof(struct vfm_norm, x)), *sum = ref_at(f, offsetof(struct vfm_norm, sum));

	if (!h)
		return;
	ref_run(f); /* sum = x + gate h */
	for (int64_t i = 0; i < vfm_numel(&a->x); i++)
		x[i] = s[i] - (sum[i] - x[i]);
}

void forward_operands(const struct op_rule *rule, const struct ref *bwd, union vfm_op_args *args, struct ref *f)
{
	const struct vfm_operand *o = vfm_op_info(rule->fwd)->operands, *ob = vfm_op_info(rule->bwd)->operands;

	*f = (struct ref){.op = rule->fwd, .args = args};
	for (int i = 0; o[i].name; i++) {
		struct vfm_tensor *t = vfm_operand_of(args, &o[i]);
		const double *src = NULL;

		if (!vfm_has(t))
			continue;
		f->v[i] = vfm_calloc((size_t)vfm_numel(t) + 1, sizeof(double));
		for (int k = 0; ob[k].name; k++)
			if (strcmp(ob[k].name, o[i].name) == 0)
				src = bwd->v[k];
		for (int64_t k = 0; src && o[i].role == VFM_IN && k < vfm_numel(t); k++)
			f->v[i][k] = src[k];
	}
	if (rule->fwd == VFM_OP_norm)
		remove_branch(bwd, f);
}

void fill_saved_operands(struct vfm_case *c)
{
	const struct op_rule *rule = op_rule_of(c);
	union vfm_op_args args;
	struct ref b, f;

	if (!rule || !rule->n_saved || c->flags & VFM_CASE_AS_FILLED)
		return;
	ref_of_case(&b, c);
	forward_args(c, &args);
	forward_operands(rule, &b, &args, &f);
	ref_run(&f);
	for (int i = 0; i < rule->n_saved; i++)
		if (vfm_has(operand_at(&c->args, rule->saved[i].bwd)))
			operand_put(operand_at(&c->args, rule->saved[i].bwd), ref_at(&f, rule->saved[i].fwd));
	ref_release(&f);
	ref_release(&b);
}
