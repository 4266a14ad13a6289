/* quality.c - squared error, PSNR, and SSIM with Gaussian windows on several threads. */
#include "media/score/quality.h"

#include <math.h>
#include <stdlib.h>

#include "base/clones.h"
#include "base/mem.h"
#include "base/par.h"

uint64_t vfm_squared_error(const uint8_t *a, const uint8_t *b, size_t n)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < n;) {
		size_t end = n - i < 32768 ? n : i + 32768; /* 32768 * 255^2 < 2^31 */
		int part = 0;

#pragma omp simd reduction(+ : part)
		for (size_t k = i; k < end; k++) {
			int d = (int)a[k] - b[k];

			part += d * d;
		}
		sum += (uint64_t)part;
		i = end;
	}
	return sum;
}

double vfm_psnr(double mse)
{
	return mse > 0 ? 10 * log10(255.0 * 255.0 / mse) : INFINITY;
}

/* ---- SSIM ---- */

/* Four planes are filtered: a, b, a^2 + b^2, ab. */
enum { PLANES = 4, RADIUS = VFM_SSIM_WINDOW / 2 };

struct vfm_ssim {
	int width, height;
	double window[VFM_SSIM_WINDOW];
	double *planes; /* [PLANES, height, width] */
	double *sums;   /* [height]: of the SSIM of a row of positions */
	const uint8_t *a, *b;
	size_t bytes;
};

int vfm_ssim_new(struct vfm_ssim **out, int width, int height, struct vfm_err *err)
{
	struct vfm_ssim *s;
	double sum = 0;

	if (width < VFM_SSIM_WINDOW || height < VFM_SSIM_WINDOW)
		return vfm_fail(err, VFM_EINPUT, "pictures of %dx%d are smaller than the window of SSIM, %dx%d", width,
			height, VFM_SSIM_WINDOW, VFM_SSIM_WINDOW);
	s = vfm_calloc(1, sizeof(*s));
	s->width = width;
	s->height = height;
	s->bytes = (size_t)width * (size_t)height * PLANES * sizeof(double);
	s->planes = vfm_big_alloc(s->bytes, "planes of SSIM", err);
	if (!s->planes) {
		free(s);
		return VFM_EENV;
	}
	s->sums = vfm_calloc((size_t)height, sizeof(double));
	for (int i = -RADIUS; i <= RADIUS; i++)
		sum += s->window[i + RADIUS] = exp(-i * i / (2 * 1.5 * 1.5));
	for (int i = 0; i < VFM_SSIM_WINDOW; i++)
		s->window[i] /= sum;
	*out = s;
	return 0;
}

void vfm_ssim_free(struct vfm_ssim *s)
{
	if (!s)
		return;
	vfm_big_free(s->planes, s->bytes);
	free(s->sums);
	free(s);
}

static double exact_luma(const uint8_t *rgb)
{
	return 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2];
}

static void fill_planes(int64_t y0, int64_t y1, void *ctx)
{
	struct vfm_ssim *s = ctx;
	size_t w = (size_t)s->width, all = w * (size_t)s->height;

	for (size_t i = (size_t)y0 * w; i < (size_t)y1 * w; i++) {
		double a = exact_luma(s->a + 3 * i), b = exact_luma(s->b + 3 * i);

		s->planes[i] = a;
		s->planes[all + i] = b;
		s->planes[2 * all + i] = a * a + b * b;
		s->planes[3 * all + i] = a * b;
	}
}

/* Filters the 11 rows at `planes` down (cols [PLANES, width]), then across, and leaves the SSIM of each position in
 * row [width - 10].  Each position is computed alike, so that the width of vectors changes no bit. */
VFM_CLONES("avx512f", "avx2", "default")
static void ssim_of_row(const struct vfm_ssim *s, const double *planes, double *cols, double *row)
{
	const double c1 = 0.01 * 255 * (0.01 * 255), c2 = 0.03 * 255 * (0.03 * 255);
	const int w = s->width;

	for (int p = 0; p < PLANES; p++) {
		const double *in = planes + (size_t)p * (size_t)w * (size_t)s->height;
		double *out = cols + (size_t)p * (size_t)w;

#pragma omp simd
		for (int x = 0; x < w; x++) {
			double sum = 0;

			for (int k = 0; k < VFM_SSIM_WINDOW; k++)
				sum += s->window[k] * in[(size_t)k * (size_t)w + (size_t)x];
			out[x] = sum;
		}
	}
#pragma omp simd
	for (int x = 0; x < w - 2 * RADIUS; x++) {
		double ma = 0, mb = 0, sq = 0, ab = 0;

		for (int k = 0; k < VFM_SSIM_WINDOW; k++) {
			ma += s->window[k] * cols[x + k];
			mb += s->window[k] * cols[w + x + k];
			sq += s->window[k] * cols[2 * w + x + k];
			ab += s->window[k] * cols[3 * w + x + k];
		}
		row[x] = (2 * ma * mb + c1) * (2 * (ab - ma * mb) + c2) /
			((ma * ma + mb * mb + c1) * (sq - (ma * ma + mb * mb) + c2));
	}
}

static void sum_ssim_rows(int64_t y0, int64_t y1, void *ctx)
{
	struct vfm_ssim *s = ctx;
	size_t w = (size_t)s->width;
	double *cols = vfm_calloc((PLANES + 1) * w, sizeof(double)), *row = cols + PLANES * w;

	for (int64_t y = y0; y < y1; y++) {
		ssim_of_row(s, s->planes + (size_t)y * w, cols, row);
		s->sums[y] = 0;
		for (int x = 0; x < s->width - 2 * RADIUS; x++)
			s->sums[y] += row[x];
	}
	free(cols);
}

double vfm_ssim_rgb(struct vfm_ssim *s, const uint8_t *a, const uint8_t *b)
{
	int rows = s->height - 2 * RADIUS;
	double sum = 0;

	s->a = a;
	s->b = b;
	vfm_par_for(s->height, 32, fill_planes, s);
	vfm_par_for(rows, 32, sum_ssim_rows, s);
	for (int y = 0; y < rows; y++)
		sum += s->sums[y];
	return sum / ((double)rows * (s->width - 2 * RADIUS));
}
