/* cuda_stream.c - streams, events, and host calls on a thread of each stream that uses them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/cuda_sys.h"

/* Calls on the host.  The driver may run the calls of cudaLaunchHostFunc in one thread for all streams, so that two
 * collectives could wait for each other.  Here each asynchronous stream has its own thread.  The stream writes the
 * number of the call to pinned memory, and waits until the thread has written it back.  The thread makes no CUDA call,
 * so it proceeds while the host thread blocks in one. */

enum { ARG_MAX_BYTES = 256 };

struct late_call {
	int (*fn)(void *arg, struct vfm_err *err);
	_Alignas(16) char arg[ARG_MAX_BYTES];
};

struct flags {
	_Atomic uint32_t arrived; /* written by the stream: it has reached this call */
	char pad[124];            /* a separate cache line */
	_Atomic uint32_t passed;  /* written by the thread: it has finished this call */
};

struct vfm_cuda_calls {
	struct vfm_cuda_stream *s;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t more;
	struct late_call *ring; /* [cap], a power of 2; call i at i % cap */
	uint64_t cap, put, done;
	bool stop;
	atomic_bool abandon; /* the device failed: the stream will not arrive */
	struct flags *flags; /* pinned */
};

struct vfm_event {
	cudaEvent_t ev;
	struct vfm_cuda *c;
	bool recorded;
	uint64_t graph; /* number of the capture that recorded it; 0: none */
	bool async;     /* the stream it was recorded on */
	int slot;
	uint32_t generation;
};

static struct vfm_cuda_sys *sys_of(const struct vfm_cuda_stream *s)
{
	return vfm_cuda_of(&s->s)->sys;
}

cudaStream_t vfm_cuda_stream(struct vfm_stream *s)
{
	return vfm_cuda_stream_of(s)->st;
}

/* ---- failures of calls on the host ---- */

/* Returns the error of any stream in the mask. */
static int failure_of(struct vfm_cuda_sys *y, uint64_t mask, struct vfm_err *err)
{
	int rc = 0;

	if (atomic_load(&y->failures) == 0)
		return 0;
	pthread_mutex_lock(&y->lock);
	for (int i = 0; i < VFM_CUDA_STREAMS && rc == 0; i++)
		if ((mask >> i & 1) && y->stream[i] && y->stream[i]->rc < 0) {
			rc = y->stream[i]->rc;
			if (err)
				*err = y->stream[i]->err;
		}
	pthread_mutex_unlock(&y->lock);
	return rc;
}

static uint64_t seen_by(struct vfm_cuda_stream *s)
{
	struct vfm_cuda_sys *y = sys_of(s);
	uint64_t mask;

	pthread_mutex_lock(&y->lock);
	mask = s->deps | (uint64_t)1 << s->slot;
	pthread_mutex_unlock(&y->lock);
	return mask;
}

static int stream_failure(struct vfm_cuda_stream *s, struct vfm_err *err)
{
	struct vfm_cuda_sys *y = sys_of(s);

	return atomic_load(&y->failures) ? failure_of(y, seen_by(s), err) : 0;
}

/* err may be NULL. */
static void set_failure(struct vfm_cuda_stream *s, int rc, const struct vfm_err *err)
{
	struct vfm_cuda_sys *y = sys_of(s);

	pthread_mutex_lock(&y->lock);
	if (s->rc == 0) {
		s->rc = rc;
		if (err)
			s->err = *err;
		atomic_fetch_add(&y->failures, 1);
	}
	pthread_mutex_unlock(&y->lock);
}

/* ---- streams ---- */

/* Communication has priority over compute: its kernels are few, and other ranks wait for them. */
static int create(struct vfm_cuda_stream *s, struct vfm_err *err)
{
	int least = 0, greatest = 0;

	TRY(vfm_cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "the priorities of streams", err));
	return vfm_cuda_check(cudaStreamCreateWithPriority(&s->st, cudaStreamNonBlocking, s->async ? greatest : least),
		"a new stream", err);
}

