/* dry_run.h - vfm-train --dry-run: prints what a run would take on a machine that need not be there. */
#ifndef CMD_DRY_RUN_H
#define CMD_DRY_RUN_H

#include "base/err.h"
#include "launch/step.h"
#include "train/config.h"
#include "train/dry_run_opts.h"

struct dry_run_cli {
	const char *machine, *format, *plan, *trace, *html; /* trace, html: files; NULL: none */
	int64_t ranks, context, packs;
	struct vfm_step_tasks step; /* the nodes of the job; zeros: those of the machine */
	struct vfm_uneven_opts uneven;
	double mtbf_h, save_s, restart_s; /* mtbf_h: of a GPU; 0: without failures */
};

int print_dry_run(const struct vfm_config *c, const struct dry_run_cli *o, struct vfm_err *err);

#endif
