/* moe.cu - mixture of experts: softmax of scores, routing, sorting by expert, counting, load-balancing loss.  Scores
 * are compared as integers: larger for a higher score (-0 equals 0; NaN is above infinity), so every index is valid.
 */
#include "device/cuda/kern/fold.h"
#include "device/cuda/kern/sort.h"

__device__ static inline uint32_t rank_bits(float x)
{
	uint32_t u = __float_as_uint(x + 0.0f);

	return u >> 31 ? ~u : u | 0x80000000u;
}

__device__ static inline float of_rank(uint32_t r)
{
	return __uint_as_float(r >> 31 ? r & 0x7fffffffu : ~r);
}

/* ---- softmax ------------------------------------------------------------------------------------ */

enum { SOFTMAX_THREADS = 128 };

/* `lanes` lanes for each row; repeated reads hit the cache.  Rows beyond the last are empty. */
__global__ static void __launch_bounds__(SOFTMAX_THREADS)
	softmax(const float *x, float *y, int64_t rows, int e, int lanes)
{
	int64_t r = ((int64_t)blockIdx.x * SOFTMAX_THREADS + threadIdx.x) / lanes;
	int lane = threadIdx.x % lanes, n = r < rows ? e : 0;
	float most = -INFINITY, sum = 0;

	x += r * e, y += r * e;
	for (int i = lane; i < n; i += lanes)
		most = fmaxf(most, x[i]); /* ignores NaN, which propagates through the sum */
	most = lanes_max(most, lanes);
	for (int i = lane; i < n; i += lanes)
		sum += __expf(x[i] - most);
	sum = lanes_sum(sum, lanes);
	for (int i = lane; i < n; i += lanes)
		y[i] = __expf(x[i] - most) / sum;
}

__global__ static void __launch_bounds__(SOFTMAX_THREADS)
	softmax_bwd(const float *y, const float *dy, float *dx, int64_t rows, int e, int lanes)
{
	int64_t r = ((int64_t)blockIdx.x * SOFTMAX_THREADS + threadIdx.x) / lanes;
	int lane = threadIdx.x % lanes, n = r < rows ? e : 0;
	float sum = 0;

	y += r * e, dy += r * e, dx += r * e;
	for (int i = lane; i < n; i += lanes)
		sum += y[i] * dy[i];
	sum = lanes_sum(sum, lanes);
	for (int i = lane; i < n; i += lanes)
		dx[i] = y[i] * (dy[i] - sum);
}

extern "C" int vfm_cuda_softmax(struct vfm_stream *s, const struct vfm_softmax *a, struct vfm_err *err)
{
	int64_t rows = a->x.shape[0], e = a->x.shape[1];
	int lanes = lanes_for(e, 32);

	if (!vfm_numel(&a->x))
		return 0;
	VFM_LAUNCH(s, (softmax), ceil_div(rows * lanes, SOFTMAX_THREADS), SOFTMAX_THREADS, 0, (const float *)a->x.data,
		(float *)a->y.data, rows, (int)e, lanes);
	return vfm_cuda_launched(s, "softmax", err);
}

extern "C" int vfm_cuda_softmax_bwd(struct vfm_stream *s, const struct vfm_softmax_bwd *a, struct vfm_err *err)
{
	int64_t rows = a->y.shape[0], e = a->y.shape[1];
	int lanes = lanes_for(e, 32);

	if (!vfm_numel(&a->y))
		return 0;
	VFM_LAUNCH(s, (softmax_bwd), ceil_div(rows * lanes, SOFTMAX_THREADS), SOFTMAX_THREADS, 0,
		(const float *)a->y.data, (const float *)a->dy.data, (float *)a->dx.data, rows, (int)e, lanes);
	return vfm_cuda_launched(s, "softmax_bwd", err);
}

/* ---- expert choice ------------------------------------------------------------------------------ */

struct expert_choice {
	const float *score;
	const int32_t *cu;
	uint32_t *key;  /* [E,T] */
	int32_t *at;    /* [S+1]: offset of a sample in a row of index */
	int32_t *index; /* [E,K] */
	float *weight;  /* may be NULL */
	double capacity;
	int64_t tokens, experts, taken;
	int samples;
};

