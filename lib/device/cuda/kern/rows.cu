/* rows.cu - ops on rows by index (selection, sums, dot products), and merged attention.
 *
 * An index outside the tensor counts as "no row" and is reported to the host (fault.h), because a kernel cannot return
 * an error.
 */
#include "device/cuda/kern/fold.h"
#include "device/cuda/kern/rows.h"
#include "device/cuda/kern/sort.h"

/* A view of [n,D] or [n,H,d] as rows. */
template <class T> struct rows_of {
	T *p;
	int64_t stride;

	__device__ inline T *at(int64_t i) const
	{
		return p + i * stride;
	}
};

static int64_t width(const struct vfm_tensor *t)
{
	return t->shape[1] * (t->ndim == 3 ? t->shape[2] : 1);
}

/* Whether vectors of 8 elements are aligned in every row. */
static bool rows_wide(const void *p, int64_t stride, int64_t d)
{
	return d % 8 == 0 && stride % 8 == 0 && (uintptr_t)p % 16 == 0;
}

/* Returns the threads of a block of 256 that share a row of `units` vectors: a power of two. */
static int threads_for(int64_t units)
{
	int n = 1;

	while (n < 256 && n < units)
		n *= 2;
	return n;
}

/* ---- gather ---------------------------------------------------------------------------------- */

struct gather_args {
	const int32_t *index;
	const float *weight; /* may be NULL */
	int64_t n, m, d;
	int share; /* threads that share a row */
	uint64_t *fault;
};

enum { GATHER = 4 }; /* vectors of a row in flight */

template <int N, class X, class Y>
__global__ __launch_bounds__(256) static void gather(const gather_args a, const rows_of<const X> x, const rows_of<Y> y)
{
	int64_t here = 256 / a.share, step = (int64_t)a.share * N;

	for (int64_t i = (int64_t)blockIdx.x * here + (int)threadIdx.x / a.share; i < a.n;
		i += (int64_t)gridDim.x * here) {
		int32_t from = a.index[i];
		bool is = row_of(from, a.m, INT32_MIN, a.fault);
		float w = a.weight && is ? a.weight[i] : 1.0f;
		const X *src = x.at(is ? from : 0);
		Y *dst = y.at(i);

		for (int64_t c = (int)threadIdx.x % a.share * N; c < a.d; c += GATHER * step) {
			vec<N> v[GATHER] = {};

#pragma unroll
			for (int k = 0; k < GATHER; k++)
				if (is && c + k * step < a.d)
					v[k] = ld_vec<N>(src + c + k * step);
#pragma unroll
			for (int k = 0; k < GATHER; k++) {
#pragma unroll
				for (int j = 0; j < N; j++)
					v[k].v[j] = is ? w * v[k].v[j] : 0.0f;
				if (c + k * step < a.d)
					st_vec<N>(dst + c + k * step, v[k]);
			}
		}
	}
}

template <int N, class X, class Y>
static void launch_gather(struct vfm_stream *s, const struct vfm_index_select *o, gather_args a)
{
	rows_of<const X> x = {(const X *)o->x.data, o->x.stride[0]};
	rows_of<Y> y = {(Y *)o->y.data, o->y.stride[0]};
	int64_t blocks, most = (int64_t)vfm_cuda_sms(s) * 16;

	a.share = threads_for(ceil_div(a.d, N));
	blocks = ceil_div(a.n, 256 / a.share);
	VFM_LAUNCH(s, (gather<N, X, Y>), blocks < most ? blocks : most, 256, 0, a, x, y);
}

extern "C" int vfm_cuda_index_select(struct vfm_stream *s, const struct vfm_index_select *o, struct vfm_err *err)
{
	gather_args a = {(const int32_t *)o->index.data, vfm_has(&o->weight) ? (const float *)o->weight.data : NULL,
		o->index.shape[0], o->x.shape[0], width(&o->x), 0, vfm_cuda_fault(s, VFM_OP_index_select)};

	if (a.n * a.d == 0)
		return 0;
	if (rows_wide(o->x.data, o->x.stride[0], a.d) && rows_wide(o->y.data, o->y.stride[0], a.d))
		VFM_ACT_TYPE(o->x.dtype, X, VFM_ACT_TYPE(o->y.dtype, Y, (launch_gather<8, X, Y>(s, o, a))));
	else
		VFM_ACT_TYPE(o->x.dtype, X, VFM_ACT_TYPE(o->y.dtype, Y, (launch_gather<1, X, Y>(s, o, a))));
	return vfm_cuda_launched(s, "index_select", err);
}

