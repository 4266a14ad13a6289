#include "device/sim/slow.h"

#include <stddef.h>

static void scale_rate(struct vfm_rate_range *r, double by)
{
	for (int e = 0; e < VFM_ESTIMATES; e++)
		r->v[e] *= by;
}

void vfm_sim_slow_kernels(struct vfm_machine *m, double factor)
{
	struct vfm_rate_range *rate[] = {&m->gemm_bf16, &m->gemm_f32, &m->gemm_f8, &m->copy, &m->sm_bw};

	for (size_t i = 0; i < sizeof(rate) / sizeof(rate[0]); i++)
		scale_rate(rate[i], 1 / factor);
	for (int i = 0; i < m->n_attn; i++) {
		scale_rate(&m->attn[i].forward, 1 / factor);
		scale_rate(&m->attn[i].backward, 1 / factor);
	}
	scale_rate(&m->least, factor);
	for (int i = 0; i < m->n_cpu; i++)
		m->cpu[i].rate /= factor;
}
