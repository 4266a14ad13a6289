/* cut.c - see cut.h. */
#include <libavutil/rational.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "media/cut.h"
#include "media/times.h"
#include "media/video_out.h"

#define MAX_SIDE 16384
#define UNEVEN   1 /* the source was said to have a constant rate, but its frames leave the grid */

struct cutting {
	const struct vfm_cut_opts *o;
	struct vfm_cut_result *r;
	struct vfm_video *in;
	struct vfm_video_out *out;
	const char *src;
	uint8_t *rgb;
	size_t size;
	bool keep;            /* each frame keeps its time */
	double rate, tick_s;  /* of the source */
	double claimed_s;     /* end of the source by its header; < 0: unknown */
	double clock, last_s; /* time in the clip, without gaps and jumps; timestamp of the last frame */
	struct vfm_times times;
	int64_t n_in;
	bool have;  /* rgb holds a frame */
	bool ended; /* the source has no more frames */
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
	TRY(vfm_limit_check(&c->o->video.limit, c->src, err));
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

/* Writes the frame that waits for the time of the next one. */
static int write_waiting(struct cutting *c, double until, struct vfm_err *err)
{
	if (!c->have || is_full(c))
		return 0;
	TRY(vfm_limit_check(&c->o->video.limit, c->src, err));
	TRY(vfm_video_out_write_at(c->out, c->rgb, c->times.last_s, until - c->times.last_s, err));
	c->r->frames++;
	return 0;
}

static bool leaves_grid(const struct cutting *c)
{
	double off = fabs(c->clock - (double)c->n_in / c->rate);

	return !c->o->bad_times && off > 0.5 / c->rate + 2 * c->tick_s;
}

/* Returns 0, or UNEVEN. */
static int cut_frame(struct cutting *c, const struct vfm_frame *f, struct vfm_err *err)
{
	double gap = f->time_s - c->last_s;

	if (c->n_in == 0)
		gap = 0;
	else if (!(gap >= 0) || gap > VFM_TIMES_MAX_GAP_S || c->o->bad_times)
		gap = 1 / c->rate;
	c->clock += gap;
	c->last_s = f->time_s;
	if (c->o->new_fps > 0)
		TRY(fill_until(c, c->clock, err));
	else if (c->keep)
		TRY(write_waiting(c, c->clock, err));
	else if (leaves_grid(c))
		return UNEVEN;
	c->n_in++;
	vfm_times_add(&c->times, c->clock);
	TRY(vfm_video_rgb(c->in, c->r->width, c->r->height, VFM_FIT_COVER, c->rgb, err));
	c->have = true;
	return c->o->new_fps > 0 || c->keep ? 0 : write_frame(c, err);
}

/* Returns when the last frame ends, or 0 if that is unknown: of a range by its record, of a whole file by its header,
 * which counts if the rate varies (media/times.h). */
static double claimed_end(const struct cutting *c)
{
	if (c->o->end >= 0)
		return c->n_in == c->o->end - c->o->start && !c->o->bad_times ? c->o->length_s : 0;
	return c->ended && c->o->start == 0 && vfm_times_vary(&c->times) ? c->claimed_s : 0;
}

/* Returns the end of the clip.  Within half a period of a claimed end, a constant rate is more exact: a clock of
 * milliseconds must not add a frame to a resampled clip. */
static double end_of_cut(const struct cutting *c)
{
	double period = 1 / c->rate, claimed = claimed_end(c), rest = claimed - c->clock;

	if (rest > 0 && rest <= VFM_TIMES_MAX_GAP_S && (c->keep || fabs(rest - period) > 0.5 * period + 2 * c->tick_s))
		return claimed;
	if (c->keep && c->times.n > 1)
		period = c->clock / (double)(c->times.n - 1);
	return c->clock + period;
}

static int finish_frames(struct cutting *c, struct vfm_err *err)
{
	struct vfm_cut_result *r = c->r;
	double end = end_of_cut(c);

	if (c->o->new_fps > 0) {
		TRY(fill_until(c, end, err));
	} else if (c->keep) {
		struct vfm_rate rate = vfm_times_rate(&c->times, (struct vfm_rate){r->fps_num, r->fps_den});

		TRY(write_waiting(c, end, err));
		r->vfr = vfm_times_vary(&c->times);
		r->fps_num = rate.num;
		r->fps_den = rate.den;
		r->duration_s = end;
		return 0;
	}
	r->duration_s = (double)r->frames * r->fps_den / r->fps_num;
	return 0;
}

static int copy_frames(struct cutting *c, struct vfm_err *err)
{
	int64_t want = c->o->end < 0 ? INT64_MAX : c->o->end - c->o->start;
	struct vfm_frame f;
	int rc = 0;

	if (c->o->max_frames > 0 && c->keep && want > c->o->max_frames)
		want = c->o->max_frames;
	while (c->n_in < want && !is_full(c) && (rc = vfm_video_next(c->in, &f, err)) == 1) {
		rc = cut_frame(c, &f, err);
		if (rc != 0)
			return rc;
	}
	if (rc < 0)
		return rc;
	c->ended = c->n_in < want && !is_full(c);
	if (c->n_in == 0)
		return vfm_fail(err, VFM_EINPUT, "'%s': no frame can be decoded", c->src);
	TRY(finish_frames(c, err));
	return is_full(c) ? 0 : vfm_video_check_end(c->in, c->o->end, err);
}

static int open_output(struct cutting *c, const char *out, struct vfm_err *err)
{
	const struct vfm_video_info *info = vfm_video_info(c->in);
	struct vfm_video_out_opts oo = {
		.codec = c->o->codec, .crf = c->o->crf, .threads = c->o->threads, .vfr = c->keep};
	AVRational fps = {c->o->fps_num ? c->o->fps_num : info->fps_num, c->o->fps_num ? c->o->fps_den : info->fps_den};

	if (fps.num < 1 || fps.den < 1)
		fps = (AVRational){25, 1};
	c->rate = av_q2d(fps);
	c->tick_s = c->times.tick_s = info->tick_s;
	c->claimed_s = info->stream_s;
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

static int cut_once(struct cutting *c, const char *out, struct vfm_err *err)
{
	const struct vfm_cut_opts *o = c->o;
	int rc;

	*c->r = (struct vfm_cut_result){0};
	TRY(vfm_video_open(&c->in, c->src, &o->video, err));
	if (vfm_video_info(c->in)->image)
		c->keep = false;
	if (o->start > 0)
		TRY_OUT(vfm_video_seek(c->in, o->start, o->start_pts, err));
	TRY_OUT(open_output(c, out, err));
	rc = copy_frames(c, err);
	if (rc == 0) {
		rc = vfm_video_out_close(c->out, err);
		c->out = NULL;
	}
out:
	vfm_video_out_abort(c->out);
	vfm_big_free(c->rgb, c->size);
	vfm_video_close(c->in);
	return rc;
}

int vfm_cut_file(const char *src, const char *out, const struct vfm_cut_opts *o, struct vfm_cut_result *result,
	struct vfm_err *err)
{
	struct cutting c = {.o = o, .r = result, .src = src, .keep = o->vfr && !o->bad_times && o->new_fps <= 0};
	int rc = cut_once(&c, out, err);

	if (rc == UNEVEN) {
		c = (struct cutting){.o = o, .r = result, .src = src, .keep = true};
		rc = cut_once(&c, out, err);
	}
	return rc;
}
