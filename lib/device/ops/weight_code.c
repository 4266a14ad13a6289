/* weight_code.c - quantizes weights to NF4 and int8.  Loops over a block have no branches, so the compiler vectorizes
 * them. */
#include "device/ops/weight_code.h"

#include <math.h>
#include <string.h>

#include "device/ops/ops.h"

const float vfm_nf4_values[16] = {-1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
	-0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f, 0.07958029955625534f,
	0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f,
	0.7229568362236023f, 1.0f};

enum { ZERO4 = 7, ZERO8 = 127, DECADES = 7 };

/* Returns point k of n + 1 from 0.1 to 1 with the roundings of torch.linspace on a CPU with fused multiply-add: the
 * second half counts from the end. */
static float line_point(int k, int n)
{
	float step = (1.0f - 0.1f) / (float)n;

	return k < (n + 1) / 2 ? fmaf(step, (float)k, 0.1f) : fmaf(-step, (float)(n - k), 1.0f);
}

void vfm_nf4_absmax_values(float v[256])
{
	int at = ZERO8;

	v[at++] = 0;
	for (int i = 0; i < DECADES; i++) { /* ascending magnitudes: 1, 2, 4, … of each decade */
		float power = (float)pow(10, i - DECADES + 1);

		for (int k = 0; k < 1 << i; k++)
			v[at++] = power * ((line_point(k, 1 << i) + line_point(k + 1, 1 << i)) / 2);
	}
	v[at] = 1;
	for (int k = 1; k <= ZERO8; k++)
		v[ZERO8 - k] = -v[ZERO8 + k];
}

/* Returns the largest |x|; NaN if there is NaN.  The bits of |x| ascend as its values, and NaN is above infinity. */
static float largest_magnitude(const float *x, int64_t n)
{
	uint32_t most = 0;
	float r;

	for (int64_t i = 0; i < n; i++) {
		uint32_t u;

		memcpy(&u, &x[i], sizeof(u));
		u &= 0x7fffffffu;
		most = u > most ? u : most;
	}
	memcpy(&r, &most, sizeof(r));
	return r;
}

void vfm_nf4_absmax(const float *x, int64_t n, float *absmax)
{
	for (int64_t b = 0; b < n / VFM_NF4_BLOCK; b++)
		absmax[b] = largest_magnitude(x + b * VFM_NF4_BLOCK, VFM_NF4_BLOCK);
}

/* Returns what a block is multiplied with.  The least divisor is that of bitsandbytes; its product with 0 is 0. */
static float inverse_of(float absmax)
{
	return 1.0f / fmaxf(absmax, 1e-38f);
}

/* The code is the number of midpoints between values that are below y. */
static void encode_nf4_block(const float *x, float inverse, uint8_t *code)
{
	int32_t k[VFM_NF4_BLOCK] = {0};

	for (int v = 0; v < 15; v++) {
		float mid = (vfm_nf4_values[v] + vfm_nf4_values[v + 1]) / 2;

		for (int i = 0; i < VFM_NF4_BLOCK; i++)
			k[i] += x[i] * inverse > mid;
	}
	for (int i = 0; i < VFM_NF4_BLOCK / 2; i++)
		code[i] = (uint8_t)(k[2 * i] << 4 | k[2 * i + 1]);
}

void vfm_nf4_encode(const float *x, int64_t n, const float *absmax, uint8_t *code)
{
	for (int64_t b = 0; b < n / VFM_NF4_BLOCK; b++, x += VFM_NF4_BLOCK, code += VFM_NF4_BLOCK / 2) {
		if (isfinite(absmax[b]))
			encode_nf4_block(x, inverse_of(absmax[b]), code);
		else
			memset(code, ZERO4 << 4 | ZERO4, VFM_NF4_BLOCK / 2);
	}
}

float vfm_nf4_offset(const float *absmax, int64_t n)
{
	int64_t finite = 0;
	double sum = 0;

	for (int64_t b = 0; b < n; b++)
		if (isfinite(absmax[b])) {
			sum += (double)absmax[b];
			finite++;
		}
	return finite ? (float)(sum / (double)finite) : 0;
}

/* Returns the number of midpoints mid [255] that are below y. */
static uint8_t count_below(const float *mid, float y)
{
	int k = 0;

	for (int step = 128; step > 0; step /= 2)
		if (mid[k + step - 1] < y)
			k += step;
	return (uint8_t)k;
}

/* Returns the largest |absmax - offset|; NaN if one is not finite. */
static float largest_distance(const float *absmax, int64_t n, float offset)
{
	float most = 0;

	for (int64_t b = 0; b < n; b++) {
		float d = fabsf(absmax[b] - offset);

		if (!isfinite(d))
			return NAN;
		most = d > most ? d : most;
	}
	return most;
}

void vfm_nf4_encode_absmax(const float *absmax, int64_t n, float offset, uint8_t *code, float *scale)
{
	float value[256], mid[255];

	vfm_nf4_absmax_values(value);
	for (int k = 0; k < 255; k++)
		mid[k] = (value[k] + value[k + 1]) / 2;
	for (int64_t b0 = 0; b0 < n; b0 += VFM_NF4_GROUP) {
		int64_t b1 = b0 + VFM_NF4_GROUP < n ? b0 + VFM_NF4_GROUP : n;
		float most = largest_distance(absmax + b0, b1 - b0, offset), inverse = inverse_of(most);

		scale[b0 / VFM_NF4_GROUP] = most;
		for (int64_t b = b0; b < b1; b++)
			code[b] = isfinite(most) ? count_below(mid, (absmax[b] - offset) * inverse) : ZERO8;
	}
}

float vfm_int8_absmax(const float *x, int64_t n)
{
	return largest_magnitude(x, n);
}

void vfm_int8_encode(const float *x, int64_t n, float absmax, int8_t *code)
{
	const float to_integer = 0x1.8p23f; /* whose last place is 1: a sum is rounded to nearest even */
	float up = 1.0f / absmax * 127.0f;  /* both roundings are those of PyTorch's 127.0 / absmax */

	if (absmax == 0 || !isfinite(absmax)) {
		memset(code, 0, (size_t)n);
		return;
	}
	if (isinf(up)) { /* absmax is below 4e-37 */
		for (int64_t i = 0; i < n; i++)
			code[i] = (int8_t)(x[i] / absmax * 127.0f + to_integer - to_integer);
		return;
	}
	for (int64_t i = 0; i < n; i++)
		code[i] = (int8_t)(x[i] * up + to_integer - to_integer);
}
