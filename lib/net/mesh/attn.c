/* attn.c - self-attention over the tokens of a cp group, cp = ring x a2a.
 *
 * Within an a2a group heads are exchanged for rows: afterwards a rank has all rows of its ring position for its share
 * of the heads (Jacobs et al., arXiv 2309.14509).  Then the keys and values of a position, a block, move around the
 * ring while the queries stay (Liu, Zaharia & Abbeel, arXiv 2310.01889).  At step s the rank at position i has block i
 * - s.
 *
 * In the backward the lse over all keys gives the probabilities, so the gradients of each block are computed
 * separately. Those of queries accumulate in place; those of keys and values move with their block, home after n hops.
 */
#include <stdlib.h>
#include <string.h>

#include "device/dev/stall.h"
#include "device/dev/upload.h"
#include "device/ops/ops.h"
#include "device/ops/tensor.h"
#include "net/mesh/attn.h"
#include "net/mesh/mops.h"
#include "net/mesh/overlap.h"
#include "net/tape/node.h"
#include "net/tape/region.h"

/* ---- layout ---- */

/* Places the boundaries of every position and the order of the rows that an a2a group exchanges.  Host and device
 * memory have the same layout. */
static void place_layout(struct vfm_attn_layout *l, struct vfm_suballoc *a)
{
	const struct vfm_tokens *tok = l->tok;
	int64_t w = tok->n + 1, rows = tok->a2a > 1 ? tok->cu_ring[tok->cp_i / tok->a2a * w + tok->n] : 0;

	l->own.dev_cu = vfm_sub_t1(a, VFM_I32, w);
	for (int r = 0; r < l->n_ring; r++)
		l->block[r].dev_cu = vfm_sub_t1(a, VFM_I32, w);
	if (tok->n > 1 && rows) { /* a single sample arrives in order */
		l->order = vfm_sub_t1(a, VFM_I32, rows);
		l->inverse = vfm_sub_t1(a, VFM_I32, rows);
	}
}

static void fill_layout(struct vfm_attn_layout *l)
{
	const struct vfm_tokens *tok = l->tok;
	size_t cu = ((size_t)tok->n + 1) * sizeof(int32_t);
	int32_t *order = l->order.data, *inverse = l->inverse.data;

	memcpy(l->own.dev_cu.data, l->own.cu, cu);
	for (int r = 0; r < l->n_ring; r++)
		memcpy(l->block[r].dev_cu.data, l->block[r].cu, cu);
	if (!order)
		return;
	vfm_tokens_ring_order(tok, tok->cp_i / tok->a2a, order);
	for (int64_t i = 0; i < l->order.shape[0]; i++)
		inverse[order[i]] = (int32_t)i;
}

int vfm_attn_layout_make(struct vfm_attn_layout *l, const struct vfm_mesh *m, const struct vfm_tokens *tok,
	struct vfm_stream *s, struct vfm_err *err)
{
	struct vfm_suballoc count = {0};
	int64_t w = tok->n + 1;
	char *host;
	int rc;

	*l = (struct vfm_attn_layout){.mesh = m, .tok = tok, .n_ring = tok->cp / tok->a2a, .stream = s};
	l->block = vfm_calloc((size_t)l->n_ring, sizeof(*l->block));
	vfm_seqs_init(&l->own, tok->n, tok->cu_cp + tok->cp_i * w);
	for (int r = 0; r < l->n_ring; r++)
		vfm_seqs_init(&l->block[r], tok->n, tok->cu_ring + r * w);
	place_layout(l, &count);
	l->bytes = count.used;
	l->mem = vfm_dev_alloc(s, l->bytes, "attention layout", err);
	if (!l->mem)
		return VFM_EENV;
	host = vfm_calloc(1, l->bytes);
	place_layout(l, &(struct vfm_suballoc){.base = host});
	fill_layout(l);
	rc = vfm_dev_upload(s, l->mem, host, l->bytes, err);
	place_layout(l, &(struct vfm_suballoc){.base = l->mem});
	free(host);
	return rc;
}

void vfm_attn_layout_release(struct vfm_attn_layout *l)
{
	if (l->stream)
		vfm_dev_free(l->stream, l->mem, l->bytes);
	free(l->block);
	*l = (struct vfm_attn_layout){0};
}

/* ---- scratch memory of one forward or backward ---- */

