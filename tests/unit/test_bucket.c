/* Buckets: their sizes and lengths, the choice against brute force, records. */
#include "ok.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/philox.h"
#include "data/record/bucket.h"
#include "io/json.h"

/* clang-format off */
static const struct vfm_geometry wan = {.stride = {4, 8, 8}, .channels = 16, .first = 1, .step = 4},
	ltx = {.stride = {8, 32, 32}, .channels = 128, .first = 1, .step = 8},
	wavelet = {.stride = {4, 8, 8}, .channels = 16, .first = 4, .step = 4, .pad = true},
	whole = {.stride = {4, 8, 8}, .channels = 16, .first = 4, .step = 4},
	capped = {.stride = {8, 8, 8}, .channels = 16, .first = 1, .step = 8, .max_frames = 49};
/* clang-format on */

static struct vfm_bucket_opts opts_of(const struct vfm_geometry *g)
{
	return (struct vfm_bucket_opts){.max_upscale = 1, .max_crop = 0.5, .geometry = *g, .patch = {1, 2, 2}};
}

/* Makes the buckets and compares their text, or the error. */
static void expect_buckets(const struct vfm_bucket_opts *o, int rc, const char *want)
{
	struct vfm_buckets b;
	struct vfm_err e = {0};
	int got = vfm_buckets_make(&b, o, &e);
	char *text = got == 0 ? vfm_buckets_text(&b) : NULL;

	if (got != rc)
		fail_msg("%s%s: status %d", want, e.msg, got);
	if (!strstr(text ? text : e.msg, want))
		fail_msg("'%s' is not in '%s'", want, text ? text : e.msg);
	free(text);
	vfm_buckets_release(&b);
}

