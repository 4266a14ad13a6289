/* shmwire.h - a wire (comm/wire.h) for the memory of a CPU device: messages through shared memory, made before the
 * ranks fork. Simple, and nothing of the host filling in it; a rank that does not come hangs the others until they
 * abort, as with NCCL. */
#ifndef TESTS_UNIT_SHMWIRE_H
#define TESTS_UNIT_SHMWIRE_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "comm/comm_impl.h"
#include "comm/wire.h"

enum { SW_RANKS = 16, SW_CHUNK = 8192, SW_COMMS = 512, SW_SPLITS = 2048 };

struct sw_box {
	_Atomic uint64_t wrote, read;
	bool known; /* the sender's group knows its operands */
	char data[SW_CHUNK];
};

struct sw_arena {
	_Atomic int comms, splits, lock;
	struct sw_split {
		int parent, nth, size;
		_Atomic int came;
		/* comm: of the color of rank i's, set by its first rank */
		int color[SW_RANKS], key[SW_RANKS], comm[SW_RANKS];
	} split[SW_SPLITS];
	struct {
		_Atomic int came;
		struct sw_box box[SW_RANKS][SW_RANKS]; /* [from][to] */
	} comm[SW_COMMS];
};

static struct sw_arena *sw;
static atomic_bool sw_broken; /* this rank's library reports an error */
static bool sw_same_device, sw_no_id;

struct vfm_wire_comm {
	int comm, rank, size, splits; /* comm -1: not known yet */
	struct sw_split *from;        /* of what it was split from; NULL: of none */
	int from_rank;
	atomic_bool aborted;
};