struct vfm_stream *vfm_cuda_stream_new(struct vfm_dev *d, bool async, struct vfm_err *err)
{
	struct vfm_cuda *c = (struct vfm_cuda *)d;
	struct vfm_cuda_sys *y = c->sys;
	struct vfm_cuda_stream *s;
	int slot = 0;

	if (vfm_cuda_use(c, err) < 0)
		return NULL;
	s = vfm_calloc(1, sizeof(*s));
	s->s.dev = d;
	s->async = async;
	if (create(s, err) < 0) {
		free(s);
		return NULL;
	}
	pthread_mutex_lock(&y->lock);
	while (slot < VFM_CUDA_STREAMS && y->stream[slot])
		slot++;
	if (slot < VFM_CUDA_STREAMS) {
		y->stream[slot] = s;
		y->generation[slot]++;
		s->slot = slot;
	}
	pthread_mutex_unlock(&y->lock);
	if (slot == VFM_CUDA_STREAMS) {
		cudaStreamDestroy(s->st);
		free(s);
		vfm_fail(err, VFM_EENV, "a device supports at most %d streams", VFM_CUDA_STREAMS);
		return NULL;
	}
	return &s->s;
}

static void calls_free(struct vfm_cuda_calls *k, bool abandon)
{
	if (!k)
		return;
	atomic_store(&k->abandon, abandon);
	pthread_mutex_lock(&k->lock);
	k->stop = true;
	pthread_cond_signal(&k->more);
	pthread_mutex_unlock(&k->lock);
	pthread_join(k->thread, NULL);
	pthread_mutex_destroy(&k->lock);
	pthread_cond_destroy(&k->more);
	cudaFreeHost(k->flags);
	free(k->ring);
	free(k);
}

/* The slot will be reused: streams that waited for this one inherit its error. */
static void leave_slot(struct vfm_cuda_sys *y, struct vfm_cuda_stream *s)
{
	uint64_t bit = (uint64_t)1 << s->slot;

	pthread_mutex_lock(&y->lock);
	y->stream[s->slot] = NULL;
	for (int i = 0; i < VFM_CUDA_STREAMS; i++) {
		struct vfm_cuda_stream *o = y->stream[i];

		if (!o || !(o->deps & bit))
			continue;
		o->deps &= ~bit;
		if (s->rc < 0 && o->rc == 0) {
			o->rc = s->rc;
			o->err = s->err;
			atomic_fetch_add(&y->failures, 1);
		}
	}
	if (s->rc < 0)
		atomic_fetch_sub(&y->failures, 1);
	pthread_mutex_unlock(&y->lock);
}

void vfm_cuda_stream_free(struct vfm_stream *stream)
{
	struct vfm_cuda_stream *s = vfm_cuda_stream_of(stream);
	bool broken;

	if (!s)
		return;
	broken = vfm_cuda_use(vfm_cuda_of(stream), NULL) < 0 || cudaStreamSynchronize(s->st) != cudaSuccess ||
		vfm_cuda_broken();
	calls_free(s->calls, broken);
	vfm_cuda_staged_free(s->staged);
	if (s->ws)
		vfm_dev_free(stream, s->ws, s->ws_bytes);
	leave_slot(sys_of(s), s);
	cudaStreamDestroy(s->st);
	free(s);
}

int vfm_cuda_stream_sync(struct vfm_stream *stream, struct vfm_err *err)
{
	struct vfm_cuda_stream *s = vfm_cuda_stream_of(stream);
	double t0 = vfm_now();
	cudaError_t e;

	TRY(vfm_cuda_refuse(vfm_cuda_of(stream), s->st, "waiting for a stream", false, err));
	e = cudaStreamSynchronize(s->st);
	*(s->async ? &stream->dev->wait_s : &stream->dev->behind_s) += vfm_now() - t0;
	TRY(vfm_cuda_check(e, "waiting for a stream", err));
	TRY(vfm_dev_check(stream->dev, err));
	TRY(vfm_faults_check(sys_of(s)->faults, err));
	return stream_failure(s, err);
}

