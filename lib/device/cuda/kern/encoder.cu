/* encoder.cu - ops of encoders on frames: norms over channels, upsampling. */
#include "device/cuda/kern/act.h"

enum { THREADS = 256 };

/* ---- norms over channels ---- */

struct channel_args {
	const void *x;
	void *y;
	const float *weight, *bias; /* bias may be NULL */
	int64_t frames, pixels;     /* of a frame */
	int c, groups;
	float eps;
	bool mean_square; /* eps is added to the mean of squares; else it is the least length */
	enum vfm_act act;
	int lanes;      /* RMS: threads that share a pixel */
	unsigned slabs; /* GROUP: blocks of a frame */
	int64_t piece;  /* GROUP: pixels of a piece */
	int pieces;     /* of a frame */
	float2 *part;   /* [frames][pieces][groups]: mean, and sum of (x - mean)^2 */
	float2 *stats;  /* [frames][groups]: mean, and 1 / sqrt(var + eps) */
};

/* Returns act(z) of N channels from c on, z = (x - mean) by weight + bias. */
template <int N>
__device__ static inline vec<N> channel_act(const channel_args &a, vec<N> x, int c, const float *mean, const float *by)
{
	vec<N> w = ld_vec<N>(a.weight + c), b = {};

	if (a.bias)
		b = ld_vec<N>(a.bias + c);
#pragma unroll
	for (int k = 0; k < N; k++)
		x.v[k] = act_of(a.act, (x.v[k] - mean[k]) * by[k] * w.v[k] + b.v[k]);
	return x;
}

/* a.lanes threads a pixel, which read it twice: the second time from a cache. */
template <int N, class X> __global__ static void __launch_bounds__(THREADS) channel_rms(const channel_args a)
{
	int64_t i = (int64_t)blockIdx.x * (THREADS / a.lanes) + (int)threadIdx.x / a.lanes;
	int first = (int)threadIdx.x % a.lanes * N, step = a.lanes * N;
	bool in = i < a.frames * a.pixels;
	const X *x = (const X *)a.x + i * a.c;
	X *y = (X *)a.y + i * a.c;
	float sum = 0, by[N], zero[N] = {};

	for (int c = first; in && c < a.c; c += step) {
		vec<N> v = ld_vec<N>(x + c);

#pragma unroll
		for (int k = 0; k < N; k++)
			sum += v.v[k] * v.v[k];
	}
	sum = lanes_sum(sum, a.lanes);
	sum = sqrtf(a.mean_square ? sum + (float)a.c * a.eps : sum);
#pragma unroll
	for (int k = 0; k < N; k++)
		by[k] = sqrtf((float)a.c) / (!a.mean_square && sum < a.eps ? a.eps : sum); /* NaN propagates */
	for (int c = first; in && c < a.c; c += step)
		st_vec<N>(y + c, channel_act<N>(a, ld_vec<N>(x + c), c, zero, by));
}

/* Element k of `sum` of the thread's channels is the sum of x, or of (x - mean)^2, over its pixels; then part[c] of the
 * block has those of all its threads: [rows][c] in shared memory. */
template <class X>
__device__ static inline void sum_channels(const channel_args &a, const X *x, int64_t n, const float *mean, float *part)
{
	int width = a.c / a.groups;

	for (int c = threadIdx.x; c < a.c; c += blockDim.x) {
		float sum = 0, m = mean ? mean[c / width] : 0;

		for (int64_t i = threadIdx.y; i < n; i += blockDim.y) {
			float v = ld(x + i * a.c + c) - m;

			sum += mean ? v * v : v;
		}
		part[threadIdx.y * a.c + c] = sum;
	}
	__syncthreads();
}

/* Returns the sum of a group over the rows of part. */
__device__ static inline float group_sum(const channel_args &a, const float *part, int g)
{
	int width = a.c / a.groups;
	double sum = 0;

	for (int r = 0; r < (int)blockDim.y; r++)
		for (int c = g * width; c < (g + 1) * width; c++)
			sum += (double)part[r * a.c + c];
	return (float)sum;
}

