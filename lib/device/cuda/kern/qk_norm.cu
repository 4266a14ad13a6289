/* qk_norm.cu - RMS norm of every head, or over all heads of a token, and rotary positions.
 *
 * A head is spread over a power of two of lanes, a 16-byte vector each; a warp processes several heads of one token.
 * Other head dims use plain loops with a warp for each head.
 *
 * A launch processes one tensor or two (q and k): the first blocks belong to the first.
 */
#include "device/cuda/kern/colsum.h"

enum { WARPS = 8, THREADS = 32 * WARPS };

struct head_strides {
	int64_t token, head;
};

struct qk_args {
	const void *x;
	void *y;                    /* backward: dx */
	const void *dy;             /* backward */
	const float *weight, *rope; /* or NULL */
	float *rstd;                /* output; in the backward an input */
	float *part;                /* backward: [part_rows, d], or NULL */
	struct head_strides xs, ys, dys;
	struct samples q; /* all tokens; the tiles are for the backward */
	float eps;
	int heads, d, lanes, groups; /* lanes of a head; warps for a token */
	bool x_bf, y_bf, dy_bf;
};

/* One tensor or two. */
struct qk_pair {
	struct qk_args a[2];
	int64_t blocks; /* of the first */
};

__device__ static inline struct qk_args args_of_block(const struct qk_pair &p, int64_t *block)
{
	bool second = (int64_t)blockIdx.x >= p.blocks;

	*block = (int64_t)blockIdx.x - (second ? p.blocks : 0);
	return second ? p.a[1] : p.a[0];
}

/* Rotates pairs (a, b) by (cos, sin): (a c - b s, a s + b c); backward with -s. */
template <int N> __device__ static inline void rotate(vec<N> *v, const vec<N> &cs, float dir)
{
#pragma unroll
	for (int k = 0; k < N; k += 2) {
		float a = v->v[k], b = v->v[k + 1], c = cs.v[k], s = dir * cs.v[k + 1];

		v->v[k] = a * c - b * s;
		v->v[k + 1] = a * s + b * c;
	}
}

/* ---- forward ---- */

/* A group of lanes processes U heads: first, first + step, … of token t. */
template <class X, int U> __global__ static void __launch_bounds__(THREADS) qk_vec(const struct qk_pair p)
{
	int64_t block;
	const struct qk_args a = args_of_block(p, &block);
	int64_t work = block * WARPS + threadIdx.x / 32, t = work / a.groups;
	int lane = threadIdx.x % 32, step = 32 / a.lanes, c = lane % a.lanes * 8,
	    first = (int)(work % a.groups) * U * step + lane / a.lanes;
	bool in = t < a.q.total && c < a.d;
	packed<X, 8> x[U];
	vec<8> w, cs;

#pragma unroll
	for (int u = 0; u < U; u++) {
		int h = first + u * step;

		x[u] = in && h < a.heads ? ld_packed<8>((const X *)a.x + t * a.xs.token + h * a.xs.head + c)
					 : packed_zero<X, 8>();
	}
	if (in && a.weight)
		w = ld_vec<8>(a.weight + c);
	if (in && a.rope)
		cs = ld_vec<8>(a.rope + t * a.d + c);
#pragma unroll
	for (int u = 0; u < U; u++) {
		int h = first + u * step;
		vec<8> v = widen(x[u]);
		float sum = 0, r;

		if (a.weight) {
#pragma unroll
			for (int k = 0; k < 8; k++)
				sum += v.v[k] * v.v[k];
			r = 1.0f / sqrtf(lanes_sum(sum, a.lanes) / (float)a.d + a.eps);
#pragma unroll
			for (int k = 0; k < 8; k++)
				v.v[k] *= r * w.v[k];
			if (in && h < a.heads && c == 0)
				a.rstd[t * a.heads + h] = r;
		}
		if (a.rope)
			rotate<8>(&v, cs, 1.0f);
		if (in && h < a.heads)
			st_vec<8>((X *)a.y + t * a.ys.token + h * a.ys.head + c, v);
	}
}

