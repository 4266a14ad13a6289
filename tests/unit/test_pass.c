/* test_pass.c - a pass gives what the separate readers give: facts, shots, scores, hashes, and the bytes of clips. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "media/av/video_out.h"
#include "media/pass/pass.h"

enum { W = 160, H = 128, SHOT = 60, SHOTS = 6, FRAMES = SHOT * SHOTS };

static char dir[64];

static int setup(void **state)
{
	(void)state;
	snprintf(dir, sizeof(dir), "/tmp/test_pass.XXXXXX");
	return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
	char cmd[128];

	(void)state;
	snprintf(cmd, sizeof(cmd), "rm -rf '%s'", dir);
	return system(cmd);
}

/* Textures of other frequencies, colours and directions for each shot, which move. */
static void draw_shot(uint8_t *rgb, int frame)
{
	int shot = frame / SHOT, t = frame % SHOT;

	for (int y = 0; y < H; y++)
		for (int x = 0; x < W; x++) {
			double a = 0.05 * (shot + 2), wave = sin(a * (x + t) + shot) * cos(a * (y - 0.5 * t));

			for (int k = 0; k < 3; k++)
				rgb[3 * (y * W + x) + k] = (uint8_t)(128 + 90 * wave * ((shot + k) % 3 ? 1 : -0.5) +
					10 * ((shot * 7 + k) % 4));
		}
}

/* vfr: every tenth frame lasts three times as long. */
static char *write_shots(const char *name, bool vfr)
{
	struct vfm_video_out_opts o = {
		.width = W, .height = H, .fps_num = 25, .fps_den = 1, .codec = "h264", .vfr = vfr};
	char *path = vfm_strfmt("%s/%s", dir, name);
	uint8_t *rgb = vfm_malloc((size_t)W * H * 3);
	struct vfm_video_out *out;
	struct vfm_err err = {0};
	double at = 0;

	assert_int_equal(vfm_video_out_open(&out, path, &o, &err), 0);
	for (int i = 0; i < FRAMES; i++) {
		double length = vfr && i % 10 == 0 ? 0.12 : 0.04;

		draw_shot(rgb, i);
		if (vfr)
			assert_int_equal(vfm_video_out_write_at(out, rgb, at, length, &err), 0);
		else
			assert_int_equal(vfm_video_out_write(out, rgb, &err), 0);
		at += length;
	}
	assert_int_equal(vfm_video_out_close(out, &err), 0);
	free(rgb);
	return path;
}

static const struct vfm_shots_opts shots_opts = {.min_s = 1, .max_s = 30};

static bool same_file(const char *a, const char *b)
{
	char *cmd = vfm_strfmt("cmp -s '%s' '%s'", a, b);
	bool same = system(cmd) == 0;

	free(cmd);
	return same;
}

static void check_shots(const struct vfm_shots *a, const char *path)
{
	struct vfm_err err = {0};
	struct vfm_shots b;

	assert_int_equal(vfm_shots_file(&b, path, &shots_opts, &err), 0);
	assert_int_equal(a->n, b.n);
	assert_memory_equal(a->spans, b.spans, (size_t)b.n * sizeof(b.spans[0]));
	assert_memory_equal(a->time_s, b.time_s, (size_t)(b.frames + 1) * sizeof(b.time_s[0]));
	vfm_shots_release(&b);
}

/* Compares results with those of a file, or of a range of one. */
static void check_results(const struct vfm_pass_clip *c, const char *path, int64_t start, int64_t end, int64_t frames)
{
	struct vfm_score_opts so = {.start = start, .end = end, .start_pts = INT64_MIN, .about = frames};
	struct vfm_clip_hash_opts ho = {.start = start, .end = end, .start_pts = INT64_MIN};
	struct vfm_clip_hash hash;
	struct vfm_score score;
	struct vfm_err err = {0};
	char *a, *b;

	assert_int_equal(vfm_score_file(&score, path, &so, &err), 0);
	assert_memory_equal(c->score, &score, sizeof(score));
	assert_int_equal(vfm_clip_hash_file(&hash, path, &ho, &err), 0);
	a = vfm_clip_hash_text(c->hash);
	b = vfm_clip_hash_text(&hash);
	assert_string_equal(a, b);
	free(a);
	free(b);
}

static void check_clip_file(
	const struct vfm_pass_clip *c, const struct vfm_pass *p, const struct vfm_cut_opts *o, const char *path)
{
	struct vfm_cut_clip clip = {.out = vfm_strfmt("%s/alone.mp4", dir), .o = *o};

	clip.o.start = c->start;
	clip.o.end = c->end;
	clip.o.start_pts = p->shots.pts[c->start];
	clip.o.fps_num = p->probe.fps_num;
	clip.o.fps_den = p->probe.fps_den;
	clip.o.vfr = p->probe.vfr;
	clip.o.length_s = p->shots.time_s[c->end] - p->shots.time_s[c->start];
	vfm_cut_clips(path, &clip, 1);
	assert_int_equal(clip.rc, 0);
	assert_true(same_file(clip.out, c->file));
	assert_int_equal(clip.result.frames, c->cut.frames);
	check_results(c, c->file, 0, -1, c->cut.frames);
	free((char *)clip.out);
}

