/* report.h - vfm-train --report: writes a page about runs. */
#ifndef CMD_TRAIN_REPORT_H
#define CMD_TRAIN_REPORT_H

#include "base/err.h"

/* runs [n].  path NULL: standard output. */
int write_run_report(char *const *runs, int n, const char *path, struct vfm_err *err);

#endif
