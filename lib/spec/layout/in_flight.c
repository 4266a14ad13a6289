/* in_flight.c - walks a schedule, and lists packs and messages at each backward. */
#include "spec/layout/in_flight.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct walk {
	int vpp;
	bool has_previous, has_next;  /* other pp stages before the first chunk, and after the last */
	int64_t packs, *left;         /* [packs] chunks that have not finished the pack */
	int64_t made, done;           /* packs uploaded, and finished */
	int64_t *saved, *deferred;    /* [vpp] */
	int64_t sent[VFM_UNRECEIVED]; /* messages of the last slots that sent a gradient */
	bool early;
};

static bool receives_input(const struct walk *w, int chunk)
{
	return chunk > 0 || w->has_previous;
}

static bool sends_output(const struct walk *w, int chunk)
{
	return chunk < w->vpp - 1 || w->has_next;
}

static bool receives(const struct walk *w, const struct vfm_action *a)
{
	return a->kind == VFM_DO_F ? receives_input(w, a->chunk) : a->kind == VFM_DO_B && sends_output(w, a->chunk);
}

static void upload_packs(struct walk *w, int64_t mb)
{
	int64_t most = w->early && mb + 1 < w->packs ? mb + 2 : mb + 1;

	w->made = most > w->made ? most : w->made;
}

/* Returns the messages of a slot after its backward: its input with the gradient, and its output. */
static int64_t messages_of_slot(const struct walk *w, int chunk)
{
	return 2 * receives_input(w, chunk) + sends_output(w, chunk);
}

static void finish_slot(struct walk *w, const struct vfm_action *a)
{
	w->done += --w->left[a->mb] == 0;
	if (!receives_input(w, a->chunk))
		return;
	memmove(w->sent, w->sent + 1, (VFM_UNRECEIVED - 1) * sizeof(w->sent[0]));
	w->sent[VFM_UNRECEIVED - 1] = messages_of_slot(w, a->chunk);
}

static bool is_known(const struct vfm_in_flights *f, const struct vfm_in_flight *x, int vpp)
{
	for (int i = 0; i < f->n; i++) {
		const struct vfm_in_flight *y = &f->v[i];

		if (x->chunk == y->chunk && x->packs == y->packs && x->messages == y->messages &&
			!memcmp(x->saved, y->saved, (size_t)vpp * sizeof(*x->saved)) &&
			!memcmp(x->deferred, y->deferred, (size_t)vpp * sizeof(*x->deferred)))
			return true;
	}
	return false;
}

/* next: the action after the backward, or NULL. */
static void list_backward(
	struct vfm_in_flights *f, const struct walk *w, const struct vfm_action *a, const struct vfm_action *next)
{
	struct vfm_in_flight x = {
		.chunk = a->chunk, .saved = w->saved, .deferred = w->deferred, .packs = w->made - w->done};
	size_t bytes = (size_t)w->vpp * sizeof(*x.saved);

	for (int c = 0; c < w->vpp; c++)
		x.messages += w->saved[c] * sends_output(w, c) + w->deferred[c] * messages_of_slot(w, c);
	for (int i = 0; i < VFM_UNRECEIVED; i++)
		x.messages += w->sent[i];
	x.messages += w->early && next && receives(w, next);
	if (is_known(f, &x, w->vpp))
		return;
	x.saved = vfm_calloc((size_t)w->vpp, sizeof(*x.saved));
	x.deferred = vfm_calloc((size_t)w->vpp, sizeof(*x.deferred));
	memcpy(x.saved, w->saved, bytes);
	memcpy(x.deferred, w->deferred, bytes);
	vfm_grow(&f->v, &f->cap, (size_t)f->n + 1, sizeof(*f->v));
	f->v[f->n++] = x;
}

static void walk_schedule(struct walk *w, const struct vfm_schedule *s, bool split, struct vfm_in_flights *out)
{
	for (size_t i = 0; i < s->n; i++) {
		const struct vfm_action *a = &s->a[i], *next = i + 1 < s->n ? a + 1 : NULL;

		if (a->kind == VFM_DO_F)
			upload_packs(w, a->mb);
		if (w->early && next && receives(w, next))
			upload_packs(w, next->mb);
		switch (a->kind) {
		case VFM_DO_F:
			w->saved[a->chunk]++;
			break;
		case VFM_DO_B:
			list_backward(out, w, a, next);
			w->saved[a->chunk]--;
			w->deferred[a->chunk] += split;
			if (!split)
				finish_slot(w, a);
			break;
		case VFM_DO_W:
			w->deferred[a->chunk]--;
			finish_slot(w, a);
			break;
		}
	}
}

int vfm_in_flight_list(struct vfm_in_flights *out, int schedule, int pp, int vpp, int pp_stage, int64_t packs,
	bool early, struct vfm_err *err)
{
	struct walk w = {.vpp = vpp,
		.has_previous = pp_stage > 0,
		.has_next = pp_stage < pp - 1,
		.packs = packs,
		.early = early};
	struct vfm_schedule s;

	*out = (struct vfm_in_flights){0};
	TRY(vfm_schedule_make(&s, schedule, pp, vpp, pp_stage, packs, err));
	w.left = vfm_calloc((size_t)packs, sizeof(*w.left));
	w.saved = vfm_calloc((size_t)vpp, sizeof(*w.saved));
	w.deferred = vfm_calloc((size_t)vpp, sizeof(*w.deferred));
	for (int64_t i = 0; i < packs; i++)
		w.left[i] = vpp;
	walk_schedule(&w, &s, schedule == VFM_PP_ZB, out);
	free(w.left);
	free(w.saved);
	free(w.deferred);
	vfm_schedule_release(&s);
	return 0;
}

void vfm_in_flight_release(struct vfm_in_flights *f)
{
	for (int i = 0; i < f->n; i++) {
		free(f->v[i].saved);
		free(f->v[i].deferred);
	}
	free(f->v);
	*f = (struct vfm_in_flights){0};
}
