/* Collectives beside the computing: a row-split layer sends rows while it computes the next, all-to-alls of a backward
 * have gradients of weights computed under them; with the bits of doing one after the other.  What is put on which
 * stream, in which order, is written down. */
#include <stdlib.h>

#include "base/mem.h"
#include "cpu/cpu.h"
#include "grad/node.h"
#include "mesh/mops.h"
#include "ranks.h"

enum { IN = 16, WIDTH = 32, RANKS = 4 };

/* G: a product.  X: an exchange, R: a reduce-scatter, A: an all-gather, T: an all-to-all; in small letters on the
 * compute stream.  '/': the backward begins. */
static struct {
	char text[256];
	struct vfm_stream *compute, *aside;
	const struct vfm_ops *ops;
	const struct vfm_comm_table *comm;
	int fails; /* this exchange; 0: none */
} did;

static void note(char c, const struct vfm_stream *s)
{
	size_t n = strlen(did.text);

	MUST(n + 1 < sizeof(did.text), "too much to write down");
	did.text[n] = (char)(s == did.compute ? c + ('a' - 'A') : c);
	did.text[n + 1] = 0;
}

static int noted_gemm(struct vfm_stream *s, const struct vfm_gemm *a, struct vfm_err *e)
{
	note('G', NULL);
	return did.ops->gemm(s, a, e);
}

static int noted_exchange(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor out, int to, struct vfm_tensor in,
	int from, struct vfm_err *e)
{
	note('X', s);
	if (did.fails && --did.fails == 0)
		return vfm_fail(e, VFM_EENV, "no way");
	return did.comm->exchange(c, s, out, to, in, from, e);
}

static int noted_reduce_scatter(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out,
	const int64_t *n, struct vfm_err *e)
{
	note('R', s);
	return did.comm->reduce_scatter(c, s, in, out, n, e);
}

static int noted_all_gather(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out,
	const int64_t *n, struct vfm_err *e)
{
	note('A', s);
	return did.comm->all_gather(c, s, in, out, n, e);
}

static int noted_all_to_all(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out,
	const int64_t *send, const int64_t *recv, struct vfm_err *e)
{
	note('T', s);
	return did.comm->all_to_all(c, s, in, out, send, recv, e);
}

static struct vfm_tensor filled(enum vfm_dtype dt, int64_t rows, int64_t cols, int salt)
{
	struct vfm_tensor x = vfm_t2(vfm_malloc((size_t)(rows * cols) * 4 + 4), dt, rows, cols);

	for (int64_t i = 0; i < rows * cols; i++) {
		float f = (float)contribution(salt, 0, 0, "aside", i);

		if (dt == VFM_F32)
			((float *)x.data)[i] = f;
		else
			((uint16_t *)x.data)[i] = vfm_f32_to_bf16(f);
	}
	return x;
}

struct result {
	struct vfm_buf bytes; /* what came out, and its gradients */
	char text[sizeof(did.text)];
	int rc;
};

static void take(struct result *r, struct vfm_tensor x)
{
	vfm_buf_add(&r->bytes, x.data, vfm_nbytes(&x));
}

static void same(const char *what, const struct result *want, struct result *got)
{
	MUST(got->rc == 0, "%s: %s", what, err.msg);
	MUST(want->bytes.len == got->bytes.len && !memcmp(want->bytes.data, got->bytes.data, got->bytes.len),
		"%s: other bits", what);
	vfm_buf_release(&got->bytes);
}

/* ---- a row-split layer ---- */

struct layer {
	struct vfm_scatter s;
	struct vfm_var *x, *w;
	bool fp8;
};

static struct vfm_var *layer_forward(struct vfm_tape *t, void *ctx)
{
	struct layer *l = ctx;
	struct vfm_scatter s = l->s;
	struct vfm_var *y;

	vfm_m_scatter_begin(t, &s);
	y = l->fp8 ? vfm_g_linear_fp8(t, l->x, l->w, NULL, VFM_ACT_NONE, s.dtype, NULL)
		   : vfm_g_linear(t, l->x, l->w, NULL, VFM_ACT_NONE, s.dtype);
	return vfm_m_scatter_end(&s, y);
}

static struct result layer_run(struct vfm_scatter how, bool fp8, struct vfm_stream *aside, enum vfm_recompute mode)
{
	struct vfm_tape *t = vfm_tape_new(did.compute);
	struct vfm_tensor x, w = filled(how.dtype, WIDTH, IN, 20 + how.c->rank),
			     dy = filled(how.dtype, how.rows[how.c->rank], WIDTH, 40 + how.c->rank);
	struct layer l = {.s = how, .fp8 = fp8};
	struct result r = {0};
	struct vfm_var *y;
	int64_t all = 0;

