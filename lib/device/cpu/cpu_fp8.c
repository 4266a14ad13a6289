/* cpu_fp8.c - fp8: the reference.  A GEMM of fp8 is computed in bf16, which represents every fp8 number and its product
 * with a power of two exactly. */
#include "device/cpu/cpu_impl.h"

#include <math.h>
#include <string.h>

#include "base/par.h"
#include "device/cpu/cpu_fp8.h"

enum { ROWS = 64, GRAIN = 1 << 14 };

static float load_element(const struct vfm_tensor *t, int64_t at)
{
	return t->dtype == VFM_F32 ? ((const float *)t->data)[at] : vfm_bf16_to_f32(((const uint16_t *)t->data)[at]);
}

static float power(int e)
{
	return ldexpf(1, e);
}

/* ---- quant -------------------------------------------------------------------------------------------- */

struct quant {
	const struct vfm_quant *a;
	float *largest; /* [blocks] */
	float *sums;    /* [blocks, D] column sums */
	float scale, most;
	enum vfm_dtype to;
};

static void amax_range(int64_t i0, int64_t i1, void *ctx)
{
	const struct quant *q = ctx;
	const struct vfm_tensor *x = &q->a->x;
	int64_t t = x->shape[0], d = x->shape[1];

	for (int64_t i = i0; i < i1; i++) {
		float most = 0;

		for (int64_t r = i * ROWS; r < t && r < (i + 1) * ROWS; r++)
			for (int64_t j = 0; j < d; j++) {
				float v = fabsf(load_element(x, r * x->stride[0] + j));

				most = v > most && v <= 3.4028235e38f ? v : most;
			}
		q->largest[i] = most;
	}
}

/* Quantizes a block of rows; with yt also the zeros beyond the last row. */
static void quant_range(int64_t i0, int64_t i1, void *ctx)
{
	const struct quant *q = ctx;
	const struct vfm_tensor *x = &q->a->x;
	int64_t t = x->shape[0], d = x->shape[1], w = vfm_has(&q->a->yt) ? q->a->yt.shape[1] : t;
	uint8_t *y = vfm_has(&q->a->y) ? q->a->y.data : NULL, *yt = vfm_has(&q->a->yt) ? q->a->yt.data : NULL;

	for (int64_t i = i0; i < i1; i++) {
		float most = 0;

		for (int64_t j = 0; j < d; j++) {
			double sum = 0;

			for (int64_t r = i * ROWS; r < w && r < (i + 1) * ROWS; r++) {
				float v = r < t ? load_element(x, r * x->stride[0] + j) : 0, s = v * q->scale;
				uint8_t c;

				sum += (double)v;
				if (fabsf(v) <= 3.4028235e38f) {
					most = fabsf(v) > most ? fabsf(v) : most;
					s = s > q->most ? q->most : s < -q->most ? -q->most : s;
				}
				c = vfm_f32_to_f8(s, q->to);
				if (y && r < t)
					y[r * d + j] = c;
				if (yt)
					yt[j * w + r] = c;
			}
			q->sums[i * d + j] = (float)sum;
		}
		q->largest[i] = most;
	}
}

static float largest(const float *x, int64_t n)
{
	float most = 0;

	for (int64_t i = 0; i < n; i++)
		most = x[i] > most ? x[i] : most;
	return most;
}

int vfm_cpu_quant(struct vfm_stream *s, const struct vfm_quant *a, struct vfm_err *err)
{
	int64_t t = a->x.shape[0], d = a->x.shape[1], rows = vfm_has(&a->yt) ? a->yt.shape[1] : t,
		blocks = (rows + ROWS - 1) / ROWS;
	struct quant q = {.a = a, .to = vfm_has(&a->y) ? a->y.dtype : a->yt.dtype};
	float *amax = a->amax.data, top = vfm_has(&a->history) ? largest(a->history.data, a->history.shape[0]) : 0;
	int e;

	q.largest = vfm_cpu_ws(s, VFM_WS_PART, (size_t)(blocks * (d + 1) + 1) * sizeof(float), err);
	if (!q.largest)
		return VFM_EENV;
	q.sums = q.largest + blocks;
	if (top == 0) {
		vfm_par_for(blocks, 1, amax_range, &q);
		top = largest(q.largest, blocks);
	}
	e = vfm_f8_exponent(top, q.to);
	q.scale = power(e);
	q.most = q.to == VFM_F8E4M3 ? 448.0f : 57344.0f;
	vfm_par_for(blocks, 1, quant_range, &q);
	for (int64_t j = 0; vfm_has(&a->colsum) && j < d; j++) {
		double sum = 0;

		for (int64_t i = 0; i < blocks; i++)
			sum += (double)q.sums[i * d + j];
		((float *)a->colsum.data)[j] += (float)sum;
	}
	top = largest(q.largest, blocks);
	*amax = vfm_has(&a->history) && *amax > top ? *amax : top;
	*(float *)a->inv.data = power(-e);
	return 0;
}

