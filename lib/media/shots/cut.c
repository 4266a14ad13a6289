/* cut.c - plans passes over the source, and encodes several clips in one pass or copies them. */
#include <libavutil/rational.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "media/av/audio.h"
#include "media/av/remux.h"
#include "media/av/times.h"
#include "media/av/video_out.h"
#include "media/shots/cut.h"

#define MAX_SIDE        16384
#define UNEVEN          1 /* the source was said to have a constant rate, but its frames leave the grid */
#define SILENT          2 /* the source has sound, but not in the range: the file has an empty stream */
#define DEFAULT_LIMIT_S 3600
#define MAX_OPEN        4 /* clips of a pass that are written at once: each has an encoder */

enum cutting_state { CUT_WAITING, CUT_OPEN, CUT_ENDED };

struct cutting {
	enum cutting_state state;
	struct vfm_cut_clip *clip;
	struct vfm_limit limit;
	const struct vfm_cut_opts *o;
	struct vfm_cut_result *r;
	struct vfm_video *in;
	struct vfm_video_out *out;
	struct vfm_audio *audio; /* NULL: none */
	const char *src;
	const uint8_t *picture; /* of the frame that was taken last */
	uint8_t *room;          /* [size] for it */
	size_t size;
	struct vfm_cut_shape shape;
	bool keep;            /* each frame keeps its time */
	bool silent;          /* the range has no sound */
	double rate, tick_s;  /* of the source */
	double claimed_s;     /* end of the source by its header; < 0: unknown */
	double clock, last_s; /* time in the clip, without gaps and jumps; timestamp of the last frame */
	struct vfm_times times;
	int64_t n_in;
	bool have;  /* picture holds a frame */
	bool ended; /* the source has no more frames */
};

static int round_size(double x, bool even)
{
	int n = even ? 2 * (int)lrint(x / 2) : (int)lrint(x), least = even ? 2 : 1;

	return n < least ? least : n > MAX_SIDE ? MAX_SIDE : n;
}

struct vfm_cut_shape vfm_cut_shape(const struct vfm_cut_opts *o, const struct vfm_video_info *source)
{
	int w = source->width, h = source->height;
	bool keep = !o->enlarge && (!o->width || !o->height) && (o->width > w || o->height > h), is_rgb;
	int to_w = keep ? 0 : o->width, to_h = keep ? 0 : o->height;
	struct vfm_cut_shape s;

	s.width = to_w ? to_w : round_size(to_h ? (double)w * to_h / h : w, o->even);
	s.height = to_h ? to_h : round_size(to_w ? (double)h * to_w / w : h, o->even);
	/* Pictures and lossless files hold RGB.  Other codecs get Y'CbCr, which most sources have, without a
	 * conversion. */
	is_rgb = !o->codec || !strcmp(o->codec, "ffv1") || s.width % 2 || s.height % 2;
	s.layout = is_rgb ? VFM_LAYOUT_RGB : source->nearest;
	return s;
}

/* VFM_EINPUT: the source is smaller than the size to cover. */
static int check_source_size(struct vfm_cut_result *r, const struct vfm_cut_opts *o, int w, int h, struct vfm_err *err)
{
	if (o->enlarge || !o->width || !o->height || (w >= o->width && h >= o->height))
		return 0;
	r->too_small = true;
	return vfm_fail(err, VFM_EINPUT, "too small: %dx%d would be enlarged %.3f times for %dx%d", w, h,
		fmax((double)o->width / w, (double)o->height / h), o->width, o->height);
}

static int write_frame(struct cutting *c, struct vfm_err *err)
{
	TRY(vfm_limit_check(&c->limit, c->src, err));
	TRY(vfm_video_out_write(c->out, c->picture, err));
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
	TRY(vfm_limit_check(&c->limit, c->src, err));
	TRY(vfm_video_out_write_at(c->out, c->picture, c->times.last_s, until - c->times.last_s, err));
	c->r->frames++;
	return 0;
}

static bool leaves_grid(const struct cutting *c)
{
	double off = fabs(c->clock - (double)c->n_in / c->rate);

	return !c->o->bad_times && off > 0.5 / c->rate + 2 * c->tick_s;
}

