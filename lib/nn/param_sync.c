/* Weights and gradients on their way between ranks.
 *
 * Collectives run on the side stream where there is one; `fork` lets it begin after what the compute stream has been
 * given so far, and an event for each result lets the compute stream wait for it.  All memory belongs to the compute
 * stream: what the side stream uses is freed after the compute stream has waited. */
#include <stddef.h>

#include "dev/stall.h"
#include "grad/node.h"
#include "nn/param_impl.h"

/* ---- streams ---- */

static struct vfm_stream *side(const struct vfm_params *ps)
{
	return ps->mesh->side ? ps->mesh->side : ps->stream;
}

static int record(const struct vfm_params *ps, struct vfm_event **e, struct vfm_stream *s, struct vfm_err *err)
{
	const struct vfm_dev_table *t = ps->stream->dev->t;

	if (!*e)
		*e = t->event_new(ps->stream->dev, err);
	return *e ? t->event_record(*e, s, err) : VFM_EENV;
}

/* The side stream goes on after what is on the compute stream. */
static int fork_side(struct vfm_params *ps, struct vfm_err *err)
{
	return ps->mesh->side ? vfm_stream_follow(ps->mesh->side, ps->stream, &ps->fork, err) : 0;
}

static int mark(struct vfm_params *ps, struct vfm_event **e, struct vfm_err *err)
{
	return ps->mesh->side ? record(ps, e, ps->mesh->side, err) : 0;
}

/* The compute stream goes on after the mark. */
static int join(struct vfm_params *ps, struct vfm_event *e, struct vfm_err *err)
{
	return ps->mesh->side && e ? vfm_stall_wait(e, ps->stream, VFM_STALL_COMM, err) : 0;
}

static void event_drop(const struct vfm_params *ps, struct vfm_event **e)
{
	if (*e)
		ps->stream->dev->t->event_free(*e);
	*e = NULL;
}

/* ---- buffers of units: one of those that stay, if it is free, else from the pool.  All ranks of a group choose alike.
 * ---- */

static void *buf_take(
	struct vfm_params *ps, struct vfm_unit_buf buf[2], size_t bytes, const char *what, struct vfm_err *err)
{
	for (int k = 0; k < 2; k++)
		if (buf[k].mem.p && !buf[k].used) {
			buf[k].used = true;
			return buf[k].mem.p;
		}
	return vfm_dev_alloc(ps->stream, bytes, what, err);
}

static void buf_give(struct vfm_params *ps, struct vfm_unit_buf buf[2], void *p, size_t bytes)
{
	for (int k = 0; p && k < 2; k++)
		if (buf[k].mem.p == p) {
			buf[k].used = false;
			return;
		}
	vfm_dev_free(ps->stream, p, bytes);
}

void vfm_params_sync_release(struct vfm_params *ps)
{
	const struct vfm_dev_table *t = ps->stream->dev->t;

	if (ps->mesh && ps->mesh->side && ps->hooks)
		t->stream_sync(ps->mesh->side,
			&(struct vfm_err){0}); /* its failures have been seen, or do not matter any more */
	for (int u = 0; ps->unit && u < ps->units; u++) {
		struct vfm_unit *x = &ps->unit[u];

		buf_give(ps, ps->w_buf, x->w, (size_t)x->n * vfm_dtype_size(ps->dtype));
		buf_give(ps, ps->g_buf, x->g, (size_t)x->n * 4);
		buf_give(ps, ps->g_buf, x->g_reducing, (size_t)x->n * 4);
		event_drop(ps, &x->gathered);
		event_drop(ps, &x->reduced);
	}
	for (int i = 0; i < ps->n_sec; i++) {
		event_drop(ps, &ps->sec[i].reduced);
		event_drop(ps, &ps->sec[i].fetched);
	}
	event_drop(ps, &ps->fork);
}

/* ---- small things ---- */

static bool in_unit(const struct vfm_section *s, int unit)
{
	return s->first_unit <= unit && unit <= s->last_unit;
}

/* The next gathered section of a unit after number i; NULL: no more. */
static struct vfm_section *next_gathered(const struct vfm_unit *x, int *i)
{
	while (++*i < x->ps->n_sec) {
		struct vfm_section *s = &x->ps->sec[*i];

		if (s->hold == VFM_HOLD_GATHER && in_unit(s, x->id))
			return s;
	}
	return NULL;
}

