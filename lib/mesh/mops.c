#include "mesh/mops.h"

/* ---- rows over a group ---- */

struct rows_ctx {
	struct vfm_comm *c;
	int64_t *count; /* [size] elements; of the tape */
	bool gather;    /* in the forward; the backward does the other */
};

static int64_t *counts(struct vfm_tape *t, const struct vfm_comm *c, const int64_t *rows, int64_t width, int64_t *total)
{
	int64_t *n = vfm_tape_alloc(t, (size_t)c->size * sizeof(*n));

	*total = 0;
	for (int i = 0; i < c->size; i++) {
		n[i] = rows[i] * width;
		*total += rows[i];
	}
	return n;
}

/* to = the rows of the group, or this rank's share of their sum. */
static int collect(struct vfm_tape *t, const struct rows_ctx *x, bool gather, struct vfm_tensor from,
	struct vfm_tensor to, bool hide, struct vfm_err *err)
{
	struct vfm_stream *s = vfm_aside_begin(t, err);

	if (!s)
		return VFM_EENV;
	TRY(gather ? vfm_all_gather(x->c, s, from, to, x->count, err)
		   : vfm_reduce_scatter(x->c, s, from, to, x->count, err));
	return vfm_aside_end(t, hide, err);
}

static int rows_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	const struct rows_ctx *x = n->ctx;
	struct vfm_grad_tmp tmp;

	if (!vfm_wants_grad(n->in[0]))
		return 0;
	TRY(vfm_grad_begin(t, n->in[0], &tmp, err));
	TRY(collect(t, x, !x->gather, n->out->g, tmp.g, true, err));
	return vfm_grad_end(t, n->in[0], &tmp, err);
}

/* Whoever reads y waits; x is a part of it that is there. */
static int gather_ahead(struct vfm_tape *t, const struct rows_ctx *ctx, struct vfm_tensor x, struct vfm_var *y,
	const int64_t *rows, struct vfm_err *err)
{
	struct vfm_stream *s = vfm_aside_begin(t, err);
	int64_t first = 0;

	if (!s)
		return VFM_EENV;
	for (int i = 0; i < ctx->c->rank; i++)
		first += rows[i];
	TRY(vfm_all_gather(ctx->c, s, x, y->v, ctx->count, err));
	return vfm_aside_leave(t, y, x, first, err);
}

static struct rows_ctx *rows_ctx(
	struct vfm_tape *t, struct vfm_comm *c, const int64_t *rows, int64_t width, bool gather, int64_t *total)
{
	struct rows_ctx *ctx = vfm_tape_alloc(t, sizeof(*ctx));

	*ctx = (struct rows_ctx){c, counts(t, c, rows, width, total), gather};
	return ctx;
}

static struct vfm_var *rows_done(struct vfm_tape *t, struct rows_ctx *ctx, struct vfm_var *x, struct vfm_var *y, int rc,
	const struct vfm_err *err)
{
	struct vfm_node *n;

	if (rc < 0)
		vfm_tape_fail(t, rc, err);
	n = vfm_record(t, rows_backward, y, &x, 1);
	if (n)
		n->ctx = ctx;
	return y;
}

struct vfm_var *vfm_m_gather_rows(struct vfm_tape *t, struct vfm_comm *c, struct vfm_var *x, const int64_t *rows)
{
	struct vfm_tensor like = x->v;
	struct vfm_err err = {0};
	struct rows_ctx *ctx;
	struct vfm_var *y;

	if (vfm_tape_failed(t) || c->size == 1)
		return x;
	ctx = rows_ctx(t, c, rows, x->v.shape[1], true, &like.shape[0]);
	y = vfm_var_new(t, vfm_like(&like, x->v.dtype));
	if (vfm_tape_failed(t))
		return y;
	vfm_read(x);
	return rows_done(t, ctx, x, y, gather_ahead(t, ctx, x->v, y, rows, &err), &err);
}

/* ---- the sum of products, scattered ---- */

/* Elements of a piece of a product, at least: 128 multiprocessors with a tile of 128 x 256 each.  Smaller ones leave a
 * large GPU idle, and what they would hide is short. */
enum { PIECE = 4 << 20 };

