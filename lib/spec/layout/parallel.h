/* parallel.h - the layout of a job over its ranks: the degrees, their constraints, and the coordinates and groups of a
 * rank.  All calls are local; no device.
 *
 * world = pp * dp * cp * tp, tp fastest:  rank = ((pp_i * dp + dp_i) * cp + cp_i) * tp + tp_i.
 * cp_i = ring_i * a2a + a2a_i (hybrid; ring: a2a = 1, a2a: ring = 1).
 * ep divides dp * cp * tp, the ranks of a pp stage, which have different tokens: ep_i = ((dp_i * cp + cp_i) * tp +
 * tp_i) % ep.
 *
 * tp > 1 always implies sequence parallelism: the tokens of the residual stream are sharded over tp.
 */
#ifndef VFM_SPEC_LAYOUT_PARALLEL_H
#define VFM_SPEC_LAYOUT_PARALLEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "io/key.h"
#include "spec/model/model.h"
#include "spec/model/shard.h"

enum vfm_cp_mode { VFM_CP_RING, VFM_CP_A2A, VFM_CP_HYBRID };
enum vfm_pp_schedule { VFM_PP_1F1B, VFM_PP_ZB }; /* 1f1b is interleaved where vpp > 1 */

/* Whether collectives within layers (tp, cp, ep) run on a communication stream and overlap with computation.  auto:
 * only on asynchronous devices. */
enum vfm_overlap { VFM_OVERLAP_AUTO, VFM_OVERLAP_ON, VFM_OVERLAP_OFF };

/* The summation of gradients between nodes (comm/coll/comm_nodes.h).  The ranks of a node always sum in f32. */
enum vfm_grad_reduce { VFM_GRAD_REDUCE_FP32, VFM_GRAD_REDUCE_BF16_INTERNODE };

struct vfm_parallel {
	int64_t tp, cp, pp, ep;
	int64_t dp;  /* 0: world / (tp cp pp) */
	int64_t vpp; /* virtual stages (chunks of layers) per pp stage */
	int cp_mode; /* enum vfm_cp_mode */
	/* hybrid: ranks of the inner all-to-all; 0: the largest number that divides cp and the heads.  Other modes: set
	 * by the check */
	int64_t cp_a2a;
	int schedule;       /* enum vfm_pp_schedule */
	bool fsdp;          /* shards parameters, gradients and optimizer state; all-gathers weights unit by unit */
	bool distopt;       /* shards the optimizer state (ZeRO-1) */
	int64_t shard;      /* number of ranks that fsdp and distopt shard over (hybrid sharding); 0: dp * cp */
	int overlap;        /* enum vfm_overlap */
	int64_t bucket_mib; /* size of the gradient buckets, which the backward reduces as they fill */
	int grad_reduce;    /* enum vfm_grad_reduce */
};

/* The keys of the section "parallel", with their ranges; offsets are those in struct vfm_parallel. */
extern const struct vfm_key vfm_parallel_keys[];
extern const int vfm_parallel_n_keys;

void vfm_parallel_defaults(struct vfm_parallel *p);
/* Checks p for `world` ranks and sets dp, shard and cp_a2a.  VFM_EUSAGE names the key and valid values: "parallel.tp: 4
 * does not divide model.heads 6; 1, 2, 3, 6 would fit". */
int vfm_parallel_check(struct vfm_parallel *p, const struct vfm_model_spec *m, int world, struct vfm_err *err);

/* Appends the degrees above 1 and the modes of parallelism, "tp=2 cp=2 ring fsdp"; appends nothing for one rank. */
void vfm_parallel_text(const struct vfm_parallel *p, struct vfm_buf *out);

/* For all functions below, p must have passed the check. */
void vfm_parallel_coord(const struct vfm_parallel *p, int rank, int coord[VFM_AXES]);
void vfm_parallel_size(const struct vfm_parallel *p, int size[VFM_AXES]);

/* The process groups; net/mesh/mesh.h describes their use.  The first five are in the order of enum vfm_axis. */
enum vfm_group {
	VFM_GR_PP,
	VFM_GR_DP,
	VFM_GR_EP,
	VFM_GR_CP,
	VFM_GR_TP,
	VFM_GR_RING,
	VFM_GR_A2A,  /* cp = ring x a2a */
	VFM_GR_SEQ,  /* cp x tp */
	VFM_GR_DATA, /* dp x cp = replica x shard; rank in it: dp_i * cp + cp_i */
	VFM_GR_SHARD,
	VFM_GR_REPLICA, /* shard: consecutive ranks of data; of size 1 without fsdp and distopt */
	VFM_GR_EDATA,   /* the ranks of a pp stage with the same ep_i, in order */
	VFM_GR_ESHARD,
	VFM_GR_EREPLICA, /* eshard: all of edata where shard is all of data, else gcd(shard, edata) */
	VFM_GROUPS,
};
const char *vfm_group_name(enum vfm_group g); /* "pp" */

/* The group of one kind that a rank belongs to: its size (equal for all groups of the kind), its index among them
 * (color), and the rank's number within it (key). */
struct vfm_place {
	int size, color, key;
};
struct vfm_place vfm_parallel_place(const struct vfm_parallel *p, int rank, enum vfm_group g);

#endif
