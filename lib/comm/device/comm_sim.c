#include "comm/device/comm_sim.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "comm/device/transport.h"
#include "device/sim/estimate.h"
#include "device/sim/libraries.h"
#include "device/sim/network.h"
#include "io/hash.h"

/* The ranks of a communicator, in its order. */
struct members {
	int *rank; /* [n] of the job */
	int n;
	uint64_t id; /* equal on all */
	/* the simulated ranks that come to its meetings, ascending, and the place of this one */
	int *rep, n_reps, place;
	bool own;    /* each stands for itself alone, and they are all */
	bool uneven; /* they do unequal work */
};

struct sim_comm {
	struct vfm_comm c; /* first */
	struct vfm_comm_sim_rank *r;
	struct members of;
	uint64_t calls;
	struct vfm_transport_comm *device; /* of calls on streams, on a CPU; NULL: a device communicator has its own */
};

struct vfm_transport_comm {
	struct vfm_comm_sim_rank *r;
	struct members of;
	struct vfm_sim_span span;
	char name[16];
	int me;
	uint64_t calls, known_calls, *pair_calls; /* pair_calls [n_reps]: of messages with each */
	struct vfm_sim_nccl use;
	int64_t bytes; /* that it has of the device */
	bool *met;     /* [n] peers of messages */
};

static struct sim_comm *sim_comm_of(struct vfm_comm *c)
{
	return (struct sim_comm *)c;
}

/* ---- members ---- */

/* Returns an id of the groups of rank [n], which are those of this name. */
static uint64_t members_id(const struct vfm_comm_sim_rank *r, const int *rank, int n, const char *name)
{
	char label[16] = {0};

	memcpy(label, name, strnlen(name, sizeof(label) - 1));
	return vfm_fnv64(rank, (size_t)n * sizeof(*rank)) ^ vfm_fnv64(label, sizeof(label)) ^ r->made << 56;
}

/* Takes rank [n], and has [n_reps], who comes to the meetings. */
static struct members make_members(const struct vfm_comm_sim_rank *r, int *rank, int n, bool *has)
{
	const struct vfm_comm_sim_job *job = r->job;
	struct members m = {.rank = rank, .n = n};

	m.rep = vfm_calloc((size_t)job->n_reps, sizeof(*m.rep));
	for (int i = 0; i < job->n_reps; i++) {
		if (i == r->rep)
			m.place = m.n_reps;
		if (!has[i])
			continue;
		m.uneven = m.uneven || (job->work_of && m.n_reps && job->work_of[i] != job->work_of[m.rep[0]]);
		m.rep[m.n_reps++] = i;
	}
	m.own = m.n_reps == n;
	for (int i = 0; i < n && m.own; i++)
		m.own = job->rank_of[job->rep_of[rank[i]]] == rank[i];
	free(has);
	return m;
}

static struct members copy_members(const struct members *m, int max_reps)
{
	struct members y = *m;

	y.rank = vfm_calloc((size_t)m->n, sizeof(*y.rank));
	memcpy(y.rank, m->rank, (size_t)m->n * sizeof(*y.rank));
	y.rep = vfm_calloc((size_t)max_reps, sizeof(*y.rep));
	memcpy(y.rep, m->rep, (size_t)m->n_reps * sizeof(*y.rep));
	return y;
}

static void release_members(struct members *m)
{
	free(m->rank);
	free(m->rep);
}

/* Returns the place of the simulated rank that stands for member i. */
static int place_of_member(const struct sim_comm *g, int i)
{
	int rep = g->r->job->rep_of[g->of.rank[i]];

	for (int k = 0; k < g->of.n_reps; k++)
		if (g->of.rep[k] == rep)
			return k;
	return 0;
}

static int node_of_member(const struct vfm_comm_sim_rank *r, const struct members *of, int i)
{
	return of->rank[i] / (int)r->job->machine.node_gpus;
}

/* ---- calls on streams ---- */

/* The next meeting of all ranks of a communicator. */
static struct vfm_sim_invitation invite_all(struct vfm_transport_comm *w)
{
	return (struct vfm_sim_invitation){w->of.id, w->calls++, w->of.n_reps, w->of.place};
}

/* Enqueues *l, which has op, bytes and work.  what: of its bytes, "" or " sent". */
static int enqueue_sim_call(struct vfm_transport_comm *w, struct vfm_stream *s, struct vfm_sim_launch *l,
	const char *what, const struct vfm_sim_invitation *v, int n, struct vfm_err *err)
{
	double rate[VFM_ESTIMATES];
	char text[96];

	snprintf(text, sizeof(text), "'%s' of %d, %.0f bytes%s", w->name, w->of.n, l->bytes, what);
	l->shape = text;
	l->uneven = w->of.uneven;
	for (int e = 0; e < VFM_ESTIMATES; e++)
		rate[e] = l->work[e] > 0 ? l->bytes / (double)l->work[e] : 0;
	vfm_sim_link_busy(s->dev, rate);
	vfm_sim_collective(s, l, v, n);
	return vfm_sim_world_check(w->r->job->world, err);
}

