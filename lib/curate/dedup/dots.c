/* dots.c - tiles of inner products with SIMD vectors, compiled for several instruction sets. */
#include "curate/dedup/dots.h"

#include <math.h>
#include <string.h>

#include "base/clones.h"

#define ROWS  6
#define PANEL VFM_DOTS_PANEL
#define HALF  (PANEL / 2)

typedef float lanes __attribute__((vector_size(4 * HALF), aligned(4)));

void vfm_dots_pack(float *packed, int64_t i, int64_t dim, const float *b)
{
	float *to = packed + i / PANEL * PANEL * dim + i % PANEL;

	for (int64_t k = 0; k < dim; k++)
		to[k * PANEL] = b[k];
}

/* n rows of a, n <= ROWS, and one panel.  Inlined for each number of rows and each instruction set. */
static inline __attribute__((always_inline)) void multiply_tile(
	const float *a, int n, const float *b, int64_t dim, float *out, int64_t ld)
{
	lanes s[ROWS][2] = {0};

	for (int64_t k = 0; k < dim; k++) {
		lanes lo, hi;

		memcpy(&lo, b + k * PANEL, sizeof(lo));
		memcpy(&hi, b + k * PANEL + HALF, sizeof(hi));
		for (int i = 0; i < n; i++) {
			float x = a[i * dim + k];

			s[i][0] += x * lo;
			s[i][1] += x * hi;
		}
	}
	for (int i = 0; i < n; i++) {
		memcpy(out + i * ld, &s[i][0], sizeof(lanes));
		memcpy(out + i * ld + HALF, &s[i][1], sizeof(lanes));
	}
}

VFM_CLONES("avx2", "default")
void vfm_dots(const float *a, int64_t na, const float *packed, int64_t nb, int64_t dim, float *out, int64_t ld)
{
	for (int64_t j = 0; j < nb; j += PANEL) {
		const float *b = packed + j * dim;
		int64_t i = 0;

		for (; i + ROWS <= na; i += ROWS)
			multiply_tile(a + i * dim, ROWS, b, dim, out + i * ld + j, ld);
		for (; i < na; i++)
			multiply_tile(a + i * dim, 1, b, dim, out + i * ld + j, ld);
	}
}

double vfm_dots_normalize(float *x, int64_t dim)
{
	double sum = 0, length;

	for (int64_t k = 0; k < dim; k++)
		sum += (double)x[k] * (double)x[k];
	length = sqrt(sum);
	if (!(length > 0 && isfinite(length)))
		return 0;
	for (int64_t k = 0; k < dim; k++)
		x[k] = (float)((double)x[k] / length);
	return length;
}

VFM_CLONES("avx2", "default")
float vfm_dots_pair(const float *x, const float *y, int64_t dim, float *xx)
{
	lanes xy = {0}, squares = {0}, a, b;
	float dot = 0, square = 0;
	int64_t k = 0;

	for (; k + HALF <= dim; k += HALF) {
		memcpy(&a, x + k, sizeof(a));
		memcpy(&b, y + k, sizeof(b));
		xy += a * b;
		squares += a * a;
	}
	for (; k < dim; k++) {
		dot += x[k] * y[k];
		square += x[k] * x[k];
	}
	for (int i = 0; i < HALF; i++) {
		dot += xy[i];
		square += squares[i];
	}
	*xx = square;
	return dot;
}
