#include "grad/tape_impl.h"

#include <stdlib.h>
#include <string.h>

#include "dev/stall.h"

struct stash { /* what one region keeps for its second run */
	struct vfm_store **store;
	size_t n, cap, next;
	bool replay, light;
};

struct hook {
	int (*fn)(void *ctx, struct vfm_err *err);
	void *ctx;
};

struct deferred {
	int (*fn)(struct vfm_tape *t, void *ctx, struct vfm_err *err);
	void *ctx;
	struct vfm_store *held[2];
};

struct vfm_tape {
	struct vfm_stream *stream;
	struct vfm_arena arena;
	struct vfm_node **node;
	size_t n_node, cap_node;
	struct vfm_var **held; /* variables whose value a scope holds */
	size_t n_held, cap_held;
	struct vfm_var **leaf; /* whose gradients stay until the reset */
	size_t n_leaf, cap_leaf;
	struct deferred *deferred; /* by a backward, until vfm_tape_weights; those before first_deferred have run */
	size_t n_deferred, cap_deferred, first_deferred;
	bool defer;
	struct vfm_stream *aside;  /* of collectives; NULL: the compute stream */
	struct vfm_event *fork, *done;
	struct vfm_var *on_its_way;     /* what a collective on it fills; NULL: nothing, or it is only waited for */
	bool hides;                     /* a backward has had a collective to compute under */
	bool away;                      /* `done` has not been waited for */
	struct vfm_tensor early;        /* rows of on_its_way … */
	int64_t early_first;            /* … from this one on */
	struct stash *stash; /* of the region that runs now; NULL: none */
	bool passing;        /* vfm_tape_passing */
	const struct vfm_pieces *pieces; /* of the next product */
	bool recording;
	bool again; /* a region runs for the second time */
	struct vfm_offload *offload;   /* NULL: what regions keep stays on the device */
	struct region *last_region;    /* of those recorded that keep something on the host */
	int rc;
	struct vfm_err err;
	struct vfm_var dead; /* what ops return after a failure */
};

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

static struct vfm_store *store_ref(struct vfm_store *s)
{
	if (s)
		s->refs++;
	return s;
}

void vfm_store_unref(struct vfm_store *s)
{
	if (!s || --s->refs > 0)
		return;
	vfm_store_away_drop(s);
	vfm_dev_free(s->stream, s->data, s->bytes);
	free(s);
}

/* ---- the tape ---- */

struct vfm_tape *vfm_tape_new(struct vfm_stream *s)
{
	struct vfm_tape *t = vfm_calloc(1, sizeof(*t));

	t->stream = s;
	t->recording = true;
	return t;
}

static void node_release(struct vfm_node *n)
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

static void deferred_drop(struct vfm_tape *t)
{
	for (size_t i = t->first_deferred; i < t->n_deferred; i++)
		for (int j = 0; j < 2; j++)
			vfm_store_unref(t->deferred[i].held[j]);
	t->n_deferred = t->first_deferred = 0;
}

void vfm_tape_reset(struct vfm_tape *t)
{
	vfm_arrive(t); /* its memory is about to go */
	deferred_drop(t);
	while (t->n_node)
		node_release(t->node[--t->n_node]);
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
	vfm_tape_set_aside(t, NULL);
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

void vfm_tape_set_offload(struct vfm_tape *t, struct vfm_offload *o)
{
	t->offload = o;
}

int vfm_tape_status(struct vfm_tape *t, struct vfm_err *err)
{
	if (t->rc < 0 && err)
		*err = t->err;
	return t->rc;
}

bool vfm_tape_failed(const struct vfm_tape *t)
{
	return t->rc < 0;
}

void vfm_tape_fail(struct vfm_tape *t, int rc, const struct vfm_err *err)
{
	if (t->rc < 0)
		return;
	t->rc = rc;
	t->err = *err;
}

void *vfm_tape_alloc(struct vfm_tape *t, size_t size)
{
	return vfm_arena_alloc(&t->arena, size);
}

/* ---- variables ---- */

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

static int hook_call(struct vfm_tape *t, void *ctx, struct vfm_err *err)
{
	struct hook *h = ctx;

	(void)t;
	return h->fn(h->ctx, err);
}

static int hook_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	return hook_call(t, n->ctx, err);
}

static int hook_weights_backward(struct vfm_tape *t, struct vfm_node *n, struct vfm_err *err)
{
	return vfm_defer(t, hook_call, n->ctx, NULL, NULL, err);
}

