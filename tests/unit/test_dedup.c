/* Hashes of clips, their index, groups of duplicates, and vectors. */
#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/philox.h"
#include "curate/dedup/clip_groups.h"
#include "curate/dedup/dots.h"
#include "curate/dedup/nearest.h"
#include "curate/dedup/semantic.h"
#include "io/file.h"
#include "clip_distance.h"
#include "media/match/clip_compare.h"
#include "media/match/clip_hash.h"
#include "media/match/clip_signs.h"
#include "ok.h"

#define SIZE     64
#define QUARTERS 16 /* 4 s, 8 slots */

/* Blobs that move on a background, both of the seed; pixel (x, y) of [0, 1] at time t. */
static double scene(uint64_t seed, double x, double y, double t)
{
	const struct vfm_rng r = vfm_rng_stream(seed, 0, 0, VFM_RNG_TEST);
	double v = 120;

	for (uint64_t i = 0; i < 12; i++) {
		double cx = vfm_rng_uniform(&r, 5 * i), cy = vfm_rng_uniform(&r, 5 * i + 1);
		double s = 0.08 + 0.2 * vfm_rng_uniform(&r, 5 * i + 2),
		       a = 160 * (vfm_rng_uniform(&r, 5 * i + 3) - 0.5);
		double w = 2 * vfm_rng_uniform(&r, 5 * i + 4);

		if (i < 6)
			cx += 0.25 * sin(w * t + (double)i);
		v += a * exp(-((x - cx) * (x - cx) + (y - cy) * (y - cy)) / (s * s));
	}
	return fmin(255, fmax(0, v));
}

struct change {
	double crop, gain, lift, shift_s, noise;
	bool mirrored;
	int bars; /* rows at top and bottom */
};

static void hash_scene(struct vfm_clip_hash *h, uint64_t seed, struct change c)
{
	uint16_t *q = vfm_calloc((size_t)QUARTERS * SIZE * SIZE, sizeof(*q));
	const struct vfm_rng r = vfm_rng_stream(seed, 1, 7, VFM_RNG_TEST);

	for (int k = 0; k < QUARTERS; k++)
		for (int j = c.bars; j < SIZE - c.bars; j++)
			for (int i = 0; i < SIZE; i++) {
				double x = (i + 0.5) / SIZE, y = (j - c.bars + 0.5) / (SIZE - 2 * c.bars), v;
				uint64_t at = (uint64_t)((k * SIZE + j) * SIZE + i);

				x = c.mirrored ? 1 - x : x;
				v = scene(seed, c.crop + x * (1 - c.crop), c.crop / 2 + y * (1 - c.crop),
					0.25 * k + c.shift_s);
				v = v * (c.gain > 0 ? c.gain : 1) + c.lift + c.noise * (vfm_rng_uniform(&r, at) - 0.5);
				q[at] = (uint16_t)(256 * fmin(255, fmax(0, v)));
			}
	vfm_clip_hash_of(h, q, QUARTERS, SIZE, false);
	free(q);
}

static void test_changes(void **state)
{
	static const struct change changes[] = {{.crop = 0.07}, {.gain = 0.8}, {.gain = 1.2, .lift = -20},
		{.noise = 30}, {.shift_s = 0.6}, {.bars = 8}, {.mirrored = true},
		{.crop = 0.04, .gain = 0.85, .shift_s = 0.4, .mirrored = true}};
	struct vfm_clip_hash a, b, other;
	struct vfm_clip_match m;

	(void)state;
	for (uint64_t seed = 1; seed <= 6; seed++) {
		hash_scene(&a, seed, (struct change){0});
		hash_scene(&other, seed + 100, (struct change){0});
		assert_true(clip_distance(&a, &other, &m) > 0.5);
		for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
			hash_scene(&b, seed, changes[i]);
			if (clip_distance(&a, &b, &m) >= VFM_CLIP_THRESHOLD)
				fail_msg("seed %d, change %zu: distance %.3f", (int)seed, i, m.distance);
			assert_int_equal(m.mirrored, changes[i].mirrored);
			if (changes[i].shift_s > 0)
				assert_true(fabs(m.offset_s - changes[i].shift_s) <= 0.3);
		}
	}
}

/* A picture that fades to black on one side has no bar there, whose width would depend on the light. */
static void test_dark_side(void **state)
{
	uint16_t *q = vfm_calloc((size_t)QUARTERS * SIZE * SIZE, sizeof(*q));
	struct vfm_clip_hash h[2];
	struct vfm_clip_match m;

	(void)state;
	for (int dark = 0; dark < 2; dark++) {
		for (int i = 0; i < QUARTERS * SIZE * SIZE; i++) {
			double x = (i % SIZE + 0.5) / SIZE, y = (i / SIZE % SIZE + 0.5) / SIZE;
			double v = scene(3, x, y, 0.25 * (i / (SIZE * SIZE))) * fmin(1, x * 1.6 + 0.02);

			q[i] = (uint16_t)(256 * v * (dark ? 0.6 : 1));
		}
		vfm_clip_hash_of(&h[dark], q, QUARTERS, SIZE, false);
	}
	if (clip_distance(&h[0], &h[1], &m) > 0.05)
		fail_msg("distance %.3f", m.distance);
	free(q);
}

