/* optim.cu - ops of the optimizer: sum of squares of the gradient, clipping, split master weights, AdamW. */
#include "device/cuda/kern/kern.h"

/* ---- sum of squares ----------------------------------------------------------------------- */

enum {
	SQ_THREADS = 256,
	SQ_VEC = 8,
	SQ_UNROLL = 2,
	SQ_BLOCKS = 1056
}; /* eight blocks on each of 132 multiprocessors, on any device, so that sums have one order */

/* Squares of a vector in f32, in pairs, then f64: an error of a few 2^-24 of the sum at any length. */
template <int N> __device__ static inline float squares(const vec<N> &x)
{
	float s[N];

#pragma unroll
	for (int i = 0; i < N; i++)
		s[i] = x.v[i] * x.v[i];
#pragma unroll
	for (int d = N / 2; d > 0; d /= 2)
#pragma unroll
		for (int i = 0; i < d; i++)
			s[i] += s[i + d];
	return s[0];
}

/* part[block] = the sum over its vectors; block 0 adds the elements after the last whole vector. */
template <int N, class T>
__global__ __launch_bounds__(SQ_THREADS) static void sumsq_part(const T *x, int64_t n, double *part)
{
	int64_t nv = n / N, step = (int64_t)gridDim.x * SQ_THREADS, i = (int64_t)blockIdx.x * SQ_THREADS + threadIdx.x;
	double sum = 0;

	for (; i + (SQ_UNROLL - 1) * step < nv; i += SQ_UNROLL * step) {
		vec<N> v[SQ_UNROLL];

#pragma unroll
		for (int k = 0; k < SQ_UNROLL; k++)
			v[k] = ld_vec<N>(x + (i + k * step) * N);
#pragma unroll
		for (int k = 0; k < SQ_UNROLL; k++)
			sum += (double)squares(v[k]);
	}
	for (; i < nv; i += step)
		sum += (double)squares(ld_vec<N>(x + i * N));
	if (blockIdx.x == 0 && threadIdx.x < n - nv * N) {
		float v = ld(x + nv * N + threadIdx.x);

		sum += (double)(v * v);
	}
	sum = block_sum<SQ_THREADS / 32>(sum);
	if (threadIdx.x == 0)
		part[blockIdx.x] = sum;
}

__global__ static void sumsq_add(const double *part, int parts, double *sum)
{
	double s = 0;

	for (int i = threadIdx.x; i < parts; i += SQ_THREADS)
		s += part[i];
	s = block_sum<SQ_THREADS / 32>(s);
	if (threadIdx.x == 0)
		*sum += s;
}

extern "C" int vfm_cuda_sumsq(struct vfm_stream *s, const struct vfm_sumsq *a, struct vfm_err *err)
{
	int64_t n = a->x.shape[0], blocks = ceil_div(n, (int64_t)SQ_THREADS * SQ_VEC * SQ_UNROLL);
	double *part;

	if (n == 0)
		return 0;
	if (blocks > SQ_BLOCKS)
		blocks = SQ_BLOCKS;
	part = (double *)vfm_cuda_ws(s, (size_t)blocks * sizeof(*part), err);
	if (!part)
		return VFM_EENV;
	VFM_WIDTH((uintptr_t)a->x.data % 16 == 0, SQ_VEC, N,
		VFM_ACT_TYPE(a->x.dtype, T,
			VFM_LAUNCH(s, (sumsq_part<N, T>), blocks, SQ_THREADS, 0, (const T *)a->x.data, n, part)));
	VFM_LAUNCH(s, (sumsq_add), 1, SQ_THREADS, 0, part, (int)blocks, (double *)a->sum.data);
	return vfm_cuda_launched(s, "sumsq", err);
}

/* ---- clipping --------------------------------------------------------------------------------- */

/* loss may be NULL */
__global__ static void clip(const double *sum, const double *loss, float max_norm, float *norm, float *scale)
{
	double r = sqrt(*sum);

	*norm = (float)r;
	if (!isfinite((float)r) || (loss && !isfinite(*loss)))
		*scale = NAN;
	else
		*scale = max_norm > 0 && r > (double)max_norm ? (float)((double)max_norm / r) : 1.0f;
}

