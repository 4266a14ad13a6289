/* device DEVICE - tests the device table: memory, copies, streams, events, host callbacks, out-of-memory messages.
 * Prints a JSON line per test; status 0, 1 if a test failed, or 3 if there is no device. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "device/dev/stall.h"
#include "device/open/open.h"
#include "device/ops/ops.h"

enum { MIB = 1 << 20, N = 64 * MIB };

static struct vfm_device d;
static const struct vfm_dev_table *t;
static struct vfm_err err;
static int failed;

#define OK(call)                                                                                                       \
	do {                                                                                                           \
		if ((call) < 0) {                                                                                      \
			snprintf(why, len, "%s: %s", #call, err.msg);                                                  \
			return false;                                                                                  \
		}                                                                                                      \
	} while (0)
#define MUST(cond)                                                                                                     \
	do {                                                                                                           \
		if (!(cond)) {                                                                                         \
			snprintf(why, len, "not so: %s", #cond);                                                       \
			return false;                                                                                  \
		}                                                                                                      \
	} while (0)

static unsigned pattern(size_t i)
{
	return (unsigned)(i * 2654435761u) >> 7;
}

/* Pageable memory: to_device has read the source when it returns, also if it exceeds the staging buffer. */
static bool copies(char *why, size_t len)
{
	unsigned *host = vfm_malloc(N), *back = vfm_malloc(N);
	void *p = vfm_dev_alloc(d.stream, N, "copies", &err), *q = vfm_dev_alloc(d.stream, N, "copies", &err);

	MUST(p && q);
	for (size_t i = 0; i < N / 4; i++)
		host[i] = pattern(i);
	OK(t->to_device(d.stream, p, host, N, &err));
	memset(host, 0xff, N);
	OK(t->to_device(d.stream, q, p, N, &err)); /* on the device */
	OK(t->zero(d.stream, (char *)q + 4096, 4096, &err));
	OK(t->to_host(d.stream, back, q, N, &err));
	OK(t->stream_sync(d.stream, &err));
	for (size_t i = 0; i < N / 4; i++)
		MUST(back[i] == (i >= 1024 && i < 2048 ? 0 : pattern(i)));
	for (size_t odd = 1; odd < 4099; odd += 1021) { /* odd addresses, odd sizes, nothing */
		OK(t->to_device(d.stream, (char *)p + odd, (char *)back + 3 * odd, odd, &err));
		OK(t->to_host(d.stream, (char *)host + odd, (char *)p + odd, odd, &err));
	}
	OK(t->to_device(d.stream, p, NULL, 0, &err));
	OK(t->stream_sync(d.stream, &err));
	for (size_t odd = 1; odd < 4099; odd += 1021)
		MUST(odd > 2000 || !memcmp((char *)host + odd, (char *)back + 3 * odd, odd));
	vfm_dev_free(d.stream, p, N);
	vfm_dev_free(d.stream, q, N);
	free(host);
	free(back);
	return true;
}

static bool memory(char *why, size_t len)
{
	void *p[64], *big;
	size_t sizes[64];

	MUST(d.dev->mem_now == 0);
	/* Allocate many sizes and free them in another order, repeatedly: the allocator reuses the memory. */
	for (int round = 0; round < 20; round++) {
		for (int i = 0; i < 64; i++) {
			sizes[i] = (size_t)(pattern((size_t)(round * 64 + i)) % (4 * MIB));
			p[i] = vfm_dev_alloc(d.stream, sizes[i], "chunks", &err);
			MUST(p[i] && (size_t)p[i] % 64 == 0);
			OK(t->zero(d.stream, p[i], sizes[i], &err));
		}
		for (int i = 0; i < 64; i++)
			vfm_dev_free(d.stream, p[i * 37 % 64], sizes[i * 37 % 64]);
	}
	MUST(d.dev->mem_now == 0 && d.dev->mem_peak > 0);
	p[0] = vfm_dev_alloc(d.stream, 0, "nothing", &err);
	p[1] = vfm_dev_alloc(d.stream, 0, "nothing", &err);
	MUST(p[0] && p[1] && p[0] != p[1]);
	vfm_dev_free(d.stream, p[0], 0);
	vfm_dev_free(d.stream, p[1], 0);
	/* An allocation beyond the memory fails with a message; the device stays usable. */
	big = vfm_dev_alloc(d.stream, (size_t)1 << 50, "the moon", &err);
	MUST(!big && err.code == VFM_EENV && strstr(err.msg, "the moon"));
	err = (struct vfm_err){0};
	p[0] = vfm_dev_alloc(d.stream, MIB, "after that", &err);
	MUST(p[0]);
	OK(t->zero(d.stream, p[0], MIB, &err));
	vfm_dev_free(d.stream, p[0], MIB);
	OK(t->stream_sync(d.stream, &err));
	return true;
}