	for (int i = 0; i < how.c->size; i++)
		all += how.rows[i];
	x = filled(how.dtype, all, IN, how.c->rank);
	vfm_tape_set_aside(t, aside);
	l.x = vfm_leaf(t, x);
	l.w = vfm_leaf(t, w);
	did.text[0] = 0;
	y = vfm_region(t, mode, layer_forward, &l, &l.x, 1);
	r.rc = vfm_tape_status(t, &err);
	if (r.rc == 0) {
		note('/', NULL);
		take(&r, y->v);
		OK(vfm_tape_seed(t, y, dy, &err));
		OK(vfm_tape_backward(t, &err));
		take(&r, vfm_leaf_grad(l.x));
		take(&r, vfm_leaf_grad(l.w));
	}
	memcpy(r.text, did.text, sizeof(r.text));
	vfm_tape_free(t);
	MUST(did.compute->dev->mem_now == 0, "%lld bytes are still there", (long long)did.compute->dev->mem_now);
	free(x.data), free(w.data), free(dy.data);
	return r;
}

static int count(const char *text, char c)
{
	int n = 0;

	for (; *text && *text != '/'; text++)
		n += *text == c;
	return n;
}

/* As many exchanges as have something to carry, none of them on the compute stream, the first before the last product;
 * a product for each rank's rows. */
static void must_overlap(const char *text, const struct vfm_scatter *how)
{
	int64_t mine = how->rows[how->c->rank];
	int products = 0, messages = 0;
	const char *x = strchr(text, 'X'), *g = strchr(text, '/') - 1;

	for (int r = 0; r < how->c->size; r++) {
		products += how->rows[r] > 0;
		messages += r != how->c->rank && (how->rows[r] > 0 || mine > 0);
	}
	MUST(count(text, 'X') == messages && count(text, 'G') == products && !count(text, 'x') && !count(text, 'r') &&
			!count(text, 'R'),
		"it did '%s'", text);
	MUST(mine == 0 || products < 2 || (x && *g == 'G' && x < g), "no message before the last product: '%s'", text);
}

static void must_do(const char *what, const struct result *r, const char *want)
{
	MUST(!strcmp(r->text, want), "%s did '%s', not '%s'", what, r->text, want);
}

static void layer_over(struct vfm_comm *c, const int64_t *rows, enum vfm_dtype dt, bool fp8)
{
	struct vfm_scatter how = {.c = c, .rows = rows, .width = WIDTH, .dtype = dt, .small = true}, large = how;
	struct result plain = layer_run(how, fp8, NULL, VFM_RECOMPUTE_NONE), r;
	bool any = rows[0] + rows[1] + rows[2] + rows[3] > 0,
	     equal = rows[0] > 0 && rows[0] == rows[1] && rows[1] == rows[2] && rows[2] == rows[3];

	large.small = false;
	MUST(!any || count(plain.text, 'r') == 1, "without a stream for it: '%s'", plain.text);
	r = layer_run(large, fp8, did.aside, VFM_RECOMPUTE_NONE); /* far too small */
	MUST(count(r.text, 'R') == 1 && count(r.text, 'X') == 0, "a small product: '%s'", r.text);
	same("a small product", &plain, &r);
	r = layer_run(how, fp8, did.aside, VFM_RECOMPUTE_NONE);
	if (any)
		must_overlap(r.text, &how);
	if (equal)
		must_do("a layer", &r, "GXGXGXG/AGG");
	same("in pieces", &plain, &r);
	r = layer_run(how, fp8, did.aside, VFM_RECOMPUTE_LIGHT);
	if (equal)
		must_do("light recompute", &r, "GXGXGXG/AGG");
	same("light recompute", &plain, &r);
	r = layer_run(how, fp8, did.aside, VFM_RECOMPUTE_FULL);
	if (equal)
		must_do("full recompute", &r, "GXGXGXG/GXGXGXGAGG");
	same("full recompute", &plain, &r);
	vfm_buf_release(&plain.bytes);
}

/* A message that cannot be put fails the tape, which waits for those before it; all ranks fail alike. */
static void layer_fails(struct vfm_comm *c)
{
	static const int64_t rows[] = {3, 4, 5, 6};

	for (int k = 1; k < RANKS; k++) {
		struct result r;

		did.fails = k;
		r = layer_run(
			(struct vfm_scatter){.c = c, .rows = rows, .width = WIDTH, .dtype = VFM_F32, .small = true},
			false, did.aside, VFM_RECOMPUTE_NONE);
		MUST(r.rc == VFM_EENV && !strcmp(err.msg, "no way"), "exchange %d: %d, '%s'", k, r.rc, err.msg);
	}
	did.fails = 0;
}

