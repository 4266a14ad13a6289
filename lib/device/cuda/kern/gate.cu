/* gate.cu - gated residuals, sums with a row. */
#include "device/cuda/kern/colsum.h"

enum { THREADS = 256, ROWS = 4 };

struct gate_args {
	const void *x, *h, *gate; /* gate NULL: 1.  Backward: x is dy; h NULL: no dgate */
	void *out;                /* y; dh */
	float *part;              /* backward: [part_rows, d]; or NULL */
	float *all;               /* backward: [tiles, d] of dh; or NULL */
	int64_t gate_stride;
	int slabs; /* blocks side by side */
	struct samples q;
	int d;
	bool gate_bf;
};

/* Block (threads along a row, rows).  A thread has the same columns of ROWS rows, blockDim.y apart, and the gate of one
 * sample at a time.  y may be x. */
template <int N, class X, class H>
__global__ static void __launch_bounds__(THREADS, sizeof(X) + sizeof(H) == 4 ? 3 : 0) gate(const struct gate_args a)
{
	int c = (int)(blockIdx.x % (unsigned)a.slabs * blockDim.x + threadIdx.x) * N, s = -1;
	int64_t t = blockIdx.x / (unsigned)a.slabs * (int64_t)(blockDim.y * ROWS) + threadIdx.y;
	packed<X, N> x[ROWS];
	packed<H, N> h[ROWS];
	vec<N> g = vec_of<N>(1.0f);

	if (c >= a.d)
		return;
#pragma unroll
	for (int r = 0; r < ROWS; r++) {
		int64_t at = (t + r * blockDim.y) * a.d + c;

		if (t + r * blockDim.y < a.q.total)
			x[r] = ld_packed<N>((const X *)a.x + at), h[r] = ld_packed<N>((const H *)a.h + at);
	}
#pragma unroll
	for (int r = 0; r < ROWS; r++) {
		int64_t row = t + r * blockDim.y;
		vec<N> y, f;
		int mine;

		if (row >= a.q.total)
			continue;
		mine = a.gate ? sample_at(a.q, row) : s;
		if (mine != s)
			g = ld_any<N>(a.gate, a.gate_bf, mine * a.gate_stride + c);
		s = mine;
		y = widen(x[r]), f = widen(h[r]);
#pragma unroll
		for (int k = 0; k < N; k++)
			y.v[k] += g.v[k] * f.v[k];
		st_vec<N>((X *)a.out + row * a.d + c, y);
	}
}

/* Block (threads along a row, rows): one tile and one slab of columns. */
template <int N, class DY, class H> __global__ static void __launch_bounds__(THREADS) gate_bwd(const struct gate_args a)
{
	int tile = (int)(blockIdx.x / (unsigned)a.slabs),
	    c = (int)(blockIdx.x % (unsigned)a.slabs * blockDim.x + threadIdx.x) * N, step = blockDim.y;
	int t = tile * a.q.per, end = min(t + a.q.per, (int)a.q.total);
	bool in = c < a.d;
	vec<N> all = {};

	while (t < end) {
		int s = sample_at(a.q, t), to = min(end, (int)sample_end(a.q, s));
		vec<N> g = {}, sum = {};

		if (in)
			g = ld_any<N>(a.gate, a.gate_bf, s * a.gate_stride + c);
		for (int r0 = t + threadIdx.y; in && r0 < to; r0 += ROWS * step) {
			packed<DY, N> dy[ROWS];
			packed<H, N> h[ROWS];

#pragma unroll
			for (int r = 0; r < ROWS; r++) {
				int64_t at = (int64_t)(r0 + r * step) * a.d + c;

				if (r0 + r * step < to)
					dy[r] = ld_packed<N>((const DY *)a.x + at),
					h[r] = a.h ? ld_packed<N>((const H *)a.h + at) : packed_zero<H, N>();
			}
#pragma unroll
			for (int r = 0; r < ROWS; r++) {
				vec<N> y, f;

				if (r0 + r * step >= to)
					continue;
				y = widen(dy[r]), f = widen(h[r]);
#pragma unroll
				for (int k = 0; k < N; k++) {
					sum.v[k] += y.v[k] * f.v[k];
					y.v[k] *= g.v[k];
					all.v[k] += y.v[k];
				}
				st_vec<N>((H *)a.out + (int64_t)(r0 + r * step) * a.d + c, y);
			}
		}
		if (a.part)
			sum_sides<N, THREADS>(&sum);
		if (a.part && in && threadIdx.y == 0)
			st_vec<N>(a.part + (int64_t)(tile + s) * a.d + c, sum);
		t = to;
	}
	if (!a.all)
		return;
	sum_sides<N, THREADS>(&all);
	if (in && threadIdx.y == 0)
		st_vec<N>(a.all + (int64_t)tile * a.d + c, all);
}

