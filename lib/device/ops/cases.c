/* cases.c - cases of GEMM, elementwise ops, losses and fp8; allocates and fills the operands of all cases. */
#include "device/ops/cases_impl.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- building cases ---------------------------------------------------------------------- */

struct vfm_case *vfm_case_add(struct vfm_cases *l, enum vfm_op_id op, unsigned flags, const char *fmt, ...)
{
	struct vfm_case *c = vfm_arena_alloc(&l->arena, sizeof(*c));
	int n = snprintf(c->name, sizeof(c->name), "%s/", vfm_op_info(op)->name);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(c->name + n, sizeof(c->name) - (size_t)n, fmt, ap);
	va_end(ap);
	c->op = op;
	c->flags = flags;
	c->tol = 2e-5;
	vfm_grow(&l->v, &l->cap, l->n + 1, sizeof(*l->v));
	l->v[l->n++] = c;
	return c;
}

void vfm_case_seqs(struct vfm_cases *l, struct vfm_case *c, int which, int n, const int *len)
{
	struct vfm_seqs *q = &c->seqs[which];
	int32_t *cu = vfm_arena_alloc(&l->arena, (size_t)(n + 1) * sizeof(*cu));
	const struct vfm_seqs **at =
		(const struct vfm_seqs **)((char *)&c->args + vfm_op_info(c->op)->seqs[which].offset);

	for (int i = 0; i < n; i++)
		cu[i + 1] = cu[i] + len[i];
	vfm_seqs_init(q, n, cu);
	q->dev_cu = vfm_t1(NULL, VFM_I32, n + 1);
	q->seg = vfm_t1(NULL, VFM_I32, cu[n]);
	*at = q;
}

static struct vfm_case *add_gemm(struct vfm_cases *l, unsigned flags, const char *what, int64_t m, int64_t n, int64_t k,
	bool ta, bool tb, enum vfm_dtype in, enum vfm_dtype out, int64_t pad)
{
	struct vfm_case *c = vfm_case_add(l, VFM_OP_gemm, flags, "%s/%s-%s/%c%c/%dx%dx%d%s", what, vfm_dtype_name(in),
		vfm_dtype_name(out), ta ? 't' : 'n', tb ? 't' : 'n', (int)m, (int)n, (int)k, pad ? "/strided" : "");

	c->args.gemm = (struct vfm_gemm){
		.a = ta ? mat(in, k, m, pad) : mat(in, m, k, pad),
		.b = tb ? mat(in, n, k, pad * 3) : mat(in, k, n, pad * 3),
		.c = mat(out, m, n, pad * 5),
		.trans_a = ta,
		.trans_b = tb,
	};
	return c;
}

static void gemm_epilogues(
	struct vfm_cases *l, int64_t m, int64_t n, int64_t k, enum vfm_dtype in, enum vfm_dtype out, int64_t pad)
{
	static const char *const act_name[] = {"none", "gelu", "silu"};
	struct vfm_case *c;

	c = add_gemm(l, VFM_CASE_TEST, "bias", m, n, k, false, true, in, out, pad);
	c->args.gemm.bias = vec(VFM_F32, n);
	c = add_gemm(l, VFM_CASE_TEST, "bias-bf16", m, n, k, false, true, in, out, pad);
	c->args.gemm.bias = vec(VFM_BF16, n);
	c = add_gemm(l, VFM_CASE_TEST, "bias-bf16-gelu-aux", m, n, k, false, true, in, out, pad);
	c->args.gemm.bias = vec(VFM_BF16, n);
	c->args.gemm.act = VFM_ACT_GELU_TANH;
	c->args.gemm.aux = mat(out, m, n, pad * 7);
	c = add_gemm(l, VFM_CASE_TEST, "accumulate", m, n, k, false, true, in, out, pad);
	c->args.gemm.accumulate = true;
	c = add_gemm(l, VFM_CASE_TEST, "bias-accumulate", m, n, k, false, false, in, out, pad);
	c->args.gemm.bias = vec(VFM_F32, n);
	c->args.gemm.accumulate = true;
	c = add_gemm(l, VFM_CASE_TEST, "wgrad", m, n, k, true, false, in, out, pad);
	c->args.gemm.accumulate = true;
	c->args.gemm.a_rowsum = vec(VFM_F32, m);
	c = add_gemm(l, VFM_CASE_TEST, "rowsum", m, n, k, false, true, in, out, pad);
	c->args.gemm.a_rowsum = vec(VFM_F32, m);
	for (enum vfm_act act = VFM_ACT_GELU_TANH; act <= VFM_ACT_SILU; act++) {
		char what[32];

		snprintf(what, sizeof(what), "fwd-%s", act_name[act]);
		c = add_gemm(l, VFM_CASE_TEST, what, m, n, k, false, true, in, out, pad);
		c->args.gemm.act = act;
		snprintf(what, sizeof(what), "fwd-%s-aux", act_name[act]);
		c = add_gemm(l, VFM_CASE_TEST, what, m, n, k, false, true, in, out, pad);
		c->args.gemm.act = act;
		c->args.gemm.bias = vec(VFM_F32, n);
		c->args.gemm.aux = mat(out, m, n, pad * 7);
		snprintf(what, sizeof(what), "bwd-%s", act_name[act]);
		c = add_gemm(l, VFM_CASE_TEST, what, m, n, k, false, false, in, out, pad);
		c->args.gemm.dact = act;
		c->args.gemm.aux = mat(out, m, n, pad * 7);
	}
}

