/* readers.c - joins the ranks that read the same packs, and opens their loader. */
#include "train/run/readers.h"

#include "comm/coll/comm.h"
#include "comm/host/comm_host.h"
#include "device/ops/tensor.h"

static int check_ranks(void *ctx, struct vfm_err *err)
{
	return vfm_comm_host_check(ctx, err);
}

static int join_readers(const struct vfm_mesh *mesh, struct vfm_loader_group *g, struct vfm_err *err)
{
	struct vfm_comm *c = mesh->readers;
	int64_t at = 0;

	*g = (struct vfm_loader_group){.rank = c->rank, .size = c->size};
	if (c->size == 1)
		return 0;
	g->mem = vfm_comm_host_shared(c);
	g->check = check_ranks;
	g->ctx = c;
	/* The first pp stage is ahead of the last by a pack for each pp stage, and with virtual stages by twice as
	 * many. */
	g->extra_depth = mesh->p.pp > 1 ? (int32_t)(2 * mesh->p.pp) : 0;
	if (c->rank == 0)
		at = (int64_t)vfm_shared_reserve(g->mem, vfm_loader_group_bytes());
	TRY(vfm_broadcast(c, NULL, vfm_t1(&at, VFM_I64, 1), 0, err));
	g->at = (uint64_t)at;
	return 0;
}

struct vfm_loader *vfm_readers_open(struct vfm_plan *plan, const struct vfm_config *c, const struct vfm_mesh *mesh,
	const struct vfm_loader_opts *o, struct vfm_err *err)
{
	struct vfm_loader_opts all = *o;
	struct vfm_loader_group group;

	if (join_readers(mesh, &group, err) < 0)
		return NULL;
	all.group = &group;
	all.prefetch = (int32_t)c->data.prefetch;
	all.threads = (int32_t)c->data.threads;
	all.captions = &c->data.captions;
	all.text_len = (int32_t)c->model.text_len;
	all.text2_dim = (int32_t)c->model.text2_dim;
	all.text2_len = (int32_t)vfm_model_text2_cut(&c->model);
	all.rank = (int32_t)mesh->coord[VFM_AX_DP];
	all.world = (int32_t)mesh->p.dp;
	return vfm_loader_open(plan, &all, err);
}

void vfm_readers_size(
	int64_t size[3], const struct vfm_pack *p, const struct vfm_model_spec *m, const struct vfm_geometry *g)
{
	const int32_t *cu = p->cu_seqlens;
	int32_t patch[3];
	int k = 0;

	memset(size, 0, 3 * sizeof(*size));
	if (!p->n || !vfm_geometry_is_known(g))
		return;
	for (int i = 1; i < p->n; i++)
		k = cu[i + 1] - cu[i] > cu[k + 1] - cu[k] ? i : k;
	vfm_model_patch(m, patch);
	size[0] = vfm_geometry_pictures(g, p->grid[k][0] * patch[0]);
	size[1] = (int64_t)p->grid[k][1] * patch[1] * g->stride[1];
	size[2] = (int64_t)p->grid[k][2] * patch[2] * g->stride[2];
}