/* ---- calls on the streams of a CPU, whose device communicators are those of host memory ---- */

/* kind: as in vfm_sim_cpu_coll_of. */
static int enqueue_cpu(struct vfm_transport_comm *w, struct vfm_stream *s, const char *kind, enum vfm_dtype dt,
	double bytes, const struct vfm_sim_invitation *v, int n, struct vfm_err *err)
{
	struct vfm_sim_cpu_work work = vfm_sim_cpu_coll_of(kind, dt, bytes, w->of.n);
	struct vfm_sim_launch l = {.op = kind, .bytes = bytes};
	double t;

	TRY(vfm_sim_cpu_coll_s(&w->r->job->machine, &work, &t, err));
	for (int e = 0; e < VFM_ESTIMATES; e++)
		l.work[e] = (float)t;
	return enqueue_sim_call(w, s, &l, "", v, n, err);
}

static int enqueue_cpu_group(
	struct sim_comm *g, struct vfm_stream *s, const char *kind, const struct vfm_tensor *whole, struct vfm_err *err)
{
	struct vfm_transport_comm *w = g->device;
	struct vfm_sim_invitation v = invite_all(w);

	return enqueue_cpu(w, s, kind, whole->dtype, (double)vfm_nbytes(whole), &v, w->of.n_reps > 1, err);
}

/* ---- host memory ---- */

/* What a rank brings to a call. */
struct host_call {
	const char *data;
	size_t bytes;
};

/* Waits until all have come to a meeting, while the streams go on. */
static int wait_for_meeting(const struct vfm_comm_sim_rank *r, const struct vfm_sim_meeting *m, const char *what,
	const char *of, struct vfm_err *err)
{
	for (;;) {
		if (r->dev)
			vfm_sim_progress(r->dev);
		if (vfm_sim_met(m))
			return 0;
		TRY(vfm_sim_world_wait(r->job->world, what, of, err));
	}
}

/* Comes to a meeting of the group and waits for the others. */
static int gather_here(struct sim_comm *g, const char *what, const struct host_call *mine, struct vfm_sim_meeting **out,
	struct vfm_err *err)
{
	double now[VFM_ESTIMATES] = {0};

	if (g->r->dev)
		vfm_sim_host_now(g->r->dev, now);
	*out = vfm_sim_meet(g->r->job->world, g->of.id, g->calls++, g->of.n_reps, g->of.place, now, mine);
	TRY(wait_for_meeting(g->r, *out, what, g->c.name, err));
	if (g->r->dev)
		vfm_sim_host_until(g->r->dev, (*out)->at);
	return 0;
}

/* Calls fn with what each rank brings, then waits until all have used it. */
static int call_together(struct sim_comm *g, const char *what, struct host_call mine,
	void (*fn)(const struct sim_comm *g, const struct vfm_sim_comer *comer, void *ctx), void *ctx,
	struct vfm_err *err)
{
	struct vfm_sim_comer only = {.brought = &mine};
	struct vfm_sim_meeting *m, *end;

	if (g->of.n_reps == 1) {
		fn(g, &only, ctx);
		return 0;
	}
	TRY(gather_here(g, what, &mine, &m, err));
	fn(g, m->comer, ctx);
	vfm_sim_part(g->r->job->world, m);
	TRY(gather_here(g, what, &mine, &end, err));
	vfm_sim_part(g->r->job->world, end);
	return 0;
}

static const struct host_call *call_of_member(const struct sim_comm *g, const struct vfm_sim_comer *comer, int i)
{
	return comer[place_of_member(g, i)].brought;
}

struct reduction {
	struct vfm_tensor x;
	double *sum;
	int64_t *whole;
};

static double read_summand(const void *p, enum vfm_dtype t, int64_t i)
{
	return t == VFM_F64    ? ((const double *)p)[i]
		: t == VFM_F32 ? (double)((const float *)p)[i]
			       : (double)vfm_bf16_to_f32(((const uint16_t *)p)[i]);
}

static void sum_brought(const struct sim_comm *g, const struct vfm_sim_comer *comer, void *ctx)
{
	struct reduction *r = ctx;
	int64_t n = vfm_numel(&r->x);

	for (int i = 0; i < g->of.n; i++) {
		const void *x = call_of_member(g, comer, i)->data;

		for (int64_t k = 0; k < n; k++)
			if (r->x.dtype == VFM_I64)
				r->whole[k] += ((const int64_t *)x)[k];
			else
				r->sum[k] += read_summand(x, r->x.dtype, k);
	}
}

