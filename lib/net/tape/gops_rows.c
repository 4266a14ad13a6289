/* gops_rows.c - gather and scatter of rows, SwiGLU, table embeddings and joined inputs, with their backwards. */
#include "net/tape/gops_impl.h"
#include "net/tape/region.h"

/* ---- rows by index ---- */

static int index_select_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	struct vfm_index_add a = {.x = n->out->g, .index = *(struct vfm_tensor *)n->ctx};

	TRY(vfm_grad_into(t, n->in[0], &a.y, &a.accumulate, err));
	return BACKWARD(index_add, &a);
}

struct vfm_var *vfm_g_index_select(struct vfm_tape *t, struct vfm_var *x, struct vfm_tensor index)
{
	struct vfm_index_select a = {.index = index};
	struct vfm_tensor like;
	struct vfm_var *y;

	if (vfm_tape_failed(t))
		return x;
	a.x = vfm_read(x);
	like = vfm_like(&x->v, x->v.dtype);
	like.shape[0] = index.shape[0];
	y = vfm_var_new(t, like);
	a.y = y->v;
	FORWARD(index_select, &a);
	vfm_record_ctx(t, index_select_backward, y, &x, 1, &index, sizeof(index));
	return y;
}

/* ---- two sets of rows as one ---- */

static struct vfm_tensor like_rows(const struct vfm_var *x, int64_t rows)
{
	struct vfm_tensor like = vfm_like(&x->v, x->v.dtype);

	like.shape[0] = rows;
	return like;
}

static int join_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	const struct vfm_row_parts *p = n->ctx;
	struct vfm_index_select a = {.x = n->out->g};
	struct vfm_grad_tmp tmp;

	for (int k = 0; k < p->n; k++) {
		if (!vfm_wants_grad(n->in[k]))
			continue;
		TRY(vfm_grad_begin(t, n->in[k], &tmp, err));
		a.index = p->at[k];
		a.y = tmp.g;
		TRY(BACKWARD(index_select, &a));
		TRY(vfm_grad_end(t, n->in[k], &tmp, err));
	}
	return 0;
}

struct vfm_var *vfm_g_join_rows(struct vfm_tape *t, struct vfm_var *const *part, const struct vfm_row_parts *p)
{
	struct vfm_var *y, *in[VFM_ROW_PARTS];

	if (vfm_tape_failed(t))
		return part[0];
	y = vfm_result_new(t, like_rows(part[0], p->from[0].shape[0]));
	for (int k = 0; k < p->n; k++) {
		struct vfm_index_select a = {.x = vfm_read(part[k]), .index = p->from[k], .y = y->v, .keep = k > 0};

		in[k] = part[k];
		if (y->v.data)
			FORWARD(index_select, &a);
	}
	vfm_record_ctx(t, join_backward, y, in, p->n, p, sizeof(*p));
	return y;
}

struct part_of_rows {
	struct vfm_tensor from;
};

/* The first part that arrives sets the other rows to zero; later, these are those of the other part. */
static int part_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	struct vfm_index_select a = {.x = n->out->g, .index = ((const struct part_of_rows *)n->ctx)->from};

	TRY(vfm_grad_into(t, n->in[0], &a.y, &a.keep, err));
	return BACKWARD(index_select, &a);
}

struct vfm_var *vfm_g_part_of_rows(struct vfm_tape *t, struct vfm_var *x, int k, const struct vfm_row_parts *p)
{
	struct vfm_index_select a = {.index = p->at[k]};
	const struct part_of_rows ctx = {p->from[k]};
	struct vfm_var *y;

	if (vfm_tape_failed(t))
		return x;
	a.x = vfm_read(x);
	y = vfm_var_new(t, like_rows(x, p->at[k].shape[0]));
	a.y = y->v;
	FORWARD(index_select, &a);
	vfm_record_ctx(t, part_backward, y, &x, 1, &ctx, sizeof(ctx));
	return y;
}

/* dx[i] = weight[i] dy[index[i]]; dweight[i] = x[i] dy[index[i]] */
static int index_add_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	const struct vfm_index_add *fwd = n->ctx;
	struct vfm_var *x = n->in[0], *weight = n->in[1];
	struct vfm_index_select dx = {.x = n->out->g, .index = fwd->index, .weight = fwd->weight};
	struct vfm_index_dot dw = {.x = fwd->x, .y = n->out->g, .index = fwd->index};
	struct vfm_grad_tmp tmp;

	if (vfm_wants_grad(weight)) {
		TRY(vfm_grad_begin(t, weight, &tmp, err));
		dw.dot = vfm_t1(tmp.g.data, tmp.g.dtype, vfm_numel(&tmp.g));
		TRY(BACKWARD(index_dot, &dw));
		TRY(vfm_grad_end(t, weight, &tmp, err));
	}
	if (!vfm_wants_grad(x))
		return 0;
	TRY(vfm_grad_begin(t, x, &tmp, err));
	dx.y = tmp.g;
	TRY(BACKWARD(index_select, &dx));
	return vfm_grad_end(t, x, &tmp, err);
}