/* ---- calls on the host ---- */

/* Blocks until the stream has reached call n.  Polls at first, because most calls are communication. */
static bool arrive(struct vfm_cuda_calls *k, uint32_t n)
{
	double t0 = vfm_now();
	struct timespec nap = {0, 5000};

	for (unsigned i = 0; (int32_t)(atomic_load_explicit(&k->flags->arrived, memory_order_acquire) - n) < 0; i++) {
		if (atomic_load_explicit(&k->abandon, memory_order_relaxed))
			return false;
		if (i % 64 == 63 && vfm_now() - t0 > 20e-6) {
			nanosleep(&nap, NULL);
			if (nap.tv_nsec < 100000)
				nap.tv_nsec += nap.tv_nsec / 4;
		}
	}
	return true;
}

static void *run_calls(void *arg)
{
	struct vfm_cuda_calls *k = arg;
	struct vfm_err err = {0};
	struct late_call p;

	if (sys_of(k->s)->thread_start)
		sys_of(k->s)->thread_start();
	pthread_mutex_lock(&k->lock);
	for (;;) {
		uint32_t n = (uint32_t)(k->done + 1);
		int rc;

		while (k->done == k->put && !k->stop)
			pthread_cond_wait(&k->more, &k->lock);
		if (k->done == k->put)
			break;
		p = k->ring[k->done % k->cap];
		pthread_mutex_unlock(&k->lock);
		if (!arrive(k, n))
			return NULL;
		rc = stream_failure(k->s, &err);
		if (rc == 0)
			rc = p.fn(p.arg, &err);
		if (rc < 0)
			set_failure(k->s, rc, &err);
		/* before the number is written: the host may free the stream afterwards */
		pthread_mutex_lock(&k->lock);
		k->done++;
		atomic_store_explicit(&k->flags->passed, n, memory_order_release);
	}
	pthread_mutex_unlock(&k->lock);
	return NULL;
}

static int calls_new(struct vfm_cuda_stream *s, struct vfm_err *err)
{
	struct vfm_cuda_calls *k = vfm_calloc(1, sizeof(*k));
	void *flags = NULL;
	int rc;

	k->s = s;
	k->cap = 16;
	rc = vfm_cuda_check(cudaHostAlloc(&flags, sizeof(*k->flags), cudaHostAllocPortable | cudaHostAllocMapped),
		"pinned memory", err);
	if (rc < 0) {
		free(k);
		return rc;
	}
	memset(flags, 0, sizeof(*k->flags));
	k->flags = flags;
	k->ring = vfm_calloc(k->cap, sizeof(*k->ring));
	pthread_mutex_init(&k->lock, NULL);
	pthread_cond_init(&k->more, NULL);
	if (pthread_create(&k->thread, NULL, run_calls, k) == 0) {
		s->calls = k;
		return 0;
	}
	pthread_mutex_destroy(&k->lock);
	pthread_cond_destroy(&k->more);
	cudaFreeHost(flags);
	free(k->ring);
	free(k);
	return vfm_fail(err, VFM_EENV, "cannot start the thread of an asynchronous stream");
}

/* Under the lock. */
static void grow_calls(struct vfm_cuda_calls *k)
{
	uint64_t cap = 2 * k->cap;
	struct late_call *ring;

	if (k->put - k->done < k->cap)
		return;
	ring = vfm_calloc(cap, sizeof(*ring));
	for (uint64_t i = k->done; i < k->put; i++)
		ring[i % cap] = k->ring[i % k->cap];
	free(k->ring);
	k->ring = ring;
	k->cap = cap;
}