static int sim_all_reduce(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor x, struct vfm_err *err)
{
	struct sim_comm *g = sim_comm_of(c);
	int64_t n = vfm_numel(&x);
	struct reduction r = {.x = x};
	int rc;

	if (s)
		return enqueue_cpu_group(g, s, "all_reduce", &x, err);
	r.sum = vfm_calloc((size_t)n + 1, sizeof(*r.sum));
	r.whole = vfm_calloc((size_t)n + 1, sizeof(*r.whole));
	rc = call_together(g, "all_reduce", (struct host_call){x.data, vfm_nbytes(&x)}, sum_brought, &r, err);
	for (int64_t k = 0; rc >= 0 && k < n; k++) {
		if (x.dtype == VFM_I64)
			((int64_t *)x.data)[k] = r.whole[k];
		else if (x.dtype == VFM_F64)
			((double *)x.data)[k] = r.sum[k];
		else if (x.dtype == VFM_F32)
			((float *)x.data)[k] = (float)r.sum[k];
		else
			((uint16_t *)x.data)[k] = vfm_f32_to_bf16((float)r.sum[k]);
	}
	free(r.sum);
	free(r.whole);
	return rc;
}

struct concatenation {
	char *out;
	const int64_t *count; /* NULL: each */
	int64_t each;
	size_t size; /* of an element */
};

static void concatenate(const struct sim_comm *g, const struct vfm_sim_comer *comer, void *ctx)
{
	struct concatenation *a = ctx;
	char *to = a->out;

	for (int i = 0; i < g->of.n; i++) {
		const struct host_call *from = call_of_member(g, comer, i);
		size_t bytes = (size_t)(a->count ? a->count[i] : a->each) * a->size;
		size_t has = from->bytes < bytes ? from->bytes : bytes;

		if (to != from->data)
			memmove(to, from->data, has);
		memset(to + has, 0, bytes - has);
		to += bytes;
	}
}

/* Every rank holds what this one does, where the blocks are equal. */
static void know_gathered(struct vfm_comm *c, struct vfm_stream *s, const struct vfm_tensor *in,
	const struct vfm_tensor *out, const int64_t *count)
{
	size_t bytes = vfm_nbytes(in);

	if (!count)
		for (int i = 0; i < c->size; i++)
			vfm_sim_moved(s->dev, (char *)out->data + (size_t)i * bytes, in->data, bytes);
}

static int sim_all_gather(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out,
	const int64_t *count, struct vfm_err *err)
{
	struct concatenation a = {out.data, count, vfm_numel(&in), vfm_dtype_size(in.dtype)};
	size_t bytes = vfm_nbytes(&in);
	char *mine;
	int rc;

	if (s) {
		know_gathered(c, s, &in, &out, count);
		return enqueue_cpu_group(sim_comm_of(c), s, "all_gather", &out, err);
	}
	mine = vfm_malloc(bytes + 1); /* in may lie in out */
	if (bytes)
		memcpy(mine, in.data, bytes);
	rc = call_together(sim_comm_of(c), "all_gather", (struct host_call){mine, bytes}, concatenate, &a, err);
	free(mine);
	return rc;
}

struct copy_of_root {
	int root;
	char *to;
};

static void copy_root(const struct sim_comm *g, const struct vfm_sim_comer *comer, void *ctx)
{
	struct copy_of_root *a = ctx;
	const struct host_call *from = call_of_member(g, comer, a->root);

	if (a->to != from->data && from->bytes)
		memcpy(a->to, from->data, from->bytes);
}

static int sim_broadcast(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor x, int root, struct vfm_err *err)
{
	struct copy_of_root a = {root, x.data};

	if (s)
		return enqueue_cpu_group(sim_comm_of(c), s, "broadcast", &x, err);
	return call_together(
		sim_comm_of(c), "broadcast", (struct host_call){x.data, vfm_nbytes(&x)}, copy_root, &a, err);
}

static void do_nothing(const struct sim_comm *g, const struct vfm_sim_comer *comer, void *ctx)
{
	(void)g, (void)comer, (void)ctx;
}

static int sim_barrier(struct vfm_comm *c, struct vfm_stream *s, struct vfm_err *err)
{
	(void)s;
	return call_together(sim_comm_of(c), "barrier", (struct host_call){0}, do_nothing, NULL, err);
}

static int refuse(struct vfm_comm *c, const char *what, struct vfm_err *err)
{
	return vfm_fail(err, VFM_EUSAGE, "internal: a simulated job has no %s of host memory ('%s')", what, c->name);
}

static int sim_reduce_scatter(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out,
	const int64_t *count, struct vfm_err *err)
{
	(void)out, (void)count;
	return s ? enqueue_cpu_group(sim_comm_of(c), s, "reduce_scatter", &in, err) : refuse(c, "reduce_scatter", err);
}

