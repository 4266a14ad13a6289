/* Transfers of weights and gradients between ranks.
 *
 * Reductions run on mesh->param_stream, if the mesh has one, and all-gathers on mesh->gather_stream, with communicators
 * of their own.  Every rank enqueues the collectives of both streams in the same order.  fork_stream makes a stream
 * wait for the work enqueued on the compute stream so far; an event per result makes the compute stream wait for it.
 * Memory that another stream uses is freed after the compute stream has waited. */
#include <stddef.h>

#include "comm/coll/comm.h"
#include "comm/coll/comm_nodes.h"
#include "device/dev/stall.h"
#include "net/nn/param_impl.h"
#include "net/tape/deferred.h"
#include "net/tape/node.h"

/* ---- streams ---- */

static struct vfm_stream *param_stream(const struct vfm_params *ps)
{
	return ps->mesh->param_stream ? ps->mesh->param_stream : ps->stream;
}

static struct vfm_stream *gather_stream(const struct vfm_params *ps)
{
	return ps->mesh->gather_stream ? ps->mesh->gather_stream : param_stream(ps);
}

/* Makes s wait for the work that the compute stream has so far. */
static int fork_stream(struct vfm_params *ps, struct vfm_stream *s, struct vfm_err *err)
{
	return vfm_stream_follow(s, ps->stream, &ps->fork, err);
}

/* *e stays NULL on the compute stream. */
static int record_stream(const struct vfm_params *ps, struct vfm_event **e, struct vfm_stream *s, struct vfm_err *err)
{
	const struct vfm_dev_table *t = ps->stream->dev->t;

	if (s == ps->stream)
		return 0;
	if (!*e)
		*e = t->event_new(ps->stream->dev, err);
	return *e ? t->event_record(*e, s, err) : VFM_EENV;
}

/* Makes the compute stream wait for e. */
static int wait_for_event(struct vfm_params *ps, struct vfm_event *e, struct vfm_err *err)
{
	return e ? vfm_stall_wait(e, ps->stream, VFM_STALL_COMM, err) : 0;
}

/* Tells the device that collectives on s overlap with what the compute stream gets from here on, or no longer do. */
static void set_busy(const struct vfm_params *ps, const struct vfm_stream *s, unsigned what, bool busy)
{
	struct vfm_dev *d = ps->stream->dev;

	d->comm_busy = busy && s != ps->stream ? d->comm_busy | what : d->comm_busy & ~what;
}

/* Call when the work that overlaps the compute stream has changed. */
static void set_weights_busy(const struct vfm_params *ps)
{
	set_busy(ps, gather_stream(ps), VFM_COMM_WEIGHTS, ps->unit_gathers > 0);
	if (!ps->updating)
		ps->stream->dev->side.flops = 0;
	if (!ps->gathering)
		ps->stream->dev->side.gather_flops = 0;
}

static void free_event(const struct vfm_params *ps, struct vfm_event **e)
{
	if (*e)
		ps->stream->dev->t->event_free(*e);
	*e = NULL;
}

/* ---- buffers of units ---- */

/* Returns a free permanent buffer, or else memory of the pool.  All ranks of a group choose the same. */
static void *take_unit_buf(
	struct vfm_params *ps, struct vfm_unit_buf buf[2], size_t bytes, const char *what, struct vfm_err *err)
{
	for (int k = 0; k < 2; k++)
		if (buf[k].mem.p && !buf[k].used) {
			buf[k].used = true;
			return buf[k].mem.p;
		}
	return vfm_dev_alloc(ps->stream, bytes, what, err);
}

