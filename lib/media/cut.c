/* cut.c - see cut.h. */
#include <libavutil/rational.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "media/cut.h"
#include "media/video_out.h"

#define MAX_SIDE    16384
#define MAX_PAUSE_S 10 /* a longer gap between timestamps is not filled with copies */

struct cutting {
	const struct vfm_cut_opts *o;
	struct vfm_cut_result *r;
	struct vfm_video *in;
	struct vfm_video_out *out;
	uint8_t *rgb;
	size_t size;
	double rate;          /* of the source */
	double clock, last_s; /* time in the clip, without gaps and jumps; timestamp of the last frame */
	int64_t n_in;
	bool have; /* rgb holds a frame */
};

static int round_size(double x, bool even)
{
	int n = even ? 2 * (int)lrint(x / 2) : (int)lrint(x), least = even ? 2 : 1;

	return n < least ? least : n > MAX_SIDE ? MAX_SIDE : n;
}

void vfm_cut_size(const struct vfm_cut_opts *o, int w, int h, int *width, int *height)
{
	*width = o->width   ? o->width
		: o->height ? round_size((double)w * o->height / h, o->even)
			    : round_size(w, o->even);
	*height = o->height ? o->height
		: o->width  ? round_size((double)h * o->width / w, o->even)
			    : round_size(h, o->even);
}

static int write_frame(struct cutting *c, struct vfm_err *err)
{
	TRY(vfm_video_out_write(c->out, c->rgb, err));
	c->r->frames++;
	return 0;
}

static bool is_full(const struct cutting *c)
{
	return c->o->max_frames > 0 && c->r->frames >= c->o->max_frames;
}

/* Resampling: writes the current frame for every output time before `until`. */
static int fill_until(struct cutting *c, double until, struct vfm_err *err)
{
	while (c->have && !is_full(c) && (double)c->r->frames / c->o->new_fps < until - 1e-6)
		TRY(write_frame(c, err));
	return 0;
}

static int cut_frame(struct cutting *c, const struct vfm_frame *f, struct vfm_err *err)
{
	double gap = f->time_s - c->last_s;

	if (c->n_in++ == 0)
		gap = 0;
	else if (!(gap > 0) || gap > MAX_PAUSE_S)
		gap = 1 / c->rate;
	c->clock += gap;
	c->last_s = f->time_s;
	if (c->o->new_fps > 0)
		TRY(fill_until(c, c->clock, err));
	TRY(vfm_video_rgb(c->in, c->r->width, c->r->height, VFM_FIT_COVER, c->rgb, err));
	c->have = true;
	return c->o->new_fps > 0 ? 0 : write_frame(c, err);
}

static int copy_frames(struct cutting *c, const char *src, struct vfm_err *err)
{
	int64_t want = c->o->end < 0 ? INT64_MAX : c->o->end - c->o->start;
	struct vfm_frame f;
	int rc = 0;

	while (c->n_in < want && !is_full(c) && (rc = vfm_video_next(c->in, &f, err)) == 1)
		TRY(cut_frame(c, &f, err));
	if (rc < 0)
		return rc;
	if (c->o->new_fps > 0)
		TRY(fill_until(c, c->clock + 1 / c->rate, err));
	if (c->n_in == 0)
		return vfm_fail(err, VFM_EINPUT, "'%s': no frame can be decoded", src);
	return is_full(c) ? 0 : vfm_video_check_end(c->in, c->o->end, err);
}

static int open_output(struct cutting *c, const char *out, struct vfm_err *err)
{
	const struct vfm_video_info *info = vfm_video_info(c->in);
	struct vfm_video_out_opts oo = {.codec = c->o->codec, .crf = c->o->crf, .threads = c->o->threads};
	AVRational fps = {c->o->fps_num ? c->o->fps_num : info->fps_num, c->o->fps_num ? c->o->fps_den : info->fps_den};

	if (fps.num < 1 || fps.den < 1)
		fps = (AVRational){25, 1};
	c->rate = av_q2d(fps);
	if (c->o->new_fps > 0)
		fps = av_d2q(c->o->new_fps, 100000);
	vfm_cut_size(c->o, info->width, info->height, &c->r->width, &c->r->height);
	c->r->fps_num = oo.fps_num = fps.num;
	c->r->fps_den = oo.fps_den = fps.den;
	oo.width = c->r->width;
	oo.height = c->r->height;
	c->size = (size_t)c->r->width * (size_t)c->r->height * 3;
	c->rgb = vfm_big_alloc(c->size, "frame", err);
	if (!c->rgb)
		return VFM_EENV;
	return vfm_video_out_open(&c->out, out, &oo, err);
}

int vfm_cut_file(const char *src, const char *out, const struct vfm_cut_opts *o, struct vfm_cut_result *result,
	struct vfm_err *err)
{
	struct cutting c = {.o = o, .r = result};
	int rc;

	*result = (struct vfm_cut_result){0};
	TRY(vfm_video_open(&c.in, src, &o->video, err));
	if (o->start > 0)
		TRY_OUT(vfm_video_seek(c.in, o->start, o->start_pts, err));
	TRY_OUT(open_output(&c, out, err));
	TRY_OUT(copy_frames(&c, src, err));
	rc = vfm_video_out_close(c.out, err);
	c.out = NULL;
out:
	vfm_video_out_abort(c.out);
	vfm_big_free(c.rgb, c.size);
	vfm_video_close(c.in);
	return rc;
}