/* vfm_moe_expert_capacity with the same operations on doubles. */
__device__ static inline int32_t expert_capacity(int32_t n, int64_t experts, double capacity)
{
	double want = ceil((double)n * capacity / (double)experts * (1 - 1e-12));

	return want >= (double)n ? n : (int32_t)want;
}

__global__ __launch_bounds__(256) static void choice_bounds(const expert_choice a)
{
	int32_t base = 0, all;

	for (int s0 = 0; s0 <= a.samples; s0 += 256) {
		int s = s0 + (int)threadIdx.x;
		int32_t k = s < a.samples ? expert_capacity(a.cu[s + 1] - a.cu[s], a.experts, a.capacity) : 0;

		k = base + scan_block<8>(k, &all);
		if (s <= a.samples)
			a.at[s] = k;
		base += all;
	}
}

/* score [T,E] -> key [E,T], 32 x 32 at a time. */
__global__ __launch_bounds__(256) static void choice_keys(const expert_choice a)
{
	__shared__ uint32_t tile[32][33];
	int x = (int)threadIdx.x % 32, y = (int)threadIdx.x / 32;
	int64_t e0 = (int64_t)blockIdx.y * 32;

	for (int64_t t0 = (int64_t)blockIdx.x * 32; t0 < a.tokens; t0 += (int64_t)gridDim.x * 32) {
#pragma unroll
		for (int i = y; i < 32; i += 8)
			if (t0 + i < a.tokens && e0 + x < a.experts)
				tile[i][x] = rank_bits(a.score[(t0 + i) * a.experts + e0 + x]);
		__syncthreads();
#pragma unroll
		for (int i = y; i < 32; i += 8)
			if (e0 + i < a.experts && t0 + x < a.tokens)
				a.key[(e0 + i) * a.tokens + t0 + x] = tile[x][i];
		__syncthreads();
	}
}

/* Returns the k-th largest of key[n], by digits of 8 bits, highest first; *equal: how many of the keys equal to it are
 * among the k. */
template <int WARPS>
__device__ static inline uint32_t kth_largest(const uint32_t *key, int32_t n, int32_t k, int32_t *equal)
{
	__shared__ int32_t count[256], found[2];
	uint32_t prefix = 0, mask = 0;

	for (int shift = 24; shift >= 0; shift -= 8) {
		int32_t above = 0, all;

		for (int d = (int)threadIdx.x; d < 256; d += WARPS * 32)
			count[d] = 0;
		__syncthreads();
		for (int32_t i = (int32_t)threadIdx.x; i < n; i += WARPS * 32)
			if ((key[i] & mask) == prefix)
				atomicAdd(&count[key[i] >> shift & 255], 1);
		__syncthreads();
		for (int d0 = 255; d0 >= 0; d0 -= WARPS * 32) {
			int d = d0 - (int)threadIdx.x;
			int32_t c = d >= 0 ? count[d] : 0, before = above + scan_block<WARPS>(c, &all);

			if (before < k && k <= before + c)
				found[0] = d, found[1] = k - before;
			above += all;
		}
		__syncthreads();
		prefix |= (uint32_t)found[0] << shift;
		mask |= 255u << shift;
		k = found[1];
		__syncthreads();
	}
	*equal = k;
	return prefix;
}

/* Block: one expert and one sample. */
template <int WARPS> __global__ __launch_bounds__(WARPS * 32) static void choose(const expert_choice a)
{
	int64_t e = blockIdx.x % a.experts, s = blockIdx.x / a.experts, t0 = a.cu[s], to = e * a.taken + a.at[s];
	int32_t n = a.cu[s + 1] - a.cu[s], k = a.at[s + 1] - a.at[s], higher = 0, same = 0, equal;
	const uint32_t *key = a.key + e * a.tokens + t0;
	uint32_t least;

	if (k == 0)
		return;
	least = kth_largest<WARPS>(key, n, k, &equal);
	for (int32_t i0 = 0; i0 < n && higher + (same < equal ? same : equal) < k; i0 += WARPS * 32) {
		int32_t i = i0 + (int32_t)threadIdx.x, all, before;
		uint32_t x = i < n ? key[i] : 0;
		bool up = i < n && x > least, eq = i < n && x == least;

		before = scan_block<WARPS>((up ? 1 : 0) + (eq ? 1 << 16 : 0), &all);
		if (up || (eq && same + (before >> 16) < equal)) {
			int32_t eqs = same + (before >> 16),
				p = higher + (before & 0xffff) + (eqs < equal ? eqs : equal);

			a.index[to + p] = (int32_t)t0 + i;
			if (a.weight)
				a.weight[to + p] = of_rank(x);
		}
		higher += all & 0xffff;
		same += all >> 16;
	}
}

