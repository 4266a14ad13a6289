/* Device communicators over a transport: makes, splits and frees them, and dispatches every call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "comm/device/transport_impl.h"
#include "comm/coll/comm_sum.h"
#include "device/ops/ops.h"

/* Ids of device groups differ from those of their host communicators by this. */
#define TRANSPORT_ID_SALT 0x776972652d2d2d2dULL

/* Blocks until the library is no longer busy. */
static int wait_until_ready(struct vfm_transport_job *j, struct vfm_transport_comm *w, int rc, struct vfm_err *err)
{
	double start = vfm_now(), now;

	while (rc == VFM_TRANSPORT_BUSY) {
		TRY(vfm_transport_job_check(j, err));
		rc = j->transport->state(w, err);
		now = vfm_now();
		if (rc == VFM_TRANSPORT_BUSY && now - start > j->timeout)
			return vfm_fail(err, VFM_EENV, "%s is not connected after %.1f s: a rank is missing",
				j->transport->name, now - start);
		if (rc == VFM_TRANSPORT_BUSY)
			usleep(now - start < 0.001 ? 20 : 500);
	}
	return rc;
}

/* ---- a call: begin_call, enqueued work, end_call ---- */

static struct vfm_transport_call *next_call_record(struct vfm_transport_group *g, struct vfm_err *err)
{
	struct vfm_dev *d = g->job->compute->dev;
	struct vfm_transport_call *k;

	pthread_mutex_lock(&g->job->lock);
	vfm_transport_retire(g, 8);
	if (g->cap == 0 || g->begun - g->done == g->cap) {
		uint64_t cap = g->cap ? 2 * g->cap : 16;
		struct vfm_transport_call **ring = vfm_calloc(cap, sizeof(struct vfm_transport_call *));

		for (uint64_t i = g->done; g->cap && i < g->begun; i++)
			ring[i % cap] = g->ring[i % g->cap];
		free(g->ring);
		g->ring = ring;
		g->cap = cap;
	}
	k = g->ring[g->begun % g->cap];
	pthread_mutex_unlock(&g->job->lock);
	if (k)
		return k;
	k = vfm_calloc(1, sizeof(*k));
	k->begin = d->t->event_new(d, err);
	k->end = k->begin ? d->t->event_new(d, err) : NULL;
	g->ring[g->begun % g->cap] = k; /* the watch thread does not read it yet */
	return k->end ? k : NULL;
}

/* The rank that a call waits for: of all ranks, the next one represents the missing one. */
static int awaited_peer(const struct vfm_transport_group *g, const struct vfm_coll *c)
{
	if (c->kind != VFM_C_EXCHANGE)
		return (g->c.rank + 1) % g->c.size;
	return c->n_out ? c->from : c->to;
}

static uint64_t next_call_number(struct vfm_transport_group *g, const struct vfm_coll *c)
{
	uint64_t number = 0;

	if (c->kind != VFM_C_EXCHANGE)
		return ++g->number;
	if (c->n_in)
		number = ++g->sent[c->to];
	return c->n_out ? ++g->got[c->from] : number;
}

static int begin_call(struct vfm_transport_group *g, struct vfm_stream *s, const struct vfm_coll *c,
	struct vfm_transport_call **out, struct vfm_err *err)
{
	uint64_t number = next_call_number(g, c);
	struct vfm_transport_job *j = g->job;
	struct vfm_transport_call *k;

	if (vfm_transport_job_check(j, err) < 0) {
		vfm_transport_poison(j, err);
		return VFM_EENV;
	}
	k = next_call_record(g, err);
	if (!k)
		return VFM_EENV;
	TRY(j->compute->dev->t->event_record(k->begin, s, err));
	pthread_mutex_lock(&j->lock);
	k->state = VFM_CALL_BEGUN;
	k->kind = c->kind;
	k->peer = g->world[awaited_peer(g, c)];
	k->number = number;
	k->bytes = (uint64_t)(c->n_in > c->n_out ? c->n_in : c->n_out) * vfm_dtype_size(c->dtype);
	k->start = vfm_now();
	k->shown = false;
	k->record = j->hjob ? vfm_record_begin(j->hjob, g->c.name, (int)k->kind, number, k->bytes,
				      k->kind == VFM_C_EXCHANGE ? k->peer : -1)
			    : 0;
	g->begun++;
	pthread_mutex_unlock(&j->lock);
	*out = k;
	return 0;
}

