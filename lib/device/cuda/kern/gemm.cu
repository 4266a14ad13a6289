/* gemm.cu - gemm and grouped_gemm.  Products of the library run by the implementation that gemm.h chooses.  Our own
 * kernels compute other epilogues, row sums, and products that the library does not support.
 *
 * Sums over K are divided into parts; their number depends only on shapes and the device.
 */
#include "device/cuda/kern/act.h"
#include "device/cuda/kern/f8.h"
#include "device/cuda/gemm.h"

/* ---- kernels ----------------------------------------------------------------------------------- */

/* P[m,n] = sum over k of op(A)[m,k] op(B)[k,n] in f32, for products that the library does not support.  A thread
 * computes 4 x 4 elements of C without shared memory; neighbouring threads read the same rows of A and neighbouring
 * columns of B. */
template <class A, class B>
__global__ static void __launch_bounds__(256) product(const A *a, int64_t lda, bool ta, const B *b, int64_t ldb,
	bool tb, float *p, int64_t m, int64_t n, int64_t k, const float *scale_a, const float *scale_b)
{
	int64_t i0 = (int64_t)blockIdx.y * 32 + threadIdx.x / 32 * 4, j0 = (int64_t)blockIdx.x * 128 + threadIdx.x % 32;
	float sum[4][4] = {};

#pragma unroll 1
	for (int64_t l = 0; l < k; l++) {
		float x[4], y[4];

#pragma unroll
		for (int i = 0; i < 4; i++)
			x[i] = i0 + i < m ? ld(ta ? a + l * lda + i0 + i : a + (i0 + i) * lda + l) : 0.0f;
#pragma unroll
		for (int j = 0; j < 4; j++)
			y[j] = j0 + 32 * j < n ? ld(tb ? b + (j0 + 32 * j) * ldb + l : b + l * ldb + j0 + 32 * j)
					       : 0.0f;
#pragma unroll
		for (int i = 0; i < 4; i++)
#pragma unroll
			for (int j = 0; j < 4; j++)
				sum[i][j] += x[i] * y[j];
	}
	float f = scale_a ? scale_a[0] * scale_b[0] : 1.0f;
#pragma unroll
	for (int i = 0; i < 4; i++)
#pragma unroll
		for (int j = 0; j < 4; j++)
			if (i0 + i < m && j0 + 32 * j < n)
				p[(i0 + i) * n + j0 + 32 * j] = f * sum[i][j];
}

/* C = epilogue(P), where P may be C or aux; p NULL: P is 0.  Rows of group r / group_rows have bias row r / group_rows.
 */
struct epilogue {
	const void *p, *bias;
	bool bias_bf;
	int64_t rows, cols, ld_p, ldc, ld_aux, group_rows, ld_bias;
	enum vfm_act act, dact;
	bool accumulate, store_aux;
};

template <int N, class P, class C> __global__ static void __launch_bounds__(256) finish(struct epilogue e, C *c, C *aux)
{
	int64_t per_row = e.cols / N, n = e.rows * per_row;

	for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
		int64_t r = i / per_row, j = i % per_row * N;
		vec<N> z = {};

		if (e.p)
			z = ld_vec<N>((const P *)e.p + r * e.ld_p + j);
		if (e.bias)
			add_vec(z, ld_any<N>(e.bias, e.bias_bf, r / e.group_rows * e.ld_bias + j));
		if (e.dact) {
			vec<N> x = ld_vec<N>(aux + r * e.ld_aux + j);

#pragma unroll
			for (int k = 0; k < N; k++)
				z.v[k] *= dact_of(e.dact, x.v[k]);
		} else if (e.store_aux) {
			st_vec<N>(aux + r * e.ld_aux + j, z);
		}
		if (e.act) {
#pragma unroll
			for (int k = 0; k < N; k++)
				z.v[k] = act_of(e.act, z.v[k]);
		}
		if (e.accumulate)
			add_vec(z, ld_vec<N>((const C *)c + r * e.ldc + j));
		st_vec<N>(c + r * e.ldc + j, z);
	}
}

