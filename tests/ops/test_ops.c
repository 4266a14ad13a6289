/* Every case of the list on every instruction set of this CPU: parity with float64, gradients by
 * finite differences, equal bits from run to run and for any number of threads, and the checks. */
#include <fnmatch.h>
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

#include "base/par.h"
#include "cpu/cpu.h"
#include "cpu/cpu_isa.h"
#include "cpu/cpu_int.h"
#include "emu_dev.h"
#include "mirror.h"
#include "ref.h"
#include "train/device.h"

struct level {
	const char *name;
	struct vfm_dev *dev;
	struct vfm_stream *s;
};
static struct level levels[VFM_ISA_N + 2];
/* Instruction sets, our CUDA kernels (emulated), oneDNN; with VFM_TEST_DEVICE=NAME that device instead of them all. */
static int n_levels, n_isa, n_full; /* n_full: all but oneDNN */
static const char *device;
/* VFM_TEST_CASES=norm,gate: only cases whose names begin so; -gemm,-attn: all but these; * and ? as in a shell.
 * VFM_TEST_ONLY=test_parity: one test. */
static const char *case_words;
static struct vfm_cases cases;
static int n_bad;

/* oneDNN has products alone, the CUDA kernels (emulated) what no library of NVIDIA's does. */
static bool has_op(int level, enum vfm_op_id op)
{
	if (level == n_full)
		return op == VFM_OP_gemm;
	return level != n_isa || vfm_emu_has(op);
}

static bool wanted(const struct vfm_case *c)
{
	bool any = false, yes = false;
	char pattern[128];

	if (!(c->flags & VFM_CASE_TEST))
		return false;
	for (const char *w = case_words; w && *w;) {
		size_t n = strcspn(w, ","), minus = *w == '-';

		if (!minus)
			any = true;
		snprintf(pattern, sizeof(pattern), "%.*s*", (int)(n - minus), w + minus);
		if (fnmatch(pattern, c->name, 0) == 0) {
			if (minus)
				return false;
			yes = true;
		}
		w += n + (w[n] == ',');
	}
	return yes || !any;
}

