/* The tape: gradients, lifetimes, regions, errors, and accumulation over packs. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "net/mesh/attn.h"
#include "net/nn/layers.h"
#include "net/tape/deferred.h"
#include "net/tape/node.h"
#include "net/tape/offload.h"
#include "net/tape/region.h"
#include "spec/model/linears.h"
#include "taped.h"
#include "train/step/synthetic.h"
#include "train/step/trainer.h"

/* Returns a leaf that needs a gradient, like a parameter.  The caller owns the arrays of its value and gradient. */
static struct vfm_var *leaf(float *value, float *grad, int64_t rows, int64_t cols)
{
	struct vfm_var *x = vfm_input(t, vfm_t2(value, VFM_F32, rows, cols));

	x->g = vfm_t2(grad, VFM_F32, rows, cols);
	x->needs_grad = true;
	return x;
}

/* Runs the backward from d loss / d y = value for all elements. */
static int back_from(struct vfm_var *y, float value)
{
	struct vfm_tensor g;
	bool accumulate;

	TRY(vfm_grad_into(t, y, &g, &accumulate, &err));
	assert_false(accumulate);
	for (int64_t i = 0; i < vfm_numel(&g); i++)
		((float *)g.data)[i] = value;
	return vfm_tape_backward(t, &err);
}

/* ---- gradients ---- */

static void test_used_twice(void **state)
{
	float v[6] = {1, 2, 3, 4, 5, 6}, g[6];
	struct vfm_var *x = leaf(v, g, 2, 3), *y, *z;

	(void)state;
	memset(g, 0xff, sizeof(g)); /* NaN: must be overwritten, not added to */
	y = vfm_g_add(t, x, x);
	z = vfm_g_add(t, vfm_g_add(t, y, x), y);
	for (int i = 0; i < 6; i++)
		assert_true(((float *)z->v.data)[i] == 5 * v[i]);
	OK(back_from(z, 2));
	for (int i = 0; i < 6; i++)
		assert_true(g[i] == 10);
}

/* Reads views of an op's output: view which[i] for each i < n and, if `whole`, also the output itself. */
static void check_views(const int *which, int n, bool whole, const float want[3])
{
	float v[12], g[12], zero[12] = {0}, weight[12], wg[12] = {0}; /* alive until the end of the backward */
	struct vfm_var *x, *base, *sum = NULL, *a[8];

	for (int i = 0; i < 12; i++)
		v[i] = (float)i;
	memset(g, 0xff, sizeof(g));
	x = leaf(v, g, 2, 6);
	base = vfm_g_add(t, x, vfm_input(t, vfm_t2(zero, VFM_F32, 2, 6)));
	for (int i = 0; i < n; i++) {
		a[i] = vfm_view_cols(t, base, which[i], 2);
		sum = sum ? vfm_g_add(t, sum, a[i]) : vfm_g_add(t, a[i], vfm_input(t, vfm_t2(zero, VFM_F32, 2, 2)));
	}
	for (int i = 1; i < n; i++)
		assert_true((a[i] == a[0]) == (which[i] == which[0])); /* equal views are one variable */
	if (whole) {
		struct vfm_var *w = leaf(weight, wg, 2, 6);

		for (int i = 0; i < 12; i++)
			weight[i] = 3;
		/* base W^T: each element of base contributes to 2 outputs with weight 3 */
		sum = vfm_g_add(t, sum, vfm_g_linear(t, base, &(struct vfm_linear_args){.w = w, .out = VFM_F32}));
	}
	OK(vfm_tape_status(t, &err));
	OK(back_from(sum, 1));
	for (int i = 0; i < 12; i++)
		if (g[i] != want[i % 6 / 2])
			fail_msg("views: column %d got %g, not %g", i % 6, (double)g[i], (double)want[i % 6 / 2]);
	vfm_tape_reset(t);
}

static void test_views(void **state)
{
	(void)state;
	check_views((int[]){0, 1, 2}, 3, false, (float[]){1, 1, 1});
	check_views((int[]){2, 0, 2, 1, 2}, 5, false, (float[]){1, 1, 3});
	/* Columns that no view covers have the gradient zero, not the previous contents of the memory. */
	check_views((int[]){0, 0}, 2, false, (float[]){2, 0, 0});
	check_views((int[]){1}, 1, false, (float[]){0, 1, 0});
	/* The output is read directly and through its views. */
	check_views((int[]){0, 1, 2}, 3, true, (float[]){7, 7, 7});
	check_views((int[]){2, 2}, 2, true, (float[]){6, 6, 8});
}