static int sim_all_to_all(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out,
	const int64_t *send, const int64_t *recv, struct vfm_err *err)
{
	(void)recv;
	if (!s)
		return refuse(c, "all_to_all", err);
	if (!send)
		vfm_sim_moved(s->dev, out.data, in.data, vfm_nbytes(&in));
	return enqueue_cpu_group(sim_comm_of(c), s, "all_to_all", vfm_numel(&in) > vfm_numel(&out) ? &in : &out, err);
}

static int exchange_on_cpu(struct sim_comm *g, struct vfm_stream *s, const struct vfm_tensor *out, int to,
	const struct vfm_tensor *in, int from, struct vfm_err *err);

static int sim_exchange(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor out, int to, struct vfm_tensor in,
	int from, struct vfm_err *err)
{
	return s ? exchange_on_cpu(sim_comm_of(c), s, &out, to, &in, from, err) : refuse(c, "exchange", err);
}

static int sim_split(
	struct vfm_comm *c, int color, int key, const char *name, struct vfm_comm **out, struct vfm_err *err);

static void sim_transport_free(struct vfm_transport_comm *w);

static void sim_comm_free(struct vfm_comm *c)
{
	struct sim_comm *g = sim_comm_of(c);

	sim_transport_free(g->device);
	release_members(&g->of);
	free(g);
}

static void sim_abort(struct vfm_comm *c, const char *why)
{
	vfm_sim_world_fail(sim_comm_of(c)->r->job->world, why);
}

static int sim_node(const struct vfm_comm *c, int rank)
{
	const struct sim_comm *g = (const struct sim_comm *)c;

	return node_of_member(g->r, &g->of, rank);
}

static const struct vfm_comm_table sim_table = {
	.name = "sim",
	.all_reduce = sim_all_reduce,
	.all_gather = sim_all_gather,
	.reduce_scatter = sim_reduce_scatter,
	.all_to_all = sim_all_to_all,
	.broadcast = sim_broadcast,
	.exchange = sim_exchange,
	.barrier = sim_barrier,
	.split = sim_split,
	.free = sim_comm_free,
	.abort = sim_abort,
	.node = sim_node,
};

static struct vfm_transport_comm *make_transport_comm(struct vfm_comm_sim_rank *r, struct vfm_comm *host, bool p2p);

static struct vfm_comm *make_comm(struct vfm_comm_sim_rank *r, const struct members *m, int me, const char *name)
{
	struct sim_comm *g = vfm_calloc(1, sizeof(*g));

	*g = (struct sim_comm){.c = {.t = &sim_table, .rank = me, .size = m->n}, .r = r, .of = *m};
	snprintf(g->c.name, sizeof(g->c.name), "%s", name);
	if (r->job->machine.kind == VFM_MACHINE_CPU)
		g->device = make_transport_comm(r, &g->c, false);
	return &g->c;
}

struct keyed_rank {
	int key, at;
};

static int compare_split_keys(const void *a, const void *b)
{
	const struct keyed_rank *x = a, *y = b;

	return x->key != y->key ? (x->key < y->key ? -1 : 1) : x->at < y->at ? -1 : 1;
}

/* The ranks of a communicator, divided by colors. */
struct division {
	const struct sim_comm *g;
	struct vfm_comm_place *at; /* [size] */
	int *with;                 /* [size]: of a color, one whose groups meet with its own; of a root, itself */
};

static int root_of(const struct division *d, int color)
{
	while (d->with[color] != color)
		color = d->with[color] = d->with[d->with[color]];
	return color;
}

/* Groups that a simulated rank has members in meet together: where it stands for ranks of several, it comes to all. */
static void join_colors(struct division *d)
{
	const struct vfm_comm_sim_job *job = d->g->r->job;
	int *first = vfm_calloc((size_t)job->n_reps, sizeof(*first)); /* color of a simulated rank, + 1 */

	for (int i = 0; i < d->g->of.n; i++) {
		int color = d->at[i].color, *had = &first[job->rep_of[d->g->of.rank[i]]];
		int a = color < 0 ? 0 : root_of(d, color), b = color < 0 || !*had ? a : root_of(d, *had - 1);

		if (color < 0)
			continue;
		d->with[a > b ? a : b] = a > b ? b : a;
		*had = color + 1;
	}
	free(first);
}

static void divide_ranks(struct division *d, struct vfm_comm *c)
{
	int colors = 1;

	d->at = vfm_calloc((size_t)c->size, sizeof(*d->at));
	for (int i = 0; i < c->size; i++) {
		d->at[i] = c->places->of(c->places->ctx, i);
		colors = d->at[i].color >= colors ? d->at[i].color + 1 : colors;
	}
	d->with = vfm_calloc((size_t)colors, sizeof(*d->with));
	for (int i = 0; i < colors; i++)
		d->with[i] = i;
	join_colors(d);
}

