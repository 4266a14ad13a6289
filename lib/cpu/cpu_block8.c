/* cpu_block8.c - block-wise 8-bit floats. */
#include "base/par.h"
#include "cpu/cpu_int.h"
#include "ops/dynamic8.h"

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