/* A view that no op reads. */
static void test_unread_view(void **state)
{
	float v[8] = {0}, g[8], zero[8] = {0};
	struct vfm_var *x = leaf(v, g, 2, 4), *base, *y;

	(void)state;
	memset(g, 0xff, sizeof(g));
	base = vfm_g_add(t, x, vfm_input(t, vfm_t2(zero, VFM_F32, 2, 4)));
	vfm_view_cols(t, base, 1, 2);
	y = vfm_g_act(
		t, vfm_g_add(t, vfm_view_cols(t, base, 0, 2), vfm_input(t, vfm_t2(zero, VFM_F32, 2, 2))), VFM_ACT_SILU);
	OK(back_from(y, 1));
	for (int i = 0; i < 8; i++)
		assert_true(g[i] == (i % 4 < 2 ? 0.5f : 0)); /* silu'(0) */
}

/* ---- errors ---- */

static void test_sticky_errors(void **state)
{
	float v[6] = {0}, g[6] = {0}, u[4] = {0};
	struct vfm_var *x = leaf(v, g, 2, 3), *bad, *y;
	struct vfm_err first = {0}, second = {0};

	(void)state;
	bad = vfm_g_add(t, vfm_g_act(t, x, VFM_ACT_SILU), vfm_input(t, vfm_t2(u, VFM_F32, 2, 2)));
	assert_true(vfm_tape_status(t, &first) < 0);
	assert_true(strlen(first.msg) > 0);
	/* After a failure all ops are no-ops, and the first message is kept. */
	y = vfm_g_add(t, vfm_view_cols(t, bad, 1, 99), x);
	y = vfm_g_linear(t, y, &(struct vfm_linear_args){.w = x, .act = VFM_ACT_GELU_TANH, .out = VFM_F32});
	y = vfm_g_norm(t, y, &(struct vfm_norm_args){.kind = VFM_NORM_RMS, .eps = 1e-6f, .out = VFM_BF16});
	assert_non_null(y);
	assert_int_equal(vfm_tape_status(t, &second), first.code);
	assert_string_equal(first.msg, second.msg);
	assert_int_equal(vfm_tape_backward(t, &second), first.code);
	for (int i = 0; i < 6; i++)
		assert_true(g[i] == 0);
	vfm_tape_reset(t);
	assert_int_equal(dev.dev->mem_now, 0);
	/* After a reset the tape works again. */
	assert_int_equal(vfm_tape_status(t, &err), 0);
	x = leaf(v, g, 2, 3);
	OK(back_from(vfm_g_add(t, x, x), 1));
	assert_true(g[0] == 2 && g[5] == 2);
}

/* ---- lifetimes ---- */

enum { ROWS = 64, COLS = 64, ONE = ROWS * COLS * 4 };

static struct vfm_var *chain(struct vfm_var *x, int n)
{
	for (int i = 0; i < n; i++)
		x = vfm_g_act(t, x, VFM_ACT_SILU);
	return x;
}

static void test_scopes(void **state)
{
	float *v = vfm_calloc(ROWS * COLS, 4), *g = vfm_calloc(ROWS * COLS, 4);
	struct vfm_var *x, *y;
	int mark;

	(void)state;
	/* Without recording, a scope frees all values except `keep`. */
	vfm_tape_set_recording(t, false);
	x = leaf(v, g, ROWS, COLS);
	mark = vfm_scope_begin(t);
	y = chain(x, 10);
	assert_int_equal(dev.dev->mem_now, 10 * ONE);
	vfm_scope_end(t, mark, y);
	assert_int_equal(dev.dev->mem_now, ONE);
	assert_true(y->v.data && ((float *)y->v.data)[0] == 0);
	OK(vfm_tape_backward(t, &err)); /* no-op: the tape is empty */
	mark = vfm_scope_begin(t);
	chain(y, 3);
	vfm_scope_end(t, mark, NULL);
	assert_int_equal(dev.dev->mem_now, ONE);
	vfm_tape_reset(t);
	assert_int_equal(dev.dev->mem_now, 0);

	/* With recording, values that the backward reads live until its end. */
	vfm_tape_set_recording(t, true);
	x = leaf(v, g, ROWS, COLS);
	mark = vfm_scope_begin(t);
	y = chain(x, 10);
	vfm_scope_end(t, mark, y);
	assert_int_equal(dev.dev->mem_now, 10 * ONE);
	vfm_dev_peak_reset(dev.dev);
	OK(back_from(y, 1));
	/* Two gradients are alive at a time; they fit into the memory that is freed meanwhile. */
	assert_true(dev.dev->mem_peak <= 12 * ONE);
	assert_true(dev.dev->mem_now <= 2 * ONE);
	assert_true(fabs((double)g[0] - pow(0.5, 10)) < 1e-9);
	vfm_tape_reset(t);
	assert_int_equal(dev.dev->mem_now, 0);

	/* A reset before the backward frees everything, too. */
	chain(leaf(v, g, ROWS, COLS), 5);
	vfm_tape_reset(t);
	assert_int_equal(dev.dev->mem_now, 0);
	free(v);
	free(g);
}

