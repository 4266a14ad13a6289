/* Boundaries of shots on drawn frames: what is a cut in the dark, beside flashes, plain frames, titles and light. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "media/shots/shots.h"
#include "media/shots/scene.h"

#define W VFM_SIG_W
#define H VFM_SIG_H

static uint32_t noise_state;

static int noise(int n)
{
	noise_state = noise_state * 1664525u + 1013904223u;
	return (int)(noise_state >> 16) % (2 * n + 1) - n;
}

/* A picture of the shot at a time: patches of light that move, times gain, plus noise. */
static void draw(uint8_t *rgb, int shot, double t, double gain, int grain)
{
	static const double tint[3][3] = {{1, 0.8, 0.6}, {0.5, 0.8, 1}, {0.9, 1, 0.6}};

	for (int y = 0; y < H; y++)
		for (int x = 0; x < W; x++) {
			double v = 110 +
				60 * sin((x + t) * (0.35 + 0.11 * shot) + shot) * cos(y * (0.3 + 0.07 * shot)) +
				40 * sin((x + t) * 0.13 + y * (0.21 + 0.1 * shot) + 2 * shot);

			for (int k = 0; k < 3; k++) {
				double p = v * tint[shot % 3][k] * gain + (grain ? noise(grain) : 0);

				rgb[(y * W + x) * 3 + k] = (uint8_t)(p < 0 ? 0 : p > 255 ? 255 : p);
			}
		}
}

static void push_rgb(struct vfm_scene *s, const uint8_t *rgb)
{
	struct vfm_thumb thumb;

	vfm_thumb_of_rgb(&thumb, rgb);
	vfm_scene_push(s, &thumb);
}

static void push(struct vfm_scene *s, int shot, double t, double gain, int grain)
{
	uint8_t rgb[W * H * 3];

	draw(rgb, shot, t, gain, grain);
	push_rgb(s, rgb);
}

static void push_plain(struct vfm_scene *s, int n, uint8_t level)
{
	uint8_t rgb[W * H * 3];

	memset(rgb, level, sizeof(rgb));
	for (int i = 0; i < n; i++)
		push_rgb(s, rgb);
}

/* A mixture of two shots at the same time, with a share of the second. */
static void push_mixed(struct vfm_scene *s, int shot, int with, double t, double share, double gain)
{
	uint8_t a[W * H * 3], b[W * H * 3];

	draw(a, shot, t, gain, 1);
	draw(b, with, t, gain, 1);
	for (size_t i = 0; i < sizeof(a); i++)
		a[i] = (uint8_t)(a[i] + share * (b[i] - a[i]));
	push_rgb(s, a);
}

/* Two lines of letters. */
static void push_title(struct vfm_scene *s, double gain)
{
	uint8_t rgb[W * H * 3] = {0};

	for (int y = 20; y < 30; y++)
		for (int x = 12; x < 52; x++)
			if (y % 6 < 4 && x * 7 % 5 < 3)
				memset(rgb + (y * W + x) * 3, (int)(220 * gain), 3);
	push_rgb(s, rgb);
}

static void expect(struct vfm_scene *s, const int64_t *frames, int64_t n)
{
	int64_t found;
	const struct vfm_cut *c = vfm_scene_cuts(s, 0, true, &found);

	assert_int_equal(found, n);
	for (int64_t i = 0; i < n; i++) {
		assert_int_equal(c[i].frame, frames[i]);
		assert_true(c[i].confidence >= VFM_SCENE_THRESHOLD && c[i].confidence <= 1);
	}
	vfm_scene_free(s);
}

/* Returns the only cut, and frees the scene. */
static struct vfm_cut only_cut(struct vfm_scene *s)
{
	int64_t n;
	const struct vfm_cut *c = vfm_scene_cuts(s, 0, true, &n);
	struct vfm_cut cut;

	assert_int_equal(n, 1);
	cut = c[0];
	vfm_scene_free(s);
	return cut;
}

