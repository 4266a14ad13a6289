/* ref.h - every op in float64, written for clarity: what a device's results are compared with. */
#ifndef VFM_TESTS_OPS_REF_H
#define VFM_TESTS_OPS_REF_H

#include "ops/cases.h"

/* The operands as contiguous doubles, in the order of vfm_op_infos; absent ones are NULL. */
struct ref {
	enum vfm_op_id op;
	const void *args; /* shapes and flags; tensors' data are not looked at */
	double *v[VFM_MAX_OPERANDS];
};

void ref_run(struct ref *r); /* outputs are overwritten, or added to, as the op's contract says */
double *ref_at(const struct ref *r, size_t offset); /* the operand at this offset of the arguments */

#endif