struct vfm_var *vfm_g_index_add(struct vfm_tape *t, struct vfm_var *x, struct vfm_tensor index, struct vfm_var *weight,
	int64_t rows, enum vfm_dtype out)
{
	struct vfm_index_add a = {.index = index};
	struct vfm_var *y, *in[] = {x, weight};
	struct vfm_node *n;

	if (vfm_tape_failed(t))
		return x;
	a.x = vfm_read(x);
	if (weight) {
		struct vfm_tensor w = vfm_read(weight);

		a.weight = vfm_t1(w.data, w.dtype, vfm_numel(&w));
	}
	y = vfm_var_new(t, vfm_t2(NULL, out, rows, x->v.shape[1]));
	a.y = y->v;
	FORWARD(index_add, &a);
	n = vfm_record_ctx(t, index_add_backward, y, in, 2, &a, sizeof(a));
	vfm_save(n, weight);
	if (vfm_wants_grad(weight))
		vfm_save(n, x);
	return y;
}

/* ---- SwiGLU ---- */

static int swiglu_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	struct vfm_swiglu_bwd a = {.x = *(struct vfm_tensor *)n->ctx, .dy = n->out->g};
	struct vfm_grad_tmp tmp;

	TRY(vfm_grad_begin(t, n->in[0], &tmp, err));
	a.dx = tmp.g;
	TRY(BACKWARD(swiglu_bwd, &a));
	return vfm_grad_end(t, n->in[0], &tmp, err);
}

struct vfm_var *vfm_g_swiglu(struct vfm_tape *t, struct vfm_var *x)
{
	struct vfm_swiglu a;
	struct vfm_var *y;
	struct vfm_node *n;

	if (vfm_tape_failed(t))
		return x;
	y = vfm_var_new(t, vfm_t2(NULL, x->v.dtype, x->v.shape[0], x->v.shape[1] / 2));
	a = (struct vfm_swiglu){.x = vfm_read(x), .y = y->v};
	FORWARD(swiglu, &a);
	n = vfm_record_ctx(t, swiglu_backward, y, &x, 1, &a.x, sizeof(a.x));
	vfm_save(n, x);
	return y;
}

/* ---- table embeddings ---- */

static int embed3_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	struct vfm_embed3_bwd a = {.dy = n->out->g, .pos = *(struct vfm_tensor *)n->ctx};
	struct vfm_tensor *dst[] = {&a.dtable_t, &a.dtable_h, &a.dtable_w};

	for (int i = 0; i < 3; i++)
		if (vfm_wants_grad(n->in[i]))
			TRY(vfm_grad_add(t, n->in[i], dst[i], err));
	return BACKWARD(embed3_bwd, &a);
}

struct vfm_var *vfm_g_embed3(struct vfm_tape *t, struct vfm_var *table_t, struct vfm_var *table_h,
	struct vfm_var *table_w, struct vfm_tensor pos, enum vfm_dtype out)
{
	struct vfm_var *y, *in[] = {table_t, table_h, table_w};
	struct vfm_embed3 a;

	if (vfm_tape_failed(t))
		return table_t;
	y = vfm_var_new(t, vfm_t2(NULL, out, pos.shape[0], table_t->v.shape[1]));
	a = (struct vfm_embed3){
		.table_t = table_t->v, .table_h = table_h->v, .table_w = table_w->v, .pos = pos, .out = y->v};
	FORWARD(embed3, &a);
	vfm_record_ctx(t, embed3_backward, y, in, 3, &pos, sizeof(pos));
	return y;
}

/* ---- columns ---- */

struct vfm_var *vfm_g_join_inputs(
	struct vfm_tape *t, const struct vfm_tensor *a, const struct vfm_tensor *b, enum vfm_dtype out)
{
	struct vfm_var *y = vfm_var_new(t, vfm_t2(NULL, out, a->shape[0], a->shape[1] + b->shape[1]));
	struct vfm_axpby left = {.alpha = 1, .x = *a}, right = {.alpha = 1, .x = *b};

	if (vfm_tape_failed(t))
		return y;
	left.y = vfm_cols(&y->v, 0, a->shape[1]);
	right.y = vfm_cols(&y->v, a->shape[1], b->shape[1]);
	FORWARD(axpby, &left);
	FORWARD(axpby, &right);
	return y;
}
