/* moe.h - a mixture of experts: MLPs of which every token visits a few.
 *
 *   score = softmax(router(x))                                   [T,E] f32
 *   y[t]  = sum over the experts e of token t: weight[t,e] fc2_e(gelu(fc1_e(x[t])))
 *
 * Expert choice (Zhou et al., arXiv 2202.09368): of each sample of n tokens, wherever they lie, every expert takes
 * the ceil(n capacity / E) that score highest; weight is the score.  Token choice, dropless: each token takes its best
 * `capacity` experts; weight is the score over the sum of these scores.  A loss for balance (Fedus et al., arXiv
 * 2101.03961), by sample: alpha E sum_e f_e P_e, f_e the share of choices that fell on e, P_e the mean score; a sample
 * counts by its tokens, as in the loss itself.
 *
 * Experts are cut over ep and computed by grouped GEMM; tokens travel to them by all-to-all, each rank those of its own
 * rows.  Who goes where stays on the device.  How many go to each expert the host reads back, to know the sizes of
 * messages and of products: the one place where it waits within a step; not for expert choice where a rank has its
 * packs and the experts alone, which follows from lengths.  The router's weights have the compute dtype, as all
 * matrices; its products are summed, and scores kept, in f32.
 */
#ifndef VFM_NN_MOE_H
#define VFM_NN_MOE_H

#include "nn/layers.h"
#include "spec/model.h"

struct vfm_moe {
	struct vfm_linear router;    /* no bias; weight [E,D] */
	struct vfm_param *fc1, *fc2; /* [E,F,D], [E,D,F]; no biases */
	int64_t experts;             /* E */
	double capacity;
	int kind; /* enum vfm_moe_router */
};
void vfm_moe_declare(struct vfm_moe *e, struct vfm_params *ps, int unit, const struct vfm_model_spec *m,
	const char *prefix); /* "blocks.0.moe" */

/* What routing needs to know of a pack, made once. */
struct vfm_moe_in {
	const struct vfm_mesh *mesh;
	const struct vfm_seqs *seqs; /* samples in this rank's T rows */
	/* expert choice */
	struct vfm_seqs all; /* samples in the pack */
	struct vfm_tensor
		order; /* [pack] i32: place of each of its rows among those gathered from the ranks; absent: the same */
	int64_t *rows; /* [cp * tp] rows of each rank */
	struct vfm_tensor own; /* [pack] i32: row of this rank; -1: another's; absent: the same */
	/* token choice */
	struct vfm_tensor coef; /* [S] f32, of vfm_moe_balance; absent: no loss */
	struct vfm_tensor loss; /* [1] f64 +=; the caller sets it, or has no interest in the number */
	struct vfm_stream *stream;
	void *mem;
	size_t bytes;
};
/* cu [n+1]: the pack's boundaries, host; seqs and tok must outlive it.  step_tokens 0: no loss. */
int vfm_moe_in_make(struct vfm_moe_in *in, struct vfm_stream *s, const struct vfm_mesh *mesh,
	const struct vfm_model_spec *m, const struct vfm_tokens *tok, const struct vfm_seqs *seqs, const int32_t *cu,
	double step_tokens, struct vfm_err *err);
void vfm_moe_in_release(struct vfm_moe_in *in);

/* x [T,D], this rank's rows -> [T,D] of dtype out.  Collective over cp x tp and over ep. */
struct vfm_var *vfm_moe(struct vfm_tape *t, const struct vfm_moe *e, struct vfm_var *x, const struct vfm_moe_in *in,
	enum vfm_dtype out);

#endif
