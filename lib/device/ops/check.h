/* check.h - macros for the operand checks in ops*.c. */
#ifndef VFM_DEVICE_OPS_CHECK_H
#define VFM_DEVICE_OPS_CHECK_H

#include "device/ops/ops.h"

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

/* Defines vfm_op_X: calls check_X, then the device's implementation. */
#define DISPATCH(op)                                                                                                   \
	int vfm_op_##op(struct vfm_stream *s, const struct vfm_##op *a, struct vfm_err *err)                           \
	{                                                                                                              \
		const struct vfm_dev_table *t = s->dev->t;                                                             \
                                                                                                                       \
		TRY(check_##op(a, err));                                                                               \
		if (s->host_only)                                                                                      \
			return vfm_fail(err, VFM_EUSAGE, "internal: '" #op "' on a stream without ops");               \
		if (!t->ops->op)                                                                                       \
			return vfm_fail(err, VFM_EENV, "the device '%s' has no op '" #op "'", t->name);                \
		TRY(t->ops->op(s, a, err));                                                                            \
		if (vfm_dev_side_counts(s->dev) && !s->units)                                                          \
			vfm_dev_side_pass(s->dev, vfm_cost_##op(a).flops);                                             \
		return 0;                                                                                              \
	}

#endif
