/* libraries.c - scratch of cuBLASLt and cuDNN, and buffers of NCCL, in bytes.
 *
 * cuBLASLt 13  32 MiB of workspace per product (cuBLAS documentation, "cublasSetWorkspace", for Hopper and later)
 * cuDNN 9      backward of attention: f32 sums of dq and of the rows of o dout; dq if cuDNN cannot write it in place;
 *              dk and dv of each query head (lib/device/cuda/cudnn_attn.c)
 * convolution  a block of im2col of about 32 MiB, and the workspace of its product (lib/device/cuda/kern/conv.cu)
 * NCCL 2.28    (init.cc, transport/p2p.cc, net.cc and nvls.cc of its source)
 *              per connection of a channel: buffers of three protocols, 9.19 MiB in pages of 2 MiB
 *              per network connection: another 8.69 MiB to send
 *              for sums in the switch: 2 MiB per channel and rank of the node, at most 32 ranks
 */
#include "device/sim/libraries.h"

#include "device/ops/info.h"
#include "device/sim/estimate.h"
#include "device/sim/kernels.h"

enum {
	PRODUCT = 32 << 20,  /* cuBLASLt's workspace */
	EPILOGUE = 64 << 20, /* of an f32 product for an epilogue of ours: at most */
	ROW_SUM_PARTS = 64,  /* that rows are summed in */
	/* of NCCL */
	LL = 8 * 512 * 8 * 16, /* lines of a thread, threads, steps, bytes */
	LL128 = 120 * 640 * 8 * 8,
	SIMPLE = 4 << 20,
	PAGE = 2 << 20,
	NVLS = 8 * (128 << 10), /* steps of a chunk */
	P2P_CHANNELS = 32,
	NVLS_RANKS = 32, /* of a node whose parts of a sum have buffers */
};

/* ---- scratch of ops ---- */

static size_t scratch_of_gemm(const struct vfm_gemm *a)
{
	size_t m = (size_t)a->c.shape[0], n = (size_t)a->c.shape[1], f32 = 4 * m * n;
	size_t sums = vfm_has(&a->a_rowsum) ? 4 * m * ROW_SUM_PARTS : 0, bias = vfm_has(&a->bias) ? 4 * n : 0;
	bool own = a->act == VFM_ACT_SILU || a->dact == VFM_ACT_SILU;

	return PRODUCT + (sums > bias ? sums : bias) + (!own ? 0 : f32 < EPILOGUE ? f32 : EPILOGUE);
}

static size_t scratch_of_conv(const struct vfm_conv3d *a)
{
	size_t block = vfm_sim_conv_direct(a) ? 0 : (size_t)vfm_sim_conv_rows(a) * (size_t)a->weight.shape[1];

	return PRODUCT + block * (size_t)a->weight.shape[2] * vfm_dtype_size(a->x.dtype);
}

/* Returns whether the rows of a tensor [rows, heads, d] have gaps between them. */
static bool has_gaps(const struct vfm_tensor *x)
{
	return x->stride[0] != x->shape[1] * x->shape[2];
}

static size_t scratch_of_attn_bwd(const struct vfm_attn_bwd *a)
{
	size_t rows = (size_t)a->q.shape[0], heads = (size_t)a->q.shape[1], d = (size_t)a->q.shape[2];
	size_t keys = (size_t)a->k.shape[0], groups = heads / (size_t)a->k.shape[1];
	size_t sums = rows * heads * 4, dq = rows * heads * d;

	if (a->q.dtype != VFM_BF16)
		return sums; /* our own kernel */
	return sums + dq * 4 + (has_gaps(&a->dq) ? dq * vfm_dtype_size(a->dq.dtype) : 0) +
		(groups > 1 ? 2 * keys * heads * d * 2 : 0);
}

size_t vfm_sim_scratch(enum vfm_op_id op, const void *args)
{
	const struct vfm_grouped_gemm *grouped = args;

	switch (op) {
	case VFM_OP_gemm:
		return scratch_of_gemm(args);
	case VFM_OP_grouped_gemm:
		return PRODUCT +
			(vfm_has(&grouped->a_colsum) ? (size_t)vfm_numel(&grouped->a_colsum) * ROW_SUM_PARTS * 4 : 0);
	case VFM_OP_conv3d:
		return scratch_of_conv(args);
	case VFM_OP_attn_bwd:
		return scratch_of_attn_bwd(args);
	default:
		return 0;
	}
}

/* ---- NCCL ---- */

static int64_t up_to_pages(int64_t n)
{
	return (n + PAGE - 1) / PAGE * PAGE;
}

int64_t vfm_sim_nccl_bytes(const struct vfm_sim_nccl *c)
{
	int64_t connection = up_to_pages(LL + LL128 + SIMPLE), send = up_to_pages(LL128 + SIMPLE);
	int64_t channels = c->channels, entering = c->nodes > 1 ? (channels + c->per_node - 1) / c->per_node : 0;
	int64_t pairs = c->p2p_channels < P2P_CHANNELS ? c->p2p_channels : P2P_CHANNELS;
	int64_t bytes = 0;

	/* A ring receives from one rank; across nodes some of its channels send over the network, too. */
	if (c->rings || c->sums)
		bytes += channels * connection + entering * send;
	if (c->sums && c->nodes > 1) /* a tree receives from a parent and a child */
		bytes += 2 * channels * connection + entering * send;
	if (c->sums && c->in_switch && c->per_node > 2)
		bytes += 2 * channels * (c->per_node < NVLS_RANKS ? c->per_node : NVLS_RANKS) * NVLS;
	bytes += c->near_peers * pairs * connection;
	if (c->far_messages)
		bytes += 2 * pairs * SIMPLE;
	return bytes;
}
