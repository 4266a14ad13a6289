/* step_memory.h - counts the device memory of a training step that has not run, on simulated ranks (simulate.h).
 */
#ifndef VFM_TRAIN_PREDICT_STEP_MEMORY_H
#define VFM_TRAIN_PREDICT_STEP_MEMORY_H

#include "device/dev/dev.h"
#include "train/job/config.h"
#include "train/step/synthetic.h"

struct vfm_step_memory {
	const struct vfm_config *config;
	int ranks;
	const struct vfm_synthetic *sample; /* [n] of a pack */
	int n;                              /* 0: only parameters and optimizer, without a step */
	int cp;                             /* ranks that compute a pack; 0: parallel.cp */
	int64_t packs;                      /* packs of a dp rank per step */
	double host_bytes;                  /* of struct vfm_bench_step */
	const struct vfm_dev *dev;          /* one of the devices that the step would run on */
};

/* Sets peak [parallel.pp] to mem_peak (dev.h) of the fullest rank of each pp stage, even if it exceeds the capacity.
 * INT64_MAX means more than eight times the capacity.  VFM_EUSAGE: the degrees do not fit the ranks. */
int vfm_step_memory(const struct vfm_step_memory *m, int64_t *peak, struct vfm_err *err);

#endif
