/* fold.h - a loss from sums over rows.  The order of additions depends only on the lengths of the samples. */
#ifndef VFM_DEVICE_CUDA_KERN_FOLD_H
#define VFM_DEVICE_CUDA_KERN_FOLD_H

#include "device/cuda/kern/kern.h"

enum { FOLD_THREADS = 256 };

/* Block s reduces sample s: part[s] = w[s] * sum over its rows of row[t]; each[s] and sum_of[s] (may be NULL) = the
 * sum itself. */
__global__ __launch_bounds__(FOLD_THREADS) static void fold_samples(
	const double *row, const int32_t *cu, const float *w, double *part, float *each, double *sum_of)
{
	int64_t s = blockIdx.x, t = cu[s] + (int64_t)threadIdx.x, end = cu[s + 1];
	double sum[4] = {0, 0, 0, 0}, all;

	for (; t + 3 * FOLD_THREADS < end; t += 4 * FOLD_THREADS)
#pragma unroll
		for (int k = 0; k < 4; k++)
			sum[k] += row[t + k * FOLD_THREADS];
	for (; t < end; t += FOLD_THREADS)
		sum[0] += row[t];
	all = block_sum<FOLD_THREADS / 32>((sum[0] + sum[1]) + (sum[2] + sum[3]));
	if (threadIdx.x == 0) {
		part[s] = (double)w[s] * all;
		if (each)
			each[s] = (float)all;
		if (sum_of)
			sum_of[s] = all;
	}
}

__global__ __launch_bounds__(FOLD_THREADS) static void fold_loss(const double *part, int n, double *loss)
{
	double sum = 0;

	for (int i = threadIdx.x; i < n; i += FOLD_THREADS)
		sum += part[i];
	sum = block_sum<FOLD_THREADS / 32>(sum);
	if (threadIdx.x == 0)
		*loss += sum;
}

/* ws: [T] sums of the rows, then room for twice [S]. */
static inline size_t fold_ws(int64_t rows, const struct vfm_seqs *q)
{
	return (size_t)(rows + 2 * (int64_t)q->n) * sizeof(double);
}

/* each and unweighted (the sum of all rows) may be NULL. */
static inline void fold_row_sums(struct vfm_stream *s, double *ws, int64_t rows, const struct vfm_seqs *q,
	const float *w, double *loss, float *each, double *unweighted)
{
	double *part = ws + rows, *sum_of = unweighted ? part + q->n : NULL;

	if (q->n == 0)
		return;
	VFM_LAUNCH(
		s, (fold_samples), q->n, FOLD_THREADS, 0, ws, (const int32_t *)q->dev_cu.data, w, part, each, sum_of);
	VFM_LAUNCH(s, (fold_loss), 1, FOLD_THREADS, 0, part, q->n, loss);
	if (unweighted)
		VFM_LAUNCH(s, (fold_loss), 1, FOLD_THREADS, 0, sum_of, q->n, unweighted);
}

#endif