/* Loads elements i and i + 1 of a head; 0 beyond its end. */
__device__ static inline vec<2> pair_of(const void *p, bool bf, int64_t at, int i, int d)
{
	return {{ld_one(p, bf, at + i), i + 1 < d ? ld_one(p, bf, at + i + 1) : 0.0f}};
}
__device__ static inline void put_pair(void *p, bool bf, int64_t at, int i, int d, const vec<2> &v)
{
	st_one(p, bf, at + i, v.v[0]);
	if (i + 1 < d)
		st_one(p, bf, at + i + 1, v.v[1]);
}

__global__ static void __launch_bounds__(THREADS) qk_any(const struct qk_args a)
{
	int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, t = row / a.heads, h = row % a.heads;
	int64_t from = t * a.xs.token + h * a.xs.head, to = t * a.ys.token + h * a.ys.head;
	int lane = threadIdx.x % 32, d = t < a.q.total ? a.d : 0;
	float sum = 0, r = 1.0f;

	for (int i = lane; i < d && a.weight; i += 32)
		sum += ld_one(a.x, a.x_bf, from + i) * ld_one(a.x, a.x_bf, from + i);
	sum = warp_sum(sum);
	if (a.weight)
		r = 1.0f / sqrtf(sum / (float)a.d + a.eps);
	if (a.weight && d && lane == 0)
		a.rstd[row] = r;
	for (int i = 2 * lane; i < d; i += 64) {
		vec<2> v = pair_of(a.x, a.x_bf, from, i, d), w = {{1, 1}};

		if (a.weight)
			w = pair_of(a.weight, false, 0, i, d);
		v.v[0] *= r * w.v[0], v.v[1] *= r * w.v[1];
		if (a.rope)
			rotate<2>(&v, pair_of(a.rope, false, t * a.d, i, d), 1.0f);
		put_pair(a.y, a.y_bf, to, i, d, v);
	}
}

static int warps_a_token(const struct qk_args &a, int u)
{
	return (int)ceil_div(a.heads, u * (32 / a.lanes));
}

template <class X> static void launch_qk(struct vfm_stream *s, struct qk_pair *p, int n)
{
	bool many = false;
	int64_t blocks[2] = {0, 0};

	for (int i = 0; i < n; i++)
		many = many || p->a[i].heads > 2 * (32 / p->a[i].lanes);
	for (int i = 0; i < n; i++) {
		p->a[i].groups = warps_a_token(p->a[i], many ? 4 : 2);
		blocks[i] = ceil_div(p->a[i].q.total * p->a[i].groups, WARPS);
	}
	p->blocks = blocks[0];
	if (many)
		VFM_LAUNCH(s, (qk_vec<X, 4>), blocks[0] + blocks[1], THREADS, 0, *p);
	else
		VFM_LAUNCH(s, (qk_vec<X, 2>), blocks[0] + blocks[1], THREADS, 0, *p);
}

static struct qk_args forward_args(const struct vfm_qk_norm_rope *b)
{
	const struct vfm_tensor *x = &b->x, *y = &b->y;

	return {x->data, y->data, nullptr, data_of<const float>(b->weight), data_of<const float>(b->rope),
		(float *)b->rstd.data, nullptr, {x->stride[0], x->stride[1]}, {y->stride[0], y->stride[1]}, {0, 0},
		tile_samples(nullptr, x->shape[0], 4), b->eps, (int)x->shape[1], (int)x->shape[2],
		lanes_for(ceil_div(x->shape[2], 8), 32), 0, is_bf(x), is_bf(y), false};
}

/* Tensors that no vector fits have a launch each. */
extern "C" int vfm_cuda_qk_norm_rope(struct vfm_stream *s, const struct vfm_qk_norm_rope *b, struct vfm_err *err)
{
	const struct vfm_qk_norm_rope of[2] = {*b, vfm_qk_second(b)};
	struct qk_pair p = {};
	int n = 0;

	for (int i = 0; i < 2; i++) {
		if (!vfm_has(&of[i].x) || !vfm_numel(&of[i].x))
			continue;
		struct qk_args a = forward_args(&of[i]);

		if (of[i].x.shape[2] <= 256 && vec_ok(8, &of[i].x, &of[i].y, &of[i].weight, &of[i].rope))
			p.a[n++] = a;
		else
			VFM_LAUNCH(s, (qk_any), ceil_div(a.q.total * a.heads, WARPS), THREADS, 0, a);
	}
	if (n)
		VFM_ACT_TYPE(b->x.dtype, X, launch_qk<X>(s, &p, n));
	return vfm_cuda_launched(s, "qk_norm_rope", err);
}

