#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "encoder/vae/wavelet.h"
#include "media/draw/synth.h"
#include "spec/model/dtype.h"

static void noise(uint8_t *p, size_t n)
{
	struct vfm_rng r = vfm_rng_stream(1, 0, 0, VFM_RNG_TEST);

	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)vfm_rng_below(&r, i, 256);
}

static double psnr(const uint8_t *a, const uint8_t *b, size_t n)
{
	double s = 0;

	for (size_t i = 0; i < n; i++)
		s += (double)(a[i] - b[i]) * (a[i] - b[i]);
	return s == 0 ? INFINITY : 10 * log10(255.0 * 255.0 * (double)n / s);
}

/* Walsh function of n samples with k sign changes, by its definition as a product of Rademacher functions. */
static int walsh(int n, int k, int i)
{
	int g = k ^ k >> 1, s = 1;

	for (int bit = 1; bit < n; bit <<= 1, g >>= 1)
		if ((g & 1) && i / (n / 2 / bit) % 2)
			s = -s;
	return s;
}

static void walsh_is_sequency_ordered(void **state)
{
	(void)state;
	for (int n = 4; n <= 8; n += 4) {
		for (int k = 0; k < n; k++) {
			int changes = 0;

			for (int i = 1; i < n; i++)
				changes += walsh(n, k, i) != walsh(n, k, i - 1);
			assert_int_equal(changes, k);
			assert_int_equal(walsh(n, k, 0), 1);
		}
	}
}

/* One coefficient, straight from the formulas of wavelet.h in double precision. */
static double reference(const uint8_t *rgb, int64_t frames, int height, int width, int c, int it, int by, int bx)
{
	const struct vfm_wavelet_channel *of = vfm_wavelet_channel(c);
	const int comp = of->comp, kt = of->kt, ky = of->ky, kx = of->kx;
	double sum = 0;

	for (int t = 0; t < 4; t++) {
		for (int y = 0; y < 8; y++) {
			for (int x = 0; x < 8; x++) {
				int64_t f = it * 4 + t < frames ? it * 4 + t : frames - 1;
				const uint8_t *p = rgb + ((f * height + by * 8 + y) * width + bx * 8 + x) * 3;
				double r = p[0] / 255.0, g = p[1] / 255.0, b = p[2] / 255.0;
				double luma = 0.299 * r + 0.587 * g + 0.114 * b;
				double v = comp == 0 ? luma - 0.5 : comp == 1 ? (b - luma) / 1.772 : (r - luma) / 1.402;

				sum += v * walsh(4, kt, t) * walsh(8, ky, y) * walsh(8, kx, x);
			}
		}
	}
	return sum / 16;
}

static void agrees_with_the_definition(void **state)
{
	static const int channels[] = {1, 16, 100, 768};
	enum { F = 6, H = 16, W = 24 };
	static uint8_t rgb[F * H * W * 3];
	static float z[768 * 2 * 2 * 3];

	(void)state;
	noise(rgb, sizeof(rgb));
	for (int k = 0; k < 4; k++) {
		struct vfm_wavelet t;
		char spec[32];
		double worst = 0;

		snprintf(spec, sizeof(spec), "wavelet:%d", channels[k]);
		assert_int_equal(vfm_wavelet_parse(&t, spec, NULL), 0);
		assert_int_equal(vfm_wavelet_encode(&t, rgb, F, H, W, z, NULL), 0);
		for (int c = 0; c < channels[k]; c++) {
			const float shift = vfm_wavelet_channel(c)->shift, scale = vfm_wavelet_channel(c)->scale;

			assert_true(scale > 0 && isfinite(scale));
			for (int i = 0; i < 2 * 2 * 3; i++) {
				double want = reference(rgb, F, H, W, c, i / 6, i / 3 % 2, i % 3);
				double d = fabs(z[c * 12 + i] / scale + shift - want);

				worst = d > worst ? d : worst;
			}
		}
		if (worst > 2e-6)
			fail_msg("wavelet:%d is off by %g", channels[k], worst);
	}
}

