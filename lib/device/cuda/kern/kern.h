/* kern.h - the dialect of our kernels: CUDA C++ that nvcc compiles and that emu.h runs on the host.
 *
 *   launch          VFM_LAUNCH(s, (kernel<T, 4>), grid, block, dynamic shared bytes, args…); grid, block: dim3 or
 *                   numbers
 *   shared memory   __shared__ float x[32];  VFM_DYN_SHARED(float, x);
 *   lanes           a kernel that shuffles or votes does so in full warps: __shfl_*_sync(VFM_ALL_LANES, …)
 *   elements        ld, st and vec convert f32 and bf16 to and from float, one element or a 16-byte vector at a time
 *   sums            in an order that depends only on shapes; no float atomics
 *
 * No C++ standard library, no exceptions, no static constructors: a C linker links the objects.
 */
#ifndef VFM_DEVICE_CUDA_KERN_KERN_H
#define VFM_DEVICE_CUDA_KERN_KERN_H

#ifdef VFM_EMU
#include "device/cuda/kern/emu.h"
#else
#include <cuda_runtime.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#define VFM_UNPACK(...) __VA_ARGS__
#define VFM_LAUNCH(s, kernel, grid, block, smem, ...)                                                                  \
	VFM_UNPACK kernel<<<(grid), (block), (smem), vfm_cuda_stream(s)>>>(__VA_ARGS__)
#define VFM_DYN_SHARED(T, name)                                                                                        \
	extern __shared__ __align__(16) unsigned char vfm_dyn_[];                                                      \
	T *name = reinterpret_cast<T *>(vfm_dyn_)
/* Call once for a kernel that uses more than 48 KiB of dynamic shared memory. */
#define VFM_ALLOW_SHARED(kernel, bytes)                                                                                \
	((void)cudaFuncSetAttribute(                                                                                   \
		(const void *)(VFM_UNPACK kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(bytes)))
#endif

#include "device/cuda/cuda_impl.h"

#define VFM_ALL_LANES 0xffffffffu

/* Threads of a multiprocessor, for the least blocks of __launch_bounds__: the assembler refuses more. */
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
#define VFM_SM_THREADS 1536
#else
#define VFM_SM_THREADS 2048
#endif

/* ---- elements ---- */

struct bf16 {
	uint16_t u;
};
struct f16 {
	uint16_t u;
};

__device__ static inline float to_f(float x)
{
	return x;
}
__device__ static inline float to_f(bf16 x)
{
	return __uint_as_float((uint32_t)x.u << 16);
}
__device__ static inline float to_f(f16 x)
{
#ifdef __CUDA_ARCH__
	float r;

	asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x.u));
	return r;
#else
	return vfm_f16_to_f32(x.u);
#endif
}
/* Packs two floats as bf16, rounded to nearest even; `lo` in the lower 16 bits. */
__device__ static inline uint32_t pack_bf16(float lo, float hi)
{
#ifdef __CUDA_ARCH__
	uint32_t r;

	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
	return r;
#else
	return (uint32_t)vfm_f32_to_bf16(lo) | (uint32_t)vfm_f32_to_bf16(hi) << 16;
#endif
}
template <class T> struct element; /* from float */
template <> struct element<float> {
	__device__ static inline float of(float x)
	{
		return x;
	}
};
template <> struct element<bf16> {
	__device__ static inline bf16 of(float x)
	{
		bf16 r;

		r.u = (uint16_t)pack_bf16(x, 0.0f);
		return r;
	}
};
template <class T> __device__ static inline float ld(const T *p)
{
	return to_f(*p);
}
template <class T> __device__ static inline void st(T *p, float x)
{
	*p = element<T>::of(x);
}

/* N consecutive elements as floats; p is aligned to N elements, at most 16 bytes. */
template <int N> struct vec {
	float v[N];
};
template <class T, int N> struct alignas(sizeof(T) * N > 16 ? 16 : sizeof(T) * N) raw_vec {
	T e[N];
};
#ifdef VFM_EMU
#define VFM_ALIGNED(p, bytes) vfm_emu_aligned(p, bytes)
#else
#define VFM_ALIGNED(p, bytes) ((void)0)
#endif
/* A vector in its stored form: two bf16 per register while several loads are in flight.  fresh() hides the value from
 * the optimizer, which would otherwise keep the widened floats across a barrier. */
