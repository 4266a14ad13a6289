/* gemm.cu - gemm and grouped_gemm: the choice of an implementation (gemm_plan.h), products of the library (gemm_lt.h),
 * and our kernels for other epilogues, row sums, and products that the library does not support.
 *
 * Sums over K are divided into parts whose number depends on shapes and the device alone.
 */
#include "cuda/act.h"
#include "cuda/f8.h"
#include "cuda/gemm_lt.h"

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

/* C = epilogue(P); p NULL: P is 0. */
struct epilogue {
	const float *p, *bias;
	int64_t rows, cols, ldc, ld_aux;
	enum vfm_act act, dact;
	bool accumulate;
};

template <int N, class C> __global__ static void __launch_bounds__(256) finish(struct epilogue e, C *c, C *aux)
{
	int64_t per_row = e.cols / N, n = e.rows * per_row;

	for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
		int64_t r = i / per_row, j = i % per_row * N;
		vec<N> z = {};

		if (e.p)
			z = ld_vec<N>(e.p + r * e.cols + j);
		if (e.bias) {
			vec<N> b = ld_vec<N>(e.bias + j);

#pragma unroll
			for (int k = 0; k < N; k++)
				z.v[k] += b.v[k];
		}
		if (e.dact) {
			vec<N> x = ld_vec<N>(aux + r * e.ld_aux + j);

#pragma unroll
			for (int k = 0; k < N; k++)
				z.v[k] *= dact_of(e.dact, x.v[k]);
		} else if (aux) {
			st_vec<N>(aux + r * e.ld_aux + j, z);
		}
		if (e.act) {
#pragma unroll
			for (int k = 0; k < N; k++)
				z.v[k] = act_of(e.act, z.v[k]);
		}
		if (e.accumulate) {
			vec<N> x = ld_vec<N>(c + r * e.ldc + j);

#pragma unroll
			for (int k = 0; k < N; k++)
				z.v[k] += x.v[k];
		}
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
		for (int64_t l = from + threadIdx.x / 32; l < to; l += 8) {
			vec<N> x = ld_vec<N>(a + l * lda + col);

#pragma unroll
			for (int i = 0; i < N; i++)
				s.v[i] += x.v[i];
		}
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

__global__ static void __launch_bounds__(256) round_bias(const float *x, bf16 *y, int64_t n)
{
	int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		st(y + i, x[i]);
}

/* ---- what an op is, with its memory ---------------------------------------------------------------- */

enum {
	CHUNK = 64 << 20, /* bytes of the f32 product for our epilogue */
	PARTS = 64,       /* most slices of rows */
};

struct job {
	struct vfm_gemm g;
	struct vfm_gemm_batch batch;
	bool tune;
	size_t ws_lt; /* bytes of the library, first … */
	size_t small; /* … then bytes of vectors … */
	char *ws;     /* … in here */
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

static size_t round_256(size_t n)
{
	return (n + 255) / 256 * 256;
}

static size_t chunk_bytes(const struct vfm_gemm *g)
{
	int64_t rows = CHUNK / 4 / dim_n(g);

	rows = rows < 1 ? 1 : rows < dim_m(g) ? rows : dim_m(g);
	return (size_t)(rows * dim_n(g)) * 4;
}

static size_t vector_bytes(const struct job *j)
{
	int64_t rowsum = vfm_has(&j->g.a_rowsum) ? j->batch.count * dim_m(&j->g) * PARTS * 4 : 0;
	int64_t bias = vfm_has(&j->g.bias) ? j->batch.count * dim_n(&j->g) * 2 : 0;

	return round_256((size_t)(rowsum > bias ? rowsum : bias));
}

/* Allocates scratch memory: for the library, vectors, and on request a chunk of the product. */
static int take_ws(struct vfm_stream *s, struct job *j, bool chunk, struct vfm_err *err)
{
	j->small = vector_bytes(j);
	j->ws = (char *)vfm_cuda_ws(s, j->ws_lt + j->small + (chunk ? chunk_bytes(&j->g) : 0), err);
	return j->ws ? 0 : VFM_EENV;
}

/* ---- sums of rows ------------------------------------------------------------------------------------ */

template <class A> static void sum_rows_of(struct vfm_stream *s, const struct job *j, float *part)
{
	const struct vfm_gemm *g = &j->g;
	const A *a = (const A *)g->a.data;
	int64_t m = dim_m(g), k = dim_k(g), per = m;
	const int wide = 16 / sizeof(A);
	bool vectors = vec_ok(&g->a, wide) && j->batch.a % wide == 0;
	int64_t across, slices;

	if (!g->trans_a) { /* single products only: groups have their rows as columns of op(A) */
		VFM_LAUNCH(
			s, (row_sums<A>), ceil_div(m, 8), 256, 0, a, g->a.stride[0], m, k, (float *)g->a_rowsum.data);
		return;
	}
	across = ceil_div(m, 32 * (vectors ? wide : 1));
	slices = ceil_div((int64_t)vfm_cuda_sms(s) * 4, across * j->batch.count);
	if (slices > PARTS)
		slices = PARTS;
	slices = slices > ceil_div(k, 64) ? ceil_div(k, 64) : slices;
	if (vectors)
		VFM_LAUNCH(s, (column_sums<16 / sizeof(A), A>), dim3(across, slices, j->batch.count), 256, 0, a,
			g->a.stride[0], j->batch.a, m, k, part);
	else
		VFM_LAUNCH(s, (column_sums<1, A>), dim3(across, slices, j->batch.count), 256, 0, a, g->a.stride[0],
			j->batch.a, m, k, part);
	VFM_LAUNCH(s, (add_parts), dim3(ceil_div(per, 256), 1, j->batch.count), 256, 0, part, (int)slices, m,
		(float *)g->a_rowsum.data, j->batch.rowsum);
}

static void sum_rows(struct vfm_stream *s, const struct job *j)
{
	VFM_ACT_TYPE(j->g.a.dtype, A, sum_rows_of<A>(s, j, (float *)(j->ws + j->ws_lt)));
}

/* The same into scratch memory, for timing. */
struct try_sums {
	struct vfm_stream *s;
	const struct job *j;
};
static int try_sum_rows(void *ctx, void *scratch, struct vfm_err *err)
{
	struct try_sums *t = (struct try_sums *)ctx;
	struct job j = *t->j;

	j.ws = (char *)scratch;
	j.ws_lt = 0;
	j.g.a_rowsum.data = j.ws + vector_bytes(&j);
	sum_rows(t->s, &j);
	return vfm_cuda_launched(t->s, "gemm", err);
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

template <int N, class C>
static void launch_finish(struct vfm_stream *s, const struct vfm_gemm *g, const struct epilogue *e)
{
	int64_t blocks = ceil_div(e->rows * (e->cols / N), 256), most = (int64_t)vfm_cuda_sms(s) * 8;

	VFM_LAUNCH(s, (finish<N, C>), blocks < most ? blocks : most, 256, 0, *e, (C *)g->c.data,
		(C *)(vfm_has(&g->aux) ? g->aux.data : NULL));
}

static void own_epilogue(struct vfm_stream *s, const struct vfm_gemm *g, const float *p)
{
	struct epilogue e = {p, vfm_has(&g->bias) ? (const float *)g->bias.data : NULL, dim_m(g), dim_n(g),
		g->c.stride[0], vfm_has(&g->aux) ? g->aux.stride[0] : 0, g->act, g->dact, g->accumulate};
	bool wide = vec_ok(&g->c, 8) && (!vfm_has(&g->aux) || vec_ok(&g->aux, 8)) && (uintptr_t)e.bias % 16 == 0 &&
		(uintptr_t)p % 16 == 0;

	VFM_ACT_TYPE(g->c.dtype, C, if (wide) launch_finish<8, C>(s, g, &e); else launch_finish<1, C>(s, g, &e));
}

static char *at_row(const struct vfm_tensor *t, int64_t row)
{
	return (char *)t->data + (size_t)(row * t->stride[0]) * vfm_dtype_size(t->dtype);
}

/* Returns rows [first, first + rows) of g. */
static struct vfm_gemm slice_rows(const struct vfm_gemm *g, int64_t first, int64_t rows)
{
	struct vfm_gemm r = *g;

	r.a.data = g->trans_a ? (char *)g->a.data + (size_t)first * vfm_dtype_size(g->a.dtype) : at_row(&g->a, first);
	r.a.shape[g->trans_a ? 1 : 0] = rows;
	r.c.data = at_row(&g->c, first);
	r.c.shape[0] = rows;
	if (vfm_has(&g->aux)) {
		r.aux.data = at_row(&g->aux, first);
		r.aux.shape[0] = rows;
	}
	return r;
}

/* P = op(A) op(B), by the library if it supports the product. */
static int f32_product(
	struct vfm_stream *s, const struct job *j, const struct vfm_gemm *g, float *p, struct vfm_err *err)
{
	static const struct vfm_gemm_batch one = {1, 0, 0, 0, 0, 0, 0};
	struct vfm_gemm plain = {};
	struct vfm_lt_args x = {};
	struct vfm_lt_problem q;
	double us;
	int rc = 0;

	if (vfm_lt_find) {
		plain.a = g->a, plain.b = g->b, plain.trans_a = g->trans_a, plain.trans_b = g->trans_b;
		plain.scale_a = g->scale_a, plain.scale_b = g->scale_b;
		plain.c = vfm_t2(p, VFM_F32, dim_m(g), dim_n(g));
		q = vfm_lt_problem_of(&plain, &one, 0);
		x.a = g->b.data, x.b = g->a.data, x.c = p;
		x.scale_a = (const float *)g->scale_b.data, x.scale_b = (const float *)g->scale_a.data;
		x.ws = j->ws, x.ws_bytes = j->ws_lt;
		rc = vfm_lt_find(s, &q, &x, j->tune, &us, err);
		if (rc > 0)
			return vfm_lt_run(s, &q, &x, err);
	}
	if (rc == 0)
		own_product(s, g, p);
	return rc;
}

static int by_own_epilogue(struct vfm_stream *s, const struct job *j, struct vfm_err *err)
{
	const struct vfm_gemm *g = &j->g;
	int64_t m = dim_m(g), step = (int64_t)(chunk_bytes(g) / 4) / dim_n(g);
	float *p = (float *)(j->ws + j->ws_lt + j->small);

	for (int64_t i = 0; i < m; i += step) {
		struct vfm_gemm part = slice_rows(g, i, m - i < step ? m - i : step);

		TRY(f32_product(s, j, &part, p, err));
		own_epilogue(s, &part, p);
	}
	return 0;
}

/* ---- the ways ---------------------------------------------------------------------------------------------- */

static struct vfm_lt_args args_of(const struct job *j, const struct vfm_lt_problem *p)
{
	struct vfm_lt_args x = {};
	const struct vfm_gemm *g = &j->g;

	x.a = g->b.data, x.b = g->a.data, x.c = g->c.data;
	x.scale_a = (const float *)g->scale_b.data, x.scale_b = (const float *)g->scale_a.data;
	x.aux = p->epi & (VFM_LT_AUX | VFM_LT_DGELU) ? g->aux.data : NULL;
	if (p->epi & VFM_LT_BGRADB || vfm_lt_bias_bf16(p))
		x.bias = j->ws ? j->ws + j->ws_lt : NULL;
	else
		x.bias = vfm_has(&g->bias) ? g->bias.data : NULL;
	x.ws = j->ws, x.ws_bytes = j->ws_lt;
	return x;
}

static int by_library(struct vfm_stream *s, const struct job *j, const struct vfm_lt_problem *p, struct vfm_err *err)
{
	struct vfm_lt_args x = args_of(j, p);
	int64_t m = dim_m(&j->g), n = dim_n(&j->g) * j->batch.count;

	if (vfm_lt_bias_bf16(p))
		VFM_LAUNCH(s, (round_bias), ceil_div(n, 256), 256, 0, (const float *)j->g.bias.data, (bf16 *)x.bias, n);
	TRY(vfm_lt_run(s, p, &x, err));
	if (p->epi & VFM_LT_BGRADB)
		VFM_LAUNCH(s, (add_parts), dim3(ceil_div(m, 256)), 256, 0, (const float *)x.bias, 1, m,
			(float *)j->g.a_rowsum.data, (int64_t)0);
	return 0;
}

/* Whether row sums by the library pay off: they take less time than the plain product and our kernel together. */
static int sums_pay(
	struct vfm_stream *s, const struct job *j, double with, double plain, bool *yes, struct vfm_err *err)
{
	struct try_sums t = {s, j};
	char key[VFM_LT_KEY];
	struct vfm_lt_timed what = {key, try_sum_rows, &t, vector_bytes(j) + (size_t)dim_m(&j->g) * 4};
	double us = -1;

	*yes = false;
	if (with < 0 || plain < 0)
		return 0;
	vfm_lt_rowsum_key(&j->g, key);
	TRY(vfm_lt_measure(s, &what, j->tune, &us, err));
	*yes = us >= 0 && with < plain + us;
	return 0;
}

/* Finds the first implementation that the library supports.  1: sets *p and *rowsum (our kernel is needed); 0: none. */
static int find_way(
	struct vfm_stream *s, const struct job *j, struct vfm_lt_problem *p, bool *rowsum, struct vfm_err *err)
{
	struct vfm_gemm_path path[VFM_GEMM_PATHS];
	struct vfm_lt_problem bgrad = {};
	double us, bgrad_us = -1;
	int n = vfm_gemm_paths(&j->g, &j->batch, path), rc;
	bool yes = false;

	for (int i = 0; i < n && !path[i].own_epi && vfm_lt_find; i++) {
		struct vfm_lt_problem q = vfm_lt_problem_of(&j->g, &j->batch, path[i].epi);
		struct vfm_lt_args x = args_of(j, &q);

		rc = vfm_lt_find(s, &q, &x, j->tune, &us, err);
		if (rc < 0)
			return rc;
		if (rc && path[i].epi & VFM_LT_BGRADB) {
			bgrad = q;
			bgrad_us = us;
		} else if (rc) {
			*p = q;
			*rowsum = path[i].own_rowsum;
			if (bgrad_us >= 0)
				TRY(sums_pay(s, j, bgrad_us, us, &yes, err));
			if (yes) {
				*p = bgrad;
				*rowsum = false;
			}
			return 1;
		}
	}
	return 0;
}

static int run_gemm_job(struct vfm_stream *s, struct job *j, struct vfm_err *err)
{
	struct vfm_lt_problem p;
	bool rowsum = vfm_has(&j->g.a_rowsum);
	int rc;

	rc = find_way(s, j, &p, &rowsum, err);
	if (rc < 0)
		return rc;
	if (!rc && j->batch.count > 1)
		return 1;
	TRY(take_ws(s, j, !rc, err));
	if (rowsum)
		sum_rows(s, j);
	if (rc)
		TRY(by_library(s, j, &p, err));
	else
		s->dev->slow_gemm += vfm_lt_find && j->g.act != VFM_ACT_SILU && j->g.dact != VFM_ACT_SILU;
	if (!rc)
		TRY(by_own_epilogue(s, j, err));
	return vfm_cuda_launched(s, "gemm", err);
}

static int one_gemm(struct vfm_stream *s, const struct vfm_gemm *a, bool tune, struct vfm_err *err)
{
	struct job j = {};

	j.g = *a;
	j.batch.count = 1;
	j.tune = tune;
	j.ws_lt = !vfm_lt_find ? 0 : tune ? VFM_LT_WS : VFM_LT_WS_SMALL;
	if (dim_m(a) == 0)
		return 0;
	if (dim_k(a) == 0) { /* empty sums: the epilogue still applies */
		if (dim_n(a) && (!a->accumulate || vfm_has(&a->bias)))
			own_epilogue(s, a, NULL);
		return vfm_cuda_launched(s, "gemm", err);
	}
	if (dim_n(a) == 0) {
		if (!vfm_has(&a->a_rowsum))
			return 0;
		TRY(take_ws(s, &j, false, err));
		sum_rows(s, &j);
		return vfm_cuda_launched(s, "gemm", err);
	}
	return run_gemm_job(s, &j, err);
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

static struct vfm_tensor some_rows(const struct vfm_tensor *t, int64_t first, int64_t n)
{
	struct vfm_tensor r = *t;

	if (vfm_has(t)) {
		r.data = at_row(t, first);
		r.shape[0] = n;
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
	struct job j = {};
	int rc;

	for (int g = 1; g < a->groups->n; g++)
		if (a->groups->cu[g + 1] - a->groups->cu[g] != n)
			return 0;
	j.g = group_of(a, 0);
	j.tune = true;
	j.ws_lt = VFM_LT_WS;
	j.batch.count = a->groups->n;
	j.batch.a = n * a->a.stride[0];
	j.batch.b = a->what == VFM_GROUPED_WGRAD ? n * a->b.stride[0] : a->b.stride[0];
	j.batch.c = a->what == VFM_GROUPED_WGRAD ? a->c.stride[0] : n * a->c.stride[0];
	j.batch.bias = vfm_has(&a->bias) ? a->bias.stride[0] : 0;
	j.batch.aux = vfm_has(&a->aux) ? n * a->aux.stride[0] : 0;
	j.batch.rowsum = vfm_has(&a->a_colsum) ? a->a_colsum.stride[0] : 0;
	if (dim_m(&j.g) == 0 || dim_n(&j.g) == 0 || dim_k(&j.g) == 0)
		return 0;
	rc = run_gemm_job(s, &j, err);
	return rc < 0 ? rc : rc == 0;
}

/* Computes the groups one after another, products of the library on several streams, since one product alone uses
 * little of the device. */
static int uneven_groups(struct vfm_stream *s, const struct vfm_grouped_gemm *a, struct vfm_err *err)
{
	struct vfm_stream *const *sides = NULL;
	int n = 0, next = 0, rc = 0, end;

	if (vfm_lt_fork && a->groups->n > 2)
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

	if (a->groups->n > 1 && vfm_lt_find)
		rc = equal_groups(s, a, err);
	return rc < 0 ? rc : rc ? 0 : uneven_groups(s, a, err);
}
