/* async_mock.h - a mock of an asynchronous device on the CPU backend.  It exposes missing synchronization: a host that
 * reads or frees memory too early sees wrong bytes or a fault.
 *
 *   compute stream   Ops run at once, because they read the host arrays in their arguments when called.  to_host fills
 *                    its destination with 0xff (NaN).  It delivers the data when the host waits, or when another stream
 *                    passes a wait for a later event.  Pinned memory read by to_device must be unchanged at that time.
 *                    event_passed returns false for the first MOCK_POLLS calls.
 *   other streams    Each piece of work starts after a random delay.  Ops run too, one at a time on the device, after a
 *                    long delay and with the arguments of the call: a missing wait reads the wrong bytes.
 *   graphs           Captured work runs at once, but the mock refuses operations that a graph cannot contain.  Events
 *                    recorded in a graph are invalid outside of it.  Dropping a graph restores device memory,
 *                    except for copies outside of it.
 *                    `drop_each` and `break_at` make graphs fail.
 *   order            A copy on another stream must follow, through events, the allocation of its arrays and the ops of
 *                    the compute stream so far whose arguments point into them.  It may read an array only after work
 *                    that follows the allocation.
 *   memory           New and freed memory is filled with 0xff.  With `guard` the host can access device memory only
 *                    through copies and ops.  This works for a single process only, because the ranks of the CPU
 *                    backend read each other's memory.
 *
 * The mock aborts the process with a message on a violation.  At most one mock per process.
 */
#ifndef TESTS_UNIT_ASYNC_MOCK_H
#define TESTS_UNIT_ASYNC_MOCK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/mem.h"
#include "device/cpu/cpu.h"
#include "device/ops/ops.h"
#include "io/hash.h"

enum { MOCK_POLLS = 3, MOCK_BLOCKS = 1 << 16, MOCK_PINNED = 4096, MOCK_STREAMS = 16 };
#define MOCK_ARENA ((size_t)2 << 30)

/* A planted fault of a stream: the compute stream does not wait for its events, or it does not wait for those of the
 * compute stream. */
enum mock_lost_wait { MOCK_LOSES_NONE, MOCK_LOSES_ARRIVAL, MOCK_LOSES_RELEASE };

/* A pending action of the compute stream: delivery of a copy, or a check that pinned memory is unchanged. */
struct mock_pending {
	struct mock_pending *next;
	uint64_t seq, hash;
	char *host;
	char *copy; /* NULL: a check */
	size_t bytes;
};

struct mock_event {
	struct vfm_event *cpu;
	bool compute; /* recorded on the compute stream */
	struct vfm_stream *on;
	uint64_t graph; /* number of the graph it was recorded in; 0: none */
	uint64_t seq;
	uint64_t time; /* mock.time that work after a wait for it follows */
	atomic_int polls;
};

struct mock_block {
	char *p;
	size_t size;
};

static struct {
	const struct vfm_dev_table *cpu;
	struct vfm_dev_table table;
	struct vfm_ops ops;
	struct vfm_stream *compute;
	/* lock: pending actions and pinned blocks; arena_lock: users, used; save_lock: saved_arena */
	pthread_mutex_t lock, arena_lock, save_lock;
	pthread_mutex_t op_lock; /* of the CPU device, which runs one op at a time */
	int64_t aside;           /* ops on other streams */
	struct mock_pending *first, **end;
	uint64_t last_seq, done_seq; /* newest pending action; progress of the stream known to the host */
	enum mock_lost_wait lost_wait;
	struct vfm_stream *faulty; /* the stream of the fault */
	bool guard;
	int users; /* ops and copies in progress */
	char *arena;
	size_t used;
	/* counts allocations and work enqueued on the compute stream; by page of the arena: at its allocation, at the
	 * last op with an argument in it */
	uint64_t time, alloc_time[MOCK_ARENA / 4096], use_time[MOCK_ARENA / 4096];
	struct {
		struct vfm_stream *s;
		uint64_t time; /* the work of the compute stream up to here precedes that of s */
	} other[MOCK_STREAMS];
	int n_other;
	uint64_t host_time; /* … precedes all that the host enqueues now */
	struct mock_block idle[MOCK_BLOCKS], pinned[MOCK_PINNED];
	int n_idle, n_pinned;
	int64_t completed, delays;          /* completed actions; delays of other streams */
	int64_t timed_events;               /* timed events created */
	bool graph;                         /* a capture is in progress */
	uint64_t graphs;                    /* captures begun */
	int64_t launched, dropped, refused; /* graphs launched, dropped; operations refused in captures */
	int drop_each;                      /* graph_end fails for every drop_each-th graph; 0: never */
	/* number of the op that fails in each graph, 0: none; ops in the current graph */
	int64_t break_at, n_ops;
	bool break_always; /* report the failure as permanent, not as a first use */
	char *saved_arena; /* contents of the arena before the graph */
	size_t saved_used;
} mock = {.lock = PTHREAD_MUTEX_INITIALIZER,
	.arena_lock = PTHREAD_MUTEX_INITIALIZER,
	.op_lock = PTHREAD_MUTEX_INITIALIZER,
	.save_lock = PTHREAD_MUTEX_INITIALIZER};