static void test_sizes(void **state)
{
	static const struct {
		const char *sizes, *areas, *aspects, *want;
	} good[] = {
		{"832x480,480x832,624x624,832x480", NULL, NULL, "sizes 832x480,480x832,624x624 frames"},
		{NULL, "480p", NULL, "sizes 640x640,848x480,480x848,736x544,544x736 frames"},
		{NULL, "832x480", "16:9,832:480,1:1", "sizes 832x480,624x624,832x464 frames"},
		{NULL, "480p,720p", "16:9", "sizes 1280x720,848x480 frames"},
		{"640x368", "256x256", "9:16..16:9/3", "sizes 640x368,256x256,336x192,192x336 frames"},
		{NULL, "16x16", "100:1", "sizes 160x16 frames"}, /* at least one multiple */
	};
	static const struct {
		const char *sizes, *areas, *aspects, *says;
	} bad[] = {
		{"830x480", NULL, NULL,
			"--sizes: 830x480: the width must be a multiple of 16, the tokenizer's stride times "
			"the patch: 816 or 832"},
		{"832x8", NULL, NULL,
			"--sizes: 832x8: the height must be a multiple of 16, the tokenizer's stride times the "
			"patch: 16"},
		{"832", NULL, NULL, "--sizes: expected WIDTHxHEIGHT up to 16384, got '832'"},
		{"832x480,", NULL, NULL, "--sizes: '': expected a list with commas"},
		{"832x480x81", NULL, NULL, "--sizes: expected WIDTHxHEIGHT"},
		{"-16x16", NULL, NULL, "--sizes: expected WIDTHxHEIGHT"},
		{"32784x16", NULL, NULL, "--sizes: expected WIDTHxHEIGHT"},
		{NULL, "480", NULL, "--area: expected a size such as 832x480, or a height such as 480p, got '480'"},
		{NULL, "p", NULL, "--area: expected"},
		{NULL, "16384x16384", "2:1", "--area: 16384x16384: the aspect ratio 2 makes a size of 23168x11584"},
		{NULL, "480p", "16x9", "--aspects: expected WIDTH:HEIGHT up to 10000, or a range such as"},
		{NULL, "480p", "1:2..2:1", "--aspects: expected WIDTH:HEIGHT"},
		{NULL, "480p", "1:2..2:1/1", "--aspects: expected WIDTH:HEIGHT"},
		{NULL, "480p", "0:1", "--aspects: expected WIDTH:HEIGHT"},
		{NULL, "480p", "1:2..2:1/200,1:2..2:1/200", "--aspects: more than 256"},
		{"832x480", NULL, "1:1", "--aspects: it needs --area"},
		{NULL, NULL, NULL, "--sizes LIST or --area LIST is missing"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		struct vfm_bucket_opts o = opts_of(&wan);

		o.sizes = good[i].sizes;
		o.areas = good[i].areas;
		o.aspects = good[i].aspects;
		o.frames = "81";
		expect_buckets(&o, 0, good[i].want);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct vfm_bucket_opts o = opts_of(&wan);

		o.sizes = bad[i].sizes;
		o.areas = bad[i].areas;
		o.aspects = bad[i].aspects;
		o.frames = "81";
		expect_buckets(&o, VFM_EUSAGE, bad[i].says);
	}
}

static void test_counts(void **state)
{
	static const struct {
		const struct vfm_geometry *g;
		const char *frames;
		int64_t min, max;
		int32_t patch_t;
		const char *want;
	} good[] = {
		{&wan, "81,17,17,1", 0, 0, 1, " frames 1,17,81 images fps 0"},
		{&wan, NULL, 0, 21, 1, " frames 5..21/4 images"}, /* one frame is an image */
		{&wan, NULL, 1, 9, 1, " frames 1,5,9 images"},
		{&wan, NULL, 0, 30, 2, " frames 5..29/8 fps"}, /* 1 + 4n frames, 1 + n even: one frame is no patch */
		{&ltx, NULL, 10, 40, 1, " frames 17,25,33 images"},
		{&wavelet, NULL, 0, 17, 1, " frames 4..16/4 images"}, /* without padding */
		{&wavelet, "13", 0, 0, 1, " frames 13 images"},
		{&whole, NULL, 0, 12, 1, " frames 4,8,12 fps"},
		{&capped, NULL, 0, 1000, 1, " frames 9..49/8 images"},
	};
	static const struct {
		const struct vfm_geometry *g;
		const char *frames;
		int64_t min, max;
		int32_t patch_t;
		const char *says;
	} bad[] = {
		{&wan, "80", 0, 0, 1,
			"--frames: 80 frames do not fit the tokenizer (stride 4x8x8, 16 channels, 1 + 4n frames)"
			" in patches of 1: 77 or 81"},
		{&wan, "9", 0, 0, 2, "in patches of 2: 5 or 13"},
		{&whole, "3", 0, 0, 1, "in patches of 1: 4"},
		{&capped, "57", 0, 0, 1, "in patches of 1: 49"},
		{&wan, "0", 0, 0, 1, "--frames: expected"},
		{&wan, "x", 0, 0, 1, "--frames: expected an integer"},
		{&wan, NULL, 0, 4, 1, "--min-frames, --max-frames: 2 to 4: the tokenizer (stride 4x8x8"},
		{&wan, NULL, 0, 100000, 1, "--min-frames, --max-frames: expected 1 to 65536"},
		{&wan, NULL, 0, 0, 1, "expected one of --frames LIST and --max-frames N"},
		{&wan, "81", 0, 81, 1, "expected one of --frames LIST and --max-frames N"},
		{&wan, "81", 5, 0, 1, "--min-frames: it needs --max-frames"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		struct vfm_bucket_opts o = opts_of(good[i].g);

		o.sizes = "64x64";
		o.frames = good[i].frames;
		o.min_frames = good[i].min;
		o.max_frames = good[i].max;
		o.patch[0] = good[i].patch_t;
		expect_buckets(&o, 0, good[i].want);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct vfm_bucket_opts o = opts_of(bad[i].g);

		o.sizes = "64x64";
		o.frames = bad[i].frames;
		o.min_frames = bad[i].min;
		o.max_frames = bad[i].max;
		o.patch[0] = bad[i].patch_t;
		expect_buckets(&o, VFM_EUSAGE, bad[i].says);
	}
}

static void test_ranges(void **state)
{
	struct vfm_bucket_opts o = opts_of(&wan);

	(void)state;
	o.sizes = "64x64";
	o.frames = "5";
	o.max_upscale = 0.9;
	expect_buckets(&o, VFM_EUSAGE, "--max-upscale: expected a factor from 1");
	o.max_upscale = NAN;
	expect_buckets(&o, VFM_EUSAGE, "--max-upscale");
	o.max_upscale = 1;
	o.max_crop = 1.5;
	expect_buckets(&o, VFM_EUSAGE, "--max-crop: expected a share from 0 to 1");
	o.max_crop = 1;
	o.fps = 500;
	expect_buckets(&o, VFM_EUSAGE, "--fps: expected a rate above 0, up to 240");
}

/* ---- the choice ---- */

static void make_buckets(struct vfm_buckets *b, const struct vfm_geometry *g, const char *sizes, const char *frames)
{
	struct vfm_bucket_opts o = opts_of(g);

	o.sizes = sizes;
	o.frames = frames;
	OK(vfm_buckets_make(b, &o, &err));
}

static void test_known_choices(void **state)
{
	static const struct {
		int64_t width, height, frames;
		bool is_image;
		const char *want; /* a name, or a part of the reason */
	} all[] = {
		{1920, 1080, 300, false, "1280x720x81"},
		{1280, 720, 80, false, "1280x720x33"},
		{1279, 720, 81, false, "832x480x81"}, /* one column too few for 1280 */
		{1080, 1920, 81, false, "480x832x81"},
		{2048, 858, 81, false, "1280x720x81"}, /* cinema: 26 % are cropped */
		{1920, 960, 81, false, "1280x720x81"},
		{900, 840, 100, false, "624x624x81"},
		{1440, 1080, 40, false, "1280x720x33"}, /* 4:3 lies between 1:1 and 16:9, and nearer to neither */
		{832, 480, 17, false, "832x480x17"},
		{832, 480, 16, false, "too short: fewer than 17 frames"},
		{640, 360, 81, false, "too small for the buckets (--max-upscale 1)"},
		{100000, 10, 81, false, "aspect ratio too far from the buckets"},
		{4000, 1000, 81, false, "aspect ratio too far from the buckets (--max-crop 0.5)"},
		{1280, 720, 1, true, "1280x720x1"},
		{10, 10, 1, true, "too small"},
	};
	struct vfm_buckets b;

	(void)state;
	make_buckets(&b, &wan, "832x480,480x832,624x624,1280x720", "17,33,81");
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		const struct vfm_bucket_source s = {all[i].width, all[i].height, all[i].frames, all[i].is_image};
		char why[VFM_BUCKET_WHY] = "", name[VFM_BUCKET_NAME] = "";
		struct vfm_bucket got;

		if (vfm_buckets_choose(&b, &s, &got, why))
			vfm_bucket_name(&got, name);
		if (strncmp(*name ? name : why, all[i].want, strlen(all[i].want)) != 0)
			fail_msg("%lldx%lld, %lld frames: '%s', not '%s'", (long long)s.width, (long long)s.height,
				(long long)s.frames, *name ? name : why, all[i].want);
	}
	vfm_buckets_release(&b);
}

/* An image needs a tokenizer that takes one frame. */
static void test_images(void **state)
{
	const struct vfm_bucket_source s = {64, 64, 1, true};
	char why[VFM_BUCKET_WHY];
	struct vfm_bucket got;
	struct vfm_buckets b;

	(void)state;
	make_buckets(&b, &whole, "64x64", "8");
	assert_false(vfm_buckets_choose(&b, &s, &got, why));
	assert_string_equal(why, "an image: the tokenizer takes no single frame");
	vfm_buckets_release(&b);
	make_buckets(&b, &wavelet, "64x64", "8");
	assert_true(vfm_buckets_choose(&b, &s, &got, why));
	assert_int_equal(got.frames, 1);
	vfm_buckets_release(&b);
}

/* keep of bucket.h as a fraction a / b. */
static void keep_exactly(const struct vfm_bucket_size *z, const struct vfm_bucket_source *s, __int128 *a, __int128 *b)
{
	__int128 x = (__int128)z->width * s->height, y = (__int128)z->height * s->width;

	*a = x < y ? x : y;
	*b = x < y ? y : x;
}

static bool fits_exactly(
	const struct vfm_buckets *b, const struct vfm_bucket_size *z, const struct vfm_bucket_source *s)
{
	__int128 part, all;

	keep_exactly(z, s, &part, &all);
	return (double)z->width <= b->max_upscale * (double)s->width &&
		(double)z->height <= b->max_upscale * (double)s->height &&
		1 - (long double)part / (long double)all <= (long double)b->max_crop;
}

/* Whether bucket.h prefers size x to size y for the source, both of which fit; *best has the highest keep of all. */
static bool is_better(const struct vfm_bucket_size *x, const struct vfm_bucket_size *y,
	const struct vfm_bucket_size *best, const struct vfm_bucket_source *s)
{
	__int128 xa, xb, ya, yb, ba, bb;
	int64_t x_area = (int64_t)x->width * x->height, y_area = (int64_t)y->width * y->height;
	bool x_near, y_near;

	keep_exactly(x, s, &xa, &xb);
	keep_exactly(y, s, &ya, &yb);
	keep_exactly(best, s, &ba, &bb);
	x_near = xa * bb * 105 >= ba * xb * 100;
	y_near = ya * bb * 105 >= ba * yb * 100;
	if (x_near != y_near)
		return x_near;
	if (!x_near) /* both lose */
		return false;
	if (x_area != y_area)
		return x_area > y_area;
	if (xa * yb != ya * xb)
		return xa * yb > ya * xb;
	return x->width > y->width;
}

static void compare_with_all(const struct vfm_buckets *b, const struct vfm_bucket_source *s, int *n_found)
{
	const struct vfm_bucket_size *best = NULL, *chosen = NULL;
	char why[VFM_BUCKET_WHY] = "";
	__int128 a, of, best_a = 0, best_of = 1;
	struct vfm_bucket got = {0};
	bool found = vfm_buckets_choose(b, s, &got, why);
	int64_t longest = 0;

	for (size_t i = 0; i < b->n_sizes; i++) {
		keep_exactly(&b->sizes[i], s, &a, &of);
		if (fits_exactly(b, &b->sizes[i], s) && a * best_of > best_a * of) {
			best = &b->sizes[i];
			best_a = a;
			best_of = of;
		}
		if (b->sizes[i].width == got.width && b->sizes[i].height == got.height)
			chosen = &b->sizes[i];
	}
	for (size_t i = 0; i < b->n_frames; i++)
		if (b->frames[i] <= s->frames && b->frames[i] > longest)
			longest = b->frames[i];
	if (s->is_image)
		longest = 1;
	assert_int_equal(found, best && longest > 0);
	if (!found) {
		assert_non_null(strstr(why, !best ? "too " : "too short"));
		return;
	}
	++*n_found;
	assert_int_equal(got.frames, longest);
	assert_non_null(chosen);
	assert_true(fits_exactly(b, chosen, s));
	for (size_t i = 0; i < b->n_sizes; i++)
		if (fits_exactly(b, &b->sizes[i], s) && is_better(&b->sizes[i], chosen, best, s))
			fail_msg("%lldx%lld got %dx%d, but %dx%d is better", (long long)s->width, (long long)s->height,
				chosen->width, chosen->height, b->sizes[i].width, b->sizes[i].height);
}

/* Random buckets and sources: no bucket beats the one that is chosen. */
static void test_brute_force(void **state)
{
	static const double upscales[] = {1, 1.25, 2, 3.7}, crops[] = {0.0517, 0.2137, 0.5031, 0.8111, 1};
	int n_found = 0, n = 0;

	(void)state;
	for (uint64_t trial = 0; trial < 400; trial++) {
		const struct vfm_rng r = vfm_rng_stream(11, trial, 0, VFM_RNG_TEST);
		struct vfm_bucket_opts o = opts_of(trial % 2 ? &ltx : &wan);
		struct vfm_buckets b;
		char sizes[800] = "", frames[200] = "";
		uint64_t k = 0;
		int multiple = trial % 2 ? 64 : 16, n_sizes = 1 + (int)vfm_rng_below(&r, k++, 12),
		    n_counts = 1 + (int)vfm_rng_below(&r, k++, 5);

		for (int i = 0; i < n_sizes; i++, k += 2)
			sprintf(sizes + strlen(sizes), "%s%dx%d", i ? "," : "",
				multiple * (int)(1 + vfm_rng_below(&r, k, 24)),
				multiple * (int)(1 + vfm_rng_below(&r, k + 1, 24)));
		for (int i = 0; i < n_counts; i++)
			sprintf(frames + strlen(frames), "%s%d", i ? "," : "", 1 + 8 * (int)vfm_rng_below(&r, k++, 12));
		o.sizes = sizes;
		o.frames = frames;
		o.max_upscale = upscales[vfm_rng_below(&r, k++, 4)];
		o.max_crop = crops[vfm_rng_below(&r, k++, 5)];
		OK(vfm_buckets_make(&b, &o, &err));
		for (int i = 0; i < 100; i++, n++) {
			struct vfm_bucket_source s = {.width = 1 + (int64_t)vfm_rng_below(&r, k, 2000),
				.height = 1 + (int64_t)vfm_rng_below(&r, k + 1, 1200),
				.frames = 1 + (int64_t)vfm_rng_below(&r, k + 2, 110),
				.is_image = vfm_rng_below(&r, k + 3, 8) == 0};

			k += 4;
			if (i % 4 == 0) { /* exactly a size, or a multiple of one */
				const struct vfm_bucket_size *z = &b.sizes[vfm_rng_below(&r, k++, b.n_sizes)];

				s.width = z->width * (int64_t)(1 + vfm_rng_below(&r, k++, 3));
				s.height = z->height * (s.width / z->width);
			}
			compare_with_all(&b, &s, &n_found);
		}
		vfm_buckets_release(&b);
	}
	assert_in_range(n_found, n / 5, n - n / 10);
}

/* The frames that remain at another rate, compared with the picture times of the reader (clip_reader.c). */
static void test_resampled(void **state)
{
	static const int rates[] = {8, 12, 24, 25, 30, 60};

	(void)state;
	for (size_t i = 0; i < 6; i++)
		for (size_t k = 0; k < 6; k++)
			for (int64_t n = 1; n < 200; n++) {
				int64_t pictures = 0, got = vfm_bucket_resampled(n, rates[i], rates[k]);

				while (pictures * rates[i] <= (n - 1) * rates[k]) /* pictures / fps <= (n - 1) / rate */
					pictures++;
				if (rates[k] == rates[i])
					assert_int_equal(got, n);
				assert_int_equal(got, pictures);
			}
	assert_int_equal(vfm_bucket_resampled(INT64_MAX / 2, 1, 240), VFM_BUCKET_FRAMES_MAX);
	assert_int_equal(vfm_bucket_resampled(1, 30000 / 1001.0, 1), 1);
}

/* ---- records ---- */

static void test_records(void **state)
{
	static const struct {
		const char *rec, *want; /* the bucket, or a part of drop or error */
	} all[] = {
		{"{'src':'a','width':96,'height':64,'frames':40,'fps':'24/1'}",
			"{'name':'64x64x9','width':64,'height':64,'frames':9,'fps':12.0}"},
		{"{'src':'a','width':96,'height':64,'frames':400,'start_frame':380,'end_frame':397,'fps':'24/1'}",
			"{'name':'64x64x9','width':64,'height':64,'frames':9,'fps':12.0}"},
		/* a varying rate: 24 of the file, 9 of the clip, so that 12 a second repeat frames */
		{"{'src':'a','width':96,'height':64,'frames':8,'fps':'24/1','vfr':true,'start_s':3,'end_s':3.889}",
			"{'name':'64x64x9','width':64,'height':64,'frames':9,'fps':12.0}"},
		{"{'src':'a','width':96,'height':64,'frames':8,'fps':'24/1','vfr':true,'duration_s':0.889}",
			"{'name':'64x64x9','width':64,'height':64,'frames':9,'fps':12.0}"},
		{"{'src':'a','width':96,'height':64,'frames':8,'fps':'24/1','vfr':true}",
			"drop: bucket: too short: fewer than "},
		{"{'src':'a','width':96,'height':64,'frames':400,'start_frame':384,'fps':'24/1'}",
			"drop: bucket: too short: fewer than "},
		{"{'src':'a','width':96,'height':64,'kind':'image'}",
			"{'name':'64x64x1','width':64,'height':64,'frames':1}"},
		{"{'src':'a','width':96,'height':62,'frames':40,'fps':'24/1','bucket':{'name':'old'}}",
			"drop: bucket: too small"},
		{"{'src':'a','height':64,'frames':40,'fps':'24/1'}", "error: width: missing"},
		{"{'src':'a','width':96,'height':'64','frames':40,'fps':'24/1'}", "error: height: expected"},
		{"{'src':'a','width':0,'height':64,'frames':40,'fps':'24/1'}", "error: width: expected"},
		{"{'src':'a','width':96,'height':64,'fps':'24/1'}", "error: frames: missing"},
		{"{'src':'a','width':96,'height':64,'frames':40,'start_frame':40,'fps':'24/1'}",
			"error: frames: expected more"},
		{"{'src':'a','width':96,'height':64,'frames':40}", "error: fps: expected a fraction"},
		{"{'src':'a','width':96,'height':64,'frames':40,'fps':'24/0'}", "error: fps: expected a fraction"},
		{"{'width':96,'height':64,'frames':40,'fps':'24/1'}", "error: the record has no src"},
	};
	struct vfm_bucket_opts o = opts_of(&wan);
	struct vfm_buckets b;

	(void)state;
	o.sizes = "64x64";
	o.frames = "9";
	o.fps = 12;
	OK(vfm_buckets_make(&b, &o, &err));
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		json_t *rec;
		struct vfm_buf text = {0};
		char json[300];

		snprintf(json, sizeof(json), "%s", all[i].rec);
		for (char *q = json; *q; q++)
			*q = *q == '\'' ? '"' : *q;
		rec = json_loads(json, 0, NULL);
		assert_non_null(rec);
		if (vfm_bucket_assign(&b, rec, &err) < 0) {
			assert_int_equal(err.code, VFM_EINPUT);
			vfm_buf_addf(&text, "error: %s", err.msg);
		} else if (json_object_get(rec, "drop")) {
			assert_null(json_object_get(rec, "bucket"));
			vfm_buf_addf(&text, "drop: %s", json_string_value(json_object_get(rec, "drop")));
		} else {
			vfm_json_text(&text, json_object_get(rec, "bucket"), 0);
		}
		for (char *q = text.data; *q; q++)
			*q = *q == '"' ? '\'' : *q;
		if (strncmp(text.data, all[i].want, strlen(all[i].want)) != 0)
			fail_msg("%s: '%s', not '%s'", all[i].rec, text.data, all[i].want);
		vfm_buf_release(&text);
		json_decref(rec);
	}
	vfm_buckets_release(&b);
}

