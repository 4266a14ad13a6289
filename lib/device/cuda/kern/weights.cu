/* weights.cu - decodes frozen weights.  An index outside the scales is reported to the host (fault.h). */
#include "device/cuda/kern/kern.h"

extern "C" {
#include "device/ops/weight_code.h"
}

enum { THREADS = 256, EACH = 8 /* elements of a vector */, INT8_BLOCK = 32 /* elements in one row */ };

/* Returns the elements with one factor. */
static constexpr int block_elements(bool nf4)
{
	return nf4 ? (int)VFM_NF4_BLOCK : (int)INT8_BLOCK;
}

struct weight_args {
	const uint8_t *code, *absmax;
	int64_t ld_code, ld_absmax, shards, n; /* n: elements of a shard */
	const struct vfm_weight_segment *seg;
	int64_t n_seg;
	const float *scale, *offset;
	int64_t scales;
	uint64_t *fault;
};

/* The values of the codes: nf4 [16], absmax [256]; not used by INT8. */
struct tables {
	float nf4[16], absmax[256];
};

__device__ static inline void share_tables(struct tables *to, const struct tables &from)
{
	for (int i = threadIdx.x; i < 256; i += THREADS) {
		to->absmax[i] = from.absmax[i];
		if (i < 16)
			to->nf4[i] = from.nf4[i];
	}
	__syncthreads();
}