static void check_pass(bool vfr, const struct vfm_cut_opts *cut)
{
	char *path = write_shots("shots.mp4", vfr);
	struct vfm_pass_opts o = {.video.deinterlace = VFM_DEINTERLACE_OFF,
		.facts = true,
		.shots = shots_opts,
		.score = true,
		.hash = true,
		.cut = cut,
		.dir = dir,
		.prefix = ".ahead-test-",
		.kept_bytes = 1 << 30};
	struct vfm_err err = {0};
	struct vfm_probe probe;
	struct vfm_pass p;

	if (vfm_pass_file(&p, path, &o, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(vfm_probe_file(&probe, path, NULL, false, &err), 0);
	assert_int_equal(probe.frames, p.probe.frames);
	assert_int_equal(probe.fps_num, p.probe.fps_num);
	assert_true(probe.duration_s == p.probe.duration_s && probe.vfr == p.probe.vfr && p.probe.vfr == vfr);
	check_shots(&p.shots, path);
	/* The mean of a varying rate is known at the end, so only the last clips have files. */
	assert_true(vfr ? p.n_clips >= 1 : p.n_clips == SHOTS);
	for (int i = 0; i < p.n_clips; i++) {
		assert_int_equal(p.clips[i].start, p.shots.spans[p.shots.n - p.n_clips + i].start);
		if (cut)
			check_clip_file(&p.clips[i], &p, cut, path);
		else
			check_results(&p.clips[i], path, p.clips[i].start, p.clips[i].end, SHOT);
	}
	vfm_pass_release(&p);
	free(path);
}

static void test_ranges(void **state)
{
	(void)state;
	check_pass(false, NULL);
}

static void test_files(void **state)
{
	struct vfm_cut_opts cut = {.even = true, .codec = "h264", .crf = 18, .height = 64};

	(void)state;
	check_pass(false, &cut);
}

static void test_files_of_varying_rate(void **state)
{
	struct vfm_cut_opts cut = {.even = true, .codec = "h264", .crf = 18};

	(void)state;
	check_pass(true, &cut);
}

/* Without room for the frames of a clip, only facts and shots remain. */
static void test_little_memory(void **state)
{
	char *path = write_shots("shots.mp4", false);
	struct vfm_pass_opts o = {.video.deinterlace = VFM_DEINTERLACE_OFF,
		.facts = true,
		.shots = shots_opts,
		.score = true,
		.kept_bytes = 20 * W * H * 3 / 2};
	struct vfm_err err = {0};
	struct vfm_pass p;

	(void)state;
	assert_int_equal(vfm_pass_file(&p, path, &o, &err), 0);
	assert_int_equal(p.n_clips, 0);
	check_shots(&p.shots, path);
	vfm_pass_release(&p);
	free(path);
}

/* The pass removes the files that its caller does not take. */
static void test_release_removes_files(void **state)
{
	struct vfm_cut_opts cut = {.even = true, .codec = "h264", .crf = 18};
	char *path = write_shots("shots.mp4", false), *file;
	struct vfm_pass_opts o = {.video.deinterlace = VFM_DEINTERLACE_OFF,
		.shots = shots_opts,
		.cut = &cut,
		.dir = dir,
		.prefix = ".ahead-test-",
		.kept_bytes = 1 << 30};
	struct vfm_err err = {0};
	struct vfm_pass p;

	(void)state;
	assert_int_equal(vfm_pass_file(&p, path, &o, &err), 0);
	assert_int_equal(p.n_clips, SHOTS);
	file = vfm_strdup(p.clips[2].file);
	assert_int_equal(access(file, F_OK), 0);
	vfm_pass_release(&p);
	assert_int_not_equal(access(file, F_OK), 0);
	free(file);
	free(path);
}

static void test_damaged(void **state)
{
	char *path = write_shots("shots.mp4", false);
	struct vfm_pass_opts o = {.shots = shots_opts, .score = true, .kept_bytes = 1 << 30};
	struct vfm_err err = {0};
	struct vfm_pass p;

	(void)state;
	assert_int_equal(truncate(path, 100), 0);
	assert_int_equal(vfm_pass_file(&p, path, &o, &err), VFM_EINPUT);
	assert_true(err.msg[0]);
	free(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_ranges, setup, teardown),
		cmocka_unit_test_setup_teardown(test_files, setup, teardown),
		cmocka_unit_test_setup_teardown(test_files_of_varying_rate, setup, teardown),
		cmocka_unit_test_setup_teardown(test_little_memory, setup, teardown),
		cmocka_unit_test_setup_teardown(test_release_removes_files, setup, teardown),
		cmocka_unit_test_setup_teardown(test_damaged, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