extern "C" int vfm_cuda_moe_topk_expert(struct vfm_stream *s, const struct vfm_moe_topk_expert *o, struct vfm_err *err)
{
	int64_t tokens = o->score.shape[0], experts = o->score.shape[1];
	size_t keys = sort_pad((size_t)(tokens * experts) * 4);
	expert_choice a = {(const float *)o->score.data, (const int32_t *)o->seqs->dev_cu.data, NULL, NULL,
		(int32_t *)o->index.data, data_of<float>(o->weight), o->capacity, tokens, experts, o->index.shape[1],
		o->seqs->n};
	char *ws;

	if (a.taken == 0)
		return 0;
	if ((int64_t)a.samples * experts >= INT32_MAX)
		return vfm_fail(err, VFM_EUSAGE, "moe_topk_expert: %d samples of %d experts are too many", a.samples,
			(int)experts);
	ws = (char *)vfm_cuda_ws(s, keys + (size_t)(a.samples + 1) * 4, err);
	if (!ws)
		return VFM_EENV;
	a.key = (uint32_t *)ws;
	a.at = (int32_t *)(ws + keys);
	VFM_LAUNCH(s, (choice_bounds), 1, 256, 0, a);
	VFM_LAUNCH(s, (choice_keys), dim3(ceil_div(tokens, 32), ceil_div(experts, 32)), 256, 0, a);
	if (o->seqs->max_len > 2048)
		VFM_LAUNCH(s, (choose<32>), a.samples * experts, 1024, 0, a);
	else
		VFM_LAUNCH(s, (choose<4>), a.samples * experts, 128, 0, a);
	return vfm_cuda_launched(s, "moe_topk_expert", err);
}

/* ---- token choice ---------------------------------------------------------------------------------- */

/* Warp: one token.  Each round selects the best expert that is worse than the one before; ties go to the lower expert.
 */
__global__ __launch_bounds__(256) static void best_experts(
	const float *score, int32_t *expert, float *weight, int64_t rows, int64_t experts, int64_t k)
{
	int lane = (int)threadIdx.x % 32;

	for (int64_t t = (int64_t)blockIdx.x * 8 + threadIdx.x / 32; t < rows; t += (int64_t)gridDim.x * 8) {
		const float *x = score + t * experts;
		uint64_t last = ~(uint64_t)0;
		float sum = 0;

		for (int64_t j = 0; j < k; j++) {
			uint64_t best = 0;

			for (int64_t e = lane; e < experts; e += 32) {
				uint64_t r = (uint64_t)rank_bits(x[e]) << 32 | (uint32_t) ~(uint32_t)e;

				best = r < last && r > best ? r : best;
			}
#pragma unroll
			for (int d = 16; d > 0; d >>= 1) {
				uint64_t r = __shfl_xor_sync(VFM_ALL_LANES, best, d);

				best = r > best ? r : best;
			}
			sum += of_rank((uint32_t)(best >> 32));
			if (lane == 0) {
				expert[t * k + j] = (int32_t) ~(uint32_t)best;
				weight[t * k + j] = of_rank((uint32_t)(best >> 32));
			}
			last = best;
		}
		__syncwarp();
		for (int64_t j = lane; j < k; j += 32)
			weight[t * k + j] /= sum;
	}
}

