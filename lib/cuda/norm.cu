/* norm.cu - layer norm and RMS norm, with modulation or weights.
 *
 * Forward: one or more warps keep a row in registers between its statistics and its output.  Backward: a block
 * processes a tile of tokens (colsum.h) row by row and keeps the sums of its columns.  Rows that are not made of
 * 16-byte vectors, or are too long, use plain loops.
 */
#include "cuda/colsum.h"

struct norm_args {
	const void *x;
	void *y;
	const void *mul, *add; /* rows for each sample, or NULL */
	int64_t mul_stride, add_stride;
	float one;          /* 1 where mul is a scale */
	float *mean, *rstd; /* or NULL */
	struct samples q;
	float eps;
	int d;
	bool layer, x_bf, y_bf, mul_bf, add_bf;
};

/* Reduces over the warps of a row; `part` has an element for each warp of the block and is used once between two
 * barriers. */
__device__ static inline float row_sum(float x, float *part)
{
	int warps = blockDim.x / 32, first = threadIdx.y * warps;
	float sum = 0;

	x = warp_sum(x);
	if (warps == 1)
		return x;
	if (threadIdx.x % 32 == 0)
		part[first + threadIdx.x / 32] = x;
	__syncthreads();
	for (int i = 0; i < warps; i++)
		sum += part[first + i];
	return sum;
}

/* ---- forward ---- */

/* Block (threads of a row, rows); several rows only if a warp has one row. */
template <class X, class M, int V> __global__ static void __launch_bounds__(512) norm_vec(const struct norm_args p)
{
	__shared__ float part[2][16];
	int64_t t = (int64_t)blockIdx.x * blockDim.y + threadIdx.y, row = t * p.d;
	packed<X, 8> in[V];
	float sum = 0, mean = 0, rstd;
	int s;

	if (t >= p.q.total)
		return;
#pragma unroll
	for (int v = 0; v < V; v++) {
		int c = (v * blockDim.x + threadIdx.x) * 8;

		in[v] = c < p.d ? ld_packed<8>((const X *)p.x + row + c) : packed_zero<X, 8>();
	}
	s = p.mul ? sample_at(p.q, t) : 0;
	if (p.layer) {
#pragma unroll
		for (int v = 0; v < V; v++) {
			vec<8> x = widen(in[v]);

#pragma unroll
			for (int k = 0; k < 8; k++)
				sum += x.v[k];
		}
		mean = row_sum(sum, part[0]) / (float)p.d;
	}
	sum = 0;
#pragma unroll
	for (int v = 0; v < V; v++) {
		vec<8> x = widen(in[v]);

		if ((int)(v * blockDim.x + threadIdx.x) * 8 < p.d)
#pragma unroll
			for (int k = 0; k < 8; k++)
				sum += (x.v[k] - mean) * (x.v[k] - mean);
	}
	rstd = 1.0f / sqrtf(row_sum(sum, part[1]) / (float)p.d + p.eps);
#pragma unroll
	for (int v = 0; v < V; v++) {
		int c = (v * blockDim.x + threadIdx.x) * 8;
		vec<8> x = widen(in[v]), m, b;

		if (c >= p.d)
			continue;
		if (p.mul)
			m = ld_vec<8>((const M *)p.mul + s * p.mul_stride + c);
		if (p.add)
			b = ld_vec<8>((const M *)p.add + s * p.add_stride + c);
#pragma unroll
		for (int k = 0; k < 8; k++)
			x.v[k] = (x.v[k] - mean) * rstd;
#pragma unroll
		for (int k = 0; k < 8 && p.mul; k++)
			x.v[k] = x.v[k] * (m.v[k] + p.one) + (p.add ? b.v[k] : 0.0f);
		st_any<8>(p.y, p.y_bf, row + c, x);
	}
	if (threadIdx.x == 0) {
		if (p.mean)
			p.mean[t] = mean;
		if (p.rstd)
			p.rstd[t] = rstd;
	}
}

