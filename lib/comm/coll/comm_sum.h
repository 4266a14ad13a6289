/* comm_sum.h - sums of the operands of several ranks, on the host. */
#ifndef VFM_COMM_COLL_COMM_SUM_H
#define VFM_COMM_COLL_COMM_SUM_H

#include <stddef.h>

#include "spec/model/dtype.h"

/* out [n] = in[0] + in[1] + ..., in that order; bf16 is summed in f32.  out may be one of in. */
void vfm_comm_sum(enum vfm_dtype dt, void *out, const void *const *in, int n_in, size_t n);

#endif
