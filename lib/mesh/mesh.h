/* mesh.h - where a rank stands in the (pp, dp, ep, cp, tp) grid, and its groups.  Coordinates: spec/parallel.h.
 *
 * Lives from the start of the job to its end; belongs to one thread.
 */
#ifndef VFM_MESH_MESH_H
#define VFM_MESH_MESH_H

#include "base/mem.h"
#include "comm/comm.h"
#include "grad/tape.h"
#include "launch/launch.h"
#include "spec/parallel.h"
#include "spec/shard.h"

struct vfm_mesh {
	struct vfm_parallel p;
	int rank, world_size;
	int size[VFM_AXES], coord[VFM_AXES];
	struct vfm_comm *world;
	/* the ranks that differ in this coordinate alone (ep: the ranks of an ep block) */
	struct vfm_comm *group[VFM_AXES];
	struct vfm_comm *ring, *a2a; /* the two factors of cp */
	struct vfm_comm *seq;        /* cp x tp: all ranks that share a pack; rank in it: cp_i * tp + tp_i */

	/* Gradients.  Parameters: over data = dp x cp = replica x shard.  Experts, which are cut over ep: over the
	 * ranks of the stage with the same ep_i, edata = ereplica x eshard.  Without fsdp and distopt, shard and eshard
	 * are groups of one. */
	struct vfm_comm *data, *shard, *replica;
	struct vfm_comm *edata, *eshard, *ereplica;

	/* Messages between stages: a group of two for each direction to each neighbour, so that no order of calls can
	 * block another.  next of the last stage is the first (interleaving).  In each, rank 0 sends and rank 1
	 * receives. NULL where pp is 1. */
	struct vfm_comm *fwd_out, *fwd_in; /* activations: to the next stage, from the previous */
	struct vfm_comm *bwd_out, *bwd_in; /* gradients: to the previous stage, from the next */

	struct vfm_comm *tp_side; /* tp once more, for the gradients' stream */
	struct vfm_comm *save;    /* the world once more, for the thread that writes checkpoints: host memory */

	/* Asynchronous streams, each NULL where nothing needs it (what it would do is then done on the compute stream).
	 */
	/* gradients and the weights of fsdp: shard, replica, eshard, ereplica, tp_side */
	struct vfm_stream *side;
	struct vfm_stream *ring_side; /* the blocks of ring attention: ring */
	/* collectives within the layers of a pack: tp, cp, a2a, ep (whose counts go on the compute stream) */
	struct vfm_stream *comm_stream;
	struct vfm_event *comm_ready, *comm_done; /* of comm_stream (mesh/overlap.h) */
	struct vfm_stream *send_side;             /* what goes to other stages: fwd_out, bwd_out */
};

/* Collective.  p must have passed vfm_parallel_check for world's size.  world, a group that works on dev's memory
 * (comm_dev.h), and dev stay the caller's and must outlive the mesh.  All groups but save are like it. */
int vfm_mesh_init(struct vfm_mesh *m, const struct vfm_parallel *p, struct vfm_comm *world, struct vfm_dev *dev,
	struct vfm_err *err);
/* The mesh of one rank by itself (local).  Static. */
const struct vfm_mesh *vfm_mesh_one(void);
void vfm_mesh_release(struct vfm_mesh *m);

/* A table (--print-mesh): a header "rank node pp dp cp tp ep ring a2a shard replica", a line "of" with the sizes of
 * these groups, then a line a rank with its place in each.  Local arithmetic; node_of may be NULL: all on node 0. */
void vfm_mesh_print(struct vfm_buf *out, const struct vfm_parallel *p, const int *node_of);

#endif
