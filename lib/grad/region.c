/* Regions: what runs a second time in the backward, and what of its first run is kept for that. */
#include "grad/tape_impl.h"

#include <stdlib.h>

struct region {
	struct vfm_var *(*fn)(struct vfm_tape *t, void *ctx);
	void *ctx;
	struct stash stash;
	/* What lies on the host until the backward comes: the store of the first input, if `x`, and the stash. */
	struct vfm_var *x;
	bool away;
	struct region *before; /* the one that the backward will come to next */
};

bool vfm_tape_again(const struct vfm_tape *t)
{
	return t->again;
}

bool vfm_kept(struct vfm_tape *t, struct vfm_var **out, int n)
{
	struct stash *k = t->stash;

	if (!k || !k->replay || t->rc < 0)
		return false;
	for (int i = 0; i < n; i++) {
		/* The variable was made with memory of its own: exchange it. */
		vfm_store_unref(out[i]->vs);
		out[i]->vs = k->store[k->next++];
		out[i]->v.data = out[i]->vs->data;
	}
	return true;
}

void vfm_keep(struct vfm_tape *t, struct vfm_var **out, int n)
{
	struct stash *k = t->stash;

	if (!k || k->replay || t->rc < 0)
		return;
	vfm_grow(&k->store, &k->cap, k->n + (size_t)n, sizeof(struct vfm_store *));
	for (int i = 0; i < n; i++)
		k->store[k->n++] = vfm_store_ref(out[i]->vs);
}

bool vfm_kept_product(struct vfm_tape *t, struct vfm_var **out, int n)
{
	return t->stash && t->stash->light && vfm_kept(t, out, n);
}

void vfm_keep_product(struct vfm_tape *t, struct vfm_var **out, int n)
{
	if (t->stash && t->stash->light)
		vfm_keep(t, out, n);
}

static void stash_release(struct stash *k)
{
	for (size_t i = k->next; i < k->n; i++)
		vfm_store_unref(k->store[i]);
	free(k->store);
	*k = (struct stash){0};
}

/* The region's output was made without nodes; make it again with them and go back
 * through those. */
static void region_drop(struct vfm_node *n)
{
	struct region *r = n->ctx;

	stash_release(&r->stash);
}

/* The first input, where nothing but this region, and the scope that it was made in, holds its value. */
static struct vfm_var *lone_input(struct vfm_var **in, int n_in)
{
	struct vfm_var *x = n_in > 0 ? in[0] : NULL;

	if (!x || x->parent || !x->vs || x->vs->refs > 2)
		return NULL;
	for (const struct vfm_var *v = x->views; v; v = v->next_view)
		if (v->needs_grad)
			return NULL;
	return x;
}

static int region_evict(struct vfm_tape *t, struct region *r, struct vfm_err *err)
{
	if (r->x) {
		TRY(vfm_store_evict(t->offload, r->x->vs, err));
		r->x->v.data = NULL; /* who reads it all the same is told so */
	}
	for (size_t i = 0; i < r->stash.n; i++)
		TRY(vfm_store_evict(t->offload, r->stash.store[i], err));
	r->away = true;
	r->before = t->last_region;
	t->last_region = r;
	return 0;
}

static int region_fetch(struct vfm_tape *t, const struct region *r, struct vfm_err *err)
{
	if (r->x)
		TRY(vfm_store_fetch(t->offload, r->x->vs, err));
	for (size_t i = 0; i < r->stash.n; i++)
		TRY(vfm_store_fetch(t->offload, r->stash.store[i], err));
	return 0;
}

/* This region's are there, those of the next are on the way. */
static int region_back(struct vfm_tape *t, struct region *r, struct vfm_err *err)
{
	TRY(region_fetch(t, r, err));
	if (r->x) {
		TRY(vfm_store_arrive(t->offload, r->x->vs, err));
		r->x->v.data = r->x->vs->data;
	}
	for (size_t i = 0; i < r->stash.n; i++)
		TRY(vfm_store_arrive(t->offload, r->stash.store[i], err));
	r->away = false;
	t->last_region = r->before;
	return r->before ? region_fetch(t, r->before, err) : 0;
}

static int region_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	struct region *r = n->ctx;
	int mark = vfm_scope_begin(t);
	size_t node_mark = t->n_node;
	struct stash *outer = t->stash;
	struct vfm_var *out;
	bool again = t->again;
	int rc;

	if (r->away)
		TRY(region_back(t, r, err));
	r->stash.replay = true;
	t->stash = r->stash.n ? &r->stash : NULL;
	t->again = true;
	out = r->fn(t, r->ctx);
	t->again = again;
	t->stash = outer;
	rc = vfm_tape_status(t, err);
	/* The nodes hold what they need; the rest of the second run is not kept. */
	vfm_scope_end(t, mark, NULL);
	if (rc == 0)
		rc = vfm_grad_pass(t, n->out, out, err);
	if (rc < 0) {
		while (t->n_node > node_mark)
			vfm_node_release(t->node[--t->n_node]);
	} else {
		rc = vfm_backward_to(t, node_mark, err);
	}
	return rc;
}

struct vfm_var *vfm_region(struct vfm_tape *t, enum vfm_recompute mode,
	struct vfm_var *(*fn)(struct vfm_tape *t, void *ctx), void *ctx, struct vfm_var **in, int n_in)
{
	int mark = vfm_scope_begin(t);
	bool recording = t->recording;
	struct stash *outer = t->stash;
	struct region *r;
	struct vfm_err err = {0};
	struct vfm_var *out;
	struct vfm_node *n;

	if (n_in > VFM_NODE_IN)
		vfm_tape_fail(t, vfm_fail(&err, VFM_EUSAGE, "internal: a region of %d inputs", n_in), &err);
	if (t->rc < 0)
		return &t->dead;
	if (mode == VFM_RECOMPUTE_NONE || !recording) {
		out = fn(t, ctx);
		vfm_scope_end(t, mark, out);
		return out;
	}
	r = vfm_tape_alloc(t, sizeof(*r));
	*r = (struct region){.fn = fn, .ctx = ctx};
	t->recording = false;
	r->stash.light = mode == VFM_RECOMPUTE_LIGHT;
	t->stash = mode == VFM_RECOMPUTE_SELECTIVE || mode == VFM_RECOMPUTE_LIGHT ? &r->stash : NULL;
	out = fn(t, ctx);
	t->recording = recording;
	t->stash = outer;
	vfm_scope_end(t, mark, out);
	n = vfm_record(t, region_backward, out, in, n_in);
	if (!n) {
		stash_release(&r->stash);
		return out;
	}
	n->ctx = r;
	n->drop = region_drop;
	for (int i = 0; i < n_in; i++)
		if (in[i])
			vfm_save(n, in[i]);
	if (t->offload) {
		int rc;

		r->x = lone_input(in, n_in);
		rc = region_evict(t, r, &err);
		if (rc < 0)
			vfm_tape_fail(t, rc, &err);
	}
	return out;
}