template <int N> static void launch_gate(struct vfm_stream *s, const struct vfm_gate *g, struct gate_args &a)
{
	int threads = slabs_of(ceil_div(a.d, N), THREADS, &a.slabs), rows = THREADS / threads;
	int64_t grid = (int64_t)a.slabs * ceil_div(a.q.total, rows * ROWS);

	VFM_ACT_TYPE(g->x.dtype, X,
		VFM_ACT_TYPE(g->h.dtype, H, VFM_LAUNCH(s, (gate<N, X, H>), grid, dim3(threads, rows), 0, a)));
}

extern "C" int vfm_cuda_gate(struct vfm_stream *s, const struct vfm_gate *g, struct vfm_err *err)
{
	bool has = vfm_has(&g->gate);
	struct gate_args a = {g->x.data, g->h.data, data_of<const void>(g->gate), g->y.data, nullptr, nullptr,
		has ? g->gate.stride[0] : 0, 0, tile_samples(has ? g->seqs : nullptr, g->x.shape[0], 1),
		(int)g->x.shape[1], is_bf(&g->gate)};

	if (!vfm_numel(&g->x))
		return 0;
	VFM_WIDTH(vec_ok(8, &g->x, &g->y, &g->h, &g->gate), 8, N, launch_gate<N>(s, g, a));
	return vfm_cuda_launched(s, "gate", err);
}

template <int N> static void launch_gate_bwd(struct vfm_stream *s, const struct vfm_gate_bwd *g, struct gate_args &a)
{
	int threads = slabs_of(ceil_div(a.d, N), THREADS / 2, &a.slabs), rows = THREADS / threads;
	int64_t grid = (int64_t)a.slabs * count_token_tiles(a.q);

	VFM_ACT_TYPE(g->dy.dtype, DY,
		VFM_ACT_TYPE(g->dh.dtype, H, VFM_LAUNCH(s, (gate_bwd<N, DY, H>), grid, dim3(threads, rows), 0, a)));
}

extern "C" int vfm_cuda_gate_bwd(struct vfm_stream *s, const struct vfm_gate_bwd *g, struct vfm_err *err)
{
	bool all = vfm_has(&g->dh_sum), gates = vfm_has(&g->dgate);
	struct gate_args a = {g->dy.data, gates ? g->h.data : nullptr, g->gate.data, g->dh.data, nullptr, nullptr,
		g->gate.stride[0], 0, tile_samples(g->seqs, g->dy.shape[0], 1), (int)g->dy.shape[1], is_bf(&g->gate)};
	struct fold_args f = {
		a.q, nullptr, gates ? a.d : 0, a.d, {(float *)g->dgate.data}, {g->dgate.stride[0]}, false};
	int64_t rows = gates ? part_rows(a.q) : 0, n = (rows + (all ? count_token_tiles(a.q) : 0)) * a.d;
	float *part = nullptr;
	struct fold_args fa = {
		whole_pack(a.q), nullptr, all && a.q.total ? a.d : 0, a.d, {(float *)g->dh_sum.data}, {}, true};

	if (!vfm_numel(&g->gate))
		return 0;
	if (n) {
		part = (float *)vfm_cuda_ws(s, (size_t)n * sizeof(float), err);
		if (!part)
			return VFM_EENV;
	}
	f.part = a.part = gates ? part : nullptr;
	fa.part = a.all = all ? part + rows * a.d : nullptr;
	if (a.q.total)
		VFM_WIDTH(vec_ok(8, &g->dy, &g->dh, &g->gate) && (!gates || vec_ok(8, &g->h)), 8, N,
			launch_gate_bwd<N>(s, g, a));
	if (n)
		fold_two_sums(s, f, fa, 0);
	return vfm_cuda_launched(s, "gate_bwd", err);
}

/* ---- add_row ---- */

struct add_row_args {
	const void *x, *row; /* backward: x is dy */
	void *y;
	float *part; /* backward: [part_rows, d] */
	int slabs;   /* blocks side by side */
	struct samples q;
	int d;
	bool row_bf;
};