/* Before the forks. */
static void sw_make(void)
{
	if (sw)
		munmap(sw, sizeof(*sw));
	sw = mmap(NULL, sizeof(*sw), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (sw == MAP_FAILED)
		abort();
}

static int sw_device_id(struct vfm_dev *d, char id[VFM_WIRE_DEVICE], struct vfm_err *err)
{
	(void)d, (void)err;
	snprintf(id, VFM_WIRE_DEVICE, "%d", sw_same_device ? 0 : (int)getpid());
	return 0;
}

static int sw_share(int rank, struct vfm_err *err)
{
	(void)rank, (void)err;
	return 0;
}

static int sw_unique_id(unsigned char id[VFM_WIRE_ID], struct vfm_err *err)
{
	int n = sw->comms++;

	if (sw_no_id)
		return vfm_fail(err, VFM_EENV, "shm: no plug");
	if (n >= SW_COMMS)
		return vfm_fail(err, VFM_EENV, "too many communicators");
	memcpy(id, &n, sizeof(n));
	return 0;
}

static int sw_state(struct vfm_wire_comm *w, struct vfm_err *err)
{
	if (atomic_load(&w->aborted))
		return vfm_fail(err, VFM_EENV, "shm: aborted");
	if (atomic_load(&sw_broken))
		return vfm_fail(err, VFM_EENV, "shm: the cable is out");
	if (w->comm < 0) {
		struct sw_split *p = w->from;
		int first = -1, n = 0, before = 0, me = w->from_rank;

		if (p->came < p->size)
			return VFM_WIRE_BUSY;
		for (int r = 0; r < p->size; r++) {
			if (p->color[r] != p->color[me])
				continue;
			first = first < 0 ? r : first;
			n++;
			before += p->key[r] < p->key[me] || (p->key[r] == p->key[me] && r < me);
		}
		while (atomic_exchange(&sw->lock, 1))
			sched_yield();
		if (!p->comm[first])
			p->comm[first] = 1 + sw->comms++;
		w->comm = p->comm[first] - 1;
		atomic_store(&sw->lock, 0);
		if (w->comm >= SW_COMMS)
			return vfm_fail(err, VFM_EENV, "too many communicators");
		w->rank = before;
		w->size = n;
		sw->comm[w->comm].came++;
	}
	return sw->comm[w->comm].came < w->size ? VFM_WIRE_BUSY : 0;
}

static int sw_init(struct vfm_wire_comm **out, struct vfm_dev *d, const unsigned char id[VFM_WIRE_ID], int rank,
	int size, const char *name, struct vfm_err *err)
{
	struct vfm_wire_comm *w = vfm_calloc(1, sizeof(*w));

	(void)d, (void)name;
	memcpy(&w->comm, id, sizeof(w->comm));
	w->rank = rank;
	w->size = size;
	*out = w;
	if (size > SW_RANKS)
		return vfm_fail(err, VFM_EENV, "shm: too many ranks");
	sw->comm[w->comm].came++;
	return VFM_WIRE_BUSY;
}

static int sw_split(struct vfm_wire_comm *w, int color, int key, bool links, const char *name,
	struct vfm_wire_comm **out, struct vfm_err *err)
{
	struct sw_split *p = NULL;
	int i;

	(void)name, (void)links;
	while (atomic_exchange(&sw->lock, 1))
		sched_yield();
	for (i = 0; i < sw->splits && !p; i++)
		if (sw->split[i].parent == w->comm && sw->split[i].nth == w->splits)
			p = &sw->split[i];
	if (!p && sw->splits < SW_SPLITS) {
		p = &sw->split[sw->splits++];
		p->parent = w->comm;
		p->nth = w->splits;
		p->size = w->size;
	}
	atomic_store(&sw->lock, 0);
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

static void sw_abort(struct vfm_wire_comm *w)
{
	atomic_store(&w->aborted, true);
}

static int sw_finish(struct vfm_wire_comm *w, struct vfm_err *err)
{
	(void)w, (void)err;
	return 0;
}

static int sw_known_of(const struct vfm_wire_comm *w);

static void sw_free(struct vfm_wire_comm *w)
{
	if (w && sw_known_of(w)) {
		fprintf(stderr, "shm: a group is freed that knows memory\n");
		abort();
	}
	free(w);
}

/* ---- memory of this library: nothing is known that does not lie in it, and nothing freed that is known ---- */

struct sw_range {
	struct vfm_wire_comm *w; /* NULL: an allocation */
	char *p;
	size_t bytes;
};
static struct sw_range sw_range[256];
static int sw_mem_now, sw_known_now, sw_known_ever, sw_known_calls; /* calls: with operands that their group knows */
static bool sw_no_mem, sw_no_register;                              /* it has none left; it refuses */
static int sw_asked, sw_no_mem_at; /* how often memory was wanted; the time that there is none, 0: never */

static struct sw_range *sw_find(struct vfm_wire_comm *w, const void *p, size_t bytes)
{
	for (size_t i = 0; i < sizeof(sw_range) / sizeof(sw_range[0]); i++) {
		struct sw_range *r = &sw_range[i];

		if (r->p && r->w == w && (const char *)p >= r->p && (const char *)p + bytes <= r->p + r->bytes)
			return r;
	}
	return NULL;
}

static void sw_wrong(const char *what)
{
	fprintf(stderr, "shm: %s\n", what);
	abort();
}

static void sw_keep(struct vfm_wire_comm *w, void *p, size_t bytes)
{
	struct sw_range *r = sw_range;

	while (r->p)
		if (++r == sw_range + sizeof(sw_range) / sizeof(sw_range[0]))
			sw_wrong("too many ranges");
	*r = (struct sw_range){w, p, bytes};
}

static int sw_mem_alloc(struct vfm_stream *s, size_t bytes, const char *what, void **p, struct vfm_err *err)
{
	(void)s;
	if (sw_no_mem || ++sw_asked == sw_no_mem_at)
		return vfm_fail(err, VFM_EENV, "shm: no memory for %s", what);
	*p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
	sw_keep(NULL, *p, bytes);
	sw_mem_now++;
	return 0;
}

static void sw_mem_free(struct vfm_stream *s, void *p, size_t bytes, const char *what)
{
	struct sw_range *r = sw_find(NULL, p, bytes);

	(void)s, (void)what;
	if (!r || r->p != p || r->bytes != bytes)
		sw_wrong("memory is freed that was not allocated");
	for (size_t i = 0; i < sizeof(sw_range) / sizeof(sw_range[0]); i++)
		if (sw_range[i].w && sw_range[i].p >= (char *)p && sw_range[i].p < (char *)p + bytes)
			sw_wrong("memory is freed that a group knows");
	r->p = NULL;
	sw_mem_now--;
	free(p);
}

static int sw_register(struct vfm_wire_comm *w, void *p, size_t bytes, void **handle, struct vfm_err *err)
{
	if (sw_no_register)
		return vfm_fail(err, VFM_EENV, "shm: this memory is strange");
	if (!sw_find(NULL, p, bytes))
		sw_wrong("memory is registered that is not the library's");
	if (sw_find(w, p, bytes))
		sw_wrong("memory is registered twice");
	sw_keep(w, p, bytes);
	*handle = sw_find(w, p, bytes);
	sw_known_now++;
	sw_known_ever++;
	return VFM_WIRE_BUSY;
}

static int sw_known_of(const struct vfm_wire_comm *w)
{
	int n = 0;

	for (size_t i = 0; i < sizeof(sw_range) / sizeof(sw_range[0]); i++)
		n += sw_range[i].p && sw_range[i].w == w;
	return n;
}

static void sw_unregister(struct vfm_wire_comm *w, void *handle)
{
	struct sw_range *r = handle;

	if (!r->p || r->w != w)
		sw_wrong("what is not registered is unregistered");
	*r = (struct sw_range){0};
	sw_known_now--;
}

/* ---- what runs on the stream ---- */

struct sw_job {
	struct vfm_wire_comm *w;
	int n;     /* messages */
	char *dst; /* then a copy, or a sum */
	const void *src[SW_RANKS];
	int n_src;
	size_t bytes;
	enum vfm_dtype dt;
	char *tmp;
	bool alone, known; /* messages, of which each rank has its own; whether all operands are known */
	struct vfm_wire_msg m[];
};

static bool sw_step(const struct sw_job *k, struct vfm_wire_msg *m)
{
	struct vfm_wire_comm *w = k->w;
	struct sw_box *b =
		m->send ? &sw->comm[w->comm].box[w->rank][m->peer] : &sw->comm[w->comm].box[m->peer][w->rank];
	size_t n = m->bytes < SW_CHUNK ? m->bytes : SW_CHUNK;
	uint64_t wrote = b->wrote, read = b->read;

	if (m->send ? wrote != read : wrote == read)
		return false;
	if (m->send)
		b->known = k->known;
	else if (b->known != k->known && !k->alone)
		sw_wrong("some ranks know the operands of a collective, others do not");
	memcpy(m->send ? (void *)b->data : m->p, m->send ? m->p : (void *)b->data, n);
	m->p = (char *)m->p + n;
	m->bytes -= n;
	if (m->send)
		b->wrote = wrote + 1;
	else
		b->read = read + 1;
	return true;
}

static int sw_run(void *arg, struct vfm_err *err)
{
	struct sw_job *k = *(struct sw_job **)arg;
	struct vfm_wire_comm *w = k->w;
	int left = k->n, idle = 0;

	while (left > 0 && !atomic_load(&w->aborted)) {
		bool moved = false;

		for (int i = 0; i < k->n; i++)
			if (k->m[i].bytes && sw_step(k, &k->m[i])) {
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
	(void)err; /* as a kernel that was told to end: no error */
	if (left == 0 && k->n_src > 0)
		vfm_comm_sum(k->dt, k->dst, k->src, k->n_src, k->bytes / vfm_dtype_size(k->dt));
	else if (left == 0 && k->dst && k->dst != k->src[0])
		memmove(k->dst, k->src[0], k->bytes);
	free(k->tmp);
	free(k);
	return 0;
}

static struct sw_job *sw_new(struct vfm_wire_comm *w)
{
	struct sw_job *k = vfm_calloc(1, sizeof(*k) + 2 * SW_RANKS * sizeof(k->m[0]));

	k->w = w;
	return k;
}

static void sw_add(struct sw_job *k, bool send, const void *p, size_t bytes, int peer)
{
	if (bytes)
		k->m[k->n++] = (struct vfm_wire_msg){(void *)p, bytes, peer, send};
}

static int sw_put(struct vfm_stream *s, struct sw_job *k, struct vfm_err *err)
{
	bool known = k->n > 0;

	for (int i = 0; i < k->n; i++)
		known = known && ((k->tmp && !k->m[i].send) || sw_find(k->w, k->m[i].p, k->m[i].bytes));
	sw_known_calls += known;
	k->known = known;
	if (atomic_load(&k->w->aborted) || atomic_load(&sw_broken)) {
		int rc = sw_state(k->w, err);

		free(k->tmp);
		free(k);
		return rc;
	}
	return s->dev->t->host_call(s, sw_run, &k, sizeof(k), err);
}

/* The others' blocks of n bytes come to tmp; in_each: how far apart the blocks lie that go (0: all get the same). */
static int sw_sum(struct vfm_wire_comm *w, struct vfm_stream *s, const char *in, size_t in_each, void *out, size_t n,
	enum vfm_dtype dt, struct vfm_err *err)
{
	struct sw_job *k = sw_new(w);

	k->tmp = malloc(n * (size_t)w->size + 1);
	for (int r = 0; r < w->size; r++) {
		k->src[r] = r == w->rank ? in + in_each * (size_t)r : k->tmp + (size_t)r * n;
		if (r != w->rank) {
			sw_add(k, true, in + in_each * (size_t)r, n, r);
			sw_add(k, false, k->src[r], n, r);
		}
	}
	k->n_src = w->size;
	k->dst = out;
	k->bytes = n;
	k->dt = dt;
	return sw_put(s, k, err);
}

static int sw_all_reduce(
	struct vfm_wire_comm *w, struct vfm_stream *s, void *x, int64_t n, enum vfm_dtype dt, struct vfm_err *err)
{
	return sw_sum(w, s, x, 0, x, (size_t)n * vfm_dtype_size(dt), dt, err);
}

static int sw_reduce_scatter(struct vfm_wire_comm *w, struct vfm_stream *s, const void *in, void *out, int64_t n,
	enum vfm_dtype dt, struct vfm_err *err)
{
	size_t bytes = (size_t)n * vfm_dtype_size(dt);

	return sw_sum(w, s, in, bytes, out, bytes, dt, err);
}

static int sw_trade(struct vfm_wire_comm *w, struct vfm_stream *s, const char *in, size_t in_each, char *out, size_t n,
	struct vfm_err *err)
{
	struct sw_job *k = sw_new(w);

	for (int r = 0; r < w->size; r++)
		if (r != w->rank) {
			sw_add(k, true, in + in_each * (size_t)r, n, r);
			sw_add(k, false, out + n * (size_t)r, n, r);
		}
	k->dst = out + n * (size_t)w->rank;
	k->src[0] = in + in_each * (size_t)w->rank;
	k->bytes = n;
	return sw_put(s, k, err);
}

static int sw_all_gather(
	struct vfm_wire_comm *w, struct vfm_stream *s, const void *in, void *out, size_t each, struct vfm_err *err)
{
	return sw_trade(w, s, in, 0, out, each, err);
}

static int sw_all_to_all(
	struct vfm_wire_comm *w, struct vfm_stream *s, const void *in, void *out, size_t each, struct vfm_err *err)
{
	return sw_trade(w, s, in, each, out, each, err);
}

static int sw_broadcast(
	struct vfm_wire_comm *w, struct vfm_stream *s, void *x, size_t bytes, int root, struct vfm_err *err)
{
	struct sw_job *k = sw_new(w);

	for (int r = 0; w->rank == root && r < w->size; r++)
		if (r != root)
			sw_add(k, true, x, bytes, r);
	if (w->rank != root)
		sw_add(k, false, x, bytes, root);
	return sw_put(s, k, err);
}

static int sw_messages(
	struct vfm_wire_comm *w, struct vfm_stream *s, const struct vfm_wire_msg *m, int n, struct vfm_err *err)
{
	struct sw_job *k = sw_new(w);

	k->alone = true;
	for (int i = 0; i < n; i++)
		sw_add(k, m[i].send, m[i].p, m[i].bytes, m[i].peer);
	return sw_put(s, k, err);
}

static const struct vfm_wire shmwire = {
	.name = "shm",
	.device_id = sw_device_id,
	.share = sw_share,
	.unique_id = sw_unique_id,
	.init = sw_init,
	.split = sw_split,
	.state = sw_state,
	.abort = sw_abort,
	.finish = sw_finish,
	.free = sw_free,
	.all_reduce = sw_all_reduce,
	.all_gather = sw_all_gather,
	.reduce_scatter = sw_reduce_scatter,
	.all_to_all = sw_all_to_all,
	.broadcast = sw_broadcast,
	.messages = sw_messages,
	.mem_alloc = sw_mem_alloc,
	.mem_free = sw_mem_free,
	.register_memory = sw_register,
	.unregister_memory = sw_unregister,
};

#endif
