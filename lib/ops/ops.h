/* ops.h - the op table: everything that a device must be able to compute.
 *
 * Each op is a struct of operands and a function vfm_op_X(stream, &args, err) that
 * checks shapes and dtypes (VFM_EUSAGE, naming op and operand) and calls the device's
 * filling.  Ops are local: none communicates.
 *
 * Letters: T tokens of a pack, S samples in it, D hidden, H heads, d head dim, F
 * features.  Activations are f32 or bf16, as each struct says; statistics, biases,
 * norm weights and reductions are f32.  Sums are accumulated in f32 or better, in a
 * fixed order for a given shape.  seg[T] gives the sample of a token (ascending);
 * `seqs` gives the same as boundaries.
 *
 * "+=" below: added to what is there.  "=": overwritten.
 *
 * Every dimension may be 0, since a rank may hold no row of a pack: results of no rows are nothing, sums over
 * no rows are zeros where they are "=" and leave "+=" as it is.  S may then still be positive.
 */
#ifndef VFM_OPS_OPS_H
#define VFM_OPS_OPS_H

#include "base/err.h"
#include "base/philox.h"
#include "dev/dev.h"
#include "ops/tensor.h"

/* Boundaries of S samples in a pack of T tokens, on the host and on the device: sample i has the rows
 * [cu[i], cu[i+1]). */
struct vfm_seqs {
	int n;         /* S */
	int64_t total; /* T */
	int64_t max_len;
	const int32_t *cu;        /* [S+1], host memory */
	struct vfm_tensor dev_cu; /* [S+1] i32, device */
	struct vfm_tensor seg;    /* [T] i32, device; absent where the op does not need it */
};

/* Samples that end where the next begin: n, total, max_len and cu [n+1], which the caller keeps alive; all else absent.
 */
void vfm_seqs_init(struct vfm_seqs *q, int n, const int32_t *cu);
/* Returns the number of rows of sample i. */
static inline int64_t vfm_seqs_len(const struct vfm_seqs *q, int i)
{
	return (int64_t)q->cu[i + 1] - q->cu[i];
}

enum vfm_act { VFM_ACT_NONE, VFM_ACT_GELU_TANH, VFM_ACT_SILU };

/* C = epilogue(op(A) op(B)) [+ C].  f32 accumulation.
 * Forward of a linear layer: a = x [T,in], b = weight [out,in] with trans_b.
 * Data gradient: a = dy [T,out], b = weight.  Weight gradient: a = dy [T,out] with trans_a, b = x. */
struct vfm_gemm {
	/* [M,K], or [K,M] with trans_a; f32 or bf16; rows may be strided.  Or fp8: then C is of scale_a scale_b op(A)
	 * op(B) */
	struct vfm_tensor a;
	/* [K,N], or [N,K] with trans_b; dtype of a.  fp8: e4m3 or e5m2, not both e5m2; without a_rowsum */
	struct vfm_tensor b;
	struct vfm_tensor c; /* [M,N]; f32 or bf16; rows may be strided */
	bool trans_a, trans_b;
	bool accumulate; /* C += instead of C = (without act) */
	/* optional [N] f32: added before the activation (a device may round it to the dtype of c first) */
	struct vfm_tensor bias;
	enum vfm_act act;           /* C = act(z), z = op(A) op(B) + bias */
	enum vfm_act dact;          /* C = (op(A) op(B)) * dact'(aux) */
	struct vfm_tensor aux;      /* [M,N], dtype of c.  With act: optional output z.  With dact: input z */
	struct vfm_tensor a_rowsum; /* optional [M] f32 += sum over K of op(A): the bias gradient */
	/* [1] f32 on the device, powers of two (vfm_quant.inv): only, and always, with fp8 */
	struct vfm_tensor scale_a, scale_b;
};

/* x as 8-bit floats for vfm_gemm, and what makes numbers of them again: y = x * scale to nearest even, finite numbers
 * saturate, others become NaN; scale = 2^vfm_f8_exponent of the largest |x|, of this x or, one pass less, of what
 * stands in history (current and delayed scaling: Micikevicius et al., arXiv 2209.05433, section 3.2).  Products of fp8
 * want both operands with K along the rows: yt. */
