#include "comm/comm_host.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

enum { MAX = 64, SLOT = 128 << 10 };

struct area { /* one a group */
	_Atomic int count, round;
	_Atomic int failed;
	char pad[52];
	char slot[];
};

struct box { /* a message under way between two ranks */
	_Atomic int full;
	char pad[60];
	char data[SLOT / 8];
};

struct host {
	struct vfm_comm c;
	struct area *a;
	struct box *box; /* [size][size] */
	size_t bytes;
	int splits;
	char key[128];
};

static int wait_for(struct host *h, _Atomic int *x, int not_this, struct vfm_err *err)
{
	double t0 = vfm_now();

	for (int i = 0; atomic_load(x) == not_this; i++) {
		if (i > 100)
			sched_yield();
		if ((i & 1023) == 1023 && vfm_now() - t0 > 60)
			return vfm_fail(err, VFM_EENV, "rank %d of '%s' waited 60 s", h->c.rank, h->c.name);
	}
	return 0;
}

static int meet(struct host *h, struct vfm_err *err)
{
	int round = atomic_load(&h->a->round);

	if (atomic_fetch_add(&h->a->count, 1) + 1 == h->c.size) {
		atomic_store(&h->a->count, 0);
		atomic_fetch_add(&h->a->round, 1);
		return 0;
	}
	return wait_for(h, &h->a->round, round, err);
}

static char *slot(struct host *h, int r)
{
	return h->a->slot + (size_t)r * SLOT;
}

struct call {
	int kind;
	struct host *h;
	struct vfm_tensor in, out;
	const int64_t *send, *recv;
	int to, from;
};

enum { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, EXCHANGE, BARRIER };

static void add(void *dst, const void *src, int64_t n, enum vfm_dtype dt, float *acc, bool first)
{
	if (dt == VFM_F64)
		for (int64_t i = 0; i < n; i++)
			((double *)dst)[i] = (first ? 0 : ((double *)dst)[i]) + ((const double *)src)[i];
	else if (dt == VFM_I64)
		for (int64_t i = 0; i < n; i++)
			((int64_t *)dst)[i] = (first ? 0 : ((int64_t *)dst)[i]) + ((const int64_t *)src)[i];
	else
		for (int64_t i = 0; i < n; i++)
			acc[i] = (first ? 0 : acc[i]) + (dt == VFM_F32 ? ((const float *)src)[i] : vfm_bf16_to_f32(((const uint16_t *)src)[i]));
}

/* dst [n] = the sum of what lies at offset off of all slots. */
static void sum(struct host *h, void *dst, size_t off, int64_t n, enum vfm_dtype dt)
{
	float acc[1024];
	size_t w = vfm_dtype_size(dt);

	for (int64_t i = 0; i < n; i += 1024) {
		int64_t m = n - i < 1024 ? n - i : 1024;

		for (int r = 0; r < h->c.size; r++)
			add((char *)dst + (size_t)i * w, slot(h, r) + off + (size_t)i * w, m, dt, acc, r == 0);
		if (dt == VFM_F32)
			memcpy((char *)dst + (size_t)i * w, acc, (size_t)m * 4);
		else if (dt == VFM_BF16)
			for (int64_t k = 0; k < m; k++)
				((uint16_t *)dst)[i + k] = vfm_f32_to_bf16(acc[k]);
	}
}

static int64_t share(const int64_t *count, int64_t equal, int r)
{
	return count ? count[r] : equal;
}

static int reduce(struct call *c, int64_t first, int64_t n, char *dst, struct vfm_err *err)
{
	size_t w = vfm_dtype_size(c->in.dtype);
	int64_t most = SLOT / (int64_t)w, N = vfm_numel(&c->in);

	for (int64_t i = 0; i < N; i += most) {
		int64_t m = N - i < most ? N - i : most, a = i > first ? i : first, b = i + m < first + n ? i + m : first + n;

		memcpy(slot(c->h, c->h->c.rank), (char *)c->in.data + (size_t)i * w, (size_t)m * w);
		TRY(meet(c->h, err));
		if (a < b)
			sum(c->h, dst + (size_t)(a - first) * w, (size_t)(a - i) * w, b - a, c->in.dtype);
		TRY(meet(c->h, err));
	}
	return 0;
}

