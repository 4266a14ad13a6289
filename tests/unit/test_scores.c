/* The scores of clips that the test makes itself, whose values are known. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "io/file.h"
#include "media/av/video_out.h"
#include "media/draw/png.h"
#include "media/score/score.h"

enum { W = 256, H = 144, FPS = 20, N = 60 };

static char dir[64];

static int setup(void **state)
{
	(void)state;
	vfm_log_set_quiet(true);
	strcpy(dir, "/tmp/vfm-scores.XXXXXX");
	return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
	(void)state;
	return vfm_rm_rf(dir, NULL);
}

static uint32_t mix(uint32_t x)
{
	x ^= x >> 16;
	x *= 0x7FEB352Du;
	x ^= x >> 15;
	x *= 0x846CA68Bu;
	return x ^ x >> 16;
}

/* Smooth noise, 60 to 200, with a grain of `grain` pixels. */
static double texture(double x, double y, double grain)
{
	int i = (int)floor(x / grain), j = (int)floor(y / grain);
	double u = x / grain - i, v = y / grain - j, c[4];

	for (int k = 0; k < 4; k++)
		c[k] = mix((uint32_t)((i + k % 2 + 1000) * 131 + (j + k / 2 + 1000) * 65537)) & 255;
	return 60 + 140 / 255.0 * ((c[0] * (1 - u) + c[1] * u) * (1 - v) + (c[2] * (1 - u) + c[3] * u) * v);
}

/* The luma of pixel (x, y) of frame i. */
typedef double (*pixel_fn)(int i, int x, int y);

/* Scores a video of w x h whose pixels are the means of k x k drawn ones. */
static struct vfm_score score_scaled(pixel_fn pixel, int w, int h, int k)
{
	struct vfm_video_out_opts o = {
		.width = w, .height = h, .fps_num = FPS, .fps_den = 1, .codec = "ffv1", .crf = -1};
	struct vfm_score_opts so = {.end = -1};
	char *path = vfm_strfmt("%s/a.mkv", dir);
	uint8_t *rgb = vfm_malloc((size_t)w * (size_t)h * 3);
	struct vfm_video_out *out;
	struct vfm_err err = {0};
	struct vfm_score s;

	assert_int_equal(vfm_video_out_open(&out, path, &o, &err), 0);
	for (int i = 0; i < N; i++) {
		for (int at = 0; at < w * h; at++) {
			double sum = 0;

			for (int j = 0; j < k * k; j++)
				sum += floor(pixel(i, at % w * k + j % k, at / w * k + j / k));
			memset(rgb + 3 * (size_t)at, (int)lrint(sum / k / k), 3);
		}
		assert_int_equal(vfm_video_out_write(out, rgb, &err), 0);
	}
	assert_int_equal(vfm_video_out_close(out, &err), 0);
	if (vfm_score_file(&s, path, &so, &err) < 0)
		fail_msg("%s", err.msg);
	free(path);
	free(rgb);
	return s;
}

static struct vfm_score score_drawn(pixel_fn pixel)
{
	return score_scaled(pixel, W, H, 1);
}

static bool is_near(double x, double want, double tolerance)
{
	return fabs(x - want) <= tolerance;
}

/* ---- motion ---- */

static double still(int i, int x, int y)
{
	(void)i;
	return texture(x, y, 12);
}

static double pan(int i, int x, int y)
{
	return texture(x + 1.5 * i, y, 12);
}

static double zoom(int i, int x, int y)
{
	double s = 1 - 0.004 * i;

	return texture(W + (x - W / 2.0) * s, H + (y - H / 2.0) * s, 12);
}

static double jitter(int i, int x, int y)
{
	return texture(x + (int)(mix((uint32_t)i) % 9), y + (int)(mix((uint32_t)i + 99) % 9), 12);
}

static double object(int i, int x, int y)
{
	bool inside = abs(x - 40 - 2 * i) < 24 && abs(y - H / 2) < 24;

	return inside ? texture(x - 2 * i + 500, y, 9) : texture(x, y, 12);
}