static void mock_die(const char *why)
{
	fprintf(stderr, "async mock: %s\n", why);
	abort();
}

/* Fails within a capture. */
static int mock_refuse(const char *what, struct vfm_err *err)
{
	if (!mock.graph)
		return 0;
	mock.refused++;
	return vfm_fail(err, VFM_EENV, "%s: not allowed in a graph", what);
}

/* ---- memory ---- */

static bool mock_owns(const void *p)
{
	return (const char *)p >= mock.arena && (const char *)p < mock.arena + mock.used;
}

static void mock_protect(int how)
{
	if (mock.guard && mock.used && mprotect(mock.arena, mock.used, how) != 0)
		mock_die("mprotect");
}

static void mock_unprotect(void)
{
	pthread_mutex_lock(&mock.arena_lock);
	if (mock.users++ == 0)
		mock_protect(PROT_READ | PROT_WRITE);
	pthread_mutex_unlock(&mock.arena_lock);
}

static void mock_reprotect(void)
{
	pthread_mutex_lock(&mock.arena_lock);
	if (--mock.users == 0)
		mock_protect(PROT_NONE);
	pthread_mutex_unlock(&mock.arena_lock);
}

/* ---- order of the streams ---- */

static size_t mock_page(const void *p)
{
	return (size_t)((const char *)p - mock.arena) / 4096;
}

/* Notes that p is allocated now. */
static void mock_note_alloc(const char *p, size_t size)
{
	mock.time++;
	for (size_t i = mock_page(p); i < mock_page(p + size); i++)
		mock.alloc_time[i] = mock.use_time[i] = mock.time;
}

/* Notes an op of the compute stream: any word of its arguments may be a pointer. */
static void mock_note_op(const void *args, size_t bytes)
{
	const void *p;

	mock.time++;
	for (size_t i = 0; i + sizeof(p) <= bytes; i += sizeof(p)) {
		memcpy(&p, (const char *)args + i, sizeof(p));
		if (mock_owns(p))
			mock.use_time[mock_page(p)] = mock.time;
	}
}

/* Returns the time up to which work of the compute stream precedes what is enqueued on s now. */
static uint64_t *mock_time_of(struct vfm_stream *s)
{
	int i = 0;

	while (i < mock.n_other && mock.other[i].s != s)
		i++;
	if (i == MOCK_STREAMS)
		mock_die("too many streams");
	if (i == mock.n_other) {
		mock.other[i].s = s;
		mock.other[i].time = 0;
		mock.n_other++;
	}
	if (mock.other[i].time < mock.host_time)
		mock.other[i].time = mock.host_time;
	return &mock.other[i].time;
}

/* Aborts if a copy on s may overtake the allocation of p, or work on it. */
static void mock_check_order(struct vfm_stream *s, const void *p, size_t bytes, bool read)
{
	uint64_t time = *mock_time_of(s);

	if (!mock_owns(p) || !bytes)
		return;
	for (size_t i = mock_page(p); i <= mock_page((const char *)p + bytes - 1); i++)
		if (time < mock.use_time[i] || (read && time == mock.alloc_time[i]))
			mock_die(read ? "a copy may read an array before it is written"
				      : "a copy may write an array that earlier work still uses");
}

