/* comm_sim_transport.c - a transport: collectives on the streams of simulated devices. */
#include "comm/device/comm_sim.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "comm/device/comm_sim_impl.h"
#include "device/sim/estimate.h"

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

int comm_sim_enqueue_group(struct sim_comm *g, struct vfm_stream *s, const struct vfm_coll *c, struct vfm_err *err)
{
	struct vfm_transport_comm *w = g->device;
	struct vfm_sim_invitation v = invite_all(w);
	int64_t whole = c->n_in > c->n_out ? c->n_in : c->n_out;

	return enqueue_cpu(w, s, vfm_coll_name[c->kind], c->dtype, (double)whole * (double)vfm_dtype_size(c->dtype), &v,
		w->of.n_reps > 1, err);
}

/* ---- the transport ---- */

static int node_of(const struct vfm_transport_comm *w, int i)
{
	return comm_sim_member_node(w->r, &w->of, i);
}

/* The resources that NCCL would use for it before any call. */
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
	return vfm_sim_take_outside(s->dev, more, "buffers of NCCL", err);
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

struct vfm_transport_comm *comm_sim_transport_new(struct vfm_comm_sim_rank *r, struct vfm_comm *host, bool p2p)
{
	struct sim_comm *g = sim_comm_of(host);
	struct vfm_transport_comm *w = vfm_calloc(1, sizeof(*w));

	w->r = r;
	w->me = host->rank;
	w->of = comm_sim_members_copy(&g->of, r->job->n_reps);
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
	*w = comm_sim_transport_new(r, r->split, false);
	return 0;
}

static int sim_transport_split(struct vfm_transport_comm *w, int color, int key, bool p2p, const char *name,
	struct vfm_transport_comm **out, struct vfm_err *err)
{
	(void)key, (void)name, (void)err;
	*out = color < 0 ? NULL : comm_sim_transport_new(w->r, w->r->split, p2p);
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

void comm_sim_transport_free(struct vfm_transport_comm *w)
{
	if (!w)
		return;
	comm_sim_members_release(&w->of);
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

/* Passes to the device what the other ranks know of the parts that they send to this one.  Takes no simulated time. */
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
		TRY(comm_sim_meeting_wait(w->r, m, "what ranks know", w->name, err));
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

/* Other ranks send what this rank sends to them. */
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

/* Adds the meetings with the ranks that represent the peers: with each, where each represents one rank.  Otherwise a
 * peer of this rank may represent others with other peers, so that all meet. */
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
int comm_sim_enqueue_exchange(struct sim_comm *g, struct vfm_stream *s, const struct vfm_coll *c, struct vfm_err *err)
{
	struct vfm_transport_comm *w = g->device;
	struct vfm_sim_invitation *v = vfm_calloc((size_t)w->r->job->n_reps, sizeof(*v));
	struct vfm_transport_msg m[2] = {{0}};
	double most = 0;
	int n = 0, rc = 0;

	if (c->n_in)
		m[n++] = (struct vfm_transport_msg){.send = true, .peer = c->to, .p = c->in, .bytes = (size_t)c->n_in};
	if (c->n_out)
		m[n++] = (struct vfm_transport_msg){.peer = c->from, .p = c->out, .bytes = (size_t)c->n_out};
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

/* NCCL allocates such memory outside the pool; here it is of the pool, which counts as much. */
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
	.free = comm_sim_transport_free,
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
