/* first_use.h - what must happen before the first collective; whether the device is idle. */
#ifndef VFM_DEVICE_CUDA_FIRST_USE_H
#define VFM_DEVICE_CUDA_FIRST_USE_H

#include "device/cuda/cuda_dev.h"

/* Loads all our kernels, before the first collective. */
void vfm_cuda_load_kernels(void);
/* Waits until no stream of the device has work, for at most so many seconds, and returns whether none has.
 * It does not wait for ever, because a stream may wait for another rank, and that for this host thread. */
bool vfm_cuda_idle(struct vfm_cuda *c, double most_s);

#endif