/* ---- backward ---- */

/* The gradient of the weight: the sums of the warps, in their order, become a row of part. */
__device__ static inline void qk_flush(const struct qk_args &a, int64_t tile, int c, vec<8> sum)
{
	__shared__ float sums[WARPS][256];
	int lane = threadIdx.x % 32;

#pragma unroll
	for (int k = 0; k < 8; k++)
		for (int d = a.lanes; d < 32; d *= 2)
			sum.v[k] += __shfl_xor_sync(VFM_ALL_LANES, sum.v[k], d);
#pragma unroll
	for (int k = 0; k < 8; k++)
		if (lane < a.lanes && c + k < a.d)
			sums[threadIdx.x / 32][c + k] = sum.v[k];
	__syncthreads();
	for (int i = threadIdx.x; i < a.d; i += THREADS) {
		float all = 0;

		for (int w = 0; w < WARPS; w++)
			all += sums[w][i];
		a.part[tile * a.d + i] = all;
	}
}

/* A block processes a tile of tokens; its warps share the work that the forward gives to one. */
template <class X, class DY, int U>
__global__ static void __launch_bounds__(THREADS, sizeof(X) + sizeof(DY) == 4 ? 3 : 2)
	qk_bwd_vec(const struct qk_pair p)
{
	int64_t block;
	const struct qk_args a = args_of_block(p, &block);
	int tile = (int)block, lane = threadIdx.x % 32, step = 32 / a.lanes, c = lane % a.lanes * 8;
	int64_t from = (int64_t)tile * a.q.per, end = min(from + a.q.per, a.q.total);
	int todo = (int)(end - from) * a.groups;
	vec<8> w = vec_of<8>(1.0f), sum = {};

	if (a.weight && c < a.d)
		w = ld_vec<8>(a.weight + c);
	for (int i = threadIdx.x / 32; i < todo; i += WARPS) {
		int64_t t = from + i / a.groups;
		int first = i % a.groups * U * step + lane / a.lanes;
		packed<DY, 8> dy[U];
		packed<X, 8> x[U];
		float rstd[U];
		vec<8> cs = {}; /* lanes beyond the head add 0 to its sums */

#pragma unroll
		for (int u = 0; u < U; u++) {
			int h = first + u * step;
			bool in = c < a.d && h < a.heads;

			dy[u] = in ? ld_packed<8>((const DY *)a.dy + t * a.dys.token + h * a.dys.head + c)
				   : packed_zero<DY, 8>();
			x[u] = in && a.weight ? ld_packed<8>((const X *)a.x + t * a.xs.token + h * a.xs.head + c)
					      : packed_zero<X, 8>();
			rstd[u] = in && a.weight ? a.rstd[t * a.heads + h] : 1.0f;
		}
		if (a.rope && c < a.d)
			cs = ld_vec<8>(a.rope + t * a.d + c);
#pragma unroll
		for (int u = 0; u < U; u++) {
			int h = first + u * step;
			vec<8> v = widen(dy[u]), xh = widen(x[u]);
			float s = 0;

			if (a.rope)
				rotate<8>(&v, cs, -1.0f);
			if (a.weight) {
#pragma unroll
				for (int k = 0; k < 8; k++) {
					xh.v[k] *= rstd[u];
					sum.v[k] += v.v[k] * xh.v[k];
					v.v[k] *= w.v[k];
					s += v.v[k] * xh.v[k];
				}
				s = lanes_sum(s, a.lanes) / (float)a.d;
#pragma unroll
				for (int k = 0; k < 8; k++)
					v.v[k] = rstd[u] * (v.v[k] - xh.v[k] * s);
			}
			if (c < a.d && h < a.heads)
				st_any<8>(a.y, a.y_bf, t * a.ys.token + h * a.ys.head + c, v);
		}
	}
	if (a.part)
		qk_flush(a, tile, c, sum);
}