static int start_audio(struct cutting *c, const struct vfm_frame *f, struct vfm_err *err)
{
	if (!c->audio)
		return 0;
	if (f->pts == INT64_MIN || c->o->bad_times)
		return vfm_fail(
			err, VFM_EINPUT, "'%s': no timestamps that the audio could follow (--audio keep)", c->src);
	return vfm_audio_start(c->audio, (double)f->pts * c->tick_s, err);
}

/* Takes the next frame, whose picture is given, or the reader's last one.  Returns 0, or UNEVEN. */
static int cut_frame(struct cutting *c, const struct vfm_frame *f, const uint8_t *picture, struct vfm_err *err)
{
	double gap = f->time_s - c->last_s;

	if (c->n_in == 0) {
		TRY(start_audio(c, f, err));
		gap = 0;
	} else if (!(gap >= 0) || gap > VFM_TIMES_MAX_GAP_S || c->o->bad_times)
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
	if (!picture)
		TRY(vfm_video_picture(
			c->in, c->shape.width, c->shape.height, VFM_FIT_COVER, c->shape.layout, c->room, err));
	c->picture = picture ? picture : c->room;
	c->have = true;
	return c->o->new_fps > 0 || c->keep ? 0 : write_frame(c, err);
}

/* Returns when the last frame ends, or 0 if that is unknown: of a range by its record, of a whole file by its header,
 * which counts if the rate varies (media/av/times.h). */
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

/* Returns the rate of frames that keep their times.  Few frames have wide bounds, and a common rate within them may lie
 * far from their mean. */
static struct vfm_frame_rate rate_of_times(const struct vfm_times *t, struct vfm_frame_rate header)
{
	struct vfm_frame_rate rate = vfm_times_rate(t, header);
	double span = t->last_s - t->first_s, mean = span > 0 ? (double)(t->n - 1) / span : 0;
	AVRational q;

	if (mean <= 0 || fabs((double)rate.num / rate.den / mean - 1) <= 0.01 + 2 * t->tick_s / span)
		return rate;
	q = av_d2q(mean, 100000);
	return (struct vfm_frame_rate){q.num, q.den};
}

