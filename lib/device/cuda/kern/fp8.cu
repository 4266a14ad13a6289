/* fp8.cu - quant: a tensor as 8-bit floats with a scale, and its transpose; transpose8: the transpose alone; amax_push:
 * the histories of amax, which give delayed scaling its scales.
 *
 * The first pass over x finds the largest element; with a nonzero history its kernel returns at once.  The second pass
 * writes y and its transpose in tiles of 128 x 128: a thread quantizes 8 x 8 elements, stores their rows directly, and
 * their columns through shared memory, permuted (tile_slot) against bank conflicts of a half-warp.
 */
#include "device/cuda/kern/f8.h"

enum { TILE = 128 };

/* Returns the largest entry of a history to every lane of a warp; 0 without a history. */
__device__ static inline float past_max(const float *history, int64_t n)
{
	float m = 0;

	for (int64_t i = threadIdx.x % 32; i < n; i += 32)
		m = fmaxf(m, history[i]);
	return warp_max(m);
}

/* Returns the largest of a block of 256 threads to the first one. */
__device__ static inline float first_max(float m)
{
	__shared__ float most[8];

	m = warp_max(m);
	if (threadIdx.x % 32 == 0)
		most[threadIdx.x / 32] = m;
	__syncthreads();
	for (int i = 1; i < 8 && threadIdx.x == 0; i++)
		m = fmaxf(m, most[i]);
	return m;
}

/* part[block] = the largest finite |x| of its rows.  No-op if the history gives the scale. */
template <int N, class X>
__global__ static void __launch_bounds__(256) amax_rows(
	const X *x, int64_t ld_x, int64_t rows, int64_t cols, const float *history, int64_t n_history, float *part)
{
	float m = 0;

	if (past_max(history, n_history) > 0)
		return;
	for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
#pragma unroll 2
		for (int64_t c = (int64_t)threadIdx.x * N; c < cols; c += 256 * N) {
			vec<N> v = ld_vec<N>(x + r * ld_x + c);

#pragma unroll
			for (int i = 0; i < N; i++)
				m = larger_finite(m, v.v[i]);
		}
	}
	m = first_max(m);
	if (threadIdx.x == 0)
		part[blockIdx.x] = m;
}

/* Computes *inv from the history, or from the parts if the history is zero, and *amax (may be NULL) from the parts.
 * One block. */
template <class F>
__global__ static void __launch_bounds__(256)
	finish_scale(const float *part, int64_t n, const float *history, int64_t n_history, float *amax, float *inv)
{
	float past = past_max(history, n_history), m = past;

	for (int64_t i = threadIdx.x; i < n && !(past > 0); i += 256)
		m = fmaxf(m, part[i]);
	m = first_max(m);
	if (threadIdx.x == 0) {
		if (amax)
			*amax = m;
		*inv = __uint_as_float((uint32_t)(127 - f8_exponent<F>(m)) << 23);
	}
}

struct fp8_tiles {
	int64_t ld_x, rows, cols, width; /* width: columns of yt; 0: no yt */
	uint8_t *y, *yt;
	const float *inv;
	float *amax; /* raised to the largest |x|; or NULL */
	float *sums; /* [tiles down, cols] or NULL */
};

/* Place in shared memory of the 8 bytes of column c, rows 8 i to 8 i + 7 of the tile. */
__device__ static inline int tile_slot(int c, int i)
{
	return c * 16 + (i ^ ((c >> 3) & 15));
}

/* v = x at rows r to r + 7 and columns c to c + 7; zeros outside of x.  WIDE: rows of v are vectors. */
template <bool WIDE, class X>
__device__ static inline void load_patch(vec<8> (&v)[8], const X *x, const struct fp8_tiles &a, int64_t r, int64_t c)
{
#pragma unroll
	for (int i = 0; i < 8; i++) {
		v[i] = {};
		if (WIDE) {
			if (r + i < a.rows && c < a.cols)
				v[i] = ld_vec<8>(x + (r + i) * a.ld_x + c);
		} else {
#pragma unroll
			for (int j = 0; j < 8; j++)
				if (r + i < a.rows && c + j < a.cols)
					v[i].v[j] = ld(x + (r + i) * a.ld_x + c + j);
		}
	}
}