/* Any head dim: dx. */
__global__ static void __launch_bounds__(THREADS) qk_bwd_any(const struct qk_args a)
{
	int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, t = row / a.heads, h = row % a.heads;
	int64_t at = t * a.dys.token + h * a.dys.head, from = t * a.xs.token + h * a.xs.head,
		to = t * a.ys.token + h * a.ys.head;
	int lane = threadIdx.x % 32, d = t < a.q.total ? a.d : 0;
	float s = 0, r = a.weight && d ? a.rstd[row] : 1.0f;

	for (int pass = a.weight ? 0 : 1; pass < 2; pass++) {
		for (int i = 2 * lane; i < d; i += 64) {
			vec<2> v = pair_of(a.dy, a.dy_bf, at, i, d), w, x;

			if (a.rope)
				rotate<2>(&v, pair_of(a.rope, false, t * a.d, i, d), -1.0f);
			if (a.weight) {
				w = pair_of(a.weight, false, 0, i, d), x = pair_of(a.x, a.x_bf, from, i, d);
				for (int k = 0; k < 2; k++) {
					v.v[k] *= w.v[k], x.v[k] *= r;
					if (pass)
						v.v[k] = r * (v.v[k] - x.v[k] * s);
					else
						s += v.v[k] * x.v[k];
				}
			}
			if (pass)
				put_pair(a.y, a.y_bf, to, i, d, v);
		}
		if (!pass)
			s = warp_sum(s) / (float)a.d;
	}
}

/* Any head dim: the sums of the column of a thread.  Grid: tiles x column blocks. */
__global__ static void __launch_bounds__(THREADS) qk_bwd_cols(const struct qk_args a)
{
	int64_t blocks = (a.d + THREADS - 1) / THREADS, tile = blockIdx.x / blocks,
		end = min((tile + 1) * a.q.per, a.q.total);
	int i = (int)(blockIdx.x % blocks) * THREADS + threadIdx.x, even = i & ~1;
	float sum = 0;

	if (i >= a.d)
		return;
	for (int64_t t = tile * a.q.per; t < end; t++)
		for (int h = 0; h < a.heads; h++) {
			vec<2> v = pair_of(a.dy, a.dy_bf, t * a.dys.token + h * a.dys.head, even, a.d);

			if (a.rope)
				rotate<2>(&v, pair_of(a.rope, false, t * a.d, even, a.d), -1.0f);
			sum += (i == even ? v.v[0] : v.v[1]) * ld_one(a.x, a.x_bf, t * a.xs.token + h * a.xs.head + i) *
				a.rstd[t * a.heads + h];
		}
	a.part[tile * a.d + i] = sum;
}

template <class X, class DY> static void launch_qk_bwd(struct vfm_stream *s, struct qk_pair *p, int n)
{
	int64_t blocks[2] = {0, 0};

	for (int i = 0; i < n; i++) {
		p->a[i].groups = warps_a_token(p->a[i], 2);
		blocks[i] = count_token_tiles(p->a[i].q);
	}
	p->blocks = blocks[0];
	VFM_LAUNCH(s, (qk_bwd_vec<X, DY, 2>), blocks[0] + blocks[1], THREADS, 0, *p);
}

/* Without a weight x is not read. */
static const struct vfm_tensor *input_of(const struct vfm_qk_norm_rope_bwd *b)
{
	return vfm_has(&b->weight) ? &b->x : &b->dy;
}

static struct qk_args backward_args(const struct vfm_qk_norm_rope_bwd *b)
{
	const struct vfm_tensor *x = input_of(b), *dx = &b->dx, *dy = &b->dy;

	return {x->data, dx->data, dy->data, data_of<const float>(b->weight), data_of<const float>(b->rope),
		(float *)b->rstd.data, nullptr, {x->stride[0], x->stride[1]}, {dx->stride[0], dx->stride[1]},
		{dy->stride[0], dy->stride[1]}, tile_samples(nullptr, dy->shape[0], 4), 0, (int)dy->shape[1],
		(int)dy->shape[2], lanes_for(ceil_div(dy->shape[2], 8), 32), 0, is_bf(x), is_bf(dx), is_bf(dy)};
}

static bool backward_vectorized(const struct vfm_qk_norm_rope_bwd *b)
{
	return b->dy.shape[2] <= 256 && vec_ok(8, input_of(b), &b->dx, &b->dy, &b->weight, &b->rope);
}

