/* block8.cu - block-wise 8-bit floats: of the optimizer, and of frozen weights. */
#include "device/cuda/kern/f8.h"

extern "C" {
#include "device/ops/dynamic8.h"
}

enum { THREADS = 256, WARPS = THREADS / 32, LANE = VFM_BLOCK8 / 32 };

__device__ static inline float magnitude(const struct vfm_dynamic8 &t, uint8_t code)
{
	if (!t.is_signed)
		return t.mag[code];
	return code < VFM_ZERO8 ? -t.mag[VFM_ZERO8 - code] : t.mag[code - VFM_ZERO8];
}

/* Copies the table to shared memory, which serves different addresses of a warp at once. */
__device__ static inline void share_table(struct vfm_dynamic8 *to, const struct vfm_dynamic8 &from)
{
	for (int i = threadIdx.x; i < 256; i += THREADS) {
		to->mag[i] = from.mag[i];
		if (i < 255)
			to->mid[i] = from.mid[i];
	}
	if (threadIdx.x == 0) {
		to->n = from.n;
		to->is_signed = from.is_signed;
	}
	__syncthreads();
}

__device__ static inline uint8_t nearest(const struct vfm_dynamic8 *t, float y)
{
	float a = y > 0 ? y : t->is_signed ? -y : 0.0f;
	int k = 0;

#pragma unroll
	for (int step = 128; step > 0; step /= 2)
		if (k + step < t->n && t->mid[k + step - 1] < a)
			k += step;
	if (!t->is_signed)
		return (uint8_t)(k == 0 && y > 0 ? 1 : k);
	return (uint8_t)(y < 0 ? VFM_ZERO8 - (k < VFM_ZERO8 ? k : VFM_ZERO8) : VFM_ZERO8 + k);
}

/* A warp quantizes a block: lane l has its elements l, l + 32, ... */
__global__ __launch_bounds__(THREADS) static void block8_quantize(
	const struct vfm_dynamic8 table, const float *x, uint8_t *code, float *scales, int64_t n)
{
	__shared__ struct vfm_dynamic8 t;
	int lane = (int)threadIdx.x % 32;
	int64_t blocks = (n + VFM_BLOCK8 - 1) / VFM_BLOCK8;

	share_table(&t, table);
	for (int64_t b = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; b < blocks; b += (int64_t)gridDim.x * WARPS) {
		float v[LANE], hi = 0, lo = 0, scale;

#pragma unroll
		for (int k = 0; k < LANE; k++) {
			int64_t i = b * VFM_BLOCK8 + k * 32 + lane;

			v[k] = i < n ? x[i] : 0.0f;
			hi = v[k] > hi ? v[k] : hi;
			lo = v[k] < lo ? v[k] : lo;
		}
		hi = warp_max(hi);
		lo = -warp_max(-lo);
		scale = t.is_signed && -lo > hi ? lo : hi;
		if (lane == 0)
			scales[b] = scale;
#pragma unroll
		for (int k = 0; k < LANE; k++) {
			int64_t i = b * VFM_BLOCK8 + k * 32 + lane;

			if (i < n)
				code[i] = nearest(&t, scale != 0 ? v[k] / scale : 0.0f);
		}
	}
}

__global__ __launch_bounds__(THREADS) static void block8_dequantize(
	const struct vfm_dynamic8 table, float *x, const uint8_t *code, const float *scales, int64_t n, int64_t first)
{
	__shared__ struct vfm_dynamic8 t;

	share_table(&t, table);
	for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (int64_t)gridDim.x * THREADS)
		x[i] = magnitude(t, code[i]) * scales[(first + i) / VFM_BLOCK8];
}

extern "C" int vfm_cuda_block8(struct vfm_stream *s, const struct vfm_block8 *a, struct vfm_err *err)
{
	int64_t n = a->x.shape[0], blocks = ceil_div(n, THREADS * (a->back ? 4 : LANE));
	int units = vfm_cuda_units(s);
	struct vfm_dynamic8 t;

	if (n == 0)
		return 0;
	vfm_dynamic8_init(&t, a->is_signed);
	blocks = !units ? grid_of(s, blocks, 8) : blocks < units ? blocks : units;
	if (a->back)
		VFM_LAUNCH(s, (block8_dequantize), blocks, THREADS, 0, t, (float *)a->x.data,
			(const uint8_t *)a->code.data, (const float *)a->scale.data, n, a->first);
	else
		VFM_LAUNCH(s, (block8_quantize), blocks, THREADS, 0, t, (const float *)a->x.data,
			(uint8_t *)a->code.data, (float *)a->scale.data, n);
	return vfm_cuda_launched(s, "block8", err);
}

