/* Differentiable ops through the tape: gradients along random directions, by differences. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "net/tape/gops.h"
#include "net/tape/node.h"
#include "net/tape/region.h"
#include "taped.h"

/* ---- the harness ---- */

enum { LEAVES = 6 };

struct leaf {
	struct vfm_tensor like; /* f32 */
	float *v, *g, *keep;
	struct vfm_var *x;
};

struct probe {
	const char *name;
	struct vfm_var *(*f)(struct probe *p, struct vfm_var **x);
	struct leaf leaf[LEAVES];
	int n;
	float *r; /* L = sum r y */
	int64_t n_y;
	double mean; /* of the leaves' values */
	unsigned flags;
};

static void fill(float *v, int64_t n, uint64_t seed, double mean)
{
	struct vfm_rng rng = vfm_rng_stream(seed, 1, 2, VFM_RNG_TEST);

	for (int64_t i = 0; i < n; i++)
		v[i] = (float)mean + vfm_rng_normal(&rng, (uint64_t)i);
}

static struct vfm_var *forward(struct probe *p)
{
	struct vfm_var *x[LEAVES], *y;

	for (int i = 0; i < p->n; i++) {
		struct leaf *l = &p->leaf[i];
		struct vfm_tensor v = l->like, g = l->like;

		v.data = l->v, g.data = l->g;
		l->x = x[i] = vfm_input(t, v);
		x[i]->g = g;
		x[i]->needs_grad = true;
	}
	y = p->f(p, x);
	OK(vfm_tape_status(t, &err));
	return y;
}

static double loss(struct probe *p)
{
	struct vfm_var *y = forward(p);
	double sum = 0;

	for (int64_t i = 0; i < p->n_y; i++)
		sum += (double)p->r[i] * (double)((float *)y->v.data)[i];
	vfm_tape_reset(t);
	return sum;
}

/* Weights gathered elsewhere: the leaves' values move between forward and backward. */
static void move(struct leaf *l)
{
	int64_t n = vfm_numel(&l->like);
	float *other = vfm_calloc((size_t)n + 1, 4);

	memcpy(other, l->v, (size_t)n * 4);
	memset(l->v, 0xff, (size_t)n * 4); /* NaN */
	l->keep = l->v;
	l->v = other;
	l->x->v.data = other;
}

static void check_direction(struct probe *p, int i, uint64_t seed)
{
	const double h = 4e-3;
	struct leaf *l = &p->leaf[i];
	int64_t n = vfm_numel(&l->like);
	float *d = vfm_calloc((size_t)n + 1, 4), *v = vfm_calloc((size_t)n + 1, 4);
	double want, got = 0, size = 0, g2 = 0, d2 = 0;

	fill(d, n, seed + 77, 0);
	memcpy(v, l->v, (size_t)n * 4);
	for (int64_t k = 0; k < n; k++) {
		got += (double)d[k] * (double)l->g[k];
		g2 += (double)l->g[k] * (double)l->g[k];
		d2 += (double)d[k] * (double)d[k];
		l->v[k] = v[k] + (float)h * d[k];
	}
	want = loss(p);
	for (int64_t k = 0; k < n; k++)
		l->v[k] = v[k] - (float)h * d[k];
	want = (want - loss(p)) / (2 * h);
	memcpy(l->v, v, (size_t)n * 4);
	size = sqrt(g2 * d2);
	if (!(fabs(want - got) <= 2e-3 * size + 1e-6) || (n && p->n_y && !(g2 > 0)))
		fail_msg(
			"%s, input %d: %g along a direction, by differences %g (size %g)", p->name, i, got, want, size);
	free(d);
	free(v);
}