static void *mock_alloc(struct vfm_stream *s, size_t bytes, const char *what, struct vfm_err *err)
{
	size_t size = (bytes + 4095) / 4096 * 4096 + 4096;
	char *p = NULL;

	(void)s;
	for (int i = 0; i < mock.n_idle && !p; i++)
		if (mock.idle[i].size == size) {
			p = mock.idle[i].p;
			mock.idle[i] = mock.idle[--mock.n_idle];
		}
	if (p) {
		mock_note_alloc(p, size);
		return p;
	}
	if (size > MOCK_ARENA - mock.used) {
		vfm_fail(err, VFM_EENV, "no memory for %s", what);
		return NULL;
	}
	p = mock.arena + mock.used;
	pthread_mutex_lock(&mock.arena_lock); /* threads of other streams protect [0, used) */
	mock.used += size;
	pthread_mutex_unlock(&mock.arena_lock);
	mock_unprotect();
	memset(p, 0xff, size);
	mock_reprotect();
	mock_note_alloc(p, size);
	return p;
}

static void mock_free(struct vfm_stream *s, void *p, size_t bytes)
{
	size_t size = (bytes + 4095) / 4096 * 4096 + 4096;

	(void)s;
	if (mock.n_idle == MOCK_BLOCKS)
		mock_die("too many blocks");
	mock_unprotect();
	memset(p, 0xff, size);
	mock_reprotect();
	mock.idle[mock.n_idle++] = (struct mock_block){p, size};
}

static bool mock_is_pinned(const void *p)
{
	for (int i = 0; i < mock.n_pinned; i++)
		if ((const char *)p >= mock.pinned[i].p && (const char *)p < mock.pinned[i].p + mock.pinned[i].size)
			return true;
	return false;
}

static void *mock_alloc_host(struct vfm_dev *d, size_t bytes, const char *what, struct vfm_err *err)
{
	void *p = mock.cpu->alloc_host(d, bytes, what, err);

	pthread_mutex_lock(&mock.lock);
	if (mock.n_pinned == MOCK_PINNED)
		mock_die("too many pinned blocks");
	if (p)
		mock.pinned[mock.n_pinned++] = (struct mock_block){p, bytes};
	pthread_mutex_unlock(&mock.lock);
	return p;
}

static void mock_free_host(struct vfm_dev *d, void *p, size_t bytes)
{
	pthread_mutex_lock(&mock.lock);
	for (struct mock_pending *x = mock.first; x; x = x->next)
		if (x->host >= (char *)p && x->host < (char *)p + bytes)
			mock_die("pinned memory freed before the device is done with it");
	for (int i = 0; i < mock.n_pinned; i++)
		if (mock.pinned[i].p == p)
			mock.pinned[i] = mock.pinned[--mock.n_pinned];
	pthread_mutex_unlock(&mock.lock);
	mock.cpu->free_host(d, p, bytes);
}

/* ---- pending actions ---- */

static void mock_add_pending(const void *host, size_t bytes, bool deliver)
{
	struct mock_pending *x = vfm_calloc(1, sizeof(*x));

	*x = (struct mock_pending){.host = (char *)host, .bytes = bytes};
	if (deliver) {
		x->copy = vfm_malloc(bytes + 1);
		memcpy(x->copy, host, bytes);
	} else {
		x->hash = vfm_fnv64(host, bytes);
	}
	pthread_mutex_lock(&mock.lock);
	x->seq = ++mock.last_seq;
	*mock.end = x;
	mock.end = &x->next;
	pthread_mutex_unlock(&mock.lock);
}

/* Completes the pending actions of the compute stream up to `seq`. */
static void mock_complete(uint64_t seq)
{
	pthread_mutex_lock(&mock.lock);
	mock.done_seq = seq > mock.done_seq ? seq : mock.done_seq;
	while (mock.first && mock.first->seq <= seq) {
		struct mock_pending *x = mock.first;

		if (x->copy)
			memcpy(x->host, x->copy, x->bytes);
		else if (vfm_fnv64(x->host, x->bytes) != x->hash)
			mock_die("pinned memory changed before the device read it");
		mock.completed++;
		mock.first = x->next;
		if (!mock.first)
			mock.end = &mock.first;
		free(x->copy);
		free(x);
	}
	pthread_mutex_unlock(&mock.lock);
}