/* Adds a row to the column sums; returns the larger of m and the largest finite |element|. */
__device__ static inline float reduce_row(vec<8> &sum, const vec<8> &v, float m)
{
#pragma unroll
	for (int j = 0; j < 8; j++) {
		sum.v[j] += v.v[j];
		m = larger_finite(m, v.v[j]);
	}
	return m;
}

/* code = the 8 elements as fp8, two a word; appends them to the columns as row i of the patch. */
template <class F>
__device__ static inline void quantize_row(
	uint32_t (&code)[4], uint64_t (&columns)[8], const vec<8> &v, int i, float scale)
{
#pragma unroll
	for (int j = 0; j < 4; j++) {
		code[j] = f8_fit2<F>(v.v[2 * j], v.v[2 * j + 1], scale);
		columns[2 * j] |= (uint64_t)(code[j] & 0xff) << (8 * i);
		columns[2 * j + 1] |= (uint64_t)(code[j] >> 8) << (8 * i);
	}
}

/* Writes row r of y from column c on. */
template <bool WIDE>
__device__ static inline void store_row(const struct fp8_tiles &a, const uint32_t (&code)[4], int64_t r, int64_t c)
{
	if (WIDE) {
		if (c < a.cols)
			*reinterpret_cast<uint2 *>(a.y + r * a.cols + c) = {
				code[0] | code[1] << 16, code[2] | code[3] << 16};
	} else {
#pragma unroll
		for (int j = 0; j < 8; j++)
			if (c + j < a.cols)
				a.y[r * a.cols + c + j] = (uint8_t)(code[j / 2] >> (8 * (j % 2)));
	}
}

/* sums[warp] = the column sums of a warp, whose lanes 16 to 31 hold the same columns as lanes 0 to 15. */
__device__ static inline void fold_warp_sums(float (*sums)[TILE], vec<8> &sum)
{
#pragma unroll
	for (int j = 0; j < 8; j++) {
		sum.v[j] += __shfl_xor_sync(VFM_ALL_LANES, sum.v[j], 16);
		if (threadIdx.x % 32 < 16)
			sums[threadIdx.x / 32][threadIdx.x % 16 * 8 + j] = sum.v[j];
	}
}

/* Raises *amax to the largest of the warps.  Floats >= 0 have the order of their bits; a maximum does not depend on the
 * order of the blocks. */
__device__ static inline void raise_amax(float *amax, const float (&most)[8], float m)
{
	for (int i = 0; i < 8; i++)
		m = fmaxf(m, most[i]);
	if (m > *(volatile const float *)amax)
		atomicMax((unsigned *)amax, __float_as_uint(m));
}

/* Writes the column sums of the tile, warp by warp in their order. */
__device__ static inline void store_sums(const struct fp8_tiles &a, const float (*sums)[TILE], int64_t c0)
{
	float t = 0;

#pragma unroll
	for (int i = 0; i < 8; i++)
		t += sums[i][threadIdx.x];
	a.sums[(int64_t)blockIdx.y * a.cols + c0 + threadIdx.x] = t;
}

/* Writes the tile's columns as rows of yt, 16 bytes a thread and step. */
template <bool WIDE>
__device__ static inline void store_transpose(const struct fp8_tiles &a, const uint64_t *piece, int64_t r0, int64_t c0)
{
	for (int i = threadIdx.x; i < TILE * 8; i += 256) {
		int col = i / 8, q = i % 8;
		uint64_t lo = piece[tile_slot(col, 2 * q)], hi = piece[tile_slot(col, 2 * q + 1)];
		uint8_t *to = a.yt + (c0 + col) * a.width + r0 + 16 * q;

		if (c0 + col >= a.cols)
			continue;
		if (WIDE) {
			if (r0 + 16 * q < a.width)
				*reinterpret_cast<uint4 *>(to) = {
					(uint32_t)lo, (uint32_t)(lo >> 32), (uint32_t)hi, (uint32_t)(hi >> 32)};
		} else {
			for (int k = 0; k < 16 && r0 + 16 * q + k < a.width; k++)
				to[k] = (uint8_t)((k < 8 ? lo : hi) >> (8 * (k % 8)));
		}
	}
}

/* One tile of y and yt, its column sums and its largest element.  A thread has a patch of 8 x 8 elements.
 * WIDE: 8 columns, and 16 columns of yt, are vectors.  Grid: tiles across, tiles down. */
