/* libraries.h - the device memory of NVIDIA's libraries, derived from their sources and not measured on a GPU: cuBLASLt
 * 13, cuDNN 9 and NCCL 2.28.
 *
 * The program allocates the workspaces of products, convolutions and attention from its pool (vfm_cuda_ws): one for
 * each stream, which grows to the largest.  NCCL allocates its own memory at the first use of each kind in a
 * communicator.
 */
#ifndef VFM_DEVICE_SIM_LIBRARIES_H
#define VFM_DEVICE_SIM_LIBRARIES_H

#include "device/ops/ops.h"

/* Returns the scratch of an op on a CUDA device in bytes; 0: none, or some KiB. */
size_t vfm_sim_scratch(enum vfm_op_id op, const void *args);

/* The uses of a communicator. */
struct vfm_sim_nccl {
	int channels;        /* thread blocks of its collectives */
	int p2p_channels;    /* of messages to a rank of the node; at most 32 */
	int nodes, per_node; /* nodes that it spans; its ranks on this node */
	bool rings;          /* collectives */
	bool sums;           /* all_reduce: by the switch within a node, by trees across nodes */
	bool in_switch;      /* not on a deterministic device */
	int near_peers;      /* ranks of the node that send or receive messages */
	bool far_messages;   /* messages to other nodes, which share buffers */
};
/* Returns the bytes of a communicator on this rank's device. */
int64_t vfm_sim_nccl_bytes(const struct vfm_sim_nccl *c);

#endif
