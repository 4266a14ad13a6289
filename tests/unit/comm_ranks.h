/* For the tests of communicators: forked ranks, and every collective against a local computation. */
#ifndef TESTS_UNIT_COMM_RANKS_H
#define TESTS_UNIT_COMM_RANKS_H

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/philox.h"
#include "comm/host/comm_host.h"
#include "comm/host/host_impl.h"
#include "comm/launch/launch_impl.h"
#include "device/cpu/cpu.h"
#include "io/file.h"
#include "spec/model/dtype.h"

enum { RANKS = 64 };

/* ---- ranks: forks that exchange their endpoints through a shared mapping ---- */

struct shared {
	_Atomic int arrived;
	char endpoint[2][RANKS][VFM_PUBLISH_MAX]; /* of even and odd rounds: no rank can be two ahead */
	char said[RANKS][VFM_ERR_MAX];            /* the last error of each rank */
	double at[RANKS];
	_Atomic int word[RANKS];
};
static struct shared *sh;
static struct vfm_err err;
static int rank, size;

static int published, fetched; /* of this rank: values put and got */

static int publish(struct vfm_launch *l, const void *mine, size_t n, struct vfm_err *e)
{
	int k = published++;

	memcpy(sh->endpoint[k % 2][l->rank], mine, n);
	sh->arrived++;
	for (double until = vfm_now() + 20; sh->arrived < (k + 1) * l->size;) {
		if (vfm_now() > until)
			return vfm_fail(e, VFM_EENV, "a rank did not come");
		usleep(1000);
	}
	return 0;
}

static int fetch(struct vfm_launch *l, int r, void *out, size_t n, struct vfm_err *e)
{
	(void)l, (void)e;
	fetched++; /* the caller holds a lock */
	memcpy(out, sh->endpoint[(published - 1) % 2][r], n);
	return 0;
}

static const struct vfm_launch_table harness = {.publish = publish, .fetch = fetch};

#define MUST(call)                                                                                                     \
	do {                                                                                                           \
		if ((call) < 0) {                                                                                      \
			fprintf(stderr, "rank %d, line %d: %s\n", rank, __LINE__, err.msg);                            \
			snprintf(sh->said[rank], sizeof(sh->said[rank]), "%s", err.msg);                               \
			_exit(1);                                                                                      \
		}                                                                                                      \
	} while (0)