static void channels_are_in_the_documented_order(void **state)
{
	uint8_t seen[3][4][8][8] = {{{{0}}}};
	int chroma = 0;

	(void)state;
	for (int c = 0; c < 768; c++) {
		const struct vfm_wavelet_channel *of = vfm_wavelet_channel(c);
		const int comp = of->comp, kt = of->kt, ky = of->ky, kx = of->kx;

		assert_int_equal(seen[comp][kt][ky][kx]++, 0);
		if (c == 0)
			assert_int_equal(comp + kt + ky + kx, 0);
		if (c < 16) {
			assert_true(kt <= 1 && ky <= 1 && kx <= 1);
			assert_true(comp == 0 || kt == 0);
			chroma += comp != 0;
		}
		if (c < 128)
			assert_true(ky <= 3 && kx <= 3);
	}
	assert_int_equal(chroma, 8);
}

static void all_channels_give_the_pixels_back(void **state)
{
	enum { F = 7, H = 16, W = 40 };
	static uint8_t rgb[F * H * W * 3], back[sizeof(rgb)];
	static float z[768 * 2 * 2 * 5];
	static uint16_t half[768 * 2 * 2 * 5];
	struct vfm_wavelet t;

	(void)state;
	noise(rgb, sizeof(rgb));
	assert_int_equal(vfm_wavelet_parse(&t, "wavelet:768", NULL), 0);
	assert_int_equal(vfm_wavelet_encode(&t, rgb, F, H, W, z, NULL), 0);
	assert_int_equal(vfm_wavelet_decode(&t, z, 2, 2, 5, F, back, NULL), 0);
	assert_memory_equal(rgb, back, sizeof(rgb));
	/* as it is stored */
	vfm_dtype_convert(VFM_F16, half, VFM_F32, z, sizeof(half) / 2);
	vfm_dtype_convert(VFM_F32, z, VFM_F16, half, sizeof(half) / 2);
	assert_int_equal(vfm_wavelet_decode(&t, z, 2, 2, 5, F, back, NULL), 0);
	assert_true(psnr(rgb, back, sizeof(rgb)) > 55);
}

/* Encoding what was decoded changes nothing: decode is a right inverse, so encode-decode is a projection. */
static void fewer_channels_project(void **state)
{
	static const int channels[] = {1, 4, 16, 40, 128};
	enum { F = 8, H = 32, W = 32 };
	static uint8_t rgb[F * H * W * 3], back[sizeof(rgb)];
	static float z[128 * 2 * 4 * 4], z2[128 * 2 * 4 * 4];
	struct vfm_synth s;
	double last = 0;

	(void)state;
	assert_int_equal(vfm_synth_init(&s, &(struct vfm_synth_opts){W, H, F, 3, {0}}, 1, NULL), 0);
	for (int f = 0; f < F; f++)
		vfm_synth_frame(&s, f, rgb + f * H * W * 3);
	for (int k = 0; k < 5; k++) {
		struct vfm_wavelet t;
		char spec[32];
		double q, worst = 0;

		snprintf(spec, sizeof(spec), "wavelet:%d", channels[k]);
		assert_int_equal(vfm_wavelet_parse(&t, spec, NULL), 0);
		assert_int_equal(vfm_wavelet_encode(&t, rgb, F, H, W, z, NULL), 0);
		assert_int_equal(vfm_wavelet_decode(&t, z, 2, 4, 4, F, back, NULL), 0);
		q = psnr(rgb, back, sizeof(rgb));
		assert_true(q > last); /* more channels, a better picture */
		last = q;
		assert_int_equal(vfm_wavelet_encode(&t, back, F, H, W, z2, NULL), 0);
		for (int i = 0; i < channels[k] * 2 * 4 * 4; i++) {
			worst = fmax(worst, fabs(z[i] - z2[i]) / vfm_wavelet_channel(i / 32)->scale);
		}
		assert_true(worst < 0.5); /* rounding to bytes and clamping; a wrong basis gives 2 and more */
	}
}