template <class T, int N> struct alignas(sizeof(T) * N > 16 ? 16 : sizeof(T) * N) packed {
	T w[N];

	__device__ inline float at(int i) const
	{
		return to_f(w[i]);
	}
};
template <int N> struct alignas(2 * N > 16 ? 16 : 2 * N) packed<bf16, N> {
	uint32_t w[N / 2];

	__device__ inline float at(int i) const
	{
		return __uint_as_float(i % 2 ? w[i / 2] & 0xffff0000u : w[i / 2] << 16);
	}
};
template <> struct alignas(2) packed<bf16, 1> {
	bf16 w[1];

	__device__ inline float at(int i) const
	{
		return to_f(w[i]);
	}
};
template <int N, class T> __device__ static inline packed<T, N> ld_packed(const T *p)
{
	VFM_ALIGNED(p, sizeof(T) * N);
	return *reinterpret_cast<const packed<T, N> *>(p);
}
template <class T, int N> __device__ static inline packed<T, N> packed_zero(void)
{
	packed<T, N> r;

#pragma unroll
	for (unsigned i = 0; i < sizeof(r.w) / sizeof(r.w[0]); i++)
		r.w[i] = {};
	return r;
}
__device__ static inline void fresh(uint32_t &x)
{
#ifdef __CUDA_ARCH__
	asm volatile("" : "+r"(x));
#else
	(void)x;
#endif
}
template <int N> __device__ static inline void fresh(packed<float, N> &)
{
}
template <int N> __device__ static inline void fresh(packed<bf16, N> &r)
{
#pragma unroll
	for (int i = 0; i < N / 2; i++)
		fresh(r.w[i]);
}
template <class T, int N> __device__ static inline vec<N> widen(const packed<T, N> &r)
{
	vec<N> x;

#pragma unroll
	for (int i = 0; i < N; i++)
		x.v[i] = r.at(i);
	return x;
}
template <int N, class T> __device__ static inline vec<N> ld_vec(const T *p)
{
	return widen(ld_packed<N>(p));
}
template <int N> __device__ static inline void st_vec(float *p, const vec<N> &x)
{
	raw_vec<float, N> r;

	VFM_ALIGNED(p, sizeof(float) * N);
#pragma unroll
	for (int i = 0; i < N; i++)
		r.e[i] = x.v[i];
	*reinterpret_cast<raw_vec<float, N> *>(p) = r;
}
template <int N> __device__ static inline void st_vec(bf16 *p, const vec<N> &x)
{
	VFM_ALIGNED(p, sizeof(bf16) * N);
	if (N == 1) {
		st(p, x.v[0]);
	} else {
		raw_vec<uint32_t, (N + 1) / 2> r;

#pragma unroll
		for (int i = 0; i < N / 2; i++)
			r.e[i] = pack_bf16(x.v[2 * i], x.v[2 * i + (N > 1)]);
		*reinterpret_cast<raw_vec<uint32_t, (N + 1) / 2> *>(p) = r;
	}
}

/* Loads or stores 8 elements; WIDE: they are aligned. */
template <bool WIDE, class X> __device__ static inline vec<8> ld_eight(const X *x)
{
	vec<8> v;

	if constexpr (WIDE) {
		v = ld_vec<8>(x);
	} else {
#pragma unroll
		for (int i = 0; i < 8; i++)
			v.v[i] = ld(x + i);
	}
	return v;
}
template <bool WIDE, class X> __device__ static inline void st_eight(X *x, const vec<8> &v)
{
	if constexpr (WIDE) {
		st_vec<8>(x, v);
	} else {
#pragma unroll
		for (int i = 0; i < 8; i++)
			st(x + i, v.v[i]);
	}
}

/* sum += x. */
template <int N> __device__ static inline void add_vec(vec<N> &sum, const vec<N> &x)
{
#pragma unroll
	for (int k = 0; k < N; k++)
		sum.v[k] += x.v[k];
}
template <int N> __device__ static inline vec<N> vec_of(float x)
{
	vec<N> r;

#pragma unroll
	for (int k = 0; k < N; k++)
		r.v[k] = x;
	return r;
}

/* Access to element i, or to a vector that begins there, of an operand whose dtype is known only at run time.  For
 * results, rows that are read repeatedly, and code that need not be fast. */
template <int N> __device__ static inline vec<N> ld_any(const void *p, bool bf, int64_t i)
{
	return bf ? ld_vec<N>((const bf16 *)p + i) : ld_vec<N>((const float *)p + i);
}
template <int N> __device__ static inline void st_any(void *p, bool bf, int64_t i, const vec<N> &x)
{
	if (bf)
		st_vec<N>((bf16 *)p + i, x);
	else
		st_vec<N>((float *)p + i, x);
}
__device__ static inline float ld_one(const void *p, bool bf, int64_t i)
{
	return bf ? ld((const bf16 *)p + i) : ld((const float *)p + i);
}
__device__ static inline void st_one(void *p, bool bf, int64_t i, float x)
{
	if (bf)
		st((bf16 *)p + i, x);
	else
		st((float *)p + i, x);
}

/* ---- indices ---- */

/* Returns whether i is in [0, n).  Reports i in the fault word of the op (fault.h) if i < least or i >= n.  least: 0,
 * or INT32_MIN if a negative i means "no row". */
__device__ static inline bool row_of(int32_t i, int64_t n, int32_t least, uint64_t *fault)
{
	bool is = i >= 0 && i < n;

	if (!is && (i >= 0 || i < least))
		*(volatile uint64_t *)fault =
			(uint64_t)(uint32_t)(n < INT32_MAX ? n + 1 : INT32_MAX) << 32 | (uint32_t)i;
	return is;
}

/* ---- sums ---- */