/* pinned: leaf i keeps its address (a variable that is no parameter); the others move. */
static void check_probe(struct probe *p, unsigned pinned)
{
	struct vfm_tensor seed;
	struct vfm_var *y;

	for (int i = 0; i < p->n; i++) {
		struct leaf *l = &p->leaf[i];
		size_t n = (size_t)vfm_numel(&l->like);

		l->v = vfm_calloc(n + 1, 4);
		l->g = vfm_calloc(n + 1, 4);
		fill(l->v, (int64_t)n, (uint64_t)i, p->mean);
		if (l->like.ndim > 1)
			memset(l->g, 0xff, n * 4); /* a matrix's first contribution overwrites */
	}
	y = forward(p);
	assert_int_equal(y->v.dtype, VFM_F32);
	p->n_y = vfm_numel(&y->v);
	p->r = vfm_calloc((size_t)p->n_y + 1, 4);
	fill(p->r, p->n_y, 99, 0);
	seed = y->v;
	seed.data = p->r;
	OK(vfm_tape_seed(t, y, seed, &err));
	for (int i = 0; i < p->n; i++)
		if (!(pinned & 1u << i))
			move(&p->leaf[i]);
	OK(vfm_tape_backward(t, &err));
	vfm_tape_reset(t);
	for (int i = 0; i < p->n; i++)
		check_direction(p, i, (uint64_t)i);
	for (int i = 0; i < p->n; i++) {
		free(p->leaf[i].v);
		free(p->leaf[i].g);
		free(p->leaf[i].keep);
	}
	free(p->r);
	assert_int_equal(dev.dev->mem_now, 0);
}

static struct vfm_tensor like(int64_t a, int64_t b)
{
	return b < 0 ? vfm_t1(NULL, VFM_F32, a) : vfm_t2(NULL, VFM_F32, a, b);
}

static struct vfm_tensor ints(int32_t *v, int64_t n)
{
	return vfm_t1(v, VFM_I32, n);
}

/* ---- parameters whose memory moves ---- */

static struct vfm_var *f_norm(struct probe *p, struct vfm_var **x)
{
	(void)p;
	return vfm_g_norm(t, vfm_g_add(t, x[0], x[0]),
		&(struct vfm_norm_args){.eps = 1e-6f, .weight = x[1], .bias = x[2], .out = VFM_F32});
}

static struct vfm_var *qk_norm(struct vfm_var *x, struct vfm_var *weight)
{
	struct vfm_var *y[2];

	vfm_g_qk_norm_rope(t, &(struct vfm_qk_args){.q = x, .weight_q = weight, .eps = 1e-6f}, y);
	return y[0];
}

static struct vfm_var *f_qk(struct probe *p, struct vfm_var **x)
{
	struct vfm_var *y = vfm_g_act(t, x[0], VFM_ACT_SILU);

	(void)p;
	return qk_norm(vfm_view_heads(t, y, 1, 2, 8), x[1]);
}

static float ones[] = {1, 1, 1, 1, 1, 1, 1, 1};

/* Two heads of q and one of k, which nothing reads and whose weight is no parameter. */
static struct vfm_var *f_qk_pair(struct probe *p, struct vfm_var **x)
{
	struct vfm_var *y = vfm_g_act(t, x[0], VFM_ACT_SILU), *qk[2];
	struct vfm_qk_args a = {vfm_view_heads(t, y, 0, 2, 8), vfm_view_heads(t, y, 2, 1, 8), x[1],
		vfm_input(t, vfm_t1(ones, VFM_F32, 8)), {0}, 1e-6f};

	(void)p;
	vfm_g_qk_norm_rope(t, &a, qk);
	return vfm_g_add(t, vfm_g_act(t, qk[0], VFM_ACT_SILU), qk[0]);
}

/* k is read twice. */
static struct vfm_var *f_qk_second(struct probe *p, struct vfm_var **x)
{
	struct vfm_var *y = vfm_g_act(t, x[0], VFM_ACT_SILU), *qk[2];
	struct vfm_qk_args a = {vfm_view_heads(t, y, 0, 2, 8), vfm_view_heads(t, y, 1, 2, 8), x[1], x[2], {0}, 1e-6f};

	(void)p;
	vfm_g_qk_norm_rope(t, &a, qk);
	return vfm_g_add(t, qk[1], vfm_g_add(t, qk[0], qk[1]));
}