/* Crops of an image share keys with it: a set of images and their crops. */
static void test_crops(void **state)
{
	enum { IMAGES = 60 };
	const struct vfm_clip_groups_opts o = {.threshold = VFM_CLIP_THRESHOLD};
	uint16_t *q = vfm_calloc((size_t)SIZE * SIZE, sizeof(*q));
	struct vfm_clip_set set;
	struct vfm_clip_groups g;
	struct vfm_clip_hash h;
	char name[32];
	int found = 0;

	(void)state;
	assert_int_equal(vfm_clip_set_open(&set, &err), 0);
	for (int i = 0; i < 2 * IMAGES; i++) {
		const double c = i >= IMAGES ? 0.07 : 0; /* of the left and the upper side */

		for (int k = 0; k < SIZE * SIZE; k++) {
			double x = (k % SIZE + 0.5) / SIZE, y = (k / SIZE + 0.5) / SIZE;

			q[k] = (uint16_t)(256 *
				scene(500 + (uint64_t)(i % IMAGES), c + x * (1 - c), c + y * (1 - c), 0));
		}
		vfm_clip_hash_of(&h, q, 1, SIZE, true);
		snprintf(name, sizeof(name), "%04d", i);
		assert_int_equal(vfm_clip_set_add(&set, name, i < IMAGES ? 2 : 1, &h, &err), 0);
	}
	assert_int_equal(vfm_clip_set_flush(&set, &err), 0);
	assert_int_equal(vfm_clip_groups_find(&g, &set, &o, &err), 0);
	for (int i = IMAGES; i < 2 * IMAGES; i++)
		if (vfm_groups_is_member(&g.groups, g.rank[i])) {
			assert_int_equal(g.clip[g.groups.of[g.rank[i]].of], i - IMAGES);
			found++;
		}
	if (found < IMAGES * 9 / 10)
		fail_msg("%d of %d crops found", found, IMAGES);
	vfm_clip_groups_release(&g);
	vfm_clip_set_close(&set);
	free(q);
}

static void hash_picture(struct vfm_clip_hash *h, double (*at)(double x, double y, const void *ctx), const void *ctx)
{
	uint16_t *q = vfm_calloc((size_t)SIZE * SIZE, sizeof(*q));

	for (int k = 0; k < SIZE * SIZE; k++)
		q[k] = (uint16_t)(256 * fmin(255, fmax(0, at((k % SIZE + 0.5) / SIZE, (k / SIZE + 0.5) / SIZE, ctx))));
	vfm_clip_hash_of(h, q, 1, SIZE, true);
	free(q);
}

struct view { /* of a scene */
	uint64_t seed;
	double left, top, part; /* what a crop shows: [left, left + part) x [top, top + part) */
	double gain, lift;
	double bars; /* of the height, at the top and at the bottom */
	bool mirrored;
};

static double view_at(double x, double y, const void *ctx)
{
	const struct view *v = ctx;

	y = (y - v->bars) / (1 - 2 * v->bars);
	if (y < 0 || y >= 1)
		return 0;
	x = v->mirrored ? 1 - x : x;
	return v->gain * scene(v->seed, v->left + v->part * x, v->top + v->part * y, 0) + v->lift;
}

/* Images are fit to each other: crops of different places, bars, clipped light and mirroring leave them near. */
static void test_image_fit(void **state)
{
	static const struct view views[] = {{.left = 0.08, .part = 0.92, .gain = 1},
		{.top = 0.04, .part = 0.92, .gain = 1},
		{.left = 0.05, .top = 0.05, .part = 0.9, .gain = 1.2, .lift = 30},
		{.part = 1, .gain = 0.8, .bars = 0.13}, {.part = 1, .gain = 1, .lift = 50, .mirrored = true},
		{.left = 0.02, .top = 0.06, .part = 0.93, .gain = 0.9, .lift = -20, .bars = 0.1, .mirrored = true}};
	struct vfm_clip_hash a, b;
	struct vfm_clip_match m;

	(void)state;
	for (uint64_t seed = 1; seed <= 12; seed++) {
		hash_picture(&a, view_at, &(struct view){.seed = seed, .part = 1, .gain = 1});
		assert_true(a.has_detail);
		for (size_t i = 0; i < sizeof(views) / sizeof(views[0]); i++) {
			struct view v = views[i];

			v.seed = seed;
			hash_picture(&b, view_at, &v);
			if (clip_distance(&a, &b, &m) >= VFM_CLIP_THRESHOLD || m.mirrored != v.mirrored)
				fail_msg("seed %d, view %zu: distance %.3f", (int)seed, i, m.distance);
			v.seed += 100;
			hash_picture(&b, view_at, &v);
			if (clip_distance(&a, &b, &m) < VFM_CLIP_THRESHOLD)
				fail_msg("seed %d, view %zu of another: distance %.3f", (int)seed, i, m.distance);
		}
	}
}

