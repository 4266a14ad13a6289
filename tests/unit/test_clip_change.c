/* The signature of what changes in clips that are still almost everywhere, and hashes that have one. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/philox.h"
#include "media/match/clip_compare.h"
#include "media/match/clip_hash.h"
#include "clip_distance.h"
#include "ok.h"

#define SIZE      128
#define QUARTERS  16 /* 4 s */
#define THRESHOLD 0.25

/* A dot before a still picture, which follows a path of its seed. */
struct dot_clip {
	uint64_t path;
	double crop, gain, shift_s, noise; /* crop: of the width, from the left; gain 0: 1 */
	bool mirrored, still;
	double sway; /* the picture moves by so much */
	int grain;   /* fine detail, 0 or 1 */
};

static double backdrop(double x, double y, int grain)
{
	double fine = grain ? sin(30 * x + 9 * y) * cos(27 * y) : cos(24 * x - 14 * y) * sin(31 * y - 7 * x);

	return 150 + 40 * sin(5 * x + 2 * y) + 30 * cos(7 * y - 3 * x) + 20 * sin(11 * x) + 40 * fine;
}

static void place_dot(uint64_t path, double t, double *x, double *y)
{
	const struct vfm_rng r = vfm_rng_stream(path, 0, 3, VFM_RNG_TEST);

	*x = *y = 0.5;
	for (uint64_t i = 0; i < 3; i++) {
		*x += 0.12 * sin((1 + 4 * vfm_rng_uniform(&r, 4 * i)) * t + 6.3 * vfm_rng_uniform(&r, 4 * i + 1));
		*y += 0.12 * sin((1 + 4 * vfm_rng_uniform(&r, 4 * i + 2)) * t + 6.3 * vfm_rng_uniform(&r, 4 * i + 3));
	}
}

/* Adds a frame to a picture. */
static void draw_frame(double *sum, const struct dot_clip *c, double t)
{
	double dot_x, dot_y, gain = c->gain > 0 ? c->gain : 1, sway = c->sway * sin(3 * t);

	place_dot(c->path, c->still ? 0 : t + c->shift_s, &dot_x, &dot_y);
	for (int j = 0; j < SIZE; j++)
		for (int i = 0; i < SIZE; i++) {
			double x = (i + 0.5) / SIZE, y = (j + 0.5) / SIZE;

			x = c->crop + (1 - c->crop) * (c->mirrored ? 1 - x : x);
			y *= 1 - c->crop / 2;
			sum[j * SIZE + i] +=
				gain * (hypot(x - dot_x, y - dot_y) < 0.022 ? 20 : backdrop(x + sway, y, c->grain));
		}
}

static void hash_dot(struct vfm_clip_hash *h, struct dot_clip c)
{
	uint16_t *q = vfm_calloc((size_t)QUARTERS * SIZE * SIZE, sizeof(*q));
	const struct vfm_rng r = vfm_rng_stream(c.path, 1, 7, VFM_RNG_TEST);
	double *sum = vfm_malloc(SIZE * SIZE * sizeof(*sum));

	for (int k = 0; k < QUARTERS; k++) {
		memset(sum, 0, SIZE * SIZE * sizeof(*sum));
		for (int f = 0; f < 4; f++)
			draw_frame(sum, &c, 0.25 * k + 0.0625 * f);
		for (int i = 0; i < SIZE * SIZE; i++) {
			uint64_t at = (uint64_t)(k * SIZE * SIZE + i);
			double v = sum[i] / 4 + c.noise * (vfm_rng_uniform(&r, at) - 0.5);

			q[at] = (uint16_t)(256 * fmin(255, fmax(0, v)));
		}
	}
	vfm_clip_hash_of(h, q, QUARTERS, SIZE, false);
	free(sum);
	free(q);
}

static void test_copies(void **state)
{
	static const struct dot_clip copies[] = {{.crop = 0.06}, {.gain = 0.75}, {.gain = 1.2}, {.noise = 12},
		{.mirrored = true}, {.shift_s = 0.5}, {.shift_s = 0.625},
		{.crop = 0.04, .gain = 0.85, .noise = 8, .shift_s = 0.3, .mirrored = true}};
	struct vfm_clip_match m;
	struct vfm_clip_hash a, b;

	(void)state;
	for (uint64_t path = 1; path <= 6; path++) {
		hash_dot(&a, (struct dot_clip){.path = path});
		assert_int_equal(a.changes.n, QUARTERS - 3);
		for (size_t i = 0; i < sizeof(copies) / sizeof(copies[0]); i++) {
			struct dot_clip c = copies[i];

			c.path = path;
			hash_dot(&b, c);
			assert_int_equal(b.changes.n, QUARTERS - 3);
			assert_true(clip_distance(&a, &b, &m) < THRESHOLD);
			assert_int_equal(m.mirrored, c.mirrored);
			assert_true(fabs(m.offset_s - c.shift_s) <= 0.26);
		}
	}
}