static void return_unit_buf(struct vfm_params *ps, struct vfm_unit_buf buf[2], void *p, size_t bytes)
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

	/* failures were reported before, or no longer matter */
	if (ps->mesh && ps->mesh->param_stream && ps->hooks)
		t->stream_sync(ps->mesh->param_stream, &(struct vfm_err){0});
	if (ps->mesh && ps->mesh->gather_stream && ps->hooks)
		t->stream_sync(ps->mesh->gather_stream, &(struct vfm_err){0});
	for (int u = 0; ps->unit && u < ps->units; u++) {
		struct vfm_unit *x = &ps->unit[u];

		return_unit_buf(ps, ps->w_buf, x->w, (size_t)x->w_bytes);
		return_unit_buf(ps, ps->g_buf, x->g, (size_t)x->n_grad * 4);
		return_unit_buf(ps, ps->g_buf, x->g_reducing, (size_t)x->n_grad * 4);
		vfm_unit_drop_decoded(x);
		free_event(ps, &x->gathered);
		free_event(ps, &x->reduced);
	}
	for (int i = 0; i < ps->n_buckets; i++) {
		free_event(ps, &ps->bucket[i].reduced);
		free_event(ps, &ps->bucket[i].ready);
	}
	free_event(ps, &ps->fork);
}

/* ---- helpers ---- */

static bool in_unit(const struct vfm_param_bucket *s, int unit)
{
	return s->first_unit <= unit && unit <= s->last_unit;
}

/* Returns the next VFM_SHARDING_FULL bucket of a unit after index *i and before `end`, or NULL. */
static struct vfm_param_bucket *next_full_before(const struct vfm_unit *x, int *i, int end)
{
	while (++*i < end) {
		struct vfm_param_bucket *s = &x->ps->bucket[*i];

		if (s->sharding == VFM_SHARDING_FULL && in_unit(s, x->id))
			return s;
	}
	return NULL;
}

static struct vfm_param_bucket *next_full_bucket(const struct vfm_unit *x, int *i)
{
	return next_full_before(x, i, x->ps->n_buckets);
}

/* The same among the trained buckets. */
static struct vfm_param_bucket *next_full_trained(const struct vfm_unit *x, int *i)
{
	return next_full_before(x, i, x->ps->n_trained);
}

static struct vfm_tensor shard_grad(const struct vfm_param_bucket *s)
{
	return vfm_t1(s->g, VFM_F32, s->own_n);
}

static int zero_f32(struct vfm_params *ps, float *p, int64_t n, struct vfm_err *err)
{
	return n > 0 ? ps->stream->dev->t->zero(ps->stream, p, (size_t)n * 4, err) : 0;
}

/* Zeroes the padding of a bucket's gradients at base, because reductions and the gradient norm include it. */
static int zero_padding(struct vfm_params *ps, const struct vfm_param_bucket *s, float *base, struct vfm_err *err)
{
	int64_t at = 0;

	for (int i = 0; i < s->n_p; i++) {
		int64_t begin = s->p[i]->off - s->off;

		TRY(zero_f32(ps, base + at, begin - at, err));
		at = begin + s->p[i]->n;
	}
	return zero_f32(ps, base + at, s->n - at, err);
}

/* Zeroes the gradients without contributions. */
static int zero_missing_grads(struct vfm_params *ps, const struct vfm_param_bucket *s, struct vfm_err *err)
{
	for (int i = 0; i < s->n_p; i++) {
		struct vfm_var *x = &s->p[i]->var;

		if (!x->g_ready)
			TRY(zero_f32(ps, x->g.data, s->p[i]->n, err));
		x->g_ready = true;
	}
	return 0;
}

/* ---- weights ---- */

void vfm_bucket_set_weights(struct vfm_params *ps, const struct vfm_param_bucket *s, char *w)
{
	for (int i = 0; i < s->n_p; i++)
		s->p[i]->var.v = vfm_param_tensor(s->p[i], s, w, ps->dtype);
}

/* Makes the compute stream wait for the weights of a unit. */
static int join_unit(struct vfm_unit *x, struct vfm_err *err)
{
	if (x->joined)
		return 0;
	if (x->fetched)
		TRY(vfm_stall_wait(x->fetch_done, x->ps->stream, VFM_STALL_COPY, err));
	x->joined = true;
	if (!x->w)
		return 0;
	TRY(wait_for_event(x->ps, x->gathered, err));
	x->ps->unit_gathers--;
	set_weights_busy(x->ps);
	return 0;
}

