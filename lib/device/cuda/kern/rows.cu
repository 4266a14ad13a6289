/* rows.cu - ops on rows by index (selection, sums, dot products, learned embeddings), and merged attention.  An index
 * outside the tensor counts as "no row" and is reported to the host (fault.h).
 */
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

template <class T> static rows_of<T> view_rows(const struct vfm_tensor *t)
{
	return {(T *)t->data, t->stride[0]};
}

static int64_t width(const struct vfm_tensor *t)
{
	return t->shape[1] * (t->ndim == 3 ? t->shape[2] : 1);
}

/* Returns whether vectors of 8 elements are aligned in every row of both. */
static bool rows_wide(const struct vfm_tensor *x, const struct vfm_tensor *y)
{
	return width(x) % 8 == 0 && x->stride[0] % 8 == 0 && (uintptr_t)x->data % 16 == 0 && y->stride[0] % 8 == 0 &&
		(uintptr_t)y->data % 16 == 0;
}

/* ---- gather ---------------------------------------------------------------------------------- */

struct gather_args {
	const int32_t *index;
	const float *weight; /* may be NULL */
	int64_t n, m, d;
	int share; /* threads that share a row */
	uint64_t *fault;
	bool keep;
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

		if (!is && a.keep)
			continue;
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
	a.share = lanes_for(ceil_div(a.d, N), 256);
	VFM_LAUNCH(s, (gather<N, X, Y>), grid_of(s, ceil_div(a.n, 256 / a.share), 16), 256, 0, a,
		view_rows<const X>(&o->x), view_rows<Y>(&o->y));
}

extern "C" int vfm_cuda_index_select(struct vfm_stream *s, const struct vfm_index_select *o, struct vfm_err *err)
{
	gather_args a = {(const int32_t *)o->index.data, data_of<const float>(o->weight), o->index.shape[0],
		o->x.shape[0], width(&o->x), 0, vfm_cuda_fault(s, VFM_OP_index_select), o->keep};

	if (a.n * a.d > 0)
		VFM_WIDTH(rows_wide(&o->x, &o->y), 8, N,
			VFM_ACT_TYPE(o->x.dtype, X, VFM_ACT_TYPE(o->y.dtype, Y, (launch_gather<N, X, Y>(s, o, a)))));
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

extern "C" int vfm_cuda_index_dot(struct vfm_stream *s, const struct vfm_index_dot *o, struct vfm_err *err)
{
	gather_args a = {(const int32_t *)o->index.data, NULL, o->index.shape[0], o->y.shape[0], o->x.shape[1], 0,
		vfm_cuda_fault(s, VFM_OP_index_dot), false};

	if (a.n)
		VFM_WIDTH(rows_wide(&o->x, &o->y), 8, N,
			VFM_ACT_TYPE(o->x.dtype, X,
				VFM_ACT_TYPE(o->y.dtype, Y,
					VFM_LAUNCH(s, (dots<N, X, Y>), grid_of(s, ceil_div(a.n, 8), 16), 256, 0, a,
						view_rows<const X>(&o->x), view_rows<const Y>(&o->y),
						(float *)o->dot.data))));
	return vfm_cuda_launched(s, "index_dot", err);
}

/* ---- sums of rows by index ------------------------------------------------------------------------ *
 * The rows are sorted by where they go; each sum then walks its list.  Where lists are long (few destinations: tables
 * of positions), pieces of RUN rows are summed side by side, and then these sums.  Which way is taken, and with it the
 * order, is decided by n and m. */

enum { RUN = 64, AHEAD = 4 };

/* y[m] (+)= sum over the i with index[i * step] == m, ascending, of weight[i] x[i]. */
struct row_sums {
	const char *op;
	struct vfm_tensor x, y;
	const int32_t *index;
	int64_t step;
	const float *weight; /* may be NULL */
	bool accumulate;
	int32_t least;   /* INT32_MIN: a negative index means "no row"; 0: it is an error */
	uint64_t *fault; /* word of the op */
};

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
				add_vec(sum, run);
			}
			if (a.accumulate)
				add_vec(sum, ld_vec<N>((const Y *)y.at(m) + c));
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