/* Returns the ranks of a color by their keys; *n: how many.  me: of the communicator; becomes that in the color. */
static int *ranks_of_color(const struct division *d, int color, int *n, int *me)
{
	struct keyed_rank *v = vfm_calloc((size_t)d->g->of.n, sizeof(*v));
	int *rank, was = *me;

	*n = 0;
	for (int i = 0; i < d->g->of.n; i++)
		if (d->at[i].color == color)
			v[(*n)++] = (struct keyed_rank){d->at[i].key, i};
	qsort(v, (size_t)*n, sizeof(*v), compare_split_keys);
	rank = vfm_calloc((size_t)*n + 1, sizeof(*rank));
	for (int i = 0; i < *n; i++) {
		rank[i] = d->g->of.rank[v[i].at];
		*me = v[i].at == was ? i : *me;
	}
	free(v);
	return rank;
}

/* Returns which simulated ranks come to the meetings of a color.  *apart: this group is one of several that meet as
 * one, and so do all parts of them. */
static bool *ranks_that_meet(const struct division *d, int color, bool *apart)
{
	const struct vfm_comm_sim_job *job = d->g->r->job;
	bool *has = vfm_calloc((size_t)job->n_reps, sizeof(*has)),
	     *here = vfm_calloc((size_t)job->n_reps, sizeof(*here));

	*apart = false;
	for (int i = 0; i < d->g->of.n; i++) {
		int rep = job->rep_of[d->g->of.rank[i]];

		here[rep] = here[rep] || job->rank_of[rep] == d->g->of.rank[i];
		has[rep] = has[rep] || (d->at[i].color >= 0 && root_of(d, d->at[i].color) == root_of(d, color));
	}
	for (int k = 0; k < d->g->of.n_reps; k++)
		*apart = *apart || !here[d->g->of.rep[k]];
	for (int k = 0; k < d->g->of.n_reps && *apart; k++)
		has[d->g->of.rep[k]] = true;
	free(here);
	return has;
}

static int sim_split(
	struct vfm_comm *c, int color, int key, const char *name, struct vfm_comm **out, struct vfm_err *err)
{
	struct sim_comm *g = sim_comm_of(c);
	struct division d = {.g = g};
	int n = 0, first_n, me = c->rank, none = 0, *rank, *first;
	struct members m;
	bool apart;

	(void)key;
	*out = g->r->split = NULL;
	if (!c->places)
		return vfm_fail(err, VFM_EUSAGE, "internal: a simulated job cannot split '%s' to '%s'", c->name, name);
	if (color < 0)
		return 0;
	divide_ranks(&d, c);
	rank = ranks_of_color(&d, color, &n, &me);
	if (n > 1) {
		first = ranks_of_color(&d, root_of(&d, color), &first_n, &none);
		m = make_members(g->r, rank, n, ranks_that_meet(&d, color, &apart));
		m.id = apart ? members_id(g->r, (const int *)&g->of.id, 2, name)
			     : members_id(g->r, first, first_n, name);
		free(first);
		*out = g->r->split = make_comm(g->r, &m, me, name);
	} else {
		*out = vfm_comm_self();
		free(rank);
	}
	free(d.at);
	free(d.with);
	return 0;
}

struct vfm_comm *vfm_comm_sim_new(struct vfm_comm_sim_rank *r)
{
	int n = r->job->n, *rank = vfm_calloc((size_t)n, sizeof(*rank));
	bool *has = vfm_calloc((size_t)r->job->n_reps, sizeof(*has));
	struct members m;

	for (int i = 0; i < n; i++)
		rank[i] = i;
	for (int i = 0; i < r->job->n_reps; i++)
		has[i] = true;
	r->made++;
	m = make_members(r, rank, n, has);
	m.id = members_id(r, rank, n, "world");
	return make_comm(r, &m, r->job->rank_of[r->rep], "world");
}

/* ---- the transport ---- */

static int node_of(const struct vfm_transport_comm *w, int i)
{
	return node_of_member(w->r, &w->of, i);
}

/* What NCCL would use for it, without any calls yet. */
static struct vfm_sim_nccl unused_nccl(const struct vfm_transport_comm *w, bool p2p)
{
	struct vfm_sim_nccl c = {.nodes = w->span.nodes, .in_switch = !w->r->deterministic};
	int usual = (int)w->r->job->machine.collective_sms.v[VFM_MID];

	for (int i = 0; i < w->of.n; i++)
		c.per_node += node_of(w, i) == node_of(w, w->me);
	c.channels = c.p2p_channels = p2p ? VFM_P2P_CTAS : usual;
	while (c.p2p_channels & (c.p2p_channels - 1)) /* a power of two, at least as many */
		c.p2p_channels += c.p2p_channels & -c.p2p_channels;
	return c;
}

/* Takes the memory that a new use needs. */
static int grow_nccl(struct vfm_transport_comm *w, struct vfm_stream *s, struct vfm_err *err)
{
	int64_t bytes = vfm_sim_nccl_bytes(&w->use);
	int64_t more = bytes - w->bytes;

	if (!more)
		return 0;
	w->bytes = bytes;
	return vfm_sim_take_beside(s->dev, more, "buffers of NCCL", err);
}