/* Of two ranks with equal inputs, each has half the heads. */
static int double_sums(void *group, struct vfm_tape *tape, struct vfm_tensor sums, bool forward, struct vfm_err *e)
{
	(void)group, (void)tape, (void)forward, (void)e;
	for (int64_t i = 0; i < sums.shape[0]; i++)
		((float *)sums.data)[i] *= 2;
	return 0;
}

/* Two heads of q and of k, with rotation; flags: the number of ranks, and 4: each head has its own angles. */
static struct vfm_var *f_row_norm(struct probe *p, struct vfm_var **x)
{
	static float table[13 * 2 * 8];
	struct vfm_var *y = vfm_g_act(t, x[0], VFM_ACT_SILU), *qk[2];
	struct vfm_qk_args a = {
		vfm_view_heads(t, y, 0, 2, 8), vfm_view_heads(t, x[1], 0, 2, 8), x[2], x[3], {0}, 1e-6f};
	struct vfm_row_norm_sums sums = {.ranks = (int)p->flags & 3, .add = double_sums};

	for (int i = 0; i < 13 * 2 * 8; i += 2)
		table[i] = cosf((float)i), table[i + 1] = sinf((float)i);
	a.rope = p->flags & 4 ? vfm_t3(table, VFM_F32, y->v.shape[0], 2, 8) : vfm_t2(table, VFM_F32, y->v.shape[0], 8);
	vfm_g_row_norm_rope(t, &a, &sums, qk);
	return vfm_g_add(t, vfm_g_act(t, qk[0], VFM_ACT_SILU), qk[1]);
}

/* The row is read twice. */
static struct vfm_var *f_add_row(struct probe *p, struct vfm_var **x)
{
	(void)p;
	return vfm_g_add_row(t, vfm_g_act(t, vfm_g_add_row(t, x[0], x[1]), VFM_ACT_SILU), x[1]);
}

static struct vfm_var *f_linear(struct probe *p, struct vfm_var **x)
{
	(void)p;
	return vfm_g_linear(t, vfm_g_act(t, x[0], VFM_ACT_SILU),
		&(struct vfm_linear_args){.w = x[1], .b = x[2], .act = VFM_ACT_GELU_TANH, .out = VFM_F32});
}

static void test_moving_weights(void **state)
{
	(void)state;
	for (int64_t rows = 0; rows < 14; rows += 13) {
		struct probe norm = {.name = "norm",
			.f = f_norm,
			.n = 3,
			.leaf = {{like(rows, 24)}, {like(24, -1)}, {like(24, -1)}}};
		struct probe qk = {.name = "qk", .f = f_qk, .n = 2, .leaf = {{like(rows, 48)}, {like(8, -1)}}};
		struct probe qk_pair = {.name = "qk, q alone is read",
			.f = f_qk_pair,
			.n = 2,
			.leaf = {{like(rows, 48)}, {like(8, -1)}}};
		struct probe qk_second = {.name = "qk, both are read",
			.f = f_qk_second,
			.n = 3,
			.leaf = {{like(rows, 48)}, {like(8, -1)}, {like(8, -1)}}};
		struct probe row_norm = {.name = "norm over all heads",
			.f = f_row_norm,
			.n = 4,
			.leaf = {{like(rows, 16)}, {like(rows, 16)}, {like(16, -1)}, {like(16, -1)}},
			.flags = 1};
		struct probe row = {
			.name = "add_row", .f = f_add_row, .n = 2, .leaf = {{like(rows, 24)}, {like(24, -1)}}};
		struct probe table = {
			.name = "add_row, table", .f = f_add_row, .n = 2, .leaf = {{like(rows, 24)}, {like(3, 8)}}};
		struct probe linear = {.name = "linear",
			.f = f_linear,
			.n = 3,
			.leaf = {{like(rows, 24)}, {like(20, 24)}, {like(20, -1)}}};

		check_probe(&norm, 1);
		check_probe(&qk, 1);
		check_probe(&qk_pair, 1);
		check_probe(&qk_second, 1);
		check_probe(&row_norm, 3);
		row_norm.flags = 2;
		check_probe(&row_norm, 3);
		row_norm.flags = 1 | 4;
		check_probe(&row_norm, 3);
		check_probe(&row, 0);
		check_probe(&table, 0);
		check_probe(&linear, 1);
	}
}

