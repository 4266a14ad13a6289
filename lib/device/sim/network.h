/* network.h - the time of collectives at the rates of a machine.
 *
 * n ranks are on k nodes, at most m on one node.  A ring's bandwidth B is nvlink, or at most m network with several
 * nodes: the ring leaves a node over as many network links as the group has ranks on it.  Bandwidths are those that
 * nccl-tests reports as bus bandwidth.
 *
 * all_gather, reduce_scatter  (n-1)/n bytes / B + latency of a ring: collective + hop (m-2) + network_hop (k-1)
 * all_reduce                  2 (n-1)/n bytes / B + the smaller latency: of two rings, or of a tree over the nodes:
 *                             collective + hop (m-2) + 2 network_hop log2 k
 * broadcast                   bytes / B + latency of a ring
 * messages                    the larger of bytes within the node / nvlink and bytes to other nodes / network, of the
 *                             larger direction, + the latency of one hop
 */
#ifndef VFM_DEVICE_SIM_NETWORK_H
#define VFM_DEVICE_SIM_NETWORK_H

#include <stdint.h>

#include "device/sim/machine.h"

enum vfm_sim_coll { VFM_SIM_ALL_REDUCE, VFM_SIM_ALL_GATHER, VFM_SIM_REDUCE_SCATTER, VFM_SIM_BROADCAST };

/* The placement of a group's ranks on nodes. */
struct vfm_sim_span {
	int ranks, nodes, per_node; /* per_node: maximum on one node */
};
/* rank [n]: ranks of the job, which are placed on nodes in their order. */
struct vfm_sim_span vfm_sim_span_of(const struct vfm_machine *m, const int *rank, int n);

/* bytes: of the whole operand. */
double vfm_sim_coll_s(const struct vfm_machine *m, const struct vfm_sim_span *g, enum vfm_sim_coll kind, double bytes,
	enum vfm_estimate e);
/* near, far: bytes to or from ranks of this node, and of other nodes, in the larger direction. */
double vfm_sim_messages_s(const struct vfm_machine *m, double near, double far, enum vfm_estimate e);
/* VFM_EUSAGE: the machine lacks the rates of several GPUs, or is a CPU that was measured with another number of
 * ranks. */
int vfm_sim_check_ranks(const struct vfm_machine *m, int ranks, struct vfm_err *err);
/* Sets *m to have per_node ranks of a job per node, instead of one for each GPU.  VFM_EUSAGE: a node has fewer GPUs, or
 * the machine is a CPU and the job has several nodes. */
int vfm_sim_set_node(struct vfm_machine *m, int64_t nodes, int64_t per_node, struct vfm_err *err);

#endif