int vfm_cpu_norm_exponent(const struct vfm_norm *a)
{
	return vfm_f8_exponent(largest(a->history.data, a->history.shape[0]), VFM_F8E4M3);
}

float vfm_cpu_norm_row8(const struct vfm_norm *a, int64_t t, const uint16_t *y, float most)
{
	int64_t d = a->y.shape[1];
	float scale = vfm_has(&a->history) ? power(vfm_cpu_norm_exponent(a)) : 1;
	uint8_t *y8 = vfm_has(&a->history) ? (uint8_t *)a->y.data + t * d : NULL;

	for (int64_t k = 0; k < d; k++) {
		float v = y ? vfm_bf16_to_f32(y[k]) : ((const float *)a->y.data)[t * d + k], s = v * scale;

		if (fabsf(v) <= 3.4028235e38f) {
			most = fabsf(v) > most ? fabsf(v) : most;
			s = s > 448 ? 448 : s < -448 ? -448 : s;
		}
		if (y8)
			y8[k] = vfm_f32_to_f8(s, VFM_F8E4M3);
	}
	return most;
}

/* Transposes columns [16 i0, 16 i1) of x. */
static void transpose8_range(int64_t i0, int64_t i1, void *ctx)
{
	const struct vfm_transpose8 *a = ctx;
	int64_t t = a->x.shape[0], d = a->x.shape[1], w = a->y.shape[1], end = i1 * 16 < d ? i1 * 16 : d;
	const uint8_t *x = a->x.data;
	uint8_t *y = a->y.data;

	for (int64_t r0 = 0; r0 < w; r0 += 64)
		for (int64_t c = i0 * 16; c < end; c++)
			for (int64_t r = r0; r < w && r < r0 + 64; r++)
				y[c * w + r] = r < t ? x[r * d + c] : 0;
}

int vfm_cpu_transpose8(struct vfm_stream *s, const struct vfm_transpose8 *a, struct vfm_err *err)
{
	(void)s, (void)err;
	vfm_par_for((a->x.shape[1] + 15) / 16, 1, transpose8_range, (void *)(uintptr_t)a);
	return 0;
}

int vfm_cpu_amax_push(struct vfm_stream *s, const struct vfm_amax_push *a, struct vfm_err *err)
{
	int64_t n = a->past.shape[0], h = a->past.shape[1];

	(void)s, (void)err;
	if (vfm_has(&a->grad_scale) && !isfinite(*(const float *)a->grad_scale.data))
		return 0;
	for (int64_t i = 0; i < n; i++) {
		float *past = (float *)a->past.data + i * h, most = 0;

		for (int64_t k = 0; k < a->parts.shape[0]; k++)
			most = fmaxf(most, ((const float *)a->parts.data)[k * a->parts.stride[0] + i]);
		memmove(past, past + 1, (size_t)(h - 1) * sizeof(*past));
		past[h - 1] = most;
	}
	return 0;
}

/* ---- products ------------------------------------------------------------------------------------------ */

struct widen {
	const struct vfm_tensor *from;
	uint16_t *to;
	uint16_t of[256];
};

static void widen_range(int64_t i0, int64_t i1, void *ctx)
{
	const struct widen *w = ctx;
	int64_t cols = w->from->shape[1];

	for (int64_t i = i0; i < i1; i++)
		for (int64_t j = 0; j < cols; j++)
			w->to[i * cols + j] = w->of[((const uint8_t *)w->from->data)[i * w->from->stride[0] + j]];
}

static struct vfm_tensor widened(const struct vfm_tensor *t, const struct vfm_tensor *scale, uint16_t *to)
{
	struct widen w = {.from = t, .to = to};
	int64_t cols = t->shape[1] ? t->shape[1] : 1;

	for (int i = 0; i < 256; i++)
		w.of[i] = vfm_f32_to_bf16(vfm_f8_to_f32((uint8_t)i, t->dtype) * *(const float *)scale->data);
	vfm_par_for(t->shape[0], (GRAIN + cols - 1) / cols, widen_range, &w);
	return vfm_t2(to, VFM_BF16, t->shape[0], t->shape[1]);
}

int vfm_cpu_gemm8(struct vfm_stream *s, const struct vfm_gemm *a, struct vfm_err *err)
{
	struct vfm_gemm wide = *a;
	int64_t na = vfm_numel(&a->a), nb = vfm_numel(&a->b);
	uint16_t *mem = vfm_cpu_ws(s, VFM_WS_FP8, (size_t)(na + nb + 1) * sizeof(*mem), err);

	if (!mem)
		return VFM_EENV;
	wide.a = widened(&a->a, &a->scale_a, mem);
	wide.b = widened(&a->b, &a->scale_b, mem + na);
	wide.scale_a = wide.scale_b = (struct vfm_tensor){0};
	return vfm_cpu_gemm(s, &wide, err);
}
