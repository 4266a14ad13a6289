/* picture_dct.c - weights of means and DCT for a row of pixels, and the two-dimensional transform. */
#include "media/match/picture_dct.h"

#include <math.h>
#include <string.h>

#define N VFM_PICTURE_SIDE

void vfm_picture_weights(float *w, int n, int from, double a, double b)
{
	const double step = (b - a) / N, pi = acos(-1);

	memset(w, 0, (size_t)n * (size_t)from * sizeof(*w));
	for (int i = 0; i < N; i++) {
		double lo = a + i * step, hi = lo + step;

		for (int x = lo > 0 ? (int)lo : 0; x < from && x < hi; x++) {
			double share = (fmin(hi, x + 1) - fmax(lo, x)) / step;

			for (int u = 0; u < n; u++)
				w[u * from + x] +=
					(float)(share * cos(pi * u * (i + 0.5) / N) * sqrt((u ? 2.0 : 1.0) / N));
		}
	}
}

void vfm_picture_transform(float *c, int n, const float *picture, int size, const float *rows, const float *cols)
{
	for (int u = 0; u < n; u++) {
		float part[VFM_PICTURE_MAX] = {0};

		for (int i = 0; i < size; i++) {
			float w = rows[u * size + i];

#pragma omp simd
			for (int j = 0; j < size; j++)
				part[j] += w * picture[i * size + j];
		}
		for (int v = 0; v < n; v++) {
			float sum = 0;

			for (int j = 0; j < size; j++)
				sum += part[j] * cols[v * size + j];
			c[u * n + v] = sum;
		}
	}
}
