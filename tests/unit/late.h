/* late.h - a device for tests whose streams really are late: the CPU, but what a host does too early comes out.
 *
 *   compute stream   ops run at once (they read host arrays of their arguments when they are called).  to_host fills
 *                    its destination with 0xff, which is NaN, and delivers when the host waits, or when a stream
 *                    passes that waited for an event behind it.  Memory of alloc_host that to_device read must still
 *                    be the same then.  event_passed returns false the first few times.
 *   other streams    sleep for a random time before each piece of work
 *   graphs           captured work runs at once, but the device refuses what a graph refuses.  An event of a graph
 *                    means nothing outside.  A dropped graph takes memory back to what it was.  `drop_each` and
 *                    `break_at` make graphs fail.
 *   memory           new and freed memory is 0xff; with `guard` the host reaches device memory only through copies
 *                    and ops (one process by itself: ranks of the CPU read each other's memory)
 *
 * A fault ends the process with a sentence.  One such device a process.
 */
#ifndef TESTS_UNIT_LATE_H
#define TESTS_UNIT_LATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/hash.h"
#include "base/mem.h"
#include "cpu/cpu.h"
#include "ops/ops.h"

enum { LATE_ASKS = 3, LATE_BLOCKS = 1 << 16, LATE_PINNED = 4096 };
#define LATE_ARENA ((size_t)2 << 30)

/* What the compute stream still owes: a delivery (copy), or a look at page-locked memory that was to stay as it was. */
struct late_promise {
	struct late_promise *next;
	uint64_t seq, hash;
	char *host;
	char *copy; /* NULL: a look */
	size_t bytes;
};

struct late_event {
	struct vfm_event *cpu;
	bool compute;   /* recorded there */
	uint64_t graph; /* recorded within this one; 0: outside */
	uint64_t seq;
	atomic_int asks;
};

struct late_block {
	char *p;
	size_t size;
};

static struct {
	const struct vfm_dev_table *cpu;
	struct vfm_dev_table table;
	struct vfm_ops ops;
	struct vfm_stream *compute;
	pthread_mutex_t lock, door; /* of promises and what is pinned; of open */
	struct late_promise *first, **end;
	uint64_t put, seen; /* promises; the host knows that the stream has come that far */
	bool guard;
	int open; /* ops and copies that run now */
	char *arena;
	size_t used;
	struct late_block idle[LATE_BLOCKS], pinned[LATE_PINNED];
	int n_idle, n_pinned;
	int64_t late, naps;                 /* deliveries; how often a stream slept */
	int64_t timed;                      /* events with a time that were made */
	bool graph;                         /* one is being written down */
	uint64_t graphs;                    /* begun */
	int64_t launched, dropped, refused; /* of these; things that were refused within one */
	int drop_each;                      /* every so many graphs the end fails; 0: none */
	/* the op with this number within a graph fails, if it is not 0; ops within this graph so far */
	int64_t break_at, n_ops;
	bool break_again; /* that is said to be so for ever, and not for the first time */
	char *before;     /* the arena as it was before the graph */
	size_t before_used;
} late = {.lock = PTHREAD_MUTEX_INITIALIZER, .door = PTHREAD_MUTEX_INITIALIZER};

static void late_die(const char *why)
{
	fprintf(stderr, "late device: %s\n", why);
	abort();
}

/* Within a graph it is not done. */
static int late_refuse(const char *what, struct vfm_err *err)
{
	if (!late.graph)
		return 0;
	late.refused++;
	return vfm_fail(err, VFM_EENV, "%s: not in a graph", what);
}

/* ---- memory ---- */

static bool late_owns(const void *p)
{
	return (const char *)p >= late.arena && (const char *)p < late.arena + late.used;
}

static void late_protect(int how)
{
	if (late.guard && late.used && mprotect(late.arena, late.used, how) != 0)
		late_die("mprotect");
}

static void late_enter(void)
{
	pthread_mutex_lock(&late.door);
	if (late.open++ == 0)
		late_protect(PROT_READ | PROT_WRITE);
	pthread_mutex_unlock(&late.door);
}

static void late_leave(void)
{
	pthread_mutex_lock(&late.door);
	if (--late.open == 0)
		late_protect(PROT_NONE);
	pthread_mutex_unlock(&late.door);
}

static void *late_alloc(struct vfm_stream *s, size_t bytes, const char *what, struct vfm_err *err)
{
	size_t size = (bytes + 4095) / 4096 * 4096 + 4096;
	char *p = NULL;

	(void)s;
	for (int i = 0; i < late.n_idle && !p; i++)
		if (late.idle[i].size == size) {
			p = late.idle[i].p;
			late.idle[i] = late.idle[--late.n_idle];
		}
	if (p)
		return p;
	if (size > LATE_ARENA - late.used) {
		vfm_fail(err, VFM_EENV, "no memory for %s", what);
		return NULL;
	}
	p = late.arena + late.used;
	pthread_mutex_lock(&late.door); /* streams protect what is used */
	late.used += size;
	pthread_mutex_unlock(&late.door);
	late_enter();
	memset(p, 0xff, size);
	late_leave();
	return p;
}

