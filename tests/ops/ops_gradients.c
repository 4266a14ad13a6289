/* ops_gradients.c - gradients against finite differences of the reference; equal bits from run to run. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/par.h"
#include "emu_dev.h"
#include "ops_test.h"

static double dot_product(const double *a, const double *b, int64_t n)
{
	double s = 0;

	for (int64_t i = 0; i < n; i++)
		s += a[i] * b[i];
	return s;
}

/* Returns sum dy * y of an output of the forward, at this offset; absent: 0. */
static double output_objective(const struct ref *f, size_t offset, const double *dy)
{
	const struct vfm_operand *o = vfm_op_info(f->op)->operands;

	for (int i = 0; o[i].name; i++)
		if (o[i].offset == offset && f->v[i])
			return dot_product(dy, f->v[i], vfm_numel(vfm_operand_of((void *)f->args, &o[i])));
	return 0;
}

/* Returns sum dy * y(in + step * v), with that of a second output. */
static double objective_at(struct ref *f, const struct op_rule *rule, int in, const double *v, double step,
	const double *dy, const double *dy2)
{
	const struct vfm_operand *o = vfm_op_info(f->op)->operands;
	int64_t n = vfm_numel(vfm_operand_of((void *)f->args, &o[in]));
	double *y = NULL, r;

	for (int i = 0; o[i].name; i++)
		if (o[i].offset == rule->y)
			y = f->v[i];
	for (int64_t i = 0; i < n; i++)
		f->v[in][i] += step * v[i];
	if (!dy)
		*y = 0; /* the op adds to the loss */
	ref_run(f);
	r = dy ? output_objective(f, rule->y, dy) : *y;
	if (dy2)
		r += output_objective(f, rule->y2, dy2);
	for (int64_t i = 0; i < n; i++)
		f->v[in][i] -= step * v[i];
	return r;
}

/* Returns the gradient of the residual sum that a backward of a norm finds in dx; NULL: none, or no such sum. */
static const double *residual_gradient(const struct vfm_case *c, const struct ref *before)
{
	if (c->op != VFM_OP_norm_bwd || !vfm_has(&c->args.norm_bwd.dh) || !c->args.norm_bwd.dx_accumulate)
		return NULL;
	return ref_at(before, offsetof(struct vfm_norm_bwd, dx));
}

/* Whether the op adds to this gradient something that is not a part of the objective. */
static bool op_accumulates(struct vfm_case *c, const struct vfm_tensor *grad)
{
	const struct vfm_operand *o = vfm_op_info(c->op)->operands;

	if (c->op == VFM_OP_norm_bwd && grad == &c->args.norm_bwd.dx)
		return c->args.norm_bwd.dx_accumulate && !vfm_has(&c->args.norm_bwd.dh);
	while (vfm_operand_of(&c->args, o) != grad)
		o++;
	return o->role == VFM_INOUT;
}

static void check_gradient(
	struct op_level *l, struct vfm_case *c, const struct op_rule *rule, const struct ref *before, int g)
{
	const struct vfm_operand *of = vfm_op_info(rule->fwd)->operands;
	struct vfm_tensor *grad = operand_at(&c->args, rule->grads[g].grad);
	/* so small a step does not change which experts are chosen */
	const double h = rule->fwd == VFM_OP_moe_topk_token ? 1e-7 : 1e-5;
	const double *dy = rule->dy == SIZE_MAX ? NULL : ref_at(before, rule->dy), *init,
		     *dy2 = rule->dy2 ? ref_at(before, rule->dy2) : residual_gradient(c, before);
	double *dx, *v, want, got, room;
	union vfm_op_args args;
	struct ref f;
	int in = 0;
	int64_t n = vfm_numel(grad);
	struct vfm_rng rng = vfm_rng_stream(5, 6, (uint64_t)g, VFM_RNG_TEST);

	if (!vfm_has(grad))
		return;
	while (of[in].offset != rule->grads[g].in)
		in++;
	forward_args(c, &args);
	forward_operands(rule, before, &args, &f);
	dx = operand_doubles(grad, grad->data);
	init = ref_at(before, rule->grads[g].grad);
	v = vfm_calloc((size_t)n + 1, sizeof(*v));
	for (int64_t i = 0; i < n; i++) {
		v[i] = (double)vfm_rng_normal(&rng, (uint64_t)i);
		dx[i] -= op_accumulates(c, grad) ? init[i] : 0;
	}
	want = (objective_at(&f, rule, in, v, h, dy, dy2) - objective_at(&f, rule, in, v, -h, dy, dy2)) / (2 * h);
	got = dot_product(v, dx, n);
	room = 3e-5 * sqrt(dot_product(v, v, n) * dot_product(dx, dx, n)) + 1e-7;
	if (!(fabs(want - got) <= room))
		case_bad(l->name, c,
			"the gradient of %s along a direction is %.9g, by differences %.9g (allowed: %.1g)",
			of[in].name, got, want, room);
	free(v);
	free(dx);
	ref_release(&f);
}