enum { SCRATCH = 8 };

struct ring_scratch {
	struct vfm_tape *t;
	struct vfm_store *st[SCRATCH];
	int n;
};

static int scratch_alloc(struct ring_scratch *m, struct vfm_tensor like, struct vfm_tensor *out, struct vfm_err *err)
{
	TRY(vfm_scratch(m->t, like, out, &m->st[m->n], err));
	m->n++;
	return 0;
}

static void scratch_release(struct ring_scratch *m)
{
	while (m->n)
		vfm_store_unref(m->st[--m->n]);
}

/* y = x + beta y of equal shapes. */
static int add_scaled(struct vfm_stream *s, struct vfm_tensor x, float beta, struct vfm_tensor y, struct vfm_err *err)
{
	return vfm_numel(&x) ? vfm_op_axpby(s, &(struct vfm_axpby){.alpha = 1, .beta = beta, .x = x, .y = y}, err) : 0;
}

static char *at_elem(struct vfm_tensor x, int64_t i)
{
	return (char *)x.data + (size_t)i * vfm_dtype_size(x.dtype);
}

/* ---- all-to-all: heads for rows ---- */

/* The exchange of an a2a group.  Before it (`mine`) a rank has its own rows for all heads, as n variables
 * [rows, heads, d].  After it (`all`) the rank has all rows of the ring position for its share of the heads, as columns
 * of one array [all_rows, width]. */
struct heads {
	const struct vfm_attn_layout *l;
	struct vfm_comm *c;
	int n;                  /* variables */
	int64_t share[3];       /* columns of each variable per rank */
	int64_t width;          /* their sum */
	int64_t rows, all_rows; /* rows of this rank; of the ring position */
	enum vfm_dtype dt;
	int64_t *mine, *theirs; /* [size]: elements sent to and received from each rank, from `mine` to `all` */
};

static struct heads *heads_new(
	struct vfm_tape *t, const struct vfm_attn_layout *l, int n, const int64_t *columns, enum vfm_dtype dt)
{
	struct heads *h = vfm_tape_alloc(t, sizeof(*h));
	int a2a = l->tok->a2a, first = l->tok->cp_i / a2a * a2a;

	*h = (struct heads){.l = l, .c = l->mesh->a2a, .n = n, .dt = dt, .rows = l->own.total};
	h->mine = vfm_tape_alloc(t, 2 * (size_t)a2a * sizeof(int64_t));
	h->theirs = h->mine + a2a;
	for (int i = 0; i < n; i++) {
		h->share[i] = columns[i] / a2a;
		h->width += h->share[i];
	}
	for (int i = 0; i < a2a; i++) {
		int64_t rows = l->tok->rows_cp[first + i];

		h->mine[i] = h->rows * h->width;
		h->theirs[i] = rows * h->width;
		h->all_rows += rows;
	}
	return h;
}

/* out: copies x[i] [rows, columns] into the blocks for each rank.  Otherwise x = blocks + beta x. */
static int copy_blocks(const struct heads *h, struct vfm_stream *s, struct vfm_tensor *x, const float *beta,
	struct vfm_tensor blocks, bool out, struct vfm_err *err)
{
	for (int r = 0; r < h->c->size; r++) {
		int64_t at = r * h->rows * h->width;

		for (int i = 0; i < h->n; i++) {
			struct vfm_tensor b = vfm_t2(at_elem(blocks, at), h->dt, h->rows, h->width), a = b;

			b = vfm_cols(&b, 0, h->share[i]);
			a = b;
			a.dtype = x[i].dtype;
			a.data = at_elem(x[i], r * h->share[i]);
			a.stride[0] = x[i].stride[0];
			TRY(out ? add_scaled(s, a, 0, b, err) : add_scaled(s, b, beta[i], a, err));
			at += h->share[i];
		}
	}
	return 0;
}

/* forward: from `mine` to `all`.  backward: computes deferred gradients of weights meanwhile. */
static int exchange_heads(struct vfm_tape *t, const struct heads *h, struct vfm_tensor send, struct vfm_tensor recv,
	bool forward, bool backward, struct vfm_err *err)
{
	const int64_t *n_send = forward ? h->mine : h->theirs, *n_recv = forward ? h->theirs : h->mine;
	const struct vfm_mesh *m = h->l->mesh;
	struct vfm_stream *s;
	int rc = vfm_overlap_fork(m, t, &s, err);

	if (rc == 0)
		rc = vfm_all_to_all(h->c, s, send, recv, n_send, n_recv, err);
	return backward ? vfm_overlap_join_deferred(m, t, rc, err) : vfm_overlap_join(m, t, rc, err);
}