/* The figure that the manual names: synthetic clips of 96 x 96 in 16 channels. */
static void quality_of_the_default(void **state)
{
	enum { F = 16, S = 96, N = 12 };
	static uint8_t rgb[F * S * S * 3], back[sizeof(rgb)];
	static float z[16 * 4 * 12 * 12];
	struct vfm_wavelet t;
	double sum = 0, mean = 0, square = 0;

	(void)state;
	assert_int_equal(vfm_wavelet_parse(&t, "wavelet", NULL), 0);
	assert_int_equal(t.channels, 16);
	for (int i = 0; i < N; i++) {
		struct vfm_synth s;

		assert_int_equal(vfm_synth_init(&s, &(struct vfm_synth_opts){S, S, F, 1, {0}}, (uint64_t)i, NULL), 0);
		for (int f = 0; f < F; f++)
			vfm_synth_frame(&s, f, rgb + f * S * S * 3);
		assert_int_equal(vfm_wavelet_encode(&t, rgb, F, S, S, z, NULL), 0);
		for (size_t k = 0; k < sizeof(z) / 4; k++) {
			mean += z[k];
			square += (double)z[k] * z[k];
		}
		assert_int_equal(vfm_wavelet_decode(&t, z, 4, 12, 12, F, back, NULL), 0);
		sum += psnr(rgb, back, sizeof(rgb));
	}
	mean /= N * (double)(sizeof(z) / 4);
	square = sqrt(square / (N * (double)(sizeof(z) / 4)) - mean * mean);
	print_message(
		"wavelet:16 on synthetic clips: %.2f dB, latents mean %.3f, deviation %.3f\n", sum / N, mean, square);
	assert_true(sum / N > 24);
	assert_true(fabs(mean) < 0.3);
	assert_true(square > 0.4 && square < 1.2);
}

static void an_image_is_one_latent_frame(void **state)
{
	enum { S = 32 };
	static uint8_t rgb[S * S * 3], back[S * S * 3];
	static float z[768 * 16];
	struct vfm_wavelet t;
	struct vfm_geometry g;

	(void)state;
	noise(rgb, sizeof(rgb));
	assert_int_equal(vfm_wavelet_parse(&t, "wavelet:3", NULL), 0);
	g = vfm_wavelet_id(&t).geometry;
	assert_int_equal(g.channels, 3);
	assert_int_equal(vfm_geometry_latent_frames(&g, 1), 1);
	assert_int_equal(vfm_geometry_latent_frames(&g, 4), 1);
	assert_int_equal(vfm_geometry_latent_frames(&g, 5), 2);
	assert_int_equal(vfm_wavelet_parse(&t, "wavelet:768", NULL), 0);
	assert_int_equal(vfm_wavelet_encode(&t, rgb, 1, S, S, z, NULL), 0);
	for (int c = 0; c < 768; c++) {
		const int kt = vfm_wavelet_channel(c)->kt;

		for (int i = 0; kt && i < 16; i++) {
			assert_true(fabsf(z[c * 16 + i]) < 1e-3f);
			z[c * 16 + i] = 3; /* as a model may draw it: a still picture does not see it */
		}
	}
	assert_int_equal(vfm_wavelet_decode(&t, z, 1, 4, 4, 1, back, NULL), 0);
	assert_memory_equal(rgb, back, sizeof(rgb));
}

static void bad_requests(void **state)
{
	static const char *const specs[] = {
		"", "wave", "wavelet:", "wavelet:0", "wavelet:769", "wavelet:16x", "waveletx"};
	static uint8_t rgb[32 * 32 * 3];
	static float z[16 * 16];
	struct vfm_wavelet t;
	struct vfm_err err;

	(void)state;
	for (size_t i = 0; i < sizeof(specs) / sizeof(specs[0]); i++)
		assert_int_equal(vfm_wavelet_parse(&t, specs[i], &err), VFM_EUSAGE);
	assert_int_equal(vfm_wavelet_parse(&t, "wavelet", &err), 0);
	assert_string_equal(vfm_wavelet_id(&t).name, "wavelet:16");
	assert_int_equal(vfm_wavelet_encode(&t, rgb, 1, 32, 28, z, &err), VFM_EINPUT);
	assert_int_equal(vfm_wavelet_encode(&t, rgb, 0, 32, 32, z, &err), VFM_EINPUT);
	assert_int_equal(vfm_wavelet_decode(&t, z, 1, 4, 4, 5, rgb, &err), VFM_EINPUT);
	/* what a diverged model gives */
	for (int i = 0; i < 256; i++)
		z[i] = i % 2 ? NAN : INFINITY;
	assert_int_equal(vfm_wavelet_decode(&t, z, 1, 4, 4, 1, rgb, &err), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(walsh_is_sequency_ordered),
		cmocka_unit_test(agrees_with_the_definition),
		cmocka_unit_test(channels_are_in_the_documented_order),
		cmocka_unit_test(all_channels_give_the_pixels_back),
		cmocka_unit_test(fewer_channels_project),
		cmocka_unit_test(quality_of_the_default),
		cmocka_unit_test(an_image_is_one_latent_frame),
		cmocka_unit_test(bad_requests),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
