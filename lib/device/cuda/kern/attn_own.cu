/* attn_own.cu - attention by our own kernels, for operands that cuDNN does not support (such as f32); deterministic.
 *
 * Forward: a block has BQ queries of a head.  It iterates over tiles of the keys of their sample with a running maximum
 * and sum (Milakov & Gimelshein, arXiv 1805.02867; Dao et al., arXiv 2205.14135).  Backward, without atomics: delta =
 * rowsum(dO O); dq by blocks of queries; dk and dv by blocks of keys, over all heads that share them.
 *
 * A block has 16 x 16 threads.  Thread (ty, tx) has
 *   - of a product of two tiles: rows ty + 16 i, columns tx + 16 j
 *   - of a sum of d columns: rows ty + 16 i, columns 2 tx + 32 j and 2 tx + 32 j + 1
 */
#include "device/cuda/attn.h"
#include "device/cuda/kern/kern.h"

enum { THREADS = 256, SIDE = 16 };

/* Source of a tile: rows of a head of x [rows, heads, d]. */
template <class T> struct mat {
	T *p;
	int64_t row, head; /* elements from one to the next */
};

struct shape {
	const int32_t *cu_q, *cu_k; /* [samples + 1] */
	int64_t tiles;              /* tiles of the longest sample */
	int d, group;               /* query heads to one head of keys */
	int heads;                  /* heads of queries: columns of lse and delta */
	float scale;
	bool wide;         /* vectors of 8 elements are aligned */
	const float *bias; /* with BIAS: bias[h bias_row + key - query] is added to scaled scores */
	int64_t bias_row;
};

template <int N, int B, int LD, class T>
__device__ static inline void load_tile_n(float *tile, const T *x, int64_t row, int64_t n, int d)
{
	for (int i = threadIdx.x * N; i < B * d; i += THREADS * N) {
		int r = i / d, c = i % d;
		vec<N> v;

#pragma unroll
		for (int k = 0; k < N; k++)
			v.v[k] = 0;
		if (r < n)
			v = ld_vec<N>(x + r * row + c);
#pragma unroll
		for (int k = 0; k < N; k++)
			tile[r * LD + c + k] = v.v[k];
	}
}

/* Loads B rows; rows from n on are zeros. */
template <int B, int LD, class T>
__device__ static inline void load_tile(float *tile, const mat<T> &m, int64_t first, int h, int64_t n, const shape &s)
{
	const T *x = m.p + first * m.row + h * m.head;

	if (s.wide)
		load_tile_n<8, B, LD>(tile, x, m.row, n, s.d);
	else
		load_tile_n<1, B, LD>(tile, x, m.row, n, s.d);
}

/* acc[i][j] = row ty + 16 i of a times row tx + 16 j of b */
template <int R, int LD>
__device__ static inline void multiply_tiles(float (&acc)[R][R], const float *a, const float *b, int d)
{
	const int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;

#pragma unroll
	for (int i = 0; i < R; i++)
#pragma unroll
		for (int j = 0; j < R; j++)
			acc[i][j] = 0;
#pragma unroll 2
	for (int c = 0; c < d; c += 4) {
		float4 x[R], y[R];

#pragma unroll
		for (int i = 0; i < R; i++) {
			x[i] = *reinterpret_cast<const float4 *>(a + (ty + SIDE * i) * LD + c);
			y[i] = *reinterpret_cast<const float4 *>(b + (tx + SIDE * i) * LD + c);
		}
#pragma unroll
		for (int i = 0; i < R; i++)
#pragma unroll
			for (int j = 0; j < R; j++) {
				acc[i][j] += x[i].x * y[j].x;
				acc[i][j] += x[i].y * y[j].y;
				acc[i][j] += x[i].z * y[j].z;
				acc[i][j] += x[i].w * y[j].w;
			}
	}
}