extern "C" int vfm_cuda_qk_norm_rope_bwd(
	struct vfm_stream *s, const struct vfm_qk_norm_rope_bwd *b, struct vfm_err *err)
{
	const struct vfm_qk_norm_rope_bwd of[2] = {*b, vfm_qk_second_bwd(b)};
	struct qk_args a[2] = {};
	struct qk_pair p = {};
	struct fold_args f[2] = {};
	int64_t d = b->dy.shape[2], rows = 0;
	int n = 0;
	float *part = nullptr;

	for (int i = 0; i < 2; i++) {
		if (vfm_has(&of[i].dy) && vfm_numel(&of[i].dy))
			a[i] = backward_args(&of[i]);
		f[i] = {a[i].q, nullptr, a[i].heads && vfm_has(&of[i].dweight) ? d : 0, d,
			{(float *)of[i].dweight.data}, {}, true};
		rows += f[i].width ? count_token_tiles(a[i].q) : 0;
	}
	if (rows && !(part = (float *)vfm_cuda_ws(s, (size_t)(rows * d) * sizeof(float), err)))
		return VFM_EENV;
	for (int i = 0; i < 2; i++) {
		if (!a[i].heads)
			continue;
		if (f[i].width) {
			f[i].part = a[i].part = part;
			part += count_token_tiles(a[i].q) * d;
		}
		if (backward_vectorized(&of[i])) {
			p.a[n++] = a[i];
			continue;
		}
		VFM_LAUNCH(s, (qk_bwd_any), ceil_div(a[i].q.total * a[i].heads, WARPS), THREADS, 0, a[i]);
		if (a[i].part)
			VFM_LAUNCH(
				s, (qk_bwd_cols), count_token_tiles(a[i].q) * ceil_div(d, THREADS), THREADS, 0, a[i]);
	}
	if (n)
		VFM_ACT_TYPE(input_of(b)->dtype, X, VFM_ACT_TYPE(b->dy.dtype, DY, (launch_qk_bwd<X, DY>(s, &p, n))));
	fold_two_sums(s, f[0], f[1], 32);
	return vfm_cuda_launched(s, "qk_norm_rope_bwd", err);
}

/* ---- norms of whole rows ---- */

enum { ROWS = 4 };

struct row_args {
	const void *x, *dy; /* row_dot: dy is y */
	const float *weight, *rope, *sumsq, *dot;
	void *y;     /* backward: dx; row_dot: out */
	float *part; /* backward: [part_rows, heads * d], or NULL */
	struct head_strides xs, ys, dys;
	struct samples q;
	float width, eps;
	int slabs;  /* blocks side by side */
	int n, d;   /* heads * d; d */
	int rope_n; /* features of a row of rope: d or n */
	bool y_bf, dy_bf;
};

/* Returns where features c, c + 1, … of token t are; they belong to one head. */
__device__ static inline int64_t place_of(const struct head_strides &s, int64_t t, int c, int d)
{
	return t * s.token + c / d * s.head + c % d;
}

/* Loads and stores N features: as a vector, or, if N is not 8, one by one, since memory may have any alignment. */
template <int N> __device__ static inline vec<N> ld_row(const void *p, bool bf, int64_t i)
{
	if constexpr (N == 8) {
		return ld_any<N>(p, bf, i);
	} else {
		vec<N> v;

		for (int k = 0; k < N; k++)
			v.v[k] = ld_one(p, bf, i + k);
		return v;
	}
}
template <int N> __device__ static inline void st_row(void *p, bool bf, int64_t i, const vec<N> &v)
{
	if constexpr (N == 8) {
		st_any<N>(p, bf, i, v);
	} else {
		for (int k = 0; k < N; k++)
			st_one(p, bf, i + k, v.v[k]);
	}
}

/* A warp a row. */
template <int N, class X> __global__ static void __launch_bounds__(THREADS) row_dots(const struct row_args a)
{
	int64_t t = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
	int n = t < a.q.total ? a.n : 0;
	float sum = 0;

	for (int c = (int)(threadIdx.x % 32) * N; c < n; c += 32 * N) {
		vec<N> x = ld_row<N>(a.x, sizeof(X) == 2, place_of(a.xs, t, c, a.d)),
		       y = ld_row<N>(a.dy, a.dy_bf, place_of(a.dys, t, c, a.d));

#pragma unroll
		for (int k = 0; k < N; k++)
			sum += x.v[k] * y.v[k];
	}
	sum = warp_sum(sum);
	if (t < a.q.total && threadIdx.x % 32 == 0)
		((float *)a.y)[t] = sum;
}