static int end_call(struct vfm_transport_group *g, struct vfm_stream *s, struct vfm_transport_call *k, int rc,
	int64_t sent, struct vfm_err *err)
{
	struct vfm_transport_job *j = g->job;
	double took = vfm_now() - k->start;
	char who[96];

	if (rc >= 0)
		rc = j->compute->dev->t->event_record(k->end, s, err);
	pthread_mutex_lock(&j->lock);
	k->state = rc < 0 ? VFM_CALL_FAILED : VFM_CALL_ENQUEUED;
	pthread_mutex_unlock(&j->lock);
	vfm_comm_count(sent, took, j->hjob && pthread_equal(pthread_self(), j->hjob->main) ? took : 0);
	if (rc >= 0)
		return 0;
	/* The library's error may be a consequence of a failure that the monitor describes better. */
	for (double until = vfm_now() + 2; g->lost && vfm_transport_job_check(j, NULL) >= 0 && vfm_now() < until;)
		usleep(10000);
	if (vfm_transport_job_check(j, NULL) < 0)
		return vfm_transport_poison(j, err);
	vfm_err_context(
		err, "%s number %llu of '%s'", vfm_coll_name[k->kind], (unsigned long long)k->number, g->c.name);
	if (g->lost && j->hjob)
		vfm_transport_job_fail(j, NULL, "%s in %s",
			vfm_rank_str(j->hjob, g->world[g->c.rank], who, sizeof(who)), err ? err->msg : "a collective");
	else if (g->lost)
		vfm_transport_job_fail(j, NULL, "%s", err ? err->msg : "a collective failed");
	return g->lost ? vfm_transport_poison(j, err) : rc;
}

/* Completes one call of the transport within a collective. */
static int await_transport(struct vfm_transport_group *g, int rc, struct vfm_err *err)
{
	rc = wait_until_ready(g->job, g->w, rc, err);
	g->lost |= rc < 0;
	return rc;
}

/* ---- scratch ---- */

/* On the compute stream, scratch is allocated and freed in stream order.  Other streams keep theirs. */
static int alloc_group_scratch(
	struct vfm_transport_group *g, struct vfm_stream *s, size_t bytes, void **p, struct vfm_err *err)
{
	struct vfm_stream *compute = g->job->compute;

	if (s == compute) {
		*p = vfm_dev_alloc(s, bytes, "the parts of a sum over ranks", err);
		return *p ? 0 : VFM_EENV;
	}
	if (g->scratch_bytes < bytes) {
		if (g->scratch) {
			TRY(vfm_stream_follow(compute, s, &g->fence, err));
			vfm_dev_free(compute, g->scratch, g->scratch_bytes);
			g->scratch_bytes = 0;
		}
		g->scratch = vfm_dev_alloc(compute, bytes, "the parts of a sum over ranks", err);
		if (!g->scratch)
			return VFM_EENV;
		g->scratch_bytes = bytes;
		TRY(vfm_stream_follow(s, compute, &g->fence, err));
	}
	*p = g->scratch;
	return 0;
}

static void free_scratch(struct vfm_transport_group *g, struct vfm_stream *s, void *p, size_t bytes)
{
	if (s == g->job->compute)
		vfm_dev_free(s, p, bytes);
}

/* ---- messages that are enqueued together ---- */

static void queue_message(struct vfm_transport_group *g, bool send, void *p, size_t bytes, int peer)
{
	if (bytes)
		g->msg[g->n_msg++] = (struct vfm_transport_msg){p, bytes, peer, send};
}

static int send_messages(struct vfm_transport_group *g, struct vfm_stream *s, struct vfm_err *err)
{
	int n = g->n_msg;

	g->n_msg = 0;
	return n ? await_transport(g, g->job->transport->messages(g->w, s, g->msg, n, err), err) : 0;
}

static int copy_on_stream(struct vfm_stream *s, void *dst, const void *src, size_t bytes, struct vfm_err *err)
{
	return dst == src || !bytes ? 0 : s->dev->t->to_device(s, dst, src, bytes, err);
}

static bool counts_are_equal(const struct vfm_transport_group *g, const int64_t *count)
{
	for (int i = 1; count && i < g->c.size; i++)
		if (count[i] != count[0])
			return false;
	return true;
}

static int64_t sum_int64(const int64_t *count, int n)
{
	int64_t sum = 0;

	for (int i = 0; i < n; i++)
		sum += count[i];
	return sum;
}

