/* host_rate.h - the rate of copies between a device and pinned host memory. */
#ifndef VFM_DEVICE_DEV_HOST_RATE_H
#define VFM_DEVICE_DEV_HOST_RATE_H

#include "device/dev/dev.h"

/* Returns the bytes/s of the slower direction on the compute stream s, rounded down to 2^(k/4), so that most runs on a
 * machine find the same.  The first call for a device copies 64 MiB several times; ranks that share a link should call
 * it together.  0: unknown, because there is no memory for that or a copy failed. */
double vfm_dev_host_rate(struct vfm_stream *s);

#endif
