/* tp_linear.c - column and row products in chunks, overlapped with gather and scatter over tp.
 *
 *   column    multiplies the rows of this rank during the gather; in fp8 only the weights are quantized meanwhile,
 *             because the scales depend on all rows.
 *   row       computes the product in chunks, the rows of other ranks first, and sends each while it computes the next.
 *             It adds the partial sums of its rows in f32 in the order of the ranks, as vfm_reduce_scatter does (unless
 *             NCCL sums f32 itself).  A product too small for two chunks is computed at once, except with
 *             parallel.overlap "on".
 *   backward  computes deferred gradients of weights during the collective.  With VFM_KEEP_OWN_ROWS
 *             (spec/cost/saved.h) column layers gather x again, while they compute the gradient of x.
 */
#include "net/mesh/tp_linear.h"

#include "device/ops/ops.h"
#include "device/ops/tensor.h"
#include "net/mesh/attn.h"
#include "net/mesh/overlap.h"
#include "net/tape/deferred.h"
#include "net/tape/gops_linear.h"
#include "net/tape/region.h"

/* Elements of a chunk of a row-split product, at least: 128 multiprocessors with a tile of 128 x 256 each.  Smaller
 * ones leave a large GPU idle, and the communication that they would hide is short. */
enum { CHUNK = 4 << 20 };

/* ---- rows over tp ---- */

/* The input of column layers, gathered again for the backward. */
struct regather {
	struct vfm_tape *t;
	const struct tp_rows *r;
	struct vfm_var *x;   /* this rank's rows */
	struct vfm_var *all; /* all rows; has memory from start_regather until the gather's node is released */
};

struct tp_rows {
	const struct vfm_mesh *mesh;
	struct vfm_comm *c;
	const int64_t *rows;     /* [size] */
	int64_t *count;          /* [size] elements */
	int64_t own, first, all; /* this rank's rows, the place of the first among all rows, all rows */
	struct regather *again;  /* NULL: the backward reads the rows that the forward gathered */
};

static struct vfm_comm *get_tp_group(const struct vfm_attn_layout *l)
{
	return l->mesh->group[VFM_AX_TP];
}

static struct tp_rows *make_tp_rows(struct vfm_tape *t, const struct vfm_attn_layout *l, int64_t width)
{
	struct tp_rows *r = vfm_tape_alloc(t, sizeof(*r));
	int size = get_tp_group(l)->size, me = get_tp_group(l)->rank;

	*r = (struct tp_rows){
		.mesh = l->mesh, .c = get_tp_group(l), .rows = l->tok->rows_tp, .own = l->tok->rows_tp[me]};
	r->count = vfm_tape_alloc(t, (size_t)size * sizeof(*r->count));
	for (int i = 0; i < size; i++) {
		r->first += i < me ? r->rows[i] : 0;
		r->all += r->rows[i];
		r->count[i] = r->rows[i] * width;
	}
	return r;
}

/* Starts the all-gather of the ranks' `own` rows into `all`; the caller joins. */
static int start_gather(
	struct vfm_tape *t, const struct tp_rows *r, struct vfm_tensor own, struct vfm_tensor all, struct vfm_err *err)
{
	struct vfm_stream *s;

	TRY(vfm_overlap_fork(r->mesh, t, &s, err));
	return vfm_all_gather(r->c, s, own, all, r->count, err);
}

/* Starts the reduce-scatter of `all` into this rank's `own` rows; the caller joins. */
static int start_scatter(
	struct vfm_tape *t, const struct tp_rows *r, struct vfm_tensor all, struct vfm_tensor own, struct vfm_err *err)
{
	struct vfm_stream *s;

	TRY(vfm_overlap_fork(r->mesh, t, &s, err));
	return vfm_reduce_scatter(r->c, s, all, own, r->count, err);
}

/* The gradient of a gather is the scatter of its gradient, and vice versa. */
static int rows_backward(struct vfm_tape *t, struct vfm_node *n,
	int (*start)(struct vfm_tape *, const struct tp_rows *, struct vfm_tensor, struct vfm_tensor, struct vfm_err *),
	struct vfm_err *err)
{
	const struct tp_rows *r = n->ctx;
	struct vfm_grad_tmp tmp;
	int rc;

	if (!vfm_wants_grad(n->in[0]))
		return 0;
	TRY(vfm_grad_begin(t, n->in[0], &tmp, err));
	rc = start(t, r, n->out->g, tmp.g, err);
	TRY(vfm_overlap_join_deferred(r->mesh, t, rc, err));
	return vfm_grad_end(t, n->in[0], &tmp, err);
}

