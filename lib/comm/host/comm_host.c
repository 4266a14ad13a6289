/* The host backend: makes and frees communicators, and dispatches every call. */
#include "comm/host/comm_host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "comm/host/host_impl.h"
#include "device/ops/tensor.h"
#include "io/hash.h"
#include "spec/model/dtype.h"

/* ---- arithmetic of a call ---- */

size_t vfm_coll_bytes_of(const struct vfm_hcomm *g, const struct vfm_coll *c, const int64_t *count, int i)
{
	int64_t n = c->kind == VFM_C_ALL_GATHER   ? c->n_in
		: c->kind == VFM_C_REDUCE_SCATTER ? c->n_out
						  : c->n_in / g->c.size;

	return (size_t)(count ? count[i] : n) * vfm_dtype_size(c->dtype);
}

size_t vfm_coll_offset_of(const struct vfm_hcomm *g, const struct vfm_coll *c, const int64_t *count, int i)
{
	size_t at = 0;

	if (!count)
		return vfm_coll_bytes_of(g, c, NULL, 0) * (size_t)i;
	for (int k = 0; k < i; k++)
		at += vfm_coll_bytes_of(g, c, count, k);
	return at;
}

struct vfm_call_sig vfm_coll_sig(const struct vfm_hcomm *g, const struct vfm_coll *c)
{
	struct vfm_call_sig s = {.number = g->number, .kind = c->kind, .dtype = c->dtype};
	size_t es = vfm_dtype_size(c->dtype);

	switch (c->kind) {
	case VFM_C_ALL_GATHER:
		s.bytes = (uint64_t)c->n_out * es;
		break;
	case VFM_C_REDUCE_SCATTER:
		s.bytes = (uint64_t)c->n_in * es;
		break;
	case VFM_C_ALL_REDUCE:
	case VFM_C_BROADCAST:
		s.bytes = (uint64_t)c->n_out * es;
		s.hash = (uint64_t)(c->from + 1);
		break;
	default:
		break;
	}
	if (c->send && (c->kind == VFM_C_ALL_GATHER || c->kind == VFM_C_REDUCE_SCATTER))
		s.hash = vfm_fnv64(c->send, (size_t)g->c.size * sizeof(*c->send));
	return s;
}

/* ---- a call ---- */

struct host_call {
	struct vfm_coll k;
	struct vfm_hcomm *g;
	struct vfm_counts *counts; /* holds the copies of send and recv */
	pthread_t caller;
};

static void release_counts(struct host_call *c)
{
	if (!c->counts)
		return;
	pthread_mutex_lock(&c->g->lock);
	c->counts->used = false;
	pthread_mutex_unlock(&c->g->lock);
}

/* Copies the caller's counts, which may be freed before an asynchronous stream runs the call.  The communicator owns
 * the copies, since a failed stream drops calls. */
static void copy_counts(struct host_call *c)
{
	size_t n = (size_t)c->g->c.size;
	struct vfm_counts *k;

	if (!c->k.send)
		return;
	pthread_mutex_lock(&c->g->lock);
	for (k = c->g->counts; k && k->used; k = k->next)
		;
	if (!k) {
		k = vfm_calloc(1, sizeof(*k) + 2 * n * sizeof(k->v[0]));
		k->next = c->g->counts;
		c->g->counts = k;
	}
	k->used = true;
	pthread_mutex_unlock(&c->g->lock);
	memcpy(k->v, c->k.send, n * sizeof(k->v[0]));
	c->k.send = k->v;
	if (c->k.recv) {
		memcpy(k->v + n, c->k.recv, n * sizeof(k->v[0]));
		c->k.recv = k->v + n;
	}
	c->counts = k;
}

static int run_recorded(struct vfm_hcomm *g, const struct vfm_coll *k, struct vfm_err *err)
{
	int peer = k->kind != VFM_C_EXCHANGE ? -1 : k->to >= 0 ? k->to : k->from >= 0 ? k->from : g->c.rank, rc;
	uint64_t number, which, bytes = (uint64_t)(k->n_in > k->n_out ? k->n_in : k->n_out) * vfm_dtype_size(k->dtype);

	if (k->kind != VFM_C_EXCHANGE)
		number = ++g->number;
	else
		number = 1 + (k->to >= 0 ? g->sent[k->to] : k->from >= 0 ? g->got[k->from] : 0);
	vfm_activity_begin(&g->act, k->kind, number, bytes, -1, vfm_now());
	which = vfm_record_begin(g->job, g->c.name, k->kind, number, bytes, peer < 0 ? -1 : g->world[peer]);
	rc = g->shm.head && k->kind != VFM_C_EXCHANGE ? vfm_shm_coll(g, k, err) : vfm_net_coll(g, k, err);
	if (rc >= 0)
		vfm_record_end(g->job, which);
	vfm_wait_end(g);
	atomic_store(&g->act.busy, false);
	return rc;
}

