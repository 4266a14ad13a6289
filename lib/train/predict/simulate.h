/* simulate.h - runs the work of a rank on simulated ranks of a job of GPUs that need not exist
 * (comm/device/comm_sim.h).
 *
 * Simulates the first, a middle and the last tp rank of each pp stage, which represent all others.  Ranks along dp, ep
 * and cp do the same work on packs of equal shape.  Each simulated rank is a coroutine with its own context; one runs
 * at a time.
 *
 * Ranks of a pp stage may do unequal work: class_of gives them different packs, expert_skew different numbers of
 * tokens, slow_rank another speed.  In that case, three tp ranks of each class of ranks are simulated (simulate.c).
 * Their waits are as if all ranks were simulated, up to about 1 % of a short step: only the first replica computes the
 * norm of gradients, and the overlap of kernels with messages is estimated.
 */
#ifndef VFM_TRAIN_PREDICT_SIMULATE_H
#define VFM_TRAIN_PREDICT_SIMULATE_H

#include "comm/device/comm_sim.h"
#include "train/job/context.h"

struct vfm_simulation {
	const struct vfm_config *config; /* its degrees */
	const struct vfm_machine *machine;
	int ranks; /* of the job */
	/* [dp x cp] optional: the class of each rank of a pp stage and a tp rank, in the order of VFM_GR_DATA, 0 to n -
	 * 1.  Ranks have the same class if `work` does the same.  Two dp indices share classes only if their classes
	 * are equal at every cp index. */
	const int *class_of;
	/* Ranks of different cp indices do unequal work on a pack: simulates one rank per cp index, at most 256
	 * (address space). */
	bool cp_apart;
	/* >= 0: exponent of Zipf's law by which tokens choose experts (device/sim/uneven.h); > 0: unequally */
	double expert_skew;
	/* The kernels of this rank last slow_factor times as long (device/sim/uneven.h); 0: no rank.  The rank is
	 * simulated. */
	int slow_rank;
	double slow_factor;
	int most;   /* maximum simulated ranks, unless packs, experts, pp stages and tp need more; 0: no limit */
	bool all;   /* simulate all ranks */
	bool retry; /* if a rank runs out of memory, simulate once more with 8 times the memory */
};

struct vfm_simulated {
	int reps;    /* simulated ranks */
	bool full;   /* a rank ran out of memory before the retry */
	bool beyond; /* a rank also ran out in the retry, which failed */
};

/* Calls `work` on each simulated rank.  x->job.world->rank is the rank in the job, x->sim->rep its number among the
 * simulated ones, and vfm_context_open(x, config) opens the simulated device.  Only the first rank logs.  Returns the
 * failure of the first rank that failed.  VFM_EUSAGE: the degrees do not fit the ranks; the machine has no rates of
 * several GPUs; expert_skew is set for a model whose tokens choose no experts; or the job has no slow_rank. */
int vfm_simulate(
	const struct vfm_simulation *s, vfm_rank_fn work, void *ctx, struct vfm_simulated *out, struct vfm_err *err);
/* Returns the bytes that the device of a simulated rank must have besides mem_peak: those of the context and of
 * libraries outside the pool, and of the pool's chunks that are partly in use. */
int64_t vfm_simulated_beside(const struct vfm_dev *d);

#endif