static int finish_frames(struct cutting *c, struct vfm_err *err)
{
	struct vfm_cut_result *r = c->r;
	double end = end_of_cut(c);

	if (c->o->new_fps > 0) {
		TRY(fill_until(c, end, err));
	} else if (c->keep) {
		struct vfm_frame_rate rate = rate_of_times(&c->times, (struct vfm_frame_rate){r->fps_num, r->fps_den});

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

/* ---- one clip of a pass ---- */

static bool is_complete(const struct cutting *c)
{
	int64_t want = c->o->end < 0 ? INT64_MAX : c->o->end - c->o->start;

	if (c->o->max_frames > 0 && c->keep && want > c->o->max_frames)
		want = c->o->max_frames;
	return c->n_in >= want || is_full(c);
}

/* Returns whether the container of a file declares a stream before its packets.  That of .mp4 leaves an empty one out.
 */
static bool declares_streams(const char *out)
{
	const char *dot = strrchr(out, '.');

	return dot && (!strcasecmp(dot, ".mkv") || !strcasecmp(dot, ".webm"));
}

/* Returns 0, or SILENT. */
static int finish_clip(struct cutting *c, struct vfm_err *err)
{
	struct vfm_video_out *out = c->out;

	c->ended = !is_complete(c);
	if (c->n_in == 0)
		return vfm_fail(err, VFM_EINPUT, "'%s': no frame can be decoded", c->src);
	TRY(finish_frames(c, err));
	if (!is_full(c))
		TRY(vfm_video_check_end(c->in, c->o->end, err));
	c->out = NULL;
	TRY(vfm_video_out_close(out, err));
	c->r->has_audio = c->audio && vfm_audio_is_written(c->audio);
	return c->audio && !c->r->has_audio && declares_streams(c->clip->out) ? SILENT : 0;
}

static struct vfm_frame_rate claimed_rate(const struct vfm_cut_opts *o, const struct vfm_video_info *i)
{
	return o->fps_num ? (struct vfm_frame_rate){o->fps_num, o->fps_den}
			  : (struct vfm_frame_rate){i->fps_num, i->fps_den};
}

static int open_output(struct cutting *c, const char *out, struct vfm_err *err)
{
	const struct vfm_video_info *info = vfm_video_info(c->in);
	struct vfm_video_out_opts oo = {
		.codec = c->o->codec, .crf = c->o->crf, .threads = c->o->threads, .vfr = c->keep};
	struct vfm_video_out_facts facts;
	struct vfm_frame_rate claimed = claimed_rate(c->o, info);
	AVRational fps = {claimed.num, claimed.den};

	if (fps.num < 1 || fps.den < 1)
		fps = (AVRational){25, 1};
	c->rate = av_q2d(fps);
	c->tick_s = c->times.tick_s = info->tick_s;
	c->claimed_s = info->stream_s;
	if (c->o->new_fps > 0)
		fps = av_d2q(c->o->new_fps, 100000);
	TRY(check_source_size(c->r, c->o, info->width, info->height, err));
	c->shape = vfm_cut_shape(c->o, info);
	c->r->width = oo.width = c->shape.width;
	c->r->height = oo.height = c->shape.height;
	oo.layout = c->shape.layout;
	c->r->fps_num = oo.fps_num = fps.num;
	c->r->fps_den = oo.fps_den = fps.den;
	c->size = vfm_layout_bytes(oo.layout, oo.width, oo.height);
	c->room = vfm_big_alloc(c->size, "frame", err);
	if (!c->room)
		return VFM_EENV;
	if (c->o->audio && !info->image && !c->silent)
		TRY(vfm_audio_open(&c->audio, c->src, &c->limit, err));
	oo.audio = c->audio;
	TRY(vfm_video_out_open(&c->out, out, &oo, err));
	facts = vfm_video_out_facts(c->out);
	snprintf(c->r->codec, sizeof(c->r->codec), "%s", facts.codec);
	return 0;
}

static int start_clip(struct cutting *c, struct vfm_video *in, struct vfm_err *err)
{
	*c->r = (struct vfm_cut_result){0};
	c->in = in;
	c->state = CUT_OPEN;
	if (vfm_video_info(in)->image)
		c->keep = false;
	return open_output(c, c->clip->out, err);
}

/* Ends a clip with the result `rc`.  One that is UNEVEN or SILENT waits for another pass. */
static void end_clip(struct cutting *c, int rc, const struct vfm_err *err)
{
	vfm_video_out_abort(c->out);
	vfm_audio_close(c->audio);
	vfm_big_free(c->room, c->size);
	if (rc > 0) {
		*c = (struct cutting){.clip = c->clip,
			.o = c->o,
			.r = c->r,
			.src = c->src,
			.limit = c->limit,
			.keep = c->keep || rc == UNEVEN,
			.silent = rc == SILENT};
		return;
	}
	c->out = NULL;
	c->audio = NULL;
	c->room = NULL;
	c->state = CUT_ENDED;
	c->clip->rc = rc;
	if (rc < 0)
		c->clip->err = *err;
}

/* ---- a pass over the source ---- */

struct cut_pass {
	const char *src;
	struct vfm_video *in;
	struct cutting *cut; /* by start */
	int n;
};

/* Ends all clips of a state with an error; with `from`, only the clips that begin at it or later. */
static void end_clips(struct cut_pass *p, enum cutting_state state, int64_t from, int rc, const struct vfm_err *err)
{
	for (int i = 0; i < p->n; i++)
		if (p->cut[i].state == state && p->cut[i].o->start >= from)
			end_clip(&p->cut[i], rc, err);
}

static int count_clips(const struct cut_pass *p, enum cutting_state state)
{
	int n = 0;

	for (int i = 0; i < p->n; i++)
		n += p->cut[i].state == state;
	return n;
}

static void start_limit(struct cutting *c, struct vfm_video *in)
{
	if (c->o->timeout_s > 0)
		c->limit = vfm_limit_start(c->o->timeout_s);
	vfm_video_set_limit(in, c->limit);
}

/* Opens the clips that begin at the next frame. */
static void start_due_clips(struct cut_pass *p)
{
	int n_open = count_clips(p, CUT_OPEN), rc;
	struct vfm_err err;

	for (int i = 0; i < p->n && n_open < MAX_OPEN; i++) {
		struct cutting *c = &p->cut[i];

		if (c->state != CUT_WAITING || c->o->start != vfm_video_at(p->in))
			continue;
		start_limit(c, p->in);
		err = (struct vfm_err){0};
		rc = start_clip(c, p->in, &err);
		if (rc < 0)
			end_clip(c, rc, &err);
		else
			n_open++;
	}
}

/* Seeks to the first waiting clip that lies ahead.  Returns false if the pass ends here. */
static bool seek_next_clip(struct cut_pass *p)
{
	struct vfm_err err = {0};

	for (int i = 0; i < p->n; i++) {
		struct cutting *c = &p->cut[i];
		int rc;

		if (c->state != CUT_WAITING || c->o->start < vfm_video_at(p->in))
			continue;
		start_limit(c, p->in);
		rc = vfm_video_seek(p->in, c->o->start, c->o->start_pts, &err);
		if (rc == 0)
			return true;
		end_clip(c, rc, &err);
		if (vfm_video_ended(p->in)) /* the later clips are beyond the end, too */
			for (int k = i + 1; k < p->n; k++) {
				if (p->cut[k].state != CUT_WAITING || p->cut[k].o->start < c->o->start)
					continue;
				rc = vfm_fail(&err, VFM_EINPUT, "'%s': frame %lld is beyond the end", p->src,
					(long long)p->cut[k].o->start);
				end_clip(&p->cut[k], rc, &err);
			}
		return false;
	}
	return false;
}

/* Gives the next frame to the open clips.  Returns false if the reader failed. */
static bool cut_next_frame(struct cut_pass *p)
{
	struct vfm_err err = {0};
	struct vfm_frame f;
	int got = vfm_video_next(p->in, &f, &err);

	if (got < 0) {
		end_clips(p, CUT_OPEN, 0, got, &err);
		return false;
	}
	for (int i = 0; i < p->n; i++) {
		struct cutting *c = &p->cut[i];
		int rc = 0;

		if (c->state != CUT_OPEN)
			continue;
		err = (struct vfm_err){0};
		if (got)
			rc = cut_frame(c, &f, NULL, &err);
		if (rc == 0 && got && !is_complete(c))
			continue;
		if (rc == 0)
			rc = finish_clip(c, &err);
		end_clip(c, rc, &err);
		if (rc < VFM_EINPUT)
			return false;
	}
	return true;
}

/* Decodes the source once, from the first waiting clip on.  At least one clip ends, or is to be cut with its times. */
static void run_cut_pass(struct cut_pass *p, const struct vfm_video_opts *o)
{
	struct vfm_err err = {0};
	int rc = vfm_video_open(&p->in, p->src, o, &err);

	if (rc < 0) {
		end_clips(p, CUT_WAITING, 0, rc, &err);
		return;
	}
	do
		start_due_clips(p);
	while (count_clips(p, CUT_OPEN) ? cut_next_frame(p) : seek_next_clip(p));
	vfm_video_close(p->in);
}

/* ---- copies ---- */

/* Returns whether the pixels of the source are those of the clip. */
static bool can_copy_clip(const struct vfm_cut_opts *o, const struct vfm_video_info *i)
{
	return o->copy && !i->image && vfm_remux_takes(i->codec) && !o->width && !o->height && !o->audio &&
		o->new_fps <= 0 && !o->max_frames && !o->bad_times && i->rotation == 0 && !i->mirrored &&
		i->width == i->coded_width && i->height == i->coded_height && (!i->wide || o->video.keep_hdr) &&
		(o->video.deinterlace == VFM_DEINTERLACE_OFF ||
			(!i->interlaced && o->video.deinterlace == VFM_DEINTERLACE_AUTO));
}

static void copy_clip(struct cutting *c, const struct vfm_video_info *i)
{
	const struct vfm_remux_opts o = {c->o->start, c->o->end, c->o->start_pts, &c->limit};
	struct vfm_frame_rate rate;
	struct vfm_remux_result copy;
	struct vfm_err err = {0};
	int rc = vfm_remux(c->src, c->clip->out, &o, &copy, &err);

	if (rc == 0) /* it is encoded */
		return;
	if (rc == 1) {
		*c->r = (struct vfm_cut_result){.width = i->width,
			.height = i->height,
			.frames = copy.frames,
			.copied = true,
			.vfr = c->o->vfr && vfm_times_vary(&copy.times)};
		snprintf(c->r->codec, sizeof(c->r->codec), "%s", i->codec);
		rate = claimed_rate(c->o, i);
		if (c->o->vfr)
			rate = rate_of_times(&copy.times, rate);
		c->r->fps_num = rate.num;
		c->r->fps_den = rate.den;
		c->r->duration_s = c->o->vfr || !c->r->fps_num ? copy.duration_s
							       : (double)copy.frames * c->r->fps_den / c->r->fps_num;
		rc = 0;
	}
	end_clip(c, rc, &err);
}

/* Copies the clips that can be copied; the others wait. */
static void copy_clips(struct cut_pass *p)
{
	struct vfm_err err;
	bool wanted = false;

	for (int i = 0; i < p->n; i++)
		wanted |= p->cut[i].o->copy;
	if (!wanted || vfm_video_open(&p->in, p->src, &p->cut[0].o->video, &err) < 0)
		return; /* a pass reports the error */
	for (int i = 0; i < p->n; i++) {
		start_limit(&p->cut[i], p->in);
		if (can_copy_clip(p->cut[i].o, vfm_video_info(p->in)))
			copy_clip(&p->cut[i], vfm_video_info(p->in));
	}
	vfm_video_close(p->in);
}

static int compare_starts(const void *a, const void *b)
{
	const struct cutting *x = a, *y = b;

	return x->o->start != y->o->start ? (x->o->start < y->o->start ? -1 : 1)
					  : (x->clip < y->clip ? -1 : x->clip > y->clip);
}

static struct cutting prepare_cutting(const char *src, struct vfm_cut_clip *clip)
{
	const struct vfm_cut_opts *o = &clip->o;
	struct cutting c = {.clip = clip,
		.o = o,
		.r = &clip->result,
		.src = src,
		.limit = o->timeout_s > 0 ? vfm_limit_start(o->timeout_s) : o->video.limit,
		.keep = o->vfr && !o->bad_times && o->new_fps <= 0};

	clip->rc = 0;
	if (c.limit.until <= 0)
		c.limit = vfm_limit_start(DEFAULT_LIMIT_S);
	return c;
}

void vfm_cut_clips(const char *src, struct vfm_cut_clip *clips, int n)
{
	struct cut_pass p = {.src = src, .cut = vfm_calloc((size_t)n, sizeof(p.cut[0])), .n = n};

	for (int i = 0; i < n; i++)
		p.cut[i] = prepare_cutting(src, &clips[i]);
	qsort(p.cut, (size_t)n, sizeof(p.cut[0]), compare_starts);
	copy_clips(&p);
	while (count_clips(&p, CUT_WAITING)) {
		struct vfm_video_opts video = p.cut[0].o->video;
		struct vfm_err *fatal = NULL;

		video.limit = p.cut[0].o->timeout_s > 0 ? vfm_limit_start(p.cut[0].o->timeout_s) : p.cut[0].limit;
		run_cut_pass(&p, &video);
		for (int i = 0; i < n && !fatal; i++)
			if (clips[i].rc < VFM_EINPUT)
				fatal = &clips[i].err;
		if (fatal)
			for (int k = CUT_WAITING; k <= CUT_OPEN; k++)
				end_clips(&p, k, 0, fatal->code, fatal);
	}
	free(p.cut);
}

/* Writes the clip from kept pictures.  Returns 0, UNEVEN or SILENT. */
static int cut_kept_frames(
	struct cutting *c, struct vfm_video *in, struct vfm_kept_frame *const *frames, int64_t n, struct vfm_err *err)
{
	struct vfm_frame f;
	int rc = start_clip(c, in, err);

	for (int64_t i = 0; i < n && rc == 0 && !is_complete(c); i++) {
		const uint8_t *picture = vfm_kept_picture(frames[i], &f);

		rc = cut_frame(c, &f, picture, err);
	}
	return rc == 0 ? finish_clip(c, err) : rc;
}

void vfm_cut_kept(const char *src, struct vfm_cut_clip *clip, struct vfm_video *in,
	struct vfm_kept_frame *const *frames, int64_t n)
{
	struct cutting c = prepare_cutting(src, clip);
	struct vfm_err err = {0};

	while (c.state == CUT_WAITING)
		end_clip(&c, cut_kept_frames(&c, in, frames, n, &err), &err);
}
