/* device.h - opens a device by its name. */
#ifndef VFM_TRAIN_DEVICE_H
#define VFM_TRAIN_DEVICE_H

#include "dev/dev.h"

struct vfm_device {
	struct vfm_dev *dev;
	struct vfm_stream *stream; /* the compute stream */
};
/* "cpu".  VFM_EUSAGE for a name that there is not, VFM_EENV for a device that there is not. */
int vfm_device_open(struct vfm_device *d, const char *name, struct vfm_err *err);
void vfm_device_close(struct vfm_device *d);

#endif