/* *most is raised to the bytes of scratch memory. */
static int size_row_sums(const struct row_sums *o, size_t *most, struct vfm_err *err)
{
	int64_t n = o->x.shape[0], m = o->y.shape[0];
	size_t bytes;

	if (n >= INT32_MAX || m >= INT32_MAX)
		return vfm_fail(err, VFM_EUSAGE, "%s: %lld rows are too many", o->op, (long long)(n > m ? n : m));
	bytes = sums_ws(n, m, width(&o->y)).all;
	*most = bytes > *most ? bytes : *most;
	return 0;
}

template <int N, class X, class Y> static void sum_pieces(struct vfm_stream *s, const struct row_sums *o, lists a)
{
	int64_t pieces = a.n / RUN + a.m, units = ceil_div(a.d, N);

	a.share = lanes_for(units, 256);
	if (a.share < 32)
		a.share = 32;
	VFM_LAUNCH(s, (list_pieces), 1, 256, 0, a);
	VFM_LAUNCH(s, (add_pieces<N, X>), dim3(pieces, ceil_div(units, a.share)), a.share, 0, a,
		view_rows<const X>(&o->x));
	VFM_LAUNCH(s, (fold_pieces<Y>), dim3(a.m < 65536 ? a.m : 65536, ceil_div(a.d, 256)), 256, 0, a,
		view_rows<Y>(&o->y));
}

template <int N, class X, class Y> static void sum_lists(struct vfm_stream *s, const struct row_sums *o, lists a)
{
	a.share = lanes_for(ceil_div(a.d, N), 256);
	VFM_LAUNCH(s, (add_lists<N, X, Y>), grid_of(s, ceil_div(a.m, 256 / a.share), 32), 256, 0, a,
		view_rows<const X>(&o->x), view_rows<Y>(&o->y));
}

template <int N> static void sum_types(struct vfm_stream *s, const struct row_sums *o, const lists &a)
{
	if (in_pieces(a.n, a.m))
		VFM_ACT_TYPE(o->x.dtype, X, VFM_ACT_TYPE(o->y.dtype, Y, (sum_pieces<N, X, Y>(s, o, a))));
	else
		VFM_ACT_TYPE(o->x.dtype, X, VFM_ACT_TYPE(o->y.dtype, Y, (sum_lists<N, X, Y>(s, o, a))));
}

static void sum_rows_by_index(struct vfm_stream *s, const struct row_sums *o, void *ws)
{
	int64_t n = o->x.shape[0], m = o->y.shape[0], d = width(&o->y);
	struct sums_ws w = sums_ws(n, m, d);
	struct sort_plan plan = sort_plan(n, m);
	char *at = (char *)ws;
	int32_t *order = (int32_t *)(at + w.order);
	lists a = {{o->index, o->step, (int32_t)m, o->least, o->fault}, order, (int32_t *)(at + w.first),
		(int32_t *)(at + w.piece), (float *)(at + w.part), o->weight, n, m, d, 0, o->accumulate};

	if (d == 0)
		return;
	sort_run(s, &plan, a.k, order, ws);
	if (m == 0)
		return;
	VFM_LAUNCH(s, (list_bounds), grid_of(s, ceil_div(m + 1, 256), 8), 256, 0, a);
	VFM_WIDTH(rows_wide(&o->x, &o->y), 8, N, sum_types<N>(s, o, a));
}

extern "C" int vfm_cuda_index_add(struct vfm_stream *s, const struct vfm_index_add *o, struct vfm_err *err)
{
	struct row_sums a = {"index_add", o->x, o->y, (const int32_t *)o->index.data, 1,
		data_of<const float>(o->weight), o->accumulate, INT32_MIN, vfm_cuda_fault(s, VFM_OP_index_add)};
	size_t bytes = 0;
	void *ws;

	TRY(size_row_sums(&a, &bytes, err));
	ws = vfm_cuda_ws(s, bytes, err);
	if (!ws)
		return VFM_EENV;
	sum_rows_by_index(s, &a, ws);
	return vfm_cuda_launched(s, "index_add", err);
}

/* ---- learned embeddings of a token position in time, height and width ---------------------------- *
 * A position outside its table adds nothing and is reported. */

struct embed_args {
	const int32_t *pos; /* [T,3] */
	int64_t rows, d, size[3];
	int share; /* threads that share a row */
	uint64_t *fault;
};

