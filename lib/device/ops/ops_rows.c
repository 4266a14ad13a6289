/* ops_rows.c - checks and costs of the ops on rows by index, of merged attention, SwiGLU and table embeddings. */
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

static int64_t lead(const struct vfm_tensor *t)
{
	return t->ndim ? t->shape[0] : -1;
}

static int check_index_select(const struct vfm_index_select *a, struct vfm_err *err)
{
	int64_t d = row_len("index_select", "x", &a->x, -1, -1, 0, err), n = lead(&a->index);

	if (d < 0)
		return VFM_EUSAGE;
	CHECK("index_select", index, I32, -1);
	CHECK("index_select", weight, F32 | OPT, n);
	return row_len("index_select", "y", &a->y, n, d, a->x.ndim, err) < 0 ? VFM_EUSAGE : 0;
}

struct vfm_cost vfm_cost_index_select(const struct vfm_index_select *a)
{
	double row = a->y.shape[0]
		? op_bytes(&a->y) / (double)vfm_dtype_size(a->y.dtype) * (double)vfm_dtype_size(a->x.dtype)
		: 0;

	return (struct vfm_cost){0, row + op_bytes(&a->y) + op_bytes(&a->index) + op_bytes(&a->weight)};
}

OP(index_select, NO_SEQS, IN(x, NORMAL), IN(index, INDEX_OR_NONE), IN(weight, NORMAL), OUT(y))

static int check_index_add(const struct vfm_index_add *a, struct vfm_err *err)
{
	int64_t n = lead(&a->index), d = row_len("index_add", "x", &a->x, n, -1, 0, err);

	if (d < 0)
		return VFM_EUSAGE;
	CHECK("index_add", index, I32, -1);
	CHECK("index_add", weight, F32 | OPT, n);
	return row_len("index_add", "y", &a->y, -1, d, a->x.ndim, err) < 0 ? VFM_EUSAGE : 0;
}

struct vfm_cost vfm_cost_index_add(const struct vfm_index_add *a)
{
	return (struct vfm_cost){0,
		op_bytes(&a->x) + op_bytes(&a->y) * (a->accumulate ? 2 : 1) + op_bytes(&a->index) +
			op_bytes(&a->weight)};
}

OP(index_add, NO_SEQS, IN(x, NORMAL), IN(index, INDEX_OR_NONE), IN(weight, NORMAL), IO(y, NORMAL))

static int check_index_dot(const struct vfm_index_dot *a, struct vfm_err *err)
{
	int64_t n = lead(&a->index);

	CHECK("index_dot", x, ACT | STRIDED, n, -1);
	CHECK("index_dot", y, ACT | STRIDED, -1, a->x.shape[1]);
	CHECK("index_dot", index, I32, n);
	CHECK("index_dot", dot, F32, n);
	return 0;
}

struct vfm_cost vfm_cost_index_dot(const struct vfm_index_dot *a)
{
	return (struct vfm_cost){0, 2 * op_bytes(&a->x) + op_bytes(&a->index) + op_bytes(&a->dot)};
}

OP(index_dot, NO_SEQS, IN(x, NORMAL), IN(y, NORMAL), IN(index, INDEX_OR_NONE), OUT(dot))

static int check_attn_merge(const struct vfm_attn_merge *a, struct vfm_err *err)
{
	int64_t t, h, d;

	CHECK("attn_merge", o, F32 | STRIDED, -1, -1, -1);
	t = a->o.shape[0], h = a->o.shape[1], d = a->o.shape[2];
	CHECK("attn_merge", lse, F32, t, h);
	CHECK("attn_merge", o_b, ACT | STRIDED, t, h, d);
	CHECK("attn_merge", lse_b, F32, t, h);
	return 0;
}

struct vfm_cost vfm_cost_attn_merge(const struct vfm_attn_merge *a)
{
	double times = a->first ? 1 : 2;

	return (struct vfm_cost){
		0, times * (op_bytes(&a->o) + op_bytes(&a->lse)) + op_bytes(&a->o_b) + op_bytes(&a->lse_b)};
}

OP(attn_merge, NO_SEQS, IO(o, NORMAL), IO(lse, LSE_OR_NONE), IN(o_b, NORMAL), IN(lse_b, LSE_OR_NONE))

static int check_swiglu(const struct vfm_swiglu *a, struct vfm_err *err)
{
	CHECK("swiglu", y, ACT | STRIDED, -1, -1);
	CHECK("swiglu", x, ACT | STRIDED, a->y.shape[0], 2 * a->y.shape[1]);
	return 0;
}

COST_OF_BYTES(swiglu)
OP(swiglu, NO_SEQS, IN(x, NORMAL), OUT(y))

static int check_swiglu_bwd(const struct vfm_swiglu_bwd *a, struct vfm_err *err)
{
	int64_t t, f;

	CHECK("swiglu_bwd", dy, ACT | STRIDED, -1, -1);
	t = a->dy.shape[0], f = a->dy.shape[1];
	CHECK("swiglu_bwd", x, ACT | STRIDED, t, 2 * f);
	CHECK("swiglu_bwd", dx, ACT | STRIDED, t, 2 * f);
	return 0;
}

COST_OF_BYTES(swiglu_bwd)
OP(swiglu_bwd, NO_SEQS, IN(x, NORMAL), IN(dy, NORMAL), OUT(dx))

static int check_geglu(const struct vfm_geglu *a, struct vfm_err *err)
{
	CHECK("geglu", y, ACT | STRIDED, -1, -1);
	CHECK("geglu", x, ACT | STRIDED, a->y.shape[0], 2 * a->y.shape[1]);
	return 0;
}

COST_OF_BYTES(geglu)
OP(geglu, NO_SEQS, IN(x, NORMAL), OUT(y))

static int check_embed3(const struct vfm_embed3 *a, struct vfm_err *err)
{
	unsigned dt;
	int64_t d;

	CHECK("embed3", out, ACT, -1, -1);
	d = a->out.shape[1];
	CHECK("embed3", pos, I32, a->out.shape[0], 3);
	CHECK("embed3", table_t, ACT, -1, d);
	dt = 1u << a->table_t.dtype;
	CHECK("embed3", table_h, dt, -1, d);
	CHECK("embed3", table_w, dt, -1, d);
	return 0;
}

COST_OF_BYTES(embed3)
OP(embed3, NO_SEQS, IN(table_t, NORMAL), IN(table_h, NORMAL), IN(table_w, NORMAL), IN(pos, INDEX), OUT(out))

static int check_embed3_bwd(const struct vfm_embed3_bwd *a, struct vfm_err *err)
{
	int64_t d;

	CHECK("embed3_bwd", dy, ACT, -1, -1);
	d = a->dy.shape[1];
	CHECK("embed3_bwd", pos, I32, a->dy.shape[0], 3);
	CHECK("embed3_bwd", dtable_t, F32 | OPT, -1, d);
	CHECK("embed3_bwd", dtable_h, F32 | OPT, -1, d);
	CHECK("embed3_bwd", dtable_w, F32 | OPT, -1, d);
	return 0;
}

struct vfm_cost vfm_cost_embed3_bwd(const struct vfm_embed3_bwd *a)
{
	return (struct vfm_cost){0,
		3 * op_bytes(&a->dy) + op_bytes(&a->pos) +
			2 * (op_bytes(&a->dtable_t) + op_bytes(&a->dtable_h) + op_bytes(&a->dtable_w))};
}

OP(embed3_bwd, NO_SEQS, IN(dy, NORMAL), IN(pos, INDEX), IO(dtable_t, NORMAL), IO(dtable_h, NORMAL),
	IO(dtable_w, NORMAL))