/* An accumulator of B rows and up to DT columns; a thread has R rows and DT / 16 columns. */
template <int R, int DT> struct sum {
	float v[R][DT / 32][2];

	__device__ inline void zero()
	{
#pragma unroll
		for (int i = 0; i < R; i++)
#pragma unroll
			for (int j = 0; j < DT / 32; j++)
				v[i][j][0] = v[i][j][1] = 0;
	}
	/* += w x, where w [B, B + 4] has the rows of the sum, or (ROWS) its columns; x [B, LD] */
	template <int LD, bool ROWS> __device__ inline void add(const float *w, const float *x, int d)
	{
		const int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE, B = R * SIDE;

#pragma unroll 4
		for (int k = 0; k < B; k++) {
			float p[R];

#pragma unroll
			for (int i = 0; i < R; i++)
				p[i] = ROWS ? w[(ty + SIDE * i) * (B + 4) + k] : w[k * (B + 4) + ty + SIDE * i];
#pragma unroll
			for (int j = 0; j < DT / 32; j++) {
				float2 y;

				if (32 * j >= d)
					break;
				y = *reinterpret_cast<const float2 *>(x + k * LD + 2 * tx + 32 * j);
#pragma unroll
				for (int i = 0; i < R; i++) {
					v[i][j][0] += p[i] * y.x;
					v[i][j][1] += p[i] * y.y;
				}
			}
		}
	}
	/* Stores n rows, each multiplied by f[row] unless f is NULL. */
	template <class T>
	__device__ inline void store(const mat<T> &m, int64_t first, int h, int64_t n, int d, const float *f)
	{
		const int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;

#pragma unroll
		for (int i = 0; i < R; i++) {
			int r = ty + SIDE * i;
			T *y = m.p + (first + r) * m.row + h * m.head;
			float by = f ? f[r] : 1.0f;

			if (r >= n)
				continue;
#pragma unroll
			for (int j = 0; j < DT / 32; j++) {
				int c = 2 * tx + 32 * j;

				if (c >= d)
					break;
				st(y + c, v[i][j][0] * by);
				st(y + c + 1, v[i][j][1] * by);
			}
		}
	}
};

/* The tile of this block: its sample, and its first row. */
struct attn_place {
	int64_t q, nq, k, nk; /* first query and key of the sample, and their numbers */
	int64_t first;        /* first row of the tile within the sample */
};
template <int B> __device__ static inline attn_place tile_place(const shape &s)
{
	int64_t sample = blockIdx.x / s.tiles;
	attn_place p;

	p.q = s.cu_q[sample], p.nq = s.cu_q[sample + 1] - p.q;
	p.k = s.cu_k[sample], p.nk = s.cu_k[sample + 1] - p.k;
	p.first = blockIdx.x % s.tiles * B;
	return p;
}

/* ---- forward ---- */

/* Replaces n columns of scores in s by exp(score - running maximum).  alpha: the factor for older sums.  Four threads a
 * row; each keeps the maximum and sum of its row. */
template <int B> __device__ static inline void soften(float *s, float *alpha, float &max, float &sum, int64_t n)
{
	const int r = threadIdx.x / 4, q = threadIdx.x % 4;
	float *row = s + r * (B + 4), m = -INFINITY, l = 0, by;

	for (int c = q; c < n && c < B; c += 4)
		m = fmaxf(m, row[c]);
	m = fmaxf(m, __shfl_xor_sync(VFM_ALL_LANES, m, 1));
	m = fmaxf(max, fmaxf(m, __shfl_xor_sync(VFM_ALL_LANES, m, 2)));
	by = __expf(max - m);
	for (int c = q; c < B; c += 4) {
		float e = c < n ? __expf(row[c] - m) : 0;

		row[c] = e;
		l += e;
	}
	l += __shfl_xor_sync(VFM_ALL_LANES, l, 1);
	l += __shfl_xor_sync(VFM_ALL_LANES, l, 2);
	sum = sum * by + l;
	max = m;
	if (q == 0)
		alpha[r] = by;
}

