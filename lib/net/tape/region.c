/* Regions: the parts of a forward that the backward recomputes, and the values kept for that. */
#include "net/tape/region.h"

#include <stdlib.h>

#include "net/tape/tape_impl.h"

struct region {
	struct vfm_var *(*fn)(struct vfm_tape *t, void *ctx);
	void *ctx;
	struct stash stash;
	struct vfm_var *x;       /* the first input, if its value is offloaded; else NULL */
	unsigned offload;        /* the groups that are offloaded (enum vfm_keep) */
	bool offloaded;          /* values of x and stash are on the host */
	struct region *previous; /* the region with offloaded values that the backward reaches next */
};

bool vfm_tape_recomputing(const struct vfm_tape *t)
{
	return t->recomputing;
}

bool vfm_tape_keeps_own_rows(const struct vfm_tape *t)
{
	return t->own_rows;
}

bool vfm_kept(struct vfm_tape *t, enum vfm_keep keep, struct vfm_var **out, int n)
{
	struct stash *k = t->stash;

	if (!k || !k->replay || !(k->keep & keep) || t->rc < 0)
		return false;
	for (int i = 0; i < n; i++) {
		/* Replaces the memory that the variable was made with. */
		vfm_store_unref(out[i]->vs);
		out[i]->vs = k->v[k->next++].store;
		out[i]->v.data = out[i]->vs->data;
	}
	return true;
}

void vfm_keep(struct vfm_tape *t, enum vfm_keep keep, struct vfm_var **out, int n)
{
	struct stash *k = t->stash;

	if (!k || k->replay || !(k->keep & keep) || t->rc < 0)
		return;
	vfm_grow(&k->v, &k->cap, k->n + (size_t)n, sizeof(*k->v));
	for (int i = 0; i < n; i++)
		k->v[k->n++] = (struct kept){vfm_store_ref(out[i]->vs), keep};
}

struct vfm_var *vfm_result_new(struct vfm_tape *t, struct vfm_tensor like)
{
	struct stash *k = t->stash;
	struct vfm_var *x;

	if (k && k->replay && k->results++ == k->unread && t->rc == 0) {
		like.data = NULL;
		return vfm_input(t, like);
	}
	x = vfm_var_new(t, like);
	if (k && !k->replay && t->rc == 0)
		x->result = ++k->results;
	return x;
}

/* Notes which result of the first run only ops outside the region read. */
static void note_unread(struct stash *k, const struct vfm_var *out)
{
	k->unread = out->result > 0 && out->uses == 0 && !out->views ? out->result - 1 : -1;
	k->results = 0;
}

static void stash_release(struct stash *k)
{
	for (size_t i = k->next; i < k->n; i++)
		vfm_store_unref(k->v[i].store);
	free(k->v);
	*k = (struct stash){0};
}

static void region_drop(struct vfm_node *n)
{
	struct region *r = n->ctx;

	stash_release(&r->stash);
}

/* Returns the first input if only this region and the scope that made it hold its value; else NULL. */
static struct vfm_var *sole_input(struct vfm_var **in, int n_in)
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
	TRY(vfm_offload_drain(t->offload, err));
	if (r->x) {
		TRY(vfm_store_evict(t->offload, r->x->vs, err));
		r->x->v.data = NULL; /* an op that reads it nevertheless fails */
	}
	for (size_t i = 0; i < r->stash.n; i++)
		if (r->stash.v[i].keep & r->offload)
			TRY(vfm_store_evict(t->offload, r->stash.v[i].store, err));
	r->offloaded = true;
	r->previous = t->last_region;
	t->last_region = r;
	return 0;
}

static int region_fetch(struct vfm_tape *t, const struct region *r, struct vfm_err *err)
{
	if (r->x)
		TRY(vfm_store_fetch(t->offload, r->x->vs, err));
	for (size_t i = 0; i < r->stash.n; i++)
		TRY(vfm_store_fetch(t->offload, r->stash.v[i].store, err));
	return 0;
}

int vfm_region_prefetch(struct vfm_tape *t, struct vfm_err *err)
{
	return t->last_region ? region_fetch(t, t->last_region, err) : 0;
}

/* Waits for the values of this region and starts to prefetch those of the next. */
static int region_restore(struct vfm_tape *t, struct region *r, struct vfm_err *err)
{
	TRY(region_fetch(t, r, err));
	if (r->x) {
		TRY(vfm_store_arrive(t->offload, r->x->vs, err));
		r->x->v.data = r->x->vs->data;
	}
	for (size_t i = 0; i < r->stash.n; i++)
		TRY(vfm_store_arrive(t->offload, r->stash.v[i].store, err));
	r->offloaded = false;
	t->last_region = r->previous;
	return vfm_region_prefetch(t, err);
}

/* Runs the region again with recording, because its output was made without nodes, and then the backward of the nodes.
 */
static int region_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	struct region *r = n->ctx;
	int mark = vfm_scope_begin(t);
	size_t node_mark = t->n_node;
	struct stash *outer = t->stash;
	struct vfm_var *out;
	bool recomputing = t->recomputing;
	int rc;

	if (r->offloaded)
		TRY(region_restore(t, r, err));
	r->stash.replay = true;
	t->stash = &r->stash;
	t->recomputing = true;
	out = r->fn(t, r->ctx);
	t->recomputing = recomputing;
	t->stash = outer;
	rc = vfm_tape_status(t, err);
	/* The nodes hold the values that they need; all others of the recompute are freed. */
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

struct vfm_var *vfm_region(struct vfm_tape *t, struct vfm_keeps how,
	struct vfm_var *(*fn)(struct vfm_tape *t, void *ctx), void *ctx, struct vfm_var **in, int n_in)
{
	int mark = vfm_scope_begin(t);
	bool recording = t->recording, differentiates = t->differentiates;
	struct stash *outer = t->stash;
	struct region *r;
	struct vfm_err err = {0};
	struct vfm_var *out;
	struct vfm_node *n;

	if (n_in > VFM_NODE_IN)
		vfm_tape_fail(t, vfm_fail(&err, VFM_EUSAGE, "internal: a region of %d inputs", n_in), &err);
	if (t->rc < 0)
		return &t->dead;
	if ((how.keep & VFM_KEEP_REST) || !recording) {
		bool outer_rows = t->own_rows;

		t->own_rows = how.keep & VFM_KEEP_OWN_ROWS;
		out = fn(t, ctx);
		t->own_rows = outer_rows;
		vfm_scope_end(t, mark, out);
		return out;
	}
	r = vfm_tape_alloc(t, sizeof(*r));
	*r = (struct region){.fn = fn, .ctx = ctx, .offload = how.offload, .stash = {.keep = how.keep}};
	t->recording = false;
	t->differentiates = false;
	t->stash = &r->stash;
	out = fn(t, ctx);
	note_unread(&r->stash, out);
	out->needs_grad |= t->differentiates; /* a gradient may be that of a parameter only */
	t->differentiates |= differentiates;
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
	if (t->offload && how.offload) {
		r->x = how.offload & VFM_KEEP_INPUT ? sole_input(in, n_in) : NULL;
		vfm_tape_fail(t, region_evict(t, r, &err), &err);
	}
	return out;
}
