/* launch.h - who this process is among those that were started together, and the
 * key-value space through which they find each other.
 *
 * Fillings: a plain start (one rank), `-n N` (local forks), Slurm's PMI2.  Here: the plain start.
 */
#ifndef VFM_LAUNCH_LAUNCH_H
#define VFM_LAUNCH_LAUNCH_H

#include "base/err.h"

struct vfm_launch {
	int rank, size;             /* of the job */
	int local_rank, local_size; /* on this node */
};

/* One rank.  Under a Slurm step of several tasks this is VFM_EUSAGE: each of them would take
 * itself for rank 0 and train alone. */
int vfm_launch_init(struct vfm_launch *l, struct vfm_err *err);

#endif
