/* norm_bwd.cu - the backward of norms, and of the residual sum before them.  A block processes a tile of tokens
 * (colsum.h) row by row.  It keeps the column sums of the norm in registers and those of the branch in shared memory.
 * Plain loops handle rows that are too long or do not consist of 16-byte vectors.
 */
#include "device/cuda/kern/colsum.h"

/* Where a block writes column sums: one row for each tile, or with `by_sample` one for each sample of the tile. */
struct sums_to {
	float *at; /* NULL: nowhere */
	int64_t width;
	bool by_sample;
};

struct bwd_args {
	const void *x, *dy;
	void *dx;
	const void *mul; /* rows for each sample, or NULL */
	int64_t mul_stride;
	float one;
	const float *mean, *rstd;
	const void *h, *gate; /* NULL: 1, and no dgate */
	void *dh;             /* or NULL: no branch */
	int64_t gate_stride;
	float *ds;                    /* [T,d] for norm_bwd_any: dx before it is rounded; or NULL */
	struct sums_to sums;          /* 2 d columns: of dy xhat, and of dy */
	struct sums_to gates, branch; /* d columns: of h dx, and of dh */
	struct samples q;
	int d;
	bool layer, acc, x_bf, dy_bf, dx_bf, mul_bf, gate_bf, dh_bf;
};

__device__ static inline float *sums_row(const struct sums_to &to, int64_t tile, int s)
{
	return to.at + (tile + (to.by_sample ? s : 0)) * to.width;
}

/* The part of a row that a thread has. */
template <class X, class DY, int V> struct bwd_row {
	packed<X, 8> x[V];
	packed<DY, 8> dy[V];
	float mean, rstd;
};

/* No row: zeros, which do not change sums. */
template <class X, class DY, int V>
__device__ static inline void bwd_load(const struct bwd_args &p, int t, bool there, struct bwd_row<X, DY, V> *r)
{
	unsigned at = (unsigned)t * p.d; /* launch_bwd ensures that 32 bits suffice */

	r->mean = there && p.layer ? p.mean[t] : 0.0f;
	r->rstd = there ? p.rstd[t] : 0.0f;
#pragma unroll
	for (int v = 0; v < V; v++) {
		int c = (v * blockDim.x + threadIdx.x) * 8;
		bool in = there && c < p.d;

		r->x[v] = in ? ld_packed<8>((const X *)p.x + (at + c)) : packed_zero<X, 8>();
		r->dy[v] = in ? ld_packed<8>((const DY *)p.dy + (at + c)) : packed_zero<DY, 8>();
	}
}

/* Sums both over the warps of a row; `part` alternates between two buffers. */
__device__ static inline float2 row_sums(float a, float b, float2 *part)
{
	int warps = blockDim.x / 32, first = threadIdx.y * warps;
	float2 sum = make_float2(0, 0);

	a = warp_sum(a), b = warp_sum(b);
	if (warps == 1)
		return make_float2(a, b);
	if (threadIdx.x % 32 == 0)
		part[first + threadIdx.x / 32] = make_float2(a, b);
	__syncthreads();
	for (int i = 0; i < warps; i++)
		sum.x += part[first + i].x, sum.y += part[first + i].y;
	return sum;
}

/* The factors of a row are in shared memory, two parts of 16 bytes for each vector, to save registers. */
__device__ static inline vec<8> bwd_mul(const float *mul, int v)
{
	vec<4> lo = ld_vec<4>(mul + ((2 * v) * blockDim.x + threadIdx.x) * 4),
	       hi = ld_vec<4>(mul + ((2 * v + 1) * blockDim.x + threadIdx.x) * 4);
	vec<8> m;

#pragma unroll
	for (int k = 0; k < 4; k++)
		m.v[k] = lo.v[k], m.v[k + 4] = hi.v[k];
	return m;
}

/* Writes row s of `from` + one to the factors in shared memory; from NULL: ones. */
template <int V>
__device__ static inline void put_factors(
	const void *from, bool bf, int64_t stride, float one, int s, int d, float *factors)
{
#pragma unroll
	for (int v = 0; v < V && threadIdx.y == 0; v++) {
		int c = (v * blockDim.x + threadIdx.x) * 8;
		vec<8> m = {};
		vec<4> half;

		if (from && c < d)
			m = ld_any<8>(from, bf, s * stride + c);
#pragma unroll
		for (int k = 0; k < 8; k++) {
			half.v[k % 4] = from ? m.v[k] + one : 1.0f;
			if (k % 4 == 3)
				st_vec<4>(factors + ((2 * v + k / 4) * blockDim.x + threadIdx.x) * 4, half);
		}
	}
}