static int mock_complete_callback(void *arg, struct vfm_err *err)
{
	(void)err;
	mock_complete(*(uint64_t *)arg);
	return 0;
}

/* ---- other streams ---- */

static int mock_delay_callback(void *arg, struct vfm_err *err)
{
	static _Atomic uint64_t x = 88172645463325252u;
	uint64_t y = atomic_load(&x);
	struct timespec t = {0};

	(void)arg, (void)err;
	y ^= y << 13;
	y ^= y >> 7;
	y ^= y << 17;
	atomic_store(&x, y);
	t.tv_nsec = (long)(y % 4 ? y % 100000 : y % 1500000);
	nanosleep(&t, NULL);
	return 0;
}

static int mock_delay(struct vfm_stream *s, struct vfm_err *err)
{
	mock.delays++;
	return mock.cpu->host_call(s, mock_delay_callback, NULL, 0, err);
}

static int mock_host_call(struct vfm_stream *s, int (*fn)(void *arg, struct vfm_err *err), const void *arg,
	size_t bytes, struct vfm_err *err)
{
	if (s != mock.compute)
		TRY(mock_delay(s, err));
	else
		TRY(mock_refuse("a host callback", err));
	return mock.cpu->host_call(s, fn, arg, bytes, err);
}

struct mock_copy {
	void *dst;
	const void *src; /* NULL: zero */
	size_t bytes;
	bool poison; /* fill dst with 0xff until the copy is done */
	bool apart;  /* not captured: it stays when a graph is dropped */
};

static int mock_poison_callback(void *arg, struct vfm_err *err)
{
	struct mock_copy *x = arg;

	(void)err;
	memset(x->dst, 0xff, x->bytes);
	return 0;
}

static int mock_copy_callback(void *arg, struct vfm_err *err)
{
	struct mock_copy *x = arg;
	size_t at = (size_t)((char *)x->dst - mock.arena);

	(void)err;
	pthread_mutex_lock(&mock.save_lock);
	mock_unprotect();
	if (x->src)
		memcpy(x->dst, x->src, x->bytes);
	else
		memset(x->dst, 0, x->bytes);
	if (x->apart && mock.saved_arena && mock_owns(x->dst) && at + x->bytes <= mock.saved_used)
		memcpy(mock.saved_arena + at, x->dst, x->bytes);
	mock_reprotect();
	pthread_mutex_unlock(&mock.save_lock);
	return 0;
}

static int mock_copy(struct vfm_stream *s, struct mock_copy x, struct vfm_err *err)
{
	mock_check_order(s, x.dst, x.bytes, false);
	mock_check_order(s, x.src, x.bytes, true);
	x.apart = !mock.graph;
	if (x.poison)
		TRY(mock.cpu->host_call(s, mock_poison_callback, &x, sizeof(x), err));
	TRY(mock_delay(s, err));
	return mock.cpu->host_call(s, mock_copy_callback, &x, sizeof(x), err);
}

/* Longer than the work of a block, also on a busy machine. */
static int mock_late_callback(void *arg, struct vfm_err *err)
{
	(void)arg, (void)err;
	nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
	return 0;
}

static int mock_to_device(struct vfm_stream *s, void *dst, const void *host, size_t bytes, struct vfm_err *err)
{
	int rc;

	if (s == mock.faulty && mock.lost_wait == MOCK_LOSES_ARRIVAL)
		TRY(mock.cpu->host_call(s, mock_late_callback, NULL, 0, err));
	if (s != mock.compute)
		return mock_copy(s, (struct mock_copy){.dst = dst, .src = host, .bytes = bytes}, err);
	if (!mock_is_pinned(host) && !mock_owns(host))
		TRY(mock_refuse("a copy from pageable memory", err));
	mock.time++;
	mock_unprotect();
	rc = mock.cpu->to_device(s, dst, host, bytes, err);
	mock_reprotect();
	if (mock_is_pinned(host))
		mock_add_pending(host, bytes, false);
	return rc;
}

