#include "train/run/readers.h"

#include "comm/coll/comm.h"
#include "comm/host/comm_host.h"
#include "device/ops/tensor.h"

static int check_ranks(void *ctx, struct vfm_err *err)
{
	return vfm_comm_host_check(ctx, err);
}

int vfm_readers_group(const struct vfm_mesh *mesh, struct vfm_loader_group *g, struct vfm_err *err)
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
	g->lead = mesh->p.pp > 1 ? (int32_t)(2 * mesh->p.pp) : 0;
	if (c->rank == 0)
		at = (int64_t)vfm_shared_reserve(g->mem, vfm_loader_group_bytes());
	TRY(vfm_broadcast(c, NULL, vfm_t1(&at, VFM_I64, 1), 0, err));
	g->at = (uint64_t)at;
	return 0;
}
