/* ops.c - the row of each op: operands, checks beyond shapes, FLOPs and bytes. */
#include "device/ops/check.h"
#include "device/ops/dynamic8.h"

/* ---- gemm ---------------------------------------------------------------------- */

static int check_gemm(const struct vfm_gemm *a, struct vfm_err *err)
{
	int64_t m = a->c.shape[0], n = a->c.shape[1], k = a->a.shape[a->trans_a ? 0 : 1];
	bool f8 = 1u << a->a.dtype & F8;

	CHECK("gemm", a, ACT | F8 | STRIDED, a->trans_a ? k : m, a->trans_a ? m : k);
	CHECK("gemm", b, ACT | F8 | STRIDED, a->trans_b ? n : k, a->trans_b ? k : n);
	REQUIRE("gemm", !vfm_has(&a->aux) || a->aux.dtype == a->c.dtype, "aux and c differ in dtype");
	REQUIRE("gemm", vfm_has(&a->scale_a) == f8 && vfm_has(&a->scale_b) == f8,
		"fp8 operands, and no others, need scale_a and scale_b");
	if (f8) {
		REQUIRE("gemm", 1u << a->b.dtype & F8 && !(a->a.dtype == VFM_F8E5M2 && a->b.dtype == VFM_F8E5M2),
			"fp8 is e4m3 times e4m3 or e5m2");
		REQUIRE("gemm", !vfm_has(&a->a_rowsum), "fp8 excludes a_rowsum");
	}
	REQUIRE("gemm", f8 || a->a.dtype == a->b.dtype, "a and b differ in dtype");
	REQUIRE("gemm", !a->act || !a->dact, "act and dact exclude each other");
	REQUIRE("gemm", a->act <= VFM_ACT_SILU && a->dact <= VFM_ACT_SILU, "only 'unary' computes this activation");
	REQUIRE("gemm", !a->accumulate || (!a->act && !a->dact), "accumulate excludes act and dact");
	REQUIRE("gemm", !a->dact || vfm_has(&a->aux), "dact needs aux");
	REQUIRE("gemm", !vfm_has(&a->aux) || a->act || a->dact, "aux needs act or dact");
	return 0;
}

static struct vfm_cost extra_gemm(const struct vfm_gemm *a)
{
	return (struct vfm_cost){2.0 * (double)vfm_numel(&a->c) * (double)a->a.shape[a->trans_a ? 0 : 1], 0};
}

OP_EXTRA(gemm, check_gemm, extra_gemm, NO_SEQS, IN(a, NORMAL, ACT | F8 | STRIDED, "**"),
	IN(b, SMALL, ACT | F8 | STRIDED, "**"), IO_IF(c, accumulate, NORMAL, ACT | STRIDED, "MN"),
	IN(bias, NORMAL, ACT | OPT, "N"), IO(aux, NORMAL, ONCE | ACT | STRIDED | OPT, "MN"),
	IO(a_rowsum, NORMAL, F32 | OPT, "M"), IN(scale_a, POWER, UNCOUNTED | F32 | OPT, "1"),
	IN(scale_b, POWER, UNCOUNTED | F32 | OPT, "1"))

static int check_quant(const struct vfm_quant *a, struct vfm_err *err)
{
	CHECK("quant", yt, F8 | OPT, a->x.shape[1], (a->x.shape[0] + 15) / 16 * 16);
	REQUIRE("quant", vfm_has(&a->y) || vfm_has(&a->yt), "neither y nor yt is there");
	REQUIRE("quant", !vfm_has(&a->y) || !vfm_has(&a->yt) || a->y.dtype == a->yt.dtype, "y and yt differ in dtype");
	return 0;
}

static struct vfm_cost extra_quant(const struct vfm_quant *a)
{
	/* x is read once more for its amax */
	return (struct vfm_cost){0, vfm_has(&a->history) ? 0 : op_bytes(&a->x)};
}

OP_EXTRA(quant, check_quant, extra_quant, NO_SEQS, IN(x, NORMAL, ACT | STRIDED, "TD"), OUT(y, F8 | OPT, "TD"),
	OUT(yt, F8 | OPT, "D*"), IN(history, PAST, UNCOUNTED | F32 | OPT, "*"),
	IO(amax, POSITIVE, UNCOUNTED | F32, "1"), OUT(inv, UNCOUNTED | F32, "1"), IO(colsum, NORMAL, F32 | OPT, "D"))

