/* dry_run.h - predicts a training run on a machine that need not be there: whether it fits, the time of a step, and its
 * parts.  Runs the training step on a simulated job (simulate.h) with the packs of a plan.
 *
 * Simulates the step of median cost, and for the memory the step with the largest pack.  dp ranks have the packs that
 * the plan gives them; where many differ, a few represent all (dry_run_packs.h).  The time of all steps is interpolated
 * in the cost of the most expensive rank, from the least, the most, and one or three costs between.  Samples get grids
 * of their tokens (vfm_bench_grid), and texts of model.text_len rows, the most.
 */
#ifndef VFM_TRAIN_PREDICT_DRY_RUN_H
#define VFM_TRAIN_PREDICT_DRY_RUN_H

#include <stdio.h>

#include "device/sim/sim_memory.h"
#include "io/opt.h"
#include "train/job/config.h"
#include "train/step/recompute.h"

struct vfm_dry_run_opts {
	const struct vfm_config *config;
	const struct vfm_machine *machine;
	int ranks;
	const char *plan; /* path of a plan; NULL: `packs` packs a step of one sample of `context` tokens */
	int64_t context, packs;
	int64_t text; /* rows of these samples; 0: model.text_len */
	/* of struct vfm_simulation */
	double expert_skew;
	int slow_rank;
	double slow_factor;
	double straggler_cv; /* of the times of the GPUs (spec/cost/goodput.h) */
	bool all;            /* simulate all ranks, at whatever expense */
	bool once;           /* a job that does not fit fails; it is not simulated again with more memory */
	bool timeline;       /* fill the ranks' busy */
	bool memory;         /* fill the ranks' memory */
	FILE *trace; /* gets the launches of the simulated step in the Trace Event Format of Chrome; NULL: none */
};

enum { VFM_TIMELINE_COLUMNS = 1000, VFM_STREAM_NAME = 32 };

/* A simulated rank, and the ranks that it represents. */
struct vfm_dry_run_rank {
	int rank, stage, stands_for;
	int packs;        /* the number of its packs: equal for ranks with the same */
	double wait_s;    /* that it waits for ranks with other packs, experts or speed (device/sim/uneven.h) */
	int64_t launches; /* of the step */
	char recompute[VFM_RECOMPUTE_TEXT]; /* of struct vfm_bench_result */
	int64_t mem_peak;                   /* bytes that the program holds at most */
	/* bytes of the context and of libraries outside the pool, and of the pool's chunks that are partly in use */
	int64_t mem_beside;
	double class_s[VFM_SIM_CLASSES];     /* seconds of the kernels of a step, which may overlap */
	double class_flops[VFM_SIM_CLASSES]; /* that they execute, with recompute */
	/* [streams, VFM_TIMELINE_COLUMNS, VFM_SIM_CLASSES + 1] the fraction of each column of the step that a stream
	 * works on a class, or (the last) waits in a collective; owned; NULL: not asked for */
	float *busy;
	char (*stream_name)[VFM_STREAM_NAME]; /* [streams] what each does, "" nothing; owned; NULL: not asked for */
	int streams;
	/* Of the simulated step, or of that with the largest pack if it needs more; not asked for: no owners. */
	struct vfm_sim_memory memory;
	double memory_s;     /* seconds of that step */
	int64_t memory_step; /* its number in the plan */
};

struct vfm_dry_run {
	bool fits;     /* else mem_peak is what it needs, and the seconds are those of such a machine */
	bool beyond;   /* the call failed: the memory of a rank ran out, with 8 times of it unless `once` */
	int64_t steps; /* of the plan, as far as the configuration trains; without a plan its train.steps; 0: unknown */
	int64_t step;  /* that was simulated */
	double s[VFM_ESTIMATES]; /* of that step */
	double total_s;          /* of all steps */
	int timed_steps;         /* total_s follows from it */
	/* dp ranks with different packs in that step: of the job, and simulated; without a plan 1 */
	int dp_distinct, dp_classes;
	/* >= 1: the expected time of a step over s, where GPUs differ by straggler_cv and all wait for the slowest: all
	 * but comm_s and copy_s is in proportion to its time */
	double straggler;
	double comm_s, bubble_s, copy_s; /* stalls of the step: means over the ranks */
	double imbalance;                /* mean over the ranks of wait_s, as a part of the step */
	double flops, tokens;            /* of that step; flops without recompute */
	int fullest;                     /* index of the rank with the largest sum of mem_peak and mem_beside */
	int64_t mem_peak, mem_beside;    /* of that rank */
	int64_t launches;                /* of that step, on all simulated ranks */
	int n;
	struct vfm_dry_run_rank *rank; /* [n] in the order of the ranks, owned */
};

/* The caller releases *out, also after a failure. */
int vfm_dry_run(const struct vfm_dry_run_opts *o, struct vfm_dry_run *out, struct vfm_err *err);
void vfm_dry_run_release(struct vfm_dry_run *d);

/* ---- the options of a command for unequal ranks ---- */

/*	static struct vfm_uneven_opts o; // set by the rows VFM_UNEVEN_OPTS("--dry-run", &o) of the options */
struct vfm_uneven_opts {
	double expert_skew, straggler_cv;
	const char *slow_rank; /* "R:FACTOR"; NULL: none */
};

/* Rows of a struct vfm_opt table; `o` is a struct vfm_uneven_opts *, `with` the option that predicts, a literal. */
#define VFM_UNEVEN_OPTS(with, o)                                                                                       \
	{VFM_OPT_NUM, 0, "expert-skew", "S",                                                                           \
		"with " with ": exponent of Zipf's law by which tokens choose experts (0)", &(o)->expert_skew},        \
		{VFM_OPT_STR, 0, "slow-rank", "R:FACTOR",                                                              \
			"with " with ": kernels of rank R last FACTOR times as long", &(o)->slow_rank},                \
	{                                                                                                              \
		VFM_OPT_NUM, 0, "straggler-cv", "C",                                                                   \
			"with " with ": coefficient of variation of the times of the GPUs (0)", &(o)->straggler_cv     \
	}

/* Returns whether the ranks are to be unequal. */
bool vfm_uneven_given(const struct vfm_uneven_opts *o);
/* Sets expert_skew, slow_rank, slow_factor and straggler_cv of *to.  ranks: of the largest job.  VFM_EUSAGE: a value is
 * out of range. */
int vfm_uneven_parse(const struct vfm_uneven_opts *o, int64_t ranks, struct vfm_dry_run_opts *to, struct vfm_err *err);

#endif
