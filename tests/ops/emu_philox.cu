/* emu_philox.cu - the generator of the CUDA kernels, word by word, for ops_values.c. */
#include "device/cuda/kern/random.h"

__global__ static void words(struct vfm_rng r, uint64_t first, uint32_t *out, float *normal)
{
	uint32_t w[4];
	vec<4> n = normal4(r, first + threadIdx.x);

	philox(r, first + threadIdx.x, w);
	for (int k = 0; k < 4; k++) {
		out[4 * threadIdx.x + k] = w[k];
		normal[4 * threadIdx.x + k] = n.v[k];
	}
}

/* -ln((x + 1/2) / 2^32) for words that random blocks rarely contain. */
__global__ static void logs(const uint32_t *x, float *out)
{
	out[threadIdx.x] = neg_log_u(x[threadIdx.x]);
}

extern "C" void vfm_emu_philox(const struct vfm_rng *r, uint64_t first, int blocks, uint32_t *out, float *normal)
{
	VFM_LAUNCH((struct vfm_stream *)NULL, (words), 1, blocks, 0, *r, first, out, normal);
}

extern "C" void vfm_emu_neg_log(const uint32_t *x, int n, float *out)
{
	VFM_LAUNCH((struct vfm_stream *)NULL, (logs), 1, n, 0, x, out);
}
