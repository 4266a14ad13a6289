#include "mesh/mesh.h"

int vfm_mesh_init(struct vfm_mesh *m, const struct vfm_parallel *p, const struct vfm_launch *l, struct vfm_err *err)
{
	const int64_t degree[VFM_AXES] = {
		[VFM_AX_PP] = p->pp, [VFM_AX_DP] = p->dp, [VFM_AX_EP] = p->ep, [VFM_AX_CP] = p->cp, [VFM_AX_TP] = p->tp};

	*m = (struct vfm_mesh){.world = vfm_comm_self()};
	for (int i = 0; i < VFM_AXES; i++) {
		if (degree[i] != 1)
			return vfm_fail(err, VFM_EUSAGE, "parallel.%s: %lld ranks asked for, but this version runs as one (job of %d)",
				vfm_axis_name((enum vfm_axis)i), (long long)degree[i], l->size);
		m->size[i] = 1;
		m->group[i] = vfm_comm_self();
	}
	return 0;
}