/* all [all_rows, width] = the rows of x on all ranks, in the order of the samples. */
static int heads_to_all(struct vfm_tape *t, const struct heads *h, struct vfm_tensor *x, struct vfm_tensor all,
	bool backward, struct vfm_err *err)
{
	struct vfm_stream *s = vfm_tape_stream(t);
	struct ring_scratch m = {.t = t};
	struct vfm_tensor send, recv = all;
	int rc;

	TRY_OUT(scratch_alloc(&m, vfm_t1(NULL, h->dt, h->rows * h->width * h->c->size), &send, err));
	TRY_OUT(copy_blocks(h, s, x, (const float[3]){0}, send, true, err));
	if (vfm_has(&h->l->order))
		TRY_OUT(scratch_alloc(&m, vfm_t2(NULL, h->dt, h->all_rows, h->width), &recv, err));
	TRY_OUT(exchange_heads(t, h, send, recv, true, backward, err));
	if (vfm_has(&h->l->order))
		rc = vfm_op_index_select(s, &(struct vfm_index_select){.x = recv, .index = h->l->order, .y = all}, err);
out:
	scratch_release(&m);
	return rc;
}

/* The inverse: x = the rows of this rank in all + beta x. */
static int heads_to_mine(struct vfm_tape *t, const struct heads *h, struct vfm_tensor all, struct vfm_tensor *x,
	const float *beta, bool backward, struct vfm_err *err)
{
	struct vfm_stream *s = vfm_tape_stream(t);
	struct ring_scratch m = {.t = t};
	struct vfm_tensor send = all, recv;
	int rc;

	if (vfm_has(&h->l->order)) {
		TRY_OUT(scratch_alloc(&m, vfm_t2(NULL, h->dt, h->all_rows, h->width), &send, err));
		TRY_OUT(vfm_op_index_select(
			s, &(struct vfm_index_select){.x = all, .index = h->l->inverse, .y = send}, err));
	}
	TRY_OUT(scratch_alloc(&m, vfm_t1(NULL, h->dt, h->rows * h->width * h->c->size), &recv, err));
	TRY_OUT(exchange_heads(t, h, send, recv, false, backward, err));
	rc = copy_blocks(h, s, x, beta, recv, false, err);
out:
	scratch_release(&m);
	return rc;
}

static int to_all_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	const struct heads *h = n->ctx;
	struct vfm_tensor g[3] = {0};
	float beta[3] = {0};

	for (int i = 0; i < h->n; i++) {
		bool accumulate;

		TRY(vfm_grad_into(t, n->in[i], &g[i], &accumulate, err));
		beta[i] = accumulate ? 1 : 0;
	}
	return heads_to_mine(t, h, n->out->g, g, beta, true, err);
}

static int to_mine_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	const struct heads *h = n->ctx;
	struct vfm_grad_tmp tmp;
	struct vfm_tensor g = n->out->g;

	TRY(vfm_grad_begin(t, n->in[0], &tmp, err));
	TRY(heads_to_all(t, h, &g, tmp.g, true, err));
	return vfm_grad_end(t, n->in[0], &tmp, err);
}

/* x[0..n) [rows, heads_i, d] -> [all_rows, width] */
static struct vfm_var *to_all(struct vfm_tape *t, const struct vfm_attn_layout *l, struct vfm_var **x, int n)
{
	struct vfm_tensor v[3] = {0};
	int64_t columns[3] = {0};
	struct vfm_err err = {0};
	struct vfm_var *y;
	struct heads *h;

	for (int i = 0; i < n; i++) {
		v[i] = vfm_read(x[i]);
		columns[i] = v[i].shape[1] * v[i].shape[2];
	}
	h = heads_new(t, l, n, columns, v[0].dtype);
	y = vfm_var_new(t, vfm_t2(NULL, h->dt, h->all_rows, h->width));
	if (vfm_tape_failed(t))
		return y;
	vfm_tape_fail(t, heads_to_all(t, h, v, y->v, false, &err), &err);
	vfm_record_ctx(t, to_all_backward, y, x, n, h, sizeof(*h));
	return y;
}

