/* comm_host.h - the host filling of comm.h: shared memory within a node, TCP between nodes.
 *
 * Operands are memory that the host can read (a CPU device's, or staging buffers).  A call on a stream that
 * runs its work at once blocks; on an asynchronous one it runs in that stream's thread (dev.h, host_call).
 * s NULL: blocks.
 *
 * A monitor thread a rank keeps a connection to rank 0's, sends what the rank is doing once a second, and hears who
 * died, hangs or is stopped.  The last collectives of each rank are in a ring (the flight recorder), which is
 * written to `recorder_dir`/flight-RANK.jsonl when the job fails.
 */
#ifndef VFM_COMM_COMM_HOST_H
#define VFM_COMM_COMM_HOST_H

#include "comm/comm.h"
#include "launch/launch.h"

struct vfm_host_comm_opts {
	double timeout_s;         /* a wait longer than this is a failure; 0: VFM_COMM_TIMEOUT_S or 600 */
	const char *recorder_dir; /* NULL: no file */
};

/* Collective over the launch; the world's group.  The launch must outlive it.  One rank: vfm_comm_self().
 * Environment: VFM_COMM_TIMEOUT_S, VFM_COMM_IFNAME, VFM_COMM_DIRECT (vfm-slurm(7)).
 *
 * vfm_comm_free of the world is how a rank ends in order; one that exits without is reported as dead.  Rank 0 waits
 * there for all others, since its monitor is what they would hear of a failure by. */
int vfm_comm_host_new(
	struct vfm_launch *l, const struct vfm_host_comm_opts *o, struct vfm_comm **out, struct vfm_err *err);
/* Tells all ranks that this one cannot go on and why (local).  Their waits fail with that sentence. */
void vfm_comm_host_abort(struct vfm_comm *world, const char *why);

#endif