/* ---- sums of parts, in f32, in the order of the ranks ---- */

struct part_sum {
	enum vfm_dtype dt;
	char *part; /* [size - 1] of the other ranks, `each` bytes apart */
	size_t each;
	char *own; /* of rank `me` */
	int me, size;
	int64_t n; /* elements of a part */
	void *out; /* [n]; may be own */
};

static int sum_parts_on_host(void *arg, struct vfm_err *err)
{
	struct part_sum *a = arg;
	const void **in = vfm_calloc((size_t)a->size, sizeof(*in));

	(void)err;
	for (int r = 0; r < a->size; r++)
		in[r] = r == a->me ? a->own : a->part + (size_t)(r < a->me ? r : r - 1) * a->each;
	vfm_comm_sum(a->dt, a->out, in, a->size, (size_t)a->n);
	free(in);
	return 0;
}

/* One pass over the parts. */
static int sum_parts_on_stream(struct vfm_stream *s, const struct part_sum *a, struct vfm_err *err)
{
	struct vfm_sum_parts sum = {
		.x = vfm_t2(a->part, a->dt, a->size - 1, a->n), .own = vfm_t1(a->own, a->dt, a->n), .at = a->me};

	if (s->host_only)
		return s->dev->t->host_call(s, sum_parts_on_host, a, sizeof(*a), err);
	sum.x.stride[0] = (int64_t)(a->each / vfm_dtype_size(a->dt));
	sum.y = vfm_t1(a->out, a->dt, a->n);
	return vfm_op_sum_parts(s, &sum, err);
}

/* out [count[rank]] = this rank's block of the sum of in, and may lie in in.  count [size]. */
static int reduce_parts(struct vfm_transport_group *g, struct vfm_stream *s, enum vfm_dtype dt, char *in, char *out,
	const int64_t *count, struct vfm_err *err)
{
	int size = g->c.size, me = g->c.rank;
	size_t es = vfm_dtype_size(dt), mine = (size_t)count[me] * es, each = (mine + 255) / 256 * 256, at = 0;
	size_t bytes = each * (size_t)(size - 1);
	char *tmp = NULL, *own = in + (size_t)sum_int64(count, me) * es;
	void *p = NULL;
	int rc = 0;

	if (size == 1)
		return copy_on_stream(s, out, own, mine, err);
	if (bytes)
		TRY(alloc_group_scratch(g, s, bytes, &p, err));
	tmp = p;
	for (int r = 0; r < size; r++) {
		if (r != me) {
			queue_message(g, true, in + at, (size_t)count[r] * es, r);
			queue_message(g, false, tmp + each * (size_t)(r < me ? r : r - 1), mine, r);
		}
		at += (size_t)count[r] * es;
	}
	rc = send_messages(g, s, err);
	if (rc >= 0 && bytes)
		rc = sum_parts_on_stream(s, &(struct part_sum){dt, tmp, each, own, me, size, count[me], out}, err);
	if (p)
		free_scratch(g, s, p, bytes);
	return rc;
}

/* Pads all blocks to the largest; the sums of the padding are dropped. */
static int reduce_padded(struct vfm_transport_group *g, struct vfm_stream *s, enum vfm_dtype dt, const char *in,
	char *out, const int64_t *count, struct vfm_err *err)
{
	size_t es = vfm_dtype_size(dt), each = 0, at = 0, bytes;
	void *p;
	int rc = 0;

	for (int r = 0; r < g->c.size; r++)
		each = (size_t)count[r] * es > each ? (size_t)count[r] * es : each;
	each = (each + 15) / 16 * 16;
	bytes = each * (size_t)g->c.size;
	TRY(alloc_group_scratch(g, s, bytes, &p, err));
	for (int r = 0; r < g->c.size && rc >= 0; r++) {
		rc = copy_on_stream(s, (char *)p + each * (size_t)r, in + at, (size_t)count[r] * es, err);
		at += (size_t)count[r] * es;
	}
	if (rc >= 0)
		rc = await_transport(g,
			g->job->transport->reduce_scatter(
				g->w, s, p, (char *)p + each * (size_t)g->c.rank, (int64_t)(each / es), dt, err),
			err);
	if (rc >= 0)
		rc = copy_on_stream(s, out, (char *)p + each * (size_t)g->c.rank, (size_t)count[g->c.rank] * es, err);
	free_scratch(g, s, p, bytes);
	return rc;
}

