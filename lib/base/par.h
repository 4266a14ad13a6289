/* par.h - threads.
 *
 * Compute: vfm_par_for, a parallel loop over the compute threads: a team of our own, whose
 * threads wait without taking cores from those that work (OpenMP's spin; beside other
 * processes a training step took four times as long with it).  Which index runs on which thread is
 * not fixed, so results must not depend on it.
 * Background work (reading ahead, writing checkpoints, curation): vfm_pool.
 */
#ifndef VFM_BASE_PAR_H
#define VFM_BASE_PAR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

int vfm_par_threads(void); /* default: OMP_NUM_THREADS, else SLURM_CPUS_PER_TASK, else the CPUs of the affinity mask */
void vfm_par_set_threads(int n); /* before the first loop */

/* Loops run on OpenMP's team instead.  For where oneDNN computes, which brings that team: two teams on
 * one set of cores would fight.  Before the first loop. */
void vfm_par_use_openmp(bool on);

/* Calls fn(i0, i1, ctx) on disjoint ranges that cover [0, n), each of at most `grain`
 * indices (the last may be shorter).  Nested calls run serially, and so do calls from the
 * threads of a vfm_pool, which would otherwise bring a second team each.  A process that
 * forks must do so before its first loop: the team does not survive a fork. */
void vfm_par_for(int64_t n, int64_t grain, void (*fn)(int64_t i0, int64_t i1, void *ctx), void *ctx);

/* Loops of the calling thread run serially from here on: for threads beside the one that computes. */
void vfm_par_serial(void);

/* A bounded queue with worker threads.  push blocks while the queue is full; work must not
 * push to its own pool.  Several threads may push. */
struct vfm_pool;
struct vfm_pool *vfm_pool_new(int n_threads, int queue_len);
void vfm_pool_push(struct vfm_pool *p, void (*fn)(void *arg), void *arg);
void vfm_pool_free(struct vfm_pool *p); /* blocks until all pushed work is done; NULL is fine */

#endif
