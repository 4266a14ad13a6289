/* ref.h - the reference: every op in float64, written for clarity. */
#ifndef VFM_TESTS_OPS_REF_H
#define VFM_TESTS_OPS_REF_H

#include "device/ops/cases.h"

/* The operands as contiguous doubles, in the order of vfm_op_info; absent ones are NULL. */
struct ref {
	enum vfm_op_id op;
	const void *args; /* shapes and flags; data pointers are unused */
	double *v[VFM_MAX_OPERANDS];
};

void ref_run(struct ref *r);                        /* overwrites outputs, or adds to them, as ops.h states */
double *ref_at(const struct ref *r, size_t offset); /* returns the operand at this offset of the arguments */

#endif
