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

double vfm_op_bytes(enum vfm_op_id op, const void *args)
{
	double n = 0;

	for (const struct vfm_operand *o = vfm_op_info(op)->operands; o->name; o++)
		n += op_bytes(vfm_operand_of((void *)args, o)) * (o->role == VFM_INOUT ? 2 : 1);
	return n;
}
