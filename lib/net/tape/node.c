/* node.c - variables, nodes and gradients, as ops see them. */
#include "net/tape/tape_impl.h"

#include <stdlib.h>
#include <string.h>

#include "device/dev/stall.h"
#include "spec/model/dtype.h"

/* ---- storage ---- */

static struct vfm_store *store_new(struct vfm_tape *t, size_t bytes, struct vfm_err *err)
{
	void *p = vfm_dev_alloc(t->stream, bytes, "activations", err);
	struct vfm_store *s;

	if (!p)
		return NULL;
	s = vfm_malloc(sizeof(*s));
	*s = (struct vfm_store){.stream = t->stream, .data = p, .bytes = bytes, .refs = 1};
	return s;
}

struct vfm_store *vfm_store_ref(struct vfm_store *s)
{
	if (s)
		s->refs++;
	return s;
}

void vfm_store_unref(struct vfm_store *s)
{
	if (!s || --s->refs > 0)
		return;
	vfm_store_drop_offloaded(s);
	vfm_dev_free(s->stream, s->data, s->bytes);
	free(s);
}

/* ---- errors ---- */

bool vfm_tape_failed(const struct vfm_tape *t)
{
	return t->rc < 0;
}

void vfm_tape_fail(struct vfm_tape *t, int rc, const struct vfm_err *err)
{
	if (rc == 0 || t->rc < 0)
		return;
	t->rc = rc;
	t->err = *err;
}

/* ---- in the forward ---- */

struct vfm_tensor vfm_like(const struct vfm_tensor *shape, enum vfm_dtype dt)
{
	struct vfm_tensor r = *shape;
	int64_t step = 1;

	r.data = NULL;
	r.dtype = dt;
	for (int i = r.ndim - 1; i >= 0; i--) {
		r.stride[i] = step;
		step *= r.shape[i];
	}
	return r;
}

struct vfm_var *vfm_var_new(struct vfm_tape *t, struct vfm_tensor like)
{
	struct vfm_err err = {0};
	struct vfm_var *x;

	if (t->rc < 0)
		return &t->dead;
	x = vfm_tape_alloc(t, sizeof(*x));
	x->v = like;
	x->vs = store_new(t, vfm_nbytes(&like), &err);
	if (!x->vs) {
		vfm_tape_fail(t, VFM_EENV, &err);
		return &t->dead;
	}
	x->v.data = x->vs->data;
	vfm_grow(&t->held, &t->cap_held, t->n_held + 1, sizeof(struct vfm_var *));
	t->held[t->n_held++] = x;
	return x;
}

struct vfm_tensor vfm_read(struct vfm_var *x)
{
	x->uses++;
	return x->v;
}

struct vfm_node *vfm_record(
	struct vfm_tape *t, vfm_backward backward, struct vfm_var *out, struct vfm_var **in, int n_in)
{
	struct vfm_node *n;

	for (int i = 0; i < n_in; i++)
		if (in[i] && in[i]->needs_grad)
			out->needs_grad = t->differentiates = true;
	if (!t->recording || t->rc < 0 || !out->needs_grad)
		return NULL;
	n = vfm_tape_alloc(t, sizeof(*n));
	n->backward = backward;
	n->out = out;
	for (int i = 0; i < n_in; i++)
		n->in[i] = in[i];
	vfm_grow(&t->node, &t->cap_node, t->n_node + 1, sizeof(struct vfm_node *));
	t->node[t->n_node++] = n;
	return n;
}

struct vfm_node *vfm_record_ctx(struct vfm_tape *t, vfm_backward backward, struct vfm_var *out, struct vfm_var **in,
	int n_in, const void *ctx, size_t size)
{
	struct vfm_node *n = vfm_record(t, backward, out, in, n_in);

	if (n) {
		n->ctx = vfm_tape_alloc(t, size);
		memcpy(n->ctx, ctx, size);
	}
	return n;
}