/* part[z][y][m] = sum over the rows k of slice y of a[k][m], batch z.  Block: 32 threads across, each with N
 * neighbours, 8 slices of rows. */
template <int N, class A>
__global__ static void __launch_bounds__(256)
	column_sums(const A *a, int64_t lda, int64_t batch_a, int64_t m, int64_t k, float *part)
{
	__shared__ float sums[8][32 * N + 1];
	int64_t col = ((int64_t)blockIdx.x * 32 + threadIdx.x % 32) * N;
	int64_t from = k * blockIdx.y / gridDim.y, to = k * (blockIdx.y + 1) / gridDim.y;
	vec<N> s = {};

	a += blockIdx.z * batch_a;
	if (col < m) {
#pragma unroll 4
		for (int64_t l = from + threadIdx.x / 32; l < to; l += 8)
			add_vec(s, ld_vec<N>(a + l * lda + col));
	}
#pragma unroll
	for (int i = 0; i < N; i++)
		sums[threadIdx.x / 32][threadIdx.x % 32 + 32 * i] = s.v[i];
	__syncthreads();
	for (int i = threadIdx.x; i < 32 * N; i += 256) {
		int64_t j = ((int64_t)blockIdx.x * 32 + i % 32) * N + i / 32;
		float t = 0;

#pragma unroll
		for (int w = 0; w < 8; w++)
			t += sums[w][i];
		if (j < m)
			part[((int64_t)blockIdx.z * gridDim.y + blockIdx.y) * m + j] = t;
	}
}

/* out[z][m] += the sum of its parts. */
__global__ static void __launch_bounds__(256)
	add_parts(const float *part, int parts, int64_t m, float *out, int64_t batch_out)
{
	int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
	float t = 0;

	if (i >= m)
		return;
	for (int y = 0; y < parts; y++)
		t += part[((int64_t)blockIdx.z * parts + y) * m + i];
	out[blockIdx.z * batch_out + i] += t;
}

/* out[m] += sum over k of a[m][k]; one warp for each row. */
template <class A>
__global__ static void __launch_bounds__(256) row_sums(const A *a, int64_t lda, int64_t m, int64_t k, float *out)
{
	int64_t row = (int64_t)blockIdx.x * 8 + threadIdx.x / 32;
	float t = 0;

	for (int64_t l = threadIdx.x % 32; row < m && l < k; l += 32)
		t += ld(a + row * lda + l);
	t = warp_sum(t);
	if (row < m && threadIdx.x % 32 == 0)
		out[row] += t;
}

/* y[g][i] = x[g][i], from one of f32 and bf16 to the other. */
template <class X, class Y> __global__ static void __launch_bounds__(256) convert_bias(const X *x, Y *y, int64_t n)
{
	int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		st(y + i, ld(x + i));
}

__device__ static inline void st(f8e4m3 *p, float x)
{
	p->u = f8_code<f8e4m3>(f8_fit<f8e4m3>(x, 1.0f));
}
__device__ static inline void st(f8e5m2 *p, float x)
{
	p->u = f8_code<f8e5m2>(f8_fit<f8e5m2>(x, 1.0f));
}

/* Mixes the bits of a counter (Steele, Lea & Flood, "Fast splittable pseudorandom number generators", SplitMix64). */
__device__ static inline uint64_t mix_bits(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

/* The sum of four uniform numbers, with variance 1. */
template <class T> __global__ static void __launch_bounds__(256) noise(T *x, int64_t n, uint64_t seed)
{
	for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
		uint64_t u = mix_bits(seed + (uint64_t)i);
		float sum =
			(float)(u & 0xffff) + (float)(u >> 16 & 0xffff) + (float)(u >> 32 & 0xffff) + (float)(u >> 48);

		st(x + i, (sum - 131070.0f) * (1.7320508f / 65535.0f));
	}
}

/* ---- what an op is, with its memory ---------------------------------------------------------------- */

enum {
	CHUNK = 64 << 20, /* bytes of the f32 product for our epilogue */
	PARTS = 64,       /* most slices of rows */
};

/* Scratch memory of an op: bytes of the library, of vectors, of a chunk of an f32 product. */
struct areas {
	size_t lt, vectors, chunk;
};