extern "C" int vfm_cuda_clip(struct vfm_stream *s, const struct vfm_clip *a, struct vfm_err *err)
{
	VFM_LAUNCH(s, (clip), 1, 1, 0, (const double *)a->sum.data, data_of<const double>(a->loss), a->max_norm,
		(float *)a->norm.data, (float *)a->scale.data);
	return vfm_cuda_launched(s, "clip", err);
}

/* ---- split master weights (vfm_master_split and vfm_master_join of spec/model/dtype.h) ----------- */

template <int N> __device__ static inline vec<N> join_master(const uint16_t *hi, const int16_t *lo)
{
	raw_vec<uint16_t, N> h = *reinterpret_cast<const raw_vec<uint16_t, N> *>(hi);
	raw_vec<int16_t, N> l = *reinterpret_cast<const raw_vec<int16_t, N> *>(lo);
	vec<N> x;

#pragma unroll
	for (int k = 0; k < N; k++)
		x.v[k] = __uint_as_float(((uint32_t)h.e[k] << 16) + (uint32_t)(int32_t)l.e[k]);
	return x;
}
template <int N> __device__ static inline void split_master(uint16_t *hi, int16_t *lo, const vec<N> &x)
{
	raw_vec<uint16_t, N> h, l;

#pragma unroll
	for (int k = 0; k < N; k++) {
		uint32_t u = __float_as_uint(x.v[k]);

		if ((u & 0x7fffffffu) > 0x7f800000u)
			u = (u & 0xffff0000u) | 0x400000u;
		h.e[k] = (uint16_t)((u + 0x8000u) >> 16);
		l.e[k] = (uint16_t)u;
	}
	*reinterpret_cast<raw_vec<uint16_t, N> *>(hi) = h;
	*reinterpret_cast<raw_vec<uint16_t, N> *>(lo) = l;
}

template <int N> __device__ static inline void move_master(float *x, uint16_t *hi, int16_t *lo, bool join)
{
	if (join)
		st_vec<N>(x, join_master<N>(hi, lo));
	else
		split_master(hi, lo, ld_vec<N>(x));
}

/* Splits or joins N neighbours at a time, and the elements after the last vector one by one. */
template <int N>
__global__ static void __launch_bounds__(256) move_masters(float *x, uint16_t *hi, int16_t *lo, int64_t n, bool join)
{
	int64_t t = (int64_t)blockIdx.x * 256 + threadIdx.x, rest = n / N * N + t;

	for (int64_t i = t; i < n / N; i += (int64_t)gridDim.x * 256)
		move_master<N>(x + i * N, hi + i * N, lo + i * N, join);
	if (N > 1 && rest < n)
		move_master<1>(x + rest, hi + rest, lo + rest, join);
}

extern "C" int vfm_cuda_split_master(struct vfm_stream *s, const struct vfm_split_master *a, struct vfm_err *err)
{
	uintptr_t all = (uintptr_t)a->x.data | (uintptr_t)a->hi.data | (uintptr_t)a->lo.data;
	int64_t n = a->x.shape[0];

	if (n)
		VFM_WIDTH(all % 16 == 0, 8, N,
			VFM_LAUNCH(s, (move_masters<N>), grid_of(s, ceil_div(n, 256 * 8), 8), 256, 0,
				(float *)a->x.data, (uint16_t *)a->hi.data, (int16_t *)a->lo.data, n, (bool)a->join));
	return vfm_cuda_launched(s, "split_master", err);
}

/* ---- AdamW -------------------------------------------------------------------------------------- */

struct adam {
	float b1, b2, d1, d2, eps, decay, lr, rc2, keep, take;
	const float *gs;    /* may be NULL */
	float *p, *v, *ema; /* p NULL: split master weights; ema may be NULL */
	void *m;
	const void *g;
	bf16 *w; /* may be NULL */
	int16_t *lo;
};

/* Loads and stores the master weights of N neighbours; w is their bf16 copy. */
template <bool SPLIT, int N> __device__ static inline vec<N> master(const adam &a, int64_t i)
{
	if constexpr (SPLIT)
		return join_master<N>((const uint16_t *)a.w + i, a.lo + i);
	else
		return ld_vec<N>(a.p + i);
}
template <bool SPLIT, int N> __device__ static inline void put_master(const adam &a, int64_t i, const vec<N> &p)
{
	if constexpr (SPLIT) {
		split_master((uint16_t *)a.w + i, a.lo + i, p);
	} else {
		st_vec<N>(a.p + i, p);
		if (a.w)
			st_vec<N>(a.w + i, p);
	}
}