/* lse is not stored with BIAS. */
template <class T, int DT, bool BIAS>
__global__ static void __launch_bounds__(THREADS, 1)
	attn_forward(shape s, mat<const T> q, mat<const T> k, mat<const T> v, mat<T> o, float *lse)
{
	constexpr int B = 64, R = B / SIDE, LD = DT + 4;
	VFM_DYN_SHARED(float, tq);
	float *tk = tq + B * LD, *w = tk + B * LD, *alpha = w + B * (B + 4); /* keys, then values; scores; [B] */
	const int h = blockIdx.y, kh = h / s.group, ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
	const attn_place p = tile_place<B>(s);
	float max = -INFINITY, l = 0, acc[R][R];
	sum<R, DT> out;

	if (p.first >= p.nq)
		return;
	out.zero();
	load_tile<B, LD>(tq, q, p.q + p.first, h, p.nq - p.first, s);
	for (int64_t at = 0; at < p.nk; at += B) {
		load_tile<B, LD>(tk, k, p.k + at, kh, p.nk - at, s);
		__syncthreads();
		multiply_tiles<R, LD>(acc, tq, tk, s.d);
#pragma unroll
		for (int i = 0; i < R; i++)
#pragma unroll
			for (int j = 0; j < R; j++) {
				int64_t query = p.first + ty + SIDE * i, key = at + tx + SIDE * j;
				float z = acc[i][j] * s.scale;

				if (BIAS && query < p.nq && key < p.nk)
					z += s.bias[h * s.bias_row + key - query];
				w[(ty + SIDE * i) * (B + 4) + tx + SIDE * j] = z;
			}
		__syncthreads();
		soften<B>(w, alpha, max, l, p.nk - at);
		load_tile<B, LD>(tk, v, p.k + at, kh, p.nk - at, s);
		__syncthreads();
#pragma unroll
		for (int i = 0; i < R; i++)
#pragma unroll
			for (int j = 0; j < DT / 32; j++) {
				out.v[i][j][0] *= alpha[ty + SIDE * i];
				out.v[i][j][1] *= alpha[ty + SIDE * i];
			}
		out.template add<LD, true>(w, tk, s.d);
		__syncthreads();
	}
	if (threadIdx.x % 4 == 0) {
		int64_t r = p.first + threadIdx.x / 4;

		alpha[threadIdx.x / 4] = l > 0 || l != l ? 1.0f / l : 0.0f;
		if (!BIAS && r < p.nq)
			lse[(p.q + r) * s.heads + h] = p.nk ? max + logf(l) : -INFINITY;
	}
	__syncthreads();
	out.store(o, p.q + p.first, h, p.nq - p.first, s.d, alpha);
}

/* ---- backward ---- */

/* One warp for each row and head. */
template <class T>
__global__ static void attn_delta(shape s, int64_t rows, mat<const T> o, mat<const T> dout, float *delta)
{
	int64_t warps = (int64_t)gridDim.x * (THREADS / 32);

	for (int64_t i = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; i < rows * s.heads; i += warps) {
		int64_t r = i / s.heads, h = i % s.heads;
		const T *x = o.p + r * o.row + h * o.head, *y = dout.p + r * dout.row + h * dout.head;
		float sum = 0;

		for (int c = threadIdx.x % 32; c < s.d; c += 32)
			sum += ld(x + c) * ld(y + c);
		sum = warp_sum(sum);
		if (threadIdx.x % 32 == 0)
			delta[i] = sum;
	}
}

/* Computes P = exp(scale q k - lse) and dS = P (dP - delta), dP = dout v, times scale, for rows of queries and columns
 * of keys; zeros outside of the sample. */
template <int R>
__device__ static inline void probabilities(float (&p)[R][R], float (&ds)[R][R], const shape &s, const attn_place &at,
	int64_t q0, int64_t k0, int h, const float *lse, const float *delta)
{
	const int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;

#pragma unroll
	for (int i = 0; i < R; i++) {
		int64_t r = q0 + ty + SIDE * i, stat = (at.q + r) * s.heads + h;
		float l = r < at.nq ? lse[stat] : 0, dl = r < at.nq ? delta[stat] : 0;

#pragma unroll
		for (int j = 0; j < R; j++) {
			bool in = r < at.nq && k0 + tx + SIDE * j < at.nk;

			p[i][j] = in ? __expf(p[i][j] * s.scale - l) : 0;
			ds[i][j] = in ? s.scale * p[i][j] * (ds[i][j] - dl) : 0;
		}
	}
}