/* Enqueues on the stream: a write of the call number, and a wait for the thread. */
static int stop_and_go(struct vfm_cuda_calls *k, uint32_t n, struct vfm_err *err)
{
	struct vfm_cuda *c = vfm_cuda_of(&k->s->s);
	const struct vfm_cuda_driver *v = &c->sys->drv;
	CUstream st = (CUstream)k->s->st;

	/* The write has a memory fence: earlier copies to the host are visible. */
	TRY(vfm_cuda_check_drv(c,
		v->write_value(st, (CUdeviceptr)(uintptr_t)&k->flags->arrived, n, CU_STREAM_WRITE_VALUE_DEFAULT),
		"a call on the host", err));
	return vfm_cuda_check_drv(c,
		v->wait_value(st, (CUdeviceptr)(uintptr_t)&k->flags->passed, n, CU_STREAM_WAIT_VALUE_GEQ),
		"a call on the host", err);
}

int vfm_cuda_host_call(struct vfm_stream *stream, int (*fn)(void *arg, struct vfm_err *err), const void *arg,
	size_t bytes, struct vfm_err *err)
{
	struct vfm_cuda_stream *s = vfm_cuda_stream_of(stream);
	_Alignas(16) char copy[ARG_MAX_BYTES];
	struct vfm_cuda_calls *k;
	struct late_call *p;
	uint32_t n;
	int rc;

	if (bytes > ARG_MAX_BYTES)
		return vfm_fail(err, VFM_EUSAGE, "internal: a stream call with an argument of %zu bytes", bytes);
	if (!s->async) {
		if (bytes)
			memcpy(copy, arg, bytes);
		TRY(vfm_cuda_stream_sync(stream, err));
		return fn(copy, err);
	}
	TRY(vfm_cuda_refuse(vfm_cuda_of(stream), s->st, "a call on the host", false, err));
	if (!s->calls)
		TRY(calls_new(s, err));
	k = s->calls;
	/* The thread runs a call only when the stream has reached it, so a call that cannot be enqueued must be
	 * removed. */
	pthread_mutex_lock(&k->lock);
	grow_calls(k);
	n = (uint32_t)(k->put + 1);
	p = &k->ring[k->put % k->cap];
	p->fn = fn;
	if (bytes)
		memcpy(p->arg, arg, bytes);
	pthread_mutex_unlock(&k->lock);
	rc = stop_and_go(k, n, err);
	if (rc < 0) {
		set_failure(s, rc, err); /* a part may be enqueued: refuse further work */
		return rc;
	}
	pthread_mutex_lock(&k->lock);
	k->put++;
	pthread_cond_signal(&k->more);
	pthread_mutex_unlock(&k->lock);
	return 0;
}

/* ---- events ---- */

static struct vfm_event *event_new(struct vfm_dev *d, unsigned flags, struct vfm_err *err)
{
	struct vfm_cuda *c = (struct vfm_cuda *)d;
	struct vfm_event *e;

	if (vfm_cuda_use(c, err) < 0)
		return NULL;
	e = vfm_calloc(1, sizeof(*e));
	e->c = c;
	if (vfm_cuda_check(cudaEventCreateWithFlags(&e->ev, flags), "a new event", err) == 0)
		return e;
	free(e);
	return NULL;
}

struct vfm_event *vfm_cuda_event_new(struct vfm_dev *d, struct vfm_err *err)
{
	return event_new(d, cudaEventDisableTiming, err);
}

struct vfm_event *vfm_cuda_event_new_timed(struct vfm_dev *d, struct vfm_err *err)
{
	return event_new(d, cudaEventDefault, err);
}

void vfm_cuda_event_free(struct vfm_event *e)
{
	if (!e)
		return;
	cudaEventDestroy(e->ev);
	free(e);
}

int vfm_cuda_event_record(struct vfm_event *e, struct vfm_stream *stream, struct vfm_err *err)
{
	struct vfm_cuda_stream *s = vfm_cuda_stream_of(stream);

	TRY(vfm_cuda_check(cudaEventRecord(e->ev, s->st), "an event", err));
	e->graph = vfm_cuda_captured(e->c, s->st) ? e->c->sys->graph_number : 0;
	e->recorded = true;
	e->async = s->async;
	e->slot = s->slot;
	e->generation = e->c->sys->generation[s->slot];
	return 0;
}

