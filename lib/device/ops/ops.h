/* ops.h - the op table: everything that a device must be able to compute.
 *
 * An op is a struct of operands and a function vfm_op_X(stream, &args, err).  The function checks shapes and dtypes
 * (VFM_EUSAGE names op and operand), then enqueues the work on the stream's device and returns.  Ops are local.
 *
 * Letters: T tokens of a pack, S samples in it, D hidden, H heads, d head dim, F features.  Activations are f32 or
 * bf16, as each struct says; statistics, biases, norm weights and reductions are f32.  Sums are accumulated in f32 or
 * better, in an order that the shape determines.  seg[T] is each token's sample (ascending); `seqs` has the boundaries.
 *
 * "+=" adds to the operand, "=" overwrites it.  Every dimension may be 0, because a rank may hold no rows of a pack.  A
 * sum over no rows is zero for "=" and a no-op for "+=".  S may be positive while T is 0.
 */
#ifndef VFM_DEVICE_OPS_OPS_H
#define VFM_DEVICE_OPS_OPS_H

#include "base/err.h"
#include "base/philox.h"
#include "device/dev/dev.h"
#include "device/ops/tensor.h"

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

/* Initialises samples whose ends are the begins of the next: sets n, total, max_len and cu [n+1], which the caller
 * keeps alive.  Everything else is absent. */
void vfm_seqs_init(struct vfm_seqs *q, int n, const int32_t *cu);
/* Returns the number of rows of sample i. */
static inline int64_t vfm_seqs_len(const struct vfm_seqs *q, int i)
{
	return (int64_t)q->cu[i + 1] - q->cu[i];
}

/* GELU_TANH is the approximation by tanh.  GELU is x Phi(x) with the normal distribution function, only for `unary`. */
enum vfm_act { VFM_ACT_NONE, VFM_ACT_GELU_TANH, VFM_ACT_SILU, VFM_ACT_GELU };

/* C = epilogue(op(A) op(B)) [+ C].  f32 accumulation.
 * Forward of a linear layer: a = x [T,in], b = weight [out,in] with trans_b.
 * Data gradient: a = dy [T,out], b = weight.  Weight gradient: a = dy [T,out] with trans_a, b = x. */
struct vfm_gemm {
	/* [M,K], or [K,M] with trans_a; f32 or bf16; rows may be strided.  With fp8, the product is scale_a scale_b
	 * op(A) op(B) */
	struct vfm_tensor a;
	/* [K,N], or [N,K] with trans_b; dtype of a.  fp8: each is e4m3 or e5m2, not both e5m2; no a_rowsum */
	struct vfm_tensor b;
	struct vfm_tensor c; /* [M,N]; f32 or bf16; rows may be strided */
	bool trans_a, trans_b;
	bool accumulate; /* C += instead of C = (without act) */
	/* The rows are few by nature, such as one a sample.  A backend may then use kernels for few rows, whatever their
	 * number; results of the other kernels are equal to rounding. */
	bool few;
	/* optional [N] f32 or bf16, added before the activation; a backend may round it to the dtype of c first */
	struct vfm_tensor bias;
	/* C = act(z), z = op(A) op(B) + bias; a backend may first round z to the dtype of c, the dtype of aux */
	enum vfm_act act;
	enum vfm_act dact; /* C = (op(A) op(B)) * dact'(aux); a backend may first round the product to the dtype of c */
	struct vfm_tensor aux;      /* [M,N], dtype of c.  With act: optional output z.  With dact: input z */
	struct vfm_tensor a_rowsum; /* optional [M] f32 += sum over K of op(A): the bias gradient */
	/* [1] f32 on the device, powers of two (vfm_quant.inv); required with fp8, absent otherwise */
	struct vfm_tensor scale_a, scale_b;
};

/* Quantizes x to 8-bit floats for vfm_gemm: y = x * scale, rounded to nearest even.  Finite values saturate; NaN and
 * infinity become NaN.  scale = 2^vfm_f8_exponent(amax).
 *
 * - Current scaling: amax is the largest |x|, which costs a pass over x.
 * - Delayed scaling: amax is the maximum of history (Micikevicius et al., arXiv 2209.05433, section 3.2).
 *
 * fp8 GEMMs need K contiguous in both operands; yt provides the transpose. */
struct vfm_quant {
	struct vfm_tensor x; /* [T,D] f32 or bf16; rows may be strided */
	struct vfm_tensor y; /* optional [T,D] f8_e4m3 or f8_e5m2 */
	/* optional [D,T'], dtype of y: its transpose; T' is T rounded up to a multiple of 16, and columns beyond T are
	 * zero.  At least one of y and yt is present */
	struct vfm_tensor yt;
	/* optional [h] f32 >= 0: amax of earlier steps, or amax of x from the op that made it.  The maximum gives the
	 * scale; if it is 0, the largest |x| does */
	struct vfm_tensor history;
	/* [1] f32 = the largest finite |x|.  With history, it is raised to that; the old value is >= 0.  May be
	 * history */
	struct vfm_tensor amax;
	struct vfm_tensor inv;    /* [1] f32 = 1 / scale */
	struct vfm_tensor colsum; /* optional [D] f32 += sum over T of x: the bias gradient */
};

/* y = transpose of the 8-bit floats x, padded with zeros: vfm_quant.yt for an x that was quantized without it. */
struct vfm_transpose8 {
	struct vfm_tensor x; /* [T,D] f8_e4m3 or f8_e5m2 */
	struct vfm_tensor y; /* [D,T'], dtype of x; T' is T rounded up to a multiple of 16 */
};