static int check_transpose8(const struct vfm_transpose8 *a, struct vfm_err *err)
{
	CHECK("transpose8", y, F8, a->x.shape[1], (a->x.shape[0] + 15) / 16 * 16);
	return 0;
}

OP(transpose8, check_transpose8, NO_SEQS, IN(x, NORMAL, F8, "TD"), OUT(y, LIKE, "D*"))

static int check_amax_push(const struct vfm_amax_push *a, struct vfm_err *err)
{
	REQUIRE("amax_push", a->past.shape[1] > 0, "operand 'past' has no columns");
	return 0;
}

OP(amax_push, check_amax_push, NO_SEQS, IN(parts, POSITIVE, F32 | STRIDED, "*N"), IO(past, POSITIVE, F32, "N*"),
	IN(grad_scale, SCALE, UNCOUNTED | F32 | OPT, "1"))

/* ---- norm ---------------------------------------------------------------------- */

static int check_norm(const struct vfm_norm *a, struct vfm_err *err)
{
	bool h = vfm_has(&a->h);

	REQUIRE("norm", 1u << a->y.dtype & (vfm_has(&a->history) ? 1u << VFM_F8E4M3 : ACT),
		"operand 'y' is e4m3 with a history, else f32 or bf16");
	REQUIRE("norm", a->x.shape[1] > 0, "operand 'x' has no columns");
	REQUIRE("norm", vfm_has(&a->scale) == vfm_has(&a->shift), "scale and shift go together");
	REQUIRE("norm", !vfm_has(&a->scale) || !vfm_has(&a->weight), "scale and weight exclude each other");
	REQUIRE("norm", !vfm_has(&a->bias) || vfm_has(&a->weight), "bias needs weight");
	REQUIRE("norm", vfm_has(&a->sum) == h, "h and sum go together");
	REQUIRE("norm", h || !vfm_has(&a->gate), "gate needs h");
	REQUIRE("norm", vfm_has(&a->history) == vfm_has(&a->inv), "history and inv go together");
	return 0;
}

OP(norm, check_norm, SEQS(seqs, "TS"), IN(x, NORMAL, ACT, "TD"), OUT(y, ACT | F8, "TD"),
	IN(weight, POSITIVE, F32 | OPT, "D"), IN(bias, NORMAL, F32 | OPT, "D"),
	IN(shift, NORMAL, ACT | STRIDED | OPT, "SD"), IN(scale, SMALL, ACT | STRIDED | OPT, "SD"),
	IN(h, NORMAL, ACT | OPT, "TD"), IN(gate, NORMAL, ACT | STRIDED | OPT, "SD"), OUT(sum, LIKE | OPT, "TD"),
	OUT(mean, F32 | OPT, "T"), OUT(rstd, F32 | OPT, "T"), IN(history, PAST, F32 | OPT, "*"),
	OUT(inv, F32 | OPT, "1"), IO(amax, POSITIVE, F32 | OPT, "1"))

static int check_norm_bwd(const struct vfm_norm_bwd *a, struct vfm_err *err)
{
	bool mod = vfm_has(&a->scale), gate = vfm_has(&a->gate);

	REQUIRE("norm_bwd", a->x.shape[1] > 0, "operand 'x' has no columns");
	REQUIRE("norm_bwd", !mod || !vfm_has(&a->weight), "scale and weight exclude each other");
	REQUIRE("norm_bwd", vfm_has(&a->weight) || (!vfm_has(&a->dweight) && !vfm_has(&a->dbias)),
		"dweight and dbias need weight");
	REQUIRE("norm_bwd", mod || (!vfm_has(&a->dshift) && !vfm_has(&a->dscale)), "dshift and dscale need scale");
	REQUIRE("norm_bwd", a->kind != VFM_NORM_LAYER || vfm_has(&a->mean), "operand 'mean' is missing");
	REQUIRE("norm_bwd", !vfm_has(&a->h) || !vfm_has(&a->dh) || a->dh.dtype == a->h.dtype,
		"h and dh differ in dtype");
	REQUIRE("norm_bwd", vfm_has(&a->h) == vfm_has(&a->dgate), "h and dgate go together");
	REQUIRE("norm_bwd", gate || !vfm_has(&a->dgate), "dgate needs gate");
	REQUIRE("norm_bwd", vfm_has(&a->dh) || !(gate || vfm_has(&a->dh_sum)), "gate and dh_sum need dh");
	return 0;
}

