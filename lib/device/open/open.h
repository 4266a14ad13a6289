/* open.h - opens a device by name, with its compute stream. */
#ifndef VFM_DEVICE_OPEN_OPEN_H
#define VFM_DEVICE_OPEN_OPEN_H

#include "device/dev/plugin.h"
#include "device/sim/machine.h"
#include "device/sim/world.h"

extern const char vfm_device_default[]; /* "cpu" */

struct vfm_device {
	struct vfm_dev *dev;
	struct vfm_stream *stream;       /* the compute stream */
	const struct vfm_plugin *plugin; /* the plugin of the device and its transport; NULL: built in */
};
/* Opens "cpu", or "cuda" from a plugin (device/dev/plugin.h).  VFM_EUSAGE: the name is unknown; VFM_EENV: the device is
 * unavailable.  The process must not fork after this call. */
int vfm_device_open(struct vfm_device *d, const char *name, struct vfm_err *err);

/* The device of a simulated rank (device/sim/world.h). */
struct vfm_device_simulated {
	struct vfm_machine machine;
	struct vfm_sim_world *world;
	double expert_skew; /* for vfm_sim_set_routing */
};
struct vfm_device_opts {
	int local_rank, local_size; /* rank within this node */
	int size;                   /* ranks of the job */
	bool deterministic;         /* prefer algorithms with equal bits from run to run */
	/* "sim" is the device of one rank of a simulated job (`simulated`), or of a single rank (`machine`: file or
	 * name of its machine, device/sim/machine.h).  VFM_EUSAGE for "sim" if both are NULL. */
	const struct vfm_device_simulated *simulated;
	const char *machine;
};
/* Like vfm_device_open, for one of several ranks on a node.  Also opens "sim", a device without data. */
int vfm_device_open_rank(
	struct vfm_device *d, const char *name, const struct vfm_device_opts *opts, struct vfm_err *err);
void vfm_device_close(struct vfm_device *d);

/* For vfm_version_more (io/version.h).  Returns " cuda" if the plugin file exists, else "".  Does not load the plugin,
 * which would slow down the start of a command. */
const char *vfm_device_features(void);

#endif
