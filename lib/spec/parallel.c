#include "spec/parallel.h"

void vfm_parallel_defaults(struct vfm_parallel *p)
{
	*p = (struct vfm_parallel){.tp = 1, .cp = 1, .pp = 1, .ep = 1, .vpp = 1, .bucket_mib = 32};
}

int vfm_parallel_check(struct vfm_parallel *p, const struct vfm_model_spec *m, int world, struct vfm_err *err)
{
	int64_t model = p->tp * p->cp * p->pp;

	(void)m;
	if (world % model)
		return vfm_fail(err, VFM_EUSAGE, "parallel: tp %lld x cp %lld x pp %lld = %lld does not divide the number of ranks, %d",
			(long long)p->tp, (long long)p->cp, (long long)p->pp, (long long)model, world);
	if (p->dp && p->dp * model != world)
		return vfm_fail(err, VFM_EUSAGE, "parallel.dp: %lld x %lld (tp cp pp) is not the number of ranks, %d; dp 0 or %lld would fit",
			(long long)p->dp, (long long)model, world, (long long)(world / model));
	p->dp = world / model;
	if (p->dp * p->cp * p->tp % p->ep)
		return vfm_fail(err, VFM_EUSAGE, "parallel.ep: %lld does not divide dp x cp x tp = %lld", (long long)p->ep,
			(long long)(p->dp * p->cp * p->tp));
	p->cp_a2a = p->cp_mode == VFM_CP_RING ? 1 : p->cp_mode == VFM_CP_A2A ? p->cp : p->cp_a2a;
	if (!p->shard)
		p->shard = p->dp * p->cp;
	return 0;
}

void vfm_parallel_coord(const struct vfm_parallel *p, int rank, int coord[VFM_AXES])
{
	coord[VFM_AX_TP] = (int)(rank % p->tp);
	coord[VFM_AX_CP] = (int)(rank / p->tp % p->cp);
	coord[VFM_AX_DP] = (int)(rank / (p->tp * p->cp) % p->dp);
	coord[VFM_AX_PP] = (int)(rank / (p->tp * p->cp * p->dp));
	coord[VFM_AX_EP] = (int)(rank % (p->tp * p->cp * p->dp) % p->ep);
}

void vfm_parallel_size(const struct vfm_parallel *p, int size[VFM_AXES])
{
	size[VFM_AX_PP] = (int)p->pp;
	size[VFM_AX_DP] = (int)p->dp;
	size[VFM_AX_EP] = (int)p->ep;
	size[VFM_AX_CP] = (int)p->cp;
	size[VFM_AX_TP] = (int)p->tp;
}