static int run_host_call(void *arg, struct vfm_err *err)
{
	struct host_call *c = arg;
	struct vfm_hjob *j = c->g->job;
	bool exposed = pthread_equal(pthread_self(), c->caller) && pthread_equal(pthread_self(), j->main);
	double start = vfm_now(), took;
	int rc = vfm_hjob_check(j, err);

	if (rc >= 0)
		rc = run_recorded(c->g, &c->k, err);
	took = vfm_now() - start;
	vfm_comm_count(vfm_coll_sends(&c->g->c, &c->k), took, exposed ? took : 0);
	release_counts(c);
	return rc;
}

static int host_call(struct vfm_comm *comm, struct vfm_stream *s, const struct vfm_coll *k, struct vfm_err *err)
{
	struct host_call c = {.k = *k, .g = (struct vfm_hcomm *)comm, .caller = pthread_self()};

	_Static_assert(sizeof(c) <= 256, "a call must fit a host_call");
	copy_counts(&c);
	return s ? s->dev->t->host_call(s, run_host_call, &c, sizeof(c), err) : run_host_call(&c, err);
}

static void host_abort(struct vfm_comm *c, const char *why)
{
	struct vfm_hjob *j = ((struct vfm_hcomm *)c)->job;
	struct vfm_err err;
	char who[96];

	vfm_hjob_fail(j, &err, "%s failed: %s", vfm_rank_str(j, j->rank, who, sizeof(who)), why);
}

static int host_node(const struct vfm_comm *c, int rank)
{
	const struct vfm_hcomm *g = (const struct vfm_hcomm *)c;

	return g->job->node_of[g->world[rank]];
}

/* ---- groups ---- */

static int host_split(struct vfm_comm *c, const struct vfm_comm_split *q, struct vfm_comm **out, struct vfm_err *err);
static void host_free(struct vfm_comm *c);

static const struct vfm_comm_table host_table = {
	.name = "host",
	.call = host_call,
	.split = host_split,
	.free = host_free,
	.abort = host_abort,
	.node = host_node,
};

struct vfm_hcomm *vfm_hcomm_of(struct vfm_comm *c)
{
	return c->t == &host_table ? (struct vfm_hcomm *)c : NULL;
}

/* Takes ownership of world. */
static struct vfm_hcomm *host_group_new(
	struct vfm_hjob *j, uint64_t id, int rank, int size, int *world, const char *name)
{
	struct vfm_hcomm *g = vfm_calloc(1, sizeof(*g));

	g->c = (struct vfm_comm){.t = &host_table, .rank = rank, .size = size};
	snprintf(g->c.name, sizeof(g->c.name), "%s", name);
	g->job = j;
	g->id = id;
	g->world = world;
	g->sent = vfm_calloc((size_t)size, sizeof(*g->sent));
	g->got = vfm_calloc((size_t)size, sizeof(*g->got));
	g->fd = vfm_calloc((size_t)size, sizeof(*g->fd));
	for (int i = 0; i < size; i++)
		g->fd[i] = -1;
	pthread_mutex_init(&g->lock, NULL);
	vfm_activity_add(j, &g->act, g->c.name, id);
	return g;
}

/* Frees the links of a group, or all of them if g is NULL. */
static void free_links(struct vfm_hjob *j, const struct vfm_hcomm *g)
{
	pthread_mutex_lock(&j->lock);
	for (struct vfm_link **p = &j->links, *l; (l = *p);) {
		if (g && (l->kind != VFM_HELLO_DATA || l->group != g->id)) {
			p = &l->next;
			continue;
		}
		*p = l->next;
		if (l->fd >= 0)
			close(l->fd);
		free(l);
	}
	pthread_mutex_unlock(&j->lock);
}

