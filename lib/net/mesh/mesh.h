/* mesh.h - the coordinates of a rank in the (pp, dp, ep, cp, tp) grid (spec/layout/parallel.h), and its groups.  A mesh
 * lives as long as the job and belongs to one thread.
 */
#ifndef VFM_NET_MESH_MESH_H
#define VFM_NET_MESH_MESH_H

#include "base/mem.h"
#include "comm/coll/comm.h"
#include "comm/coll/comm_nodes.h"
#include "net/tape/tape.h"
#include "spec/layout/parallel.h"
#include "spec/model/shard.h"

enum { VFM_MESH_VIEWS = 10 }; /* parallel.cp is at most 1024 */

struct vfm_mesh {
	struct vfm_parallel p;
	int rank, world_size;
	int size[VFM_AXES], coord[VFM_AXES];
	struct vfm_comm *world;
	/* Groups.  Groups with the same ranks may share a communicator (mesh.c).  group[axis] is the ranks that differ
	 * only in this coordinate (ep: the ranks of an ep block).  group[VFM_AX_DP] is NULL if dp > 1, since nothing
	 * communicates over dp alone. */
	struct vfm_comm *group[VFM_AXES];
	struct vfm_comm *ring, *a2a; /* the two factors of cp */
	struct vfm_comm *seq;        /* cp x tp: all ranks that share a pack; rank in it: cp_i * tp + tp_i */

	/* Groups that reduce gradients.  Dense parameters: dp x cp = replica x shard.  Experts, which are cut over ep:
	 * the ranks of the pp stage with the same ep_i, ereplica x eshard.  Without fsdp and distopt, shard and eshard
	 * have one rank each.  gather and egather have the ranks of shard and eshard, for weights. */
	struct vfm_comm *shard, *replica, *gather;
	struct vfm_comm *eshard, *ereplica, *egather;
	/* With parallel.grad_reduce bf16_internode: the two-level sums of the communicators among shard, replica,
	 * eshard and ereplica that span nodes. */
	struct vfm_comm_nodes nodes[4];
	int n_nodes;

	/* P2p communicators between pp stages, or NULL if pp is 1.  Each has two ranks, one sender (rank 0) and one
	 * receiver (rank 1), for one direction to one neighbour, so that calls on one never block calls on another.
	 * The first pp stage follows the last (interleaving). */
	struct vfm_comm *fwd_out, *fwd_in; /* activations: to the next pp stage, from the previous */
	struct vfm_comm *bwd_out, *bwd_in; /* gradients: to the previous pp stage, from the next */

	struct vfm_comm *tp_param; /* a second tp group, for param_stream */
	struct vfm_comm *save;     /* a second world in host memory, for the thread that writes checkpoints */
	/* host memory: the ranks of this node with the same dp_i, which read the same packs (data/loader/loader.h) */
	struct vfm_comm *readers;

	/* Communication streams.  If a stream is NULL, its collectives run on the compute stream. */
	struct vfm_stream *param_stream; /* reductions of gradients: shard, replica, eshard, ereplica, tp_param */
	/* all-gathers of weights: gather, egather.  NULL without fsdp; they then run on param_stream. */
	struct vfm_stream *gather_stream;
	struct vfm_stream *ring_stream; /* the blocks of ring attention: ring */
	/* collectives within the layers of a pack: tp, cp, a2a, ep (the counts of ep use the compute stream) */
	struct vfm_stream *comm_stream;
	struct vfm_event *comm_ready, *comm_done; /* of comm_stream (overlap.h) */
	struct vfm_stream *send_stream;           /* sends to other pp stages: fwd_out, bwd_out */

	/* [i]: the view with 2^i cp ranks (vfm_mesh_add_views), or NULL */
	struct vfm_mesh *view[VFM_MESH_VIEWS];
};

/* Creates the groups and streams.  p must have passed vfm_parallel_check for the size of world.  world is a
 * communicator for memory of dev (comm_dev.h); so are all groups but save.  The caller owns world and dev, which must
 * outlive the mesh.  Collective. */
int vfm_mesh_init(struct vfm_mesh *m, const struct vfm_parallel *p, struct vfm_comm *world, struct vfm_dev *dev,
	struct vfm_err *err);
/* Returns the static mesh of a single rank (local). */
const struct vfm_mesh *vfm_mesh_one(void);
void vfm_mesh_release(struct vfm_mesh *m);

/* A view is the mesh of the same ranks with a smaller cp, and dp larger by the same factor: it divides the cp ranks of
 * the mesh into groups of neighbours.  It has its own cp groups and borrows everything else.  A pack with few tokens is
 * computed by few ranks on a view.  Parameters belong to the mesh, because their gradients are summed over dp x cp in
 * any case. */

/* Makes the views with 1, 2, 4, ... cp ranks, up to max_cp and below cp, as far as they divide cp.  The mesh owns them.
 * Collective; no-op for existing views. */
int vfm_mesh_add_views(struct vfm_mesh *m, int max_cp, struct vfm_err *err);
/* Returns the view with cp ranks, or the mesh itself if cp is 0 or at least the mesh's cp.  Local. */
const struct vfm_mesh *vfm_mesh_for(const struct vfm_mesh *m, int cp);

/* Returns the two-level sums of gradients over c, or NULL if one call of c sums them (local). */
const struct vfm_comm_nodes *vfm_mesh_nodes(const struct vfm_mesh *m, const struct vfm_comm *c);

/* Appends the table of --print-mesh to out: a header "rank node pp dp cp tp ep ring a2a shard replica", a line "of"
 * with the sizes of these groups, and a line per rank with its rank in each.  node_of [ranks]; NULL: all ranks are on
 * node 0.  Local. */
void vfm_mesh_print(struct vfm_buf *out, const struct vfm_parallel *p, const int *node_of);

#endif