/* The shared memory of a block: factors of the norm; with a branch those of the gate, and for each thread its column
 * sums for the gate and for the branch; with several rows of threads, room to add them.  All have the layout of the
 * factors. */
template <int V> struct bwd_shared {
	float *mul, *gate, *sg, *sb, *flush;

	__device__ bwd_shared(float *at, bool branch)
	{
		int n = 8 * V * blockDim.x, me = threadIdx.y * n;

		mul = at, gate = at + n, sg = gate + n + me, sb = sg + n * blockDim.y;
		flush = at + n * (branch ? 2 + 2 * blockDim.y : 1);
	}
};

/* Adds a to the thread's sums of vector v. */
__device__ static inline void add_shared(float *sums, int v, const vec<8> &a)
{
	vec<8> old = bwd_mul(sums, v);

#pragma unroll
	for (int half = 0; half < 2; half++) {
		vec<4> x;

#pragma unroll
		for (int k = 0; k < 4; k++)
			x.v[k] = old.v[4 * half + k] + a.v[4 * half + k];
		st_vec<4>(sums + ((2 * v + half) * blockDim.x + threadIdx.x) * 4, x);
	}
}

template <int V> __device__ static inline void zero_shared(float *sums)
{
	vec<4> zero = {};

#pragma unroll
	for (int v = 0; v < 2 * V; v++)
		st_vec<4>(sums + (v * blockDim.x + threadIdx.x) * 4, zero);
}

/* ds is the gradient of the sum, without its rounding. */
template <int V, class H>
__device__ static inline void store_branch(const struct bwd_args &p, const struct bwd_shared<V> &mem, unsigned at,
	int v, const packed<H, 8> &h, const vec<8> &ds)
{
	vec<8> g = bwd_mul(mem.gate, v), f = widen(h), dh, dg;

#pragma unroll
	for (int k = 0; k < 8; k++) {
		dh.v[k] = ds.v[k] * g.v[k];
		dg.v[k] = ds.v[k] * f.v[k];
	}
	st_any<8>(p.dh, p.dh_bf, at, dh);
	if (p.gates.at)
		add_shared(mem.sg, v, dg);
	if (p.branch.at)
		add_shared(mem.sb, v, dh);
}

template <class X, class DY, int V, bool H>
__device__ static inline void bwd_store(const struct bwd_args &p, int t, const struct bwd_row<X, DY, V> &r,
	const packed<X, 8> *kept, const packed<DY, 8> *h, const struct bwd_shared<V> &mem, float c1, float c2)
{
	unsigned at = (unsigned)t * p.d;

#pragma unroll
	for (int v = 0; v < V; v++) {
		int c = (v * blockDim.x + threadIdx.x) * 8;
		vec<8> x = widen(r.x[v]), dy = widen(r.dy[v]), old = widen(kept[v]), m = bwd_mul(mem.mul, v);

		if (c >= p.d)
			continue;
#pragma unroll
		for (int k = 0; k < 8; k++)
			x.v[k] = r.rstd * (dy.v[k] * m.v[k] - c1 - (x.v[k] - r.mean) * r.rstd * c2) + old.v[k];
		st_any<8>(p.dx, p.dx_bf, at + c, x);
		if (H)
			store_branch<V>(p, mem, at + c, v, h[v], x);
	}
}

/* Writes d column sums of the rows of the block, in the order of threadIdx.y. */
template <int V>
__device__ static inline void flush_columns(const struct bwd_args &p, float *to, float (*sum)[8], float *room)
{
	for (unsigned g = 0; g < blockDim.y; g++) {
		bool last = g + 1 == blockDim.y;

#pragma unroll
		for (int v = 0; v < V && g == threadIdx.y; v++) {
			int i = v * blockDim.x + threadIdx.x;
			vec<8> a;

#pragma unroll
			for (int k = 0; k < 8; k++) {
				float *s = room + (v * 8 + k) * blockDim.x + threadIdx.x;

				a.v[k] = sum[v][k] + (g ? *s : 0.0f);
				if (!last)
					*s = a.v[k];
			}
			if (last && i * 8 < p.d)
				st_vec<8>(to + i * 8, a);
		}
		if (blockDim.y > 1)
			__syncthreads();
	}
}

