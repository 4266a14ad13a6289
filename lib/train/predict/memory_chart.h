/* memory_chart.h - the memory of simulated ranks by owner (device/sim/sim_memory.h) as charts over the time of a step,
 * JSON, a sentence, and counters of a trace.  JSON has all owners; elsewhere small ones are "other".
 */
#ifndef VFM_TRAIN_PREDICT_MEMORY_CHART_H
#define VFM_TRAIN_PREDICT_MEMORY_CHART_H

#include <stdio.h>

#include "base/mem.h"
#include "train/predict/dry_run.h"

/* Appends, for each pp stage, the chart of the simulated rank with the highest peak.  No-op without memory. */
void vfm_memory_section(struct vfm_buf *b, const struct vfm_dry_run *d, const struct vfm_machine *machine);
/* Appends {"activations": 1234, ...}: bytes at the peak, descending. */
void vfm_memory_json(struct vfm_buf *b, const struct vfm_sim_memory *m);
/* Appends "activations 12.30, parameters 4.00, other 0.10": GiB. */
void vfm_memory_sentence(struct vfm_buf *b, const struct vfm_sim_memory *m);
/* Writes counter events in Chrome's Trace Event Format, each after a comma.  rank is the process id. */
void vfm_memory_trace(FILE *f, const struct vfm_sim_memory *m, int rank);

#endif
