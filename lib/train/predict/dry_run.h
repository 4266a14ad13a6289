/* dry_run.h - predicts a training run on a machine that need not exist: whether it fits, the time of a step, and its
 * parts.  Runs the training step on a simulated job (simulate.h) with the packs of a plan.
 *
 * Simulates the step of median cost, and for the memory the step with the largest pack.  dp ranks have the packs of the
 * plan; if many differ, a few represent all (dry_run_packs.h).  The time of all steps is interpolated in the cost of
 * the most expensive rank, between the least and the most cost and one or three costs between them.  Samples get grids
 * for their tokens (vfm_bench_grid), and texts of model.text_len rows, the maximum.
 */
#ifndef VFM_TRAIN_PREDICT_DRY_RUN_H
#define VFM_TRAIN_PREDICT_DRY_RUN_H

#include <stdio.h>

#include "device/sim/sim_memory.h"
#include "io/opt.h"
#include "train/job/config.h"
#include "train/predict/bench.h"
#include "train/step/recompute.h"

struct vfm_dry_run_opts {
	const struct vfm_config *config;
	const struct vfm_machine *machine;
	int ranks;
	const char *plan; /* path of a plan; NULL: steps of `packs` packs with one sample of `context` tokens */
	int64_t context, packs;
	int64_t text; /* rows of these samples; 0: model.text_len */
	/* of struct vfm_simulation */
	double expert_skew;
	int slow_rank;
	double slow_factor;
	double straggler_cv; /* of the times of the GPUs (spec/cost/goodput.h) */
	bool all;            /* simulate all ranks, at any cost */
	bool once;           /* a job that does not fit fails; it is not repeated with more memory */
	bool timeline;       /* fill the ranks' busy */
	bool memory;         /* fill the ranks' memory */
	FILE *trace;         /* gets the launches of the simulated step, in Chrome's Trace Event Format; NULL: none */
};

enum { VFM_TIMELINE_COLUMNS = 1000, VFM_STREAM_NAME = 32 };

/* A simulated rank, and the ranks that it represents. */
struct vfm_dry_run_rank {
	int rank, stage, stands_for;
	int packs;        /* number of its packs; equal for ranks with the same packs */
	double wait_s;    /* its wait for ranks with other packs, experts or speed (device/sim/uneven.h) */
	int64_t launches; /* of the step */
	char recompute[VFM_RECOMPUTE_TEXT]; /* of struct vfm_bench_result */
	int64_t mem_peak;                   /* maximum bytes that the program holds */
	double host_bytes;                  /* of struct vfm_bench_result */
	/* bytes of the context and of libraries outside the pool, and of the pool's chunks that are partly in use */
	int64_t mem_beside;
	double class_s[VFM_SIM_CLASSES];     /* kernel seconds of a step; kernels may overlap */
	double class_flops[VFM_SIM_CLASSES]; /* FLOPs of these kernels, including recompute */
	/* [streams, VFM_TIMELINE_COLUMNS, VFM_SIM_CLASSES + 1] the fraction of each column of the step in which a
	 * stream works on a class, or (last) waits in a collective; owned; NULL: not requested */
	float *busy;
	char (*stream_name)[VFM_STREAM_NAME]; /* [streams] purpose of each, "" for none; owned; NULL: not requested */
	int streams;
	/* Of the simulated step, or of that with the largest pack if it needs more.  No owners if not requested. */
	struct vfm_sim_memory memory;
	double memory_s;     /* seconds of that step */
	int64_t memory_step; /* its number in the plan */
};

struct vfm_dry_run {
	/* if false, mem_peak is the required memory, and the seconds are those of a machine that has it */
	bool fits;
	bool beyond; /* the call failed: a rank ran out of memory, even with 8 times as much (unless `once`) */
	/* steps of the plan that the configuration trains; without a plan its train.steps; 0: unknown */
	int64_t steps;
	int64_t step;            /* the simulated step */
	double s[VFM_ESTIMATES]; /* seconds of that step */
	double total_s;          /* seconds of all steps */
	int timed_steps;         /* number of simulated steps from which total_s is interpolated */
	/* number of dp ranks in that step with different packs: in the job, and simulated; 1 without a plan */
	int dp_distinct, dp_classes;
	/* >= 1: expected time of a step over s, if GPUs differ by straggler_cv and all wait for the slowest.
	 * Everything except comm_s and copy_s scales with its time */
	double straggler;
	double comm_s, bubble_s, copy_s; /* stalls of the step: means over the ranks */
	double imbalance;                /* mean of wait_s over the ranks, as a fraction of the step */
	/* of two networks: an exchange, and exchanges per step on average, which are part of s, total_s and copy_s; else
	 * 0 */
	struct vfm_bench_exchange exchange;
	double exchanges;
	double flops, tokens;         /* of that step; flops without recompute */
	int fullest;                  /* index of the rank with the largest sum of mem_peak and mem_beside */
	int64_t mem_peak, mem_beside; /* of that rank */
	int64_t launches;             /* of that step, over all simulated ranks */
	int n;
	struct vfm_dry_run_rank *rank; /* [n] in the order of the ranks, owned */
};

/* The caller releases *out, even after a failure. */
int vfm_dry_run(const struct vfm_dry_run_opts *o, struct vfm_dry_run *out, struct vfm_err *err);
void vfm_dry_run_release(struct vfm_dry_run *d);

/* ---- the options of a command for unequal ranks ---- */

/*	static struct vfm_uneven_opts o; // set by the rows VFM_UNEVEN_OPTS("--dry-run", &o) of the options */
struct vfm_uneven_opts {
	double expert_skew, straggler_cv;
	const char *slow_rank; /* "R:FACTOR"; NULL: none */
};

/* Rows of a struct vfm_opt table; `o` is a struct vfm_uneven_opts *, `with` a literal, the option that predicts. */
#define VFM_UNEVEN_OPTS(with, o)                                                                                       \
	{VFM_OPT_NUM, 0, "expert-skew", "S",                                                                           \
		"with " with ": exponent of Zipf's law by which tokens choose experts (0)", &(o)->expert_skew},        \
		{VFM_OPT_STR, 0, "slow-rank", "R:FACTOR",                                                              \
			"with " with ": kernels of rank R last FACTOR times as long", &(o)->slow_rank},                \
	{                                                                                                              \
		VFM_OPT_NUM, 0, "straggler-cv", "C",                                                                   \
			"with " with ": coefficient of variation of the times of the GPUs (0)", &(o)->straggler_cv     \
	}

/* Returns whether the options make ranks unequal. */
bool vfm_uneven_given(const struct vfm_uneven_opts *o);
/* Sets expert_skew, slow_rank, slow_factor and straggler_cv of *to.  ranks: ranks of the largest job.  VFM_EUSAGE: a
 * value is out of range. */
int vfm_uneven_parse(const struct vfm_uneven_opts *o, int64_t ranks, struct vfm_dry_run_opts *to, struct vfm_err *err);

#endif