static int64_t dim_m(const struct vfm_gemm *g)
{
	return g->c.shape[0];
}
static int64_t dim_n(const struct vfm_gemm *g)
{
	return g->c.shape[1];
}
static int64_t dim_k(const struct vfm_gemm *g)
{
	return g->a.shape[g->trans_a ? 0 : 1];
}

static size_t chunk_bytes(const struct vfm_gemm *g)
{
	int64_t rows = CHUNK / 4 / dim_n(g);

	rows = rows < 1 ? 1 : rows < dim_m(g) ? rows : dim_m(g);
	return (size_t)(rows * dim_n(g)) * 4;
}

static size_t vector_bytes(const struct vfm_gemm_op *op)
{
	int64_t rowsum = vfm_has(&op->g.a_rowsum) ? op->batch.count * dim_m(&op->g) * PARTS * 4 : 0;
	int64_t bias = vfm_has(&op->g.bias) ? op->batch.count * dim_n(&op->g) * 4 : 0;

	return vfm_round_256((size_t)(rowsum > bias ? rowsum : bias));
}

static struct areas areas_of(const struct vfm_gemm_op *op, const struct vfm_gemm_choice *c)
{
	struct areas w = {};

	w.lt = c->path.f32 ? op->ws : vfm_round_256(c->algo.ws);
	w.vectors = vector_bytes(op);
	w.chunk = c->path.f32 ? chunk_bytes(&op->g) : 0;
	return w;
}

extern "C" size_t vfm_gemm_ws(const struct vfm_gemm_op *op, const struct vfm_gemm_choice *c)
{
	struct areas w = areas_of(op, c);

	return w.lt + w.vectors + w.chunk;
}

/* ---- sums of rows ------------------------------------------------------------------------------------ */

template <class A> static void sum_rows_of(struct vfm_stream *s, const struct vfm_gemm_op *op, float *part)
{
	const struct vfm_gemm *g = &op->g;
	const A *a = (const A *)g->a.data;
	int64_t m = dim_m(g), k = dim_k(g), count = op->batch.count;
	constexpr int WIDE = 16 / sizeof(A);
	bool vectors = vec_ok(WIDE, &g->a) && op->batch.a % WIDE == 0;
	int64_t across, slices;

	if (!g->trans_a) { /* single products only: groups have their rows as columns of op(A) */
		VFM_LAUNCH(
			s, (row_sums<A>), ceil_div(m, 8), 256, 0, a, g->a.stride[0], m, k, (float *)g->a_rowsum.data);
		return;
	}
	across = ceil_div(m, 32 * (vectors ? WIDE : 1));
	slices = ceil_div((int64_t)vfm_cuda_sms(s) * 4, across * count);
	if (slices > PARTS)
		slices = PARTS;
	slices = slices > ceil_div(k, 64) ? ceil_div(k, 64) : slices;
	VFM_WIDTH(vectors, WIDE, N,
		VFM_LAUNCH(s, (column_sums<N, A>), dim3(across, slices, count), 256, 0, a, g->a.stride[0], op->batch.a,
			m, k, part));
	VFM_LAUNCH(s, (add_parts), dim3(ceil_div(m, 256), 1, count), 256, 0, part, (int)slices, m,
		(float *)g->a_rowsum.data, op->batch.rowsum);
}

static void sum_rows(struct vfm_stream *s, const struct vfm_gemm_op *op, float *part)
{
	VFM_ACT_TYPE(op->g.a.dtype, A, sum_rows_of<A>(s, op, part));
}

/* ---- our epilogue -------------------------------------------------------------------------------------- */

template <class A, class B> static void own_product_of(struct vfm_stream *s, const struct vfm_gemm *g, float *p)
{
	dim3 grid(ceil_div(dim_n(g), 128), ceil_div(dim_m(g), 32));

	VFM_LAUNCH(s, (product<A, B>), grid, 256, 0, (const A *)g->a.data, g->a.stride[0], g->trans_a,
		(const B *)g->b.data, g->b.stride[0], g->trans_b, p, dim_m(g), dim_n(g), dim_k(g),
		(const float *)g->scale_a.data, (const float *)g->scale_b.data);
}

