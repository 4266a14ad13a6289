/* gops.c - casts, sums, activations, norms with RoPE, attention and loss, each with its backward. */
#include "net/tape/gops_impl.h"
#include "net/tape/region.h"
#include "spec/model/dtype.h"

/* ---- cast, add, act ---- */

static int cast_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	return vfm_wants_grad(n->in[0]) ? vfm_grad_pass(t, n->out, n->in[0], err) : 0;
}

struct vfm_var *vfm_g_cast(struct vfm_tape *t, struct vfm_var *x, enum vfm_dtype out)
{
	struct vfm_axpby a = {.alpha = 1};
	struct vfm_var *y;

	if (vfm_tape_failed(t) || x->v.dtype == out)
		return x;
	y = vfm_var_new(t, vfm_like(&x->v, out));
	a.x = vfm_read(x);
	a.y = y->v;
	FORWARD(axpby, &a);
	vfm_record(t, cast_backward, y, &x, 1);
	return y;
}

static int add_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	/* b first: passing to a may hand over the memory of the gradient itself. */
	if (vfm_wants_grad(n->in[1]))
		TRY(vfm_grad_copy(t, n->out->g, n->in[1], err));
	return vfm_wants_grad(n->in[0]) ? vfm_grad_pass(t, n->out, n->in[0], err) : 0;
}

struct vfm_var *vfm_g_add(struct vfm_tape *t, struct vfm_var *a, struct vfm_var *b)
{
	struct vfm_var *y = vfm_result_new(t, vfm_like(&a->v, a->v.dtype)), *in[] = {a, b};
	struct vfm_axpby copy = {.alpha = 1, .x = vfm_read(a), .y = y->v};
	struct vfm_axpby add = {.alpha = 1, .beta = 1, .x = vfm_read(b), .y = y->v};

	if (y->v.data) {
		FORWARD(axpby, &copy);
		FORWARD(axpby, &add);
	}
	vfm_record(t, add_backward, y, in, 2);
	return y;
}

static int act_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	struct vfm_unary a = *(struct vfm_unary *)n->ctx;
	struct vfm_grad_tmp tmp;

	if (!vfm_wants_grad(n->in[0]))
		return 0;
	TRY(vfm_grad_begin(t, n->in[0], &tmp, err));
	a.dy = n->out->g;
	a.y = tmp.g;
	TRY(BACKWARD(unary, &a));
	return vfm_grad_end(t, n->in[0], &tmp, err);
}

struct vfm_var *vfm_g_act(struct vfm_tape *t, struct vfm_var *x, enum vfm_act act)
{
	struct vfm_var *y = vfm_var_new(t, vfm_like(&x->v, x->v.dtype));
	struct vfm_unary a = {.act = act, .x = vfm_read(x), .y = y->v};
	struct vfm_node *n;

	FORWARD(unary, &a);
	n = vfm_record_ctx(t, act_backward, y, &x, 1, &a, sizeof(a));
	vfm_save(n, x);
	return y;
}

/* ---- sum with a row ---- */

/* Returns the elements of x as one dimension. */
static struct vfm_tensor flatten_tensor(const struct vfm_tensor *x)
{
	return vfm_t1(x->data, x->dtype, vfm_numel(x));
}

static int add_row_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	struct vfm_var *x = n->in[0], *row = n->in[1];
	struct vfm_add_row_bwd a = {.dy = n->out->g};

	/* row first: passing to x may hand over the memory of dy itself. */
	if (vfm_wants_grad(row)) {
		TRY(vfm_grad_add(t, row, &a.drow, err));
		a.drow = flatten_tensor(&a.drow);
		TRY(BACKWARD(add_row_bwd, &a));
	}
	return vfm_wants_grad(x) ? vfm_grad_pass(t, n->out, x, err) : 0;
}

struct vfm_var *vfm_g_add_row(struct vfm_tape *t, struct vfm_var *x, struct vfm_var *row)
{
	struct vfm_var *y = vfm_result_new(t, vfm_like(&x->v, x->v.dtype)), *in[] = {x, row};
	struct vfm_add_row a = {.x = vfm_read(x), .y = y->v};
	struct vfm_tensor r = vfm_read(row);