template <int R> __device__ static inline void store_scores(float *w, const float (&x)[R][R])
{
	const int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;

#pragma unroll
	for (int i = 0; i < R; i++)
#pragma unroll
		for (int j = 0; j < R; j++)
			w[(ty + SIDE * i) * (R * SIDE + 4) + tx + SIDE * j] = x[i][j];
}

template <class T> struct bwd_args {
	shape s;
	mat<const T> q, k, v, dout;
	const float *lse, *delta;
};

template <class T, class G, int DT, int B>
__global__ static void __launch_bounds__(THREADS, 1) attn_backward_q(bwd_args<T> a, mat<G> dq)
{
	constexpr int R = B / SIDE, LD = DT + 4;
	VFM_DYN_SHARED(float, tq);
	float *tdo = tq + B * LD, *tk = tdo + B * LD, *tv = tk + B * LD, *w = tv + B * LD;
	const int h = blockIdx.y, kh = h / a.s.group;
	const attn_place p = tile_place<B>(a.s);
	float x[R][R], ds[R][R];
	sum<R, DT> out;

	if (p.first >= p.nq)
		return;
	out.zero();
	load_tile<B, LD>(tq, a.q, p.q + p.first, h, p.nq - p.first, a.s);
	load_tile<B, LD>(tdo, a.dout, p.q + p.first, h, p.nq - p.first, a.s);
	for (int64_t at = 0; at < p.nk; at += B) {
		load_tile<B, LD>(tk, a.k, p.k + at, kh, p.nk - at, a.s);
		load_tile<B, LD>(tv, a.v, p.k + at, kh, p.nk - at, a.s);
		__syncthreads();
		multiply_tiles<R, LD>(x, tq, tk, a.s.d);
		multiply_tiles<R, LD>(ds, tdo, tv, a.s.d);
		probabilities<R>(x, ds, a.s, p, p.first, at, h, a.lse, a.delta);
		store_scores<R>(w, ds);
		__syncthreads();
		out.template add<LD, true>(w, tk, a.s.d);
		__syncthreads();
	}
	out.store(dq, p.q + p.first, h, p.nq - p.first, a.s.d, (const float *)NULL);
}

template <class T, class G, int DT, int B>
__global__ static void __launch_bounds__(THREADS, 1) attn_backward_k(bwd_args<T> a, mat<G> dk, mat<G> dv)
{
	constexpr int R = B / SIDE, LD = DT + 4;
	VFM_DYN_SHARED(float, tq);
	float *tdo = tq + B * LD, *tk = tdo + B * LD, *tv = tk + B * LD, *w = tv + B * LD;
	const int kh = blockIdx.y;
	const attn_place p = tile_place<B>(a.s);
	float x[R][R], ds[R][R];
	sum<R, DT> outk, outv;

	if (p.first >= p.nk)
		return;
	outk.zero();
	outv.zero();
	load_tile<B, LD>(tk, a.k, p.k + p.first, kh, p.nk - p.first, a.s);
	load_tile<B, LD>(tv, a.v, p.k + p.first, kh, p.nk - p.first, a.s);
	for (int h = kh * a.s.group; h < (kh + 1) * a.s.group; h++)
		for (int64_t at = 0; at < p.nq; at += B) {
			load_tile<B, LD>(tq, a.q, p.q + at, h, p.nq - at, a.s);
			load_tile<B, LD>(tdo, a.dout, p.q + at, h, p.nq - at, a.s);
			__syncthreads();
			multiply_tiles<R, LD>(x, tq, tk, a.s.d);
			multiply_tiles<R, LD>(ds, tdo, tv, a.s.d);
			probabilities<R>(x, ds, a.s, p, at, p.first, h, a.lse, a.delta);
			store_scores<R>(w, x);
			__syncthreads();
			outv.template add<LD, false>(w, tdo, a.s.d);
			__syncthreads();
			store_scores<R>(w, ds);
			__syncthreads();
			outk.template add<LD, false>(w, tq, a.s.d);
			__syncthreads();
		}
	outk.store(dk, p.k + p.first, kh, p.nk - p.first, a.s.d, (const float *)NULL);
	outv.store(dv, p.k + p.first, kh, p.nk - p.first, a.s.d, (const float *)NULL);
}