static void gemm_cases(struct vfm_cases *l)
{
	struct vfm_case *c;
	static const int shapes[][3] = {{1, 1, 1}, {7, 5, 3}, {14, 32, 256}, {15, 33, 257}, {64, 96, 128},
		{130, 70, 515}, {200, 400, 300}, {33, 1024, 64}, {3, 50, 1000}, {350, 40, 17}};

	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
		for (int v = 0; v < 4; v++)
			for (int t = 0; t < 3; t++)
				add_gemm(l, VFM_CASE_TEST, "plain", shapes[i][0], shapes[i][1], shapes[i][2], v & 1,
					v & 2, types[t > 0], types[t > 1], i % 2 ? 3 : 0);
	for (int t = 0; t < 4; t++) {
		gemm_epilogues(l, 61, 75, 83, types[t & 1], types[t >> 1], t % 2 ? 5 : 0);
		gemm_epilogues(l, 5, 203, 83, types[t & 1], types[t >> 1], t % 2 ? 5 : 0);
		gemm_epilogues(l, 128, 64, 96, types[t & 1], types[t >> 1], 0);
		gemm_epilogues(l, 177, 390, 270, types[t & 1], types[t >> 1], 8);
	}
	/* B exceeds what a product packs at a time: plain results, and those with an epilogue */
	for (int t = 0; t < 2; t++) {
		int64_t k = t ? 1700 : 850, m = t ? 18 : 170;

		c = add_gemm(l, VFM_CASE_TEST, "wgrad", m, 1300, k, true, false, types[t], VFM_F32, 0);
		c->args.gemm.accumulate = true;
		c->args.gemm.a_rowsum = vec(VFM_F32, m);
		c = add_gemm(l, VFM_CASE_TEST, "fwd-gelu-aux", m, 4100, k, false, true, types[t], types[t], 0);
		c->args.gemm.act = VFM_ACT_GELU_TANH;
		c->args.gemm.bias = vec(VFM_F32, 4100);
		c->args.gemm.aux = mat(types[t], m, 4100, 7);
		c = add_gemm(l, VFM_CASE_TEST, "plain", 18, 4100, k, false, false, types[t], types[t], 0);
	}
	/* more rows than a block */
	for (int t = 0; t < 2; t++) {
		c = add_gemm(l, VFM_CASE_TEST, "bwd-gelu", 1100, 33, 40, t, true, types[t], types[t], 4);
		c->args.gemm.dact = VFM_ACT_GELU_TANH;
		c->args.gemm.aux = mat(types[t], 1100, 33, 1);
	}
	/* empty sums, empty results */
	gemm_epilogues(l, 9, 11, 0, VFM_F32, VFM_F32, 0);
	add_gemm(l, VFM_CASE_TEST, "empty", 0, 40, 16, false, true, VFM_F32, VFM_F32, 0);
}

static void bench_linear(struct vfm_cases *l, unsigned flags, const char *what, enum vfm_dtype t, int64_t rows,
	int64_t in, int64_t out, enum vfm_act act, enum vfm_act dact)
{
	struct vfm_case *c;
	const bool few = rows < 16; /* one a sample */
	char name[48];

	snprintf(name, sizeof(name), "%s-fwd", what);
	c = add_gemm(l, flags, name, rows, out, in, false, true, t, t, 0);
	c->args.gemm.few = few;
	c->args.gemm.bias = vec(VFM_F32, out);
	c->args.gemm.act = act;
	if (act)
		c->args.gemm.aux = mat(t, rows, out, 0);
	snprintf(name, sizeof(name), "%s-dgrad", what);
	c = add_gemm(l, flags, name, rows, in, out, false, false, t, t, 0);
	c->args.gemm.few = few;
	c->args.gemm.dact = dact;
	if (dact)
		c->args.gemm.aux = mat(t, rows, in, 0);
	snprintf(name, sizeof(name), "%s-wgrad", what);
	c = add_gemm(l, flags, name, out, in, rows, true, false, t, VFM_F32, 0);
	c->args.gemm.accumulate = true;
	c->args.gemm.a_rowsum = vec(VFM_F32, out);
}

static void gemm_bench(struct vfm_cases *l)
{
	for (int t = 0; t < 2; t++)
		for (int64_t d = 384; d <= 768; d *= 2) {
			int64_t rows = d == 384 ? 4096 : 2048;

			bench_linear(l, VFM_CASE_BENCH, "qkv", types[t], rows, d, 3 * d, VFM_ACT_NONE, VFM_ACT_NONE);
			bench_linear(l, VFM_CASE_BENCH, "proj", types[t], rows, d, d, VFM_ACT_NONE, VFM_ACT_NONE);
			bench_linear(
				l, VFM_CASE_BENCH, "fc1", types[t], rows, d, 4 * d, VFM_ACT_GELU_TANH, VFM_ACT_NONE);
			bench_linear(
				l, VFM_CASE_BENCH, "fc2", types[t], rows, 4 * d, d, VFM_ACT_NONE, VFM_ACT_GELU_TANH);
			bench_linear(l, VFM_CASE_BENCH, "adaln", types[t], 8, d, 6 * d, VFM_ACT_NONE, VFM_ACT_NONE);
		}
}

static void add_unary(
	struct vfm_cases *l, unsigned flags, enum vfm_act act, enum vfm_dtype xt, enum vfm_dtype yt, int64_t n)
{
	static const char *const act_name[] = {"none", "gelu", "silu", "gelu-erf"};

	for (int bwd = 0; bwd < 2; bwd++) {
		struct vfm_case *c = vfm_case_add(l, VFM_OP_unary, flags, "%s-%s/%s-%s/%d", act_name[act],
			bwd ? "bwd" : "fwd", vfm_dtype_name(xt), vfm_dtype_name(yt), (int)n);

		c->args.unary = (struct vfm_unary){
			.act = act, .x = vec(xt, n), .dy = bwd ? vec(yt, n) : none, .y = vec(bwd ? xt : yt, n)};
	}
}

