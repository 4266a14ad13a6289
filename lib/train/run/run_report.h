/* run_report.h - a page about training runs: curves, starts, samples, configuration and identity.  It contains
 * everything except the videos, which it links to.  It reads the runs, which may be active, and writes nothing.
 * Memory: see run_log.h.
 */
#ifndef VFM_TRAIN_RUN_RUN_REPORT_H
#define VFM_TRAIN_RUN_RUN_REPORT_H

#include "base/err.h"
#include "base/mem.h"

enum { VFM_RUN_REPORT_RUNS = 16 };

struct vfm_run_report_opts {
	char *const *runs;    /* [n] folders of runs, or their metrics.jsonl */
	int n;                /* 1 to VFM_RUN_REPORT_RUNS */
	const char *page_dir; /* the folder of the page, which links are relative to */
};

/* Appends the page.  VFM_EUSAGE: there are too many runs, or one has no records or a damaged file
 * (vfm_run_log_read). */
int vfm_run_report(struct vfm_buf *b, const struct vfm_run_report_opts *o, struct vfm_err *err);

#endif
