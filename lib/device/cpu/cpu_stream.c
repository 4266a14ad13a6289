#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/par.h"
#include "device/cpu/cpu_impl.h"

/* The compute stream is synchronous: a call returns when its work is done.  An asynchronous stream is a queue and a
 * thread.  The thread starts with the first task, so that a process may fork before.  Tasks are numbered, and an event
 * stores the number of the last task before it; it may therefore be recorded again or freed during a wait. */

enum { ARG_MAX_BYTES = 256 };

struct heap_piece {
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
	struct heap_piece *ring; /* [cap], a power of 2; piece i at i % cap */
	uint64_t cap, put, done;
	int rc; /* error of the first failed task; later tasks are skipped */
	struct vfm_err err;
};

struct vfm_event {
	struct cpu_stream *s; /* NULL: never recorded */
	uint64_t at;          /* passed when s->done >= at */
	bool timed;
	double t; /* timed events: the time at which it passed */
};

static struct cpu_stream *stream_of(struct vfm_stream *s)
{
	return (struct cpu_stream *)s;
}

struct vfm_stream *vfm_cpu_stream_new(struct vfm_dev *d, bool async, struct vfm_err *err)
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
	struct heap_piece p;

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
	struct heap_piece *ring;

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
	struct heap_piece *p;

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

void vfm_cpu_stream_free(struct vfm_stream *stream)
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

int vfm_cpu_stream_sync(struct vfm_stream *stream, struct vfm_err *err)
{
	struct cpu_stream *s = stream_of(stream);

	TRY(s->async ? host_wait(s, s->put, err) : 0);
	return vfm_dev_check(s->s.dev, err);
}

int vfm_cpu_host_call(struct vfm_stream *s, int (*fn)(void *arg, struct vfm_err *err), const void *arg, size_t bytes,
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

int vfm_cpu_copy(struct vfm_stream *s, void *dst, const void *src, size_t bytes, struct vfm_err *err)
{
	struct copy c = {dst, src, bytes};

	return stream_of(s)->async ? enqueue_task(stream_of(s), copy_all, &c, sizeof(c), err) : copy_all(&c, err);
}

int vfm_cpu_zero(struct vfm_stream *s, void *dst, size_t bytes, struct vfm_err *err)
{
	return vfm_cpu_copy(s, dst, NULL, bytes, err);
}

/* ---- events ---- */

struct vfm_event *vfm_cpu_event_new(struct vfm_dev *d, struct vfm_err *err)
{
	(void)d, (void)err;
	return vfm_calloc(1, sizeof(struct vfm_event));
}

struct vfm_event *vfm_cpu_event_new_timed(struct vfm_dev *d, struct vfm_err *err)
{
	struct vfm_event *e = vfm_cpu_event_new(d, err);

	e->timed = true;
	return e;
}

void vfm_cpu_event_free(struct vfm_event *e)
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

int vfm_cpu_event_record(struct vfm_event *e, struct vfm_stream *stream, struct vfm_err *err)
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

static int wait_piece(void *arg, struct vfm_err *err)
{
	struct vfm_event *e = arg;

	return wait_until(e->s, e->at, err);
}

int vfm_cpu_event_wait(struct vfm_event *e, struct vfm_stream *stream, struct vfm_err *err)
{
	struct cpu_stream *s = stream_of(stream);

	if (!e->s || e->s == s)
		return 0;
	return s->async ? enqueue_task(s, wait_piece, e, sizeof(*e), err) : host_wait(e->s, e->at, err);
}

int vfm_cpu_event_sync(struct vfm_event *e, struct vfm_err *err)
{
	if (!e->s)
		return 0;
	TRY(host_wait(e->s, e->at, err));
	return vfm_dev_check(e->s->s.dev, err);
}

bool vfm_cpu_event_passed(struct vfm_event *e)
{
	bool passed = true;

	if (e->s) {
		pthread_mutex_lock(&e->s->lock);
		passed = e->s->done >= e->at;
		pthread_mutex_unlock(&e->s->lock);
	}
	return passed;
}

int vfm_cpu_event_elapsed(struct vfm_event *a, struct vfm_event *b, double *s, struct vfm_err *err)
{
	if (!a->timed || !b->timed)
		return vfm_fail(err, VFM_EUSAGE, "internal: an event without a time stamp");
	*s = b->t - a->t;
	return 0;
}
