/* no_ffmpeg.c - the functions of a build without FFmpeg (make WITHOUT=ffmpeg): no video can be opened. */
#include "media/av/download.h"
#include "media/av/times.h"
#include "media/av/video_in.h"
#include "media/av/video_out.h"

int vfm_video_open(struct vfm_video **v, const char *path, const struct vfm_video_opts *opts, struct vfm_err *err)
{
	(void)v, (void)opts;
	return vfm_fail(err, VFM_EENV, "cannot read '%s': this program was built without FFmpeg", path);
}

int vfm_video_out_open(
	struct vfm_video_out **o, const char *path, const struct vfm_video_out_opts *opts, struct vfm_err *err)
{
	(void)o, (void)opts;
	return vfm_fail(err, VFM_EENV, "cannot write '%s': this program was built without FFmpeg", path);
}

struct vfm_video_out_facts vfm_video_out_facts(const struct vfm_video_out *o)
{
	(void)o;
	return (struct vfm_video_out_facts){0};
}

bool vfm_download_takes(const char *url)
{
	(void)url;
	return false;
}

int vfm_download(
	const char *url, FILE *f, const struct vfm_download_opts *o, struct vfm_download_result *r, struct vfm_err *err)
{
	(void)f, (void)o, (void)r;
	return vfm_fail(err, VFM_EENV, "cannot download '%s': this program was built without FFmpeg", url);
}

/* The others need a video; callers give at most NULL to those that close one. */
static int no_video(void)
{
	return VFM_EENV;
}

#pragma GCC diagnostic ignored "-Wattribute-alias"
#define NEEDS_VIDEO(name) extern __typeof__(name) name __attribute__((alias("no_video")))

NEEDS_VIDEO(vfm_video_close);
NEEDS_VIDEO(vfm_video_info);
NEEDS_VIDEO(vfm_video_next);
NEEDS_VIDEO(vfm_video_seek);
NEEDS_VIDEO(vfm_video_check_end);
NEEDS_VIDEO(vfm_video_errors);
NEEDS_VIDEO(vfm_video_at);
NEEDS_VIDEO(vfm_video_extend_limit);
NEEDS_VIDEO(vfm_video_set_limit);
NEEDS_VIDEO(vfm_video_rgb);
NEEDS_VIDEO(vfm_video_luma);
NEEDS_VIDEO(vfm_video_out_write);
NEEDS_VIDEO(vfm_video_out_close);
NEEDS_VIDEO(vfm_video_out_abort);
NEEDS_VIDEO(vfm_times_add);
NEEDS_VIDEO(vfm_times_bad);
NEEDS_VIDEO(vfm_times_vary);
NEEDS_VIDEO(vfm_times_rate);
NEEDS_VIDEO(vfm_times_duration);