static int meet_peer(struct vfm_transport_comm *w, struct vfm_stream *s, int peer, struct vfm_err *err)
{
	if (w->met[peer])
		return 0;
	w->met[peer] = true;
	if (node_of(w, peer) == node_of(w, w->me))
		w->use.near_peers++;
	else
		w->use.far_messages = true;
	return grow_nccl(w, s, err);
}

static struct vfm_transport_comm *make_transport_comm(struct vfm_comm_sim_rank *r, struct vfm_comm *host, bool p2p)
{
	struct sim_comm *g = sim_comm_of(host);
	struct vfm_transport_comm *w = vfm_calloc(1, sizeof(*w));

	w->r = r;
	w->me = host->rank;
	w->of = copy_members(&g->of, r->job->n_reps);
	w->of.id ^= 0x6465766963652d2dULL; /* apart from the calls of host memory */
	w->span = vfm_sim_span_of(&r->job->machine, w->of.rank, w->of.n);
	w->pair_calls = vfm_calloc((size_t)r->job->n_reps, sizeof(*w->pair_calls));
	w->met = vfm_calloc((size_t)w->of.n, sizeof(*w->met));
	w->use = unused_nccl(w, p2p);
	snprintf(w->name, sizeof(w->name), "%s", host->name);
	return w;
}

static int sim_unique_id(unsigned char id[VFM_TRANSPORT_ID], struct vfm_err *err)
{
	(void)err;
	memset(id, 0, VFM_TRANSPORT_ID);
	return 0;
}

static int sim_transport_init(struct vfm_transport_comm **w, struct vfm_dev *d,
	const unsigned char id[VFM_TRANSPORT_ID], int rank, int size, const char *name, struct vfm_err *err)
{
	struct vfm_comm_sim_rank *r = vfm_sim_world_self();

	(void)d, (void)id, (void)rank, (void)size, (void)name, (void)err;
	*w = make_transport_comm(r, r->split, false);
	return 0;
}

static int sim_transport_split(struct vfm_transport_comm *w, int color, int key, bool p2p, const char *name,
	struct vfm_transport_comm **out, struct vfm_err *err)
{
	(void)key, (void)name, (void)err;
	*out = color < 0 ? NULL : make_transport_comm(w->r, w->r->split, p2p);
	return 0;
}

static int sim_state(struct vfm_transport_comm *w, struct vfm_err *err)
{
	(void)w, (void)err;
	return 0;
}

static void sim_transport_abort(struct vfm_transport_comm *const *w, int n)
{
	(void)w, (void)n;
}

static void sim_transport_free(struct vfm_transport_comm *w)
{
	if (!w)
		return;
	release_members(&w->of);
	free(w->pair_calls);
	free(w->met);
	free(w);
}

/* A collective of the whole group. */
static int enqueue(struct vfm_transport_comm *w, struct vfm_stream *s, const char *op, enum vfm_sim_coll kind,
	double bytes, struct vfm_err *err)
{
	struct vfm_sim_invitation v = invite_all(w);
	struct vfm_sim_launch l = {.op = op, .bytes = bytes};

	w->use.rings = true;
	w->use.sums |= kind == VFM_SIM_ALL_REDUCE;
	TRY(grow_nccl(w, s, err));
	for (int e = 0; e < VFM_ESTIMATES; e++)
		l.work[e] = (float)vfm_sim_coll_s(&w->r->job->machine, &w->span, kind, bytes, (enum vfm_estimate)e);
	return enqueue_sim_call(w, s, &l, "", &v, w->of.n_reps > 1, err);
}

static int sim_transport_all_reduce(
	struct vfm_transport_comm *w, struct vfm_stream *s, void *x, int64_t n, enum vfm_dtype dt, struct vfm_err *err)
{
	(void)x;
	return enqueue(w, s, "all_reduce", VFM_SIM_ALL_REDUCE, (double)n * (double)vfm_dtype_size(dt), err);
}

static int sim_transport_all_gather(struct vfm_transport_comm *w, struct vfm_stream *s, const void *in, void *out,
	size_t bytes_each, struct vfm_err *err)
{
	for (int i = 0; i < w->of.n && bytes_each * (size_t)w->of.n <= VFM_SIM_KNOWN_MAX; i++)
		vfm_sim_moved(s->dev, (char *)out + (size_t)i * bytes_each, in, bytes_each);
	return enqueue(w, s, "all_gather", VFM_SIM_ALL_GATHER, (double)bytes_each * w->of.n, err);
}