struct mark {
	volatile int *at;
	int value;
};

static int set_mark(void *arg, struct vfm_err *e)
{
	struct mark *m = arg;

	(void)e;
	usleep(20000);
	*m->at = m->value;
	return 0;
}

static int fail_mark(void *arg, struct vfm_err *e)
{
	(void)arg;
	return vfm_fail(e, VFM_EENV, "this callback fails");
}

/* A copy stream waits for the compute stream, a host callback for the copy, the compute stream for the callback. */
static bool streams(char *why, size_t len)
{
	struct vfm_stream *side = t->stream_new(d.dev, true, &err);
	struct vfm_event *a = t->event_new(d.dev, &err), *b = t->event_new(d.dev, &err);
	unsigned *host = t->alloc_host(d.dev, N, "pinned", &err), *back = t->alloc_host(d.dev, N, "pinned", &err);
	void *p = vfm_dev_alloc(d.stream, N, "streams", &err);
	volatile int at = 0;
	struct mark m = {&at, 5};

	MUST(side && a && b && host && back && p);
	OK(t->event_sync(a, &err)); /* never recorded: returns at once */
	MUST(t->event_passed(a));
	for (size_t i = 0; i < N / 4; i++)
		host[i] = pattern(i + 9);
	OK(t->to_device(d.stream, p, host, N, &err));
	OK(t->event_record(a, d.stream, &err));
	OK(t->event_wait(a, side, &err));
	OK(t->to_host(side, back, p, N, &err));
	OK(t->host_call(side, set_mark, &m, sizeof(m), &err));
	OK(t->event_record(b, side, &err));
	OK(t->event_wait(b, d.stream, &err));
	OK(t->event_sync(b, &err));
	MUST(at == 5 && t->event_passed(b));
	MUST(!memcmp(host, back, N));
	OK(t->stream_sync(side, &err));
	OK(t->stream_sync(d.stream, &err));
	vfm_dev_free(d.stream, p, N);
	t->free_host(d.dev, host, N);
	t->free_host(d.dev, back, N);
	t->event_free(a);
	t->event_free(b);
	t->stream_free(side);
	return true;
}

/* Events propagate a failure to the streams that wait; later callbacks of a failed stream do not run. */
static bool failures(char *why, size_t len)
{
	struct vfm_stream *side = t->stream_new(d.dev, true, &err), *third = t->stream_new(d.dev, true, &err),
			  *after = t->stream_new(d.dev, false, &err);
	struct vfm_event *a = t->event_new(d.dev, &err), *b = t->event_new(d.dev, &err);
	volatile int at = 0;
	struct mark m = {&at, 5};

	MUST(side && third && after && a && b);
	OK(t->host_call(side, fail_mark, NULL, 0, &err));
	OK(t->host_call(side, set_mark, &m, sizeof(m), &err));
	OK(t->event_record(a, side, &err));
	if (t->event_wait(a, third, &err) == 0)
		OK(t->host_call(third, set_mark, &m, sizeof(m), &err));
	OK(t->event_record(b, third, &err));
	err = (struct vfm_err){0};
	MUST(t->event_wait(b, after, &err) < 0 || t->stream_sync(after, &err) < 0);
	MUST(strstr(err.msg, "this callback fails"));
	err = (struct vfm_err){0};
	MUST(t->event_sync(a, &err) < 0 && t->event_passed(a) && at == 0);
	MUST(t->stream_sync(side, &err) < 0 && strstr(err.msg, "this callback fails"));
	err = (struct vfm_err){0};
	t->stream_free(side);
	t->stream_free(third);
	t->stream_free(after);
	t->event_free(a);
	t->event_free(b);
	OK(t->stream_sync(d.stream, &err)); /* it has not waited for the failed streams */
	return true;
}