/* Any row. */
__global__ static void __launch_bounds__(256) norm_any(const struct norm_args p)
{
	__shared__ float part[2][16];
	int64_t t = (int64_t)blockIdx.x * blockDim.y + threadIdx.y, row = t * p.d;
	float sum = 0, mean = 0, rstd;
	int s;

	if (t >= p.q.total)
		return;
	s = p.mul ? sample_at(p.q, t) : 0;
	for (int c = threadIdx.x; c < p.d && p.layer; c += blockDim.x)
		sum += ld_one(p.x, p.x_bf, row + c);
	if (p.layer)
		mean = row_sum(sum, part[0]) / (float)p.d;
	sum = 0;
	for (int c = threadIdx.x; c < p.d; c += blockDim.x) {
		float x = ld_one(p.x, p.x_bf, row + c) - mean;

		sum += x * x;
	}
	rstd = 1.0f / sqrtf(row_sum(sum, part[1]) / (float)p.d + p.eps);
	for (int c = threadIdx.x; c < p.d; c += blockDim.x) {
		float y = (ld_one(p.x, p.x_bf, row + c) - mean) * rstd;

		if (p.mul)
			y *= ld_one(p.mul, p.mul_bf, s * p.mul_stride + c) + p.one;
		if (p.add)
			y += ld_one(p.add, p.add_bf, s * p.add_stride + c);
		st_one(p.y, p.y_bf, row + c, y);
	}
	if (threadIdx.x == 0) {
		if (p.mean)
			p.mean[t] = mean;
		if (p.rstd)
			p.rstd[t] = rstd;
	}
}

/* Returns the threads of a row of n vectors with V vectors each: few idle ones, then few threads. */
static int row_threads(int64_t n, int *v)
{
	int best = in_warps(ceil_div(n, 2));

	*v = 2;
	for (int k = 3; k <= 4; k++)
		if (n > 64 && in_warps(ceil_div(n, k)) * k <= best * *v) {
			best = in_warps(ceil_div(n, k));
			*v = k;
		}
	return best;
}

template <class X, class M> static void launch_norm(struct vfm_stream *s, const struct norm_args &p)
{
	int v, threads = row_threads(p.d / 8, &v), rows = threads == 32 ? 4 : 1;
	int64_t grid = ceil_div(p.q.total, rows);
	dim3 block(threads, rows);

	if (v == 2)
		VFM_LAUNCH(s, (norm_vec<X, M, 2>), grid, block, 0, p);
	else if (v == 3)
		VFM_LAUNCH(s, (norm_vec<X, M, 3>), grid, block, 0, p);
	else
		VFM_LAUNCH(s, (norm_vec<X, M, 4>), grid, block, 0, p);
}

/* Whether an operand is absent or made of 16-byte vectors. */
static bool norm_vectorized(const struct vfm_tensor *t)
{
	return !vfm_has(t) || vec_ok(t, 8);
}

extern "C" int vfm_cuda_norm(struct vfm_stream *s, const struct vfm_norm *a, struct vfm_err *err)
{
	bool mod = vfm_has(&a->scale);
	const struct vfm_tensor *mul = mod ? &a->scale : &a->weight, *add = mod ? &a->shift : &a->bias;
	struct norm_args p = {a->x.data, a->y.data, mul->data, add->data, mod ? mul->stride[0] : 0,
		mod ? add->stride[0] : 0, mod ? 1.0f : 0.0f, (float *)a->mean.data, (float *)a->rstd.data,
		tile_samples(mod ? a->seqs : nullptr, a->x.shape[0], 1), a->eps, (int)a->x.shape[1],
		a->kind == VFM_NORM_LAYER, is_bf(&a->x), is_bf(&a->y), is_bf(mul), is_bf(add)};
	int any = p.d <= 512 ? 32 : 256;

	p.mul = vfm_has(mul) ? mul->data : nullptr, p.add = vfm_has(add) ? add->data : nullptr;
	p.mean = vfm_has(&a->mean) ? p.mean : nullptr, p.rstd = vfm_has(&a->rstd) ? p.rstd : nullptr;
	if (!p.q.total)
		return 0;
	if (norm_vectorized(&a->x) && norm_vectorized(&a->y) && norm_vectorized(mul) && norm_vectorized(add) &&
		(!p.add || p.mul_bf == p.add_bf) && p.d <= 512 * 4 * 8)
		VFM_ACT_TYPE(a->x.dtype, X, VFM_ACT_TYPE(p.mul ? mul->dtype : VFM_F32, M, (launch_norm<X, M>(s, p))));
	else
		VFM_LAUNCH(s, (norm_any), ceil_div(p.q.total, 128 / any > 1 ? 128 / any : 1),
			dim3(any, 128 / any > 1 ? 128 / any : 1), 0, p);
	return vfm_cuda_launched(s, "norm", err);
}