/* The same cut, at full light and with a tenth of it and noise. */
static void test_dark_cut(void **state)
{
	const double gains[] = {1, 0.3, 0.12};

	(void)state;
	for (int k = 0; k < 3; k++) {
		struct vfm_scene *s = vfm_scene_new(25);

		for (int i = 0; i < 60; i++)
			push(s, i >= 30, 0.5 * i, gains[k], 2);
		expect(s, (int64_t[]){30}, 1);
	}
}

/* Fast motion, light that falls and returns, a flash and frames of one colour within a shot are no cuts. */
static void test_no_cut(void **state)
{
	struct vfm_scene *s = vfm_scene_new(25);

	(void)state;
	for (int i = 0; i < 60; i++)
		push(s, 0, 3 * i, 1, 2);
	for (int i = 60; i < 100; i++)
		push(s, 0, 180, 1 - 0.6 * sin((i - 60) * 3.14159 / 40), 2);
	for (int i = 0; i < 20; i++)
		push(s, 0, 180, 1, 2);
	push_plain(s, 2, 255);
	for (int i = 0; i < 20; i++)
		push(s, 0, 180, 1, 2);
	push_plain(s, 3, 0);
	for (int i = 0; i < 20; i++)
		push(s, 0, 180, 1, 2);
	expect(s, NULL, 0);
}

/* A shot fades to black, a title fades in and out, another shot fades in: three clips, without the frames that are
 * black or nearly so. */
static void test_title_on_black(void **state)
{
	struct vfm_scene *s = vfm_scene_new(25);
	struct vfm_clip_rule rule = {0};
	const struct vfm_cut *c;
	struct vfm_span *spans;
	int64_t n;

	(void)state;
	for (int i = 0; i < 52; i++) /* full until 40 */
		push(s, 0, 0.5 * i, i < 40 ? 1 : 1 - (i - 39) / 13.0, 0);
	push_plain(s, 4, 0);
	for (int i = 0; i < 44; i++) /* from 56; full 66 to 90 */
		push_title(s, i < 10 ? (i + 1) / 11.0 : i < 34 ? 1 : (44 - i) / 11.0);
	push_plain(s, 4, 0);
	for (int i = 0; i < 52; i++) /* from 104; full from 116 */
		push(s, 1, 0.5 * i, i < 12 ? (i + 1) / 13.0 : 1, 0);
	c = vfm_scene_cuts(s, 0, true, &n);
	assert_int_equal(n, 2);
	assert_int_equal(c[0].kind, VFM_CUT_FADE);
	assert_in_range(c[0].from, 47, 50);
	assert_in_range(c[0].frame, 57, 60);
	assert_in_range(c[1].from, 96, 99);
	assert_in_range(c[1].frame, 106, 109);
	assert_int_equal(vfm_spans_of(156, c, n, &rule, &spans), 5);
	assert_true(spans[0].start_confidence < 0 && spans[0].end_confidence >= 0.5);
	assert_true(spans[1].kind == VFM_SPAN_TRANSITION && spans[1].transition == VFM_CUT_FADE);
	assert_true(spans[2].start_confidence == c[0].confidence && spans[2].end_confidence == c[1].confidence);
	assert_true(spans[4].end_confidence < 0);
	free(spans);
	vfm_scene_free(s);
}

/* Hard cuts alone: a cut to black counts, a fade to black and back does not. */
static void test_hard_only(void **state)
{
	struct vfm_scene *s = vfm_scene_new(25);
	const struct vfm_cut *c;
	int64_t n;

	(void)state;
	for (int i = 0; i < 40; i++)
		push(s, 0, 0.5 * i, 1, 0);
	push_plain(s, 30, 0);
	for (int i = 0; i < 53; i++) /* from 70; fades from 110 on */
		push(s, 1, 0.5 * i, i < 40 ? 1 : 1 - (i - 39) / 13.0, 0);
	push_plain(s, 30, 0);
	for (int i = 0; i < 52; i++) /* from 153 */
		push(s, 2, 0.5 * i, i < 12 ? (i + 1) / 13.0 : 1, 0);
	c = vfm_scene_cuts(s, 0, false, &n);
	assert_int_equal(n, 1);
	assert_int_equal(c[0].from, 40);
	assert_int_equal(c[0].frame, 70);
	vfm_scene_cuts(s, 0, true, &n);
	assert_int_equal(n, 2);
	vfm_scene_free(s);
}