static void late_free(struct vfm_stream *s, void *p, size_t bytes)
{
	size_t size = (bytes + 4095) / 4096 * 4096 + 4096;

	(void)s;
	if (late.n_idle == LATE_BLOCKS)
		late_die("too many blocks");
	late_enter();
	memset(p, 0xff, size);
	late_leave();
	late.idle[late.n_idle++] = (struct late_block){p, size};
}

static bool late_is_pinned(const void *p)
{
	for (int i = 0; i < late.n_pinned; i++)
		if ((const char *)p >= late.pinned[i].p && (const char *)p < late.pinned[i].p + late.pinned[i].size)
			return true;
	return false;
}

static void *late_alloc_host(struct vfm_dev *d, size_t bytes, const char *what, struct vfm_err *err)
{
	void *p = late.cpu->alloc_host(d, bytes, what, err);

	pthread_mutex_lock(&late.lock);
	if (late.n_pinned == LATE_PINNED)
		late_die("too much page-locked memory");
	if (p)
		late.pinned[late.n_pinned++] = (struct late_block){p, bytes};
	pthread_mutex_unlock(&late.lock);
	return p;
}

static void late_free_host(struct vfm_dev *d, void *p, size_t bytes)
{
	pthread_mutex_lock(&late.lock);
	for (struct late_promise *x = late.first; x; x = x->next)
		if (x->host >= (char *)p && x->host < (char *)p + bytes)
			late_die("page-locked memory is freed before the device is done with it");
	for (int i = 0; i < late.n_pinned; i++)
		if (late.pinned[i].p == p)
			late.pinned[i] = late.pinned[--late.n_pinned];
	pthread_mutex_unlock(&late.lock);
	late.cpu->free_host(d, p, bytes);
}

/* ---- promises ---- */

static void late_promise(const void *host, size_t bytes, bool deliver)
{
	struct late_promise *x = vfm_calloc(1, sizeof(*x));

	*x = (struct late_promise){.host = (char *)host, .bytes = bytes};
	if (deliver) {
		x->copy = vfm_malloc(bytes + 1);
		memcpy(x->copy, host, bytes);
	} else {
		x->hash = vfm_fnv64(host, bytes);
	}
	pthread_mutex_lock(&late.lock);
	x->seq = ++late.put;
	*late.end = x;
	late.end = &x->next;
	pthread_mutex_unlock(&late.lock);
}

/* The compute stream has come to `seq`. */
static void late_until(uint64_t seq)
{
	pthread_mutex_lock(&late.lock);
	late.seen = seq > late.seen ? seq : late.seen;
	while (late.first && late.first->seq <= seq) {
		struct late_promise *x = late.first;

		if (x->copy)
			memcpy(x->host, x->copy, x->bytes);
		else if (vfm_fnv64(x->host, x->bytes) != x->hash)
			late_die("page-locked memory was changed before the device had read it");
		late.late++;
		late.first = x->next;
		if (!late.first)
			late.end = &late.first;
		free(x->copy);
		free(x);
	}
	pthread_mutex_unlock(&late.lock);
}

static int late_until_piece(void *arg, struct vfm_err *err)
{
	(void)err;
	late_until(*(uint64_t *)arg);
	return 0;
}

/* ---- other streams ---- */

static int late_nap(void *arg, struct vfm_err *err)
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

static int late_sleep(struct vfm_stream *s, struct vfm_err *err)
{
	late.naps++;
	return late.cpu->host_call(s, late_nap, NULL, 0, err);
}

static int late_host_call(struct vfm_stream *s, int (*fn)(void *arg, struct vfm_err *err), const void *arg,
	size_t bytes, struct vfm_err *err)
{
	if (s != late.compute)
		TRY(late_sleep(s, err));
	else
		TRY(late_refuse("a call on the host", err));
	return late.cpu->host_call(s, fn, arg, bytes, err);
}

struct late_copy {
	void *dst;
	const void *src; /* NULL: zero */
	size_t bytes;
	bool smear; /* until it is there */
};

static int late_smear(void *arg, struct vfm_err *err)
{
	struct late_copy *x = arg;

	(void)err;
	memset(x->dst, 0xff, x->bytes);
	return 0;
}

static int late_copy_piece(void *arg, struct vfm_err *err)
{
	struct late_copy *x = arg;

	(void)err;
	late_enter();
	if (x->src)
		memcpy(x->dst, x->src, x->bytes);
	else
		memset(x->dst, 0, x->bytes);
	late_leave();
	return 0;
}