static void hook(struct vfm_tape *t, int (*backward)(struct vfm_tape *, struct vfm_node *, struct vfm_err *),
	int (*fn)(void *ctx, struct vfm_err *err), void *ctx)
{
	struct vfm_var *end;
	struct vfm_node *n;
	struct hook *h;

	if (!t->recording || t->rc < 0)
		return;
	end = vfm_input(t, (struct vfm_tensor){0});
	end->needs_grad = true;
	n = vfm_record(t, backward, end, NULL, 0);
	h = n->ctx = vfm_tape_alloc(t, sizeof(*h));
	*h = (struct hook){fn, ctx};
	end->g_ready = true;
}

void vfm_hook(struct vfm_tape *t, int (*fn)(void *ctx, struct vfm_err *err), void *ctx)
{
	hook(t, hook_backward, fn, ctx);
}

void vfm_hook_weights(struct vfm_tape *t, int (*fn)(void *ctx, struct vfm_err *err), void *ctx)
{
	hook(t, hook_weights_backward, fn, ctx);
}

int vfm_tape_seed(struct vfm_tape *t, struct vfm_var *x, struct vfm_tensor g, struct vfm_err *err)
{
	struct vfm_axpby a = {.alpha = 1, .x = g};
	bool accumulate;

	TRY(vfm_tape_status(t, err));
	TRY(vfm_grad_into(t, x, &a.y, &accumulate, err));
	a.beta = accumulate ? 1 : 0;
	return vfm_op_axpby(t->stream, &a, err);
}

struct vfm_var *vfm_view(struct vfm_tape *t, struct vfm_var *x, struct vfm_tensor value)
{
	struct vfm_var *y;

	if (x->arriving)
		vfm_arrive(x->arriving);
	if (t->rc < 0)
		return &t->dead;
	/* Equal views share one gradient; those of a run that recorded nothing stay out of it. */
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

struct vfm_tensor vfm_read(struct vfm_var *x)
{
	if (x->arriving)
		vfm_arrive(x->arriving);
	x->uses++;
	return x->v;
}

/* ---- scopes ---- */

int vfm_scope_begin(struct vfm_tape *t)
{
	return (int)t->n_held;
}

void vfm_scope_end(struct vfm_tape *t, int mark, struct vfm_var *keep)
{
	bool kept = false;

	vfm_arrive(t); /* what nobody has read may be freed here */
	while (t->n_held > (size_t)mark) {
		struct vfm_var *x = t->held[--t->n_held];

		if (x == keep)
			kept = true;
		else
			vfm_store_unref(x->vs);
	}
	if (kept)
		t->held[t->n_held++] = keep;
}

/* ---- recording ---- */

struct vfm_node *vfm_record(struct vfm_tape *t, int (*backward)(struct vfm_tape *, struct vfm_node *, struct vfm_err *),
	struct vfm_var *out, struct vfm_var **in, int n_in)
{
	struct vfm_node *n;

	for (int i = 0; i < n_in; i++)
		if (in[i] && in[i]->needs_grad)
			out->needs_grad = true;
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

void vfm_save(struct vfm_node *n, struct vfm_var *x)
{
	while (x->parent)
		x = x->parent;
	if (x->vs)
		n->saved[n->n_saved++] = store_ref(x->vs);
}

/* ---- gradients ---- */

bool vfm_wants_grad(const struct vfm_var *x)
{
	return x && x->needs_grad;
}

/* The slice of the parent's gradient that corresponds to the slice of its value. */
static struct vfm_tensor grad_slice(const struct vfm_var *view, const struct vfm_var *parent)
{
	struct vfm_tensor g = view->v;
	size_t off = (size_t)((const char *)view->v.data - (const char *)parent->v.data) / vfm_dtype_size(parent->v.dtype);

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
		return vfm_fail(err, VFM_EUSAGE, "internal: gradient of a strided variable that is no view");
	x->gs = store_new(t, vfm_nbytes(&g), err);
	if (!x->gs)
		return VFM_EENV;
	g.data = x->gs->data;
	x->g = g;
	return 0;
}

static int zero_rows(struct vfm_tape *t, const struct vfm_tensor *g, struct vfm_err *err)
{
	struct vfm_axpby a = {.x = *g, .y = *g}; /* alpha 0 and beta 0: zero */

	return vfm_op_axpby(t->stream, &a, err);
}

/* Views that nobody wrote to hold zero. */
static int grad_complete(struct vfm_tape *t, struct vfm_var *x, struct vfm_err *err)
{
	for (struct vfm_var *v = x->views; v; v = v->next_view) {
		if (v->g_ready || !v->needs_grad)
			continue;
		v->g = grad_slice(v, x);
		TRY(zero_rows(t, &v->g, err));
		v->g_ready = true;
	}
	return 0;
}

/* What no view covers will get no gradient: where that is so, all of it starts from zero. */
static int grad_start(struct vfm_tape *t, struct vfm_var *p, struct vfm_err *err)
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
		TRY(grad_start(t, p, err));
		/* A parent that got a whole gradient before has no unwritten views. */
		p->g_ready = true;
		x->g = grad_slice(x, p);
	} else {
		TRY(grad_alloc(t, x, err));
		if (x->g_ready)
			TRY(grad_complete(t, x, err));
		for (struct vfm_var *v = x->views; v; v = v->next_view)
			v->g_ready = true;
	}
	*accumulate = x->g_ready;
	*g = x->g;
	x->g_ready = true;
	return 0;
}

