/* norm.cu - layer norm and RMS norm, with modulation or weights.  Optionally computes the residual sum before the norm,
 * and the largest element and the 8-bit floats of the result.  One or more warps keep a row in registers between its
 * statistics and its output.  Plain loops handle rows that are too long or do not consist of 16-byte vectors.
 */
#include "device/cuda/kern/colsum.h"
#include "device/cuda/kern/f8.h"

struct norm_args {
	const void *x;
	void *y;
	const void *mul, *add; /* rows for each sample, or NULL */
	int64_t mul_stride, add_stride;
	float one;            /* 1 where mul is a scale */
	float *mean, *rstd;   /* or NULL */
	const float *history; /* NULL: y is not quantized */
	float *inv, *amax;    /* amax or NULL */
	int n_history;
	const void *h, *gate; /* the branch; h NULL: none; gate NULL: 1 */
	void *sum;            /* with h */
	int64_t gate_stride;
	struct samples q;
	float eps;
	int d;
	bool layer, x_bf, y_bf, mul_bf, add_bf, h_bf, gate_bf;
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

/* Returns the scale to every lane of a warp, and stores its inverse; 1 without a history. */
__device__ static inline float norm_scale(const struct norm_args &p)
{
	float m = 0;
	int e;

	if (!p.history)
		return 1.0f;
	for (int i = threadIdx.x % 32; i < p.n_history; i += 32)
		m = fmaxf(m, p.history[i]);
	e = f8_exponent<f8e4m3>(warp_max(m));
	if (blockIdx.x == 0 && threadIdx.x == 0 && threadIdx.y == 0)
		*p.inv = __uint_as_float((uint32_t)(127 - e) << 23);
	return __uint_as_float((uint32_t)(127 + e) << 23);
}

__device__ static inline float rounded_bf16(float x)
{
	return __uint_as_float(pack_bf16(x, 0.0f) << 16);
}

/* Raises *amax by a row, or by the warps of one; a block calls it once.  Floats >= 0 have the order of their bits; a
 * maximum does not depend on the order of the blocks. */
__device__ static inline void raise_row_amax(float *amax, float m)
{
	__shared__ float most[16];
	int warps = blockDim.x / 32;

	m = warp_max(m);
	if (warps > 1) {
		if (threadIdx.x % 32 == 0)
			most[threadIdx.x / 32] = m;
		__syncthreads();
		for (int i = 0; i < warps && threadIdx.x == 0; i++)
			m = fmaxf(m, most[i]);
	}
	if (threadIdx.x == 0 && m > *(volatile const float *)amax)
		atomicMax((unsigned *)amax, __float_as_uint(m));
}

/* Stores y, in bf16 or f32, or as 8-bit floats of its bf16.  Returns the larger of m and the largest finite stored |y|.
 */
__device__ static inline float store_y(const struct norm_args &p, int64_t at, vec<8> y, float scale, float m)
{
	if (!p.history && !p.amax) {
		st_any<8>(p.y, p.y_bf, at, y);
		return 0;
	}
#pragma unroll
	for (int k = 0; k < 8; k++) {
		y.v[k] = p.y_bf || p.history ? rounded_bf16(y.v[k]) : y.v[k];
		m = larger_finite(m, y.v[k]);
	}
	if (p.history) {
		uint32_t code[4];

#pragma unroll
		for (int k = 0; k < 4; k++)
			code[k] = f8_fit2<f8e4m3>(y.v[2 * k], y.v[2 * k + 1], scale);
		*reinterpret_cast<uint2 *>((uint8_t *)p.y + at) = {code[0] | code[1] << 16, code[2] | code[3] << 16};
	} else {
		st_any<8>(p.y, p.y_bf, at, y);
	}
	return m;
}

/* The type of a thread's part of a row: that of x, or float for the sum with a branch. */
template <class X, bool H> struct kept {
	using type = X;
};
template <class X> struct kept<X, true> {
	using type = float;
};

/* in = x + gate h, which it also stores.  All loads of x and h precede the first use. */
template <class X, int V>
__device__ static inline void load_sum(const struct norm_args &p, int64_t row, int s, packed<float, 8> *in)
{
	packed<X, 8> x[V];

#pragma unroll
	for (int v = 0; v < V; v++) {
		int c = (v * blockDim.x + threadIdx.x) * 8;

		x[v] = c < p.d ? ld_packed<8>((const X *)p.x + row + c) : packed_zero<X, 8>();
	}
#pragma unroll
	for (int v = 0; v < V; v++) {
		int c = (v * blockDim.x + threadIdx.x) * 8;
		vec<8> h = {}, g = vec_of<8>(1.0f), sum = widen(x[v]);

		if (c < p.d)
			h = ld_any<8>(p.h, p.h_bf, row + c);
		if (p.gate && c < p.d)
			g = ld_any<8>(p.gate, p.gate_bf, s * p.gate_stride + c);
#pragma unroll
		for (int k = 0; k < 8; k++) {
			sum.v[k] += g.v[k] * h.v[k];
			in[v].w[k] = sum.v[k];
		}
		if (c < p.d)
			st_vec<8>((X *)p.sum + row + c, sum);
	}
}
template <class X, int V, class S>
__device__ static inline void load_sum(const struct norm_args &, int64_t, int, packed<S, 8> *)
{
}

/* Block (threads of a row, rows); several rows only if a warp has one row.  H: x is added to a branch. */
template <class X, class M, int V, bool H>
__global__ static void __launch_bounds__(512) norm_vec(const struct norm_args p)
{
	__shared__ float part[2][16];
	int64_t t = (int64_t)blockIdx.x * blockDim.y + threadIdx.y, row = t * p.d;
	packed<typename kept<X, H>::type, 8> in[V];
	float sum = 0, mean = 0, rstd, scale = norm_scale(p), most = 0;
	int s;

	if (t >= p.q.total)
		return;
#pragma unroll
	for (int v = 0; v < V && !H; v++) {
		int c = (v * blockDim.x + threadIdx.x) * 8;

		in[v] = c < p.d ? ld_packed<8>((const typename kept<X, H>::type *)p.x + row + c)
				: packed_zero<typename kept<X, H>::type, 8>();
	}
	s = p.mul || (H && p.gate) ? sample_at(p.q, t) : 0;
	if (H)
		load_sum<X, V>(p, row, s, in);
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
		most = store_y(p, row + c, x, scale, most);
	}
	if (p.amax)
		raise_row_amax(p.amax, most);
	if (threadIdx.x == 0) {
		if (p.mean)
			p.mean[t] = mean;
		if (p.rstd)
			p.rstd[t] = rstd;
	}
}