/* Advances n histories by a step: past[i] = past[i][1:] followed by the maximum of parts[:,i]. */
struct vfm_amax_push {
	struct vfm_tensor parts;      /* [R,n] f32 >= 0: amax of R ranks; rows may be strided */
	struct vfm_tensor past;       /* [n,h] f32, oldest first, in and out */
	struct vfm_tensor grad_scale; /* optional [1] f32; if it is not finite, past stays unchanged */
};

enum vfm_norm_kind { VFM_NORM_LAYER, VFM_NORM_RMS };

/* y = n(s) * (1 + scale[seg]) + shift[seg], or n(s) * weight + bias; n: layer norm
 * (s - mean) / sqrt(var + eps), or RMS s / sqrt(mean(s^2) + eps).
 * s = x; with h, s is the residual sum in front of the norm, s = x + gate[seg] * h (gate absent: 1).  With history, y
 * is rounded to bf16 and then to f8_e4m3 as in vfm_quant, with the scale 2^vfm_f8_exponent(maximum of history), or 1 if
 * the maximum is 0. */
struct vfm_norm {
	enum vfm_norm_kind kind;
	float eps;
	struct vfm_tensor x;            /* [T,D] f32 or bf16 */
	struct vfm_tensor y;            /* [T,D] f32 or bf16; with history f8_e4m3 */
	struct vfm_tensor weight, bias; /* optional [D] f32 */
	struct vfm_tensor shift, scale; /* optional (both or none) [S,D], f32 or bf16, rows may be strided */
	struct vfm_tensor h;            /* optional [T,D] f32 or bf16 */
	struct vfm_tensor gate;         /* optional, with h: [S,D] f32 or bf16, rows may be strided */
	struct vfm_tensor sum;          /* with h: [T,D], dtype of x: s, rounded; may be x */
	const struct vfm_seqs *seqs;    /* with shift or gate */
	struct vfm_tensor mean, rstd;   /* optional [T] f32 outputs (no mean for RMS) */
	struct vfm_tensor history;      /* optional [h] f32 >= 0: amax of y in earlier steps */
	struct vfm_tensor inv;          /* with history: [1] f32 = 1 / scale */
	/* optional [1] f32 >= 0, raised to the largest finite |y|; with history, y as rounded to bf16 */
	struct vfm_tensor amax;
};
/* dx is the gradient of s.  With dh, also computes
 *
 *   dh = gate[seg] * dx
 *   dgate[s] = sum over the tokens of s of h * dx
 *   dh_sum += sum over T of dh, the bias gradient of the linear layer that made h
 *
 * from dx before it is rounded. */
struct vfm_norm_bwd {
	enum vfm_norm_kind kind;
	struct vfm_tensor x, dy;          /* [T,D]; x is s */
	struct vfm_tensor weight;         /* as in the forward */
	struct vfm_tensor scale;          /* as in the forward */
	struct vfm_tensor h, gate;        /* as in the forward; h only with dgate, and gate only with dh */
	const struct vfm_seqs *seqs;      /* with scale or gate */
	struct vfm_tensor mean, rstd;     /* [T] f32, from the forward */
	struct vfm_tensor dx;             /* [T,D] f32 or bf16 */
	bool dx_accumulate;               /* dx +=: it contains the gradients from the other readers of s */
	struct vfm_tensor dweight, dbias; /* optional [D] f32 += */
	struct vfm_tensor dshift, dscale; /* optional [S,D] f32, rows may be strided, = */
	struct vfm_tensor dh;             /* optional [T,D] f32 or bf16, dtype of h if h is present, = */
	struct vfm_tensor dgate;          /* optional, with gate: [S,D] f32, rows may be strided, = */
	struct vfm_tensor dh_sum;         /* optional, with dh: [D] f32 += */
};

/* y = x + gate[seg] * h (gate absent: 1).  y may be x. */
struct vfm_gate {
	struct vfm_tensor x, y;      /* [T,D] f32 or bf16, the same dtype */
	struct vfm_tensor h;         /* [T,D] f32 or bf16 */
	struct vfm_tensor gate;      /* optional [S,D] f32 or bf16, rows may be strided */
	const struct vfm_seqs *seqs; /* with gate */
};
/* dh = gate[seg] * dy; dgate[s] = sum over the tokens of s of h * dy; dh_sum += sum over T of dh; dx is dy itself. */
struct vfm_gate_bwd {
	struct vfm_tensor dy, h; /* [T,D]; h only with dgate */
	struct vfm_tensor gate;
	const struct vfm_seqs *seqs;
	struct vfm_tensor dh;     /* [T,D], dtype of h, = */
	struct vfm_tensor dgate;  /* optional [S,D] f32, rows may be strided, = */
	struct vfm_tensor dh_sum; /* optional [D] f32 += */
};

/* y = x + row, added to each row of x.  y may be x. */
struct vfm_add_row {
	struct vfm_tensor x;   /* [T,D] f32 or bf16 */
	struct vfm_tensor row; /* [D] f32 or bf16 */
	struct vfm_tensor y;   /* [T,D], dtype of x */
};
/* drow += sum over T of dy; dx is dy itself. */
struct vfm_add_row_bwd {
	struct vfm_tensor dy;   /* [T,D] f32 or bf16 */
	struct vfm_tensor drow; /* [D] f32 += */
};

/* Per head: y = rope(x / sqrt(mean(x^2) + eps) * weight).  The norm and the rotation are each optional.
 * rope rotates the pairs (2i, 2i+1): (a c - b s, a s + b c). */
