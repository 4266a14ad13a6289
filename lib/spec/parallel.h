/* parallel.h - how a job is cut over ranks: the degrees, and what they must satisfy. */
#ifndef VFM_SPEC_PARALLEL_H
#define VFM_SPEC_PARALLEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct vfm_parallel {
	int64_t tp, cp, pp, ep;
	int64_t dp; /* 0: world / (tp cp pp) */
};

void vfm_parallel_defaults(struct vfm_parallel *p);
/* Fills dp.  "parallel: tp 2 x cp 1 x pp 1 = 2 does not divide the number of ranks, 3". */
int vfm_parallel_check(struct vfm_parallel *p, int world, struct vfm_err *err);

#endif