/* ---- rows by index ---- */

static int32_t perm[9] = {4, 0, 7, 1, 8, 2, 6, 3, 5}, pick[11] = {3, 0, 3, -1, 8, 2, 0, 3, 7, -1, 3};

static struct vfm_var *f_rows(struct probe *p, struct vfm_var **x)
{
	struct vfm_var *y = vfm_g_act(t, x[0], VFM_ACT_SILU);

	(void)p;
	/* a view of heads, and the whole once more */
	y = vfm_g_add(t, vfm_g_index_select(t, y, ints(perm, 9)), y);
	y = vfm_g_index_select(t, vfm_view_heads(t, y, 1, 3, 8), ints(perm, 9));
	return y;
}

static struct vfm_var *f_take(struct probe *p, struct vfm_var **x)
{
	struct vfm_var *y = vfm_g_act(t, x[0], VFM_ACT_SILU);

	(void)p;
	return vfm_g_index_select(t, vfm_g_add(t, vfm_g_index_select(t, y, ints(perm, 9)), y), ints(pick, 11));
}

static struct vfm_var *f_combine(struct probe *p, struct vfm_var **x)
{
	struct vfm_var *y = vfm_g_act(t, x[0], VFM_ACT_SILU), *w = vfm_g_act(t, x[1], VFM_ACT_SILU);

	(void)p;
	return vfm_g_index_add(t, y, ints(pick, 11), w, 9, VFM_F32);
}

static struct vfm_var *f_plain_combine(struct probe *p, struct vfm_var **x)
{
	(void)p;
	return vfm_g_index_add(t, vfm_g_act(t, x[0], VFM_ACT_SILU), ints(pick, 11), NULL, 9, VFM_F32);
}

static struct vfm_var *f_take_none(struct probe *p, struct vfm_var **x)
{
	(void)p;
	return vfm_g_index_add(t, vfm_g_index_select(t, vfm_g_act(t, x[0], VFM_ACT_SILU), ints(pick, 0)), ints(pick, 0),
		NULL, 3, VFM_F32);
}

/* Six rows of two parts of four and three rows, and one row that is not in the whole; and back, both parts. */
static struct vfm_var *f_join(struct probe *p, struct vfm_var **x)
{
	static int32_t from[2][6] = {{0, -1, 2, -1, 3, 1}, {-1, 2, -1, 0, -1, -1}},
		       at[2][4] = {{0, 5, 2, 4}, {3, -1, 1}};
	const struct vfm_row_parts parts = {2, {ints(from[0], 6), ints(from[1], 6)}, {ints(at[0], 4), ints(at[1], 3)}};
	struct vfm_var *y[2], *z[2];

	(void)p;
	for (int k = 0; k < 2; k++)
		y[k] = vfm_g_act(t, x[k], VFM_ACT_SILU);
	y[0] = vfm_g_act(t, vfm_g_join_rows(t, y, &parts), VFM_ACT_SILU);
	for (int k = 0; k < 2; k++)
		z[k] = vfm_g_act(t, vfm_g_part_of_rows(t, y[0], k, &parts), VFM_ACT_SILU);
	return vfm_g_join_rows(t, z, &parts);
}

static void test_rows(void **state)
{
	struct probe rows = {.name = "rows", .f = f_rows, .n = 1, .leaf = {{like(9, 48)}}};
	struct probe take = {.name = "take", .f = f_take, .n = 1, .leaf = {{like(9, 40)}}};
	struct probe combine = {.name = "index_add", .f = f_combine, .n = 2, .leaf = {{like(11, 40)}, {like(11, 1)}}};
	struct probe plain = {.name = "index_add, no weight", .f = f_plain_combine, .n = 1, .leaf = {{like(11, 40)}}};
	struct probe join = {.name = "join_rows", .f = f_join, .n = 2, .leaf = {{like(4, 40)}, {like(3, 40)}}};
	struct probe nothing = {.name = "no rows", .f = f_take_none, .n = 1, .leaf = {{like(0, 40)}}};

	(void)state;
	check_probe(&rows, 1);
	check_probe(&take, 1);
	check_probe(&combine, 3);
	check_probe(&plain, 1);
	check_probe(&join, 3);
	check_probe(&nothing, 1);
}