static int late_copy(struct vfm_stream *s, struct late_copy x, struct vfm_err *err)
{
	if (x.smear)
		TRY(late.cpu->host_call(s, late_smear, &x, sizeof(x), err));
	TRY(late_sleep(s, err));
	return late.cpu->host_call(s, late_copy_piece, &x, sizeof(x), err);
}

static int late_to_device(struct vfm_stream *s, void *dst, const void *host, size_t bytes, struct vfm_err *err)
{
	int rc;

	if (s != late.compute)
		return late_copy(s, (struct late_copy){dst, host, bytes, false}, err);
	if (!late_is_pinned(host) && !late_owns(host))
		TRY(late_refuse("a copy of ordinary memory", err));
	late_enter();
	rc = late.cpu->to_device(s, dst, host, bytes, err);
	late_leave();
	if (late_is_pinned(host))
		late_promise(host, bytes, false);
	return rc;
}

static int late_to_host(struct vfm_stream *s, void *host, const void *src, size_t bytes, struct vfm_err *err)
{
	int rc;

	if (s != late.compute)
		return late_copy(s, (struct late_copy){host, src, bytes, !late_owns(host)}, err);
	if (!late_owns(host))
		TRY(late_refuse("a copy to the host", err));
	late_enter();
	rc = late.cpu->to_host(s, host, src, bytes, err);
	late_leave();
	if (!late_owns(host)) {
		late_promise(host, bytes, true);
		memset(host, 0xff, bytes);
	}
	return rc;
}

static int late_zero(struct vfm_stream *s, void *dst, size_t bytes, struct vfm_err *err)
{
	int rc;

	if (s != late.compute)
		return late_copy(s, (struct late_copy){dst, NULL, bytes, false}, err);
	late_enter();
	rc = late.cpu->zero(s, dst, bytes, err);
	late_leave();
	return rc;
}

static struct vfm_stream *late_stream_new(struct vfm_dev *d, bool async, struct vfm_err *err)
{
	struct vfm_stream *s = late.cpu->stream_new(d, async, err);

	if (!async)
		late.compute = s;
	return s;
}

static int late_stream_sync(struct vfm_stream *s, struct vfm_err *err)
{
	if (s == late.compute) {
		TRY(late_refuse("waiting for the stream", err));
		late_until(late.put);
	}
	return late.cpu->stream_sync(s, err);
}

/* ---- events ---- */

static struct late_event *late_event_of(struct vfm_event *e)
{
	return (struct late_event *)e;
}

static struct vfm_event *late_event_new(struct vfm_dev *d, struct vfm_err *err)
{
	struct late_event *e = vfm_calloc(1, sizeof(*e));

	e->cpu = late.cpu->event_new(d, err);
	return (struct vfm_event *)e;
}

static struct vfm_event *late_event_new_timed(struct vfm_dev *d, struct vfm_err *err)
{
	struct late_event *e = vfm_calloc(1, sizeof(*e));

	late.timed++;
	e->cpu = late.cpu->event_new_timed(d, err);
	return (struct vfm_event *)e;
}

static void late_event_free(struct vfm_event *ev)
{
	late.cpu->event_free(late_event_of(ev)->cpu);
	free(ev);
}

static int late_event_record(struct vfm_event *ev, struct vfm_stream *s, struct vfm_err *err)
{
	struct late_event *e = late_event_of(ev);

	e->compute = s == late.compute;
	e->graph = late.graph && e->compute ? late.graphs : 0;
	e->seq = late.put;
	e->asks = 0;
	return late.cpu->event_record(e->cpu, s, err);
}

/* An event of a graph is one of its own alone. */
static void late_same_graph(const struct late_event *e)
{
	if (e->graph && (!late.graph || e->graph != late.graphs))
		late_die("an event of a graph is waited for outside");
}

static int late_event_wait(struct vfm_event *ev, struct vfm_stream *s, struct vfm_err *err)
{
	struct late_event *e = late_event_of(ev);

	late_same_graph(e);
	if (late.graph && s == late.compute && !e->compute && !late.cpu->event_passed(e->cpu))
		TRY(late_refuse("waiting for an event from outside", err));
	if (e->compute && s != late.compute)
		TRY(late.cpu->host_call(s, late_until_piece, &e->seq, sizeof(e->seq), err));
	return late.cpu->event_wait(e->cpu, s, err);
}

static int late_event_sync(struct vfm_event *ev, struct vfm_err *err)
{
	struct late_event *e = late_event_of(ev);

	late_same_graph(e);
	TRY(late_refuse("waiting for an event", err));
	if (e->compute)
		late_until(e->seq);
	return late.cpu->event_sync(e->cpu, err);
}

