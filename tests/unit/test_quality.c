/* Squared error, PSNR and SSIM of media/score/quality.h against direct sums over the window. */
#include "media/score/quality.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/par.h"
#include "base/philox.h"
#include "ok.h"

static void fill(uint8_t *x, size_t n, uint64_t id)
{
	struct vfm_rng r = vfm_rng_stream(1, 0, id, VFM_RNG_TEST);

	for (size_t i = 0; i < n; i++)
		x[i] = (uint8_t)vfm_rng_below(&r, i, 256);
}

static void test_error(void **state)
{
	enum { N = 70001 };
	uint8_t *a = malloc(N), *b = malloc(N);
	uint64_t want = 0;

	(void)state;
	fill(a, N, 0);
	fill(b, N, 1);
	for (size_t i = 0; i < N; i++)
		want += (uint64_t)((a[i] - b[i]) * (a[i] - b[i]));
	assert_true(vfm_squared_error(a, b, N) == want);
	assert_true(vfm_squared_error(a, a, N) == 0);
	memset(a, 0, N);
	memset(b, 255, N);
	assert_true(vfm_squared_error(a, b, N) == (uint64_t)N * 65025);
	assert_true(vfm_psnr(65025) == 0);
	assert_true(fabs(vfm_psnr(650.25) - 20) < 1e-12);
	assert_true(isinf(vfm_psnr(0)));
	free(a);
	free(b);
}

static double luma(const uint8_t *p)
{
	return 0.299 * p[0] + 0.587 * p[1] + 0.114 * p[2];
}

/* The definition, window by window, with variances as sums of squared differences from the mean. */
static double slow_ssim(const uint8_t *a, const uint8_t *b, int w, int h)
{
	const double c1 = 6.5025, c2 = 58.5225;
	double g[11][11], norm = 0, sum = 0;

	for (int y = 0; y < 11; y++)
		for (int x = 0; x < 11; x++)
			norm += g[y][x] = exp(-((x - 5) * (x - 5) + (y - 5) * (y - 5)) / 4.5);
	for (int y0 = 0; y0 + 11 <= h; y0++)
		for (int x0 = 0; x0 + 11 <= w; x0++) {
			double ma = 0, mb = 0, saa = 0, sbb = 0, sab = 0;

			for (int k = 0; k < 121; k++) {
				int at = 3 * ((y0 + k / 11) * w + x0 + k % 11);

				ma += g[k / 11][k % 11] / norm * luma(a + at);
				mb += g[k / 11][k % 11] / norm * luma(b + at);
			}
			for (int k = 0; k < 121; k++) {
				int at = 3 * ((y0 + k / 11) * w + x0 + k % 11);
				double weight = g[k / 11][k % 11] / norm, da = luma(a + at) - ma,
				       db = luma(b + at) - mb;

				saa += weight * da * da;
				sbb += weight * db * db;
				sab += weight * da * db;
			}
			sum += (2 * ma * mb + c1) * (2 * sab + c2) / ((ma * ma + mb * mb + c1) * (saa + sbb + c2));
		}
	return sum / ((double)(w - 10) * (h - 10));
}

static void check_ssim(int w, int h)
{
	size_t n = (size_t)w * (size_t)h * 3;
	uint8_t *a = malloc(n), *b = malloc(n);
	struct vfm_ssim *s;
	double threads, serial;

	fill(a, n, 2);
	fill(b, n, 3);
	for (size_t i = 0; i < n; i++)
		b[i] = (uint8_t)((3 * a[i] + b[i]) / 4);
	OK(vfm_ssim_new(&s, w, h, &err));
	threads = vfm_ssim_rgb(s, a, b);
	assert_true(fabs(threads - slow_ssim(a, b, w, h)) < 1e-11);
	assert_true(threads > 0.5 && threads < 0.99);
	assert_true(vfm_ssim_rgb(s, a, a) == 1);
	vfm_ssim_free(s);
	OK(vfm_ssim_new(&s, w, h, &err));
	serial = vfm_ssim_rgb(s, b, a);
	assert_true(fabs(serial - threads) < 1e-13); /* symmetric */
	vfm_ssim_free(s);
	free(a);
	free(b);
}

static void test_ssim(void **state)
{
	struct vfm_ssim *s;

	(void)state;
	check_ssim(11, 11);
	check_ssim(53, 47);
	check_ssim(128, 75);
	assert_int_equal(vfm_ssim_new(&s, 10, 100, &err), VFM_EINPUT);
	assert_string_equal(err.msg, "pictures of 10x100 are smaller than the window of SSIM, 11x11");
}

/* Constant pictures: means alone differ, SSIM = (2 a b + C1) / (a^2 + b^2 + C1). */
static void test_constant(void **state)
{
	uint8_t a[20 * 20 * 3], b[20 * 20 * 3];
	struct vfm_ssim *s;

	(void)state;
	memset(a, 100, sizeof(a));
	memset(b, 50, sizeof(b));
	OK(vfm_ssim_new(&s, 20, 20, &err));
	assert_true(fabs(vfm_ssim_rgb(s, a, b) - (2 * 100 * 50 + 6.5025) / (100 * 100 + 50 * 50 + 6.5025)) < 1e-12);
	vfm_ssim_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_error),
		cmocka_unit_test(test_ssim),
		cmocka_unit_test(test_constant),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