static int mock_to_host(struct vfm_stream *s, void *host, const void *src, size_t bytes, struct vfm_err *err)
{
	int rc;

	if (s != mock.compute)
		return mock_copy(s,
			(struct mock_copy){.dst = host, .src = src, .bytes = bytes, .poison = !mock_owns(host)}, err);
	if (!mock_owns(host))
		TRY(mock_refuse("a copy to the host", err));
	mock.time++;
	mock_unprotect();
	rc = mock.cpu->to_host(s, host, src, bytes, err);
	mock_reprotect();
	if (!mock_owns(host)) {
		mock_add_pending(host, bytes, true);
		memset(host, 0xff, bytes);
	}
	return rc;
}

static int mock_zero(struct vfm_stream *s, void *dst, size_t bytes, struct vfm_err *err)
{
	int rc;

	if (s != mock.compute)
		return mock_copy(s, (struct mock_copy){.dst = dst, .bytes = bytes}, err);
	mock.time++;
	mock_unprotect();
	rc = mock.cpu->zero(s, dst, bytes, err);
	mock_reprotect();
	return rc;
}

static struct vfm_stream *mock_stream_new(struct vfm_dev *d, bool async, struct vfm_err *err)
{
	struct vfm_stream *s = mock.cpu->stream_new(d, async, err);

	if (!async)
		mock.compute = s;
	else if (s)
		s->host_only = false;
	return s;
}

static void mock_stream_free(struct vfm_stream *s)
{
	for (int i = 0; i < mock.n_other; i++)
		if (mock.other[i].s == s)
			mock.other[i] = mock.other[--mock.n_other];
	mock.cpu->stream_free(s);
}

/* The host has waited for work that follows the compute stream up to `time`. */
static void mock_host_follows(uint64_t time)
{
	if (mock.host_time < time)
		mock.host_time = time;
}

static int mock_stream_sync(struct vfm_stream *s, struct vfm_err *err)
{
	if (s == mock.compute) {
		TRY(mock_refuse("stream synchronization", err));
		mock_complete(mock.last_seq);
	}
	mock_host_follows(s == mock.compute ? mock.time : *mock_time_of(s));
	return mock.cpu->stream_sync(s, err);
}

/* ---- events ---- */

static struct mock_event *mock_event_of(struct vfm_event *e)
{
	return (struct mock_event *)e;
}

static struct vfm_event *mock_event_new(struct vfm_dev *d, struct vfm_err *err)
{
	struct mock_event *e = vfm_calloc(1, sizeof(*e));

	e->cpu = mock.cpu->event_new(d, err);
	return (struct vfm_event *)e;
}

static struct vfm_event *mock_event_new_timed(struct vfm_dev *d, struct vfm_err *err)
{
	struct mock_event *e = vfm_calloc(1, sizeof(*e));

	mock.timed_events++;
	e->cpu = mock.cpu->event_new_timed(d, err);
	return (struct vfm_event *)e;
}

static void mock_event_free(struct vfm_event *ev)
{
	mock.cpu->event_free(mock_event_of(ev)->cpu);
	free(ev);
}

static int mock_event_record(struct vfm_event *ev, struct vfm_stream *s, struct vfm_err *err)
{
	struct mock_event *e = mock_event_of(ev);

	e->compute = s == mock.compute;
	e->on = s;
	e->graph = mock.graph && e->compute ? mock.graphs : 0;
	e->seq = mock.last_seq;
	e->time = e->compute ? mock.time : *mock_time_of(s);
	e->polls = 0;
	return mock.cpu->event_record(e->cpu, s, err);
}

/* Aborts if an event recorded in a graph is used outside of it. */
static void mock_check_graph(const struct mock_event *e)
{
	if (e->graph && (!mock.graph || e->graph != mock.graphs))
		mock_die("wait outside of its graph for an event of a graph");
}

