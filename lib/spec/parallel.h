/* parallel.h - how a job is cut over ranks: the degrees, what they must satisfy, and which
 * coordinates a rank has.  No devices.
 *
 * world = pp * dp * cp * tp, tp fastest:  rank = ((pp_i * dp + dp_i) * cp + cp_i) * tp + tp_i.
 * cp_i = ring_i * a2a + a2a_i (hybrid; ring: a2a = 1, a2a: ring = 1).
 * ep divides dp * cp * tp, the ranks of a stage, among which tokens are always divided:
 * ep_i = ((dp_i * cp + cp_i) * tp + tp_i) % ep.
 *
 * With tp > 1 the residual stream is cut along its tokens over tp (sequence parallelism), always.
 */
#ifndef VFM_SPEC_PARALLEL_H
#define VFM_SPEC_PARALLEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "spec/model.h"
#include "spec/shard.h"

enum vfm_cp_mode { VFM_CP_RING, VFM_CP_A2A, VFM_CP_HYBRID };
enum vfm_pp_schedule { VFM_PP_1F1B, VFM_PP_ZB }; /* 1f1b is interleaved where vpp > 1 */

/* Whether the collectives within the layers (tp, cp, ep) overlap with computing, on a communication stream.  auto: on
 * an asynchronous device. */
enum vfm_overlap { VFM_OVERLAP_AUTO, VFM_OVERLAP_ON, VFM_OVERLAP_OFF };

struct vfm_parallel {
	int64_t tp, cp, pp, ep;
	int64_t dp;  /* 0: world / (tp cp pp) */
	int64_t vpp; /* chunks of layers a stage holds */
	int cp_mode; /* enum vfm_cp_mode */
	/* hybrid: ranks of the inner all-to-all; 0: as many as divide cp and the heads.  Else the check sets it */
	int64_t cp_a2a;
	int schedule;       /* enum vfm_pp_schedule */
	bool fsdp;          /* parameters, gradients and optimizer state sharded; weights gathered a unit at a time */
	bool distopt;       /* optimizer state sharded (ZeRO-1) */
	int64_t shard;      /* ranks over which these two shard (hybrid sharding); 0: all of dp * cp */
	int overlap;        /* enum vfm_overlap */
	int64_t bucket_mib; /* gradients are reduced in buckets of about this size as the backward passes */
};

void vfm_parallel_defaults(struct vfm_parallel *p);
/* Fills dp, shard and cp_a2a.  Every fault names the key and says what would fit:
 * "parallel.tp: 4 does not divide model.heads 6; 1, 2, 3, 6 would fit". */
int vfm_parallel_check(struct vfm_parallel *p, const struct vfm_model_spec *m, int world, struct vfm_err *err);

/* p must have passed the check, here and below. */
void vfm_parallel_coord(const struct vfm_parallel *p, int rank, int coord[VFM_AXES]);
void vfm_parallel_size(const struct vfm_parallel *p, int size[VFM_AXES]);

/* The groups that ranks form; what each is for stands in mesh/mesh.h.  The first are in the order of enum vfm_axis. */
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
	VFM_GR_REPLICA, /* neighbours in data; with neither fsdp nor distopt, shard is 1 */
	VFM_GR_EDATA,   /* the ranks of a stage with the same ep_i, in order */
	VFM_GR_ESHARD,
	VFM_GR_EREPLICA, /* eshard: all of edata where shard is all of data, else gcd(shard, edata) */
	VFM_GROUPS,
};
const char *vfm_group_name(enum vfm_group g); /* "pp" */

/* The group of a kind that a rank is in: its size, the same for all; its number among them; the rank's place in it. */
struct vfm_place {
	int size, color, key;
};
struct vfm_place vfm_parallel_place(const struct vfm_parallel *p, int rank, enum vfm_group g);

#endif
