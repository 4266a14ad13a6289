/* Reading, writing and judging video, on media that the test makes itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/philox.h"
#include "io/file.h"
#include "media/av/av.h"
#include "media/av/pixels.h"
#include "media/av/probe.h"
#include "media/av/thumb.h"
#include "media/av/video_in.h"
#include "media/av/video_out.h"
#include "media/draw/png.h"
#include "media/score/score.h"
#include "media/score/text.h"
#include "media/shots/shots.h"
#include "media/shots/cut.h"
#include "media/shots/scene.h"

#define W 128
#define H 96

static char dir[64];

static int setup(void **state)
{
	(void)state;
	vfm_log_set_quiet(true);
	strcpy(dir, "/tmp/vfm-media.XXXXXX");
	return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
	(void)state;
	return vfm_rm_rf(dir, NULL);
}

static char *in_dir(const char *name)
{
	return vfm_strfmt("%s/%s", dir, name);
}

static int files_in_dir(void)
{
	DIR *d = opendir(dir);
	int n = 0;

	assert_non_null(d);
	for (struct dirent *e; (e = readdir(d));)
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}

/* Texture that depends on the shot, moving by (dx, dy) pixels a frame. */
static uint32_t mix(uint32_t x)
{
	x ^= x >> 16;
	x *= 0x7FEB352Du;
	x ^= x >> 15;
	x *= 0x846CA68Bu;
	return x ^ x >> 16;
}

static double noise_at(int shot, int x, int y)
{
	return (double)(mix((uint32_t)(shot * 7919 + x * 131 + y * 65537)) & 255);
}

/* Smooth noise with a grain of 12 pixels. */
static double texture(int shot, double x, double y)
{
	int i = (int)floor(x / 12), j = (int)floor(y / 12);
	double u = x / 12 - i, v = y / 12 - j;

	return (noise_at(shot, i, j) * (1 - u) + noise_at(shot, i + 1, j) * u) * (1 - v) +
		(noise_at(shot, i, j + 1) * (1 - u) + noise_at(shot, i + 1, j + 1) * u) * v;
}

static void draw(uint8_t *rgb, int shot, double dx, double dy)
{
	static const double tint[4][3] = {{1, 0.8, 0.6}, {0.5, 0.9, 1}, {0.9, 0.5, 0.8}, {0.7, 1, 0.5}};

	for (int y = 0; y < H; y++)
		for (int x = 0; x < W; x++)
			for (int k = 0; k < 3; k++)
				rgb[(y * W + x) * 3 + k] = (uint8_t)(texture(shot, x + dx, y + dy) * tint[shot % 4][k]);
}

/* The number of a frame, in 8 squares of black and white along the top. */
static void stamp(uint8_t *rgb, int n)
{
	for (int y = 0; y < 16; y++)
		for (int b = 0; b < 8; b++)
			memset(rgb + (y * W + b * 16) * 3, n >> b & 1 ? 255 : 0, 16 * 3);
}

static int read_stamp(const uint8_t *luma)
{
	int n = 0;

	for (int b = 0; b < 8; b++)
		n |= (luma[8 * W + b * 16 + 8] > 128) << b;
	return n;
}

static char *write_stamped(const char *name, int n, const char *codec)
{
	struct vfm_video_out_opts o = {
		.width = W, .height = H, .fps_num = 30000, .fps_den = 1001, .codec = codec, .crf = 20};
	char *path = in_dir(name);
	uint8_t rgb[W * H * 3];
	struct vfm_video_out *out;
	struct vfm_err err = {0};

	if (vfm_video_out_open(&out, path, &o, &err) < 0)
		fail_msg("%s", err.msg);
	for (int i = 0; i < n; i++) {
		draw(rgb, 0, i, 0);
		stamp(rgb, i);
		assert_int_equal(vfm_video_out_write(out, rgb, &err), 0);
	}
	if (vfm_video_out_close(out, &err) < 0)
		fail_msg("%s", err.msg);
	return path;
}

static void test_round_trip(void **state)
{
	static const char *const names[] = {"a.mp4", "a.mov", "a.mkv", "a.gif"};

	(void)state;
	for (size_t k = 0; k < 4; k++) {
		char *path = write_stamped(names[k], 40, NULL);
		struct vfm_probe p;
		struct vfm_err err = {0};

		if (vfm_probe_file(&p, path, NULL, false, &err) < 0)
			fail_msg("%s", err.msg);
		assert_int_equal(p.frames, 40);
		assert_int_equal(p.info.width, W);
		assert_int_equal(p.info.height, H);
		assert_int_equal(p.decode_errors, 0);
		assert_false(p.info.image || p.vfr || p.bad_times);
		if (k < 3) {
			assert_int_equal(p.fps_num, 30000);
			assert_int_equal(p.fps_den, 1001);
			assert_true(fabs(p.duration_s - 40 * 1001 / 30000.0) < 0.002);
		}
		free(path);
	}
	assert_int_equal(files_in_dir(), 4);
}