struct vfm_qk_norm_rope {
	struct vfm_tensor x;      /* [T,H,d] f32 or bf16, rows may be strided */
	struct vfm_tensor y;      /* [T,H,d], dtype of x; may not overlap x */
	struct vfm_tensor weight; /* optional [d] f32; absent: no norm */
	struct vfm_tensor rope;   /* optional [T,d] f32: cos, sin of pair i at 2i, 2i+1; absent: no rotation */
	struct vfm_tensor rstd;   /* [T,H] f32 out, with weight */
	float eps;
	/* Optional: a second tensor of the same d and dtype (k with q), [T2,H2,d].  weight2 and rstd2 are present if
	 * weight is, and rope2 [T2,d] if rope is. */
	struct vfm_tensor x2, y2, weight2, rope2, rstd2;
};
struct vfm_qk_norm_rope_bwd {
	struct vfm_tensor x, dy; /* [T,H,d] */
	struct vfm_tensor weight, rope, rstd;
	struct vfm_tensor dx;      /* [T,H,d], rows may be strided, = */
	struct vfm_tensor dweight; /* [d] f32 += */
	/* Optional, as in the forward; dy2 has the dtype of dy. */
	struct vfm_tensor x2, dy2, weight2, rope2, rstd2, dx2, dweight2;
};
/* Return the arguments for the second tensor alone.  Its x (dy) is absent if there is none. */
static inline struct vfm_qk_norm_rope vfm_qk_second(const struct vfm_qk_norm_rope *a)
{
	struct vfm_qk_norm_rope b = *a;

	b.x = a->x2, b.y = a->y2, b.weight = a->weight2, b.rope = a->rope2, b.rstd = a->rstd2;
	b.x2.ndim = b.y2.ndim = b.weight2.ndim = b.rope2.ndim = b.rstd2.ndim = 0;
	return b;
}
static inline struct vfm_qk_norm_rope_bwd vfm_qk_second_bwd(const struct vfm_qk_norm_rope_bwd *a)
{
	struct vfm_qk_norm_rope_bwd b = *a;

	b.x = a->x2, b.dy = a->dy2, b.weight = a->weight2, b.rope = a->rope2, b.rstd = a->rstd2;
	b.dx = a->dx2, b.dweight = a->dweight2;
	b.x2.ndim = b.dy2.ndim = b.weight2.ndim = b.rope2.ndim = b.rstd2.ndim = b.dx2.ndim = b.dweight2.ndim = 0;
	return b;
}

/* out[t] = sum over h, i of x[t,h,i] y[t,h,i] */
struct vfm_row_dot {
	struct vfm_tensor x;   /* [T,H,d] f32 or bf16, rows may be strided */
	struct vfm_tensor y;   /* optional, the same; absent: x */
	struct vfm_tensor out; /* [T] f32 = */
};
/* Returns the period of the table of vfm_row_norm_rope: feature c of a token, of H*d, uses the angles of feature c
 * modulo this number. */
static inline int64_t vfm_rope_width(const struct vfm_tensor *rope)
{
	return rope->ndim == 3 ? rope->shape[1] * rope->shape[2] : rope->shape[1];
}
/* RMS norm over all heads of a token, and the rotation of vfm_qk_norm_rope:
 *   y = rope(x rstd[t] weight),  rstd = 1 / sqrt(sumsq / width + eps)
 * Under tensor parallelism a rank holds some of the heads; sumsq is the sum over all ranks. */
struct vfm_row_norm_rope {
	struct vfm_tensor x;      /* [T,H,d] f32 or bf16, rows may be strided */
	struct vfm_tensor y;      /* [T,H,d], dtype of x; may not overlap x */
	struct vfm_tensor weight; /* [H*d] f32 */
	struct vfm_tensor rope;   /* optional [T,d] f32, or [T,H,d]: each head has its own angles */
	struct vfm_tensor sumsq;  /* [T] f32: row_dot of x, summed over the ranks */
	int64_t width;            /* features of a row on all ranks */
	float eps;
};
struct vfm_row_norm_rope_bwd {
	struct vfm_tensor x, dy; /* [T,H,d] f32 or bf16, rows may be strided */
	struct vfm_tensor weight, rope, sumsq;
	struct vfm_tensor dot;     /* [T] f32: row_dot of dy and y, summed over the ranks */
	struct vfm_tensor dx;      /* [T,H,d] f32 or bf16, rows may be strided, = */
	struct vfm_tensor dweight; /* optional [H*d] f32 += */
	int64_t width;
	float eps;
};

/* o = softmax(scale q k^T) v within each sample; not causal.  H is a multiple of Hkv (grouped-query attention).
 * A sample without keys gives o = 0 and lse = -inf. */
struct vfm_attn {
	struct vfm_tensor q;    /* [Tq,H,d] f32 or bf16, rows may be strided; d <= 128, a multiple of 8 */
	struct vfm_tensor k, v; /* [Tk,Hkv,d], the same */
	struct vfm_tensor o;    /* [Tq,H,d], dtype of q */
	struct vfm_tensor lse;  /* [Tq,H] f32: natural logarithm of the sum of exponentials */
	const struct vfm_seqs *seqs_q, *seqs_k; /* the same number of samples */
	float scale;
};
/* With o and lse of all keys (ring attention), the results are the gradients for this block of keys. */
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

/* y = alpha x + beta y.  Does not read y if beta is 0, nor x if alpha is 0.  Casts use alpha 1, beta 0. */
struct vfm_axpby {
	float alpha, beta;
	struct vfm_tensor x, y; /* the same shape, f32 or bf16, rows may be strided */
};

/* y = x[0] + x[1] + …, in f32 and in this order: the local sum of a reduce-scatter. */
struct vfm_sum_parts {
	struct vfm_tensor x;   /* [n,L] f32 or bf16; rows may be strided */
	struct vfm_tensor own; /* optional [L], dtype of x: one more part, which precedes x[at] */
	int at;                /* position of own: 0 to n */
	struct vfm_tensor y;   /* [L] f32 or bf16; may be a row of x, or own, if the dtypes are equal */
};

