/* simulate.h - runs the work of a rank on simulated ranks of a job of GPUs that need not exist
 * (comm/device/comm_sim.h).
 *
 * Simulates the first, a middle and the last tp rank of each pp stage, which represent all others.  Ranks along dp, ep
 * and cp do the same work on packs of equal shape.  Each simulated rank is a coroutine with a context of its own; one
 * runs at a time.
 *
 * Ranks of a pp stage may do unequal work: class_of gives them different packs, expert_skew different numbers of
 * tokens, slow_rank another speed.  Then three tp ranks of each class of ranks are simulated (simulate.c).  Each waits
 * as if all ranks were simulated, but for about 1 % of a short step: only the first replica computes the norm of
 * gradients, and overlap of kernels with messages is estimated.
 */
#ifndef VFM_TRAIN_PREDICT_SIMULATE_H
#define VFM_TRAIN_PREDICT_SIMULATE_H

#include "comm/device/comm_sim.h"
#include "train/job/context.h"

struct vfm_simulation {
	const struct vfm_config *config; /* its degrees */
	const struct vfm_machine *machine;
	int ranks; /* of the job */
	/* [dp x cp] optional: of the ranks of a pp stage and a tp rank, in their order (VFM_GR_DATA): 0 to n - 1, equal
	 * where `work` does the same.  Ranks of two dp indices have classes in common only if all along cp have the
	 * same. */
	const int *class_of;
	/* Ranks of different cp indices do unequal work on a pack: simulates one rank per cp index, at most 256
	 * (address space). */
	bool cp_apart;
	/* >= 0: tokens choose experts by Zipf's law with this exponent (device/sim/uneven.h); > 0: unequally */
	double expert_skew;
	/* The kernels of one rank last slow_factor times as long (device/sim/uneven.h); 0: of none.  It is
	 * simulated. */
	int slow_rank;
	double slow_factor;
	int most;   /* simulated ranks, if packs, experts, pp stages and tp do not need more; 0: as many as it takes */
	bool all;   /* simulate all ranks */
	bool retry; /* if the memory of one runs out, simulate once more with 8 times the memory */
};

struct vfm_simulated {
	int reps;    /* simulated ranks */
	bool full;   /* the memory of one ran out, before a retry */
	bool beyond; /* it ran out in the retry, too, which failed */
};

/* Calls `work` on each simulated rank; x->job.world->rank is the rank in the job, x->sim->rep its number among the
 * simulated ones, and vfm_context_open(x, config) opens the simulated device.  Returns the failure of the first rank
 * that failed; the logs of other ranks than the first are silent.  VFM_EUSAGE: the degrees do not fit the ranks; the
 * machine has no rates of several GPUs; expert_skew for a model whose tokens choose no experts; or the job has no
 * slow_rank. */
int vfm_simulate(
	const struct vfm_simulation *s, vfm_rank_fn work, void *ctx, struct vfm_simulated *out, struct vfm_err *err);

#endif