/* ---- products of rows --------------------------------------------------------------------------- */

template <int N, class X, class Y>
__global__ __launch_bounds__(256) static void dots(
	const gather_args a, const rows_of<const X> x, const rows_of<const Y> y, float *dot)
{
	int lane = (int)threadIdx.x % 32;

	for (int64_t i = (int64_t)blockIdx.x * 8 + threadIdx.x / 32; i < a.n; i += (int64_t)gridDim.x * 8) {
		int32_t to = a.index[i];
		bool is = row_of(to, a.m, INT32_MIN, a.fault);
		const X *p = x.at(i);
		const Y *q = y.at(is ? to : 0);
		float sum[2] = {0, 0};

#pragma unroll 2
		for (int64_t c = (int64_t)lane * N; is && c < a.d; c += 32 * N) {
			vec<N> u = ld_vec<N>(p + c), v = ld_vec<N>(q + c);

#pragma unroll
			for (int j = 0; j < N; j++)
				sum[j % 2] = fmaf(u.v[j], v.v[j], sum[j % 2]);
		}
		sum[0] = warp_sum(sum[0] + sum[1]);
		if (lane == 0)
			dot[i] = sum[0];
	}
}

template <int N, class X, class Y>
static void launch_dots(struct vfm_stream *s, const struct vfm_index_dot *o, const gather_args &a)
{
	rows_of<const X> x = {(const X *)o->x.data, o->x.stride[0]};
	rows_of<const Y> y = {(const Y *)o->y.data, o->y.stride[0]};
	int64_t blocks = ceil_div(a.n, 8), most = (int64_t)vfm_cuda_sms(s) * 16;

	VFM_LAUNCH(s, (dots<N, X, Y>), blocks < most ? blocks : most, 256, 0, a, x, y, (float *)o->dot.data);
}

extern "C" int vfm_cuda_index_dot(struct vfm_stream *s, const struct vfm_index_dot *o, struct vfm_err *err)
{
	gather_args a = {(const int32_t *)o->index.data, NULL, o->index.shape[0], o->y.shape[0], o->x.shape[1], 0,
		vfm_cuda_fault(s, VFM_OP_index_dot)};

	if (a.n == 0)
		return 0;
	if (rows_wide(o->x.data, o->x.stride[0], a.d) && rows_wide(o->y.data, o->y.stride[0], a.d))
		VFM_ACT_TYPE(o->x.dtype, X, VFM_ACT_TYPE(o->y.dtype, Y, (launch_dots<8, X, Y>(s, o, a))));
	else
		VFM_ACT_TYPE(o->x.dtype, X, VFM_ACT_TYPE(o->y.dtype, Y, (launch_dots<1, X, Y>(s, o, a))));
	return vfm_cuda_launched(s, "index_dot", err);
}

/* ---- sums of rows by index ------------------------------------------------------------------------ *
 * The rows are sorted by where they go; each sum then walks its list.  Where lists are long (few destinations: tables
 * of positions), pieces of RUN rows are summed side by side, and then these sums.  Which way is taken, and with it the
 * order, is decided by n and m. */

enum { RUN = 64, AHEAD = 4 };

struct lists {
	sort_keys k;
	const int32_t *order; /* [n] */
	int32_t *first;       /* [m+1] */
	int32_t *piece;       /* [m+1]: first piece of a destination; NULL: one piece each */
	float *part;          /* [pieces][d] */
	const float *weight;
	int64_t n, m, d;
	int share;
	bool accumulate;
};

__global__ __launch_bounds__(256) static void list_bounds(const lists a)
{
	for (int64_t m = (int64_t)blockIdx.x * 256 + threadIdx.x; m <= a.m; m += (int64_t)gridDim.x * 256)
		a.first[m] = sort_first(a.k, a.order, a.n, (int32_t)m);
}

__global__ __launch_bounds__(256) static void list_pieces(const lists a)
{
	int32_t base = 0, all;

	for (int64_t m0 = 0; m0 <= a.m; m0 += 256) {
		int64_t m = m0 + threadIdx.x;
		int32_t x = m < a.m ? (a.first[m + 1] - a.first[m] + RUN - 1) / RUN : 0;

		x = base + scan_block<8>(x, &all);
		if (m <= a.m)
			a.piece[m] = x;
		base += all;
	}
}