__device__ static inline float row_rstd(const struct row_args &a, int64_t t)
{
	return 1.0f / sqrtf(a.sumsq[t] / a.width + a.eps);
}

/* Block (threads along a row, rows).  A thread has the same columns of ROWS rows, blockDim.y apart. */
template <int N, class X> __global__ static void __launch_bounds__(THREADS) row_norm(const struct row_args a)
{
	int c = (int)(blockIdx.x % (unsigned)a.slabs * blockDim.x + threadIdx.x) * N;
	int64_t first = blockIdx.x / (unsigned)a.slabs * (int64_t)(blockDim.y * ROWS) + threadIdx.y;
	vec<N> w;

	if (c >= a.n)
		return;
	w = ld_row<N>(a.weight, false, c);
#pragma unroll
	for (int r = 0; r < ROWS; r++) {
		int64_t t = first + r * blockDim.y;
		vec<N> v;
		float rstd;

		if (t >= a.q.total)
			continue;
		v = ld_row<N>(a.x, sizeof(X) == 2, place_of(a.xs, t, c, a.d));
		rstd = row_rstd(a, t);
#pragma unroll
		for (int k = 0; k < N; k++)
			v.v[k] *= rstd * w.v[k];
		if constexpr (N > 1)
			if (a.rope)
				rotate<N>(&v, ld_row<N>(a.rope, false, t * a.rope_n + c % a.rope_n), 1.0f);
		st_row<N>(a.y, sizeof(X) == 2, place_of(a.ys, t, c, a.d), v);
	}
}

/* Block (threads along a row, rows): one tile of tokens and one slab of columns. */
template <int N, class X> __global__ static void __launch_bounds__(THREADS) row_norm_bwd(const struct row_args a)
{
	int tile = (int)(blockIdx.x / (unsigned)a.slabs),
	    c = (int)(blockIdx.x % (unsigned)a.slabs * blockDim.x + threadIdx.x) * N;
	int64_t from = (int64_t)tile * a.q.per, end = min(from + a.q.per, a.q.total);
	bool in = c < a.n;
	vec<N> w = {}, sum = {};

	if (in)
		w = ld_row<N>(a.weight, false, c);
	for (int64_t t = from + threadIdx.y; in && t < end; t += blockDim.y) {
		vec<N> xh = ld_row<N>(a.x, sizeof(X) == 2, place_of(a.xs, t, c, a.d)),
		       v = ld_row<N>(a.dy, a.dy_bf, place_of(a.dys, t, c, a.d));
		float rstd = row_rstd(a, t), mean = a.dot[t] / a.width * rstd;

		if constexpr (N > 1)
			if (a.rope)
				rotate<N>(&v, ld_row<N>(a.rope, false, t * a.rope_n + c % a.rope_n), -1.0f);
#pragma unroll
		for (int k = 0; k < N; k++) {
			xh.v[k] *= rstd;
			sum.v[k] += v.v[k] * xh.v[k];
			v.v[k] = rstd * (v.v[k] * w.v[k]) - xh.v[k] * mean;
		}
		st_row<N>(a.y, a.y_bf, place_of(a.ys, t, c, a.d), v);
	}
	if (!a.part)
		return;
	sum_sides<N, THREADS>(&sum);
	if (in && threadIdx.y == 0)
		st_vec<N>(a.part + (int64_t)tile * a.n + c, sum);
}

static struct head_strides strides_of(const struct vfm_tensor *t)
{
	return {t->stride[0], t->stride[1]};
}

/* The arguments that follow from x [T,H,d]; the others are 0. */
static struct row_args row_args_of(const struct vfm_tensor *x)
{
	struct row_args a = {};

	a.x = x->data;
	a.xs = strides_of(x);
	a.q = tile_samples(nullptr, x->shape[0], 1);
	a.n = (int)(x->shape[1] * x->shape[2]);
	a.d = (int)x->shape[2];
	return a;
}

