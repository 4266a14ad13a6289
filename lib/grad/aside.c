/* What a backward puts off, and the collectives that it is computed under. */
#include "grad/tape_impl.h"

#include "dev/stall.h"

enum { MOST_ASIDE = 2 }; /* weights whose gradients wait for a collective: each keeps an input and a gradient alive */

/* ---- hooks ---- */

struct hook {
	int (*fn)(void *ctx, struct vfm_err *err);
	void *ctx;
};

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

/* ---- what backwards put off ---- */

void vfm_tape_defer_weights(struct vfm_tape *t, bool on)
{
	t->defer = on;
}

void vfm_deferred_drop(struct vfm_tape *t)
{
	for (size_t i = t->first_deferred; i < t->n_deferred; i++)
		for (int j = 0; j < 2; j++)
			vfm_store_unref(t->deferred[i].held[j]);
	t->n_deferred = t->first_deferred = 0;
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

int vfm_defer(struct vfm_tape *t, int (*fn)(struct vfm_tape *t, void *ctx, struct vfm_err *err), void *ctx,
	struct vfm_store *a, struct vfm_store *b, struct vfm_err *err)
{
	size_t waiting = 0;

	if (!t->defer && !(t->aside && t->hides))
		return fn(t, ctx, err);
	vfm_grow(&t->deferred, &t->cap_deferred, t->n_deferred + 1, sizeof(*t->deferred));
	t->deferred[t->n_deferred++] = (struct deferred){fn, ctx, {vfm_store_ref(a), vfm_store_ref(b)}};
	for (size_t i = t->first_deferred; i < t->n_deferred; i++)
		waiting += t->deferred[i].fn != hook_call;
	return t->defer || (waiting > 0 && waiting <= MOST_ASIDE) ? 0 : deferred_run_one(t, err);
}

int vfm_tape_weights(struct vfm_tape *t, struct vfm_err *err)
{
	int rc = vfm_tape_status(t, err);

	while (t->first_deferred < t->n_deferred && rc == 0)
		rc = deferred_run(t, err);
	vfm_deferred_drop(t);
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
	if (!t->fork || !t->done || d->event_record(t->fork, t->stream, err) < 0 ||
		d->event_wait(t->fork, t->aside, err) < 0)
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
	struct vfm_err second;
	int rc = 0, waited;

	if (!t->aside)
		return 0;
	TRY(t->stream->dev->t->event_record(t->done, t->aside, err));
	t->hides |= hide;
	if (hide && !t->defer)
		rc = deferred_run_one(t, err);
	/* After a failure, too: memory must not go while the collective is at it. */
	waited = vfm_stall_wait(t->done, t->stream, VFM_STALL_COMM, rc < 0 ? &second : err);
	return rc < 0 ? rc : waited;
}