/* out[s] = [cos(t f_0) ... | sin(t f_0) ...], f_i = max_period^(-i / (F/2)) */
struct vfm_timestep {
	struct vfm_tensor t;   /* [S] f32 */
	struct vfm_tensor out; /* [S,F] f32 or bf16, F even */
	float max_period;
};

/* Input and target of a diffusion step, for every formulation that is linear in (x0, n):  input = a x0 + b n,
 * target = c x0 + e n.  n ~ N(0,1) is element idx * F + f of the stream (seed, step, id[s], VFM_RNG_NOISE). */
struct vfm_diffuse {
	uint64_t seed, step;
	struct vfm_tensor x0;   /* [T,F] f32, bf16 or f16 */
	struct vfm_tensor id;   /* [S] i64: the sample's id as bits */
	struct vfm_tensor idx;  /* [T] i32: the token's index within its sample */
	struct vfm_tensor coef; /* [S,4] f32: a, b, c, e */
	const struct vfm_seqs *seqs;
	struct vfm_tensor input, target; /* [T,F]: f32 or bf16; f32.  target optional */
};

/* loss += sum over tokens of w[seg] mean_f (pred - target)^2
 * unweighted += sum over tokens of mean_f (pred - target)^2
 * sample_loss[s] = sum over its tokens of mean_f (pred - target)^2
 * dpred = 2 w[seg] (pred - target) / F */
struct vfm_mse {
	struct vfm_tensor pred;   /* [T,F] f32 or bf16 */
	struct vfm_tensor target; /* [T,F] f32 */
	struct vfm_tensor w;      /* [S] f32 */
	const struct vfm_seqs *seqs;
	struct vfm_tensor loss;        /* [1] f64 += */
	struct vfm_tensor unweighted;  /* optional [1] f64 += */
	struct vfm_tensor sample_loss; /* optional [S] f32 = */
	struct vfm_tensor dpred;       /* optional [T,F], dtype of pred, = */
};

/* Decoupled weight decay (Loshchilov & Hutter, 2019):
 * g' = g * grad_scale; m = b1 m + (1-b1) g'; v = b2 v + (1-b2) g'^2
 * p -= lr * wd * p; p -= lr * (m / c1) / (sqrt(v / c2) + eps)    c_i = 1 - b_i^t
 * ema = decay ema + (1 - decay) p; w = p in the compute dtype
 *
 * Split master weights take 4 bytes a weight instead of 6: p is absent, and w and p_lo hold its upper and lower 16 bits
 * exactly (vfm_master_join in spec/model/dtype.h).  w is then p rounded half away from zero.
 *
 * m may be bf16, rounded to nearest.  A step changes m by the fraction 1 - beta1, far more than half a unit of bf16
 * (2^-9), so it needs no stochastic rounding; beta1 > 0.99 is an error.  v is f32, because 1 - beta2 is below that
 * unit.
 *
 * If grad_scale is not finite, the step is skipped and all operands keep their bits. */
struct vfm_adamw {
	float lr, beta1, beta2, eps, wd, c1, c2, ema_decay;
	struct vfm_tensor p;          /* [n] f32; absent: split master weights */
	struct vfm_tensor m;          /* [n] f32 or bf16 */
	struct vfm_tensor v;          /* [n] f32 */
	struct vfm_tensor g;          /* [n] f32 or bf16 */
	struct vfm_tensor grad_scale; /* optional [1] f32 */
	struct vfm_tensor w;          /* optional [n] bf16, written; with p_lo it is required and also read */
	struct vfm_tensor p_lo;       /* [n] i16; only if p is absent */
	struct vfm_tensor ema;        /* optional [n] f32 */
};

/* Splits master weights, x -> (hi, lo), or restores them with `join`, (hi, lo) -> x (vfm_master_split,
 * spec/model/dtype.h). */
struct vfm_split_master {
	bool join;
	struct vfm_tensor x;  /* [n] f32 */
	struct vfm_tensor hi; /* [n] bf16 */
	struct vfm_tensor lo; /* [n] i16 */
};

/* Converts x to block-wise 8-bit floats, or back (dynamic8.h).  Block b is the elements [256 b - first, 256 (b + 1) -
 * first) of x.  Each code is the value nearest to y = x / scale in f32, so all devices produce the same codes. */
struct vfm_block8 {
	bool back;
	bool is_signed;          /* else x < 0 becomes 0 */
	int64_t first;           /* position of x[0] in its block; 0 unless back */
	struct vfm_tensor x;     /* [n] f32 */
	struct vfm_tensor code;  /* [n] u8 */
	struct vfm_tensor scale; /* [ceil((first + n) / 256)] f32 */
};

/* Converts x to MXFP8, or back (OCP Microscaling Formats 1.0, 2023): e4m3 in blocks of VFM_MX_BLOCK elements of a row,
 * each with a power of two as its scale, x = 2^(scale - 127) code.  The scale comes from vfm_f8_exponent(amax), so no
 * finite element saturates.  Elements are rounded to nearest even; NaN and infinity become NaN.  Dequantized values are
 * exact in bf16 and quantize to the same values. */
enum { VFM_MX_BLOCK = 32 };
struct vfm_mxfp8 {
	bool back;
	struct vfm_tensor x; /* [R,n] f32 or bf16; n is a multiple of 32 */
	/* [R,n] f8_e4m3; rows may be strided by a multiple of 16, from an address that is a multiple of 16 */
	struct vfm_tensor code;
	struct vfm_tensor scale; /* [R,n/32] u8 <= 254; rows may be strided */
};