/* Block (threads along the channels, rows of pixels): the statistics of a piece. */
template <class X> __global__ static void __launch_bounds__(THREADS) channel_pieces(const channel_args a)
{
	VFM_DYN_SHARED(float, part); /* [blockDim.y][c], then the means of the groups */
	float *mean = part + (int)blockDim.y * a.c;
	int64_t t = blockIdx.x / (unsigned)a.pieces, first = blockIdx.x % (unsigned)a.pieces * a.piece;
	int64_t n = a.pixels - first < a.piece ? a.pixels - first : a.piece;
	const X *x = (const X *)a.x + (t * a.pixels + first) * a.c;
	int me = threadIdx.y * blockDim.x + threadIdx.x, all = blockDim.x * blockDim.y;
	float count = (float)n * (float)(a.c / a.groups);

	sum_channels<X>(a, x, n, nullptr, part);
	for (int g = me; g < a.groups; g += all)
		mean[g] = group_sum(a, part, g) / count;
	__syncthreads();
	sum_channels<X>(a, x, n, mean, part);
	for (int g = me; g < a.groups; g += all)
		a.part[(int64_t)blockIdx.x * a.groups + g] = make_float2(mean[g], group_sum(a, part, g));
}

/* A thread for each group of each frame merges the statistics of the pieces, in their order (Chan, Golub & LeVeque,
 * 1983). */
__global__ static void __launch_bounds__(THREADS) channel_merge(const channel_args a)
{
	int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, t = i / a.groups, g = i % a.groups;
	double n = 0, mean = 0, squares = 0;

	if (i >= a.frames * a.groups)
		return;
	for (int k = 0; k < a.pieces; k++) {
		float2 p = a.part[(t * a.pieces + k) * a.groups + g];
		int64_t rest = a.pixels - k * a.piece;
		double m = (double)(rest < a.piece ? rest : a.piece) * (a.c / a.groups), part = m / (n + m);
		double delta = (double)p.x - mean;

		mean += delta * part;
		squares += (double)p.y + delta * delta * n * part;
		n += m;
	}
	a.stats[i] = make_float2((float)mean, (float)(1 / sqrt(squares / n + (double)a.eps)));
}

/* Block: a slab of a frame, of a.slabs; a thread has N channels of a pixel. */
template <int N, class X> __global__ static void __launch_bounds__(THREADS) channel_group(const channel_args a)
{
	unsigned t = blockIdx.x / a.slabs, i = blockIdx.x % a.slabs * THREADS + threadIdx.x, units = a.c / N;
	int c = (int)(i % units) * N, width = a.c / a.groups, g = c / width, in_group = c % width;
	const float2 *stats = a.stats + (int64_t)t * a.groups;
	int64_t at = (int64_t)t * a.pixels * a.c + (int64_t)i * N;
	float mean[N], by[N];

	if (i / units >= a.pixels)
		return;
#pragma unroll
	for (int k = 0; k < N; k++) {
		float2 s = stats[g];

		mean[k] = s.x, by[k] = s.y;
		if (++in_group == width && k + 1 < N)
			in_group = 0, g++;
	}
	st_vec<N>((X *)a.y + at, channel_act<N>(a, ld_vec<N>((const X *)a.x + at), c, mean, by));
}

template <int N, class X> static void launch_rms(struct vfm_stream *s, channel_args a)
{
	a.lanes = lanes_for(ceil_div(a.c, N), 32);
	VFM_LAUNCH(s, (channel_rms<N, X>), ceil_div(a.frames * a.pixels, THREADS / a.lanes), THREADS, 0, a);
}

template <int N, class X> static void launch_group(struct vfm_stream *s, channel_args a, dim3 block, int64_t smem)
{
	VFM_ALLOW_SHARED((channel_pieces<X>), smem);
	VFM_LAUNCH(s, (channel_pieces<X>), a.frames * a.pieces, block, smem, a);
	VFM_LAUNCH(s, (channel_merge), ceil_div(a.frames * a.groups, THREADS), THREADS, 0, a);
	a.slabs = (unsigned)ceil_div(a.pixels * (a.c / N), THREADS);
	VFM_LAUNCH(s, (channel_group<N, X>), a.frames * a.slabs, THREADS, 0, a);
}

static int group_norm(
	struct vfm_stream *s, const struct vfm_channel_norm *o, channel_args a, bool wide, struct vfm_err *err)
{
	int across = a.c < THREADS ? in_warps(a.c) : THREADS, rows = THREADS / across;
	int64_t smem = ((int64_t)rows * a.c + a.groups) * (int64_t)sizeof(float);