extern "C" int vfm_cuda_moe_topk_token(struct vfm_stream *s, const struct vfm_moe_topk_token *o, struct vfm_err *err)
{
	int64_t rows = o->score.shape[0];

	if (rows == 0)
		return 0;
	VFM_LAUNCH(s, (best_experts), grid_of(s, ceil_div(rows, 8), 32), 256, 0, (const float *)o->score.data,
		(int32_t *)o->expert.data, (float *)o->weight.data, rows, o->score.shape[1], o->expert.shape[1]);
	return vfm_cuda_launched(s, "moe_topk_token", err);
}

/* Warp: one token. */
__global__ __launch_bounds__(256) static void best_experts_bwd(const float *score, const int32_t *expert,
	const float *dweight, float *dscore, int64_t rows, int64_t experts, int64_t k, uint64_t *fault)
{
	int lane = (int)threadIdx.x % 32;

	for (int64_t t = (int64_t)blockIdx.x * 8 + threadIdx.x / 32; t < rows; t += (int64_t)gridDim.x * 8) {
		float sum = 0, dot = 0;

		for (int64_t e = lane; e < experts; e += 32)
			dscore[t * experts + e] = 0;
		for (int64_t j = lane; j < k; j += 32) {
			int32_t e = expert[t * k + j];

			sum += e >= 0 && e < experts ? score[t * experts + e] : 0.0f;
		}
		sum = warp_sum(sum);
		for (int64_t j = lane; j < k; j += 32) {
			int32_t e = expert[t * k + j];

			dot += e >= 0 && e < experts ? score[t * experts + e] / sum * dweight[t * k + j] : 0.0f;
		}
		dot = warp_sum(dot);
		__syncwarp(); /* the zeros are already stored */
		for (int64_t j = lane; j < k; j += 32) {
			int32_t e = expert[t * k + j];

			if (row_of(e, experts, 0, fault))
				dscore[t * experts + e] = (dweight[t * k + j] - dot) / sum; /* exactly 0 if k is 1 */
		}
	}
}

extern "C" int vfm_cuda_moe_topk_token_bwd(
	struct vfm_stream *s, const struct vfm_moe_topk_token_bwd *o, struct vfm_err *err)
{
	int64_t rows = o->score.shape[0];

	if (rows == 0)
		return 0;
	VFM_LAUNCH(s, (best_experts_bwd), grid_of(s, ceil_div(rows, 8), 32), 256, 0, (const float *)o->score.data,
		(const int32_t *)o->expert.data, (const float *)o->dweight.data, (float *)o->dscore.data, rows,
		o->score.shape[1], o->expert.shape[1], vfm_cuda_fault(s, VFM_OP_moe_topk_token_bwd));
	return vfm_cuda_launched(s, "moe_topk_token_bwd", err);
}

/* ---- a rank's own choices -------------------------------------------------------------------------- */

struct own_choice {
	const int32_t *index, *own; /* own may be NULL */
	int32_t *row, *place, *count;
	int64_t tokens, experts, taken;
	uint64_t *fault;

	__device__ inline int32_t of(int64_t i) const
	{
		int32_t t = index[i];

		return !own ? t : row_of(t, tokens, 0, fault) ? own[t] : -1;
	}
};

__global__ __launch_bounds__(256) static void own_count(const own_choice a)
{
	const int64_t e = blockIdx.x;
	int32_t n = 0, all;

	for (int64_t i = threadIdx.x; i < a.taken; i += 256)
		n += a.of(e * a.taken + i) >= 0;
	scan_block<8>(n, &all);
	if (threadIdx.x == 0)
		a.count[e] = all;
}

/* A block for each expert, which begins after the experts before it.  All blocks fill the rest. */
__global__ __launch_bounds__(256) static void own_lists(const own_choice a)
{
	const int64_t e = blockIdx.x;
	int32_t before = 0, n = 0, base, total, all;

	for (int64_t i = threadIdx.x; i < a.experts; i += 256) {
		before += i < e ? a.count[i] : 0;
		n += a.count[i];
	}
	scan_block<8>(before, &base);
	scan_block<8>(n, &total);
	for (int64_t i0 = 0; i0 < a.taken; i0 += 256) {
		int64_t i = i0 + threadIdx.x;
		int32_t r = i < a.taken ? a.of(e * a.taken + i) : -1, at = base + scan_block<8>(r >= 0, &all);

		if (r >= 0) {
			a.row[at] = r;
			a.place[at] = (int32_t)(r * a.experts + e);
		}
		base += all;
	}
	for (int64_t i = total + e * 256 + threadIdx.x; i < a.experts * a.taken; i += a.experts * 256)
		a.row[i] = a.place[i] = -1;
}

