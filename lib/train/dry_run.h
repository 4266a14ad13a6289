/* dry_run.h - predicts a training run on a machine that need not be there: does it fit, how long does a step take, and
 * on what is the time spent.  Runs the training step on a simulated job (train/simulate.h) with the packs of a plan.
 *
 * Of a plan one step is simulated, that of median cost, and the one with the largest pack for its memory.  The dp rank
 * with the most cost stands for all: the others wait for it.  Samples get grids of the plan's tokens (vfm_bench_grid),
 * and texts of model.text_len rows, the most.
 */
#ifndef VFM_TRAIN_DRY_RUN_H
#define VFM_TRAIN_DRY_RUN_H

#include <stdio.h>

#include "sim/sim_memory.h"
#include "train/config.h"

struct vfm_dry_run_opts {
	const struct vfm_config *config;
	const struct vfm_machine *machine;
	int ranks;
	const char *plan; /* a manifest; NULL: `packs` packs a step of one sample of `context` tokens */
	int64_t context, packs;
	int64_t warmup; /* steps before the simulated one; 0: one */
	bool timeline;  /* fill the ranks' busy */
	bool memory;    /* fill the ranks' memory */
	FILE *trace;    /* gets the launches of the simulated step in the Trace Event Format of Chrome; NULL: none */
};

enum { VFM_TIMELINE_COLUMNS = 1000 };

/* A simulated rank, and what it stands for. */
struct vfm_dry_run_rank {
	int rank, stage, stands_for;
	int64_t launches;                /* of the step */
	int64_t mem_peak;                /* bytes that the program holds at most */
	int64_t mem_beside;              /* bytes of the context and of libraries beside it */
	double class_s[VFM_SIM_CLASSES]; /* seconds of the kernels of a step, which may overlap */
	/* [streams, VFM_TIMELINE_COLUMNS, VFM_SIM_CLASSES + 1] the part of each column of the step in which a stream
	 * does work of a class, or (the last) waits in a collective; owned; NULL: not asked for */
	float *busy;
	int streams;
	/* Of the simulated step, or of that with the largest pack if it needs more; not asked for: no owners. */
	struct vfm_sim_memory memory;
	double memory_s;     /* seconds of that step */
	int64_t memory_step; /* its number in the plan */
};

struct vfm_dry_run {
	bool fits;               /* else mem_peak is what it needs, and the seconds are those of such a machine */
	int64_t steps;           /* of the plan, as far as the configuration trains; 0: without a plan */
	int64_t step;            /* that was simulated */
	double s[VFM_ESTIMATES]; /* of that step */
	double total_s;          /* of all steps, in proportion to their cost */
	double comm_s, bubble_s, copy_s; /* stalls of the step: means over the ranks */
	double flops, tokens;            /* of that step; flops without recompute */
	int64_t mem_peak, mem_beside;    /* of the rank with the largest sum */
	int64_t launches;                /* of that step, on all simulated ranks */
	int n;
	struct vfm_dry_run_rank *rank; /* [n] in the order of the ranks, owned */
};

int vfm_dry_run(const struct vfm_dry_run_opts *o, struct vfm_dry_run *out, struct vfm_err *err);
void vfm_dry_run_release(struct vfm_dry_run *d);

#endif
