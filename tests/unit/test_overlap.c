/* Collectives overlap with computing: a column layer multiplies its own rows during the gather, a row layer sends a
 * chunk while it computes the next, and the collectives of a backward have gradients of weights computed under them.
 * The bits are those of doing one after the other.  The test records what is put on which stream, in which order. */
#include <stdlib.h>

#include "base/mem.h"
#include "device/cpu/cpu.h"
#include "net/mesh/attn.h"
#include "net/mesh/tp_linear.h"
#include "net/tape/node.h"
#include "net/tape/region.h"
#include "ranks.h"

enum { IN = 16, WIDTH = 32, RANKS = 4 };

/* What a layer keeps for its backward. */
static const unsigned ALL = VFM_KEEP_ALL, OWN_ROWS = VFM_KEEP_ALL | VFM_KEEP_OWN_ROWS, LIGHT = VFM_KEEP_PRODUCTS,
		      NOTHING = 0;

/* G: a product.  Q: a quantization.  X: an exchange, R: a reduce-scatter, A: an all-gather, T: an all-to-all; in small
 * letters on the compute stream.  '|': the compute stream waits for the communication stream.  '/': the backward
 * begins.
 */
static struct {
	char text[256];
	struct vfm_stream *compute, *comm_stream;
	struct vfm_event *ready, *done;
	const struct vfm_ops *ops;
	const struct vfm_dev_table *dev;
	const struct vfm_comm_table *comm;
	char fails; /* this kind of collective … */
	int when;   /* … this time; 0: none */
} did;

static void note(char c)
{
	size_t n = strlen(did.text);

	MUST(n + 1 < sizeof(did.text), "too many operations to record");
	did.text[n] = c;
	did.text[n + 1] = 0;
}

static int noted_gemm(struct vfm_stream *s, const struct vfm_gemm *a, struct vfm_err *e)
{
	note('G');
	return did.ops->gemm(s, a, e);
}

static int noted_quant(struct vfm_stream *s, const struct vfm_quant *a, struct vfm_err *e)
{
	note('Q');
	return did.ops->quant(s, a, e);
}

static int noted_event_wait(struct vfm_event *ev, struct vfm_stream *s, struct vfm_err *e)
{
	if (s == did.compute)
		note('|');
	return did.dev->event_wait(ev, s, e);
}

static int noted_call(struct vfm_comm *c, struct vfm_stream *s, const struct vfm_coll *k, struct vfm_err *e)
{
	static const char letters[VFM_C_KINDS] = {[VFM_C_EXCHANGE] = 'X',
		[VFM_C_REDUCE_SCATTER] = 'R',
		[VFM_C_ALL_GATHER] = 'A',
		[VFM_C_ALL_TO_ALL] = 'T'};
	char letter = letters[k->kind];

	if (!letter)
		return did.comm->call(c, s, k, e);
	note((char)(s == did.compute ? letter + ('a' - 'A') : letter));
	MUST(s == did.compute || s->dev->comm_busy & VFM_COMM_LAYERS, "the device does not know of a collective");
	if (did.when && letter == did.fails && --did.when == 0)
		return vfm_fail(e, VFM_EENV, "no way");
	return did.comm->call(c, s, k, e);
}

/* The ranks of c as tp and as cp, with a communication stream, or without one where overlap is off. */
static struct vfm_mesh mesh_of(struct vfm_comm *c, enum vfm_overlap overlap)
{
	struct vfm_mesh m = {.p = {.overlap = overlap}, .group = {[VFM_AX_TP] = c, [VFM_AX_CP] = c}};

	if (overlap != VFM_OVERLAP_OFF) {
		m.comm_stream = did.comm_stream;
		m.comm_ready = did.ready;
		m.comm_done = did.done;
	}
	return m;
}

static struct vfm_tensor filled(enum vfm_dtype dt, int64_t rows, int64_t cols, int salt)
{
	struct vfm_tensor x = vfm_t2(vfm_malloc((size_t)(rows * cols) * 4 + 4), dt, rows, cols);