/* ---- backward ---- */

struct bwd_args {
	const void *x, *dy;
	void *dx;
	const void *mul; /* rows for each sample, or NULL */
	int64_t mul_stride;
	float one;
	const float *mean, *rstd;
	float *part; /* [part_rows, 2 d]: of dy xhat, and of dy; or NULL */
	struct samples q;
	int d;
	bool layer, acc, x_bf, dy_bf, dx_bf, mul_bf;
};

/* The part of a row that a thread has. */
template <class X, class DY, int V> struct bwd_row {
	packed<X, 8> x[V];
	packed<DY, 8> dy[V];
	float mean, rstd;
};

/* No row: zeros, which do not change sums. */
template <class X, class DY, int V>
__device__ static inline void bwd_load(const struct bwd_args &p, int t, bool there, struct bwd_row<X, DY, V> *r)
{
	unsigned at = (unsigned)t * p.d; /* launch_bwd ensures that 32 bits suffice */

	r->mean = there && p.layer ? p.mean[t] : 0.0f;
	r->rstd = there ? p.rstd[t] : 0.0f;
#pragma unroll
	for (int v = 0; v < V; v++) {
		int c = (v * blockDim.x + threadIdx.x) * 8;
		bool in = there && c < p.d;

		r->x[v] = in ? ld_packed<8>((const X *)p.x + (at + c)) : packed_zero<X, 8>();
		r->dy[v] = in ? ld_packed<8>((const DY *)p.dy + (at + c)) : packed_zero<DY, 8>();
	}
}

/* Sums both over the warps of a row; `part` alternates between two buffers. */
__device__ static inline float2 row_sums(float a, float b, float2 *part)
{
	int warps = blockDim.x / 32, first = threadIdx.y * warps;
	float2 sum = make_float2(0, 0);

	a = warp_sum(a), b = warp_sum(b);
	if (warps == 1)
		return make_float2(a, b);
	if (threadIdx.x % 32 == 0)
		part[first + threadIdx.x / 32] = make_float2(a, b);
	__syncthreads();
	for (int i = 0; i < warps; i++)
		sum.x += part[first + i].x, sum.y += part[first + i].y;
	return sum;
}

/* The factors of a row are in shared memory, two parts of 16 bytes for each vector, to save registers. */
__device__ static inline vec<8> bwd_mul(const float *mul, int v)
{
	vec<4> lo = ld_vec<4>(mul + ((2 * v) * blockDim.x + threadIdx.x) * 4),
	       hi = ld_vec<4>(mul + ((2 * v + 1) * blockDim.x + threadIdx.x) * 4);
	vec<8> m;

#pragma unroll
	for (int k = 0; k < 4; k++)
		m.v[k] = lo.v[k], m.v[k + 4] = hi.v[k];
	return m;
}

