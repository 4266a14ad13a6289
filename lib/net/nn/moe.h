/* moe.h - mixture of experts: MLPs, with each token dispatched to a few of them.
 *
 *   score = softmax(router(x))                                   [T,E] f32
 *   y[t]  = sum over the experts e of token t: weight[t,e] fc2_e(gelu(fc1_e(x[t])))
 *
 * Expert choice (Zhou et al., arXiv 2202.09368): every expert selects, in each sample of n tokens over all ranks, the
 * ceil(n capacity / E) tokens with the highest scores.  weight is the score.
 *
 * Token choice, dropless: each token selects its `capacity` best experts.  weight is the score divided by the sum of
 * the selected scores.  Each sample has a balance loss (Fedus et al., arXiv 2101.03961): alpha E sum_e f_e P_e, with
 * f_e the fraction of choices that selected e and P_e the mean score.  A sample is weighted by its tokens, as in the
 * main loss.
 *
 * Experts are divided over ep and computed by grouped GEMM.  Each rank dispatches its own rows by all-to-all.
 */
#ifndef VFM_NET_NN_MOE_H
#define VFM_NET_NN_MOE_H

#include "net/nn/layers.h"
#include "spec/model/model.h"

struct vfm_moe {
	struct vfm_linear router;    /* no bias; weight [E,D] */
	struct vfm_param *fc1, *fc2; /* [E,F,D], [E,D,F]; no biases */
	int64_t experts;             /* E */
	double capacity;
	int kind;    /* enum vfm_moe_router */
	uint64_t id; /* of the layer, equal on all ranks */
};
void vfm_moe_declare(struct vfm_moe *e, struct vfm_params *ps, int unit, const struct vfm_model_spec *m,
	const char *prefix); /* "blocks.0.moe" */

/* The routing data of a pack, computed once per pack. */
struct vfm_moe_in {
	const struct vfm_mesh *mesh;
	const struct vfm_seqs *seqs; /* samples in this rank's T rows */
	/* expert choice */
	struct vfm_seqs all;     /* samples in the pack */
	struct vfm_tensor order; /* [pack] i32: index of each row of the pack in the gathered rows; absent: identity */
	int64_t *rows;           /* [cp * tp]: rows of each rank */
	struct vfm_tensor own;   /* [pack] i32: local row, -1: a row of another rank; absent: identity */
	/* token choice */
	struct vfm_tensor coef; /* [S] f32, of vfm_moe_balance; absent: no balance loss */
	struct vfm_tensor loss; /* [1] f64 +=; optional, set by the caller */
	struct vfm_stream *stream;
	void *mem;
	size_t bytes;
};
/* Makes the routing data.  cu [n+1], on the host, has the boundaries of the pack.  seqs and tok must outlive *in.
 * step_tokens 0: no balance loss. */
int vfm_moe_in_make(struct vfm_moe_in *in, struct vfm_stream *s, const struct vfm_mesh *mesh,
	const struct vfm_model_spec *m, const struct vfm_tokens *tok, const struct vfm_seqs *seqs, const int32_t *cu,
	double step_tokens, struct vfm_err *err);
void vfm_moe_in_release(struct vfm_moe_in *in);

/* x [T,D], this rank's rows -> [T,D] of dtype out.  Collective over cp x tp and over ep. */
struct vfm_var *vfm_moe(struct vfm_tape *t, const struct vfm_moe *e, struct vfm_var *x, const struct vfm_moe_in *in,
	enum vfm_dtype out);

#endif