OP(norm_bwd, check_norm_bwd, SEQS(seqs, "TS"), IN(x, NORMAL, ACT, "TD"), IN(dy, NORMAL, ACT, "TD"),
	IN(weight, POSITIVE, F32 | OPT, "D"), IN(scale, SMALL, ACT | STRIDED | OPT, "SD"),
	IN(mean, SMALL, F32 | OPT, "T"), IN(rstd, POSITIVE, F32, "T"), IO_IF(dx, dx_accumulate, NORMAL, ACT, "TD"),
	IO(dweight, NORMAL, F32 | OPT, "D"), IO(dbias, NORMAL, F32 | OPT, "D"), OUT(dshift, F32 | STRIDED | OPT, "SD"),
	OUT(dscale, F32 | STRIDED | OPT, "SD"), IN(h, NORMAL, ACT | OPT, "TD"),
	IN(gate, NORMAL, ACT | STRIDED | OPT, "SD"), OUT(dh, ACT | OPT, "TD"), OUT(dgate, F32 | STRIDED | OPT, "SD"),
	IO(dh_sum, NORMAL, F32 | OPT, "D"))

/* ---- gate ---------------------------------------------------------------------- */

OP(gate, no_check, SEQS(seqs, "TS"), IN(x, NORMAL, ACT, "TD"), IN(h, NORMAL, ACT, "TD"),
	IN(gate, NORMAL, ACT | STRIDED | OPT, "SD"), OUT_OVER(y, x, LIKE, "TD"))

static int check_gate_bwd(const struct vfm_gate_bwd *a, struct vfm_err *err)
{
	REQUIRE("gate_bwd", !vfm_has(&a->h) || a->dh.dtype == a->h.dtype, "h and dh differ in dtype");
	REQUIRE("gate_bwd", vfm_has(&a->h) == vfm_has(&a->dgate), "h and dgate go together");
	return 0;
}

OP(gate_bwd, check_gate_bwd, SEQS(seqs, "TS"), IN(dy, NORMAL, ACT, "TD"), IN(h, NORMAL, ACT | OPT, "TD"),
	IN(gate, NORMAL, ACT | STRIDED, "SD"), OUT(dh, ACT, "TD"), OUT(dgate, F32 | STRIDED | OPT, "SD"),
	IO(dh_sum, NORMAL, F32 | OPT, "D"))

/* ---- add_row ------------------------------------------------------------------- */

OP(add_row, no_check, NO_SEQS, IN(x, NORMAL, ACT, "TD"), IN(row, NORMAL, ACT, "D"), OUT_OVER(y, x, LIKE, "TD"))

OP(add_row_bwd, no_check, NO_SEQS, IN(dy, NORMAL, ACT, "TD"), IO(drow, NORMAL, F32, "D"))

/* ---- qk_norm_rope ---------------------------------------------------------------- */

static int check_qk_norm_rope(const struct vfm_qk_norm_rope *a, struct vfm_err *err)
{
	bool norm = vfm_has(&a->weight);
	int64_t d = a->x.shape[2];

	REQUIRE("qk_norm_rope", !norm || vfm_has(&a->rstd), "operand 'rstd' is missing");
	REQUIRE("qk_norm_rope", d > 0 && (d % 2 == 0 || !vfm_has(&a->rope)), "rope needs an even head dim");
	if (!vfm_has(&a->x2)) {
		REQUIRE("qk_norm_rope",
			!vfm_has(&a->y2) && !vfm_has(&a->weight2) && !vfm_has(&a->rope2) && !vfm_has(&a->rstd2),
			"y2, weight2, rope2 and rstd2 need x2");
		return 0;
	}
	REQUIRE("qk_norm_rope", vfm_has(&a->y2) && (!norm || vfm_has(&a->rstd2)), "x2 needs y2, and with weight rstd2");
	REQUIRE("qk_norm_rope", norm == vfm_has(&a->weight2) && vfm_has(&a->rope) == vfm_has(&a->rope2),
		"weight2 and rope2 are present if weight and rope are");
	return 0;
}

OP(qk_norm_rope, check_qk_norm_rope, NO_SEQS, IN(x, NORMAL, ACT | STRIDED, "THD"), OUT(y, LIKE | STRIDED, "THD"),
	IN(weight, POSITIVE, F32 | OPT, "D"), IN(rope, NORMAL, F32 | OPT, "TD"), OUT(rstd, F32 | OPT, "TH"),
	IN(x2, NORMAL, LIKE | STRIDED | OPT, "UGD"), OUT(y2, LIKE | STRIDED | OPT, "UGD"),
	IN(weight2, POSITIVE, F32 | OPT, "D"), IN(rope2, NORMAL, F32 | OPT, "UD"), OUT(rstd2, F32 | OPT, "UG"))