/* Block (threads along a row, rows).  A thread has the same columns of ROWS rows, blockDim.y apart.  y may be x. */
template <int N, class X> __global__ static void __launch_bounds__(THREADS) add_row(const struct add_row_args a)
{
	int c = (int)(blockIdx.x % (unsigned)a.slabs * blockDim.x + threadIdx.x) * N;
	int64_t t = blockIdx.x / (unsigned)a.slabs * (int64_t)(blockDim.y * ROWS) + threadIdx.y;
	packed<X, N> x[ROWS];
	vec<N> row;

	if (c >= a.d)
		return;
	row = ld_any<N>(a.row, a.row_bf, c);
#pragma unroll
	for (int r = 0; r < ROWS; r++)
		if (t + r * blockDim.y < a.q.total)
			x[r] = ld_packed<N>((const X *)a.x + (t + r * blockDim.y) * a.d + c);
#pragma unroll
	for (int r = 0; r < ROWS; r++) {
		vec<N> y;

		if (t + r * blockDim.y >= a.q.total)
			continue;
		y = widen(x[r]);
		add_vec(y, row);
		st_vec<N>((X *)a.y + (t + r * blockDim.y) * a.d + c, y);
	}
}

/* Block (threads along a row, rows): one tile and one slab of columns. */
template <int N, class DY> __global__ static void __launch_bounds__(THREADS) add_row_bwd(const struct add_row_args a)
{
	int tile = (int)(blockIdx.x / (unsigned)a.slabs),
	    c = (int)(blockIdx.x % (unsigned)a.slabs * blockDim.x + threadIdx.x) * N, step = blockDim.y;
	int t = tile * a.q.per, end = min(t + a.q.per, (int)a.q.total);
	bool in = c < a.d;
	vec<N> sum = {};

	for (int r0 = t + threadIdx.y; in && r0 < end; r0 += ROWS * step) {
		packed<DY, N> dy[ROWS];

#pragma unroll
		for (int r = 0; r < ROWS; r++)
			dy[r] = r0 + r * step < end ? ld_packed<N>((const DY *)a.x + (int64_t)(r0 + r * step) * a.d + c)
						    : packed_zero<DY, N>();
#pragma unroll
		for (int r = 0; r < ROWS; r++)
			add_vec(sum, widen(dy[r]));
	}
	sum_sides<N, THREADS>(&sum);
	if (in && threadIdx.y == 0)
		st_vec<N>(a.part + (int64_t)tile * a.d + c, sum);
}

template <int N> static void launch_add_row(struct vfm_stream *s, enum vfm_dtype x, struct add_row_args &a)
{
	int threads = slabs_of(ceil_div(a.d, N), THREADS, &a.slabs), rows = THREADS / threads;
	int64_t grid = (int64_t)a.slabs * ceil_div(a.q.total, rows * ROWS);

	VFM_ACT_TYPE(x, X, VFM_LAUNCH(s, (add_row<N, X>), grid, dim3(threads, rows), 0, a));
}

extern "C" int vfm_cuda_add_row(struct vfm_stream *s, const struct vfm_add_row *r, struct vfm_err *err)
{
	struct add_row_args a = {r->x.data, r->row.data, r->y.data, nullptr, 0, tile_samples(nullptr, r->x.shape[0], 1),
		(int)r->x.shape[1], is_bf(&r->row)};

	if (!vfm_numel(&r->x))
		return 0;
	VFM_WIDTH(vec_ok(8, &r->x, &r->row, &r->y), 8, N, launch_add_row<N>(s, r->x.dtype, a));
	return vfm_cuda_launched(s, "add_row", err);
}

template <int N> static void launch_add_row_bwd(struct vfm_stream *s, enum vfm_dtype dy, struct add_row_args &a)
{
	int threads = slabs_of(ceil_div(a.d, N), THREADS / 2, &a.slabs), rows = THREADS / threads;
	int64_t grid = (int64_t)a.slabs * count_token_tiles(a.q);

	VFM_ACT_TYPE(dy, DY, VFM_LAUNCH(s, (add_row_bwd<N, DY>), grid, dim3(threads, rows), 0, a));
}

extern "C" int vfm_cuda_add_row_bwd(struct vfm_stream *s, const struct vfm_add_row_bwd *r, struct vfm_err *err)
{
	struct add_row_args a = {r->dy.data, nullptr, nullptr, nullptr, 0, tile_samples(nullptr, r->dy.shape[0], 1),
		(int)r->dy.shape[1], false};
	struct fold_args f = {a.q, nullptr, a.d, a.d, {(float *)r->drow.data}, {}, true};

	if (!vfm_numel(&r->dy))
		return 0;
	f.part = a.part = (float *)vfm_cuda_ws(s, (size_t)(part_rows(a.q) * a.d) * sizeof(float), err);
	if (!a.part)
		return VFM_EENV;
	VFM_WIDTH(vec_ok(8, &r->dy), 8, N, launch_add_row_bwd<N>(s, r->dy.dtype, a));
	fold_column_sums(s, f);
	return vfm_cuda_launched(s, "add_row_bwd", err);
}