static void own_product(struct vfm_stream *s, const struct vfm_gemm *g, float *p)
{
	if (!vfm_has(&g->scale_a))
		VFM_ACT_TYPE(g->a.dtype, A, (own_product_of<A, A>(s, g, p)));
	else if (g->a.dtype == VFM_F8E5M2)
		own_product_of<f8e5m2, f8e4m3>(s, g, p);
	else if (g->b.dtype == VFM_F8E5M2)
		own_product_of<f8e4m3, f8e5m2>(s, g, p);
	else
		own_product_of<f8e4m3, f8e4m3>(s, g, p);
}

template <class P, class C>
static void own_epilogue_of(struct vfm_stream *s, const struct vfm_gemm *g, const struct epilogue *e)
{
	size_t bias_size = e->bias_bf ? 2 : 4, vector = 8 * bias_size > 16 ? 16 : 8 * bias_size;
	bool wide = vec_ok(8, &g->c, &g->aux) && e->ld_p % 8 == 0 && (uintptr_t)e->p % 16 == 0 &&
		(uintptr_t)e->bias % vector == 0 && e->ld_bias % 8 == 0;

	VFM_WIDTH(wide, 8, N,
		VFM_LAUNCH(s, (finish<N, P, C>), grid_of(s, ceil_div(e->rows * (e->cols / N), 256), 8), 256, 0, *e,
			(C *)g->c.data, data_of<C>(g->aux)));
}

static struct epilogue own_epilogue_args(const struct vfm_gemm *g)
{
	struct epilogue e = {};

	e.bias = data_of<const void>(g->bias);
	e.bias_bf = is_bf(&g->bias);
	e.rows = e.group_rows = dim_m(g);
	e.cols = dim_n(g);
	e.ldc = g->c.stride[0];
	e.ld_aux = vfm_has(&g->aux) ? g->aux.stride[0] : 0;
	e.act = g->act;
	e.dact = g->dact;
	e.accumulate = g->accumulate;
	e.store_aux = g->act && vfm_has(&g->aux);
	return e;
}

/* C = epilogue of the f32 product p without gaps between its rows; NULL: of 0. */
static void own_epilogue(struct vfm_stream *s, const struct vfm_gemm *g, const float *p)
{
	struct epilogue e = own_epilogue_args(g);

	e.p = p;
	e.ld_p = e.cols;
	VFM_ACT_TYPE(g->c.dtype, C, (own_epilogue_of<float, C>(s, g, &e)));
}

/* The rest of the epilogue after the library's product, which is in place (vfm_gemm_product_of).  The rows of a batch
 * follow one another. */
static void own_rest(struct vfm_stream *s, const struct vfm_gemm_op *op, const struct vfm_gemm_path *path)
{
	const struct vfm_tensor *product = vfm_gemm_product_of(&op->g, path);
	struct epilogue e = own_epilogue_args(&op->g);

	e.p = product->data;
	e.ld_p = product->stride[0];
	e.rows = e.group_rows * op->batch.count;
	e.ld_bias = op->batch.bias;
	if (path->epi & VFM_LT_BIAS)
		e.bias = NULL;
	e.store_aux = e.store_aux && e.bias; /* else the product is it */
	e.accumulate = false;                /* the product has done that */
	VFM_ACT_TYPE(op->g.c.dtype, C, (own_epilogue_of<C, C>(s, &op->g, &e)));
}

static char *at_row(const struct vfm_tensor *t, int64_t row)
{
	return (char *)t->data + (size_t)(row * t->stride[0]) * vfm_dtype_size(t->dtype);
}

static struct vfm_tensor some_rows(const struct vfm_tensor *t, int64_t first, int64_t n)
{
	struct vfm_tensor r = *t;

	if (vfm_has(t)) {
		r.data = at_row(t, first);
		r.shape[0] = n;
	}
	return r;
}

/* Returns rows [first, first + rows) of g. */
static struct vfm_gemm slice_rows(const struct vfm_gemm *g, int64_t first, int64_t rows)
{
	struct vfm_gemm r = *g;