/* [all_rows, width] -> [rows, width * a2a] */
static struct vfm_var *to_mine(struct vfm_tape *t, const struct vfm_attn_layout *l, struct vfm_var *x)
{
	struct vfm_err err = {0};
	int64_t columns;
	struct vfm_var *y;
	struct heads *h;

	if (vfm_tape_failed(t))
		return x;
	columns = x->v.shape[1] * l->tok->a2a;
	h = heads_new(t, l, 1, &columns, x->v.dtype);
	y = vfm_var_new(t, vfm_t2(NULL, h->dt, h->rows, columns));
	if (vfm_tape_failed(t))
		return y;
	vfm_tape_fail(t, heads_to_mine(t, h, vfm_read(x), &y->v, (const float[3]){0}, false, &err), &err);
	vfm_record_ctx(t, to_mine_backward, y, &x, 1, h, sizeof(*h));
	return y;
}

/* ---- the ring ---- */

struct ring {
	const struct vfm_attn_layout *l;
	struct vfm_comm *c;
	struct vfm_stream *compute, *ring_stream;
	const struct vfm_dev_table *dev;
	int n, me;
	int64_t hkv, d, most; /* most: rows of the longest block */
	enum vfm_dtype dt;
	struct vfm_event *ready;      /* of vfm_stream_follow: the ring stream waits for the compute stream */
	struct vfm_event *arrived[2]; /* on the ring stream: the next block has arrived; its gradients have arrived */
	struct vfm_tensor kv[2];      /* double buffer of blocks: keys, then values */
	struct ring_scratch m;
};

enum { ARRIVED_BLOCK, ARRIVED_GRAD };

static int ring_begin(struct ring *r, struct vfm_tape *t, const struct vfm_attn_layout *l, const struct vfm_tensor *k,
	struct vfm_err *err)
{
	*r = (struct ring){.l = l,
		.c = l->mesh->ring,
		.compute = vfm_tape_stream(t),
		.ring_stream = l->mesh->ring_stream,
		.n = l->n_ring,
		.me = l->tok->cp_i / l->tok->a2a,
		.hkv = k->shape[1],
		.d = k->shape[2],
		.dt = k->dtype,
		.m = {.t = t}};
	r->dev = r->compute->dev->t;
	if (!r->ring_stream)
		r->ring_stream = r->compute;
	for (int i = 0; i < r->n; i++)
		if (l->block[i].total > r->most)
			r->most = l->block[i].total;
	for (int i = 0; i < 2; i++) {
		r->arrived[i] = r->dev->event_new(r->compute->dev, err);
		TRY(scratch_alloc(&r->m, vfm_t1(NULL, r->dt, 2 * r->most * r->hkv * r->d), &r->kv[i], err));
	}
	return r->arrived[0] && r->arrived[1] ? 0 : VFM_EENV;
}

static int ring_end(struct ring *r, int rc)
{
	/* After a failure the ring stream may still use the memory that is freed now. */
	if (rc < 0)
		r->dev->stream_sync(r->ring_stream, NULL);
	if (r->ready)
		r->dev->event_free(r->ready);
	for (int i = 0; i < 2; i++)
		if (r->arrived[i])
			r->dev->event_free(r->arrived[i]);
	scratch_release(&r->m);
	return rc;
}

/* Returns the block of this rank at step s. */
static int block_at(const struct ring *r, int s)
{
	return (r->me - s + 2 * r->n) % r->n;
}

static int64_t rows_at(const struct ring *r, int s)
{
	return r->l->block[block_at(r, s)].total;
}

static struct vfm_tensor all_of(const struct ring *r, struct vfm_tensor buf, int s)
{
	return vfm_t1(buf.data, buf.dtype, 2 * rows_at(r, s) * r->hkv * r->d);
}

static struct vfm_tensor part_of(const struct ring *r, struct vfm_tensor buf, int s, int i)
{
	int64_t rows = rows_at(r, s);

	return vfm_t3(at_elem(buf, i * rows * r->hkv * r->d), buf.dtype, rows, r->hkv, r->d);
}