/* Returns the last segment that begins at element e or before it; -1: none does. */
__device__ static inline int64_t find_segment(const struct weight_args &w, int64_t e)
{
	int64_t lo = 0, hi = w.n_seg;

	while (lo < hi) {
		int64_t mid = (lo + hi) / 2;

		if (w.seg[mid].begin <= e)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo - 1;
}

/* a / b for a >= 0, b > 0; 32 bits are several times faster. */
__device__ static inline int64_t quotient(int64_t a, int64_t b)
{
	return (a | b) >> 32 ? a / b : (int64_t)((uint32_t)a / (uint32_t)b);
}

__device__ static inline int32_t to_index(int64_t i)
{
	return i < 0 ? -1 : i < INT32_MAX ? (int32_t)i : INT32_MAX;
}

/* Computes the factor of the block of element i of shard r.  Returns false outside all segments and for an invalid
 * index. */
template <bool NF4>
__device__ static inline bool find_factor(
	const struct weight_args &w, const struct tables *t, int64_t r, int64_t i, float *factor)
{
	int64_t e = r * w.n + i, s = find_segment(w, e), row, b;
	struct vfm_weight_segment g;
	int32_t index;

	if (s < 0 || w.seg[s].cols <= 0)
		return false;
	g = w.seg[s];
	row = quotient(e - g.begin, g.cols);
	if (row >= g.rows)
		return false;
	b = g.first + row * g.pitch;
	if (NF4)
		b += (e - g.begin - row * g.cols) / VFM_NF4_BLOCK;
	index = to_index(b < 0 ? b : g.base + (NF4 ? b / VFM_NF4_GROUP : b));
	if (!row_of(index, w.scales, 0, w.fault))
		return false;
	*factor = w.scale[index];
	if (NF4)
		*factor = __fadd_rn(
			__fmul_rn(t->absmax[w.absmax[r * w.ld_absmax + i / VFM_NF4_BLOCK]], *factor), w.offset[s]);
	return true;
}

/* Decodes 8 elements. */
template <bool NF4>
__device__ static inline vec<EACH> decode_eight(const uint8_t *code, const struct tables *t, float factor)
{
	vec<EACH> v;

	if (NF4) {
		uint32_t c = *reinterpret_cast<const uint32_t *>(code);

#pragma unroll
		for (int k = 0; k < EACH; k++) /* the first element of a byte is its upper half */
			v.v[k] = __fmul_rn(t->nf4[c >> (k % 2 ? 4 * k - 4 : 4 * k + 4) & 15], factor);
	} else {
		uint64_t c = *reinterpret_cast<const uint64_t *>(code);

#pragma unroll
		for (int k = 0; k < EACH; k++)
			v.v[k] = __fmul_rn(__fmul_rn((float)(int8_t)(c >> (8 * k)), factor), 7.874015718698502e-3f);
	}
	return v;
}

/* The threads of a block compute the factors of as many blocks of weights, then decode these weights.  Grid: parts of a
 * shard, shards. */
template <bool NF4, bool WIDE, class X>
__global__ __launch_bounds__(THREADS) static void decode_weights(
	const struct weight_args w, const struct tables table, X *x)
{
	constexpr int BLOCK = block_elements(NF4), PART = THREADS * BLOCK;
	__shared__ struct tables t;
	__shared__ float factor[THREADS];
	__shared__ bool inside[THREADS];

	share_tables(&t, table);
	for (int64_t r = blockIdx.y; r < w.shards; r += gridDim.y)
		for (int64_t i0 = (int64_t)blockIdx.x * PART; i0 < w.n; i0 += (int64_t)gridDim.x * PART) {
			int64_t own = i0 + (int64_t)threadIdx.x * BLOCK;

			inside[threadIdx.x] = own < w.n && find_factor<NF4>(w, &t, r, own, &factor[threadIdx.x]);
			__syncthreads();
#pragma unroll 4
			for (int at = threadIdx.x * EACH; at < PART; at += THREADS * EACH) {
				int64_t i = i0 + at;
				vec<EACH> v = {};

				if (i >= w.n)
					continue;
				if (inside[at / BLOCK])
					v = decode_eight<NF4>(
						w.code + r * w.ld_code + (NF4 ? i / 2 : i), &t, factor[at / BLOCK]);
				st_eight<WIDE>(x + r * w.n + i, v);
			}
			__syncthreads();
		}
}

template <bool NF4, bool WIDE, class X>
static void launch_weights(struct vfm_stream *s, const struct vfm_decode_weights *a, const struct weight_args &w)
{
	int64_t blocks = grid_of(s, ceil_div(w.n, THREADS * block_elements(NF4)), 8);
	dim3 grid(blocks, w.shards < 1024 ? w.shards : 1024);
	struct tables t = {};

	if (NF4) {
		for (int i = 0; i < 16; i++)
			t.nf4[i] = vfm_nf4_values[i];
		vfm_nf4_absmax_values(t.absmax);
	}
	VFM_LAUNCH(s, (decode_weights<NF4, WIDE, X>), grid, THREADS, 0, w, t, (X *)a->x.data);
}

template <bool NF4>
static void launch_format(struct vfm_stream *s, const struct vfm_decode_weights *a, const struct weight_args &w)
{
	if (vec_ok(EACH, &a->x))
		VFM_ACT_TYPE(a->x.dtype, X, (launch_weights<NF4, true, X>(s, a, w)));
	else
		VFM_ACT_TYPE(a->x.dtype, X, (launch_weights<NF4, false, X>(s, a, w)));
}

extern "C" int vfm_cuda_decode_weights(struct vfm_stream *s, const struct vfm_decode_weights *a, struct vfm_err *err)
{
	bool nf4 = a->format == VFM_WEIGHTS_NF4;
	struct weight_args w = {(const uint8_t *)a->code.data, data_of<const uint8_t>(a->absmax), a->code.stride[0],
		nf4 ? a->absmax.stride[0] : 0, a->x.shape[0], a->x.shape[1],
		(const struct vfm_weight_segment *)a->segment.data, a->segment.shape[0], (const float *)a->scale.data,
		data_of<const float>(a->offset), a->scale.shape[0], vfm_cuda_fault(s, VFM_OP_decode_weights)};

	if (vfm_numel(&a->x) == 0)
		return 0;
	if (nf4)
		launch_format<true>(s, a, w);
	else
		launch_format<false>(s, a, w);
	return vfm_cuda_launched(s, "decode_weights", err);
}