static int mock_event_wait(struct vfm_event *ev, struct vfm_stream *s, struct vfm_err *err)
{
	struct mock_event *e = mock_event_of(ev);

	mock_check_graph(e);
	if (s == mock.compute ? mock.lost_wait == MOCK_LOSES_ARRIVAL && e->on == mock.faulty
			      : mock.lost_wait == MOCK_LOSES_RELEASE && s == mock.faulty && e->compute)
		return 0;
	if (mock.graph && s == mock.compute && !e->compute && !mock.cpu->event_passed(e->cpu))
		TRY(mock_refuse("wait for an event from outside", err));
	if (s != mock.compute && *mock_time_of(s) < e->time)
		*mock_time_of(s) = e->time;
	if (e->compute && s != mock.compute)
		TRY(mock.cpu->host_call(s, mock_complete_callback, &e->seq, sizeof(e->seq), err));
	return mock.cpu->event_wait(e->cpu, s, err);
}

static int mock_event_sync(struct vfm_event *ev, struct vfm_err *err)
{
	struct mock_event *e = mock_event_of(ev);

	mock_check_graph(e);
	TRY(mock_refuse("wait for an event", err));
	if (e->compute)
		mock_complete(e->seq);
	mock_host_follows(e->time);
	return mock.cpu->event_sync(e->cpu, err);
}

static bool mock_event_passed(struct vfm_event *ev)
{
	struct mock_event *e = mock_event_of(ev);

	mock_check_graph(e);
	if (!e->compute)
		return mock.cpu->event_passed(e->cpu);
	if (atomic_fetch_add(&e->polls, 1) < MOCK_POLLS)
		return false;
	mock_complete(e->seq);
	mock_host_follows(e->time);
	return true;
}

static int mock_event_elapsed(struct vfm_event *a, struct vfm_event *b, double *s, struct vfm_err *err)
{
	bool passed;

	pthread_mutex_lock(&mock.lock);
	passed = mock_event_of(b)->seq <= mock.done_seq;
	pthread_mutex_unlock(&mock.lock);
	if (!mock_event_of(a)->compute || !mock_event_of(b)->compute || !passed)
		mock_die("elapsed time of an event that has not passed");
	return mock.cpu->event_elapsed(mock_event_of(a)->cpu, mock_event_of(b)->cpu, s, err);
}

/* ---- graphs ---- */

static int mock_graph_begin(struct vfm_stream *s, struct vfm_err *err)
{
	if (s != mock.compute || mock.graph)
		return vfm_fail(err, VFM_EUSAGE, "capture not on the compute stream, or nested");
	pthread_mutex_lock(&mock.save_lock);
	mock_unprotect();
	mock.saved_used = mock.used;
	mock.saved_arena = vfm_malloc(mock.used + 1);
	memcpy(mock.saved_arena, mock.arena, mock.used);
	mock_reprotect();
	pthread_mutex_unlock(&mock.save_lock);
	mock.graph = true;
	mock.graphs++;
	mock.n_ops = 0;
	return 0;
}

static int mock_graph_end(struct vfm_stream *s, bool run, struct vfm_err *err)
{
	bool fails = run && mock.drop_each && mock.graphs % (uint64_t)mock.drop_each == 0;

	if (s != mock.compute || !mock.graph)
		return vfm_fail(err, VFM_EUSAGE, "graph_end without graph_begin");
	mock.graph = false;
	pthread_mutex_lock(&mock.save_lock);
	if (!run || fails) {
		mock_unprotect();
		memcpy(mock.arena, mock.saved_arena, mock.saved_used);
		mock_reprotect();
	}
	free(mock.saved_arena);
	mock.saved_arena = NULL;
	pthread_mutex_unlock(&mock.save_lock);
	mock.launched += run && !fails;
	mock.dropped += !run || fails;
	s->dev->graph_first |= fails;
	return fails ? vfm_fail(err, VFM_EENV, "the graph cannot be launched") : 0;
}

/* Counts an op enqueued in a capture; fails at break_at. */
static int mock_count_op(struct vfm_stream *s, struct vfm_err *err)
{
	if (!mock.graph || s != mock.compute || ++mock.n_ops != mock.break_at)
		return 0;
	s->dev->graph_first = !mock.break_always;
	return vfm_fail(err, VFM_EENV, "an op that cannot be captured");
}

/* ---- the device ---- */

struct mock_aside {
	int (*run)(const void *args, struct vfm_err *err);
	void *args; /* a copy */
};

