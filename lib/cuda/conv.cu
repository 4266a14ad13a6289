/* conv.cu - convolution of frames: an implicit GEMM of pixels x output channels in f32, for any shape.
 *
 * A block of 256 threads computes TILE pixels x TILE output channels; each thread 4 x 4 of them.  The elements of K, in
 * the order of weight, pass through shared memory STEP at a time; a thread loads those of one column of 4 pixels and of
 * 4 channels. */
#include "cuda/kern.h"

enum { TILE = 64, STEP = 16, THREADS = 256, EACH = 4 };

struct conv_args {
	const void *x, *past, *weight, *add;
	const float *bias;
	void *y;
	int64_t pixels, h, w, c, k; /* pixels of y; of x; elements of K */
	int64_t yh, yw, o, past_n, past_stride;
	int kt, kh, kw, st, sh, sw, zeros, top, left;
};

/* A place in K: channel and tap, which move on without divisions. */
struct place {
	int64_t k, c;
	int i, j, l;
};

__device__ static inline void move_on(const struct conv_args &a, struct place *p, int step)
{
	p->k += step, p->c += step;
	while (p->c >= a.c && p->i < a.kt) {
		p->c -= a.c;
		if (++p->l == a.kw)
			p->l = 0, p->j++;
		if (p->j == a.kh)
			p->j = 0, p->i++;
	}
}

/* The first frame, row and column that a pixel of y reads. */
struct corner {
	int64_t f, y, x;
	bool is;
};

__device__ static inline struct corner corner_of(const struct conv_args &a, int64_t p)
{
	struct corner r;

	r.f = p / a.yw / a.yh * a.st - a.zeros;
	r.y = p / a.yw % a.yh * a.sh - a.top;
	r.x = p % a.yw * a.sw - a.left;
	r.is = p < a.pixels;
	return r;
}

/* The element of x at a place of K for the pixel of a corner; 0 where x is padded. */
template <class T>
__device__ static inline float conv_element(const struct conv_args &a, const struct corner &q, const struct place &p)
{
	int64_t f = q.f + p.i, y = q.y + p.j, x = q.x + p.l;
	const T *frame;

	if (!q.is || p.k >= a.k || f < 0 || y < 0 || x < 0 || y >= a.h || x >= a.w)
		return 0;
	frame = f < a.past_n ? (const T *)a.past + f * a.past_stride
			     : (const T *)a.x + (f - a.past_n) * a.h * a.w * a.c;
	return ld(frame + (y * a.w + x) * a.c + p.c);
}

template <class T> __global__ static void __launch_bounds__(THREADS) conv3d(struct conv_args a)
{
	__shared__ float px[STEP][TILE + 1], wt[STEP][TILE + 1];
	int64_t p0 = (int64_t)blockIdx.x * TILE, o0 = (int64_t)blockIdx.y * TILE;
	int row = threadIdx.x / 16, col = threadIdx.x % 16;
	float sum[EACH][EACH] = {};
	struct corner from[EACH];
	struct place at = {};

#pragma unroll
	for (int i = 0; i < EACH; i++)
		from[i] = corner_of(a, p0 + row + 16 * i);
	move_on(a, &at, col);
	for (int64_t k0 = 0; k0 < a.k; k0 += STEP) {
#pragma unroll
		for (int i = 0; i < EACH; i++) {
			int64_t o = o0 + row + 16 * i;

			px[col][row + 16 * i] = conv_element<T>(a, from[i], at);
			wt[col][row + 16 * i] = at.k < a.k && o < a.o ? ld((const T *)a.weight + o * a.k + at.k) : 0.0f;
		}
		move_on(a, &at, STEP);
		__syncthreads();
#pragma unroll
		for (int k = 0; k < STEP; k++)
#pragma unroll
			for (int i = 0; i < EACH; i++)
#pragma unroll
				for (int j = 0; j < EACH; j++)
					sum[i][j] += px[k][row + 16 * i] * wt[k][col + 16 * j];
		__syncthreads();
	}
#pragma unroll
	for (int i = 0; i < EACH; i++)
#pragma unroll
		for (int j = 0; j < EACH; j++) {
			int64_t p = p0 + row + 16 * i, o = o0 + col + 16 * j;
			float v = sum[i][j];

			if (p >= a.pixels || o >= a.o)
				continue;
			v += a.bias ? a.bias[o] : 0.0f;
			v += a.add ? ld((const T *)a.add + p * a.o + o) : 0.0f;
			st((T *)a.y + p * a.o + o, v);
		}
}

extern "C" int vfm_cuda_conv3d(struct vfm_stream *s, const struct vfm_conv3d *a, struct vfm_err *err)
{
	struct conv_args c = {};

	if (!vfm_numel(&a->y))
		return 0;
	c.x = a->x.data, c.weight = a->weight.data, c.y = a->y.data;
	c.past = vfm_has(&a->past) ? a->past.data : NULL;
	c.add = vfm_has(&a->add) ? a->add.data : NULL;
	c.bias = vfm_has(&a->bias) ? (const float *)a->bias.data : NULL;
	c.h = a->x.shape[1], c.w = a->x.shape[2], c.c = a->x.shape[3];
	c.k = a->weight.shape[1] * c.c;
	c.yh = a->y.shape[1], c.yw = a->y.shape[2], c.o = a->y.shape[3];
	c.pixels = a->y.shape[0] * c.yh * c.yw;
	c.past_n = vfm_has(&a->past) ? a->past.shape[0] : 0;
	c.past_stride = vfm_has(&a->past) ? a->past.stride[0] : 0;
	c.kt = a->kernel[0], c.kh = a->kernel[1], c.kw = a->kernel[2];
	c.st = a->stride[0], c.sh = a->stride[1], c.sw = a->stride[2];
	c.zeros = a->zeros, c.top = a->pad[0], c.left = a->pad[2];
	VFM_ACT_TYPE(a->x.dtype, T,
		VFM_LAUNCH(s, (conv3d<T>), dim3((unsigned)ceil_div(c.pixels, TILE), (unsigned)ceil_div(c.o, TILE)),
			THREADS, 0, c));
	return vfm_cuda_launched(s, "conv3d", err);
}