/* ---- regions ---- */

enum { D = 32, T = 24, S = 3, BLOCKS = 4 };

struct block {
	struct vfm_self_attn attn;
	struct vfm_linear fc1, fc2;
};

struct net {
	struct vfm_params ps;
	struct vfm_linear in, mod;
	struct block block[BLOCKS];
	struct vfm_seqs seqs;
	struct vfm_tokens tok;
	struct vfm_attn_layout layout;
	int32_t cu[S + 1], seg[T];
	float x[T * D], c[S * D], target[T * D], w[S];
	double loss;
};

struct block_ctx {
	struct net *n;
	struct block *b;
	struct vfm_var *x, *mod; /* inputs of the region */
};

static struct vfm_var *block_forward(struct vfm_tape *tape, void *p)
{
	struct block_ctx *k = p;
	struct vfm_var *x = k->x, *h;

	h = vfm_g_norm(tape, x,
		&(struct vfm_norm_args){.eps = 1e-6f,
			.shift = vfm_view_cols(tape, k->mod, 0, D),
			.scale = vfm_view_cols(tape, k->mod, 1, D),
			.seqs = &k->n->seqs,
			.out = VFM_F32});
	h = vfm_self_attn(tape, &k->b->attn, h, &k->n->layout, (struct vfm_tensor){0});
	x = vfm_g_gate(tape, x, h, vfm_view_cols(tape, k->mod, 2, D), &k->n->seqs);
	h = vfm_linear(
		tape, &k->b->fc2, vfm_linear(tape, &k->b->fc1, x, VFM_ACT_GELU_TANH, VFM_F32), VFM_ACT_NONE, VFM_F32);
	return vfm_g_add(tape, x, h);
}

static void net_open(struct net *n)
{
	struct vfm_rng rng = vfm_rng_stream(1, 2, 3, VFM_RNG_TEST);

	memset(n, 0, sizeof(*n));
	vfm_params_init(&n->ps, dev.stream, vfm_mesh_one());
	vfm_linear_declare(&n->in, &n->ps, &(struct vfm_linear_desc){.in = D, .out = D}, "in");
	vfm_linear_declare(&n->mod, &n->ps, &(struct vfm_linear_desc){.in = D, .out = 3 * D}, "mod");
	for (int i = 0; i < BLOCKS; i++) {
		char name[32];

		snprintf(name, sizeof(name), "blocks.%d.attn", i);
		vfm_self_attn_declare(&n->block[i].attn, &n->ps,
			&(struct vfm_attn_desc){
				.unit = i + 1, .hidden = D, .heads = 4, .kv_heads = 4, .qk_norm = true, .eps = 1e-6f},
			name);
		vfm_linear_declare(&n->block[i].fc1, &n->ps,
			&(struct vfm_linear_desc){.unit = i + 1, .in = D, .out = 4 * D, .keep = VFM_KEEP_FC1},
			"blocks.%d.fc1", i);
		vfm_linear_declare(&n->block[i].fc2, &n->ps,
			&(struct vfm_linear_desc){.unit = i + 1, .in = 4 * D, .out = D, .keep = VFM_KEEP_MLP},
			"blocks.%d.fc2", i);
	}
	OK(vfm_params_alloc(&n->ps, VFM_F32, true, &err));
	OK(vfm_params_fill(&n->ps, 7, &err));
	for (int i = 0; i < T * D; i++) {
		n->x[i] = vfm_rng_normal(&rng, (uint64_t)i);
		n->target[i] = vfm_rng_normal(&rng, (uint64_t)(i + T * D));
		n->c[i % (S * D)] = n->x[i];
	}
	n->cu[1] = 5, n->cu[2] = 17, n->cu[3] = T;
	for (int i = 0; i < T; i++)
		n->seg[i] = i < 5 ? 0 : i < 17 ? 1 : 2;
	for (int i = 0; i < S; i++)
		n->w[i] = 1.0f / T;
	n->seqs = (struct vfm_seqs){.n = S,
		.total = T,
		.max_len = 12,
		.cu = n->cu,
		.dev_cu = vfm_t1(n->cu, VFM_I32, S + 1),
		.seg = vfm_t1(n->seg, VFM_I32, T)};
	vfm_tokens_make(&n->tok, S, n->cu, 1, 0, 1, 1, 0);
	OK(vfm_attn_layout_make(&n->layout, vfm_mesh_one(), &n->tok, dev.stream, &err));
}

