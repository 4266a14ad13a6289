/* cpu_dev.c - the CPU device: pooled memory, streams as threads with queues, events, and copies.
 *
 * The compute stream runs its work immediately.  The asynchronous streams have a thread each and accept only host_call,
 * copies and events.  Threads start with the first work on a stream, so a process may fork before.
 */
#include "device/cpu/cpu.h"

#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/par.h"
#include "device/cpu/cpu_impl.h"
#include "device/dev/holders.h"

/* ---- memory: freed blocks are kept, because fresh pages cost as much as the work on them ---- */

enum {
	CLASSES = 64 * 8,
	LEAST = 4096,
	SLACK = 256 << 20, /* idle bytes that are always kept */
};

struct free_block {
	struct free_block *next;
};

struct vfm_cpu_pool {
	struct free_block *free[CLASSES];
	size_t live, peak, idle;
};

/* Eight size classes an octave: at most an eighth is wasted. */
static size_t class_size(size_t bytes, int *cls)
{
	int shift;
	size_t step;

	if (bytes < LEAST)
		bytes = LEAST;
	shift = 63 - __builtin_clzl(bytes);
	step = (size_t)1 << (shift - 3);
	bytes = (bytes + step - 1) / step * step;
	shift = 63 - __builtin_clzl(bytes);
	*cls = shift * 8 + (int)(bytes >> (shift - 3) & 7);
	return bytes;
}

static void pool_trim(struct vfm_cpu_pool *p, size_t keep)
{
	for (int c = CLASSES - 1; c >= 0 && p->idle > keep; c--) {
		size_t size = ((size_t)8 + (size_t)(c & 7)) << (c / 8 - 3);

		while (p->free[c] && p->idle > keep) {
			struct free_block *b = p->free[c];

			p->free[c] = b->next;
			p->idle -= size;
			vfm_big_free(b, size);
		}
	}
}

static void say_what_helps(const struct vfm_dev *d, struct vfm_err *err)
{
	struct vfm_buf b = {0};

	if (!err || !d->oom_hints.savings)
		return;
	vfm_buf_adds(&b, err->msg);
	vfm_oom_add_hints(&d->oom_hints, 0, &b);
	vfm_fail(err, err->code, "%s", b.data);
	vfm_buf_release(&b);
}

static void *cpu_alloc(struct vfm_stream *s, size_t bytes, const char *what, struct vfm_err *err)
{
	struct vfm_cpu_pool *p = vfm_cpu_of(s)->pool;
	int cls;
	size_t size;
	void *r;

	if (bytes > SIZE_MAX / 4) {
		vfm_fail(err, VFM_EENV, "no memory for %s (%zu bytes)", what, bytes);
		return NULL;
	}
	size = class_size(bytes, &cls);
	if (p->free[cls]) {
		r = p->free[cls];
		p->free[cls] = p->free[cls]->next;
		p->idle -= size;
	} else {
		size_t room = p->peak / 2 + SLACK;

		if (p->idle > room)
			pool_trim(p, room);
		r = vfm_big_alloc(size, what, err);
		if (!r && p->idle) {
			pool_trim(p, 0);
			r = vfm_big_alloc(size, what, err);
		}
		if (!r) {
			say_what_helps(s->dev, err);
			return NULL;
		}
	}
	p->live += size;
	if (p->live > p->peak)
		p->peak = p->live;
	return r;
}

static void cpu_free(struct vfm_stream *s, void *ptr, size_t bytes)
{
	struct vfm_cpu_pool *p = vfm_cpu_of(s)->pool;
	struct free_block *b = ptr;
	int cls;
	size_t size = class_size(bytes, &cls);

	b->next = p->free[cls];
	p->free[cls] = b;
	p->live -= size;
	p->idle += size;
}

void *vfm_cpu_ws(struct vfm_stream *s, enum vfm_ws slot, size_t bytes, struct vfm_err *err)
{
	struct vfm_cpu *c = vfm_cpu_of(s);

	if (c->ws[slot].size < bytes) {
		vfm_big_free(c->ws[slot].p, c->ws[slot].size);
		c->ws[slot].size = 0;
		c->ws[slot].p = vfm_big_alloc(bytes + bytes / 8, "a workspace", err);
		if (!c->ws[slot].p)
			return NULL;
		c->ws[slot].size = bytes + bytes / 8;
	}
	return c->ws[slot].p;
}