static struct vfm_tensor own_grad(const struct vfm_section *s)
{
	return vfm_t1(s->g, VFM_F32, s->own_n);
}

static int zero(struct vfm_params *ps, float *p, int64_t n, struct vfm_err *err)
{
	return n > 0 ? ps->stream->dev->t->zero(ps->stream, p, (size_t)n * 4, err) : 0;
}

/* Padding is summed and counted with the rest: it must be zero.  base: of the section's gradients. */
static int zero_gaps(struct vfm_params *ps, const struct vfm_section *s, float *base, struct vfm_err *err)
{
	int64_t at = 0;

	for (int i = 0; i < s->n_p; i++) {
		int64_t begin = s->p[i]->off - s->off;

		TRY(zero(ps, base + at, begin - at, err));
		at = begin + s->p[i]->n;
	}
	return zero(ps, base + at, s->n - at, err);
}

/* What nobody contributed to is zero. */
static int complete(struct vfm_params *ps, const struct vfm_section *s, struct vfm_err *err)
{
	for (int i = 0; i < s->n_p; i++) {
		struct vfm_var *x = &s->p[i]->var;

		if (!x->g_ready)
			TRY(zero(ps, x->g.data, s->p[i]->n, err));
		x->g_ready = true;
	}
	return 0;
}

/* ---- weights ---- */

/* Where ops find the weights of a gathered section. */
static void place_weights(struct vfm_params *ps, const struct vfm_section *s, char *w)
{
	for (int i = 0; i < s->n_p; i++)
		s->p[i]->var.v = vfm_param_tensor(s->p[i], s, w, ps->dtype);
}

static int drop_weights(struct vfm_unit *x, struct vfm_err *err)
{
	struct vfm_params *ps = x->ps;
	struct vfm_section *s;

	if (!x->w)
		return 0;
	TRY(join(ps, x->gathered, err));
	for (int i = -1; (s = next_gathered(x, &i));)
		place_weights(ps, s, NULL);
	buf_give(ps, ps->w_buf, x->w, (size_t)x->n * vfm_dtype_size(ps->dtype));
	x->w = NULL;
	return 0;
}

static int gather_unit(struct vfm_unit *x, struct vfm_err *err)
{
	struct vfm_params *ps = x->ps;
	size_t es = vfm_dtype_size(ps->dtype);
	struct vfm_section *s;

	x->w = buf_take(ps, ps->w_buf, (size_t)x->n * es, "the weights of a unit", err);
	if (!x->w)
		return VFM_EENV;
	x->joined = false;
	TRY(fork_side(ps, err));
	for (int i = -1; (s = next_gathered(x, &i));) {
		char *full = x->w + (size_t)s->buf_off * es;
		void *own = s->w ? s->w : ps->master + s->master_off;

		place_weights(ps, s, full);
		TRY(vfm_all_gather(s->shard, side(ps), vfm_t1(own, ps->dtype, s->own_n), vfm_t1(full, ps->dtype, s->n),
			NULL, err));
	}
	return mark(ps, &x->gathered, err);
}

/* Weights that were gathered after the last update. */
static int join_fetched(struct vfm_params *ps, int unit, struct vfm_err *err)
{
	for (int i = 0; ps->fetching && i < ps->n_sec; i++) {
		struct vfm_section *s = &ps->sec[i];

		if (!s->fetching || (unit >= 0 && !in_unit(s, unit)))
			continue;
		TRY(join(ps, s->fetched, err));
		s->fetching = false;
		ps->fetching--;
	}
	return 0;
}

/* Before a unit runs: its weights are there, the next unit's are on the way, others that wait for nobody are gone. */
static int weights_in(struct vfm_unit *x, int dir, struct vfm_err *err)
{
	struct vfm_params *ps = x->ps;
	int next = x->next[dir];

	TRY(join_fetched(ps, x->id, err));
	if (!x->gathers)
		return 0;
	for (int u = 0; u < ps->units; u++)
		if (u != x->id && u != next && !ps->unit[u].running)
			TRY(drop_weights(&ps->unit[u], err));
	if (!x->w)
		TRY(gather_unit(x, err));
	if (!x->joined)
		TRY(join(ps, x->gathered, err));
	x->joined = true;
	x->running = true;
	if (ps->last_unit >= 0)
		ps->unit[ps->last_unit].next[ps->last_dir] = x->id;
	ps->last_unit = x->id;
	ps->last_dir = dir;
	return next >= 0 && !ps->unit[next].w ? gather_unit(&ps->unit[next], err) : 0;
}

