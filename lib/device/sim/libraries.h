/* libraries.h - the device memory that NVIDIA's libraries take, derived from their sources and not measured on a GPU.
 * The program takes the first three from its pool (vfm_cuda_ws), one for each stream, which grows to the largest; NCCL
 * takes its own, when a communicator is first used in a way.
 *
 * cuBLASLt 13  32 MiB of workspace for a product (cuBLAS documentation, "cublasSetWorkspace", for Hopper and later)
 * cuDNN 9      backward of attention: f32 sums of dq and of the rows of o dout; dq where cuDNN cannot write it in
 *              place; dk and dv of each query head (lib/device/cuda/cudnn_attn.c)
 * convolution  a block of im2col of about 32 MiB, and the workspace of its product (lib/device/cuda/kern/conv.cu)
 * NCCL 2.28    for a connection of a channel buffers of three protocols, 9.19 MiB in pages of 2 MiB; for a network
 *              connection another 8.69 MiB to send; for sums in the switch 2 MiB for each channel and rank of the
 *              node, of 32 at most (init.cc, transport/p2p.cc, net.cc and nvls.cc of its source)
 */
#ifndef VFM_DEVICE_SIM_LIBRARIES_H
#define VFM_DEVICE_SIM_LIBRARIES_H

#include "device/ops/ops.h"

/* Returns the scratch of an op on a CUDA device in bytes; 0: it has none, or some KiB. */
size_t vfm_sim_scratch(enum vfm_op_id op, const void *args);

/* What a communicator is used for. */
struct vfm_sim_nccl {
	int channels;        /* of its collectives: thread blocks */
	int p2p_channels;    /* of messages to a rank of the node: at most 32 */
	int nodes, per_node; /* nodes that it spans, and its ranks on this one */
	bool rings;          /* collectives */
	bool sums;           /* all_reduce: in the switch within a node, by trees across nodes */
	bool in_switch;      /* not on a deterministic device */
	int near_peers;      /* ranks of the node to or from which messages go */
	bool far_messages;   /* messages to other nodes, which share buffers */
};
/* Returns the bytes of a communicator on this rank's device. */
int64_t vfm_sim_nccl_bytes(const struct vfm_sim_nccl *c);

#endif