/* A code of one layout: a frame, and fields that a seed makes black or white. */
static double code_at(double x, double y, const void *ctx)
{
	const struct vfm_rng r = vfm_rng_stream(*(const uint64_t *)ctx, 3, 0, VFM_RNG_TEST);
	int col = (int)(x * 14), row = (int)(y * 14);

	if (col < 1 || row < 1 || col > 12 || row > 12)
		return 250;
	if (col < 2 || row < 2 || col > 11 || row > 11)
		return 10;
	return vfm_rng_uniform(&r, (uint64_t)(row * 14 + col)) < 0.5 ? 20 : 235;
}

/* Images of one layout differ by their detail. */
static void test_image_detail(void **state)
{
	struct vfm_clip_hash a, b;
	struct vfm_clip_match m;

	(void)state;
	for (uint64_t seed = 1; seed <= 20; seed++) {
		uint64_t other = seed + 50;

		hash_picture(&a, code_at, &seed);
		hash_picture(&b, code_at, &other);
		if (clip_distance(&a, &b, &m) < VFM_CLIP_THRESHOLD)
			fail_msg("codes %d and %d: distance %.3f", (int)seed, (int)other, m.distance);
		assert_true(clip_distance(&a, &a, &m) < 1e-3);
	}
}

/* Two images whose coefficients have the same signs, but other sizes: large ones of one are small in the other. */
static void test_signs_by_chance(void **state)
{
	struct vfm_clip_hash h[2] = {{.slots = 1, .scale = 1}, {.slots = 1, .scale = 1}};
	struct vfm_clip_match m;

	(void)state;
	for (int i = 0; i < VFM_CLIP_HASH_COEFS; i++) {
		int sign = i * i % 7 < 3 ? -1 : 1;

		h[0].mean[i] = (int16_t)(sign * (i % 2 ? 2000 : 1200));
		h[1].mean[i] = (int16_t)(sign * (i % 2 ? 1200 : 2000));
	}
	assert_true(clip_distance(&h[0], &h[0], &m) < 1e-6);
	/* All signs agree; the correlation is 2 a b / (a^2 + b^2). */
	if (fabs(clip_distance(&h[0], &h[1], &m) - 1.5 * (1 - 2 * 0.6 / (1 + 0.36))) > 1e-4)
		fail_msg("distance %g", m.distance);
}

/* One background, another motion: no duplicates. */
static void test_fixed_camera(void **state)
{
	struct vfm_clip_hash a, b;
	struct vfm_clip_match m;

	(void)state;
	hash_scene(&a, 3, (struct change){0});
	b = a;
	for (int k = 0; k < b.slots; k++)
		for (int i = 0; i < VFM_CLIP_HASH_COEFS; i++)
			b.diff[k][i] = a.diff[(k * 3 + 2) % a.slots][(i + 7) % VFM_CLIP_HASH_COEFS];
	assert_true(clip_distance(&a, &b, &m) > VFM_CLIP_THRESHOLD);
}

static void test_flat(void **state)
{
	uint16_t *q = vfm_calloc((size_t)4 * SIZE * SIZE, sizeof(*q));
	struct vfm_clip_hash a;
	struct vfm_clip_match m;

	(void)state;
	vfm_clip_hash_of(&a, q, 4, SIZE, false);
	assert_int_equal(a.slots, 2);
	assert_int_equal(vfm_clip_hash_informative(&a), 0);
	assert_true(clip_distance(&a, &a, &m) >= 1);
	free(q);
}

static void test_text(void **state)
{
	struct vfm_clip_hash a, b;
	char *text;

	(void)state;
	hash_scene(&a, 5, (struct change){0});
	assert_int_equal(a.changes.n, 0);
	text = vfm_clip_hash_text(&a);
	OK(vfm_clip_hash_parse(&b, text, &err));
	assert_memory_equal(&a, &b, offsetof(struct vfm_clip_hash, changes));
	hash_picture(&a, view_at, &(struct view){.seed = 2, .part = 1, .gain = 1, .bars = 0.1});
	free(text);
	text = vfm_clip_hash_text(&a);
	OK(vfm_clip_hash_parse(&b, text, &err));
	assert_memory_equal(&a, &b, offsetof(struct vfm_clip_hash, changes));
	assert_true(a.detail.box[0] > 0);
	a.detail.box[0] = a.detail.box[1];
	free(text);
	text = vfm_clip_hash_text(&a);
	assert_int_equal(vfm_clip_hash_parse(&b, text, &err), VFM_EINPUT);
	text[strlen(text) - 4] = 0;
	assert_int_equal(vfm_clip_hash_parse(&b, text, &err), VFM_EINPUT);
	assert_int_equal(vfm_clip_hash_parse(&b, "!!!!", &err), VFM_EINPUT);
	assert_int_equal(vfm_clip_hash_parse(&b, "", &err), VFM_EINPUT);
	free(text);
}