static int tp_gather_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	const struct tp_rows *r = n->ctx;

	TRY(rows_backward(t, n, start_scatter, err));
	if (r->again)
		r->again->all->coming = NULL; /* the wait for the scatter was one for the gather before it */
	return 0;
}

static int tp_scatter_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	return rows_backward(t, n, start_gather, err);
}

static struct vfm_node *record_rows(struct vfm_tape *t,
	int (*backward)(struct vfm_tape *, struct vfm_node *, struct vfm_err *), struct tp_rows *r, struct vfm_var *x,
	struct vfm_var *y)
{
	struct vfm_node *n = vfm_record(t, backward, y, &x, 1);

	if (n)
		n->ctx = r;
	return n;
}

/* ---- column ---- */

static int start_regather(void *ctx, struct vfm_err *err)
{
	const struct regather *g = ctx;
	const struct vfm_mesh *m = g->r->mesh;
	struct vfm_var *all = g->all;
	int rc;

	TRY(vfm_scratch(g->t, all->v, &all->v, &all->vs, err));
	rc = start_gather(g->t, g->r, g->x->v, all->v, err);
	if (rc == 0 && m->comm_stream)
		rc = m->comm_stream->dev->t->event_record(m->comm_done, m->comm_stream, err);
	if (rc < 0)
		return vfm_overlap_join(m, g->t, rc, err);
	all->coming = m->comm_stream ? m->comm_done : NULL;
	return 0;
}

static void drop_regather(struct vfm_node *n)
{
	struct regather *g = ((struct tp_rows *)n->ctx)->again;

	vfm_arrive(g->t, g->all, &(struct vfm_err){0}); /* waits after a failure only */
	vfm_store_unref(g->all->vs);
	g->all->vs = NULL;
}

/* If the tape requires it, makes the backward gather x again, so that only x is kept meanwhile.  gather: the node of
 * the first gather, or NULL. */
static struct vfm_var *plan_regather(struct vfm_tape *t, struct tp_rows *r, struct vfm_var *x, struct vfm_node *gather)
{
	if (!gather || !vfm_tape_keeps_own_rows(t))
		return NULL;
	r->again = vfm_tape_alloc(t, sizeof(*r->again));
	*r->again = (struct regather){t, r, x, vfm_input(t, vfm_t2(NULL, x->v.dtype, r->all, x->v.shape[1]))};
	gather->drop = drop_regather;
	return r->again->all;
}

/* Returns a new variable of all rows and starts to gather x into it.  *n: its node, or NULL.  *rc, *err: its status,
 * for join_gather. */
static struct vfm_var *make_gathered(
	struct vfm_tape *t, struct tp_rows *r, struct vfm_var *x, struct vfm_node **n, int *rc, struct vfm_err *err)
{
	struct vfm_var *all = vfm_var_new(t, vfm_t2(NULL, x->v.dtype, r->all, x->v.shape[1]));

	*rc = vfm_tape_failed(t) ? 0 : start_gather(t, r, vfm_read(x), all->v, err);
	*n = record_rows(t, tp_gather_backward, r, x, all);
	return all;
}

static void join_gather(struct vfm_tape *t, const struct tp_rows *r, int rc, struct vfm_err *err)
{
	rc = vfm_overlap_join(r->mesh, t, rc, err);
	vfm_tape_fail(t, rc, err);
}

struct vfm_var *vfm_tp_gather(struct vfm_tape *t, const struct vfm_attn_layout *l, struct vfm_var *x)
{
	struct vfm_err err = {0};
	struct vfm_var *all;
	struct vfm_node *node;
	struct tp_rows *r;
	int rc;

	if (vfm_tape_failed(t) || get_tp_group(l)->size == 1)
		return x;
	r = make_tp_rows(t, l, x->v.shape[1]);
	all = make_gathered(t, r, x, &node, &rc, &err);
	join_gather(t, r, rc, &err);
	return all;
}

/* Computes the rows that were not computed during the gather. */
static void multiply_rest(struct vfm_tape *t, const struct tp_rows *r, const struct vfm_product *p, bool early)
{
	if (!early) {
		vfm_product_rows(t, p, 0, r->all);
		return;
	}
	vfm_product_rows(t, p, 0, r->first);
	vfm_product_rows(t, p, r->first + r->own, r->all - r->first - r->own);
}