/* bf16 rows: sums of gradients are rounded once. */
static void test_take_bf16(void **state)
{
	uint16_t v[4] = {vfm_f32_to_bf16(1), vfm_f32_to_bf16(2), vfm_f32_to_bf16(3), vfm_f32_to_bf16(4)}, g[4], dy[12];
	int32_t index[6] = {1, 1, 1, 1, 1, 0};
	struct vfm_var *x = vfm_input(t, vfm_t2(v, VFM_BF16, 2, 2)), *y;

	(void)state;
	x->g = vfm_t2(g, VFM_BF16, 2, 2);
	x->needs_grad = true;
	y = vfm_g_index_select(t, x, ints(index, 6));
	OK(vfm_tape_status(t, &err));
	assert_true(
		vfm_bf16_to_f32(((uint16_t *)y->v.data)[1]) == 4 && vfm_bf16_to_f32(((uint16_t *)y->v.data)[10]) == 1);
	for (int i = 0; i < 12; i++) /* 256 + 4 * 0.5: each addition by itself would be lost */
		dy[i] = vfm_f32_to_bf16(i < 2 ? 256 : 0.5f);
	OK(vfm_tape_seed(t, y, vfm_t2(dy, VFM_BF16, 6, 2), &err));
	OK(vfm_tape_backward(t, &err));
	assert_true(vfm_bf16_to_f32(g[2]) == 258 && vfm_bf16_to_f32(g[0]) == 0.5f);
	vfm_tape_reset(t);
}

/* ---- SwiGLU, embeddings ---- */

static struct vfm_var *f_swiglu(struct probe *p, struct vfm_var **x)
{
	(void)p;
	return vfm_g_swiglu(t, vfm_g_add(t, x[0], x[0]));
}

static int32_t where[7 * 3] = {0, 0, 0, 0, 1, 2, 1, 3, 0, 1, 3, 0, 0, 2, 2, 1, 0, 1, 0, 3, 0};

static struct vfm_var *f_embed3(struct probe *p, struct vfm_var **x)
{
	struct vfm_tensor pos = vfm_t2(where, VFM_I32, p->leaf[3].like.shape[0], 3);
	struct vfm_var *e = vfm_g_embed3(t, x[0], x[1], x[2], pos, VFM_F32);

	/* added in every block */
	e = vfm_g_add(t, vfm_g_act(t, e, VFM_ACT_SILU), vfm_g_embed3(t, x[0], x[1], x[2], pos, VFM_F32));
	return vfm_g_add(t, e, x[3]);
}

static void test_swiglu_embed(void **state)
{
	(void)state;
	for (int64_t rows = 0; rows < 8; rows += 7) {
		struct probe swiglu = {.name = "swiglu", .f = f_swiglu, .n = 1, .leaf = {{like(rows, 38)}}};
		struct probe embed = {.name = "embed3",
			.f = f_embed3,
			.n = 4,
			.leaf = {{like(2, 19)}, {like(4, 19)}, {like(3, 19)}, {like(rows, 19)}}};

		check_probe(&swiglu, 1);
		if (rows)
			check_probe(&embed, 8);
	}
}

/* ---- mixtures of experts ---- */

static const int32_t group_cu[] = {0, 4, 4, 11};
static const struct vfm_seqs groups = {.n = 3, .total = 11, .max_len = 7, .cu = group_cu};
static const int32_t sample_cu[] = {0, 3, 9};
static const struct vfm_seqs samples = {.n = 2, .total = 9, .max_len = 6, .cu = sample_cu};

static struct vfm_var *f_softmax(struct probe *p, struct vfm_var **x)
{
	(void)p;
	return vfm_g_softmax(t, vfm_g_add(t, x[0], x[0]));
}

