/* colsum.h - column sums over the tokens of each sample, or of all tokens.
 *
 * Two stages in a fixed order.  The pack is divided into tiles of `per` tokens, independently of the samples.  A block
 * processes a tile and writes the sum over each sample within it to row (tile + sample) of the partial sums.  Along the
 * pack either the tile or the sample increases from one such row to the next, so each row has one writer, and no table
 * is needed.  The fold then adds the rows of each sample.  The tiles depend on the number of tokens alone.
 */
#ifndef VFM_CUDA_COLSUM_H
#define VFM_CUDA_COLSUM_H

#include "cuda/kern.h"

/* The samples in kernel arguments. */
struct samples {
	const int32_t *cu;  /* [n + 1]; NULL: all tokens are one sample */
	const int32_t *seg; /* [total], or NULL */
	int n;
	int64_t total;
	int per; /* tokens of a tile */
};

/* Chooses the tile size: some hundred tiles fill the device with large blocks, `cut` times as many with small ones;
 * longer tiles leave fewer partial sums. */
static inline struct samples tile_samples(const struct vfm_seqs *q, int64_t total, int cut)
{
	int64_t per = ceil_div(total, 2048) * 8;

	if (total > 8192)
		per = total <= 32768 ? 32 : ceil_div(total, 8192) * 8;
	per = ceil_div(per < 8 ? 8 : per > 128 ? 128 : per, cut);
	return {q ? (const int32_t *)q->dev_cu.data : nullptr,
		q && vfm_has(&q->seg) ? (const int32_t *)q->seg.data : nullptr, q ? q->n : 1, total, (int)per};
}

static inline int64_t count_token_tiles(const struct samples &q)
{
	return ceil_div(q.total, q.per);
}

/* Returns the number of rows of partial sums. */
static inline int64_t part_rows(const struct samples &q)
{
	return count_token_tiles(q) + q.n;
}

__device__ static inline int sample_at(const struct samples &q, int64_t t)
{
	int lo = 0, hi = q.n - 1;

	if (q.seg)
		return q.seg[t];
	while (q.cu && lo < hi) { /* the last sample that begins at or before t */
		int mid = (lo + hi + 1) / 2;

		if (q.cu[mid] <= t)
			lo = mid;
		else
			hi = mid - 1;
	}
	return q.cu ? lo : 0;
}

/* Returns the end of the tokens of sample s. */
__device__ static inline int64_t sample_end(const struct samples &q, int s)
{
	return q.cu ? q.cu[s + 1] : q.total;
}

struct fold_args {
	struct samples q;
	const float *part; /* [part_rows, width] */
	int64_t width, d;  /* columns [0, d) go to out[0], [d, 2d) to out[1] */
	float *out[2];     /* either may be NULL */
	int64_t stride[2]; /* between samples */
	bool add;
};

/* Block (32, n): 32 columns of one sample, rows divided among n; grid: column blocks x samples. */
__global__ static void fold_columns(const struct fold_args a)
{
	__shared__ float sums[32][32];
	int64_t blocks = (a.width + 31) / 32, c = blockIdx.x % blocks * 32 + threadIdx.x, at;
	int s = (int)(blockIdx.x / blocks);
	int64_t t0 = a.q.cu ? a.q.cu[s] : 0, t1 = sample_end(a.q, s), from = t0 / a.q.per,
		to = t1 > t0 ? (t1 - 1) / a.q.per + 1 : from;
	float sum = 0, *out;
	bool to_second;

	if (c < a.width) {
#pragma unroll 4
		for (int64_t k = from + threadIdx.y; k < to; k += blockDim.y)
			sum += a.part[(k + s) * a.width + c];
	}
	sums[threadIdx.y][threadIdx.x] = sum;
	__syncthreads();
	if (threadIdx.y || c >= a.width)
		return;
	for (unsigned k = 1; k < blockDim.y; k++)
		sum += sums[k][threadIdx.x];
	to_second = c >= a.d;
	out = to_second ? a.out[1] : a.out[0];
	at = to_second ? s * a.stride[1] + c - a.d : s * a.stride[0] + c;
	if (out)
		out[at] = a.add ? out[at] + sum : sum;
}

static inline void fold_column_sums(struct vfm_stream *st, const struct fold_args &a)
{
	int64_t grid = ceil_div(a.width, 32) * a.q.n;
	int rows = count_token_tiles(a.q) > 32 * (int64_t)a.q.n ? 32 : 8;

	if (grid)
		VFM_LAUNCH(st, (fold_columns), grid, dim3(32, rows), 0, a);
}

#endif
