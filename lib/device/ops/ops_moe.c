/* ops_moe.c - checks and costs of the ops for mixtures of experts. */
#include "device/ops/check.h"

#include <math.h>

static int check_softmax(const struct vfm_softmax *a, struct vfm_err *err)
{
	CHECK("softmax", x, F32, -1, -1);
	CHECK("softmax", y, F32, a->x.shape[0], a->x.shape[1]);
	return 0;
}

COST_OF_BYTES(softmax)
OP(softmax, NO_SEQS, IN(x, NORMAL), OUT(y))

static int check_softmax_bwd(const struct vfm_softmax_bwd *a, struct vfm_err *err)
{
	CHECK("softmax_bwd", y, F32, -1, -1);
	CHECK("softmax_bwd", dy, F32, a->y.shape[0], a->y.shape[1]);
	CHECK("softmax_bwd", dx, F32, a->y.shape[0], a->y.shape[1]);
	return 0;
}

COST_OF_BYTES(softmax_bwd)
OP(softmax_bwd, NO_SEQS, IN(y, POSITIVE), IN(dy, NORMAL), OUT(dx))

/* ---- choices -------------------------------------------------------------------------- */

int64_t vfm_moe_expert_capacity(int64_t n, int64_t experts, double capacity)
{
	/* minus rounding error: 0.1 * 10 must give 1 */
	double want = ceil((double)n * capacity / (double)experts * (1 - 1e-12));

	return want >= (double)n ? n : (int64_t)want;
}

int64_t vfm_moe_pack_capacity(const struct vfm_seqs *seqs, int64_t experts, double capacity)
{
	int64_t k = 0;

	for (int s = 0; s < seqs->n; s++)
		k += vfm_moe_expert_capacity((int64_t)seqs->cu[s + 1] - seqs->cu[s], experts, capacity);
	return k;
}

static int check_moe_topk_expert(const struct vfm_moe_topk_expert *a, struct vfm_err *err)
{
	int64_t e, k;

	CHECK("moe_topk_expert", score, F32, -1, -1);
	e = a->score.shape[1];
	REQUIRE("moe_topk_expert", e > 0, "there are no experts");
	REQUIRE("moe_topk_expert", a->capacity > 0 && a->capacity < 1e9, "the capacity must be positive");
	TRY(vfm_op_check_seqs("moe_topk_expert", "seqs", a->seqs, a->score.shape[0], -1, err));
	k = vfm_moe_pack_capacity(a->seqs, e, a->capacity);
	CHECK("moe_topk_expert", index, I32, e, k);
	CHECK("moe_topk_expert", weight, F32 | OPT, e, k);
	return 0;
}

COST_OF_BYTES(moe_topk_expert)
OP(moe_topk_expert, SEQS(seqs), IN(score, COARSE), OUT(index), OUT(weight))

static int check_moe_own(const struct vfm_moe_own *a, struct vfm_err *err)
{
	int64_t e, k;

	CHECK("moe_own", index, I32, -1, -1);
	e = a->index.shape[0];
	k = a->index.shape[1];
	CHECK("moe_own", own, I32 | OPT, -1);
	CHECK("moe_own", row, I32, e * k);
	CHECK("moe_own", place, I32, e * k);
	CHECK("moe_own", count, I32, e);
	return 0;
}

struct vfm_cost vfm_cost_moe_own(const struct vfm_moe_own *a)
{
	return (struct vfm_cost){0,
		op_bytes(&a->index) * (vfm_has(&a->own) ? 3 : 1) + op_bytes(&a->row) + op_bytes(&a->place) +
			op_bytes(&a->count)};
}

OP(moe_own, NO_SEQS, IN(index, INDEX), IN(own, INDEX_OR_NONE), OUT(row), OUT(place), OUT(count))

static int check_moe_topk_token(const struct vfm_moe_topk_token *a, struct vfm_err *err)
{
	int64_t t;

	CHECK("moe_topk_token", score, F32, -1, -1);
	t = a->score.shape[0];
	CHECK("moe_topk_token", expert, I32, t, -1);
	CHECK("moe_topk_token", weight, F32, t, a->expert.shape[1]);
	REQUIRE("moe_topk_token", a->expert.shape[1] > 0 && a->expert.shape[1] <= a->score.shape[1],
		"a token chooses at least one expert and at most all");
	return 0;
}

COST_OF_BYTES(moe_topk_token)
OP(moe_topk_token, NO_SEQS, IN(score, COARSE), OUT(expert), OUT(weight))

static int check_moe_topk_token_bwd(const struct vfm_moe_topk_token_bwd *a, struct vfm_err *err)
{
	int64_t t;

	CHECK("moe_topk_token_bwd", score, F32, -1, -1);
	t = a->score.shape[0];
	CHECK("moe_topk_token_bwd", expert, I32, t, -1);
	CHECK("moe_topk_token_bwd", dweight, F32, t, a->expert.shape[1]);
	CHECK("moe_topk_token_bwd", dscore, F32, t, a->score.shape[1]);
	return 0;
}

COST_OF_BYTES(moe_topk_token_bwd)
OP(moe_topk_token_bwd, NO_SEQS, IN(score, POSITIVE), IN(expert, DISTINCT), IN(dweight, NORMAL), OUT(dscore))

static int check_moe_sort(const struct vfm_moe_sort *a, struct vfm_err *err)
{
	int64_t n;

	CHECK("moe_sort", key, I32, -1);
	n = a->key.shape[0];
	CHECK("moe_sort", order, I32, n);
	CHECK("moe_sort", source, I32 | OPT, n);
	CHECK("moe_sort", inverse, I32 | OPT, n);
	CHECK("moe_sort", count, I32, a->buckets);
	REQUIRE("moe_sort", a->buckets >= 0 && a->div >= 1,
		"the number of buckets is negative, or div is not positive");
	return 0;
}