static void elementwise_cases(struct vfm_cases *l)
{
	struct vfm_case *c;

	for (int t = 0; t < 4; t++) {
		enum vfm_dtype xt = types[t & 1], yt = types[t >> 1];

		add_unary(l, VFM_CASE_TEST, VFM_ACT_GELU_TANH, xt, yt, 1003);
		add_unary(l, VFM_CASE_TEST, VFM_ACT_SILU, xt, yt, 70001);
		add_unary(l, VFM_CASE_TEST, VFM_ACT_GELU_TANH, xt, yt, 5);
		add_unary(l, VFM_CASE_TEST, VFM_ACT_GELU, xt, yt, 1003);
		for (int b = 0; b < 2; b++) {
			c = vfm_case_add(l, VFM_OP_axpby, VFM_CASE_TEST, "beta%d/%s-%s/contiguous", b,
				vfm_dtype_name(xt), vfm_dtype_name(yt));
			c->args.axpby = (struct vfm_axpby){0.7f, (float)b * -1.3f, vec(xt, 70007), vec(yt, 70007)};
			c = vfm_case_add(l, VFM_OP_axpby, VFM_CASE_TEST, "beta%d/%s-%s/strided", b, vfm_dtype_name(xt),
				vfm_dtype_name(yt));
			c->args.axpby = (struct vfm_axpby){1, (float)b, mat(xt, 53, 37, 4), mat(yt, 53, 37, 9)};
			c = vfm_case_add(l, VFM_OP_axpby, VFM_CASE_TEST, "beta%d/%s-%s/wide", b, vfm_dtype_name(xt),
				vfm_dtype_name(yt));
			c->args.axpby = (struct vfm_axpby){1, (float)b, mat(xt, 7, 2568, 8), mat(yt, 7, 2568, 16)};
			c = vfm_case_add(l, VFM_OP_axpby, VFM_CASE_TEST, "beta%d/%s-%s/heads", b, vfm_dtype_name(xt),
				vfm_dtype_name(yt));
			c->args.axpby =
				(struct vfm_axpby){-2, (float)b, heads(xt, 19, 3, 8, 24), heads(yt, 19, 3, 8, 0)};
		}
	}
	for (int t = 0; t < 2; t++) {
		c = vfm_case_add(l, VFM_OP_timestep, VFM_CASE_TEST, "%s/5x34", vfm_dtype_name(types[t]));
		c->args.timestep = (struct vfm_timestep){vec(VFM_F32, 5), mat(types[t], 5, 34, 0), 10000.0f};
		c->tol = 1e-4; /* the argument is up to 1000 */
		add_unary(l, VFM_CASE_BENCH, VFM_ACT_GELU_TANH, types[t], types[t], 2048 * 3072);
		c = vfm_case_add(l, VFM_OP_axpby, VFM_CASE_BENCH, "add/%s/2048x768", vfm_dtype_name(types[t]));
		c->args.axpby = (struct vfm_axpby){1, 1, mat(types[t], 2048, 768, 0), mat(types[t], 2048, 768, 0)};
		c = vfm_case_add(l, VFM_OP_axpby, VFM_CASE_BENCH, "cast/%s-%s/16M", vfm_dtype_name(types[t]),
			vfm_dtype_name(types[!t]));
		c->args.axpby = (struct vfm_axpby){1, 0, vec(types[t], 16 << 20), vec(types[!t], 16 << 20)};
	}
}

static void add_diffuse(struct vfm_cases *l, unsigned flags, enum vfm_dtype x0, enum vfm_dtype t, int n, const int *len,
	int64_t f, bool all)
{
	static const char *const names[] = {"", "/bf16-x0", "/f16-x0"};
	int64_t rows = sum_lengths(n, len);
	struct vfm_case *c = vfm_case_add(l, VFM_OP_diffuse, flags, "%s/%dx%d%s%s", vfm_dtype_name(t), (int)rows,
		(int)f, all ? "" : "/input-only",
		names[x0 == VFM_BF16            ? 1
				: x0 == VFM_F16 ? 2
						: 0]);

	c->args.diffuse = (struct vfm_diffuse){.seed = 3,
		.step = 17,
		.x0 = mat(x0, rows, f, 0),
		.id = vec(VFM_I64, n),
		.idx = vec(VFM_I32, rows),
		.coef = mat(VFM_F32, n, 4, 0),
		.input = mat(t, rows, f, 0),
		.target = all ? mat(VFM_F32, rows, f, 0) : none};
	vfm_case_seqs(l, c, 0, n, len);
}

static void add_mse(struct vfm_cases *l, unsigned flags, enum vfm_dtype t, int n, const int *len, int64_t f, bool all)
{
	int64_t rows = sum_lengths(n, len);
	struct vfm_case *c = vfm_case_add(
		l, VFM_OP_mse, flags, "%s/%dx%d%s", vfm_dtype_name(t), (int)rows, (int)f, all ? "" : "/loss-only");

	c->args.mse = (struct vfm_mse){.pred = mat(t, rows, f, 0),
		.target = mat(VFM_F32, rows, f, 0),
		.w = vec(VFM_F32, n),
		.loss = vec(VFM_F64, 1),
		.unweighted = all ? vec(VFM_F64, 1) : none,
		.sample_loss = all ? vec(VFM_F32, n) : none,
		.dpred = all ? mat(t, rows, f, 0) : none};
	vfm_case_seqs(l, c, 0, n, len);
}

static void loss_cases(struct vfm_cases *l)
{
	static const enum vfm_dtype latents[] = {VFM_F32, VFM_BF16, VFM_F16};
	static const int s[] = {1024, 1024, 2048};
	static const struct {
		int64_t f;
		bool all;
	} tests[] = {{64, true}, {30, true}, {7, false}};

	for (int t = 0; t < 2; t++) {
		for (int i = 0; i < 3; i++) {
			for (int x0 = 0; x0 < 3; x0++)
				add_diffuse(l, VFM_CASE_TEST, latents[x0], types[t], N_MIXED, mixed, tests[i].f,
					tests[i].all);
			add_mse(l, VFM_CASE_TEST, types[t], N_MIXED, mixed, tests[i].f, tests[i].all);
		}
		for (int x0 = 0; x0 < 3; x0++)
			add_diffuse(l, VFM_CASE_BENCH, latents[x0], types[t], 3, s, 64, true);
		add_mse(l, VFM_CASE_BENCH, types[t], 3, s, 64, true);
	}
}