/* Updates N neighbours. */
template <int N, bool SPLIT, class M, class G>
__device__ static inline void adam_step(const adam &a, float gs, int64_t i)
{
	vec<N> g = ld_vec<N>((const G *)a.g + i), m = ld_vec<N>((const M *)a.m + i), v = ld_vec<N>(a.v + i),
	       p = master<SPLIT, N>(a, i), e = {};

	if (a.ema)
		e = ld_vec<N>(a.ema + i);
#pragma unroll
	for (int k = 0; k < N; k++) {
		float x = g.v[k] * gs;

		m.v[k] = fmaf(a.b1, m.v[k], a.d1 * x);
		v.v[k] = fmaf(a.b2, v.v[k], a.d2 * x * x);
		p.v[k] = p.v[k] * a.decay - a.lr * m.v[k] / fmaf(sqrtf(v.v[k]), a.rc2, a.eps);
		e.v[k] = fmaf(a.keep, e.v[k], a.take * p.v[k]);
	}
	st_vec<N>((M *)a.m + i, m);
	st_vec<N>(a.v + i, v);
	put_master<SPLIT, N>(a, i, p);
	if (a.ema)
		st_vec<N>(a.ema + i, e);
}

/* 512 threads have 57 kB of loads in flight, which the bandwidth of one multiprocessor needs. */
enum { ADAM_THREADS = 512 };

/* Processes VEC neighbours at a time, and the elements after the last vector one by one.  Unaligned: all one by one. */
template <int N, bool SPLIT, class M, class G>
__global__ __launch_bounds__(ADAM_THREADS) static void adamw(const adam a, int64_t n)
{
	int64_t t = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x, nv = n / N;
	float gs = a.gs ? *a.gs : 1.0f;

	if (!isfinite(gs))
		return; /* the step is skipped */
	for (int64_t i = t; i < nv; i += step)
		adam_step<N, SPLIT, M, G>(a, gs, i * N);
	if (N > 1 && nv * N + t < n)
		adam_step<1, SPLIT, M, G>(a, gs, nv * N + t);
}

/* On a stream with units, a block a unit, which shares its multiprocessor with no other kernel. */
template <int N, bool SPLIT, class M, class G> static void launch_adamw(struct vfm_stream *s, const adam &a, int64_t n)
{
	int units = vfm_cuda_units(s), smem = units ? vfm_cuda_most_shared(s) : 0;
	int64_t blocks = ceil_div(ceil_div(n, N), ADAM_THREADS);

	blocks = !units ? grid_of(s, blocks, 8) : blocks < units ? blocks : units;
	if (smem)
		VFM_ALLOW_SHARED((adamw<N, SPLIT, M, G>), smem);
	VFM_LAUNCH(s, (adamw<N, SPLIT, M, G>), blocks, ADAM_THREADS, smem, a, n);
}

template <int N, class M, class G> static void choose_master(struct vfm_stream *s, const adam &a, int64_t n)
{
	if (a.p)
		launch_adamw<N, false, M, G>(s, a, n);
	else
		launch_adamw<N, true, M, G>(s, a, n);
}

extern "C" int vfm_cuda_adamw(struct vfm_stream *s, const struct vfm_adamw *o, struct vfm_err *err)
{
	adam a = {o->beta1, o->beta2, 1 - o->beta1, 1 - o->beta2, o->eps, 1 - o->lr * o->wd, o->lr / o->c1,
		1 / sqrtf(o->c2), o->ema_decay, 1 - o->ema_decay, data_of<const float>(o->grad_scale),
		data_of<float>(o->p), (float *)o->v.data, data_of<float>(o->ema), o->m.data, o->g.data,
		data_of<bf16>(o->w), (int16_t *)o->p_lo.data};
	uintptr_t all = (uintptr_t)a.p | (uintptr_t)a.v | (uintptr_t)a.ema | (uintptr_t)a.m | (uintptr_t)a.g |
		(uintptr_t)a.w | (uintptr_t)a.lo;

	if (o->v.shape[0])
		VFM_WIDTH(all % 16 == 0, 8, N,
			VFM_ACT_TYPE(o->m.dtype, M,
				VFM_ACT_TYPE(o->g.dtype, G, (choose_master<N, M, G>(s, a, o->v.shape[0])))));
	return vfm_cuda_launched(s, "adamw", err);
}
