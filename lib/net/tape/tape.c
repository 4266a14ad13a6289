/* tape.c - variables, scopes of memory, and the backward over the recorded nodes. */
#include "net/tape/deferred.h"
#include "net/tape/tape_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- the tape ---- */

struct vfm_tape *vfm_tape_new(struct vfm_stream *s)
{
	struct vfm_tape *t = vfm_calloc(1, sizeof(*t));

	t->stream = s;
	t->recording = true;
	return t;
}

void vfm_tape_reset(struct vfm_tape *t)
{
	vfm_deferred_drop(t);
	while (t->n_node)
		vfm_node_release(t->node[--t->n_node]);
	while (t->n_leaf)
		vfm_store_unref(t->leaf[--t->n_leaf]->gs);
	vfm_scope_end(t, 0, NULL);
	vfm_arena_release(&t->arena);
	t->last_region = NULL;
	t->rc = 0;
}

void vfm_tape_free(struct vfm_tape *t)
{
	if (!t)
		return;
	vfm_tape_reset(t);
	free(t->node);
	free(t->held);
	free(t->leaf);
	free(t->deferred);
	free(t);
}

struct vfm_stream *vfm_tape_stream(struct vfm_tape *t)
{
	return t->stream;
}

void vfm_tape_set_recording(struct vfm_tape *t, bool on)
{
	t->recording = on;
}

int vfm_tape_status(struct vfm_tape *t, struct vfm_err *err)
{
	if (t->rc < 0 && err)
		*err = t->err;
	return t->rc;
}

void *vfm_tape_alloc(struct vfm_tape *t, size_t size)
{
	return vfm_arena_alloc(&t->arena, size);
}

/* ---- variables ---- */

struct vfm_var *vfm_input(struct vfm_tape *t, struct vfm_tensor value)
{
	struct vfm_var *x = vfm_tape_alloc(t, sizeof(*x));

	x->v = value;
	return x;
}

struct vfm_var *vfm_leaf(struct vfm_tape *t, struct vfm_tensor value)
{
	struct vfm_var *x = vfm_input(t, value);

	x->needs_grad = t->recording;
	vfm_grow(&t->leaf, &t->cap_leaf, t->n_leaf + 1, sizeof(struct vfm_var *));
	t->leaf[t->n_leaf++] = x;
	return x;
}

struct vfm_tensor vfm_leaf_grad(const struct vfm_var *x)
{
	return x->g_ready ? x->g : (struct vfm_tensor){0};
}

int vfm_tape_seed(struct vfm_tape *t, struct vfm_var *x, struct vfm_tensor g, struct vfm_err *err)
{
	TRY(vfm_tape_status(t, err));
	return vfm_grad_copy(t, g, x, err);
}

struct vfm_var *vfm_view(struct vfm_tape *t, struct vfm_var *x, struct vfm_tensor value)
{
	struct vfm_var *y;

	if (t->rc < 0)
		return &t->dead;
	/* Equal views share one gradient.  Views made without recording have none. */
	for (y = x->views; y; y = y->next_view)
		if (y->needs_grad && t->recording && y->v.data == value.data && y->v.ndim == value.ndim &&
			!memcmp(y->v.shape, value.shape, sizeof(value.shape)))
			return y;
	y = vfm_tape_alloc(t, sizeof(*y));
	y->v = value;
	y->parent = x;
	y->needs_grad = x->needs_grad && t->recording;
	y->next_view = x->views;
	x->views = y;
	return y;
}

struct vfm_var *vfm_view_cols(struct vfm_tape *t, struct vfm_var *x, int64_t i, int64_t n)
{
	return t->rc < 0 ? &t->dead : vfm_view(t, x, vfm_cols(&x->v, i * n, n));
}

struct vfm_var *vfm_view_heads(struct vfm_tape *t, struct vfm_var *x, int64_t i, int64_t heads, int64_t d)
{
	return t->rc < 0 ? &t->dead : vfm_view(t, x, vfm_heads(&x->v, i, heads, d));
}

/* ---- scopes ---- */

int vfm_scope_begin(struct vfm_tape *t)
{
	return (int)t->n_held;
}

void vfm_scope_end_keep(struct vfm_tape *t, int mark, struct vfm_var **keep, int n)
{
	size_t kept = (size_t)mark;

	for (size_t i = (size_t)mark; i < t->n_held; i++) {
		struct vfm_var *x = t->held[i];
		int k = 0;

		while (k < n && keep[k] != x)
			k++;
		if (k < n)
			t->held[kept++] = x;
		else
			vfm_store_unref(x->vs);
	}
	if (t->n_held > kept)
		t->n_held = kept;
}

void vfm_scope_end(struct vfm_tape *t, int mark, struct vfm_var *keep)
{
	vfm_scope_end_keep(t, mark, &keep, 1);
}

/* ---- backward ---- */

int vfm_tape_backward(struct vfm_tape *t, struct vfm_err *err)
{
	TRY(vfm_tape_status(t, err));
	TRY(vfm_region_prefetch(t, err));
	TRY(vfm_backward_to(t, 0, err));
	return t->defer ? 0 : vfm_tape_weights(t, err);
}