/* The same for sums in shared memory, which become zero. */
template <int V>
__device__ static inline void flush_shared(const struct bwd_args &p, float *to, float *sums, float *room)
{
	float a[V][8];

#pragma unroll
	for (int v = 0; v < V; v++) {
		vec<8> x = bwd_mul(sums, v);

#pragma unroll
		for (int k = 0; k < 8; k++)
			a[v][k] = x.v[k];
	}
	flush_columns<V>(p, to, a, room);
	zero_shared<V>(sums);
}

/* Writes the sums of a norm and makes them zero. */
template <int V>
__device__ static inline void flush_norm(
	const struct bwd_args &p, int tile, int s, float (*sx)[8], float (*sy)[8], float *room)
{
	float *to = sums_row(p.sums, tile, s);

	flush_columns<V>(p, to, sx, room);
	flush_columns<V>(p, to + p.d, sy, room);
#pragma unroll
	for (int v = 0; v < V; v++)
#pragma unroll
		for (int k = 0; k < 8; k++)
			sx[v][k] = sy[v][k] = 0;
}

/* Limits of the threads of a block.  17 KB of loads must be in flight on each multiprocessor of an H200 (4.3 TB/s with
 * a latency of 0.8 us).
 *
 * In bf16 without a branch two blocks with short rows fit a multiprocessor, and one computes while the other waits.
 * Otherwise the registers allow one block, which loads all operands of a row at once.  `early`: it also loads x and dy
 * of the next row.  Long rows and f32 have as many bytes in flight without that. */
template <class X, class DY, int V, bool H> struct bwd_threads {
	enum {
		most = V == 1 ? 512 : 384,
		bytes = sizeof(X) + sizeof(DY),
		blocks = V == 1 && bytes == 4 && !H ? 2 : 1,
		early = V == 1 && bytes < 8 && blocks == 1
	};
	static_assert(4 * 8 * V * most * (int)sizeof(float) < VFM_CUDA_LEAST_SHARED, "fits every GPU");
};

/* Loads what the second half of a row reads: dx, if it holds a gradient, and h. */
template <class X, class DY, int V, bool H>
__device__ static inline void load_second(
	const struct bwd_args &p, int t, bool there, packed<X, 8> (&old)[V], packed<DY, 8> (&h)[V])
{
#pragma unroll
	for (int v = 0; v < V; v++) {
		int c = (v * blockDim.x + threadIdx.x) * 8;
		unsigned at = (unsigned)t * p.d + c;

		old[v] = p.acc && there && c < p.d ? ld_packed<8>((const X *)p.dx + at) : packed_zero<X, 8>();
		h[v] = H && p.h && there && c < p.d ? ld_packed<8>((const DY *)p.h + at) : packed_zero<DY, 8>();
	}
}

/* Adds a row to the column sums; returns its two sums over the columns, of this thread. */
template <class X, class DY, int V>
__device__ static inline float2 add_row_sums(
	const struct bwd_row<X, DY, V> &row, const float *mul, float (*sx)[8], float (*sy)[8])
{
	float2 sum = make_float2(0, 0);

#pragma unroll
	for (int v = 0; v < V; v++) {
		vec<8> x = widen(row.x[v]), dy = widen(row.dy[v]), m = bwd_mul(mul, v);

#pragma unroll
		for (int k = 0; k < 8; k++) {
			float xh = (x.v[k] - row.mean) * row.rstd, g = dy.v[k] * m.v[k];

			sum.x += g;
			sum.y += g * xh;
			sx[v][k] += dy.v[k] * xh;
			sy[v][k] += dy.v[k];
		}
	}
	return sum;
}