/* ---- launches ---- */

template <class T> static mat<T> mat_of(const struct vfm_tensor *t)
{
	return {(T *)t->data, t->stride[0], t->stride[1]};
}

static struct shape shape_of(const struct vfm_tensor *q, const struct vfm_tensor *k, const struct vfm_seqs *sq,
	const struct vfm_seqs *sk, float scale)
{
	return {(const int32_t *)sq->dev_cu.data, (const int32_t *)sk->dev_cu.data, 0, (int)q->shape[2],
		k->shape[1] ? (int)(q->shape[1] / k->shape[1]) : 1, (int)q->shape[1], scale, false, NULL, 0};
}

/* Returns the tiles of b rows of the longest sample, 0 without samples.  max_len may be larger than that. */
static int64_t count_tiles(const struct vfm_seqs *q, int b)
{
	int64_t most = 0;

	for (int i = 0; i < q->n; i++)
		if (vfm_seqs_len(q, i) > most)
			most = vfm_seqs_len(q, i);
	return ceil_div(most, b);
}

template <class T, int DT, bool BIAS>
static void launch_forward(struct vfm_stream *st, const struct vfm_attn *a, const float *bias, int64_t bias_row)
{
	constexpr int B = 64, smem = (2 * B * (DT + 4) + B * (B + 4) + B) * (int)sizeof(float);
	static_assert(smem <= VFM_CUDA_LEAST_SHARED, "fits every GPU");
	struct shape s = shape_of(&a->q, &a->k, a->seqs_q, a->seqs_k, a->scale);

	s.bias = bias, s.bias_row = bias_row;
	s.wide = vec_ok(8, &a->q, &a->k, &a->v);
	s.tiles = count_tiles(a->seqs_q, B);
	if (s.tiles == 0 || s.heads == 0)
		return;
	VFM_ALLOW_SHARED((attn_forward<T, DT, BIAS>), smem);
	VFM_LAUNCH(st, (attn_forward<T, DT, BIAS>), dim3(s.tiles * a->seqs_q->n, s.heads), THREADS, smem, s,
		mat_of<const T>(&a->q), mat_of<const T>(&a->k), mat_of<const T>(&a->v), mat_of<T>(&a->o),
		(float *)a->lse.data);
}

extern "C" int vfm_cuda_attn_own(struct vfm_stream *s, const struct vfm_attn *a, struct vfm_err *err)
{
	if (a->q.shape[2] <= 64)
		VFM_ACT_TYPE(a->q.dtype, T, (launch_forward<T, 64, false>(s, a, NULL, 0)));
	else
		VFM_ACT_TYPE(a->q.dtype, T, (launch_forward<T, 128, false>(s, a, NULL, 0)));
	return vfm_cuda_launched(s, "attn", err);
}

extern "C" int vfm_cuda_attn_bias(struct vfm_stream *s, const struct vfm_attn_bias *b, struct vfm_err *err)
{
	struct vfm_attn a = {b->q, b->k, b->v, b->o, {}, b->seqs, b->seqs, b->scale};
	const float *bias = (const float *)b->bias.data + b->bias.shape[1] / 2; /* distance 0 of the first head */

	if (vfm_numel(&b->q) == 0)
		return 0;
	if (b->q.shape[2] <= 64)
		VFM_ACT_TYPE(b->q.dtype, T, (launch_forward<T, 64, true>(s, &a, bias, b->bias.stride[0])));
	else
		VFM_ACT_TYPE(b->q.dtype, T, (launch_forward<T, 128, true>(s, &a, bias, b->bias.stride[0])));
	return vfm_cuda_launched(s, "attn_bias", err);
}

