/* shm_transport.h - a transport (comm/device/transport.h) for the memory of a CPU device, through shared memory that is
 * made before the ranks fork.  It shares no code with the host backend.  A missing rank blocks the others until they
 * abort, as with NCCL. */
#ifndef TESTS_UNIT_SHMWIRE_H
#define TESTS_UNIT_SHMWIRE_H

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "comm/coll/comm_sum.h"
#include "comm/device/transport.h"
enum { SHMT_RANKS = 16, SHMT_CHUNK = 8192, SHMT_COMMS = 512, SHMT_SPLITS = 2048 };

struct shmt_box {
	_Atomic uint64_t wrote, read;
	bool registered; /* the sender's operands are registered */
	char data[SHMT_CHUNK];
};

struct shmt_arena {
	_Atomic int comms, splits, lock;
	struct shmt_split {
		int parent, nth, size;
		_Atomic int came;
		/* comm: the communicator of rank i's color, set by the first rank of that color */
		int color[SHMT_RANKS], key[SHMT_RANKS], comm[SHMT_RANKS];
	} split[SHMT_SPLITS];
	struct {
		_Atomic int came;
		struct shmt_box box[SHMT_RANKS][SHMT_RANKS]; /* [from][to] */
	} comm[SHMT_COMMS];
};

static struct shmt_arena *shmt;
static atomic_bool shmt_broken; /* makes the library of this rank report an error */
static bool shmt_same_device, shmt_no_id, shmt_dies;
static atomic_int shmt_jobs; /* enqueued work of this rank that has not run */

struct vfm_transport_comm {
	int comm, rank, size, splits; /* comm -1: not decided yet */
	struct shmt_split *from;      /* the split that made it; NULL: init did */
	int from_rank;
	atomic_bool aborted;
};

