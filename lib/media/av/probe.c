/* probe.c - decodes a file to count frames and collect their times, and recognizes names of media. */
#include <string.h>
#include <strings.h>

#include "media/av/probe.h"
#include "media/av/times.h"
#include "media/av/ts.h"

static void set_probe_times(struct vfm_probe *p, const struct vfm_times *t)
{
	struct vfm_frame_rate rate = vfm_times_rate(t, (struct vfm_frame_rate){p->info.fps_num, p->info.fps_den});

	p->fps_num = rate.num;
	p->fps_den = rate.den;
	p->bad_times = vfm_times_bad(t);
	p->vfr = vfm_times_vary(t);
	p->duration_s = vfm_times_duration(t, rate, p->info.stream_s);
}

void vfm_prober_begin(struct vfm_prober *b, struct vfm_probe *p, const struct vfm_video *v)
{
	*p = (struct vfm_probe){.info = *vfm_video_info(v)};
	p->interlaced = p->info.interlaced;
	p->fps_num = p->info.fps_num;
	p->fps_den = p->info.fps_den;
	p->frames = p->info.frames;
	p->duration_s = p->info.image ? 0 : p->info.duration_s;
	*b = (struct vfm_prober){.p = p, .times = {.tick_s = p->info.tick_s}};
}

void vfm_prober_add(struct vfm_prober *b, const struct vfm_frame *f)
{
	struct vfm_probe *p = b->p;

	vfm_times_add(&b->times, f->time_s);
	if (f->width != p->info.width || f->height != p->info.height)
		p->resized = true;
	p->interlaced |= f->interlaced;
}

int vfm_prober_end(struct vfm_prober *b, const struct vfm_video *v, const char *path, const struct vfm_limit *limit,
	struct vfm_err *err)
{
	struct vfm_probe *p = b->p;
	int64_t faults = 0;

	p->info.image = vfm_video_info(v)->image; /* a second picture makes a video of an image */
	p->frames = b->times.n;
	if (p->info.image)
		p->duration_s = 0;
	else
		set_probe_times(p, &b->times);
	if (!strcmp(p->info.container, "mpegts"))
		TRY(vfm_ts_faults(path, p->info.stream_id, limit, &faults, err));
	p->decode_errors = vfm_video_errors(v) + faults;
	/* An animation format with one frame is an image. */
	if (p->frames == 1 && (!strcmp(p->info.container, "gif") || !strcmp(p->info.container, "apng"))) {
		p->info.image = true;
		p->duration_s = 0;
	}
	return 0;
}

int vfm_probe_file(
	struct vfm_probe *p, const char *path, const struct vfm_video_opts *opts, bool fast, struct vfm_err *err)
{
	struct vfm_video_opts draft = opts ? *opts : (struct vfm_video_opts){0};
	struct vfm_prober b;
	struct vfm_frame f;
	struct vfm_video *v;
	int rc = 0;

	draft.draft = true;
	TRY(vfm_video_open(&v, path, &draft, err));
	vfm_prober_begin(&b, p, v);
	while (!fast && (rc = vfm_video_next(v, &f, err)) == 1)
		vfm_prober_add(&b, &f);
	if (fast)
		p->decode_errors = vfm_video_errors(v);
	else if (rc == 0)
		rc = vfm_prober_end(&b, v, path, &draft.limit, err);
	vfm_video_close(v);
	return rc;
}

/* Returns whether the name ends in a dot and one of the endings, a list that ends with NULL. */
static bool has_ending(const char *name, const char *const *endings)
{
	const char *dot = strrchr(name, '.');

	while (dot && *endings)
		if (!strcasecmp(dot + 1, *endings++))
			return true;
	return false;
}

bool vfm_media_name(const char *name)
{
	static const char *const endings[] = {"mp4", "m4v", "mov", "mkv", "webm", "avi", "ts", "m2ts", "mts", "mpg",
		"mpeg", "m1v", "m2v", "mjpeg", "mjpg", "vob", "ogv", "ogg", "flv", "wmv", "asf", "mxf", "3gp", "3g2",
		"h264", "264", "h265", "265", "hevc", "ivf", "obu", "y4m", "gif", "rm", "rmvb", "dv", "nut", "apng",
		"m4a", NULL};

	return vfm_image_name(name) || has_ending(name, endings);
}

bool vfm_image_name(const char *name)
{
	static const char *const endings[] = {"jpg", "jpeg", "jpe", "png", "webp", "bmp", "tif", "tiff", "avif", "heic",
		"ppm", "pgm", "pam", "jxl", "jp2", NULL};

	return has_ending(name, endings);
}
