/* deferred.c - hooks, and the gradients of weights that a backward leaves for later. */
#include "net/tape/deferred.h"

#include "net/tape/tape_impl.h"

enum { MOST_DEFERRED = 2 }; /* layers deferred for vfm_tape_run_deferred: each keeps an input and a gradient alive */

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

static void hook(struct vfm_tape *t, vfm_backward backward, int (*fn)(void *ctx, struct vfm_err *err), void *ctx)
{
	struct hook h = {fn, ctx};
	struct vfm_var *end;

	if (!t->recording || t->rc < 0)
		return;
	end = vfm_input(t, (struct vfm_tensor){0});
	end->needs_grad = true;
	vfm_record_ctx(t, backward, end, NULL, 0, &h, sizeof(h));
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

/* ---- deferred gradients of weights ---- */

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

/* Runs the oldest. */
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

/* Runs the oldest gradient of weights and the hooks that follow it. */
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

	if (!t->defer && !t->overlaps)
		return fn(t, ctx, err);
	vfm_grow(&t->deferred, &t->cap_deferred, t->n_deferred + 1, sizeof(*t->deferred));
	t->deferred[t->n_deferred++] = (struct deferred){fn, ctx, {vfm_store_ref(a), vfm_store_ref(b)}};
	for (size_t i = t->first_deferred; i < t->n_deferred; i++)
		waiting += t->deferred[i].fn != hook_call;
	return t->defer || (waiting > 0 && waiting <= MOST_DEFERRED) ? 0 : deferred_run_one(t, err);
}

int vfm_tape_weights(struct vfm_tape *t, struct vfm_err *err)
{
	int rc = vfm_tape_status(t, err);

	while (t->first_deferred < t->n_deferred && rc == 0)
		rc = deferred_run(t, err);
	vfm_deferred_drop(t);
	return rc;
}

int vfm_tape_run_deferred(struct vfm_tape *t, struct vfm_err *err)
{
	t->overlaps = true;
	return t->defer ? 0 : deferred_run_one(t, err);
}