/* ---- an all-to-all between layers ---- */

static struct result redist_run(struct vfm_comm *c, struct vfm_stream *aside, int times)
{
	struct vfm_tape *t = vfm_tape_new(did.compute);
	int64_t n = 3, each[RANKS] = {n, n, n, n};
	struct vfm_redist there = {.send = each, .recv = each, .n_send = RANKS * n, .n_recv = RANKS * n};
	struct vfm_tensor x = filled(VFM_F32, RANKS * n, IN, c->rank), w = filled(VFM_F32, IN, IN, 60),
			  dy = filled(VFM_F32, RANKS * n, IN, 80 + c->rank);
	struct result r = {0};

	vfm_tape_set_aside(t, aside);
	for (int i = 0; i < times; i++) {
		struct vfm_var *in = vfm_leaf(t, x), *w1 = vfm_leaf(t, w), *w2 = vfm_leaf(t, w), *y;

		did.text[0] = 0;
		y = vfm_m_redist(t, c, vfm_g_linear(t, in, w1, NULL, VFM_ACT_NONE, VFM_F32), &there);
		y = vfm_g_linear(t, y, w2, NULL, VFM_ACT_NONE, VFM_F32);
		note('/', NULL);
		OK(vfm_tape_seed(t, y, dy, &err));
		OK(vfm_tape_backward(t, &err));
		r.bytes.len = 0;
		take(&r, y->v);
		take(&r, vfm_leaf_grad(in));
		take(&r, vfm_leaf_grad(w1));
		take(&r, vfm_leaf_grad(w2));
		vfm_tape_reset(t);
	}
	memcpy(r.text, did.text, sizeof(r.text));
	vfm_tape_free(t);
	free(x.data), free(w.data), free(dy.data);
	return r;
}

/* Nothing is put off before the tape has seen that there is something to compute under. */
static void redist_hides(struct vfm_comm *c)
{
	struct result plain = redist_run(c, NULL, 1), r = redist_run(c, did.aside, 1);

	must_do("without a stream for it", &plain, "GtG/GGtGG");
	must_do("the first backward", &r, "GTG/GGTGG");
	same("the first backward", &plain, &r);
	r = redist_run(c, did.aside, 2);
	must_do("the second backward", &r, "GTG/GTGGG");
	same("the second backward", &plain, &r);
	vfm_buf_release(&plain.bytes);
}

static int ranks(struct vfm_launch *l, const void *arg)
{
	static const int64_t rows[][RANKS] = {{6, 6, 6, 6}, {5, 0, 7, 3}, {0, 0, 9, 0}, {0, 0, 0, 0}, {70, 1, 33, 128}};
	struct vfm_host_comm_opts opts = {.timeout_s = 20};
	struct vfm_dev *d = vfm_cpu_open(&err);
	struct vfm_dev_table table;
	struct vfm_comm_table comm;
	struct vfm_ops ops;
	struct vfm_comm *world;

	(void)arg;
	OK(vfm_comm_host_new(l, &opts, &world, &err));
	did.ops = d->t->ops;
	did.comm = world->t;
	ops = *did.ops;
	ops.gemm = noted_gemm;
	table = *d->t;
	table.ops = &ops;
	comm = *world->t;
	comm.exchange = noted_exchange;
	comm.reduce_scatter = noted_reduce_scatter;
	comm.all_gather = noted_all_gather;
	comm.all_to_all = noted_all_to_all;
	d->t = &table;
	world->t = &comm;
	did.compute = table.stream_new(d, false, &err);
	did.aside = table.stream_new(d, true, &err);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		for (int k = 0; k < 3; k++)
			layer_over(world, rows[i], k ? VFM_BF16 : VFM_F32, k == 2);
	redist_hides(world);
	layer_fails(world);
	table.stream_free(did.aside);
	table.stream_free(did.compute);
	table.dev_free(d);
	world->t = did.comm;
	vfm_comm_free(world);
	vfm_launch_end(l);
	return 0;
}

static void test_ranks(void **state)
{
	(void)state;
	in_ranks(&(struct layout){.name = "four ranks", .p = {.tp = RANKS, .cp = 1, .pp = 1, .dp = 1}}, ranks);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_ranks)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
