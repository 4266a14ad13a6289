/* comm_sim.h - communicators of a simulated job.  device/sim/network.h computes the time of each collective.
 *
 * Each simulated rank (device/sim/world.h) represents all ranks that do the same work in the same time: rep_of gives
 * the index into rank_of.  A collective begins once every simulated rank that represents one of its ranks has arrived.
 * Within a group, all simulated ranks must make the same calls.  Splits need vfm_comm_split_by.
 *
 * Ranks may do unequal work (work_of): other packs, loads of experts or speeds, or groups with such ranks.  These ranks
 * exchange true counts of rows (all_to_all of up to VFM_SIM_KNOWN_MAX bytes); others receive the counts that they send.
 *
 * A simulated CPU has only the communicator of host memory.  Its calls on a stream are recorded, take the time that the
 * machine's rates of collectives give (estimate.h), and use no device memory.
 */
#ifndef VFM_COMM_DEVICE_COMM_SIM_H
#define VFM_COMM_DEVICE_COMM_SIM_H

#include "comm/coll/comm.h"
#include "device/sim/sim.h"

struct vfm_comm_sim_job {
	struct vfm_machine machine; /* with the rates of several GPUs, or of collectives on a CPU */
	struct vfm_sim_world *world;
	int n;              /* ranks of the job */
	int n_reps;         /* number of simulated ranks */
	int *rep_of;        /* [n] */
	int *rank_of;       /* [n_reps], ascending */
	int *stands_for;    /* [n_reps] number of ranks that each represents; sums to n */
	int *work_of;       /* [n_reps] equal for equal work; NULL: all ranks do the same work */
	double expert_skew; /* for vfm_sim_set_routing */
	int slow_rank;      /* of the job: its kernels take slow_factor times as long; 0: none */
	double slow_factor;
};

/* A simulated rank of a job, as vfm_sim_world_self returns it. */
struct vfm_comm_sim_rank {
	const struct vfm_comm_sim_job *job;
	int rep;
	struct vfm_dev *dev;    /* from vfm_sim_open; its host waits in calls; NULL: not yet opened */
	bool deterministic;     /* of the device */
	uint64_t made;          /* number of worlds made */
	struct vfm_comm *split; /* the result of the last split; the transport makes the same split */
};

/* Makes the world communicator for host memory.  r must outlive all communicators. */
struct vfm_comm *vfm_comm_sim_new(struct vfm_comm_sim_rank *r);
/* Makes the world communicator for the device's memory from host; returns host itself on a CPU.  Collective.  Free it
 * with vfm_comm_dev_free. */
int vfm_comm_sim_device(struct vfm_comm *host, struct vfm_stream *compute, struct vfm_comm **out, struct vfm_err *err);

#endif