	a.row = flatten_tensor(&r);
	if (y->v.data)
		FORWARD(add_row, &a);
	vfm_record(t, add_row_backward, y, in, 2);
	return y;
}

/* ---- QK norm + RoPE ---- */

/* Node inputs: q, its weight, k, its weight.  The node's output holds the results of q and of k, which are views. */
struct qk_ctx {
	struct vfm_qk_norm_rope_bwd a;
	struct vfm_var *y[2];
};

static int qk_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	const struct qk_ctx *c = n->ctx;
	struct vfm_qk_norm_rope_bwd a = c->a;
	struct vfm_tensor *weight[] = {&a.weight, &a.weight2}, *dweight[] = {&a.dweight, &a.dweight2},
			  *dx[] = {&a.dx, &a.dx2};
	struct vfm_grad_tmp tx[2] = {0};
	bool accumulate; /* as in norm_backward */

	a.dy = c->y[0]->g;
	if (c->y[1])
		a.dy2 = c->y[1]->g;
	for (int i = 0; i < 2 && c->y[i]; i++) {
		struct vfm_var *x = n->in[2 * i], *w = n->in[2 * i + 1];

		if (w)
			*weight[i] = w->v; /* its current address */
		if (vfm_wants_grad(w))
			TRY(vfm_grad_into(t, w, dweight[i], &accumulate, err));
		TRY(vfm_grad_begin(t, x, &tx[i], err));
		*dx[i] = tx[i].g;
	}
	TRY(BACKWARD(qk_norm_rope_bwd, &a));
	for (int i = 0; i < 2 && c->y[i]; i++)
		TRY(vfm_grad_end(t, n->in[2 * i], &tx[i], err));
	return 0;
}

/* Returns a tensor of the shape of x in the memory of `all`, after `at` elements. */
static struct vfm_tensor place_in(const struct vfm_var *all, int64_t at, const struct vfm_tensor *x)
{
	struct vfm_tensor y = vfm_like(x, all->v.dtype);

	y.data = (char *)all->v.data + (size_t)at * vfm_dtype_size(y.dtype);
	return y;
}

/* Makes the variable of n contiguous tensors of the shapes of x (heads: [T,H] of them), one after another. */
static struct vfm_var *new_qk_memory(struct vfm_tape *t, struct vfm_var *const *x, int n, bool heads, enum vfm_dtype dt)
{
	int64_t total = 0;

	for (int i = 0; i < n; i++)
		total += heads ? x[i]->v.shape[0] * x[i]->v.shape[1] : vfm_numel(&x[i]->v);
	return vfm_var_new(t, vfm_t1(NULL, dt, total));
}

static void record_qk(struct vfm_tape *t, const struct vfm_qk_norm_rope *a, struct vfm_var *all, struct vfm_var *rstd,
	struct vfm_var **in, int n_in, struct vfm_var **y)
{
	struct qk_ctx ctx = {
		.a = {.x = a->x, .rope = a->rope, .rstd = a->rstd, .x2 = a->x2, .rope2 = a->rope2, .rstd2 = a->rstd2}};
	struct vfm_node *n = vfm_record_ctx(t, qk_backward, all, in, n_in, &ctx, sizeof(ctx));

	for (int i = 0; i < n_in / 2; i++) { /* a view of a recorded variable has a gradient */
		y[i] = vfm_view(t, all, i ? a->y2 : a->y);
		if (n)
			((struct qk_ctx *)n->ctx)->y[i] = y[i];
		vfm_save(n, in[2 * i]);
	}
	vfm_save(n, rstd);
}