template <int N, class T, class Y>
__global__ __launch_bounds__(256, 4) static void embed3(
	const embed_args a, const T *tt, const T *th, const T *tw, Y *out)
{
	int64_t here = 256 / a.share;

	for (int64_t t = (int64_t)blockIdx.x * here + threadIdx.x / a.share; t < a.rows;
		t += (int64_t)gridDim.x * here) {
		const int32_t *pos = a.pos + 3 * t;
		const T *row[3];

#pragma unroll
		for (int k = 0; k < 3; k++) {
			bool is = row_of(pos[k], a.size[k], 0, a.fault);

			row[k] = is ? (k == 0 ? tt : k == 1 ? th : tw) + pos[k] * a.d : NULL;
		}
#pragma unroll 2
		for (int64_t c = (int64_t)(threadIdx.x % a.share) * N; c < a.d; c += (int64_t)a.share * N) {
			vec<N> v[3] = {};

#pragma unroll
			for (int k = 0; k < 3; k++)
				if (row[k])
					v[k] = ld_vec<N>(row[k] + c);
#pragma unroll
			for (int j = 0; j < N; j++)
				v[0].v[j] = v[0].v[j] + v[1].v[j] + v[2].v[j];
			st_vec<N>(out + t * a.d + c, v[0]);
		}
	}
}

template <int N> static void launch_embed3(struct vfm_stream *s, const struct vfm_embed3 *o, embed_args a)
{
	a.share = lanes_for(a.d / N, 256);
	VFM_ACT_TYPE(o->table_t.dtype, T,
		VFM_ACT_TYPE(o->out.dtype, Y,
			VFM_LAUNCH(s, (embed3<N, T, Y>), grid_of(s, ceil_div(a.rows, 256 / a.share), 16), 256, 0, a,
				(const T *)o->table_t.data, (const T *)o->table_h.data, (const T *)o->table_w.data,
				(Y *)o->out.data)));
}

extern "C" int vfm_cuda_embed3(struct vfm_stream *s, const struct vfm_embed3 *o, struct vfm_err *err)
{
	embed_args a = {(const int32_t *)o->pos.data, o->out.shape[0], o->out.shape[1],
		{o->table_t.shape[0], o->table_h.shape[0], o->table_w.shape[0]}, 0, vfm_cuda_fault(s, VFM_OP_embed3)};

	if (a.rows * a.d == 0)
		return 0;
	VFM_WIDTH(vec_ok(8, &o->table_t, &o->table_h, &o->table_w, &o->out), 8, N, launch_embed3<N>(s, o, a));
	return vfm_cuda_launched(s, "embed3", err);
}

extern "C" int vfm_cuda_embed3_bwd(struct vfm_stream *s, const struct vfm_embed3_bwd *o, struct vfm_err *err)
{
	const struct vfm_tensor *table[] = {&o->dtable_t, &o->dtable_h, &o->dtable_w};
	struct row_sums a[3];
	size_t bytes = 0;
	int n = 0;
	void *ws;

	for (int i = 0; i < 3; i++)
		if (vfm_has(table[i])) {
			a[n] = {"embed3_bwd", o->dy, *table[i], (const int32_t *)o->pos.data + i, 3, NULL, true, 0,
				vfm_cuda_fault(s, VFM_OP_embed3_bwd)};
			TRY(size_row_sums(&a[n++], &bytes, err));
		}
	ws = vfm_cuda_ws(s, bytes, err);
	if (!ws)
		return VFM_EENV;
	for (int i = 0; o->dy.shape[0] && i < n; i++)
		sum_rows_by_index(s, &a[i], ws);
	return vfm_cuda_launched(s, "embed3_bwd", err);
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
	a.lanes = lanes_for(ceil_div(a.d, N), 32);
	VFM_ACT_TYPE(o->o_b.dtype, B,
		VFM_LAUNCH(s, (merge<N, B>), grid_of(s, ceil_div(a.n, 256 / a.lanes), 16), 256, 0, a,
			(const B *)o->o_b.data));
}

extern "C" int vfm_cuda_attn_merge(struct vfm_stream *s, const struct vfm_attn_merge *o, struct vfm_err *err)
{
	merge_args a = {(float *)o->o.data, (float *)o->lse.data, (const float *)o->lse_b.data, o->o.stride[0],
		o->o.stride[1], o->o_b.stride[0], o->o_b.stride[1], vfm_numel(&o->lse), o->o.shape[1], o->o.shape[2], 0,
		o->first};

	if (a.n)
		VFM_WIDTH(vec_ok(8, &o->o, &o->o_b), 8, N, launch_merge<N>(s, o, a));
	return vfm_cuda_launched(s, "attn_merge", err);
}