static int send_box(struct host *h, int to, const char *p, size_t n, size_t *done)
{
	struct box *b = &h->box[h->c.rank * h->c.size + to];
	size_t m = n - *done < sizeof(b->data) ? n - *done : sizeof(b->data);

	if (*done == n || atomic_load(&b->full))
		return 0;
	memcpy(b->data, p + *done, m);
	atomic_store(&b->full, 1);
	*done += m;
	return 1;
}

static int recv_box(struct host *h, int from, char *p, size_t n, size_t *done)
{
	struct box *b = &h->box[from * h->c.size + h->c.rank];
	size_t m = n - *done < sizeof(b->data) ? n - *done : sizeof(b->data);

	if (*done == n || !atomic_load(&b->full))
		return 0;
	memcpy(p + *done, b->data, m);
	atomic_store(&b->full, 0);
	*done += m;
	return 1;
}

static int swap(struct host *h, const void *out, size_t n_out, int to, void *in, size_t n_in, int from, struct vfm_err *err)
{
	size_t sent = 0, got = 0;
	double t0 = vfm_now();

	if (to < 0)
		n_out = 0;
	if (from < 0)
		n_in = 0;
	while (sent < n_out || got < n_in) {
		int any = send_box(h, to < 0 ? 0 : to, out, n_out, &sent) + recv_box(h, from < 0 ? 0 : from, in, n_in, &got);

		if (any)
			t0 = vfm_now();
		else
			sched_yield();
		if (vfm_now() - t0 > 60)
			return vfm_fail(err, VFM_EENV, "rank %d of '%s' waited 60 s in exchange", h->c.rank, h->c.name);
	}
	return 0;
}

static int run(void *arg, struct vfm_err *err)
{
	struct call *c = arg;
	struct host *h = c->h;
	size_t w = vfm_dtype_size(c->in.dtype);
	int64_t first = 0;
	int n = h->c.size, me = h->c.rank;

	switch (c->kind) {
	case ALL_REDUCE:
		return reduce(c, 0, vfm_numel(&c->in), c->in.data, err);
	case REDUCE_SCATTER:
		for (int r = 0; r < me; r++)
			first += share(c->recv, vfm_numel(&c->out), r);
		return reduce(c, first, vfm_numel(&c->out), c->out.data, err);
	case ALL_GATHER:
		for (int r = 0; r < me; r++)
			first += share(c->recv, vfm_numel(&c->in), r);
		memmove((char *)c->out.data + (size_t)first * w, c->in.data, vfm_nbytes(&c->in));
		for (int d = 1; d < n; d++) {
			int to = (me + d) % n, from = (me - d + n) % n;
			int64_t at = 0;

			for (int r = 0; r < from; r++)
				at += share(c->recv, vfm_numel(&c->in), r);
			TRY(swap(h, (char *)c->out.data + (size_t)first * w, vfm_nbytes(&c->in), to, (char *)c->out.data + (size_t)at * w,
				(size_t)share(c->recv, vfm_numel(&c->in), from) * w, from, err));
		}
		return 0;
	case ALL_TO_ALL:
		for (int d = 0; d < n; d++) {
			int to = (me + d) % n, from = (me - d + n) % n;
			int64_t a = 0, b = 0, eq = vfm_numel(&c->in) / n;

			for (int r = 0; r < to; r++)
				a += share(c->send, eq, r);
			for (int r = 0; r < from; r++)
				b += share(c->recv, eq, r);
			if (d == 0)
				memcpy((char *)c->out.data + (size_t)b * w, (char *)c->in.data + (size_t)a * w, (size_t)share(c->send, eq, me) * w);
			else
				TRY(swap(h, (char *)c->in.data + (size_t)a * w, (size_t)share(c->send, eq, to) * w, to,
					(char *)c->out.data + (size_t)b * w, (size_t)share(c->recv, eq, from) * w, from, err));
		}
		return 0;
	case BROADCAST:
		for (int r = 0; r < n; r++)
			if (r != c->to && me == c->to)
				TRY(swap(h, c->in.data, vfm_nbytes(&c->in), r, NULL, 0, -1, err));
		return me == c->to ? 0 : swap(h, NULL, 0, -1, c->in.data, vfm_nbytes(&c->in), c->to, err);
	case EXCHANGE:
		return swap(h, c->in.data, vfm_nbytes(&c->in), c->to, c->out.data, vfm_nbytes(&c->out), c->from, err);
	default:
		return meet(h, err);
	}
}

static int put(struct call c, struct vfm_stream *s, struct vfm_err *err)
{
	return s ? s->dev->t->host_call(s, run, &c, sizeof(c), err) : run(&c, err);
}