	for (int64_t i = 0; i < rows * cols; i++) {
		float f = (float)contribution(salt, 0, 0, "overlap", i);

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

/* ---- layers over tp ---- */

enum kind { COLUMN, ROW };

struct layer_case {
	struct vfm_comm *c;
	const int64_t *rows; /* [RANKS] */
	enum kind kind;
	enum vfm_dtype dtype;
	bool fp8;
};

enum { COLUMNS = 2 }; /* layers behind one gather */

struct layer {
	const struct layer_case *k;
	struct vfm_attn_layout l;
	struct vfm_var *x, *w[COLUMNS];
};

static struct vfm_var *layer_forward(struct vfm_tape *t, void *ctx)
{
	struct layer *l = ctx;
	struct vfm_linear_args a[COLUMNS];
	struct vfm_var *y[COLUMNS];

	for (int i = 0; i < COLUMNS; i++)
		a[i] = (struct vfm_linear_args){.w = l->w[i], .out = l->k->dtype, .fp8 = l->k->fp8};
	if (l->k->kind == ROW)
		return vfm_tp_row(t, &l->l, l->x, &a[0]);
	a[1].act = VFM_ACT_GELU_TANH;
	vfm_tp_column(t, &l->l, l->x, a, COLUMNS, y);
	return vfm_g_add(t, y[0], y[1]);
}

static int64_t total(const int64_t *rows)
{
	return rows[0] + rows[1] + rows[2] + rows[3];
}

/* The layer's results in `r`, of the last of two passes over one tape. */
static void layer_pass(struct vfm_tape *t, struct layer *l, struct vfm_tensor x, struct vfm_tensor *w,
	struct vfm_tensor dy, unsigned keep, struct result *r)
{
	int n_w = l->k->kind == ROW ? 1 : COLUMNS;
	struct vfm_var *y;

	r->bytes.len = 0;
	did.text[0] = 0;
	l->x = vfm_leaf(t, x);
	for (int i = 0; i < n_w; i++)
		l->w[i] = vfm_leaf(t, w[i]);
	y = vfm_region(t, (struct vfm_keeps){keep, 0}, layer_forward, l, &l->x, 1);
	r->rc = vfm_tape_status(t, &err);
	if (r->rc == 0) {
		note('/');
		take(r, y->v);
		OK(vfm_tape_seed(t, y, dy, &err));
		r->rc = vfm_tape_backward(t, &err);
	}
	if (r->rc == 0) {
		take(r, vfm_leaf_grad(l->x));
		for (int i = 0; i < n_w; i++)
			take(r, vfm_leaf_grad(l->w[i]));
	}
	memcpy(r->text, did.text, sizeof(r->text));
	vfm_tape_reset(t);
}

static struct result layer_run(const struct layer_case *k, enum vfm_overlap overlap, unsigned keep, int passes)
{
	int me = k->c->rank;
	int64_t all = total(k->rows), own = k->rows[me];
	struct vfm_mesh m = mesh_of(k->c, overlap);
	struct vfm_tokens tok = {.rows_tp = (int64_t *)k->rows};
	struct layer l = {.k = k, .l = {.mesh = &m, .tok = &tok}};
	struct vfm_tensor x = filled(k->dtype, k->kind == ROW ? all : own, IN, me),
			  w[] = {filled(k->dtype, WIDTH, IN, 20 + me), filled(k->dtype, WIDTH, IN, 30 + me)},
			  dy = filled(k->dtype, k->kind == ROW ? own : all, WIDTH, 40 + me);
	struct vfm_tape *t = vfm_tape_new(did.compute);
	struct result r = {0};

	for (int i = 0; i < passes; i++)
		layer_pass(t, &l, x, w, dy, keep, &r);
	vfm_tape_free(t);
	MUST(did.compute->dev->mem_now == 0, "%lld bytes are still there", (long long)did.compute->dev->mem_now);
	free(x.data), free(w[0].data), free(w[1].data), free(dy.data);
	return r;
}

static int count(const char *text, char c)
{
	int n = 0;

	for (; *text && *text != '/'; text++)
		n += *text == c;
	return n;
}

static void must_do(const char *what, const struct result *r, const char *want)
{
	MUST(!strcmp(r->text, want), "%s did '%s', not '%s'", what, r->text, want);
}

/* As many exchanges as have something to carry, none of them on the compute stream, the first before the last product;
 * a product for each rank's rows. */
static void row_must_overlap(const char *text, const struct layer_case *k)
{
	int64_t mine = k->rows[k->c->rank];
	int products = 0, messages = 0;
	const char *x = strchr(text, 'X'), *g = strrchr(text, '/');

	while (g > text && *g != 'G')
		g--;
	for (int r = 0; r < k->c->size; r++) {
		products += k->rows[r] > 0;
		messages += r != k->c->rank && (k->rows[r] > 0 || mine > 0);
	}
	MUST(count(text, 'X') == messages && count(text, 'G') == products && !count(text, 'x') && !count(text, 'r') &&
			!count(text, 'R'),
		"it did '%s'", text);
	MUST(mine == 0 || products < 2 || (x && *g == 'G' && x < g), "no message before the last product: '%s'", text);
}

/* Each layer's product of the own rows, and no other, between the gather and the wait. */
static void column_must_overlap(const char *text, const struct layer_case *k)
{
	const char *wait = strchr(text, '|');
	int early = 0;

	MUST(*text == 'A' && wait && count(text, 'A') == 1, "it did '%s'", text);
	for (const char *p = text; p < wait; p++)
		early += *p == 'G';
	MUST(early == (k->rows[k->c->rank] > 0 ? COLUMNS : 0), "%d products during the gather: '%s'", early, text);
}

static bool equal_shares(const int64_t *rows)
{
	return rows[0] > 0 && rows[0] == rows[1] && rows[1] == rows[2] && rows[2] == rows[3];
}

static void row_over(const struct layer_case *k)
{
	struct result plain = layer_run(k, VFM_OVERLAP_OFF, ALL, 1), r;
	bool fp8 = k->fp8, equal = equal_shares(k->rows);

	MUST(!total(k->rows) || count(plain.text, 'r') == 1, "without a communication stream: '%s'", plain.text);
	r = layer_run(k, VFM_OVERLAP_AUTO, ALL, 1); /* far too small for chunks */
	MUST(count(r.text, 'R') == 1 && count(r.text, 'X') == 0, "a small product: '%s'", r.text);
	same("a small product", &plain, &r);
	r = layer_run(k, VFM_OVERLAP_ON, ALL, 1);
	if (total(k->rows) > 0)
		row_must_overlap(r.text, k);
	if (equal)
		must_do("a row layer", &r, fp8 ? "QQGXGXGXG|/A|QQGG" : "GXGXGXG|/A|GG");
	same("a row layer in chunks", &plain, &r);
	r = layer_run(k, VFM_OVERLAP_ON, LIGHT, 1);
	if (equal)
		must_do("light recompute", &r, fp8 ? "QQGXGXGXG|/QA|QQGG" : "GXGXGXG|/A|GG");
	same("light recompute", &plain, &r);
	r = layer_run(k, VFM_OVERLAP_ON, NOTHING, 1);
	if (equal)
		must_do("full recompute", &r, fp8 ? "QQGXGXGXG|/QQGXGXGXG|A|QQGG" : "GXGXGXG|/GXGXGXG|A|GG");
	same("full recompute", &plain, &r);
	vfm_buf_release(&plain.bytes);
}

static void column_over(const struct layer_case *k)
{
	struct result plain = layer_run(k, VFM_OVERLAP_OFF, ALL, 1), r;
	bool edge = k->c->rank == 0 || k->c->rank == RANKS - 1, equal = equal_shares(k->rows);

	MUST(count(plain.text, 'a') == 1, "without a communication stream: '%s'", plain.text);
	r = layer_run(k, VFM_OVERLAP_AUTO, ALL, 1);
	if (!k->fp8)
		column_must_overlap(r.text, k);
	if (equal) /* the ranks in the middle have others on both sides */
		must_do("two column layers", &r,
			k->fp8         ? "AQQ|QGQG/QQGGQQGGR|"
				: edge ? "AGG|GG/GGGGR|"
				       : "AGG|GGGG/GGGGR|");
	same("two column layers", &plain, &r);
	r = layer_run(k, VFM_OVERLAP_AUTO, OWN_ROWS, 1);
	if (equal)
		must_do("the own rows of two column layers", &r,
			k->fp8         ? "AQQ|QGQG/QQGGQQGGR|"
				: edge ? "AGG|GG/AG|GGGR|"
				       : "AGG|GGGG/AG|GGGR|");
	same("the own rows of two column layers", &plain, &r);
	/* The tape has seen that there is something to overlap with. */
	r = layer_run(k, VFM_OVERLAP_AUTO, ALL, 2);
	if (equal)
		must_do("the second backward", &r,
			k->fp8         ? "AQQ|QGQG/QQGQQGRG|G"
				: edge ? "AGG|GG/GGRG|G"
				       : "AGG|GGGG/GGRG|G");
	same("the second backward", &plain, &r);
	r = layer_run(k, VFM_OVERLAP_AUTO, OWN_ROWS, 2);
	if (equal && !k->fp8 && edge)
		must_do("the second backward with own rows", &r, "AGG|GG/AGGR|G|G");
	same("the second backward with own rows", &plain, &r);
	r = layer_run(k, VFM_OVERLAP_AUTO, LIGHT, 1);
	if (equal)
		must_do("light recompute", &r,
			k->fp8         ? "AQQ|QGQG/A|QQQQGGQQGGR|"
				: edge ? "AGG|GG/A|GGGGR|"
				       : "AGG|GGGG/A|GGGGR|");
	same("light recompute", &plain, &r);
	r = layer_run(k, VFM_OVERLAP_AUTO, NOTHING, 1);
	if (equal && !k->fp8 && edge)
		must_do("full recompute", &r, "AGG|GG/AGG|GGGGGGR|");
	same("full recompute", &plain, &r);
	vfm_buf_release(&plain.bytes);
}

/* A collective that fails does so on all ranks: the tape fails, and waits for those before it. */
static void layer_fails(struct vfm_comm *c)
{
	static const int64_t rows[] = {3, 4, 5, 6};
	const struct layer_case row = {c, rows, ROW, VFM_F32, false}, column = {c, rows, COLUMN, VFM_F32, false};

	static const struct {
		char fails;
		int when;
	} failure[] = {{'A', 1}, {'A', 2}, {'R', 1}, {'X', 1}, {'X', 2}, {'X', 3}};

	for (size_t k = 0; k < sizeof(failure) / sizeof(failure[0]); k++) {
		struct result r;

		did.fails = failure[k].fails;
		did.when = failure[k].when;
		r = layer_run(did.fails == 'X' ? &row : &column, VFM_OVERLAP_ON, OWN_ROWS, 1);
		MUST(r.rc == VFM_EENV && !strcmp(err.msg, "no way"), "failure %c %d: %d, '%s'", failure[k].fails,
			failure[k].when, r.rc, err.msg);
		MUST(r.text[strlen(r.text) - 1] == '|', "failure %c %d: no wait before memory is freed: '%s'",
			failure[k].fails, failure[k].when, r.text);
	}
	did.when = 0;
}

/* Runs the forward of a layer that keeps *keeps (NULL: it is not in a region); its memory is then less than `most`. */
static void memory_after_forward(
	struct vfm_comm *c, enum kind kind, const unsigned *keeps, int64_t most, const char *why)
{
	static const int64_t rows[] = {64, 64, 64, 64};
	struct layer_case k = {c, rows, kind, VFM_F32, false};
	struct vfm_mesh m = mesh_of(c, VFM_OVERLAP_ON);
	struct vfm_tokens tok = {.rows_tp = (int64_t *)rows};
	struct layer l = {.k = &k, .l = {.mesh = &m, .tok = &tok}};
	int64_t in_rows = kind == ROW ? 256 : 64, width = kind == ROW ? WIDTH : 4;
	struct vfm_tensor x = filled(VFM_F32, in_rows, IN, 1), w[COLUMNS];
	struct vfm_tape *t = vfm_tape_new(did.compute);

	did.text[0] = 0;
	l.x = vfm_leaf(t, x);
	for (int i = 0; i < COLUMNS; i++) {
		w[i] = filled(VFM_F32, width, IN, 2 + i);
		l.w[i] = vfm_leaf(t, w[i]);
	}
	if (keeps)
		vfm_region(t, (struct vfm_keeps){*keeps, 0}, layer_forward, &l, &l.x, 1);
	else
		layer_forward(t, &l);
	OK(vfm_tape_status(t, &err));
	MUST(did.compute->dev->mem_now < most, "%lld bytes after the forward: %s", (long long)did.compute->dev->mem_now,
		why);
	vfm_tape_free(t);
	free(x.data);
	for (int i = 0; i < COLUMNS; i++)
		free(w[i].data);
}

/* The product of a row layer has memory for the time of the op alone. */
static void row_memory(struct vfm_comm *c)
{
	memory_after_forward(c, ROW, NULL, 2 * 64 * WIDTH * 4, "the result alone has half of it");
}

/* Between forward and backward a column layer keeps the rows of its rank, not those that it gathered. */
static void column_memory(struct vfm_comm *c)
{
	memory_after_forward(c, COLUMN, &OWN_ROWS, 256 * IN * 4, "as many as the gathered rows have");
}

/* ---- an all-to-all between layers ---- */

static struct result redist_run(struct vfm_comm *c, enum vfm_overlap overlap, int times)
{
	struct vfm_tape *t = vfm_tape_new(did.compute);
	struct vfm_mesh m = mesh_of(c, overlap);
	int64_t n = 3, each[RANKS] = {n, n, n, n};
	struct vfm_redist there = {.send = each, .recv = each, .n_send = RANKS * n, .n_recv = RANKS * n};
	struct vfm_tensor x = filled(VFM_F32, RANKS * n, IN, c->rank), w = filled(VFM_F32, IN, IN, 60),
			  dy = filled(VFM_F32, RANKS * n, IN, 80 + c->rank);
	struct result r = {0};

	for (int i = 0; i < times; i++) {
		struct vfm_var *in = vfm_leaf(t, x), *w1 = vfm_leaf(t, w), *w2 = vfm_leaf(t, w), *y;

		did.text[0] = 0;
		y = vfm_g_linear(t, in, &(struct vfm_linear_args){.w = w1, .out = VFM_F32});
		y = vfm_m_redist(t, &m, VFM_AX_CP, y, &there);
		y = vfm_g_linear(t, y, &(struct vfm_linear_args){.w = w2, .out = VFM_F32});
		note('/');
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

/* No gradient is deferred before the tape has seen that there is something to overlap with. */
static void redist_overlaps(struct vfm_comm *c)
{
	struct result plain = redist_run(c, VFM_OVERLAP_OFF, 1), r = redist_run(c, VFM_OVERLAP_ON, 1);

	must_do("without a communication stream", &plain, "GtG/GGtGG");
	must_do("the first backward", &r, "GT|G/GGT|GG");
	same("the first backward", &plain, &r);
	r = redist_run(c, VFM_OVERLAP_ON, 2);
	must_do("the second backward", &r, "GT|G/GTG|GG");
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
	ops.quant = noted_quant;
	did.dev = d->t;
	table = *d->t;
	table.ops = &ops;
	table.event_wait = noted_event_wait;
	comm = *world->t;
	comm.call = noted_call;
	d->t = &table;
	world->t = &comm;
	did.compute = table.stream_new(d, false, &err);
	did.comm_stream = table.stream_new(d, true, &err);
	did.ready = table.event_new(d, &err);
	did.done = table.event_new(d, &err);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		for (int k = 0; k < 3; k++) {
			struct layer_case c = {world, rows[i], ROW, k ? VFM_BF16 : VFM_F32, k == 2};

			row_over(&c);
			c.kind = COLUMN;
			column_over(&c);
		}
	row_memory(world);
	column_memory(world);
	redist_overlaps(world);
	layer_fails(world);
	table.stream_free(did.comm_stream);
	table.event_free(did.ready);
	table.event_free(did.done);
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