static void host_group_free(struct vfm_hcomm *g)
{
	struct vfm_hjob *j = g->job;

	vfm_activity_remove(j, &g->act);
	free_links(j, g);
	vfm_shm_unmap(g);
	for (int i = 0; i < g->c.size; i++)
		if (g->fd[i] >= 0)
			close(g->fd[i]);
	while (g->counts) {
		struct vfm_counts *k = g->counts;

		g->counts = k->next;
		free(k);
	}
	vfm_big_free(g->tmp, g->tmp_bytes);
	pthread_mutex_destroy(&g->lock);
	free(g->world);
	free(g->sent);
	free(g->got);
	free(g->fd);
	free(g);
}

static bool are_on_one_node(const struct vfm_hjob *j, const int *world, int n)
{
	for (int i = 1; i < n; i++)
		if (j->node_of[world[i]] != j->node_of[world[0]])
			return false;
	return true;
}

struct split_request { /* the arguments of a rank in a split */
	int64_t color, key;
};

/* Writes the ranks in c of this rank's color, ordered by key, then by rank; returns their number. */
static int find_members(const struct vfm_comm *c, const struct split_request *all, int *who)
{
	int n = 0;

	for (int r = 0; r < c->size; r++) {
		int at = n;

		if (all[r].color != all[c->rank].color)
			continue;
		for (; at > 0 && all[who[at - 1]].key > all[r].key; at--)
			who[at] = who[at - 1];
		who[at] = r;
		n++;
	}
	return n;
}

static int gather_i64(struct vfm_comm *c, int64_t mine, int64_t *all, struct vfm_err *err)
{
	return vfm_all_gather(c, NULL, vfm_t1(&mine, VFM_I64, 1), vfm_t1(all, VFM_I64, c->size), NULL, err);
}

static int build_split(struct vfm_hcomm *g, const struct split_request *all, const char *name, int *who, int64_t *word,
	struct vfm_hcomm **new, struct vfm_err *err)
{
	struct vfm_hjob *j = g->job;
	struct {
		uint64_t id, number;
		int64_t color;
	} seed = {g->id, g->number, all[g->c.rank].color};
	int n = seed.color < 0 ? 0 : find_members(&g->c, all, who), rank = 0, rc = 0,
	    *world = vfm_calloc((size_t)n + 1, sizeof(*world));
	bool local;

	for (int i = 0; i < n; i++) {
		world[i] = g->world[who[i]];
		if (who[i] == g->c.rank)
			rank = i;
	}
	local = n > 1 && are_on_one_node(j, world, n);
	if (n > 1)
		*new = host_group_new(j, vfm_fnv64(&seed, sizeof(seed)), rank, n, world, name);
	else
		free(world);
	/* all ranks of g take part in both gathers, whether they get a group or not */
	TRY(gather_i64(
		&g->c, local && rank == 0 && n <= VFM_NODE_RANKS ? (int64_t)vfm_shm_reserve(j, n) : 0, word, err));
	if (local && n > VFM_NODE_RANKS)
		rc = vfm_fail(err, VFM_EENV, "a group of %d ranks on one node is more than %d", n, VFM_NODE_RANKS);
	else if (local)
		rc = vfm_shm_map(*new, (uint64_t)word[who[0]], err);
	TRY(gather_i64(&g->c, rc, word, rc < 0 ? NULL : err));
	for (int r = 0; rc >= 0 && r < g->c.size; r++)
		if (word[r] < 0)
			rc = vfm_fail(err, VFM_EENV, "rank %d could not make the group '%s'", g->world[r], name);
	return rc;
}

static int host_split(struct vfm_comm *c, const struct vfm_comm_split *q, struct vfm_comm **out, struct vfm_err *err)
{
	struct vfm_hcomm *g = (struct vfm_hcomm *)c, *new = NULL;
	struct split_request mine = {q->color, q->key}, *all = vfm_calloc((size_t)c->size, sizeof(*all));
	int *who = vfm_calloc((size_t)c->size, sizeof(*who)), rc;
	int64_t *word = vfm_calloc((size_t)c->size, sizeof(*word));

	*out = NULL;
	TRY_OUT(vfm_all_gather(
		c, NULL, vfm_t1(&mine, VFM_I64, 2), vfm_t1(all, VFM_I64, 2 * (int64_t)c->size), NULL, err));
	rc = build_split(g, all, q->name, who, word, &new, err);
	if (rc < 0) {
		if (new)
			host_group_free(new);
		goto out;
	}
	*out = new ? &new->c : q->color < 0 ? NULL : vfm_comm_self();
out:
	free(all);
	free(who);
	free(word);
	return rc < 0 ? rc : 0;
}