/* Piece i has been put on the compute stream: its rows go to their ranks, whose rows of this rank come. */
static int send_piece(void *ctx, int i, struct vfm_tensor y, struct vfm_err *err)
{
	struct vfm_scatter *s = ctx;
	int me = s->c->rank, size = s->c->size;
	int64_t at = 0;

	while (s->sent < s->last[i]) {
		int k = ++s->sent, to = (me + k) % size, from = (me + size - k) % size;
		struct vfm_tensor out = vfm_row_slice(&y, at, s->rows[to]),
				  in = vfm_row_slice(&s->parts, from < me ? from : from - 1, 1);
		struct vfm_stream *aside = vfm_aside_begin(s->t, err);

		if (!aside)
			return VFM_EENV;
		at += s->rows[to];
		out = vfm_t1(out.data, out.dtype, vfm_numel(&out));
		in = vfm_t1(in.data, in.dtype, in.shape[1]);
		if (vfm_numel(&out) || vfm_numel(&in))
			TRY(vfm_exchange(
				s->c, aside, out, vfm_numel(&out) ? to : -1, in, vfm_numel(&in) ? from : -1, err));
	}
	return 0;
}

/* The rows of the ranks behind this one, then its own, each as many neighbours at a time as make `least` rows. */
static void cut_pieces(struct vfm_tape *t, struct vfm_scatter *s, int64_t least)
{
	int me = s->c->rank, size = s->c->size, n = 0;
	int64_t *row = vfm_tape_alloc(t, 3 * (size_t)size * sizeof(*row)), *first = row + size, *rows = first + size;

	s->last = vfm_tape_alloc(t, (size_t)size * sizeof(*s->last));
	for (int r = 1; r < size; r++)
		row[r] = row[r - 1] + s->rows[r - 1];
	for (int k = 1; k <= size; k++) {
		int r = (me + k) % size;

		if (n == 0 || r == 0 || k == size || rows[n - 1] >= least)
			first[n++] = row[r];
		rows[n - 1] += s->rows[r];
		s->last[n - 1] = k < size ? k : size - 1;
	}
	s->pieces = (struct vfm_pieces){n, first, rows, send_piece, s};
}

void vfm_m_scatter_begin(struct vfm_tape *t, struct vfm_scatter *s)
{
	int64_t total = 0, least = s->small ? 1 : PIECE;
	struct vfm_err err = {0};
	int rc;

	s->t = t;
	vfm_tape_passing(t, s->c->size > 1);
	if (vfm_tape_failed(t) || s->c->size == 1 || !vfm_tape_has_aside(t) || vfm_kept_product(t, NULL, 0))
		return;
	for (int r = 0; r < s->c->size; r++)
		total += s->rows[r];
	if (total * s->width < 2 * least)
		return;
	cut_pieces(t, s, (least + s->width - 1) / s->width);
	rc = vfm_scratch(
		t, vfm_t2(NULL, s->dtype, s->c->size - 1, s->rows[s->c->rank] * s->width), &s->parts, &s->mem, &err);
	if (rc < 0)
		vfm_tape_fail(t, rc, &err);
	/* rows that are there before the rest are for those who begin with them: all ranks go by pieces, or none */
	vfm_arrive(t);
	if (rc == 0)
		vfm_tape_set_pieces(t, &s->pieces);
}

/* All pieces have been sent: y = the sum of this rank's rows. */
static int sum_pieces(struct vfm_scatter *s, struct vfm_tensor product, struct vfm_tensor y, struct vfm_err *err)
{
	struct vfm_sum_parts sum = {.x = s->parts, .at = s->c->rank, .y = vfm_t1(y.data, y.dtype, vfm_numel(&y))};
	int64_t first = 0;

	for (int r = 0; r < s->c->rank; r++)
		first += s->rows[r];
	product = vfm_row_slice(&product, first, s->rows[s->c->rank]);
	sum.own = vfm_t1(product.data, product.dtype, vfm_numel(&product));
	return vfm_op_sum_parts(vfm_tape_stream(s->t), &sum, err);
}

static struct vfm_var *scatter(struct vfm_scatter *s, struct vfm_var *x)
{
	struct vfm_tensor like = x->v;
	struct vfm_err err = {0};
	struct rows_ctx *ctx;
	struct vfm_var *y;
	int64_t total;
	int rc = 0;

	ctx = rows_ctx(s->t, s->c, s->rows, x->v.shape[1], false, &total);
	like.shape[0] = s->rows[s->c->rank];
	y = vfm_var_new(s->t, vfm_like(&like, x->v.dtype));
	if (vfm_tape_failed(s->t))
		return y;
	vfm_read(x);
	if (s->sent > 0)
		rc = sum_pieces(s, x->v, y->v, &err);
	else if (!vfm_kept_product(s->t, &y, 1))
		rc = collect(s->t, ctx, false, x->v, y->v, false, &err);
	if (rc == 0)
		vfm_keep_product(s->t, &y, 1);
	return rows_done(s->t, ctx, x, y, rc, &err);
}

