/* elem.cu - elementwise ops: activations, sums of parts, axpby and casts, SwiGLU, sinusoids.  A thread has several
 * 16-byte vectors in flight.  Contiguous tensors are one long row; other tensors are processed row by row.
 */
#include "device/cuda/kern/act.h"

enum { THREADS = 256, UNROLL = 2 };

/* Iterates over the vectors of a thread: its first, then one every THREADS.  One thread handles the elements after the
 * last whole vector. */
static int64_t long_grid(int64_t n, int width)
{
	return ceil_div(n, (int64_t)width * THREADS * UNROLL);
}

/* ---- activations ---- */

struct unary_args {
	const void *x, *dy; /* dy NULL: forward */
	void *y;
	int64_t n;
	enum vfm_act act;
	bool y_bf;
};

template <int N> __device__ static inline vec<N> unary_of(enum vfm_act act, vec<N> x, const vec<N> *dy)
{
#pragma unroll
	for (int k = 0; k < N; k++)
		x.v[k] = dy ? dy->v[k] * dact_of(act, x.v[k]) : act_of(act, x.v[k]);
	return x;
}

template <int N, class X, class DY>
__global__ static void __launch_bounds__(THREADS, 5) unary(const struct unary_args a)
{
	const X *x = (const X *)a.x;
	const DY *dy = (const DY *)a.dy;
	int64_t first = ((int64_t)blockIdx.x * THREADS * UNROLL + threadIdx.x) * N, whole = a.n - a.n % N;
	packed<X, N> in[UNROLL];
	packed<DY, N> g[UNROLL];

#pragma unroll
	for (int u = 0; u < UNROLL; u++) {
		int64_t i = first + (int64_t)u * THREADS * N;

		if (i < whole) {
			in[u] = ld_packed<N>(x + i);
			if (dy)
				g[u] = ld_packed<N>(dy + i);
		}
	}
#pragma unroll
	for (int u = 0; u < UNROLL; u++) {
		int64_t i = first + (int64_t)u * THREADS * N;

		if (i < whole && dy) {
			vec<N> d = widen(g[u]);

			st_any<N>(a.y, a.y_bf, i, unary_of<N>(a.act, widen(in[u]), &d));
		} else if (i < whole) {
			st_any<N>(a.y, a.y_bf, i, unary_of<N>(a.act, widen(in[u]), nullptr));
		}
	}
	if (blockIdx.x || threadIdx.x)
		return;
	for (int64_t i = whole; i < a.n; i++) {
		vec<1> d = {{dy ? ld(dy + i) : 0.0f}};

		st_any<1>(a.y, a.y_bf, i, unary_of<1>(a.act, vec<1>{{ld(x + i)}}, dy ? &d : nullptr));
	}
}

/* Returns whether contiguous operands, which may be absent, are aligned to 16 bytes. */
template <class... T> static bool aligned_contiguous(const T *...t)
{
	return (((uintptr_t)data_of<void>(*t) % 16 == 0) && ...);
}

extern "C" int vfm_cuda_unary(struct vfm_stream *s, const struct vfm_unary *u, struct vfm_err *err)
{
	struct unary_args a = {
		u->x.data, data_of<const void>(u->dy), u->y.data, vfm_numel(&u->x), u->act, is_bf(&u->y)};

	if (a.n)
		VFM_WIDTH(aligned_contiguous(&u->x, &u->dy, &u->y), 8, N,
			VFM_ACT_TYPE(u->x.dtype, X,
				VFM_ACT_TYPE(a.dy ? u->dy.dtype : u->x.dtype, DY,
					VFM_LAUNCH(s, (unary<N, X, DY>), long_grid(a.n, N), THREADS, 0, a))));
	return vfm_cuda_launched(s, "unary", err);
}

/* ---- sums of parts ---- */

struct parts_args {
	const void *x, *own; /* own NULL: all parts are in x */
	void *y;
	int64_t n, stride; /* elements of a part, and from one part to the next */
	int parts, at;
};

