/* dry_run.h - vfm-train --dry-run: prints what a run would take on a machine that need not be there. */
#ifndef CMD_DRY_RUN_H
#define CMD_DRY_RUN_H

#include "base/err.h"
#include "io/table.h"
#include "io/task.h"
#include "train/job/config.h"
#include "train/predict/dry_run.h"

enum { DRY_RUN_PACKS = 1 << 20 }; /* most of a step */

struct dry_run_cli {
	struct vfm_table_opts table;               /* its format: (enum vfm_table_format)-1: not given, text */
	const char *machine, *plan, *trace, *html; /* plan, trace, html: files; NULL: none */
	const char *device;            /* --device: "cuda" needs a machine of GPUs, "cpu" one of CPUs; NULL: either */
	int64_t ranks, context, packs; /* context, packs: VFM_UNSET: not given */
	struct vfm_step_tasks step;    /* the nodes of the job; zeros: those of the machine */
	struct vfm_uneven_opts uneven;
	double mtbf_h, save_s, restart_s; /* NAN: not given; mtbf_h: of a GPU */
};

/* Checks the packs and the failures, and sets those that were not given: mtbf_h to 0, no failures.  ranks, plan: set.
 * VFM_EUSAGE: one is out of range, or needs another option. */
int check_dry_run(struct dry_run_cli *o, const struct vfm_parallel *p, struct vfm_err *err);
/* Predicts and prints.  *o has passed check_dry_run. */
int print_dry_run(const struct vfm_config *c, const struct dry_run_cli *o, struct vfm_err *err);

#endif
