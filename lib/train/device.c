#include "train/device.h"

#include <string.h>

#include "cpu/cpu.h"

int vfm_device_open(struct vfm_device *d, const char *name, struct vfm_err *err)
{
	*d = (struct vfm_device){0};
	if (strcmp(name, "cpu") != 0)
		return vfm_fail(err, VFM_EUSAGE, "unknown device '%s' (this build has cpu)", name);
	d->dev = vfm_cpu_open(err);
	if (!d->dev)
		return VFM_EENV;
	d->stream = d->dev->t->stream_new(d->dev, false, err);
	if (d->stream)
		return 0;
	vfm_device_close(d);
	return VFM_EENV;
}

void vfm_device_close(struct vfm_device *d)
{
	if (d->stream)
		d->dev->t->stream_free(d->stream);
	if (d->dev)
		d->dev->t->dev_free(d->dev);
	*d = (struct vfm_device){0};
}