static int check_qk_norm_rope_bwd(const struct vfm_qk_norm_rope_bwd *a, struct vfm_err *err)
{
	bool norm = vfm_has(&a->weight);
	int64_t d = a->dy.shape[2];

	REQUIRE("qk_norm_rope_bwd", !norm || (vfm_has(&a->x) && vfm_has(&a->rstd)), "weight needs x and rstd");
	REQUIRE("qk_norm_rope_bwd", norm || !vfm_has(&a->dweight), "dweight needs weight");
	REQUIRE("qk_norm_rope_bwd", d > 0 && (d % 2 == 0 || !vfm_has(&a->rope)), "rope needs an even head dim");
	if (!vfm_has(&a->dy2)) {
		REQUIRE("qk_norm_rope_bwd",
			!vfm_has(&a->x2) && !vfm_has(&a->dx2) && !vfm_has(&a->weight2) && !vfm_has(&a->rope2) &&
				!vfm_has(&a->rstd2) && !vfm_has(&a->dweight2),
			"x2, dx2, weight2, rope2, rstd2 and dweight2 need dy2");
		return 0;
	}
	REQUIRE("qk_norm_rope_bwd", vfm_has(&a->dx2) && (!norm || (vfm_has(&a->x2) && vfm_has(&a->rstd2))),
		"dy2 needs dx2, and with weight x2 and rstd2");
	REQUIRE("qk_norm_rope_bwd", a->dy2.dtype == a->dy.dtype && (!norm || a->x2.dtype == a->x.dtype),
		"the two tensors differ in dtype");
	REQUIRE("qk_norm_rope_bwd", norm == vfm_has(&a->weight2) && vfm_has(&a->rope) == vfm_has(&a->rope2),
		"weight2 and rope2 are present if weight and rope are");
	REQUIRE("qk_norm_rope_bwd", norm || !vfm_has(&a->dweight2), "dweight2 needs weight2");
	return 0;
}

static struct vfm_cost extra_qk_norm_rope_bwd(const struct vfm_qk_norm_rope_bwd *a)
{
	return (struct vfm_cost){0, vfm_has(&a->weight) ? op_bytes(&a->x) + op_bytes(&a->x2) : 0};
}

OP_EXTRA(qk_norm_rope_bwd, check_qk_norm_rope_bwd, extra_qk_norm_rope_bwd, NO_SEQS,
	IN(x, NORMAL, UNCOUNTED | ACT | STRIDED | OPT, "THD"), IN(dy, NORMAL, ACT | STRIDED, "THD"),
	IN(weight, POSITIVE, F32 | OPT, "D"), IN(rope, NORMAL, F32 | OPT, "TD"), IN(rstd, POSITIVE, F32 | OPT, "TH"),
	OUT(dx, ACT | STRIDED, "THD"), IO(dweight, NORMAL, F32 | OPT, "D"),
	IN(x2, NORMAL, UNCOUNTED | ACT | STRIDED | OPT, "UGD"), IN(dy2, NORMAL, ACT | STRIDED | OPT, "UGD"),
	IN(weight2, POSITIVE, F32 | OPT, "D"), IN(rope2, NORMAL, F32 | OPT, "UD"), IN(rstd2, POSITIVE, F32 | OPT, "UG"),
	OUT(dx2, ACT | STRIDED | OPT, "UGD"), IO(dweight2, NORMAL, F32 | OPT, "D"))

/* ---- norms of whole rows ------------------------------------------------------------ */

OP(row_dot, no_check, NO_SEQS, IN(x, NORMAL, ACT | STRIDED, "THD"), IN(y, NORMAL, ACT | STRIDED | OPT, "THD"),
	OUT(out, F32, "T"))

static int check_row_norm(const char *op, const struct vfm_tensor *x, const struct vfm_tensor *weight,
	const struct vfm_tensor *rope, int64_t width, struct vfm_err *err)
{
	const int64_t t = x->shape[0], h = x->shape[1], d = x->shape[2];
	const bool by_head = rope->ndim == 3;

	TRY(vfm_op_check(op, "weight", weight, F32, 1, (int64_t[]){h * d}, err));
	TRY(vfm_op_check(
		op, "rope", rope, F32 | OPT, by_head ? 3 : 2, by_head ? (int64_t[]){t, h, d} : (int64_t[]){t, d}, err));
	REQUIRE(op, d > 0 && (d % 2 == 0 || !vfm_has(rope)), "rope needs an even head dim");
	REQUIRE(op, width >= h * d, "'width' is less than a row of 'x'");
	return 0;
}

