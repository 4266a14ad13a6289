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

struct vfm_video_out_facts vfm_video_out_facts(const struct vfm_video_out *o)
{
	(void)o;
	return (struct vfm_video_out_facts){"", 0, 0};
}

int vfm_video_out_open(
	struct vfm_video_out **o, const char *path, const struct vfm_video_out_opts *opts, struct vfm_err *err)
{
	(void)o, (void)opts;
	return vfm_fail(err, VFM_EENV, "cannot write '%s': this program was built without FFmpeg", path);
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

const char *vfm_video_out_codec(const char *name)
{
	return name;
}

/* ---- never called, for want of a video ---- */

void vfm_video_extend_limit(struct vfm_video *v, double seconds)
{
	(void)v, (void)seconds;
}

void vfm_video_set_limit(struct vfm_video *v, struct vfm_limit limit)
{
	(void)v, (void)limit;
}

int64_t vfm_video_at(const struct vfm_video *v)
{
	(void)v;
	return 0;
}

bool vfm_video_ended(const struct vfm_video *v)
{
	(void)v;
	return true;
}

void vfm_video_close(struct vfm_video *v)
{
	(void)v;
}

const struct vfm_video_info *vfm_video_info(const struct vfm_video *v)
{
	(void)v;
	return NULL;
}

int vfm_video_next(struct vfm_video *v, struct vfm_frame *f, struct vfm_err *err)
{
	(void)v, (void)f, (void)err;
	return VFM_EENV;
}

int vfm_video_check_end(const struct vfm_video *v, int64_t end, struct vfm_err *err)
{
	(void)v, (void)end, (void)err;
	return VFM_EENV;
}

int vfm_video_seek(struct vfm_video *v, int64_t index, int64_t pts, struct vfm_err *err)
{
	(void)v, (void)index, (void)pts, (void)err;
	return VFM_EENV;
}

int64_t vfm_video_errors(const struct vfm_video *v)
{
	(void)v;
	return 0;
}

int vfm_video_rgb(struct vfm_video *v, int width, int height, enum vfm_fit fit, uint8_t *rgb, struct vfm_err *err)
{
	(void)v, (void)width, (void)height, (void)fit, (void)rgb, (void)err;
	return VFM_EENV;
}

int vfm_video_luma(struct vfm_video *v, int width, int height, enum vfm_fit fit, uint8_t *luma, struct vfm_err *err)
{
	(void)v, (void)width, (void)height, (void)fit, (void)luma, (void)err;
	return VFM_EENV;
}

int vfm_video_thumb(struct vfm_video *v, struct vfm_thumb *t, struct vfm_err *err)
{
	(void)v, (void)t, (void)err;
	return VFM_EENV;
}

void vfm_video_coded_size(const struct vfm_video *v, int *width, int *height)
{
	(void)v;
	*width = *height = 0;
}

int vfm_video_coded_rows(struct vfm_video *v, const int *rows, int n, uint8_t *dst, struct vfm_err *err)
{
	(void)v, (void)rows, (void)n, (void)dst, (void)err;
	return VFM_EENV;
}

int vfm_video_out_write(struct vfm_video_out *o, const uint8_t *rgb, struct vfm_err *err)
{
	(void)o, (void)rgb, (void)err;
	return VFM_EENV;
}

int vfm_video_out_close(struct vfm_video_out *o, struct vfm_err *err)
{
	(void)o, (void)err;
	return VFM_EENV;
}

void vfm_video_out_abort(struct vfm_video_out *o)
{
	(void)o;
}

void vfm_times_add(struct vfm_times *t, double time_s)
{
	(void)t, (void)time_s;
}

bool vfm_times_bad(const struct vfm_times *t)
{
	(void)t;
	return true;
}

bool vfm_times_vary(const struct vfm_times *t)
{
	(void)t;
	return false;
}

struct vfm_frame_rate vfm_times_rate(const struct vfm_times *t, struct vfm_frame_rate header)
{
	(void)t;
	return header;
}

double vfm_times_duration(const struct vfm_times *t, struct vfm_frame_rate rate, double claimed_s)
{
	(void)t, (void)rate;
	return claimed_s;
}