static int cast_section(struct vfm_params *ps, const struct vfm_section *s, bool cast, struct vfm_err *err)
{
	struct vfm_axpby a = {.alpha = 1};

	if (ps->split && s->matrix)
		return 0; /* the upper halves are the weights */
	a.x = vfm_t1(ps->master + s->master_off, VFM_F32, s->own_n);
	if (s->w && cast)
		a.y = vfm_t1(s->w, ps->dtype, s->own_n);
	else if (!s->w && s->hold == VFM_HOLD_WHOLE)
		a.y = vfm_t1(s->full + (size_t)s->own * 4, VFM_F32, s->own_n);
	else
		return 0;
	return vfm_op_axpby(ps->stream, &a, err);
}

int vfm_params_publish(struct vfm_params *ps, bool cast, struct vfm_err *err)
{
	int next;

	TRY(vfm_params_known(ps, err));
	TRY(join_fetched(ps, -1, err));
	for (int u = 0; u < ps->units; u++)
		TRY(drop_weights(&ps->unit[u], err));
	for (int i = 0; i < ps->n_sec; i++)
		TRY(cast_section(ps, &ps->sec[i], cast, err));
	TRY(fork_side(ps, err));
	for (int i = 0; i < ps->n_sec; i++) {
		struct vfm_section *s = &ps->sec[i];
		enum vfm_dtype dt = vfm_section_dtype(ps, s);

		if (s->hold != VFM_HOLD_WHOLE)
			continue;
		TRY(vfm_all_gather(s->shard, side(ps),
			vfm_t1(s->full + (size_t)s->own * vfm_dtype_size(dt), dt, s->own_n), vfm_t1(s->full, dt, s->n),
			NULL, err));
		TRY(mark(ps, &s->fetched, err));
		s->fetching = true;
		ps->fetching++;
	}
	/* What ran last is followed by what began the step before. */
	next = ps->last_unit >= 0 ? ps->unit[ps->last_unit].next[ps->last_dir] : -1;
	return next >= 0 ? gather_unit(&ps->unit[next], err) : 0;
}

int vfm_params_refresh(struct vfm_params *ps, struct vfm_err *err)
{
	TRY(vfm_params_publish(ps, true, err));
	return join_fetched(ps, -1, err);
}

/* ---- gradients ---- */

/* Memory for the gradients of a unit that have none between backwards. */
static int grads_in(struct vfm_unit *x, struct vfm_err *err)
{
	struct vfm_params *ps = x->ps;
	struct vfm_section *s;

	x->g = buf_take(ps, ps->g_buf, (size_t)x->n * 4, "the gradients of a unit", err);
	if (!x->g)
		return VFM_EENV;
	for (int i = -1; (s = next_gathered(x, &i));) {
		TRY(zero_gaps(ps, s, x->g + s->buf_off, err));
		for (int k = 0; k < s->n_p; k++) {
			s->p[k]->var.g = vfm_param_tensor(s->p[k], s, x->g + s->buf_off, VFM_F32);
			s->p[k]->var.g_ready = false;
		}
	}
	return 0;
}

int vfm_param_want_grad(struct vfm_var *v, struct vfm_err *err)
{
	const struct vfm_param *p = (const struct vfm_param *)((char *)v - offsetof(struct vfm_param, var));

	return grads_in(&p->ps->unit[p->unit], err);
}

/* The shard's gradient has all contributions of its shard group: the other ranks that hold it add theirs. */
static int reduce_shard(struct vfm_params *ps, struct vfm_section *s, struct vfm_err *err)
{
	s->reducing = true;
	if (s->tp_sum)
		TRY(vfm_all_reduce(ps->mesh->tp_side, side(ps), own_grad(s), err));
	if (s->replica->size > 1)
		TRY(vfm_all_reduce(s->replica, side(ps), own_grad(s), err));
	return mark(ps, &s->reduced, err);
}

