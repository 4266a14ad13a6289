/* share.h - the share of the records that a process handles. */
#ifndef VFM_DATA_RECORD_SHARE_H
#define VFM_DATA_RECORD_SHARE_H

#include <stdint.h>

#include "base/err.h"

/* Parses "I/N": share I (from 0) of N.  NULL means Slurm's environment: SLURM_ARRAY_TASK_ID, _COUNT (_MIN, _STEP), and
 * the task of this process (io/task.h).  With both, the tasks of a step divide the share of their array task; with
 * neither, the result is 0 of 1.  "task" means the same, but VFM_EUSAGE with neither. */
int vfm_share_parse(const char *text, int64_t *share, int64_t *n_shares, struct vfm_err *err);

/* Sets *name, which the caller frees, to the pattern with %t replaced by the number of the share, and %% by %.
 * VFM_EUSAGE: a % is followed by another character. */
int vfm_share_file(char **name, const char *pattern, int64_t share, struct vfm_err *err);

#endif