/* Returns whether ops read a bucket in fetched weights. */
static bool reads_fetched(const struct vfm_unit *x, const struct vfm_param_bucket *s)
{
	return s->base && s->first_unit == x->id && s->stored == VFM_FROZEN_SAME && s->sharding != VFM_SHARDING_FULL;
}

static int drop_weights(struct vfm_unit *x, struct vfm_err *err)
{
	struct vfm_params *ps = x->ps;
	struct vfm_param_bucket *s;

	if (!x->ready)
		return 0;
	TRY(join_unit(x, err));
	for (int i = -1; (s = next_full_bucket(x, &i));)
		vfm_bucket_set_weights(ps, s, NULL);
	for (int i = ps->n_trained; x->fetched && i < ps->n_buckets; i++)
		if (reads_fetched(x, &ps->bucket[i]))
			vfm_bucket_set_weights(ps, &ps->bucket[i], NULL);
	if (x->w)
		return_unit_buf(ps, ps->w_buf, x->w, (size_t)x->w_bytes);
	x->w = NULL;
	vfm_unit_drop_fetched(x);
	x->ready = false;
	return 0;
}

int vfm_params_drop_units(struct vfm_params *ps, struct vfm_err *err)
{
	for (int u = 0; u < ps->units; u++)
		TRY(drop_weights(&ps->unit[u], err));
	return 0;
}

static int gather_unit(struct vfm_unit *x, struct vfm_err *err)
{
	struct vfm_params *ps = x->ps;
	struct vfm_param_bucket *s;

	x->w = take_unit_buf(ps, ps->w_buf, (size_t)x->w_bytes, "unit weights", err);
	if (!x->w)
		return VFM_EENV;
	TRY(fork_stream(ps, gather_stream(ps), err));
	if (x->fetched)
		TRY(ps->stream->dev->t->event_wait(x->fetch_done, gather_stream(ps), err));
	for (int i = -1; (s = next_full_bucket(x, &i));)
		if (s->updating)
			TRY(ps->stream->dev->t->event_wait(s->ready, gather_stream(ps), err));
	for (int i = -1; (s = next_full_bucket(x, &i));) {
		char *full = x->w + s->w_off;
		char *own = vfm_bucket_stored(ps, s);
		struct vfm_tensor shard, all = vfm_t1(full, ps->dtype, s->n);

		shard = vfm_t1(own ? (void *)own : ps->master + s->master_off, ps->dtype, s->own_n);
		if (s->stored != VFM_FROZEN_SAME) {
			shard = vfm_t1(own, VFM_U8, vfm_bucket_bytes(ps, s, s->own_n));
			all = vfm_t1(full, VFM_U8, vfm_bucket_bytes(ps, s, s->n));
		} else { /* vfm_unit_decode sets the others */
			vfm_bucket_set_weights(ps, s, full);
		}
		TRY(vfm_all_gather(s->gather, gather_stream(ps), shard, all, NULL, err));
	}
	ps->unit_gathers++;
	set_weights_busy(ps);
	return record_stream(ps, &x->gathered, gather_stream(ps), err);
}

/* Starts to bring the weights of a unit to the device. */
static int begin_unit(struct vfm_unit *x, struct vfm_err *err)
{
	struct vfm_params *ps = x->ps;

	x->ready = true;
	x->joined = false;
	TRY(vfm_unit_fetch(x, err));
	for (int i = ps->n_trained; x->fetched && i < ps->n_buckets; i++)
		if (reads_fetched(x, &ps->bucket[i]))
			vfm_bucket_set_weights(ps, &ps->bucket[i], x->fetched + ps->bucket[i].store_off);
	return x->w_bytes ? gather_unit(x, err) : 0;
}

/* Makes the compute stream wait for the last update of a bucket and its all-gather. */
static int wait_bucket(struct vfm_params *ps, struct vfm_param_bucket *s, struct vfm_err *err)
{
	if (s->gathering)
		TRY(wait_for_event(ps, s->ready, err));
	else if (s->updating)
		TRY(ps->stream->dev->t->event_wait(s->ready, ps->stream, err));
	ps->gathering -= s->gathering;
	ps->updating -= s->updating;
	s->gathering = s->updating = false;
	set_weights_busy(ps);
	return 0;
}

