/* attn_pack.cu - kernels around cuDNN: lists of the samples of a piece, rows of excluded samples, layout conversions.
 */
#include "device/cuda/attn_pack.h"
#include "device/cuda/kern/kern.h"

enum { THREADS = 256, WARPS = THREADS / 32 };

/* ---- lists ---- */

/* The samples of a piece. */
struct side_choice {
	const int32_t *cu_q, *cu_k; /* [samples + 1] */
	int samples;
	int32_t lo, hi;
	int64_t first, n, b;
};

/* One block writes the entries of the piece in the order of the samples. */
__global__ static void attn_lists(side_choice c, vfm_attn_lists l)
{
	__shared__ int count[WARPS];
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	int64_t before = 0;

	for (int64_t i = threadIdx.x; i <= c.b; i += THREADS) {
		if (i < c.b)
			l.len_q[i] = l.len_k[i] = 0;
		for (int o = 0; o < l.n; o++)
			l.offset[o].at[i] =
				l.offset[o].row * (l.offset[o].of_keys ? c.cu_k[c.samples] : c.cu_q[c.samples]);
	}
	__syncthreads();
	for (int from = 0; from < c.samples; from += THREADS) {
		int i = from + (int)threadIdx.x, here = 0, in_warp;
		int32_t nq = i < c.samples ? c.cu_q[i + 1] - c.cu_q[i] : 0,
			nk = i < c.samples ? c.cu_k[i + 1] - c.cu_k[i] : 0;
		bool in = nq > c.lo && nq <= c.hi && nk > 0;
		unsigned vote = __ballot_sync(VFM_ALL_LANES, in);
		int64_t at;

		in_warp = __popc(vote & ((1u << lane) - 1));
		if (lane == 0)
			count[warp] = __popc(vote);
		__syncthreads();
		at = before - c.first + in_warp;
		for (int w = 0; w < WARPS; w++) {
			at += w < warp ? count[w] : 0;
			here += count[w];
		}
		if (in && at >= 0 && at < c.n) {
			l.len_q[at] = nq;
			l.len_k[at] = nk;
			for (int o = 0; o < l.n; o++)
				l.offset[o].at[at] = l.offset[o].row * (l.offset[o].of_keys ? c.cu_k[i] : c.cu_q[i]);
		}
		before += here;
		__syncthreads();
	}
}

extern "C" void vfm_cuda_attn_lists(struct vfm_stream *s, const struct vfm_seqs *q, const struct vfm_seqs *k,
	const struct vfm_attn_piece *p, const struct vfm_attn_lists *l)
{
	side_choice c = {(const int32_t *)q->dev_cu.data, (const int32_t *)k->dev_cu.data, q->n, p->lo, p->hi, p->first,
		p->n, p->b};

	VFM_LAUNCH(s, (attn_lists), 1, THREADS, 0, c, *l);
}

/* ---- lse in rows of a sample each ---- */

/* The two layouts of lse.  A block has consecutive queries of one head of one sample; SPREAD: lse is read. */
template <bool SPREAD>
__global__ static void attn_spread(float *lse, int64_t heads_all, int64_t head, const int32_t *len,
	const int64_t *first, int64_t sq, float *padded)
{
	int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, b = blockIdx.z, h = blockIdx.y;
	bool in = i < (len ? len[b] : sq);
	float *at = lse + ((first ? first[b] : b * sq) + i) * heads_all + head + h;

	if (i >= sq)
		return;
	padded += (b * gridDim.y + h) * sq + i;
	if (SPREAD)
		*padded = in ? *at : 0.0f;
	else if (in)
		*at = *padded;
}

extern "C" void vfm_cuda_attn_spread(struct vfm_stream *s, const struct vfm_attn_piece *p, const struct vfm_tensor *lse,
	int64_t head, int64_t heads, const int32_t *len_q, const int64_t *first, float *padded, bool back)
{
	dim3 grid(ceil_div(p->sq, THREADS), heads, p->b);

	if (back)
		VFM_LAUNCH(s, (attn_spread<false>), grid, THREADS, 0, (float *)lse->data, lse->shape[1], head, len_q,
			first, p->sq, padded);
	else
		VFM_LAUNCH(s, (attn_spread<true>), grid, THREADS, 0, (float *)lse->data, lse->shape[1], head, len_q,
			first, p->sq, padded);
}

/* ---- rows that nothing is computed for ---- */

template <int N, class T>
__global__ static void attn_blank(
	const int32_t *of, const int32_t *other, T *x, int64_t row, int64_t head, int heads, int d, float *lse)
{
	int64_t from = of[blockIdx.x], to = of[blockIdx.x + 1];
	const vec<N> zeros = {};

	if (other[blockIdx.x + 1] > other[blockIdx.x])
		return;
	for (int64_t r = from + blockIdx.y; r < to; r += gridDim.y) {
		for (int i = threadIdx.x * N; i < heads * d; i += THREADS * N)
			st_vec<N>(x + r * row + i / d * head + i % d, zeros);
		for (int h = threadIdx.x; lse && h < heads; h += THREADS)
			lse[r * heads + h] = -INFINITY;
	}
}

extern "C" void vfm_cuda_attn_blank(struct vfm_stream *s, const struct vfm_seqs *of, const struct vfm_seqs *other,
	const struct vfm_tensor *x, float *lse)
{
	if (of->n && vfm_numel(x))
		VFM_WIDTH(vec_ok(8, x), 8, N,
			VFM_ACT_TYPE(x->dtype, T,
				VFM_LAUNCH(s, (attn_blank<N, T>), dim3(of->n, 32), THREADS, 0,
					(const int32_t *)of->dev_cu.data, (const int32_t *)other->dev_cu.data,
					(T *)x->data, x->stride[0], x->stride[1], (int)x->shape[1], (int)x->shape[2],
					lse)));
}

/* ---- copies ---- */

template <int N, class X, class Y>
__global__ static void attn_copy(const X *x, int64_t x_row, Y *y, int64_t y_row, int64_t n, int64_t cols)
{
	for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N; i < n;
		i += (int64_t)gridDim.x * THREADS * N)
		st_vec<N>(y + i / cols * y_row + i % cols, ld_vec<N>(x + i / cols * x_row + i % cols));
}

extern "C" void vfm_cuda_attn_copy(struct vfm_stream *s, const struct vfm_tensor *x, const struct vfm_tensor *y)
{
	int64_t n = vfm_numel(x), cols = x->shape[1] * x->shape[2];

	if (n)
		VFM_WIDTH(vec_ok(8, x, y), 8, N,
			VFM_ACT_TYPE(x->dtype, X,
				VFM_ACT_TYPE(y->dtype, Y,
					VFM_LAUNCH(s, (attn_copy<N, X, Y>),
						grid_of(s, ceil_div(n, (int64_t)THREADS * N), 16), THREADS, 0,
						(const X *)x->data, x->stride[0], (Y *)y->data, y->stride[0], n,
						cols))));
}