struct vfm_cost vfm_cost_moe_sort(const struct vfm_moe_sort *a)
{
	return (struct vfm_cost){0,
		2 * op_bytes(&a->key) + op_bytes(&a->order) + op_bytes(&a->source) + op_bytes(&a->inverse) +
			op_bytes(&a->count)};
}

OP(moe_sort, NO_SEQS, IN(key, INDEX_OR_NONE), OUT(order), OUT(source), OUT(inverse), OUT(count))

/* ---- balance ---------------------------------------------------------------------------- */

static int check_moe_count(const struct vfm_moe_count *a, struct vfm_err *err)
{
	CHECK("moe_count", expert, I32, -1, -1);
	CHECK("moe_count", count, F32, -1, -1);
	return vfm_op_check_seqs("moe_count", "seqs", a->seqs, a->expert.shape[0], a->count.shape[0], err);
}

COST_OF_BYTES(moe_count)
OP(moe_count, SEQS(seqs), IN(expert, INDEX_OR_NONE), OUT(count))

static int check_moe_balance(const struct vfm_moe_balance *a, struct vfm_err *err)
{
	int64_t e;

	CHECK("moe_balance", score, F32, -1, -1);
	e = a->score.shape[1];
	CHECK("moe_balance", count, F32, -1, e);
	CHECK("moe_balance", coef, F32, a->count.shape[0]);
	CHECK("moe_balance", loss, F64 | OPT, 1);
	CHECK("moe_balance", dscore, F32 | OPT, a->score.shape[0], e);
	return vfm_op_check_seqs("moe_balance", "seqs", a->seqs, a->score.shape[0], a->count.shape[0], err);
}

struct vfm_cost vfm_cost_moe_balance(const struct vfm_moe_balance *a)
{
	return (struct vfm_cost){0,
		(vfm_has(&a->loss) ? op_bytes(&a->score) : 0) + op_bytes(&a->count) + op_bytes(&a->coef) +
			op_bytes(&a->dscore) * (a->accumulate ? 2 : 1)};
}

OP(moe_balance, SEQS(seqs), IN(score, POSITIVE), IN(count, POSITIVE), IN(coef, POSITIVE), IO(loss, POSITIVE),
	IO(dscore, NORMAL))

/* ---- grouped products ---------------------------------------------------------------------- */

static int check_grouped_gemm(const struct vfm_grouped_gemm *a, struct vfm_err *err)
{
	const char *op = "grouped_gemm";
	bool wgrad = a->what == VFM_GROUPED_WGRAD, fwd = a->what == VFM_GROUPED_FWD;
	int64_t n = op_dim(&a->a, 0), k = op_dim(&a->a, 1), out, g = a->groups ? a->groups->n : -1;

	REQUIRE(op, a->groups && g >= 0, "operand 'groups' is missing");
	CHECK(op, a, ACT | STRIDED, -1, -1);
	if (wgrad) {
		CHECK(op, b, (1u << a->a.dtype) | STRIDED, n, -1);
		CHECK(op, c, ACT, g, k, a->b.shape[1]);
	} else {
		CHECK(op, b, 1u << a->a.dtype, g, fwd ? -1 : k, fwd ? k : -1);
		out = a->b.shape[fwd ? 1 : 2];
		CHECK(op, c, ACT | STRIDED, n, out);
		CHECK(op, aux, (1u << a->c.dtype) | STRIDED | OPT, n, out);
		CHECK(op, bias, F32 | OPT, g, out);
	}
	CHECK(op, a_colsum, F32 | OPT, g, k);
	TRY(vfm_op_check_seqs(op, "groups", a->groups, n, -1, err));
	REQUIRE(op, fwd || (!a->act && !vfm_has(&a->bias)), "bias and act belong to the forward");
	REQUIRE(op, a->what == VFM_GROUPED_DGRAD || !a->dact, "dact belongs to the data gradient");
	REQUIRE(op, wgrad || !vfm_has(&a->a_colsum), "a_colsum belongs to the weight gradient");
	REQUIRE(op, !a->accumulate || (!a->act && !a->dact), "accumulate excludes act and dact");
	REQUIRE(op, !a->dact || vfm_has(&a->aux), "dact needs aux");
	REQUIRE(op, a->act <= VFM_ACT_SILU && a->dact <= VFM_ACT_SILU, "only 'unary' computes this activation");
	REQUIRE(op, !vfm_has(&a->aux) || a->act || a->dact, "aux needs act or dact");
	return 0;
}

struct vfm_cost vfm_cost_grouped_gemm(const struct vfm_grouped_gemm *a)
{
	double n = (double)a->a.shape[0], k = (double)a->a.shape[1];
	double out = (double)(a->what == VFM_GROUPED_FWD ? a->b.shape[1] : a->b.shape[a->b.ndim - 1]);

	return (struct vfm_cost){2 * n * k * out,
		op_bytes(&a->a) + op_bytes(&a->b) + op_bytes(&a->c) * (a->accumulate ? 2 : 1) + op_bytes(&a->bias) +
			op_bytes(&a->aux) + 2 * op_bytes(&a->a_colsum)};
}

OP(grouped_gemm, SEQS(groups), IN(a, NORMAL), IN(b, SMALL), IO(c, NORMAL), IN(bias, NORMAL), IO(aux, NORMAL),
	IO(a_colsum, NORMAL))
