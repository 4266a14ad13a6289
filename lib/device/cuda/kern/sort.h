/* sort.h - stable argsort by a small key.
 *
 * A radix sort with digits of at most 8 bits, lowest first.  A pass divides the input into chunks, one per warp:
 *   1. each chunk counts its digits
 *   2. a block per digit scans the counts over the chunks
 *   3. each chunk scatters its elements, 32 at a time, to the offsets from step 2
 * Three launches per pass; keys below 256 take one pass.
 *
 * Keys outside [0, keys) are treated as `keys`, so they come last.  Keys that row_of (kern.h) rejects are reported.
 */
#ifndef VFM_DEVICE_CUDA_KERN_SORT_H
#define VFM_DEVICE_CUDA_KERN_SORT_H

#include "device/cuda/kern/kern.h"

enum { SORT_WARPS = 8, SORT_DIGITS = 256, SORT_CHUNKS = 1024 };

struct sort_keys {
	const int32_t *key;
	int64_t step; /* between keys */
	int32_t keys, least;
	uint64_t *fault;

	__device__ inline int32_t of(int32_t i) const
	{
		int32_t k = key[i * step];

		return k < 0 || k >= keys ? keys : k;
	}
	__device__ inline void look(int32_t i) const
	{
		row_of(key[i * step], keys, least, fault);
	}
};

struct sort_pass {
	struct sort_keys k;
	const int32_t *from; /* [n]: the order so far; NULL: 0, 1, … */
	int32_t *to;         /* [n] */
	int32_t *table;      /* [digits][chunks] */
	int32_t *total;      /* [digits] */
	int64_t n;
	int32_t per_chunk, chunks, shift, bits;

	__device__ inline int32_t at(int64_t p) const
	{
		return from ? from[p] : (int32_t)p;
	}
	__device__ inline int32_t digit(int32_t i) const
	{
		return k.of(i) >> shift & ((1 << bits) - 1);
	}
};

__global__ __launch_bounds__(SORT_WARPS * 32) static void sort_count(const sort_pass a)
{
	__shared__ int32_t count[SORT_WARPS][SORT_DIGITS];
	int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, digits = 1 << a.bits;
	int64_t c = (int64_t)blockIdx.x * SORT_WARPS + warp, p = c * a.per_chunk,
		end = p + a.per_chunk < a.n ? p + a.per_chunk : a.n;

	for (int d = lane; d < digits; d += 32)
		count[warp][d] = 0;
	__syncwarp();
	for (p += lane; p < end; p += 32) {
		int32_t i = a.at(p);

		if (a.shift == 0)
			a.k.look(i);
		atomicAdd(&count[warp][a.digit(i)], 1);
	}
	__syncwarp();
	for (int d = lane; d < digits && c < a.chunks; d += 32)
		a.table[(int64_t)d * a.chunks + c] = count[warp][d];
}

/* Exclusive prefix sum over the threads of a block of WARPS warps; *all: the total. */
template <int WARPS> __device__ static inline int32_t scan_block(int32_t x, int32_t *all)
{
	__shared__ int32_t part[WARPS];
	int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
	int32_t sum = x, before = 0, total = 0;

#pragma unroll
	for (int d = 1; d < 32; d *= 2) {
		int32_t y = __shfl_up_sync(VFM_ALL_LANES, sum, d);

		sum += lane >= d ? y : 0;
	}
	if (lane == 31)
		part[warp] = sum;
	__syncthreads();
#pragma unroll
	for (int w = 0; w < WARPS; w++) {
		before += w < warp ? part[w] : 0;
		total += part[w];
	}
	__syncthreads();
	*all = total;
	return before + sum - x;
}

/* Block d replaces the counts of digit d by their prefix sums over the chunks. */
__global__ __launch_bounds__(256) static void sort_scan(const sort_pass a)
{
	int32_t *row = a.table + (int64_t)blockIdx.x * a.chunks, base = 0;

	for (int32_t c0 = 0; c0 < a.chunks; c0 += 256) {
		int32_t c = c0 + (int32_t)threadIdx.x, all, x = c < a.chunks ? row[c] : 0;

		x = base + scan_block<8>(x, &all);
		if (c < a.chunks)
			row[c] = x;
		base += all;
	}
	if (threadIdx.x == 0)
		a.total[blockIdx.x] = base;
}