static int gather_blocks(struct vfm_transport_group *g, struct vfm_stream *s, void *in, char *out, const int64_t *count,
	size_t es, struct vfm_err *err)
{
	size_t at = 0, mine = (size_t)count[g->c.rank] * es;

	for (int r = 0; r < g->c.size; r++) {
		if (r == g->c.rank) {
			TRY(copy_on_stream(s, out + at, in, mine, err));
		} else {
			queue_message(g, true, in, mine, r);
			queue_message(g, false, out + at, (size_t)count[r] * es, r);
		}
		at += (size_t)count[r] * es;
	}
	return send_messages(g, s, err);
}

/* A reduce_scatter and an all_gather, with blocks at 16-byte boundaries. */
static int all_reduce_in_parts(
	struct vfm_transport_group *g, struct vfm_stream *s, const struct vfm_coll *c, struct vfm_err *err)
{
	int64_t n = c->n_out, each = (n + g->c.size - 1) / g->c.size, left = n;
	size_t es = vfm_dtype_size(c->dtype);
	char *own;

	each = (each + 7) / 8 * 8;
	for (int r = 0; r < g->c.size; r++) {
		g->count[r] = left < each ? left : each;
		left -= g->count[r];
	}
	own = c->out + (size_t)sum_int64(g->count, g->c.rank) * es;
	TRY(reduce_parts(g, s, c->dtype, c->in, own, g->count, err));
	return gather_blocks(g, s, own, c->out, g->count, es, err);
}

/* ---- the calls ---- */

static int reduce_scatter_blocks(
	struct vfm_transport_group *g, struct vfm_stream *s, const struct vfm_coll *c, struct vfm_err *err)
{
	if (c->dtype == VFM_BF16 && !g->job->native_bf16) {
		for (int r = 0; r < g->c.size; r++)
			g->count[r] = c->send ? c->send[r] : c->n_out;
		return reduce_parts(g, s, c->dtype, c->in, c->out, g->count, err);
	}
	if (!counts_are_equal(g, c->send))
		return reduce_padded(g, s, c->dtype, c->in, c->out, c->send, err);
	if (!c->n_out)
		return 0;
	return await_transport(
		g, g->job->transport->reduce_scatter(g->w, s, c->in, c->out, c->n_out, c->dtype, err), err);
}

static int exchange_blocks(
	struct vfm_transport_group *g, struct vfm_stream *s, const struct vfm_coll *c, struct vfm_err *err)
{
	size_t si = 0, so = 0, es = vfm_dtype_size(c->dtype);

	for (int r = 0; r < g->c.size; r++) {
		size_t a = (size_t)c->send[r] * es, b = (size_t)c->recv[r] * es;

		if (r == g->c.rank) {
			TRY(copy_on_stream(s, c->out + so, c->in + si, a, err));
		} else {
			queue_message(g, true, c->in + si, a, r);
			queue_message(g, false, c->out + so, b, r);
		}
		si += a;
		so += b;
	}
	return send_messages(g, s, err);
}

static int enqueue_transport_call(
	struct vfm_transport_group *g, struct vfm_stream *s, const struct vfm_coll *c, struct vfm_err *err)
{
	const struct vfm_transport *t = g->job->transport;
	size_t es = vfm_dtype_size(c->dtype), bytes_in = (size_t)c->n_in * es, bytes_out = (size_t)c->n_out * es;

	switch (c->kind) {
	case VFM_C_ALL_REDUCE:
		if (!c->n_out)
			return 0;
		if (c->dtype == VFM_BF16 && !g->job->native_bf16)
			return all_reduce_in_parts(g, s, c, err);
		return await_transport(g, t->all_reduce(g->w, s, c->out, c->n_out, c->dtype, err), err);
	case VFM_C_ALL_GATHER:
		if (!counts_are_equal(g, c->send))
			return gather_blocks(g, s, c->in, c->out, c->send, es, err);
		return c->n_in ? await_transport(g, t->all_gather(g->w, s, c->in, c->out, bytes_in, err), err) : 0;
	case VFM_C_REDUCE_SCATTER:
		return reduce_scatter_blocks(g, s, c, err);
	case VFM_C_ALL_TO_ALL:
		/* Ranks may have different counts: all choose the same algorithm without knowing those of the others.
		 */
		if (c->send)
			return exchange_blocks(g, s, c, err);
		bytes_in /= (size_t)g->c.size;
		return c->n_in ? await_transport(g, t->all_to_all(g->w, s, c->in, c->out, bytes_in, err), err) : 0;
	case VFM_C_BROADCAST:
		return c->n_out ? await_transport(g, t->broadcast(g->w, s, c->out, bytes_out, c->from, err), err) : 0;
	case VFM_C_EXCHANGE:
		queue_message(g, true, c->in, bytes_in, c->to);
		queue_message(g, false, c->out, bytes_out, c->from);
		return send_messages(g, s, err);
	default:
		return await_transport(g, t->all_reduce(g->w, s, g->word, 1, VFM_I64, err), err);
	}
}