static void add_scene(struct vfm_clip_set *s, const char *name, double quality, uint64_t seed, struct change c)
{
	struct vfm_clip_hash h;

	hash_scene(&h, seed, c);
	OK(vfm_clip_set_add(s, name, quality, &h, &err));
}

static void test_index(void **state)
{
	struct vfm_clip_set s, again;
	struct vfm_clip_hash a, b;
	char *bytes, *as_text, *read_back, path[] = "/tmp/vfm-test-index.XXXXXX";
	size_t len;

	(void)state;
	close(mkstemp(path));
	OK(vfm_clip_set_open(&s, &err));
	add_scene(&s, "one", 1, 1, (struct change){0});
	add_scene(&s, "two", 2, 2, (struct change){0});
	add_scene(&s, "three", 3, 3, (struct change){0});
	hash_scene(&a, 1, (struct change){0});
	assert_int_equal(vfm_clip_set_add(&s, "two", 1, &a, &err), VFM_EINPUT);
	assert_int_equal(vfm_clip_set_add(&s, "", 1, &a, &err), VFM_EINPUT);
	OK(vfm_clip_set_flush(&s, &err));
	OK(vfm_clip_set_save(&s, (const uint8_t[]){1, 0, 1}, path, &err));
	OK(vfm_clip_set_open(&again, &err));
	OK(vfm_clip_set_load(&again, path, &err));
	OK(vfm_clip_set_flush(&again, &err));
	assert_int_equal(again.n, 2);
	assert_string_equal(vfm_names_at(&again.names, 1), "three");
	OK(vfm_clip_set_read(&s, 2, &a, &err));
	OK(vfm_clip_set_read(&again, 1, &b, &err));
	as_text = vfm_clip_hash_text(&a);
	read_back = vfm_clip_hash_text(&b);
	assert_string_equal(as_text, read_back);
	free(as_text);
	free(read_back);
	vfm_clip_set_close(&again);

	/* each byte counts, and each length */
	OK(vfm_read_file(path, 1 << 20, &bytes, &len, &err));
	for (size_t i = 0; i < len; i += i < 100 ? 1 : 37) {
		bytes[i] ^= 4;
		OK(vfm_write_file(path, bytes, len, &err));
		bytes[i] ^= 4;
		OK(vfm_clip_set_open(&again, &err));
		assert_int_equal(vfm_clip_set_load(&again, path, &err), VFM_EUSAGE);
		vfm_clip_set_close(&again);
		OK(vfm_write_file(path, bytes, i, &err));
		OK(vfm_clip_set_open(&again, &err));
		assert_int_equal(vfm_clip_set_load(&again, path, &err), VFM_EUSAGE);
		assert_non_null(strstr(err.msg, path));
		vfm_clip_set_close(&again);
	}
	free(bytes);
	unlink(path);
	vfm_clip_set_close(&s);
}

static void test_clip_groups(void **state)
{
	const struct vfm_clip_groups_opts o = {.threshold = VFM_CLIP_THRESHOLD, .fixed = 1};
	struct vfm_clip_groups g;
	struct vfm_clip_set s;

	(void)state;
	OK(vfm_clip_set_open(&s, &err));
	add_scene(&s, "old", 0, 1, (struct change){0});                  /* of an index */
	add_scene(&s, "new-of-old", 9, 1, (struct change){.gain = 0.9}); /* 1 */
	add_scene(&s, "small", 1, 2, (struct change){.mirrored = true}); /* 2 */
	add_scene(&s, "large", 5, 2, (struct change){0});                /* 3 */
	add_scene(&s, "b-tie", 4, 3, (struct change){.noise = 10});      /* 4 */
	add_scene(&s, "a-tie", 4, 3, (struct change){0});                /* 5 */
	add_scene(&s, "alone", 4, 4, (struct change){0});                /* 6 */
	OK(vfm_clip_set_flush(&s, &err));
	OK(vfm_clip_groups_find(&g, &s, &o, &err));
	for (uint32_t i = 0; i < 7; i++) {
		static const uint32_t want[] = {0, 0, 3, 3, 5, 5, 6};

		assert_int_equal(g.clip[g.groups.of[g.rank[i]].of], want[i]);
	}
	assert_true(g.groups.of[g.rank[2]].mirrored);
	vfm_clip_groups_release(&g);
	vfm_clip_set_close(&s);
}

