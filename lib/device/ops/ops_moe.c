/* ops_moe.c - checks and costs of the ops for mixtures of experts. */
#include "device/ops/check.h"

#include <math.h>

OP(softmax, no_check, NO_SEQS, IN(x, NORMAL, F32, "TE"), OUT(y, F32, "TE"))

OP(softmax_bwd, no_check, NO_SEQS, IN(y, POSITIVE, F32, "TE"), IN(dy, NORMAL, F32, "TE"), OUT(dx, F32, "TE"))

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
	int64_t e = a->score.shape[1];

	REQUIRE("moe_topk_expert", e > 0, "there are no experts");
	REQUIRE("moe_topk_expert", a->capacity > 0 && a->capacity < 1e9, "the capacity must be positive");
	CHECK("moe_topk_expert", index, I32, e, vfm_moe_pack_capacity(a->seqs, e, a->capacity));
	return 0;
}

OP(moe_topk_expert, check_moe_topk_expert, SEQS(seqs, "T*"), IN(score, COARSE, F32, "TE"), OUT(index, I32, "EK"),
	OUT(weight, F32 | OPT, "EK"))

static int check_moe_own(const struct vfm_moe_own *a, struct vfm_err *err)
{
	CHECK("moe_own", row, I32, a->index.shape[0] * a->index.shape[1]);
	return 0;
}

static struct vfm_cost extra_moe_own(const struct vfm_moe_own *a)
{
	/* to place the rows of others the index is read three times */
	return (struct vfm_cost){0, vfm_has(&a->own) ? 2 * op_bytes(&a->index) : 0};
}

OP_EXTRA(moe_own, check_moe_own, extra_moe_own, NO_SEQS, IN(index, INDEX, I32, "EK"),
	IN(own, INDEX_OR_NONE, UNCOUNTED | I32 | OPT, "*"), OUT(row, I32, "N"), OUT(place, I32, "N"),
	OUT(count, I32, "E"))

static int check_moe_topk_token(const struct vfm_moe_topk_token *a, struct vfm_err *err)
{
	REQUIRE("moe_topk_token", a->expert.shape[1] > 0 && a->expert.shape[1] <= a->score.shape[1],
		"a token chooses at least one expert and at most all");
	return 0;
}

OP(moe_topk_token, check_moe_topk_token, NO_SEQS, IN(score, COARSE, F32, "TE"), OUT(expert, I32, "TK"),
	OUT(weight, F32, "TK"))

OP(moe_topk_token_bwd, no_check, NO_SEQS, IN(score, POSITIVE, F32, "TE"), IN(expert, DISTINCT, I32, "TK"),
	IN(dweight, NORMAL, F32, "TK"), OUT(dscore, F32, "TE"))

static int check_moe_sort(const struct vfm_moe_sort *a, struct vfm_err *err)
{
	CHECK("moe_sort", count, I32, a->buckets);
	REQUIRE("moe_sort", a->buckets >= 0 && a->div >= 1,
		"the number of buckets is negative, or div is not positive");
	return 0;
}

static struct vfm_cost extra_moe_sort(const struct vfm_moe_sort *a)
{
	return (struct vfm_cost){0, op_bytes(&a->key)};
}

OP_EXTRA(moe_sort, check_moe_sort, extra_moe_sort, NO_SEQS, IN(key, INDEX_OR_NONE, I32, "N"), OUT(order, I32, "N"),
	OUT(source, I32 | OPT, "N"), OUT(inverse, I32 | OPT, "N"), OUT(count, I32, "*"))

/* ---- balance ---------------------------------------------------------------------------- */

OP(moe_count, no_check, SEQS(seqs, "TS"), IN(expert, INDEX_OR_NONE, I32, "T*"), OUT(count, F32, "S*"))

static struct vfm_cost extra_moe_balance(const struct vfm_moe_balance *a)
{
	return (struct vfm_cost){0, vfm_has(&a->loss) ? op_bytes(&a->score) : 0};
}

OP_EXTRA(moe_balance, no_check, extra_moe_balance, SEQS(seqs, "TS"), IN(score, POSITIVE, UNCOUNTED | F32, "TE"),
	IN(count, POSITIVE, F32, "SE"), IN(coef, POSITIVE, F32, "S"), IO(loss, POSITIVE, UNCOUNTED | F64 | OPT, "1"),
	IO_IF(dscore, accumulate, NORMAL, F32 | OPT, "TE"))

/* ---- grouped products ---------------------------------------------------------------------- */

static int check_grouped_gemm(const struct vfm_grouped_gemm *a, struct vfm_err *err)
{
	const char *op = "grouped_gemm";
	bool wgrad = a->what == VFM_GROUPED_WGRAD, fwd = a->what == VFM_GROUPED_FWD;
	int64_t n = a->a.shape[0], k = a->a.shape[1], out, g = a->groups->n;

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
	REQUIRE(op, fwd || (!a->act && !vfm_has(&a->bias)), "bias and act belong to the forward");
	REQUIRE(op, a->what == VFM_GROUPED_DGRAD || !a->dact, "dact belongs to the data gradient");
	REQUIRE(op, wgrad || !vfm_has(&a->a_colsum), "a_colsum belongs to the weight gradient");
	REQUIRE(op, !a->accumulate || (!a->act && !a->dact), "accumulate excludes act and dact");
	REQUIRE(op, !a->dact || vfm_has(&a->aux), "dact needs aux");
	REQUIRE(op, a->act <= VFM_ACT_SILU && a->dact <= VFM_ACT_SILU, "only 'unary' computes this activation");
	REQUIRE(op, !vfm_has(&a->aux) || a->act || a->dact, "aux needs act or dact");
	return 0;
}

static struct vfm_cost extra_grouped_gemm(const struct vfm_grouped_gemm *a)
{
	double out = (double)(a->what == VFM_GROUPED_FWD ? a->b.shape[1] : a->b.shape[a->b.ndim - 1]);

	return (struct vfm_cost){2 * (double)a->a.shape[0] * (double)a->a.shape[1] * out, 0};
}

OP_EXTRA(grouped_gemm, check_grouped_gemm, extra_grouped_gemm, SEQS(groups, "N*"), IN(a, NORMAL, ACT | STRIDED, "NK"),
	IN(b, SMALL, IN_CHECK), IO_IF(c, accumulate, NORMAL, IN_CHECK), IN(bias, NORMAL, IN_CHECK),
	IO(aux, NORMAL, ONCE | IN_CHECK), IO(a_colsum, NORMAL, F32 | OPT, "*K"))