int vfm_scratch(struct vfm_tape *t, struct vfm_tensor like, struct vfm_tensor *out, struct vfm_store **st, struct vfm_err *err)
{
	*st = store_new(t, vfm_nbytes(&like), err);
	if (!*st)
		return VFM_EENV;
	*out = like;
	out->data = (*st)->data;
	return 0;
}

int vfm_grad_begin(struct vfm_tape *t, struct vfm_var *x, struct vfm_grad_tmp *tmp, struct vfm_err *err)
{
	bool accumulate;

	*tmp = (struct vfm_grad_tmp){0};
	TRY(vfm_grad_into(t, x, &tmp->g, &accumulate, err));
	if (!accumulate)
		return 0;
	return vfm_scratch(t, vfm_like(&x->v, tmp->g.dtype), &tmp->g, &tmp->tmp, err);
}

int vfm_grad_end(struct vfm_tape *t, struct vfm_var *x, struct vfm_grad_tmp *tmp, struct vfm_err *err)
{
	struct vfm_axpby a = {.alpha = 1, .beta = 1, .x = tmp->g, .y = x->g};
	int rc = 0;

	if (tmp->tmp)
		rc = vfm_op_axpby(t->stream, &a, err);
	vfm_store_unref(tmp->tmp);
	tmp->tmp = NULL;
	return rc;
}

int vfm_grad_pass(struct vfm_tape *t, struct vfm_var *y, struct vfm_var *x, struct vfm_err *err)
{
	struct vfm_axpby a = {.alpha = 1, .x = y->g};
	bool accumulate;

	if (!x->g_ready && !x->parent && !x->g.data && y->gs && y->g.dtype == x->v.dtype) {
		x->g = y->g;
		x->gs = store_ref(y->gs);
		x->g_ready = true;
		for (struct vfm_var *v = x->views; v; v = v->next_view)
			v->g_ready = true;
		return 0;
	}
	TRY(vfm_grad_into(t, x, &a.y, &accumulate, err));
	a.beta = accumulate ? 1 : 0;
	return vfm_op_axpby(t->stream, &a, err);
}

/* ---- backward ---- */

static int backward_to(struct vfm_tape *t, size_t mark, struct vfm_err *err)
{
	int rc = 0;

	while (t->n_node > mark) {
		struct vfm_node *n = t->node[--t->n_node];

		if (n->out->g_ready && rc == 0) {
			rc = grad_complete(t, n->out, err);
			if (rc == 0)
				rc = n->backward(t, n, err);
		}
		node_release(n);
	}
	return rc;
}

int vfm_tape_backward(struct vfm_tape *t, struct vfm_err *err)
{
	TRY(vfm_tape_status(t, err));
	TRY(backward_to(t, 0, err));
	return t->defer ? 0 : vfm_tape_weights(t, err);
}

/* ---- what backwards put off ---- */

enum { MOST_ASIDE = 2 }; /* weights whose gradients wait for a collective: each keeps an input and a gradient alive */

void vfm_tape_defer_weights(struct vfm_tape *t, bool on)
{
	t->defer = on;
}

/* The oldest. */
static int deferred_run(struct vfm_tape *t, struct vfm_err *err)
{
	struct deferred *d = &t->deferred[t->first_deferred++];
	int rc = d->fn(t, d->ctx, err);

	vfm_store_unref(d->held[0]);
	vfm_store_unref(d->held[1]);
	if (t->first_deferred == t->n_deferred)
		t->n_deferred = t->first_deferred = 0;
	return rc;
}

/* The oldest gradient of weights, and the hooks that wait behind it. */
static int deferred_run_one(struct vfm_tape *t, struct vfm_err *err)
{
	bool work = false;

	while (t->first_deferred < t->n_deferred) {
		bool hook = t->deferred[t->first_deferred].fn == hook_call;

		if (work && !hook)
			break;
		work |= !hook;
		TRY(deferred_run(t, err));
	}
	return 0;
}

int vfm_defer(struct vfm_tape *t, int (*fn)(struct vfm_tape *t, void *ctx, struct vfm_err *err), void *ctx, struct vfm_store *a,
	struct vfm_store *b, struct vfm_err *err)
{
	size_t waiting = 0;

