/* layers.h - the layers of the models.  Each `declare` function declares the parameters of a layer; each forward calls
 * differentiable ops.
 */
#ifndef VFM_NET_NN_LAYERS_H
#define VFM_NET_NN_LAYERS_H

#include "net/mesh/attn.h"
#include "net/mesh/mops.h"
#include "net/nn/param.h"
#include "spec/cost/saved.h"

/* y = x W^T + b; W [out,in], Xavier normal (Glorot & Bengio 2010), b zero.  Dimensions are global; a rank holds its
 * slice.  Column split: x has all rows, y has this rank's outputs.  Row split: x has this rank's inputs, and y is a
 * partial sum that includes the bias on tp rank 0. */
struct vfm_linear {
	struct vfm_param *w, *b; /* b NULL: no bias */
	bool skip_bias;          /* row split: another rank adds the bias */
	bool few;                /* as in struct vfm_linear_args */
	enum vfm_keep keep;      /* as in struct vfm_linear_args */
	/* The adapter "….lora_A.weight" [groups * rank, in], "….lora_B.weight" [out, rank]; declared if the tuning of
	 * the parameters names the layer (spec/model/tuning.h), else NULL.  Column split: B is split like W, A is
	 * whole.  Row split: A is split like W, B is whole.  The layer's sum over tp therefore includes the adapter. */
	struct vfm_param *lora_a, *lora_b;
	int groups;
};
enum vfm_split { VFM_SPLIT_NONE, VFM_SPLIT_COLUMN, VFM_SPLIT_ROW }; /* over tp; column: by output, row: by input */
struct vfm_linear_desc {
	int unit;
	int64_t in, out;
	enum vfm_split split;
	enum vfm_keep keep; /* as in struct vfm_linear_args */
	int groups;         /* equal blocks of outputs, each split over tp: 3 for a fused qkv; 0 means 1 */
	bool zero;          /* initialised to zero (adaLN-Zero) */
	bool no_bias;
	bool few; /* as in struct vfm_linear_args: a row of x for each sample */
	/* a layer of a block; multiplies in fp8 if vfm_params.fp8 is set and its local dimensions are multiples of
	 * 16 */
	bool fp8;
};
void vfm_linear_declare(struct vfm_linear *l, struct vfm_params *ps, const struct vfm_linear_desc *d,
	const char *name_fmt, ...) __attribute__((format(printf, 4, 5)));
struct vfm_var *vfm_linear(
	struct vfm_tape *t, const struct vfm_linear *l, struct vfm_var *x, enum vfm_act act, enum vfm_dtype out);
/* Several layers with the same input, as one product: y = [layer 0 | layer 1 | …].  The layers are declared one after
 * another, without a split, in one unit; either all or none have a bias. */
struct vfm_linear_stack {
	struct vfm_var *w, *b; /* [sum of out, in], [sum of out]; b NULL: no bias */
	bool few;
};
void vfm_linear_stack(struct vfm_linear_stack *s, const struct vfm_linear *l, int n);
struct vfm_var *vfm_linears(
	struct vfm_tape *t, const struct vfm_linear_stack *s, struct vfm_var *x, enum vfm_dtype out);
/* vfm_linear with the collectives of tensor parallelism (net/mesh/tp_linear.h).  The column-split layer all-gathers the
 * rows of x.  The row-split layer reduce-scatters the rows of y. */
struct vfm_var *vfm_linear_column(struct vfm_tape *t, const struct vfm_linear *l, struct vfm_var *x, enum vfm_act act,
	enum vfm_dtype out, const struct vfm_attn_layout *lay);
struct vfm_var *vfm_linear_row(struct vfm_tape *t, const struct vfm_linear *l, struct vfm_var *x, enum vfm_dtype out,
	const struct vfm_attn_layout *lay);

/* Return the fp8 work of a norm (vfm_norm_args.fp8) whose only readers are this layer, or the first layers of this
 * self-attention and of the MLP, if it is not NULL.  Zeros (no fp8 work) if a layer does not multiply in fp8, and with
 * tp, where a gather comes first. */
struct vfm_self_attn;
struct vfm_mlp;
struct vfm_norm_fp8 vfm_linear_norm(const struct vfm_linear *l, const struct vfm_attn_layout *lay);
struct vfm_norm_fp8 vfm_self_attn_norm(
	const struct vfm_self_attn *a, const struct vfm_mlp *mlp, const struct vfm_attn_layout *lay);

/* Declares a vector of n elements, initialised to one (norm weights) or zero. */
struct vfm_param *vfm_vector_declare(struct vfm_params *ps, int unit, int64_t n, enum vfm_init init,
	const char *name_fmt, ...) __attribute__((format(printf, 5, 6)));

/* Attention.  x and the result are this rank's rows of the residual stream [T,D].  Rows are gathered over tp before the
 * first projection and scattered after the last.  heads and kv_heads are global.  Self-attention has one fused
 * projection "qkv" [3D, D] if kv_heads = heads, otherwise "q" [D, D] and "kv" [2 * kv_heads * d, D]. */