template <class F, bool WIDE, class X>
__global__ static void __launch_bounds__(256) quantize_transpose(const X *x, struct fp8_tiles a)
{
	__shared__ uint64_t piece[TILE * 16];
	__shared__ float sums[8][TILE];
	__shared__ float most[8];
	int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
	int64_t r0 = (int64_t)blockIdx.y * TILE, c0 = (int64_t)blockIdx.x * TILE, r = r0 + ty * 8, c = c0 + tx * 8;
	float scale = 1.0f / a.inv[0], m = 0;
	uint64_t columns[8] = {};
	vec<8> v[8], sum = {};

	load_patch<WIDE>(v, x, a, r, c);
#pragma unroll
	for (int i = 0; i < 8; i++) {
		uint32_t code[4];

		m = reduce_row(sum, v[i], m);
		quantize_row<F>(code, columns, v[i], i, scale);
		if (a.y && r + i < a.rows)
			store_row<WIDE>(a, code, r + i, c);
	}
	if (a.width) {
#pragma unroll
		for (int j = 0; j < 8; j++)
			piece[tile_slot(tx * 8 + j, ty)] = columns[j];
	}
	fold_warp_sums(sums, sum);
	m = warp_max(m);
	if (threadIdx.x % 32 == 0)
		most[threadIdx.x / 32] = m;
	__syncthreads();
	if (a.amax && threadIdx.x == 0)
		raise_amax(a.amax, most, m);
	if (a.sums && threadIdx.x < TILE && c0 + threadIdx.x < a.cols)
		store_sums(a, sums, c0);
	if (a.width)
		store_transpose<WIDE>(a, piece, r0, c0);
}

__global__ static void __launch_bounds__(256) add_sums(const float *part, int64_t parts, int64_t n, float *out)
{
	int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
	float t = 0;

	if (i >= n)
		return;
#pragma unroll 8
	for (int64_t y = 0; y < parts; y++)
		t += part[y * n + i];
	out[i] += t;
}

template <class F, class X> static int quant(struct vfm_stream *s, const struct vfm_quant *a, struct vfm_err *err)
{
	const X *x = (const X *)a->x.data;
	int64_t rows = a->x.shape[0], cols = a->x.shape[1], width = vfm_has(&a->yt) ? a->yt.shape[1] : 0;
	int64_t across = ceil_div(cols, TILE), down = ceil_div(width > rows ? width : rows, TILE);
	int64_t blocks = grid_of(s, rows, 8), parts = cols ? blocks : 0;
	const float *history = data_of<const float>(a->history);
	int64_t n_history = history ? a->history.shape[0] : 0;
	float *amax = (float *)a->amax.data, *inv = (float *)a->inv.data;
	float *part = (float *)vfm_cuda_ws(s, (size_t)(parts + (vfm_has(&a->colsum) ? down * cols : 0) + 1) * 4, err);
	struct fp8_tiles t = {a->x.stride[0], rows, cols, width, data_of<uint8_t>(a->y),
		width ? (uint8_t *)a->yt.data : nullptr, inv, history ? amax : NULL,
		vfm_has(&a->colsum) ? part + parts : NULL};
	bool wide = vec_ok(8, &a->x) && width % 16 == 0 && ((uintptr_t)t.y | (uintptr_t)t.yt) % 16 == 0;

	if (!part)
		return VFM_EENV;
	if (parts)
		VFM_WIDTH(wide, 8, N,
			VFM_LAUNCH(
				s, (amax_rows<N, X>), blocks, 256, 0, x, t.ld_x, rows, cols, history, n_history, part));
	VFM_LAUNCH(
		s, (finish_scale<F>), 1, 256, 0, part, parts, history, n_history, history ? (float *)NULL : amax, inv);
	if (across && down) {
		if (wide)
			VFM_LAUNCH(s, (quantize_transpose<F, true, X>), dim3(across, down), 256, 0, x, t);
		else
			VFM_LAUNCH(s, (quantize_transpose<F, false, X>), dim3(across, down), 256, 0, x, t);
		if (t.sums)
			VFM_LAUNCH(s, (add_sums), ceil_div(cols, 256), 256, 0, t.sums, down, cols,
				(float *)a->colsum.data);
	}
	return vfm_cuda_launched(s, "quant", err);
}

