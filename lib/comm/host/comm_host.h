/* comm_host.h - the host backend of comm.h: shared memory within a node, TCP between nodes (handshake.h).
 *
 * Operands are memory that the host can access: a CPU device's, or staging buffers.  A call blocks with a NULL stream
 * and on a synchronous stream.  On an asynchronous stream it runs in that stream's thread (dev.h, host_call).
 *
 * A monitor thread in each rank detects failed ranks and tells all ranks:
 *
 * - a rank that died: within a second
 * - a rank that is stopped or unreachable: within 30 s or the time-out, whichever is less (at least 2.6 s)
 * - a rank that hangs: once a wait for it exceeds the time-out
 *
 * The flight recorder holds the last collectives of the rank.  A failing job writes it to
 * `recorder_dir`/flight-RANK.jsonl.
 */
#ifndef VFM_COMM_HOST_COMM_HOST_H
#define VFM_COMM_HOST_COMM_HOST_H

#include "base/shared.h"
#include "comm/coll/comm.h"
#include "comm/launch/launch.h"

struct vfm_host_comm_opts {
	double timeout_s;         /* longest wait; 0: VFM_COMM_TIMEOUT_S, or else 600 */
	const char *recorder_dir; /* NULL: no file is written */
};

/* Makes the communicator of all ranks of the launch, "world"; collective over the launch, which must outlive it.  One
 * rank gets vfm_comm_self().  Environment: VFM_COMM_TIMEOUT_S, VFM_COMM_IFNAME, VFM_COMM_DIRECT (vfm-slurm(7)).
 *
 * A rank ends normally with vfm_comm_free of the world.  A rank that exits without it is reported as dead.  In rank 0,
 * vfm_comm_free blocks until all other ranks have ended; in the first rank of a node, until those below it in the tree
 * have.  If this call fails in one rank, all ranks fail: with that rank's message if its monitor runs already,
 * otherwise because the rank ended. */
int vfm_comm_host_new(
	struct vfm_launch *l, const struct vfm_host_comm_opts *o, struct vfm_comm **out, struct vfm_err *err);
/* Returns VFM_EENV with the job's message once the job has failed; for waits outside of communicators (local).  c is
 * any host communicator, or self, which never fails.  Thread-safe. */
int vfm_comm_host_check(struct vfm_comm *c, struct vfm_err *err);
/* Returns the shared memory of this node, in which c's ranks may reserve more, or NULL if c spans nodes or is self
 * (local). */
const struct vfm_shared *vfm_comm_host_shared(const struct vfm_comm *c);

/* Returns c as a host communicator, or NULL if it has another backend. */
struct vfm_hcomm *vfm_hcomm_of(struct vfm_comm *c);
#endif