template <class T, class G, int DT, int B>
static void launch_q(struct vfm_stream *st, const struct vfm_attn_bwd *a, bwd_args<T> b, int smem)
{
	b.s.tiles = count_tiles(a->seqs_q, B);
	if (b.s.tiles == 0 || b.s.heads == 0)
		return;
	VFM_ALLOW_SHARED((attn_backward_q<T, G, DT, B>), smem);
	VFM_LAUNCH(st, (attn_backward_q<T, G, DT, B>), dim3(b.s.tiles * a->seqs_q->n, b.s.heads), THREADS, smem, b,
		mat_of<G>(&a->dq));
}

template <class T, class G, int DT, int B>
static void launch_k(struct vfm_stream *st, const struct vfm_attn_bwd *a, bwd_args<T> b, int smem)
{
	struct vfm_tensor dv = a->dv;

	b.s.tiles = count_tiles(a->seqs_k, B);
	if (b.s.tiles == 0 || a->k.shape[1] == 0)
		return;
	VFM_ALLOW_SHARED((attn_backward_k<T, G, DT, B>), smem);
	VFM_LAUNCH(st, (attn_backward_k<T, G, DT, B>), dim3(b.s.tiles * a->seqs_k->n, a->k.shape[1]), THREADS, smem, b,
		mat_of<G>(&a->dk), mat_of<G>(&dv));
}

template <class T, int DT, int B>
static void launch_backward(struct vfm_stream *st, const struct vfm_attn_bwd *a, float *delta)
{
	constexpr int smem = (4 * B * (DT + 4) + B * (B + 4)) * (int)sizeof(float);
	static_assert(smem <= VFM_CUDA_LEAST_SHARED, "fits every GPU");
	bwd_args<T> b = {shape_of(&a->q, &a->k, a->seqs_q, a->seqs_k, a->scale), mat_of<const T>(&a->q),
		mat_of<const T>(&a->k), mat_of<const T>(&a->v), mat_of<const T>(&a->dout), (const float *)a->lse.data,
		delta};
	int64_t rows = a->q.shape[0], blocks = grid_of(st, ceil_div(rows * b.s.heads, THREADS / 32), 16);

	b.s.wide = vec_ok(8, &a->q, &a->k, &a->v, &a->dout);
	if (blocks)
		VFM_LAUNCH(st, (attn_delta<T>), blocks, THREADS, 0, b.s, rows, mat_of<const T>(&a->o),
			mat_of<const T>(&a->dout), delta);
	if (vfm_has(&a->dq))
		VFM_ACT_TYPE(a->dq.dtype, G, (launch_q<T, G, DT, B>(st, a, b, smem)));
	if (vfm_has(&a->dk))
		VFM_ACT_TYPE(a->dk.dtype, G, (launch_k<T, G, DT, B>(st, a, b, smem)));
}

extern "C" int vfm_cuda_attn_bwd_own(struct vfm_stream *s, const struct vfm_attn_bwd *a, struct vfm_err *err)
{
	float *delta = (float *)vfm_cuda_ws(s, (size_t)vfm_numel(&a->lse) * sizeof(float), err);

	if (!delta)
		return VFM_EENV;
	if (a->dk.dtype != a->dv.dtype)
		return vfm_fail(err, VFM_EUSAGE, "attn_bwd: dk and dv are of different types");
	if (a->q.shape[2] <= 64)
		VFM_ACT_TYPE(a->q.dtype, T, (launch_backward<T, 64, 64>(s, a, delta)));
	else
		VFM_ACT_TYPE(a->q.dtype, T, (launch_backward<T, 128, 32>(s, a, delta)));
	return vfm_cuda_launched(s, "attn_bwd", err);
}