/* Element c of a row of x, with the branch. */
__device__ static inline float norm_in(const struct norm_args &p, int64_t row, int s, int c)
{
	float x = ld_one(p.x, p.x_bf, row + c);

	if (p.h)
		x += (p.gate ? ld_one(p.gate, p.gate_bf, s * p.gate_stride + c) : 1.0f) * ld_one(p.h, p.h_bf, row + c);
	return x;
}

/* Any row. */
__global__ static void __launch_bounds__(256) norm_any(const struct norm_args p)
{
	__shared__ float part[2][16];
	int64_t t = (int64_t)blockIdx.x * blockDim.y + threadIdx.y, row = t * p.d;
	float sum = 0, mean = 0, rstd, scale = norm_scale(p), most = 0;
	int s;

	if (t >= p.q.total)
		return;
	s = p.mul || p.gate ? sample_at(p.q, t) : 0;
	for (int c = threadIdx.x; c < p.d && p.layer; c += blockDim.x)
		sum += norm_in(p, row, s, c);
	if (p.layer)
		mean = row_sum(sum, part[0]) / (float)p.d;
	sum = 0;
	for (int c = threadIdx.x; c < p.d; c += blockDim.x) {
		float x = norm_in(p, row, s, c) - mean;

		sum += x * x;
	}
	rstd = 1.0f / sqrtf(row_sum(sum, part[1]) / (float)p.d + p.eps);
	for (int c = threadIdx.x; c < p.d; c += blockDim.x) {
		float x = norm_in(p, row, s, c), y = (x - mean) * rstd;

		if (p.sum)
			st_one(p.sum, p.x_bf, row + c, x);
		if (p.mul)
			y *= ld_one(p.mul, p.mul_bf, s * p.mul_stride + c) + p.one;
		if (p.add)
			y += ld_one(p.add, p.add_bf, s * p.add_stride + c);
		if (p.y_bf || p.history)
			y = rounded_bf16(y);
		most = larger_finite(most, y);
		if (p.history)
			((uint8_t *)p.y)[row + c] = f8_code<f8e4m3>(f8_fit<f8e4m3>(y, scale));
		else
			st_one(p.y, p.y_bf, row + c, y);
	}
	if (p.amax)
		raise_row_amax(p.amax, most);
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

template <class X, class M, bool H> static void launch_norm(struct vfm_stream *s, const struct norm_args &p)
{
	int v, threads = row_threads(p.d / 8, &v), rows = threads == 32 ? 4 : 1;
	int64_t grid = p.q.total ? ceil_div(p.q.total, rows) : 1;
	dim3 block(threads, rows);

	if (v == 2)
		VFM_LAUNCH(s, (norm_vec<X, M, 2, H>), grid, block, 0, p);
	else if (v == 3)
		VFM_LAUNCH(s, (norm_vec<X, M, 3, H>), grid, block, 0, p);
	else
		VFM_LAUNCH(s, (norm_vec<X, M, 4, H>), grid, block, 0, p);
}

static struct norm_args norm_args_of(const struct vfm_norm *a)
{
	bool mod = vfm_has(&a->scale);
	const struct vfm_tensor *mul = mod ? &a->scale : &a->weight, *add = mod ? &a->shift : &a->bias;

	return {a->x.data, a->y.data, data_of<const void>(*mul), data_of<const void>(*add), sample_stride(mul),
		sample_stride(add), mod ? 1.0f : 0.0f, data_of<float>(a->mean), data_of<float>(a->rstd),
		data_of<const float>(a->history), data_of<float>(a->inv), data_of<float>(a->amax),
		vfm_has(&a->history) ? (int)a->history.shape[0] : 0, data_of<const void>(a->h),
		data_of<const void>(a->gate), data_of<void>(a->sum), sample_stride(&a->gate),
		tile_samples(mod || vfm_has(&a->gate) ? a->seqs : nullptr, a->x.shape[0], 1), a->eps,
		(int)a->x.shape[1], a->kind == VFM_NORM_LAYER, is_bf(&a->x), is_bf(&a->y), is_bf(mul), is_bf(add),
		is_bf(&a->h), is_bf(&a->gate)};
}

extern "C" int vfm_cuda_norm(struct vfm_stream *s, const struct vfm_norm *a, struct vfm_err *err)
{
	const struct vfm_tensor *mul = vfm_has(&a->scale) ? &a->scale : &a->weight,
				*add = vfm_has(&a->scale) ? &a->shift : &a->bias;
	struct norm_args p = norm_args_of(a);
	int any = p.d <= 512 ? 32 : 256, rows = any == 32 ? 4 : 1;

	if (!p.q.total && !p.history) /* inv depends on the history alone */
		return 0;
	if (vec_ok(8, &a->x, &a->y, mul, add, &a->h, &a->gate, &a->sum) && (!p.add || p.mul_bf == p.add_bf) &&
		p.d <= 512 * 4 * 8)
		VFM_ACT_TYPE(a->x.dtype, X, VFM_ACT_TYPE(p.mul ? mul->dtype : VFM_F32, M, {
			if (p.h)
				launch_norm<X, M, true>(s, p);
			else
				launch_norm<X, M, false>(s, p);
		}));
	else
		VFM_LAUNCH(s, (norm_any), p.q.total ? ceil_div(p.q.total, rows) : 1, dim3(any, rows), 0, p);
	return vfm_cuda_launched(s, "norm", err);
}
