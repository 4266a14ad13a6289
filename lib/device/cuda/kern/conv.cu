/* conv.cu - convolution of frames: im2col in blocks of pixels, and a product of the library for each block.
 *
 * A row of a block holds the elements of x that contribute to one pixel of y, in the order of weight, whose rows are
 * the columns of op(B).  A block stays in the L2 cache until the product has read it.  The product adds the bias, and
 * `add` as the previous value of y.  All frames are divided into the same blocks, and products are chosen for the
 * alignment of all frames.  So a frame has the same bits in any clip.
 */
#include "device/cuda/gemm.h"
#include "device/cuda/kern/kern.h"

enum {
	THREADS = 256,
	BLOCK_BYTES = 32 << 20, /* of a block of pixels, about */
	BLOCK_STEP = 128,       /* pixels: whole tiles, and 256-byte alignment in y */
	TAPS = 3,               /* loads in flight */
	VECTOR = 16             /* bytes */
};

/* ---- im2col ---- */

/* Rows of a block: pixels of one frame of y, from pixel (y0, x0). */
struct im2col {
	const void *x, *past;
	void *to;                      /* [rows, ld] */
	int64_t ld, k;                 /* elements of a row; those that are not padding */
	int64_t f, past_n;             /* the first frame that is read; below 0: zeros */
	int64_t past_stride, x_stride; /* of frames */
	int64_t row, h, w, c, y0, x0;  /* row: elements of x; h, w: rows and columns that are read */
	unsigned rows, yw;
	int kh, kw, sh, sw, top, left, up;
};

/* Where the window of a pixel begins in x. */
struct corner {
	int64_t y, x;
};

__device__ static inline struct corner corner_of(const struct im2col &a, unsigned row)
{
	unsigned at = (unsigned)a.x0 + row;
	struct corner q;

	q.y = (a.y0 + at / a.yw) * a.sh - a.top;
	q.x = (int64_t)(at % a.yw) * a.sw - a.left;
	return q;
}

/* Returns frame f of past and x; NULL: zeros. */
template <class T> __device__ static inline const T *frame_of(const struct im2col &a, int64_t f)
{
	if (f < 0)
		return NULL;
	return f < a.past_n ? (const T *)a.past + f * a.past_stride : (const T *)a.x + (f - a.past_n) * a.x_stride;
}

/* Returns row y of a frame as it is read; NULL: zeros. */
template <class T> __device__ static inline const T *row_of_frame(const struct im2col &a, const T *frame, int64_t y)
{
	return frame && y >= 0 && y < a.h ? frame + (y >> a.up) * a.row : NULL;
}

/* Whole vectors of channels.  Thread: a vector of a pixel, for the taps of one row of the kernel, blockIdx.y. */
template <class T> __global__ static void __launch_bounds__(THREADS) im2col_vectors(const struct im2col a)
{
	constexpr int N = VECTOR / sizeof(T);
	unsigned i = blockIdx.x * THREADS + threadIdx.x, vectors = (unsigned)(a.c / N), row = i / vectors;
	int64_t c = (int64_t)(i % vectors) * N;
	T *to = (T *)a.to + row * a.ld + (int64_t)blockIdx.y * a.kw * a.c + c;
	struct corner q = corner_of(a, row);
	const T *from = row_of_frame(a, frame_of<T>(a, a.f + (int)blockIdx.y / a.kh), q.y + (int)blockIdx.y % a.kh);

	if (row >= a.rows)
		return;
	for (int l = 0; l < a.kw; l += TAPS) {
		packed<T, N> v[TAPS];

#pragma unroll
		for (int u = 0; u < TAPS; u++) {
			int64_t x = q.x + l + u;
			bool is = from && l + u < a.kw && x >= 0 && x < a.w;

			v[u] = is ? ld_packed<N>(from + (x >> a.up) * a.c + c) : packed_zero<T, N>();
		}
#pragma unroll
		for (int u = 0; u < TAPS; u++)
			if (l + u < a.kw)
				*reinterpret_cast<packed<T, N> *>(to + (l + u) * a.c) = v[u];
	}
}