template <class X> __device__ static inline const X *part_element(const struct parts_args &a, int r)
{
	return a.own && r == a.at ? (const X *)a.own : (const X *)a.x + (a.own && r > a.at ? r - 1 : r) * a.stride;
}

/* Several parts are in flight at a time. */
template <int N, class X, class Y>
__global__ static void __launch_bounds__(THREADS) sum_parts(const struct parts_args a)
{
	enum { BATCH = 8 / sizeof(X) };
	int64_t first = ((int64_t)blockIdx.x * THREADS * UNROLL + threadIdx.x) * N, whole = a.n - a.n % N;
	Y *y = (Y *)a.y;
	vec<N> sum[UNROLL] = {};

	for (int r0 = 0; r0 < a.parts; r0 += BATCH) {
		packed<X, N> in[BATCH][UNROLL];

#pragma unroll
		for (int r = 0; r < BATCH; r++)
#pragma unroll
			for (int u = 0; u < UNROLL; u++) {
				int64_t i = first + (int64_t)u * THREADS * N;

				if (r0 + r < a.parts && i < whole)
					in[r][u] = ld_packed<N>(part_element<X>(a, r0 + r) + i);
				else
					in[r][u] = packed_zero<X, N>();
			}
#pragma unroll
		for (int r = 0; r < BATCH; r++)
#pragma unroll
			for (int u = 0; u < UNROLL; u++)
#pragma unroll
				for (int k = 0; k < N; k++)
					if (r0 + r == 0)
						sum[u].v[k] = in[r][u].at(k); /* a sum of -0 only is -0 */
					else if (r0 + r < a.parts)
						sum[u].v[k] += in[r][u].at(k);
	}
#pragma unroll
	for (int u = 0; u < UNROLL; u++) {
		int64_t i = first + (int64_t)u * THREADS * N;

		if (i < whole)
			st_vec<N>(y + i, sum[u]);
	}
	if (blockIdx.x || threadIdx.x)
		return;
	for (int64_t i = whole; i < a.n; i++) {
		float s = a.parts ? ld(part_element<X>(a, 0) + i) : 0.0f;

		for (int r = 1; r < a.parts; r++)
			s += ld(part_element<X>(a, r) + i);
		st(y + i, s);
	}
}

extern "C" int vfm_cuda_sum_parts(struct vfm_stream *s, const struct vfm_sum_parts *b, struct vfm_err *err)
{
	struct parts_args a = {b->x.data, data_of<const void>(b->own), b->y.data, b->y.shape[0], b->x.stride[0],
		(int)b->x.shape[0] + vfm_has(&b->own), b->at};
	bool wide = aligned_contiguous(&b->x, &b->own, &b->y) && (b->x.shape[0] < 2 || a.stride % 8 == 0);

	if (a.n)
		VFM_WIDTH(wide, 8, N,
			VFM_ACT_TYPE(b->x.dtype, X,
				VFM_ACT_TYPE(b->y.dtype, Y,
					VFM_LAUNCH(s, (sum_parts<N, X, Y>), long_grid(a.n, N), THREADS, 0, a))));
	return vfm_cuda_launched(s, "sum_parts", err);
}

/* ---- alpha x + beta y ---- */

struct axpby_args {
	const void *x;
	void *y;
	float alpha, beta;
	int64_t n, cols; /* n elements in rows of cols */
	/* blocks along a row; the outermost of the dimensions around a row: shape[outer] to shape[2] */
	int slabs, outer;
	int64_t shape[3], xs[3], ys[3];
};

template <int N, class X, class Y> __device__ static inline void axpby_at(const struct axpby_args &a, const X *x, Y *y)
{
	vec<N> v = {}, w = {};

	if (a.alpha != 0) /* unread operands may hold NaN */
		v = ld_vec<N>(x);
	if (a.beta != 0)
		w = ld_vec<N>((const Y *)y);
#pragma unroll
	for (int k = 0; k < N; k++)
		v.v[k] = a.alpha * v.v[k] + (a.beta != 0 ? a.beta * w.v[k] : 0.0f);
	st_vec<N>(y, v);
}