static void check_frame(struct vfm_video *v, int want)
{
	uint8_t luma[W * H];
	struct vfm_err err = {0};
	struct vfm_frame f;

	if (vfm_video_next(v, &f, &err) != 1)
		fail_msg("frame %d: %s", want, err.msg);
	assert_int_equal(f.index, want);
	assert_int_equal(vfm_video_luma(v, W, H, VFM_FIT_STRETCH, luma, &err), 0);
	assert_int_equal(read_stamp(luma), want);
}

static void test_seek_is_exact(void **state)
{
	char *path = write_stamped("a.mp4", 200, NULL);
	static const int at[] = {150, 149, 10, 0, 199, 100, 101, 99, 5};
	struct vfm_err err = {0};
	struct vfm_video *v;
	struct vfm_frame f;
	int64_t pts[200];

	(void)state;
	assert_int_equal(vfm_video_open(&v, path, NULL, &err), 0);
	for (int i = 0; i < 200; i++) {
		assert_int_equal(vfm_video_next(v, &f, &err), 1);
		pts[i] = f.pts;
	}
	assert_int_equal(vfm_video_next(v, &f, &err), 0);
	for (int with_pts = 0; with_pts < 2; with_pts++)
		for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
			assert_int_equal(vfm_video_seek(v, at[i], with_pts ? pts[at[i]] : INT64_MIN, &err), 0);
			check_frame(v, at[i]);
			if (at[i] < 199)
				check_frame(v, at[i] + 1);
		}
	/* A wrong timestamp does not lead to a wrong frame. */
	assert_int_equal(vfm_video_seek(v, 60, pts[60] + 1, &err), 0);
	check_frame(v, 60);
	assert_int_equal(vfm_video_seek(v, 500, INT64_MIN, &err), VFM_EINPUT);
	vfm_video_close(v);
	free(path);
}

static int cut_one(
	const char *src, const char *out, const struct vfm_cut_opts *o, struct vfm_cut_result *r, struct vfm_err *err)
{
	struct vfm_cut_clip clip = {.out = out, .o = *o};

	vfm_cut_clips(src, &clip, 1);
	*r = clip.result;
	*err = clip.err;
	return clip.rc;
}

static void test_cut(void **state)
{
	char *path = write_stamped("a.mp4", 120, NULL), *out = in_dir("b.mp4");
	struct vfm_cut_opts o = {
		.start = 33, .end = 77, .start_pts = INT64_MIN, .even = true, .codec = "h264", .crf = 18};
	struct vfm_cut_result r;
	struct vfm_err err = {0};
	struct vfm_video *v;
	struct vfm_frame f;

	(void)state;
	assert_int_equal(cut_one(path, out, &o, &r, &err), 0);
	assert_int_equal(r.frames, 44);
	assert_int_equal(vfm_video_open(&v, out, NULL, &err), 0);
	for (int i = 0; i < 44; i++) {
		uint8_t luma[W * H];

		assert_int_equal(vfm_video_next(v, &f, &err), 1);
		vfm_video_luma(v, W, H, VFM_FIT_STRETCH, luma, &err);
		assert_int_equal(read_stamp(luma), 33 + i);
	}
	assert_int_equal(vfm_video_next(v, &f, &err), 0);
	vfm_video_close(v);

	o.new_fps = 10; /* 44 frames at 29.97 are 1.468 s: 15 ticks */
	o.width = 64;
	o.height = 64;
	assert_int_equal(cut_one(path, out, &o, &r, &err), 0);
	assert_int_equal(r.frames, 15);
	assert_int_equal(r.width, 64);
	o.max_frames = 6;
	assert_int_equal(cut_one(path, out, &o, &r, &err), 0);
	assert_int_equal(r.frames, 6);
	o.max_frames = 0;
	o.end = 500; /* more than there are: no half clip */
	unlink(out);
	assert_int_equal(cut_one(path, out, &o, &r, &err), VFM_EINPUT);
	assert_non_null(strstr(err.msg, "the file ended at frame 120, before end_frame 500"));
	assert_int_equal(files_in_dir(), 1);
	free(path);
	free(out);
}