extern "C" int vfm_cuda_quant(struct vfm_stream *s, const struct vfm_quant *a, struct vfm_err *err)
{
	enum vfm_dtype to = vfm_has(&a->y) ? a->y.dtype : a->yt.dtype;
	int rc;

	VFM_ACT_TYPE(
		a->x.dtype, X, rc = to == VFM_F8E4M3 ? (quant<f8e4m3, X>(s, a, err)) : (quant<f8e5m2, X>(s, a, err)));
	return rc;
}

/* ---- transpose8 ---- */

/* One tile; a thread has a patch of 8 x 8 bytes.  Grid: tiles across, tiles down. */
template <bool WIDE> __global__ static void __launch_bounds__(256) transpose_bytes(const uint8_t *x, struct fp8_tiles a)
{
	__shared__ uint64_t piece[TILE * 16];
	int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
	int64_t r0 = (int64_t)blockIdx.y * TILE, c0 = (int64_t)blockIdx.x * TILE, r = r0 + ty * 8, c = c0 + tx * 8;
	uint64_t row[8] = {};

#pragma unroll
	for (int i = 0; i < 8; i++)
		for (int j = 0; j < (WIDE ? 1 : 8); j++) {
			if (r + i >= a.rows || c + j >= a.cols)
				continue;
			if (WIDE)
				row[i] = *reinterpret_cast<const uint64_t *>(x + (r + i) * a.cols + c);
			else
				row[i] |= (uint64_t)x[(r + i) * a.cols + c + j] << (8 * j);
		}
#pragma unroll
	for (int j = 0; j < 8; j++) {
		uint64_t column = 0;

#pragma unroll
		for (int i = 0; i < 8; i++)
			column |= (row[i] >> (8 * j) & 0xff) << (8 * i);
		piece[tile_slot(tx * 8 + j, ty)] = column;
	}
	__syncthreads();
	store_transpose<WIDE>(a, piece, r0, c0);
}

extern "C" int vfm_cuda_transpose8(struct vfm_stream *s, const struct vfm_transpose8 *a, struct vfm_err *err)
{
	const uint8_t *x = (const uint8_t *)a->x.data;
	struct fp8_tiles t = {a->x.shape[1], a->x.shape[0], a->x.shape[1], a->y.shape[1], NULL, (uint8_t *)a->y.data,
		NULL, NULL, NULL};
	dim3 grid(ceil_div(t.cols, TILE), ceil_div(t.width, TILE));

	if (!t.cols || !t.width)
		return 0;
	if (t.cols % 8 == 0 && ((uintptr_t)x | (uintptr_t)t.yt) % 16 == 0)
		VFM_LAUNCH(s, (transpose_bytes<true>), grid, 256, 0, x, t);
	else
		VFM_LAUNCH(s, (transpose_bytes<false>), grid, 256, 0, x, t);
	return vfm_cuda_launched(s, "transpose8", err);
}

/* ---- histories -------------------------------------------------------------------------------- */

/* One warp a history: it reads 32 entries before it writes them. */
__global__ static void __launch_bounds__(256)
	push_amax(const float *parts, int64_t ld, int64_t ranks, int64_t n, float *past, int64_t h, const float *gs)
{
	int64_t i = (int64_t)blockIdx.x * 8 + threadIdx.x / 32;
	int lane = threadIdx.x % 32;
	float m = 0;

	if (i >= n || (gs && !isfinite(*gs)))
		return;
	for (int64_t r = lane; r < ranks; r += 32)
		m = fmaxf(m, parts[r * ld + i]);
	m = warp_max(m);
	past += i * h;
	for (int64_t k0 = 0; k0 < h; k0 += 32) {
		int64_t k = k0 + lane;
		float next = k + 1 < h ? past[k + 1] : m;

		__syncwarp();
		if (k < h)
			past[k] = next;
		__syncwarp();
	}
}

extern "C" int vfm_cuda_amax_push(struct vfm_stream *s, const struct vfm_amax_push *a, struct vfm_err *err)
{
	int64_t n = a->past.shape[0];

	if (n)
		VFM_LAUNCH(s, (push_amax), ceil_div(n, 8), 256, 0, (const float *)a->parts.data, a->parts.stride[0],
			a->parts.shape[0], n, (float *)a->past.data, a->past.shape[1],
			data_of<const float>(a->grad_scale));
	return vfm_cuda_launched(s, "amax_push", err);
}