static int wait_mark(void *arg, struct vfm_err *e)
{
	struct mark *m = arg;
	double t0 = vfm_now();

	while (*m->at != m->value)
		if (vfm_now() - t0 > 10)
			return vfm_fail(e, VFM_EENV, "no other callback within 10 s");
	return 0;
}

struct order {
	int *at, from;
};

static int next_in_order(void *arg, struct vfm_err *e)
{
	struct order *o = arg;

	return (*o->at)++ == o->from ? 0 : vfm_fail(e, VFM_EENV, "call %d comes as number %d", o->from, *o->at - 1);
}

/* Callbacks of different streams may wait for each other, as collectives do.  They do not block the host, and callbacks
 * of a stream run in order. */
static bool calls(char *why, size_t len)
{
	enum { CALLS = 3000 };
	struct vfm_stream *x = t->stream_new(d.dev, true, &err), *y = t->stream_new(d.dev, true, &err);
	struct vfm_event *e = t->event_new(d.dev, &err);
	char *host = t->alloc_host(d.dev, N, "pinned", &err), *heap = vfm_calloc(N, 1);
	void *p = vfm_dev_alloc(d.stream, N, "calls", &err);
	volatile int at = 0;
	struct mark m = {&at, 1};
	double t0 = vfm_now(), enqueued;
	int n = 0;

	MUST(x && y && e && host && p);
	OK(t->host_call(x, wait_mark, &m, sizeof(m), &err));
	OK(t->to_host(x, host, p, N, &err));
	OK(t->event_record(e, x, &err));
	MUST(!t->event_passed(e));
	/* Overlapping with it. */
	OK(t->to_device(d.stream, p, heap, N, &err));
	OK(t->stream_sync(d.stream, &err));
	enqueued = vfm_now() - t0;
	usleep(100000);
	MUST(!t->event_passed(e));
	OK(t->host_call(y, set_mark, &m, sizeof(m), &err));
	OK(t->event_sync(e, &err));
	MUST(enqueued < 5 && at == 1);
	for (int i = 0; i < CALLS; i++) {
		struct order o = {&n, i};

		OK(t->host_call(i % 2 ? x : y, next_in_order, &o, sizeof(o), &err));
		OK(t->event_record(e, i % 2 ? x : y, &err));
		OK(t->event_wait(e, i % 2 ? y : x, &err));
	}
	OK(t->stream_sync(x, &err));
	OK(t->stream_sync(y, &err));
	MUST(n == CALLS);
	vfm_dev_free(d.stream, p, N);
	t->free_host(d.dev, host, N);
	t->event_free(e);
	t->stream_free(x);
	t->stream_free(y);
	free(heap);
	return true;
}

static void figure(const char *name, double value)
{
	printf("{\"figure\":\"%s\",\"value\":%.3f}\n", name, value);
}

static int nap(void *arg, struct vfm_err *e)
{
	(void)e;
	return usleep(*(unsigned *)arg);
}

/* Measures stalls of the compute stream without blocking the host, and the overhead of this measurement. */
static bool stalls(char *why, size_t len)
{
	enum { PLACES = 1000 };
	struct vfm_stream *side = t->stream_new(d.dev, true, &err);
	struct vfm_event *e = t->event_new(d.dev, &err), *done = t->event_new(d.dev, &err);
	struct vfm_stalls *st = vfm_stalls_new(d.stream);
	unsigned us = 50000;
	double x[VFM_STALLS], t0 = vfm_now(), put;

	MUST(side && e && done);
	OK(t->host_call(side, nap, &us, sizeof(us), &err));
	OK(t->event_record(e, side, &err));
	OK(vfm_stall_wait(e, d.stream, VFM_STALL_COPY, &err));
	put = vfm_now() - t0;
	OK(t->event_record(done, d.stream, &err));
	OK(t->event_sync(done, &err));
	vfm_stalls_between(st, 0, vfm_stalls_mark(st), x);
	MUST(x[VFM_STALL_COPY] > 0.045 && x[VFM_STALL_COPY] < 5 && x[VFM_STALL_COMM] == 0);
	MUST(!d.dev->async || put < 0.045);
	for (int round = 0; round < 2; round++) { /* the first round creates the events */
		t0 = vfm_now();
		for (int i = 0; i < PLACES; i++)
			OK(vfm_stall_wait(done, d.stream, VFM_STALL_COMM, &err));
		put = vfm_now() - t0;
		OK(t->stream_sync(d.stream, &err));
		vfm_stalls_between(st, 0, vfm_stalls_mark(st), x);
	}
	figure("stall_put_us", put / PLACES * 1e6);
	figure("stall_of_nothing_us", x[VFM_STALL_COMM] / PLACES * 1e6);
	vfm_stalls_free(st);
	t->event_free(e);
	t->event_free(done);
	t->stream_free(side);
	return true;
}