static void test_score_beyond_the_end(void **state)
{
	static const int64_t ends[] = {121, 500, (int64_t)1e18};
	char *path = write_stamped("a.mp4", 120, NULL);
	struct vfm_score_opts o = {.start = 33, .start_pts = INT64_MIN, .end = 120};
	struct vfm_err err = {0};
	struct vfm_score s;

	(void)state;
	assert_int_equal(vfm_score_file(&s, path, &o, &err), 0);
	alarm(60); /* the number of a frame must not determine the time of a loop */
	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
		o.end = ends[i];
		assert_int_equal(vfm_score_file(&s, path, &o, &err), VFM_EINPUT);
		assert_non_null(strstr(err.msg, "the file ended at frame 120, before end_frame"));
	}
	alarm(0);
	free(path);
}

static void test_cut_size(void **state)
{
	static const int sizes[][4] = {{0, 0, W, H}, {0, 60, 80, 60}, {100, 0, 100, 76}, {100, 60, 100, 60}};
	char *path = write_stamped("a.mp4", 3, NULL), *out = in_dir("b.mp4");

	(void)state;
	for (int i = 0; i < 4; i++) {
		struct vfm_cut_opts o = {.end = -1, .start_pts = INT64_MIN, .even = true, .codec = "mpeg4"};
		struct vfm_cut_result r;
		struct vfm_err err = {0};

		o.width = sizes[i][0];
		o.height = sizes[i][1];
		assert_int_equal(cut_one(path, out, &o, &r, &err), 0);
		assert_int_equal(r.width, sizes[i][2]);
		assert_int_equal(r.height, sizes[i][3]);
	}
	free(path);
	free(out);
}

static void test_written_whole_or_not(void **state)
{
	struct vfm_video_out_opts o = {.width = W, .height = H, .codec = "ffv1"};
	struct rlimit limit, old;
	char *path = in_dir("full.mkv");
	uint8_t rgb[W * H * 3];
	struct vfm_video_out *out;
	struct vfm_err err = {0};
	int rc = 0;

	(void)state;
	assert_int_equal(vfm_video_out_open(&out, path, &o, &err), 0);
	draw(rgb, 1, 0, 0);
	assert_int_equal(vfm_video_out_write(out, rgb, &err), 0);
	vfm_video_out_abort(out);
	assert_int_equal(files_in_dir(), 0);

	signal(SIGXFSZ, SIG_IGN);
	getrlimit(RLIMIT_FSIZE, &old);
	limit = old;
	limit.rlim_cur = 100000;
	setrlimit(RLIMIT_FSIZE, &limit);
	assert_int_equal(vfm_video_out_open(&out, path, &o, &err), 0);
	for (int i = 0; i < 40 && rc == 0; i++) {
		draw(rgb, 1, i * 31, 0);
		rc = vfm_video_out_write(out, rgb, &err);
	}
	if (rc == 0)
		rc = vfm_video_out_close(out, &err);
	else
		vfm_video_out_abort(out);
	setrlimit(RLIMIT_FSIZE, &old);
	assert_int_equal(rc, VFM_EENV);
	assert_int_equal(files_in_dir(), 0);
	free(path);
}

