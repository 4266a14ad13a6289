#include "device/ops/check.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- gemm ---------------------------------------------------------------------- */

static int check_gemm(const struct vfm_gemm *a, struct vfm_err *err)
{
	int64_t m, n, k;
	bool f8;

	CHECK("gemm", a, ACT | F8 | STRIDED, -1, -1);
	f8 = 1u << a->a.dtype & F8;
	m = a->a.shape[a->trans_a ? 1 : 0];
	k = a->a.shape[a->trans_a ? 0 : 1];
	CHECK("gemm", b, ACT | F8 | STRIDED, a->trans_b ? -1 : k, a->trans_b ? k : -1);
	n = a->b.shape[a->trans_b ? 0 : 1];
	CHECK("gemm", c, ACT | STRIDED, m, n);
	CHECK("gemm", bias, ACT | OPT, n);
	CHECK("gemm", aux, (1u << a->c.dtype) | STRIDED | OPT, m, n);
	CHECK("gemm", a_rowsum, F32 | OPT, m);
	CHECK("gemm", scale_a, F32 | OPT, 1);
	CHECK("gemm", scale_b, F32 | OPT, 1);
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

struct vfm_cost vfm_cost_gemm(const struct vfm_gemm *a)
{
	double k = (double)a->a.shape[a->trans_a ? 0 : 1];

	return (struct vfm_cost){
		2.0 * (double)vfm_numel(&a->c) * k,
		(double)(vfm_nbytes(&a->a) + vfm_nbytes(&a->b) + vfm_nbytes(&a->c) * (a->accumulate ? 2 : 1) +
			vfm_nbytes(&a->bias) + vfm_nbytes(&a->aux) + 2 * vfm_nbytes(&a->a_rowsum)),
	};
}

OP(gemm, NO_SEQS, IN(a, NORMAL), IN(b, SMALL), IO(c, NORMAL), IN(bias, NORMAL), IO(aux, NORMAL), IO(a_rowsum, NORMAL),
	IN(scale_a, POWER), IN(scale_b, POWER))

static int check_quant(const struct vfm_quant *a, struct vfm_err *err)
{
	int64_t t, d;

	CHECK("quant", x, ACT | STRIDED, -1, -1);
	t = a->x.shape[0], d = a->x.shape[1];
	CHECK("quant", y, F8 | OPT, t, d);
	CHECK("quant", yt, F8 | OPT, d, (t + 15) / 16 * 16);
	CHECK("quant", history, F32 | OPT, -1);
	CHECK("quant", amax, F32, 1);
	CHECK("quant", inv, F32, 1);
	CHECK("quant", colsum, F32 | OPT, d);
	REQUIRE("quant", vfm_has(&a->y) || vfm_has(&a->yt), "neither y nor yt is there");
	REQUIRE("quant", !vfm_has(&a->y) || !vfm_has(&a->yt) || a->y.dtype == a->yt.dtype, "y and yt differ in dtype");
	return 0;
}

struct vfm_cost vfm_cost_quant(const struct vfm_quant *a)
{
	return (struct vfm_cost){0,
		(double)(vfm_nbytes(&a->x) * (vfm_has(&a->history) ? 1 : 2) + vfm_nbytes(&a->y) + vfm_nbytes(&a->yt) +
			2 * vfm_nbytes(&a->colsum))};
}

OP(quant, NO_SEQS, IN(x, NORMAL), OUT(y), OUT(yt), IN(history, PAST), IO(amax, POSITIVE), OUT(inv), IO(colsum, NORMAL))

static int check_transpose8(const struct vfm_transpose8 *a, struct vfm_err *err)
{
	CHECK("transpose8", x, F8, -1, -1);
	CHECK("transpose8", y, 1u << a->x.dtype, a->x.shape[1], (a->x.shape[0] + 15) / 16 * 16);
	return 0;
}

COST_OF_BYTES(transpose8)
OP(transpose8, NO_SEQS, IN(x, NORMAL), OUT(y))

static int check_amax_push(const struct vfm_amax_push *a, struct vfm_err *err)
{
	int64_t n;

	CHECK("amax_push", past, F32, -1, -1);
	n = a->past.shape[0];
	CHECK("amax_push", parts, F32 | STRIDED, -1, n);
	CHECK("amax_push", grad_scale, F32 | OPT, 1);
	REQUIRE("amax_push", a->past.shape[1] > 0, "operand 'past' has no columns");
	return 0;
}

struct vfm_cost vfm_cost_amax_push(const struct vfm_amax_push *a)
{
	return (struct vfm_cost){0, (double)(vfm_nbytes(&a->parts) + 2 * vfm_nbytes(&a->past))};
}

OP(amax_push, NO_SEQS, IN(parts, POSITIVE), IO(past, POSITIVE), IN(grad_scale, SCALE))

/* ---- norm ---------------------------------------------------------------------- */

/* The samples of a norm: those of the modulation, of the gate, or -1. */
static int check_norm_samples(const char *op, const struct vfm_tensor *scale, const struct vfm_tensor *gate,
	const struct vfm_seqs *seqs, int64_t t, struct vfm_err *err)
{
	const struct vfm_tensor *by = vfm_has(scale) ? scale : gate;

	if (!vfm_has(by))
		return 0;
	if (vfm_has(gate) && gate->shape[0] != by->shape[0])
		return vfm_fail(err, VFM_EUSAGE, "%s: operands 'scale' and 'gate' differ in samples", op);
	return vfm_op_check_seqs(op, "seqs", seqs, t, by->shape[0], err);
}

static int check_norm(const struct vfm_norm *a, struct vfm_err *err)
{
	int64_t t, d, s;
	bool h = vfm_has(&a->h);

	CHECK("norm", x, ACT, -1, -1);
	t = a->x.shape[0], d = a->x.shape[1];
	REQUIRE("norm", d > 0, "operand 'x' has no columns");
	s = op_dim(&a->scale, 0);
	CHECK("norm", y, vfm_has(&a->history) ? 1u << VFM_F8E4M3 : ACT, t, d);
	CHECK("norm", weight, F32 | OPT, d);
	CHECK("norm", bias, F32 | OPT, d);
	CHECK("norm", scale, ACT | STRIDED | OPT, -1, d);
	CHECK("norm", shift, ACT | STRIDED | OPT, s, d);
	REQUIRE("norm", vfm_has(&a->scale) == vfm_has(&a->shift), "scale and shift go together");
	REQUIRE("norm", !vfm_has(&a->scale) || !vfm_has(&a->weight), "scale and weight exclude each other");
	REQUIRE("norm", !vfm_has(&a->bias) || vfm_has(&a->weight), "bias needs weight");
	CHECK("norm", h, ACT | OPT, t, d);
	CHECK("norm", gate, ACT | STRIDED | OPT, -1, d);
	CHECK("norm", sum, 1u << a->x.dtype | OPT, t, d);
	REQUIRE("norm", vfm_has(&a->sum) == h, "h and sum go together");
	REQUIRE("norm", h || !vfm_has(&a->gate), "gate needs h");
	CHECK("norm", mean, F32 | OPT, t);
	CHECK("norm", rstd, F32 | OPT, t);
	CHECK("norm", history, F32 | OPT, -1);
	CHECK("norm", inv, F32 | OPT, 1);
	CHECK("norm", amax, F32 | OPT, 1);
	REQUIRE("norm", vfm_has(&a->history) == vfm_has(&a->inv), "history and inv go together");
	return check_norm_samples("norm", &a->scale, &a->gate, a->seqs, t, err);
}

COST_OF_BYTES(norm)
OP(norm, SEQS(seqs), IN(x, NORMAL), OUT(y), IN(weight, POSITIVE), IN(bias, NORMAL), IN(shift, NORMAL), IN(scale, SMALL),
	IN(h, NORMAL), IN(gate, NORMAL), OUT(sum), OUT(mean), OUT(rstd), IN(history, PAST), OUT(inv),
	IO(amax, POSITIVE))

/* The operands of the residual sum in front of the norm. */
static int check_branch_bwd(const struct vfm_norm_bwd *a, int64_t t, int64_t d, struct vfm_err *err)
{
	bool gate = vfm_has(&a->gate);

	CHECK("norm_bwd", h, ACT | OPT, t, d);
	CHECK("norm_bwd", gate, ACT | STRIDED | OPT, -1, d);
	CHECK("norm_bwd", dh, (vfm_has(&a->h) ? 1u << a->h.dtype : ACT) | OPT, t, d);
	CHECK("norm_bwd", dgate, F32 | STRIDED | OPT, gate ? a->gate.shape[0] : -1, d);
	CHECK("norm_bwd", dh_sum, F32 | OPT, d);
	REQUIRE("norm_bwd", vfm_has(&a->h) == vfm_has(&a->dgate), "h and dgate go together");
	REQUIRE("norm_bwd", gate || !vfm_has(&a->dgate), "dgate needs gate");
	REQUIRE("norm_bwd", vfm_has(&a->dh) || !(gate || vfm_has(&a->dh_sum)), "gate and dh_sum need dh");
	return 0;
}

static int check_norm_bwd(const struct vfm_norm_bwd *a, struct vfm_err *err)
{
	int64_t t, d, s;
	bool mod = vfm_has(&a->scale);

	CHECK("norm_bwd", x, ACT, -1, -1);
	t = a->x.shape[0], d = a->x.shape[1];
	REQUIRE("norm_bwd", d > 0, "operand 'x' has no columns");
	CHECK("norm_bwd", dy, ACT, t, d);
	CHECK("norm_bwd", dx, ACT, t, d);
	CHECK("norm_bwd", weight, F32 | OPT, d);
	CHECK("norm_bwd", scale, ACT | STRIDED | OPT, -1, d);
	s = mod ? a->scale.shape[0] : -1;
	CHECK("norm_bwd", rstd, F32, t);
	if (a->kind == VFM_NORM_LAYER)
		CHECK("norm_bwd", mean, F32, t);
	CHECK("norm_bwd", dweight, F32 | OPT, d);
	CHECK("norm_bwd", dbias, F32 | OPT, d);
	CHECK("norm_bwd", dshift, F32 | STRIDED | OPT, s, d);
	CHECK("norm_bwd", dscale, F32 | STRIDED | OPT, s, d);
	REQUIRE("norm_bwd", !mod || !vfm_has(&a->weight), "scale and weight exclude each other");
	REQUIRE("norm_bwd", vfm_has(&a->weight) || (!vfm_has(&a->dweight) && !vfm_has(&a->dbias)),
		"dweight and dbias need weight");
	REQUIRE("norm_bwd", mod || (!vfm_has(&a->dshift) && !vfm_has(&a->dscale)), "dshift and dscale need scale");
	TRY(check_branch_bwd(a, t, d, err));
	return check_norm_samples("norm_bwd", &a->scale, &a->gate, a->seqs, t, err);
}

struct vfm_cost vfm_cost_norm_bwd(const struct vfm_norm_bwd *a)
{
	return (struct vfm_cost){0,
		(double)(vfm_nbytes(&a->x) + vfm_nbytes(&a->dy) + vfm_nbytes(&a->dx) * (a->dx_accumulate ? 2 : 1) +
			vfm_nbytes(&a->weight) + vfm_nbytes(&a->scale) + vfm_nbytes(&a->mean) + vfm_nbytes(&a->rstd) +
			2 * vfm_nbytes(&a->dweight) + 2 * vfm_nbytes(&a->dbias) + vfm_nbytes(&a->dshift) +
			vfm_nbytes(&a->dscale) + vfm_nbytes(&a->h) + vfm_nbytes(&a->gate) + vfm_nbytes(&a->dh) +
			vfm_nbytes(&a->dgate) + 2 * vfm_nbytes(&a->dh_sum))};
}

OP(norm_bwd, SEQS(seqs), IN(x, NORMAL), IN(dy, NORMAL), IN(weight, POSITIVE), IN(scale, SMALL), IN(mean, SMALL),
	IN(rstd, POSITIVE), IO(dx, NORMAL), IO(dweight, NORMAL), IO(dbias, NORMAL), OUT(dshift), OUT(dscale),
	IN(h, NORMAL), IN(gate, NORMAL), OUT(dh), OUT(dgate), IO(dh_sum, NORMAL))

/* ---- gate ---------------------------------------------------------------------- */

static int check_gate(const struct vfm_gate *a, struct vfm_err *err)
{
	int64_t t, d;

	CHECK("gate", x, ACT, -1, -1);
	t = a->x.shape[0], d = a->x.shape[1];
	CHECK("gate", y, 1u << a->x.dtype, t, d);
	CHECK("gate", h, ACT, t, d);
	CHECK("gate", gate, ACT | STRIDED | OPT, -1, d);
	if (vfm_has(&a->gate))
		TRY(vfm_op_check_seqs("gate", "seqs", a->seqs, t, a->gate.shape[0], err));
	return 0;
}

COST_OF_BYTES(gate)
OP(gate, SEQS(seqs), IN(x, NORMAL), IN(h, NORMAL), IN(gate, NORMAL), OUT_OVER(y, x))

static int check_gate_bwd(const struct vfm_gate_bwd *a, struct vfm_err *err)
{
	int64_t t, d, s;

	CHECK("gate_bwd", dy, ACT, -1, -1);
	t = a->dy.shape[0], d = a->dy.shape[1];
	CHECK("gate_bwd", h, ACT | OPT, t, d);
	CHECK("gate_bwd", gate, ACT | STRIDED, -1, d);
	s = a->gate.shape[0];
	CHECK("gate_bwd", dh, vfm_has(&a->h) ? 1u << a->h.dtype : ACT, t, d);
	CHECK("gate_bwd", dgate, F32 | STRIDED | OPT, s, d);
	CHECK("gate_bwd", dh_sum, F32 | OPT, d);
	REQUIRE("gate_bwd", vfm_has(&a->h) == vfm_has(&a->dgate), "h and dgate go together");
	return vfm_op_check_seqs("gate_bwd", "seqs", a->seqs, t, s, err);
}

COST_OF_BYTES(gate_bwd)
OP(gate_bwd, SEQS(seqs), IN(dy, NORMAL), IN(h, NORMAL), IN(gate, NORMAL), OUT(dh), OUT(dgate), IO(dh_sum, NORMAL))

/* ---- add_row ------------------------------------------------------------------- */

static int check_add_row(const struct vfm_add_row *a, struct vfm_err *err)
{
	int64_t t, d;

	CHECK("add_row", x, ACT, -1, -1);
	t = a->x.shape[0], d = a->x.shape[1];
	CHECK("add_row", row, ACT, d);
	CHECK("add_row", y, 1u << a->x.dtype, t, d);
	return 0;
}

COST_OF_BYTES(add_row)
OP(add_row, NO_SEQS, IN(x, NORMAL), IN(row, NORMAL), OUT_OVER(y, x))

static int check_add_row_bwd(const struct vfm_add_row_bwd *a, struct vfm_err *err)
{
	CHECK("add_row_bwd", dy, ACT, -1, -1);
	CHECK("add_row_bwd", drow, F32, a->dy.shape[1]);
	return 0;
}

COST_OF_BYTES(add_row_bwd)
OP(add_row_bwd, NO_SEQS, IN(dy, NORMAL), IO(drow, NORMAL))

/* ---- qk_norm_rope ---------------------------------------------------------------- */

static int check_qk_norm_rope(const struct vfm_qk_norm_rope *a, struct vfm_err *err)
{
	int64_t t, h, d;
	bool norm = vfm_has(&a->weight);

	CHECK("qk_norm_rope", x, ACT | STRIDED, -1, -1, -1);
	t = a->x.shape[0], h = a->x.shape[1], d = a->x.shape[2];
	CHECK("qk_norm_rope", y, (1u << a->x.dtype) | STRIDED, t, h, d);
	CHECK("qk_norm_rope", weight, F32 | OPT, d);
	CHECK("qk_norm_rope", rope, F32 | OPT, t, d);
	CHECK("qk_norm_rope", rstd, F32 | (norm ? 0 : OPT), t, h);
	REQUIRE("qk_norm_rope", d > 0 && (d % 2 == 0 || !vfm_has(&a->rope)), "rope needs an even head dim");
	if (!vfm_has(&a->x2)) {
		REQUIRE("qk_norm_rope",
			!vfm_has(&a->y2) && !vfm_has(&a->weight2) && !vfm_has(&a->rope2) && !vfm_has(&a->rstd2),
			"y2, weight2, rope2 and rstd2 need x2");
		return 0;
	}
	CHECK("qk_norm_rope", x2, (1u << a->x.dtype) | STRIDED, -1, -1, d);
	t = a->x2.shape[0], h = a->x2.shape[1];
	CHECK("qk_norm_rope", y2, (1u << a->x.dtype) | STRIDED, t, h, d);
	CHECK("qk_norm_rope", weight2, F32 | (norm ? 0 : OPT), d);
	CHECK("qk_norm_rope", rope2, F32 | (vfm_has(&a->rope) ? 0 : OPT), t, d);
	CHECK("qk_norm_rope", rstd2, F32 | (norm ? 0 : OPT), t, h);
	REQUIRE("qk_norm_rope", norm == vfm_has(&a->weight2) && vfm_has(&a->rope) == vfm_has(&a->rope2),
		"weight2 and rope2 are present if weight and rope are");
	return 0;
}

COST_OF_BYTES(qk_norm_rope)
OP(qk_norm_rope, NO_SEQS, IN(x, NORMAL), OUT(y), IN(weight, POSITIVE), IN(rope, NORMAL), OUT(rstd), IN(x2, NORMAL),
	OUT(y2), IN(weight2, POSITIVE), IN(rope2, NORMAL), OUT(rstd2))

static int check_qk_norm_rope_bwd(const struct vfm_qk_norm_rope_bwd *a, struct vfm_err *err)
{
	int64_t t, h, d;
	bool norm = vfm_has(&a->weight);

	CHECK("qk_norm_rope_bwd", dy, ACT | STRIDED, -1, -1, -1);
	t = a->dy.shape[0], h = a->dy.shape[1], d = a->dy.shape[2];
	CHECK("qk_norm_rope_bwd", x, ACT | STRIDED | (norm ? 0 : OPT), t, h, d);
	CHECK("qk_norm_rope_bwd", dx, ACT | STRIDED, t, h, d);
	CHECK("qk_norm_rope_bwd", weight, F32 | OPT, d);
	CHECK("qk_norm_rope_bwd", rope, F32 | OPT, t, d);
	CHECK("qk_norm_rope_bwd", rstd, F32 | (norm ? 0 : OPT), t, h);
	CHECK("qk_norm_rope_bwd", dweight, F32 | OPT, d);
	REQUIRE("qk_norm_rope_bwd", norm || !vfm_has(&a->dweight), "dweight needs weight");
	REQUIRE("qk_norm_rope_bwd", d > 0 && (d % 2 == 0 || !vfm_has(&a->rope)), "rope needs an even head dim");
	if (!vfm_has(&a->dy2)) {
		REQUIRE("qk_norm_rope_bwd",
			!vfm_has(&a->x2) && !vfm_has(&a->dx2) && !vfm_has(&a->weight2) && !vfm_has(&a->rope2) &&
				!vfm_has(&a->rstd2) && !vfm_has(&a->dweight2),
			"x2, dx2, weight2, rope2, rstd2 and dweight2 need dy2");
		return 0;
	}
	CHECK("qk_norm_rope_bwd", dy2, (1u << a->dy.dtype) | STRIDED, -1, -1, d);
	t = a->dy2.shape[0], h = a->dy2.shape[1];
	CHECK("qk_norm_rope_bwd", x2, (norm ? 1u << a->x.dtype : ACT | OPT) | STRIDED, t, h, d);
	CHECK("qk_norm_rope_bwd", dx2, ACT | STRIDED, t, h, d);
	CHECK("qk_norm_rope_bwd", weight2, F32 | (norm ? 0 : OPT), d);
	CHECK("qk_norm_rope_bwd", rope2, F32 | (vfm_has(&a->rope) ? 0 : OPT), t, d);
	CHECK("qk_norm_rope_bwd", rstd2, F32 | (norm ? 0 : OPT), t, h);
	CHECK("qk_norm_rope_bwd", dweight2, F32 | OPT, d);
	REQUIRE("qk_norm_rope_bwd", norm == vfm_has(&a->weight2) && vfm_has(&a->rope) == vfm_has(&a->rope2),
		"weight2 and rope2 are present if weight and rope are");
	REQUIRE("qk_norm_rope_bwd", norm || !vfm_has(&a->dweight2), "dweight2 needs weight2");
	return 0;
}

struct vfm_cost vfm_cost_qk_norm_rope_bwd(const struct vfm_qk_norm_rope_bwd *a)
{
	double bytes = (double)((vfm_has(&a->weight) ? vfm_nbytes(&a->x) : 0) + vfm_nbytes(&a->dy) +
		vfm_nbytes(&a->dx) + vfm_nbytes(&a->weight) + vfm_nbytes(&a->rope) + vfm_nbytes(&a->rstd) +
		2 * vfm_nbytes(&a->dweight));
	struct vfm_qk_norm_rope_bwd b = vfm_qk_second_bwd(a);

	return (struct vfm_cost){0, bytes + (vfm_has(&b.dy) ? vfm_cost_qk_norm_rope_bwd(&b).bytes : 0)};
}

OP(qk_norm_rope_bwd, NO_SEQS, IN(x, NORMAL), IN(dy, NORMAL), IN(weight, POSITIVE), IN(rope, NORMAL), IN(rstd, POSITIVE),
	OUT(dx), IO(dweight, NORMAL), IN(x2, NORMAL), IN(dy2, NORMAL), IN(weight2, POSITIVE), IN(rope2, NORMAL),
	IN(rstd2, POSITIVE), OUT(dx2), IO(dweight2, NORMAL))

/* ---- norms of whole rows ------------------------------------------------------------ */

static int check_row_dot(const struct vfm_row_dot *a, struct vfm_err *err)
{
	CHECK("row_dot", x, ACT | STRIDED, -1, -1, -1);
	CHECK("row_dot", y, ACT | STRIDED | OPT, a->x.shape[0], a->x.shape[1], a->x.shape[2]);
	CHECK("row_dot", out, F32, a->x.shape[0]);
	return 0;
}

COST_OF_BYTES(row_dot)
OP(row_dot, NO_SEQS, IN(x, NORMAL), IN(y, NORMAL), OUT(out))

static int check_row_norm_rope(const struct vfm_row_norm_rope *a, struct vfm_err *err)
{
	int64_t t, h, d;

	CHECK("row_norm_rope", x, ACT | STRIDED, -1, -1, -1);
	t = a->x.shape[0], h = a->x.shape[1], d = a->x.shape[2];
	CHECK("row_norm_rope", y, (1u << a->x.dtype) | STRIDED, t, h, d);
	CHECK("row_norm_rope", weight, F32, h * d);
	if (a->rope.ndim == 3)
		CHECK("row_norm_rope", rope, F32, t, h, d);
	else
		CHECK("row_norm_rope", rope, F32 | OPT, t, d);
	CHECK("row_norm_rope", sumsq, F32, t);
	REQUIRE("row_norm_rope", d > 0 && (d % 2 == 0 || !vfm_has(&a->rope)), "rope needs an even head dim");
	REQUIRE("row_norm_rope", a->width >= h * d, "'width' is less than a row of 'x'");
	return 0;
}

COST_OF_BYTES(row_norm_rope)
OP(row_norm_rope, NO_SEQS, IN(x, NORMAL), OUT(y), IN(weight, POSITIVE), IN(rope, NORMAL), IN(sumsq, POSITIVE))

static int check_row_norm_rope_bwd(const struct vfm_row_norm_rope_bwd *a, struct vfm_err *err)
{
	int64_t t, h, d;

	CHECK("row_norm_rope_bwd", x, ACT | STRIDED, -1, -1, -1);
	t = a->x.shape[0], h = a->x.shape[1], d = a->x.shape[2];
	CHECK("row_norm_rope_bwd", dy, ACT | STRIDED, t, h, d);
	CHECK("row_norm_rope_bwd", dx, ACT | STRIDED, t, h, d);
	CHECK("row_norm_rope_bwd", weight, F32, h * d);
	if (a->rope.ndim == 3)
		CHECK("row_norm_rope_bwd", rope, F32, t, h, d);
	else
		CHECK("row_norm_rope_bwd", rope, F32 | OPT, t, d);
	CHECK("row_norm_rope_bwd", sumsq, F32, t);
	CHECK("row_norm_rope_bwd", dot, F32, t);
	CHECK("row_norm_rope_bwd", dweight, F32 | OPT, h * d);
	REQUIRE("row_norm_rope_bwd", d > 0 && (d % 2 == 0 || !vfm_has(&a->rope)), "rope needs an even head dim");
	REQUIRE("row_norm_rope_bwd", a->width >= h * d, "'width' is less than a row of 'x'");
	return 0;
}

COST_OF_BYTES(row_norm_rope_bwd)
OP(row_norm_rope_bwd, NO_SEQS, IN(x, NORMAL), IN(dy, NORMAL), IN(weight, POSITIVE), IN(rope, NORMAL),
	IN(sumsq, POSITIVE), IN(dot, NORMAL), OUT(dx), IO(dweight, NORMAL))

/* ---- attention -------------------------------------------------------------------- */

void vfm_seqs_init(struct vfm_seqs *q, int n, const int32_t *cu)
{
	*q = (struct vfm_seqs){.n = n, .total = cu[n], .cu = cu};
	for (int i = 0; i < n; i++)
		if (cu[i + 1] - cu[i] > q->max_len)
			q->max_len = cu[i + 1] - cu[i];
}

static int check_head_counts(
	const char *op, const struct vfm_tensor *q, const struct vfm_tensor *k, struct vfm_err *err)
{
	int64_t d = q->shape[2];

	REQUIRE(op, d > 0 && d <= 128 && d % 8 == 0, "the head dim must be a multiple of 8, at most 128");
	REQUIRE(op, k->shape[1] > 0 && q->shape[1] % k->shape[1] == 0,
		"the number of query heads is not a multiple of the number of key heads");
	return 0;
}

static int check_attn(const struct vfm_attn *a, struct vfm_err *err)
{
	unsigned dt = 1u << a->q.dtype;
	int64_t d, hkv;

	CHECK("attn", q, ACT | STRIDED, -1, -1, -1);
	d = a->q.shape[2];
	CHECK("attn", k, dt | STRIDED, -1, -1, d);
	hkv = a->k.shape[1];
	CHECK("attn", v, dt | STRIDED, a->k.shape[0], hkv, d);
	CHECK("attn", o, dt | STRIDED, a->q.shape[0], a->q.shape[1], d);
	CHECK("attn", lse, F32, a->q.shape[0], a->q.shape[1]);
	TRY(check_head_counts("attn", &a->q, &a->k, err));
	TRY(vfm_op_check_seqs("attn", "seqs_q", a->seqs_q, a->q.shape[0], -1, err));
	return vfm_op_check_seqs("attn", "seqs_k", a->seqs_k, a->k.shape[0], a->seqs_q->n, err);
}

/* Pairs of a query and a key of the same sample. */
static double count_pairs(const struct vfm_seqs *q, const struct vfm_seqs *k)
{
	double n = 0;

	for (int s = 0; q && k && s < q->n && s < k->n; s++)
		n += (double)vfm_seqs_len(q, s) * (double)vfm_seqs_len(k, s);
	return n;
}

struct vfm_cost vfm_cost_attn(const struct vfm_attn *a)
{
	return (struct vfm_cost){
		4.0 * count_pairs(a->seqs_q, a->seqs_k) * (double)(a->q.shape[1] * a->q.shape[2]),
		(double)(vfm_nbytes(&a->q) + vfm_nbytes(&a->k) + vfm_nbytes(&a->v) + vfm_nbytes(&a->o) +
			vfm_nbytes(&a->lse)),
	};
}

OP(attn, SEQS2(seqs_q, seqs_k), IN(q, NORMAL), IN(k, NORMAL), IN(v, NORMAL), OUT(o), OUT(lse))

static int check_attn_bwd(const struct vfm_attn_bwd *a, struct vfm_err *err)
{
	unsigned dt = 1u << a->q.dtype;
	int64_t d, hkv, tq, tk, h;

	CHECK("attn_bwd", q, ACT | STRIDED, -1, -1, -1);
	tq = a->q.shape[0], h = a->q.shape[1], d = a->q.shape[2];
	CHECK("attn_bwd", k, dt | STRIDED, -1, -1, d);
	tk = a->k.shape[0], hkv = a->k.shape[1];
	CHECK("attn_bwd", v, dt | STRIDED, tk, hkv, d);
	CHECK("attn_bwd", o, dt | STRIDED, tq, h, d);
	CHECK("attn_bwd", dout, dt | STRIDED, tq, h, d);
	CHECK("attn_bwd", lse, F32, tq, h);
	CHECK("attn_bwd", dq, F32 | dt | STRIDED, tq, h, d);
	CHECK("attn_bwd", dk, F32 | dt | STRIDED, tk, hkv, d);
	CHECK("attn_bwd", dv, F32 | dt | STRIDED, tk, hkv, d);
	TRY(check_head_counts("attn_bwd", &a->q, &a->k, err));
	TRY(vfm_op_check_seqs("attn_bwd", "seqs_q", a->seqs_q, tq, -1, err));
	return vfm_op_check_seqs("attn_bwd", "seqs_k", a->seqs_k, tk, a->seqs_q->n, err);
}

struct vfm_cost vfm_cost_attn_bwd(const struct vfm_attn_bwd *a)
{
	return (struct vfm_cost){
		10.0 * count_pairs(a->seqs_q, a->seqs_k) * (double)(a->q.shape[1] * a->q.shape[2]),
		(double)(vfm_nbytes(&a->q) + vfm_nbytes(&a->k) + vfm_nbytes(&a->v) + vfm_nbytes(&a->o) +
			vfm_nbytes(&a->dout) + vfm_nbytes(&a->lse) + vfm_nbytes(&a->dq) + vfm_nbytes(&a->dk) +
			vfm_nbytes(&a->dv)),
	};
}

OP(attn_bwd, SEQS2(seqs_q, seqs_k), IN(q, NORMAL), IN(k, NORMAL), IN(v, NORMAL), IN(o, NORMAL), IN(lse, LSE),
	IN(dout, NORMAL), OUT(dq), OUT(dk), OUT(dv))

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

COST_OF_BYTES(unary)
OP(unary, NO_SEQS, IN(x, NORMAL), IN(dy, NORMAL), OUT(y))

static int check_axpby(const struct vfm_axpby *a, struct vfm_err *err)
{
	REQUIRE("axpby", a->x.ndim > 0, "operand 'x' is missing");
	TRY(vfm_op_check("axpby", "x", &a->x, ACT | STRIDED, a->x.ndim, a->x.shape, err));
	return vfm_op_check("axpby", "y", &a->y, ACT | STRIDED, a->x.ndim, a->x.shape, err);
}

struct vfm_cost vfm_cost_axpby(const struct vfm_axpby *a)
{
	return (struct vfm_cost){0, (double)(vfm_nbytes(&a->x) + vfm_nbytes(&a->y) * (a->beta != 0 ? 2 : 1))};
}

OP(axpby, NO_SEQS, IN(x, NORMAL), IO(y, NORMAL))

static int check_sum_parts(const struct vfm_sum_parts *a, struct vfm_err *err)
{
	CHECK("sum_parts", x, ACT | STRIDED, -1, -1);
	CHECK("sum_parts", own, 1u << a->x.dtype | OPT, a->x.shape[1]);
	CHECK("sum_parts", y, ACT, a->x.shape[1]);
	REQUIRE("sum_parts", !vfm_has(&a->own) || (a->at >= 0 && a->at <= a->x.shape[0]),
		"'at' is no place among the rows of 'x'");
	return 0;
}

COST_OF_BYTES(sum_parts)
OP(sum_parts, NO_SEQS, IN(x, NORMAL), IN(own, NORMAL), OUT(y))

static int check_timestep(const struct vfm_timestep *a, struct vfm_err *err)
{
	CHECK("timestep", t, F32, -1);
	CHECK("timestep", out, ACT, a->t.shape[0], -1);
	REQUIRE("timestep", a->out.shape[1] % 2 == 0, "the number of features is odd");
	return 0;
}

COST_OF_BYTES(timestep)
OP(timestep, NO_SEQS, IN(t, TIME), OUT(out))

static int check_diffuse(const struct vfm_diffuse *a, struct vfm_err *err)
{
	int64_t t, f, s;

	CHECK("diffuse", x0, ACT | F16, -1, -1);
	t = a->x0.shape[0], f = a->x0.shape[1];
	CHECK("diffuse", id, I64, -1);
	s = a->id.shape[0];
	CHECK("diffuse", idx, I32, t);
	CHECK("diffuse", coef, F32, s, 4);
	CHECK("diffuse", input, ACT, t, f);
	CHECK("diffuse", target, F32 | OPT, t, f);
	return vfm_op_check_seqs("diffuse", "seqs", a->seqs, t, s, err);
}

struct vfm_cost vfm_cost_diffuse(const struct vfm_diffuse *a)
{
	return (struct vfm_cost){
		0, (double)(vfm_nbytes(&a->x0) + vfm_nbytes(&a->idx) + vfm_nbytes(&a->input) + vfm_nbytes(&a->target))};
}

OP(diffuse, SEQS(seqs), IN(x0, NORMAL), IN(id, ID), IN(idx, IDX), IN(coef, NORMAL), OUT(input), OUT(target))

static int check_mse(const struct vfm_mse *a, struct vfm_err *err)
{
	int64_t t, f, s;

	CHECK("mse", pred, ACT, -1, -1);
	t = a->pred.shape[0], f = a->pred.shape[1];
	REQUIRE("mse", f > 0, "operand 'pred' has no columns");
	CHECK("mse", target, F32, t, f);
	CHECK("mse", w, F32, -1);
	s = a->w.shape[0];
	CHECK("mse", loss, F64, 1);
	CHECK("mse", unweighted, F64 | OPT, 1);
	CHECK("mse", sample_loss, F32 | OPT, s);
	CHECK("mse", dpred, (1u << a->pred.dtype) | OPT, t, f);
	return vfm_op_check_seqs("mse", "seqs", a->seqs, t, s, err);
}

struct vfm_cost vfm_cost_mse(const struct vfm_mse *a)
{
	return (struct vfm_cost){0, (double)(vfm_nbytes(&a->pred) + vfm_nbytes(&a->target) + vfm_nbytes(&a->dpred))};
}

OP(mse, SEQS(seqs), IN(pred, NORMAL), IN(target, NORMAL), IN(w, POSITIVE), IO(loss, POSITIVE), IO(unweighted, POSITIVE),
	OUT(sample_loss), OUT(dpred))

static int check_adamw(const struct vfm_adamw *a, struct vfm_err *err)
{
	bool split = vfm_has(&a->p_lo);
	int64_t n;

	CHECK("adamw", v, F32, -1);
	n = a->v.shape[0];
	CHECK("adamw", p, F32 | (split ? OPT : 0), n);
	CHECK("adamw", m, ACT, n);
	CHECK("adamw", g, ACT, n);
	CHECK("adamw", grad_scale, F32 | OPT, 1);
	CHECK("adamw", w, BF16 | (split ? 0 : OPT), n);
	CHECK("adamw", p_lo, I16 | OPT, n);
	CHECK("adamw", ema, F32 | OPT, n);
	REQUIRE("adamw", !split || !vfm_has(&a->p), "p and p_lo exclude each other");
	REQUIRE("adamw", a->m.dtype == VFM_F32 || a->beta1 <= 0.99f, "beta1 above 0.99 needs a first moment m in f32");
	return 0;
}

struct vfm_cost vfm_cost_adamw(const struct vfm_adamw *a)
{
	return (struct vfm_cost){0,
		(double)(2 *
				(vfm_nbytes(&a->p) + vfm_nbytes(&a->p_lo) + vfm_nbytes(&a->m) + vfm_nbytes(&a->v) +
					vfm_nbytes(&a->ema)) +
			(vfm_has(&a->p_lo) ? 2 : 1) * vfm_nbytes(&a->w) + vfm_nbytes(&a->g))};
}

OP(adamw, NO_SEQS, IO(p, NORMAL), IO(m, SMALL), IO(v, POSITIVE), IN(g, NORMAL), IN(grad_scale, SCALE), IO(w, NORMAL),
	IO(p_lo, LOW), IO(ema, NORMAL))

static int check_split_master(const struct vfm_split_master *a, struct vfm_err *err)
{
	CHECK("split_master", x, F32, -1);
	CHECK("split_master", hi, BF16, a->x.shape[0]);
	CHECK("split_master", lo, I16, a->x.shape[0]);
	return 0;
}

struct vfm_cost vfm_cost_split_master(const struct vfm_split_master *a)
{
	return (struct vfm_cost){0, (double)(2 * vfm_nbytes(&a->x))};
}

OP(split_master, NO_SEQS, IO(x, NORMAL), IO(hi, NORMAL), IO(lo, INDEX))

static int check_sumsq(const struct vfm_sumsq *a, struct vfm_err *err)
{
	CHECK("sumsq", x, ACT, -1);
	CHECK("sumsq", sum, F64, 1);
	return 0;
}

struct vfm_cost vfm_cost_sumsq(const struct vfm_sumsq *a)
{
	return (struct vfm_cost){0, (double)vfm_nbytes(&a->x)};
}

OP(sumsq, NO_SEQS, IN(x, NORMAL), IO(sum, POSITIVE))

static int check_clip(const struct vfm_clip *a, struct vfm_err *err)
{
	CHECK("clip", sum, F64, 1);
	CHECK("clip", loss, F64 | OPT, 1);
	CHECK("clip", norm, F32, 1);
	CHECK("clip", scale, F32, 1);
	return 0;
}

struct vfm_cost vfm_cost_clip(const struct vfm_clip *a)
{
	(void)a;
	return (struct vfm_cost){0, 16};
}

OP(clip, NO_SEQS, IN(sum, SCALE), IN(loss, POSITIVE), OUT(norm), OUT(scale))

static int check_fill(const struct vfm_fill *a, struct vfm_err *err)
{
	CHECK("fill", x, ACT, -1);
	REQUIRE("fill", a->first >= 0, "'first' is negative");
	return 0;
}

COST_OF_BYTES(fill)
OP(fill, NO_SEQS, OUT(x))

/* ---- dispatch ---------------------------------------------------------------------- */
