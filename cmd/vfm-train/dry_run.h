/* dry_run.h - vfm-train --dry-run: predicts a run on a machine that need not be present. */
#ifndef CMD_DRY_RUN_H
#define CMD_DRY_RUN_H

#include "base/err.h"
#include "io/table.h"
#include "io/task.h"
#include "train/job/config.h"
#include "train/predict/dry_run.h"

enum { DRY_RUN_PACKS = 1 << 20 }; /* maximum per step */

struct dry_run_cli {
	struct vfm_table_opts table;               /* (enum vfm_table_format)-1: no format given, text */
	const char *machine, *plan, *trace, *html; /* files; NULL: none. machine: NAME or FILE */
	/* --device: "cuda" requires a machine with GPUs, "cpu" one with CPUs; NULL: either */
	const char *device;
	int64_t ranks, context, packs; /* context, packs: VFM_UNSET: not given */
	struct vfm_step_tasks step;    /* the nodes of the job; zeros: those of the machine */
	struct vfm_uneven_opts uneven;
	double mtbf_h, save_s, restart_s; /* NAN: not given; mtbf_h: of a GPU */
	bool levers;                      /* print the settings that save memory instead */
};

/* Checks packs and failures, and sets defaults for those not given: mtbf_h 0 means no failures.  Requires ranks and
 * plan.  VFM_EUSAGE: a value out of range, or an option that requires another. */
int check_dry_run(struct dry_run_cli *o, const struct vfm_parallel *p, struct vfm_err *err);
/* Predicts and prints.  Requires check_dry_run. */
int print_dry_run(const struct vfm_config *c, const struct dry_run_cli *o, struct vfm_err *err);

/* levers.c: the table of --levers.  check returns VFM_EUSAGE for unknown columns. */
int check_levers(const struct vfm_table_opts *table, struct vfm_err *err);
int print_levers(
	const struct vfm_dry_run_opts *o, const char *machine, const struct vfm_table_opts *table, struct vfm_err *err);

#endif