static void add_quant(
	struct vfm_cases *l, unsigned flags, enum vfm_dtype in, enum vfm_dtype out, int64_t t, int64_t d, int v)
{
	struct vfm_case *c = vfm_case_add(l, VFM_OP_quant, flags, "%s-%s/%dx%d/%s%s%s", vfm_dtype_name(in),
		vfm_dtype_name(out), (int)t, (int)d, v & 1 ? "plain" : "", v & 2 ? "transposed" : "",
		v & 8           ? "/first"
			: v & 4 ? "/delayed"
				: "");

	c->args.quant = (struct vfm_quant){.x = mat(in, t, d, flags & VFM_CASE_TEST && v & 1 && t % 2 ? 3 : 0),
		.amax = vec(VFM_F32, 1),
		.inv = vec(VFM_F32, 1)};
	if (v & 1)
		c->args.quant.y = mat(out, t, d, 0);
	if (v & 2)
		c->args.quant.yt = mat(out, d, (t + 15) / 16 * 16, 0);
	if (v & 4)
		c->args.quant.history = vec(VFM_F32, flags & VFM_CASE_TEST ? t % 3 * 20 + 1 : 16);
	c->bound[0] = v & 8;
	if (v != 1)
		c->args.quant.colsum = vec(VFM_F32, d);
}

static void add_transpose8(struct vfm_cases *l, unsigned flags, enum vfm_dtype dt, int64_t t, int64_t d)
{
	struct vfm_case *c = vfm_case_add(l, VFM_OP_transpose8, flags, "%s/%dx%d", vfm_dtype_name(dt), (int)t, (int)d);

	c->args.transpose8 = (struct vfm_transpose8){.x = mat(dt, t, d, 0), .y = mat(dt, d, (t + 15) / 16 * 16, 0)};
}

static struct vfm_case *add_amax_push(
	struct vfm_cases *l, unsigned flags, const char *what, int ranks, int64_t n, int64_t h, int64_t pad)
{
	struct vfm_case *c = vfm_case_add(l, VFM_OP_amax_push, flags, "%s%d/%dx%d", what, ranks, (int)n, (int)h);

	c->args.amax_push = (struct vfm_amax_push){.parts = mat(VFM_F32, ranks, n, pad), .past = mat(VFM_F32, n, h, 0)};
	return c;
}

/* A step whose gradient is finite, NaN or infinite. */
static void guarded_amax_push(struct vfm_cases *l)
{
	static const char *const what[] = {"finite-", "nan-", "inf-"};

	for (int i = 0; i < 3; i++) {
		struct vfm_case *c = add_amax_push(l, VFM_CASE_TEST, what[i], 3, 40, 16, 0);

		c->args.amax_push.grad_scale = vec(VFM_F32, 1);
		c->bound[0] = i;
	}
}

static struct vfm_case *add_gemm8(struct vfm_cases *l, unsigned flags, const char *what, int64_t m, int64_t n,
	int64_t k, bool ta, bool tb, enum vfm_dtype a, enum vfm_dtype b, enum vfm_dtype out, int64_t pad)
{
	char name[48];
	struct vfm_case *c;

	snprintf(name, sizeof(name), "%s-x-%s", what, vfm_dtype_name(b));
	c = add_gemm(l, flags, name, m, n, k, ta, tb, a, out, pad);
	c->args.gemm.b.dtype = b;
	c->args.gemm.scale_a = c->args.gemm.scale_b = vec(VFM_F32, 1);
	return c;
}