static int check_row_norm_rope(const struct vfm_row_norm_rope *a, struct vfm_err *err)
{
	return check_row_norm("row_norm_rope", &a->x, &a->weight, &a->rope, a->width, err);
}

OP(row_norm_rope, check_row_norm_rope, NO_SEQS, IN(x, NORMAL, ACT | STRIDED, "THD"), OUT(y, LIKE | STRIDED, "THD"),
	IN(weight, POSITIVE, F32, "*"), IN(rope, NORMAL, IN_CHECK), IN(sumsq, POSITIVE, F32, "T"))

static int check_row_norm_rope_bwd(const struct vfm_row_norm_rope_bwd *a, struct vfm_err *err)
{
	return check_row_norm("row_norm_rope_bwd", &a->x, &a->weight, &a->rope, a->width, err);
}

OP(row_norm_rope_bwd, check_row_norm_rope_bwd, NO_SEQS, IN(x, NORMAL, ACT | STRIDED, "THD"),
	IN(dy, NORMAL, ACT | STRIDED, "THD"), IN(weight, POSITIVE, F32, "W"), IN(rope, NORMAL, IN_CHECK),
	IN(sumsq, POSITIVE, F32, "T"), IN(dot, NORMAL, F32, "T"), OUT(dx, ACT | STRIDED, "THD"),
	IO(dweight, NORMAL, F32 | OPT, "W"))

/* ---- attention -------------------------------------------------------------------- */

void vfm_seqs_init(struct vfm_seqs *q, int n, const int32_t *cu)
{
	*q = (struct vfm_seqs){.n = n, .total = cu[n], .cu = cu};
	for (int i = 0; i < n; i++)
		if (cu[i + 1] - cu[i] > q->max_len)
			q->max_len = cu[i + 1] - cu[i];
}

static int check_attn_heads(const char *op, const struct vfm_tensor *q, const struct vfm_tensor *k,
	const struct vfm_seqs *seqs_q, const struct vfm_seqs *seqs_k, struct vfm_err *err)
{
	int64_t d = q->shape[2];

	REQUIRE(op, d > 0 && d <= 128 && d % 8 == 0, "the head dim must be a multiple of 8, at most 128");
	REQUIRE(op, k->shape[1] > 0 && q->shape[1] % k->shape[1] == 0,
		"the number of query heads is not a multiple of the number of key heads");
	REQUIRE(op, seqs_q->n == seqs_k->n, "seqs_q and seqs_k differ in samples");
	return 0;
}

static int check_attn(const struct vfm_attn *a, struct vfm_err *err)
{
	return check_attn_heads("attn", &a->q, &a->k, a->seqs_q, a->seqs_k, err);
}

/* Pairs of a query and a key of the same sample. */
static double count_pairs(const struct vfm_seqs *q, const struct vfm_seqs *k)
{
	double n = 0;

	for (int s = 0; q && k && s < q->n && s < k->n; s++)
		n += (double)vfm_seqs_len(q, s) * (double)vfm_seqs_len(k, s);
	return n;
}

static struct vfm_cost extra_attn(const struct vfm_attn *a)
{
	return (struct vfm_cost){4 * count_pairs(a->seqs_q, a->seqs_k) * (double)(a->q.shape[1] * a->q.shape[2]), 0};
}

OP_EXTRA(attn, check_attn, extra_attn, SEQS2(SEQS(seqs_q, "T*"), SEQS(seqs_k, "K*")),
	IN(q, NORMAL, ACT | STRIDED, "THD"), IN(k, NORMAL, LIKE | STRIDED, "KGD"), IN(v, NORMAL, LIKE | STRIDED, "KGD"),
	OUT(o, LIKE | STRIDED, "THD"), OUT(lse, F32, "TH"))

static int check_attn_bwd(const struct vfm_attn_bwd *a, struct vfm_err *err)
{
	return check_attn_heads("attn_bwd", &a->q, &a->k, a->seqs_q, a->seqs_k, err);
}

static struct vfm_cost extra_attn_bwd(const struct vfm_attn_bwd *a)
{
	return (struct vfm_cost){10 * count_pairs(a->seqs_q, a->seqs_k) * (double)(a->q.shape[1] * a->q.shape[2]), 0};
}

