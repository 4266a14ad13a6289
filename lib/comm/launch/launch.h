/* launch.h - the identity of this process among the ranks of a job, and their first exchange of data.
 *
 * A job starts as
 *   - one plain rank
 *   - N forks of this process on this host (`-n N`)
 *   - the tasks of Slurm's PMI2 (libpmi2, opened at run time)
 *
 * All other communication uses comm.h.  A process has one launch.  One thread calls its functions, except
 * vfm_launch_fetch. */
#ifndef VFM_COMM_LAUNCH_LAUNCH_H
#define VFM_COMM_LAUNCH_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

enum { VFM_PUBLISH_MAX = 480 }; /* bytes; hex-encoded they fit a PMI2 value */

struct vfm_launch_table;

struct vfm_launch {
	const struct vfm_launch_table *t;
	int rank, size;             /* in the job */
	int local_rank, local_size; /* on this node */
	int node, nodes;            /* number of this node; total number of nodes */
	int *node_of;               /* [size] node of each rank */
	char host[64];              /* for messages */
	char job[64]; /* unique name of the job, the same on all ranks: "12345.0", "local-4711-642e0f1b" */
	int status;   /* in the parent of forks: its exit status */
	/* in the parent of forks: names the first rank that was killed, "rank 2 was killed by SIGKILL", or is empty */
	char why[160];
	void *priv;
};

/* Determines which rank this process is, or forks n local ranks (n 0: no forks).  Call it before the first thread and
 * the first output, with the handlers of SIGTERM, SIGINT and SIGUSR1 installed.  Returns
 *
 * - 0 in a rank: the only one, one of n forks, or a task of a Slurm step.  The rank's compute threads (base/par.h) are
 *   its share of the processors.  Forked ranks are bound to their processors, unless VFM_BIND=none or there are fewer
 *   processors than ranks.
 * - 1 in the parent of the forks, after all of them have ended.  It exits with l->status, the worst of the ranks: 75 if
 *   they stopped early, 3 if one was killed.  The parent forwards signals to the ranks.  If a rank dies, the others
 *   report it, and the parent kills them after some seconds.  No rank outlives the parent.
 *
 * VFM_EUSAGE: n within a Slurm step of several tasks, or several tasks without PMI2 (srun --mpi=none), where each task
 * would act as rank 0.  VFM_EENV: libpmi2 is missing, PMI2 or fork failed, or a rank did not arrive in time;
 * vfm_launch_abort then ends the waiting ranks. */
int vfm_launch_init(struct vfm_launch *l, int n, struct vfm_err *err);

/* Publishes n bytes of this rank; n <= VFM_PUBLISH_MAX is the same on all ranks.  Collective: returns once all ranks
 * have published.  Fails if a forked rank died, or if a rank does not arrive within VFM_COMM_TIMEOUT_S (600).  The
 * bytes may be secret: they pass through memory shared by forked ranks, or through PMI2's key-value space, which is as
 * private as the launcher makes it. */
int vfm_launch_publish(struct vfm_launch *l, const void *mine, size_t n, struct vfm_err *err);
/* Reads the n bytes that a rank published last.  Local, from any thread, until this rank publishes again or ends the
 * launch.  Costs a copy, or with PMI2 a request to the daemon of this node, which has the values of all ranks. */
int vfm_launch_fetch(struct vfm_launch *l, int rank, void *out, size_t n, struct vfm_err *err);

double vfm_launch_timeout(void); /* Returns the longest wait in seconds: VFM_COMM_TIMEOUT_S, or else 600. */

/* Ends the launch of this rank normally; also after an error that all ranks have seen. */
void vfm_launch_end(struct vfm_launch *l);
/* Ends the whole job, for a rank that failed while others may wait for it: calls PMI2_Abort, or the parent kills the
 * forks.  Returns; the caller then exits with its status at once. */
void vfm_launch_abort(struct vfm_launch *l, int status, const char *why);

#endif
