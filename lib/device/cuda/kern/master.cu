/* master.cu - split_master: splits and joins master weights. */
#include "device/cuda/kern/master.h"

enum { N = 8, THREADS = 256 }; /* elements a thread and step */

struct halves {
	raw_vec<uint16_t, N> hi;
	raw_vec<int16_t, N> lo;
};

__global__ static void split(const float *x, uint16_t *hi, int16_t *lo, int64_t n)
{
	for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N; i < n;
		i += (int64_t)gridDim.x * THREADS * N) {
		if (i + N <= n) {
			vec<N> v = ld_vec<N>(x + i);
			halves h;

#pragma unroll
			for (int k = 0; k < N; k++) {
				uint32_t u = master_split(v.v[k]);

				h.hi.e[k] = (uint16_t)(u >> 16);
				h.lo.e[k] = (int16_t)(uint16_t)u;
			}
			*reinterpret_cast<raw_vec<uint16_t, N> *>(hi + i) = h.hi;
			*reinterpret_cast<raw_vec<int16_t, N> *>(lo + i) = h.lo;
			continue;
		}
		for (int64_t k = i; k < n; k++) {
			uint32_t u = master_split(x[k]);

			hi[k] = (uint16_t)(u >> 16);
			lo[k] = (int16_t)(uint16_t)u;
		}
	}
}

__global__ static void join(float *x, const uint16_t *hi, const int16_t *lo, int64_t n)
{
	for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N; i < n;
		i += (int64_t)gridDim.x * THREADS * N) {
		if (i + N <= n) {
			raw_vec<uint16_t, N> h = *reinterpret_cast<const raw_vec<uint16_t, N> *>(hi + i);
			raw_vec<int16_t, N> l = *reinterpret_cast<const raw_vec<int16_t, N> *>(lo + i);
			vec<N> v;

#pragma unroll
			for (int k = 0; k < N; k++)
				v.v[k] = master_join(h.e[k], l.e[k]);
			st_vec<N>(x + i, v);
			continue;
		}
		for (int64_t k = i; k < n; k++)
			x[k] = master_join(hi[k], lo[k]);
	}
}

/* Unaligned elements are processed one by one. */
__global__ static void one_by_one(float *x, uint16_t *hi, int16_t *lo, int64_t n, bool joins)
{
	for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (int64_t)gridDim.x * THREADS) {
		if (joins) {
			x[i] = master_join(hi[i], lo[i]);
		} else {
			uint32_t u = master_split(x[i]);

			hi[i] = (uint16_t)(u >> 16);
			lo[i] = (int16_t)(uint16_t)u;
		}
	}
}

extern "C" int vfm_cuda_split_master(struct vfm_stream *s, const struct vfm_split_master *a, struct vfm_err *err)
{
	float *x = (float *)a->x.data;
	uint16_t *hi = (uint16_t *)a->hi.data;
	int16_t *lo = (int16_t *)a->lo.data;
	int64_t n = a->x.shape[0], blocks = ceil_div(n, (int64_t)THREADS * N), most = (int64_t)vfm_cuda_sms(s) * 8;

	if (n == 0)
		return 0;
	if (blocks > most)
		blocks = most;
	if (((uintptr_t)x | (uintptr_t)hi | (uintptr_t)lo) % 16)
		VFM_LAUNCH(s, (one_by_one), blocks, THREADS, 0, x, hi, lo, n, a->join);
	else if (a->join)
		VFM_LAUNCH(s, (join), blocks, THREADS, 0, x, (const uint16_t *)hi, (const int16_t *)lo, n);
	else
		VFM_LAUNCH(s, (split), blocks, THREADS, 0, (const float *)x, hi, lo, n);
	return vfm_cuda_launched(s, "split_master", err);
}