/* Shots of equal scenes, but not of equal moments: all that both share is the change from shot to shot. */
static void test_replay(void **state)
{
	struct vfm_clip_hash h[2] = {{.slots = 12, .scale = 4}, {.slots = 12, .scale = 4}};
	struct vfm_clip_match m;

	(void)state;
	for (double own = 0; own < 0.5; own += 0.42) {
		for (int k = 0; k < 12; k++) {
			const struct vfm_rng shot = vfm_rng_stream(8, 1, (uint64_t)k / 2, VFM_RNG_TEST);

			for (int of = 0; of < 2; of++) {
				const struct vfm_rng moment =
					vfm_rng_stream(8, 2, (uint64_t)(12 * of + k), VFM_RNG_TEST);

				for (uint64_t i = 0; i < VFM_CLIP_HASH_COEFS; i++)
					h[of].diff[k][i] = (int8_t)fmax(-127,
						fmin(127,
							30 * (double)vfm_rng_normal(&shot, i) +
								30 * own * (double)vfm_rng_normal(&moment, i)));
			}
		}
		if ((clip_distance(&h[0], &h[1], &m) < VFM_CLIP_THRESHOLD) != (own < 0.1))
			fail_msg("%.2f of its own: distance %.3f", own, m.distance);
	}
}

/* A fade from black: slots that are flat in both clips do not count, those of one clip do. */
static void test_black_start(void **state)
{
	struct vfm_clip_hash a, b;
	struct vfm_clip_match m;

	(void)state;
	hash_scene(&a, 8, (struct change){0});
	hash_scene(&b, 8, (struct change){.gain = 0.8, .noise = 10});
	for (int k = 0; k < 3; k++) {
		memset(a.diff[k], 0, sizeof(a.diff[k]));
		a.diff[k][0] = -128;
	}
	assert_true(clip_distance(&a, &b, &m) >= VFM_CLIP_THRESHOLD);
	memcpy(b.diff, a.diff, 3 * sizeof(a.diff[0]));
	assert_true(clip_distance(&a, &b, &m) < VFM_CLIP_THRESHOLD);
	for (int k = 0; k < a.slots - 1; k++) /* one picture says little of a clip */
		a.diff[k][0] = b.diff[k][0] = -128;
	assert_true(clip_distance(&a, &b, &m) >= 1);
}

#define CROWD   150 /* clips before one background */
#define COPIES  50
#define OTHERS  20
#define CROWDED (CROWD + COPIES + OTHERS)

/* Motion of clip i before the background of clip 0; copies have noise. */
static void hash_crowd(struct vfm_clip_hash *h, const struct vfm_clip_hash *ground, int i)
{
	const int of = i < CROWD ? i : (i - CROWD) * 3;
	const struct vfm_rng r = vfm_rng_stream(5, 1, (uint64_t)of, VFM_RNG_TEST),
			     noise = vfm_rng_stream(5, 2, (uint64_t)i, VFM_RNG_TEST);

	*h = *ground;
	h->scale = 1;
	for (int k = 0; k < h->slots; k++)
		for (int c = 0; c < VFM_CLIP_HASH_COEFS; c++) {
			uint64_t at = (uint64_t)(k * VFM_CLIP_HASH_COEFS + c);
			float x = 20 * vfm_rng_normal(&r, at) + (i < CROWD ? 0 : 4 * vfm_rng_normal(&noise, at));

			h->diff[k][c] = (int8_t)fmaxf(-127, fminf(127, x));
		}
}

/* Clips of one camera, which share the keys of their pictures, and others: the groups are those of all pairs. */
static void test_crowd(void **state)
{
	const struct vfm_clip_groups_opts o = {.threshold = VFM_CLIP_THRESHOLD};
	struct vfm_clip_rows *rows = vfm_calloc(CROWDED, sizeof(*rows)), *half = vfm_malloc(sizeof(*half));
	struct vfm_clip_hash h, ground;
	struct vfm_clip_groups g;
	struct vfm_clip_set s;
	int64_t members = 0;

	(void)state;
	hash_scene(&ground, 1, (struct change){0});
	OK(vfm_clip_set_open(&s, &err));
	for (int i = 0; i < CROWDED; i++) {
		char name[16];

		if (i < CROWD + COPIES)
			hash_crowd(&h, &ground, i);
		else
			hash_scene(&h, 1000 + (uint64_t)(i / 2),
				i & 1 ? (struct change){.gain = 0.85, .mirrored = true} : (struct change){0});
		vfm_clip_rows_of(&rows[i], &h);
		snprintf(name, sizeof(name), "%05d", i);
		OK(vfm_clip_set_add(&s, name, -i, &h, &err));
	}
	OK(vfm_clip_set_flush(&s, &err));
	OK(vfm_clip_groups_find(&g, &s, &o, &err));
	for (uint32_t i = 0; i < CROWDED; i++) {
		struct vfm_clip_match m;
		bool resembles = false;

		assert_int_equal(g.clip[i], i);
		vfm_clip_half_of(half, &rows[i]);
		for (uint32_t k = 0; k < i; k++) {
			if (vfm_groups_is_member(&g.groups, k))
				continue;
			vfm_clip_compare(&rows[k], &rows[i], half, VFM_CLIP_THRESHOLD, &m);
			resembles |= m.distance < VFM_CLIP_THRESHOLD;
			if (g.groups.of[i].of == k)
				assert_true(m.distance < VFM_CLIP_THRESHOLD);
		}
		if (vfm_groups_is_member(&g.groups, i) != resembles)
			fail_msg("clip %u", i);
		members += resembles;
	}
	assert_int_equal(members, COPIES + OTHERS / 2);
	assert_int_equal(g.stats.flat, 0);
	vfm_clip_groups_release(&g);
	vfm_clip_set_close(&s);
	free(rows);
	free(half);
}

