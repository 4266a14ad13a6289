/* mesh.h - where a rank stands in the (pp, dp, ep, cp, tp) grid, and its groups.
 *
 * tp varies fastest: rank = ((pp_i * dp + dp_i) * cp + cp_i) * tp + tp_i.  ep cuts the dp x cp ranks.
 */
#ifndef VFM_MESH_MESH_H
#define VFM_MESH_MESH_H

#include "comm/comm.h"
#include "grad/tape.h"
#include "launch/launch.h"
#include "spec/parallel.h"
#include "spec/shard.h"

struct vfm_mesh {
	int size[VFM_AXES], coord[VFM_AXES];
	struct vfm_comm *group[VFM_AXES]; /* the ranks that differ in this coordinate alone */
	struct vfm_comm *world;
};

/* Collective.  p must have passed vfm_parallel_check.  This version has one rank: any degree above 1 is VFM_EUSAGE. */
int vfm_mesh_init(struct vfm_mesh *m, const struct vfm_parallel *p, const struct vfm_launch *l, struct vfm_err *err);

#endif
