/* colsum.h - column sums over the tokens of each sample, or of all tokens, in two stages with a fixed order.
 *
 * The pack is divided into tiles of `per` tokens, independently of the samples.  A block writes the sum over each
 * sample within its tile to row (tile + sample) of the partial sums.  Along the pack either the tile or the sample
 * increases from one such row to the next, so each row has one writer.  The fold then adds the rows of each sample.
 */
#ifndef VFM_DEVICE_CUDA_KERN_COLSUM_H
#define VFM_DEVICE_CUDA_KERN_COLSUM_H

#include "device/cuda/kern/kern.h"

/* The samples in kernel arguments. */
struct samples {
	const int32_t *cu;  /* [n + 1]; NULL: all tokens are one sample */
	const int32_t *seg; /* [total], or NULL */
	int n;
	int64_t total;
	int per; /* tokens per tile */
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

/* Returns the elements between the rows of two samples in an operand [n,d]; 0 if it is absent, or one row [d] for
 * all. */
static inline int64_t sample_stride(const struct vfm_tensor *t)
{
	return vfm_has(t) && t->ndim == 2 ? t->stride[0] : 0;
}

/* Returns the end of the tokens of sample s. */
__device__ static inline int64_t sample_end(const struct samples &q, int s)
{
	return q.cu ? q.cu[s + 1] : q.total;
}

/* Returns the same tiles of all tokens as one sample. */
static inline struct samples whole_pack(const struct samples &q)
{
	return {nullptr, nullptr, 1, q.total, q.per};
}

/* Returns the blocks along rows of n vectors, each of whole warps and at most `most` threads. */
static inline int slabs_of(int64_t n, int most, int *slabs)
{
	*slabs = (int)ceil_div(n, most);
	return in_warps(ceil_div(n, *slabs));
}

/* Sums over threadIdx.y of a block of THREADS threads, in this order; threads with threadIdx.y 0 get the result. */
template <int N, int THREADS> __device__ static inline void sum_sides(vec<N> *sum)
{
	__shared__ float part[N][THREADS];
	int i = threadIdx.y * blockDim.x + threadIdx.x;

	if (blockDim.y == 1)
		return;
#pragma unroll
	for (int k = 0; k < N; k++)
		part[k][i] = sum->v[k];
	__syncthreads();
	for (unsigned g = 1; g < blockDim.y && threadIdx.y == 0; g++)
#pragma unroll
		for (int k = 0; k < N; k++)
			sum->v[k] += part[k][g * blockDim.x + threadIdx.x];
	__syncthreads();
}

enum { FOLD_OUT = 3 };
struct fold_args {
	struct samples q;
	const float *part;        /* [part_rows, width] */
	int64_t width, d;         /* columns [i d, (i + 1) d) go to out[i] */
	float *out[FOLD_OUT];     /* each may be NULL */
	int64_t stride[FOLD_OUT]; /* between samples */
	bool add;
};
struct fold_pair {
	struct fold_args a[2];
	int64_t blocks; /* of a[0] */
	int rows[2];    /* threads that share a column */
};

/* Block (32, n): 32 columns of one sample, rows divided among some of n; grid: column blocks x samples, of a[0], then
 * of a[1]. */
__global__ static void fold_columns(const struct fold_pair p)
{
	__shared__ float sums[32][32];
	bool second = blockIdx.x >= p.blocks;
	const struct fold_args &a = p.a[second];
	int64_t block = blockIdx.x - (second ? p.blocks : 0), blocks = (a.width + 31) / 32;
	int64_t c = block % blocks * 32 + threadIdx.x;
	int s = (int)(block / blocks), rows = p.rows[second];
	int64_t t0 = a.q.cu ? a.q.cu[s] : 0, t1 = sample_end(a.q, s), from = t0 / a.q.per,
		to = t1 > t0 ? (t1 - 1) / a.q.per + 1 : from;
	float sum = 0, *out;
	int group;

	if (c < a.width && (int)threadIdx.y < rows) {
#pragma unroll 4
		for (int64_t k = from + threadIdx.y; k < to; k += rows)
			sum += a.part[(k + s) * a.width + c];
	}
	sums[threadIdx.y][threadIdx.x] = sum;
	__syncthreads();
	if (threadIdx.y || c >= a.width)
		return;
	for (int k = 1; k < rows; k++)
		sum += sums[k][threadIdx.x];
	group = (int)(c / a.d);
	out = a.out[group];
	c += s * a.stride[group] - group * a.d;
	if (out)
		out[c] = a.add ? out[c] + sum : sum;
}

/* One launch for both; width 0: none.  share: threads that share a column; 0: by the number of tiles. */
static inline void fold_two_sums(struct vfm_stream *st, const struct fold_args &a, const struct fold_args &b, int share)
{
	struct fold_pair p = {{a, b}, ceil_div(a.width, 32) * a.q.n, {}};
	int64_t more = ceil_div(b.width, 32) * b.q.n;

	for (int i = 0; i < 2; i++)
		p.rows[i] = share ? share : count_token_tiles(p.a[i].q) > 32 * (int64_t)p.a[i].q.n ? 32 : 8;
	if (p.blocks + more)
		VFM_LAUNCH(st, (fold_columns), p.blocks + more,
			dim3(32, !more || p.rows[0] > p.rows[1] ? p.rows[0] : p.rows[1]), 0, p);
}

static inline void fold_column_sums(struct vfm_stream *st, const struct fold_args &a)
{
	fold_two_sums(st, a, {a.q, nullptr, 0, 1, {}, {}, false}, 0);
}

#endif