/* An MLP of experts: the first layer's activation is undone in the second's data gradient. */
static struct vfm_var *f_grouped(struct probe *p, struct vfm_var **x)
{
	struct vfm_linear_args fc1 = {.w = x[1], .b = x[2], .act = VFM_ACT_GELU_TANH, .out = VFM_F32},
			       fc2 = {.w = x[3], .out = VFM_F32};
	struct vfm_var *h = vfm_g_grouped_linear(t, vfm_g_act(t, x[0], VFM_ACT_SILU), &fc1, &groups);

	(void)p;
	return vfm_g_grouped_linear(t, h, &fc2, &groups);
}

/* Token choice from logits to combined outputs, as a layer does it. */
static struct vfm_var *f_token_choice(struct probe *p, struct vfm_var **x)
{
	enum { T = 9, E = 3, K = 2 };
	struct vfm_tensor expert;
	struct vfm_var *prob = vfm_g_softmax(t, x[1]), *w = vfm_g_moe_topk_token(t, prob, K, &expert), *h;
	struct vfm_var *order = vfm_var_new(t, vfm_like(&(struct vfm_tensor){.ndim = 1, .shape = {T * K}}, VFM_I32));
	struct vfm_var *token = vfm_var_new(t, order->v),
		       *count = vfm_var_new(t, vfm_like(&(struct vfm_tensor){.ndim = 1, .shape = {E}}, VFM_I32));
	struct vfm_moe_sort sort = {.buckets = E,
		.div = K,
		.key = vfm_t1(expert.data, VFM_I32, T * K),
		.order = order->v,
		.source = token->v,
		.count = count->v};
	struct vfm_seqs *by_expert = vfm_tape_alloc(t, sizeof(*by_expert));
	int32_t *cu = vfm_tape_alloc(t, (E + 1) * sizeof(*cu));

	(void)p;
	OK(vfm_op_moe_sort(dev.stream, &sort, &err));
	for (int e = 0; e < E; e++)
		cu[e + 1] = cu[e] + ((int32_t *)count->v.data)[e];
	*by_expert = (struct vfm_seqs){.n = E, .total = T * K, .cu = cu};
	h = vfm_g_index_select(t, x[0], token->v);
	h = vfm_g_grouped_linear(t, h, &(struct vfm_linear_args){.w = x[2], .out = VFM_F32}, by_expert);
	w = vfm_g_index_select(t, vfm_view(t, w, vfm_t2(w->v.data, VFM_F32, T * K, 1)), order->v);
	return vfm_g_index_add(t, h, token->v, w, T, VFM_F32);
}

static void test_moe(void **state)
{
	struct probe softmax = {.name = "softmax", .f = f_softmax, .n = 1, .leaf = {{like(9, 5)}}};
	struct probe grouped = {.name = "grouped_linear",
		.f = f_grouped,
		.n = 4,
		.leaf = {{like(11, 10)}, {vfm_t3(NULL, VFM_F32, 3, 14, 10)}, {like(3, 14)},
			{vfm_t3(NULL, VFM_F32, 3, 6, 14)}}};
	struct probe choice = {.name = "token choice",
		.f = f_token_choice,
		.n = 3,
		.leaf = {{like(9, 10)}, {like(9, 3)}, {vfm_t3(NULL, VFM_F32, 3, 6, 10)}}};

	(void)state;
	check_probe(&softmax, 1);
	check_probe(&grouped, 1);
	check_probe(&choice, 3);
}

/* A rank that holds no row of a pack computes with all its samples: gradients of what belongs to samples and of weights
 * are zeros. */
static const int32_t no_cu[] = {0, 0, 0};
static const struct vfm_seqs no_tokens = {.n = 2, .total = 0, .max_len = 0, .cu = no_cu};

static struct vfm_var *f_no_rows(struct probe *p, struct vfm_var **x)
{
	struct vfm_var *mod = vfm_g_act(t, x[1], VFM_ACT_SILU), *h, *o;