static int reduce_section(struct vfm_params *ps, struct vfm_section *s, struct vfm_err *err)
{
	TRY(complete(ps, s, err));
	TRY(fork_side(ps, err));
	if (s->hold == VFM_HOLD_WHOLE)
		TRY(vfm_reduce_scatter(s->shard, side(ps), vfm_t1(s->grad, VFM_F32, s->n), own_grad(s), NULL, err));
	return reduce_shard(ps, s, err);
}

/* The gradients of the unit before arrive at their shards. */
static int flush_pending(struct vfm_params *ps, struct vfm_err *err)
{
	struct vfm_unit *x;
	struct vfm_section *s;
	bool last;

	if (ps->pending < 0)
		return 0;
	x = &ps->unit[ps->pending];
	ps->pending = -1;
	last = ps->packs > 0 && x->passed == ps->packs * x->passes;
	TRY(join(ps, x->reduced, err));
	for (int i = -1; (s = next_gathered(x, &i));) {
		struct vfm_axpby add = {.alpha = 1, .beta = s->g_begun ? 1 : 0, .y = own_grad(s)};

		add.x = vfm_t1(x->g_reducing + s->buf_off + s->own, VFM_F32, s->own_n);
		TRY(vfm_op_axpby(ps->stream, &add, err));
		s->g_begun = true;
	}
	buf_give(ps, ps->g_buf, x->g_reducing, (size_t)x->n * 4);
	x->g_reducing = NULL;
	if (!last)
		return 0;
	TRY(fork_side(ps, err));
	for (int i = -1; (s = next_gathered(x, &i));)
		TRY(reduce_shard(ps, s, err));
	return 0;
}

/* After the backward of such a unit.  Also where nothing was contributed: the other ranks count on this one. */
static int grads_out(struct vfm_unit *x, struct vfm_err *err)
{
	struct vfm_params *ps = x->ps;
	struct vfm_section *s;

	if (!x->gathers)
		return 0;
	if (!x->g)
		TRY(grads_in(x, err));
	TRY(flush_pending(ps, err));
	for (int i = -1; (s = next_gathered(x, &i));)
		TRY(complete(ps, s, err));
	TRY(fork_side(ps, err));
	for (int i = -1; (s = next_gathered(x, &i));) {
		float *full = x->g + s->buf_off;

		TRY(vfm_reduce_scatter(s->shard, side(ps), vfm_t1(full, VFM_F32, s->n),
			vfm_t1(full + s->own, VFM_F32, s->own_n), NULL, err));
		for (int k = 0; k < s->n_p; k++)
			s->p[k]->var.g.data = NULL;
	}
	TRY(mark(ps, &x->reduced, err));
	x->g_reducing = x->g;
	x->g = NULL;
	ps->pending = x->id;
	return 0;
}

static bool has_unit(const struct vfm_section *s, int unit)
{
	for (int i = 0; i < s->n_p; i++)
		if (s->p[i]->unit == unit)
			return true;
	return false;
}

/* The backward has passed a unit: for the last time in this step? */
static int count_pass(struct vfm_unit *x, struct vfm_err *err)
{
	struct vfm_params *ps = x->ps;

	x->passed++;
	if (ps->packs == 0 || x->passed < ps->packs * x->passes)
		return 0;
	if (x->passed > ps->packs * x->passes)
		return vfm_fail(err, VFM_EUSAGE,
			"internal: unit %d has more backwards in this step than were announced", x->id);
	for (int i = 0; i < ps->n_sec; i++) {
		struct vfm_section *s = &ps->sec[i];

		if (s->hold == VFM_HOLD_GATHER || !has_unit(s, x->id) || --s->left > 0)
			continue;
		ps->early++;
		TRY(reduce_section(ps, s, err));
	}
	return 0;
}