template <int N, class X, class Y>
__global__ static void __launch_bounds__(THREADS) axpby_long(const struct axpby_args a)
{
	const X *x = (const X *)a.x;
	Y *y = (Y *)a.y;
	int64_t first = ((int64_t)blockIdx.x * THREADS * UNROLL + threadIdx.x) * N, whole = a.n - a.n % N;
	packed<X, N> v[UNROLL];
	packed<Y, N> w[UNROLL];

#pragma unroll
	for (int u = 0; u < UNROLL; u++) {
		int64_t i = first + (int64_t)u * THREADS * N;

		v[u] = i < whole && a.alpha != 0 ? ld_packed<N>(x + i) : packed_zero<X, N>();
		w[u] = i < whole && a.beta != 0 ? ld_packed<N>((const Y *)y + i) : packed_zero<Y, N>();
	}
#pragma unroll
	for (int u = 0; u < UNROLL; u++) {
		int64_t i = first + (int64_t)u * THREADS * N;
		vec<N> p = widen(v[u]), q = widen(w[u]);

#pragma unroll
		for (int k = 0; k < N; k++)
			p.v[k] = a.alpha * p.v[k] + a.beta * q.v[k];
		if (i < whole)
			st_vec<N>(y + i, p);
	}
	if (blockIdx.x == 0 && threadIdx.x == 0)
		for (int64_t i = whole; i < a.n; i++)
			axpby_at<1>(a, x + i, y + i);
}

/* Block (threads along a row, rows). */
template <int N, class X, class Y>
__global__ static void __launch_bounds__(THREADS) axpby_rows(const struct axpby_args a)
{
	int64_t c = (blockIdx.x % (unsigned)a.slabs * blockDim.x + threadIdx.x) * (int64_t)N, xo = 0, yo = 0;
	int64_t r = blockIdx.x / (unsigned)a.slabs * (int64_t)blockDim.y + threadIdx.y;

	if (c >= a.cols || r * a.cols >= a.n)
		return;
#pragma unroll
	for (int i = 2; i >= 0; i--) {
		int64_t at = i > a.outer ? r % a.shape[i] : r;

		if (i < a.outer)
			continue;
		xo += at * a.xs[i];
		yo += at * a.ys[i];
		if (i > a.outer)
			r /= a.shape[i];
	}
	axpby_at<N>(a, (const X *)a.x + xo + c, (Y *)a.y + yo + c);
}

template <int N, class X, class Y> static void launch_axpby(struct vfm_stream *s, struct axpby_args &a)
{
	int threads = a.cols >= THREADS * N ? THREADS : in_warps(ceil_div(a.cols, N)), rows = THREADS / threads;

	a.slabs = (int)ceil_div(a.cols, (int64_t)threads * N);
	if (a.cols == a.n)
		VFM_LAUNCH(s, (axpby_long<N, X, Y>), long_grid(a.n, N), THREADS, 0, a);
	else
		VFM_LAUNCH(s, (axpby_rows<N, X, Y>), a.slabs * ceil_div(a.n / a.cols, rows), dim3(threads, rows), 0, a);
}

extern "C" int vfm_cuda_axpby(struct vfm_stream *s, const struct vfm_axpby *b, struct vfm_err *err)
{
	const struct vfm_tensor *x = &b->x, *y = &b->y;
	struct axpby_args a = {
		x->data, y->data, b->alpha, b->beta, vfm_numel(x), 1, 0, 2, {1, 1, 1}, {0, 0, 0}, {0, 0, 0}};
	int d = x->ndim - 2, k = 3;
	bool wide = aligned_contiguous(x, y);

	if (!a.n)
		return 0;
	a.cols = x->shape[d + 1];
	/* Merges dimensions that are contiguous in both tensors. */
	while (d >= 0 && (x->shape[d] == 1 || (x->stride[d] == a.cols && y->stride[d] == a.cols)))
		a.cols *= x->shape[d--];
	for (; d >= 0; d--)
		if (x->shape[d] > 1)
			a.shape[--k] = x->shape[d], a.xs[k] = x->stride[d], a.ys[k] = y->stride[d], a.outer = k;
	for (int i = 0; i < 3 && a.cols < a.n; i++)
		wide = wide && a.cols % 8 == 0 && a.xs[i] % 8 == 0 && a.ys[i] % 8 == 0;
	VFM_WIDTH(wide, 8, N, VFM_ACT_TYPE(x->dtype, X, VFM_ACT_TYPE(y->dtype, Y, (launch_axpby<N, X, Y>(s, a)))));
	return vfm_cuda_launched(s, "axpby", err);
}