struct vfm_quant {
	struct vfm_tensor x; /* [T,D] f32 or bf16; rows may be strided */
	struct vfm_tensor y; /* optional [T,D] f8_e4m3 or f8_e5m2 */
	/* optional [D,T'], T' the next multiple of 16, dtype of y: its transpose, zeros behind T.  One of both there is
	 */
	struct vfm_tensor yt;
	/* optional [h] f32 >= 0: largest |x| of earlier times; their maximum gives the scale, where it is 0 this x does
	 */
	struct vfm_tensor history;
	/* [1] f32 = the largest finite |x|.  With history: the larger of that and what is there (>= 0) */
	struct vfm_tensor amax;
	struct vfm_tensor inv;    /* [1] f32 = 1 / scale */
	struct vfm_tensor colsum; /* optional [D] f32 += sum over T of x: the bias gradient */
};

/* A step of n such histories: past[i] = past[i][1:], the largest of parts[:,i] */
struct vfm_amax_push {
	struct vfm_tensor parts; /* [R,n] f32 >= 0; rows may be strided */
	struct vfm_tensor past;  /* [n,h] f32, the oldest first */
};

enum vfm_norm_kind { VFM_NORM_LAYER, VFM_NORM_RMS };

/* y = n(x) * (1 + scale[seg]) + shift[seg], or n(x) * weight + bias; n: layer norm
 * (x - mean) / sqrt(var + eps), or RMS x / sqrt(mean(x^2) + eps). */
struct vfm_norm {
	enum vfm_norm_kind kind;
	float eps;
	struct vfm_tensor x;            /* [T,D] f32 or bf16 */
	struct vfm_tensor y;            /* [T,D] f32 or bf16 */
	struct vfm_tensor weight, bias; /* optional [D] f32 */
	struct vfm_tensor shift, scale; /* optional (both or none) [S,D], f32 or bf16, rows may be strided */
	const struct vfm_seqs *seqs;    /* with shift */
	struct vfm_tensor mean, rstd;   /* optional [T] f32 outputs (no mean for RMS) */
};
struct vfm_norm_bwd {
	enum vfm_norm_kind kind;
	struct vfm_tensor x, dy;          /* [T,D] */
	struct vfm_tensor weight;         /* as in the forward */
	struct vfm_tensor scale;          /* as in the forward */
	const struct vfm_seqs *seqs;      /* with scale */
	struct vfm_tensor mean, rstd;     /* [T] f32, from the forward */
	struct vfm_tensor dx;             /* [T,D] f32 or bf16 */
	bool dx_accumulate;               /* dx += */
	struct vfm_tensor dweight, dbias; /* optional [D] f32 += */
	struct vfm_tensor dshift, dscale; /* optional [S,D] f32, rows may be strided, = */
};

/* y = x + gate[seg] * h (gate absent: 1).  y may be x. */
struct vfm_gate {
	struct vfm_tensor x, y;      /* [T,D] f32 or bf16, the same dtype */
	struct vfm_tensor h;         /* [T,D] f32 or bf16 */
	struct vfm_tensor gate;      /* optional [S,D] f32 or bf16, rows may be strided */
	const struct vfm_seqs *seqs; /* with gate */
};
/* dh = gate[seg] * dy; dgate[s] = sum over the tokens of s of h * dy; dx is dy itself. */
struct vfm_gate_bwd {
	struct vfm_tensor dy, h; /* [T,D] */
	struct vfm_tensor gate;
	const struct vfm_seqs *seqs;
	struct vfm_tensor dh;    /* [T,D], dtype of h, = */
	struct vfm_tensor dgate; /* [S,D] f32, rows may be strided, = */
};

/* Per head: y = rope(x / sqrt(mean(x^2) + eps) * weight).  Either part may be left out.
 * rope rotates the pairs (2i, 2i+1): (a c - b s, a s + b c). */