static void fp8_cases(struct vfm_cases *l)
{
	static const int shapes[][2] = {
		{1, 1}, {7, 33}, {64, 64}, {128, 96}, {143, 200}, {65, 130}, {300, 16}, {0, 40}, {40, 0}};
	const enum vfm_dtype A = VFM_F8E4M3, B = VFM_F8E5M2, BF = VFM_BF16;
	struct vfm_case *c;

	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
		for (int v = 1; v < 16; v++)
			if (v % 4 && v / 4 != 2) /* including empty histories */
				add_quant(l, VFM_CASE_TEST, types[(v + (int)i) & 1], v & 1 ? A : B, shapes[i][0],
					shapes[i][1], v);
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
		add_transpose8(l, VFM_CASE_TEST, i & 1 ? A : B, shapes[i][0], shapes[i][1]);
	for (int v = 0; v < 6; v++)
		add_amax_push(l, VFM_CASE_TEST, "", v == 4 ? 0 : 1 + 39 * (v & 1), v == 5 ? 0 : 3 + 37 * (v & 2),
			v & 2 ? 100 : 1 + v * 15, v & 1 ? 5 : 0);
	for (int v = 0; v < 4; v++) {
		add_gemm8(l, VFM_CASE_TEST, "plain", 35, 50, 83, v & 1, v & 2, A, v & 1 ? A : B, types[v >> 1],
			v == 2 ? 3 : 0);
		c = add_gemm8(
			l, VFM_CASE_TEST, "fwd-gelu-aux", 64, 48, 96, false, true, v & 1 ? A : B, A, types[v & 1], 0);
		c->args.gemm.act = VFM_ACT_GELU_TANH;
		c->args.gemm.bias = vec(VFM_F32, 48);
		c->args.gemm.aux = mat(types[v & 1], 64, 48, 0);
		c = add_gemm8(l, VFM_CASE_TEST, "bwd-gelu", 64, 48, 96, false, true, B, A, types[v & 1], 0);
		c->args.gemm.dact = v & 2 ? VFM_ACT_SILU : VFM_ACT_GELU_TANH;
		c->args.gemm.aux = mat(types[v & 1], 64, 48, 0);
		c = add_gemm8(l, VFM_CASE_TEST, "wgrad", 48, 64, 112, false, true, B, A, VFM_F32, 0);
		c->args.gemm.accumulate = v & 1;
	}
	add_gemm8(l, VFM_CASE_TEST, "empty", 0, 16, 32, false, true, A, A, BF, 0);
	add_gemm8(l, VFM_CASE_TEST, "no-sums", 9, 16, 0, false, true, A, A, BF, 0);
	/* a feed-forward layer of dit-7b */
	add_quant(l, VFM_CASE_LARGE, BF, A, 8192, 4096, 3);
	add_quant(l, VFM_CASE_LARGE, BF, B, 8192, 16384, 3);
	add_quant(l, VFM_CASE_LARGE, BF, A, 8192, 4096, 7);
	add_quant(l, VFM_CASE_LARGE, BF, B, 8192, 16384, 7);
	add_quant(l, VFM_CASE_LARGE, BF, A, 16384, 4096, 1); /* its weight */
	add_quant(l, VFM_CASE_LARGE, BF, A, 16384, 4096, 5);
	add_transpose8(l, VFM_CASE_LARGE, A, 8192, 4096);
	c = add_gemm8(l, VFM_CASE_LARGE, "7b-fc1-fwd", 8192, 16384, 4096, false, true, A, A, BF, 0);
	c->args.gemm.bias = vec(VFM_F32, 16384);
	c->args.gemm.act = VFM_ACT_GELU_TANH;
	c->args.gemm.aux = mat(BF, 8192, 16384, 0);
	add_gemm8(l, VFM_CASE_LARGE, "7b-fc1-dgrad", 8192, 4096, 16384, false, true, B, A, BF, 0);
	c = add_gemm8(l, VFM_CASE_LARGE, "7b-fc1-wgrad", 16384, 4096, 8192, false, true, B, A, VFM_F32, 0);
	c->args.gemm.accumulate = true;
}

/* A rank may hold no token of a pack; its ops then have S > 0 and T = 0. */
static void zero_row_cases(struct vfm_cases *l)
{
	static const int lq[N_ABSENT] = {3, 0, 40}, one[1] = {0};
	struct vfm_case *c;

	for (int t = 0; t < 2; t++) {
		for (int kind = 0; kind < 2; kind++)
			for (int mode = NORM_PLAIN; mode <= NORM_MOD; mode++)
				vfm_case_norm(l, VFM_CASE_TEST, kind, mode, types[t], types[t], types[t], N_ABSENT,
					absent, 33);
		vfm_case_gate(l, VFM_CASE_TEST, types[t], types[t], types[t], N_ABSENT, absent, 33);
		vfm_case_gate(l, VFM_CASE_TEST, types[t], types[t], types[t], 0, absent, 33);
		vfm_case_add_row(l, VFM_CASE_TEST, types[t], VFM_F32, 0, 33);
		vfm_case_qk(l, VFM_CASE_TEST, types[t], 0, 3, 64, true, true);
		vfm_case_attn(l, VFM_CASE_TEST, "nothing", types[t], types[t], N_ABSENT, absent, absent, 4, 2, 40);
		vfm_case_attn(l, VFM_CASE_TEST, "no-samples", types[t], types[t], 0, absent, absent, 4, 2, 40);
		vfm_case_attn(l, VFM_CASE_TEST, "one-empty", types[t], types[t], 1, one, one, 2, 2, 64);
		/* an empty block of the ring, with gradients in f32 */
		vfm_case_attn(l, VFM_CASE_TEST, "no-keys", types[t], VFM_F32, N_ABSENT, lq, absent, 4, 2, 64);
		vfm_case_attn(l, VFM_CASE_TEST, "no-queries", types[t], VFM_F32, N_ABSENT, absent, lq, 4, 2, 64);
		add_unary(l, VFM_CASE_TEST, VFM_ACT_SILU, types[t], types[t], 0);
		c = vfm_case_add(l, VFM_OP_axpby, VFM_CASE_TEST, "zero-rows/%s", vfm_dtype_name(types[t]));
		c->args.axpby = (struct vfm_axpby){1, 1, mat(types[t], 0, 37, 4), mat(types[t], 0, 37, 9)};
		add_diffuse(l, VFM_CASE_TEST, types[!t], types[t], N_ABSENT, absent, 30, true);
		add_mse(l, VFM_CASE_TEST, types[t], N_ABSENT, absent, 30, true);
		c = vfm_case_add(l, VFM_OP_timestep, VFM_CASE_TEST, "%s/0x34", vfm_dtype_name(types[t]));
		c->args.timestep = (struct vfm_timestep){vec(VFM_F32, 0), mat(types[t], 0, 34, 0), 10000.0f};
		gemm_epilogues(l, 0, 75, 83, types[t], types[t], 5);
		gemm_epilogues(l, 9, 0, 16, types[t], types[t], 0);
		gemm_epilogues(l, 40, 50, 0, types[t], types[t], 5);
		gemm_epilogues(l, 0, 75, 0, types[t], types[t], 0);
		c = vfm_case_add(l, VFM_OP_fill, VFM_CASE_TEST, "%s/0", vfm_dtype_name(types[t]));
		c->args.fill = (struct vfm_fill){
			.x = vec(types[t], 0), .std = 1, .rng = vfm_rng_stream(1, 0, 0, VFM_RNG_TEST)};
	}
	c = vfm_case_add(l, VFM_OP_sumsq, VFM_CASE_TEST, "0");
	c->args.sumsq = (struct vfm_sumsq){vec(VFM_F32, 0), vec(VFM_F64, 1)};
	c = vfm_case_add(l, VFM_OP_adamw, VFM_CASE_TEST, "0");
	c->args.adamw = (struct vfm_adamw){.c1 = 1,
		.c2 = 1,
		.p = vec(VFM_F32, 0),
		.m = vec(VFM_F32, 0),
		.v = vec(VFM_F32, 0),
		.g = vec(VFM_F32, 0)};
}