static pthread_key_t scratch_key; /* frees the scratch memory of a thread when it ends */

static void create_scratch_key(void)
{
	if (pthread_key_create(&scratch_key, free) != 0)
		vfm_out_of_memory();
}

void *vfm_cpu_scratch(size_t bytes)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	static _Thread_local void *p;
	static _Thread_local size_t size;

	if (size < bytes) {
		pthread_once(&once, create_scratch_key);
		free(p);
		size = (bytes + 63) / 64 * 64;
		if (posix_memalign(&p, 64, size) || pthread_setspecific(scratch_key, p) != 0)
			vfm_out_of_memory();
	}
	return p;
}

/* All memory is host memory.  Any thread may call this, so it does not use the pool. */
static void *cpu_alloc_host(struct vfm_dev *d, size_t bytes, const char *what, struct vfm_err *err)
{
	(void)d;
	return vfm_big_alloc(bytes, what, err);
}

static void cpu_free_host(struct vfm_dev *d, void *p, size_t bytes)
{
	(void)d;
	vfm_big_free(p, bytes);
}

/* ---- streams ---- */

/* The compute stream is synchronous: a call returns when its work is done.  An asynchronous stream is a queue and a
 * thread.  The thread starts with the first task, so that a process may fork before.  Tasks are numbered, and an event
 * stores the number of the last task before it; it may therefore be recorded again or freed during a wait. */

enum { ARG_MAX_BYTES = 256 };

struct cpu_task {
	int (*fn)(void *arg, struct vfm_err *err);
	_Alignas(16) char arg[ARG_MAX_BYTES];
};

struct cpu_stream {
	struct vfm_stream s; /* first */
	bool async;
	bool started; /* the thread runs; only the host thread reads this */
	bool stop;
	/* events recorded on this stream last.  Another thread may query them, so the stream is freed after them.  Only
	 * the host thread reads this */
	int events;
	bool freed; /* only the host thread reads this */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t more, passed;
	struct cpu_task *ring; /* [cap], a power of 2; piece i at i % cap */
	uint64_t cap, put, done;
	int rc; /* error of the first failed task; later tasks are skipped */
	struct vfm_err err;
};

struct vfm_event {
	struct cpu_stream *s; /* NULL: never recorded */
	uint64_t at;          /* passed when s->done >= at */
	bool timed;
	double t; /* timed events: when it passed */
};

static struct cpu_stream *stream_of(struct vfm_stream *s)
{
	return (struct cpu_stream *)s;
}

static struct vfm_stream *cpu_stream_new(struct vfm_dev *d, bool async, struct vfm_err *err)
{
	struct cpu_stream *s = vfm_calloc(1, sizeof(*s));

	(void)err;
	s->s.dev = d;
	s->async = s->s.host_only = async;
	if (async) {
		s->cap = 16;
		s->ring = vfm_calloc(s->cap, sizeof(*s->ring));
		pthread_mutex_init(&s->lock, NULL);
		pthread_cond_init(&s->more, NULL);
		pthread_cond_init(&s->passed, NULL);
	}
	return &s->s;
}

