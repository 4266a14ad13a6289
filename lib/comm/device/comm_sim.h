/* comm_sim.h - communicators of a simulated job: its collectives take the time of device/sim/network.h.
 *
 * Each simulated rank (device/sim/world.h) represents all ranks that do the same work in the same time: rep_of gives
 * the index into rank_of.  A collective begins when every simulated rank that represents one of its ranks has come to
 * it.  Within a group each simulated rank must make the same calls.  Splits need vfm_comm_split_by.
 *
 * Ranks may do unequal work (work_of): other packs, loads of experts or speeds, or groups with ranks that do.  Such
 * ranks exchange true counts of rows (all_to_all of up to VFM_SIM_KNOWN_MAX bytes); others receive the counts that they
 * send.
 *
 * A simulated CPU has only the communicator of host memory.  Its calls on a stream are recorded, last as long as the
 * machine's rates of collectives say (estimate.h), and take no memory of the device.
 */
#ifndef VFM_COMM_DEVICE_COMM_SIM_H
#define VFM_COMM_DEVICE_COMM_SIM_H

#include "comm/coll/comm.h"
#include "device/sim/sim.h"

struct vfm_comm_sim_job {
	struct vfm_machine machine; /* with the rates of several GPUs, or of collectives on a CPU */
	struct vfm_sim_world *world;
	int n;              /* ranks of the job */
	int n_reps;         /* simulated */
	int *rep_of;        /* [n] */
	int *rank_of;       /* [n_reps], ascending */
	int *stands_for;    /* [n_reps] of how many ranks; sums to n */
	int *work_of;       /* [n_reps] equal for equal work; NULL: all do the same */
	double expert_skew; /* of vfm_sim_set_routing */
	int slow_rank;      /* of the job: its kernels last slow_factor times as long; 0: none */
	double slow_factor;
};

/* A simulated rank of a job: what vfm_sim_world_self returns. */
struct vfm_comm_sim_rank {
	const struct vfm_comm_sim_job *job;
	int rep;
	struct vfm_dev *dev;    /* of vfm_sim_open: its host waits in calls; NULL: there is none yet */
	bool deterministic;     /* the device */
	uint64_t made;          /* worlds */
	struct vfm_comm *split; /* of the last split: the transport makes the same */
};

/* The world for host memory.  r outlives all communicators. */
struct vfm_comm *vfm_comm_sim_new(struct vfm_comm_sim_rank *r);
/* The world for the device's memory, made from it; host itself on a CPU.  Collective.  Free it with vfm_comm_dev_free.
 */
int vfm_comm_sim_device(struct vfm_comm *host, struct vfm_stream *compute, struct vfm_comm **out, struct vfm_err *err);

#endif
