/* info.c - counts the bytes that an op moves from its row and operands. */
#include "device/ops/info.h"

#include "device/ops/check.h"

const struct vfm_op_info *vfm_op_info(enum vfm_op_id op)
{
	static const struct vfm_op_info *(*const of[VFM_OP_N])(void) = {
#define X(name) vfm_op_info_##name,
		VFM_OP_LIST(X)
#undef X
	};

	return of[op]();
}

/* Returns how often the op moves the operand. */
static int count_moves(const struct vfm_operand *o, const void *args)
{
	if (o->allows & UNCOUNTED)
		return 0;
	if (o->role != VFM_INOUT || o->allows & ONCE)
		return 1;
	return !o->adds || *(const bool *)((const char *)args + o->adds) ? 2 : 1;
}

double vfm_op_bytes(enum vfm_op_id op, const void *args)
{
	double n = 0;

	for (const struct vfm_operand *o = vfm_op_info(op)->operands; o->name; o++)
		n += op_bytes(vfm_operand_of((void *)args, o)) * count_moves(o, args);
	return n;
}