void vfm_g_qk_norm_rope(struct vfm_tape *t, const struct vfm_qk_args *args, struct vfm_var **y)
{
	struct vfm_var *x[] = {args->q, args->k}, *in[] = {x[0], args->weight_q, x[1], args->weight_k}, *all,
		       *rstd = NULL;
	struct vfm_qk_norm_rope a = {.eps = args->eps};
	int n = args->k ? 2 : 1;
	int64_t first;

	for (int i = 0; i < n; i++)
		y[i] = x[i];
	if (vfm_tape_failed(t) || (!args->weight_q && !vfm_has(&args->rope)))
		return;
	first = x[0]->v.shape[0] * x[0]->v.shape[1];
	all = new_qk_memory(t, x, n, false, x[0]->v.dtype);
	if (args->weight_q)
		rstd = new_qk_memory(t, x, n, true, VFM_F32);
	if (vfm_tape_failed(t))
		return;
	a.x = vfm_read(x[0]);
	a.y = place_in(all, 0, &a.x);
	a.rope = args->rope;
	if (n > 1) {
		a.x2 = vfm_read(x[1]);
		a.y2 = place_in(all, vfm_numel(&a.x), &a.x2);
		a.rope2 = args->rope;
	}
	if (rstd) {
		a.weight = args->weight_q->v;
		a.rstd = place_in(rstd, 0, &(struct vfm_tensor){.ndim = 2, .shape = {a.x.shape[0], a.x.shape[1]}});
	}
	if (rstd && n > 1) {
		a.weight2 = args->weight_k->v;
		a.rstd2 =
			place_in(rstd, first, &(struct vfm_tensor){.ndim = 2, .shape = {a.x2.shape[0], a.x2.shape[1]}});
	}
	FORWARD(qk_norm_rope, &a);
	record_qk(t, &a, all, rstd, in, 2 * n, y);
}

/* ---- RMS norm over all heads + RoPE ---- */

/* Node inputs and output as for the QK norm. */
struct row_norm_ctx {
	struct vfm_row_norm_rope a[2]; /* of q and of k */
	struct vfm_row_norm_sums sums;
	struct vfm_var *y[2];
};

/* The sums over each row of x * y (NULL: x), for q and k in the memory of `all` [rows of both]. */
static int dot_rows(struct vfm_tape *t, const struct row_norm_ctx *c, const struct vfm_tensor *x,
	const struct vfm_tensor *y, int n, struct vfm_tensor all, bool forward, struct vfm_err *err)
{
	const struct vfm_tensor none = {0};
	float *out = all.data;

	for (int i = 0; i < n; out += x[i].shape[0], i++)
		TRY(vfm_op_row_dot(vfm_tape_stream(t),
			&(struct vfm_row_dot){x[i], y ? y[i] : none, vfm_t1(out, VFM_F32, x[i].shape[0])}, err));
	return c->sums.ranks > 1 ? c->sums.add(c->sums.group, t, all, forward, err) : 0;
}

static int row_norm_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	const struct row_norm_ctx *c = n->ctx;
	const int count = c->y[1] ? 2 : 1;
	struct vfm_tensor y[2], dy[2], dots, dot;
	struct vfm_grad_tmp tx = {0};
	struct vfm_store *st = NULL;
	int64_t at = 0;
	bool accumulate; /* as in norm_backward */
	int rc;

	for (int i = 0; i < count; at += c->a[i++].x.shape[0]) {
		y[i] = c->a[i].y;
		dy[i] = c->y[i]->g;
	}
	TRY_OUT(vfm_scratch(t, vfm_t1(NULL, VFM_F32, at), &dots, &st, err));
	TRY_OUT(dot_rows(t, c, dy, y, count, dots, false, err));
	dot = dots;
	for (int i = 0; i < count; i++) {
		struct vfm_var *w = n->in[2 * i + 1];
		struct vfm_row_norm_rope_bwd a = {.x = c->a[i].x,
			.dy = dy[i],
			.weight = w->v, /* its current address */
			.rope = c->a[i].rope,
			.sumsq = c->a[i].sumsq,
			.width = c->a[i].width,
			.eps = c->a[i].eps};

		a.dot = vfm_t1(dot.data, VFM_F32, a.x.shape[0]);
		dot.data = (float *)dot.data + a.x.shape[0];
		if (vfm_wants_grad(w))
			TRY_OUT(vfm_grad_into(t, w, &a.dweight, &accumulate, err));
		TRY_OUT(vfm_grad_begin(t, n->in[2 * i], &tx, err));
		a.dx = tx.g;
		TRY_OUT(BACKWARD(row_norm_rope_bwd, &a));
		TRY_OUT(vfm_grad_end(t, n->in[2 * i], &tx, err));
	}
	rc = 0;
