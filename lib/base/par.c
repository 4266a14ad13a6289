#include "base/par.h"

#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { MAX_THREADS = 4096 };

static int n_compute; /* 0: not yet known */
static pthread_mutex_t n_lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local bool in_worker;

/* The leading number of an environment variable ("4", "4,2", "4(x2)"), else 0. */
static int env_count(const char *name)
{
	const char *s = getenv(name);
	long v = s ? strtol(s, NULL, 10) : 0;

	return v > 0 && v <= MAX_THREADS ? (int)v : 0;
}

static int default_threads(void)
{
	cpu_set_t set;
	int n = env_count("OMP_NUM_THREADS");

	if (!n)
		n = env_count("SLURM_CPUS_PER_TASK");
	if (!n && sched_getaffinity(0, sizeof(set), &set) == 0)
		n = CPU_COUNT(&set);
	return n > 0 ? n : 1;
}

static void set_locked(int n)
{
	__atomic_store_n(&n_compute, n, __ATOMIC_RELEASE);
	omp_set_num_threads(n); /* so that oneDNN, called from this thread, uses as many */
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

void vfm_par_for(int64_t n, int64_t grain, void (*fn)(int64_t i0, int64_t i1, void *ctx), void *ctx)
{
	int threads;
	int64_t chunks;

	if (n <= 0)
		return;
	threads = in_worker || omp_in_parallel() ? 1 : vfm_par_threads();
	if (grain < 1)
		grain = 1;
	chunks = (n - 1) / grain + 1;
	if (chunks < threads)
		threads = (int)chunks;
	if (threads == 1) {
		for (int64_t c = 0; c < chunks; c++)
			fn(c * grain, c == chunks - 1 ? n : (c + 1) * grain, ctx);
		return;
	}
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
	for (int64_t c = 0; c < chunks; c++)
		fn(c * grain, c == chunks - 1 ? n : (c + 1) * grain, ctx);
}

/* ---- pool -------------------------------------------------------------------- */

struct job {
	void (*fn)(void *arg);
	void *arg;
};

struct vfm_pool {
	pthread_mutex_t lock;
	pthread_cond_t not_empty, not_full, idle;
	struct job *queue; /* ring of cap; first waits at head */
	int cap, head, waiting, running;
	bool stop;
	int n_threads;
	pthread_t *threads;
};

static void *work(void *arg)
{
	struct vfm_pool *p = arg;

	in_worker = true;
	pthread_mutex_lock(&p->lock);
	for (;;) {
		struct job j;

		while (!p->waiting && !p->stop)
			pthread_cond_wait(&p->not_empty, &p->lock);
		if (!p->waiting)
			break;
		j = p->queue[p->head];
		p->head = (p->head + 1) % p->cap;
		p->waiting--;
		p->running++;
		pthread_cond_signal(&p->not_full);
		pthread_mutex_unlock(&p->lock);
		j.fn(j.arg);
		pthread_mutex_lock(&p->lock);
		if (--p->running == 0 && !p->waiting)
			pthread_cond_broadcast(&p->idle);
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
	pthread_cond_init(&p->idle, NULL);
	p->cap = queue_len > 0 ? queue_len : 1;
	p->queue = vfm_calloc((size_t)p->cap, sizeof(*p->queue));
	p->threads = vfm_calloc((size_t)(n_threads > 0 ? n_threads : 1), sizeof(*p->threads));
	/* Where a thread cannot be had (a limit on processes), fewer do the work; with none, push does it. */
	for (int i = 0; i < (n_threads > 0 ? n_threads : 1); i++)
		if (pthread_create(&p->threads[p->n_threads], NULL, work, p) == 0)
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
	p->queue[(p->head + p->waiting) % p->cap] = (struct job){fn, arg};
	p->waiting++;
	pthread_cond_signal(&p->not_empty);
	pthread_mutex_unlock(&p->lock);
}

void vfm_pool_wait(struct vfm_pool *p)
{
	pthread_mutex_lock(&p->lock);
	while (p->waiting || p->running)
		pthread_cond_wait(&p->idle, &p->lock);
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
	pthread_cond_destroy(&p->idle);
	free(p->queue);
	free(p->threads);
	free(p);
}
