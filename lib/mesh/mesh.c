#include "mesh/mesh.h"

static void single(struct vfm_mesh *m)
{
	struct vfm_comm *self = vfm_comm_self();

	*m = (struct vfm_mesh){.world_size = 1, .world = self, .ring = self, .a2a = self, .seq = self, .data = self, .shard = self,
		.replica = self, .edata = self, .eshard = self, .ereplica = self, .tp_side = self, .save = self};
	vfm_parallel_defaults(&m->p);
	m->p.dp = m->p.shard = m->p.cp_a2a = 1;
	for (int i = 0; i < VFM_AXES; i++) {
		m->size[i] = 1;
		m->group[i] = self;
	}
}

const struct vfm_mesh *vfm_mesh_one(void)
{
	static struct vfm_mesh one;

	if (!one.world)
		single(&one);
	return &one;
}

int vfm_mesh_init(struct vfm_mesh *m, const struct vfm_parallel *p, struct vfm_comm *world, struct vfm_dev *dev, struct vfm_err *err)
{
	(void)dev;
	if (world->size != 1)
		return vfm_fail(err, VFM_EUSAGE, "this version runs as one rank (job of %d)", world->size);
	single(m);
	m->p = *p;
	return 0;
}

void vfm_mesh_release(struct vfm_mesh *m)
{
	*m = (struct vfm_mesh){0};
}

void vfm_mesh_print(struct vfm_buf *out, const struct vfm_parallel *p, const int *node_of)
{
	(void)out, (void)p, (void)node_of;
}