	r.a.data = g->trans_a ? (char *)g->a.data + (size_t)first * vfm_dtype_size(g->a.dtype) : at_row(&g->a, first);
	r.a.shape[g->trans_a ? 1 : 0] = rows;
	r.c = some_rows(&g->c, first, rows);
	r.aux = some_rows(&g->aux, first, rows);
	return r;
}

/* P = op(A) op(B), by the library if it supports the product.  ws: op->ws bytes. */
static int f32_product(struct vfm_stream *s, const struct vfm_gemm_op *op, const struct vfm_gemm *g, float *p, char *ws,
	struct vfm_err *err)
{
	struct vfm_gemm_choice c;
	struct vfm_gemm_op plain = {};
	int rc;

	plain.g.a = g->a, plain.g.b = g->b, plain.g.trans_a = g->trans_a, plain.g.trans_b = g->trans_b;
	plain.g.scale_a = g->scale_a, plain.g.scale_b = g->scale_b;
	plain.g.c = vfm_t2(p, VFM_F32, dim_m(g), dim_n(g));
	plain.batch.count = 1;
	plain.tune = op->tune;
	plain.ws = op->ws;
	rc = vfm_lt_choose(s, &plain, true, &c, err);
	if (rc > 0)
		return vfm_gemm_enqueue(s, &plain, &c, ws, err);
	if (rc == 0)
		own_product(s, g, p);
	return rc;
}

static int by_own_epilogue(
	struct vfm_stream *s, const struct vfm_gemm_op *op, const struct areas *w, char *ws, struct vfm_err *err)
{
	const struct vfm_gemm *g = &op->g;
	int64_t m = dim_m(g), step = (int64_t)(w->chunk / 4) / dim_n(g);
	float *p = (float *)(ws + w->lt + w->vectors);

	for (int64_t i = 0; i < m; i += step) {
		struct vfm_gemm part = slice_rows(g, i, m - i < step ? m - i : step);

		TRY(f32_product(s, op, &part, p, ws, err));
		own_epilogue(s, &part, p);
	}
	return 0;
}

/* ---- an op by a choice ---------------------------------------------------------------------------------------- */

static void convert_bias_of(struct vfm_stream *s, const struct vfm_tensor *bias, void *out, int64_t n)
{
	if (bias->dtype == VFM_F32)
		VFM_LAUNCH(s, (convert_bias<float, bf16>), ceil_div(n, 256), 256, 0, (const float *)bias->data,
			(bf16 *)out, n);
	else
		VFM_LAUNCH(s, (convert_bias<bf16, float>), ceil_div(n, 256), 256, 0, (const bf16 *)bias->data,
			(float *)out, n);
}

/* The product of the library.  vectors: scratch memory for a converted bias, or for row sums. */
static int by_library(struct vfm_stream *s, const struct vfm_gemm_op *op, const struct vfm_gemm_choice *c,
	char *vectors, void *ws, struct vfm_err *err)
{
	const struct vfm_gemm *g = &op->g;
	const struct vfm_lt_problem *p = &c->p;
	struct vfm_lt_args x = {};

	x.a = g->b.data, x.b = g->a.data, x.c = vfm_gemm_product_of(g, &c->path)->data;
	x.scale_a = (const float *)g->scale_b.data, x.scale_b = (const float *)g->scale_a.data;
	x.aux = p->epi & (VFM_LT_AUX | VFM_LT_DGELU) ? g->aux.data : NULL;
	x.bias = p->epi & VFM_LT_BGRADB ? vectors : vfm_has(&g->bias) ? g->bias.data : NULL;
	x.ws = ws;
	if (vfm_lt_bias_differs(p, g)) {
		x.bias = vectors;
		convert_bias_of(s, &g->bias, vectors, dim_n(g) * op->batch.count);
	}
	TRY(vfm_lt_run(s, c, &x, err));
	if (p->epi & VFM_LT_BGRADB)
		VFM_LAUNCH(s, (add_parts), dim3(ceil_div(dim_m(g), 256)), 256, 0, (const float *)x.bias, 1, dim_m(g),
			(float *)g->a_rowsum.data, (int64_t)0);
	return 0;
}

