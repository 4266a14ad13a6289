/* check.h - macros of ops*.c: the checks of operands, and the row of an op. */
#ifndef VFM_DEVICE_OPS_CHECK_H
#define VFM_DEVICE_OPS_CHECK_H

#include "device/ops/info.h"

/* Properties that an operand may have: dtypes, as bits of their enum, and flags. */
enum {
	F32 = 1u << VFM_F32,
	BF16 = 1u << VFM_BF16,
	F16 = 1u << VFM_F16,
	F64 = 1u << VFM_F64,
	I32 = 1u << VFM_I32,
	I64 = 1u << VFM_I64,
	I16 = 1u << VFM_I16,
	U8 = 1u << VFM_U8,
	ACT = F32 | BF16,
	F8 = 1u << VFM_F8E4M3 | 1u << VFM_F8E5M2,
	OPT = 1u << 30,     /* may be absent */
	STRIDED = 1u << 29, /* outer strides may be larger than the shape asks for */
};

int vfm_op_check(const char *op, const char *name, const struct vfm_tensor *t, unsigned what, int ndim,
	const int64_t *dims, struct vfm_err *err);
/* Checks that q covers `total` rows with `samples` samples (negative: any number). */
int vfm_op_check_seqs(const char *op, const char *name, const struct vfm_seqs *q, int64_t total, int64_t samples,
	struct vfm_err *err);

/* Returns the length of dimension i; -1 if t has no such dimension. */
static inline int64_t op_dim(const struct vfm_tensor *t, int i)
{
	return i < t->ndim ? t->shape[i] : -1;
}

static inline double op_bytes(const struct vfm_tensor *t)
{
	return (double)vfm_nbytes(t);
}

/* CHECK(op, operand, properties, dimensions…); dimension -1: any. */
#define CHECK(opname, field, what, ...)                                                                                \
	TRY(vfm_op_check(opname, #field, &a->field, what, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),   \
		(const int64_t[]){__VA_ARGS__}, err))
#define REQUIRE(opname, cond, text)                                                                                    \
	do {                                                                                                           \
		if (!(cond))                                                                                           \
			return vfm_fail(err, VFM_EUSAGE, "%s: %s", opname, text);                                      \
	} while (0)

#define X(op) const struct vfm_op_info *vfm_op_info_##op(void);
VFM_OP_LIST(X)
#undef X

/* OP(op, seqs, operands…) is the row of an op.  It defines vfm_op_X, which calls check_X and then the device's
 * implementation, and the description of the op.
 *
 * An operand is IN(name, contents), OUT(name), OUT_OVER(name, other), which may have the memory of the other, or
 * IO(name, contents), which the op adds to or updates.  These are the roles of the general case.  Contents (enum
 * vfm_content) are those in the cases; outputs have some, too, because accumulating variants read them.
 * seqs: the members that are a struct vfm_seqs. */
#define OPERAND(f, role, c, over)                                                                                      \
	{                                                                                                              \
#f, offsetof(op_args, f), role, VFM_C_##c, over                                                        \
	}
#define IN(f, c)       OPERAND(f, VFM_IN, c, NULL)
#define OUT(f)         OPERAND(f, VFM_OUT, NORMAL, NULL)
#define OUT_OVER(f, x) OPERAND(f, VFM_OUT, NORMAL, #x)
#define IO(f, c)       OPERAND(f, VFM_INOUT, c, NULL)
#define NO_SEQS        0
#define SEQS(f)        offsetof(op_args, f)
#define SEQS2(f, g)    offsetof(op_args, f), offsetof(op_args, g)
#define OP(op, seqs, ...)                                                                                              \
	int vfm_op_##op(struct vfm_stream *s, const struct vfm_##op *a, struct vfm_err *err)                           \
	{                                                                                                              \
		const struct vfm_dev_table *t = s->dev->t;                                                             \
		TRY(check_##op(a, err));                                                                               \
		if (s->host_only)                                                                                      \
			return vfm_fail(err, VFM_EUSAGE, "internal: '" #op "' on a stream without ops");               \
		if (!t->ops->op)                                                                                       \
			return vfm_fail(err, VFM_EENV, "the device '%s' has no op '" #op "'", t->name);                \
		TRY(t->ops->op(s, a, err));                                                                            \
		if (vfm_dev_side_counts(s->dev) && !s->units)                                                          \
			vfm_dev_side_pass(s->dev, vfm_cost_##op(a).flops);                                             \
		return 0;                                                                                              \
	}                                                                                                              \
	static int call_##op(struct vfm_stream *s, const void *a, struct vfm_err *err)                                 \
	{                                                                                                              \
		return vfm_op_##op(s, a, err);                                                                         \
	}                                                                                                              \
	static struct vfm_cost cost_##op(const void *a)                                                                \
	{                                                                                                              \
		return vfm_cost_##op(a);                                                                               \
	}                                                                                                              \
	const struct vfm_op_info *vfm_op_info_##op(void)                                                               \
	{                                                                                                              \
		typedef struct vfm_##op op_args;                                                                       \
		static const struct vfm_operand operands[] = {__VA_ARGS__, {0}};                                       \
		static const struct vfm_op_info info = {#op, sizeof(op_args), operands, {seqs}, call_##op, cost_##op}; \
                                                                                                                       \
		return &info;                                                                                          \
	}
/* Defines vfm_cost_X of an op that multiplies no matrices: each operand is read or written once, and IO both. */
#define COST_OF_BYTES(op)                                                                                              \
	struct vfm_cost vfm_cost_##op(const struct vfm_##op *a)                                                        \
	{                                                                                                              \
		return (struct vfm_cost){0, vfm_op_bytes(VFM_OP_##op, a)};                                             \
	}

#endif