/* The same for the buckets of a unit; -1: of all units. */
static int wait_unit_buckets(struct vfm_params *ps, int unit, struct vfm_err *err)
{
	for (int i = 0; (ps->gathering || ps->updating) && i < ps->n_buckets; i++)
		if (unit < 0 || in_unit(&ps->bucket[i], unit))
			TRY(wait_bucket(ps, &ps->bucket[i], err));
	return 0;
}

int vfm_params_wait(struct vfm_params *ps, struct vfm_err *err)
{
	return wait_unit_buckets(ps, -1, err);
}

/* Prepares a unit to run: drops the weights of units that neither run nor come next, waits for those of this unit, and
 * starts to bring those of the next unit. */
static int acquire_arriving(struct vfm_unit *x, int dir, struct vfm_err *err)
{
	struct vfm_params *ps = x->ps;
	int next = x->next[dir];

	for (int u = 0; u < ps->units; u++)
		if (u != x->id && u != next && !ps->unit[u].running)
			TRY(drop_weights(&ps->unit[u], err));
	if (!x->ready)
		TRY(begin_unit(x, err));
	TRY(join_unit(x, err));
	x->running = true;
	if (ps->last_unit >= 0)
		ps->unit[ps->last_unit].next[ps->last_dir] = x->id;
	ps->last_unit = x->id;
	ps->last_dir = dir;
	return next >= 0 && !ps->unit[next].ready ? begin_unit(&ps->unit[next], err) : 0;
}

/* Before a unit runs. */
static int acquire_weights(struct vfm_unit *x, int dir, struct vfm_err *err)
{
	struct vfm_params *ps = x->ps;

	if (ps->gathering || ps->updating)
		TRY(wait_unit_buckets(ps, x->id, err));
	if (vfm_unit_arrives(x))
		TRY(acquire_arriving(x, dir, err));
	return vfm_unit_decode(x, err);
}

/* After a unit has run. */
static void release_weights(struct vfm_unit *x)
{
	vfm_unit_drop_decoded(x);
	x->running = false;
}

static int cast_bucket(
	struct vfm_params *ps, const struct vfm_param_bucket *s, struct vfm_stream *on, bool cast, struct vfm_err *err)
{
	struct vfm_axpby a = {.alpha = 1};

	if (ps->split && s->matrix)
		return 0; /* the bf16 part of split masters is the weights */
	a.x = vfm_t1(ps->master + s->master_off, VFM_F32, s->own_n);
	if (s->w && cast)
		a.y = vfm_t1(s->w, ps->dtype, s->own_n);
	else if (!s->w && s->sharding == VFM_SHARDING_STATE)
		a.y = vfm_t1(s->full + (size_t)s->own * 4, VFM_F32, s->own_n);
	else
		return 0;
	return vfm_op_axpby(on, &a, err);
}

/* Returns whether ops find the matrices of a bucket at the same address in every pass. */
static bool has_held_weights(const struct vfm_params *ps, const struct vfm_param_bucket *s)
{
	return s->matrix && s->sharding != VFM_SHARDING_FULL && s->stored == VFM_FROZEN_SAME &&
		!(s->base && vfm_unit_fetches(&ps->unit[s->first_unit]));
}

/* 0: the weights may change. */
static void set_version(struct vfm_params *ps, int64_t version)
{
	for (size_t i = 0; i < ps->n; i++)
		if (has_held_weights(ps, &ps->bucket[ps->p[i]->bucket]))
			ps->p[i]->var.v.version = version;
	for (size_t i = 0; i < ps->n_stack; i++)
		ps->stack[i]->var.v.version = ps->stack[i]->p[0]->var.v.version;
	ps->held = version != 0;
}

void vfm_params_hold(struct vfm_params *ps)
{
	set_version(ps, vfm_dev_version(ps->stream->dev));
}