static void test_png(void **state)
{
	char *path = in_dir("x%03d.png"), *one = in_dir("y.png"), *first = in_dir("x000.png");
	struct vfm_video_out_opts o = {.width = W, .height = H, .crf = -1};
	uint8_t rgb[W * H * 3], back[W * H * 3];
	struct vfm_video_out *out;
	struct vfm_err err = {0};
	struct vfm_video *v;
	struct vfm_frame f;

	(void)state;
	draw(rgb, 2, 0, 0);
	assert_int_equal(vfm_video_out_open(&out, path, &o, &err), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(vfm_video_out_write(out, rgb, &err), 0);
	assert_int_equal(vfm_video_out_close(out, &err), 0);
	assert_int_equal(vfm_png_write(one, rgb, W, H, &err), 0);
	assert_int_equal(files_in_dir(), 4);
	assert_int_equal(vfm_video_open(&v, first, NULL, &err), 0);
	assert_true(vfm_video_info(v)->image);
	assert_int_equal(vfm_video_next(v, &f, &err), 1);
	assert_int_equal(vfm_video_rgb(v, W, H, VFM_FIT_STRETCH, back, &err), 0);
	assert_memory_equal(rgb, back, sizeof(rgb));
	assert_int_equal(vfm_video_next(v, &f, &err), 0);
	vfm_video_close(v);
	free(path);
	free(one);
	free(first);
}

/* A frame of a format whose planes grow to the right and downward, and differ. */
static AVFrame *gradient_frame(enum AVPixelFormat format)
{
	AVFrame *f = av_frame_alloc();
	bool half_w = format != AV_PIX_FMT_YUV444P, half_h = half_w && format != AV_PIX_FMT_YUV422P10;

	f->format = format;
	f->width = 322;
	f->height = 246;
	f->colorspace = AVCOL_SPC_SMPTE170M;
	assert_true(av_frame_get_buffer(f, 0) >= 0);
	for (int k = 0; k < 3; k++) {
		int sx = k && half_w, sy = k && half_h, shift = format == AV_PIX_FMT_YUV422P10 ? 2 : 0;

		for (int y = 0; y < f->height >> sy; y++)
			for (int x = 0; x < f->width >> sx; x++) {
				uint8_t *row = f->data[k] + y * f->linesize[k];
				int v = k == 0 ? 40 + (x << sx) / 3 + (y << sy) / 4 : 100 + 20 * k + (x << sx) / 20;

				if (shift)
					((uint16_t *)(void *)row)[x] = (uint16_t)(v << shift);
				else
					row[x] = (uint8_t)v;
			}
	}
	return f;
}

static double mean_difference(const uint8_t *a, const uint8_t *b, int n)
{
	double sum = 0;

	for (int i = 0; i < n; i++)
		sum += abs(a[i] - b[i]);
	return sum / n;
}

/* Planes scaled as they are give what the way over RGB gives, also when turned. */
static void test_thumb(void **state)
{
	static const enum AVPixelFormat formats[] = {
		AV_PIX_FMT_YUV420P, AV_PIX_FMT_YUVJ420P, AV_PIX_FMT_YUV422P10, AV_PIX_FMT_YUV444P};
	static const struct vfm_orient turns[] = {{1, 0, 0, 1}, {0, 1, -1, 0}, {-1, 0, 0, -1}};
	struct vfm_pixels *p = vfm_pixels_new();

	(void)state;
	for (int i = 0; i < 4; i++)
		for (int k = 0; k < 3; k++) {
			uint8_t rgb[VFM_THUMB_W * VFM_THUMB_H * 3];
			AVFrame *f = gradient_frame(formats[i]);
			struct vfm_pixels_job job = {.frame = f,
				.orient = turns[k],
				.shown_w = turns[k].a ? f->width : f->height,
				.shown_h = turns[k].a ? f->height : f->width,
				.width = VFM_THUMB_W,
				.height = VFM_THUMB_H,
				.dst = rgb};
			struct vfm_thumb planes, converted;
			struct vfm_err err = {0};

			assert_int_equal(vfm_pixels_thumb(p, &job, &planes, &err), 0);
			assert_int_equal(vfm_pixels_run(p, &job, &err), 0);
			vfm_thumb_of_rgb(&converted, rgb);
			assert_true(mean_difference(planes.y, converted.y, VFM_THUMB_W * VFM_THUMB_H) < 2);
			assert_true(mean_difference(planes.cb, converted.cb, VFM_THUMB_W * VFM_THUMB_H / 4) < 2);
			assert_true(mean_difference(planes.cr, converted.cr, VFM_THUMB_W * VFM_THUMB_H / 4) < 2);
			av_frame_free(&f);
		}
	vfm_pixels_free(p);
}

/* All eight orientations by FFmpeg's matrix: where does the upper left pixel go? */
static void test_orientation(void **state)
{
	/* m0, m1, m3, m4 of a display matrix; degrees; mirrored */
	static const int cases[8][6] = {
		{1, 0, 0, 1, 0, 0},
		{0, 1, -1, 0, 90, 0},
		{-1, 0, 0, -1, 180, 0},
		{0, -1, 1, 0, 270, 0},
		{-1, 0, 0, 1, 0, 1},
		{0, -1, -1, 0, 90, 1},
		{1, 0, 0, -1, 180, 1},
		{0, 1, 1, 0, 270, 1},
	};

	(void)state;
	for (int i = 0; i < 8; i++) {
		int32_t m[9] = {cases[i][0] * 65536, cases[i][1] * 65536, 0, cases[i][2] * 65536, cases[i][3] * 65536,
			0, 0, 0, 1 << 30};
		bool mirrored;

		assert_int_equal(vfm_orient_degrees(vfm_orient_of(m), &mirrored), cases[i][4]);
		assert_int_equal(mirrored, cases[i][5]);
	}
}

static void test_rejects(void **state)
{
	static const char *const names[] = {"empty.mp4", "text.mp4", "list.mp4", "none.mp4"};
	static const char words[] = "Once upon a time there was a text.\n";
	static const char playlist[] = "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n/etc/passwd\n#EXT-X-ENDLIST\n";
	char *list = in_dir("list.mp4"), *text = in_dir("text.mp4"), *empty = in_dir("empty.mp4");
	struct vfm_err err = {0};
	struct vfm_video *v;

	(void)state;
	vfm_write_file(empty, "", 0, &err);
	vfm_write_file(text, words, strlen(words), &err);
	vfm_write_file(list, playlist, strlen(playlist), &err);
	for (size_t i = 0; i < 4; i++) {
		char *path = in_dir(names[i]);

		assert_int_equal(vfm_video_open(&v, path, NULL, &err), VFM_EINPUT);
		assert_non_null(strstr(err.msg, names[i]));
		free(path);
	}
	assert_int_equal(vfm_video_open(&v, dir, NULL, &err), VFM_EINPUT);
	assert_int_equal(vfm_video_open(&v, "/dev/zero", NULL, &err), VFM_EINPUT);
	free(list);
	free(text);
	free(empty);
}

/* ---- scenes ---- */

/* Each pixel is the mean of those that it covers. */
static void shrink(const uint8_t *rgb, uint8_t *small)
{
	for (int i = 0; i < VFM_SIG_W * VFM_SIG_H * 3; i++) {
		int x = i / 3 % VFM_SIG_W, y = i / 3 / VFM_SIG_W, sum = 0, n = 0;

		for (int v = y * H / VFM_SIG_H; v < (y + 1) * H / VFM_SIG_H; v++)
			for (int u = x * W / VFM_SIG_W; u < (x + 1) * W / VFM_SIG_W; u++, n++)
				sum += rgb[(v * W + u) * 3 + i % 3];
		small[i] = (uint8_t)(sum / n);
	}
}

static void push(struct vfm_scene *s, const uint8_t *rgb)
{
	uint8_t small[VFM_SIG_W * VFM_SIG_H * 3];
	struct vfm_thumb thumb;

	shrink(rgb, small);
	vfm_thumb_of_rgb(&thumb, small);
	vfm_scene_push(s, &thumb);
}

static void blend(uint8_t *rgb, int from, int to, double share, double dx)
{
	uint8_t a[W * H * 3];

	draw(a, from, dx, 0);
	draw(rgb, to, dx, 0);
	for (int i = 0; i < W * H * 3; i++)
		rgb[i] = (uint8_t)(a[i] * (1 - share) + rgb[i] * share);
}

static void test_scenes(void **state)
{
	struct vfm_scene *s = vfm_scene_new(25);
	const struct vfm_cut *c;
	uint8_t rgb[W * H * 3];
	int64_t n;

	(void)state;
	for (int i = 0; i < 220; i++) {
		int shot = i < 40 ? 0 : i < 90 ? 1 : 2;

		draw(rgb, shot, 0.4 * i, 0);
		if (i >= 20 && i < 22) /* a flash */
			memset(rgb, 250, sizeof(rgb));
		if (i >= 60 && i < 75) /* words come up */
			for (int y = 70; y < 84; y++)
				memset(rgb + (y * W + 20) * 3, i % 2 ? 255 : 250, 80 * 3);
		if (i >= 130 && i < 146) /* a dissolve to shot 3 */
			blend(rgb, 2, 3, (i - 129) / 17.0, 0.4 * i);
		if (i >= 146)
			draw(rgb, 3, 0.4 * i, 0);
		if (i >= 180 && i < 200) { /* out to black, in to shot 1 */
			double light = fabs(i - 189.5) / 10;

			draw(rgb, i < 190 ? 3 : 1, 0.4 * i, 0);
			for (int k = 0; k < W * H * 3; k++)
				rgb[k] = (uint8_t)(rgb[k] * light);
		}
		if (i >= 200)
			draw(rgb, 1, 0.4 * i, 0);
		push(s, rgb);
	}
	c = vfm_scene_cuts(s, 0, true, &n);
	assert_int_equal(n, 4);
	assert_int_equal(c[0].frame, 40);
	assert_int_equal(c[0].kind, VFM_CUT_HARD);
	assert_int_equal(c[1].frame, 90);
	assert_int_equal(c[2].kind, VFM_CUT_DISSOLVE);
	assert_in_range(c[2].from, 127, 134);
	assert_in_range(c[2].frame, 142, 150);
	assert_int_equal(c[3].kind, VFM_CUT_FADE);
	assert_in_range(c[3].from, 178, 190);
	assert_in_range(c[3].frame, 190, 202);
	c = vfm_scene_cuts(s, 0, false, &n);
	for (int64_t i = 0; i < n; i++)
		assert_int_equal(c[i].kind, VFM_CUT_HARD);
	assert_in_range(n, 2, 3); /* the darkest place of the fade may count */
	vfm_scene_free(s);
}

static void test_clip_rules(void **state)
{
	struct vfm_cut cuts[2] = {
		{.from = 10, .frame = 10}, {.from = 50, .frame = 60, .kind = VFM_CUT_DISSOLVE, .confidence = 0.75}};
	struct vfm_clip_rule rule = {.min = 12, .max = 25};
	struct vfm_span *s;

	(void)state;
	assert_int_equal(vfm_spans_of(100, cuts, 2, &rule, &s), 6);
	assert_true(s[0].start == 0 && s[0].end == 10);
	assert_true(s[1].start == 10 && s[1].end == 30 && s[2].start == 30 && s[2].end == 50);
	assert_true(s[3].start == 50 && s[3].end == 60 && s[3].kind == VFM_SPAN_TRANSITION);
	assert_true(s[3].transition == VFM_CUT_DISSOLVE && s[3].start_confidence == 0.75);
	assert_true(s[4].start == 60 && s[4].end == 80 && s[5].end == 100 && s[5].kind == VFM_SPAN_CLIP);
	free(s);
	rule = (struct vfm_clip_rule){.min = 12, .stride = 30};
	assert_int_equal(vfm_spans_of(100, cuts, 2, &rule, &s), 4);
	assert_true(s[3].start == 90 && s[3].end == 100);
	free(s);
	rule = (struct vfm_clip_rule){.min = 20, .max = 25};
	assert_int_equal(vfm_spans_of(30, NULL, 0, &rule, &s), 2); /* two of 15 would be too short */
	assert_true(s[0].end == 25 && s[1].start == 25 && s[1].end == 30);
	free(s);
}

/* Each frame belongs to exactly one span, also if the video begins or ends within a transition. */
static void test_spans_tile(void **state)
{
	const struct vfm_cut cuts[] = {{.from = 0, .frame = 7, .kind = VFM_CUT_FADE}, {.from = 40, .frame = 40},
		{.from = 90, .frame = 91}, {.from = 180, .frame = 200, .kind = VFM_CUT_FADE}};
	const struct vfm_clip_rule rules[] = {{0}, {.min = 20, .max = 25}, {.min = 30, .max = 30}, {.min = 1, .max = 1},
		{.min = 3, .stride = 11, .max = 11}};
	struct vfm_span *s;
	int64_t n, end, in_transitions;

	(void)state;
	for (size_t k = 0; k < sizeof(rules) / sizeof(rules[0]); k++) {
		n = vfm_spans_of(200, cuts, 4, &rules[k], &s);
		end = in_transitions = 0;
		for (int64_t i = 0; i < n; i++) {
			assert_true(s[i].start == end && s[i].end > s[i].start);
			end = s[i].end;
			in_transitions += s[i].kind == VFM_SPAN_TRANSITION ? s[i].end - s[i].start : 0;
		}
		assert_int_equal(end, 200);
		assert_int_equal(in_transitions, rules[k].stride > 0 ? 0 : 28);
		free(s);
	}
}

/* ---- scores ---- */

static struct vfm_score score_of(double speed, int black_from, int bar)
{
	struct vfm_video_out_opts o = {
		.width = W, .height = H, .fps_num = 20, .fps_den = 1, .codec = "ffv1", .crf = -1};
	struct vfm_score_opts so = {.end = -1};
	char *path = in_dir("s.mkv");
	uint8_t rgb[W * H * 3];
	struct vfm_video_out *out;
	struct vfm_err err = {0};
	struct vfm_score s;

	assert_int_equal(vfm_video_out_open(&out, path, &o, &err), 0);
	for (int i = 0; i < 40; i++) {
		draw(rgb, 0, speed * i, 0);
		memset(rgb, 0, (size_t)bar * W * 3);
		if (i >= black_from)
			memset(rgb, 5, sizeof(rgb));
		assert_int_equal(vfm_video_out_write(out, rgb, &err), 0);
	}
	assert_int_equal(vfm_video_out_close(out, &err), 0);
	assert_int_equal(vfm_score_file(&s, path, &so, &err), 0);
	free(path);
	return s;
}

static void test_scores(void **state)
{
	struct vfm_score still = score_of(0, 99, 0), slow = score_of(0.5, 99, 0), fast = score_of(2, 99, 0),
			 dark = score_of(1, 20, 24);

	(void)state;
	assert_true(still.motion == 0 && still.static_ratio == 1 && still.black_ratio == 0);
	/* n pixels of 128 a frame, 20 frames a second, in percent a second */
	assert_true(fabs(slow.motion - 0.5 / 128 * 20 * 100) < 1.2);
	assert_true(fabs(fast.motion - 2.0 / 128 * 20 * 100) < 4);
	assert_true(fast.static_ratio == 0);
	assert_true(fabs(dark.black_ratio - 0.5) < 0.01);
	assert_true(fabs(dark.letterbox[0] - 0.25) < 0.02 && dark.letterbox[1] == 0 && dark.letterbox[2] == 0);
	assert_true(dark.luma < still.luma && still.luma > 0.2 && still.luma < 0.6);
	assert_true(still.colorfulness > 10 && still.flicker < 1e-6);
	assert_true(isnan(still.sharpness) && isnan(still.text_ratio)); /* fewer than 240 rows */
}

enum { TEXT_W = 512, TEXT_H = 288 };

/* Draws `word` in letters of 12 x 16 pixels at (x, y) of luma [TEXT_H, TEXT_W]. */
static void draw_text(uint8_t *luma, const char *word, int x, int y, uint8_t level)
{
	/* A row a byte, top first; bit 4 is the leftmost of 5 columns. */
	static const uint8_t font[128][8] = {
		['.'] = {0x00, 0x00, 0x00, 0x00, 0x00, 0x0C, 0x0C},
		['2'] = {0x0E, 0x11, 0x01, 0x06, 0x08, 0x10, 0x1F},
		['5'] = {0x1F, 0x10, 0x1E, 0x01, 0x01, 0x11, 0x0E},
		['A'] = {0x0E, 0x11, 0x11, 0x1F, 0x11, 0x11, 0x11},
		['E'] = {0x1F, 0x10, 0x10, 0x1E, 0x10, 0x10, 0x1F},
		['H'] = {0x11, 0x11, 0x11, 0x1F, 0x11, 0x11, 0x11},
		['I'] = {0x0E, 0x04, 0x04, 0x04, 0x04, 0x04, 0x0E},
		['L'] = {0x10, 0x10, 0x10, 0x10, 0x10, 0x10, 0x1F},
		['N'] = {0x11, 0x19, 0x15, 0x13, 0x11, 0x11, 0x11},
		['R'] = {0x1E, 0x11, 0x11, 0x1E, 0x14, 0x12, 0x11},
		['S'] = {0x0F, 0x10, 0x10, 0x0E, 0x01, 0x01, 0x1E},
		['T'] = {0x1F, 0x04, 0x04, 0x04, 0x04, 0x04, 0x04},
	};

	for (int k = 0; word[k]; k++)
		for (int r = 0; r < 16; r++)
			for (int c = 0; c < 10; c++)
				if (font[(int)word[k]][r / 2] >> (4 - c / 2) & 1)
					luma[(y + r) * TEXT_W + x + 12 * k + c] = level;
}

/* The result for `n` frames of luma [TEXT_H, TEXT_W], moved by `step` pixels in memory each. */
static double text_of(const uint8_t *luma, int n, int step)
{
	static uint8_t moved[TEXT_W * TEXT_H];
	struct vfm_text *t = vfm_text_new(TEXT_W, TEXT_H);
	double r;

	for (int i = 0; i < n; i++) {
		for (int k = 0; k < TEXT_W * TEXT_H; k++)
			moved[k] = luma[(k + i * step) % (TEXT_W * TEXT_H)];
		vfm_text_add(t, moved);
	}
	r = vfm_text_end(t);
	vfm_text_free(t);
	return r;
}

/* Boxes of lines count; stripes, noise, flat areas and letters that move do not. */
static void test_text_ratio(void **state)
{
	static const char word[] = "THIS LINE HAS 25 LETTERS.";
	static uint8_t luma[TEXT_W * TEXT_H], rgb[TEXT_W * TEXT_H * 3];
	const double line = 25 * 12 * 14.0 / (TEXT_W * TEXT_H);
	struct vfm_video_out_opts o = {
		.width = TEXT_W, .height = TEXT_H, .fps_num = 10, .fps_den = 1, .codec = "ffv1", .crf = -1};
	struct vfm_rng rng = vfm_rng_stream(1, 2, 3, VFM_RNG_TEST);
	struct vfm_score_opts so = {.end = -1};
	struct vfm_video_out *out;
	struct vfm_err err = {0};
	struct vfm_text *small;
	struct vfm_score s;
	char *path = in_dir("text.mkv");
	double one, two;

	(void)state;
	memset(luma, 90, sizeof(luma));
	assert_true(text_of(luma, 1, 0) == 0);
	draw_text(luma, word, 40, 240, 235);
	one = text_of(luma, 1, 0);
	assert_true(one > 0.6 * line && one <= line + 1e-9); /* words of two or three letters are missed */
	assert_true(fabs(text_of(luma, 40, 0) - one) < 1e-9);
	assert_true(text_of(luma, 40, 5 * TEXT_W + 7) == 0); /* it moves */
	draw_text(luma, word, 64, 32, 10);                   /* dark letters, far from the first line */
	two = text_of(luma, 1, 0);
	assert_true(fabs(two - 2 * one) < 0.1 * one);
	assert_int_equal(vfm_video_out_open(&out, path, &o, &err), 0);
	for (int i = 0; i < TEXT_W * TEXT_H * 3; i++)
		rgb[i] = luma[i / 3];
	for (int i = 0; i < 16; i++) { /* in half of the frames */
		if (i == 8)
			memset(rgb, 90, sizeof(rgb));
		assert_int_equal(vfm_video_out_write(out, rgb, &err), 0);
	}
	assert_int_equal(vfm_video_out_close(out, &err), 0);
	assert_int_equal(vfm_score_file(&s, path, &so, &err), 0);
	assert_true(fabs(s.text_ratio - line) < 0.1 * line); /* two lines; scaled, short words are found */
	free(path);
	memset(luma, 90, sizeof(luma));
	draw_text(luma, word, 40, 240, 90 + 30); /* faint, and fainter still */
	assert_true(text_of(luma, 8, 0) > 0.25 * line);
	draw_text(luma, word, 40, 240, 90 + 15);
	assert_true(text_of(luma, 8, 0) == 0);
	for (int i = 0; i < TEXT_W * TEXT_H; i++)
		luma[i] = i % TEXT_W / 6 % 2 ? 255 : 0;
	assert_true(text_of(luma, 1, 0) == 0);
	for (int i = 0; i < TEXT_W * TEXT_H; i++)
		luma[i] = i / TEXT_W / 6 % 2 ? 255 : 0;
	assert_true(text_of(luma, 1, 0) == 0);
	for (int i = 0; i < TEXT_W * TEXT_H; i++)
		luma[i] = (uint8_t)(255 * vfm_rng_uniform(&rng, (uint64_t)i));
	assert_true(text_of(luma, 1, 0) == 0);
	small = vfm_text_new(1, 3);
	assert_true(vfm_text_end(small) == 0);
	vfm_text_add(small, luma);
	assert_true(vfm_text_end(small) == 0);
	vfm_text_free(small);
}

/* ---- pictures ---- */

static void test_gif_colours(void **state)
{
	static const uint32_t colours[5] = {0x000000, 0xFFFFFF, 0xD04020, 0x2060C0, 0x30A050};
	struct vfm_video_out_opts o = {.width = 64, .height = 16};
	uint8_t rgb[64 * 16 * 3], read[64 * 16 * 3];
	char *path = in_dir("c.gif");
	struct vfm_video_out *out;
	struct vfm_err err = {0};
	struct vfm_video *v;
	struct vfm_frame f;

	(void)state;
	assert_int_equal(vfm_video_out_open(&out, path, &o, &err), 0);
	for (int i = 0; i < 64 * 16; i++)
		for (int k = 0; k < 3; k++)
			rgb[3 * i + k] = (uint8_t)(colours[mix((uint32_t)i) % 5] >> (16 - 8 * k));
	assert_int_equal(vfm_video_out_write(out, rgb, &err), 0);
	assert_int_equal(vfm_video_out_close(out, &err), 0);
	assert_int_equal(vfm_video_open(&v, path, NULL, &err), 0);
	assert_int_equal(vfm_video_next(v, &f, &err), 1);
	assert_int_equal(vfm_video_rgb(v, 64, 16, VFM_FIT_STRETCH, read, &err), 0);
	assert_memory_equal(read, rgb, sizeof(rgb)); /* few colours come back as they were */
	vfm_video_close(v);
	free(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_round_trip, setup, teardown),
		cmocka_unit_test_setup_teardown(test_seek_is_exact, setup, teardown),
		cmocka_unit_test_setup_teardown(test_cut, setup, teardown),
		cmocka_unit_test_setup_teardown(test_score_beyond_the_end, setup, teardown),
		cmocka_unit_test_setup_teardown(test_cut_size, setup, teardown),
		cmocka_unit_test_setup_teardown(test_written_whole_or_not, setup, teardown),
		cmocka_unit_test_setup_teardown(test_png, setup, teardown),
		cmocka_unit_test(test_thumb),
		cmocka_unit_test(test_orientation),
		cmocka_unit_test_setup_teardown(test_rejects, setup, teardown),
		cmocka_unit_test(test_scenes),
		cmocka_unit_test(test_clip_rules),
		cmocka_unit_test(test_spans_tile),
		cmocka_unit_test_setup_teardown(test_scores, setup, teardown),
		cmocka_unit_test_setup_teardown(test_text_ratio, setup, teardown),
		cmocka_unit_test_setup_teardown(test_gif_colours, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