extern "C" int vfm_cuda_moe_own(struct vfm_stream *s, const struct vfm_moe_own *o, struct vfm_err *err)
{
	own_choice a = {(const int32_t *)o->index.data, data_of<const int32_t>(o->own), (int32_t *)o->row.data,
		(int32_t *)o->place.data, (int32_t *)o->count.data, vfm_has(&o->own) ? o->own.shape[0] : 0,
		o->index.shape[0], o->index.shape[1], vfm_cuda_fault(s, VFM_OP_moe_own)};

	if (a.experts == 0)
		return 0;
	if (a.experts * a.taken >= INT32_MAX)
		return vfm_fail(err, VFM_EUSAGE, "moe_own: %lld are too many", (long long)(a.experts * a.taken));
	VFM_LAUNCH(s, (own_count), a.experts, 256, 0, a);
	VFM_LAUNCH(s, (own_lists), a.experts, 256, 0, a);
	return vfm_cuda_launched(s, "moe_own", err);
}

/* ---- sorting and counting ------------------------------------------------------------------------- */

struct sorted {
	sort_keys k;
	const int32_t *order;
	int32_t *source, *inverse; /* may be NULL */
	int32_t *count;            /* [keys] */
	int64_t n, div;
};

__global__ __launch_bounds__(256) static void sorted_lists(const sorted a)
{
	int64_t t = (int64_t)blockIdx.x * 256 + threadIdx.x, step = (int64_t)gridDim.x * 256;

	for (int64_t p = t; p < a.n && (a.source || a.inverse); p += step) {
		int32_t i = a.order[p];

		if (a.source)
			a.source[p] = (int32_t)(i / a.div);
		if (a.inverse)
			a.inverse[i] = (int32_t)p;
	}
	for (int64_t e = t; e < a.k.keys; e += step)
		a.count[e] = sort_first(a.k, a.order, a.n, (int32_t)e + 1) - sort_first(a.k, a.order, a.n, (int32_t)e);
}

extern "C" int vfm_cuda_moe_sort(struct vfm_stream *s, const struct vfm_moe_sort *o, struct vfm_err *err)
{
	int64_t n = o->key.shape[0], work = n > o->buckets ? n : o->buckets;
	struct sort_plan plan;
	sorted a = {
		{(const int32_t *)o->key.data, 1, (int32_t)o->buckets, INT32_MIN, vfm_cuda_fault(s, VFM_OP_moe_sort)},
		(const int32_t *)o->order.data, data_of<int32_t>(o->source), data_of<int32_t>(o->inverse),
		(int32_t *)o->count.data, n, o->div};
	void *ws;

	if (work == 0)
		return 0;
	if (work >= INT32_MAX)
		return vfm_fail(err, VFM_EUSAGE, "moe_sort: %lld are too many", (long long)work);
	plan = sort_plan(n, o->buckets);
	ws = vfm_cuda_ws(s, sort_ws(&plan), err);
	if (!ws)
		return VFM_EENV;
	sort_run(s, &plan, a.k, (int32_t *)o->order.data, ws);
	VFM_LAUNCH(s, (sorted_lists), grid_of(s, ceil_div(work, 256), 8), 256, 0, a);
	return vfm_cuda_launched(s, "moe_sort", err);
}

/* Counts are integers, which can be added in any order, and are converted to float in place. */
enum { COUNT_ZERO, COUNT_ADD, COUNT_FLOAT };

__global__ __launch_bounds__(256) static void count_step(int what, const int32_t *expert, const int32_t *seg,
	int32_t *count, int64_t n, int64_t k, int64_t experts, uint64_t *fault)
{
	for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < n; i += (int64_t)gridDim.x * 256) {
		if (what == COUNT_ZERO)
			count[i] = 0;
		else if (what == COUNT_FLOAT)
			((float *)count)[i] = (float)count[i];
		else if (row_of(expert[i], experts, INT32_MIN, fault))
			atomicAdd(&count[seg[i / k] * experts + expert[i]], 1);
	}
}

