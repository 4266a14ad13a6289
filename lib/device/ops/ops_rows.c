/* ops_rows.c - descriptions and costs of the ops on rows by index, of merged attention, SwiGLU and table embeddings. */
#include "device/ops/check.h"

/* Checks [n,D] or [n,H,d] with contiguous heads; returns D, or -1 after an error. */
static int64_t row_len(const char *op, const char *name, const struct vfm_tensor *t, int64_t n, int64_t d, int ndim,
	struct vfm_err *err)
{
	bool heads = t->ndim == 3;

	if (vfm_op_check(op, name, t, ACT | STRIDED, heads ? 3 : 2,
		    heads ? (const int64_t[]){n, -1, -1} : (const int64_t[]){n, -1}, err) < 0)
		return -1;
	if ((ndim && t->ndim != ndim) || (heads && t->shape[0] && t->shape[1] > 1 && t->stride[1] != t->shape[2]) ||
		(d >= 0 && t->shape[1] * (heads ? t->shape[2] : 1) != d)) {
		char got[128];

		vfm_fail(err, VFM_EUSAGE, "%s: operand '%s' is %s: its rows do not fit the other operand's", op, name,
			vfm_tensor_str(t, got, sizeof(got)));
		return -1;
	}
	return t->shape[1] * (heads ? t->shape[2] : 1);
}

static int check_index_select(const struct vfm_index_select *a, struct vfm_err *err)
{
	int64_t d = row_len("index_select", "x", &a->x, -1, -1, 0, err);

	if (d < 0)
		return VFM_EUSAGE;
	return row_len("index_select", "y", &a->y, a->index.shape[0], d, a->x.ndim, err) < 0 ? VFM_EUSAGE : 0;
}

/* Rows of y without one of x are not touched with `keep`; of x, each is then assumed to go to one place. */
static struct vfm_cost extra_index_select(const struct vfm_index_select *a)
{
	const int64_t n = a->y.shape[0], m = a->x.shape[0], rows = a->keep && m < n ? m : n;
	const double features = n ? (double)vfm_numel(&a->y) / (double)n : 0;

	return (struct vfm_cost){
		0, (double)rows * features * (double)(vfm_dtype_size(a->x.dtype) + vfm_dtype_size(a->y.dtype))};
}

OP_EXTRA(index_select, check_index_select, extra_index_select, NO_SEQS, IN(x, NORMAL, UNCOUNTED | IN_CHECK),
	IN(index, INDEX_OR_NONE, I32, "N"), IN(weight, NORMAL, F32 | OPT, "N"),
	IO_IF(y, keep, NORMAL, UNCOUNTED | IN_CHECK))

static int check_index_add(const struct vfm_index_add *a, struct vfm_err *err)
{
	int64_t d = row_len("index_add", "x", &a->x, a->index.shape[0], -1, 0, err);

	if (d < 0)
		return VFM_EUSAGE;
	return row_len("index_add", "y", &a->y, -1, d, a->x.ndim, err) < 0 ? VFM_EUSAGE : 0;
}

OP(index_add, check_index_add, NO_SEQS, IN(x, NORMAL, IN_CHECK), IN(index, INDEX_OR_NONE, I32, "N"),
	IN(weight, NORMAL, F32 | OPT, "N"), IO_IF(y, accumulate, NORMAL, IN_CHECK))

static struct vfm_cost extra_index_dot(const struct vfm_index_dot *a)
{
	return (struct vfm_cost){0, op_bytes(&a->x)};
}

OP_EXTRA(index_dot, no_check, extra_index_dot, NO_SEQS, IN(x, NORMAL, ACT | STRIDED, "ND"),
	IN(y, NORMAL, UNCOUNTED | ACT | STRIDED, "*D"), IN(index, INDEX_OR_NONE, I32, "N"), OUT(dot, F32, "N"))

static struct vfm_cost extra_attn_merge(const struct vfm_attn_merge *a)
{
	return (struct vfm_cost){0, a->first ? 0 : op_bytes(&a->o) + op_bytes(&a->lse)};
}

OP_EXTRA(attn_merge, no_check, extra_attn_merge, NO_SEQS, IO(o, NORMAL, ONCE | F32 | STRIDED, "THD"),
	IO(lse, LSE_OR_NONE, ONCE | F32, "TH"), IN(o_b, NORMAL, ACT | STRIDED, "THD"),
	IN(lse_b, LSE_OR_NONE, F32, "TH"))

OP(swiglu, no_check, NO_SEQS, IN(x, NORMAL, ACT | STRIDED, "T2F"), OUT(y, ACT | STRIDED, "TF"))

OP(swiglu_bwd, no_check, NO_SEQS, IN(x, NORMAL, ACT | STRIDED, "T2F"), IN(dy, NORMAL, ACT | STRIDED, "TF"),
	OUT(dx, ACT | STRIDED, "T2F"))

OP(geglu, no_check, NO_SEQS, IN(x, NORMAL, ACT | STRIDED, "T2F"), OUT(y, ACT | STRIDED, "TF"))

OP(embed3, no_check, NO_SEQS, IN(table_t, NORMAL, ACT, "*D"), IN(table_h, NORMAL, LIKE, "*D"),
	IN(table_w, NORMAL, LIKE, "*D"), IN(pos, INDEX, I32, "T3"), OUT(out, ACT, "TD"))

static struct vfm_cost extra_embed3_bwd(const struct vfm_embed3_bwd *a)
{
	return (struct vfm_cost){0, 2 * op_bytes(&a->dy)};
}

OP_EXTRA(embed3_bwd, no_check, extra_embed3_bwd, NO_SEQS, IN(dy, NORMAL, ACT, "TD"), IN(pos, INDEX, I32, "T3"),
	IO(dtable_t, NORMAL, F32 | OPT, "*D"), IO(dtable_h, NORMAL, F32 | OPT, "*D"),
	IO(dtable_w, NORMAL, F32 | OPT, "*D"))