/* To be called before the forks. */
static void shmt_make(void)
{
	if (shmt)
		munmap(shmt, sizeof(*shmt));
	shmt = mmap(NULL, sizeof(*shmt), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (shmt == MAP_FAILED)
		abort();
}

static int shmt_device_id(struct vfm_dev *d, char id[VFM_TRANSPORT_DEVICE], struct vfm_err *err)
{
	(void)d, (void)err;
	snprintf(id, VFM_TRANSPORT_DEVICE, "%d", shmt_same_device ? 0 : (int)getpid());
	return 0;
}

static int shmt_share(int rank, struct vfm_err *err)
{
	(void)rank, (void)err;
	return shmt_dies ? raise(SIGKILL) : 0;
}

static int shmt_unique_id(unsigned char id[VFM_TRANSPORT_ID], struct vfm_err *err)
{
	int n = shmt->comms++;

	if (shmt_no_id)
		return vfm_fail(err, VFM_EENV, "shm: no plug");
	if (n >= SHMT_COMMS)
		return vfm_fail(err, VFM_EENV, "too many communicators");
	memcpy(id, &n, sizeof(n));
	return 0;
}

static int shmt_state(struct vfm_transport_comm *w, struct vfm_err *err)
{
	if (atomic_load(&w->aborted))
		return vfm_fail(err, VFM_EENV, "shm: aborted");
	if (atomic_load(&shmt_broken))
		return vfm_fail(err, VFM_EENV, "shm: the cable is out");
	if (w->comm < 0) {
		struct shmt_split *p = w->from;
		int first = -1, n = 0, before = 0, me = w->from_rank;

		if (p->came < p->size)
			return VFM_TRANSPORT_BUSY;
		for (int r = 0; r < p->size; r++) {
			if (p->color[r] != p->color[me])
				continue;
			first = first < 0 ? r : first;
			n++;
			before += p->key[r] < p->key[me] || (p->key[r] == p->key[me] && r < me);
		}
		while (atomic_exchange(&shmt->lock, 1))
			sched_yield();
		if (!p->comm[first])
			p->comm[first] = 1 + shmt->comms++;
		w->comm = p->comm[first] - 1;
		atomic_store(&shmt->lock, 0);
		if (w->comm >= SHMT_COMMS)
			return vfm_fail(err, VFM_EENV, "too many communicators");
		w->rank = before;
		w->size = n;
		shmt->comm[w->comm].came++;
	}
	return shmt->comm[w->comm].came < w->size ? VFM_TRANSPORT_BUSY : 0;
}

static int shmt_init(struct vfm_transport_comm **out, struct vfm_dev *d, const unsigned char id[VFM_TRANSPORT_ID],
	int rank, int size, const char *name, struct vfm_err *err)
{
	struct vfm_transport_comm *w = vfm_calloc(1, sizeof(*w));

	(void)d, (void)name;
	memcpy(&w->comm, id, sizeof(w->comm));
	w->rank = rank;
	w->size = size;
	*out = w;
	if (size > SHMT_RANKS)
		return vfm_fail(err, VFM_EENV, "shm: too many ranks");
	shmt->comm[w->comm].came++;
	return VFM_TRANSPORT_BUSY;
}

static int shmt_split(struct vfm_transport_comm *w, int color, int key, bool p2p, const char *name,
	struct vfm_transport_comm **out, struct vfm_err *err)
{
	struct shmt_split *p = NULL;
	int i;

	(void)name, (void)p2p;
	while (atomic_exchange(&shmt->lock, 1))
		sched_yield();
	for (i = 0; i < shmt->splits && !p; i++)
		if (shmt->split[i].parent == w->comm && shmt->split[i].nth == w->splits)
			p = &shmt->split[i];
	if (!p && shmt->splits < SHMT_SPLITS) {
		p = &shmt->split[shmt->splits++];
		p->parent = w->comm;
		p->nth = w->splits;
		p->size = w->size;
	}
	atomic_store(&shmt->lock, 0);
	if (!p)
		return vfm_fail(err, VFM_EENV, "too many splits");
	w->splits++;
	p->color[w->rank] = color;
	p->key[w->rank] = key;
	p->came++;
	*out = NULL;
	if (color >= 0) {
		*out = vfm_calloc(1, sizeof(**out));
		(*out)->comm = -1;
		(*out)->from = p;
		(*out)->from_rank = w->rank;
	}
	return 0;
}

static void shmt_abort(struct vfm_transport_comm *const *w, int n)
{
	for (int i = 0; i < n; i++)
		atomic_store(&w[i]->aborted, true);
}

static int shmt_finish(struct vfm_transport_comm *w, struct vfm_err *err)
{
	(void)w, (void)err;
	return 0;
}

static int shmt_registered_of(const struct vfm_transport_comm *w);

static void shmt_free(struct vfm_transport_comm *w)
{
	if (w && shmt_registered_of(w)) {
		fprintf(stderr, "shm: a communicator is freed before its buffers are deregistered\n");
		abort();
	}
	free(w);
}

/* ---- memory of this library: only it can be registered, and it is deregistered before it is freed ---- */

struct shmt_range {
	struct vfm_transport_comm *w; /* NULL: an allocation */
	char *p;
	size_t bytes;
};
static struct shmt_range shmt_range[256];
static int shmt_mem_now, shmt_registered_now, shmt_registered_ever,
	shmt_registered_calls;             /* calls: with registered operands */
static bool shmt_no_mem, shmt_no_register; /* refuse an allocation; a registration */
static int shmt_asked, shmt_no_mem_at;     /* number of allocations; the one that fails, 0: none */

static struct shmt_range *shmt_find(struct vfm_transport_comm *w, const void *p, size_t bytes)
{
	for (size_t i = 0; i < sizeof(shmt_range) / sizeof(shmt_range[0]); i++) {
		struct shmt_range *r = &shmt_range[i];

		if (r->p && r->w == w && (const char *)p >= r->p && (const char *)p + bytes <= r->p + r->bytes)
			return r;
	}
	return NULL;
}

static void shmt_wrong(const char *what)
{
	fprintf(stderr, "shm: %s\n", what);
	abort();
}

static void shmt_keep(struct vfm_transport_comm *w, void *p, size_t bytes)
{
	struct shmt_range *r = shmt_range;

	while (r->p)
		if (++r == shmt_range + sizeof(shmt_range) / sizeof(shmt_range[0]))
			shmt_wrong("too many ranges");
	*r = (struct shmt_range){w, p, bytes};
}

static int shmt_mem_alloc(struct vfm_stream *s, size_t bytes, const char *what, void **p, struct vfm_err *err)
{
	(void)s;
	if (shmt_no_mem || ++shmt_asked == shmt_no_mem_at)
		return vfm_fail(err, VFM_EENV, "shm: no memory for %s", what);
	*p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
	shmt_keep(NULL, *p, bytes);
	shmt_mem_now++;
	return 0;
}

static void shmt_mem_free(struct vfm_stream *s, void *p, size_t bytes, const char *what)
{
	struct shmt_range *r = shmt_find(NULL, p, bytes);

	(void)s, (void)what;
	if (!r || r->p != p || r->bytes != bytes)
		shmt_wrong("memory is freed that was not allocated");
	for (size_t i = 0; i < sizeof(shmt_range) / sizeof(shmt_range[0]); i++)
		if (shmt_range[i].w && shmt_range[i].p >= (char *)p && shmt_range[i].p < (char *)p + bytes)
			shmt_wrong("memory is freed before it is deregistered");
	r->p = NULL;
	shmt_mem_now--;
	free(p);
}

static int shmt_register(struct vfm_transport_comm *w, void *p, size_t bytes, void **handle, struct vfm_err *err)
{
	if (shmt_no_register)
		return vfm_fail(err, VFM_EENV, "shm: the registration is refused");
	if (!shmt_find(NULL, p, bytes))
		shmt_wrong("foreign memory is registered");
	if (shmt_find(w, p, bytes))
		shmt_wrong("memory is registered twice");
	shmt_keep(w, p, bytes);
	*handle = shmt_find(w, p, bytes);
	shmt_registered_now++;
	shmt_registered_ever++;
	return VFM_TRANSPORT_BUSY;
}

static int shmt_registered_of(const struct vfm_transport_comm *w)
{
	int n = 0;

	for (size_t i = 0; i < sizeof(shmt_range) / sizeof(shmt_range[0]); i++)
		n += shmt_range[i].p && shmt_range[i].w == w;
	return n;
}

static void shmt_deregister(struct vfm_transport_comm *w, void *handle)
{
	struct shmt_range *r = handle;

	if (!r->p || r->w != w)
		shmt_wrong("memory is deregistered that is not registered");
	*r = (struct shmt_range){0};
	shmt_registered_now--;
}

/* ---- work on the stream ---- */

struct shmt_job {
	struct vfm_transport_comm *w;
	int n;     /* messages */
	char *dst; /* then a copy, or a sum */
	const void *src[SHMT_RANKS];
	int n_src;
	size_t bytes;
	enum vfm_dtype dt;
	char *tmp;
	bool alone, registered; /* alone: messages, which each rank has for itself; registered: all operands are */
	struct vfm_transport_msg m[];
};

static bool shmt_step(const struct shmt_job *k, struct vfm_transport_msg *m)
{
	struct vfm_transport_comm *w = k->w;
	struct shmt_box *b =
		m->send ? &shmt->comm[w->comm].box[w->rank][m->peer] : &shmt->comm[w->comm].box[m->peer][w->rank];
	size_t n = m->bytes < SHMT_CHUNK ? m->bytes : SHMT_CHUNK;
	uint64_t wrote = b->wrote, read = b->read;

	if (m->send ? wrote != read : wrote == read)
		return false;
	if (m->send)
		b->registered = k->registered;
	else if (b->registered != k->registered && !k->alone)
		shmt_wrong("some ranks know the operands of a collective, others do not");
	memcpy(m->send ? (void *)b->data : m->p, m->send ? m->p : (void *)b->data, n);
	m->p = (char *)m->p + n;
	m->bytes -= n;
	if (m->send)
		b->wrote = wrote + 1;
	else
		b->read = read + 1;
	return true;
}

static int shmt_run(void *arg, struct vfm_err *err)
{
	struct shmt_job *k = *(struct shmt_job **)arg;
	struct vfm_transport_comm *w = k->w;
	int left = k->n, idle = 0;

	while (left > 0 && !atomic_load(&w->aborted)) {
		bool moved = false;

		for (int i = 0; i < k->n; i++)
			if (k->m[i].bytes && shmt_step(k, &k->m[i])) {
				moved = true;
				left -= k->m[i].bytes == 0;
			}
		if (moved)
			idle = 0;
		else if (++idle < 50)
			sched_yield();
		else
			usleep(50);
	}
	(void)err; /* an aborted kernel reports no error */
	if (left == 0 && k->n_src > 0)
		vfm_comm_sum(k->dt, k->dst, k->src, k->n_src, k->bytes / vfm_dtype_size(k->dt));
	else if (left == 0 && k->dst && k->dst != k->src[0])
		memmove(k->dst, k->src[0], k->bytes);
	free(k->tmp);
	free(k);
	atomic_fetch_sub(&shmt_jobs, 1);
	return 0;
}

static struct shmt_job *shmt_new(struct vfm_transport_comm *w)
{
	struct shmt_job *k = vfm_calloc(1, sizeof(*k) + 2 * SHMT_RANKS * sizeof(k->m[0]));

	k->w = w;
	return k;
}

static void shmt_add(struct shmt_job *k, bool send, const void *p, size_t bytes, int peer)
{
	if (bytes)
		k->m[k->n++] = (struct vfm_transport_msg){(void *)p, bytes, peer, send};
}

static int shmt_put(struct vfm_stream *s, struct shmt_job *k, struct vfm_err *err)
{
	bool registered = k->n > 0;

	for (int i = 0; i < k->n; i++)
		registered = registered && ((k->tmp && !k->m[i].send) || shmt_find(k->w, k->m[i].p, k->m[i].bytes));
	shmt_registered_calls += registered;
	k->registered = registered;
	if (atomic_load(&k->w->aborted) || atomic_load(&shmt_broken)) {
		int rc = shmt_state(k->w, err);

		free(k->tmp);
		free(k);
		return rc;
	}
	atomic_fetch_add(&shmt_jobs, 1);
	return s->dev->t->host_call(s, shmt_run, &k, sizeof(k), err);
}

/* Receives the blocks of n bytes of the others in tmp.  in_each: distance of the blocks to send; 0: all get the same.
 */
static int shmt_sum(struct vfm_transport_comm *w, struct vfm_stream *s, const char *in, size_t in_each, void *out,
	size_t n, enum vfm_dtype dt, struct vfm_err *err)
{
	struct shmt_job *k = shmt_new(w);

	k->tmp = malloc(n * (size_t)w->size + 1);
	for (int r = 0; r < w->size; r++) {
		k->src[r] = r == w->rank ? in + in_each * (size_t)r : k->tmp + (size_t)r * n;
		if (r != w->rank) {
			shmt_add(k, true, in + in_each * (size_t)r, n, r);
			shmt_add(k, false, k->src[r], n, r);
		}
	}
	k->n_src = w->size;
	k->dst = out;
	k->bytes = n;
	k->dt = dt;
	return shmt_put(s, k, err);
}

static int shmt_all_reduce(
	struct vfm_transport_comm *w, struct vfm_stream *s, void *x, int64_t n, enum vfm_dtype dt, struct vfm_err *err)
{
	return shmt_sum(w, s, x, 0, x, (size_t)n * vfm_dtype_size(dt), dt, err);
}

static int shmt_reduce_scatter(struct vfm_transport_comm *w, struct vfm_stream *s, const void *in, void *out, int64_t n,
	enum vfm_dtype dt, struct vfm_err *err)
{
	size_t bytes = (size_t)n * vfm_dtype_size(dt);

	return shmt_sum(w, s, in, bytes, out, bytes, dt, err);
}

static int shmt_trade(struct vfm_transport_comm *w, struct vfm_stream *s, const char *in, size_t in_each, char *out,
	size_t n, struct vfm_err *err)
{
	struct shmt_job *k = shmt_new(w);

	for (int r = 0; r < w->size; r++)
		if (r != w->rank) {
			shmt_add(k, true, in + in_each * (size_t)r, n, r);
			shmt_add(k, false, out + n * (size_t)r, n, r);
		}
	k->dst = out + n * (size_t)w->rank;
	k->src[0] = in + in_each * (size_t)w->rank;
	k->bytes = n;
	return shmt_put(s, k, err);
}

static int shmt_all_gather(
	struct vfm_transport_comm *w, struct vfm_stream *s, const void *in, void *out, size_t each, struct vfm_err *err)
{
	return shmt_trade(w, s, in, 0, out, each, err);
}

static int shmt_all_to_all(
	struct vfm_transport_comm *w, struct vfm_stream *s, const void *in, void *out, size_t each, struct vfm_err *err)
{
	return shmt_trade(w, s, in, each, out, each, err);
}

static int shmt_broadcast(
	struct vfm_transport_comm *w, struct vfm_stream *s, void *x, size_t bytes, int root, struct vfm_err *err)
{
	struct shmt_job *k = shmt_new(w);

	for (int r = 0; w->rank == root && r < w->size; r++)
		if (r != root)
			shmt_add(k, true, x, bytes, r);
	if (w->rank != root)
		shmt_add(k, false, x, bytes, root);
	return shmt_put(s, k, err);
}

static int shmt_messages(struct vfm_transport_comm *w, struct vfm_stream *s, const struct vfm_transport_msg *m, int n,
	struct vfm_err *err)
{
	struct shmt_job *k = shmt_new(w);

	k->alone = true;
	for (int i = 0; i < n; i++)
		shmt_add(k, m[i].send, m[i].p, m[i].bytes, m[i].peer);
	return shmt_put(s, k, err);
}

static const struct vfm_transport shm_transport = {
	.name = "shm",
	.device_id = shmt_device_id,
	.share = shmt_share,
	.unique_id = shmt_unique_id,
	.init = shmt_init,
	.split = shmt_split,
	.state = shmt_state,
	.abort = shmt_abort,
	.finish = shmt_finish,
	.free = shmt_free,
	.all_reduce = shmt_all_reduce,
	.all_gather = shmt_all_gather,
	.reduce_scatter = shmt_reduce_scatter,
	.all_to_all = shmt_all_to_all,
	.broadcast = shmt_broadcast,
	.messages = shmt_messages,
	.mem_alloc = shmt_mem_alloc,
	.mem_free = shmt_mem_free,
	.register_memory = shmt_register,
	.deregister_memory = shmt_deregister,
};

#endif
