/* cpu_block8.c - block-wise 8-bit floats: of the optimizer, and of frozen weights. */
#include <math.h>
#include <string.h>

#include "base/par.h"
#include "device/cpu/cpu_impl.h"
#include "device/ops/dynamic8.h"

enum { BLOCKS = 16 }; /* of a task */

struct block8 {
	const struct vfm_block8 *a;
	struct vfm_dynamic8 t;
};

static void quantize_block(const struct block8 *q, int64_t b)
{
	int64_t i0 = b * VFM_BLOCK8, n = q->a->x.shape[0] - i0;
	const float *x = (const float *)q->a->x.data + i0;
	uint8_t *code = (uint8_t *)q->a->code.data + i0;
	float hi = 0, lo = 0, scale;

	n = n < VFM_BLOCK8 ? n : VFM_BLOCK8;
	for (int64_t i = 0; i < n; i++) {
		hi = x[i] > hi ? x[i] : hi;
		lo = x[i] < lo ? x[i] : lo;
	}
	scale = q->t.is_signed && -lo > hi ? lo : hi;
	((float *)q->a->scale.data)[b] = scale;
	for (int64_t i = 0; i < n; i++)
		code[i] = vfm_dynamic8_code(&q->t, scale != 0 ? x[i] / scale : 0);
}

static void quantize_blocks(int64_t b0, int64_t b1, void *ctx)
{
	for (int64_t b = b0; b < b1; b++)
		quantize_block(ctx, b);
}

static void dequantize_range(int64_t i0, int64_t i1, void *ctx)
{
	const struct block8 *q = ctx;
	const uint8_t *code = q->a->code.data;
	const float *scale = q->a->scale.data;
	float *x = q->a->x.data;

	for (int64_t i = i0; i < i1; i++)
		x[i] = vfm_dynamic8_value(&q->t, code[i]) * scale[(q->a->first + i) / VFM_BLOCK8];
}

int vfm_cpu_block8(struct vfm_stream *s, const struct vfm_block8 *a, struct vfm_err *err)
{
	struct block8 q = {.a = a};

	(void)s, (void)err;
	vfm_dynamic8_init(&q.t, a->is_signed);
	if (a->back)
		vfm_par_for(a->x.shape[0], (int64_t)BLOCKS * VFM_BLOCK8, dequantize_range, &q);
	else
		vfm_par_for(a->scale.shape[0], BLOCKS, quantize_blocks, &q);
	return 0;
}

/* ---- mxfp8 ---- */

enum { MX_BLOCKS = 256 }; /* of a task */

static float mx_scale(int scale)
{
	return ldexpf(1, scale - 127);
}

static void mx_quantize_block(const struct vfm_tensor *x, int64_t at, uint8_t *code, uint8_t *scale)
{
	float v[VFM_MX_BLOCK], amax = 0, up;
	int e;

	for (int i = 0; i < VFM_MX_BLOCK; i++) {
		v[i] = x->dtype == VFM_F32 ? ((const float *)x->data)[at + i]
					   : vfm_bf16_to_f32(((const uint16_t *)x->data)[at + i]);
		if (isfinite(v[i]))
			amax = fmaxf(amax, fabsf(v[i]));
	}
	e = vfm_f8_exponent(amax, VFM_F8E4M3);
	up = mx_scale(127 + e);
	*scale = (uint8_t)(127 - e);
	for (int i = 0; i < VFM_MX_BLOCK; i++)
		code[i] = vfm_f32_to_f8(v[i] * up, VFM_F8E4M3);
}

/* y = the values of a block.  The compiler vectorizes the loops without branches; NaN is rare. */
static void mx_dequantize_block(float *y, const uint8_t *code, float scale)
{
	const float up = 0x1p120f; /* of the bias of e4m3 to that of f32 */
	uint32_t bits[VFM_MX_BLOCK];
	int nan = 0;

	for (int i = 0; i < VFM_MX_BLOCK; i++) {
		bits[i] = (uint32_t)(code[i] & 0x7f) << 20;
		nan |= (code[i] & 0x7f) == 0x7f;
	}
	memcpy(y, bits, sizeof(bits));
	for (int i = 0; i < VFM_MX_BLOCK; i++)
		y[i] = y[i] * up * (code[i] & 0x80 ? -scale : scale);
	for (int i = 0; nan && i < VFM_MX_BLOCK; i++)
		if ((code[i] & 0x7f) == 0x7f)
			y[i] = NAN;
}

static void mx_store_bf16(uint16_t *x, const float *y)
{
	for (int i = 0; i < VFM_MX_BLOCK; i++)
		x[i] = vfm_f32_to_bf16(y[i]);
}

static void mx_blocks(int64_t b0, int64_t b1, void *ctx)
{
	const struct vfm_mxfp8 *a = ctx;
	float y[VFM_MX_BLOCK];
	int64_t blocks = a->scale.shape[1];

	for (int64_t b = b0; b < b1; b++) {
		int64_t r = b / blocks, k = b % blocks, at = r * a->x.stride[0] + k * VFM_MX_BLOCK;
		uint8_t *code = (uint8_t *)a->code.data + r * a->code.stride[0] + k * VFM_MX_BLOCK,
			*scale = (uint8_t *)a->scale.data + r * a->scale.stride[0] + k;

		if (!a->back)
			mx_quantize_block(&a->x, at, code, scale);
		else if (a->x.dtype == VFM_F32)
			mx_dequantize_block((float *)a->x.data + at, code, mx_scale(*scale));
		else {
			mx_dequantize_block(y, code, mx_scale(*scale));
			mx_store_bf16((uint16_t *)a->x.data + at, y);
		}
	}
}

int vfm_cpu_mxfp8(struct vfm_stream *s, const struct vfm_mxfp8 *a, struct vfm_err *err)
{
	(void)s, (void)err;
	vfm_par_for(vfm_numel(&a->scale), MX_BLOCKS, mx_blocks, (void *)(uintptr_t)a);
	return 0;
}