void vfm_save(struct vfm_node *n, struct vfm_var *x)
{
	while (x && x->parent)
		x = x->parent;
	if (n && x && x->vs)
		n->saved[n->n_saved++] = vfm_store_ref(x->vs);
}

/* ---- gradients ---- */

bool vfm_wants_grad(const struct vfm_var *x)
{
	return x && x->needs_grad;
}

/* Returns the slice of the parent's gradient that corresponds to the view's slice of the value. */
static struct vfm_tensor grad_slice(const struct vfm_var *view, const struct vfm_var *parent)
{
	struct vfm_tensor g = view->v;
	size_t off =
		(size_t)((const char *)view->v.data - (const char *)parent->v.data) / vfm_dtype_size(parent->v.dtype);

	g.dtype = parent->g.dtype;
	g.data = (char *)parent->g.data + off * vfm_dtype_size(g.dtype);
	return g;
}

static int grad_alloc(struct vfm_tape *t, struct vfm_var *x, struct vfm_err *err)
{
	struct vfm_tensor g = vfm_like(&x->v, x->v.dtype);

	if (vfm_has(&x->g) && x->g.data)
		return 0;
	if (x->want_grad)
		return x->want_grad(x, err);
	if (!vfm_contiguous(&x->v))
		return vfm_fail(err, VFM_EUSAGE, "internal: gradient of a strided variable that is not a view");
	x->gs = store_new(t, vfm_nbytes(&g), err);
	if (!x->gs)
		return VFM_EENV;
	g.data = x->gs->data;
	x->g = g;
	return 0;
}

static int zero_grad(struct vfm_tape *t, const struct vfm_tensor *g, struct vfm_err *err)
{
	struct vfm_axpby a = {.x = *g, .y = *g}; /* alpha 0 and beta 0: y = 0 */

	return vfm_op_axpby(t->stream, &a, err);
}

/* Zeroes the gradients of views without contributions. */
static int zero_unwritten_views(struct vfm_tape *t, struct vfm_var *x, struct vfm_err *err)
{
	for (struct vfm_var *v = x->views; v; v = v->next_view) {
		if (v->g_ready || !v->needs_grad)
			continue;
		v->g = grad_slice(v, x);
		TRY(zero_grad(t, &v->g, err));
		v->g_ready = true;
	}
	return 0;
}

/* Before the first contribution to a view of p: zeroes the gradient of p unless the views cover all of p. */
static int zero_uncovered_grad(struct vfm_tape *t, struct vfm_var *p, struct vfm_err *err)
{
	int64_t covered = 0;

	for (struct vfm_var *v = p->views; v; v = v->next_view)
		covered += v->needs_grad ? vfm_numel(&v->v) : 0;
	if (p->g_ready || covered == vfm_numel(&p->v))
		return 0;
	for (struct vfm_var *v = p->views; v; v = v->next_view)
		v->g_ready = true;
	return t->stream->dev->t->zero(t->stream, p->g.data, vfm_nbytes(&p->g), err);
}

int vfm_grad_into(struct vfm_tape *t, struct vfm_var *x, struct vfm_tensor *g, bool *accumulate, struct vfm_err *err)
{
	if (x->parent) {
		struct vfm_var *p = x->parent;

		TRY(grad_alloc(t, p, err));
		TRY(zero_uncovered_grad(t, p, err));
		/* If the parent already had a full gradient, all of its views are ready. */
		p->g_ready = true;
		x->g = grad_slice(x, p);
	} else {
		TRY(grad_alloc(t, x, err));
		if (x->g_ready)
			TRY(zero_unwritten_views(t, x, err));
		for (struct vfm_var *v = x->views; v; v = v->next_view)
			v->g_ready = true;
	}
	*accumulate = x->g_ready;
	*g = x->g;
	x->g_ready = true;
	return 0;
}

