/* device.h - opens a device by name, and the communicator of the job's ranks for its memory. */
#ifndef VFM_TRAIN_JOB_DEVICE_H
#define VFM_TRAIN_JOB_DEVICE_H

#include "device/dev/plugin.h"
#include "io/version.h"
#include "train/job/job.h"

struct vfm_device {
	struct vfm_dev *dev;
	struct vfm_stream *stream;       /* the compute stream */
	const struct vfm_plugin *plugin; /* provider of the device and its transport; NULL: built in */
	/* set by vfm_device_join: the job's communicator, and the one for device memory (on a CPU they are equal) */
	struct vfm_comm *host, *world;
	struct vfm_comm_sim_rank *sim; /* NULL: not simulated */
};
/* Opens "cpu", or "cuda" from a plugin (device/dev/plugin.h).  Returns VFM_EUSAGE for an unknown name, VFM_EENV if the
 * device is unavailable.  The process must not fork after this call. */
int vfm_device_open(struct vfm_device *d, const char *name, struct vfm_err *err);
struct vfm_device_opts {
	int local_rank, local_size;    /* rank within this node */
	int size;                      /* ranks of the job */
	bool deterministic;            /* prefer algorithms with equal bits from run to run */
	struct vfm_comm_sim_rank *sim; /* of a simulated job (comm/device/comm_sim.h): the device is its; NULL: none */
	const char *machine; /* file or name of the machine of "sim" (device/sim/machine.h); NULL: "sim" is refused */
};
/* As vfm_device_open, for one of several ranks on a node.  Also opens "sim", a device without data. */
int vfm_device_open_rank(
	struct vfm_device *d, const char *name, const struct vfm_device_opts *opts, struct vfm_err *err);
/* Collective: creates d->world (comm/device/comm_dev.h).  All ranks learn of a failure. */
int vfm_device_join(struct vfm_device *d, struct vfm_job *job, struct vfm_err *err);
/* For vfm_version_more.  Returns " cuda" if the plugin file exists, else "".  Does not load the plugin, which would
 * slow down the start of a command. */
const char *vfm_device_features(void);
/* Also frees d->world; meshes made from it must be released first. */
void vfm_device_close(struct vfm_device *d);

#endif