static void *run_tasks(void *arg)
{
	struct cpu_stream *s = arg;
	struct vfm_err err = {0};
	struct cpu_task p;

	vfm_par_serial();
	pthread_mutex_lock(&s->lock);
	for (;;) {
		int rc = s->rc;

		while (s->done == s->put && !s->stop)
			pthread_cond_wait(&s->more, &s->lock);
		if (s->done == s->put)
			break;
		p = s->ring[s->done % s->cap];
		pthread_mutex_unlock(&s->lock);
		if (rc == 0)
			rc = p.fn(p.arg, &err);
		pthread_mutex_lock(&s->lock);
		if (rc < 0 && s->rc == 0) {
			s->rc = rc;
			s->err = err;
		}
		s->done++;
		pthread_cond_broadcast(&s->passed);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

/* Under the lock. */
static void grow_queue(struct cpu_stream *s)
{
	uint64_t cap = 2 * s->cap;
	struct cpu_task *ring;

	if (s->put - s->done < s->cap)
		return;
	ring = vfm_calloc(cap, sizeof(*ring));
	for (uint64_t i = s->done; i < s->put; i++)
		ring[i % cap] = s->ring[i % s->cap];
	free(s->ring);
	s->ring = ring;
	s->cap = cap;
}

static int enqueue_task(struct cpu_stream *s, int (*fn)(void *arg, struct vfm_err *err), const void *arg, size_t bytes,
	struct vfm_err *err)
{
	struct cpu_task *p;

	if (bytes > ARG_MAX_BYTES)
		return vfm_fail(err, VFM_EUSAGE, "internal: a stream call with an argument of %zu bytes", bytes);
	if (!s->started) {
		if (pthread_create(&s->thread, NULL, run_tasks, s) != 0)
			return vfm_fail(err, VFM_EENV, "cannot start the thread of an asynchronous stream");
		s->started = true;
	}
	pthread_mutex_lock(&s->lock);
	grow_queue(s);
	p = &s->ring[s->put % s->cap];
	p->fn = fn;
	if (bytes)
		memcpy(p->arg, arg, bytes);
	s->put++;
	pthread_cond_signal(&s->more);
	pthread_mutex_unlock(&s->lock);
	return 0;
}

/* Blocks until s has passed `at`; returns the error of s. */
static int wait_until(struct cpu_stream *s, uint64_t at, struct vfm_err *err)
{
	int rc;

	pthread_mutex_lock(&s->lock);
	while (s->done < at)
		pthread_cond_wait(&s->passed, &s->lock);
	rc = s->rc;
	if (rc < 0 && err)
		*err = s->err;
	pthread_mutex_unlock(&s->lock);
	return rc;
}

static int host_wait(struct cpu_stream *s, uint64_t at, struct vfm_err *err)
{
	double t0 = vfm_now();
	int rc = wait_until(s, at, err);

	s->s.dev->wait_s += vfm_now() - t0;
	return rc;
}

static void stream_gone(struct cpu_stream *s)
{
	if (!s->freed || s->events > 0)
		return;
	if (s->async) {
		pthread_mutex_destroy(&s->lock);
		pthread_cond_destroy(&s->more);
		pthread_cond_destroy(&s->passed);
	}
	free(s->ring);
	free(s);
}

static void leave_stream(struct vfm_event *e)
{
	if (!e || !e->s)
		return;
	e->s->events--;
	stream_gone(e->s);
	e->s = NULL;
}

static void cpu_stream_free(struct vfm_stream *stream)
{
	struct cpu_stream *s = stream_of(stream);

	if (!s)
		return;
	if (s->async) {
		pthread_mutex_lock(&s->lock);
		s->stop = true;
		pthread_cond_signal(&s->more);
		pthread_mutex_unlock(&s->lock);
		if (s->started)
			pthread_join(s->thread, NULL);
	}
	s->freed = true;
	stream_gone(s);
}

static int cpu_stream_sync(struct vfm_stream *stream, struct vfm_err *err)
{
	struct cpu_stream *s = stream_of(stream);

	TRY(s->async ? host_wait(s, s->put, err) : 0);
	return vfm_dev_check(s->s.dev, err);
}

static int cpu_host_call(struct vfm_stream *s, int (*fn)(void *arg, struct vfm_err *err), const void *arg, size_t bytes,
	struct vfm_err *err)
{
	_Alignas(16) char copy[ARG_MAX_BYTES];

	if (stream_of(s)->async)
		return enqueue_task(stream_of(s), fn, arg, bytes, err);
	if (bytes > ARG_MAX_BYTES)
		return vfm_fail(err, VFM_EUSAGE, "internal: a stream call with an argument of %zu bytes", bytes);
	if (bytes)
		memcpy(copy, arg, bytes);
	return fn(copy, err);
}

/* ---- copies ---- */

struct copy {
	char *dst;
	const char *src; /* NULL: zero */
	size_t bytes;
};

enum { COPY_GRAIN = 1 << 20 };

static void copy_range(int64_t i0, int64_t i1, void *ctx)
{
	struct copy *c = ctx;

	if (c->src)
		memcpy(c->dst + i0, c->src + i0, (size_t)(i1 - i0));
	else
		memset(c->dst + i0, 0, (size_t)(i1 - i0));
}

static int copy_all(void *arg, struct vfm_err *err)
{
	struct copy *c = arg;

	(void)err;
	vfm_par_for((int64_t)c->bytes, COPY_GRAIN, copy_range, c);
	return 0;
}

static int cpu_copy(struct vfm_stream *s, void *dst, const void *src, size_t bytes, struct vfm_err *err)
{
	struct copy c = {dst, src, bytes};

	return stream_of(s)->async ? enqueue_task(stream_of(s), copy_all, &c, sizeof(c), err) : copy_all(&c, err);
}

static int cpu_zero(struct vfm_stream *s, void *dst, size_t bytes, struct vfm_err *err)
{
	return cpu_copy(s, dst, NULL, bytes, err);
}

/* ---- events ---- */

static struct vfm_event *cpu_event_new(struct vfm_dev *d, struct vfm_err *err)
{
	(void)d, (void)err;
	return vfm_calloc(1, sizeof(struct vfm_event));
}

static struct vfm_event *cpu_event_new_timed(struct vfm_dev *d, struct vfm_err *err)
{
	struct vfm_event *e = cpu_event_new(d, err);

	e->timed = true;
	return e;
}

static void cpu_event_free(struct vfm_event *e)
{
	leave_stream(e);
	free(e);
}

static int stamp(void *arg, struct vfm_err *err)
{
	struct vfm_event *e = *(struct vfm_event **)arg;

	(void)err;
	e->t = vfm_now();
	return 0;
}

static int cpu_event_record(struct vfm_event *e, struct vfm_stream *stream, struct vfm_err *err)
{
	struct cpu_stream *s = stream_of(stream);

	leave_stream(e);
	*e = (struct vfm_event){.timed = e->timed};
	if (e->timed && s->async)
		TRY(enqueue_task(s, stamp, &e, sizeof(e), err));
	else if (e->timed)
		e->t = vfm_now();
	if (s->async) {
		e->s = s;
		s->events++;
		e->at = s->put;
	}
	return 0;
}

static int wait_for_task(void *arg, struct vfm_err *err)
{
	struct vfm_event *e = arg;

	return wait_until(e->s, e->at, err);
}

static int cpu_event_wait(struct vfm_event *e, struct vfm_stream *stream, struct vfm_err *err)
{
	struct cpu_stream *s = stream_of(stream);

	if (!e->s || e->s == s)
		return 0;
	return s->async ? enqueue_task(s, wait_for_task, e, sizeof(*e), err) : host_wait(e->s, e->at, err);
}

static int cpu_event_sync(struct vfm_event *e, struct vfm_err *err)
{
	if (!e->s)
		return 0;
	TRY(host_wait(e->s, e->at, err));
	return vfm_dev_check(e->s->s.dev, err);
}

static bool cpu_event_passed(struct vfm_event *e)
{
	bool passed = true;

	if (e->s) {
		pthread_mutex_lock(&e->s->lock);
		passed = e->s->done >= e->at;
		pthread_mutex_unlock(&e->s->lock);
	}
	return passed;
}

static int cpu_event_elapsed(struct vfm_event *a, struct vfm_event *b, double *s, struct vfm_err *err)
{
	if (!a->timed || !b->timed)
		return vfm_fail(err, VFM_EUSAGE, "internal: an event without a time stamp");
	*s = b->t - a->t;
	return 0;
}

/* ---- the device ---- */

static void cpu_drop_copies(struct vfm_stream *s)
{
	vfm_cpu_drop_held(vfm_cpu_of(s));
}

static void free_workspaces(struct vfm_cpu *c)
{
	for (int i = 0; i < VFM_WS_N; i++) {
		vfm_big_free(c->ws[i].p, c->ws[i].size);
		c->ws[i].p = NULL;
		c->ws[i].size = 0;
	}
}

static void cpu_trim(struct vfm_stream *s)
{
	struct vfm_cpu *c = vfm_cpu_of(s);

	pool_trim(c->pool, 0);
	free_workspaces(c);
	malloc_trim(0); /* blocks below the limit of malloc for mappings, at most 32 MiB, are in its heap */
}

static void cpu_dev_free(struct vfm_dev *d)
{
	struct vfm_cpu *c = (struct vfm_cpu *)d;

	if (!d)
		return;
	pool_trim(c->pool, 0);
	free(c->pool);
	vfm_cpu_drop_held(c);
	free_workspaces(c);
	free(c);
}

static const struct vfm_dev_table cpu_table = {
	.name = "cpu",
	.ops = &vfm_cpu_ops,
	.alloc = cpu_alloc,
	.free = cpu_free,
	.alloc_host = cpu_alloc_host,
	.free_host = cpu_free_host,
	.to_device = cpu_copy,
	.to_host = cpu_copy,
	.zero = cpu_zero,
	.stream_new = cpu_stream_new,
	.stream_free = cpu_stream_free,
	.stream_sync = cpu_stream_sync,
	.host_call = cpu_host_call,
	.event_new = cpu_event_new,
	.event_new_timed = cpu_event_new_timed,
	.event_free = cpu_event_free,
	.event_record = cpu_event_record,
	.event_wait = cpu_event_wait,
	.event_sync = cpu_event_sync,
	.event_passed = cpu_event_passed,
	.event_elapsed = cpu_event_elapsed,
	.drop_copies = cpu_drop_copies,
	.trim = cpu_trim,
	.dev_free = cpu_dev_free,
};

static const struct vfm_cpu_kern *const kernels[VFM_ISA_N] = {
	[VFM_ISA_BASE] = &vfm_cpu_kern_base,
#ifdef __x86_64__
	[VFM_ISA_AVX2] = &vfm_cpu_kern_avx2,
	[VFM_ISA_AVX512] = &vfm_cpu_kern_avx512,
	[VFM_ISA_AVX512_BF16] = &vfm_cpu_kern_avx512bf16,
	[VFM_ISA_AMX] = &vfm_cpu_kern_avx512bf16,
#endif
};

void vfm_cpu_set_gemm(struct vfm_cpu *c, const struct vfm_gemm_kern *f32, const struct vfm_gemm_kern *bf16)
{
	c->gemm_f32 = *f32;
	c->gemm_bf16 = *bf16;
	if (!f32->epilogue)
		c->gemm_f32.epilogue = c->kern->gemm_f32.epilogue;
	if (!bf16->epilogue)
		c->gemm_bf16.epilogue = c->kern->gemm_bf16.epilogue;
}

struct vfm_dev *vfm_cpu_open(struct vfm_err *err)
{
	enum vfm_isa isa;
	struct vfm_cpu *c;

	if (vfm_isa_choose(&isa, err) < 0)
		return NULL;
	c = vfm_calloc(1, sizeof(*c));
	c->dev.t = &cpu_table;
	c->dev.host_memory = true;
	c->isa = isa;
	c->kern = kernels[isa];
	c->pool = vfm_calloc(1, sizeof(*c->pool));
	c->pairs = isa >= VFM_ISA_AVX512_BF16 && vfm_isa_fast_pairs();
	vfm_cpu_set_gemm(c, &c->kern->gemm_f32, c->pairs ? &c->kern->gemm_bf16 : &c->kern->gemm_f32);
#ifdef __x86_64__
	if (isa == VFM_ISA_AMX)
		vfm_cpu_set_gemm(c, &vfm_gemm_amx_f32, &vfm_gemm_amx);
#endif
	snprintf(c->dev.name, sizeof(c->dev.name), "cpu");
	snprintf(c->dev.descr, sizeof(c->dev.descr), "%d threads, %s", vfm_par_threads(), vfm_isa_name(isa));
	return &c->dev;
}