/* ---- SwiGLU ---- */

struct swiglu_args {
	const void *x, *dy;
	void *out; /* y, or dx */
	int64_t rows, f, xs, dys, os;
	int slabs; /* blocks side by side */
	bool dy_bf, out_bf;
};

/* Block (threads along a row, rows); each thread processes UNROLL rows, blockDim.y apart. */
template <int N, class X, enum vfm_act ACT>
__global__ static void __launch_bounds__(THREADS) swiglu(const struct swiglu_args a)
{
	int64_t c = (blockIdx.x % (unsigned)a.slabs * blockDim.x + threadIdx.x) * (int64_t)N;
	int64_t r = blockIdx.x / (unsigned)a.slabs * (int64_t)(blockDim.y * UNROLL) + threadIdx.y;
	packed<X, N> g[UNROLL], b[UNROLL];

	if (c >= a.f)
		return;
#pragma unroll
	for (int u = 0; u < UNROLL; u++) {
		const X *x = (const X *)a.x + (r + u * blockDim.y) * a.xs + c;

		if (r + u * blockDim.y < a.rows)
			g[u] = ld_packed<N>(x), b[u] = ld_packed<N>(x + a.f);
	}
#pragma unroll
	for (int u = 0; u < UNROLL; u++) {
		vec<N> p, q;

		if (r + u * blockDim.y >= a.rows)
			continue;
		p = widen(g[u]), q = widen(b[u]);
#pragma unroll
		for (int k = 0; k < N; k++)
			p.v[k] = act_of(ACT, p.v[k]) * q.v[k];
		st_any<N>(a.out, a.out_bf, (r + u * blockDim.y) * a.os + c, p);
	}
}

template <int N, class X, class DY>
__global__ static void __launch_bounds__(THREADS) swiglu_bwd(const struct swiglu_args a)
{
	int64_t c = (blockIdx.x % (unsigned)a.slabs * blockDim.x + threadIdx.x) * (int64_t)N;
	int64_t r = blockIdx.x / (unsigned)a.slabs * (int64_t)(blockDim.y * UNROLL) + threadIdx.y;
	packed<X, N> g[UNROLL], b[UNROLL];
	packed<DY, N> d[UNROLL];

	if (c >= a.f)
		return;
#pragma unroll
	for (int u = 0; u < UNROLL; u++) {
		int64_t row = r + u * blockDim.y;
		const X *x = (const X *)a.x + row * a.xs + c;

		if (row < a.rows)
			g[u] = ld_packed<N>(x), b[u] = ld_packed<N>(x + a.f),
			d[u] = ld_packed<N>((const DY *)a.dy + row * a.dys + c);
	}
#pragma unroll
	for (int u = 0; u < UNROLL; u++) {
		int64_t row = r + u * blockDim.y;
		vec<N> p, q, dy;

		if (row >= a.rows)
			continue;
		p = widen(g[u]), q = widen(b[u]), dy = widen(d[u]);
#pragma unroll
		for (int k = 0; k < N; k++) {
			float s = sigmoid(p.v[k]), silu = p.v[k] * s;

			q.v[k] *= dy.v[k] * (s + silu * (1.0f - s));
			p.v[k] = dy.v[k] * silu;
		}
		st_any<N>(a.out, a.out_bf, row * a.os + c, q);
		st_any<N>(a.out, a.out_bf, row * a.os + a.f + c, p);
	}
}