/* Block (threads of a row, rows); one tile for each block.  H: with a branch. */
template <class X, class DY, int V, bool H>
__global__ static void __launch_bounds__(bwd_threads<X, DY, V, H>::most, bwd_threads<X, DY, V, H>::blocks)
	norm_bwd_vec(const struct bwd_args p)
{
	VFM_DYN_SHARED(float, shared);
	__shared__ float2 part[2][16];
	const bool early = bwd_threads<X, DY, V, H>::early;
	int tile = (int)blockIdx.x, t = tile * p.q.per, end = min(t + p.q.per, (int)p.q.total), turn = 0;
	struct bwd_shared<V> mem(shared, H);
	float sx[V][8] = {}, sy[V][8] = {};

	if (H) {
		zero_shared<V>(mem.sg);
		zero_shared<V>(mem.sb);
	}
	while (t < end) {
		int s = sample_at(p.q, t), to = min(end, (int)sample_end(p.q, s));
		struct bwd_row<X, DY, V> row;

		bwd_load<X, DY, V>(p, t + threadIdx.y, t + (int)threadIdx.y < to, &row);
		__syncthreads();
		put_factors<V>(p.mul, p.mul_bf, p.mul_stride, p.one, s, p.d, mem.mul);
		if (H)
			put_factors<V>(p.gate, p.gate_bf, p.gate_stride, 0.0f, s, p.d, mem.gate);
		__syncthreads();
		for (; t < to; t += blockDim.y, turn ^= 1) {
			int me = t + (int)threadIdx.y, after = me + (int)blockDim.y;
			struct bwd_row<X, DY, V> next;
			packed<X, 8> old[V]; /* accumulates dx, which then has the dtype of x */
			packed<DY, 8> h[V];
			float2 sum;

			if (early) {
				load_second<X, DY, V, H>(p, me, me < to, old, h);
				bwd_load<X, DY, V>(p, after, after < to, &next);
			}
			sum = add_row_sums<X, DY, V>(row, mem.mul, sx, sy);
#pragma unroll
			for (int v = 0; v < V; v++)
				fresh(row.x[v]), fresh(row.dy[v]);
			if (!early) /* in flight during the reduction */
				load_second<X, DY, V, H>(p, me, me < to, old, h);
			sum = row_sums(sum.x, sum.y, part[turn]);
			if (me < to)
				bwd_store<X, DY, V, H>(p, me, row, old, h, mem, p.layer ? sum.x / (float)p.d : 0.0f,
					sum.y / (float)p.d);
			if (!early)
				bwd_load<X, DY, V>(p, after, after < to, &next);
			row = next;
		}
		t = to;
		if (p.sums.at && p.sums.by_sample)
			flush_norm<V>(p, tile, s, sx, sy, mem.flush);
		if (H && p.gates.at)
			flush_shared<V>(p, sums_row(p.gates, tile, s), mem.sg, mem.flush);
	}
	if (p.sums.at && !p.sums.by_sample)
		flush_norm<V>(p, tile, 0, sx, sy, mem.flush);
	if (H && p.branch.at)
		flush_shared<V>(p, sums_row(p.branch, tile, 0), mem.sb, mem.flush);
}

/* Rows of any length: dx and dh. */
__global__ static void __launch_bounds__(256) norm_bwd_any(const struct bwd_args p)
{
	__shared__ float2 part[16];
	int64_t t = (int64_t)blockIdx.x * blockDim.y + threadIdx.y, row = t * p.d;
	float mean, rstd, s1 = 0, s2 = 0;
	float2 sum;
	int s;

	if (t >= p.q.total)
		return;
	mean = p.layer ? p.mean[t] : 0.0f, rstd = p.rstd[t];
	s = p.mul || p.gate ? sample_at(p.q, t) : 0;
	for (int c = threadIdx.x; c < p.d; c += blockDim.x) {
		float g = ld_one(p.dy, p.dy_bf, row + c) *
			(p.mul ? ld_one(p.mul, p.mul_bf, s * p.mul_stride + c) + p.one : 1.0f);

		s1 += g;
		s2 += g * (ld_one(p.x, p.x_bf, row + c) - mean) * rstd;
	}
	sum = row_sums(s1, s2, part);
	sum.x = p.layer ? sum.x / (float)p.d : 0.0f, sum.y /= (float)p.d;
	for (int c = threadIdx.x; c < p.d; c += blockDim.x) {
		float g = ld_one(p.dy, p.dy_bf, row + c) *
			(p.mul ? ld_one(p.mul, p.mul_bf, s * p.mul_stride + c) + p.one : 1.0f);
		float x = (ld_one(p.x, p.x_bf, row + c) - mean) * rstd,
		      old = p.acc ? ld_one(p.dx, p.dx_bf, row + c) : 0.0f, ds = rstd * (g - sum.x - x * sum.y) + old;

		st_one(p.dx, p.dx_bf, row + c, ds);
		if (p.ds)
			p.ds[row + c] = ds;
		if (p.dh)
			st_one(p.dh, p.dh_bf, row + c,
				ds * (p.gate ? ld_one(p.gate, p.gate_bf, s * p.gate_stride + c) : 1.0f));
	}
}

