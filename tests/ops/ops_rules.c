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

/* Ops that are their own forward. */
static const struct op_rule own_rules[] = {
	{VFM_OP_unary, VFM_OP_unary, B(unary, dy), B(unary, y), {{B(unary, y), B(unary, x)}}, 1, {{0}}, 0, 0, 0},
	{VFM_OP_mse, VFM_OP_mse, SIZE_MAX, B(mse, loss), {{B(mse, dpred), B(mse, pred)}}, 1, {{0}}, 0, 0, 0},
};

static const struct vfm_operand *find_operand(enum vfm_op_id op, const char *name)
{
	const struct vfm_operand *o = vfm_op_info(op)->operands;

	while (o->name && strcmp(o->name, name) != 0)
		o++;
	return o->name ? o : NULL;
}

/* Returns the operand of the forward that this operand of the backward is the gradient of, by its name; NULL: none. */
static const struct vfm_operand *primal_of(enum vfm_op_id fwd, const struct vfm_operand *grad)
{
	const struct vfm_operand *o = grad->name[0] == 'd' ? find_operand(fwd, grad->name + 1) : NULL;

	if (o || grad->role != VFM_IN || (strcmp(grad->name, "dy") != 0 && strcmp(grad->name, "dout") != 0))
		return o;
	for (o = vfm_op_info(fwd)->operands; o->role == VFM_IN;)
		o++;
	return o; /* the first result */
}

/* Derives the rule of X_bwd from the names of its operands: those that it reads as X does, or that X computed; the
 * gradients of results; and the gradients of what X reads. */
static struct op_rule derive_rule(enum vfm_op_id bwd, enum vfm_op_id fwd)
{
	struct op_rule r = {.bwd = bwd, .fwd = fwd};

	for (const struct vfm_operand *o = vfm_op_info(bwd)->operands; o->name; o++) {
		const struct vfm_operand *same = find_operand(fwd, o->name), *primal = primal_of(fwd, o);

		if (o->role == VFM_IN && same && same->role != VFM_IN) {
			assert_true(r.n_saved < (int)(sizeof(r.saved) / sizeof(r.saved[0])));
			r.saved[r.n_saved].bwd = o->offset, r.saved[r.n_saved++].fwd = same->offset;
		} else if (o->role == VFM_IN && primal && primal->role != VFM_IN) {
			*(r.y ? &r.dy2 : &r.dy) = o->offset;
			*(r.y ? &r.y2 : &r.y) = primal->offset;
		} else if (o->role != VFM_IN && primal && primal->role == VFM_IN) {
			assert_true(r.n_grads < (int)(sizeof(r.grads) / sizeof(r.grads[0])));
			r.grads[r.n_grads].grad = o->offset, r.grads[r.n_grads++].in = primal->offset;
		}
	}
	if (fwd == VFM_OP_norm) /* whose gradient a backward finds in dx (residual_gradient) */
		r.y2 = B(norm, sum);
	return r;
}

bool op_forward_of(enum vfm_op_id bwd, enum vfm_op_id *fwd)
{
	const char *name = vfm_op_info(bwd)->name;
	size_t n = strlen(name);

	if (bwd == VFM_OP_row_norm_rope_bwd) /* a part of its gradient goes through sumsq, which it reads (test_gops) */
		return false;
	for (int op = 0; op < VFM_OP_N; op++) {
		const char *of = vfm_op_info(op)->name;

		*fwd = (enum vfm_op_id)op;
		if (strlen(of) + 4 == n && strncmp(name, of, n - 4) == 0 && strcmp(name + n - 4, "_bwd") == 0)
			return true;
	}
	return false;
}

const struct op_rule *op_rule_of(const struct vfm_case *c)
{
	static struct op_rule derived[VFM_OP_N];
	struct op_rule *r = &derived[c->op];
	enum vfm_op_id fwd;

	if (c->op == VFM_OP_unary)
		return vfm_has(&c->args.unary.dy) ? &own_rules[0] : NULL;
	if (c->op == VFM_OP_mse)
		return vfm_has(&c->args.mse.dpred) ? &own_rules[1] : NULL;
	if (!op_forward_of(c->op, &fwd))
		return NULL;
	if (!r->n_grads)
		*r = derive_rule(c->op, fwd);
	return r;
}

struct vfm_tensor *operand_at(void *args, size_t offset)
{
	return (struct vfm_tensor *)((char *)args + offset);
}

/* Gives each operand of the forward the shape of the backward's operand of this name, else that of its gradient. */
static void shape_operands(const struct vfm_case *c, const struct op_rule *rule, union vfm_op_args *f)
{
	const struct vfm_op_info *fwd = vfm_op_info(rule->fwd), *bwd = vfm_op_info(rule->bwd);
	const struct vfm_tensor *dy = operand_at((void *)&c->args, rule->dy);

	for (const struct vfm_operand *o = fwd->operands; o->name; o++) {
		const struct vfm_operand *b = find_operand(rule->bwd, o->name);
		struct vfm_tensor *t = vfm_operand_of(f, o);

		if (b)
			*t = *vfm_operand_of((void *)&c->args, b);
		for (b = bwd->operands; b->name && !vfm_has(t); b++)
			if (primal_of(rule->fwd, b) == o)
				*t = *vfm_operand_of((void *)&c->args, b);
		if (!vfm_has(t) && strcmp(o->name, "x") == 0) /* dx is dy itself */
			*t = *dy;
	}
	for (int i = 0; i < 2; i++)
		if (fwd->seqs[i].name)
			memcpy((char *)f + fwd->seqs[i].offset, (const char *)&c->args + bwd->seqs[i].offset,
				sizeof(void *));
}

void forward_args(const struct vfm_case *c, union vfm_op_args *f)
{
	const struct op_rule *rule = op_rule_of(c);
	const struct vfm_norm_bwd *norm = &c->args.norm_bwd;

	memset(f, 0, sizeof(*f));
	if (rule->fwd == rule->bwd) {
		*f = c->args;
		if (c->op == VFM_OP_unary)
			f->unary.dy = (struct vfm_tensor){0};
		return;
	}
	shape_operands(c, rule, f);
	switch (c->op) { /* members that are no operands, and operands that the backward may lack */
	case VFM_OP_norm_bwd:
		f->norm.kind = norm->kind;
		f->norm.eps = 1e-6f;
		f->norm.shift = norm->scale;
		f->norm.sum = vfm_has(&norm->dh) ? norm->x : norm->dh;
		f->norm.mean = norm->rstd;
		break;
	case VFM_OP_qk_norm_rope_bwd:
		f->qk_norm_rope.eps = 1e-6f;
		break;
	case VFM_OP_attn_bwd:
		f->attn.scale = c->args.attn_bwd.scale;
		break;
	case VFM_OP_embed3_bwd:
		if (!vfm_has(&f->embed3.table_w))
			f->embed3.table_w = vfm_t2(NULL, VFM_F32, c->bound[2], f->embed3.out.shape[1]);
		break;
	default:
		break;
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