__global__ __launch_bounds__(SORT_WARPS * 32) static void sort_place(const sort_pass a)
{
	__shared__ int32_t next[SORT_WARPS][SORT_DIGITS], first[SORT_DIGITS];
	int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, digits = 1 << a.bits;
	int64_t c = (int64_t)blockIdx.x * SORT_WARPS + warp, p = c * a.per_chunk,
		end = p + a.per_chunk < a.n ? p + a.per_chunk : a.n;
	int32_t all;

	all = scan_block<SORT_WARPS>((int)threadIdx.x < digits ? a.total[threadIdx.x] : 0, &all);
	if ((int)threadIdx.x < digits)
		first[threadIdx.x] = all;
	__syncthreads();
	for (int d = lane; d < digits && c < a.chunks; d += 32)
		next[warp][d] = first[d] + a.table[(int64_t)d * a.chunks + c];
	__syncwarp();
	for (; p < end; p += 32) {
		bool on = p + lane < end;
		int32_t i = on ? a.at(p + lane) : 0, d = on ? a.digit(i) : 0, to = on ? next[warp][d] : 0;
		unsigned same = __ballot_sync(VFM_ALL_LANES, on);

		for (int b = 0; b < a.bits; b++) {
			unsigned set = __ballot_sync(VFM_ALL_LANES, d >> b & 1);

			same &= d >> b & 1 ? set : ~set;
		}
		if (on) {
			int rank = __popc(same & ((1u << lane) - 1));

			a.to[to + rank] = i;
			if (rank == __popc(same) - 1) /* the last of its digit; all lanes have read */
				next[warp][d] = to + rank + 1;
		}
		__syncwarp();
	}
}

/* ---- on the host ---- */

struct sort_plan {
	int64_t n;
	int32_t passes, bits, per_chunk, chunks;
};

/* n and keys below 2^31. */
static inline struct sort_plan sort_plan(int64_t n, int64_t keys)
{
	struct sort_plan p = {n, 1, 1, 64, 0};
	int bits = 1;

	while (keys >> bits)
		bits++; /* keys itself is a key */
	p.passes = (bits + 7) / 8;
	p.bits = (bits + p.passes - 1) / p.passes;
	if (n > (int64_t)SORT_CHUNKS * p.per_chunk)
		p.per_chunk = (int32_t)(ceil_div(n, (int64_t)SORT_CHUNKS * 32) * 32);
	p.chunks = (int32_t)ceil_div(n, p.per_chunk);
	return p;
}

static inline size_t sort_pad(size_t bytes)
{
	return (bytes + 255) / 256 * 256;
}

static inline size_t sort_ws(const struct sort_plan *p)
{
	size_t order = sort_pad((size_t)p->n * 4);

	return (p->passes > 1 ? order : 0) + sort_pad(((size_t)p->chunks + 1) * SORT_DIGITS * 4);
}

/* order [n]; ws: of sort_ws bytes. */
static inline void sort_run(
	struct vfm_stream *s, const struct sort_plan *p, struct sort_keys k, int32_t *order, void *ws)
{
	int32_t *other = (int32_t *)ws,
		*total = (int32_t *)((char *)ws + (p->passes > 1 ? sort_pad((size_t)p->n * 4) : 0));
	sort_pass a = {k, NULL, NULL, total + SORT_DIGITS, total, p->n, p->per_chunk, p->chunks, 0, p->bits};

	for (int i = 0; p->n && i < p->passes; i++) {
		a.to = (p->passes - i) % 2 ? order : other; /* the last pass writes `order` */
		VFM_LAUNCH(s, (sort_count), ceil_div(p->chunks, SORT_WARPS), SORT_WARPS * 32, 0, a);
		VFM_LAUNCH(s, (sort_scan), 1 << p->bits, 256, 0, a);
		VFM_LAUNCH(s, (sort_place), ceil_div(p->chunks, SORT_WARPS), SORT_WARPS * 32, 0, a);
		a.from = a.to;
		a.shift += p->bits;
	}
}

/* Returns the first position of `order` whose key is not below m. */
__device__ static inline int32_t sort_first(const sort_keys &k, const int32_t *order, int64_t n, int32_t m)
{
	int32_t lo = 0, hi = (int32_t)n;

	while (lo < hi) {
		int32_t mid = lo + (hi - lo) / 2;

		if (k.of(order[mid]) < m)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

#endif