static void bad(const char *level, const struct vfm_case *c, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
static void bad(const char *level, const struct vfm_case *c, const char *fmt, ...)
{
	va_list ap;

	if (++n_bad > (device ? 1000 : 40)) /* of a device, any may be the one that tells */
		return;
	fprintf(stderr, "%s: %s: ", level, c->name);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
}

static int open_level(const char *name, struct vfm_dev *(*open)(struct vfm_err *err))
{
	struct level *l = &levels[n_levels++];
	struct vfm_err err = {0};

	l->name = name;
	l->dev = open(&err);
	l->s = l->dev ? l->dev->t->stream_new(l->dev, false, &err) : NULL;
	if (!l->s)
		fprintf(stderr, "%s: %s\n", name, err.msg);
	return l->s ? 0 : -1;
}

static struct vfm_dev *open_mirror(struct vfm_err *err)
{
	struct vfm_device d;
	struct vfm_dev *m;

	if (vfm_device_open(&d, device, err) < 0)
		return NULL;
	fprintf(stderr, "%s: %s\n", d.dev->name, d.dev->descr);
	m = vfm_mirror_open(d.dev, d.stream, err);
	return m;
}

static int open_levels(void **state)
{
	(void)state;
	if (device) {
		n_isa = n_full = 1;
		vfm_cases_init(&cases);
		return open_level(device, open_mirror);
	}
	setenv("VFM_CPU_GEMM", "", 1);
	for (n_isa = 0; n_isa <= (int)vfm_isa_best(); n_isa++) {
		setenv("VFM_CPU_ISA", vfm_isa_name((enum vfm_isa)n_isa), 1);
		TRY(open_level(vfm_isa_name((enum vfm_isa)n_isa), vfm_cpu_open));
	}
	TRY(open_level("CUDA, emulated", vfm_emu_open));
	n_full = n_levels;
	setenv("VFM_CPU_GEMM", "dnnl", 1);
	if (VFM_HAVE_DNNL)
		TRY(open_level("oneDNN", vfm_cpu_open));
	vfm_cases_init(&cases);
	return 0;
}

static int close_levels(void **state)
{
	int leaks = 0;

	(void)state;
	vfm_cases_release(&cases);
	for (int i = 0; i < n_levels; i++) {
		leaks += levels[i].dev->mem_now != 0;
		levels[i].dev->t->stream_free(levels[i].s);
		levels[i].dev->t->dev_free(levels[i].dev);
	}
	if (leaks)
		fprintf(stderr, "%d devices have memory that was not given back\n", leaks);
	return leaks;
}

/* ---- operands <-> doubles ---------------------------------------------------------------- */

static int64_t offset_of(const struct vfm_tensor *t, int64_t i)
{
	int64_t off = 0;

	if (t->ndim == 1 || t->stride[0] * t->shape[0] == vfm_numel(t))
		return i;
	for (int k = t->ndim - 1; k >= 0; k--) {
		off += i % t->shape[k] * t->stride[k];
		i /= t->shape[k];
	}
	return off;
}

static double get(const struct vfm_tensor *t, const char *mem, int64_t i)
{
	double x;

	i = offset_of(t, i);
	if (t->dtype == VFM_F32)
		return (double)((const float *)mem)[i];
	if (t->dtype == VFM_BF16)
		return (double)vfm_bf16_to_f32(((const uint16_t *)mem)[i]);
	vfm_dtype_to_f64(&x, t->dtype, mem + (size_t)i * vfm_dtype_size(t->dtype), 1);
	return x;
}

static double *doubles(const struct vfm_tensor *t, const char *mem)
{
	int64_t n = vfm_numel(t);
	double *v = vfm_calloc((size_t)n + 1, sizeof(*v));

	for (int64_t i = 0; i < n; i++)
		v[i] = get(t, mem, i);
	return v;
}

/* Rounded to the operand's dtype, and back, so that the reference sees what the op sees. */
static void put(struct vfm_tensor *t, double *v)
{
	for (int64_t i = 0; i < vfm_numel(t); i++) {
		char *at = (char *)t->data + (size_t)offset_of(t, i) * vfm_dtype_size(t->dtype);

		vfm_dtype_convert(t->dtype, at, VFM_F64, &v[i], 1);
		v[i] = get(t, t->data, i);
	}
}

static void ref_take(struct ref *r, struct vfm_case *c)
{
	const struct vfm_operand *o = vfm_op_infos[c->op].operands;

	*r = (struct ref){.op = c->op, .args = &c->args};
	for (int i = 0; o[i].name; i++) {
		struct vfm_tensor *t = vfm_operand_of(&c->args, &o[i]);

		if (vfm_has(t))
			r->v[i] = doubles(t, t->data);
	}
}

static void ref_release(struct ref *r)
{
	for (int i = 0; i < VFM_MAX_OPERANDS; i++)
		free(r->v[i]);
}

/* ---- the forward of a backward ------------------------------------------------------------ */

/* How a backward op's operands relate to those of its forward. */
struct rule {
	enum vfm_op_id bwd, fwd;
	size_t dy, y; /* L = sum dy * y; dy SIZE_MAX: L = y */
	struct {
		size_t grad, in; /* grad = dL / d in; of bwd, of fwd */
	} grads[5];
	int n_grads;
	struct {
		size_t bwd, fwd; /* inputs of the backward that the forward computes */
	} saved[2];
	int n_saved;
};

#define B(op, f) offsetof(struct vfm_##op, f)
static const struct rule rules[] = {
	{VFM_OP_norm_bwd, VFM_OP_norm, B(norm_bwd, dy), B(norm, y),
		{{B(norm_bwd, dx), B(norm, x)}, {B(norm_bwd, dweight), B(norm, weight)},
			{B(norm_bwd, dbias), B(norm, bias)}, {B(norm_bwd, dshift), B(norm, shift)},
			{B(norm_bwd, dscale), B(norm, scale)}},
		5, {{B(norm_bwd, mean), B(norm, mean)}, {B(norm_bwd, rstd), B(norm, rstd)}}, 2},
	{VFM_OP_gate_bwd, VFM_OP_gate, B(gate_bwd, dy), B(gate, y),
		{{B(gate_bwd, dh), B(gate, h)}, {B(gate_bwd, dgate), B(gate, gate)}}, 2, {{0}}, 0},
	{VFM_OP_qk_norm_rope_bwd, VFM_OP_qk_norm_rope, B(qk_norm_rope_bwd, dy), B(qk_norm_rope, y),
		{{B(qk_norm_rope_bwd, dx), B(qk_norm_rope, x)},
			{B(qk_norm_rope_bwd, dweight), B(qk_norm_rope, weight)}},
		2, {{B(qk_norm_rope_bwd, rstd), B(qk_norm_rope, rstd)}}, 1},
	{VFM_OP_attn_bwd, VFM_OP_attn, B(attn_bwd, dout), B(attn, o),
		{{B(attn_bwd, dq), B(attn, q)}, {B(attn_bwd, dk), B(attn, k)}, {B(attn_bwd, dv), B(attn, v)}}, 3,
		{{B(attn_bwd, o), B(attn, o)}, {B(attn_bwd, lse), B(attn, lse)}}, 2},
	{VFM_OP_unary, VFM_OP_unary, B(unary, dy), B(unary, y), {{B(unary, y), B(unary, x)}}, 1, {{0}}, 0},
	{VFM_OP_swiglu_bwd, VFM_OP_swiglu, B(swiglu_bwd, dy), B(swiglu, y), {{B(swiglu_bwd, dx), B(swiglu, x)}}, 1,
		{{0}}, 0},
	{VFM_OP_embed3_bwd, VFM_OP_embed3, B(embed3_bwd, dy), B(embed3, out),
		{{B(embed3_bwd, dtable_t), B(embed3, table_t)}, {B(embed3_bwd, dtable_h), B(embed3, table_h)},
			{B(embed3_bwd, dtable_w), B(embed3, table_w)}},
		3, {{0}}, 0},
	{VFM_OP_softmax_bwd, VFM_OP_softmax, B(softmax_bwd, dy), B(softmax, y), {{B(softmax_bwd, dx), B(softmax, x)}},
		1, {{B(softmax_bwd, y), B(softmax, y)}}, 1},
	{VFM_OP_mse, VFM_OP_mse, SIZE_MAX, B(mse, loss), {{B(mse, dpred), B(mse, pred)}}, 1, {{0}}, 0},
};

static const struct rule *rule_of(const struct vfm_case *c)
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

static struct vfm_tensor *at(void *args, size_t offset)
{
	return (struct vfm_tensor *)((char *)args + offset);
}

/* The forward's arguments: only shapes and flags matter. */
static void forward_args(const struct vfm_case *c, union vfm_op_args *f)
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
			.seqs = a->seqs,
			.mean = a->rstd,
			.rstd = a->rstd};
	} else if (c->op == VFM_OP_gate_bwd) {
		const struct vfm_gate_bwd *a = &c->args.gate_bwd;

		f->gate = (struct vfm_gate){.x = a->dy, .y = a->dy, .h = a->h, .gate = a->gate, .seqs = a->seqs};
	} else if (c->op == VFM_OP_qk_norm_rope_bwd) {
		const struct vfm_qk_norm_rope_bwd *a = &c->args.qk_norm_rope_bwd;

		f->qk_norm_rope = (struct vfm_qk_norm_rope){
			.x = a->dy, .y = a->dy, .weight = a->weight, .rope = a->rope, .rstd = a->rstd, .eps = 1e-6f};
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

/* Operands of the forward: inputs that the backward knows, too; zeros for the rest, which is
 * outputs and additive terms. */
static void forward_take(const struct rule *rule, const struct ref *bwd, union vfm_op_args *args, struct ref *f)
{
	const struct vfm_operand *o = vfm_op_infos[rule->fwd].operands, *ob = vfm_op_infos[rule->bwd].operands;

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
}

/* Gives the backward the statistics that its forward would have saved. */
static void prepare(struct vfm_case *c)
{
	const struct rule *rule = rule_of(c);
	union vfm_op_args args;
	struct ref b, f;

	if (!rule || !rule->n_saved || c->flags & VFM_CASE_AS_FILLED)
		return;
	ref_take(&b, c);
	forward_args(c, &args);
	forward_take(rule, &b, &args, &f);
	ref_run(&f);
	for (int i = 0; i < rule->n_saved; i++)
		if (vfm_has(at(&c->args, rule->saved[i].bwd)))
			put(at(&c->args, rule->saved[i].bwd), ref_at(&f, rule->saved[i].fwd));
	ref_release(&f);
	ref_release(&b);
}

/* ---- parity ------------------------------------------------------------------------------- */

/* A master in two parts: lo is compared as part of w. */
static bool split_master(const struct vfm_case *c)
{
	return c->op == VFM_OP_adamw && vfm_has(&c->args.adamw.lo);
}

static double result(const struct vfm_case *c, const struct vfm_tensor *t, int64_t i)
{
	if (split_master(c) && t == &c->args.adamw.w)
		return (double)vfm_master_join(
			((const uint16_t *)t->data)[i], ((const int16_t *)c->args.adamw.lo.data)[i]);
	return get(t, t->data, i);
}

/* The bias may be rounded to bf16 before it is added (ops.h); the CPU's is not. */
static double bias_room(const struct vfm_case *c)
{
	const struct vfm_tensor *b = c->op == VFM_OP_gemm ? &c->args.gemm.bias
		: c->op == VFM_OP_grouped_gemm            ? &c->args.grouped_gemm.bias
							  : NULL;
	double most = 0;

	for (int64_t i = 0; device && b && i < vfm_numel(b); i++)
		most = fmax(most, fabs(get(b, b->data, i)));
	return most * 0x1p-8;
}

static void compare(const char *level, const struct vfm_case *c, const struct vfm_operand *o,
	const struct vfm_tensor *t, const double *want)
{
	int64_t n = vfm_numel(t), worst = 0, there = 0;
	double rms = 0, most = 0, bias = t->dtype == VFM_BF16 ? bias_room(c) : 0;

	for (int64_t i = 0; i < n; i++) {
		there += want[i] != 0;
		rms += isfinite(want[i]) ? want[i] * want[i] : 0;
	}
	/* without the zeros, which would only make the rest look small */
	rms = there ? sqrt(rms / (double)there) : 0;
	for (int64_t i = 0; i < n; i++) {
		double x = result(c, t, i), room = c->tol * (fabs(want[i]) + rms) + bias + 1e-30, e;

		if (t->dtype == VFM_BF16 && !(split_master(c) && t == &c->args.adamw.w))
			room += fabs(want[i]) * 0x1p-8;
		/* bf16 attention rounds probabilities, too */
		if ((c->op == VFM_OP_attn || c->op == VFM_OP_attn_bwd) && c->args.attn.q.dtype == VFM_BF16)
			room += 0.04 * rms + fabs(want[i]) * 0x1p-8;
		e = x == want[i] ? 0 : fabs(x - want[i]) / room;
		if (!(e <= most))
			most = isnan(e) ? INFINITY : e, worst = i;
	}
	if (most > 1)
		bad(level, c, "%s[%ld] = %.9g, expected %.9g (%.1f times the tolerance)", o->name, (long)worst,
			result(c, t, worst), want[worst], most);
}

/* Gaps between rows and the guard after the end must be as they were. */
static void check_gaps(const char *level, const struct vfm_case *c, const struct vfm_operand *o,
	const struct vfm_tensor *t, size_t bytes)
{
	size_t size = vfm_dtype_size(t->dtype);
	char *used = vfm_calloc(1, bytes);

	int64_t n = vfm_numel(t), cols = n ? t->shape[t->ndim - 1] : 0;

	for (int64_t i = 0; i < n; i += cols)
		memset(used + (size_t)offset_of(t, i) * size, 1, (size_t)cols * size);
	for (size_t i = 0; i < bytes; i++)
		if (!used[i] && ((unsigned char *)t->data)[i] != VFM_CASE_FILLER) {
			bad(level, c, "%s: byte %zu, between or behind its rows, was overwritten", o->name, i);
			break;
		}
	free(used);
}

static void check_case(struct level *l, struct vfm_case *c, struct ref *want)
{
	const struct vfm_operand *o = vfm_op_infos[c->op].operands;
	struct vfm_err err = {0};

	if (vfm_case_run(c, l->s, &err) < 0) {
		bad(l->name, c, "%s", err.msg);
		return;
	}
	for (int i = 0; o[i].name; i++) {
		struct vfm_tensor *t = vfm_operand_of(&c->args, &o[i]);

		if (!vfm_has(t))
			continue;
		if (!split_master(c) || t != &c->args.adamw.lo)
			compare(l->name, c, &o[i], t, want->v[i]); /* inputs too: they must not change */
		check_gaps(l->name, c, &o[i], t, c->bytes[i]);
	}
}

/* The operands of a case as they were filled.  All levels compute in the same host memory, that of the first one. */
struct image {
	char *bytes[VFM_MAX_OPERANDS];
};

/* Filled, and with `saved` what a forward would have left. */
static void image_take(struct image *m, struct vfm_case *c, bool saved)
{
	const struct vfm_operand *o = vfm_op_infos[c->op].operands;
	struct vfm_err err = {0};

	*m = (struct image){0};
	assert_int_equal(vfm_case_alloc(c, levels[0].s, 1, &err), 0);
	if (saved)
		prepare(c);
	for (int i = 0; o[i].name; i++)
		if (vfm_has(vfm_operand_of(&c->args, &o[i]))) {
			m->bytes[i] = vfm_malloc(c->bytes[i]);
			memcpy(m->bytes[i], vfm_operand_of(&c->args, &o[i])->data, c->bytes[i]);
		}
}

static void image_put(const struct image *m, struct vfm_case *c)
{
	for (int i = 0; i < VFM_MAX_OPERANDS; i++)
		if (m->bytes[i])
			memcpy(vfm_operand_of(&c->args, &vfm_op_infos[c->op].operands[i])->data, m->bytes[i],
				c->bytes[i]);
}

static void image_release(struct image *m, struct vfm_case *c)
{
	for (int i = 0; i < VFM_MAX_OPERANDS; i++)
		free(m->bytes[i]);
	vfm_case_free(c, levels[0].s);
}

static void test_parity(void **state)
{
	int n = 0;

	(void)state;
	n_bad = 0;
	for (size_t k = 0; k < cases.n; k++) {
		struct vfm_case *c = cases.v[k];
		struct ref want = {0};
		struct image m;

		if (!wanted(c))
			continue;
		image_take(&m, c, true);
		ref_take(&want, c);
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

/* ---- gradients ------------------------------------------------------------------------------ */

static double inner(const double *a, const double *b, int64_t n)
{
	double s = 0;

	for (int64_t i = 0; i < n; i++)
		s += a[i] * b[i];
	return s;
}

/* sum dy * y(in + step * v) */
static double objective(struct ref *f, const struct rule *rule, int in, const double *v, double step, const double *dy)
{
	const struct vfm_operand *o = vfm_op_infos[f->op].operands;
	int64_t n = vfm_numel(vfm_operand_of((void *)f->args, &o[in])), ny = 0;
	double *y = NULL, r;

	for (int i = 0; o[i].name; i++)
		if (o[i].offset == rule->y) {
			y = f->v[i];
			ny = vfm_numel(vfm_operand_of((void *)f->args, &o[i]));
		}
	for (int64_t i = 0; i < n; i++)
		f->v[in][i] += step * v[i];
	if (!dy)
		*y = 0; /* the loss is added to */
	ref_run(f);
	r = dy ? inner(dy, y, ny) : *y;
	for (int64_t i = 0; i < n; i++)
		f->v[in][i] -= step * v[i];
	return r;
}

/* Whether the op adds to this gradient. */
static bool adds(const struct vfm_case *c, const struct vfm_tensor *grad)
{
	const struct vfm_norm_bwd *n = &c->args.norm_bwd;

	if (c->op == VFM_OP_norm_bwd)
		return grad == &n->dweight || grad == &n->dbias || (grad == &n->dx && n->dx_accumulate);
	if (c->op == VFM_OP_embed3_bwd)
		return true;
	return c->op == VFM_OP_qk_norm_rope_bwd && grad == &c->args.qk_norm_rope_bwd.dweight;
}

static void check_gradient(
	struct level *l, struct vfm_case *c, const struct rule *rule, const struct ref *before, int g)
{
	const struct vfm_operand *of = vfm_op_infos[rule->fwd].operands;
	struct vfm_tensor *grad = at(&c->args, rule->grads[g].grad);
	const double h = 1e-5, *dy = rule->dy == SIZE_MAX ? NULL : ref_at(before, rule->dy), *init;
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
	forward_take(rule, before, &args, &f);
	dx = doubles(grad, grad->data);
	init = ref_at(before, rule->grads[g].grad);
	v = vfm_calloc((size_t)n + 1, sizeof(*v));
	for (int64_t i = 0; i < n; i++) {
		v[i] = (double)vfm_rng_normal(&rng, (uint64_t)i);
		dx[i] -= adds(c, grad) ? init[i] : 0;
	}
	want = (objective(&f, rule, in, v, h, dy) - objective(&f, rule, in, v, -h, dy)) / (2 * h);
	got = inner(v, dx, n);
	room = 3e-5 * sqrt(inner(v, v, n) * inner(dx, dx, n)) + 1e-7;
	if (!(fabs(want - got) <= room))
		bad(l->name, c, "the gradient of %s along a direction is %.9g, by differences %.9g (allowed: %.1g)",
			of[in].name, got, want, room);
	free(v);
	free(dx);
	ref_release(&f);
}

static bool all_f32(struct vfm_case *c)
{
	const struct vfm_operand *o = vfm_op_infos[c->op].operands;

	for (int i = 0; o[i].name; i++)
		if (vfm_operand_of(&c->args, &o[i])->dtype == VFM_BF16)
			return false;
	return true;
}

static void test_gradients(void **state)
{
	struct vfm_err err = {0};
	int n = 0;

	(void)state;
	n_bad = 0;
	for (size_t k = 0; k < cases.n; k++) {
		struct vfm_case *c = cases.v[k];
		const struct rule *rule = rule_of(c);
		struct ref before;
		struct image m;

		if (!wanted(c) || !rule || !all_f32(c) || c->flags & VFM_CASE_AS_FILLED)
			continue;
		image_take(&m, c, true);
		ref_take(&before, c);
		for (int i = 0; i < n_full; i++) {
			image_put(&m, c);
			if (vfm_case_run(c, levels[i].s, &err) < 0)
				bad(levels[i].name, c, "%s", err.msg);
			for (int g = 0; g < rule->n_grads; g++)
				check_gradient(&levels[i], c, rule, &before, g);
			n++;
		}
		ref_release(&before);
		image_release(&m, c);
	}
	print_message("%d gradients\n", n);
	assert_true(n > 0);
	assert_int_equal(n_bad, 0);
}

/* ---- determinism ------------------------------------------------------------------------------ */

/* All operands after the run, as bytes. */
static char *bits_after(struct level *l, struct vfm_case *c, const struct image *m, size_t *len)
{
	const struct vfm_operand *o = vfm_op_infos[c->op].operands;
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

/* The CUDA kernels: once more, and with the last block, warp and lane first. */
static void same_bits_emulated(struct vfm_case *c, const struct image *m)
{
	struct level *l = &levels[n_isa];
	size_t len, len2;
	char *first, *again;

	if (device || !has_op(n_isa, c->op))
		return;
	first = bits_after(l, c, m, &len);
	for (int back = 0; back < 2; back++) {
		vfm_emu_backwards(back);
		again = bits_after(l, c, m, &len2);
		if (len != len2 || memcmp(first, again, len) != 0)
			bad(l->name, c, "other bits %s", back ? "in another order of threads" : "the second time");
		free(again);
	}
	vfm_emu_backwards(false);
	free(first);
}

static void test_same_bits(void **state)
{
	int threads = vfm_par_threads();

	(void)state;
	n_bad = 0;
	for (size_t k = 0; k < cases.n; k++) {
		struct vfm_case *c = cases.v[k];
		struct level *l = &levels[n_isa - 1]; /* the best kernels */
		size_t len, len2;
		char *first, *again;
		struct image m;

		if (!wanted(c) || (device && c->op == VFM_OP_attn_bwd && c->args.attn_bwd.q.dtype == VFM_BF16))
			/* cuDNN's backward gives the same bits where training asks for it (tests/gpu/train) */
			continue;
		image_take(&m, c, false);
		vfm_par_set_threads(2);
		first = bits_after(l, c, &m, &len);
		for (int n = 1; n <= 2; n++) {
			vfm_par_set_threads(n);
			again = bits_after(l, c, &m, &len2);
			if (len != len2 || memcmp(first, again, len) != 0)
				bad(l->name, c, "other bits with %d threads than with 2", n);
			free(again);
		}
		free(first);
		same_bits_emulated(c, &m);
		image_release(&m, c);
	}
	vfm_par_set_threads(threads);
	assert_int_equal(n_bad, 0);
}

/* ---- checks -------------------------------------------------------------------------------------- */

/* A device whose ops count their calls. */
static int reached;
#define X(op)                                                                                                          \
	static int sink_##op(struct vfm_stream *s, const struct vfm_##op *a, struct vfm_err *err)                      \
	{                                                                                                              \
		(void)s, (void)a, (void)err;                                                                           \
		reached++;                                                                                             \
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

	reached = 0;
	if (vfm_case_run(c, s, &err) != VFM_EUSAGE || reached)
		bad("checks", c, "operand '%s' with %s is not refused", o->name, what);
	else if (!strstr(err.msg, vfm_op_infos[c->op].name))
		bad("checks", c, "the error does not name the op: %s", err.msg);
}

static void spoil(struct vfm_stream *s, struct vfm_case *c, const struct vfm_operand *o)
{
	struct vfm_tensor *t = vfm_operand_of(&c->args, o), keep = *t;
	bool any_size = c->op == VFM_OP_fill || (c->op == VFM_OP_sumsq && t == &c->args.sumsq.x) ||
		c->op == VFM_OP_moe_count || (c->op == VFM_OP_moe_topk_token && t == &c->args.moe_topk_token.score) ||
		(c->op == VFM_OP_quant && t == &c->args.quant.history) ||
		(c->op == VFM_OP_amax_push && t == &c->args.amax_push.past) ||
		(c->op == VFM_OP_moe_own && t == &c->args.moe_own.own);
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

static void test_checks(void **state)
{
	static const struct vfm_dev_table table = {.name = "sink", .ops = &sink_ops};
	struct vfm_dev dev = {.t = &table};
	struct vfm_stream s = {.dev = &dev};
	static char memory;

	(void)state;
	n_bad = 0;
	for (size_t k = 0; k < cases.n; k++) {
		struct vfm_case *c = cases.v[k];
		const struct vfm_operand *o = vfm_op_infos[c->op].operands;
		struct vfm_err err = {0};

		for (int i = 0; o[i].name; i++)
			vfm_operand_of(&c->args, &o[i])->data = &memory;
		reached = 0;
		if (vfm_case_run(c, &s, &err) < 0 || reached != 1)
			bad("checks", c, "refused: %s", err.msg);
		for (int i = 0; o[i].name; i++)
			if (vfm_has(vfm_operand_of(&c->args, &o[i])))
				spoil(&s, c, &o[i]);
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

/* ---- what the list of cases cannot say ------------------------------------------------------------------ */

/* Operands that are not to be read may hold anything. */
static void test_unread(void **state)
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

/* A NaN must come out again, or a run that has diverged goes on unseen. */
static void test_nan(void **state)
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
		gelu.act = VFM_ACT_GELU_TANH;
		assert_int_equal(vfm_op_unary(levels[i].s, &gelu, &err), 0);
		assert_true(isnan(y[21]) && !isnan(y[20]));
		assert_int_equal(vfm_op_softmax(levels[i].s, &soft, &err), 0);
		assert_true(isnan(y[0]) && isnan(y[21]));
		x[22] = -INFINITY;
		assert_int_equal(vfm_op_quant(levels[i].s, &quant, &err), 0);
		assert_true(amax == 39 && inv == 0.125f && (codes[21] & 0x7f) == 0x7f && (codes[22] & 0x7f) == 0x7f &&
			codes[23] == vfm_f32_to_f8(184, VFM_F8E4M3));
		/* with a history: finite numbers saturate, the largest of several tensors is kept; where it is empty
		 * the tensor's own decides */
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

/* Parts are summed in their order, element by element, wherever the result and this rank's part lie. */
static void test_sum_in_place(void **state)
{
	enum { PARTS = 5, N = 4099, ROW = 4104 };
	static _Alignas(64) float x[PARTS * ROW + 1], keep[PARTS * ROW + 1], own[N], want[N];
	struct vfm_rng rng = vfm_rng_stream(1, 2, 3, VFM_RNG_TEST);
	struct vfm_err err = {0};

	(void)state;
	for (int i = 0; i < PARTS * ROW + 1; i++)
		keep[i] = i % 7 ? vfm_rng_normal(&rng, (uint64_t)i) * (i / ROW % 2 ? 3e7f : 1) : -0.0f;
	for (int l = 0; l < n_full; l++)
		/* into a row of x; the last part elsewhere and summed as the third, into a row or in place; aligned or
		 * not */
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

enum { MQ = 37, MK = 90, MH = 2, MD = 40 };

/* Attention in blocks of keys, merged, is attention over all of them; the running state starts undefined,
 * a block may be empty, and so may all of them. */
static void test_merged_blocks(void **state)
{
	static const int32_t cuts[] = {0, 0, 30, 30, 71, MK};
	static float q[MQ * MH * MD], k[MK * MH * MD], v[MK * MH * MD], o[MQ * MH * MD], lse[MQ * MH];
	static float part[MQ * MH * MD], part_lse[MQ * MH], all[MQ * MH * MD], all_lse[MQ * MH];
	int32_t cu_q[] = {0, 20, 30, MQ}, cu_k[4] = {0, 50, 50, MK};
	struct vfm_rng rng = vfm_rng_stream(4, 5, 6, VFM_RNG_TEST);
	struct vfm_seqs sq = {.n = 3, .total = MQ, .max_len = 20, .cu = cu_q, .dev_cu = vfm_t1(cu_q, VFM_I32, 4)};
	struct vfm_seqs sk = {.n = 3, .total = MK, .max_len = 50, .cu = cu_k, .dev_cu = vfm_t1(cu_k, VFM_I32, 4)};
	struct vfm_err err = {0};

	(void)state;
	for (int i = 0; i < MK * MH * MD; i++) {
		k[i] = 2 * vfm_rng_normal(&rng, (uint64_t)i);
		v[i] = vfm_rng_normal(&rng, (uint64_t)i + (1 << 20));
		if (i < MQ * MH * MD)
			q[i] = vfm_rng_normal(&rng, (uint64_t)i + (2 << 20));
	}
	for (int l = 0; l < n_full; l++) {
		struct vfm_attn a = {.q = vfm_t3(q, VFM_F32, MQ, MH, MD),
			.k = vfm_t3(k, VFM_F32, MK, MH, MD),
			.v = vfm_t3(v, VFM_F32, MK, MH, MD),
			.o = vfm_t3(all, VFM_F32, MQ, MH, MD),
			.lse = vfm_t2(all_lse, VFM_F32, MQ, MH),
			.seqs_q = &sq,
			.seqs_k = &sk,
			.scale = 0.16f};
		struct vfm_attn_merge m = {.o = vfm_t3(o, VFM_F32, MQ, MH, MD),
			.lse = vfm_t2(lse, VFM_F32, MQ, MH),
			.o_b = vfm_t3(part, VFM_F32, MQ, MH, MD),
			.lse_b = vfm_t2(part_lse, VFM_F32, MQ, MH)};

		memset(o, 0xff, sizeof(o));
		memset(lse, 0xff, sizeof(lse));
		assert_int_equal(vfm_op_attn(levels[l].s, &a, &err), 0);
		for (int b = 0; b < 5; b++) { /* keys [cuts[b], cuts[b + 1]): the first block and one more hold none */
			int32_t n = cuts[b + 1] - cuts[b], cu[4];
			struct vfm_seqs sb = {
				.n = 3, .total = n, .max_len = n, .cu = cu, .dev_cu = vfm_t1(cu, VFM_I32, 4)};
			struct vfm_attn p = a;

			for (int i = 0; i < 4; i++) {
				cu[i] = cu_k[i] - cuts[b];
				cu[i] = cu[i] < 0 ? 0 : cu[i] > n ? n : cu[i];
			}
			p.k = vfm_t3(k + cuts[b] * MH * MD, VFM_F32, n, MH, MD);
			p.v = vfm_t3(v + cuts[b] * MH * MD, VFM_F32, n, MH, MD);
			p.o = m.o_b, p.lse = m.lse_b, p.seqs_k = &sb;
			m.first = b == 0;
			assert_int_equal(vfm_op_attn(levels[l].s, &p, &err), 0);
			assert_int_equal(vfm_op_attn_merge(levels[l].s, &m, &err), 0);
		}
		for (int i = 0; i < MQ * MH; i++) {
			bool keys = i / MH < 20 || i / MH >= 30; /* the second sample has none */

			if (keys ? !(fabsf(lse[i] - all_lse[i]) < 1e-5f) : lse[i] != -INFINITY)
				fail_msg("%s: lse[%d] is %g, not %g", levels[l].name, i, (double)lse[i],
					(double)all_lse[i]);
			for (int j = i * MD; j < (i + 1) * MD; j++)
				if (!(fabsf(o[j] - all[j]) < 1e-5f))
					fail_msg("%s: o[%d] is %g, not %g", levels[l].name, j, (double)o[j],
						(double)all[j]);
		}
	}
}

enum { LT = 256, LH = 2, LD = 64, LN = LT * LH * LD };
struct low {
	uint16_t q[LN], k[LN], v[LN], dout[LN], o[LN], dq[LN], dk[LN], dv[LN];
	float lse[LT * LH];
};

/* One sample; the first column of q is 1, that of k `first`. */
static void low_run(struct level *l, struct low *x, int nq, int nk, float first)
{
	int32_t cu_q[2] = {0, nq}, cu_k[2] = {0, nk};
	struct vfm_seqs sq = {.n = 1, .total = nq, .max_len = nq, .cu = cu_q, .dev_cu = vfm_t1(cu_q, VFM_I32, 2)};
	struct vfm_seqs sk = {.n = 1, .total = nk, .max_len = nk, .cu = cu_k, .dev_cu = vfm_t1(cu_k, VFM_I32, 2)};
	struct vfm_tensor q = vfm_t3(x->q, VFM_BF16, nq, LH, LD), k = vfm_t3(x->k, VFM_BF16, nk, LH, LD);
	struct vfm_attn f = {.q = q,
		.k = k,
		.v = k,
		.o = q,
		.lse = vfm_t2(x->lse, VFM_F32, nq, LH),
		.seqs_q = &sq,
		.seqs_k = &sk,
		.scale = 0.125f};
	struct vfm_attn_bwd b = {.q = q,
		.k = k,
		.v = k,
		.o = q,
		.lse = f.lse,
		.dout = q,
		.dq = q,
		.dk = k,
		.dv = k,
		.seqs_q = &sq,
		.seqs_k = &sk,
		.scale = 0.125f};
	struct vfm_rng rng = vfm_rng_stream(4, 5, 7, VFM_RNG_TEST);
	struct vfm_err err = {0};

	for (uint64_t i = 0; i < LN; i++) {
		x->q[i] = vfm_f32_to_bf16(i % LD ? vfm_rng_normal(&rng, i) : 1);
		x->k[i] = vfm_f32_to_bf16(i % LD ? vfm_rng_normal(&rng, i + LN) : first);
		x->v[i] = vfm_f32_to_bf16(vfm_rng_normal(&rng, i + 2 * LN));
		x->dout[i] = vfm_f32_to_bf16(vfm_rng_normal(&rng, i + 3 * LN));
	}
	f.v.data = b.v.data = x->v;
	f.o.data = b.o.data = x->o;
	b.dout.data = x->dout, b.dq.data = x->dq, b.dk.data = x->dk, b.dv.data = x->dv;
	assert_int_equal(vfm_op_attn(l->s, &f, &err), 0);
	assert_int_equal(vfm_op_attn_bwd(l->s, &b, &err), 0);
}

static void low_compare(const struct level *l, const char *what, const uint16_t *want, const uint16_t *got, int rows)
{
	double rms = 0;

	for (int i = 0; i < rows * LH * LD; i++)
		rms += pow((double)vfm_bf16_to_f32(want[i]), 2) / (rows * LH * LD);
	rms = sqrt(rms);
	for (int i = 0; i < rows * LH * LD; i++) {
		double x = (double)vfm_bf16_to_f32(want[i]), y = (double)vfm_bf16_to_f32(got[i]);

		if (what[1] == 'q' && i % LD == 0)
			continue; /* a sum of roundings times the first column */
		if (!(fabs(x - y) <= 0.06 * rms + 0.02 * fabs(x)))
			fail_msg("%s: %s[%d] of %d rows is %g, not %g", l->name, what, i, rows, y, x);
	}
}

/* Scores that are all far below 0, where exp(0 - lse) of a key that is not there would overflow: all 120 lower, they
 * give the same.  Keys that do not fill a tile of 128, a single query, whole tiles. */
static void test_low_scores(void **state)
{
	static const int shapes[][2] = {{192, 192}, {1, 128}, {100, 65}, {256, 256}, {192, 200}};
	static struct low a, b;

	(void)state;
	for (int l = 0; l < n_full; l++)
		for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
			int nq = shapes[i][0], nk = shapes[i][1];

			low_run(&levels[l], &a, nq, nk, 0);
			low_run(&levels[l], &b, nq, nk, -960);
			for (int r = 0; r < nq * LH; r++)
				if (!(fabsf(a.lse[r] - b.lse[r] - 120) < 0.02f))
					fail_msg("%s: lse[%d] of %dx%d is %g, not %g", levels[l].name, r, nq, nk,
						(double)b.lse[r], (double)a.lse[r] - 120);
			low_compare(&levels[l], "o", a.o, b.o, nq);
			low_compare(&levels[l], "dq", a.dq, b.dq, nq);
			low_compare(&levels[l], "dk", a.dk, b.dk, nk);
			low_compare(&levels[l], "dv", a.dv, b.dv, nk);
		}
}

/* The generator of the kernels: the integers of base/philox.h bit for bit, its normals to rounding, also where the
 * logarithm is of a number next to 0 or 1. */
static void test_philox(void **state)
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
			/* of the pair's length: a sine next to 0 has the rounding of its angle */
			for (int j = 0; j < 4; j++)
				assert_true(fabsf(z[4 * i + (uint64_t)j] - want[j]) <=
					6e-7f * hypotf(want[j & 2], want[(j & 2) + 1]));
		}
	}
	for (uint32_t i = 0; i < 256; i++) /* the ends, powers of two, where the two ways meet */
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

/* The CPU refuses an index outside the tensor.  Kernels cannot in time: it is no row, nothing else is touched, and
 * whoever waits for the device hears of it. */
static void refused_later(struct vfm_stream *s, int rc, struct vfm_err *err, const char *words)
{
	if (!device) {
		assert_int_equal(rc, 0);
		rc = s->dev->t->stream_sync(s, err);
		vfm_emu_forget_faults();
		assert_int_equal(s->dev->t->stream_sync(s, NULL), 0);
	}
	assert_int_equal(rc, VFM_EUSAGE);
	if (!strstr(err->msg, words))
		fail_msg("'%s' does not say '%s'", err->msg, words);
	*err = (struct vfm_err){0};
}

enum { BAD_D = 16 };

/* Rows of d elements: by vectors, and one by one. */
static void bad_rows(struct vfm_stream *s, int64_t d)
{
	float x[3 * BAD_D], y[3 * BAD_D], sum[3 * BAD_D], dot[3], out[BAD_D], want[2] = {0};
	int32_t index[3] = {0, 3, 1};
	struct vfm_err err = {0};
	struct vfm_index_select r = {
		.x = vfm_t2(x, VFM_F32, 3, d), .y = vfm_t2(y, VFM_F32, 3, d), .index = vfm_t1(index, VFM_I32, 3)};
	struct vfm_index_add a = {.x = r.x, .y = vfm_t2(sum, VFM_F32, 3, d), .index = r.index};
	struct vfm_index_dot p = {.x = r.x, .y = r.x, .index = r.index, .dot = vfm_t1(dot, VFM_F32, 3)};
	struct vfm_embed3 e = {.table_t = r.x,
		.table_h = r.x,
		.table_w = r.x,
		.pos = vfm_t2(index, VFM_I32, 1, 3),
		.out = vfm_t2(out, VFM_F32, 1, d)};
	struct vfm_embed3_bwd eb = {.dy = vfm_t2(x, VFM_F32, 1, d), .pos = e.pos, .dtable_h = a.y};

	for (int i = 0; i < 3 * d; i++)
		x[i] = (float)(i + 1);
	refused_later(s, vfm_op_index_select(s, &r, &err), &err, "index_select: an index is 3, but there are 3 rows");
	refused_later(s, vfm_op_index_add(s, &a, &err), &err, "index_add: an index is 3, but there are 3 rows");
	refused_later(s, vfm_op_index_dot(s, &p, &err), &err, "index_dot: an index is 3, but there are 3 rows");
	refused_later(s, vfm_op_embed3(s, &e, &err), &err, "embed3: an index is 3, but there are 3 rows");
	for (int64_t i = 0; i < d; i++) {
		assert_true(y[i] == x[i] && y[d + i] == 0 && y[2 * d + i] == x[d + i]);
		assert_true(sum[i] == x[i] && sum[d + i] == x[2 * d + i] && sum[2 * d + i] == 0);
		assert_true(out[i] == x[i] + x[d + i]);
		want[0] += x[i] * x[i], want[1] += x[2 * d + i] * x[d + i];
	}
	assert_true(dot[0] == want[0] && dot[1] == 0 && dot[2] == want[1]);
	refused_later(s, vfm_op_embed3_bwd(s, &eb, &err), &err, "embed3_bwd: an index is 3, but there are 3 rows");
	for (int64_t i = 0; i < d; i++)
		assert_true(sum[i] == x[i] && sum[d + i] == x[2 * d + i] && sum[2 * d + i] == 0);
	index[1] = INT32_MAX;
	refused_later(s, vfm_op_index_select(s, &r, &err), &err, "index_select: an index is 2147483647, but");
	index[1] = -7; /* no row where rows may be missing, but no place */
	if (!device) {
		assert_int_equal(vfm_op_index_select(s, &r, &err) | vfm_op_index_add(s, &a, &err) |
				vfm_op_index_dot(s, &p, &err),
			0);
		assert_int_equal(s->dev->t->stream_sync(s, &err), 0);
	}
	refused_later(s, vfm_op_embed3_bwd(s, &eb, &err), &err, "embed3_bwd: an index is -7, but there are 3 rows");
	refused_later(s, vfm_op_embed3(s, &e, &err), &err, "embed3: an index is -7, but there are 3 rows");
}

/* Few destinations: sums in pieces. */
static void bad_long_lists(struct vfm_stream *s)
{
	enum { N = 640, D = 8 };
	static float x[N * D];
	static int32_t index[N];
	float y[2 * D];
	struct vfm_err err = {0};
	struct vfm_index_add a = {
		.x = vfm_t2(x, VFM_F32, N, D), .y = vfm_t2(y, VFM_F32, 2, D), .index = vfm_t1(index, VFM_I32, N)};

	for (int i = 0; i < N; i++) {
		index[i] = i == 333 ? 1 << 30 : i % 2;
		for (int k = 0; k < D; k++)
			x[i * D + k] = 1;
	}
	refused_later(
		s, vfm_op_index_add(s, &a, &err), &err, "index_add: an index is 1073741824, but there are 2 rows");
	for (int k = 0; k < D; k++)
		assert_true(y[k] == N / 2 && y[D + k] == N / 2 - 1);
}

static void bad_experts(struct vfm_stream *s)
{
	int32_t key[3] = {0, 3, 1}, order[3], count[2], expert[4] = {0, 7, -5, 2}, cu[2] = {0, 2}, seg[2] = {0, 0},
		own[2] = {0, 1}, row[3], place[3], n[1];
	float score[6] = {0.5f, 0.25f, 0.25f, 0.1f, 0.2f, 0.7f}, ds[6], dw[4] = {1, 2, 3, 4}, counted[3];
	struct vfm_err err = {0};
	struct vfm_seqs seqs = {.n = 1,
		.total = 2,
		.max_len = 2,
		.cu = cu,
		.dev_cu = vfm_t1(cu, VFM_I32, 2),
		.seg = vfm_t1(seg, VFM_I32, 2)};
	struct vfm_moe_sort ms = {.buckets = 2,
		.div = 1,
		.key = vfm_t1(key, VFM_I32, 3),
		.order = vfm_t1(order, VFM_I32, 3),
		.count = vfm_t1(count, VFM_I32, 2)};
	struct vfm_moe_topk_token_bwd tb = {.score = vfm_t2(score, VFM_F32, 2, 3),
		.expert = vfm_t2(expert, VFM_I32, 2, 2),
		.dweight = vfm_t2(dw, VFM_F32, 2, 2),
		.dscore = vfm_t2(ds, VFM_F32, 2, 3)};
	struct vfm_moe_count mc = {.expert = tb.expert, .seqs = &seqs, .count = vfm_t2(counted, VFM_F32, 1, 3)};
	struct vfm_moe_own mo = {.index = vfm_t2(key, VFM_I32, 1, 3),
		.own = vfm_t1(own, VFM_I32, 2),
		.row = vfm_t1(row, VFM_I32, 3),
		.place = vfm_t1(place, VFM_I32, 3),
		.count = vfm_t1(n, VFM_I32, 1)};

	refused_later(s, vfm_op_moe_sort(s, &ms, &err), &err, "moe_sort: an element is 3, but there are 2 experts");
	assert_true(order[0] == 0 && order[1] == 2 && order[2] == 1 && count[0] == 1 && count[1] == 1);
	refused_later(s, vfm_op_moe_topk_token_bwd(s, &tb, &err), &err, "moe_topk_token_bwd: an element is ");
	assert_true(ds[0] == 0 && ds[1] == 0 && ds[2] == 0 && ds[3] == 0 && ds[4] == 0 && ds[5] == 0);
	refused_later(s, vfm_op_moe_count(s, &mc, &err), &err, "moe_count: an element is 7, but there are 3 experts");
	assert_true(counted[0] == 1 && counted[1] == 0 && counted[2] == 1);
	refused_later(s, vfm_op_moe_own(s, &mo, &err), &err, "moe_own: an element is 3, but there are 2 tokens");
	assert_true(row[0] == 0 && row[1] == 1 && row[2] == -1 && n[0] == 2);
}

static void test_bad_indices_of_kernels(void **state)
{
	struct vfm_stream *s = levels[device ? 0 : n_isa].s;

	(void)state;
	if (device && !strcmp(device, "cpu"))
		skip();
	bad_rows(s, 4);
	bad_rows(s, BAD_D);
	bad_long_lists(s);
	bad_experts(s);
}

static void test_bad_indices(void **state)
{
	float x[12] = {0}, y[12] = {0};
	int32_t index[3] = {0, 3, 1};
	struct vfm_err err = {0};
	struct vfm_index_select r = {
		.x = vfm_t2(x, VFM_F32, 3, 4), .y = vfm_t2(y, VFM_F32, 3, 4), .index = vfm_t1(index, VFM_I32, 3)};
	struct vfm_index_add a = {.x = r.x, .y = r.y, .index = r.index};
	struct vfm_embed3 e = {.table_t = r.x,
		.table_h = r.x,
		.table_w = r.x,
		.pos = vfm_t2(index, VFM_I32, 1, 3),
		.out = vfm_t2(y, VFM_F32, 1, 4)};

	(void)state;
	assert_int_equal(vfm_op_index_select(levels[0].s, &r, &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "index 1 is 3, but there are 3 rows"));
	assert_int_equal(vfm_op_index_add(levels[0].s, &a, &err), VFM_EUSAGE);
	assert_int_equal(vfm_op_embed3(levels[0].s, &e, &err), VFM_EUSAGE);
	index[1] = -1;
	assert_int_equal(vfm_op_index_select(levels[0].s, &r, &err), 0);
	assert_int_equal(vfm_op_embed3(levels[0].s, &e, &err), VFM_EUSAGE);
}

/* ---- the device -------------------------------------------------------------------------------------- */

static void test_pool(void **state)
{
	struct vfm_stream *s = levels[0].s;
	struct vfm_dev *d = levels[0].dev;
	struct vfm_err err = {0};
	char *p, *q;

	(void)state;
	vfm_dev_peak_reset(d);
	assert_int_equal(d->mem_now, 0);
	p = vfm_dev_alloc(s, 1000003, "a", &err);
	q = vfm_dev_alloc(s, 1, "b", &err);
	assert_non_null(p);
	assert_non_null(q);
	assert_int_equal((uintptr_t)p % 64, 0);
	assert_int_equal(d->mem_now, 1000004);
	memset(p, 1, 1000003);
	vfm_dev_free(s, p, 1000003);
	assert_int_equal(d->mem_now, 1);
	assert_int_equal(d->mem_peak, 1000004);
	assert_ptr_equal(vfm_dev_alloc(s, 1000001, "again", &err), p); /* the block is used again */
	vfm_dev_free(s, p, 1000001);
	vfm_dev_free(s, q, 1);
	assert_null(vfm_dev_alloc(s, SIZE_MAX / 2, "too much", &err));
	assert_int_equal(err.code, VFM_EENV);
	assert_non_null(strstr(err.msg, "too much"));
	vfm_dev_free(s, NULL, 5);
	p = vfm_dev_alloc(s, 0, "nothing", &err); /* of a rank without tokens: an address like any other */
	q = vfm_dev_alloc(s, 0, "nothing", &err);
	assert_non_null(p);
	assert_non_null(q);
	assert_ptr_not_equal(p, q);
	assert_int_equal(d->mem_now, 0);
	vfm_dev_free(s, p, 0);
	vfm_dev_free(s, q, 0);
	assert_int_equal(d->mem_now, 0);
}

static void test_isa_names(void **state)
{
	struct vfm_err err = {0};
	enum vfm_isa isa;

	(void)state;
	setenv("VFM_CPU_ISA", "avx1024", 1);
	assert_int_equal(vfm_isa_choose(&isa, &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "avx1024"));
	assert_null(vfm_cpu_open(&err));
	setenv("VFM_CPU_ISA", "base", 1);
	assert_int_equal(vfm_isa_choose(&isa, &err), 0);
	assert_int_equal(isa, VFM_ISA_BASE);
	setenv("VFM_CPU_ISA", "", 1);
	assert_int_equal(vfm_isa_choose(&isa, &err), 0);
	assert_int_equal(isa, vfm_isa_best());
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pool),
		cmocka_unit_test(test_checks),
		cmocka_unit_test(test_parity),
		cmocka_unit_test(test_gradients),
		cmocka_unit_test(test_same_bits),
		cmocka_unit_test(test_unread),
		cmocka_unit_test(test_nan),
		cmocka_unit_test(test_sum_in_place),
		cmocka_unit_test(test_merged_blocks),
		cmocka_unit_test(test_low_scores),
		cmocka_unit_test(test_bad_indices),
		cmocka_unit_test(test_bad_indices_of_kernels),
		cmocka_unit_test(test_philox),
		cmocka_unit_test(test_isa_names),
	};
	const struct CMUnitTest of_device[] = {
		cmocka_unit_test(test_parity),
		cmocka_unit_test(test_gradients),
		cmocka_unit_test(test_same_bits),
		cmocka_unit_test(test_unread),
		cmocka_unit_test(test_nan),
		cmocka_unit_test(test_sum_in_place),
		cmocka_unit_test(test_merged_blocks),
		cmocka_unit_test(test_low_scores),
		cmocka_unit_test(test_bad_indices_of_kernels),
	};

	(void)argc;
	device = getenv("VFM_TEST_DEVICE");
	case_words = getenv("VFM_TEST_CASES");
	if (getenv("VFM_TEST_ONLY"))
		cmocka_set_test_filter(getenv("VFM_TEST_ONLY"));
	/* oneDNN's team of threads would spin between its loops, and on a busy machine that is most of the time. */
	if (!getenv("OMP_WAIT_POLICY") && setenv("OMP_WAIT_POLICY", "passive", 1) == 0)
		execv("/proc/self/exe", argv); /* which the library reads when it is loaded; without it, slower */
	if (device)
		return cmocka_run_group_tests(of_device, open_levels, close_levels);
	return cmocka_run_group_tests(tests, open_levels, close_levels);
}
