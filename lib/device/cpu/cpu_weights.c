/* cpu_weights.c - decodes frozen weights.  A range of blocks, which have one factor each, is divided where a shard or a
 * segment ends.  This file is compiled without fused multiply-add. */
#include <inttypes.h>
#include <string.h>

#include "base/par.h"
#include "device/cpu/cpu_impl.h"
#include "device/ops/weight_code.h"

enum { TASK = 64 * 1024 /* elements */, FACTORS = 256, INT8_BLOCK = 32 };

struct decoding {
	const struct vfm_decode_weights *a;
	const struct vfm_cpu_kern *kern;
	const struct vfm_weight_segment *seg;
	bool nf4;
	int64_t n_seg, block, per_shard; /* elements of a block; blocks of a shard */
	float absmax[256];
};

/* Returns the index in `scale` of block `block` of a row; -1 if it is negative or overflows. */
static int64_t scale_of_row(const struct vfm_weight_segment *s, int64_t row, int64_t block, bool nf4)
{
	int64_t b;

	if (__builtin_mul_overflow(row, s->pitch, &b) || __builtin_add_overflow(b, s->first, &b) ||
		__builtin_add_overflow(b, nf4 ? block : 0, &b) || b < 0)
		return -1;
	if (__builtin_add_overflow(nf4 ? b / VFM_NF4_GROUP : b, s->base, &b) || b < 0)
		return -1;
	return b;
}

/* Returns the end of a segment; INT64_MAX if it overflows. */
static int64_t segment_end(const struct vfm_weight_segment *s)
{
	int64_t end;

	return __builtin_mul_overflow(s->rows, s->cols, &end) || __builtin_add_overflow(end, s->begin, &end) ? INT64_MAX
													     : end;
}

/* Checks segment i.  The indices of its rows in the array lie between those at the ends of the first and last row. */
static int check_segment(const struct decoding *w, int64_t i, struct vfm_err *err)
{
	const struct vfm_weight_segment *s = &w->seg[i];
	int64_t total = vfm_numel(&w->a->x), scales = w->a->scale.shape[0], rows[2];

	if (s->begin % w->block || s->begin < -INT64_MAX / 2 || s->rows < 0 || s->cols <= 0 ||
		s->cols % VFM_NF4_BLOCK || segment_end(s) == INT64_MAX || (i && s->begin < segment_end(s - 1)))
		return vfm_fail(err, VFM_EUSAGE,
			"decode_weights: segment %" PRId64 " is invalid or overlaps another: %" PRId64
			" rows of %" PRId64 " elements from element %" PRId64,
			i, s->rows, s->cols, s->begin);
	if (s->begin >= total || segment_end(s) <= cpu_max(s->begin, 0))
		return 0;
	rows[0] = cpu_max(-s->begin, 0) / s->cols;
	rows[1] = (cpu_min(segment_end(s), total) - 1 - s->begin) / s->cols;
	for (int k = 0; k < 4; k++) {
		int64_t g = scale_of_row(s, rows[k / 2], k % 2 ? s->cols / VFM_NF4_BLOCK - 1 : 0, w->nf4);

		if (g < 0 || g >= scales)
			return vfm_fail(err, VFM_EUSAGE,
				"decode_weights: an index of segment %" PRId64 " is %" PRId64 ", but there are %" PRId64
				" scales",
				i, g, scales);
	}
	return 0;
}

/* Returns the last segment that begins at element e or before it; -1: none does. */
static int64_t segment_at(const struct decoding *w, int64_t e)
{
	int64_t lo = 0, hi = w->n_seg;

	while (lo < hi) {
		int64_t mid = (lo + hi) / 2;

		if (w->seg[mid].begin <= e)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo - 1;
}

/* Computes the factors of n blocks from block i of shard r on, which lie in segment s. */
static void compute_factors(const struct decoding *w, int64_t s, int64_t r, int64_t i, int64_t n, float *factor)
{
	const struct vfm_weight_segment *g = &w->seg[s];
	const float *scale = w->a->scale.data, offset = w->nf4 ? ((const float *)w->a->offset.data)[s] : 0;
	const uint8_t *code = w->nf4 ? (const uint8_t *)w->a->absmax.data + r * w->a->absmax.stride[0] + i : NULL;
	int64_t per_row = g->cols / w->block, at = (r * w->per_shard + i) - g->begin / w->block;
	int64_t row = at / per_row, block = at % per_row;

	for (int64_t k = 0; k < n; row++, block = 0) {
		int64_t end = cpu_min(n, k + per_row - block), b = g->first + row * g->pitch + (w->nf4 ? block : 0);

		for (; k < end && !w->nf4; k++)
			factor[k] = scale[g->base + b];
		for (; k < end; k++, b++)
			factor[k] = w->absmax[code[k]] * scale[g->base + b / VFM_NF4_GROUP] + offset;
	}
}

/* Decodes n blocks from block i of shard r on, which lie in segment s. */
static void decode_blocks(const struct decoding *w, int64_t s, int64_t r, int64_t i, int64_t n)
{
	const struct vfm_decode_weights *a = w->a;
	const uint8_t *code = (const uint8_t *)a->code.data + r * a->code.stride[0];
	bool bf = a->x.dtype == VFM_BF16;
	float factor[FACTORS];

	for (int64_t i0 = i; i0 < i + n; i0 += FACTORS) {
		int64_t m = cpu_min(FACTORS, i + n - i0), at = i0 * w->block;
		void *x = (char *)a->x.data + (r * a->x.shape[1] + at) * (bf ? 2 : 4);

		compute_factors(w, s, r, i0, m, factor);
		if (w->nf4)
			w->kern->decode_nf4(x, bf, code + at / 2, vfm_nf4_values, factor, m);
		else
			w->kern->decode_int8(x, bf, (const int8_t *)code + at, factor, m);
	}
}

static void decode_range(int64_t b0, int64_t b1, void *ctx)
{
	const struct decoding *w = ctx;
	int64_t size = w->block * (int64_t)vfm_dtype_size(w->a->x.dtype), end;

	for (int64_t b = b0; b < b1; b = end) {
		int64_t s = segment_at(w, b * w->block), r = b / w->per_shard,
			next = s + 1 < w->n_seg ? w->seg[s + 1].begin / w->block : b1,
			last = s < 0 ? 0 : segment_end(&w->seg[s]) / w->block;

		end = cpu_min(cpu_min(b1, (r + 1) * w->per_shard), b < last ? last : next);
		if (b < last)
			decode_blocks(w, s, r, b % w->per_shard, end - b);
		else
			memset((char *)w->a->x.data + b * size, 0, (size_t)((end - b) * size));
	}
}

int vfm_cpu_decode_weights(struct vfm_stream *s, const struct vfm_decode_weights *a, struct vfm_err *err)
{
	bool nf4 = a->format == VFM_WEIGHTS_NF4;
	int64_t block = nf4 ? VFM_NF4_BLOCK : INT8_BLOCK;
	struct decoding w = {.a = a,
		.kern = vfm_cpu_of(s)->kern,
		.seg = a->segment.data,
		.nf4 = nf4,
		.n_seg = a->segment.shape[0],
		.block = block,
		.per_shard = a->x.shape[1] / block};

	for (int64_t i = 0; i < w.n_seg; i++)
		TRY(check_segment(&w, i, err));
	if (nf4)
		vfm_nf4_absmax_values(w.absmax);
	vfm_par_for(vfm_numel(&a->x) / block, TASK / block, decode_range, &w);
	return 0;
}