int vfm_params_update_begin(struct vfm_params *ps, struct vfm_err *err)
{
	if (ps->held)
		set_version(ps, 0);
	TRY(vfm_params_register_buffers(ps, err));
	TRY(vfm_params_wait(ps, err));
	TRY(vfm_params_close_store(ps, err));
	return vfm_params_drop_units(ps, err);
}

/* Counts an all-gather of weights, which may end long before the forward waits for it. */
static void count_gather(const struct vfm_params *ps, const struct vfm_param_bucket *b)
{
	/* Side units move 2 TB/s (cuda_dev.c); a GPU about 300 GB/s within a node, 50 GB/s between nodes. */
	enum { WITHIN_NODE = 7, BETWEEN_NODES = 40 };
	struct vfm_dev_side *side = &ps->stream->dev->side;
	double bytes = (double)(b->n - b->own_n) * (double)vfm_dtype_size(vfm_bucket_dtype(ps, b));

	if (gather_stream(ps) != ps->stream)
		side->gather_flops +=
			bytes * side->flops_per_byte * (vfm_comm_spans_nodes(b->gather) ? BETWEEN_NODES : WITHIN_NODE);
}

/* With fsdp the weights are gathered when their unit comes next (gather_unit). */
int vfm_params_updated(struct vfm_params *ps, int i, struct vfm_stream *s, bool cast, struct vfm_err *err)
{
	struct vfm_param_bucket *b = &ps->bucket[i];
	enum vfm_dtype dt = vfm_bucket_dtype(ps, b);

	TRY(cast_bucket(ps, b, s, cast, err));
	b->updating = s != ps->stream;
	b->gathering = b->sharding == VFM_SHARDING_STATE;
	ps->updating += b->updating;
	ps->gathering += b->gathering;
	set_weights_busy(ps);
	if (!b->gathering)
		return record_stream(ps, &b->ready, s, err);
	count_gather(ps, b);
	TRY(vfm_stream_follow(gather_stream(ps), s, &ps->fork, err));
	TRY(vfm_all_gather(b->gather, gather_stream(ps),
		vfm_t1(b->full + (size_t)b->own * vfm_dtype_size(dt), dt, b->own_n), vfm_t1(b->full, dt, b->n), NULL,
		err));
	return record_stream(ps, &b->ready, gather_stream(ps), err);
}

int vfm_params_update_end(struct vfm_params *ps, struct vfm_err *err)
{
	/* After the last unit of a step comes the first unit of the next step. */
	int next = ps->last_unit >= 0 ? ps->unit[ps->last_unit].next[ps->last_dir] : -1;

	return next >= 0 ? begin_unit(&ps->unit[next], err) : 0;
}

int vfm_params_refresh(struct vfm_params *ps, struct vfm_err *err)
{
	TRY(vfm_params_update_begin(ps, err));
	for (int i = 0; i < ps->n_trained; i++)
		TRY(vfm_params_updated(ps, i, ps->stream, true, err));
	TRY(vfm_params_update_end(ps, err));
	return vfm_params_wait(ps, err);
}

/* ---- gradients ---- */