static int transport_call(struct vfm_comm *comm, struct vfm_stream *s, const struct vfm_coll *c, struct vfm_err *err)
{
	struct vfm_transport_group *g = (struct vfm_transport_group *)comm;
	struct vfm_transport_call *k;

	if (c->kind == VFM_C_EXCHANGE && !c->n_in && !c->n_out)
		return vfm_transport_job_check(g->job, err);
	TRY(begin_call(g, s, c, &k, err));
	return end_call(g, s, k, enqueue_transport_call(g, s, c, err), vfm_coll_sends(comm, c), err);
}

static int transport_mem_alloc(
	struct vfm_comm *c, struct vfm_stream *s, size_t bytes, const char *what, void **p, struct vfm_err *err)
{
	struct vfm_transport_job *j = ((struct vfm_transport_group *)c)->job;
	struct vfm_err why = {0};

	*p = NULL;
	TRY(vfm_transport_job_check(j, err));
	if (j->registers && j->transport->mem_alloc && j->transport->mem_alloc(s, bytes, what, p, &why) < 0)
		*p = NULL; /* the device's pool can free memory, and reports when it cannot */
	return 0;
}

static void transport_mem_free(struct vfm_comm *c, struct vfm_stream *s, void *p, size_t bytes, const char *what)
{
	((struct vfm_transport_group *)c)->job->transport->mem_free(s, p, bytes, what);
}

/* Registers on all ranks or on none.  p NULL: this rank has no buffer. */
static int transport_register(struct vfm_comm *c, void *p, size_t bytes, void **handle, struct vfm_err *err)
{
	struct vfm_transport_group *g = (struct vfm_transport_group *)c;
	struct vfm_transport_job *j = g->job;
	struct vfm_err why = {0};
	int64_t all;
	int rc = 0;

	*handle = NULL;
	if (!j->registers || !j->transport->register_memory)
		return 0;
	TRY(vfm_transport_job_check(j, err));
	if (p)
		rc = wait_until_ready(j, g->w, j->transport->register_memory(g->w, p, bytes, handle, &why), &why);
	if (rc < 0 && !j->warned) {
		vfm_info("%s cannot register buffers, transfers are copied: %s", j->transport->name, why.msg);
		j->warned = true;
	}
	if (rc < 0)
		*handle = NULL;
	all = *handle != NULL;
	rc = vfm_all_reduce(c->host, NULL, vfm_t1(&all, VFM_I64, 1), err);
	if (rc >= 0 && all > 0 && all < c->size && c->rank == 0 && !j->warned) { /* no warning if no rank can */
		vfm_warn("only %lld of the %d ranks of '%s' can register buffers with %s: transfers are copied on all "
			 "of them",
			(long long)all, c->size, c->name, j->transport->name);
		j->warned = true;
	}
	if (*handle && (rc < 0 || all < c->size)) {
		j->transport->deregister_memory(g->w, *handle);
		*handle = NULL;
	}
	return rc;
}

static void transport_deregister(struct vfm_comm *c, void *handle)
{
	struct vfm_transport_group *g = (struct vfm_transport_group *)c;

	g->job->transport->deregister_memory(g->w, handle);
}

static const char *get_transport_name(const struct vfm_comm *c)
{
	return ((const struct vfm_transport_group *)c)->job->transport->name;
}

/* ---- groups ---- */

static void transport_job_release(struct vfm_transport_job *j)
{
	if (--j->users > 0)
		return;
	vfm_transport_watch_stop(j);
	pthread_mutex_destroy(&j->lock);
	pthread_cond_destroy(&j->wake);
	free(j);
}

static struct vfm_transport_job *transport_job_new(
	struct vfm_hjob *h, const struct vfm_transport *w, struct vfm_stream *compute, struct vfm_err *err)
{
	struct vfm_transport_job *j = vfm_calloc(1, sizeof(*j));