static uint64_t draw_signs(const struct vfm_rng *r, uint64_t at)
{
	return vfm_rng_below(r, at, UINT64_C(1) << VFM_CLIP_HASH_COEFS);
}

/* Rows of random signs.  Those of odd numbers resemble those before them, also shifted, mirrored or flat in part. */
static void make_signs(struct vfm_clip_rows *r, int i)
{
	const struct vfm_rng own = vfm_rng_stream(5, 0, (uint64_t)i, VFM_RNG_TEST),
			     shared = vfm_rng_stream(5, 0, (uint64_t)(i & ~1), VFM_RNG_TEST);
	const int shift = i & 1 ? i / 2 % 3 : 0, noise = i / 6 % 4;

	r->slots = 1 + (int)vfm_rng_below(&own, 0, i % 5 ? 9 : 30);
	for (int k = 0; k < r->slots; k++) {
		uint64_t at = 1 + 8 * (uint64_t)(k + shift), wrong = 0;

		r->sign[k] = draw_signs(&shared, at);
		r->strong[k] = draw_signs(&shared, at + 1) | draw_signs(&shared, at + 2);
		for (int n = 0; n < noise && i & 1; n++)
			wrong |= UINT64_C(1) << vfm_rng_below(&own, at + 3 + (uint64_t)n, VFM_CLIP_HASH_COEFS);
		r->sign[k] ^= wrong ^ (i % 8 == 3 ? VFM_CLIP_HASH_ODD : 0);
		if (vfm_rng_below(&own, at + 7, 6) == 0)
			r->strong[k] = i % 7 ? 0 : r->strong[k] & 0xfff;
	}
}

/* 1 - agreement by the formula of clip_hash.h. */
static double disagreement(const struct vfm_clip_rows *a, const struct vfm_clip_rows *b)
{
	const int shorter = a->slots < b->slots ? a->slots : b->slots,
		  longer = a->slots < b->slots ? b->slots : a->slots;
	const int part = (int)ceil(0.7 * shorter), common = part < 2 && longer > 2 ? 2 : part;
	double least = 2;

	for (int shift = -b->slots; shift <= a->slots; shift++)
		for (int mirrored = 0; mirrored < 2; mirrored++) {
			int n = 0, counted = 0;
			double sum = 0;

			for (int k = 0; k < a->slots; k++) {
				int of_b = k - shift;
				uint64_t both, unequal;

				if (of_b < 0 || of_b >= b->slots)
					continue;
				n++;
				both = a->strong[k] & b->strong[of_b];
				unequal = (a->sign[k] ^ b->sign[of_b] ^ (mirrored ? VFM_CLIP_HASH_ODD : 0)) & both;
				counted += (a->strong[k] | b->strong[of_b]) != 0;
				if (__builtin_popcountll(both) >= VFM_CLIP_HASH_COEFS / 4)
					sum += 1 - 2.0 * __builtin_popcountll(unequal) / __builtin_popcountll(both);
			}
			if (n >= common && counted && 2 * counted >= n && (counted > 1 || n == 1))
				least = fmin(least, 1 - sum / counted);
		}
	return least;
}