/* The light of the new shot changes, and it moves, from the end of a dissolve on: the dissolve ends there, not later.
 */
static void test_end_of_dissolve(void **state)
{
	struct vfm_scene *s = vfm_scene_new(25);
	uint8_t a[W * H * 3], b[W * H * 3];
	const struct vfm_cut *c;
	int64_t n;

	(void)state;
	for (int i = 0; i < 150; i++) {
		int share = i < 60 ? 0 : i < 72 ? i - 59 : 13;

		draw(a, 0, 0, 1, 2);
		draw(b, 1, i < 72 ? 0 : 0.25 * (i - 72), i < 72 || i > 96 ? 1 : 1 - (i - 72) / 60.0, 2);
		for (int k = 0; k < W * H * 3; k++)
			a[k] = (uint8_t)((a[k] * (13 - share) + b[k] * share) / 13);
		push_rgb(s, a);
	}
	c = vfm_scene_cuts(s, 0, true, &n);
	assert_int_equal(n, 1);
	assert_int_equal(c[0].kind, VFM_CUT_DISSOLVE);
	assert_in_range(c[0].from, 60, 63);
	assert_in_range(c[0].frame, 69, 73);
	vfm_scene_free(s);
}

/* A shot goes on behind plain frames while it moves, in the light and in the dark. */
static void test_blink_in_motion(void **state)
{
	const double gains[] = {1, 0.25};

	(void)state;
	for (int k = 0; k < 2; k++) {
		struct vfm_scene *s = vfm_scene_new(25);

		for (int i = 0; i < 90; i++)
			if (i >= 40 && i < 44)
				push_plain(s, 1, k ? 0 : 255);
			else
				push(s, 0, 0.6 * i, gains[k], 2);
		expect(s, NULL, 0);
	}
}

/* Conversion of the frame rate leaves one mixed frame at a cut. */
static void test_mixed_frame(void **state)
{
	static const double shares[] = {0.3, 0.5, 0.7};

	(void)state;
	for (int k = 0; k < 6; k++) {
		struct vfm_scene *s = vfm_scene_new(25);
		struct vfm_cut c;
		double gain = k < 3 ? 1 : 0.25;

		for (int i = 0; i < 40; i++)
			push(s, 0, 0.3 * i, gain, 1);
		push_mixed(s, 0, 1, 12, shares[k % 3], gain);
		for (int i = 41; i < 80; i++)
			push(s, 1, 0.3 * i, gain, 1);
		c = only_cut(s);
		assert_int_equal(c.kind, VFM_CUT_HARD);
		assert_in_range(c.frame, 40, 41);
	}
}

/* Shots of four frames. */
static void test_short_shots(void **state)
{
	struct vfm_scene *s = vfm_scene_new(25);
	const int64_t cuts[] = {40, 44, 48, 52};

	(void)state;
	for (int i = 0; i < 92; i++) {
		int shot = i < 40 ? 0 : i < 44 ? 5 : i < 48 ? 1 : i < 52 ? 6 : 2;

		push(s, shot, 0.5 * i, 1, 1);
	}
	expect(s, cuts, 4);
}

static void push_between_bars(struct vfm_scene *s, int shot, double t, int level)
{
	uint8_t rgb[W * H * 3];

	draw(rgb, shot, t, 1, 2);
	if (level >= 0)
		memset(rgb, level, sizeof(rgb));
	memset(rgb, 0, sizeof(rgb) / 8);
	memset(rgb + sizeof(rgb) / 8 * 7, 0, sizeof(rgb) / 8);
	push_rgb(s, rgb);
}