/* Rows of any length: the sums of the column of a thread.  Grid: tiles x column blocks. */
__global__ static void __launch_bounds__(128) norm_bwd_cols(const struct bwd_args p)
{
	int64_t blocks = (p.d + 127) / 128, tile = blockIdx.x / blocks, c = blockIdx.x % blocks * 128 + threadIdx.x;
	int64_t t = tile * p.q.per, end = min(t + (int64_t)p.q.per, p.q.total);
	float sx = 0, sy = 0, sb = 0;

	while (t < end && c < p.d) {
		int s = sample_at(p.q, t);
		int64_t to = min(end, sample_end(p.q, s));
		float sg = 0, gate = p.gate ? ld_one(p.gate, p.gate_bf, s * p.gate_stride + c) : 1.0f;

		for (; t < to; t++) {
			float dy = ld_one(p.dy, p.dy_bf, t * p.d + c), ds = p.ds ? p.ds[t * p.d + c] : 0.0f;

			sx += dy * (ld_one(p.x, p.x_bf, t * p.d + c) - (p.layer ? p.mean[t] : 0.0f)) * p.rstd[t];
			sy += dy;
			sg += p.h ? ds * ld_one(p.h, p.dh_bf, t * p.d + c) : 0.0f;
			sb += ds * gate;
		}
		if (p.sums.at && p.sums.by_sample) {
			float *out = sums_row(p.sums, tile, s) + c;

			out[0] = sx, out[p.d] = sy;
			sx = sy = 0;
		}
		if (p.gates.at)
			sums_row(p.gates, tile, s)[c] = sg;
	}
	if (c >= p.d)
		return;
	if (p.sums.at && !p.sums.by_sample)
		sums_row(p.sums, tile, 0)[c] = sx, sums_row(p.sums, tile, 0)[c + p.d] = sy;
	if (p.branch.at)
		sums_row(p.branch, tile, 0)[c] = sb;
}

template <class X, class DY, int V, bool H> static void launch_bwd_rows(struct vfm_stream *s, const struct bwd_args &p)
{
	int threads = in_warps(ceil_div(p.d, 8 * V)), rows = bwd_threads<X, DY, V, H>::most / threads;
	dim3 block(threads, rows > 4 ? 4 : rows);
	/* struct bwd_shared; the most is that of one row of all threads: 4 */
	size_t smem = (size_t)threads * 8 * V * ((H ? 2 + 2 * block.y : 1) + (block.y > 1)) * sizeof(float);

	if (smem > 48 << 10)
		VFM_ALLOW_SHARED((norm_bwd_vec<X, DY, V, H>), smem);
	VFM_LAUNCH(s, (norm_bwd_vec<X, DY, V, H>), count_token_tiles(p.q), block, smem, p);
}

template <class X, class DY> static void launch_bwd(struct vfm_stream *s, const struct bwd_args &p)
{
	bool once = p.d <= bwd_threads<X, DY, 1, true>::most * 8;

	if (p.dh)
		once ? launch_bwd_rows<X, DY, 1, true>(s, p) : launch_bwd_rows<X, DY, 2, true>(s, p);
	else
		once ? launch_bwd_rows<X, DY, 1, false>(s, p) : launch_bwd_rows<X, DY, 2, false>(s, p);
}

/* Returns whether norm_bwd_vec can do it: whole vectors, rows that fit its registers, equal dtypes of what it loads
 * together.
 */
static bool bwd_vectorized(const struct vfm_norm_bwd *a)
{
	const struct vfm_tensor *mul = vfm_has(&a->scale) ? &a->scale : &a->weight;

	return vec_ok(8, &a->x, &a->dy, &a->dx, mul, &a->h, &a->gate, &a->dh) &&
		(!a->dx_accumulate || a->dx.dtype == a->x.dtype) && (!vfm_has(&a->h) || a->h.dtype == a->dy.dtype) &&
		a->x.shape[1] <= bwd_threads<float, float, 2, true>::most * 16 && vfm_numel(&a->x) <= UINT32_MAX;
}

static struct bwd_args bwd_args_of(const struct vfm_norm_bwd *a)
{
	bool mod = vfm_has(&a->scale);
	const struct vfm_tensor *mul = mod ? &a->scale : &a->weight;