extern "C" int vfm_gemm_enqueue(struct vfm_stream *s, const struct vfm_gemm_op *op, const struct vfm_gemm_choice *c,
	void *ws, struct vfm_err *err)
{
	struct areas w = areas_of(op, c);
	char *vectors = (char *)ws + w.lt;

	if (c->path.own_rowsum)
		sum_rows(s, op, (float *)vectors);
	if (c->path.f32)
		return by_own_epilogue(s, op, &w, (char *)ws, err);
	TRY(by_library(s, op, c, vectors, ws, err));
	if (c->path.own_epi)
		own_rest(s, op, &c->path);
	return 0;
}

extern "C" int vfm_gemm_noise(
	struct vfm_stream *s, enum vfm_dtype dt, void *x, int64_t n, uint64_t seed, struct vfm_err *err)
{
	int64_t blocks = grid_of(s, ceil_div(n, 256), 8);

	if (n <= 0)
		return 0;
	if (dt == VFM_BF16)
		VFM_LAUNCH(s, (noise<bf16>), blocks, 256, 0, (bf16 *)x, n, seed);
	else if (dt == VFM_F8E4M3)
		VFM_LAUNCH(s, (noise<f8e4m3>), blocks, 256, 0, (f8e4m3 *)x, n, seed);
	else if (dt == VFM_F8E5M2)
		VFM_LAUNCH(s, (noise<f8e5m2>), blocks, 256, 0, (f8e5m2 *)x, n, seed);
	else
		VFM_LAUNCH(s, (noise<float>), blocks, 256, 0, (float *)x, n, seed);
	return vfm_cuda_launched(s, "gemm", err);
}

/* Returns 1 if a batch has to be computed one by one. */
static int run_gemm_op(struct vfm_stream *s, struct vfm_gemm_op *op, struct vfm_err *err)
{
	struct vfm_gemm_choice c;
	int rc = vfm_lt_choose(s, op, false, &c, err);
	void *ws;

	if (rc < 0)
		return rc;
	if (!rc && op->batch.count > 1)
		return 1;
	ws = vfm_cuda_ws(s, vfm_gemm_ws(op, &c), err);
	if (!ws)
		return VFM_EENV;
	TRY(vfm_gemm_enqueue(s, op, &c, ws, err));
	return vfm_cuda_launched(s, "gemm", err);
}

/* Row sums without a product. */
static int only_sums(struct vfm_stream *s, const struct vfm_gemm_op *op, struct vfm_err *err)
{
	void *part = vfm_cuda_ws(s, vector_bytes(op), err);

	if (!part)
		return VFM_EENV;
	sum_rows(s, op, (float *)part);
	return vfm_cuda_launched(s, "gemm", err);
}

static int one_gemm(struct vfm_stream *s, const struct vfm_gemm *a, bool tune, struct vfm_err *err)
{
	struct vfm_gemm_op op = {};

	op.g = *a;
	op.batch.count = 1;
	op.tune = tune;
	op.ws = tune ? VFM_LT_WS : VFM_LT_WS_SMALL;
	if (dim_m(a) == 0)
		return 0;
	if (dim_k(a) == 0) { /* empty sums: the epilogue still applies */
		if (dim_n(a) && (!a->accumulate || vfm_has(&a->bias)))
			own_epilogue(s, a, NULL);
		return vfm_cuda_launched(s, "gemm", err);
	}
	if (dim_n(a) == 0)
		return vfm_has(&a->a_rowsum) ? only_sums(s, &op, err) : 0;
	return run_gemm_op(s, &op, err);
}

extern "C" int vfm_cuda_gemm(struct vfm_stream *s, const struct vfm_gemm *a, struct vfm_err *err)
{
	return one_gemm(s, a, true, err);
}

/* ---- groups --------------------------------------------------------------------------------------------------- */

/* Returns the view of group g: [G,R,C] -> [R,C], [G,C] -> [C]. */
static struct vfm_tensor view_group_operand(const struct vfm_tensor *t, int64_t g)
{
	struct vfm_tensor r = {};