struct vfm_qk_norm_rope {
	struct vfm_tensor x;      /* [T,H,d] f32 or bf16, rows may be strided */
	struct vfm_tensor y;      /* [T,H,d], dtype of x; may not overlap x */
	struct vfm_tensor weight; /* optional [d] f32: with it x is normalised */
	struct vfm_tensor rope;   /* optional [T,d] f32: cos, sin of pair i at 2i, 2i+1 */
	struct vfm_tensor rstd;   /* [T,H] f32 out, with weight */
	float eps;
};
struct vfm_qk_norm_rope_bwd {
	struct vfm_tensor x, dy; /* [T,H,d] */
	struct vfm_tensor weight, rope, rstd;
	struct vfm_tensor dx;      /* [T,H,d], rows may be strided, = */
	struct vfm_tensor dweight; /* [d] f32 += */
};

/* o = softmax(scale q k^T) v within each sample; not causal.  H is a multiple of Hkv
 * (grouped-query attention).  A sample with no keys gives o = 0, lse = -inf. */
struct vfm_attn {
	struct vfm_tensor q;    /* [Tq,H,d] f32 or bf16, rows may be strided; d <= 128, a multiple of 8 */
	struct vfm_tensor k, v; /* [Tk,Hkv,d], the same */
	struct vfm_tensor o;    /* [Tq,H,d], dtype of q */
	struct vfm_tensor lse;  /* [Tq,H] f32: natural logarithm of the sum of exponentials */
	const struct vfm_seqs *seqs_q, *seqs_k; /* the same number of samples */
	float scale;
};
/* With a global o and lse (ring attention) the gradients are those of this block of keys. */
struct vfm_attn_bwd {
	struct vfm_tensor q, k, v, o, lse, dout;
	struct vfm_tensor dq, dk, dv; /* shapes of q, k, v; rows may be strided; dtype of q or f32; = */
	const struct vfm_seqs *seqs_q, *seqs_k;
	float scale;
};

/* y = act(x); backward y = dy * act'(x) */
struct vfm_unary {
	enum vfm_act act;
	struct vfm_tensor x;  /* any shape, f32 or bf16, contiguous */
	struct vfm_tensor dy; /* absent: forward */
	struct vfm_tensor y;
};

/* y = alpha x + beta y; with beta 0, y is not read (this is also the cast); with alpha 0, x is not. */
struct vfm_axpby {
	float alpha, beta;
	struct vfm_tensor x, y; /* the same shape, f32 or bf16, rows may be strided */
};

/* y = x[0] + x[1] + …, in f32 and in this order: what a reduce-scatter does with the parts of its ranks. */
struct vfm_sum_parts {
	struct vfm_tensor x;   /* [n,L] f32 or bf16; rows may be strided */
	struct vfm_tensor own; /* optional [L], dtype of x: one part more, in front of x[at] */
	int at;                /* of own: 0 to n */
	struct vfm_tensor y;   /* [L] f32 or bf16; may be a row of x, or own, where the dtypes are the same */
};

/* out[s] = [cos(t f_0) ... | sin(t f_0) ...], f_i = max_period^(-i / (F/2)) */
struct vfm_timestep {
	struct vfm_tensor t;   /* [S] f32 */
	struct vfm_tensor out; /* [S,F] f32 or bf16, F even */
	float max_period;
};

/* Noise and target of a diffusion step, for every formulation that is linear in
 * (x0, n):  input = a x0 + b n,  target = c x0 + e n  with n ~ N(0,1) from the stream
 * (seed, step, id[s], VFM_RNG_NOISE), element idx * F + f. */
struct vfm_diffuse {
	uint64_t seed, step;
	struct vfm_tensor x0;   /* [T,F] f32 */
	struct vfm_tensor id;   /* [S] i64: the sample's id as bits */
	struct vfm_tensor idx;  /* [T] i32: the token's place within its sample */
	struct vfm_tensor coef; /* [S,4] f32: a, b, c, e */
	const struct vfm_seqs *seqs;
	struct vfm_tensor input, target; /* [T,F]: f32 or bf16; f32.  target optional */
};

/* loss += sum over tokens of w[seg] mean_f (pred - target)^2
 * sample_loss[s] = sum over its tokens of mean_f (pred - target)^2
 * dpred = 2 w[seg] (pred - target) / F */