static void net_close(struct net *n)
{
	vfm_attn_layout_release(&n->layout);
	vfm_tokens_release(&n->tok);
	vfm_params_release(&n->ps);
}

static int hook_one(void *ctx, struct vfm_err *e)
{
	int *seen = ctx;

	(void)e;
	*seen = *seen * 10 + 1;
	return 0;
}

static int hook_two(void *ctx, struct vfm_err *e)
{
	int *seen = ctx;

	(void)e;
	*seen = *seen * 10 + 2;
	return 0;
}

/* Runs forward and backward.  Returns the peak memory, and in *grad a copy of the gradients.  The backward reaches the
 * hook of the weights first, so `seen` is 21, or 12 if weights are deferred. */
static int64_t net_run(struct net *n, enum vfm_recompute mode, bool defer, float **grad)
{
	struct vfm_mse mse = {.target = vfm_t2(n->target, VFM_F32, T, D),
		.w = vfm_t1(n->w, VFM_F32, S),
		.seqs = &n->seqs,
		.loss = vfm_t1(&n->loss, VFM_F64, 1)};
	int64_t before = dev.dev->mem_now, peak, held;
	struct vfm_var *x, *mod;
	int seen = 0;

	n->loss = 0;
	vfm_dev_peak_reset(dev.dev);
	vfm_tape_defer_weights(t, defer);
	OK(vfm_params_grad_begin(&n->ps, &err));
	x = vfm_linear(t, &n->in, vfm_input(t, vfm_t2(n->x, VFM_F32, T, D)), VFM_ACT_NONE, VFM_F32);
	mod = vfm_linear(t, &n->mod, vfm_input(t, vfm_t2(n->c, VFM_F32, S, D)), VFM_ACT_NONE, VFM_F32);
	vfm_hook(t, hook_one, &seen);
	vfm_hook_weights(t, hook_two, &seen);
	for (int i = 0; i < BLOCKS; i++) {
		struct block_ctx *k = vfm_tape_alloc(t, sizeof(*k));

		*k = (struct block_ctx){n, &n->block[i], x, mod};
		x = vfm_region(t, (struct vfm_keeps){vfm_recompute_keeps(mode), ~0u}, block_forward, k,
			(struct vfm_var *[]){x, NULL, mod}, 3);
	}
	OK(vfm_g_mse(t, x, &mse));
	OK(vfm_tape_backward(t, &err));
	assert_int_equal(seen, defer ? 1 : 21);
	assert_int_equal(n->block[1].fc1.w->var.g_ready, !defer);
	held = dev.dev->mem_now;
	OK(vfm_tape_weights(t, &err));
	assert_int_equal(seen, defer ? 12 : 21);
	assert_true(n->block[1].fc1.w->var.g_ready);
	if (defer)
		assert_true(dev.dev->mem_now < held - (int64_t)BLOCKS * T * D * 4 * 4);
	else
		assert_int_equal(dev.dev->mem_now, held);
	OK(vfm_tape_weights(t, &err)); /* no-op: no gradient is deferred */
	OK(vfm_params_grad_end(&n->ps, &err));
	peak = dev.dev->mem_peak - before;
	vfm_tape_reset(t);
	assert_int_equal(dev.dev->mem_now, before);
	*grad = vfm_malloc((size_t)n->ps.n_flat * 4);
	memcpy(*grad, n->ps.grad, (size_t)n->ps.n_flat * 4);
	return peak;
}

static struct vfm_var *again_forward(struct vfm_tape *tape, void *ctx)
{
	struct block_ctx *k = ctx;

	return vfm_linear(tape, &k->n->in, k->x, VFM_ACT_NONE, VFM_F32);
}

enum { REGIONS = 3 };