static void test_camera(void **state)
{
	const double speed = 1.5 * FPS / W * 100;
	struct vfm_score s = score_drawn(still);

	(void)state;
	assert_true(s.motion == 0 && s.camera_motion == 0 && s.object_motion == 0 && s.shake == 0);
	s = score_drawn(pan);
	assert_true(is_near(s.camera_motion, speed, 0.1 * speed) && s.object_motion < 0.3 * speed && s.shake < 0.1);
	assert_true(is_near(s.motion, speed, 0.2 * speed));
	s = score_drawn(zoom);
	if (s.camera_motion < 1.2 || s.object_motion > s.camera_motion || s.shake > 0.1)
		fail_msg("zoom: camera %g, object %g, shake %g", s.camera_motion, s.object_motion, s.shake);
	s = score_drawn(object);
	assert_true(
		s.camera_motion < 0.1 && s.object_motion > 0.5 && is_near(s.object_motion, s.motion, 0.2 * s.motion));
	s = score_drawn(jitter);
	assert_true(s.shake > 0.8);
}

/* ---- the picture ---- */

static double steps(int i, int x, int y)
{
	(void)i;
	return 60 + 100 * ((x / 23 + y / 17) % 2);
}

/* Ramps of 8 pixels between levels of 100 and 180. */
static double ramps(int i, int x, int y)
{
	int k = x % 32;

	(void)i, (void)y;
	return 100 + 10 * (k < 8 ? k : k < 16 ? 8 : k < 24 ? 24 - k : 0);
}

static double blocks(int i, int x, int y)
{
	(void)i;
	return 100 + (mix((uint32_t)(x / 8 * 977 + y / 8)) & 7);
}

static double grain(int i, int x, int y)
{
	return 100 + (mix((uint32_t)(x * 977 + y + 5000000 * (i / 4))) & 7);
}

static double disc_at(double t, int x, int y)
{
	return hypot(x - 40 - 3 * t, y - H / 2.0) < 30 ? 200 : 80;
}

static double progressive(int i, int x, int y)
{
	return disc_at(i, x, y);
}

static double fields(int i, int x, int y)
{
	return disc_at(i + 0.5 * (y % 2), x, y);
}

/* Stripes of one row that jump by a row with each frame: all rows comb, but no field is older than the other. */
static double stripes(int i, int x, int y)
{
	return (y + i + x / 24) % 2 ? 180 : 60;
}

static double exposed(int i, int x, int y)
{
	(void)i;
	return y < 20 || y >= H - 20 ? 128 : x < W / 2 ? 255 : x < 3 * W / 4 ? 0 : 128;
}

static double dim(int i, int x, int y)
{
	(void)i, (void)y;
	return x < W / 4 ? 80 : 20 + x % 8;
}

/* Blocks of 8 x 8 whose edges a deblocking filter has spread over four pixels, with texture inside. */
static double deblocked(int i, int x, int y)
{
	int k = (x + 2) / 8, at = (x + 2) % 8;
	double here = mix((uint32_t)(k + 97 * (y / 8) + i)) % 24,
	       before = mix((uint32_t)(k - 1 + 97 * (y / 8) + i)) % 24;

	return 100 + (at < 4 ? before + (here - before) * (at + 0.5) / 4 : here) + mix((uint32_t)(x + y * W)) % 4;
}

static void test_faults(void **state)
{
	const double middle = (H - 40) / (double)H;
	struct vfm_score s = score_drawn(steps);

	(void)state;
	assert_true(is_near(s.blur, 1, 0.05) && s.interlace == 0);
	s = score_drawn(ramps);
	assert_true(is_near(s.blur, 8, 0.6));
	s = score_drawn(blocks);
	assert_true(s.blockiness > 1 && isnan(s.blur));
	s = score_drawn(deblocked);
	assert_true(s.blockiness > 0.5);
	s = score_drawn(grain);
	assert_true(s.blockiness < 0.05);
	s = score_drawn(progressive);
	assert_true(s.interlace < 0.03);
	s = score_drawn(stripes);
	assert_true(s.interlace < 0.03);
	s = score_drawn(fields);
	assert_true(s.interlace > 0.06);
	s = score_drawn(exposed);
	assert_true(is_near(s.overexposed, 0.5 * middle, 0.02) && s.underexposed < 0.01); /* it has highlights */
	s = score_drawn(dim);
	assert_true(is_near(s.underexposed, 0.75 * (1 - 80 / 255.0), 0.02) && s.overexposed == 0);
	s = score_drawn(still);
	assert_true(s.overexposed == 0 && s.underexposed < 0.01 && s.bar_ratio == 0);
}