struct vfm_mse {
	struct vfm_tensor pred;   /* [T,F] f32 or bf16 */
	struct vfm_tensor target; /* [T,F] f32 */
	struct vfm_tensor w;      /* [S] f32 */
	const struct vfm_seqs *seqs;
	struct vfm_tensor loss;        /* [1] f64 += */
	struct vfm_tensor sample_loss; /* optional [S] f32 = */
	struct vfm_tensor dpred;       /* optional [T,F], dtype of pred, = */
};

/* Decoupled weight decay (Loshchilov & Hutter, 2019):
 * g' = g * grad_scale; m = b1 m + (1-b1) g'; v = b2 v + (1-b2) g'^2
 * p -= lr * wd * p; p -= lr * (m / c1) / (sqrt(v / c2) + eps)    c_i = 1 - b_i^t
 * ema = decay ema + (1 - decay) p; w = p in the compute dtype
 *
 * Split master, 4 bytes a weight instead of 6: p is left out and is kept as w and the 16 bits `lo` below it, exactly
 * (vfm_master_join in spec/dtype.h); w is then p rounded half away from zero.
 * m may be bf16, rounded to nearest: a step changes it by the share 1 - beta1 of what it averages, far more than half
 * a unit of bf16 (2^-9), so that nothing is lost but precision and stochastic rounding is not needed; beta1 > 0.99 is
 * refused. v stays f32: 1 - beta2 lies below that unit. */
struct vfm_adamw {
	float lr, beta1, beta2, eps, wd, c1, c2, ema_decay;
	struct vfm_tensor p;          /* [n] f32; absent: split master */
	struct vfm_tensor m;          /* [n] f32 or bf16 */
	struct vfm_tensor v;          /* [n] f32 */
	struct vfm_tensor g;          /* [n] f32 or bf16 */
	struct vfm_tensor grad_scale; /* optional [1] f32 */
	struct vfm_tensor w;          /* optional [n] bf16, written; with lo: read, too, and not optional */
	struct vfm_tensor lo;         /* [n] i16, where p is absent */
	struct vfm_tensor ema;        /* optional [n] f32 */
};

/* Master weights in two halves (vfm_master_split, spec/dtype.h): x -> (hi, lo), or with join (hi, lo) -> x. */
struct vfm_master {
	bool join;
	struct vfm_tensor x;  /* [n] f32 */
	struct vfm_tensor hi; /* [n] bf16 */
	struct vfm_tensor lo; /* [n] i16 */
};

/* sum[0] += sum of x^2 */
struct vfm_sumsq {
	struct vfm_tensor x;   /* [n] f32 or bf16 */
	struct vfm_tensor sum; /* [1] f64 */
};

/* norm[0] = sqrt(sum[0]); scale[0] = max_norm > 0 && norm > max_norm ? max_norm / norm : 1 */
struct vfm_clip {
	struct vfm_tensor sum;         /* [1] f64 */
	struct vfm_tensor norm, scale; /* [1] f32 */
	float max_norm;                /* <= 0: no clipping */
};

/* x[i] = mean + std * normal(rng, first + i); std 0: constant */
struct vfm_fill {
	struct vfm_tensor x; /* [n] f32 or bf16 */
	struct vfm_rng rng;
	int64_t first;
	float mean, std;
};

/* ---- rows by index ----
 * index: i32 on the device, values in [0, M), which is the caller's to see to; negative: no row.  The CPU refuses
 * others (as it does expert numbers, keys and positions below); a GPU, which cannot say so in time, takes them for
 * none, touches nothing, and fails with VFM_EUSAGE wherever the host next waits for it (stream_sync, event_sync).
 * Tensors of three dimensions [M,H,d] count as rows of D = H d; their heads lie side by side. */