/* The ops of a dit-7b block at 8,192 tokens and of dit-xl on images of 256 tokens; attention at 65,536 tokens. */
static void large_cases(struct vfm_cases *l)
{
	enum { L = VFM_CASE_LARGE };
	const enum vfm_dtype BF = VFM_BF16;
	static const int s8k[] = {8192}, s64k[] = {65536}, text[] = {512}, clips[] = {4096, 2048, 1024, 1024};
	int images[256], texts[32];
	struct vfm_case *c;

	for (int i = 0; i < 256; i++)
		images[i] = 256;
	for (int i = 0; i < 32; i++)
		texts[i] = 128;
	bench_linear(l, L, "7b-qkv", BF, 8192, 4096, 12288, VFM_ACT_NONE, VFM_ACT_NONE);
	bench_linear(l, L, "7b-proj", BF, 8192, 4096, 4096, VFM_ACT_NONE, VFM_ACT_NONE);
	bench_linear(l, L, "7b-fc1", BF, 8192, 4096, 16384, VFM_ACT_GELU_TANH, VFM_ACT_NONE);
	bench_linear(l, L, "7b-fc2", BF, 8192, 16384, 4096, VFM_ACT_NONE, VFM_ACT_GELU_TANH);
	bench_linear(l, L, "7b-text-kv", BF, 512, 4096, 8192, VFM_ACT_NONE, VFM_ACT_NONE);
	bench_linear(l, L, "xl-qkv", BF, 8192, 1152, 3456, VFM_ACT_NONE, VFM_ACT_NONE);
	bench_linear(l, L, "xl-fc1", BF, 8192, 1152, 4608, VFM_ACT_GELU_TANH, VFM_ACT_NONE);
	bench_linear(l, L, "xl-fc2", BF, 8192, 4608, 1152, VFM_ACT_NONE, VFM_ACT_GELU_TANH);
	vfm_case_attn(l, L, "7b-self", BF, BF, 1, s8k, s8k, 32, 32, 128);
	vfm_case_attn(l, L, "7b-cross", BF, BF, 1, s8k, text, 32, 32, 128);
	vfm_case_attn(l, L, "7b-self", BF, BF, 1, s64k, s64k, 32, 32, 128);
	vfm_case_attn(l, L, "7b-packed", BF, BF, 4, clips, clips, 32, 32, 128);
	vfm_case_attn(l, L, "xl-self", BF, BF, 32, images, images, 16, 16, 72);
	vfm_case_attn(l, L, "xl-self", BF, BF, 256, images, images, 16, 16, 72);
	vfm_case_attn(l, L, "xl-cross", BF, BF, 32, images, texts, 16, 16, 72);
	vfm_case_norm(l, L, VFM_NORM_LAYER, NORM_MOD, VFM_F32, BF, VFM_F32, 1, s8k, 4096);
	vfm_case_norm(l, L, VFM_NORM_LAYER, NORM_MOD, VFM_F32, BF, VFM_F32, 32, images, 1152);
	vfm_case_norm8(l, L, NORM_MOD, true, BF, VFM_F32, 1, s8k, 4096, false, false);
	vfm_case_norm8(l, L, NORM_MOD, true, BF, VFM_F32, 1, s8k, 4096, true, false);
	vfm_case_norm(l, L, VFM_NORM_LAYER, NORM_WEIGHT_BIAS, VFM_F32, BF, VFM_F32, 1, s8k, 4096);
	vfm_case_gate(l, L, VFM_F32, BF, VFM_F32, 1, s8k, 4096);
	/* A residual stream in bf16. */
	vfm_case_norm(l, L, VFM_NORM_LAYER, NORM_MOD, BF, BF, VFM_F32, 1, s8k, 4096);
	vfm_case_norm(l, L, VFM_NORM_LAYER, NORM_WEIGHT_BIAS, BF, BF, VFM_F32, 1, s8k, 4096);
	vfm_case_gate(l, L, BF, BF, VFM_F32, 1, s8k, 4096);
	for (int t = 0; t < 2; t++) {
		vfm_case_add_norm(l, L, VFM_NORM_LAYER, NORM_WEIGHT_BIAS, true, types[t], BF, VFM_F32, 1, s8k, 4096);
		vfm_case_add_norm(l, L, VFM_NORM_LAYER, NORM_MOD, false, types[t], BF, VFM_F32, 1, s8k, 4096);
		vfm_case_add_norm(l, L, VFM_NORM_LAYER, NORM_MOD, true, types[t], BF, VFM_F32, 32, images, 1152);
	}
	vfm_case_gate(l, L, VFM_F32, BF, VFM_F32, 32, images, 1152);
	vfm_case_add_row(l, L, VFM_F32, VFM_F32, 8192, 4096);
	vfm_case_add_row(l, L, BF, VFM_F32, 8192, 4096);
	vfm_case_qk(l, L, BF, 8192, 32, 128, true, true);
	vfm_case_qk(l, L, BF, 8192, 16, 72, true, true);
	vfm_case_qk_pair(l, L, BF, 8192, 32, 128, 8192, 32);
	vfm_case_qk_pair(l, L, BF, 8192, 16, 72, 8192, 16);
	vfm_case_row_norm(l, L, BF, 8192, 40, 128, VFM_ROPE_TOKEN);
	vfm_case_row_norm(l, L, BF, 8192, 32, 128, VFM_ROPE_HEAD);
	for (int t = 0; t < 2; t++)
		add_diffuse(l, L, types[t], BF, 1, s64k, 64, true);
	add_mse(l, L, BF, 1, s64k, 64, true);
	for (int i = 0; i < 2; i++) {
		enum { N = 64 << 20 };
		struct vfm_tensor x = vec(VFM_F32, N);

		c = vfm_case_add(l, VFM_OP_axpby, L, "%s/64M", i ? "cast/f32-bf16" : "add/f32-f32");
		c->args.axpby = (struct vfm_axpby){1, !i, x, i ? vec(BF, N) : x};
		c = vfm_case_add(l, VFM_OP_adamw, L, "%s/64M", i ? "split" : "w");
		c->args.adamw = (struct vfm_adamw){.lr = 1e-2f,
			.beta1 = 0.9f,
			.beta2 = 0.95f,
			.eps = 1e-8f,
			.wd = 0.1f,
			.c1 = 0.4f,
			.c2 = 0.2f,
			.p = i ? none : x,
			.m = i ? vec(BF, N) : x,
			.v = x,
			.g = x,
			.w = vec(BF, N),
			.p_lo = i ? vec(VFM_I16, N) : none,
			.grad_scale = vec(VFM_F32, 1)};
		if (i)
			c->bound[0] = c->bound[1] = c->bound[2] = 32768;
	}
	c = vfm_case_add(l, VFM_OP_sumsq, L, "64M");
	c->args.sumsq = (struct vfm_sumsq){vec(VFM_F32, 64 << 20), vec(VFM_F64, 1)};
}

