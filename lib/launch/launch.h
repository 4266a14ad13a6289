/* launch.h - who this process is among those that were started together, and how they first
 * find each other.
 *
 * Fillings: a plain start (one rank), `-n N` (N forks of this process on this host), Slurm's PMI2
 * (libpmi2, opened at run time).  All that they are used for is identity, an exchange of a few bytes, and the
 * id of the first communicator of a device's library; everything else goes over comm.h.
 *
 * One launch a process; its functions are called by one thread.
 */
#ifndef VFM_LAUNCH_LAUNCH_H
#define VFM_LAUNCH_LAUNCH_H

#include <stddef.h>

#include "base/err.h"

enum { VFM_EXCHANGE_MAX = 480 }; /* bytes: hex-encoded, they fit a PMI2 value */

struct vfm_launch_table;

struct vfm_launch {
	const struct vfm_launch_table *t;
	int rank, size;             /* of the job */
	int local_rank, local_size; /* on this node */
	int node, nodes;            /* this node's number in 0 .. nodes-1 */
	int *node_of;               /* [size] */
	char host[64];              /* for messages */
	char job[64];               /* the same on all ranks, and no other job's: "12345.0", "local-4711-642e0f1b" */
	int status;                 /* of the parent of forks: see below */
	/* likewise: the first rank that was killed, "rank 2 was killed by SIGKILL", for the caller to say; else empty
	 */
	char why[160];
	void *priv;
};

/* n: local ranks to fork (0: not asked for).  Must come before the first thread and the first output.
 *   0  this process is a rank (of 1, of n forks, of a Slurm step)
 *   1  this process forked the ranks and they have all ended; l->status is what to exit with: their worst (75 if they
 *      stopped early, 3 for one that was killed).  Signals that it got meanwhile were handed on; when a rank
 *      died, the others got some seconds to notice and say so, then they were killed.  No rank outlives it.
 * A rank's compute threads (base/par.h) are set here: its share of the processors; the ranks of forks are bound
 * to theirs (unless VFM_BIND=none, or there are fewer processors).  Handlers of SIGTERM, SIGINT and SIGUSR1 should
 * stand before.
 * VFM_EUSAGE: n within a Slurm step of several tasks; several tasks without PMI2 (srun --mpi=none: each
 * would take itself for rank 0). VFM_EENV: no libpmi2, PMI2 failed, fork failed, a
 * rank did not come in time: vfm_launch_abort, when that was said, ends those who wait. */
int vfm_launch_init(struct vfm_launch *l, int n, struct vfm_err *err);

/* Collective.  all [size * n] = every rank's mine [n], n <= VFM_EXCHANGE_MAX.  Fails when a rank died
 * or does not come in time (VFM_COMM_TIMEOUT_S, 600). */
int vfm_launch_exchange(struct vfm_launch *l, const void *mine, size_t n, void *all, struct vfm_err *err);
/* Collective.  x [n] of rank 0 on all ranks, n <= VFM_EXCHANGE_MAX: one value, where the exchange has one of each rank.
 * Fails as that does. */
int vfm_launch_share(struct vfm_launch *l, void *x, size_t n, struct vfm_err *err);

/* Before a rank ends in order (also with an error that all ranks have seen). */
void vfm_launch_end(struct vfm_launch *l);
/* This rank cannot go on and the others may be waiting for it: ends the whole job (PMI2_Abort, or the
 * parent of the forks kills them).  Returns; the caller exits with its status at once. */
void vfm_launch_abort(struct vfm_launch *l, int status, const char *why);

#endif