/* ---- change ---- */

static double film(int i, int x, int y)
{
	return pan(i * 4 / 5, x, y); /* each fifth frame repeats the one before */
}

static double freeze(int i, int x, int y)
{
	return pan(i < N / 2 ? i : N / 2, x, y);
}

static double flicker(int i, int x, int y)
{
	return pan(i, x, y) * 0.9 + (i % 2 ? 10 : -10);
}

static void test_change(void **state)
{
	struct vfm_score s = score_drawn(pan);

	(void)state;
	assert_true(s.duplicate_ratio == 0 && s.static_ratio == 0 && s.flicker < 0.005);
	s = score_drawn(film);
	assert_true(is_near(s.duplicate_ratio, 0.2, 0.02) && s.static_ratio == 0);
	s = score_drawn(freeze);
	assert_true(is_near(s.static_ratio, 0.5, 0.03) && s.duplicate_ratio == 0);
	s = score_drawn(still);
	assert_true(s.static_ratio > 0.98 && s.duplicate_ratio == 0 && s.flicker == 0);
	s = score_drawn(flicker);
	assert_true(is_near(s.flicker, 20 / 255.0, 0.01)); /* |-10 - 2 x 10 - 10| / 2 */
}

/* ---- bars ---- */

static double barred(int i, int x, int y)
{
	return y < 18 || y >= H - 18 || x < 32 || x >= W - 32 ? 0 : pan(i, x, y);
}

/* A dark sky that becomes brighter towards a horizon is no bar. */
static double sky(int i, int x, int y)
{
	return y < 2 * H / 3 ? 40.0 * y / H : pan(i, x, y) / 6 + 24;
}

static void test_bars(void **state)
{
	struct vfm_score s = score_drawn(barred);

	(void)state;
	assert_true(is_near(s.bar_ratio, 1 - (1 - 36.0 / H) * (1 - 64.0 / W), 0.02));
	assert_true(s.underexposed < 0.02);
	s = score_drawn(sky);
	assert_true(s.bar_ratio == 0);
}

/* A colour at the limit of the gamut, a strong one within, and a dark one. */
static void test_saturation(void **state)
{
	static const uint8_t colours[4][3] = {{200, 0, 30}, {200, 20, 30}, {100, 0, 0}, {120, 120, 120}};
	char *path = vfm_strfmt("%s/c.png", dir);
	struct vfm_score_opts so = {.end = -1};
	uint8_t rgb[256 * 64 * 3];
	struct vfm_err err = {0};
	struct vfm_score s;

	(void)state;
	for (int i = 0; i < 256 * 64; i++)
		memcpy(rgb + 3 * (size_t)i, colours[i % 256 / 64], 3);
	assert_int_equal(vfm_png_write(path, rgb, 256, 64, &err), 0);
	assert_int_equal(vfm_score_file(&s, path, &so, &err), 0);
	assert_true(is_near(s.oversaturated, 0.25, 0.01));
	free(path);
}

/* ---- sizes ---- */

enum { WIDE = 640, HIGH = 480 };

static double fine(int i, int x, int y)
{
	(void)i;
	return texture(x, y, 7);
}

/* A letter of 6 x 9 pixels more every fourth frame. */
static double typed(int i, int x, int y)
{
	bool ink = x % 8 < 2 || y % 12 < 2;

	return y >= 200 && y < 209 && x >= 96 && x < 96 + 8 * (i / 4 + 1) && x % 8 < 6 && ink ? 20 : 235;
}

