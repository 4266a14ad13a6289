/* mops.c - the norm over heads on tp ranks, and row exchange between divisions of a pack. */
#include "net/mesh/mops.h"

#include "device/ops/ops.h"
#include "net/mesh/overlap.h"
#include "net/tape/node.h"

/* ---- norm over all heads ---- */

static int add_over_tp(void *mesh, struct vfm_tape *t, struct vfm_tensor sums, bool forward, struct vfm_err *err)
{
	const struct vfm_mesh *m = mesh;
	struct vfm_stream *s;
	int rc = vfm_overlap_fork(m, t, &s, err);

	if (rc == 0)
		rc = vfm_all_reduce(m->group[VFM_AX_TP], s, sums, err);
	return forward ? vfm_overlap_join(m, t, rc, err) : vfm_overlap_join_deferred(m, t, rc, err);
}

void vfm_m_row_norm_rope(
	struct vfm_tape *t, const struct vfm_mesh *m, const struct vfm_qk_args *args, struct vfm_var **y)
{
	const struct vfm_row_norm_sums sums = {
		.ranks = m->size[VFM_AX_TP], .add = add_over_tp, .group = (void *)(uintptr_t)m};

	vfm_g_row_norm_rope(t, args, &sums, y);
}

/* ---- redistribution ---- */

struct redist_ctx {
	const struct vfm_mesh *mesh;
	struct vfm_comm *c;
	const struct vfm_redist *r;
	int64_t *send, *recv; /* [size] elements */
};

static int64_t *count_elements(struct vfm_tape *t, const struct vfm_comm *c, const int64_t *rows, int64_t width)
{
	int64_t *n = vfm_tape_alloc(t, (size_t)c->size * sizeof(*n));

	for (int i = 0; i < c->size; i++)
		n[i] = rows[i] * width;
	return n;
}

static int exchange_rows(struct vfm_tape *t, const struct redist_ctx *x, struct vfm_tensor send, struct vfm_tensor recv,
	bool forward, struct vfm_err *err)
{
	const int64_t *n_send = forward ? x->send : x->recv, *n_recv = forward ? x->recv : x->send;
	struct vfm_stream *s;
	int rc;

	if (x->c->size == 1)
		return vfm_all_to_all(x->c, vfm_tape_stream(t), send, recv, n_send, n_recv, err);
	rc = vfm_overlap_fork(x->mesh, t, &s, err);
	if (rc == 0)
		rc = vfm_all_to_all(x->c, s, send, recv, n_send, n_recv, err);
	return forward ? vfm_overlap_join(x->mesh, t, rc, err) : vfm_overlap_join_deferred(x->mesh, t, rc, err);
}

/* to = from in the other division.  sort: row of `from` for each row of the send buffer; place: row of the receive
 * buffer for each row of `to`. */
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
		TRY_OUT(vfm_op_index_select(s, &(struct vfm_index_select){.x = from, .index = sort, .y = send}, err));
	}
	if (vfm_has(&place))
		TRY_OUT(vfm_scratch(t, vfm_like(&to, to.dtype), &recv, &st[1], err));
	TRY_OUT(exchange_rows(t, x, send, recv, forward, err));
	if (vfm_has(&place))
		rc = vfm_op_index_select(s, &(struct vfm_index_select){.x = recv, .index = place, .y = to}, err);
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

struct vfm_var *vfm_m_redist(
	struct vfm_tape *t, const struct vfm_mesh *m, enum vfm_axis axis, struct vfm_var *x, const struct vfm_redist *r)
{
	struct vfm_comm *c = m->group[axis];
	struct redist_ctx ctx;
	struct vfm_tensor like;
	struct vfm_err err = {0};
	struct vfm_var *y;

	if (vfm_tape_failed(t) || (c->size == 1 && !vfm_has(&r->gather) && !vfm_has(&r->place)))
		return x;
	ctx = (struct redist_ctx){.mesh = m,
		.c = c,
		.r = r,
		.send = count_elements(t, c, r->send, x->v.shape[1]),
		.recv = count_elements(t, c, r->recv, x->v.shape[1])};
	like = x->v;
	like.shape[0] = r->n_recv;
	y = vfm_var_new(t, vfm_like(&like, x->v.dtype));
	if (vfm_tape_failed(t))
		return y;
	vfm_tape_fail(t, redistribute(t, &ctx, vfm_read(x), y->v, true, &err), &err);
	vfm_record_ctx(t, redist_backward, y, &x, 1, &ctx, sizeof(ctx));
	return y;
}