	*j = (struct vfm_transport_job){.transport = w, .compute = compute, .hjob = h, .timeout = h ? h->timeout : 600};
	pthread_mutex_init(&j->lock, NULL);
	pthread_cond_init(&j->wake, NULL);
	if (vfm_transport_watch_start(j, err) < 0) {
		pthread_mutex_destroy(&j->lock);
		pthread_cond_destroy(&j->wake);
		free(j);
		return NULL;
	}
	return j;
}

static void unlist_group(struct vfm_transport_group *g)
{
	struct vfm_transport_job *j = g->job;

	pthread_mutex_lock(&j->lock);
	for (struct vfm_transport_group **p = &j->groups; *p; p = &(*p)->next)
		if (*p == g) {
			*p = g->next;
			break;
		}
	pthread_mutex_unlock(&j->lock);
	if (j->hjob)
		vfm_activity_remove(j->hjob, &g->act);
}

/* Its enqueued work has passed, or the job has failed. */
static void transport_free(struct vfm_comm *c)
{
	struct vfm_transport_group *g = (struct vfm_transport_group *)c;
	struct vfm_transport_job *j = g->job;
	const struct vfm_dev_table *t = j->compute->dev->t;

	unlist_group(g);
	if (g->w && !g->lost && vfm_transport_job_check(j, NULL) >= 0)
		wait_until_ready(j, g->w, j->transport->finish(g->w, NULL), NULL);
	j->transport->free(g->w);
	for (uint64_t i = 0; i < g->cap; i++)
		if (g->ring[i]) {
			if (g->ring[i]->begin)
				t->event_free(g->ring[i]->begin);
			if (g->ring[i]->end)
				t->event_free(g->ring[i]->end);
			free(g->ring[i]);
		}
	if (g->fence)
		t->event_free(g->fence);
	vfm_dev_free(j->compute, g->scratch, g->scratch_bytes);
	vfm_dev_free(j->compute, g->word, 8);
	if (g->owns_host)
		vfm_comm_free(c->host);
	free(g->ring);
	free(g->msg);
	free(g->count);
	free(g->world);
	free(g->sent);
	free(g->got);
	free(g);
	transport_job_release(j);
}

static int transport_split(
	struct vfm_comm *c, const struct vfm_comm_split *q, struct vfm_comm **out, struct vfm_err *err);

static const struct vfm_comm_table transport_table = {
	.name = "transport",
	.call = transport_call,
	.split = transport_split,
	.free = transport_free,
	.mem_alloc = transport_mem_alloc,
	.mem_free = transport_mem_free,
	.register_memory = transport_register,
	.deregister_memory = transport_deregister,
	.transport_name = get_transport_name,
};

/* Takes a reference to the job.  The group is not listed and has no transport communicator yet. */
static struct vfm_transport_group *transport_group_new(struct vfm_transport_job *j, struct vfm_comm *host)
{
	struct vfm_hcomm *h = vfm_hcomm_of(host);
	struct vfm_transport_group *g = vfm_calloc(1, sizeof(*g));
	size_t n = (size_t)host->size;

	j->users++;
	g->c = *host;
	g->c.t = &transport_table;
	g->c.host = host;
	g->job = j;
	g->msg = vfm_calloc(2 * n, sizeof(*g->msg));
	g->count = vfm_calloc(n, sizeof(*g->count));
	g->world = vfm_calloc(n, sizeof(*g->world));
	g->sent = vfm_calloc(n, sizeof(*g->sent));
	g->got = vfm_calloc(n, sizeof(*g->got));
	for (int i = 0; h && i < host->size; i++)
		g->world[i] = h->world[i];
	return g;
}

/* The first message of two ranks makes their connection.  Made here, while both ranks are in the call, it cannot block
 * a sender later whose receiver is not ready. */
static int connect_pair(struct vfm_transport_group *g, struct vfm_err *err)
{
	struct vfm_stream *s = g->job->compute;
	struct vfm_coll k = {.kind = VFM_C_EXCHANGE,
		.dtype = VFM_U8,
		.in = g->word,
		.out = (char *)g->word + 4,
		.n_in = 1,
		.n_out = 1,
		.to = 1 - g->c.rank,
		.from = 1 - g->c.rank};

	if (g->c.size != 2)
		return 0;
	TRY(transport_call(&g->c, s, &k, err));
	return s->dev->t->stream_sync(s, err);
}