/* Any channels.  Thread: a vector of a row, whose elements may belong to several taps or to the padding. */
template <class T>
__global__ static void __launch_bounds__(THREADS, VFM_SM_THREADS / THREADS) im2col_elements(const struct im2col a)
{
	constexpr int N = VECTOR / sizeof(T);
	unsigned n = blockIdx.x * THREADS + threadIdx.x, vectors = (unsigned)(a.ld / N), row = n / vectors;
	unsigned k = n % vectors * N, tap = k / (unsigned)a.c, c = k % (unsigned)a.c;
	int i = (int)tap / a.kw / a.kh, j = (int)tap / a.kw % a.kh, l = (int)tap % a.kw;
	struct corner q = corner_of(a, row);
	raw_vec<T, N> v;

	if (row >= a.rows)
		return;
#pragma unroll
	for (int e = 0; e < N; e++) {
		const T *frame = k + e < a.k ? frame_of<T>(a, a.f + i) : NULL, *from = row_of_frame(a, frame, q.y + j);
		int64_t x = q.x + l;

		v.e[e] = from && x >= 0 && x < a.w ? from[(x >> a.up) * a.c + c] : T{};
		if (++c < a.c)
			continue;
		c = 0;
		if (++l == a.kw)
			l = 0, j++;
		if (j == a.kh)
			j = 0, i++;
	}
	*reinterpret_cast<raw_vec<T, N> *>((T *)a.to + (int64_t)n * N) = v;
}

/* y[rows, ld] = x[rows, cols], padded with zeros. */
template <class X, class Y>
__global__ static void __launch_bounds__(THREADS) pad_rows(const X *x, Y *y, int64_t rows, int64_t cols, int64_t ld)
{
	int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, j = i % ld;

	if (i < rows * ld)
		st(y + i, j < cols ? ld_one(x, sizeof(X) == 2, i / ld * cols + j) : 0.0f);
}

/* ---- the parts of a call ---- */

struct conv_call {
	const struct vfm_conv3d *a;
	bool direct;  /* frames of x are the rows, without im2col */
	bool vectors; /* vectors of channels are aligned */
	int64_t pixels, past_n;
	int64_t k, ld, o;                  /* elements of a sum; the same, padded to vectors; channels of y */
	int64_t rows;                      /* pixels of a block; the last one of a frame may be shorter */
	struct vfm_gemm_op op;             /* of a block */
	struct vfm_gemm_choice full, rest; /* of a block, and of the last one of a frame */
	size_t lt_bytes;                   /* scratch memory of the products */
	char *lt, *block, *weight, *bias;  /* scratch memory */
};

/* Returns bits whose lowest one is the alignment of all frames of t. */
static uintptr_t frame_bits(const struct vfm_tensor *t, int64_t stride)
{
	return (uintptr_t)t->data | (uintptr_t)stride * vfm_dtype_size(t->dtype);
}

static uintptr_t input_bits(const struct conv_call *p)
{
	uintptr_t bits = frame_bits(&p->a->x, p->a->x.stride[0]);

	return p->past_n ? bits | frame_bits(&p->a->past, p->a->past.stride[0]) : bits;
}

static int64_t block_rows(const struct conv_call *p)
{
	int64_t most = BLOCK_BYTES / (p->ld * (int64_t)vfm_dtype_size(p->a->x.dtype));
	int64_t blocks = ceil_div(p->pixels, most ? most : 1);

	if (p->direct || blocks == 1)
		return p->pixels;
	return ceil_div(ceil_div(p->pixels, blocks), BLOCK_STEP) * BLOCK_STEP;
}

static int size_call(struct conv_call *p, const struct vfm_conv3d *a, struct vfm_err *err)
{
	int64_t width = VECTOR / (int64_t)vfm_dtype_size(a->x.dtype), c = a->x.shape[3];

	p->a = a;
	p->pixels = a->y.shape[1] * a->y.shape[2];
	p->past_n = vfm_has(&a->past) ? a->past.shape[0] : 0;
	p->o = a->y.shape[3];
	p->k = a->weight.shape[1] * c;
	p->ld = ceil_div(p->k, width) * width;
	p->vectors = c % width == 0 && input_bits(p) % VECTOR == 0;
	p->direct = p->vectors && vfm_conv3d_pixelwise(a);
	p->rows = block_rows(p);
	if (p->pixels > INT32_MAX || p->ld > INT32_MAX / BLOCK_STEP)
		return vfm_fail(err, VFM_EUSAGE, "conv3d: a frame, or the weight of a channel, is too large");
	return 0;
}