/* Records regions that offload their inputs.  Returns the status of the tape. */
static int offload_rows(struct net *n, struct vfm_offload *off, int64_t rows)
{
	struct vfm_var *x;
	int rc;

	vfm_tape_set_offload(t, off);
	x = vfm_linear(t, &n->in, vfm_input(t, vfm_t2(n->x, VFM_F32, rows, D)), VFM_ACT_NONE, VFM_F32);
	for (int i = 0; i < REGIONS; i++) {
		struct block_ctx *k = vfm_tape_alloc(t, sizeof(*k));

		*k = (struct block_ctx){n, NULL, x, NULL};
		x = vfm_region(t, (struct vfm_keeps){0, VFM_KEEP_INPUT}, again_forward, k, (struct vfm_var *[]){x}, 1);
	}
	rc = vfm_tape_status(t, &err);
	vfm_tape_reset(t);
	vfm_tape_set_offload(t, NULL);
	return rc;
}

/* Packs of other sizes use the same host memory. */
static void test_offloaded_sizes(void **state)
{
	static struct net n;
	struct vfm_offload *off = vfm_offload_new(dev.stream, &err);
	int64_t row = REGIONS * D * 4;

	(void)state;
	net_open(&n);
	assert_non_null(off);
	for (int64_t rows = T / 2 + 1; rows <= T; rows++) {
		OK(offload_rows(&n, off, rows));
		assert_int_equal(vfm_offload_bytes(off), rows * row);
		OK(offload_rows(&n, off, T / 2 + 1));
		assert_int_equal(vfm_offload_bytes(off), rows * row);
	}
	vfm_offload_free(off);
	net_close(&n);
}

static void *no_host_memory(struct vfm_dev *d, size_t bytes, const char *what, struct vfm_err *e)
{
	(void)d;
	vfm_fail(e, VFM_EENV, "no %zu bytes for %s", bytes, what);
	return NULL;
}

/* The message says what the memory is for, how much there is, and which key limits it. */
static void test_no_host_memory(void **state)
{
	static struct net n;
	struct vfm_offload *off = vfm_offload_new(dev.stream, &err);
	const struct vfm_dev_table *table = dev.dev->t;
	struct vfm_dev_table full = *table;

	(void)state;
	net_open(&n);
	full.alloc_host = no_host_memory;
	dev.dev->t = &full;
	assert_int_equal(offload_rows(&n, off, T), VFM_EENV);
	dev.dev->t = table;
	assert_non_null(strstr(err.msg, "bytes for offloaded activations"));
	assert_non_null(strstr(err.msg, "0.00 GiB"));
	assert_non_null(strstr(err.msg, "train.host_gib"));
	assert_int_equal(vfm_offload_bytes(off), 0);
	vfm_offload_free(off);
	net_close(&n);
}

enum { RUNS = 12 }; /* 3 modes of recompute x deferred weights or not x offload or not */

static void test_regions(void **state)
{
	static struct net n;
	struct vfm_offload *off = vfm_offload_new(dev.stream, &err);
	float *grad[RUNS];
	int64_t peak[RUNS];
	double loss[RUNS], norm = 0;

	(void)state;
	net_open(&n);
	assert_non_null(off);
	for (int k = 0; k < RUNS; k++) {
		vfm_tape_set_offload(t, k < 6 ? NULL : off);
		peak[k] = net_run(&n, (enum vfm_recompute)(k % 3), k % 6 >= 3, &grad[k]);
		loss[k] = n.loss;
	}
	vfm_tape_set_offload(t, NULL);
	for (int64_t i = 0; i < n.ps.n_flat; i++)
		norm += (double)grad[0][i] * (double)grad[0][i];
	assert_true(norm > 1e-4 && isfinite(norm));
	for (int k = 1; k < RUNS; k++) {
		assert_true(loss[k] == loss[0]);
		assert_memory_equal(grad[k], grad[0], (size_t)n.ps.n_flat * 4);
	}
	if (peak[VFM_RECOMPUTE_FULL] >= peak[VFM_RECOMPUTE_SELECTIVE] ||
		peak[VFM_RECOMPUTE_SELECTIVE] >= peak[VFM_RECOMPUTE_NONE])
		fail_msg("peak memory: none %lld, selective %lld, full %lld", (long long)peak[0], (long long)peak[1],
			(long long)peak[2]);
	/* Modes that keep products.  An activation is computed again from its kept input. */
	for (int k = 0; k < 4; k++) {
		int64_t most;
		float *g;

		vfm_tape_set_offload(t, k % 2 ? off : NULL);
		most = net_run(&n, k < 2 ? VFM_RECOMPUTE_LIGHT : VFM_RECOMPUTE_OUTPUTS, k % 2, &g);
		assert_true(n.loss == loss[0]);
		assert_memory_equal(g, grad[0], (size_t)n.ps.n_flat * 4);
		if (most >= peak[VFM_RECOMPUTE_NONE] || (most <= peak[VFM_RECOMPUTE_FULL] && k % 2 == 0))
			fail_msg("peak memory: none %lld, with products %lld, full %lld", (long long)peak[0],
				(long long)most, (long long)peak[2]);
		free(g);
	}
	vfm_tape_set_offload(t, NULL);
	/* With offload, selective needs the memory of full plus the transfers of one block.  The rest is on the
	 * host. */
	if (peak[6 + 1] > peak[2] + T * (2 * D + 4) * 4 || peak[6 + 1] >= peak[1] || peak[6 + 2] > peak[2] ||
		peak[6] != peak[0])
		fail_msg("peak memory: full %lld, offloaded %lld, selective %lld", (long long)peak[2],
			(long long)peak[8], (long long)peak[7]);
	assert_true(vfm_offload_bytes(off) >= (int64_t)(BLOCKS - 1) * T * D * 4 * 2);
	vfm_offload_free(off);
	for (int i = 0; i < RUNS; i++)
		free(grad[i]);
	net_close(&n);
}