template <int V> __device__ static inline void bwd_factors(const struct bwd_args &p, int s, float *mul)
{
	__syncthreads();
#pragma unroll
	for (int v = 0; v < V && threadIdx.y == 0; v++) {
		int c = (v * blockDim.x + threadIdx.x) * 8;
		vec<8> m = {};
		vec<4> half;

		if (p.mul && c < p.d)
			m = ld_any<8>(p.mul, p.mul_bf, s * p.mul_stride + c);
#pragma unroll
		for (int k = 0; k < 8; k++) {
			half.v[k % 4] = p.mul ? m.v[k] + p.one : 1.0f;
			if (k % 4 == 3)
				st_vec<4>(mul + ((2 * v + k / 4) * blockDim.x + threadIdx.x) * 4, half);
		}
	}
	__syncthreads();
}

template <class X, class DY, int V>
__device__ static inline void bwd_store(const struct bwd_args &p, int t, const struct bwd_row<X, DY, V> &r,
	const packed<X, 8> *kept, const float *mul, float c1, float c2)
{
	unsigned at = (unsigned)t * p.d;

#pragma unroll
	for (int v = 0; v < V; v++) {
		int c = (v * blockDim.x + threadIdx.x) * 8;
		vec<8> x = widen(r.x[v]), dy = widen(r.dy[v]), old = widen(kept[v]), m = bwd_mul(mul, v);

		if (c >= p.d)
			continue;
#pragma unroll
		for (int k = 0; k < 8; k++)
			x.v[k] = r.rstd * (dy.v[k] * m.v[k] - c1 - (x.v[k] - r.mean) * r.rstd * c2) + old.v[k];
		st_any<8>(p.dx, p.dx_bf, at + c, x);
	}
}

/* Writes the column sums of the rows of the block to one row of part, in the order of threadIdx.y. */
template <int V>
__device__ static inline void bwd_flush(
	const struct bwd_args &p, int64_t at, float (*sx)[8], float (*sy)[8], float *sums)
{
	float *to = p.part + at * 2 * p.d;

	for (unsigned g = 0; g < blockDim.y; g++) {
		bool last = g + 1 == blockDim.y;

#pragma unroll
		for (int v = 0; v < V && g == threadIdx.y; v++) {
			int i = v * blockDim.x + threadIdx.x;
			vec<8> a, b;

#pragma unroll
			for (int k = 0; k < 8; k++) {
				float *s = sums + (v * 16 + k) * blockDim.x + threadIdx.x, *s8 = s + 8 * blockDim.x;

				a.v[k] = sx[v][k] + (g ? *s : 0.0f);
				b.v[k] = sy[v][k] + (g ? *s8 : 0.0f);
				if (!last)
					*s = a.v[k], *s8 = b.v[k];
			}
			if (last && i * 8 < p.d) {
				st_vec<8>(to + i * 8, a);
				st_vec<8>(to + p.d + i * 8, b);
			}
		}
		if (blockDim.y > 1)
			__syncthreads();
	}
}

/* Limits of the threads of a block.  For short rows two such blocks fit a multiprocessor, so that one computes while
 * the other waits for its row. */
template <class X, class DY, int V> struct bwd_threads {
	enum { most = V == 1 ? 512 : 384, blocks = V == 1 && sizeof(X) + sizeof(DY) < 8 ? 2 : 1 };
};