	return {a->x.data, a->dy.data, a->dx.data, data_of<const void>(*mul), sample_stride(mul), mod ? 1.0f : 0.0f,
		data_of<const float>(a->mean), (const float *)a->rstd.data, data_of<const void>(a->h),
		data_of<const void>(a->gate), data_of<void>(a->dh), sample_stride(&a->gate), nullptr, {}, {}, {},
		tile_samples(mod || vfm_has(&a->gate) ? a->seqs : nullptr, a->x.shape[0], 1), (int)a->x.shape[1],
		a->kind == VFM_NORM_LAYER, a->dx_accumulate, is_bf(&a->x), is_bf(&a->dy), is_bf(&a->dx), is_bf(mul),
		is_bf(&a->gate), is_bf(&a->dh)};
}

/* One more column group of a fold. */
static void add_fold_group(struct fold_args *f, const struct vfm_tensor *out)
{
	int i = (int)(f->width / f->d);

	f->out[i] = data_of<float>(*out);
	f->stride[i] = sample_stride(out);
	f->width += f->d;
}

/* Places the partial sums: f[0] those of each sample, f[1] those of all tokens.  Returns their number. */
static int64_t place_sums(struct bwd_args *p, const struct vfm_norm_bwd *a, struct fold_args f[2])
{
	bool mod = vfm_has(&a->scale);
	const struct vfm_tensor *out[2] = {mod ? &a->dscale : &a->dweight, mod ? &a->dshift : &a->dbias};

	f[0] = {p->q, nullptr, 0, p->d, {}, {}, false};
	f[1] = {whole_pack(p->q), nullptr, 0, p->d, {}, {}, true};
	p->sums.by_sample = mod, p->gates.by_sample = true;
	if (vfm_has(out[0]) || vfm_has(out[1]))
		add_fold_group(&f[!mod], out[0]), add_fold_group(&f[!mod], out[1]);
	if (vfm_has(&a->dgate))
		add_fold_group(&f[0], &a->dgate);
	if (vfm_has(&a->dh_sum))
		add_fold_group(&f[1], &a->dh_sum);
	p->sums.width = f[!mod].width, p->gates.width = f[0].width, p->branch.width = f[1].width;
	return f[0].width * part_rows(p->q) + f[1].width * count_token_tiles(p->q);
}

static void point_sums(struct bwd_args *p, const struct vfm_norm_bwd *a, struct fold_args f[2], float *at)
{
	bool mod = vfm_has(&a->scale),
	     norm = vfm_has(&a->dscale) || vfm_has(&a->dshift) || vfm_has(&a->dweight) || vfm_has(&a->dbias);
	float *all = at + f[0].width * part_rows(p->q);

	f[0].part = at, f[1].part = all;
	p->sums.at = !norm ? nullptr : mod ? at : all;
	p->gates.at = vfm_has(&a->dgate) ? at + f[0].width - p->d : nullptr;
	p->branch.at = vfm_has(&a->dh_sum) ? all + f[1].width - p->d : nullptr;
}

extern "C" int vfm_cuda_norm_bwd(struct vfm_stream *s, const struct vfm_norm_bwd *a, struct vfm_err *err)
{
	struct bwd_args p = bwd_args_of(a);
	struct fold_args f[2];
	int64_t sums = place_sums(&p, a, f), n = vfm_numel(&a->x);
	int any = p.d <= 512 ? 32 : 256, rows = any == 32 ? 4 : 1;
	bool fast = bwd_vectorized(a), ds = !fast && (vfm_has(&a->dgate) || vfm_has(&a->dh_sum));

	if (sums) {
		float *ws = (float *)vfm_cuda_ws(s, (size_t)(sums + (ds ? n : 0)) * sizeof(float), err);

		if (!ws)
			return VFM_EENV;
		point_sums(&p, a, f, ws);
		p.ds = ds ? ws + sums : nullptr;
	}
	if (!p.q.total) {
		f[1].width = 0;
	} else if (fast) {
		VFM_ACT_TYPE(a->x.dtype, X, VFM_ACT_TYPE(a->dy.dtype, DY, (launch_bwd<X, DY>(s, p))));
	} else {
		VFM_LAUNCH(s, (norm_bwd_any), ceil_div(p.q.total, rows), dim3(any, rows), 0, p);
		if (sums)
			VFM_LAUNCH(s, (norm_bwd_cols), count_token_tiles(p.q) * ceil_div(p.d, 128), 128, 0, p);
	}
	if (sums)
		fold_two_sums(s, f[0], f[1], 0);
	return vfm_cuda_launched(s, "norm_bwd", err);
}