/* ---- the job ---- */

static void host_job_free(struct vfm_hjob *j)
{
	vfm_monitor_stop(j);
	vfm_net_close(j);
	vfm_shared_close(&j->shared);
	free_links(j, NULL);
	pthread_mutex_destroy(&j->lock);
	pthread_mutex_destroy(&j->fail_lock);
	pthread_mutex_destroy(&j->rec_lock);
	pthread_mutex_destroy(&j->fetch_lock);
	pthread_cond_destroy(&j->came);
	for (int r = 0; r < j->size; r++)
		free(j->endpoint[r]);
	free(j->endpoint);
	free(j->pid);
	free(j->recorder_dir);
	free(j);
}

static void host_free(struct vfm_comm *c)
{
	struct vfm_hcomm *g = (struct vfm_hcomm *)c;
	struct vfm_hjob *j = g->job;
	bool world = c->size == j->size && g->id == j->world_id;

	host_group_free(g);
	if (world)
		host_job_free(j);
}

static struct vfm_hjob *host_job_new(struct vfm_launch *l, const struct vfm_host_comm_opts *o)
{
	struct vfm_hjob *j = vfm_calloc(1, sizeof(*j));

	j->l = l;
	j->rank = l->rank;
	j->size = l->size;
	j->node_of = l->node_of;
	j->timeout = o && o->timeout_s > 0 ? o->timeout_s : vfm_launch_timeout();
	j->beat_timeout = j->timeout < 30 ? j->timeout : 30;
	if (j->beat_timeout < 2.6)
		j->beat_timeout = 2.6; /* heartbeats come once a second */
	j->recorder_dir = o && o->recorder_dir ? vfm_strdup(o->recorder_dir) : NULL;
	j->main = pthread_self();
	j->spin = l->local_size <= sysconf(_SC_NPROCESSORS_ONLN) ? 2000 : 0;
	j->yields = j->spin ? 0 : 20;
	j->shared = VFM_SHARED_NONE;
	j->wake = -1;
	j->endpoint = vfm_calloc((size_t)l->size, sizeof(*j->endpoint));
	pthread_mutex_init(&j->lock, NULL);
	pthread_mutex_init(&j->fail_lock, NULL);
	pthread_mutex_init(&j->rec_lock, NULL);
	pthread_mutex_init(&j->fetch_lock, NULL);
	pthread_cond_init(&j->came, NULL);
	return j;
}

/* The first rank of a node has made its shared memory; the others receive it from that rank. */
static int join_node(struct vfm_hjob *j, int first, struct vfm_err *err)
{
	int fd, box;

	TRY(vfm_net_connect(j, first, VFM_HELLO_ARENA, 0, &box, err));
	if (vfm_net_recv_fd(box, &fd) < 0) {
		close(box);
		return vfm_hjob_unreachable(j, first, err);
	}
	close(box);
	return vfm_shared_open(&j->shared, fd, err);
}

/* Derives from the secret of rank 0 what all ranks have in common. */
static int derive_identity(struct vfm_hjob *j, struct vfm_err *err)
{
	const struct vfm_endpoint *zero = vfm_endpoint_of(j, 0, err);
	uint8_t id[VFM_HMAC_BYTES];

	if (!zero)
		return VFM_EENV;
	vfm_derive_key(zero->secret, "vfm handshake", j->key);
	vfm_derive_key(zero->secret, "vfm world", id);
	memcpy(&j->world_id, id, sizeof(j->world_id));
	return 0;
}

static int start_host_job(struct vfm_hjob *j, struct vfm_err *err)
{
	int first = 0;
	bool alone = true;

	while (j->node_of[first] != j->node_of[j->rank])
		first++;
	for (int r = 0; r < j->size; r++)
		alone &= r == j->rank || j->node_of[r] != j->node_of[j->rank];
	TRY(vfm_net_open(j, err));
	TRY(derive_identity(j, err));
	if (first == j->rank && !alone) {
		TRY(vfm_shared_make(&j->shared, "vfm-comm", err));
		j->owns_shared = true;
		vfm_shm_reserve(j, j->l->nodes == 1 ? j->size : 1);
	}
	TRY(vfm_monitor_start(j, err));
	TRY(vfm_monitor_join(j, err)); /* first: rank 0 then learns of any later failure */
	return first == j->rank ? 0 : join_node(j, first, err);
}