enum vfm_weight_code { VFM_WEIGHTS_INT8, VFM_WEIGHTS_NF4 };
enum { VFM_NF4_BLOCK = 64, VFM_NF4_GROUP = 256 /* blocks with one scale */ };

/* Rows of a matrix, or of the columns of it that a rank has, in a flat array.  Element e of the array is in row
 * (e - begin) / cols and column (e - begin) % cols of the segment.  Its rows may begin before the array or end behind
 * it. */
struct vfm_weight_segment {
	int64_t begin, rows, cols; /* begin is a multiple of 32, for NF4 of 64; cols of 64 */
	/* INT8: e is in row first + row * pitch of the matrix; NF4: in its block first + row * pitch + column / 64 */
	int64_t first, pitch;
	int64_t base; /* of the scales of the matrix: INT8 has scale[base + row], NF4 scale[base + block / 256] */
};

/* Decodes frozen weights of a flat array, whose element e is x[e / n][e % n].  Segments ascend and do not overlap;
 * elements outside all of them become 0.
 *
 *   INT8  x = code * scale * (1 / 127); scale is the absmax of the row (int8_vectorwise_dequant of bitsandbytes;
 *         Dettmers et al. 2022, arXiv 2208.07339)
 *   NF4   x = nf4[code] * (value[absmax] * scale + offset) (Dettmers et al. 2023, arXiv 2305.14314, in the form of
 *         bitsandbytes); weight_code.h has both tables
 *
 * Each operation rounds to f32, from left to right, then x is rounded to nearest even.  All devices give the same bits,
 * also of a part of a matrix.
 *
 * A row, block or scale out of range is an error of the caller, reported as for "rows by index" below; a GPU then
 * stores 0.  Only the CPU checks the other rules for segments. */
struct vfm_decode_weights {
	int format;          /* enum vfm_weight_code */
	struct vfm_tensor x; /* [shards,n] f32 or bf16, written; n is a multiple of 512 */
	/* [shards,n] u8, the bits of int8; NF4: [shards,n/2], two elements a byte, the first in the upper 4 bits.  Rows
	 * may be strided by a multiple of 8, from an address that is a multiple of 8 */
	struct vfm_tensor code;
	struct vfm_tensor absmax;  /* NF4: [shards,n/64] u8; rows may be strided */
	struct vfm_tensor segment; /* [segments,6] i64: struct vfm_weight_segment */
	struct vfm_tensor scale;   /* [scales] f32 */
	struct vfm_tensor offset;  /* NF4: [segments] f32 */
};

/* sum[0] += sum of x^2 */
struct vfm_sumsq {
	struct vfm_tensor x;   /* [n] f32 or bf16 */
	struct vfm_tensor sum; /* [1] f64 */
};

/* norm[0] = sqrt(sum[0]); scale[0] = max_norm > 0 && norm > max_norm ? max_norm / norm : 1.  scale is NaN if norm or
 * loss is not finite. */
struct vfm_clip {
	struct vfm_tensor sum;         /* [1] f64 */
	struct vfm_tensor loss;        /* optional [1] f64 */
	struct vfm_tensor norm, scale; /* [1] f32 */
	float max_norm;                /* <= 0: no clipping */
};

/* x[i] = mean + std * normal(rng, first + i); std 0 gives a constant.  base/philox.h defines the bits of the
 * normals. */
struct vfm_fill {
	struct vfm_tensor x; /* [n] f32 or bf16 */
	struct vfm_rng rng;
	int64_t first;
	float mean, std;
};

/* ---- rows by index ----
 *
 * index: i32 on the device, in [0, M); negative means "no row".  An index of M or more is an error of the caller, and
 * so are expert numbers, keys and positions out of range below.  The CPU returns VFM_EUSAGE at once.  A GPU treats the
 * index as "no row", and the host's next wait for the GPU (stream_sync, event_sync) returns VFM_EUSAGE.  A tensor
 * [M,H,d] has rows of D = H d elements; its heads are contiguous. */

/* y[i] = weight[i] x[index[i]]; zeros for "no row", or with `keep` the row as it is.  An index may repeat. */
struct vfm_index_select {
	struct vfm_tensor x;      /* [M,D] or [M,H,d], f32 or bf16; rows may be strided */
	struct vfm_tensor index;  /* [N] i32 */
	struct vfm_tensor weight; /* optional [N] f32 */
	struct vfm_tensor y;      /* [N,D] or [N,H,d], f32 or bf16; rows may be strided; may not overlap x */
	bool keep;
};
/* y[m] (+)= sum over the i with index[i] == m, ascending, of weight[i] x[i], in f32. */
struct vfm_index_add {
	struct vfm_tensor x;      /* [N,D] or [N,H,d], f32 or bf16; rows may be strided */
	struct vfm_tensor index;  /* [N] i32 */
	struct vfm_tensor weight; /* optional [N] f32 */
	struct vfm_tensor y;      /* [M,D] or [M,H,d], f32 or bf16; rows may be strided */
	bool accumulate;          /* y +=; else y =, and rows without an index become zeros */
};
/* dot[i] = sum over D of x[i] y[index[i]]; 0 for "no row". */
struct vfm_index_dot {
	struct vfm_tensor x;     /* [N,D], f32 or bf16; rows may be strided */
	struct vfm_tensor y;     /* [M,D], f32 or bf16; rows may be strided */
	struct vfm_tensor index; /* [N] i32 */
	struct vfm_tensor dot;   /* [N] f32 */
};