/* Code that the forward and the backward of the norm share. */
template <class OP> static void set_norm_args(struct row_args *a, const OP *b)
{
	a->weight = (const float *)b->weight.data;
	a->rope = data_of<const float>(b->rope);
	a->rope_n = a->rope ? (int)vfm_rope_width(&b->rope) : 0;
	a->sumsq = (const float *)b->sumsq.data;
	a->width = (float)b->width;
	a->eps = b->eps;
}

extern "C" int vfm_cuda_row_dot(struct vfm_stream *s, const struct vfm_row_dot *b, struct vfm_err *err)
{
	const struct vfm_tensor *y = vfm_has(&b->y) ? &b->y : &b->x;
	struct row_args a = row_args_of(&b->x);

	a.dy = y->data;
	a.dys = strides_of(y);
	a.dy_bf = is_bf(y);
	a.y = b->out.data;
	if (a.q.total)
		VFM_WIDTH(vec_ok(8, &b->x, y), 8, N,
			VFM_ACT_TYPE(b->x.dtype, X,
				VFM_LAUNCH(s, (row_dots<N, X>), ceil_div(a.q.total, WARPS), THREADS, 0, a)));
	return vfm_cuda_launched(s, "row_dot", err);
}

template <int N> static void launch_row_norm(struct vfm_stream *s, enum vfm_dtype x, struct row_args &a)
{
	int threads = slabs_of(ceil_div(a.n, N), THREADS, &a.slabs), rows = THREADS / threads;
	int64_t grid = (int64_t)a.slabs * ceil_div(a.q.total, rows * ROWS);

	VFM_ACT_TYPE(x, X, VFM_LAUNCH(s, (row_norm<N, X>), grid, dim3(threads, rows), 0, a));
}

extern "C" int vfm_cuda_row_norm_rope(struct vfm_stream *s, const struct vfm_row_norm_rope *b, struct vfm_err *err)
{
	struct row_args a = row_args_of(&b->x);

	a.y = b->y.data;
	a.ys = strides_of(&b->y);
	set_norm_args(&a, b);
	if (!vfm_numel(&b->x))
		return 0;
	if (vec_ok(8, &b->x, &b->y, &b->weight, &b->rope))
		launch_row_norm<8>(s, b->x.dtype, a);
	else /* heads of an odd size do not rotate */
		VFM_WIDTH(a.d % 2 == 0, 2, N, launch_row_norm<N>(s, b->x.dtype, a));
	return vfm_cuda_launched(s, "row_norm_rope", err);
}

template <int N> static void launch_row_norm_bwd(struct vfm_stream *s, enum vfm_dtype x, struct row_args &a)
{
	int threads = slabs_of(ceil_div(a.n, N), THREADS / 2, &a.slabs), rows = THREADS / threads;
	int64_t grid = (int64_t)a.slabs * count_token_tiles(a.q);

	VFM_ACT_TYPE(x, X, VFM_LAUNCH(s, (row_norm_bwd<N, X>), grid, dim3(threads, rows), 0, a));
}

extern "C" int vfm_cuda_row_norm_rope_bwd(
	struct vfm_stream *s, const struct vfm_row_norm_rope_bwd *b, struct vfm_err *err)
{
	struct row_args a = row_args_of(&b->x);
	struct fold_args f = {a.q, nullptr, a.n, a.n, {(float *)b->dweight.data}, {}, true};

	a.y = b->dx.data;
	a.ys = strides_of(&b->dx);
	a.y_bf = is_bf(&b->dx);
	a.dy = b->dy.data;
	a.dys = strides_of(&b->dy);
	a.dy_bf = is_bf(&b->dy);
	a.dot = (const float *)b->dot.data;
	set_norm_args(&a, b);
	if (!vfm_numel(&b->x))
		return 0;
	if (vfm_has(&b->dweight)) {
		f.part = a.part = (float *)vfm_cuda_ws(s, (size_t)(part_rows(a.q) * a.n) * sizeof(float), err);
		if (!a.part)
			return VFM_EENV;
	}
	if (vec_ok(8, &b->x, &b->dy, &b->dx, &b->weight, &b->rope))
		launch_row_norm_bwd<8>(s, b->x.dtype, a);
	else
		VFM_WIDTH(a.d % 2 == 0, 2, N, launch_row_norm_bwd<N>(s, b->x.dtype, a));
	if (a.part)
		fold_column_sums(s, f);
	return vfm_cuda_launched(s, "row_norm_rope_bwd", err);
}
