/* emu.h - enough of CUDA C++ to run our kernels on the host, so that their source is tested without a GPU.
 *
 * The blocks of a grid run one after another; the threads of a block are fibers, which switch at barriers and shuffles
 * (tests/ops/emu.cpp).  Dynamic shared memory is filled with 0xa5; static shared memory keeps its old contents.  The
 * process ends with a message at
 *   - a barrier that some threads of a block miss
 *   - a shuffle that some of the 32 lanes miss
 *   - a misaligned vector
 *
 * A kernel run backwards (last block, warp and lane first) must give the same bits, which detects many missing
 * barriers.  Other races, errors of the compiler, and speed are not tested. */
#ifndef VFM_DEVICE_CUDA_KERN_EMU_H
#define VFM_DEVICE_CUDA_KERN_EMU_H

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __launch_bounds__(...)
#define __shared__ static

struct alignas(8) uint2 {
	unsigned x, y;
};
struct uint3 {
	unsigned x, y, z;
};
struct alignas(16) uint4 {
	unsigned x, y, z, w;
};
struct alignas(8) float2 {
	float x, y;
};
struct alignas(16) float4 {
	float x, y, z, w;
};
static inline float2 make_float2(float x, float y)
{
	return {x, y};
}
struct dim3 {
	unsigned x, y, z;
	dim3(long x_ = 1, long y_ = 1, long z_ = 1) : x((unsigned)x_), y((unsigned)y_), z((unsigned)z_)
	{
	}
};

/* ---- the scheduler ---- */

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

extern "C" void vfm_emu_backwards(bool yes);             /* applies from the next launch */
extern "C" void (*vfm_emu_launched)(const char *kernel); /* optional; called for every launch */
void vfm_emu_die(const char *why);
void vfm_emu_run(const char *kernel, dim3 grid, dim3 block, size_t smem, void (*thread)(void *ctx), void *ctx);
void *vfm_emu_shared(void); /* the dynamic shared memory of the running block */
void vfm_emu_barrier(void);
/* Exchanges 8 bytes of each lane; returns those of all 32. */
const uint64_t *vfm_emu_lanes(uint64_t mine);

template <class F> static inline void vfm_emu_launch(const char *kernel, dim3 grid, dim3 block, size_t smem, F f)
{
	vfm_emu_run(
		kernel, grid, block, smem, [](void *ctx) { (*(F *)ctx)(); }, &f);
}
#define VFM_UNPACK(...) __VA_ARGS__
#define VFM_LAUNCH(s, kernel, grid, block, smem, ...)                                                                  \
	((void)(s), vfm_emu_launch(#kernel, dim3(grid), dim3(block), (smem), [=]() { VFM_UNPACK kernel(__VA_ARGS__); }))
#define VFM_DYN_SHARED(T, name)         T *name = reinterpret_cast<T *>(vfm_emu_shared())
#define VFM_ALLOW_SHARED(kernel, bytes) ((void)(bytes))

static inline void __syncthreads(void)
{
	vfm_emu_barrier();
}

/* ---- lanes ---- */

static inline int vfm_emu_lane(void)
{
	return (int)((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32);
}
template <class T> static inline T vfm_emu_take(T mine, int lane)
{
	uint64_t x = 0;
	T r;

	static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
	memcpy(&x, &mine, sizeof(T));
	x = vfm_emu_lanes(x)[lane];
	memcpy(&r, &x, sizeof(T));
	return r;
}
template <class T> static inline T __shfl_xor_sync(unsigned, T x, int mask)
{
	return vfm_emu_take(x, vfm_emu_lane() ^ mask);
}
template <class T> static inline T __shfl_up_sync(unsigned, T x, unsigned d)
{
	int me = vfm_emu_lane(), from = me - (int)d;

	return vfm_emu_take(x, from >= 0 ? from : me);
}
static inline void __syncwarp(unsigned = 0xffffffffu)
{
	vfm_emu_lanes(0);
}
static inline unsigned __ballot_sync(unsigned, int p)
{
	const uint64_t *all = vfm_emu_lanes(p != 0);
	unsigned r = 0;

	for (int i = 0; i < 32; i++)
		r |= (unsigned)all[i] << i;
	return r;
}
/* ---- memory and atomics: one thread runs at a time ---- */

static inline void vfm_emu_aligned(const void *p, size_t bytes)
{
	if ((uintptr_t)p % (bytes > 16 ? 16 : bytes))
		vfm_emu_die("a misaligned vector");
}
template <class T> static inline T atomicAdd(T *p, T x)
{
	T old = *p;

	*p = old + x;
	return old;
}
template <class T> static inline T atomicMax(T *p, T x)
{
	T old = *p;

	*p = old > x ? old : x;
	return old;
}
/* ---- arithmetic ---- */

static inline float __uint_as_float(unsigned u)
{
	float f;

	memcpy(&f, &u, 4);
	return f;
}
static inline unsigned __float_as_uint(float f)
{
	unsigned u;

	memcpy(&u, &f, 4);
	return u;
}
#define __expf(x) expf(x) /* the name is taken by the C library */
static inline float sinpif(float x)
{
	return (float)sin(3.14159265358979323846 * (double)x);
}
static inline float cospif(float x)
{
	return (float)cos(3.14159265358979323846 * (double)x);
}
static inline float __fmul_rn(float a, float b)
{
	return a * b;
}
static inline float __fadd_rn(float a, float b)
{
	return a + b;
}
static inline float __fdividef(float a, float b)
{
	return a / b;
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
	return (unsigned)((uint64_t)a * b >> 32);
}
static inline int __popc(unsigned x)
{
	return __builtin_popcount(x);
}
template <class T> static inline T min(T a, T b)
{
	return b < a ? b : a;
}
template <class T> static inline T max(T a, T b)
{
	return a < b ? b : a;
}

#endif