static bool all_f32(struct vfm_case *c)
{
	const struct vfm_operand *o = vfm_op_info(c->op)->operands;

	for (int i = 0; o[i].name; i++)
		if (vfm_operand_of(&c->args, &o[i])->dtype == VFM_BF16)
			return false;
	return true;
}

/* Each backward has a case in f32 whose gradients were compared. */
static void find_unchecked(const int *n_checked)
{
	enum vfm_op_id fwd;

	for (int op = 0; op < VFM_OP_N; op++)
		if (op_forward_of((enum vfm_op_id)op, &fwd) && !n_checked[op])
			fail_msg("no gradient of the op %s was compared", vfm_op_info(op)->name);
}

void test_gradients(void **state)
{
	struct vfm_err err = {0};
	int n = 0, n_checked[VFM_OP_N] = {0};

	(void)state;
	n_bad = 0;
	for (size_t k = 0; k < cases.n; k++) {
		struct vfm_case *c = cases.v[k];
		const struct op_rule *rule = op_rule_of(c);
		struct ref before;
		struct image m;

		if (!case_wanted(c) || !rule || !all_f32(c) || c->flags & VFM_CASE_AS_FILLED)
			continue;
		image_take(&m, c, true);
		ref_of_case(&before, c);
		for (int i = 0; i < n_full; i++) {
			image_put(&m, c);
			if (vfm_case_run(c, levels[i].s, &err) < 0)
				case_bad(levels[i].name, c, "%s", err.msg);
			for (int g = 0; g < rule->n_grads; g++)
				check_gradient(&levels[i], c, rule, &before, g);
			n++;
			n_checked[c->op] += rule->n_grads;
		}
		ref_release(&before);
		image_release(&m, c);
	}
	print_message("%d gradients\n", n);
	if (!case_words)
		find_unchecked(n_checked);
	assert_int_equal(n_bad, 0);
}

/* ---- determinism ---- */

/* Returns all operands after a run, as bytes. */
static char *bits_after(struct op_level *l, struct vfm_case *c, const struct image *m, size_t *len)
{
	const struct vfm_operand *o = vfm_op_info(c->op)->operands;
	struct vfm_err err = {0};
	char *all = NULL;

	*len = 0;
	image_put(m, c);
	assert_int_equal(vfm_case_run(c, l->s, &err), 0);
	for (int i = 0; o[i].name; i++) {
		struct vfm_tensor *t = vfm_operand_of(&c->args, &o[i]);

		if (!vfm_has(t))
			continue;
		all = vfm_realloc(all, *len + c->bytes[i], 1);
		memcpy(all + *len, t->data, c->bytes[i]);
		*len += c->bytes[i];
	}
	return all;
}

/* The CUDA kernels give the same bits in a second run that has the last block, warp and lane first. */
static void same_bits_emulated(struct vfm_case *c, const struct image *m)
{
	struct op_level *l = &levels[n_isa];
	size_t len, len2;
	char *first, *again;

	if (device || !has_op(n_isa, c->op))
		return;
	first = bits_after(l, c, m, &len);
	vfm_emu_backwards(true);
	again = bits_after(l, c, m, &len2);
	vfm_emu_backwards(false);
	if (len != len2 || memcmp(first, again, len) != 0)
		case_bad(l->name, c, "other bits in a second run, with another order of threads");
	free(again);
	free(first);
}

void test_same_bits(void **state)
{
	int threads = vfm_par_threads();

	(void)state;
	n_bad = 0;
	for (size_t k = 0; k < cases.n; k++) {
		struct vfm_case *c = cases.v[k];
		struct op_level *l = &levels[n_isa - 1]; /* the highest instruction set */
		size_t len, len2;
		char *first, *again;
		struct image m;

		if (!case_wanted(c) || (device && c->op == VFM_OP_attn_bwd && c->args.attn_bwd.q.dtype == VFM_BF16))
			/* cuDNN is deterministic only on request of training (tests/gpu/train) */
			continue;
		image_take(&m, c, false);
		vfm_par_set_threads(2);
		first = bits_after(l, c, &m, &len);
		for (int n = 1; n <= 2; n++) {
			vfm_par_set_threads(n);
			again = bits_after(l, c, &m, &len2);
			if (len != len2 || memcmp(first, again, len) != 0)
				case_bad(l->name, c, "other bits with %d threads than with 2", n);
			free(again);
		}
		free(first);
		same_bits_emulated(c, &m);
		image_release(&m, c);
	}
	vfm_par_set_threads(threads);
	assert_int_equal(n_bad, 0);
}