/* Shots between black bars: a flash at a cut, and half a second of white: one cut, one transition. */
static void test_flash_between_bars(void **state)
{
	struct vfm_scene *s = vfm_scene_new(25);
	const struct vfm_cut *c;
	int64_t n;

	(void)state;
	for (int i = 0; i < 40; i++)
		push_between_bars(s, 0, 0.5 * i, -1);
	push_between_bars(s, 0, 0, 250);
	for (int i = 0; i < 40; i++)
		push_between_bars(s, 1, 0.5 * i, -1);
	for (int i = 0; i < 12; i++)
		push_between_bars(s, 0, 0, 250);
	for (int i = 0; i < 40; i++)
		push_between_bars(s, 2, 0.5 * i, -1);
	c = vfm_scene_cuts(s, 0, true, &n);
	assert_int_equal(n, 2);
	assert_int_equal(c[0].frame, 41);
	assert_int_equal(c[0].from, 41);
	assert_int_equal(c[0].kind, VFM_CUT_HARD);
	assert_int_equal(c[1].from, 81);
	assert_int_equal(c[1].frame, 93);
	assert_int_equal(c[1].kind, VFM_CUT_FADE);
	vfm_scene_free(s);
}

/* A logo in the corner stays while the shots fade to black and back. */
static void test_fade_with_logo(void **state)
{
	struct vfm_scene *s = vfm_scene_new(25);
	uint8_t rgb[W * H * 3];
	struct vfm_cut c;

	(void)state;
	for (int i = 0; i < 130; i++) {
		double gain = i < 50 ? 1 : i < 63 ? 1 - (i - 49) / 13.0 : i < 68 ? 0 : i < 80 ? (i - 67) / 13.0 : 1;

		draw(rgb, i < 66 ? 0 : 1, 0.3 * i, gain, 0);
		for (int y = 42; y < 45; y++)
			memset(rgb + (y * W + 54) * 3, 200, (size_t)8 * 3);
		push_rgb(s, rgb);
	}
	c = only_cut(s);
	assert_int_equal(c.kind, VFM_CUT_FADE);
	assert_in_range(c.from, 55, 60);
	assert_in_range(c.frame, 69, 74);
}

/* Both shots move during a dissolve. */
static void test_dissolve_in_motion(void **state)
{
	struct vfm_scene *s = vfm_scene_new(25);
	uint8_t a[W * H * 3], b[W * H * 3];
	struct vfm_cut c;

	(void)state;
	for (int i = 0; i < 150; i++) {
		int share = i < 60 ? 0 : i < 75 ? i - 59 : 16;

		draw(a, 0, 0.3 * i, 1, 2);
		draw(b, 1, -0.3 * i, 1, 2);
		for (int k = 0; k < W * H * 3; k++)
			a[k] = (uint8_t)((a[k] * (16 - share) + b[k] * share) / 16);
		push_rgb(s, a);
	}
	c = only_cut(s);
	assert_int_equal(c.kind, VFM_CUT_DISSOLVE);
	assert_in_range(c.from, 58, 67);
	assert_in_range(c.frame, 67, 77);
}

/* A picture dissolves into dark letters on white, which have little contrast. */
static void test_dissolve_to_title(void **state)
{
	struct vfm_scene *s = vfm_scene_new(25);
	uint8_t rgb[W * H * 3];
	struct vfm_cut c;

	(void)state;
	for (int i = 0; i < 130; i++) {
		int share = i < 60 ? 0 : i < 75 ? i - 59 : 16;

		draw(rgb, 0, 0.2 * i, 1, 1);
		for (int k = 0; k < W * H; k++) {
			int x = k % W, y = k / W, ink = y >= 20 && y < 26 && x >= 16 && x < 46 && x % 4 < 2 ? 60 : 250;

			for (int j = 0; j < 3; j++)
				rgb[3 * k + j] = (uint8_t)((rgb[3 * k + j] * (16 - share) + ink * share) / 16);
		}
		push_rgb(s, rgb);
	}
	c = only_cut(s);
	assert_in_range(c.from, 58, 67);
	assert_in_range(c.frame, 69, 77);
}

/* Draws a digit of seven segments on a colour; x, y: its corner, `high` its height in pixels. */
static void push_digit(struct vfm_scene *s, int digit, int x0, int y0, int high, uint8_t back, uint8_t ink)
{
	static const uint8_t segments[10] = {0x77, 0x24, 0x5d, 0x6d, 0x2e, 0x6b, 0x7b, 0x25, 0x7f, 0x6f};
	int w = high / 2, thick = (high + 7) / 8;
	uint8_t rgb[W * H * 3];

	memset(rgb, back, sizeof(rgb));
	for (int y = 0; y < high; y++)
		for (int x = 0; x < w; x++) {
			int top = y < high / 2, on = segments[digit];
			bool bar = (y < thick && on & 1) || (abs(y - high / 2) < thick && on & 8) ||
				(y >= high - thick && on & 0x40);
			bool left = x < thick && on & (top ? 2 : 0x10);
			bool right = x >= w - thick && on & (top ? 4 : 0x20);

			if (bar || left || right)
				memset(rgb + ((y0 + y) * W + x0 + x) * 3, ink, 3);
		}
	push_rgb(s, rgb);
}