void vfm_cases_init(struct vfm_cases *l)
{
	*l = (struct vfm_cases){0};
	gemm_cases(l);
	gemm_bench(l);
	vfm_cases_norm(l);
	vfm_cases_attn(l);
	elementwise_cases(l);
	loss_cases(l);
	vfm_cases_optim(l);
	vfm_cases_rows(l);
	vfm_cases_encoder(l);
	vfm_cases_moe(l);
	vfm_cases_conv(l);
	fp8_cases(l);
	guarded_amax_push(l);
	zero_row_cases(l);
	large_cases(l);
}

void vfm_cases_release(struct vfm_cases *l)
{
	vfm_arena_release(&l->arena);
	free(l->v);
	*l = (struct vfm_cases){0};
}

/* ---- memory and contents -------------------------------------------------------------------- */

size_t vfm_tensor_extent(const struct vfm_tensor *t)
{
	int64_t last = 0;

	if (!vfm_numel(t))
		return 0;
	for (int i = 0; i < t->ndim; i++)
		last += (t->shape[i] - 1) * t->stride[i];
	return (size_t)(last + 1) * vfm_dtype_size(t->dtype);
}

static double operand_element(const struct vfm_case *c, enum vfm_content content, const struct vfm_rng *rng, int64_t i)
{
	switch (content) {
	case VFM_C_POSITIVE:
		return 0.5 + vfm_rng_uniform(rng, (uint64_t)i);
	case VFM_C_SCALE:
		return c->bound[0] == 1    ? (double)NAN
			: c->bound[0] == 2 ? (double)INFINITY
					   : 0.5 + vfm_rng_uniform(rng, (uint64_t)i);
	case VFM_C_PAST:
		return c->bound[0] ? 0 : 0.5 + vfm_rng_uniform(rng, (uint64_t)i);
	case VFM_C_TIME:
		return 1000 * vfm_rng_uniform(rng, (uint64_t)i);
	case VFM_C_LSE:
		return log(100.0);
	case VFM_C_IDX: {
		int s = 0;

		while (c->seqs[0].cu[s + 1] <= i)
			s++;
		return (double)(i - c->seqs[0].cu[s]);
	}
	case VFM_C_INDEX_OR_NONE:
		if (vfm_rng_uniform(rng, (uint64_t)i + (1u << 30)) < 0.125)
			return -1;
		/* fall through */
	case VFM_C_INDEX:
		return floor(vfm_rng_uniform(rng, (uint64_t)i) * (double)c->bound[i % 3]);
	case VFM_C_DISTINCT: {
		int64_t k = c->bound[1], first = (int64_t)(1e6 * vfm_rng_uniform(rng, (uint64_t)(i / k)));

		return (double)((first + i % k) % c->bound[0]);
	}
	case VFM_C_COARSE:
		return (1 + floor(8 * vfm_rng_uniform(rng, (uint64_t)i))) / 8;
	case VFM_C_LSE_OR_NONE: {
		double u = vfm_rng_uniform(rng, (uint64_t)i);

		return u < 0.25 ? -INFINITY : 8 * u - 5;
	}
	case VFM_C_LOW:
		return floor(65536 * vfm_rng_uniform(rng, (uint64_t)i)) - 32768;
	case VFM_C_POWER:
		return ldexp(1, (int)(4 * vfm_rng_uniform(rng, (uint64_t)i)) - 2);
	case VFM_C_LIST:
		return (double)c->list[i];
	default: /* VFM_C_ID */
		return floor(1e15 * vfm_rng_uniform(rng, (uint64_t)i));
	}
}

/* Generates elements [first, first + n) of an operand, in the order of its shape. */
static void operand_elements(const struct vfm_case *c, enum vfm_content content, const struct vfm_rng *rng,
	int64_t first, int64_t n, double *out)
{
	float block[4];

	for (int64_t i = 0; i < n; i++) {
		int64_t k = first + i;

		if (content > VFM_C_SMALL) {
			out[i] = operand_element(c, content, rng, k);
			continue;
		}
		if (i == 0 || k % 4 == 0)
			vfm_rng_normal4(rng, (uint64_t)k / 4, block);
		out[i] = (content == VFM_C_SMALL ? 0.1 : 1.0) * (double)block[k % 4];
	}
}