/* sum += rows order[p] … order[end - 1], N columns from c on. */
template <int N, class X>
__device__ static inline void walk(
	const lists &a, const rows_of<const X> &x, int32_t p, int32_t end, int64_t c, vec<N> &sum)
{
	for (; p < end; p += AHEAD) {
		vec<N> v[AHEAD] = {};
		float w[AHEAD];

#pragma unroll
		for (int k = 0; k < AHEAD; k++)
			if (p + k < end) {
				int32_t i = a.order[p + k];

				w[k] = a.weight ? a.weight[i] : 1.0f;
				v[k] = ld_vec<N>(x.at(i) + c);
			}
#pragma unroll
		for (int k = 0; k < AHEAD; k++)
			if (p + k < end)
#pragma unroll
				for (int j = 0; j < N; j++)
					sum.v[j] = fmaf(w[k], v[k].v[j], sum.v[j]);
	}
}

template <int N, class X, class Y>
__global__ __launch_bounds__(256, 3) static void add_lists(const lists a, const rows_of<const X> x, const rows_of<Y> y)
{
	int64_t here = 256 / a.share;

	for (int64_t m = (int64_t)blockIdx.x * here + threadIdx.x / a.share; m < a.m; m += (int64_t)gridDim.x * here) {
		int32_t p = a.first[m], end = a.first[m + 1];

		if (p == end && a.accumulate)
			continue;
		for (int64_t c = (int64_t)(threadIdx.x % a.share) * N; c < a.d; c += (int64_t)a.share * N) {
			vec<N> sum = {};

			for (int32_t q = p; q < end; q += RUN) {
				vec<N> run = {};

				walk<N, X>(a, x, q, q + RUN < end ? q + RUN : end, c, run);
#pragma unroll
				for (int j = 0; j < N; j++)
					sum.v[j] += run.v[j];
			}
			if (a.accumulate) {
				vec<N> old = ld_vec<N>(y.at(m) + c);

#pragma unroll
				for (int j = 0; j < N; j++)
					sum.v[j] += old.v[j];
			}
			st_vec<N>(y.at(m) + c, sum);
		}
	}
}

/* Block: one piece, `share` * N columns. */
template <int N, class X>
__global__ __launch_bounds__(256) static void add_pieces(const lists a, const rows_of<const X> x)
{
	int64_t c = ((int64_t)blockIdx.y * a.share + threadIdx.x) * N;
	int32_t lo = 0, hi = (int32_t)a.m, b = (int32_t)blockIdx.x, p, end;
	vec<N> sum = {};

	if (b >= a.piece[a.m] || c >= a.d)
		return;
	/* the last destination whose pieces begin at b or before; it is not empty, since the next begins after b */
	while (hi - lo > 1) {
		int32_t mid = lo + (hi - lo) / 2;

		if (a.piece[mid] <= b)
			lo = mid;
		else
			hi = mid;
	}
	p = a.first[lo] + (b - a.piece[lo]) * RUN;
	end = a.first[lo + 1];
	walk<N, X>(a, x, p, p + RUN < end ? p + RUN : end, c, sum);
	st_vec<N>(a.part + (int64_t)b * a.d + c, sum);
}

template <class Y> __global__ __launch_bounds__(256) static void fold_pieces(const lists a, const rows_of<Y> y)
{
	int64_t c = (int64_t)blockIdx.y * 256 + threadIdx.x;

	for (int64_t m = blockIdx.x; c < a.d && m < a.m; m += gridDim.x) {
		float sum = 0;

#pragma unroll 8
		for (int32_t p = a.piece[m]; p < a.piece[m + 1]; p++)
			sum += a.part[(int64_t)p * a.d + c];
		if (!a.accumulate)
			st(y.at(m) + c, sum);
		else if (a.first[m] != a.first[m + 1])
			st(y.at(m) + c, ld(y.at(m) + c) + sum);
	}
}

static bool in_pieces(int64_t n, int64_t m)
{
	return n > RUN && n / 32 > m;
}

struct sums_ws {
	size_t order, first, piece, part, all; /* offset of each buffer; the sort is at 0 */
};

