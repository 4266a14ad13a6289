/* gops.h - the differentiable ops.  Each computes immediately and records its adjoint.
 *
 * Shapes are as in device/ops/ops.h.  Gradients of parameters are added in f32 to param->g.  The address of a parameter
 * may change between forward and backward, so ops read w->v in both.  Tensors that are not variables (indices,
 * positions, seqs) must stay alive until the end of the backward.
 */
#ifndef VFM_NET_TAPE_GOPS_H
#define VFM_NET_TAPE_GOPS_H

#include "net/tape/tape.h"
#include "spec/cost/saved.h"

/* y = act(x w^T + b).  x [T,in] may have any dtype and is cast to the dtype of w. */
enum vfm_fp8_tensor { VFM_FP8_X, VFM_FP8_W, VFM_FP8_DY, VFM_FP8_TENSORS };
struct vfm_fp8_past {
	struct vfm_tensor history[VFM_FP8_TENSORS], amax[VFM_FP8_TENSORS]; /* of struct vfm_quant, for each tensor */
	bool filled; /* a step or a checkpoint has filled the histories, so no scale depends on the current tensor */
};
/* A low-rank adapter: y += scale (x a^T) b^T before the activation.  With several blocks of outputs, block i of b's
 * rows multiplies block i of the features x a^T. */
struct vfm_lora_args {
	struct vfm_var *a, *b; /* [blocks * rank, in], [out, rank], the dtype of w; a NULL: no adapter */
	int blocks;
	float scale;
};
struct vfm_linear_args {
	struct vfm_var *w; /* [out,in] */
	struct vfm_var *b; /* [out] f32, or NULL */
	enum vfm_act act;
	enum vfm_dtype out;              /* of y */
	enum vfm_keep keep;              /* the group of y or, with an activation, of its input; 0: VFM_KEEP_OTHER */
	bool few;                        /* vfm_gemm.few, for the forward and for the gradient of x */
	bool fp8;                        /* products in fp8 (gops_fp8.c); in and out are multiples of 16 */
	const struct vfm_fp8_past *past; /* fp8: delayed scaling, alive until the backward; NULL: current scaling */
	struct vfm_lora_args lora;
};
struct vfm_var *vfm_g_linear(struct vfm_tape *t, struct vfm_var *x, const struct vfm_linear_args *args);

/* What a norm computes for linear layers in fp8 that are the only readers of y, in bf16.  The layers' results have the
 * same bits in all cases.
 *
 * - past: quantizes y for the single layer with these filled histories; y then has no memory.
 * - amax: computes the largest element of y, from which these layers derive their scale (current scaling). */
struct vfm_norm_fp8 {
	const struct vfm_fp8_past *past;
	bool amax;
};
/* y = n(x) * weight + bias, or n(x) * (1 + scale[seg]) + shift[seg]. */
struct vfm_norm_args {
	enum vfm_norm_kind kind;
	float eps;
	struct vfm_var *weight, *bias; /* [D] f32, or NULL */
	struct vfm_var *shift, *scale; /* [S,D], may be views; both or none, and not with weight */
	const struct vfm_seqs *seqs;   /* with shift, or with a gate */
	enum vfm_dtype out;            /* of y */
	struct vfm_norm_fp8 fp8;       /* zeros: nothing; ignored unless y is bf16 */
};
struct vfm_var *vfm_g_norm(struct vfm_tape *t, struct vfm_var *x, const struct vfm_norm_args *args);
/* *sum = x + gate[seg] * h (gate NULL: 1); returns the norm of *sum.  It is vfm_g_gate and vfm_g_norm as one op.  The
 * backward is one op, too, if the norm has a gradient. */
struct vfm_var *vfm_g_add_norm(struct vfm_tape *t, struct vfm_var *x, struct vfm_var *h, struct vfm_var *gate,
	const struct vfm_norm_args *args, struct vfm_var **sum);

/* y = x + gate[seg] * h;  gate NULL: x + h. */
struct vfm_var *vfm_g_gate(
	struct vfm_tape *t, struct vfm_var *x, struct vfm_var *h, struct vfm_var *gate, const struct vfm_seqs *seqs);

