/* softmax.cu - softmax of short rows: the scores of experts. */
#include "device/cuda/kern/kern.h"

enum { THREADS = 128 };

/* Reduces over `lanes` neighbours (a power of two) of a warp. */
__device__ static inline float sum_row_lanes(float x, int lanes)
{
	for (int d = lanes / 2; d > 0; d /= 2)
		x += __shfl_xor_sync(VFM_ALL_LANES, x, d);
	return x;
}
__device__ static inline float max_of(float x, int lanes)
{
	for (int d = lanes / 2; d > 0; d /= 2)
		x = fmaxf(x, __shfl_xor_sync(VFM_ALL_LANES, x, d));
	return x;
}

/* `lanes` lanes for each row; repeated reads hit the cache.  Rows beyond the last are empty. */
__global__ static void __launch_bounds__(THREADS) softmax(const float *x, float *y, int64_t rows, int e, int lanes)
{
	int64_t r = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / lanes;
	int lane = threadIdx.x % lanes, n = r < rows ? e : 0;
	float most = -INFINITY, sum = 0;

	x += r * e, y += r * e;
	for (int i = lane; i < n; i += lanes)
		most = fmaxf(most, x[i]); /* ignores NaN, which propagates through the sum */
	most = max_of(most, lanes);
	for (int i = lane; i < n; i += lanes)
		sum += __expf(x[i] - most);
	sum = sum_row_lanes(sum, lanes);
	for (int i = lane; i < n; i += lanes)
		y[i] = __expf(x[i] - most) / sum;
}

__global__ static void __launch_bounds__(THREADS)
	softmax_bwd(const float *y, const float *dy, float *dx, int64_t rows, int e, int lanes)
{
	int64_t r = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / lanes;
	int lane = threadIdx.x % lanes, n = r < rows ? e : 0;
	float sum = 0;

	y += r * e, dy += r * e, dx += r * e;
	for (int i = lane; i < n; i += lanes)
		sum += y[i] * dy[i];
	sum = sum_row_lanes(sum, lanes);
	for (int i = lane; i < n; i += lanes)
		dx[i] = y[i] * (dy[i] - sum);
}

static int row_lanes(int64_t e)
{
	int lanes = 1;

	while (lanes < e && lanes < 32)
		lanes *= 2;
	return lanes;
}

extern "C" int vfm_cuda_softmax(struct vfm_stream *s, const struct vfm_softmax *a, struct vfm_err *err)
{
	int64_t rows = a->x.shape[0], e = a->x.shape[1];
	int lanes = row_lanes(e);

	if (!vfm_numel(&a->x))
		return 0;
	VFM_LAUNCH(s, (softmax), ceil_div(rows * lanes, THREADS), THREADS, 0, (const float *)a->x.data,
		(float *)a->y.data, rows, (int)e, lanes);
	return vfm_cuda_launched(s, "softmax", err);
}

extern "C" int vfm_cuda_softmax_bwd(struct vfm_stream *s, const struct vfm_softmax_bwd *a, struct vfm_err *err)
{
	int64_t rows = a->y.shape[0], e = a->y.shape[1];
	int lanes = row_lanes(e);

	if (!vfm_numel(&a->y))
		return 0;
	VFM_LAUNCH(s, (softmax_bwd), ceil_div(rows * lanes, THREADS), THREADS, 0, (const float *)a->y.data,
		(const float *)a->dy.data, (float *)a->dx.data, rows, (int)e, lanes);
	return vfm_cuda_launched(s, "softmax_bwd", err);
}
