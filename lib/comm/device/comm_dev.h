/* comm_dev.h - communicators for a device's memory, in the order of its streams.
 *
 * A device communicator is made from a host communicator (comm_host.h).  It splits together with it, and shares its
 * names, ranks, monitor, flight recorder and failures.  There are two backends:
 *
 * - transport uses the plugin's library (transport.h; NCCL).  On a failure, a watch thread aborts all communicators, so
 *   that the streams finish, and poisons the device (vfm_dev_poison).  Calls and waits then return the job's message.
 * - staging copies through pinned memory and uses the host backend: for ranks that share a device, and for devices
 *   without a transport.  On the compute stream a call blocks the host; on an asynchronous stream it runs in that
 *   stream's thread.
 *
 * A communicator of two ranks connects when it is made.  A larger one connects in its first call, in which the host
 * blocks until all ranks have arrived.  The environment variables of rank 0 apply to all ranks.
 */
#ifndef VFM_COMM_DEVICE_COMM_DEV_H
#define VFM_COMM_DEVICE_COMM_DEV_H

#include "comm/coll/comm.h"

struct vfm_comm_dev_opts {
	struct vfm_stream *compute;            /* of the device */
	const struct vfm_transport *transport; /* NULL: none */
	bool host_memory;                      /* the host backend can access the device's memory */
};

/* Makes the communicator of the same ranks for this device; collective over host.  One rank gets vfm_comm_self(),
 * unless VFM_COMM names the transport.  The caller keeps host, which must outlive *out.  *out may be host itself; free
 * it with vfm_comm_dev_free.
 *
 * VFM_COMM selects the backend: "host" (only with host_memory), "staging", or the transport's name.  The default is the
 * first of host, transport and staging that works.  A transport does not work if ranks share a device, unless
 * VFM_CUDA_SHARE=1 (correct but slow). */
int vfm_comm_dev_new(
	struct vfm_comm *host, const struct vfm_comm_dev_opts *o, struct vfm_comm **out, struct vfm_err *err);
/* Frees c, which vfm_comm_dev_new made from host; no-op if c is host. */
void vfm_comm_dev_free(struct vfm_comm *c, struct vfm_comm *host);

#endif