#define CHECK(cond)                                                                                                    \
	do {                                                                                                           \
		if (!(cond)) {                                                                                         \
			fprintf(stderr, "rank %d, line %d: %s\n", rank, __LINE__, #cond);                              \
			_exit(1);                                                                                      \
		}                                                                                                      \
	} while (0)

/* Makes a collective and waits for its stream, if any. */
static struct vfm_stream *on;
#define DO(call)                                                                                                       \
	do {                                                                                                           \
		MUST(call);                                                                                            \
		if (on)                                                                                                \
			MUST(on->dev->t->stream_sync(on, &err));                                                       \
	} while (0)

struct setup {
	int n, per_node; /* per_node 0: one node */
	int word;        /* for the test */
	struct vfm_host_comm_opts o;
};

static struct vfm_launch l;

static void place(const struct setup *s)
{
	l = (struct vfm_launch){.t = &harness, .rank = rank, .size = size};
	l.node_of = vfm_calloc((size_t)size, sizeof(int));
	for (int r = 0; r < size; r++)
		l.node_of[r] = s->per_node ? r / s->per_node : 0;
	vfm_launch_place(&l);
	snprintf(l.host, sizeof(l.host), "node%d", l.node);
}

static struct vfm_comm *join(const struct setup *s)
{
	struct vfm_comm *world;

	place(s);
	MUST(vfm_comm_host_new(&l, &s->o, &world, &err));
	return world;
}

static void leave(struct vfm_comm *world)
{
	vfm_comm_free(world);
	free(l.node_of);
}

static void start(const struct setup *s, pid_t *pid, void (*fn)(const struct setup *s))
{
	memset(sh, 0, sizeof(*sh));
	size = s->n;
	for (int r = 0; r < s->n; r++) {
		pid[r] = fork();
		assert_true(pid[r] >= 0);
		if (pid[r] == 0) {
			rank = r;
			alarm(60);
			fn(s);
			exit(0); /* runs the check for leaks */
		}
	}
}

static void all_well(const struct setup *s, void (*fn)(const struct setup *s))
{
	pid_t pid[RANKS];
	int st, bad = 0;

	start(s, pid, fn);
	for (int r = 0; r < s->n; r++) {
		waitpid(pid[r], &st, 0);
		if (st) {
			bad++;
			print_message("%d ranks, %d a node: rank %d ended with %#x\n", s->n, s->per_node, r, st);
		}
	}
	assert_int_equal(bad, 0);
}

/* ---- values: element i of a rank in a round ---- */

static double value(enum vfm_dtype dt, int64_t round, int r, int64_t i)
{
	uint64_t h = (uint64_t)round * 0x9E3779B97F4A7C15 + (uint64_t)r * 0xBF58476D1CE4E5B9 +
		(uint64_t)i * 0x94D049BB133111EB;
	int64_t v = (int64_t)((h ^ h >> 31) % 15) - 7;

	return dt == VFM_U8 ? (double)(v + 8) : (double)v; /* sums of 16 are exact in bf16 */
}

static void put(void *p, enum vfm_dtype dt, int64_t i, double v)
{
	vfm_dtype_convert(dt, (char *)p + (size_t)i * vfm_dtype_size(dt), VFM_F64, &v, 1);
}

static double get(const void *p, enum vfm_dtype dt, int64_t i)
{
	double v;

	vfm_dtype_to_f64(&v, dt, (const char *)p + (size_t)i * vfm_dtype_size(dt), 1);
	return v;
}

static struct vfm_tensor fresh(enum vfm_dtype dt, int64_t n)
{
	return vfm_t1(vfm_malloc((size_t)(n + 1) * vfm_dtype_size(dt)), dt, n);
}

static double total(enum vfm_dtype dt, int64_t round, int n, int64_t i)
{
	double t = 0;

	for (int r = 0; r < n; r++)
		t += value(dt, round, r, i);
	return t;
}

/* ---- each collective of a group; sizes follow from (round, group) ---- */

static int64_t pick(int64_t round, int64_t id, int64_t below)
{
	struct vfm_rng g = vfm_rng_stream(7, (uint64_t)round, (uint64_t)id, VFM_RNG_TEST);

	return (int64_t)vfm_rng_below(&g, 0, (uint64_t)below);
}

static int64_t always; /* if not 0: the size of every collective */

static int64_t some_size(int64_t round, int64_t id)
{
	static const int64_t most[] = {2, 40, 3000, 200000, 700000};

	return always ? always : pick(round, id, most[pick(round, id + 1000, 5)]);
}

static void do_all_reduce(struct vfm_comm *c, int64_t round)
{
	static const enum vfm_dtype dts[] = {VFM_F32, VFM_BF16, VFM_F64, VFM_I64};
	enum vfm_dtype dt = dts[round % 4];
	struct vfm_tensor x = fresh(dt, some_size(round, 1));

	for (int64_t i = 0; i < x.shape[0]; i++)
		put(x.data, dt, i, value(dt, round, c->rank, i));
	DO(vfm_all_reduce(c, on, x, &err));
	for (int64_t i = 0; i < x.shape[0]; i++)
		CHECK(get(x.data, dt, i) == total(dt, round, c->size, i));
	free(x.data);
}

/* Returns uneven shares, some of them empty, or NULL in every third round. */
static int64_t shares(const struct vfm_comm *c, int64_t round, int64_t *count, int64_t *at)
{
	int64_t sum = 0;

	for (int r = 0; r < c->size; r++) {
		count[r] = round % 3 ? some_size(round, 10 + r) / c->size : some_size(round, 10) / c->size;
		if (round % 3 && pick(round, 50 + r, 4) == 0)
			count[r] = 0;
		at[r] = sum;
		sum += count[r];
	}
	return sum;
}

static void do_all_gather(struct vfm_comm *c, int64_t round)
{
	static const enum vfm_dtype dts[] = {VFM_F32, VFM_BF16, VFM_U8, VFM_I64};
	enum vfm_dtype dt = dts[round % 4];
	int64_t count[RANKS], at[RANKS] = {0}, n = shares(c, round, count, at);
	struct vfm_tensor out = fresh(dt, n), in;
	bool in_place = round % 2;

	in = in_place ? vfm_t1((char *)out.data + (size_t)at[c->rank] * vfm_dtype_size(dt), dt, count[c->rank])
		      : fresh(dt, count[c->rank]);
	for (int64_t i = 0; i < count[c->rank]; i++)
		put(in.data, dt, i, value(dt, round, c->rank, i));
	DO(vfm_all_gather(c, on, in, out, round % 3 ? count : NULL, &err));
	for (int r = 0; r < c->size; r++)
		for (int64_t i = 0; i < count[r]; i++)
			CHECK(get(out.data, dt, at[r] + i) == value(dt, round, r, i));
	if (!in_place)
		free(in.data);
	free(out.data);
}

static void do_reduce_scatter(struct vfm_comm *c, int64_t round)
{
	enum vfm_dtype dt = round % 2 ? VFM_F32 : VFM_BF16;
	int64_t count[RANKS], at[RANKS] = {0}, n = shares(c, round, count, at);
	struct vfm_tensor in = fresh(dt, n), out;
	bool in_place = round % 4 < 2;

	out = in_place ? vfm_t1((char *)in.data + (size_t)at[c->rank] * vfm_dtype_size(dt), dt, count[c->rank])
		       : fresh(dt, count[c->rank]);
	for (int64_t i = 0; i < n; i++)
		put(in.data, dt, i, value(dt, round, c->rank, i));
	DO(vfm_reduce_scatter(c, on, in, out, round % 3 ? count : NULL, &err));
	for (int64_t i = 0; i < count[c->rank]; i++)
		CHECK(get(out.data, dt, i) == total(dt, round, c->size, at[c->rank] + i));
	if (!in_place)
		free(out.data);
	free(in.data);
}

static int64_t pair_count(const struct vfm_comm *c, int64_t round, int from, int to)
{
	if (round % 3 == 0)
		return some_size(round, 9) / c->size;
	return pick(round, 300 + from * RANKS + to, 3) ? some_size(round, 400 + from * RANKS + to) / c->size : 0;
}

static void do_all_to_all(struct vfm_comm *c, int64_t round)
{
	static const enum vfm_dtype dts[] = {VFM_F32, VFM_BF16, VFM_U8};
	enum vfm_dtype dt = dts[round % 3];
	int64_t send[RANKS], recv[RANKS], n_in = 0, n_out = 0, at = 0;
	struct vfm_tensor in, out;

	for (int r = 0; r < c->size; r++) {
		n_in += send[r] = pair_count(c, round, c->rank, r);
		n_out += recv[r] = pair_count(c, round, r, c->rank);
	}
	in = fresh(dt, n_in), out = fresh(dt, n_out);
	for (int r = 0; r < c->size; r++)
		for (int64_t i = 0; i < send[r]; i++)
			put(in.data, dt, at++, value(dt, round + r, c->rank, i));
	DO(vfm_all_to_all(c, on, in, out, round % 3 ? send : NULL, round % 3 ? recv : NULL, &err));
	at = 0;
	for (int r = 0; r < c->size; r++)
		for (int64_t i = 0; i < recv[r]; i++)
			CHECK(get(out.data, dt, at++) == value(dt, round + c->rank, r, i));
	free(in.data);
	free(out.data);
}

static void do_broadcast(struct vfm_comm *c, int64_t round)
{
	int root = (int)(round % c->size);
	struct vfm_tensor x = fresh(VFM_I32, some_size(round, 2));

	for (int64_t i = 0; i < x.shape[0]; i++)
		put(x.data, VFM_I32, i, c->rank == root ? value(VFM_I32, round, root, i) : -99);
	DO(vfm_broadcast(c, on, x, root, &err));
	for (int64_t i = 0; i < x.shape[0]; i++)
		CHECK(get(x.data, VFM_I32, i) == value(VFM_I32, round, root, i));
	free(x.data);
}

/* Exchanges around the ring in both directions, or one way between neighbours of different parity. */
static void do_exchange(struct vfm_comm *c, int64_t round)
{
	int n = c->size, step = 1 + (int)(round % n), to = (c->rank + step) % n, from = (c->rank + n - step % n) % n;
	int64_t m = some_size(round, 3);
	struct vfm_tensor out = fresh(VFM_F32, m), in = fresh(VFM_F32, m);

	for (int64_t i = 0; i < m; i++) {
		put(out.data, VFM_F32, i, value(VFM_F32, round, c->rank, i));
		put(in.data, VFM_F32, i, -99);
	}
	DO(vfm_exchange(c, on, out, to, in, from, &err));
	for (int64_t i = 0; i < m; i++)
		CHECK(get(in.data, VFM_F32, i) == value(VFM_F32, round, from, i));
	if (c->rank % 2 == 0 && c->rank + 1 < n)
		DO(vfm_send(c, on, out, c->rank + 1, &err));
	else if (c->rank % 2)
		DO(vfm_recv(c, on, in, c->rank - 1, &err));
	for (int64_t i = 0; c->rank % 2 && i < m; i++)
		CHECK(get(in.data, VFM_F32, i) == value(VFM_F32, round, c->rank - 1, i));
	free(out.data);
	free(in.data);
}

static void do_bytes(struct vfm_comm *c, int64_t round)
{
	char mine[64], want[64], *all;
	size_t *off;
	int n = snprintf(mine, sizeof(mine), "%.*s", (int)((round + c->rank) % 5), "abcdefgh");

	MUST(vfm_comm_gather_bytes(c, mine, (size_t)n, &all, &off, &err));
	for (int r = 0; r < c->size; r++) {
		n = snprintf(want, sizeof(want), "%.*s", (int)((round + r) % 5), "abcdefgh");
		CHECK(off[r + 1] - off[r] == (size_t)n && !memcmp(all + off[r], want, (size_t)n));
	}
	free(all);
	free(off);
}

static void everything(struct vfm_comm *c, int64_t round)
{
	do_all_reduce(c, round);
	do_all_gather(c, round);
	do_reduce_scatter(c, round);
	do_all_to_all(c, round);
	do_broadcast(c, round);
	do_exchange(c, round);
	do_bytes(c, round);
	DO(vfm_barrier(c, on, &err));
}

/* Groups of groups, with reversed ranks, with one rank, and none. */
static inline void splits_of(struct vfm_comm *w)
{
	struct vfm_comm *a, *b, *none, *one;

	for (int64_t round = 0; round < 3; round++) {
		MUST(vfm_comm_split(w, w->rank % 2, -w->rank, "odd", &a, &err)); /* reversed */
		CHECK(a->size == (w->size + (w->rank % 2 == 0)) / 2);
		CHECK(a->rank == a->size - 1 - w->rank / 2);
		CHECK(a->size == 1 || (!strcmp(a->name, "odd") && vfm_comm_host(a)->rank == a->rank));
		everything(a, round);
		MUST(vfm_comm_split(a, a->rank < 2 ? 0 : 1, 0, "part", &b, &err));
		everything(b, round + 1);
		MUST(vfm_comm_split(w, w->rank == 0 ? -1 : 3, 0, "rest", &none, &err));
		CHECK((w->rank == 0) == !none);
		if (none)
			everything(none, round + 2);
		MUST(vfm_comm_split(w, w->rank, 0, "one", &one, &err));
		CHECK(one == vfm_comm_self());
		everything(w, round);
		vfm_comm_free(one);
		vfm_comm_free(none);
		vfm_comm_free(b);
		vfm_comm_free(a);
	}
}

#endif