/* Digits that fill half of a white picture change: no cut. */
static void test_digits_on_white(void **state)
{
	struct vfm_scene *s = vfm_scene_new(25);

	(void)state;
	for (int i = 0; i < 250; i++)
		push_digit(s, i / 25, 24, 8, 32, 255, 0);
	expect(s, NULL, 0);
}

/* A small counter, of which the detector sees more or less, on one colour: nothing is cut off. */
static void test_counter(void **state)
{
	static const uint8_t backs[] = {0, 90, 128, 235};

	(void)state;
	for (int k = 0; k < 4; k++) {
		struct vfm_scene *s = vfm_scene_new(25);

		for (int i = 0; i < 200; i++)
			push_digit(s, i / 20, 4, 4, i < 60 ? 5 : 7, backs[k], k > 1 ? 0 : 255);
		expect(s, NULL, 0);
	}
}

/* A picture of little texture, which the camera sees from a distance of `zoom`. */
static void draw_sky(uint8_t *rgb, double zoom)
{
	for (int y = 0; y < H; y++)
		for (int x = 0; x < W; x++) {
			double u = (x - W / 2) * zoom, v = (y - H / 2) * zoom;
			double p = 150 + 0.15 * v + 3 * sin(0.15 * u) * cos(0.2 * v) + noise(1);

			rgb[(y * W + x) * 3] = (uint8_t)(p - 40);
			rgb[(y * W + x) * 3 + 1] = (uint8_t)p;
			rgb[(y * W + x) * 3 + 2] = (uint8_t)(p + 40);
		}
}

static void test_zoom_on_sky(void **state)
{
	struct vfm_scene *s = vfm_scene_new(25);
	uint8_t rgb[W * H * 3];

	(void)state;
	for (int i = 0; i < 150; i++) {
		draw_sky(rgb, 0.3 + i / 75.0);
		push_rgb(s, rgb);
	}
	expect(s, NULL, 0);
}

/* A sky is a shot, though its frames are nearly of one colour. */
static void test_dissolve_to_sky(void **state)
{
	struct vfm_scene *s = vfm_scene_new(25);
	uint8_t a[W * H * 3], b[W * H * 3];
	struct vfm_cut c;

	(void)state;
	for (int i = 0; i < 160; i++) {
		int share = i < 60 ? 0 : i < 80 ? i - 59 : 21;

		draw(a, 0, 0.2 * i, 1, 1);
		draw_sky(b, 0.3);
		for (int k = 0; k < W * H * 3; k++)
			a[k] = (uint8_t)((a[k] * (21 - share) + b[k] * share) / 21);
		push_rgb(s, a);
	}
	c = only_cut(s);
	assert_in_range(c.from, 58, 68);
	assert_in_range(c.frame, 72, 82);
}

/* A short fade through light grey, in which no frame is grey alone. */
static void test_grey_fade(void **state)
{
	struct vfm_scene *s = vfm_scene_new(25);
	uint8_t rgb[W * H * 3];
	struct vfm_cut c;

	(void)state;
	for (int i = 0; i < 100; i++) {
		int share = i < 44 || i >= 56 ? 7 : i < 50 ? 50 - i : i - 49;

		draw(rgb, i >= 50, 0.2 * i, 1, 1);
		for (int k = 0; k < W * H * 3; k++)
			rgb[k] = (uint8_t)((rgb[k] * share + 205 * (7 - share)) / 7);
		push_rgb(s, rgb);
	}
	c = only_cut(s);
	assert_int_equal(c.kind, VFM_CUT_FADE);
	assert_in_range(c.from, 43, 48);
	assert_in_range(c.frame, 52, 57);
}