static int sim_transport_reduce_scatter(struct vfm_transport_comm *w, struct vfm_stream *s, const void *in, void *out,
	int64_t n_each, enum vfm_dtype dt, struct vfm_err *err)
{
	(void)in, (void)out;
	return enqueue(w, s, "reduce_scatter", VFM_SIM_REDUCE_SCATTER,
		(double)n_each * w->of.n * (double)vfm_dtype_size(dt), err);
}

static int sim_transport_broadcast(
	struct vfm_transport_comm *w, struct vfm_stream *s, void *x, size_t bytes, int root, struct vfm_err *err)
{
	(void)x, (void)root;
	return enqueue(w, s, "broadcast", VFM_SIM_BROADCAST, (double)bytes, err);
}

/* Bytes by direction, and to where. */
struct traffic {
	double near[2], far[2];
};

static void add_traffic(const struct vfm_transport_comm *w, struct traffic *t, int peer, bool send, double bytes)
{
	if (node_of(w, peer) == node_of(w, w->me))
		t->near[send] += bytes;
	else
		t->far[send] += bytes;
}

static int enqueue_traffic(struct vfm_transport_comm *w, struct vfm_stream *s, const char *op, const struct traffic *t,
	const struct vfm_sim_invitation *v, int n, struct vfm_err *err)
{
	double near = fmax(t->near[0], t->near[1]), far = fmax(t->far[0], t->far[1]);
	struct vfm_sim_launch l = {.op = op, .bytes = t->near[1] + t->far[1]};

	for (int e = 0; e < VFM_ESTIMATES; e++)
		l.work[e] = (float)vfm_sim_messages_s(&w->r->job->machine, near, far, (enum vfm_estimate)e);
	return enqueue_sim_call(w, s, &l, " sent", v, n, err);
}

/* Gives the device what the other ranks know of the parts that they send to this one.  Takes no simulated time. */
static int exchange_known(
	struct vfm_transport_comm *w, struct vfm_stream *s, const void *in, void *out, size_t each, struct vfm_err *err)
{
	const struct vfm_comm_sim_job *job = w->r->job;
	static const double at[VFM_ESTIMATES];
	size_t bytes = each * (size_t)w->of.n;
	char mine[VFM_SIM_KNOWN_MAX], got[VFM_SIM_KNOWN_MAX];
	struct vfm_sim_meeting *m;

	vfm_sim_known(s->dev, mine, in, bytes);
	for (int round = 0; round < 2; round++) { /* all have come; all have read */
		m = vfm_sim_meet(job->world, w->of.id ^ 0x6b6e6f776e2d2d2dULL, w->known_calls++, w->of.n_reps,
			w->of.place, at, mine);
		TRY(wait_for_meeting(w->r, m, "what ranks know", w->name, err));
		for (int i = 0, k; i < w->of.n && round == 0; i++) {
			for (k = 0; w->of.rep[k] != job->rep_of[w->of.rank[i]];)
				k++;
			memcpy(got + (size_t)i * each, (const char *)m->comer[k].brought + (size_t)w->me * each, each);
		}
		vfm_sim_part(job->world, m);
	}
	vfm_sim_know(s->dev, out, got, bytes);
	return 0;
}

static int sim_transport_all_to_all(struct vfm_transport_comm *w, struct vfm_stream *s, const void *in, void *out,
	size_t bytes_each, struct vfm_err *err)
{
	struct vfm_sim_invitation v = invite_all(w);
	struct traffic t = {{0}, {0}};

	for (int i = 0; i < w->of.n; i++)
		if (i != w->me)
			TRY(meet_peer(w, s, i, err));
	for (int i = 0; i < w->of.n; i++)
		for (int send = 0; i != w->me && send < 2; send++)
			add_traffic(w, &t, i, send, (double)bytes_each);
	if (w->of.uneven && bytes_each * (size_t)w->of.n <= VFM_SIM_KNOWN_MAX)
		TRY(exchange_known(w, s, in, out, bytes_each, err));
	else
		vfm_sim_moved(s->dev, out, in, bytes_each * (size_t)w->of.n);
	return enqueue_traffic(w, s, "all_to_all", &t, &v, w->of.n_reps > 1, err);
}

/* What another rank sends is as what this one sends to it. */
static void move_known(struct vfm_stream *s, const struct vfm_transport_msg *m, int n)
{
	for (int i = 0; i < n; i++) {
		const struct vfm_transport_msg *from = NULL;

		if (m[i].send || m[i].bytes > VFM_SIM_KNOWN_MAX)
			continue;
		for (int k = 0; k < n && !from; k++)
			if (m[k].send && m[k].peer == m[i].peer && m[k].bytes == m[i].bytes)
				from = &m[k];
		if (from)
			vfm_sim_moved(s->dev, m[i].p, from->p, m[i].bytes);
	}
}

/* Adds the meetings with the ranks that stand for the peers: with each, where each stands for one rank.  Otherwise a
 * peer of this rank may stand for others with other peers, so that all meet. */