/* x += a, n times, on [1024] f32. */
static int add_up(void *p, float a, int n, struct vfm_err *e)
{
	struct vfm_tensor x = vfm_t1(p, VFM_F32, 1024), one = vfm_t1((float *)p + 1024, VFM_F32, 1024);
	struct vfm_axpby add = {.alpha = a, .beta = 1, .x = one, .y = x};

	for (int i = 0; i < n; i++)
		TRY(vfm_op_axpby(d.stream, &add, e));
	return 0;
}

/* Captured work runs once, with its own arguments, in stream order.  Dropped graphs never run.  The capture refuses
 * operations that a graph cannot contain. */
static bool graphs(char *why, size_t len)
{
	enum { OPS = 400, ROUNDS = 20 };
	float *host = t->alloc_host(d.dev, 8192, "graphs", &err), got, want = 0;
	char *p = vfm_dev_alloc(d.stream, 8192, "graphs", &err);
	double t0, put[2], all[2];
	struct vfm_err no;

	if (!t->graph_begin) {
		vfm_dev_free(d.stream, p, 8192);
		t->free_host(d.dev, host, 8192);
		return true;
	}
	MUST(host && p);
	for (int i = 0; i < 2048; i++)
		host[i] = i < 1024 ? 0 : 1;
	OK(t->to_device(d.stream, p, host, 8192, &err));
	OK(add_up(p, 1, 1, &err)); /* loads the kernels */
	want += 1;
	for (int k = 0; k < 6; k++) {
		int n = k == 3 ? 7 : 5; /* a different graph in between */

		OK(t->graph_begin(d.stream, &err));
		OK(add_up(p, (float)(k + 1), n, &err));
		MUST(t->stream_sync(d.stream, &no) < 0 && t->to_host(d.stream, &got, p, 4, &no) < 0);
		OK(t->graph_end(d.stream, k != 4, &err));
		want += k != 4 ? (float)(n * (k + 1)) : 0;
		OK(add_up(p, 0.5f, 1, &err));
		want += 0.5f;
	}
	OK(t->to_host(d.stream, host, p, 4096, &err));
	OK(t->stream_sync(d.stream, &err));
	for (int i = 0; i < 1024; i++)
		MUST(host[i] == want);
	for (int as = 0; as < 2; as++) {
		t0 = vfm_now();
		for (int r = 0; r < ROUNDS; r++) {
			if (as)
				OK(t->graph_begin(d.stream, &err));
			OK(add_up(p, 1, OPS, &err));
			if (as)
				OK(t->graph_end(d.stream, true, &err));
		}
		put[as] = vfm_now() - t0;
		OK(t->stream_sync(d.stream, &err));
		all[as] = vfm_now() - t0;
	}
	figure("launch_put_us", put[0] / ROUNDS / OPS * 1e6);
	figure("launch_us", all[0] / ROUNDS / OPS * 1e6);
	figure("launch_in_graph_put_us", put[1] / ROUNDS / OPS * 1e6);
	figure("launch_in_graph_us", all[1] / ROUNDS / OPS * 1e6);
	vfm_dev_free(d.stream, p, 8192);
	t->free_host(d.dev, host, 8192);
	return true;
}