/* ---- mxfp8 ---- */

/* 2^(s - 127) */
__device__ static inline float mx_scale(uint32_t s)
{
	return __uint_as_float(s ? s << 23 : 0x400000u);
}

/* The codes and scales of a tensor of `rows` rows of n elements. */
struct mx {
	uint8_t *code, *scale;
	int64_t n, rows, ld_code, ld_scale;
};

/* A thread quantizes a block.  Grid: blocks of a row, rows. */
template <bool WIDE, class X> __device__ static inline void mx_quantize_block(const X *x, uint8_t *code, uint8_t *scale)
{
	vec<8> v[VFM_MX_BLOCK / 8];
	float amax = 0, up;
	int e;

#pragma unroll
	for (int k = 0; k < VFM_MX_BLOCK / 8; k++) {
		v[k] = ld_eight<WIDE>(x + k * 8);
#pragma unroll
		for (int i = 0; i < 8; i++)
			amax = larger_finite(amax, v[k].v[i]);
	}
	e = f8_exponent<f8e4m3>(amax);
	up = mx_scale(127 + e);
	*scale = (uint8_t)(127 - e);
#pragma unroll
	for (int k = 0; k < VFM_MX_BLOCK / 8; k++) {
		uint64_t y = 0;

#pragma unroll
		for (int i = 0; i < 8; i += 2)
			y |= (uint64_t)f8_fit2<f8e4m3>(v[k].v[i], v[k].v[i + 1], up) << (8 * i);
		*reinterpret_cast<uint64_t *>(code + k * 8) = y;
	}
}

template <bool WIDE, class X> __global__ __launch_bounds__(THREADS) static void mx_quantize(const X *x, struct mx m)
{
	for (int64_t r = blockIdx.y; r < m.rows; r += gridDim.y)
		for (int64_t b = (int64_t)blockIdx.x * THREADS + threadIdx.x; b < m.n / VFM_MX_BLOCK;
			b += (int64_t)gridDim.x * THREADS)
			mx_quantize_block<WIDE>(x + r * m.n + b * VFM_MX_BLOCK,
				m.code + r * m.ld_code + b * VFM_MX_BLOCK, m.scale + r * m.ld_scale + b);
}

/* A thread dequantizes 8 elements.  Grid: eights of a row, rows. */
template <bool WIDE, class X> __global__ __launch_bounds__(THREADS) static void mx_dequantize(X *x, struct mx m)
{
	for (int64_t r = blockIdx.y; r < m.rows; r += gridDim.y)
		for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 8; i < m.n;
			i += (int64_t)gridDim.x * THREADS * 8) {
			uint64_t y = *reinterpret_cast<const uint64_t *>(m.code + r * m.ld_code + i);
			float s = mx_scale(m.scale[r * m.ld_scale + i / VFM_MX_BLOCK]);
			vec<8> v;

#pragma unroll
			for (int k = 0; k < 8; k++)
				v.v[k] = f8_value<f8e4m3>((uint8_t)(y >> (8 * k))) * s;
			st_eight<WIDE>(x + r * m.n + i, v);
		}
}

template <bool WIDE, class X> static void launch_mx(struct vfm_stream *s, const struct vfm_mxfp8 *a)
{
	struct mx m = {(uint8_t *)a->code.data, (uint8_t *)a->scale.data, a->x.shape[1], a->x.shape[0],
		a->code.stride[0], a->scale.stride[0]};
	int64_t blocks = grid_of(s, ceil_div(m.n, THREADS * (a->back ? 8 : VFM_MX_BLOCK)), 8);
	dim3 grid(blocks, m.rows < 1024 ? m.rows : 1024);

	if (a->back)
		VFM_LAUNCH(s, (mx_dequantize<WIDE, X>), grid, THREADS, 0, (X *)a->x.data, m);
	else
		VFM_LAUNCH(s, (mx_quantize<WIDE, X>), grid, THREADS, 0, (const X *)a->x.data, m);
}

extern "C" int vfm_cuda_mxfp8(struct vfm_stream *s, const struct vfm_mxfp8 *a, struct vfm_err *err)
{
	if (vfm_numel(&a->x) == 0)
		return 0;
	if (vec_ok(8, &a->x))
		VFM_ACT_TYPE(a->x.dtype, X, (launch_mx<true, X>(s, a)));
	else
		VFM_ACT_TYPE(a->x.dtype, X, (launch_mx<false, X>(s, a)));
	return vfm_cuda_launched(s, "mxfp8", err);
}