/* Black is cut off, but not the frames of a slow fade that show the shot. */
static void test_slow_fade_in(void **state)
{
	static const double tops[] = {1, 0.6};

	(void)state;
	for (int k = 0; k < 2; k++) {
		struct vfm_scene *s = vfm_scene_new(25);
		struct vfm_cut c;

		push_plain(s, 20, 0);
		for (int i = 0; i < 180; i++)
			push(s, 1, 0.2 * i, i < 100 ? tops[k] * (i + 1) / 101 : tops[k], 0);
		c = only_cut(s);
		assert_int_equal(c.from, 0);
		assert_in_range(c.frame, 26, 48);
	}
}

/* Pictures of one colour are shots. */
static void test_colours(void **state)
{
	struct vfm_scene *s = vfm_scene_new(25);
	const int64_t cuts[] = {50, 100};

	(void)state;
	push_plain(s, 50, 200);
	push_plain(s, 50, 90);
	push_plain(s, 50, 150);
	expect(s, cuts, 2);
}

/* Scales a plane whose samples grow to the right and downward, of 8 and of 10 bits. */
static void test_plane_shrink(void **state)
{
	enum { PW = 333, PH = 250 };
	static uint8_t narrow[PH][PW];
	static uint16_t wide[PH][PW], sums[PW], small[H * W];
	struct vfm_plane planes[] = {{narrow[0], PW, PW, PH, 8}, {(const uint8_t *)wide[0], 2 * PW, PW, PH, 10},
		{narrow[PH - 1], -PW, PW, PH, 8}};

	(void)state;
	for (int y = 0; y < PH; y++)
		for (int x = 0; x < PW; x++) {
			narrow[y][x] = (uint8_t)(x / 2 + y / 4);
			wide[y][x] = (uint16_t)(4 * narrow[y][x]);
		}
	for (int k = 0; k < 3; k++) {
		vfm_plane_shrink(&planes[k], W, H, sums, small);
		for (int j = 0; j < H; j++)
			for (int i = 0; i < W; i++) {
				double y = k < 2 ? j + 0.5 : H - j - 0.5;
				double want = (i + 0.5) * PW / W / 2 + y * PH / H / 4;

				assert_true(fabs(small[j * W + i] / 256.0 - want) < 2);
			}
	}
}

/* A lower threshold finds at least the same cuts; what it finds is at least that certain. */
static void test_threshold(void **state)
{
	struct vfm_scene *s = vfm_scene_new(25);
	int64_t before = INT64_MAX;

	(void)state;
	noise_state = 1;
	for (int i = 0; i < 300; i++)
		push(s, i / 20 % 3, 0.3 * i, i % 40 < 20 ? 0.06 : 0.25, 6);
	for (int k = 1; k < 10; k++) {
		int64_t n;
		const struct vfm_cut *c = vfm_scene_cuts(s, k / 10.0, false, &n);

		assert_true(n <= before);
		for (int64_t i = 0; i < n; i++)
			assert_true(c[i].confidence >= k / 10.0);
		before = n;
	}
	vfm_scene_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_dark_cut),
		cmocka_unit_test(test_no_cut),
		cmocka_unit_test(test_title_on_black),
		cmocka_unit_test(test_hard_only),
		cmocka_unit_test(test_end_of_dissolve),
		cmocka_unit_test(test_blink_in_motion),
		cmocka_unit_test(test_mixed_frame),
		cmocka_unit_test(test_short_shots),
		cmocka_unit_test(test_flash_between_bars),
		cmocka_unit_test(test_fade_with_logo),
		cmocka_unit_test(test_dissolve_in_motion),
		cmocka_unit_test(test_dissolve_to_title),
		cmocka_unit_test(test_digits_on_white),
		cmocka_unit_test(test_counter),
		cmocka_unit_test(test_zoom_on_sky),
		cmocka_unit_test(test_dissolve_to_sky),
		cmocka_unit_test(test_grey_fade),
		cmocka_unit_test(test_slow_fade_in),
		cmocka_unit_test(test_colours),
		cmocka_unit_test(test_plane_shrink),
		cmocka_unit_test(test_threshold),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