/* Sends `out` to the next rank and receives `in` from the previous one. */
static int ring_hop(struct ring *r, struct vfm_tensor out, struct vfm_tensor in, int what, struct vfm_err *err)
{
	int next = vfm_numel(&out) ? (r->me + 1) % r->n : -1, before = vfm_numel(&in) ? (r->me + r->n - 1) % r->n : -1;

	TRY(vfm_stream_follow(r->ring_stream, r->compute, &r->ready, err));
	TRY(vfm_exchange(r->c, r->ring_stream, out, next, in, before, err));
	return r->dev->event_record(r->arrived[what], r->ring_stream, err);
}

/* Before the computation of step s: sets k and v to the block of this step and starts the hop of the next block. */
static int next_block(struct ring *r, int s, struct vfm_tensor *k, struct vfm_tensor *v, struct vfm_err *err)
{
	struct vfm_tensor here = r->kv[s % 2];

	if (s == 0) {
		TRY(add_scaled(r->compute, *k, 0, part_of(r, here, 0, 0), err));
		TRY(add_scaled(r->compute, *v, 0, part_of(r, here, 0, 1), err));
	} else {
		TRY(vfm_stall_wait(r->arrived[ARRIVED_BLOCK], r->compute, VFM_STALL_COMM, err));
		*k = part_of(r, here, s, 0);
		*v = part_of(r, here, s, 1);
	}
	if (s < r->n - 1)
		TRY(ring_hop(r, all_of(r, here, s), all_of(r, r->kv[(s + 1) % 2], s + 1), ARRIVED_BLOCK, err));
	return 0;
}

/* a: q, k, v of this position.  Computes o and lse. */
static int ring_forward(struct vfm_tape *t, const void *layout, struct vfm_attn a, struct vfm_err *err)
{
	const struct vfm_attn_layout *l = layout;
	struct vfm_tensor o = a.o, lse = a.lse, sum = a.o, part, part_lse;
	struct ring r;
	int rc;

	TRY_OUT(ring_begin(&r, t, l, &a.k, err));
	a.seqs_q = &l->block[r.me];
	TRY_OUT(scratch_alloc(&r.m, vfm_like(&o, o.dtype), &part, err));
	TRY_OUT(scratch_alloc(&r.m, vfm_like(&lse, VFM_F32), &part_lse, err));
	if (o.dtype != VFM_F32)
		TRY_OUT(scratch_alloc(&r.m, vfm_like(&o, VFM_F32), &sum, err));
	for (int s = 0; s < r.n; s++) {
		struct vfm_attn_merge merge = {.o = sum, .lse = lse, .o_b = part, .lse_b = part_lse};

		TRY_OUT(next_block(&r, s, &a.k, &a.v, err));
		if (rows_at(&r, 0) == 0 || rows_at(&r, s) == 0)
			continue;
		a.seqs_k = &l->block[block_at(&r, s)];
		a.o = s == 0 && o.dtype == VFM_F32 ? o : part;
		a.lse = s == 0 ? lse : part_lse;
		TRY_OUT(vfm_op_attn(r.compute, &a, err));
		if (s > 0)
			TRY_OUT(vfm_op_attn_merge(r.compute, &merge, err));
		else if (o.dtype != VFM_F32)
			TRY_OUT(add_scaled(r.compute, part, 0, sum, err));
	}
	if (o.dtype != VFM_F32)
		TRY_OUT(add_scaled(r.compute, sum, 0, o, err));
out:
	return ring_end(&r, rc);
}

/* After the computation of step s: adds the received gradients of its block to g and sends them to the next rank. */
static int next_grads(struct ring *r, int s, struct vfm_tensor g, struct vfm_tensor from, struct vfm_err *err)
{
	if (s > 0) {
		TRY(vfm_stall_wait(r->arrived[ARRIVED_GRAD], r->compute, VFM_STALL_COMM, err));
		TRY(add_scaled(r->compute, all_of(r, from, s), 1, all_of(r, g, s), err));
	}
	return ring_hop(r, all_of(r, g, s), all_of(r, from, s + 1), ARRIVED_GRAD, err);
}

/* a: as recorded, with dout.  Overwrites dq [rows,H,d] f32; allocates dkv for dk, dv of this position, f32. */
static int ring_steps(
	struct ring *r, struct vfm_attn_bwd *a, struct vfm_tensor dq, struct vfm_tensor *dkv, struct vfm_err *err)
{
	struct vfm_tensor g[2], part, like = vfm_t1(NULL, VFM_F32, 2 * r->most * r->hkv * r->d);