static struct sums_ws sums_ws(int64_t n, int64_t m, int64_t d)
{
	struct sort_plan p = sort_plan(n, m);
	struct sums_ws w;

	w.order = sort_pad(sort_ws(&p));
	w.first = w.order + sort_pad((size_t)n * 4);
	w.piece = w.first + sort_pad((size_t)(m + 1) * 4);
	w.part = w.piece + (in_pieces(n, m) ? sort_pad((size_t)(m + 1) * 4) : 0);
	w.all = w.part + (in_pieces(n, m) ? (size_t)(n / RUN + m) * (size_t)d * 4 : 0);
	return w;
}

size_t vfm_row_sums_ws(int64_t n, int64_t m, int64_t d)
{
	return sums_ws(n, m, d).all;
}

int vfm_row_sums_fit(const char *op, int64_t n, int64_t m, struct vfm_err *err)
{
	if (n >= INT32_MAX || m >= INT32_MAX)
		return vfm_fail(err, VFM_EUSAGE, "%s: %lld rows are too many", op, (long long)(n > m ? n : m));
	return 0;
}

template <int N, class X> static void sum_pieces(struct vfm_stream *s, const struct row_sums *o, lists a)
{
	rows_of<const X> x = {(const X *)o->x, o->x_stride};
	int64_t pieces = a.n / RUN + a.m, units = ceil_div(a.d, N);

	a.share = threads_for(units);
	if (a.share < 32)
		a.share = 32;
	VFM_LAUNCH(s, (list_pieces), 1, 256, 0, a);
	VFM_LAUNCH(s, (add_pieces<N, X>), dim3(pieces, ceil_div(units, a.share)), a.share, 0, a, x);
	VFM_ACT_TYPE(o->y_bf ? VFM_BF16 : VFM_F32, Y,
		VFM_LAUNCH(s, (fold_pieces<Y>), dim3(a.m < 65536 ? a.m : 65536, ceil_div(a.d, 256)), 256, 0, a,
			(rows_of<Y>{(Y *)o->y, o->y_stride})));
}

template <int N, class X, class Y> static void sum_lists(struct vfm_stream *s, const struct row_sums *o, lists a)
{
	rows_of<const X> x = {(const X *)o->x, o->x_stride};
	rows_of<Y> y = {(Y *)o->y, o->y_stride};
	int64_t blocks, most = (int64_t)vfm_cuda_sms(s) * 32;

	a.share = threads_for(ceil_div(a.d, N));
	blocks = ceil_div(a.m, 256 / a.share);
	VFM_LAUNCH(s, (add_lists<N, X, Y>), blocks < most ? blocks : most, 256, 0, a, x, y);
}

template <int N> static void sum_types(struct vfm_stream *s, const struct row_sums *o, const lists &a)
{
	enum vfm_dtype xt = o->x_bf ? VFM_BF16 : VFM_F32, yt = o->y_bf ? VFM_BF16 : VFM_F32;

	if (in_pieces(a.n, a.m))
		VFM_ACT_TYPE(xt, X, (sum_pieces<N, X>(s, o, a)));
	else
		VFM_ACT_TYPE(xt, X, VFM_ACT_TYPE(yt, Y, (sum_lists<N, X, Y>(s, o, a))));
}

void vfm_row_sums(struct vfm_stream *s, const struct row_sums *o, void *ws)
{
	struct sums_ws w = sums_ws(o->n, o->m, o->d);
	struct sort_plan plan = sort_plan(o->n, o->m);
	char *at = (char *)ws;
	int32_t *order = (int32_t *)(at + w.order);
	lists a = {{o->index, o->step, (int32_t)o->m, o->least, o->fault}, order, (int32_t *)(at + w.first),
		(int32_t *)(at + w.piece), (float *)(at + w.part), o->weight, o->n, o->m, o->d, 0, o->accumulate};
	int64_t blocks = ceil_div(o->m + 1, 256), most = (int64_t)vfm_cuda_sms(s) * 8;

	if (o->d == 0)
		return;
	sort_run(s, &plan, a.k, order, ws);
	if (o->m == 0)
		return;
	VFM_LAUNCH(s, (list_bounds), blocks < most ? blocks : most, 256, 0, a);
	if (rows_wide(o->x, o->x_stride, o->d) && rows_wide(o->y, o->y_stride, o->d))
		sum_types<8>(s, o, a);
	else
		sum_types<1>(s, o, a);
}

