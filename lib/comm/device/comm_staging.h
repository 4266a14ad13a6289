/* comm_staging.h - communicators that copy a device's memory through pinned memory, and use the host backend. */
#ifndef VFM_COMM_DEVICE_COMM_STAGING_H
#define VFM_COMM_DEVICE_COMM_STAGING_H

#include "comm/coll/comm.h"

/* Makes the communicator of the same ranks; collective over host.  Arguments and ownership as for vfm_comm_dev_new
 * (comm_dev.h). */
int vfm_comm_staging_new(struct vfm_comm *host, struct vfm_stream *compute, struct vfm_comm **out, struct vfm_err *err);

#endif