/* Freed memory can be reallocated at once, in stream order. */
static bool reuse(char *why, size_t len)
{
	unsigned *host = vfm_malloc(N), *back = t->alloc_host(d.dev, 4 * MIB, "pinned", &err);
	int again = 0;
	void *last = NULL;

	MUST(back);
	for (int i = 0; i < 16; i++) {
		void *p = vfm_dev_alloc(d.stream, 4 * MIB, "reuse", &err);

		MUST(p);
		again += p == last;
		for (int k = 0; k < MIB; k++)
			host[k] = pattern((size_t)k + (size_t)i);
		OK(t->to_device(d.stream, p, host, 4 * MIB, &err));
		if (i == 15)
			OK(t->to_host(d.stream, back, p, 4 * MIB, &err));
		vfm_dev_free(d.stream, p, 4 * MIB);
		last = p;
	}
	OK(t->stream_sync(d.stream, &err));
	for (int k = 0; k < MIB; k++)
		MUST(back[k] == pattern((size_t)k + 15));
	MUST(again == 15);
	t->free_host(d.dev, back, 4 * MIB);
	free(host);
	return true;
}

/* Allocates all memory in blocks, then half of it at once although each hole is too small. */
static bool full(char *why, size_t len)
{
	enum { BLOCKS = 4096 };
	static void *p[BLOCKS];
	size_t block, big;
	unsigned got[2] = {1, 1};
	char *q;
	int n = 0;

	if (!d.dev->mem_total)
		return true; /* it would exhaust the host's memory */
	block = (size_t)d.dev->mem_total / 97;
	while (n < BLOCKS && (p[n] = vfm_dev_alloc(d.stream, block, "blocks.7.chunks", &err)))
		n++;
	MUST(n > 20 && n < BLOCKS && err.code == VFM_EENV);
	MUST(strstr(err.msg, "out of memory on") && strstr(err.msg, "for blocks.7.chunks do not fit") &&
		strstr(err.msg, "(blocks.N.chunks "));
	err = (struct vfm_err){0};
	for (int i = 0; i < n; i += 2)
		vfm_dev_free(d.stream, p[i], block);
	big = block * (size_t)(n / 2 - 6); /* chunks at the edges of holes belong to their neighbours */
	q = vfm_dev_alloc(d.stream, big, "one of half of the memory", &err);
	if (!q)
		OK(err.code);
	OK(t->zero(d.stream, q, big, &err));
	OK(t->to_host(d.stream, &got[0], q, 4, &err));
	OK(t->to_host(d.stream, &got[1], q + big / 4 * 4 - 4, 4, &err));
	OK(t->stream_sync(d.stream, &err));
	MUST(got[0] == 0 && got[1] == 0);
	vfm_dev_free(d.stream, q, big);
	for (int i = 1; i < n; i += 2)
		vfm_dev_free(d.stream, p[i], block);
	MUST(d.dev->mem_now == 0);
	return true;
}

/* Measurements without a required value. */
static bool figures(char *why, size_t len)
{
	enum { R = 8, CALLS = 200, ALLOCS = 20000 };
	struct vfm_stream *side = t->stream_new(d.dev, true, &err);
	char *heap = vfm_calloc(N, 1), *host = t->alloc_host(d.dev, N, "pinned", &err);
	void *p = vfm_dev_alloc(d.stream, N, "figures", &err);
	int n = 0;
	double t0 = 0;

	MUST(side && host && p);
	memset(host, 1, N);
	for (int what = 0; what < 3; what++) {
		const char *const names[] = {"to_device_staged_gb_s", "to_device_locked_gb_s", "to_host_locked_gb_s"};

		for (int r = -1; r < R; r++) {
			if (r == 0) {
				OK(t->stream_sync(d.stream, &err));
				t0 = vfm_now();
			}
			OK(what == 2 ? t->to_host(d.stream, host, p, N, &err)
				     : t->to_device(d.stream, p, what ? host : heap, N, &err));
		}
		OK(t->stream_sync(d.stream, &err));
		figure(names[what], (double)R * N / (vfm_now() - t0) / 1e9);
	}
	OK(t->host_call(side, next_in_order, &(struct order){&n, 0}, sizeof(struct order), &err));
	OK(t->stream_sync(side, &err));
	t0 = vfm_now();
	for (int i = 0; i < CALLS; i++) {
		OK(t->host_call(side, next_in_order, &(struct order){&n, i + 1}, sizeof(struct order), &err));
		OK(t->stream_sync(side, &err));
	}
	figure("host_call_and_sync_us", (vfm_now() - t0) / CALLS * 1e6);
	t0 = vfm_now();
	for (int i = 0; i < ALLOCS; i++) {
		size_t bytes = pattern((size_t)i) % N;
		void *q = vfm_dev_alloc(d.stream, bytes, "figures", &err);

		MUST(q);
		vfm_dev_free(d.stream, q, bytes);
	}
	figure("alloc_and_free_us", (vfm_now() - t0) / ALLOCS * 1e6);
	vfm_dev_free(d.stream, p, N);
	t->free_host(d.dev, host, N);
	t->stream_free(side);
	free(heap);
	return true;
}