extern "C" int vfm_cuda_moe_count(struct vfm_stream *s, const struct vfm_moe_count *o, struct vfm_err *err)
{
	int64_t n[] = {vfm_numel(&o->count), vfm_numel(&o->expert), vfm_numel(&o->count)};

	for (int what = COUNT_ZERO; n[0] && what <= COUNT_FLOAT; what++)
		if (n[what])
			VFM_LAUNCH(s, (count_step), grid_of(s, ceil_div(n[what], 256), 8), 256, 0, what,
				(const int32_t *)o->expert.data, (const int32_t *)o->seqs->seg.data,
				(int32_t *)o->count.data, n[what], o->expert.shape[1], o->count.shape[1],
				vfm_cuda_fault(s, VFM_OP_moe_count));
	return vfm_cuda_launched(s, "moe_count", err);
}

/* ---- balance --------------------------------------------------------------------------------------------- */

struct balance_args {
	const float *score, *count, *coef;
	const int32_t *seg;
	float *dscore; /* may be NULL */
	double *row;   /* [T]; NULL: no loss */
	int64_t rows, experts;
	int lanes; /* threads that share a row */
	bool accumulate;
};

template <int N> __global__ __launch_bounds__(256) static void balance(const balance_args a)
{
	int lane = (int)threadIdx.x % a.lanes, here = 256 / a.lanes;

	for (int64_t t0 = (int64_t)blockIdx.x * here; t0 < a.rows; t0 += (int64_t)gridDim.x * here) {
		int64_t t = t0 + (int)threadIdx.x / a.lanes, s = t < a.rows ? a.seg[t] : 0;
		float coef = t < a.rows ? a.coef[s] : 0.0f, sum = 0;

		for (int64_t e = (int64_t)lane * N; t < a.rows && e < a.experts; e += (int64_t)a.lanes * N) {
			vec<N> c = ld_vec<N>(a.count + s * a.experts + e), d = {};

			if (a.row) {
				vec<N> x = ld_vec<N>(a.score + t * a.experts + e);

#pragma unroll
				for (int k = 0; k < N; k++)
					sum = fmaf(c.v[k], x.v[k], sum);
			}
			if (!a.dscore)
				continue;
			if (a.accumulate)
				d = ld_vec<N>(a.dscore + t * a.experts + e);
#pragma unroll
			for (int k = 0; k < N; k++)
				d.v[k] = fmaf(coef, c.v[k], d.v[k]);
			st_vec<N>(a.dscore + t * a.experts + e, d);
		}
		sum = lanes_sum(sum, a.lanes);
		if (a.row && t < a.rows && lane == 0)
			a.row[t] = (double)sum;
	}
}

extern "C" int vfm_cuda_moe_balance(struct vfm_stream *s, const struct vfm_moe_balance *o, struct vfm_err *err)
{
	balance_args a = {(const float *)o->score.data, (const float *)o->count.data, (const float *)o->coef.data,
		(const int32_t *)o->seqs->seg.data, data_of<float>(o->dscore), NULL, o->score.shape[0],
		o->score.shape[1], 0, o->accumulate};
	bool wide = vec_ok(4, &o->score, &o->count, &o->dscore);

	if (vfm_has(&o->loss)) {
		a.row = (double *)vfm_cuda_ws(s, fold_ws(a.rows, o->seqs), err);
		if (!a.row)
			return VFM_EENV;
	}
	a.lanes = lanes_for(ceil_div(a.experts, wide ? 4 : 1), 32);
	if (a.rows)
		VFM_WIDTH(wide, 4, N,
			VFM_LAUNCH(s, (balance<N>), grid_of(s, ceil_div(a.rows, 256 / a.lanes), 8), 256, 0, a));
	if (a.row)
		fold_row_sums(s, a.row, a.rows, o->seqs, a.coef, (double *)o->loss.data, NULL, NULL);
	return vfm_cuda_launched(s, "moe_balance", err);
}