/* Block (threads of a row, rows); one tile for each block. */
template <class X, class DY, int V>
__global__ static void __launch_bounds__(bwd_threads<X, DY, V>::most, bwd_threads<X, DY, V>::blocks)
	norm_bwd_vec(const struct bwd_args p)
{
	VFM_DYN_SHARED(float, mul);
	__shared__ float2 part[2][16];
	int tile = (int)blockIdx.x, t = tile * p.q.per, end = min(t + p.q.per, (int)p.q.total), turn = 0;

	while (t < end) {
		int s = sample_at(p.q, t), to = min(end, (int)sample_end(p.q, s));
		float sx[V][8] = {}, sy[V][8] = {};

		bwd_factors<V>(p, s, mul);
		for (; t < to; t += blockDim.y, turn ^= 1) {
			struct bwd_row<X, DY, V> row;
			packed<X, 8> old[V]; /* accumulates dx, which then has the dtype of x */
			float s1 = 0, s2 = 0;
			float2 sum;

			bwd_load<X, DY, V>(p, t + threadIdx.y, t + (int)threadIdx.y < to, &row);
#pragma unroll
			for (int v = 0; v < V; v++) {
				vec<8> x = widen(row.x[v]), dy = widen(row.dy[v]), m = bwd_mul(mul, v);

#pragma unroll
				for (int k = 0; k < 8; k++) {
					float xh = (x.v[k] - row.mean) * row.rstd, g = dy.v[k] * m.v[k];

					s1 += g;
					s2 += g * xh;
					sx[v][k] += dy.v[k] * xh;
					sy[v][k] += dy.v[k];
				}
			}
#pragma unroll
			for (int v = 0; v < V; v++) { /* in flight during the reduction of the others */
				int c = (v * blockDim.x + threadIdx.x) * 8;

				fresh(row.x[v]), fresh(row.dy[v]);
				old[v] = p.acc && t + (int)threadIdx.y < to && c < p.d
					? ld_packed<8>((const X *)p.dx + ((unsigned)(t + threadIdx.y) * p.d + c))
					: packed_zero<X, 8>();
			}
			sum = row_sums(s1, s2, part[turn]);
			if (t + (int)threadIdx.y < to)
				bwd_store<X, DY, V>(p, t + threadIdx.y, row, old, mul,
					p.layer ? sum.x / (float)p.d : 0.0f, sum.y / (float)p.d);
		}
		t = to;
		if (p.part)
			bwd_flush<V>(p, tile + s, sx, sy, mul + 8 * V * blockDim.x);
	}
}

/* Rows of any length: dx. */
__global__ static void __launch_bounds__(256) norm_bwd_any(const struct bwd_args p)
{
	__shared__ float2 part[16];
	int64_t t = (int64_t)blockIdx.x * blockDim.y + threadIdx.y, row = t * p.d, m;
	float mean, rstd, s1 = 0, s2 = 0;
	float2 sum;

	if (t >= p.q.total)
		return;
	mean = p.layer ? p.mean[t] : 0.0f, rstd = p.rstd[t];
	m = p.mul ? sample_at(p.q, t) * p.mul_stride : 0;
	for (int c = threadIdx.x; c < p.d; c += blockDim.x) {
		float g = ld_one(p.dy, p.dy_bf, row + c) * (p.mul ? ld_one(p.mul, p.mul_bf, m + c) + p.one : 1.0f);

		s1 += g;
		s2 += g * (ld_one(p.x, p.x_bf, row + c) - mean) * rstd;
	}
	sum = row_sums(s1, s2, part);
	sum.x = p.layer ? sum.x / (float)p.d : 0.0f, sum.y /= (float)p.d;
	for (int c = threadIdx.x; c < p.d; c += blockDim.x) {
		float g = ld_one(p.dy, p.dy_bf, row + c) * (p.mul ? ld_one(p.mul, p.mul_bf, m + c) + p.one : 1.0f);
		float x = (ld_one(p.x, p.x_bf, row + c) - mean) * rstd,
		      old = p.acc ? ld_one(p.dx, p.dx_bf, row + c) : 0.0f;

		st_one(p.dx, p.dx_bf, row + c, rstd * (g - sum.x - x * sum.y) + old);
	}
}

/* Rows of any length: the sums of the column of a thread.  Grid: tiles x column blocks. */
__global__ static void __launch_bounds__(128) norm_bwd_cols(const struct bwd_args p)
{
	int64_t blocks = (p.d + 127) / 128, tile = blockIdx.x / blocks, c = blockIdx.x % blocks * 128 + threadIdx.x;
	int64_t t = tile * p.q.per, end = min(t + (int64_t)p.q.per, p.q.total);

	while (t < end && c < p.d) {
		int s = sample_at(p.q, t);
		int64_t to = min(end, sample_end(p.q, s));
		float sx = 0, sy = 0, *out = p.part + (tile + s) * 2 * p.d + c;

		for (; t < to; t++) {
			float dy = ld_one(p.dy, p.dy_bf, t * p.d + c);

			sx += dy * (ld_one(p.x, p.x_bf, t * p.d + c) - (p.layer ? p.mean[t] : 0.0f)) * p.rstd[t];
			sy += dy;
		}
		out[0] = sx;
		out[p.d] = sy;
	}
}