	TRY(scratch_alloc(&r->m, like, &g[0], err));
	TRY(scratch_alloc(&r->m, like, &g[1], err));
	TRY(scratch_alloc(&r->m, like, dkv, err));
	TRY(scratch_alloc(&r->m, vfm_like(&a->q, VFM_F32), &part, err));
	a->seqs_q = &r->l->block[r->me];
	for (int s = 0; s < r->n; s++) {
		struct vfm_tensor here = g[s % 2];

		TRY(next_block(r, s, &a->k, &a->v, err));
		a->seqs_k = &r->l->block[block_at(r, s)];
		a->dq = s ? part : dq;
		a->dk = part_of(r, here, s, 0);
		a->dv = part_of(r, here, s, 1);
		if (rows_at(r, 0) == 0)
			TRY(r->dev->zero(r->compute, here.data, (size_t)vfm_numel(&a->dk) * 8, err));
		else if (rows_at(r, s) > 0)
			TRY(vfm_op_attn_bwd(r->compute, a, err));
		if (s > 0 && rows_at(r, s) > 0)
			TRY(add_scaled(r->compute, part, 1, dq, err));
		TRY(next_grads(r, s, here, *dkv, err));
	}
	return vfm_stall_wait(r->arrived[ARRIVED_GRAD], r->compute, VFM_STALL_COMM, err);
}

static int ring_backward(
	struct vfm_tape *t, const void *layout, struct vfm_attn_bwd a, struct vfm_var *const in[3], struct vfm_err *err)
{
	struct vfm_tensor to[3], dq, dkv;
	bool accumulate[3];
	struct ring r;
	int rc;

	TRY_OUT(ring_begin(&r, t, layout, &a.k, err));
	for (int i = 0; i < 3; i++)
		TRY_OUT(vfm_grad_into(t, in[i], &to[i], &accumulate[i], err));
	dq = to[0];
	if (accumulate[0] || dq.dtype != VFM_F32)
		TRY_OUT(scratch_alloc(&r.m, vfm_like(&a.q, VFM_F32), &dq, err));
	TRY_OUT(ring_steps(&r, &a, dq, &dkv, err));
	if (dq.data != to[0].data)
		TRY_OUT(add_scaled(r.compute, dq, accumulate[0] ? 1 : 0, to[0], err));
	for (int i = 0; i < 2; i++)
		TRY_OUT(add_scaled(r.compute, part_of(&r, dkv, 0, i), accumulate[1 + i] ? 1 : 0, to[1 + i], err));
out:
	return ring_end(&r, rc);
}

/* ---- attention ---- */

/* Returns heads [first, first + heads) of x [rows, heads' * d]. */
static struct vfm_var *heads_view(struct vfm_tape *t, struct vfm_var *x, int64_t first, int64_t heads, int64_t d)
{
	struct vfm_tensor v = vfm_cols(&x->v, first * d, heads * d);

	return vfm_view(t, x, vfm_heads(&v, 0, heads, d));
}

struct vfm_var *vfm_m_attn(struct vfm_tape *t, struct vfm_var *q, struct vfm_var *k, struct vfm_var *v,
	const struct vfm_attn_layout *l, float scale)
{
	int a2a = l->tok->a2a, me = l->tok->cp_i / a2a;
	struct vfm_var *o;

	if (vfm_tape_failed(t))
		return q;
	if (a2a > 1) {
		int64_t d = q->v.shape[2], h = q->v.shape[1] / a2a, hkv = k->v.shape[1] / a2a;
		struct vfm_var *all = to_all(t, l, (struct vfm_var *[]){q, k, v}, 3);

		if (vfm_tape_failed(t))
			return q;
		q = heads_view(t, all, 0, h, d);
		k = heads_view(t, all, h, hkv, d);
		v = heads_view(t, all, h + hkv, hkv, d);
	}
	o = l->n_ring > 1 ? vfm_g_attn_by(t, q, k, v, &(struct vfm_attn){.scale = scale},
				    &(struct vfm_attn_way){ring_forward, ring_backward, l})
			  : vfm_g_attn(t, q, k, v, &l->block[me], &l->block[me], scale);
	return a2a > 1 ? to_mine(t, l, o) : o;
}
