/* check.h - macros of ops*.c: the row of an op, which describes its operands, and additional checks. */
#ifndef VFM_DEVICE_OPS_CHECK_H
#define VFM_DEVICE_OPS_CHECK_H

#include "device/ops/info.h"

/* Properties of an operand: allowed dtypes, as bits of their enum, and flags. */
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
	STRIDED = 1u << 29, /* outer strides may exceed the shape */
	LIKE = 1u << 28,    /* also allows the dtype of the op's first operand */
	/* for the cost: the operand is read or written, not both; the operand is small, or `extra` counts it */
	ONCE = 1u << 27,
	UNCOUNTED = 1u << 26,
};

int vfm_op_check(const char *op, const char *name, const struct vfm_tensor *t, unsigned what, int ndim,
	const int64_t *dims, struct vfm_err *err);
/* Checks all operands against their shapes, and the seqs. */
int vfm_op_check_operands(const struct vfm_op_info *info, const void *args, struct vfm_err *err);
static inline int no_check(const void *args, struct vfm_err *err)
{
	(void)args, (void)err;
	return 0;
}

static inline struct vfm_cost no_extra(const void *args)
{
	(void)args;
	return (struct vfm_cost){0};
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

/* OP(op, check, seqs, operands…) is the row of an op.  It defines
 *
 * - the description of the op
 * - vfm_op_X, which checks the operands, calls `check` for conditions that shapes cannot express (no_check: none), then
 *   calls the device's implementation
 * - vfm_cost_X: no FLOPs, and the bytes of each operand, twice for IO
 *
 * OP_EXTRA(op, check, extra, seqs, operands…) adds the result of extra(args): FLOPs, and bytes that are moved more
 * often.
 *
 * An operand is one of
 *
 * - IN(name, contents, allows, shape)
 * - OUT(name, allows, shape)
 * - OUT_OVER(name, other, allows, shape), which may share the memory of the operand `other`
 * - IO(name, contents, allows, shape), which the op adds to or updates
 * - IO_IF(name, flag, contents, allows, shape), which the op adds to if the member `flag` of its arguments is true
 *
 * Contents (enum vfm_content) are those in the cases.  Outputs have contents, too, because accumulating variants read
 * them.
 *
 * A shape has one of these for each dimension: a letter, which has the same value in all operands; a multiple of one
 * ("T2F"); a number ("S4"); or '*', any length.  `check` checks operands that are IN_CHECK.
 *
 * SEQS(name, dims) is a member of type struct vfm_seqs, with the letters of its rows and of its samples ('*': any
 * number).  It may be absent only if no operand that is present has the samples' letter. */
#define OPERAND(f, role, c, over, adds, ...)                                                                           \
	{                                                                                                              \
#f, offsetof(op_args, f), role, VFM_C_##c, over, adds, __VA_ARGS__                                     \
	}
#define IN(f, c, ...)          OPERAND(f, VFM_IN, c, NULL, 0, __VA_ARGS__)
#define OUT(f, ...)            OPERAND(f, VFM_OUT, NORMAL, NULL, 0, __VA_ARGS__)
#define OUT_OVER(f, x, ...)    OPERAND(f, VFM_OUT, NORMAL, #x, 0, __VA_ARGS__)
#define IO(f, c, ...)          OPERAND(f, VFM_INOUT, c, NULL, 0, __VA_ARGS__)
#define IO_IF(f, flag, c, ...) OPERAND(f, VFM_INOUT, c, NULL, offsetof(op_args, flag), __VA_ARGS__)
#define IN_CHECK               0, NULL
/* in parentheses, since OP passes it on as one argument */
#define NO_SEQS                  ({0})
#define SEQS(f, dims)            ({#f, offsetof(op_args, f), dims})
#define SEQS2(f, g)              (STRIP f, STRIP g)
#define STRIP(...)               __VA_ARGS__
#define OP(op, check, seqs, ...) OP_EXTRA(op, check, no_extra, seqs, __VA_ARGS__)
#define OP_EXTRA(op, check, extra, seqs, ...)                                                                          \
	int vfm_op_##op(struct vfm_stream *s, const struct vfm_##op *a, struct vfm_err *err)                           \
	{                                                                                                              \
		const struct vfm_dev_table *t = s->dev->t;                                                             \
		TRY(vfm_op_check_operands(vfm_op_info_##op(), a, err));                                                \
		TRY(check(a, err));                                                                                    \
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
	struct vfm_cost vfm_cost_##op(const struct vfm_##op *a)                                                        \
	{                                                                                                              \
		struct vfm_cost c = extra(a);                                                                          \
                                                                                                                       \
		c.bytes += vfm_op_bytes(VFM_OP_##op, a);                                                               \
		return c;                                                                                              \
	}                                                                                                              \
	static struct vfm_cost cost_##op(const void *a)                                                                \
	{                                                                                                              \
		return vfm_cost_##op(a);                                                                               \
	}                                                                                                              \
	const struct vfm_op_info *vfm_op_info_##op(void)                                                               \
	{                                                                                                              \
		typedef struct vfm_##op op_args;                                                                       \
		static const struct vfm_operand operands[] = {__VA_ARGS__, {0}};                                       \
		static const struct vfm_op_info info = {                                                               \
			#op, sizeof(op_args), operands, {STRIP seqs}, call_##op, cost_##op};                           \
                                                                                                                       \
		return &info;                                                                                          \
	}

#endif