out:
	vfm_store_unref(st);
	return rc;
}

void vfm_g_row_norm_rope(
	struct vfm_tape *t, const struct vfm_qk_args *args, const struct vfm_row_norm_sums *sums, struct vfm_var **y)
{
	struct vfm_var *x[] = {args->q, args->k}, *in[] = {x[0], args->weight_q, x[1], args->weight_k}, *all, *sumsq;
	const int n = args->k ? 2 : 1;
	struct row_norm_ctx *c = vfm_tape_alloc(t, sizeof(*c));
	struct vfm_tensor read[2];
	int64_t rows = 0, at = 0;
	struct vfm_err err = {0};
	struct vfm_node *node;
	int rc;

	for (int i = 0; i < n; i++) {
		y[i] = x[i];
		rows += x[i]->v.shape[0];
	}
	if (vfm_tape_failed(t))
		return;
	all = new_qk_memory(t, x, n, false, x[0]->v.dtype);
	sumsq = vfm_var_new(t, vfm_t1(NULL, VFM_F32, rows));
	if (vfm_tape_failed(t))
		return;
	*c = (struct row_norm_ctx){.sums = *sums};
	for (int i = 0; i < n; i++)
		read[i] = vfm_read(x[i]);
	rc = dot_rows(t, c, read, NULL, n, sumsq->v, true, &err);
	rows = 0;
	for (int i = 0; i < n && rc == 0; i++) {
		c->a[i] = (struct vfm_row_norm_rope){.x = read[i],
			.y = place_in(all, at, &read[i]),
			.weight = in[2 * i + 1]->v,
			.rope = args->rope,
			.sumsq = place_in(sumsq, rows, &(struct vfm_tensor){.ndim = 1, .shape = {read[i].shape[0]}}),
			.width = sums->ranks * read[i].shape[1] * read[i].shape[2],
			.eps = args->eps};
		at += vfm_numel(&read[i]);
		rows += read[i].shape[0];
		rc = vfm_op_row_norm_rope(vfm_tape_stream(t), &c->a[i], &err);
	}
	vfm_tape_fail(t, rc, &err);
	if (rc < 0)
		return;
	node = vfm_record(t, row_norm_backward, all, in, 2 * n);
	for (int i = 0; i < n; i++) /* a view of a recorded variable has a gradient */
		y[i] = c->y[i] = vfm_view(t, all, c->a[i].y);
	if (!node)
		return;
	node->ctx = c;
	for (int i = 0; i < n; i++)
		vfm_save(node, in[2 * i]);
	vfm_save(node, sumsq);
	vfm_save(node, all);
}

/* ---- attention ---- */

struct attn_ctx {
	struct vfm_attn a;
	struct vfm_attn_way way;
};

static int attn_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	const struct attn_ctx *c = n->ctx;
	struct vfm_attn_bwd a = {.q = c->a.q,
		.k = c->a.k,
		.v = c->a.v,
		.o = c->a.o,
		.lse = c->a.lse,
		.dout = c->a.o,
		.seqs_q = c->a.seqs_q,
		.seqs_k = c->a.seqs_k,
		.scale = c->a.scale};

	a.dout.data = n->out->g.data;
	return c->way.backward(t, c->way.ctx, a, n->in, err);
}