OP_EXTRA(attn_bwd, check_attn_bwd, extra_attn_bwd, SEQS2(SEQS(seqs_q, "T*"), SEQS(seqs_k, "K*")),
	IN(q, NORMAL, ACT | STRIDED, "THD"), IN(k, NORMAL, LIKE | STRIDED, "KGD"), IN(v, NORMAL, LIKE | STRIDED, "KGD"),
	IN(o, NORMAL, LIKE | STRIDED, "THD"), IN(lse, LSE, F32, "TH"), IN(dout, NORMAL, LIKE | STRIDED, "THD"),
	OUT(dq, F32 | LIKE | STRIDED, "THD"), OUT(dk, F32 | LIKE | STRIDED, "KGD"),
	OUT(dv, F32 | LIKE | STRIDED, "KGD"))

static int check_attn_bias(const struct vfm_attn_bias *a, struct vfm_err *err)
{
	const int64_t *s = a->q.shape;

	REQUIRE("attn_bias", s[2] > 0 && s[2] <= 128 && s[2] % 8 == 0,
		"the head dim must be a multiple of 8, at most 128");
	REQUIRE("attn_bias", a->bias.shape[1] % 2 == 1, "operand 'bias' has an even number of distances");
	for (int i = 0; i < a->seqs->n; i++)
		if (vfm_seqs_len(a->seqs, i) > (a->bias.shape[1] + 1) / 2)
			return vfm_fail(err, VFM_EUSAGE,
				"attn_bias: sample %d has %lld tokens, but operand 'bias' has distances for %lld", i,
				(long long)vfm_seqs_len(a->seqs, i), (long long)(a->bias.shape[1] + 1) / 2);
	return 0;
}

static struct vfm_cost extra_attn_bias(const struct vfm_attn_bias *a)
{
	return (struct vfm_cost){4 * count_pairs(a->seqs, a->seqs) * (double)(a->q.shape[1] * a->q.shape[2]), 0};
}

OP_EXTRA(attn_bias, check_attn_bias, extra_attn_bias, SEQS(seqs, "T*"), IN(q, NORMAL, ACT | STRIDED, "THD"),
	IN(k, NORMAL, LIKE | STRIDED, "THD"), IN(v, NORMAL, LIKE | STRIDED, "THD"), IN(bias, NORMAL, F32, "H*"),
	OUT(o, LIKE | STRIDED, "THD"))

/* ---- element by element ------------------------------------------------------------ */

static int check_unary(const struct vfm_unary *a, struct vfm_err *err)
{
	const int64_t *s = a->x.shape;
	int n = a->x.ndim;

	REQUIRE("unary", n > 0, "operand 'x' is missing");
	TRY(vfm_op_check("unary", "x", &a->x, ACT, n, s, err));
	TRY(vfm_op_check("unary", "dy", &a->dy, ACT | OPT, n, s, err));
	return vfm_op_check("unary", "y", &a->y, ACT, n, s, err);
}

OP(unary, check_unary, NO_SEQS, IN(x, NORMAL, IN_CHECK), IN(dy, NORMAL, IN_CHECK), OUT(y, IN_CHECK))

static int check_axpby(const struct vfm_axpby *a, struct vfm_err *err)
{
	REQUIRE("axpby", a->x.ndim > 0, "operand 'x' is missing");
	TRY(vfm_op_check("axpby", "x", &a->x, ACT | STRIDED, a->x.ndim, a->x.shape, err));
	return vfm_op_check("axpby", "y", &a->y, ACT | STRIDED, a->x.ndim, a->x.shape, err);
}

static struct vfm_cost extra_axpby(const struct vfm_axpby *a)
{
	return (struct vfm_cost){0, a->beta != 0 ? op_bytes(&a->y) : 0};
}

OP_EXTRA(axpby, check_axpby, extra_axpby, NO_SEQS, IN(x, NORMAL, IN_CHECK), IO(y, NORMAL, ONCE | IN_CHECK))

static int check_sum_parts(const struct vfm_sum_parts *a, struct vfm_err *err)
{
	REQUIRE("sum_parts", !vfm_has(&a->own) || (a->at >= 0 && a->at <= a->x.shape[0]),
		"'at' is no place among the rows of 'x'");
	return 0;
}

OP(sum_parts, check_sum_parts, NO_SEQS, IN(x, NORMAL, ACT | STRIDED, "*N"), IN(own, NORMAL, LIKE | OPT, "N"),
	OUT(y, ACT, "N"))