/* Chooses the product of a block of `rows` pixels. */
static int choose_product(struct vfm_stream *s, struct conv_call *p, int64_t rows, bool part,
	struct vfm_gemm_choice *choice, struct vfm_err *err)
{
	size_t bytes;

	p->op.g.a.shape[0] = p->op.g.c.shape[0] = rows;
	TRY(vfm_lt_choose(s, &p->op, part, choice, err));
	bytes = vfm_round_256(vfm_gemm_ws(&p->op, choice));
	p->lt_bytes = bytes > p->lt_bytes ? bytes : p->lt_bytes;
	return 0;
}

/* Addresses of scratch memory, which are not known yet, count as aligned. */
static int choose_products(struct vfm_stream *s, struct conv_call *p, struct vfm_err *err)
{
	const struct vfm_conv3d *a = p->a;
	struct vfm_gemm *g = &p->op.g;
	enum vfm_dtype t = a->x.dtype;
	void *aligned = (void *)(uintptr_t)256;

	p->op.batch.count = 1;
	p->op.tune = true;
	p->op.ws = VFM_LT_WS;
	g->a = vfm_t2(p->direct ? (void *)input_bits(p) : aligned, t, p->rows, p->ld);
	g->b = vfm_t2(p->ld > p->k ? aligned : a->weight.data, t, p->o, p->ld);
	g->c = vfm_t2((void *)frame_bits(&a->y, a->y.stride[0]), t, p->rows, p->o);
	g->trans_b = true;
	g->accumulate = vfm_has(&a->add);
	if (vfm_has(&a->bias))
		g->bias = vfm_t1(t == VFM_F32 ? a->bias.data : aligned, t, p->o);
	TRY(choose_product(s, p, p->rows, false, &p->full, err));
	return p->pixels % p->rows ? choose_product(s, p, p->pixels % p->rows, true, &p->rest, err) : 0;
}

static int take_conv_scratch(struct vfm_stream *s, struct conv_call *p, struct vfm_err *err)
{
	size_t size = vfm_dtype_size(p->a->x.dtype);
	size_t block = p->direct ? 0 : vfm_round_256((size_t)(p->rows * p->ld) * size);
	size_t weight = p->ld > p->k ? vfm_round_256((size_t)(p->o * p->ld) * size) : 0;

	p->lt = (char *)vfm_cuda_ws(s, p->lt_bytes + block + weight + vfm_round_256((size_t)p->o * size), err);
	if (!p->lt)
		return VFM_EENV;
	p->block = p->lt + p->lt_bytes;
	p->weight = p->block + block;
	p->bias = p->weight + weight;
	return 0;
}

/* Pads the weight and converts the bias, once for all blocks. */
template <class T> static void prepare_operands(struct vfm_stream *s, struct conv_call *p)
{
	struct vfm_gemm *g = &p->op.g;

	if (p->ld > p->k) {
		g->b.data = p->weight;
		VFM_LAUNCH(s, (pad_rows<T, T>), ceil_div(p->o * p->ld, THREADS), THREADS, 0,
			(const T *)p->a->weight.data, (T *)p->weight, p->o, p->k, p->ld);
	}
	if (vfm_has(&g->bias) && sizeof(T) == 2) {
		g->bias.data = p->bias;
		VFM_LAUNCH(s, (pad_rows<float, T>), ceil_div(p->o, THREADS), THREADS, 0, (const float *)p->a->bias.data,
			(T *)p->bias, (int64_t)1, p->o, p->o);
	}
}