extern "C" int vfm_cuda_index_add(struct vfm_stream *s, const struct vfm_index_add *o, struct vfm_err *err)
{
	struct row_sums a = {o->x.data, o->y.data, o->x.stride[0], o->y.stride[0], o->x.dtype == VFM_BF16,
		o->y.dtype == VFM_BF16, o->accumulate, (const int32_t *)o->index.data, 1,
		vfm_has(&o->weight) ? (const float *)o->weight.data : NULL, o->index.shape[0], o->y.shape[0],
		width(&o->y), INT32_MIN, vfm_cuda_fault(s, VFM_OP_index_add)};
	void *ws;

	TRY(vfm_row_sums_fit("index_add", a.n, a.m, err));
	ws = vfm_cuda_ws(s, vfm_row_sums_ws(a.n, a.m, a.d), err);
	if (!ws)
		return VFM_EENV;
	vfm_row_sums(s, &a, ws);
	return vfm_cuda_launched(s, "index_add", err);
}

/* ---- merged attention ----------------------------------------------------------------------------- */

struct merge_args {
	float *o, *lse;
	const float *lse_b;
	int64_t o_t, o_h, b_t, b_h; /* strides */
	int64_t n, heads, d;        /* n: tokens times heads */
	int lanes;                  /* threads that share a head */
	bool first;
};

template <int N, class B> __global__ __launch_bounds__(256) static void merge(const merge_args a, const B *o_b)
{
	int lane = (int)threadIdx.x % a.lanes, here = 256 / a.lanes;

	for (int64_t i0 = (int64_t)blockIdx.x * here; i0 < a.n; i0 += (int64_t)gridDim.x * here) {
		int64_t i = i0 + (int)threadIdx.x / a.lanes, t = i / a.heads, h = i - t * a.heads;
		bool on = i < a.n;
		float l = on && !a.first ? a.lse[i] : -INFINITY, lb = on ? a.lse_b[i] : -INFINITY, most = fmaxf(l, lb);
		float wa = l == -INFINITY ? 0.0f : expf(l - most), wb = lb == -INFINITY ? 0.0f : expf(lb - most),
		      sum = wa + wb;
		bool take = l == -INFINITY; /* o is not read */

		__syncwarp(); /* all lanes of a head read its lse first */
		if (on && lane == 0)
			a.lse[i] = take ? lb : lb == -INFINITY ? l : most + logf(sum);
		if (!on || (!take && lb == -INFINITY))
			continue;
		for (int64_t c = (int64_t)lane * N; c < a.d; c += (int64_t)a.lanes * N) {
			float *o = a.o + t * a.o_t + h * a.o_h + c;
			vec<N> y = ld_vec<N>(o_b + t * a.b_t + h * a.b_h + c);

			if (!take) {
				vec<N> x = ld_vec<N>(o);

#pragma unroll
				for (int k = 0; k < N; k++)
					y.v[k] = fmaf(wb / sum, y.v[k], wa / sum * x.v[k]);
			}
			st_vec<N>(o, y);
		}
	}
}

template <int N> static void launch_merge(struct vfm_stream *s, const struct vfm_attn_merge *o, merge_args a)
{
	int64_t blocks, most = (int64_t)vfm_cuda_sms(s) * 16;

	a.lanes = lanes_for(ceil_div(a.d, N));
	blocks = ceil_div(a.n, 256 / a.lanes);
	VFM_ACT_TYPE(o->o_b.dtype, B,
		VFM_LAUNCH(s, (merge<N, B>), blocks < most ? blocks : most, 256, 0, a, (const B *)o->o_b.data));
}

extern "C" int vfm_cuda_attn_merge(struct vfm_stream *s, const struct vfm_attn_merge *o, struct vfm_err *err)
{
	merge_args a = {(float *)o->o.data, (float *)o->lse.data, (const float *)o->lse_b.data, o->o.stride[0],
		o->o.stride[1], o->o_b.stride[0], o->o_b.stride[1], vfm_numel(&o->lse), o->o.shape[1], o->o.shape[2], 0,
		o->first};

	if (a.n == 0)
		return 0;
	if (vec_ok(&o->o, 8) && vec_ok(&o->o_b, 8))
		launch_merge<8>(s, o, a);
	else
		launch_merge<1>(s, o, a);
	return vfm_cuda_launched(s, "attn_merge", err);
}