void vfm_tp_column(struct vfm_tape *t, const struct vfm_attn_layout *l, struct vfm_var *x,
	const struct vfm_linear_args *args, int n, struct vfm_var **y)
{
	struct vfm_product p[VFM_TP_COLUMN_LAYERS] = {0};
	bool early[VFM_TP_COLUMN_LAYERS], reads_again = false;
	struct vfm_err err = {0};
	struct vfm_var *all, *again;
	struct vfm_node *gather;
	struct tp_rows *r;
	int rc;

	if (n > VFM_TP_COLUMN_LAYERS)
		vfm_tape_fail(t, vfm_fail(&err, VFM_EUSAGE, "internal: %d layers after one gather", n), &err);
	if (vfm_tape_failed(t) || get_tp_group(l)->size == 1) {
		for (int i = 0; i < n; i++)
			y[i] = vfm_g_linear(t, x, &args[i]);
		return;
	}
	r = make_tp_rows(t, l, x->v.shape[1]);
	all = make_gathered(t, r, x, &gather, &rc, &err);
	again = plan_regather(t, r, x, gather);
	for (int i = 0; i < n; i++) {
		p[i] = (struct vfm_product){.args = args[i], .x = all, .again = again};
		vfm_product_open(t, &p[i]);
		early[i] = r->mesh->comm_stream && r->own > 0 && rc == 0 && vfm_product_by_rows(&p[i]);
		if (early[i])
			vfm_product_early_rows(t, &p[i], x->v, r->first);
	}
	join_gather(t, r, rc, &err);
	for (int i = 0; i < n; i++) {
		vfm_product_input(t, &p[i]);
		multiply_rest(t, r, &p[i], early[i]);
		y[i] = vfm_product_close(t, &p[i]);
		reads_again |= vfm_product_reads_again(&p[i]);
	}
	if (!reads_again || vfm_tape_failed(t))
		return;
	vfm_save(gather, x);
	vfm_hook(t, start_regather, r->again);
}

/* ---- row ---- */

/* Chunk i has rows [first[i], first[i] + rows[i]).  After chunk i, the next last[i] ranks (modulo size) have been sent
 * their rows. */
struct chunks {
	int n, *last;
	int64_t *first, *rows;
	struct vfm_tensor parts; /* [size - 1, own rows * width]: the other ranks' products of this rank's rows */
};

/* The order is that of the ranks after this one, modulo size; its own rows are the last chunk.  Neighbours share a
 * chunk until it has `least` rows. */
static struct chunks cut_chunks(struct vfm_tape *t, const struct tp_rows *r, int64_t least)
{
	int me = r->c->rank, size = r->c->size;
	struct chunks k = {.last = vfm_tape_alloc(t, (size_t)size * sizeof(*k.last))};
	int64_t *row = vfm_tape_alloc(t, 3 * (size_t)size * sizeof(*row));

	k.first = row + size;
	k.rows = k.first + size;
	for (int i = 1; i < size; i++)
		row[i] = row[i - 1] + r->rows[i - 1];
	for (int d = 1; d <= size; d++) {
		int to = (me + d) % size;

		if (k.n == 0 || to == 0 || d == size || k.rows[k.n - 1] >= least)
			k.first[k.n++] = row[to];
		k.rows[k.n - 1] += r->rows[to];
		k.last[k.n - 1] = d < size ? d : size - 1;
	}
	return k;
}

/* Sends the rows of chunk i, y, to their ranks, and receives this rank's rows from as many. */
static int send_chunk(struct vfm_tape *t, const struct tp_rows *r, const struct chunks *k, int i, struct vfm_tensor y,
	struct vfm_err *err)
{
	int me = r->c->rank, size = r->c->size, d = i > 0 ? k->last[i - 1] + 1 : 1;
	struct vfm_stream *s;
	int64_t at = 0;

	if (d > k->last[i])
		return 0;
	TRY(vfm_overlap_fork(r->mesh, t, &s, err));
	for (; d <= k->last[i]; d++) {
		int to = (me + d) % size, from = (me + size - d) % size;
		struct vfm_tensor out = vfm_row_slice(&y, at, r->rows[to]),
				  in = vfm_row_slice(&k->parts, from < me ? from : from - 1, 1);

		at += r->rows[to];
		out = vfm_t1(out.data, out.dtype, vfm_numel(&out));
		in = vfm_t1(in.data, in.dtype, in.shape[1]);
		if (vfm_numel(&out) || vfm_numel(&in))
			TRY(vfm_exchange(r->c, s, out, vfm_numel(&out) ? to : -1, in, vfm_numel(&in) ? from : -1, err));
	}
	return 0;
}