/* Tries whether the ranks of each node can read each other's memory (process_vm_readv).  That needs a common pid
 * namespace and permission.  Collective over the world. */
static int probe_direct_reads(struct vfm_hcomm *w, struct vfm_err *err)
{
	static const uint64_t magic = 0x76666d2d70656572;
	struct vfm_hjob *j = w->job;
	const char *off = getenv("VFM_COMM_DIRECT");
	int64_t mine[2] = {getpid(), (int64_t)(uintptr_t)&magic}, ok = !(off && !strcmp(off, "0")), n = j->size;
	int64_t *all = vfm_calloc((size_t)n * 2, sizeof(*all)), *good = vfm_calloc((size_t)n, sizeof(*good));
	int rc;

	TRY_OUT(vfm_all_gather(&w->c, NULL, vfm_t1(mine, VFM_I64, 2), vfm_t1(all, VFM_I64, 2 * n), NULL, err));
	for (int r = 0; ok && r < j->size; r++) {
		uint64_t got = 0;
		struct iovec here = {&got, sizeof(got)}, there = {(void *)(uintptr_t)all[2 * r + 1], sizeof(got)};

		if (j->node_of[r] == j->node_of[j->rank])
			ok = process_vm_readv((pid_t)all[2 * r], &here, 1, &there, 1, 0) == sizeof(got) && got == magic;
	}
	TRY_OUT(vfm_all_gather(&w->c, NULL, vfm_t1(&ok, VFM_I64, 1), vfm_t1(good, VFM_I64, n), NULL, err));
	for (int r = 0; r < j->size; r++)
		ok &= good[r];
	if (ok) {
		j->pid = vfm_calloc((size_t)n, sizeof(*j->pid));
		for (int r = 0; r < j->size; r++)
			j->pid[r] = (int32_t)all[2 * r];
	}
out:
	free(all);
	free(good);
	return rc;
}

/* No-op if the job has failed already, or none can hear of it. */
static void report_start_failure(struct vfm_hjob *j, const struct vfm_err *err)
{
	char who[96];

	if (j->monitor_runs && err && vfm_hjob_check(j, NULL) >= 0)
		vfm_hjob_fail(j, NULL, "%s: %s", vfm_rank_str(j, j->rank, who, sizeof(who)), err->msg);
}

int vfm_comm_host_new(
	struct vfm_launch *l, const struct vfm_host_comm_opts *o, struct vfm_comm **out, struct vfm_err *err)
{
	struct vfm_hcomm *g;
	struct vfm_hjob *j;
	int rc, *world;

	*out = vfm_comm_self();
	if (l->size == 1)
		return 0;
	j = host_job_new(l, o);
	rc = start_host_job(j, err);
	if (rc < 0) {
		report_start_failure(j, err);
		host_job_free(j);
		return rc;
	}
	world = vfm_calloc((size_t)l->size, sizeof(*world));
	for (int r = 0; r < l->size; r++)
		world[r] = r;
	g = host_group_new(j, j->world_id, l->rank, l->size, world, "world");
	if (l->nodes == 1)
		rc = l->size > VFM_NODE_RANKS
			? vfm_fail(err, VFM_EENV, "%d ranks on one node are more than %d", l->size, VFM_NODE_RANKS)
			: vfm_shm_map(g, vfm_shared_first(), err);
	if (rc >= 0)
		rc = vfm_barrier(&g->c, NULL, err);
	atomic_store(&j->started, true);
	if (rc >= 0)
		rc = probe_direct_reads(g, err);
	if (rc < 0) {
		report_start_failure(j, err);
		host_free(&g->c);
		return rc;
	}
	*out = &g->c;
	return 0;
}

int vfm_comm_host_check(struct vfm_comm *c, struct vfm_err *err)
{
	return c->t == &host_table ? vfm_hjob_check(((struct vfm_hcomm *)c)->job, err) : 0;
}

const struct vfm_shared *vfm_comm_host_shared(const struct vfm_comm *c)
{
	const struct vfm_hcomm *g = (const struct vfm_hcomm *)c;

	return c->t == &host_table && g->shm.head ? &g->job->shared : NULL;
}
