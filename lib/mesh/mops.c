#include "mesh/mops.h"

#include "grad/node.h"

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
static int collect(struct vfm_tape *t, const struct rows_ctx *x, bool gather, struct vfm_tensor from, struct vfm_tensor to, bool hide,
	struct vfm_err *err)
{
	struct vfm_stream *s = vfm_aside_begin(t, err);

	if (!s)
		return VFM_EENV;
	TRY(gather ? vfm_all_gather(x->c, s, from, to, x->count, err) : vfm_reduce_scatter(x->c, s, from, to, x->count, err));
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
static int gather_ahead(struct vfm_tape *t, const struct rows_ctx *ctx, struct vfm_tensor x, struct vfm_var *y, const int64_t *rows,
	struct vfm_err *err)
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

static struct vfm_var *move_rows(
	struct vfm_tape *t, struct vfm_comm *c, struct vfm_var *x, const int64_t *rows, bool gather)
{
	struct vfm_tensor like = x->v;
	struct vfm_err err = {0};
	struct rows_ctx *ctx;
	struct vfm_node *n;
	struct vfm_var *y;
	int64_t total;
	int rc;

	if (vfm_tape_failed(t) || c->size == 1)
		return x;
	ctx = vfm_tape_alloc(t, sizeof(*ctx));
	*ctx = (struct rows_ctx){c, counts(t, c, rows, x->v.shape[1], &total), gather};
	like.shape[0] = gather ? total : rows[c->rank];
	y = vfm_var_new(t, vfm_like(&like, x->v.dtype));
	if (vfm_tape_failed(t))
		return y;
	vfm_read(x);
	if (gather)
		rc = gather_ahead(t, ctx, x->v, y, rows, &err);
	else
		rc = vfm_kept_product(t, &y, 1) ? 0 : collect(t, ctx, false, x->v, y->v, false, &err);
	if (rc < 0)
		vfm_tape_fail(t, rc, &err);
	else if (!gather)
		vfm_keep_product(t, &y, 1);
	n = vfm_record(t, rows_backward, y, &x, 1);
	if (n)
		n->ctx = ctx;
	return y;
}

struct vfm_var *vfm_m_gather_rows(struct vfm_tape *t, struct vfm_comm *c, struct vfm_var *x, const int64_t *rows)
{
	return move_rows(t, c, x, rows, true);
}

struct vfm_var *vfm_m_scatter_rows(struct vfm_tape *t, struct vfm_comm *c, struct vfm_var *x, const int64_t *rows)
{
	return move_rows(t, c, x, rows, false);
}

/* ---- rows from one division to another ---- */

struct redist_ctx {
	struct vfm_comm *c;
	const struct vfm_redist *r;
	int64_t *send, *recv; /* elements */
};

/* to = from in the other division.  sort: row of `from` at each place of what is sent; place: row of what came at each place of `to`. */
static int redistribute(struct vfm_tape *t, const struct redist_ctx *x, struct vfm_tensor from, struct vfm_tensor to,
	bool forward, struct vfm_err *err)
{
	struct vfm_stream *s = vfm_tape_stream(t);
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
	TRY_OUT(vfm_all_to_all(x->c, s, send, recv, forward ? x->send : x->recv, forward ? x->recv : x->send, err));
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
