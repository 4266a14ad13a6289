/* random.cu - fill (initial weights) and diffuse (noise and targets): the ops that draw random numbers. */
#include "device/cuda/kern/random.h"

#include "base/philox.h"

/* A thread draws a block of four normals, which are elements 4 b - first to 4 b - first + 3 of x. */
template <class T>
__global__ __launch_bounds__(256) static void fill(
	T *x, int64_t n, const struct vfm_rng rng, int64_t first, float mean, float std, bool wide)
{
	int64_t end = (first + n + 3) / 4;

	for (int64_t b = first / 4 + (int64_t)blockIdx.x * blockDim.x + threadIdx.x; b < end;
		b += (int64_t)gridDim.x * blockDim.x) {
		int64_t i = 4 * b - first;
		vec<4> v = {};

		if (std != 0)
			v = normal4(rng, (uint64_t)b);
#pragma unroll
		for (int k = 0; k < 4; k++)
			v.v[k] = std != 0 ? mean + std * v.v[k] : mean;
		if (wide && i >= 0 && i + 4 <= n) {
			st_vec<4>(x + i, v);
			continue;
		}
#pragma unroll
		for (int k = 0; k < 4; k++)
			if (i + k >= 0 && i + k < n)
				st(x + i + k, v.v[k]);
	}
}

extern "C" int vfm_cuda_fill(struct vfm_stream *s, const struct vfm_fill *a, struct vfm_err *err)
{
	int64_t n = a->x.shape[0];
	bool wide = a->first % 4 == 0 && (uintptr_t)a->x.data % 16 == 0;

	if (n == 0)
		return 0;
	VFM_ACT_TYPE(a->x.dtype, T,
		VFM_LAUNCH(s, (fill<T>), grid_of(s, ceil_div(n / 4 + 2, 256), 8), 256, 0, (T *)a->x.data, n, a->rng,
			a->first, a->mean, a->std, wide));
	return vfm_cuda_launched(s, "fill", err);
}

/* ---- diffusion ---------------------------------------------------------------------------------- */

struct diffuse_args {
	const void *x0;
	const float *coef;
	const int64_t *id;
	const int32_t *idx, *seg;
	float *target; /* may be NULL */
	int64_t rows, f;
	uint32_t key[2]; /* of (seed, step, VFM_RNG_NOISE), equal for all samples */
};

/* Computes N features of a token.  N 4: one block of the generator; N 1: rows that are not a multiple of blocks. */
template <int N, class X, class T> __global__ __launch_bounds__(256) static void diffuse(const diffuse_args a, T *input)
{
	int64_t per_row = a.f / N, n = a.rows * per_row;

	for (int64_t v = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; v < n; v += (int64_t)gridDim.x * blockDim.x) {
		int64_t t = v / per_row, i = t * a.f + (v - t * per_row) * N, s = a.seg[t];
		uint64_t id = (uint64_t)a.id[s], e = (uint64_t)((int64_t)a.idx[t] * a.f + (v - t * per_row) * N);
		struct vfm_rng rng = {{a.key[0], a.key[1]}, {(uint32_t)id, (uint32_t)(id >> 32)}};
		float ca = a.coef[4 * s], cb = a.coef[4 * s + 1], cc = a.coef[4 * s + 2], ce = a.coef[4 * s + 3];
		vec<N> x0 = ld_vec<N>((const X *)a.x0 + i), in, target;
		vec<4> z = normal4(rng, e / 4);

#pragma unroll
		for (int k = 0; k < N; k++) {
			int j = (int)(e % 4);
			float noise = N == 4 ? z.v[k] : j == 0 ? z.v[0] : j == 1 ? z.v[1] : j == 2 ? z.v[2] : z.v[3];

			in.v[k] = fmaf(ca, x0.v[k], cb * noise);
			target.v[k] = fmaf(cc, x0.v[k], ce * noise);
		}
		st_vec<N>(input + i, in);
		if (a.target)
			st_vec<N>(a.target + i, target);
	}
}

template <int N> static void launch_diffuse(struct vfm_stream *s, const struct vfm_diffuse *o, const diffuse_args &a)
{
	int64_t blocks = grid_of(s, ceil_div(a.rows * a.f / N, 256), 16);

	if (o->x0.dtype == VFM_F16)
		VFM_ACT_TYPE(
			o->input.dtype, T, VFM_LAUNCH(s, (diffuse<N, f16, T>), blocks, 256, 0, a, (T *)o->input.data));
	else
		VFM_ACT_TYPE(o->x0.dtype, X,
			VFM_ACT_TYPE(o->input.dtype, T,
				VFM_LAUNCH(s, (diffuse<N, X, T>), blocks, 256, 0, a, (T *)o->input.data)));
}

extern "C" int vfm_cuda_diffuse(struct vfm_stream *s, const struct vfm_diffuse *o, struct vfm_err *err)
{
	struct vfm_rng rng = vfm_rng_stream(o->seed, o->step, 0, VFM_RNG_NOISE);
	diffuse_args a = {o->x0.data, (const float *)o->coef.data, (const int64_t *)o->id.data,
		(const int32_t *)o->idx.data, (const int32_t *)o->seqs->seg.data, data_of<float>(o->target),
		o->x0.shape[0], o->x0.shape[1], {rng.key[0], rng.key[1]}};

	if (a.rows * a.f > 0)
		VFM_WIDTH(vec_ok(4, &o->x0, &o->input, &o->target), 4, N, launch_diffuse<N>(s, o, a));
	return vfm_cuda_launched(s, "diffuse", err);
}