struct vfm_var *vfm_m_scatter_end(struct vfm_scatter *s, struct vfm_var *x)
{
	struct vfm_err err = {0};
	int rc;

	vfm_tape_passing(s->t, false);
	vfm_tape_set_pieces(s->t, NULL);
	if (s->sent > 0) { /* after a failure, too: memory must not go while messages are on their way */
		rc = vfm_aside_end(s->t, false, &err);
		if (rc < 0)
			vfm_tape_fail(s->t, rc, &err);
	}
	if (!vfm_tape_failed(s->t) && s->c->size > 1)
		x = scatter(s, x);
	vfm_store_unref(s->mem);
	return x;
}

struct vfm_var *vfm_m_scatter_rows(struct vfm_tape *t, struct vfm_comm *c, struct vfm_var *x, const int64_t *rows)
{
	struct vfm_scatter s = {.c = c, .rows = rows, .t = t};

	return vfm_m_scatter_end(&s, x);
}

/* ---- rows from one division to another ---- */

struct redist_ctx {
	struct vfm_comm *c;
	const struct vfm_redist *r;
	int64_t *send, *recv; /* elements */
};

/* to = from in the other division.  sort: row of `from` at each place of what is sent; place: row of what came at each
 * place of `to`. */
static int redistribute(struct vfm_tape *t, const struct redist_ctx *x, struct vfm_tensor from, struct vfm_tensor to,
	bool forward, struct vfm_err *err)
{
	struct vfm_stream *s = vfm_tape_stream(t), *aside;
	struct vfm_tensor sort = forward ? x->r->gather : x->r->place_inv,
			  place = forward ? x->r->place : x->r->gather_inv;
	struct vfm_tensor send = from, recv = to;
	struct vfm_store *st[2] = {NULL, NULL};
	int rc;

	if (vfm_has(&sort)) {
		TRY_OUT(vfm_scratch(t, vfm_like(&from, from.dtype), &send, &st[0], err));
		TRY_OUT(vfm_op_rows(s, &(struct vfm_rows){.x = from, .index = sort, .y = send}, err));
	}
	if (vfm_has(&place))
		TRY_OUT(vfm_scratch(t, vfm_like(&to, to.dtype), &recv, &st[1], err));
	aside = x->c->size > 1 ? vfm_aside_begin(t, err) : s;
	TRY_OUT(aside ? 0 : VFM_EENV);
	TRY_OUT(vfm_all_to_all(x->c, aside, send, recv, forward ? x->send : x->recv, forward ? x->recv : x->send, err));
	if (x->c->size > 1)
		TRY_OUT(vfm_aside_end(t, !forward, err));
	if (vfm_has(&place))
		rc = vfm_op_rows(s, &(struct vfm_rows){.x = recv, .index = place, .y = to}, err);
out:
	vfm_store_unref(st[0]);
	vfm_store_unref(st[1]);
	return rc;
}

static int redist_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	struct vfm_grad_tmp tmp;

	TRY(vfm_grad_begin(t, n->in[0], &tmp, err));
	TRY(redistribute(t, n->ctx, n->out->g, tmp.g, false, err));
	return vfm_grad_end(t, n->in[0], &tmp, err);
}

struct vfm_var *vfm_m_redist(struct vfm_tape *t, struct vfm_comm *c, struct vfm_var *x, const struct vfm_redist *r)
{
	struct redist_ctx *ctx;
	struct vfm_tensor like;
	struct vfm_err err = {0};
	struct vfm_node *n;
	struct vfm_var *y;
	int64_t rows;
	int rc;

	if (vfm_tape_failed(t) || (c->size == 1 && !vfm_has(&r->gather) && !vfm_has(&r->place)))
		return x;
	ctx = vfm_tape_alloc(t, sizeof(*ctx));
	*ctx = (struct redist_ctx){.c = c, .r = r};
	ctx->send = counts(t, c, r->send, x->v.shape[1], &rows);
	ctx->recv = counts(t, c, r->recv, x->v.shape[1], &rows);
	like = x->v;
	like.shape[0] = r->n_recv;
	y = vfm_var_new(t, vfm_like(&like, x->v.dtype));
	if (vfm_tape_failed(t))
		return y;
	rc = redistribute(t, ctx, vfm_read(x), y->v, true, &err);
	if (rc < 0)
		vfm_tape_fail(t, rc, &err);
	n = vfm_record(t, redist_backward, y, &x, 1);
	if (n)
		n->ctx = ctx;
	return y;
}