/* The filter by signs has the result of the formula, whatever the instruction set. */
static void test_signs_resemble(void **state)
{
	enum { N = 192 };
	struct vfm_clip_rows *rows = vfm_calloc(N, sizeof(*rows));
	const struct vfm_clip_rows *a[VFM_CLIP_RESEMBLE_MAX];
	int resemble = 0;

	(void)state;
	for (int i = 0; i < N; i++)
		make_signs(&rows[i], i);
	for (int first = 0; first < N; first += VFM_CLIP_RESEMBLE_MAX)
		for (int b = 0; b < N; b++) {
			double most = 0.05 + 0.1 * (b % 8);
			uint64_t found;

			for (int i = 0; i < VFM_CLIP_RESEMBLE_MAX; i++)
				a[i] = &rows[first + i];
			found = vfm_clip_signs_resemble(a, VFM_CLIP_RESEMBLE_MAX, &rows[b], most);
			for (int i = 0; i < VFM_CLIP_RESEMBLE_MAX; i++) {
				double d = disagreement(a[i], &rows[b]);

				if (fabs(d - most) > 1e-9 && (found >> i & 1) != (d <= most))
					fail_msg("clips %d and %d: %.4f, at most %.2f", first + i, b, d, most);
				resemble += d <= most && first + i != b;
			}
			assert_int_equal(vfm_clip_signs_resemble(a, 5, &rows[b], most), found & 31);
		}
	assert_true(resemble > N / 4);
	free(rows);
}

/* A distance does not depend on the limit above which it does not matter. */
static void test_limits(void **state)
{
	struct vfm_clip_hash a, b;
	struct vfm_clip_rows *x = vfm_malloc(sizeof(*x)), *y = vfm_malloc(sizeof(*y)),
			     *half = vfm_malloc(sizeof(*half));
	int below = 0;

	(void)state;
	for (int i = 0; i < 48; i++) {
		const struct change c = {.crop = 0.01 * (i % 5),
			.shift_s = 0.25 * (i % 3),
			.gain = 1 - 0.1 * (i % 4),
			.noise = i % 6 * 8,
			.mirrored = i % 7 == 0};
		struct vfm_clip_match all, m;

		hash_scene(&a, 1 + (uint64_t)i / 8, (struct change){0});
		hash_scene(&b, 1 + (uint64_t)(i + i % 2) / 8, c);
		vfm_clip_rows_of(x, &a);
		vfm_clip_rows_of(y, &b);
		vfm_clip_half_of(half, y);
		vfm_clip_compare(x, y, half, 1, &all);
		for (double most = 0.02; most < 1; most += 0.06) {
			vfm_clip_compare(x, y, half, most, &m);
			assert_true(m.distance == fmin(all.distance, most));
			below += m.distance < most;
		}
	}
	assert_true(below > 48);
	free(x);
	free(y);
	free(half);
}

/* An image is no copy of a longer clip that shows it, whichever of them is preferred. */
static void test_image_in_clip(void **state)
{
	struct vfm_clip_hash clip, image;
	struct vfm_clip_match m;

	(void)state;
	hash_scene(&clip, 1, (struct change){0});
	image = clip;
	image.slots = 1;
	memcpy(image.diff[0], clip.diff[3], sizeof(image.diff[0]));
	assert_true(clip_distance(&clip, &image, &m) == 1);
	assert_true(clip_distance(&image, &clip, &m) == 1);
	clip.slots = 2;
	memcpy(clip.diff[1], clip.diff[0], sizeof(clip.diff[0]));
	memcpy(image.diff[0], clip.diff[0], sizeof(image.diff[0]));
	assert_true(clip_distance(&clip, &image, &m) < 0.01);
	assert_true(clip_distance(&image, &clip, &m) < 0.01);
}

/* Items on a line; duplicates are at most 1 apart. */
static int compare_places(void *ctx, uint32_t member, uint32_t of, struct vfm_duplicate *d, struct vfm_err *e)
{
	const double *x = ctx;

	(void)e;
	*d = (struct vfm_duplicate){.member = member, .of = of, .distance = (float)fabs(x[member] - x[of])};
	return fabs(x[member] - x[of]) <= 1;
}

static void test_chain(void **state)
{
	double x[] = {0, 2, 1, 3, 0.5}; /* 0 ~ 2 ~ 1 ~ 3: a chain */
	struct vfm_duplicate first[] = {{.member = 2, .of = 1, .distance = 1}, {.member = 3, .of = 1, .distance = 1}};
	struct vfm_duplicate second[] = {
		{.member = 2, .of = 0, .distance = 1}, {.member = 4, .of = 2, .distance = 0.5F}};
	struct vfm_groups g;

	(void)state;
	vfm_groups_init(&g, 5, 0);
	OK(vfm_groups_add(&g, first, 2, compare_places, x, &err));
	OK(vfm_groups_add(&g, second, 2, compare_places, x, &err));
	/* 4 met 2, a member of 1, which is too far from 4: 4 stays */
	OK(vfm_groups_finish(&g, compare_places, x, &err));
	for (uint32_t i = 0; i < 5; i++) {
		assert_true(!vfm_groups_is_member(&g, g.of[i].of));
		assert_true(fabs(x[i] - x[g.of[i].of]) <= 1);
	}
	assert_int_equal(g.of[0].of, 0);
	assert_int_equal(g.of[1].of, 1);
	assert_int_equal(g.of[2].of, 1);
	vfm_groups_release(&g);

	/* a representative that becomes a member: those of its members that do not resemble its own stay */
	vfm_groups_init(&g, 5, 0);
	OK(vfm_groups_add(
		&g, (struct vfm_duplicate[]){{.member = 3, .of = 2, .distance = 2}}, 1, compare_places, x, &err));
	OK(vfm_groups_add(
		&g, (struct vfm_duplicate[]){{.member = 2, .of = 0, .distance = 1}}, 1, compare_places, x, &err));
	OK(vfm_groups_finish(&g, compare_places, x, &err));
	assert_int_equal(g.of[2].of, 0);
	assert_int_equal(g.of[3].of, 3);
	vfm_groups_release(&g);
}

