/* par.c - a team of worker threads woken by a futex, loops with ordered output, and pools with a queue. */
#include "base/par.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/mem.h"

enum { MAX_THREADS = 4096 };

static int n_compute; /* 0: not determined yet */
static pthread_mutex_t n_lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local bool in_worker;

/* Returns the leading number of an environment variable ("4", "4,2", "4(x2)"), else 0. */
static int read_env_number(const char *name)
{
	const char *s = getenv(name);
	long v = s ? strtol(s, NULL, 10) : 0;

	return v > 0 && v <= MAX_THREADS ? (int)v : 0;
}

static int default_threads(void)
{
	cpu_set_t set;
	int n = read_env_number("OMP_NUM_THREADS");

	if (!n)
		n = read_env_number("SLURM_CPUS_PER_TASK");
	if (!n && sched_getaffinity(0, sizeof(set), &set) == 0)
		n = CPU_COUNT(&set);
	return n > 0 ? n : 1;
}

static void set_locked(int n)
{
	__atomic_store_n(&n_compute, n, __ATOMIC_RELEASE);
}

int vfm_par_threads(void)
{
	int n = __atomic_load_n(&n_compute, __ATOMIC_ACQUIRE);

	if (n)
		return n;
	pthread_mutex_lock(&n_lock);
	if (!n_compute)
		set_locked(default_threads());
	n = n_compute;
	pthread_mutex_unlock(&n_lock);
	return n;
}

void vfm_par_set_threads(int n)
{
	pthread_mutex_lock(&n_lock);
	set_locked(n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : n);
	pthread_mutex_unlock(&n_lock);
}