/* An index out of range selects no row and corrupts no memory; every later wait reports it.  Must be the last test. */
static bool bad_indices(char *why, size_t len)
{
	enum { M = 1000, D = 64, BAD = 123 };
	struct vfm_event *e = t->event_new(d.dev, &err);
	float *x = t->alloc_host(d.dev, 2 * M * D * 4, "pinned", &err), *back = x + M * D;
	int32_t *index = t->alloc_host(d.dev, M * 4, "pinned", &err);
	char *p = vfm_dev_alloc(d.stream, (2 * M * D + M) * 4, "rows", &err);
	struct vfm_index_select r;
	int rc;

	MUST(e && x && index && p);
	for (int i = 0; i < M * D; i++)
		x[i] = (float)i;
	for (int i = 0; i < M; i++)
		index[i] = i == BAD ? 1 << 30 : M - 1 - i;
	r = (struct vfm_index_select){.x = vfm_t2(p, VFM_F32, M, D),
		.y = vfm_t2(p + M * D * 4, VFM_F32, M, D),
		.index = vfm_t1(p + 2 * M * D * 4, VFM_I32, M)};
	OK(t->to_device(d.stream, r.x.data, x, M * D * 4, &err));
	OK(t->to_device(d.stream, r.index.data, index, M * 4, &err));
	rc = vfm_op_index_select(d.stream, &r, &err);
	if (d.dev->async && !getenv("VFM_CUDA_SYNC")) {
		OK(rc);
		OK(t->to_host(d.stream, back, r.y.data, M * D * 4, &err));
		OK(t->event_record(e, d.stream, &err));
		rc = t->event_sync(e, &err);
		for (int i = 0; i < M * D; i++)
			MUST(back[i] == (i / D == BAD ? 0.0f : x[(M - 1 - i / D) * D + i % D]));
		MUST(t->stream_sync(d.stream, &err) == VFM_EUSAGE);
	}
	MUST(rc == VFM_EUSAGE && strstr(err.msg, "index_select: ") &&
		strstr(err.msg, "1073741824, but there are 1000 rows"));
	vfm_dev_free(d.stream, p, (2 * M * D + M) * 4);
	t->event_free(e);
	t->free_host(d.dev, x, 2 * M * D * 4);
	t->free_host(d.dev, index, M * 4);
	return true;
}

static void check(const char *name, bool (*fn)(char *why, size_t len))
{
	char why[VFM_ERR_MAX + 64] = "";
	double t0 = vfm_now();
	bool ok;

	err = (struct vfm_err){0};
	ok = fn(why, sizeof(why));
	for (char *p = why; *p; p++)
		if (*p == '"' || *p == '\\' || (unsigned char)*p < ' ')
			*p = '\'';
	printf("{\"check\":\"%s\",\"ok\":%s,\"s\":%.2f,\"why\":\"%s\"}\n", name, ok ? "true" : "false", vfm_now() - t0,
		why);
	fflush(stdout);
	failed += !ok;
}

int main(int argc, char **argv)
{
	if (argc != 2) {
		fprintf(stderr, "usage: device DEVICE\n");
		return 2;
	}
	if (vfm_device_open(&d, argv[1], &err) < 0) {
		fprintf(stderr, "device: %s\n", err.msg);
		return 3;
	}
	t = d.dev->t;
	fprintf(stderr, "%s: %s, %.1f GiB\n", d.dev->name, d.dev->descr, (double)d.dev->mem_total / 0x1p30);
	check("memory", memory);
	check("copies", copies);
	check("streams", streams);
	check("failures", failures);
	check("calls", calls);
	check("stalls", stalls);
	check("graphs", graphs);
	check("reuse", reuse);
	check("full", full);
	check("figures", figures);
	check("bad indices", bad_indices);
	vfm_device_close(&d);
	return failed > 0;
}