int vfm_grad_add(struct vfm_tape *t, struct vfm_var *x, struct vfm_tensor *g, struct vfm_err *err)
{
	bool accumulate;

	TRY(vfm_grad_into(t, x, g, &accumulate, err));
	return accumulate ? 0 : zero_grad(t, g, err);
}

int vfm_scratch(
	struct vfm_tape *t, struct vfm_tensor like, struct vfm_tensor *out, struct vfm_store **st, struct vfm_err *err)
{
	*st = store_new(t, vfm_nbytes(&like), err);
	if (!*st)
		return VFM_EENV;
	*out = like;
	out->data = (*st)->data;
	return 0;
}

int vfm_arrive(struct vfm_tape *t, struct vfm_var *x, struct vfm_err *err)
{
	struct vfm_event *e = x ? x->coming : NULL;

	if (!e)
		return 0;
	x->coming = NULL;
	return vfm_stall_wait(e, t->stream, VFM_STALL_COMM, err);
}

int vfm_grad_begin(struct vfm_tape *t, struct vfm_var *x, struct vfm_grad_tmp *tmp, struct vfm_err *err)
{
	bool accumulate;

	*tmp = (struct vfm_grad_tmp){0};
	if (!vfm_wants_grad(x))
		return vfm_scratch(t, vfm_like(&x->v, x->v.dtype), &tmp->g, &tmp->tmp, err);
	TRY(vfm_grad_into(t, x, &tmp->g, &accumulate, err));
	if (!accumulate)
		return 0;
	return vfm_scratch(t, vfm_like(&x->v, tmp->g.dtype), &tmp->g, &tmp->tmp, err);
}

int vfm_grad_end(struct vfm_tape *t, struct vfm_var *x, struct vfm_grad_tmp *tmp, struct vfm_err *err)
{
	struct vfm_axpby a = {.alpha = 1, .beta = 1, .x = tmp->g, .y = x->g};
	int rc = 0;

	if (tmp->tmp && vfm_wants_grad(x))
		rc = vfm_op_axpby(t->stream, &a, err);
	vfm_store_unref(tmp->tmp);
	tmp->tmp = NULL;
	return rc;
}

int vfm_grad_copy(struct vfm_tape *t, struct vfm_tensor g, struct vfm_var *x, struct vfm_err *err)
{
	struct vfm_axpby a = {.alpha = 1, .x = g};
	bool accumulate;

	TRY(vfm_grad_into(t, x, &a.y, &accumulate, err));
	a.beta = accumulate ? 1 : 0;
	return vfm_op_axpby(t->stream, &a, err);
}

int vfm_grad_pass(struct vfm_tape *t, struct vfm_var *y, struct vfm_var *x, struct vfm_err *err)
{
	if (!x->g_ready && !x->parent && !x->g.data && y->gs && y->g.dtype == x->v.dtype) {
		x->g = y->g;
		x->gs = vfm_store_ref(y->gs);
		x->g_ready = true;
		for (struct vfm_var *v = x->views; v; v = v->next_view)
			v->g_ready = true;
		return 0;
	}
	return vfm_grad_copy(t, y->g, x, err);
}

/* ---- nodes in reverse order ---- */

void vfm_node_release(struct vfm_node *n)
{
	for (int i = 0; i < n->n_saved; i++)
		vfm_store_unref(n->saved[i]);
	n->n_saved = 0;
	vfm_store_unref(n->out->gs);
	n->out->gs = NULL;
	n->out->g = (struct vfm_tensor){0};
	n->out->g_ready = false;
	if (n->drop)
		n->drop(n);
}

int vfm_backward_to(struct vfm_tape *t, size_t mark, struct vfm_err *err)
{
	int rc = 0;

	while (t->n_node > mark) {
		struct vfm_node *n = t->node[--t->n_node];

		if (n->out->g_ready && rc == 0) {
			rc = zero_unwritten_views(t, n->out, err);
			if (rc == 0)
				rc = n->backward(t, n, err);
		}
		vfm_node_release(n);
	}
	return rc;
}