/* y = x + row, added to each row of x [T,D].  row has D contiguous elements in any shape; its gradient is f32. */
struct vfm_var *vfm_g_add_row(struct vfm_tape *t, struct vfm_var *x, struct vfm_var *row);

/* RMS norm per head (weights [d] or NULL, both or none) and rotation (rope [T,d] f32, absent: none) of q [T,H,d] and,
 * if present, k [T2,Hkv,d], in one op; with rope T2 = T.  Sets y [2] to the results: contiguous tensors, or q and k
 * themselves without norm and rotation. */
struct vfm_qk_args {
	struct vfm_var *q, *k; /* k may be NULL */
	struct vfm_var *weight_q, *weight_k;
	struct vfm_tensor rope;
	float eps;
};
void vfm_g_qk_norm_rope(struct vfm_tape *t, const struct vfm_qk_args *args, struct vfm_var **y);
/* As vfm_g_qk_norm_rope with an RMS norm over all heads of a token, weights [H*d]; rope may also be [T,H,d] if H =
 * Hkv.  Other ranks may have the other heads: `ranks` is their number, each with the same number of heads, and
 * add(group, …) replaces sums [n] f32 by the sums over these ranks. */
struct vfm_row_norm_sums {
	int ranks; /* 1: this rank has all heads */
	int (*add)(void *group, struct vfm_tape *t, struct vfm_tensor sums, bool forward, struct vfm_err *err);
	void *group; /* outlives the tape */
};
void vfm_g_row_norm_rope(
	struct vfm_tape *t, const struct vfm_qk_args *args, const struct vfm_row_norm_sums *sums, struct vfm_var **y);

/* q [Tq,H,d], k, v [Tk,Hkv,d] -> [Tq,H*d].  The output and lse are VFM_KEEP_ATTN. */
struct vfm_var *vfm_g_attn(struct vfm_tape *t, struct vfm_var *q, struct vfm_var *k, struct vfm_var *v,
	const struct vfm_seqs *seqs_q, const struct vfm_seqs *seqs_k, float scale);
/* As vfm_g_attn with another algorithm, such as ring attention.  forward computes a.o and a.lse.  backward adds to the
 * gradients of q, k and v, the variables `in`.  ctx must outlive the backward. */
struct vfm_attn_way {
	int (*forward)(struct vfm_tape *t, const void *ctx, struct vfm_attn a, struct vfm_err *err);
	int (*backward)(struct vfm_tape *t, const void *ctx, struct vfm_attn_bwd a, struct vfm_var *const in[3],
		struct vfm_err *err);
	const void *ctx;
};
/* args has no tensors. */
struct vfm_var *vfm_g_attn_by(struct vfm_tape *t, struct vfm_var *q, struct vfm_var *k, struct vfm_var *v,
	const struct vfm_attn *args, const struct vfm_attn_way *way);

struct vfm_var *vfm_g_act(struct vfm_tape *t, struct vfm_var *x, enum vfm_act act);
struct vfm_var *vfm_g_add(struct vfm_tape *t, struct vfm_var *a, struct vfm_var *b); /* y has the dtype of a */
/* y = x in dtype out; returns x itself if it has that dtype. */
struct vfm_var *vfm_g_cast(struct vfm_tape *t, struct vfm_var *x, enum vfm_dtype out);

/* Sets of rows as one, and back: row i of the whole is row from[k][i] of part k, or not of part k if that is negative.
 * Row i of part k is row at[k][i] of the whole, or not in it if that is negative.  The tensors, i32, live until the
 * backward has passed. */
enum { VFM_ROW_PARTS = 3 };
struct vfm_row_parts {
	int n;
	struct vfm_tensor from[VFM_ROW_PARTS]; /* [rows of the whole] */
	struct vfm_tensor at[VFM_ROW_PARTS];   /* [rows of part k] */
};
/* Returns the whole of the parts [n], which have the same dtype and dimensions but the first. */
struct vfm_var *vfm_g_join_rows(struct vfm_tape *t, struct vfm_var *const *part, const struct vfm_row_parts *p);
/* Returns part k of x.  No other op may read these rows of x. */
struct vfm_var *vfm_g_part_of_rows(struct vfm_tape *t, struct vfm_var *x, int k, const struct vfm_row_parts *p);