/* Reset between the backward and the deferred gradients of weights. */
static void test_weights_dropped(void **state)
{
	float x[4 * 3] = {1, 2, 3}, w[2 * 3] = {4, 5}, gw[2 * 3] = {0};

	(void)state;
	vfm_tape_defer_weights(t, true);
	for (int k = 0; k < 2; k++) {
		struct vfm_var *y = vfm_g_linear(t, vfm_input(t, vfm_t2(x, VFM_F32, 4, 3)),
			&(struct vfm_linear_args){.w = leaf(w, gw, 2, 3), .out = VFM_F32});

		OK(back_from(y, 1));
		assert_true(dev.dev->mem_now > 0);
		if (k == 1)
			OK(vfm_tape_weights(t, &err));
		assert_true((double)gw[0] == k * 1.0 && (double)gw[2] == k * 3.0);
		vfm_tape_reset(t);
		assert_int_equal(dev.dev->mem_now, 0);
	}
}

/* A chain split over two tapes, joined like pp stages, gives the gradients of one tape. */
static void test_stages(void **state)
{
	float x[2 * 3] = {1, -2, 3, 4, 5, -6}, w1[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, w2[3] = {1, -1, 2},
		    g[2][9 + 3] = {{0}}, gy[2] = {1, 3};
	struct vfm_tape *first = t, *second = vfm_tape_new(dev.stream);

	(void)state;
	for (int k = 0; k < 2; k++) {
		struct vfm_var *h, *y, *in;
		struct vfm_tensor dh;

		h = vfm_g_linear(first, vfm_input(first, vfm_t2(x, VFM_F32, 2, 3)),
			&(struct vfm_linear_args){.w = leaf(w1, g[k], 3, 3), .act = VFM_ACT_SILU, .out = VFM_F32});
		t = k ? second : first;
		in = k ? vfm_leaf(second, h->v) : h;
		y = vfm_g_linear(t, in, &(struct vfm_linear_args){.w = leaf(w2, g[k] + 9, 1, 3), .out = VFM_F32});
		OK(vfm_tape_seed(t, y, vfm_t2(gy, VFM_F32, 2, 1), &err));
		OK(vfm_tape_backward(t, &err));
		if (k) {
			dh = vfm_leaf_grad(in);
			assert_int_equal(dh.shape[0], 2);
			OK(vfm_tape_seed(first, h, dh, &err));
			OK(vfm_tape_backward(first, &err));
			vfm_tape_reset(second);
		} else {
			assert_null(vfm_leaf_grad(vfm_leaf(t, h->v)).data);
		}
		vfm_tape_reset(first);
		t = first;
	}
	for (int i = 0; i < 12; i++)
		if (!(fabs((double)g[0][i] - (double)g[1][i]) <= 1e-5 * fabs((double)g[0][i])))
			fail_msg("gradient %d: one tape %g, two %g", i, (double)g[0][i], (double)g[1][i]);
	vfm_tape_free(second);
}

/* Reset between forward and backward, in every mode. */
static void test_region_dropped(void **state)
{
	static struct net n;

	(void)state;
	net_open(&n);
	for (int mode = VFM_RECOMPUTE_NONE; mode < VFM_RECOMPUTE_MODES; mode++) {
		int64_t before = dev.dev->mem_now;
		struct block_ctx k = {.n = &n, .b = &n.block[0]};

		k.x = vfm_linear(t, &n.in, vfm_input(t, vfm_t2(n.x, VFM_F32, T, D)), VFM_ACT_NONE, VFM_F32);
		k.mod = vfm_linear(t, &n.mod, vfm_input(t, vfm_t2(n.c, VFM_F32, S, D)), VFM_ACT_NONE, VFM_F32);
		vfm_region(t, (struct vfm_keeps){vfm_recompute_keeps((enum vfm_recompute)mode), 0}, block_forward, &k,
			(struct vfm_var *[]){k.x, k.mod}, 2);
		OK(vfm_tape_status(t, &err));
		vfm_tape_reset(t);
		assert_int_equal(dev.dev->mem_now, before);
	}
	vfm_attn_layout_release(&n.layout);
	vfm_tokens_release(&n.tok);
	vfm_params_release(&n.ps);
}

/* ---- the result of a region ---- */

static int64_t gates; /* calls of the op */
static const struct vfm_ops *all_ops;

static int count_gate(struct vfm_stream *s, const struct vfm_gate *a, struct vfm_err *e)
{
	gates++;
	return all_ops->gate(s, a, e);
}

struct sum_ctx {
	struct vfm_var *x;
	bool inside; /* the region reads its last sum */
};

/* s = 2x, z = s + silu(s); inside: silu(z). */
static struct vfm_var *sum_forward(struct vfm_tape *tape, void *p)
{
	struct sum_ctx *k = p;
	struct vfm_var *x = vfm_g_gate(tape, k->x, k->x, NULL, NULL);

	x = vfm_g_gate(tape, x, vfm_g_act(tape, x, VFM_ACT_SILU), NULL, NULL);
	return k->inside ? vfm_g_act(tape, x, VFM_ACT_SILU) : x;
}

static double silu_slope(double x)
{
	double e = 1 / (1 + exp(-x));

	return e * (1 + x * (1 - e));
}

/* The recompute of a region does not compute a sum that only ops outside the region read. */
static void test_result_not_recomputed(void **state)
{
	const struct vfm_dev_table *table = dev.dev->t;
	struct vfm_dev_table counting = *table;
	struct vfm_ops ops = *table->ops;
	float value[D], g[D];

	(void)state;
	all_ops = table->ops;
	ops.gate = count_gate;
	counting.ops = &ops;
	dev.dev->t = &counting;
	for (int i = 0; i < D; i++)
		value[i] = (float)i / D, g[i] = 1;
	for (int inside = 0; inside < 2; inside++) {
		struct vfm_var *x = vfm_leaf(t, vfm_t2(value, VFM_F32, 1, D)), *y;
		struct sum_ctx k = {x, inside};

		gates = 0;
		y = vfm_region(t, (struct vfm_keeps){0, 0}, sum_forward, &k, &x, 1);
		assert_int_equal(gates, 2);
		OK(vfm_tape_seed(t, y, vfm_t2(g, VFM_F32, 1, D), &err));
		OK(vfm_tape_backward(t, &err));
		assert_int_equal(gates, inside ? 4 : 3);
		for (int i = 0; i < D; i++) {
			double s = 2.0 * (double)value[i], z = s + s / (1 + exp(-s)),
			       slope = 2 * (1 + silu_slope(s)) * (inside ? silu_slope(z) : 1);

			assert_true(fabs((double)((float *)vfm_leaf_grad(x).data)[i] - slope) < 1e-5);
		}
		vfm_tape_reset(t);
	}
	dev.dev->t = table;
}

/* ---- packs ---- */

/* Runs a step on packs; pack k has the samples [first[k], first[k+1]).  Returns the loss, and in *grad the gradients.
 */
static double step_on(
	const struct vfm_config *c, const struct vfm_synthetic *s, const int *first, int n_packs, float **grad)
{
	struct vfm_pack b[4];
	struct vfm_pack_array packs = {b, n_packs, 0};
	struct vfm_pack_source source = vfm_pack_array_source(&packs);
	struct vfm_step_stats stats;
	struct vfm_trainer *tr;
	struct vfm_params *ps;
	int64_t tokens = 0;

	tr = vfm_trainer_new(c, vfm_mesh_one(), dev.stream, &err);
	if (!tr)
		fail_msg("%s", err.msg);
	ps = vfm_trainer_params(tr);
	for (size_t i = 0; i < ps->n; i++) { /* zero-initialised adaLN would hide most gradients */
		struct vfm_fill a = {.x = vfm_t1(ps->master + ps->p[i]->off, VFM_F32, ps->p[i]->n), .std = 0.1f};

		a.rng = vfm_rng_stream(3, 0, i, VFM_RNG_TEST);
		OK(vfm_op_fill(dev.stream, &a, &err));
	}
	for (int k = 0; k < n_packs; k++) {
		OK(vfm_synthetic_pack(&b[k], s + first[k], first[k + 1] - first[k], &c->model, 5, &err));
		tokens += b[k].tokens;
	}
	for (int k = 0; k < n_packs; k++)
		b[k].step_tokens = tokens;
	OK(vfm_trainer_step(tr, 2, n_packs, &source, 0, &err));
	OK(vfm_trainer_stats(tr, &stats, &err));
	for (int k = 0; k < n_packs; k++)
		vfm_pack_release(&b[k]);
	assert_int_equal(stats.tokens, tokens);
	*grad = vfm_malloc((size_t)ps->n_flat * 4);
	memcpy(*grad, ps->grad, (size_t)ps->n_flat * 4);
	vfm_trainer_free(tr);
	return stats.loss;
}

static void test_accumulation(void **state)
{
	static const struct vfm_synthetic s[5] = {
		{{1, 4, 4}, 3, 1}, {{2, 3, 5}, 0, 2}, {{3, 2, 2}, 6, 3}, {{1, 1, 1}, 1, 4}, {{2, 4, 4}, 2, 5}};
	static const char *const sets[][4] = {{"model.cross_attention=true", "model.pooled_text=true",
						      "model.adaln_lora=4", "train.recompute=selective"},
		{"model.cross_attention=false", "model.pooled_text=true", "model.adaln_lora=0", "diffusion.kind=flow"}};
	static const int one[] = {0, 5}, three[] = {0, 1, 3, 5};
	struct vfm_config c;

	(void)state;
	for (int k = 0; k < 2; k++) {
		float *a, *b;
		double la, lb, most = 0, off = 0;
		size_t n = 0;

		vfm_config_defaults(&c);
		c.model.layers = 2, c.model.hidden = 32, c.model.heads = 2, c.model.channels = 3, c.model.text_dim = 8;
		c.diffusion.text_drop = 0.4;
		for (int i = 0; i < 4; i++)
			OK(vfm_config_set(&c, sets[k][i], &err));
		OK(vfm_config_check(&c, &err));
		la = step_on(&c, s, one, 1, &a);
		lb = step_on(&c, s, three, 3, &b);
		n = (size_t)vfm_model_params(&c.model);
		for (size_t i = 0; i < n; i++) {
			most = fmax(most, fabs((double)a[i]));
			off = fmax(off, fabs((double)a[i] - (double)b[i]));
		}
		if (fabs(la - lb) > 1e-6 * la || !(off <= 1e-6 * most) || !(most > 1e-4))
			fail_msg("one pack %.9g, three %.9g; gradients are off by %g of %g", la, lb, off, most);
		free(a);
		free(b);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_used_twice, setup, teardown),
		cmocka_unit_test_setup_teardown(test_views, setup, teardown),
		cmocka_unit_test_setup_teardown(test_unread_view, setup, teardown),
		cmocka_unit_test_setup_teardown(test_sticky_errors, setup, teardown),
		cmocka_unit_test_setup_teardown(test_scopes, setup, teardown),
		cmocka_unit_test_setup_teardown(test_regions, setup, teardown),
		cmocka_unit_test_setup_teardown(test_offloaded_sizes, setup, teardown),
		cmocka_unit_test_setup_teardown(test_no_host_memory, setup, teardown),
		cmocka_unit_test_setup_teardown(test_region_dropped, setup, teardown),
		cmocka_unit_test_setup_teardown(test_result_not_recomputed, setup, teardown),
		cmocka_unit_test_setup_teardown(test_weights_dropped, setup, teardown),
		cmocka_unit_test_setup_teardown(test_stages, setup, teardown),
		cmocka_unit_test_setup_teardown(test_accumulation, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