	(void)p;
	h = vfm_g_norm(t, x[0],
		&(struct vfm_norm_args){.eps = 1e-6f,
			.shift = vfm_view_cols(t, mod, 0, 16),
			.scale = vfm_view_cols(t, mod, 1, 16),
			.seqs = &no_tokens,
			.out = VFM_F32});
	h = vfm_g_linear(t, h, &(struct vfm_linear_args){.w = x[2], .act = VFM_ACT_GELU_TANH, .out = VFM_F32});
	o = vfm_g_attn(t, qk_norm(vfm_view_heads(t, h, 0, 2, 8), x[3]), vfm_view_heads(t, h, 1, 2, 8),
		vfm_view_heads(t, h, 2, 2, 8), &no_tokens, &no_tokens, 0.3f);
	return vfm_g_gate(t, x[0], o, vfm_view_cols(t, mod, 2, 16), &no_tokens);
}

static void test_no_rows(void **state)
{
	struct probe p = {.name = "no rows at all",
		.f = f_no_rows,
		.n = 4,
		.leaf = {{like(0, 16)}, {like(2, 48)}, {like(48, 16)}, {like(8, -1)}}};

	(void)state;
	check_probe(&p, 3);
}

struct balance_region {
	struct vfm_var *logits;
	double *loss;
};

static float balance_count[2 * 3] = {1, 0, 2, 3, 2, 1}, balance_coef[2] = {0.5f, 2};

static struct vfm_var *balance_layer(struct vfm_tape *tape, void *ctx)
{
	struct balance_region *r = ctx;
	struct vfm_var *p = vfm_g_softmax(tape, r->logits);

	vfm_g_moe_balance(tape, p, vfm_input(tape, vfm_t2(balance_count, VFM_F32, 2, 3)),
		vfm_t1(balance_coef, VFM_F32, 2), &samples, vfm_t1(r->loss, VFM_F64, 1));
	return vfm_g_add(tape, p, p);
}

/* Loss and gradient of logits, by differences; the same with recompute, where the loss must not count twice. */
static void test_balance(void **state)
{
	float v[9 * 3], g[2][9 * 3], zero[9 * 3] = {0};
	double loss[2], h = 1e-2;

	(void)state;
	fill(v, 27, 5, 0);
	for (int mode = 0; mode < 2; mode++) {
		struct balance_region r = {vfm_input(t, vfm_t2(v, VFM_F32, 9, 3)), &loss[mode]};
		struct vfm_var *y;

		loss[mode] = 0;
		memset(g[mode], 0xff, sizeof(g[mode]));
		r.logits->g = vfm_t2(g[mode], VFM_F32, 9, 3);
		r.logits->needs_grad = true;
		y = vfm_region(t, (struct vfm_keeps){mode ? 0 : VFM_KEEP_ALL, 0}, balance_layer, &r, &r.logits, 1);
		OK(vfm_tape_seed(t, y, vfm_t2(zero, VFM_F32, 9, 3), &err)); /* the rest of the network says nothing */
		OK(vfm_tape_backward(t, &err));
		vfm_tape_reset(t);
	}
	assert_true(loss[0] == loss[1] && loss[0] > 0);
	assert_memory_equal(g[0], g[1], sizeof(g[0]));
	vfm_tape_set_recording(t, false);
	for (int i = 0; i < 27; i++) {
		double l[2] = {0, 0};
		float keep = v[i];

		for (int k = 0; k < 2; k++) {
			struct balance_region r = {vfm_input(t, vfm_t2(v, VFM_F32, 9, 3)), &l[k]};

			v[i] = keep + (float)(k ? -h : h);
			balance_layer(t, &r);
			vfm_tape_reset(t);
		}
		v[i] = keep;
		if (!(fabs((l[0] - l[1]) / (2 * h) - (double)g[0][i]) < 1e-3))
			fail_msg("balance: logit %d has %g, by differences %g", i, (double)g[0][i],
				(l[0] - l[1]) / (2 * h));
	}
	vfm_tape_set_recording(t, true);
	assert_int_equal(dev.dev->mem_now, 0);
}

static struct vfm_var *f_rms_mod(struct probe *p, struct vfm_var **x)
{
	struct vfm_var *mod = vfm_g_act(t, x[1], VFM_ACT_SILU);