static int invite_peers(
	struct vfm_transport_comm *w, const struct vfm_transport_msg *m, int n, struct vfm_sim_invitation *v)
{
	const struct vfm_comm_sim_job *job = w->r->job;
	int me = w->r->rep, invited = 0;

	if (!w->of.own) {
		v[0] = invite_all(w);
		return w->of.n_reps > 1;
	}
	for (int i = 0; i < n; i++) {
		int rep = job->rep_of[w->of.rank[m[i].peer]], low = me < rep ? me : rep, high = me < rep ? rep : me;
		uint64_t pair = w->of.id ^ (uint64_t)low << 40 ^ (uint64_t)high << 20 ^ 1;
		bool has = false;

		for (int k = 0; k < invited; k++)
			has |= v[k].group == pair;
		if (!has)
			v[invited++] = (struct vfm_sim_invitation){pair, w->pair_calls[rep]++, 2, me > rep};
	}
	return invited;
}

/* A message of each direction, at most. */
static int exchange_on_cpu(struct sim_comm *g, struct vfm_stream *s, const struct vfm_tensor *out, int to,
	const struct vfm_tensor *in, int from, struct vfm_err *err)
{
	struct vfm_transport_comm *w = g->device;
	struct vfm_sim_invitation *v = vfm_calloc((size_t)w->r->job->n_reps, sizeof(*v));
	struct vfm_transport_msg m[2] = {{0}};
	double most = 0;
	int n = 0, rc = 0;

	if (to >= 0 && vfm_nbytes(out))
		m[n++] = (struct vfm_transport_msg){.send = true, .peer = to, .p = out->data, .bytes = vfm_nbytes(out)};
	if (from >= 0 && vfm_nbytes(in))
		m[n++] = (struct vfm_transport_msg){.peer = from, .p = in->data, .bytes = vfm_nbytes(in)};
	for (int i = 0; i < n; i++)
		most = fmax(most, (double)m[i].bytes);
	move_known(s, m, n);
	if (n)
		rc = enqueue_cpu(w, s, n == 2 ? "exchange" : "send", VFM_BF16, most, v, invite_peers(w, m, n, v), err);
	free(v);
	return rc;
}

static int sim_messages(struct vfm_transport_comm *w, struct vfm_stream *s, const struct vfm_transport_msg *m, int n,
	struct vfm_err *err)
{
	struct vfm_sim_invitation *v;
	struct traffic t = {{0}, {0}};
	int rc;

	for (int i = 0; i < n; i++)
		TRY(meet_peer(w, s, m[i].peer, err));
	v = vfm_calloc((size_t)w->r->job->n_reps, sizeof(*v));
	for (int i = 0; i < n; i++)
		add_traffic(w, &t, m[i].peer, m[i].send, (double)m[i].bytes);
	move_known(s, m, n);
	rc = enqueue_traffic(w, s, "messages", &t, v, invite_peers(w, m, n, v), err);
	free(v);
	return rc;
}

/* NCCL allocates such memory beside the pool; here it is of the pool, which counts as much. */
static int sim_mem_alloc(struct vfm_stream *s, size_t bytes, const char *what, void **p, struct vfm_err *err)
{
	*p = s->dev->t->alloc(s, bytes, what, err);
	return *p ? 0 : VFM_EENV;
}

static void sim_mem_free(struct vfm_stream *s, void *p, size_t bytes, const char *what)
{
	(void)what;
	s->dev->t->free(s, p, bytes);
}

static int sim_register(struct vfm_transport_comm *w, void *p, size_t bytes, void **handle, struct vfm_err *err)
{
	(void)p, (void)bytes, (void)err;
	*handle = w;
	return 0;
}

static void sim_deregister(struct vfm_transport_comm *w, void *handle)
{
	(void)w, (void)handle;
}

static const struct vfm_transport sim_transport = {
	.name = "sim",
	.unique_id = sim_unique_id,
	.init = sim_transport_init,
	.split = sim_transport_split,
	.state = sim_state,
	.abort = sim_transport_abort,
	.finish = sim_state,
	.free = sim_transport_free,
	.all_reduce = sim_transport_all_reduce,
	.all_gather = sim_transport_all_gather,
	.reduce_scatter = sim_transport_reduce_scatter,
	.all_to_all = sim_transport_all_to_all,
	.broadcast = sim_transport_broadcast,
	.messages = sim_messages,
	.mem_alloc = sim_mem_alloc,
	.mem_free = sim_mem_free,
	.register_memory = sim_register,
	.deregister_memory = sim_deregister,
};

int vfm_comm_sim_device(struct vfm_comm *host, struct vfm_stream *compute, struct vfm_comm **out, struct vfm_err *err)
{
	if (sim_comm_of(host)->device) {
		*out = host;
		return 0;
	}
	sim_comm_of(host)->r->split = host;
	return vfm_comm_transport_new(host, &sim_transport, compute, out, err);
}