	if (!vfm_has(t))
		return r;
	r.data = at_row(t, g);
	r.dtype = t->dtype;
	r.ndim = t->ndim - 1;
	for (int i = 0; i < r.ndim; i++) {
		r.shape[i] = t->shape[i + 1];
		r.stride[i] = t->stride[i + 1];
	}
	return r;
}

static struct vfm_gemm group_of(const struct vfm_grouped_gemm *a, int64_t g)
{
	int64_t first = a->groups->cu[g], n = a->groups->cu[g + 1] - first;
	struct vfm_gemm r = {};

	r.a = some_rows(&a->a, first, n);
	r.accumulate = a->accumulate;
	if (a->what == VFM_GROUPED_WGRAD) {
		r.trans_a = true;
		r.b = some_rows(&a->b, first, n);
		r.c = view_group_operand(&a->c, g);
		r.a_rowsum = view_group_operand(&a->a_colsum, g);
	} else {
		r.trans_b = a->what == VFM_GROUPED_FWD;
		r.b = view_group_operand(&a->b, g);
		r.c = some_rows(&a->c, first, n);
		r.bias = view_group_operand(&a->bias, g);
		r.act = a->act;
		r.dact = a->dact;
		r.aux = some_rows(&a->aux, first, n);
	}
	return r;
}

/* Computes all groups in one call if they are equal and the library supports it.  1: done; 0: no. */
static int equal_groups(struct vfm_stream *s, const struct vfm_grouped_gemm *a, struct vfm_err *err)
{
	int64_t n = a->groups->cu[1] - a->groups->cu[0];
	struct vfm_gemm_op j = {};
	int rc;

	for (int g = 1; g < a->groups->n; g++)
		if (a->groups->cu[g + 1] - a->groups->cu[g] != n)
			return 0;
	j.g = group_of(a, 0);
	j.tune = true;
	j.ws = VFM_LT_WS;
	j.batch.count = a->groups->n;
	j.batch.a = n * a->a.stride[0];
	j.batch.b = a->what == VFM_GROUPED_WGRAD ? n * a->b.stride[0] : a->b.stride[0];
	j.batch.c = a->what == VFM_GROUPED_WGRAD ? a->c.stride[0] : n * a->c.stride[0];
	j.batch.bias = vfm_has(&a->bias) ? a->bias.stride[0] : 0;
	j.batch.aux = vfm_has(&a->aux) ? n * a->aux.stride[0] : 0;
	j.batch.rowsum = vfm_has(&a->a_colsum) ? a->a_colsum.stride[0] : 0;
	if (dim_m(&j.g) == 0 || dim_n(&j.g) == 0 || dim_k(&j.g) == 0)
		return 0;
	rc = run_gemm_op(s, &j, err);
	return rc < 0 ? rc : rc == 0;
}

/* Computes the groups one after another, products of the library on several streams, since one product alone uses
 * little of the device. */
static int uneven_groups(struct vfm_stream *s, const struct vfm_grouped_gemm *a, struct vfm_err *err)
{
	struct vfm_stream *const *sides = NULL;
	int n = 0, next = 0, rc = 0, end;

	if (a->groups->n > 2)
		n = vfm_lt_fork(s, &sides, err);
	if (n < 0)
		return n;
	for (int g = 0; g < a->groups->n && rc >= 0; g++) {
		struct vfm_gemm one = group_of(a, g);

		if (a->groups->cu[g + 1] > a->groups->cu[g] || a->what == VFM_GROUPED_WGRAD)
			rc = one_gemm(n ? sides[next++ % n] : s, &one, false, err);
	}
	end = n ? vfm_lt_join(s, rc < 0 ? NULL : err) : 0;
	return rc < 0 ? rc : end;
}

extern "C" int vfm_cuda_grouped_gemm(struct vfm_stream *s, const struct vfm_grouped_gemm *a, struct vfm_err *err)
{
	int rc = 0;

	if (a->groups->n > 1)
		rc = equal_groups(s, a, err);
	return rc < 0 ? rc : rc ? 0 : uneven_groups(s, a, err);
}
