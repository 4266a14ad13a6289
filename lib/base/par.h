/* par.h - threads.
 *
 * vfm_par_for runs a parallel loop on a team of compute threads, which sleep when idle.  The assignment of indices to
 * threads is not fixed, and results must not depend on it.  vfm_pool runs background work: reading ahead, writing
 * checkpoints, curation.
 */
#ifndef VFM_BASE_PAR_H
#define VFM_BASE_PAR_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Returns the number of compute threads: by default OMP_NUM_THREADS, else SLURM_CPUS_PER_TASK, else the CPUs of the
 * affinity mask. */
int vfm_par_threads(void);
void vfm_par_set_threads(int n); /* to be called before the first loop */

/* Calls fn(i0, i1, ctx) on disjoint ranges of at most `grain` indices that cover [0, n).  Nested calls, and calls from
 * threads of a vfm_pool, run serially.  The team does not survive a fork, so a process must fork before its first
 * loop. */
void vfm_par_for(int64_t n, int64_t grain, void (*fn)(int64_t i0, int64_t i1, void *ctx), void *ctx);

/* A sequence of items.  The calls read them in order, work on them on the compute threads, and take them in the same
 * order.  Each thread holds one item. */
struct vfm_ordered {
	/* Fills an item and returns 1.  Returns 0 at the end, or a negative code, which ends the sequence after the
	 * items before. */
	int (*read)(void *ctx, void *item, struct vfm_err *err);
	/* Called from several threads at once. */
	void (*work)(void *ctx, void *item);
	/* A negative code ends the sequence at once. */
	int (*take)(void *ctx, void *item, struct vfm_err *err);
	void *ctx;
	void *items; /* [vfm_par_threads()] of item_size bytes; owned by the caller */
	size_t item_size;
};
/* Returns 0 or the code of read or take.  Only one thread at a time calls read, and only one calls take. */
int vfm_par_ordered(const struct vfm_ordered *o, struct vfm_err *err);

/* Starts a thread with all signals blocked, so the threads of the caller handle them.  Returns 0 or an errno value. */
int vfm_thread_start(pthread_t *thread, void *(*fn)(void *arg), void *arg);

/* Tells the core that the thread polls. */
static inline void vfm_pause(void)
{
#ifdef __x86_64__
	__builtin_ia32_pause();
#endif
}

/* Makes the loops of the calling thread run serially from now on. */
void vfm_par_serial(void);

/* A bounded queue with worker threads.  push blocks while the queue is full; several threads may push.  A task must not
 * push to its own pool. */
struct vfm_pool;
struct vfm_pool *vfm_pool_new(int n_threads, int queue_len);
void vfm_pool_push(struct vfm_pool *p, void (*fn)(void *arg), void *arg);
void vfm_pool_free(struct vfm_pool *p); /* blocks until all tasks are done; no-op for NULL */

#endif