struct vfm_var *vfm_g_attn_by(struct vfm_tape *t, struct vfm_var *q, struct vfm_var *k, struct vfm_var *v,
	const struct vfm_attn *args, const struct vfm_attn_way *way)
{
	struct attn_ctx c = {*args, *way};
	struct vfm_var *o, *lse, *in[] = {q, k, v};
	struct vfm_err err = {0};
	struct vfm_node *n;

	if (vfm_tape_failed(t))
		return q;
	c.a.q = vfm_read(q);
	c.a.k = vfm_read(k);
	c.a.v = vfm_read(v);
	o = vfm_var_new(t, vfm_t2(NULL, c.a.q.dtype, c.a.q.shape[0], c.a.q.shape[1] * c.a.q.shape[2]));
	lse = vfm_var_new(t, vfm_t2(NULL, VFM_F32, c.a.q.shape[0], c.a.q.shape[1]));
	if (vfm_tape_failed(t))
		return o;
	if (!vfm_kept(t, VFM_KEEP_ATTN, (struct vfm_var *[]){o, lse}, 2)) {
		c.a.o = vfm_heads(&o->v, 0, c.a.q.shape[1], c.a.q.shape[2]);
		c.a.lse = lse->v;
		vfm_tape_fail(t, way->forward(t, way->ctx, c.a, &err), &err);
		vfm_keep(t, VFM_KEEP_ATTN, (struct vfm_var *[]){o, lse}, 2);
	}
	c.a.o = vfm_heads(&o->v, 0, c.a.q.shape[1], c.a.q.shape[2]); /* those that were kept */
	c.a.lse = lse->v;
	n = vfm_record_ctx(t, attn_backward, o, in, 3, &c, sizeof(c));
	for (int i = 0; i < 3; i++)
		vfm_save(n, in[i]);
	vfm_save(n, o);
	vfm_save(n, lse);
	return o;
}

static int attn_op_forward(struct vfm_tape *t, const void *ctx, struct vfm_attn a, struct vfm_err *err)
{
	(void)ctx;
	return vfm_op_attn(vfm_tape_stream(t), &a, err);
}

static int attn_op_backward(
	struct vfm_tape *t, const void *ctx, struct vfm_attn_bwd a, struct vfm_var *const in[3], struct vfm_err *err)
{
	struct vfm_tensor *dst[] = {&a.dq, &a.dk, &a.dv};
	struct vfm_grad_tmp tmp[3] = {0};

	(void)ctx;
	for (int i = 0; i < 3; i++) {
		TRY(vfm_grad_begin(t, in[i], &tmp[i], err));
		*dst[i] = tmp[i].g;
	}
	TRY(BACKWARD(attn_bwd, &a));
	for (int i = 0; i < 3; i++)
		TRY(vfm_grad_end(t, in[i], &tmp[i], err));
	return 0;
}

struct vfm_var *vfm_g_attn(struct vfm_tape *t, struct vfm_var *q, struct vfm_var *k, struct vfm_var *v,
	const struct vfm_seqs *seqs_q, const struct vfm_seqs *seqs_k, float scale)
{
	const struct vfm_attn args = {.seqs_q = seqs_q, .seqs_k = seqs_k, .scale = scale};

	return vfm_g_attn_by(t, q, k, v, &args, &(struct vfm_attn_way){attn_op_forward, attn_op_backward, NULL});
}

/* ---- timestep, loss ---- */

struct vfm_var *vfm_g_timestep(
	struct vfm_tape *t, struct vfm_tensor ts, int64_t dim, float max_period, enum vfm_dtype out)
{
	struct vfm_var *y = vfm_var_new(t, vfm_t2(NULL, out, ts.shape[0], dim));
	struct vfm_timestep a = {.t = ts, .out = y->v, .max_period = max_period};

	FORWARD(timestep, &a);
	return y;
}

/* The forward computes d loss / d pred with the loss; the backward passes it on. */
static int mse_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	return vfm_grad_copy(t, *(struct vfm_tensor *)n->ctx, n->in[0], err);
}

int vfm_g_mse(struct vfm_tape *t, struct vfm_var *pred, const struct vfm_mse *args)
{
	struct vfm_mse a = *args;
	struct vfm_var *d, *end;
	struct vfm_err err = {0};
	struct vfm_node *n;

	if (vfm_tape_failed(t))
		return vfm_tape_status(t, NULL);
	a.pred = vfm_read(pred);
	d = vfm_var_new(t, vfm_like(&pred->v, pred->v.dtype));
	a.dpred = d->v;
	FORWARD(mse, &a);
	end = vfm_input(t, (struct vfm_tensor){0});
	n = vfm_record_ctx(t, mse_backward, end, &pred, 1, &a.dpred, sizeof(a.dpred));
	vfm_save(n, d);
	end->g_ready = n != NULL;
	return vfm_tape_status(t, &err);
}