static int check_timestep(const struct vfm_timestep *a, struct vfm_err *err)
{
	REQUIRE("timestep", a->out.shape[1] % 2 == 0, "the number of features is odd");
	return 0;
}

OP(timestep, check_timestep, NO_SEQS, IN(t, TIME, F32, "S"), OUT(out, ACT, "S*"))

OP(diffuse, no_check, SEQS(seqs, "TS"), IN(x0, NORMAL, ACT | F16, "TF"), IN(id, ID, UNCOUNTED | I64, "S"),
	IN(idx, IDX, I32, "T"), IN(coef, NORMAL, UNCOUNTED | F32, "S4"), OUT(input, ACT, "TF"),
	OUT(target, F32 | OPT, "TF"))

static int check_mse(const struct vfm_mse *a, struct vfm_err *err)
{
	REQUIRE("mse", a->pred.shape[1] > 0, "operand 'pred' has no columns");
	return 0;
}

OP(mse, check_mse, SEQS(seqs, "TS"), IN(pred, NORMAL, ACT, "TF"), IN(target, NORMAL, F32, "TF"),
	IN(w, POSITIVE, UNCOUNTED | F32, "S"), IO(loss, POSITIVE, UNCOUNTED | F64, "1"),
	IO(unweighted, POSITIVE, UNCOUNTED | F64 | OPT, "1"), OUT(sample_loss, UNCOUNTED | F32 | OPT, "S"),
	OUT(dpred, LIKE | OPT, "TF"))

static int check_adamw(const struct vfm_adamw *a, struct vfm_err *err)
{
	bool split = vfm_has(&a->p_lo);

	REQUIRE("adamw", split || vfm_has(&a->p), "operand 'p' is missing");
	REQUIRE("adamw", !split || !vfm_has(&a->p), "p and p_lo exclude each other");
	REQUIRE("adamw", !split || vfm_has(&a->w), "p_lo needs w");
	REQUIRE("adamw", a->m.dtype == VFM_F32 || a->beta1 <= 0.99f, "beta1 above 0.99 needs a first moment m in f32");
	return 0;
}

static struct vfm_cost extra_adamw(const struct vfm_adamw *a)
{
	/* split masters are read from w, too */
	return (struct vfm_cost){0, vfm_has(&a->p_lo) ? op_bytes(&a->w) : 0};
}

OP_EXTRA(adamw, check_adamw, extra_adamw, NO_SEQS, IO(p, NORMAL, F32 | OPT, "N"), IO(m, SMALL, ACT, "N"),
	IO(v, POSITIVE, F32, "N"), IN(g, NORMAL, ACT, "N"), IN(grad_scale, SCALE, UNCOUNTED | F32 | OPT, "1"),
	IO(w, NORMAL, ONCE | BF16 | OPT, "N"), IO(p_lo, LOW, I16 | OPT, "N"), IO(ema, NORMAL, F32 | OPT, "N"))

OP(split_master, no_check, NO_SEQS, IO(x, NORMAL, ONCE | F32, "N"), IO(hi, NORMAL, ONCE | BF16, "N"),
	IO(lo, INDEX, ONCE | I16, "N"))

OP(sumsq, no_check, NO_SEQS, IN(x, NORMAL, ACT, "N"), IO(sum, POSITIVE, UNCOUNTED | F64, "1"))

OP(clip, no_check, NO_SEQS, IN(sum, SCALE, F64, "1"), IN(loss, POSITIVE, UNCOUNTED | F64 | OPT, "1"),
	OUT(norm, F32, "1"), OUT(scale, F32, "1"))

static int check_fill(const struct vfm_fill *a, struct vfm_err *err)
{
	REQUIRE("fill", a->first >= 0, "'first' is negative");
	return 0;
}

OP(fill, check_fill, NO_SEQS, OUT(x, ACT, "N"))

/* ---- block-wise floats of 8 bits ---------------------------------------------------- */

static int check_block8(const struct vfm_block8 *a, struct vfm_err *err)
{
	REQUIRE("block8", a->first >= 0 && a->first < VFM_BLOCK8, "'first' is no place in a block");
	REQUIRE("block8", a->first == 0 || a->back, "blocks are quantized from their first element");
	CHECK("block8", scale, F32, (a->first + a->x.shape[0] + VFM_BLOCK8 - 1) / VFM_BLOCK8);
	return 0;
}

OP(block8, check_block8, NO_SEQS, IO(x, NORMAL, ONCE | F32, "N"), IO(code, INDEX, ONCE | U8, "N"),
	IO(scale, POSITIVE, ONCE | F32, "*"))