	if (!t->defer && !(t->aside && t->hides))
		return fn(t, ctx, err);
	vfm_grow(&t->deferred, &t->cap_deferred, t->n_deferred + 1, sizeof(*t->deferred));
	t->deferred[t->n_deferred++] = (struct deferred){fn, ctx, {store_ref(a), store_ref(b)}};
	for (size_t i = t->first_deferred; i < t->n_deferred; i++)
		waiting += t->deferred[i].fn != hook_call;
	return t->defer || (waiting > 0 && waiting <= MOST_ASIDE) ? 0 : deferred_run_one(t, err);
}

int vfm_tape_weights(struct vfm_tape *t, struct vfm_err *err)
{
	int rc = vfm_tape_status(t, err);

	while (t->first_deferred < t->n_deferred && rc == 0)
		rc = deferred_run(t, err);
	deferred_drop(t);
	return rc;
}

/* ---- collectives beside the compute stream ---- */

void vfm_tape_set_aside(struct vfm_tape *t, struct vfm_stream *aside)
{
	const struct vfm_dev_table *d = t->stream->dev->t;

	if (!aside && t->fork)
		d->event_free(t->fork);
	if (!aside && t->done)
		d->event_free(t->done);
	if (!aside)
		t->fork = t->done = NULL;
	t->aside = aside;
}

bool vfm_tape_has_aside(const struct vfm_tape *t)
{
	return t->aside;
}

void vfm_tape_set_pieces(struct vfm_tape *t, const struct vfm_pieces *p)
{
	t->pieces = p;
}

const struct vfm_pieces *vfm_take_pieces(struct vfm_tape *t)
{
	const struct vfm_pieces *p = t->pieces;

	t->pieces = NULL;
	return p;
}

struct vfm_stream *vfm_aside_begin(struct vfm_tape *t, struct vfm_err *err)
{
	const struct vfm_dev_table *d = t->stream->dev->t;

	if (!t->aside)
		return t->stream;
	vfm_arrive(t);
	if (!t->fork)
		t->fork = d->event_new(t->stream->dev, err);
	if (!t->done)
		t->done = d->event_new(t->stream->dev, err);
	if (!t->fork || !t->done || d->event_record(t->fork, t->stream, err) < 0 || d->event_wait(t->fork, t->aside, err) < 0)
		return NULL;
	return t->aside;
}

int vfm_aside_leave(struct vfm_tape *t, struct vfm_var *x, struct vfm_tensor own, int64_t first, struct vfm_err *err)
{
	if (!t->aside)
		return 0;
	TRY(t->stream->dev->t->event_record(t->done, t->aside, err));
	t->away = true;
	t->on_its_way = x;
	t->early = own;
	t->early_first = first;
	x->arriving = t;
	return 0;
}

struct vfm_tensor vfm_early_rows(struct vfm_var *x, int64_t *first)
{
	struct vfm_tape *t = x->arriving;

	if (!t)
		return (struct vfm_tensor){0};
	x->arriving = NULL;
	t->on_its_way = NULL;
	*first = t->early_first;
	return t->early;
}

void vfm_arrive(struct vfm_tape *t)
{
	struct vfm_err err = {0};
	int rc;

	if (t->on_its_way)
		t->on_its_way->arriving = NULL;
	t->on_its_way = NULL;
	if (!t->away)
		return;
	t->away = false;
	rc = vfm_stall_wait(t->done, t->stream, VFM_STALL_COMM, &err);
	if (rc < 0)
		vfm_tape_fail(t, rc, &err);
}

int vfm_aside_end(struct vfm_tape *t, bool hide, struct vfm_err *err)
{
	const struct vfm_dev_table *d = t->stream->dev->t;

	if (!t->aside)
		return 0;
	TRY(d->event_record(t->done, t->aside, err));
	t->hides |= hide;
	if (hide && !t->defer)
		TRY(deferred_run_one(t, err));
	return vfm_stall_wait(t->done, t->stream, VFM_STALL_COMM, err);
}

/* ---- regions ---- */

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
		k->store[k->n++] = store_ref(out[i]->vs);
}

void vfm_tape_passing(struct vfm_tape *t, bool on)
{
	t->passing = on;
}

bool vfm_kept_product(struct vfm_tape *t, struct vfm_var **out, int n)
{
	const struct stash *k = t->stash;

	if (!k || !k->light)
		return false;
	return t->passing ? k->replay && t->rc == 0 : vfm_kept(t, out, n);
}

void vfm_keep_product(struct vfm_tape *t, struct vfm_var **out, int n)
{
	if (t->stash && t->stash->light && !t->passing)
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
			node_release(t->node[--t->n_node]);
	} else {
		rc = backward_to(t, node_mark, err);
	}
	return rc;
}

struct vfm_var *vfm_region(struct vfm_tape *t, enum vfm_recompute mode, struct vfm_var *(*fn)(struct vfm_tape *t, void *ctx),
	void *ctx, struct vfm_var **in, int n_in)
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