template <int N, enum vfm_act ACT>
static void launch_swiglu(struct vfm_stream *s, const struct vfm_tensor *x, struct swiglu_args &a)
{
	int threads = a.f >= THREADS * N ? THREADS : in_warps(ceil_div(a.f, N)), rows = THREADS / threads;
	int64_t grid;

	a.slabs = (int)ceil_div(a.f, (int64_t)threads * N);
	grid = a.slabs * ceil_div(a.rows, rows * UNROLL);
	if (!a.dy)
		VFM_ACT_TYPE(x->dtype, X, VFM_LAUNCH(s, (swiglu<N, X, ACT>), grid, dim3(threads, rows), 0, a));
	else
		VFM_ACT_TYPE(x->dtype, X,
			VFM_ACT_TYPE(a.dy_bf ? VFM_BF16 : VFM_F32, DY,
				VFM_LAUNCH(s, (swiglu_bwd<N, X, DY>), grid, dim3(threads, rows), 0, a)));
}

template <enum vfm_act ACT>
static int gated_forward(struct vfm_stream *s, const char *op, const struct vfm_tensor *x, const struct vfm_tensor *y,
	struct vfm_err *err)
{
	struct swiglu_args a = {
		x->data, nullptr, y->data, y->shape[0], y->shape[1], x->stride[0], 0, y->stride[0], 0, false, is_bf(y)};

	if (!a.rows || !a.f)
		return 0;
	VFM_WIDTH(a.f % 8 == 0 && vec_ok(8, x, y), 8, N, (launch_swiglu<N, ACT>(s, x, a)));
	return vfm_cuda_launched(s, op, err);
}

extern "C" int vfm_cuda_swiglu(struct vfm_stream *s, const struct vfm_swiglu *g, struct vfm_err *err)
{
	return gated_forward<VFM_ACT_SILU>(s, "swiglu", &g->x, &g->y, err);
}

extern "C" int vfm_cuda_geglu(struct vfm_stream *s, const struct vfm_geglu *g, struct vfm_err *err)
{
	return gated_forward<VFM_ACT_GELU_TANH>(s, "geglu", &g->x, &g->y, err);
}

extern "C" int vfm_cuda_swiglu_bwd(struct vfm_stream *s, const struct vfm_swiglu_bwd *g, struct vfm_err *err)
{
	struct swiglu_args a = {g->x.data, g->dy.data, g->dx.data, g->dy.shape[0], g->dy.shape[1], g->x.stride[0],
		g->dy.stride[0], g->dx.stride[0], 0, is_bf(&g->dy), is_bf(&g->dx)};

	if (!a.rows || !a.f)
		return 0;
	VFM_WIDTH(
		a.f % 8 == 0 && vec_ok(8, &g->x, &g->dy, &g->dx), 8, N, (launch_swiglu<N, VFM_ACT_SILU>(s, &g->x, a)));
	return vfm_cuda_launched(s, "swiglu_bwd", err);
}

/* ---- sinusoids of a time ---- */

/* Computes the angle in cycles and reduces it in f64, because it may be thousands of cycles.  A thread for each
 * frequency of each sample. */
__global__ static void __launch_bounds__(THREADS)
	timestep(const float *t, void *out, bool bf, int64_t n, int half, double log_period)
{
	int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, s = i / half, at = s * 2 * half + i % half;
	double f, turns;

	if (i >= n)
		return;
	f = exp(-log_period * (double)(i % half) / (double)half);
	turns = (double)t[s] * f * 0.15915494309189533577;
	turns -= rint(turns);
	st_one(out, bf, at, cospif(2.0f * (float)turns));
	st_one(out, bf, at + half, sinpif(2.0f * (float)turns));
}

extern "C" int vfm_cuda_timestep(struct vfm_stream *s, const struct vfm_timestep *a, struct vfm_err *err)
{
	int half = (int)(a->out.shape[1] / 2);
	int64_t n = a->t.shape[0] * half;

	if (!n)
		return 0;
	VFM_LAUNCH(s, (timestep), ceil_div(n, THREADS), THREADS, 0, (const float *)a->t.data, a->out.data,
		is_bf(&a->out), n, half, log((double)a->max_period));
	return vfm_cuda_launched(s, "timestep", err);
}