template <class X, class DY, int V> static void launch_bwd(struct vfm_stream *s, const struct bwd_args &p)
{
	int threads = in_warps(ceil_div(p.d, 8 * V)), rows = bwd_threads<X, DY, V>::most / threads;
	dim3 block(threads, rows > 4 ? 4 : rows);
	/* factors; sums of the rows of the block */
	size_t smem = (size_t)threads * V * (block.y > 1 && p.part ? 24 : 8) * sizeof(float);

	VFM_LAUNCH(s, (norm_bwd_vec<X, DY, V>), count_token_tiles(p.q), block, smem, p);
}

/* Returns false if the rows are too long, or if dx has another dtype than x and accumulates. */
template <class X, class DY> static bool launch_bwd(struct vfm_stream *s, const struct bwd_args &p)
{
	if ((p.acc && p.dx_bf != p.x_bf) || p.q.total * p.d > UINT32_MAX)
		return false;
	if (p.d <= bwd_threads<X, DY, 1>::most * 8)
		launch_bwd<X, DY, 1>(s, p);
	else if (p.d <= bwd_threads<X, DY, 2>::most * 16)
		launch_bwd<X, DY, 2>(s, p);
	else
		return false;
	return true;
}

extern "C" int vfm_cuda_norm_bwd(struct vfm_stream *s, const struct vfm_norm_bwd *a, struct vfm_err *err)
{
	bool mod = vfm_has(&a->scale);
	const struct vfm_tensor *mul = mod ? &a->scale : &a->weight,
				*out[2] = {mod ? &a->dscale : &a->dweight, mod ? &a->dshift : &a->dbias};
	struct bwd_args p = {a->x.data, a->dy.data, a->dx.data, vfm_has(mul) ? mul->data : nullptr,
		mod ? mul->stride[0] : 0, mod ? 1.0f : 0.0f, (const float *)a->mean.data, (const float *)a->rstd.data,
		nullptr, tile_samples(mod ? a->seqs : nullptr, a->x.shape[0], 1), (int)a->x.shape[1],
		a->kind == VFM_NORM_LAYER, a->dx_accumulate, is_bf(&a->x), is_bf(&a->dy), is_bf(&a->dx), is_bf(mul)};
	struct fold_args f = {p.q, nullptr, 2 * (int64_t)p.d, p.d, {}, {}, !mod};
	int any = p.d <= 512 ? 32 : 256, rows = any == 32 ? 4 : 1;
	bool done = !p.q.total;

	for (int i = 0; i < 2; i++)
		if (vfm_has(out[i]))
			f.out[i] = (float *)out[i]->data, f.stride[i] = mod ? out[i]->stride[0] : 0;
	if (f.out[0] || f.out[1]) {
		f.part = p.part = (float *)vfm_cuda_ws(s, (size_t)(part_rows(p.q) * f.width) * sizeof(float), err);
		if (!p.part)
			return VFM_EENV;
	}
	if (!done && norm_vectorized(&a->x) && norm_vectorized(&a->dy) && norm_vectorized(&a->dx) &&
		norm_vectorized(mul))
		VFM_ACT_TYPE(a->x.dtype, X, VFM_ACT_TYPE(a->dy.dtype, DY, (done = launch_bwd<X, DY>(s, p))));
	if (!done) {
		VFM_LAUNCH(s, (norm_bwd_any), ceil_div(p.q.total, rows), dim3(any, rows), 0, p);
		if (p.part)
			VFM_LAUNCH(s, (norm_bwd_cols), count_token_tiles(p.q) * ceil_div(p.d, 128), 128, 0, p);
	}
	if (p.part && (p.q.total || mod))
		fold_column_sums(s, f);
	return vfm_cuda_launched(s, "norm_bwd", err);
}