/* Returns the offset of row r; rows are counted over all dimensions but the last. */
static int64_t row_offset(const struct vfm_tensor *t, int64_t r)
{
	int64_t off = 0;

	for (int i = t->ndim - 2; i >= 0; i--) {
		off += r % t->shape[i] * t->stride[i];
		r /= t->shape[i];
	}
	return off;
}

static void fill_operand(const struct vfm_case *c, const struct vfm_tensor *t, enum vfm_content content,
	const struct vfm_rng *rng, char *host)
{
	int64_t n = vfm_numel(t), cols = n ? t->shape[t->ndim - 1] : 0;
	size_t size = vfm_dtype_size(t->dtype);
	/* Benchmarks repeat a block of numbers, which is faster than generating all. */
	bool again = c->flags & (VFM_CASE_BENCH | VFM_CASE_LARGE) && content < VFM_C_IDX;
	struct vfm_tensor folded;
	double *row;

	if (again && t->ndim == 1 && n % (1 << 16) == 0) {
		folded = vfm_t2(NULL, t->dtype, n >> 16, 1 << 16);
		t = &folded;
		cols = 1 << 16;
	}
	row = vfm_calloc((size_t)cols + 1, sizeof(*row));
	for (int64_t r = 0; cols && r < n / cols; r++) {
		int64_t off = row_offset(t, r);

		if (again && r >= 64) {
			memcpy(host + (size_t)off * size, host + (size_t)row_offset(t, r - 64) * size,
				(size_t)cols * size);
			continue;
		}
		operand_elements(c, content, rng, r * cols, cols, row);
		for (int64_t i = 0; i < cols; i++) {
			char *at = host + (size_t)(off + i) * size;
			float f = (float)row[i];
			uint16_t h = vfm_f32_to_bf16(f);
			int32_t i4 = (int32_t)row[i];
			int64_t i8 = (int64_t)row[i];
			int16_t i2 = (int16_t)i4;
			uint8_t i1 = t->dtype == VFM_U8 ? (uint8_t)i4 : vfm_f32_to_f8(f, t->dtype);

			memcpy(at,
				t->dtype == VFM_BF16          ? (void *)&h
					: t->dtype == VFM_F32 ? (void *)&f
					: t->dtype == VFM_I32 ? (void *)&i4
					: t->dtype == VFM_I64 ? (void *)&i8
					: t->dtype == VFM_I16 ? (void *)&i2
					: size == 1           ? (void *)&i1
							      : (void *)&row[i],
				size);
		}
	}
	free(row);
}

static int copy_to_device(
	struct vfm_stream *s, struct vfm_tensor *t, size_t bytes, const void *host, struct vfm_err *err)
{
	t->data = vfm_dev_alloc(s, bytes, "a test operand", err);
	if (!t->data)
		return VFM_EENV;
	TRY(s->dev->t->to_device(s, t->data, host, bytes, err));
	return s->dev->t->stream_sync(s, err);
}

static int seqs_alloc(struct vfm_seqs *q, struct vfm_stream *s, struct vfm_err *err)
{
	int32_t *seg;
	int rc;

	if (!q->cu)
		return 0;
	TRY(copy_to_device(s, &q->dev_cu, (size_t)(q->n + 1) * sizeof(int32_t), q->cu, err));
	seg = vfm_calloc((size_t)q->total + 1, sizeof(*seg));
	for (int i = 0; i < q->n; i++)
		for (int32_t t = q->cu[i]; t < q->cu[i + 1]; t++)
			seg[t] = i;
	rc = copy_to_device(s, &q->seg, (size_t)(q->total + 1) * sizeof(*seg), seg, err);
	free(seg);
	return rc;
}

int vfm_case_alloc(struct vfm_case *c, struct vfm_stream *s, uint64_t seed, struct vfm_err *err)
{
	const struct vfm_operand *o = vfm_op_info(c->op)->operands;

	for (int i = 0; o[i].name; i++) {
		struct vfm_tensor *t = vfm_operand_of(&c->args, &o[i]);
		struct vfm_rng rng = vfm_rng_stream(seed, (uint64_t)c->op, (uint64_t)i, VFM_RNG_TEST);
		char *host;
		int rc;

		if (!vfm_has(t))
			continue;
		c->bytes[i] = vfm_tensor_extent(t) + VFM_CASE_GUARD;
		host = vfm_malloc(c->bytes[i]);
		memset(host, VFM_CASE_FILLER, c->bytes[i]);
		fill_operand(c, t, o[i].content, &rng, host);
		rc = copy_to_device(s, t, c->bytes[i], host, err);
		free(host);
		TRY(rc);
	}
	TRY(seqs_alloc(&c->seqs[0], s, err));
	return seqs_alloc(&c->seqs[1], s, err);
}

void vfm_case_free(struct vfm_case *c, struct vfm_stream *s)
{
	const struct vfm_operand *o = vfm_op_info(c->op)->operands;

	for (int i = 0; o[i].name; i++) {
		struct vfm_tensor *t = vfm_operand_of(&c->args, &o[i]);

		vfm_dev_free(s, t->data, c->bytes[i]);
		t->data = NULL;
	}
	for (int i = 0; i < 2; i++) {
		struct vfm_seqs *q = &c->seqs[i];

		vfm_dev_free(s, q->dev_cu.data, (size_t)(q->n + 1) * sizeof(int32_t));
		vfm_dev_free(s, q->seg.data, (size_t)(q->total + 1) * sizeof(int32_t));
		q->dev_cu.data = q->seg.data = NULL;
	}
}

int vfm_case_run(struct vfm_case *c, struct vfm_stream *s, struct vfm_err *err)
{
	return vfm_op_info(c->op)->call(s, &c->args, err);
}

struct vfm_cost vfm_case_cost(const struct vfm_case *c)
{
	return vfm_op_info(c->op)->cost(&c->args);
}