int vfm_thread_start(pthread_t *thread, void *(*fn)(void *arg), void *arg)
{
	sigset_t all, old;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(thread, NULL, fn, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return rc;
}

/* ---- the team ------------------------------------------------------------------ */

/* One loop runs at a time.  Its owner publishes it, works on it like the workers, closes it and waits for the workers
 * that have entered it.  It does not wait for workers that were not scheduled.  An idle worker polls for the next loop
 * for some microseconds and then sleeps, so that it leaves its core to working threads. */
enum { SPINS = 4000 };

static struct {
	pthread_mutex_t lock;   /* held by the owner of the loop */
	int n_workers, allowed; /* workers 0 .. allowed-1 take part */
	void (*fn)(int64_t, int64_t, void *);
	void *ctx;
	int64_t n, grain, chunks;
	_Atomic int64_t next;   /* chunk */
	_Atomic int open;       /* workers may enter */
	_Atomic int inside;     /* workers in the loop; the owner's futex */
	_Atomic unsigned epoch; /* published loops; the workers' futex */
	_Atomic int sleepers;
} team = {.lock = PTHREAD_MUTEX_INITIALIZER};

void vfm_par_serial(void)
{
	in_worker = true;
}

static void team_futex_wait(void *word, unsigned value)
{
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void team_futex_wake(void *word, int n)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static void run_chunks(void)
{
	int64_t c;

	while ((c = team.next++) < team.chunks)
		team.fn(c * team.grain, c == team.chunks - 1 ? team.n : (c + 1) * team.grain, team.ctx);
}

static void *team_worker(void *arg)
{
	int me = (int)(intptr_t)arg;
	unsigned seen = 0;

	in_worker = true;
	for (;;) {
		for (int i = 0; i < SPINS && team.epoch == seen; i++)
			vfm_pause();
		while (team.epoch == seen) {
			team.sleepers++;
			if (team.epoch == seen)
				team_futex_wait(&team.epoch, seen);
			team.sleepers--;
		}
		seen = team.epoch;
		team.inside++;
		if (team.open && me < team.allowed)
			run_chunks();
		if (--team.inside == 0 && !team.open)
			team_futex_wake(&team.inside, 1);
	}
	return NULL;
}

/* Adds workers; the caller holds team.lock.  If a thread cannot be created, the team stays smaller. */
static void team_grow(int workers)
{
	while (team.n_workers < workers) {
		pthread_attr_t attr;
		pthread_t id;
		int rc;

		pthread_attr_init(&attr);
		pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
		rc = pthread_create(&id, &attr, team_worker, (void *)(intptr_t)team.n_workers);
		pthread_attr_destroy(&attr);
		if (rc != 0)
			return;
		team.n_workers++;
	}
}

static void team_run(int64_t n, int64_t grain, int64_t chunks, void (*fn)(int64_t, int64_t, void *), void *ctx)
{
	int inside;

	team.fn = fn;
	team.ctx = ctx;
	team.n = n;
	team.grain = grain;
	team.chunks = chunks;
	team.next = 0;
	team.open = 1;
	team.epoch++;
	if (team.sleepers > 0)
		team_futex_wake(&team.epoch, team.sleepers);
	in_worker = true; /* nested loops run serially */
	run_chunks();
	in_worker = false;
	team.open = 0;
	for (int i = 0; i < SPINS && team.inside; i++)
		vfm_pause();
	while ((inside = team.inside) != 0)
		team_futex_wait(&team.inside, (unsigned)inside);
}

void vfm_par_for(int64_t n, int64_t grain, void (*fn)(int64_t i0, int64_t i1, void *ctx), void *ctx)
{
	int threads;
	int64_t chunks;

	if (n <= 0)
		return;
	threads = in_worker ? 1 : vfm_par_threads();
	if (grain < 1)
		grain = 1;
	chunks = (n - 1) / grain + 1;
	if (chunks < threads)
		threads = (int)chunks;
	/* If two threads start loops at once, one of them runs serially. */
	if (threads > 1 && pthread_mutex_trylock(&team.lock) == 0) {
		team_grow(threads - 1);
		team.allowed = threads - 1;
		team_run(n, grain, chunks, fn, ctx);
		pthread_mutex_unlock(&team.lock);
		return;
	}
	for (int64_t c = 0; c < chunks; c++)
		fn(c * grain, c == chunks - 1 ? n : (c + 1) * grain, ctx);
}

/* ---- ordered items ----------------------------------------------------------- */

struct ordered {
	const struct vfm_ordered *o;
	pthread_mutex_t reading, lock; /* lock: of what follows */
	pthread_cond_t next_changed;
	int64_t n_read, next; /* next: the number of the item that is taken next */
	bool ended, stopped;  /* no more is to be read; or taken */
	int rc;
	struct vfm_err err;
};

static void end_ordered(struct ordered *s, int rc, const struct vfm_err *err)
{
	pthread_mutex_lock(&s->lock);
	s->ended = true;
	if (rc < 0 && s->rc == 0) {
		s->rc = rc;
		s->err = *err;
	}
	pthread_mutex_unlock(&s->lock);
}

static bool read_ordered(struct ordered *s, void *item, int64_t *number)
{
	struct vfm_err err = {0};
	bool ended;
	int rc = 0;

	pthread_mutex_lock(&s->reading);
	pthread_mutex_lock(&s->lock);
	ended = s->ended;
	pthread_mutex_unlock(&s->lock);
	if (!ended)
		rc = s->o->read(s->o->ctx, item, &err);
	if (rc == 1)
		*number = s->n_read++;
	else
		end_ordered(s, rc, &err);
	pthread_mutex_unlock(&s->reading);
	return rc == 1;
}

/* Waits until an item is next, and takes it. */
static bool take_ordered(struct ordered *s, void *item, int64_t number)
{
	struct vfm_err err = {0};
	bool stopped;
	int rc = 0;

	pthread_mutex_lock(&s->lock);
	while (s->next != number)
		pthread_cond_wait(&s->next_changed, &s->lock);
	stopped = s->stopped;
	pthread_mutex_unlock(&s->lock);
	if (!stopped)
		rc = s->o->take(s->o->ctx, item, &err);
	if (rc < 0)
		end_ordered(s, rc, &err);
	pthread_mutex_lock(&s->lock);
	s->stopped |= rc < 0;
	stopped = s->stopped;
	s->next++;
	pthread_cond_broadcast(&s->next_changed);
	pthread_mutex_unlock(&s->lock);
	return !stopped;
}

static void run_ordered(int64_t i0, int64_t i1, void *ctx)
{
	struct ordered *s = ctx;
	int64_t number = 0;

	for (int64_t i = i0; i < i1; i++) {
		void *item = (char *)s->o->items + (size_t)i * s->o->item_size;

		while (read_ordered(s, item, &number)) {
			s->o->work(s->o->ctx, item);
			if (!take_ordered(s, item, number))
				break;
		}
	}
}

int vfm_par_ordered(const struct vfm_ordered *o, struct vfm_err *err)
{
	struct ordered s = {.o = o,
		.reading = PTHREAD_MUTEX_INITIALIZER,
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.next_changed = PTHREAD_COND_INITIALIZER};

	vfm_par_for(vfm_par_threads(), 1, run_ordered, &s);
	if (s.rc < 0)
		*err = s.err;
	return s.rc;
}

/* ---- pool -------------------------------------------------------------------- */

struct pool_task {
	void (*fn)(void *arg);
	void *arg;
};

struct vfm_pool {
	pthread_mutex_t lock;
	pthread_cond_t not_empty, not_full;
	struct pool_task *queue; /* a ring of cap tasks; the first is at head */
	int cap, head, waiting;
	bool stop;
	int n_threads;
	pthread_t *threads;
};

static void *run_pool_worker(void *arg)
{
	struct vfm_pool *p = arg;

	in_worker = true;
	pthread_mutex_lock(&p->lock);
	for (;;) {
		struct pool_task j;

		while (!p->waiting && !p->stop)
			pthread_cond_wait(&p->not_empty, &p->lock);
		if (!p->waiting)
			break;
		j = p->queue[p->head];
		p->head = (p->head + 1) % p->cap;
		p->waiting--;
		pthread_cond_signal(&p->not_full);
		pthread_mutex_unlock(&p->lock);
		j.fn(j.arg);
		pthread_mutex_lock(&p->lock);
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

struct vfm_pool *vfm_pool_new(int n_threads, int queue_len)
{
	struct vfm_pool *p = vfm_calloc(1, sizeof(*p));

	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->not_empty, NULL);
	pthread_cond_init(&p->not_full, NULL);
	p->cap = queue_len > 0 ? queue_len : 1;
	p->queue = vfm_calloc((size_t)p->cap, sizeof(*p->queue));
	p->threads = vfm_calloc((size_t)(n_threads > 0 ? n_threads : 1), sizeof(*p->threads));
	/* If a thread cannot be created (a limit on processes), fewer run the tasks; without any, push runs them. */
	for (int i = 0; i < (n_threads > 0 ? n_threads : 1); i++)
		if (pthread_create(&p->threads[p->n_threads], NULL, run_pool_worker, p) == 0)
			p->n_threads++;
	return p;
}

void vfm_pool_push(struct vfm_pool *p, void (*fn)(void *arg), void *arg)
{
	if (!p->n_threads) {
		fn(arg);
		return;
	}
	pthread_mutex_lock(&p->lock);
	while (p->waiting == p->cap)
		pthread_cond_wait(&p->not_full, &p->lock);
	p->queue[(p->head + p->waiting) % p->cap] = (struct pool_task){fn, arg};
	p->waiting++;
	pthread_cond_signal(&p->not_empty);
	pthread_mutex_unlock(&p->lock);
}

void vfm_pool_free(struct vfm_pool *p)
{
	if (!p)
		return;
	pthread_mutex_lock(&p->lock);
	p->stop = true;
	pthread_cond_broadcast(&p->not_empty);
	pthread_mutex_unlock(&p->lock);
	for (int i = 0; i < p->n_threads; i++)
		pthread_join(p->threads[i], NULL);
	pthread_mutex_destroy(&p->lock);
	pthread_cond_destroy(&p->not_empty);
	pthread_cond_destroy(&p->not_full);
	free(p->queue);
	free(p->threads);
	free(p);
}