template <class T>
static void launch_im2col(struct vfm_stream *s, const struct conv_call *p, int64_t t, int64_t first, int64_t rows)
{
	const struct vfm_conv3d *a = p->a;
	struct im2col m = {};

	m.x = a->x.data, m.past = a->past.data, m.to = p->block;
	m.ld = p->ld, m.k = p->k;
	m.f = t * a->stride[0] - a->zeros, m.past_n = p->past_n, m.past_stride = a->past.stride[0];
	m.x_stride = a->x.stride[0], m.row = a->x.stride[1], m.up = a->up;
	m.h = a->x.shape[1] << a->up, m.w = a->x.shape[2] << a->up, m.c = a->x.shape[3];
	m.rows = (unsigned)rows, m.yw = (unsigned)a->y.shape[2];
	m.y0 = first / m.yw, m.x0 = first % m.yw;
	m.kh = a->kernel[1], m.kw = a->kernel[2];
	m.sh = a->stride[1], m.sw = a->stride[2];
	m.top = a->pad[0], m.left = a->pad[2];
	if (p->vectors)
		VFM_LAUNCH(s, (im2col_vectors<T>),
			dim3((unsigned)ceil_div(rows * (m.c / (VECTOR / (int64_t)sizeof(T))), THREADS),
				(unsigned)(a->kernel[0] * m.kh)),
			THREADS, 0, m);
	else
		VFM_LAUNCH(s, (im2col_elements<T>), ceil_div(rows * (m.ld / (VECTOR / (int64_t)sizeof(T))), THREADS),
			THREADS, 0, m);
}

/* Computes pixels [first, first + rows) of frame t of y. */
static int convolve_block(
	struct vfm_stream *s, struct conv_call *p, int64_t t, int64_t first, int64_t rows, struct vfm_err *err)
{
	const struct vfm_conv3d *a = p->a;
	struct vfm_gemm *g = &p->op.g;
	int64_t frame = t * a->stride[0], size = (int64_t)vfm_dtype_size(a->x.dtype);

	g->a.data = p->block;
	if (!p->direct)
		VFM_ACT_TYPE(a->x.dtype, T, launch_im2col<T>(s, p, t, first, rows));
	else if (frame < p->past_n)
		g->a.data = (char *)a->past.data + frame * a->past.stride[0] * size;
	else
		g->a.data = (char *)a->x.data + (frame - p->past_n) * a->x.stride[0] * size;
	g->c.data = (char *)a->y.data + (t * p->pixels + first) * p->o * size;
	g->a.shape[0] = g->c.shape[0] = rows;
	return vfm_gemm_enqueue(s, &p->op, rows < p->rows ? &p->rest : &p->full, p->lt, err);
}

/* Sums of nothing: the bias, and `add`. */
static int without_sums(struct vfm_stream *s, const struct vfm_conv3d *a, struct vfm_err *err)
{
	struct vfm_gemm g = {};
	int64_t o = a->y.shape[3];

	g.a = vfm_t2(a->x.data, a->x.dtype, vfm_numel(&a->y) / o, 0);
	g.b = vfm_t2(a->weight.data, a->x.dtype, o, 0);
	g.c = vfm_t2(a->y.data, a->y.dtype, vfm_numel(&a->y) / o, o);
	g.trans_b = true;
	g.bias = a->bias;
	g.accumulate = vfm_has(&a->add);
	return vfm_cuda_gemm(s, &g, err);
}

extern "C" int vfm_cuda_conv3d(struct vfm_stream *s, const struct vfm_conv3d *a, struct vfm_err *err)
{
	struct conv_call p = {};

	if (a->packed)
		return vfm_fail(err, VFM_EUSAGE, "conv3d: this device packs no weights");
	if (!vfm_numel(&a->y))
		return 0;
	if (vfm_has(&a->add) && a->add.data != a->y.data) {
		struct vfm_axpby copy = {};

		copy.alpha = 1, copy.x = a->add, copy.y = a->y;
		TRY(vfm_cuda_axpby(s, &copy, err));
	}
	if (!vfm_numel(&a->weight))
		return without_sums(s, a, err);
	TRY(size_call(&p, a, err));
	TRY(choose_products(s, &p, err));
	TRY(take_conv_scratch(s, &p, err));
	VFM_ACT_TYPE(a->x.dtype, T, prepare_operands<T>(s, &p));
	for (int64_t t = 0; t < a->y.shape[0]; t++)
		for (int64_t i = 0; i < p.pixels; i += p.rows)
			TRY(convolve_block(s, &p, t, i, p.pixels - i < p.rows ? p.pixels - i : p.rows, err));
	return vfm_cuda_launched(s, "conv3d", err);
}