static int all_reduce(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor x, struct vfm_err *err)
{
	return put((struct call){ALL_REDUCE, (struct host *)c, x, x, NULL, NULL, 0, 0}, s, err);
}
static int all_gather(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out, const int64_t *count, struct vfm_err *err)
{
	return put((struct call){ALL_GATHER, (struct host *)c, in, out, NULL, count, 0, 0}, s, err);
}
static int reduce_scatter(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out, const int64_t *count, struct vfm_err *err)
{
	return put((struct call){REDUCE_SCATTER, (struct host *)c, in, out, NULL, count, 0, 0}, s, err);
}
static int all_to_all(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out, const int64_t *send, const int64_t *recv, struct vfm_err *err)
{
	return put((struct call){ALL_TO_ALL, (struct host *)c, in, out, send, recv, 0, 0}, s, err);
}
static int broadcast(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor x, int root, struct vfm_err *err)
{
	return put((struct call){BROADCAST, (struct host *)c, x, x, NULL, NULL, root, 0}, s, err);
}
static int exchange(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor out, int to, struct vfm_tensor in, int from, struct vfm_err *err)
{
	return put((struct call){EXCHANGE, (struct host *)c, out, in, NULL, NULL, to, from}, s, err);
}
static int barrier(struct vfm_comm *c, struct vfm_stream *s, struct vfm_err *err)
{
	return put((struct call){.kind = BARRIER, .h = (struct host *)c}, s, err);
}

static int make(int rank, int size, const char *name, const char *key, struct vfm_comm **out, struct vfm_err *err);

static int split(struct vfm_comm *c, int color, int key, const char *name, struct vfm_comm **out, struct vfm_err *err)
{
	struct host *h = (struct host *)c;
	int64_t mine[2] = {color, key}, all[2 * MAX];
	int rank = 0, size = 0;
	char k[160];

	TRY(vfm_all_gather(c, NULL, vfm_t1(mine, VFM_I64, 2), vfm_t1(all, VFM_I64, 2 * c->size), NULL, err));
	h->splits++;
	*out = NULL;
	if (color < 0)
		return 0;
	for (int r = 0; r < c->size; r++) {
		if (all[2 * r] != color)
			continue;
		size++;
		rank += all[2 * r + 1] < key || (all[2 * r + 1] == key && r < c->rank);
	}
	if (size == 1) {
		*out = vfm_comm_self();
		return 0;
	}
	snprintf(k, sizeof(k), "%.100s.%d.%d", h->key, h->splits, color);
	return make(rank, size, name, k, out, err);
}

static void host_free(struct vfm_comm *c)
{
	struct host *h = (struct host *)c;

	munmap(h->a, h->bytes);
	shm_unlink(h->key);
	free(h);
}

static const struct vfm_comm_table table = {"host", all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, exchange, barrier, split, host_free};

static int make(int rank, int size, const char *name, const char *key, struct vfm_comm **out, struct vfm_err *err)
{
	struct host *h = vfm_calloc(1, sizeof(*h));
	int fd;

	h->c = (struct vfm_comm){.t = &table, .rank = rank, .size = size};
	snprintf(h->c.name, sizeof(h->c.name), "%s", name);
	snprintf(h->key, sizeof(h->key), "%s", key);
	h->bytes = sizeof(struct area) + (size_t)size * SLOT + (size_t)size * (size_t)size * sizeof(struct box);
	fd = shm_open(h->key, O_RDWR | O_CREAT, 0600);
	if (fd < 0 || ftruncate(fd, (off_t)h->bytes))
		return vfm_fail_errno(err, VFM_EENV, "cannot make shared memory '%s'", key);
	h->a = mmap(NULL, h->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	h->box = (struct box *)(h->a->slot + (size_t)size * SLOT);
	*out = &h->c;
	return meet(h, err);
}

int vfm_comm_host_new(struct vfm_launch *l, const struct vfm_host_comm_opts *o, struct vfm_comm **out, struct vfm_err *err)
{
	char key[128];

	(void)o;
	*out = vfm_comm_self();
	if (l->size == 1)
		return 0;
	snprintf(key, sizeof(key), "/vfm-%s", l->job);
	return make(l->rank, l->size, "world", key, out, err);
}

void vfm_comm_host_abort(struct vfm_comm *world, const char *why)
{
	(void)world, (void)why;
}