	if (smem > vfm_cuda_most_shared(s))
		return vfm_fail(
			err, VFM_EUSAGE, "channel_norm: a group norm of %d channels exceeds shared memory", a.c);
	if (a.pixels * a.c > UINT32_MAX - THREADS)
		return vfm_fail(err, VFM_EUSAGE, "channel_norm: a frame of %lld pixels and %d channels is too large",
			(long long)a.pixels, a.c);
	a.piece = 64 * rows;
	a.pieces = (int)ceil_div(a.pixels, a.piece);
	a.part = (float2 *)vfm_cuda_ws(s, (size_t)(a.frames * (a.pieces + 1) * a.groups) * sizeof(*a.part), err);
	if (!a.part)
		return VFM_EENV;
	a.stats = a.part + a.frames * a.pieces * a.groups;
	VFM_WIDTH(wide, 8, N, VFM_ACT_TYPE(o->x.dtype, X, (launch_group<N, X>(s, a, dim3(across, rows), smem))));
	return vfm_cuda_launched(s, "channel_norm", err);
}

extern "C" int vfm_cuda_channel_norm(struct vfm_stream *s, const struct vfm_channel_norm *o, struct vfm_err *err)
{
	channel_args a = {o->x.data, o->y.data, (const float *)o->weight.data, data_of<const float>(o->bias),
		o->x.shape[0], o->x.shape[1], (int)o->x.shape[2], o->groups, o->eps,
		o->kind == VFM_CHANNEL_NORM_MEAN_SQUARE, o->act, 1, 1, 1, 1, nullptr, nullptr};
	bool wide = vec_ok(8, &o->x, &o->y, &o->weight, &o->bias);

	if (a.frames * a.pixels == 0)
		return 0;
	if (o->kind == VFM_CHANNEL_NORM_GROUP)
		return group_norm(s, o, a, wide, err);
	VFM_WIDTH(wide, 8, N, VFM_ACT_TYPE(o->x.dtype, X, (launch_rms<N, X>(s, a))));
	return vfm_cuda_launched(s, "channel_norm", err);
}

/* ---- upsampling ---- */

/* x and y as units of bytes: T is uint4, float or bf16; c units a pixel.  Block: a slab of a row of x, of `slabs`. */
template <class T>
__global__ static void __launch_bounds__(THREADS) upsample(const T *x, T *y, unsigned slabs, unsigned w, unsigned c)
{
	unsigned k = blockIdx.x % slabs * THREADS + threadIdx.x;
	int64_t r = blockIdx.x / slabs, row = (int64_t)w * c;
	T *to = y + 4 * r * row + k + k / c * c;
	T v;

	if (k >= w * c)
		return;
	v = x[r * row + k];
	to[0] = v;
	to[c] = v;
	to[2 * row] = v;
	to[2 * row + c] = v;
}

template <class T> static int launch_upsample(struct vfm_stream *s, const struct vfm_upsample *a, struct vfm_err *err)
{
	int64_t rows = a->x.shape[0] * a->x.shape[1], w = a->x.shape[2];
	int64_t row = (int64_t)(vfm_nbytes(&a->x) / sizeof(T)) / rows, slabs = ceil_div(row, THREADS);

	if (row > UINT32_MAX - THREADS)
		return vfm_fail(err, VFM_EUSAGE, "upsample: rows of %lld pixels are too large", (long long)w);
	VFM_LAUNCH(s, (upsample<T>), rows * slabs, THREADS, 0, (const T *)a->x.data, (T *)a->y.data, (unsigned)slabs,
		(unsigned)w, (unsigned)(row / w));
	return vfm_cuda_launched(s, "upsample", err);
}

extern "C" int vfm_cuda_upsample(struct vfm_stream *s, const struct vfm_upsample *a, struct vfm_err *err)
{
	if (vfm_numel(&a->x) == 0)
		return 0;
	if (vec_ok(8, &a->x, &a->y))
		return launch_upsample<uint4>(s, a, err);
	VFM_ACT_TYPE(a->x.dtype, T, return launch_upsample<T>(s, a, err));
}