	(void)p;
	return vfm_g_norm(t, vfm_g_add(t, x[0], x[0]),
		&(struct vfm_norm_args){.kind = VFM_NORM_RMS,
			.eps = 1e-6f,
			.shift = vfm_view_cols(t, mod, 0, 12),
			.scale = vfm_view_cols(t, mod, 1, 12),
			.seqs = &samples,
			.out = VFM_F32});
}

static void test_rms_modulation(void **state)
{
	struct probe mod = {
		.name = "RMS norm, modulated", .f = f_rms_mod, .n = 2, .leaf = {{like(9, 12)}, {like(2, 24)}}};

	(void)state;
	check_probe(&mod, 3);
}

/* ---- residual sums with norms ---- */

enum { SEPARATE = 1, UNREAD_SUM = 2, READ_TWICE = 4 }; /* struct probe.flags */

/* x + gate h and its norm, as one op or as two. */
static struct vfm_var *add_norm(struct probe *p, struct vfm_var *x, struct vfm_var *h, struct vfm_var *gate,
	const struct vfm_norm_args *args, struct vfm_var **sum)
{
	if (!(p->flags & SEPARATE))
		return vfm_g_add_norm(t, x, h, gate, args, sum);
	*sum = vfm_g_gate(t, x, h, gate, args->seqs);
	return vfm_g_norm(t, *sum, args);
}

/* Two branches: the first with a gate in front of a modulated norm, the second without in front of an affine one.
 * x: residual stream, modulation, weight, bias, weight and bias of the norm. */
static struct vfm_var *f_add_norm(struct probe *p, struct vfm_var **x)
{
	struct vfm_var *mod = vfm_g_act(t, x[1], VFM_ACT_SILU), *h, *y, *sum;

	h = vfm_g_linear(t, x[0], &(struct vfm_linear_args){.w = x[2], .b = x[3], .out = VFM_F32});
	y = add_norm(p, vfm_g_act(t, x[0], VFM_ACT_SILU), h, vfm_view_cols(t, mod, 2, 12),
		&(struct vfm_norm_args){.eps = 1e-6f,
			.shift = vfm_view_cols(t, mod, 0, 12),
			.scale = vfm_view_cols(t, mod, 1, 12),
			.seqs = &samples,
			.out = VFM_F32},
		&sum);
	h = p->flags & READ_TWICE ? vfm_g_add(t, y, h)
				  : vfm_g_linear(t, y, &(struct vfm_linear_args){.w = x[2], .b = x[3], .out = VFM_F32});
	y = add_norm(p, sum, h, NULL,
		&(struct vfm_norm_args){
			.kind = VFM_NORM_RMS, .eps = 1e-6f, .weight = x[4], .bias = x[5], .out = VFM_F32},
		&sum);
	return p->flags & UNREAD_SUM ? y : vfm_g_add(t, y, sum);
}

#define ADD_NORM_PROBE(how)                                                                                            \
	{                                                                                                              \
		.name = "residual sum with norm, variant " #how, .f = f_add_norm, .n = 6, .flags = (how), .leaf = {    \
			{like(9, 12)},                                                                                 \
			{like(2, 36)},                                                                                 \
			{like(12, 12)},                                                                                \
			{like(12, -1)},                                                                                \
			{like(12, -1)},                                                                                \
			{like(12, -1)}                                                                                 \
		}                                                                                                      \
	}

static void test_add_norm(void **state)
{
	struct probe p[] = {ADD_NORM_PROBE(0), ADD_NORM_PROBE(SEPARATE), ADD_NORM_PROBE(UNREAD_SUM),
		ADD_NORM_PROBE(READ_TWICE), ADD_NORM_PROBE(READ_TWICE | SEPARATE)};

	(void)state;
	for (size_t i = 0; i < sizeof(p) / sizeof(p[0]); i++)
		check_probe(&p[i], 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_moving_weights),
		cmocka_unit_test(test_rows),
		cmocka_unit_test(test_take_bf16),
		cmocka_unit_test(test_swiglu_embed),
		cmocka_unit_test(test_rms_modulation),
		cmocka_unit_test(test_add_norm),
		cmocka_unit_test(test_moe),
		cmocka_unit_test(test_no_rows),
		cmocka_unit_test(test_balance),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