/* Other paths before the same picture are other clips, which the slots alone do not tell. */
static void test_other_takes(void **state)
{
	struct vfm_clip_hash a, b;
	struct vfm_clip_match m;
	int merged = 0;

	(void)state;
	for (uint64_t path = 1; path <= 6; path++) {
		hash_dot(&a, (struct dot_clip){.path = path});
		hash_dot(&b, (struct dot_clip){.path = path + 50});
		assert_true(clip_distance(&a, &b, &m) >= THRESHOLD);
		a.changes.n = 0;
		merged += clip_distance(&a, &b, &m) < THRESHOLD;
	}
	assert_true(merged > 0);
}

static void test_still(void **state)
{
	struct vfm_clip_hash a, b;
	struct vfm_clip_match m;

	(void)state;
	hash_dot(&a, (struct dot_clip){.path = 1, .still = true});
	hash_dot(&b, (struct dot_clip){.path = 1, .still = true, .noise = 6, .gain = 0.9});
	assert_int_equal(a.changes.n, QUARTERS - 3);
	assert_int_equal(b.changes.n, QUARTERS - 3);
	assert_int_equal(vfm_clip_changes_size(&a.changes), VFM_CHANGE_HEAD);
	assert_true(clip_distance(&a, &b, &m) < 0.05);
	hash_dot(&b, (struct dot_clip){.path = 1});
	assert_true(clip_distance(&a, &b, &m) >= THRESHOLD);
}

/* Still clips of two pictures whose coarse coefficients are alike. */
static void test_other_picture(void **state)
{
	struct vfm_clip_hash a, b;
	struct vfm_clip_match m;

	(void)state;
	hash_dot(&a, (struct dot_clip){.path = 1, .still = true});
	assert_true(a.has_detail);
	hash_dot(&b, (struct dot_clip){.path = 1, .still = true, .grain = 1});
	assert_true(clip_distance(&a, &b, &m) >= THRESHOLD);
	b.has_detail = false;
	assert_true(clip_distance(&a, &b, &m) < THRESHOLD);
	hash_dot(&b, (struct dot_clip){.path = 1, .still = true, .crop = 0.06, .mirrored = true});
	assert_true(clip_distance(&a, &b, &m) < THRESHOLD);
}

/* Clips that move in large, or by a few levels, have no signature. */
static void test_without(void **state)
{
	struct vfm_clip_hash h;

	(void)state;
	hash_dot(&h, (struct dot_clip){.path = 1, .sway = 0.2});
	assert_int_equal(h.changes.n, 0);
	hash_dot(&h, (struct dot_clip){.path = 1, .still = true, .noise = 40});
	assert_int_equal(h.changes.n, 0);
}

static void test_bytes(void **state)
{
	static uint8_t bytes[VFM_CLIP_HASH_BYTES], again[VFM_CLIP_HASH_BYTES];
	struct vfm_clip_hash h, g;
	size_t n, at;

	(void)state;
	hash_dot(&h, (struct dot_clip){.path = 2});
	h.changes.steps[0] = (struct vfm_change){0};
	n = vfm_clip_hash_pack(&h, bytes);
	at = VFM_CLIP_HASH_HEAD + (size_t)h.slots * VFM_CLIP_HASH_COEFS;
	assert_int_equal(n, at + VFM_CHANGE_HEAD + (QUARTERS - 4) * VFM_CHANGE_BYTES + VFM_IMAGE_BYTES);
	assert_int_equal(bytes[0], 3);
	OK(vfm_clip_hash_unpack(&g, bytes, n, &err));
	assert_int_equal(vfm_clip_hash_pack(&g, again), n);
	assert_memory_equal(bytes, again, n);
	for (size_t k = 0; k < n; k++) /* the detail may be missing */
		assert_int_equal(vfm_clip_hash_unpack(&g, bytes, k, &err), k == n - VFM_IMAGE_BYTES ? 0 : VFM_EINPUT);
	assert_int_equal(vfm_clip_hash_unpack(&g, bytes, n + 1, &err), VFM_EINPUT);
	for (int k = 0; k < VFM_CHANGE_HEAD; k++) { /* steps, first, end */
		bytes[at + (size_t)k] ^= 0x40;
		assert_int_equal(vfm_clip_hash_unpack(&g, bytes, n, &err), VFM_EINPUT);
		bytes[at + (size_t)k] ^= 0x40;
	}
	/* as before there were signatures */
	h.changes.n = 0;
	h.has_detail = false;
	n = vfm_clip_hash_pack(&h, bytes);
	assert_int_equal(n, at);
	assert_int_equal(bytes[0], 1);
	OK(vfm_clip_hash_unpack(&g, bytes, n, &err));
	assert_int_equal(g.changes.n, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_copies),
		cmocka_unit_test(test_other_takes),
		cmocka_unit_test(test_still),
		cmocka_unit_test(test_other_picture),
		cmocka_unit_test(test_without),
		cmocka_unit_test(test_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