/* Merges attention over two disjoint sets of keys:  l = log(exp(lse) + exp(lse_b)),
 * o = exp(lse - l) o + exp(lse_b - l) o_b, lse = l  (Liu, Zaharia & Abbeel, arXiv 2310.01889).
 * lse = -inf means "no keys": o is then not read and becomes o_b. */
struct vfm_attn_merge {
	struct vfm_tensor o;     /* [T,H,d] f32, in and out; rows may be strided */
	struct vfm_tensor lse;   /* [T,H] f32, in and out */
	struct vfm_tensor o_b;   /* [T,H,d] f32 or bf16; rows may be strided */
	struct vfm_tensor lse_b; /* [T,H] f32 */
	bool first;              /* o and lse are uninitialized: as if lse = -inf */
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

/* y = gelu(a) * b, x = [a | b], gelu by tanh (Shazeer, arXiv 2002.05202); forward only */
struct vfm_geglu {
	struct vfm_tensor x; /* [T,2F] f32 or bf16, rows may be strided */
	struct vfm_tensor y; /* [T,F] f32 or bf16, rows may be strided */
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

/* ---- encoders: forward only; frames are channels last ---- */

/* y = act(n(x) weight + bias) over the C channels of N pixels a frame.
 * RMS: n(x) = x sqrt(C) / max(|x|_2, eps) over the channels of a pixel.
 * MEAN_SQUARE: n(x) = x / sqrt(mean(x^2) + eps) over the channels of a pixel (Zhang & Sennrich, arXiv 1910.07467).
 * GROUP: n(x) = (x - mean) / sqrt(var + eps) over the pixels of a frame and the C / groups channels of a group (Wu &
 * He, arXiv 1803.08494). */
enum vfm_channel_norm_kind { VFM_CHANNEL_NORM_RMS, VFM_CHANNEL_NORM_GROUP, VFM_CHANNEL_NORM_MEAN_SQUARE };
struct vfm_channel_norm {
	enum vfm_channel_norm_kind kind;
	int groups; /* GROUP: a divisor of C; else 0 */
	float eps;
	enum vfm_act act;         /* NONE or SILU */
	struct vfm_tensor x;      /* [T,N,C] f32 or bf16 */
	struct vfm_tensor weight; /* [C] f32 */
	struct vfm_tensor bias;   /* optional [C] f32 */
	struct vfm_tensor y;      /* [T,N,C], dtype of x; may be x */
};

/* Nearest neighbours, height and width doubled: y[t,h,w] = x[t,h/2,w/2] */
struct vfm_upsample {
	struct vfm_tensor x; /* [T,H,W,C] f32 or bf16 */
	struct vfm_tensor y; /* [T,2H,2W,C], dtype of x */
};

/* Attention with a bias by the distance of key and query (T5: Raffel et al., arXiv 1910.10683), not causal:
 * o[i] = softmax over j of (scale q[i] k[j] + bias[h, L-1 + j - i]) v[j] within each sample.
 * The bits of a sample do not depend on the others of the pack. */
struct vfm_attn_bias {
	struct vfm_tensor q, k, v, o; /* [T,H,d] f32 or bf16, all the same; rows may be strided; d as in vfm_attn */
	struct vfm_tensor bias;       /* [H,2L-1] f32, finite; L is at least the length of the longest sample */
	const struct vfm_seqs *seqs;
	float scale;
};

/* ---- mixture of experts ----
 * E experts.  The routing is a device value.  The host may read index lists and counts back (to_host and a sync),
 * because it needs the sizes of messages.  This is the one place where it decides from device values.  grouped_gemm
 * needs its groups on the host. */

/* y = softmax of each row; dx = y (dy - sum of y dy) */
struct vfm_softmax {
	struct vfm_tensor x, y; /* [T,E] f32 */
};
struct vfm_softmax_bwd {
	struct vfm_tensor y, dy, dx; /* [T,E] f32; dx = */
};

/* Expert choice (Zhou et al., arXiv 2202.09368) within each sample, so that results do not depend on packing.  Each
 * expert selects the vfm_moe_expert_capacity(n, E, capacity) tokens with the highest score of a sample of n tokens.
 * Ties go to the lower token. */
struct vfm_moe_topk_expert {
	double capacity;             /* capacity factor: mean number of experts a token; > 0 */
	struct vfm_tensor score;     /* [T,E] f32: all tokens of the pack, in its order */
	const struct vfm_seqs *seqs; /* of the whole pack */
	struct vfm_tensor index;     /* [E,K] i32 =: each expert's tokens, ascending; K = vfm_moe_pack_capacity */
	struct vfm_tensor weight;    /* optional [E,K] f32 = score[index[e,i], e] */
};
/* Returns the number of tokens that an expert selects of a sample of n: min(n, ceil(n capacity / E)). */
int64_t vfm_moe_expert_capacity(int64_t n, int64_t experts, double capacity);
/* Returns the sum of that over the samples of a pack. */
int64_t vfm_moe_pack_capacity(const struct vfm_seqs *seqs, int64_t experts, double capacity);

/* Filters the choices for the tokens of this rank: by expert, then in the order of index. */
struct vfm_moe_own {
	struct vfm_tensor index; /* [E,K] i32, of moe_topk_expert */
	/* optional [tokens of the pack] i32: this rank's row of each token; negative: on another rank.  Absent: this
	 * rank has the whole pack */
	struct vfm_tensor own;
	int64_t own_rows;        /* with own: of this rank, for devices that compute no data */
	struct vfm_tensor row;   /* [E*K] i32 =: the rows, then -1 */
	struct vfm_tensor place; /* [E*K] i32 = row E + expert: index into this rank's scores, then -1 */
	struct vfm_tensor count; /* [E] i32 =: rows of each expert */
};

/* Token choice, dropless: the k experts with the highest score, highest first; ties go to the lower expert.
 * weight[t,j] = score[t,expert[t,j]] / sum over i of score[t,expert[t,i]]. */
struct vfm_moe_topk_token {
	struct vfm_tensor score;  /* [T,E] f32, positive */
	struct vfm_tensor expert; /* [T,k] i32 = */
	struct vfm_tensor weight; /* [T,k] f32 = */
};
/* dscore[t,expert[t,j]] = (dweight[t,j] - sum over i of weight[t,i] dweight[t,i]) / sum of the k scores; all other
 * elements are 0 */
struct vfm_moe_topk_token_bwd {
	struct vfm_tensor score, expert, dweight;
	struct vfm_tensor dscore; /* [T,E] f32 = */
};

/* Stable argsort by a small key: order lists the indices i of key, first those with key 0, ascending within each key.
 * Negative keys are not counted; their indices come last. */
struct vfm_moe_sort {
	int64_t buckets;           /* E */
	int64_t div;               /* of source; >= 1 */
	struct vfm_tensor key;     /* [N] i32 < E */
	struct vfm_tensor order;   /* [N] i32 = */
	struct vfm_tensor source;  /* optional [N] i32 = order[i] / div: the token, where key is [T,k] and div is k */
	struct vfm_tensor inverse; /* optional [N] i32 =: order[inverse[i]] = i */
	struct vfm_tensor count;   /* [E] i32 = */
};

/* count[s,e] = number of tokens of sample s that chose expert e */
struct vfm_moe_count {
	struct vfm_tensor expert; /* [T,k] i32; negative: none */
	const struct vfm_seqs *seqs;
	struct vfm_tensor count; /* [S,E] f32 =; integers, so a sum over ranks is exact in any order */
};
/* Load-balancing loss (Fedus, Zoph & Shazeer, arXiv 2101.03961) of each sample:
 * loss += sum over t, e of coef[seg] count[seg,e] score[t,e];  dscore (+)= coef[seg] count[seg,e].
 * With count summed over the ranks that share a sample and coef[s] = w_s alpha E / (n_s^2 k), the sum of their losses
 * is w_s alpha E sum_e f_e P_e, where f_e is the fraction of choices and P_e the mean score. */
struct vfm_moe_balance {
	struct vfm_tensor score; /* [T,E] f32 */
	struct vfm_tensor count; /* [S,E] f32 */
	struct vfm_tensor coef;  /* [S] f32 */
	const struct vfm_seqs *seqs;
	struct vfm_tensor loss;   /* optional [1] f64 += */
	struct vfm_tensor dscore; /* optional [T,E] f32 */
	bool accumulate;          /* dscore += */
};

/* G products in one call: the rows of A form G consecutive groups (any may be empty), each with its own B.
 *   VFM_GROUPED_FWD    c[rows of g] = act(a b[g]^T + bias[g])      a [N,K], b [G,O,K], c [N,O]
 *   VFM_GROUPED_DGRAD  c[rows of g] = (a b[g]) * dact'(aux)        a [N,O], b [G,O,K], c [N,K]
 *   VFM_GROUPED_WGRAD  c[g] = a[rows of g]^T b[rows of g]          a [N,O], b [N,K],   c [G,O,K]   (empty group: zeros)
 * Epilogues, dtypes and strides as in vfm_gemm. */
enum vfm_grouped { VFM_GROUPED_FWD, VFM_GROUPED_DGRAD, VFM_GROUPED_WGRAD };
struct vfm_grouped_gemm {
	enum vfm_grouped what;
	const struct vfm_seqs *groups; /* G and N; seg is not needed */
	/* a, b: f32 or bf16, the same; c: f32 or bf16; rows may be strided, other dimensions are contiguous */
	struct vfm_tensor a, b, c;
	bool accumulate;        /* c += (without act) */
	struct vfm_tensor bias; /* optional, FWD: [G,O] f32 */
	enum vfm_act act;       /* FWD */
	enum vfm_act dact;      /* DGRAD */
	struct vfm_tensor aux;  /* shape and dtype of c.  With act: optional output; with dact: input */
	/* optional, WGRAD: [G,O] f32 += sum over the rows of g of a: the bias gradient */
	struct vfm_tensor a_colsum;
};

/* Convolution of frames, channels last, causal in time; no backward.  `past` precedes x, and `zeros` frames of zeros
 * precede `past`.  With `up` a pixel of x or past is repeated as 2 x 2 pixels; H and W are then twice those of x.
 * In space frames are padded by pad = top, bottom, left, right zeros.  With F the frames so padded,
 *   y[t,h,w,o] = bias[o] + sum over i, j, l, c of
 *                F[t stride0 + i, h stride1 + j - top, w stride2 + l - left, c] weight[o, (i kh + j) kw + l, c]
 *                + add[t,h,w,o].
 * T' = (zeros + P + T - kt) / stride0 + 1, or 0 if there are fewer than kt frames; H' and W' likewise.
 * A frame has the same bits in a call for the whole clip and in calls for parts of it, whose `past` holds the frames
 * before each part.  The order of sums depends only on the shapes of weight and of a frame; on CUDA it may also
 * depend on whether frames are aligned to 256 bytes.  A backend may round bias, and the sum to which it is
 * added, to the dtype of y. */
struct vfm_conv3d {
	struct vfm_tensor x;      /* [T,H,W,C] f32 or bf16 */
	struct vfm_tensor past;   /* optional [P,H,W,C], dtype of x; any distance of frames, also a negative one */
	struct vfm_tensor weight; /* [O,kt*kh*kw,C], dtype of x; its data as `packed` says */
	struct vfm_tensor bias;   /* optional [O] f32 */
	struct vfm_tensor add;    /* optional [T',H',W',O], dtype of y; may be y */
	struct vfm_tensor y;      /* [T',H',W',O], dtype of x; overlaps neither x nor past */
	int kernel[3], stride[3]; /* time, height, width: 1 to VFM_CONV3D_MAX each */
	int zeros, pad[4];
	int up;      /* 0 or 1 */
	bool packed; /* weight.data is what vfm_conv3d_pack wrote on this device, for the same shape and kernel */
};
enum { VFM_CONV3D_MAX = 16 };

/* Returns T', H' or W' (i = 0, 1, 2). */
static inline int64_t vfm_conv3d_size(const struct vfm_conv3d *a, int i)
{
	int64_t n = i == 0 ? a->x.shape[0] : a->x.shape[i] << a->up;

	n += i == 0 ? a->zeros + (vfm_has(&a->past) ? a->past.shape[0] : 0) : a->pad[2 * i - 2] + a->pad[2 * i - 1];
	return n < a->kernel[i] ? 0 : (n - a->kernel[i]) / a->stride[i] + 1;
}

/* Returns whether the kernel is one pixel, at every pixel of x as it is, without padding: a product of pixels and
 * weight. */
static inline bool vfm_conv3d_pixelwise(const struct vfm_conv3d *a)
{
	bool is = a->up == 0 && a->zeros == 0 && a->stride[1] == 1 && a->stride[2] == 1;

	for (int i = 0; i < 3; i++)
		is = is && a->kernel[i] == 1;
	for (int i = 0; i < 4; i++)
		is = is && a->pad[i] == 0;
	return is;
}

#define VFM_OP_LIST(X)                                                                                                 \
	X(gemm)                                                                                                        \
	X(norm)                                                                                                        \
	X(norm_bwd)                                                                                                    \
	X(gate)                                                                                                        \
	X(gate_bwd)                                                                                                    \
	X(add_row)                                                                                                     \
	X(add_row_bwd)                                                                                                 \
	X(qk_norm_rope)                                                                                                \
	X(qk_norm_rope_bwd)                                                                                            \
	X(row_dot)                                                                                                     \
	X(row_norm_rope)                                                                                               \
	X(row_norm_rope_bwd)                                                                                           \
	X(attn)                                                                                                        \
	X(attn_bwd)                                                                                                    \
	X(unary)                                                                                                       \
	X(axpby)                                                                                                       \
	X(sum_parts)                                                                                                   \
	X(timestep)                                                                                                    \
	X(diffuse)                                                                                                     \
	X(mse)                                                                                                         \
	X(adamw)                                                                                                       \
	X(split_master)                                                                                                \
	X(block8)                                                                                                      \
	X(mxfp8)                                                                                                       \
	X(decode_weights)                                                                                              \
	X(sumsq)                                                                                                       \
	X(clip)                                                                                                        \
	X(fill)                                                                                                        \
	X(index_select)                                                                                                \
	X(index_add)                                                                                                   \
	X(index_dot)                                                                                                   \
	X(attn_merge)                                                                                                  \
	X(swiglu)                                                                                                      \
	X(swiglu_bwd)                                                                                                  \
	X(geglu)                                                                                                       \
	X(embed3)                                                                                                      \
	X(embed3_bwd)                                                                                                  \
	X(channel_norm)                                                                                                \
	X(upsample)                                                                                                    \
	X(attn_bias)                                                                                                   \
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
	X(transpose8)                                                                                                  \
	X(amax_push)                                                                                                   \
	X(conv3d)

enum vfm_op_id {
#define X(name) VFM_OP_##name,
	VFM_OP_LIST(X)
#undef X
		VFM_OP_N
};

/* The implementations of a device; NULL: the device lacks the op.  vfm_op_X has checked the operands. */
struct vfm_ops {
#define X(name) int (*name)(struct vfm_stream * s, const struct vfm_##name *a, struct vfm_err *err);
	VFM_OP_LIST(X)
#undef X
	/* vfm_conv3d_packed_size and vfm_conv3d_pack; both NULL: the device reads weights as they are. */
	size_t (*conv3d_packed_size)(struct vfm_stream *s, const struct vfm_conv3d *a);
	int (*conv3d_pack)(struct vfm_stream *s, const struct vfm_conv3d *a, void *packed, struct vfm_err *err);
};

#define X(name) int vfm_op_##name(struct vfm_stream *s, const struct vfm_##name *a, struct vfm_err *err);
VFM_OP_LIST(X)
#undef X

/* A device may read weights of convolutions in a layout of its own.  Packing them once saves that time in each call,
 * and the memory of the plain weights.  vfm_conv3d_packed_size returns the bytes of the packed weight; 0: the device
 * reads weights as they are.  vfm_conv3d_pack writes it to `packed`, device memory aligned to 64 bytes; weight.data is
 * host memory, and only kernel and weight of *a are read.  Local; returns when weight.data is no longer read. */
size_t vfm_conv3d_packed_size(struct vfm_stream *s, const struct vfm_conv3d *a);
int vfm_conv3d_pack(struct vfm_stream *s, const struct vfm_conv3d *a, void *packed, struct vfm_err *err);

/* The cost of a call, for benchmarks.  FLOPs are those of the matrix products (2 a multiply-add); bytes count each
 * operand once read and once written. */
struct vfm_cost {
	double flops, bytes;
};
#define X(name) struct vfm_cost vfm_cost_##name(const struct vfm_##name *a);
VFM_OP_LIST(X)
#undef X

#endif
