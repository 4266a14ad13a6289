#include "mesh/mops.h"

#include <stdlib.h>

#include "grad/node.h"

/* ---- rows over a group ---- */

struct rows_ctx {
	struct vfm_comm *c;
	int64_t *count; /* [size] elements; of the tape */
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

static int gather_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	struct rows_ctx *x = n->ctx;
	struct vfm_grad_tmp tmp;

	if (!vfm_wants_grad(n->in[0]))
		return 0;
	TRY(vfm_grad_begin(t, n->in[0], &tmp, err));
	TRY(vfm_reduce_scatter(x->c, vfm_tape_stream(t), n->out->g, tmp.g, x->count, err));
	return vfm_grad_end(t, n->in[0], &tmp, err);
}

static int scatter_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	struct rows_ctx *x = n->ctx;
	struct vfm_grad_tmp tmp;

	if (!vfm_wants_grad(n->in[0]))
		return 0;
	TRY(vfm_grad_begin(t, n->in[0], &tmp, err));
	TRY(vfm_all_gather(x->c, vfm_tape_stream(t), n->out->g, tmp.g, x->count, err));
	return vfm_grad_end(t, n->in[0], &tmp, err);
}

static struct vfm_var *move_rows(struct vfm_tape *t, struct vfm_comm *c, struct vfm_var *x, const int64_t *rows, bool gather)
{
	struct vfm_tensor like = x->v;
	struct vfm_err err = {0};
	int64_t total, *count;
	struct vfm_node *n;
	struct vfm_var *y;
	int rc;

	if (vfm_tape_failed(t) || c->size == 1)
		return x;
	count = counts(t, c, rows, x->v.shape[1], &total);
	like.shape[0] = gather ? total : rows[c->rank];
	y = vfm_var_new(t, vfm_like(&like, x->v.dtype));
	if (vfm_tape_failed(t))
		return y;
	rc = gather ? vfm_all_gather(c, vfm_tape_stream(t), vfm_read(x), y->v, count, &err)
		    : vfm_reduce_scatter(c, vfm_tape_stream(t), vfm_read(x), y->v, count, &err);
	if (rc < 0)
		vfm_tape_fail(t, rc, &err);
	n = vfm_record(t, gather ? gather_backward : scatter_backward, y, &x, 1);
	if (n) {
		struct rows_ctx *ctx = n->ctx = vfm_tape_alloc(t, sizeof(*ctx));

		*ctx = (struct rows_ctx){c, count};
	}
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

/* ---- attention ---- */

static void seqs_of(struct vfm_seqs *q, int n, const int32_t *cu)
{
	*q = (struct vfm_seqs){.n = n, .total = cu[n], .cu = cu};
	for (int i = 0; i < n; i++)
		if (cu[i + 1] - cu[i] > q->max_len)
			q->max_len = cu[i + 1] - cu[i];
}

int vfm_attn_layout_make(struct vfm_attn_layout *l, const struct vfm_mesh *m, const struct vfm_tokens *tok, struct vfm_stream *s,
	struct vfm_err *err)
{
	const struct vfm_dev_table *t = s->dev->t;
	int64_t w = tok->n + 1, n;
	char *at;

	*l = (struct vfm_attn_layout){.mesh = m, .tok = tok, .n_ring = tok->cp / tok->a2a, .stream = s};
	n = (w * 4 + 63) / 64 * 64;
	l->bytes = (size_t)n * (size_t)(l->n_ring + 1);
	l->mem = at = vfm_dev_alloc(s, l->bytes, "the layout of attention", err);
	if (!l->mem)
		return VFM_EENV;
	l->block = vfm_calloc((size_t)l->n_ring, sizeof(*l->block));
	for (int r = -1; r < l->n_ring; r++, at += n) {
		struct vfm_seqs *q = r < 0 ? &l->own : &l->block[r];
		const int32_t *cu = r < 0 ? tok->cu_cp + tok->cp_i * w : tok->cu_ring + r * w;

		seqs_of(q, tok->n, cu);
		q->dev_cu = vfm_t1(at, VFM_I32, w);
		TRY(t->to_device(s, at, cu, (size_t)w * 4, err));
	}
	return t->stream_sync(s, err);
}

void vfm_attn_layout_release(struct vfm_attn_layout *l)
{
	if (l->stream)
		vfm_dev_free(l->stream, l->mem, l->bytes);
	free(l->block);
	*l = (struct vfm_attn_layout){0};
}

struct vfm_var *vfm_m_attn(struct vfm_tape *t, struct vfm_var *q, struct vfm_var *k, struct vfm_var *v, const struct vfm_attn_layout *l,
	float scale)
{
	return vfm_g_attn(t, q, k, v, &l->own, &l->own, scale);
}
