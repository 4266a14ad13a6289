/* device.h - opens a device by its name, and the group of the job's ranks for its memory. */
#ifndef VFM_TRAIN_DEVICE_H
#define VFM_TRAIN_DEVICE_H

#include "dev/plugin.h"
#include "train/job.h"

struct vfm_device {
	struct vfm_dev *dev;
	struct vfm_stream *stream;       /* the compute stream */
	const struct vfm_plugin *plugin; /* that it came from, with the communicator for it; NULL: it is built in */
	/* of vfm_device_join: the job's, and that for this device (the same on a CPU); NULL before */
	struct vfm_comm *host, *world;
};
/* "cpu", or "cuda" of a plugin (dev/plugin.h).  VFM_EUSAGE for a name that there is not, VFM_EENV for a device that
 * there is not.  A process forks before, never after. */
int vfm_device_open(struct vfm_device *d, const char *name, struct vfm_err *err);
/* The same for one of several ranks on a node. */
int vfm_device_open_rank(struct vfm_device *d, const char *name, int local_rank, int local_size, bool deterministic,
	struct vfm_err *err);
/* Collective: d->world (comm_dev.h).  A failure is known to all ranks. */
int vfm_device_join(struct vfm_device *d, struct vfm_job *job, struct vfm_err *err);
/* For vfm_version_more: " cuda" where that plugin is found; it is not loaded, which takes far longer than a command's
 * start. */
const char *vfm_device_features(void);
/* Frees world, too: meshes made of it go before. */
void vfm_device_close(struct vfm_device *d);

#endif
