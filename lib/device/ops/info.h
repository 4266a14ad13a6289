/* info.h - describes each op to generic code: operands and their roles, call, cost.  The row OP(...) of the op defines
 * its description (check.h, ops*.c).
 */
#ifndef VFM_DEVICE_OPS_INFO_H
#define VFM_DEVICE_OPS_INFO_H

#include "device/ops/ops.h"

enum vfm_role { VFM_IN, VFM_OUT, VFM_INOUT };

enum vfm_content {           /* initial contents of an operand */
	VFM_C_NORMAL,        /* N(0, 1) */
	VFM_C_SMALL,         /* N(0, 0.1) */
	VFM_C_POSITIVE,      /* uniform in [0.5, 1.5) */
	VFM_C_TIME,          /* uniform in [0, 1000) */
	VFM_C_LSE,           /* log(100), for benchmarks; tests compute it */
	VFM_C_IDX,           /* index of the token within its sample */
	VFM_C_ID,            /* arbitrary 64-bit ids */
	VFM_C_INDEX,         /* element i: integers in [0, bound[i % 3]) */
	VFM_C_INDEX_OR_NONE, /* the same, one in eight is -1 */
	VFM_C_DISTINCT,      /* rows of bound[1] different numbers in [0, bound[0]) */
	VFM_C_COARSE,        /* 1/8, 2/8, … 8/8: many are equal */
	VFM_C_LSE_OR_NONE,   /* uniform in [-3, 3); one in four is -inf */
	VFM_C_LOW,           /* integers in [-32768, 32768) */
	VFM_C_POWER,         /* 1/4, 1/2, 1 or 2 */
	VFM_C_SCALE,         /* uniform in [0.5, 1.5); NaN where bound[0] is 1, infinity where it is 2 */
	VFM_C_PAST,          /* uniform in [0.5, 1.5); zeros where bound[0] is not 0 */
	VFM_C_LIST,          /* the integers that the case lists */
};

struct vfm_operand {
	const char *name;
	size_t offset; /* of the struct vfm_tensor within the op's arguments */
	enum vfm_role role;
	enum vfm_content content;
	const char *over;  /* the operand whose memory it may share; NULL: none */
	size_t adds;       /* VFM_INOUT: offset of the bool that says whether the op adds to it; 0: always */
	unsigned allows;   /* dtypes and properties (check.h) */
	const char *shape; /* "TD" (check.h); NULL: only the op knows it */
};

struct vfm_op_seqs {
	const char *name; /* NULL: none */
	size_t offset;    /* of a `const struct vfm_seqs *` within the op's arguments */
	const char *dims; /* letters of its rows and of its samples: "TS" */
};

struct vfm_op_info {
	const char *name;
	size_t args_size;
	const struct vfm_operand *operands; /* ends with name NULL */
	struct vfm_op_seqs seqs[2];
	int (*call)(struct vfm_stream *s, const void *args, struct vfm_err *err);
	struct vfm_cost (*cost)(const void *args);
};
const struct vfm_op_info *vfm_op_info(enum vfm_op_id op);
/* Returns the bytes of all operands, twice for those that the op adds to. */
double vfm_op_bytes(enum vfm_op_id op, const void *args);

enum { VFM_MAX_OPERANDS = 16 };

static inline struct vfm_tensor *vfm_operand_of(void *args, const struct vfm_operand *o)
{
	return (struct vfm_tensor *)((char *)args + o->offset);
}

#endif