/* y[i] = x[index[i]] for index [N] i32 into the rows of x [M,D] or [M,H,d].  An index may repeat; a negative one gives
 * zeros.  The adjoint is index_add. */
struct vfm_var *vfm_g_index_select(struct vfm_tape *t, struct vfm_var *x, struct vfm_tensor index);
/* y [rows,D]: y[m] = sum over the i with index[i] == m of weight[i] x[i], computed in f32.  x [N,D]; weight has N
 * elements f32, or is NULL. */
struct vfm_var *vfm_g_index_add(struct vfm_tape *t, struct vfm_var *x, struct vfm_tensor index, struct vfm_var *weight,
	int64_t rows, enum vfm_dtype out);

/* y = [a | b] in dtype out, for inputs a [T,A] and b [T,B] without gradients. */
struct vfm_var *vfm_g_join_inputs(
	struct vfm_tape *t, const struct vfm_tensor *a, const struct vfm_tensor *b, enum vfm_dtype out);

/* x [T,2F] = [a | b] -> silu(a) b [T,F], dtype of x. */
struct vfm_var *vfm_g_swiglu(struct vfm_tape *t, struct vfm_var *x);

/* table_t[pos[i,0]] + table_h[pos[i,1]] + table_w[pos[i,2]] -> [T,D].  Tables [n,D], of one dtype; pos [T,3] i32. */
struct vfm_var *vfm_g_embed3(struct vfm_tape *t, struct vfm_var *table_t, struct vfm_var *table_h,
	struct vfm_var *table_w, struct vfm_tensor pos, enum vfm_dtype out);

/* ---- mixture of experts (definitions in device/ops/ops.h) ---- */

/* x [T,E] f32 -> softmax(x) by rows. */
struct vfm_var *vfm_g_softmax(struct vfm_tape *t, struct vfm_var *x);
/* score [T,E] -> the weights [T,k] of the k best experts of each token.  Sets *expert [T,k] i32 to these experts, in
 * memory of the tape that lives as long as the open scope.  (For expert choice, call vfm_op_moe_topk_expert on the
 * values of the scores.  vfm_g_index_select on the scores as [T E, 1], with index t E + e, then gives the weights.) */
struct vfm_var *vfm_g_moe_topk_token(struct vfm_tape *t, struct vfm_var *score, int64_t k, struct vfm_tensor *expert);
/* y[rows of g] = act(x w[g]^T + b[g]).  x [N,in] may have any dtype and is cast to the dtype of w; w [G,out,in], b
 * [G,out] f32 or NULL.  No fp8. */
struct vfm_var *vfm_g_grouped_linear(
	struct vfm_tape *t, struct vfm_var *x, const struct vfm_linear_args *args, const struct vfm_seqs *groups);
/* A loss op, like vfm_g_mse: adds to loss (f64 [1], optional); the backward adds the gradient of score.  count [S,E]
 * f32 and coef [S] f32 are as in vfm_moe_balance and have no gradients.  Recompute of a region does not add the loss
 * again. */
int vfm_g_moe_balance(struct vfm_tape *t, struct vfm_var *score, struct vfm_var *count, struct vfm_tensor coef,
	const struct vfm_seqs *seqs, struct vfm_tensor loss);

/* ts [S] f32 -> embedding [S,dim]; no gradient. */
struct vfm_var *vfm_g_timestep(
	struct vfm_tape *t, struct vfm_tensor ts, int64_t dim, float max_period, enum vfm_dtype out);

/* The loss op at the end of a forward: adds to loss (f64 [1]); the backward starts with d loss / d pred. */
int vfm_g_mse(struct vfm_tape *t, struct vfm_var *pred, const struct vfm_mse *args);

#endif