static int check_mxfp8(const struct vfm_mxfp8 *a, struct vfm_err *err)
{
	int64_t r = a->x.shape[0], n = a->x.shape[1];

	REQUIRE("mxfp8", n % VFM_MX_BLOCK == 0, "rows are no multiple of a block");
	CHECK("mxfp8", scale, U8 | STRIDED, r, n / VFM_MX_BLOCK);
	REQUIRE("mxfp8", (uintptr_t)a->code.data % 16 == 0, "'code' is not aligned");
	REQUIRE("mxfp8", r <= 1 || a->code.stride[0] % 16 == 0, "rows of 'code' are not aligned");
	return 0;
}

OP(mxfp8, check_mxfp8, NO_SEQS, IO(x, NORMAL, ONCE | ACT, "RN"),
	IO(code, NORMAL, ONCE | 1u << VFM_F8E4M3 | STRIDED, "RN"), IO(scale, INDEX, ONCE | U8 | STRIDED, "R*"))

static int check_decode_weights(const struct vfm_decode_weights *a, struct vfm_err *err)
{
	bool nf4 = a->format == VFM_WEIGHTS_NF4;
	int64_t r = a->x.shape[0], n = a->x.shape[1];

	REQUIRE("decode_weights", nf4 || a->format == VFM_WEIGHTS_INT8, "unknown format");
	REQUIRE("decode_weights", n % 512 == 0, "rows are no multiple of 512");
	CHECK("decode_weights", code, U8 | STRIDED, r, nf4 ? n / 2 : n);
	REQUIRE("decode_weights", (uintptr_t)a->code.data % 8 == 0, "'code' is not aligned");
	REQUIRE("decode_weights", r <= 1 || a->code.stride[0] % 8 == 0, "rows of 'code' are not aligned");
	REQUIRE("decode_weights", nf4 == vfm_has(&a->absmax) && nf4 == vfm_has(&a->offset),
		"NF4 needs absmax and offset, INT8 has neither");
	if (nf4)
		CHECK("decode_weights", absmax, U8 | STRIDED, r, n / VFM_NF4_BLOCK);
	REQUIRE("decode_weights", a->scale.shape[0] < INT32_MAX, "too many scales");
	return 0;
}

OP(decode_weights, check_decode_weights, NO_SEQS, OUT(x, ACT, "RN"), IN(code, INDEX, U8 | STRIDED, "R*"),
	IN(absmax, INDEX, U8 | STRIDED | OPT, "R*"), IN(segment, LIST, UNCOUNTED | I64, "S6"),
	IN(scale, POSITIVE, UNCOUNTED | F32, "*"), IN(offset, SMALL, UNCOUNTED | F32 | OPT, "S"))

/* ---- of encoders alone --------------------------------------------------------------- */

static int check_channel_norm(const struct vfm_channel_norm *a, struct vfm_err *err)
{
	bool group = a->kind == VFM_CHANNEL_NORM_GROUP;
	int64_t c = a->x.shape[2];

	REQUIRE("channel_norm", c > 0, "operand 'x' has no channels");
	REQUIRE("channel_norm", group || a->kind == VFM_CHANNEL_NORM_RMS || a->kind == VFM_CHANNEL_NORM_MEAN_SQUARE,
		"unknown kind of norm");
	REQUIRE("channel_norm", a->act == VFM_ACT_NONE || a->act == VFM_ACT_SILU,
		"the activation must be none or SiLU");
	REQUIRE("channel_norm", group ? a->groups > 0 && c % a->groups == 0 : a->groups == 0,
		"'groups' must divide the channels of a group norm, and be 0 for others");
	return 0;
}

static struct vfm_cost extra_channel_norm(const struct vfm_channel_norm *a)
{
	/* the statistics of a frame need a pass of their own */
	return (struct vfm_cost){0, a->kind == VFM_CHANNEL_NORM_GROUP ? op_bytes(&a->x) : 0};
}

OP_EXTRA(channel_norm, check_channel_norm, extra_channel_norm, NO_SEQS, IN(x, NORMAL, ACT, "FNC"),
	IN(weight, POSITIVE, F32, "C"), IN(bias, NORMAL, F32 | OPT, "C"), OUT_OVER(y, x, LIKE, "FNC"))

OP(upsample, no_check, NO_SEQS, IN(x, NORMAL, ACT, "FHWC"), OUT(y, LIKE, "F2H2WC"))