/* y[i] = weight[i] x[index[i]]; zeros where there is no row.  Rows may be taken several times or never. */
struct vfm_index_select {
	struct vfm_tensor x;      /* [M,D] or [M,H,d], f32 or bf16; rows may be strided */
	struct vfm_tensor index;  /* [N] i32 */
	struct vfm_tensor weight; /* optional [N] f32 */
	struct vfm_tensor y;      /* [N,D] or [N,H,d], f32 or bf16; rows may be strided; may not overlap x */
};
/* y[m] (+)= sum over the i with index[i] == m, ascending, of weight[i] x[i], in f32. */
struct vfm_index_add {
	struct vfm_tensor x;      /* [N,D] or [N,H,d], f32 or bf16; rows may be strided */
	struct vfm_tensor index;  /* [N] i32 */
	struct vfm_tensor weight; /* optional [N] f32 */
	struct vfm_tensor y;      /* [M,D] or [M,H,d], f32 or bf16; rows may be strided */
	bool accumulate;          /* y +=; else y = (rows that nothing goes to become zeros) */
};
/* dot[i] = sum over D of x[i] y[index[i]]; 0 where there is no row. */
struct vfm_index_dot {
	struct vfm_tensor x;     /* [N,D], f32 or bf16; rows may be strided */
	struct vfm_tensor y;     /* [M,D], f32 or bf16; rows may be strided */
	struct vfm_tensor index; /* [N] i32 */
	struct vfm_tensor dot;   /* [N] f32 */
};

/* Attention over two disjoint sets of keys becomes attention over both:  l = log(exp(lse) + exp(lse_b)),
 * o = exp(lse - l) o + exp(lse_b - l) o_b, lse = l  (Liu, Zaharia & Abbeel, arXiv 2310.01889).
 * lse = -inf is "no keys": where the running side has none (or `first`), o is not read and becomes o_b. */
struct vfm_attn_merge {
	struct vfm_tensor o;     /* [T,H,d] f32, in and out; rows may be strided */
	struct vfm_tensor lse;   /* [T,H] f32, in and out */
	struct vfm_tensor o_b;   /* [T,H,d] f32 or bf16; rows may be strided */
	struct vfm_tensor lse_b; /* [T,H] f32 */
	bool first;              /* o and lse hold nothing yet */
};

/* y = silu(a) * b, x = [a | b] (Shazeer, arXiv 2002.05202) */
struct vfm_swiglu {
	struct vfm_tensor x; /* [T,2F] f32 or bf16, rows may be strided */
	struct vfm_tensor y; /* [T,F] f32 or bf16, rows may be strided */
};
struct vfm_swiglu_bwd {
	struct vfm_tensor x;  /* [T,2F] */
	struct vfm_tensor dy; /* [T,F] */
	struct vfm_tensor dx; /* [T,2F] f32 or bf16, rows may be strided, = */
};

/* out[i] = table_t[pos[i,0]] + table_h[pos[i,1]] + table_w[pos[i,2]]; positions must lie within the tables. */
struct vfm_embed3 {
	struct vfm_tensor table_t, table_h, table_w; /* [n,D], each with its own n; f32 or bf16, all the same */
	struct vfm_tensor pos;                       /* [T,3] i32 */
	struct vfm_tensor out;                       /* [T,D] f32 or bf16 */
};
struct vfm_embed3_bwd {
	struct vfm_tensor dy;                           /* [T,D] f32 or bf16 */
	struct vfm_tensor pos;                          /* [T,3] i32 */
	struct vfm_tensor dtable_t, dtable_h, dtable_w; /* optional [n,D] f32 += */
};

/* ---- mixture of experts ----
 * E experts.  Which token goes where is a device value; the host may read index lists and counts back (to_host and a
 * sync), as the one exception to its rule, to know the sizes of messages.  grouped_gemm needs its groups on the host.
 */

/* y = softmax of each row; dx = y (dy - sum of y dy) */
struct vfm_softmax {
	struct vfm_tensor x, y; /* [T,E] f32 */
};
struct vfm_softmax_bwd {
	struct vfm_tensor y, dy, dx; /* [T,E] f32; dx = */
};

/* Expert choice (Zhou et al., arXiv 2202.09368) within each sample, so that results do not depend on packing: of a
 * sample of n tokens each expert takes the vfm_moe_expert_capacity(n, E, capacity) with the highest score; ties: the
 * lower token.
 */