/* Lists the group once its transport communicator is ready; rc is the result of making that.  Frees the group on
 * failure.
 */
static int start_group(struct vfm_transport_group *g, int rc, struct vfm_comm **out, struct vfm_err *err)
{
	struct vfm_transport_job *j = g->job;
	struct vfm_hcomm *h = vfm_hcomm_of(g->c.host);
	struct vfm_stream *s = j->compute;
	const char *name = j->transport->name; /* transport_free may free the job */

	TRY_OUT(wait_until_ready(j, g->w, rc, err));
	pthread_mutex_lock(&j->lock);
	g->next = j->groups;
	j->groups = g;
	pthread_mutex_unlock(&j->lock);
	if (h)
		vfm_activity_add(j->hjob, &g->act, g->c.name, h->id ^ TRANSPORT_ID_SALT);
	g->word = vfm_dev_alloc(s, 8, "a barrier", err);
	if (!g->word) {
		rc = VFM_EENV;
		goto out;
	}
	TRY_OUT(s->dev->t->zero(s, g->word, 8, err));
	TRY_OUT(connect_pair(g, err));
	*out = &g->c;
	return 0;
out:
	g->lost = true;
	transport_free(&g->c);
	return vfm_err_context(err, "cannot make a communicator of %s", name);
}

/* Rank 0 sends this to all ranks: it must be the same everywhere. */
struct bootstrap {
	bool made, native_bf16, registers;
	unsigned char id[VFM_TRANSPORT_ID];
	char why[320]; /* why the id could not be made */
};

/* Sends it through the host communicator, whose failure detector notices a rank that dies meanwhile.  A failure of rank
 * 0 is sent, too. */
static int share_bootstrap(
	struct vfm_comm *host, const struct vfm_transport *w, struct bootstrap *f, struct vfm_err *err)
{
	const char *native = getenv("VFM_COMM_BF16"), *registers = getenv("VFM_COMM_REGISTER");
	struct vfm_err why = {0};

	*f = (struct bootstrap){.native_bf16 = native && !strcmp(native, "native"),
		.registers = !(registers && !strcmp(registers, "0"))};
	if (host->rank == 0) {
		f->made = w->unique_id(f->id, &why) >= 0;
		snprintf(f->why, sizeof(f->why), "%.300s", why.msg);
	}
	TRY(vfm_broadcast(host, NULL, vfm_t1(f, VFM_U8, sizeof(*f)), 0, err));
	return f->made ? 0 : vfm_fail(err, VFM_EENV, "%s", f->why);
}

int vfm_comm_transport_new(struct vfm_comm *host, const struct vfm_transport *w, struct vfm_stream *compute,
	struct vfm_comm **out, struct vfm_err *err)
{
	struct vfm_hcomm *h = vfm_hcomm_of(host);
	struct vfm_transport_group *g;
	struct vfm_transport_job *j;
	struct bootstrap f;

	*out = NULL;
	if (host->host)
		return vfm_fail(err, VFM_EUSAGE, "internal: a device communicator needs a host communicator");
	TRY(share_bootstrap(host, w, &f, err));
	j = transport_job_new(h ? h->job : NULL, w, compute, err);
	if (!j)
		return VFM_EENV;
	j->native_bf16 = f.native_bf16;
	j->registers = f.registers;
	g = transport_group_new(j, host);
	return start_group(g, w->init(&g->w, compute->dev, f.id, host->rank, host->size, g->c.name, err), out, err);
}

static int transport_split(
	struct vfm_comm *c, const struct vfm_comm_split *q, struct vfm_comm **out, struct vfm_err *err)
{
	struct vfm_transport_group *g = (struct vfm_transport_group *)c, *new;
	struct vfm_transport_comm *w = NULL;
	struct vfm_comm *host;
	bool mine;
	int rc;

	*out = NULL;
	TRY(c->host->t->split(c->host, q, &host, err));
	mine = host && host->size > 1; /* the same on all ranks of a color */
	rc = g->job->transport->split(g->w, mine ? q->color : -1, q->key, q->p2p, q->name, &w, err);
	rc = await_transport(g, rc, err);
	if (!mine) {
		*out = rc < 0 ? NULL : host;
		return rc;
	}
	new = transport_group_new(g->job, host);
	new->owns_host = true;
	new->w = w;
	return start_group(new, rc < 0 ? rc : VFM_TRANSPORT_BUSY, out, err);
}
