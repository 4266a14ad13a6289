/* probe.c - see probe.h. */
#include <libavutil/rational.h>
#include <math.h>
#include <string.h>
#include <strings.h>

#include "media/probe.h"

#define REGULAR   0.9 /* share of regular gaps above which the rate is constant; the others are lost frames */
#define MAX_GAP_S 60  /* a longer gap between two frames is a fault of the file */

struct times {
	double expected; /* gap */
	int64_t n, regular;
	double last;
	bool bad;
};

static void add_time(struct times *t, double time_s)
{
	double gap = time_s - t->last;

	if (t->n++ > 0) {
		if (!(gap > 0) || gap > MAX_GAP_S)
			t->bad = true;
		/* Millisecond clocks (Matroska) round either way. */
		if (fabs(gap - t->expected) < 0.25 * t->expected + 0.001)
			t->regular++;
	}
	t->last = time_s;
}

static void judge_times(struct vfm_probe *p, const struct times *t)
{
	double fps = (double)p->fps_num / p->fps_den;
	AVRational r;

	p->bad_times = t->bad;
	if (t->bad) {
		p->duration_s = (double)p->frames / fps;
		return;
	}
	p->vfr = t->n > 2 && (double)t->regular < REGULAR * (double)(t->n - 1);
	if (p->vfr) {
		r = av_d2q((double)(t->n - 1) / t->last, 100000);
		if (r.num > 0 && r.den > 0) {
			p->fps_num = r.num;
			p->fps_den = r.den;
			fps = av_q2d(r);
		}
	}
	p->duration_s = t->last + 1 / fps;
}

static int count_frames(struct vfm_probe *p, struct vfm_video *v, struct vfm_err *err)
{
	struct times t = {.expected = p->fps_num ? (double)p->fps_den / p->fps_num : 1};
	struct vfm_frame f;
	int rc;

	while ((rc = vfm_video_next(v, &f, err)) == 1) {
		add_time(&t, f.time_s);
		if (f.width != p->info.width || f.height != p->info.height)
			p->resized = true;
	}
	if (rc < 0)
		return rc;
	p->frames = t.n;
	if (p->info.image)
		p->duration_s = 0;
	else
		judge_times(p, &t);
	return 0;
}

int vfm_probe_file(
	struct vfm_probe *p, const char *path, const struct vfm_video_opts *opts, bool fast, struct vfm_err *err)
{
	struct vfm_video_opts draft = opts ? *opts : (struct vfm_video_opts){0};
	struct vfm_video *v;
	int rc = 0;

	draft.draft = true;
	TRY(vfm_video_open(&v, path, &draft, err));
	*p = (struct vfm_probe){.info = *vfm_video_info(v)};
	p->fps_num = p->info.fps_num;
	p->fps_den = p->info.fps_den;
	p->frames = p->info.frames;
	p->duration_s = p->info.image ? 0 : p->info.duration_s;
	if (!fast)
		rc = count_frames(p, v, err);
	p->decode_errors = vfm_video_errors(v);
	/* An animation format with one frame is an image. */
	if (!fast && p->frames == 1 && (!strcmp(p->info.container, "gif") || !strcmp(p->info.container, "apng"))) {
		p->info.image = true;
		p->duration_s = 0;
	}
	vfm_video_close(v);
	return rc;
}

bool vfm_media_name(const char *name)
{
	static const char *const endings[] = {
		"mp4",
		"m4v",
		"mov",
		"mkv",
		"webm",
		"avi",
		"ts",
		"m2ts",
		"mts",
		"mpg",
		"mpeg",
		"m2v",
		"vob",
		"ogv",
		"ogg",
		"flv",
		"wmv",
		"asf",
		"mxf",
		"3gp",
		"3g2",
		"h264",
		"264",
		"h265",
		"265",
		"hevc",
		"ivf",
		"obu",
		"y4m",
		"gif",
		"rm",
		"rmvb",
		"dv",
		"nut",
		"jpg",
		"jpeg",
		"jpe",
		"png",
		"apng",
		"webp",
		"bmp",
		"tif",
		"tiff",
		"avif",
		"heic",
		"ppm",
		"pgm",
		"pam",
		"jxl",
		"jp2",
		"m4a",
	};
	const char *dot = strrchr(name, '.');

	for (size_t i = 0; dot && i < sizeof(endings) / sizeof(endings[0]); i++)
		if (!strcasecmp(dot + 1, endings[i]))
			return true;
	return false;
}