struct vfm_moe_topk_expert {
	double capacity;             /* experts a token, on average; > 0 */
	struct vfm_tensor score;     /* [T,E] f32: all tokens of the pack, in its order */
	const struct vfm_seqs *seqs; /* of the whole pack */
	struct vfm_tensor index;     /* [E,K] i32 =: each expert's tokens, ascending; K = vfm_moe_pack_capacity */
	struct vfm_tensor weight;    /* optional [E,K] f32 = score[index[e,i], e] */
};
int64_t vfm_moe_expert_capacity(int64_t n, int64_t experts, double capacity); /* min(n, ceil(n capacity / E)) */
int64_t vfm_moe_pack_capacity(
	const struct vfm_seqs *seqs, int64_t experts, double capacity); /* the sum over the samples */

/* The choices that fell on this rank's part of the pack: by expert, then in the order of index. */
struct vfm_moe_own {
	struct vfm_tensor index; /* [E,K] i32, of moe_topk_expert */
	/* optional [pack] i32: this rank's row of each token; negative: another's.  Absent: they are the same */
	struct vfm_tensor own;
	struct vfm_tensor row; /* [E*K] i32 =: the rows; behind the last of them -1 */
	/* [E*K] i32 = row E + expert: where the score stands among those of this rank; -1 likewise */
	struct vfm_tensor place;
	struct vfm_tensor count; /* [E] i32 =: of each expert */
};

/* Token choice, dropless: the k experts with the highest score, highest first; ties: the lower expert.
 * weight[t,j] = score[t,expert[t,j]] / sum over the k of the same. */
struct vfm_moe_topk_token {
	struct vfm_tensor score;  /* [T,E] f32, positive */
	struct vfm_tensor expert; /* [T,k] i32 = */
	struct vfm_tensor weight; /* [T,k] f32 = */
};
/* dscore[t,expert[t,j]] = (dweight[t,j] - sum over i of weight[t,i] dweight[t,i]) / sum of the k scores; else 0 */
struct vfm_moe_topk_token_bwd {
	struct vfm_tensor score, expert, dweight;
	struct vfm_tensor dscore; /* [T,E] f32 = */
};

/* Stable sort by a small key: order lists the places i of key, first those with key 0, ascending within each key.
 * Negative keys go nowhere: they are not counted, and order ends with their places. */
struct vfm_moe_sort {
	int64_t buckets;           /* E */
	int64_t div;               /* of source; >= 1 */
	struct vfm_tensor key;     /* [N] i32 < E (the CPU refuses others) */
	struct vfm_tensor order;   /* [N] i32 = */
	struct vfm_tensor source;  /* optional [N] i32 = order[i] / div: the token, where key is [T,k] and div is k */
	struct vfm_tensor inverse; /* optional [N] i32 =: order[inverse[i]] = i */
	struct vfm_tensor count;   /* [E] i32 = */
};

/* count[s,e] = how often expert e stands in the rows of sample s */
struct vfm_moe_count {
	struct vfm_tensor expert; /* [T,k] i32; negative: nobody */
	const struct vfm_seqs *seqs;
	struct vfm_tensor count; /* [S,E] f32 = (whole numbers, so that ranks may sum theirs in any order) */
};
/* Load balance (Fedus, Zoph & Shazeer, arXiv 2101.03961) by sample: with count over all ranks that share the sample and
 * coef[s] = w_s alpha E / (n_s^2 k) the sum over them is w_s alpha E sum_e f_e P_e, f_e the share of choices, P_e the
 * mean score. loss += sum over t, e of coef[seg] count[seg,e] score[t,e];  dscore (+)= coef[seg] count[seg,e] */
struct vfm_moe_balance {
	struct vfm_tensor score; /* [T,E] f32 */
	struct vfm_tensor count; /* [S,E] f32 */
	struct vfm_tensor coef;  /* [S] f32 */
	const struct vfm_seqs *seqs;
	struct vfm_tensor loss;   /* optional [1] f64 += */
	struct vfm_tensor dscore; /* optional [T,E] f32 */
	bool accumulate;          /* dscore += */
};

