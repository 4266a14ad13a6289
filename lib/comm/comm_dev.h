/* comm_dev.h - groups whose collectives work on a device's memory, in the order of its streams.
 *
 * A device group is made from a group of the host filling, its pair (vfm_comm_host), and splits together with it:
 * names, ranks, the monitor and the flight recorder are those of the host's job, and a failure there is one here.  Two
 * fillings:
 *
 *   wire    over the plugin's library (wire.h; NCCL).  A thread looks ten times a second at what each group waits
 *           for, at the library's errors and at the job.  When one of them failed, it aborts all communicators, so
 *           that the streams come to their ends, and poisons the device (vfm_dev_poison); calls and waits return the
 *           job's sentence.
 *   stage   over the host backend through pinned memory: where several ranks share a device, or there is no such
 *           library.  On the compute stream a call blocks the host; on an asynchronous one it runs there.
 *
 * Sums.  f32, f64 and i64 are the library's own, in its fixed order; uneven shares are padded.  The parts of a sum of
 * bf16 travel and are summed in f32 in the order of the ranks, which moves as many bytes as a ring would (where the
 * stream runs no ops, its thread of the host sums). VFM_COMM_BF16=native: the library's sums, which may round at every
 * rank on the way.
 *
 * The library's id of the world's communicator goes from rank 0 to all through the launch (vfm_launch_share: under PMI2
 * a value in hex); all other groups are split from it.  What rank 0's environment says of them holds for all.
 *
 * Memory that groups know (struct vfm_comm_mem): on the wire it comes from the library (mem_alloc), since that takes
 * only what is one piece of the system's memory; where it has none left, from the device.  Which groups know it the
 * ranks agree on over their pair.  VFM_COMM_REGISTER=0: none does, and all comes from the device.
 *
 * A two-rank group is connected when it is made; larger ones with their first call, in which the host then waits for
 * the other ranks.
 */
#ifndef VFM_COMM_COMM_DEV_H
#define VFM_COMM_COMM_DEV_H

#include "comm/comm.h"
#include "comm/transport.h"

struct vfm_comm_dev_opts {
	struct vfm_stream *compute;            /* of the device */
	const struct vfm_transport *transport; /* NULL: none */
	bool host_memory;                      /* the host filling can work on the device's memory itself */
};

/* Collective over host: the group of the same ranks for this device.  VFM_COMM chooses: "host" (only for host_memory),
 * "stage", or the wire's name; by default the first of host, wire, stage that can be: a wire cannot where ranks share a
 * device, unless VFM_CUDA_SHARE=1 (correct but slow).  One rank: vfm_comm_self(), unless VFM_COMM asks for the wire.
 * host stays the caller's and must live longer; *out may be host itself (vfm_comm_dev_free knows). */
int vfm_comm_dev_new(
	struct vfm_comm *host, const struct vfm_comm_dev_opts *o, struct vfm_comm **out, struct vfm_err *err);
/* Frees what vfm_comm_dev_new gave for host. */
void vfm_comm_dev_free(struct vfm_comm *c, struct vfm_comm *host);

int vfm_comm_transport_new(struct vfm_comm *host, const struct vfm_transport *w, struct vfm_stream *compute,
	struct vfm_comm **out, struct vfm_err *err);
int vfm_comm_staging_new(struct vfm_comm *host, struct vfm_stream *compute, struct vfm_comm **out, struct vfm_err *err);

#endif