/* A dark room between black bars. */
static double room(int i, int x, int y)
{
	return y < HIGH / 8 || y >= HIGH - HIGH / 8 ? 0 : 10 + (x / 8 + y / 8 + i / 9) % 6;
}

/* A bright disc on black is no picture between bars. */
static double moon(int i, int x, int y)
{
	return hypot(x - WIDE / 2.0 - i, y - HIGH / 2.0) < 130 ? 180 : 0;
}

/* Dashes of one row that move, as on a ruler: all on even rows. */
static double ruler(int i, int x, int y)
{
	return y % 16 == 0 && (x + 3 * i) % 40 < 20 ? 200 : 60;
}

/* The same picture at 480 and 240 rows. */
static void test_sizes(void **state)
{
	struct vfm_score large = score_scaled(fine, WIDE, HIGH, 1), small = score_scaled(fine, WIDE / 2, HIGH / 2, 2);

	(void)state;
	if (large.sharpness < 50 || !is_near(small.sharpness, large.sharpness, 0.1 * large.sharpness))
		fail_msg("sharpness %g at 480 rows, %g at 240", large.sharpness, small.sharpness);
	assert_true(is_near(small.text_ratio, large.text_ratio, 0.005));
	assert_true(isnan(score_scaled(fine, WIDE / 4, HIGH / 4, 4).sharpness));
	for (int k = 1; k <= 2; k++) {
		assert_true(score_scaled(typed, WIDE / k, HIGH / k, k).static_ratio < 0.05);
		small = score_scaled(room, WIDE / k, HIGH / k, k);
		assert_true(is_near(small.letterbox[0], 0.125, 0.01) && is_near(small.letterbox[1], 0.125, 0.01));
		assert_true(small.letterbox[2] == 0 && small.letterbox[3] == 0);
		assert_true(score_scaled(moon, WIDE / k, HIGH / k, k).bar_ratio == 0);
	}
	large = score_scaled(ruler, WIDE, HIGH, 1);
	if (large.interlace > 0.03)
		fail_msg("ruler: interlace %g", large.interlace);
}

static void test_odd_sizes(void **state)
{
	static const int sizes[][2] = {{1, 1}, {2, 3}, {3, 2}, {17, 9}, {333, 5}, {5, 333}, {641, 359}};
	struct vfm_score_opts so = {.end = -1};
	char *path = vfm_strfmt("%s/x.png", dir);
	struct vfm_err err = {0};
	struct vfm_score s;

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		int w = sizes[i][0], h = sizes[i][1];
		uint8_t *rgb = vfm_calloc((size_t)w * (size_t)h, 3);

		for (int k = 0; k < 3 * w * h; k++)
			rgb[k] = (uint8_t)mix((uint32_t)k);
		assert_int_equal(vfm_png_write(path, rgb, w, h, &err), 0);
		assert_int_equal(vfm_score_file(&s, path, &so, &err), 0);
		assert_true(s.frames == 1 && isnan(s.static_ratio) && isnan(s.duplicate_ratio) && isnan(s.flicker));
		assert_true(isnan(s.motion) && isnan(s.camera_motion) && isnan(s.object_motion) && isnan(s.shake));
		assert_true(isnan(s.interlace) && (isnan(s.blur) || s.blur >= 1) &&
			isnan(s.blockiness) == (w < 9 || h < 8));
		assert_true(isnan(s.sharpness) == (w < 240 || h < 240) && isnan(s.text_ratio) == isnan(s.sharpness));
		assert_true(s.overexposed >= 0 && s.overexposed <= 1 && s.underexposed >= 0 && s.underexposed <= 1);
		free(rgb);
	}
	free(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_camera, setup, teardown),
		cmocka_unit_test_setup_teardown(test_faults, setup, teardown),
		cmocka_unit_test_setup_teardown(test_change, setup, teardown),
		cmocka_unit_test_setup_teardown(test_bars, setup, teardown),
		cmocka_unit_test_setup_teardown(test_saturation, setup, teardown),
		cmocka_unit_test_setup_teardown(test_sizes, setup, teardown),
		cmocka_unit_test_setup_teardown(test_odd_sizes, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