/* G products at once: the rows of A lie in G consecutive groups (any may be empty), each has a B of its own.
 *   VFM_GROUPED_FWD    c[rows of g] = act(a b[g]^T + bias[g])      a [N,K], b [G,O,K], c [N,O]
 *   VFM_GROUPED_DGRAD  c[rows of g] = (a b[g]) * dact'(aux)        a [N,O], b [G,O,K], c [N,K]
 *   VFM_GROUPED_WGRAD  c[g] = a[rows of g]^T b[rows of g]          a [N,O], b [N,K],   c [G,O,K]   (empty group: zeros)
 * Epilogues, dtypes and strides as in vfm_gemm. */
enum vfm_grouped { VFM_GROUPED_FWD, VFM_GROUPED_DGRAD, VFM_GROUPED_WGRAD };
struct vfm_grouped_gemm {
	enum vfm_grouped what;
	const struct vfm_seqs *groups; /* G and N; seg is not needed */
	/* a, b: f32 or bf16, the same; c: f32 or bf16; outer strides as the shape asks, but for rows */
	struct vfm_tensor a, b, c;
	bool accumulate;        /* c += (without act) */
	struct vfm_tensor bias; /* optional, FWD: [G,O] f32 */
	enum vfm_act act;       /* FWD */
	enum vfm_act dact;      /* DGRAD */
	struct vfm_tensor aux;  /* shape and dtype of c.  With act: optional output; with dact: input */
	/* optional, WGRAD: [G,O] f32 += sum over the rows of g of a: the bias gradient */
	struct vfm_tensor a_colsum;
};

#define VFM_OP_LIST(X)                                                                                                 \
	X(gemm)                                                                                                        \
	X(norm)                                                                                                        \
	X(norm_bwd)                                                                                                    \
	X(gate)                                                                                                        \
	X(gate_bwd)                                                                                                    \
	X(qk_norm_rope)                                                                                                \
	X(qk_norm_rope_bwd)                                                                                            \
	X(attn)                                                                                                        \
	X(attn_bwd)                                                                                                    \
	X(unary)                                                                                                       \
	X(axpby)                                                                                                       \
	X(sum_parts)                                                                                                   \
	X(timestep)                                                                                                    \
	X(diffuse)                                                                                                     \
	X(mse)                                                                                                         \
	X(adamw)                                                                                                       \
	X(master)                                                                                                      \
	X(sumsq)                                                                                                       \
	X(clip)                                                                                                        \
	X(fill)                                                                                                        \
	X(index_select)                                                                                                \
	X(index_add)                                                                                                   \
	X(index_dot)                                                                                                   \
	X(attn_merge)                                                                                                  \
	X(swiglu)                                                                                                      \
	X(swiglu_bwd)                                                                                                  \
	X(embed3)                                                                                                      \
	X(embed3_bwd)                                                                                                  \
	X(softmax)                                                                                                     \
	X(softmax_bwd)                                                                                                 \
	X(moe_topk_expert)                                                                                             \
	X(moe_own)                                                                                                     \
	X(moe_topk_token)                                                                                              \
	X(moe_topk_token_bwd)                                                                                          \
	X(moe_sort)                                                                                                    \
	X(moe_count)                                                                                                   \
	X(moe_balance)                                                                                                 \
	X(grouped_gemm)                                                                                                \
	X(quant)                                                                                                       \
	X(amax_push)

enum vfm_op_id {
#define X(name) VFM_OP_##name,
	VFM_OP_LIST(X)
#undef X
		VFM_OP_N
};

/* The table that a device fills.  Its functions may rely on the checks of vfm_op_X. */
struct vfm_ops {
#define X(name) int (*name)(struct vfm_stream * s, const struct vfm_##name *a, struct vfm_err *err);
	VFM_OP_LIST(X)
#undef X
};

#define X(name) int vfm_op_##name(struct vfm_stream *s, const struct vfm_##name *a, struct vfm_err *err);
VFM_OP_LIST(X)
#undef X

/* The work of a call: what `sim` and the benchmarks count.  FLOPs are those of the
 * matrix products (2 a multiply-add); bytes are operands read once and written once. */
struct vfm_cost {
	double flops, bytes;
};
#define X(name) struct vfm_cost vfm_cost_##name(const struct vfm_##name *a);
VFM_OP_LIST(X)
#undef X

#endif