#define ROWS 400
#define DIM  37

static void test_vectors(void **state)
{
	const struct vfm_semantic_opts o = {.threshold = 0.05, .probe = 2, .clusters = 7};
	float x[ROWS][DIM], query[DIM];
	struct vfm_features f = {.rows = ROWS, .dim = DIM, .type = VFM_NPY_F32, .data = (const uint8_t *)x};
	struct vfm_near_row near[20];
	double quality[ROWS] = {0};
	struct vfm_semantic g;
	int64_t n;

	(void)state;
	for (uint64_t i = 0; i < ROWS; i++) {
		const struct vfm_rng r = vfm_rng_stream(9, 0, i % 300, VFM_RNG_TEST);

		for (uint64_t k = 0; k < DIM; k++)
			x[i][k] = vfm_rng_normal(&r, k) * (i < 300 ? 1 : 3) + (i >= 300 && k == 0 ? 0.1F : 0);
		quality[i] = i >= 300 ? 1 : 0;
	}
	memset(x[5], 0, sizeof(x[5])); /* has no direction */
	OK(vfm_semantic_find(&g, &f, quality, &o, &err));
	for (uint32_t i = 0; i < ROWS; i++) {
		uint32_t want = i < 100 && i != 5 ? i + 300 : i;

		assert_int_equal(g.row[g.groups.of[g.rank[i]].of], want);
	}
	vfm_semantic_release(&g);

	/* the nearest, against a plain loop */
	memcpy(query, x[7], sizeof(query));
	OK(vfm_nearest_find(&f, query, 20, near, &n, &err));
	assert_int_equal(n, 20);
	assert_int_equal(near[0].row, 7);
	for (int64_t i = 0; i < n; i++) {
		double xy = 0, xx = 0, yy = 0;

		for (int k = 0; k < DIM; k++) {
			xy += (double)query[k] * (double)x[near[i].row][k];
			xx += (double)query[k] * (double)query[k];
			yy += (double)x[near[i].row][k] * (double)x[near[i].row][k];
		}
		assert_true(fabs(near[i].similarity - xy / sqrt(xx * yy)) < 1e-5);
		assert_true(i == 0 || near[i - 1].similarity >= near[i].similarity);
	}
	memset(query, 0, sizeof(query));
	assert_int_equal(vfm_nearest_find(&f, query, 20, near, &n, &err), VFM_EINPUT);
}

static void test_dots(void **state)
{
	float a[8][DIM], b[21][DIM], out[8][32], *packed = vfm_calloc(vfm_dots_packed(21, DIM), sizeof(*packed));
	const struct vfm_rng r = vfm_rng_stream(4, 0, 0, VFM_RNG_TEST);

	(void)state;
	for (uint64_t i = 0; i < 21; i++) {
		for (uint64_t k = 0; k < DIM; k++)
			b[i][k] = vfm_rng_normal(&r, i * DIM + k);
		vfm_dots_pack(packed, (int64_t)i, DIM, b[i]);
		if (i < 8)
			memcpy(a[i], b[i], sizeof(a[i]));
	}
	vfm_dots(a[0], 8, packed, 21, DIM, out[0], 32);
	for (int i = 0; i < 8; i++)
		for (int j = 0; j < 21; j++) {
			double want = 0;

			for (int k = 0; k < DIM; k++)
				want += (double)a[i][k] * (double)b[j][k];
			assert_true(fabs(want - (double)out[i][j]) < 1e-4);
		}
	free(packed);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_changes),
		cmocka_unit_test(test_dark_side),
		cmocka_unit_test(test_crops),
		cmocka_unit_test(test_image_fit),
		cmocka_unit_test(test_image_detail),
		cmocka_unit_test(test_signs_by_chance),
		cmocka_unit_test(test_fixed_camera),
		cmocka_unit_test(test_flat),
		cmocka_unit_test(test_text),
		cmocka_unit_test(test_index),
		cmocka_unit_test(test_clip_groups),
		cmocka_unit_test(test_replay),
		cmocka_unit_test(test_black_start),
		cmocka_unit_test(test_crowd),
		cmocka_unit_test(test_signs_resemble),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_image_in_clip),
		cmocka_unit_test(test_chain),
		cmocka_unit_test(test_vectors),
		cmocka_unit_test(test_dots),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
