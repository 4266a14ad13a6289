#include "spec/parallel.h"

void vfm_parallel_defaults(struct vfm_parallel *p)
{
	*p = (struct vfm_parallel){.tp = 1, .cp = 1, .pp = 1, .ep = 1};
}

int vfm_parallel_check(struct vfm_parallel *p, int world, struct vfm_err *err)
{
	int64_t model = p->tp * p->cp * p->pp;

	if (world % model)
		return vfm_fail(err, VFM_EUSAGE, "parallel: tp %lld x cp %lld x pp %lld = %lld does not divide the number of ranks, %d",
			(long long)p->tp, (long long)p->cp, (long long)p->pp, (long long)model, world);
	if (p->dp && p->dp * model != world)
		return vfm_fail(err, VFM_EUSAGE, "parallel.dp: %lld x %lld (tp cp pp) is not the number of ranks, %d; dp 0 or %lld would fit",
			(long long)p->dp, (long long)model, world, (long long)(world / model));
	p->dp = world / model;
	if (p->dp * p->cp % p->ep)
		return vfm_fail(err, VFM_EUSAGE, "parallel.ep: %lld does not divide dp x cp = %lld", (long long)p->ep,
			(long long)(p->dp * p->cp));
	return 0;
}
