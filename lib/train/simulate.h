/* simulate.h - runs the work of a rank on simulated ranks of a job of GPUs that need not exist (comm/comm_sim.h).
 *
 * Of each pipeline stage the first, a middle and the last rank of tp are simulated, and stand for all others: ranks
 * along dp, ep and cp do the same work on packs of equal shape.  Shares that do not divide evenly are largest on the
 * first rank.  Each simulated rank is a thread with a context of its own; one runs at a time.
 */
#ifndef VFM_TRAIN_SIMULATE_H
#define VFM_TRAIN_SIMULATE_H

#include "comm/comm_sim.h"
#include "train/context.h"

struct vfm_simulation {
	const struct vfm_config *config; /* its degrees */
	const struct vfm_machine *machine;
	int ranks;  /* of the job */
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
 * that failed; the logs of other ranks than the first are silent.  VFM_EUSAGE: the degrees do not fit the ranks, or the
 * machine has no rates of several GPUs. */
int vfm_simulate(
	const struct vfm_simulation *s, vfm_rank_fn work, void *ctx, struct vfm_simulated *out, struct vfm_err *err);

#endif