static void test_read(void **state)
{
	static const struct {
		const char *rec, *says;
	} bad[] = {
		{"{}", "the record has no bucket: vfm-curate bucket assigns one"},
		{"{\"bucket\":\"64x64x9\"}", "the record has no bucket"},
		{"{\"bucket\":{\"height\":64,\"frames\":9}}", "bucket.width: missing"},
		{"{\"bucket\":{\"width\":64,\"height\":20000,\"frames\":9}}", "bucket.height: expected"},
		{"{\"bucket\":{\"width\":64,\"height\":64,\"frames\":0}}", "bucket.frames: expected"},
		{"{\"bucket\":{\"width\":64,\"height\":64,\"frames\":9,\"fps\":\"12\"}}",
			"bucket.fps: expected a rate"},
	};
	struct vfm_bucket b;
	double fps = 0;
	json_t *rec;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		rec = json_loads(bad[i].rec, 0, NULL);
		assert_int_equal(vfm_bucket_read(&b, rec, &err), VFM_EINPUT);
		assert_int_equal(err.code, VFM_EINPUT);
		if (!strstr(err.msg, bad[i].says))
			fail_msg("'%s' does not say '%s'", err.msg, bad[i].says);
		json_decref(rec);
	}
	rec = json_loads("{\"bucket\":{\"width\":64,\"height\":32,\"frames\":9,\"fps\":12}}", 0, NULL);
	OK(vfm_bucket_read(&b, rec, &err));
	json_decref(rec);
	assert_true(b.width == 64 && b.height == 32 && b.frames == 9 && b.fps == 12);
	OK(vfm_bucket_rate(&b, &fps, &err));
	assert_true(fps == 12);
	fps = 24;
	assert_int_equal(vfm_bucket_rate(&b, &fps, &err), VFM_EINPUT);
	assert_string_equal(err.msg, "--fps 24, but the frames of the bucket are those at 12 a second");
	b.fps = 0;
	assert_int_equal(vfm_bucket_rate(&b, &fps, &err), VFM_EINPUT);
	assert_string_equal(err.msg, "--fps 24, but the frames of the bucket are all of the source");
	OK(vfm_bucket_check_frames(&b, 9, &err));
	assert_int_equal(vfm_bucket_check_frames(&b, 5, &err), VFM_EINPUT);
	assert_string_equal(err.msg, "5 frames, but the bucket 64x32x9 has 9 (--frames bucket)");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_counts),
		cmocka_unit_test(test_ranges),
		cmocka_unit_test(test_known_choices),
		cmocka_unit_test(test_images),
		cmocka_unit_test(test_brute_force),
		cmocka_unit_test(test_resampled),
		cmocka_unit_test(test_records),
		cmocka_unit_test(test_read),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