/* Allocates the gradients of the VFM_SHARDING_FULL buckets of a unit, which have no memory between backwards. */
static int alloc_unit_grads(struct vfm_unit *x, struct vfm_err *err)
{
	struct vfm_params *ps = x->ps;
	struct vfm_param_bucket *s;

	x->g = take_unit_buf(ps, ps->g_buf, (size_t)x->n_grad * 4, "unit gradients", err);
	if (!x->g)
		return VFM_EENV;
	for (int i = -1; (s = next_full_trained(x, &i));) {
		TRY(zero_padding(ps, s, x->g + s->buf_off, err));
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

	return alloc_unit_grads(&p->ps->unit[p->unit], err);
}

/* Sums the gradients of a bucket over its shard group: this rank's share of `full` becomes the sum. */
static int sum_shards(struct vfm_params *ps, const struct vfm_param_bucket *s, float *full, struct vfm_err *err)
{
	const struct vfm_comm_nodes *nodes = vfm_mesh_nodes(ps->mesh, s->shard);
	struct vfm_tensor x = vfm_t1(full, VFM_F32, s->n), own = vfm_t1(full + s->own, VFM_F32, s->own_n);

	return nodes ? vfm_nodes_reduce_scatter(nodes, param_stream(ps), x, ps->node_scratch.p, err)
		     : vfm_reduce_scatter(s->shard, param_stream(ps), x, own, NULL, err);
}

static int sum_replicas(struct vfm_params *ps, const struct vfm_param_bucket *s, struct vfm_err *err)
{
	const struct vfm_comm_nodes *nodes = vfm_mesh_nodes(ps->mesh, s->replica);

	return nodes ? vfm_nodes_all_reduce(nodes, param_stream(ps), shard_grad(s), ps->node_scratch.p, err)
		     : vfm_all_reduce(s->replica, param_stream(ps), shard_grad(s), err);
}

/* Adds the squares of a shard's gradient, if no other rank counts them. */
static int add_squares(
	struct vfm_params *ps, const struct vfm_param_bucket *s, struct vfm_stream *on, struct vfm_err *err)
{
	return s->counts_norm ? vfm_op_sumsq(on, &(struct vfm_sumsq){.x = shard_grad(s), .sum = ps->sumsq}, err) : 0;
}

/* Returns whether the squares are added as soon as the shard is reduced, which overlaps the backward.  Gradients of all
 * pp stages are final only after a sum over pp, at the end of the step.  One rank reduces nothing: it adds them at the
 * end on the compute stream, 1.2 % of a step of dit-7b with one pack.  A second stream would save half of that at most,
 * and captured packs could not use it. */
static bool adds_squares_early(const struct vfm_params *ps, const struct vfm_param_bucket *s)
{
	return !param_stream(ps)->host_only && !s->all_pp_stages;
}

/* The order is the same for buckets whose squares were added early. */
static int add_late_squares(struct vfm_params *ps, struct vfm_err *err)
{
	for (int all_pp_stages = 0; all_pp_stages < 2; all_pp_stages++)
		for (int k = 0; k < ps->n_reduced; k++) {
			const struct vfm_param_bucket *s = &ps->bucket[ps->reduced[k]];

			if (s->all_pp_stages == all_pp_stages && !adds_squares_early(ps, s))
				TRY(add_squares(ps, s, ps->stream, err));
		}
	return 0;
}

/* Sums a shard's gradient over the other ranks that hold it, after the sum over its shard group. */
static int reduce_shard(struct vfm_params *ps, struct vfm_param_bucket *s, struct vfm_err *err)
{
	s->reducing = true;
	ps->reduced[ps->n_reduced++] = (int)(s - ps->bucket);
	if (s->tp_sum)
		TRY(vfm_all_reduce(ps->mesh->tp_param, param_stream(ps), shard_grad(s), err));
	if (s->replica->size > 1)
		TRY(sum_replicas(ps, s, err));
	if (adds_squares_early(ps, s))
		TRY(add_squares(ps, s, param_stream(ps), err));
	set_busy(ps, param_stream(ps), VFM_COMM_GRADS, true);
	return record_stream(ps, &s->reduced, param_stream(ps), err);
}

static int reduce_bucket(struct vfm_params *ps, struct vfm_param_bucket *s, struct vfm_err *err)
{
	TRY(wait_bucket(ps, s, err)); /* the last update reads them; a unit that did not run has not waited */
	if (s->matrix && s->sharding == VFM_SHARDING_STATE)
		TRY(zero_padding(ps, s, s->grad, err)); /* the last reduction overwrote it */
	TRY(zero_missing_grads(ps, s, err));
	TRY(fork_stream(ps, param_stream(ps), err));
	if (s->sharding == VFM_SHARDING_STATE)
		TRY(sum_shards(ps, s, s->grad, err));
	return reduce_shard(ps, s, err);
}

/* Adds the reduce-scattered gradients of the previous unit to their shards. */
static int finish_pending_unit(struct vfm_params *ps, struct vfm_err *err)
{
	struct vfm_unit *x;
	struct vfm_param_bucket *s;
	bool last;

	if (ps->pending < 0)
		return 0;
	x = &ps->unit[ps->pending];
	ps->pending = -1;
	last = ps->packs > 0 && x->passed == ps->packs * x->passes;
	TRY(wait_for_event(ps, x->reduced, err));
	for (int i = -1; (s = next_full_trained(x, &i));) {
		struct vfm_axpby add = {.alpha = 1, .beta = s->g_begun ? 1 : 0, .y = shard_grad(s)};

		add.x = vfm_t1(x->g_reducing + s->buf_off + s->own, VFM_F32, s->own_n);
		TRY(vfm_op_axpby(ps->stream, &add, err));
		s->g_begun = true;
	}
	return_unit_buf(ps, ps->g_buf, x->g_reducing, (size_t)x->n_grad * 4);
	x->g_reducing = NULL;
	if (!last)
		return 0;
	TRY(fork_stream(ps, param_stream(ps), err));
	for (int i = -1; (s = next_full_trained(x, &i));)
		TRY(reduce_shard(ps, s, err));
	return 0;
}

/* After the backward of a unit: starts the reduce-scatter of its VFM_SHARDING_FULL buckets.  A rank without
 * contributions takes part, because the call is collective. */
static int reduce_unit_grads(struct vfm_unit *x, struct vfm_err *err)
{
	struct vfm_params *ps = x->ps;
	struct vfm_param_bucket *s;

	if (!x->n_grad)
		return 0;
	if (!x->g)
		TRY(alloc_unit_grads(x, err));
	TRY(finish_pending_unit(ps, err));
	for (int i = -1; (s = next_full_trained(x, &i));)
		TRY(zero_missing_grads(ps, s, err));
	TRY(fork_stream(ps, param_stream(ps), err));
	for (int i = -1; (s = next_full_trained(x, &i));) {
		float *full = x->g + s->buf_off;

		TRY(sum_shards(ps, s, full, err));
		for (int k = 0; k < s->n_p; k++)
			s->p[k]->var.g.data = NULL;
	}
	TRY(record_stream(ps, &x->reduced, param_stream(ps), err));
	set_busy(ps, param_stream(ps), VFM_COMM_GRADS, true);
	x->g_reducing = x->g;
	x->g = NULL;
	ps->pending = x->id;
	return 0;
}

static bool has_unit(const struct vfm_param_bucket *s, int unit)
{
	for (int i = 0; i < s->n_p; i++)
		if (s->p[i]->unit == unit)
			return true;
	return false;
}

/* Counts a backward of a unit.  After the last one of the step, reduces the buckets that are complete. */
static int count_pass(struct vfm_unit *x, struct vfm_err *err)
{
	struct vfm_params *ps = x->ps;

	x->passed++;
	if (ps->packs == 0 || x->passed < ps->packs * x->passes)
		return 0;
	if (x->passed > ps->packs * x->passes)
		return vfm_fail(err, VFM_EUSAGE,
			"internal: unit %d has more backwards in this step than were announced", x->id);
	for (int i = 0; i < ps->n_trained; i++) {
		struct vfm_param_bucket *s = &ps->bucket[i];

		if (s->sharding == VFM_SHARDING_FULL || !has_unit(s, x->id) || --s->units_left > 0)
			continue;
		ps->early++;
		TRY(reduce_bucket(ps, s, err));
	}
	return 0;
}

int vfm_params_grad_begin(struct vfm_params *ps, struct vfm_err *err)
{
	ps->packs = 0;
	ps->early = 0;
	ps->n_reduced = 0;
	for (int u = 0; u < ps->units; u++)
		ps->unit[u].passed = 0;
	/* The first contribution to a matrix overwrites.  Ops add to vectors, which therefore start from zero. */
	for (size_t i = 0; i < ps->n; i++)
		ps->p[i]->var.g_ready = false;
	for (size_t i = 0; i < ps->n_stack; i++)
		ps->stack[i]->var.g_ready = false;
	for (int i = 0; i < ps->n_trained; i++) {
		struct vfm_param_bucket *s = &ps->bucket[i];

		s->units_left = s->units;
		s->g_begun = s->reducing = false;
		if (!s->matrix)
			TRY(zero_f32(ps, s->grad, s->n, err));
	}
	return ps->stream->dev->t->zero(ps->stream, ps->sumsq.data, sizeof(double), err);
}

void vfm_params_set_packs(struct vfm_params *ps, int64_t packs)
{
	ps->packs = packs;
}

void vfm_params_save_grad_flags(const struct vfm_params *ps, bool *has_grad)
{
	for (size_t i = 0; i < ps->n; i++)
		has_grad[i] = ps->p[i]->var.g_ready;
}

void vfm_params_restore_grad_flags(struct vfm_params *ps, const bool *has_grad)
{
	for (size_t i = 0; i < ps->n; i++)
		ps->p[i]->var.g_ready = has_grad[i];
	for (size_t i = 0; i < ps->n_stack; i++)
		ps->stack[i]->var.g_ready = ps->stack[i]->p[0]->var.g_ready;
}

/* Reduces a bucket whose reduction did not overlap with the backward. */
static int reduce_bucket_at_end(struct vfm_params *ps, struct vfm_param_bucket *s, struct vfm_err *err)
{
	if (s->sharding != VFM_SHARDING_FULL)
		return reduce_bucket(ps, s, err);
	TRY(wait_bucket(ps, s, err));
	if (!s->g_begun)
		TRY(zero_f32(ps, s->g, s->own_n, err));
	TRY(fork_stream(ps, param_stream(ps), err));
	return reduce_shard(ps, s, err);
}

int vfm_params_grad_end(struct vfm_params *ps, struct vfm_err *err)
{
	TRY(finish_pending_unit(ps, err));
	for (int i = 0; i < ps->n_trained; i++)
		if (!ps->bucket[i].reducing)
			TRY(reduce_bucket_at_end(ps, &ps->bucket[i], err));
	for (int i = 0; i < ps->n_trained; i++)
		TRY(wait_for_event(ps, ps->bucket[i].reduced, err));
	set_busy(ps, param_stream(ps), VFM_COMM_GRADS, false);
	for (int i = 0; i < ps->n_trained; i++)
		if (ps->bucket[i].all_pp_stages)
			TRY(vfm_all_reduce(ps->mesh->group[VFM_AX_PP], ps->stream, shard_grad(&ps->bucket[i]), err));
	return add_late_squares(ps, err);
}

/* ---- units on the tape ---- */

static int backward_in(void *ctx, struct vfm_err *err)
{
	return acquire_weights(ctx, VFM_DIR_BACKWARD, err);
}

static int backward_out(void *ctx, struct vfm_err *err)
{
	struct vfm_unit *x = ctx;

	(void)err;
	release_weights(x);
	return 0;
}

static bool needs_weights_in_backward(const struct vfm_unit *x)
{
	return x->ps->grad && (x->ps->hooks || x->n_decoded > 0 || vfm_unit_arrives(x));
}

static int weight_grads_out(void *ctx, struct vfm_err *err)
{
	TRY(reduce_unit_grads(ctx, err));
	return count_pass(ctx, err);
}

static struct vfm_unit *find_unit(struct vfm_params *ps, int unit)
{
	return unit >= 0 && unit < ps->units && ps->unit[unit].present ? &ps->unit[unit] : NULL;
}

void vfm_unit_begin(struct vfm_tape *t, struct vfm_params *ps, int unit)
{
	struct vfm_unit *x = find_unit(ps, unit);
	struct vfm_err err = {0};

	if (!x || vfm_tape_failed(t))
		return;
	if (ps->hooks && ps->grad)
		vfm_hook_weights(t, weight_grads_out, x);
	if (needs_weights_in_backward(x))
		vfm_hook(t, backward_out, x);
	vfm_tape_fail(t, acquire_weights(x, VFM_DIR_FORWARD, &err), &err);
}

void vfm_unit_end(struct vfm_tape *t, struct vfm_params *ps, int unit)
{
	struct vfm_unit *x = find_unit(ps, unit);

	if (!x)
		return;
	release_weights(x);
	if (needs_weights_in_backward(x))
		vfm_hook(t, backward_in, x);
}