/* y = the sum of the ranks' products of this rank's rows, in the order of the ranks. */
static int add_parts(struct vfm_tape *t, const struct tp_rows *r, const struct chunks *k, struct vfm_tensor product,
	struct vfm_tensor y, struct vfm_err *err)
{
	struct vfm_sum_parts a = {.x = k->parts, .at = r->c->rank, .y = vfm_t1(y.data, y.dtype, vfm_numel(&y))};
	struct vfm_tensor own = vfm_row_slice(&product, r->first, r->own);

	a.own = vfm_t1(own.data, own.dtype, vfm_numel(&own));
	return vfm_op_sum_parts(vfm_tape_stream(t), &a, err);
}

static int multiply_by_chunks(struct vfm_tape *t, const struct tp_rows *r, const struct vfm_product *p, int64_t least,
	struct vfm_tensor y, struct vfm_err *err)
{
	struct chunks k = cut_chunks(t, r, least);
	struct vfm_store *mem;
	int rc = 0;

	TRY(vfm_scratch(t, vfm_t2(NULL, y.dtype, r->c->size - 1, vfm_numel(&y)), &k.parts, &mem, err));
	for (int i = 0; i < k.n && rc == 0 && !vfm_tape_failed(t); i++) {
		vfm_product_rows(t, p, k.first[i], k.rows[i]);
		if (!vfm_tape_failed(t))
			rc = send_chunk(t, r, &k, i, vfm_row_slice(&p->y->v, k.first[i], k.rows[i]), err);
	}
	rc = vfm_overlap_join(r->mesh, t, rc, err);
	if (rc == 0 && !vfm_tape_failed(t))
		rc = add_parts(t, r, &k, p->y->v, y, err);
	vfm_store_unref(mem);
	return rc;
}

static int multiply_at_once(struct vfm_tape *t, const struct tp_rows *r, const struct vfm_product *p,
	struct vfm_tensor y, struct vfm_err *err)
{
	int rc;

	vfm_product_rows(t, p, 0, r->all);
	if (vfm_tape_failed(t))
		return 0;
	rc = start_scatter(t, r, p->y->v, y, err);
	return vfm_overlap_join(r->mesh, t, rc, err);
}

/* y = this rank's share of the sum of the products. */
static int multiply_and_scatter(struct vfm_tape *t, const struct tp_rows *r, const struct vfm_product *p,
	struct vfm_tensor y, struct vfm_err *err)
{
	int64_t width = y.shape[1], least = r->mesh->p.overlap == VFM_OVERLAP_ON ? 1 : CHUNK;

	if (r->mesh->comm_stream && r->all * width >= 2 * least)
		return multiply_by_chunks(t, r, p, (least + width - 1) / width, y, err);
	return multiply_at_once(t, r, p, y, err);
}

struct vfm_var *vfm_tp_row(
	struct vfm_tape *t, const struct vfm_attn_layout *l, struct vfm_var *x, const struct vfm_linear_args *args)
{
	struct vfm_product p = {.args = *args, .x = x};
	int64_t width = args->w->v.shape[0];
	struct vfm_store *mem = NULL;
	struct vfm_err err = {0};
	struct tp_rows *r;
	struct vfm_var *y;
	int rc = 0;

	if (vfm_tape_failed(t) || get_tp_group(l)->size == 1)
		return vfm_g_linear(t, x, args);
	r = make_tp_rows(t, l, width);
	y = vfm_var_new(t, vfm_t2(NULL, args->out, r->own, width));
	if (vfm_tape_failed(t))
		return y;
	/* The product has memory during this op only. */
	p.y = vfm_input(t, vfm_t2(NULL, args->out, r->all, width));
	p.known = vfm_kept(t, args->keep ? args->keep : VFM_KEEP_OTHER, &y, 1);
	if (!p.known)
		rc = vfm_scratch(t, p.y->v, &p.y->v, &mem, &err);
	vfm_product_open(t, &p);
	vfm_product_input(t, &p);
	if (!p.known && rc == 0)
		rc = multiply_and_scatter(t, r, &p, y->v, &err);
	vfm_tape_fail(t, rc, &err);
	vfm_store_unref(mem);
	p.y->v.data = NULL;
	vfm_keep(t, args->keep ? args->keep : VFM_KEEP_OTHER, &y, 1);
	vfm_product_close(t, &p);
	record_rows(t, tp_scatter_backward, r, p.y, y);
	return y;
}
