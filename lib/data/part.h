/* part.h - the part of the records that a process works on. */
#ifndef VFM_DATA_PART_H
#define VFM_DATA_PART_H

#include <stdint.h>

#include "base/err.h"

/* "I/N" -> part I (from 0) of N; NULL asks Slurm's environment: SLURM_ARRAY_TASK_ID, _COUNT
 * (_MIN, _STEP), else SLURM_PROCID, SLURM_NTASKS within a step; else 0 of 1. */
int vfm_part_parse(const char *text, int64_t *part, int64_t *n_parts, struct vfm_err *err);

#endif