/* Longer than the work that must wait for the op. */
static int mock_slow_callback(void *arg, struct vfm_err *err)
{
	(void)arg, (void)err;
	nanosleep(&(struct timespec){.tv_nsec = 4000000}, NULL);
	return 0;
}

static int mock_aside_callback(void *arg, struct vfm_err *err)
{
	struct mock_aside *x = arg;
	int rc = x->run(x->args, err);

	free(x->args);
	return rc;
}

/* Enqueues an op on a stream other than compute. */
static int mock_op_aside(struct vfm_stream *s, int (*run)(const void *args, struct vfm_err *err), const void *args,
	size_t bytes, struct vfm_err *err)
{
	struct mock_aside x = {run, memcpy(vfm_malloc(bytes), args, bytes)};

	mock.aside++;
	TRY(mock.cpu->host_call(s, mock_slow_callback, NULL, 0, err));
	return mock.cpu->host_call(s, mock_aside_callback, &x, sizeof(x), err);
}

#define X(name)                                                                                                        \
	static int mock_run_##name(const void *a, struct vfm_err *err)                                                 \
	{                                                                                                              \
		int rc;                                                                                                \
                                                                                                                       \
		pthread_mutex_lock(&mock.op_lock);                                                                     \
		mock_unprotect();                                                                                      \
		rc = mock.cpu->ops->name(mock.compute, a, err);                                                        \
		mock_reprotect();                                                                                      \
		pthread_mutex_unlock(&mock.op_lock);                                                                   \
		return rc;                                                                                             \
	}                                                                                                              \
	static int mock_op_##name(struct vfm_stream *s, const struct vfm_##name *a, struct vfm_err *err)               \
	{                                                                                                              \
		int rc = mock_count_op(s, err);                                                                        \
                                                                                                                       \
		if (rc < 0)                                                                                            \
			return rc;                                                                                     \
		if (s == mock.compute)                                                                                 \
			mock_note_op(a, sizeof(*a));                                                                   \
		return s == mock.compute ? mock_run_##name(a, err)                                                     \
					 : mock_op_aside(s, mock_run_##name, a, sizeof(*a), err);                      \
	}
VFM_OP_LIST(X)
#undef X

/* Returns the mock; NULL on failure.  The caller closes it with dev_free. */
static struct vfm_dev *mock_open(bool guard, struct vfm_err *err)
{
	struct vfm_dev *d = vfm_cpu_open(err);

	if (!d)
		return NULL;
	if (!mock.arena)
		mock.arena = mmap(
			NULL, MOCK_ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (mock.arena == MAP_FAILED)
		mock_die("mmap");
	mock.cpu = d->t;
	mock.n_other = 0;
	mock.end = &mock.first;
	mock_protect(PROT_READ | PROT_WRITE); /* protection left by the previous mock */
	mock.guard = guard;
	mock_protect(PROT_NONE);
	mock.table = *d->t;
	mock.ops = *d->t->ops;
#define X(name) mock.ops.name = mock_op_##name;
	VFM_OP_LIST(X)
#undef X
	mock.table.ops = &mock.ops;
	mock.table.alloc = mock_alloc;
	mock.table.free = mock_free;
	mock.table.alloc_host = mock_alloc_host;
	mock.table.free_host = mock_free_host;
	mock.table.to_device = mock_to_device;
	mock.table.to_host = mock_to_host;
	mock.table.zero = mock_zero;
	mock.table.stream_new = mock_stream_new;
	mock.table.stream_free = mock_stream_free;
	mock.table.stream_sync = mock_stream_sync;
	mock.table.host_call = mock_host_call;
	mock.table.event_new = mock_event_new;
	mock.table.event_new_timed = mock_event_new_timed;
	mock.table.event_free = mock_event_free;
	mock.table.event_record = mock_event_record;
	mock.table.event_wait = mock_event_wait;
	mock.table.event_sync = mock_event_sync;
	mock.table.event_passed = mock_event_passed;
	mock.table.event_elapsed = mock_event_elapsed;
	mock.table.graph_begin = mock_graph_begin;
	mock.table.graph_end = mock_graph_end;
	d->t = &mock.table;
	d->async = true;
	d->host_memory = false;
	d->side.units = 1;
	return d;
}

#endif