struct vfm_attn_desc {
	int unit;
	int64_t hidden, heads, kv_heads;
	bool qk_norm;
	bool row_qk_norm; /* norms of q and k over all heads; else over each */
	bool no_bias;
	bool no_proj_bias;
	bool image;      /* cross-attention also reads image rows */
	int64_t context; /* cross-attention: features of a text row; 0: hidden */
	float eps;       /* of the norms of q and k */
};
struct vfm_self_attn {
	struct vfm_linear qkv, q, kv, proj;
	struct vfm_param *qn, *kn; /* NULL: no norm */
	bool row_qk_norm;
	int64_t heads, kv_heads, head_dim; /* of this tp rank */
	float eps;
};
void vfm_self_attn_declare(
	struct vfm_self_attn *a, struct vfm_params *ps, const struct vfm_attn_desc *d, const char *prefix);
struct vfm_var *vfm_self_attn(struct vfm_tape *t, const struct vfm_self_attn *a, struct vfm_var *x,
	const struct vfm_attn_layout *l, struct vfm_tensor rope);

/* Self-attention within units (frames, or temporal columns), with the tokens distributed over cp by units
 * (spec/layout/division.h).  Rows are redistributed after the gather over tp, and back before the last projection. */
struct vfm_attn_units {
	struct vfm_redist to_units, from_units;
	struct vfm_seqs seqs;   /* the units of this cp rank, in its rows by units */
	struct vfm_tensor rope; /* [rows by units, head_dim] f32; absent: no rotation */
};
struct vfm_var *vfm_self_attn_units(struct vfm_tape *t, const struct vfm_self_attn *a, struct vfm_var *x,
	const struct vfm_attn_layout *l, const struct vfm_attn_units *u);

/* Cross-attention to the text of the token's sample.  Image rows have their own projection "kv_img" and norm "kn_img".
 * Attention of the same q to them is added before proj (Wan 2.1).  proj is initialised to zero.  text [text rows,
 * context] and image [image rows, D] are the same on all ranks. */
struct vfm_cross_attn {
	struct vfm_linear q, kv, kv_img, proj; /* kv_img.w NULL: no image rows */
	struct vfm_param *qn, *kn, *kn_img;
	bool row_qk_norm;
	int64_t heads, kv_heads, head_dim;
	float eps;
};
void vfm_cross_attn_declare(
	struct vfm_cross_attn *a, struct vfm_params *ps, const struct vfm_attn_desc *d, const char *prefix);
struct vfm_cross_ctx {
	struct vfm_var *text, *image; /* image NULL: none */
	const struct vfm_seqs *text_seqs, *image_seqs;
};
struct vfm_var *vfm_cross_attn(struct vfm_tape *t, const struct vfm_cross_attn *a, struct vfm_var *x,
	const struct vfm_attn_layout *l, const struct vfm_cross_ctx *ctx);

/* y = fc2(gelu(fc1(x))); gated (SwiGLU): y = w2(silu(a) * b), [a | b] = w13(x).  Rows are gathered and scattered over
 * tp as in attention. */
struct vfm_mlp_desc {
	int unit;
	int64_t hidden, ffn;
	bool gated, no_bias;
	bool exact; /* the GELU with the error function; else the tanh approximation */
};
struct vfm_mlp {
	struct vfm_linear in, out; /* named fc1 and fc2, or w13 and w2 */
	bool gated, exact;
};
void vfm_mlp_declare(struct vfm_mlp *m, struct vfm_params *ps, const struct vfm_mlp_desc *d,
	const char *prefix); /* prefix "blocks.0." */
struct vfm_var *vfm_mlp(
	struct vfm_tape *t, const struct vfm_mlp *m, struct vfm_var *x, const struct vfm_attn_layout *l);

/* Joint attention of the streams k = 0, 1, with projections and norms a[k].  x[k] is this rank's rows of a stream, and
 * becomes those of the result.  Only stream 0 rotates.  With mlp, which is not gated, x[k] becomes the sum of attention
 * and mlp(x[k]); their first layers share the gather over tp. */
struct vfm_joint_layout {
	const struct vfm_attn_layout *layers[2], *attn; /* of the rows of each stream; of the sequences of both */
	const struct vfm_row_parts *rows;               /* of the sequences, from both streams */
};
void vfm_joint_attn(struct vfm_tape *t, const struct vfm_self_attn *const a[2], const struct vfm_mlp *mlp,
	struct vfm_var *x[2], const struct vfm_joint_layout *l, struct vfm_tensor rope);

/* ---- positions, computed on the host ---- */

/* 3-D RoPE over each head.  Pair i of an axis with n features rotates by scale * position * theta^(-2i/n).  out [tokens,
 * the sum of features]: cos, sin of each pair. */
void vfm_rope_table(float *out, const int16_t (*pos)[3], int64_t tokens, const struct vfm_rope_axes *r);
/* 3-D RoPE over all heads (LTX-Video, arXiv 2501.00103).  The first D % 6 of the D features do not rotate; the pairs
 * that follow are (frequency 0: t, h, w), (frequency 1: t, h, w), ... With n = D / 6 frequencies, frequency j rotates
 * by pi / 2 theta^(j / (n - 1)) (2 scale position - 1).  out [tokens, width]: features [first, first + width), first
 * even. */
struct vfm_row_rope {
	int64_t hidden, first, width; /* D; the features of this rank */
	double theta, scale[3];       /* of t, h, w */
};
void vfm_row_rope_table(float *out, const int16_t (*pos)[3], int64_t tokens, const struct vfm_row_rope *r);
/* Fixed sine-cosine embedding: D/4 features for t, 3D/8 each for h and w, each [sin | cos]. out [tokens, hidden] */
void vfm_sincos_table(float *out, const int16_t (*pos)[3], int64_t tokens, int64_t hidden);

#endif
