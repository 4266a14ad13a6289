/* dry_run_opts.h - the options of a command for the unequal ranks of a dry run.
 *
 *	static struct vfm_uneven_opts o; // set by the rows VFM_UNEVEN_OPTS("--dry-run", &o) of the options
 */
#ifndef VFM_TRAIN_PREDICT_DRY_RUN_OPTS_H
#define VFM_TRAIN_PREDICT_DRY_RUN_OPTS_H

#include "io/opt.h"
#include "train/predict/dry_run.h"

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

/* The synopsis of these options. */
#define VFM_UNEVEN_SYNOPSIS "[--expert-skew S] [--slow-rank R:FACTOR] [--straggler-cv C]"

/* Returns whether the ranks are to be unequal. */
bool vfm_uneven_given(const struct vfm_uneven_opts *o);
/* Sets expert_skew, slow_rank, slow_factor and straggler_cv of *to.  ranks: of the largest job.  VFM_EUSAGE: a value is
 * out of range. */
int vfm_uneven_parse(const struct vfm_uneven_opts *o, int64_t ranks, struct vfm_dry_run_opts *to, struct vfm_err *err);

#endif