int vfm_params_grad_begin(struct vfm_params *ps, struct vfm_err *err)
{
	ps->packs = 0;
	ps->early = 0;
	for (int u = 0; u < ps->units; u++)
		ps->unit[u].passed = 0;
	/* A matrix's first contribution overwrites; ops add to vectors, so those start from zero. */
	for (size_t i = 0; i < ps->n; i++)
		ps->p[i]->var.g_ready = false;
	for (int i = 0; i < ps->n_sec; i++) {
		struct vfm_section *s = &ps->sec[i];

		s->left = s->units;
		s->g_begun = s->reducing = false;
		if (!s->matrix)
			TRY(zero(ps, s->grad, s->n, err));
		else if (s->hold == VFM_HOLD_WHOLE) /* the reduction before has left its traces */
			TRY(zero_gaps(ps, s, s->grad, err));
	}
	return 0;
}

void vfm_params_grad_packs(struct vfm_params *ps, int64_t packs)
{
	ps->packs = packs;
}

void vfm_params_note(const struct vfm_params *ps, bool *has_grad)
{
	for (size_t i = 0; i < ps->n; i++)
		has_grad[i] = ps->p[i]->var.g_ready;
}

void vfm_params_go_back(struct vfm_params *ps, const bool *has_grad)
{
	for (size_t i = 0; i < ps->n; i++)
		ps->p[i]->var.g_ready = has_grad[i];
}

/* A section whose reduction did not begin beside the backward. */
static int reduce_late(struct vfm_params *ps, struct vfm_section *s, struct vfm_err *err)
{
	if (s->hold != VFM_HOLD_GATHER)
		return reduce_section(ps, s, err);
	if (!s->g_begun)
		TRY(zero(ps, s->g, s->own_n, err));
	TRY(fork_side(ps, err));
	return reduce_shard(ps, s, err);
}

int vfm_params_grad_end(struct vfm_params *ps, struct vfm_err *err)
{
	TRY(flush_pending(ps, err));
	for (int i = 0; i < ps->n_sec; i++)
		if (!ps->sec[i].reducing)
			TRY(reduce_late(ps, &ps->sec[i], err));
	for (int i = 0; i < ps->n_sec; i++)
		TRY(join(ps, ps->sec[i].reduced, err));
	for (int i = 0; i < ps->n_sec; i++)
		if (ps->sec[i].all_stages)
			TRY(vfm_all_reduce(ps->mesh->group[VFM_AX_PP], ps->stream, own_grad(&ps->sec[i]), err));
	return 0;
}

/* ---- units on the tape ---- */

static int backward_in(void *ctx, struct vfm_err *err)
{
	return weights_in(ctx, VFM_DIR_BACKWARD, err);
}

static int backward_out(void *ctx, struct vfm_err *err)
{
	struct vfm_unit *x = ctx;

	(void)err;
	x->running = false;
	return 0;
}

static int weight_grads_out(void *ctx, struct vfm_err *err)
{
	TRY(grads_out(ctx, err));
	return count_pass(ctx, err);
}

static struct vfm_unit *unit_of(struct vfm_params *ps, int unit)
{
	return ps->hooks && unit >= 0 && unit < ps->units && ps->unit[unit].present ? &ps->unit[unit] : NULL;
}

void vfm_unit_begin(struct vfm_tape *t, struct vfm_params *ps, int unit)
{
	struct vfm_unit *x = unit_of(ps, unit);
	struct vfm_err err = {0};
	int rc;

	if (!x || vfm_tape_failed(t))
		return;
	if (ps->grad) {
		vfm_hook_weights(t, weight_grads_out, x);
		vfm_hook(t, backward_out, x);
	}
	rc = weights_in(x, VFM_DIR_FORWARD, &err);
	if (rc < 0)
		vfm_tape_fail(t, rc, &err);
}

void vfm_unit_end(struct vfm_tape *t, struct vfm_params *ps, int unit)
{
	struct vfm_unit *x = unit_of(ps, unit);

	if (!x)
		return;
	x->running = false;
	if (ps->grad)
		vfm_hook(t, backward_in, x);
}

struct vfm_var *vfm_unit_region(struct vfm_tape *t, struct vfm_params *ps, int unit, enum vfm_recompute mode,
	struct vfm_var *(*fn)(struct vfm_tape *t, void *ctx), void *ctx, struct vfm_var **in, int n_in)
{
	struct vfm_var *out;

	vfm_unit_begin(t, ps, unit);
	out = vfm_region(t, mode, fn, ctx, in, n_in);
	vfm_unit_end(t, ps, unit);
	return out;
}