/* Reduces over the 32 lanes; every lane gets the same bits. */
__device__ static inline float warp_sum(float x)
{
#pragma unroll
	for (int d = 16; d > 0; d >>= 1)
		x += __shfl_xor_sync(VFM_ALL_LANES, x, d);
	return x;
}
__device__ static inline double warp_sum(double x)
{
#pragma unroll
	for (int d = 16; d > 0; d >>= 1)
		x += __shfl_xor_sync(VFM_ALL_LANES, x, d);
	return x;
}
__device__ static inline float warp_max(float x)
{
#pragma unroll
	for (int d = 16; d > 0; d >>= 1)
		x = fmaxf(x, __shfl_xor_sync(VFM_ALL_LANES, x, d));
	return x;
}
/* Returns the larger of m and |x|, if x is finite. */
__device__ static inline float larger_finite(float m, float x)
{
	return fabsf(x) <= FLT_MAX ? fmaxf(m, fabsf(x)) : m;
}
/* Reduces over `lanes` neighbours (a power of two) of a warp, which share a row; all of them get the result. */
__device__ static inline float lanes_sum(float x, int lanes)
{
	for (int d = lanes / 2; d > 0; d >>= 1)
		x += __shfl_xor_sync(VFM_ALL_LANES, x, d);
	return x;
}
__device__ static inline float lanes_max(float x, int lanes)
{
	for (int d = lanes / 2; d > 0; d >>= 1)
		x = fmaxf(x, __shfl_xor_sync(VFM_ALL_LANES, x, d));
	return x;
}
/* Sums over a block of WARPS full warps (only threadIdx.x); every thread gets the result.  Has two barriers; may be
 * called again at once. */
template <int WARPS, class T> __device__ static inline T block_sum(T x)
{
	__shared__ T part[WARPS];
	T sum = 0;

	x = warp_sum(x);
	if (WARPS == 1)
		return x;
	if (threadIdx.x % 32 == 0)
		part[threadIdx.x / 32] = x;
	__syncthreads();
#pragma unroll
	for (int i = 0; i < WARPS; i++)
		sum += part[i];
	__syncthreads();
	return sum;
}

/* ---- for the host side of a .cu file ---- */

static inline int64_t ceil_div(int64_t a, int64_t b)
{
	return (a + b - 1) / b;
}

/* Returns whether vectors of n elements are aligned in every row of the tensors: address, row strides and width.
 * Ignores absent tensors. */
static inline bool vec_ok(int n, const struct vfm_tensor *t)
{
	size_t size = vfm_dtype_size(t->dtype), v = (size_t)n * size;
	bool ok = !vfm_has(t) || (t->shape[t->ndim - 1] % n == 0 && (uintptr_t)t->data % (v > 16 ? 16 : v) == 0);

	for (int i = 0; i < t->ndim - 1; i++)
		ok = ok && t->stride[i] % n == 0;
	return ok;
}
template <class... T> static inline bool vec_ok(int n, const struct vfm_tensor *t, const T *...more)
{
	return vec_ok(n, t) && vec_ok(n, more...);
}

/* Returns the address of a tensor; NULL if it is absent. */
template <class T> static inline T *data_of(const struct vfm_tensor &t)
{
	return vfm_has(&t) ? (T *)t.data : nullptr;
}

static inline bool is_bf(const struct vfm_tensor *t)
{
	return t->dtype == VFM_BF16;
}

/* Returns the threads for n items, in whole warps. */
static inline int in_warps(int64_t n)
{
	return (int)((n + 31) / 32 * 32);
}

/* Returns the grid for `blocks` blocks, at most `each` per multiprocessor, for grid-stride loops. */
static inline int64_t grid_of(struct vfm_stream *s, int64_t blocks, int each)
{
	int64_t most = (int64_t)vfm_cuda_sms(s) * each;

	return blocks < most ? blocks : most;
}

/* Returns the number of lanes that share a row of `units` vectors: a power of two, at most `most` (32: a warp). */
static inline int lanes_for(int64_t units, int most)
{
	int lanes = 1;

	while (lanes < most && lanes < units)
		lanes *= 2;
	return lanes;
}

/* Calls f with T as the element type of an f32 or bf16 tensor:  VFM_ACT_TYPE(a->x.dtype, T, launch<T>(s, a)); */
#define VFM_ACT_TYPE(dt, T, ...)                                                                                       \
	do {                                                                                                           \
		if ((dt) == VFM_F32) {                                                                                 \
			using T = float;                                                                               \
			__VA_ARGS__;                                                                                   \
		} else {                                                                                               \
			using T = bf16;                                                                                \
			__VA_ARGS__;                                                                                   \
		}                                                                                                      \
	} while (0)

/* Calls f with the width of vectors as N: `wide` elements if they are aligned (fit), else 1. */
#define VFM_WIDTH(fit, wide, N, ...)                                                                                   \
	do {                                                                                                           \
		if (fit) {                                                                                             \
			constexpr int N = wide;                                                                        \
			__VA_ARGS__;                                                                                   \
		} else {                                                                                               \
			constexpr int N = 1;                                                                           \
			__VA_ARGS__;                                                                                   \
		}                                                                                                      \
	} while (0)

#endif