static bool late_event_passed(struct vfm_event *ev)
{
	struct late_event *e = late_event_of(ev);

	late_same_graph(e);
	if (!e->compute)
		return late.cpu->event_passed(e->cpu);
	if (atomic_fetch_add(&e->asks, 1) < LATE_ASKS)
		return false;
	late_until(e->seq);
	return true;
}

static int late_event_elapsed(struct vfm_event *a, struct vfm_event *b, double *s, struct vfm_err *err)
{
	bool passed;

	pthread_mutex_lock(&late.lock);
	passed = late_event_of(b)->seq <= late.seen;
	pthread_mutex_unlock(&late.lock);
	if (!late_event_of(a)->compute || !late_event_of(b)->compute || !passed)
		late_die("the time of an event that has not passed");
	return late.cpu->event_elapsed(late_event_of(a)->cpu, late_event_of(b)->cpu, s, err);
}

/* ---- graphs ---- */

static int late_graph_begin(struct vfm_stream *s, struct vfm_err *err)
{
	if (s != late.compute || late.graph)
		return vfm_fail(err, VFM_EUSAGE, "a graph of no compute stream, or within another");
	late_enter();
	late.before_used = late.used;
	late.before = vfm_malloc(late.used + 1);
	memcpy(late.before, late.arena, late.used);
	late_leave();
	late.graph = true;
	late.graphs++;
	late.n_ops = 0;
	return 0;
}

static int late_graph_end(struct vfm_stream *s, bool run, struct vfm_err *err)
{
	bool fails = run && late.drop_each && late.graphs % (uint64_t)late.drop_each == 0;

	if (s != late.compute || !late.graph)
		return vfm_fail(err, VFM_EUSAGE, "the end of no graph");
	late.graph = false;
	if (!run || fails) {
		late_enter();
		memcpy(late.arena, late.before, late.before_used);
		late_leave();
	}
	free(late.before);
	late.before = NULL;
	late.launched += run && !fails;
	late.dropped += !run || fails;
	s->dev->graph_first |= fails;
	return fails ? vfm_fail(err, VFM_EENV, "the graph cannot be launched") : 0;
}

/* An op is put on the stream. */
static int late_op_begins(struct vfm_stream *s, struct vfm_err *err)
{
	if (!late.graph || s != late.compute || ++late.n_ops != late.break_at)
		return 0;
	s->dev->graph_first = !late.break_again;
	return vfm_fail(err, VFM_EENV, "an op that is not in a graph");
}

/* ---- the device ---- */

#define X(name)                                                                                                        \
	static int late_op_##name(struct vfm_stream *s, const struct vfm_##name *a, struct vfm_err *err)               \
	{                                                                                                              \
		int rc = late_op_begins(s, err);                                                                       \
                                                                                                                       \
		if (rc < 0)                                                                                            \
			return rc;                                                                                     \
		late_enter();                                                                                          \
		rc = late.cpu->ops->name(s, a, err);                                                                   \
		late_leave();                                                                                          \
		return rc;                                                                                             \
	}
VFM_OP_LIST(X)
#undef X

/* To be closed by its dev_free. */
static struct vfm_dev *late_open(bool guard, struct vfm_err *err)
{
	struct vfm_dev *d = vfm_cpu_open(err);

	if (!d)
		return NULL;
	if (!late.arena)
		late.arena = mmap(
			NULL, LATE_ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (late.arena == MAP_FAILED)
		late_die("mmap");
	late.cpu = d->t;
	late.end = &late.first;
	late_protect(PROT_READ | PROT_WRITE); /* of the device before */
	late.guard = guard;
	late_protect(PROT_NONE);
	late.table = *d->t;
	late.ops = *d->t->ops;
#define X(name) late.ops.name = late_op_##name;
	VFM_OP_LIST(X)
#undef X
	late.table.ops = &late.ops;
	late.table.alloc = late_alloc;
	late.table.free = late_free;
	late.table.alloc_host = late_alloc_host;
	late.table.free_host = late_free_host;
	late.table.to_device = late_to_device;
	late.table.to_host = late_to_host;
	late.table.zero = late_zero;
	late.table.stream_new = late_stream_new;
	late.table.stream_sync = late_stream_sync;
	late.table.host_call = late_host_call;
	late.table.event_new = late_event_new;
	late.table.event_new_timed = late_event_new_timed;
	late.table.event_free = late_event_free;
	late.table.event_record = late_event_record;
	late.table.event_wait = late_event_wait;
	late.table.event_sync = late_event_sync;
	late.table.event_passed = late_event_passed;
	late.table.event_elapsed = late_event_elapsed;
	late.table.graph_begin = late_graph_begin;
	late.table.graph_end = late_graph_end;
	d->t = &late.table;
	d->async = true;
	return d;
}

#endif