/* Returns the streams on whose calls the event depends; 0 if its stream is gone. */
static uint64_t stream_behind(const struct vfm_event *e)
{
	struct vfm_cuda_sys *y = e->c->sys;
	uint64_t mask = 0;

	pthread_mutex_lock(&y->lock);
	if (e->recorded && y->stream[e->slot] && y->generation[e->slot] == e->generation)
		mask = y->stream[e->slot]->deps | (uint64_t)1 << e->slot;
	pthread_mutex_unlock(&y->lock);
	return mask;
}

/* An event recorded in a capture is invalid outside of it; within a capture only events that have passed are allowed.
 * Returns 1: passed; 0: wait for it. */
static int across(struct vfm_event *e, struct vfm_cuda_stream *s, struct vfm_err *err)
{
	struct vfm_cuda_sys *y = e->c->sys;

	if (e->graph && !(y->capturing && e->graph == y->graph_number))
		return vfm_fail(err, VFM_EUSAGE, "internal: waiting for an event of a captured graph outside of it");
	if (!e->recorded || e->graph || !vfm_cuda_captured(e->c, s->st))
		return 0;
	if (vfm_cuda_event_passed(e))
		return 1;
	return vfm_cuda_refuse(e->c, s->st, "waiting for what is outside", false, err);
}

int vfm_cuda_event_wait(struct vfm_event *e, struct vfm_stream *stream, struct vfm_err *err)
{
	struct vfm_cuda_stream *s = vfm_cuda_stream_of(stream);
	struct vfm_cuda_sys *y = e->c->sys;
	uint64_t mask = stream_behind(e);
	int rc = across(e, s, err);

	if (rc != 0)
		return rc < 0 ? rc : failure_of(y, mask, err);
	if (!e->recorded || mask == 0)
		return e->recorded ? vfm_cuda_check(cudaStreamWaitEvent(s->st, e->ev, 0), "waiting for an event", err)
				   : 0;
	if (e->slot == s->slot)
		return stream_failure(s, err);
	TRY(vfm_cuda_check(cudaStreamWaitEvent(s->st, e->ev, 0), "waiting for an event", err));
	pthread_mutex_lock(&y->lock);
	s->deps |= mask & ~((uint64_t)1 << s->slot);
	pthread_mutex_unlock(&y->lock);
	return failure_of(y, mask, err);
}

int vfm_cuda_event_sync(struct vfm_event *e, struct vfm_err *err)
{
	double t0 = vfm_now();
	cudaError_t code;

	if (!e->recorded)
		return 0;
	if (e->graph)
		return vfm_fail(err, VFM_EENV,
			"waiting for an event: not possible within a graph, nor for an event of a graph");
	code = cudaEventSynchronize(e->ev);
	*(e->async ? &e->c->dev.wait_s : &e->c->dev.behind_s) += vfm_now() - t0;
	TRY(vfm_cuda_check(code, "waiting for an event", err));
	TRY(vfm_dev_check(&e->c->dev, err));
	TRY(vfm_faults_check(e->c->sys->faults, err));
	return failure_of(e->c->sys, stream_behind(e), err);
}

bool vfm_cuda_event_passed(struct vfm_event *e)
{
	cudaError_t code;

	if (!e->recorded || e->graph || vfm_cuda_use(e->c, NULL) < 0)
		return !e->graph;
	code = cudaEventQuery(e->ev);
	if (code == cudaErrorNotReady) {
		cudaGetLastError(); /* not an error: clear it */
		return false;
	}
	return true;
}

int vfm_cuda_event_elapsed(struct vfm_event *a, struct vfm_event *b, double *s, struct vfm_err *err)
{
	float ms = 0;

	TRY(vfm_cuda_check(cudaEventElapsedTime(&ms, a->ev, b->ev), "the time between two events", err));
	*s = (double)ms / 1e3;
	return 0;
}
