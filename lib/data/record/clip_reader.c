/* clip_reader.c - seeks to a record's range, and resamples and scales its frames one by one. */
#include "data/record/clip_reader.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "data/record/record.h"

#define TIMEOUT_S 3600

static double record_rate(const json_t *rec)
{
	int num = 0, den = 1;

	if (sscanf(vfm_rec_str(rec, "fps", ""), "%d/%d", &num, &den) < 1 || num <= 0 || den <= 0)
		return 0;
	return (double)num / den;
}

static int round_down(int n, int32_t multiple)
{
	return multiple > 1 ? n / multiple * multiple : n;
}

/* The largest size of the source's shape within the box; at least 1 x 1. */
static void fit_within(struct vfm_clip_reader *r, int source_w, int source_h)
{
	double by_w = (double)r->o.width / source_w, by_h = (double)r->o.height / source_h;
	double scale = by_w < by_h ? by_w : by_h;
	int w = (int)lround(source_w * scale), h = (int)lround(source_h * scale);

	r->width = w < 1 ? 1 : w > r->o.width ? r->o.width : w;
	r->height = h < 1 ? 1 : h > r->o.height ? r->o.height : h;
}

static int choose_size(struct vfm_clip_reader *r, struct vfm_err *err)
{
	const struct vfm_video_info *info = vfm_video_info(r->video);

	if (r->o.width && r->o.fit == VFM_CLIP_CONTAIN) {
		fit_within(r, info->width, info->height);
		return 0;
	}
	r->width = r->o.width ? r->o.width : round_down(info->width, r->o.multiple[1]);
	r->height = r->o.height ? r->o.height : round_down(info->height, r->o.multiple[0]);
	if (r->width < 1 || r->height < 1)
		return vfm_fail(err, VFM_EINPUT, "'%s' is %dx%d: smaller than %dx%d", r->src, info->width, info->height,
			r->o.multiple[1], r->o.multiple[0]);
	return 0;
}

/* Sets the range in frames of the file. */
static int choose_range(struct vfm_clip_reader *r, const struct vfm_rec_media *m, struct vfm_err *err)
{
	r->start = m->start_frame + r->o.start_frame;
	r->end = m->end_frame;
	if (r->o.frames && (r->end < 0 || r->start + r->o.frames < r->end))
		r->end = r->start + r->o.frames;
	if (r->end >= 0 && r->start >= r->end)
		return vfm_fail(err, VFM_EINPUT, "'%s' has no frame from %lld on", r->src, (long long)r->start);
	return 0;
}

static int open_range(struct vfm_clip_reader *r, const json_t *rec, struct vfm_err *err)
{
	struct vfm_rec_media m;
	double rate = record_rate(rec);

	TRY(vfm_rec_media(rec, &m, err));
	r->src = vfm_strdup(m.src);
	r->is_image = m.is_image;
	r->period = json_is_true(json_object_get(rec, "bad_times")) && rate > 0 ? 1 / rate : 0;
	r->fps = m.is_image ? 0 : r->o.fps > 0 ? r->o.fps : rate;
	TRY(choose_range(r, &m, err));
	TRY(vfm_video_open(
		&r->video, m.src, &(struct vfm_video_opts){.threads = r->o.threads, .limit = r->limit}, err));
	if (r->start > 0)
		TRY(vfm_video_seek(r->video, r->start, r->start == m.start_frame ? m.start_pts : INT64_MIN, err));
	return 0;
}

int vfm_clip_open(struct vfm_clip_reader *r, const json_t *rec, const struct vfm_clip_opts *o, struct vfm_err *err)
{
	*r = (struct vfm_clip_reader){.o = *o, .limit = vfm_limit_start(o->timeout_s > 0 ? o->timeout_s : TIMEOUT_S)};
	TRY(open_range(r, rec, err));
	if (r->is_image)
		r->o.most = 1;
	if (o->even && !r->is_image) {
		TRY(vfm_clip_count(rec, o->timeout_s, o->threads, &r->total, err));
		r->total -= o->start_frame;
		if (o->frames && o->frames < r->total)
			r->total = o->frames;
		if (o->even < r->total)
			r->fps *= (double)o->even / (double)r->total;
	}
	return choose_size(r, err);
}

void vfm_clip_extend_limit(struct vfm_clip_reader *r, double seconds)
{
	r->limit.until += seconds;
	if (r->video)
		vfm_video_extend_limit(r->video, seconds);
}

void vfm_clip_close(struct vfm_clip_reader *r)
{
	vfm_video_close(r->video);
	free(r->src);
	*r = (struct vfm_clip_reader){0};
}

/* Decodes the next frame of the range.  Returns 1, or 0 at its end. */
static int decode_frame(struct vfm_clip_reader *r, struct vfm_frame *f, struct vfm_err *err)
{
	int rc;

	TRY(vfm_limit_check(&r->limit, r->src, err));
	rc = vfm_video_next(r->video, f, err);
	if (rc < 0)
		return rc;
	if (rc == 1 && (r->end < 0 || f->index < r->end)) {
		if (r->period > 0)
			f->time_s = (double)f->index * r->period;
		if (!r->have_frame)
			r->first_s = f->time_s;
		r->have_frame = true;
		r->frame_s = f->time_s - r->first_s;
		return 1;
	}
	r->at_end = true;
	if (!r->have_frame)
		return vfm_fail(err, VFM_EINPUT, "'%s' has no frame from %lld on", r->src, (long long)r->start);
	return rc == 0 ? vfm_video_check_end(r->video, r->end, err) : 0;
}

/* Returns whether the decoded frame is the next picture. */
static bool is_due(const struct vfm_clip_reader *r, const struct vfm_frame *f)
{
	int64_t even = r->o.even < r->total ? r->o.even : r->total;

	if (r->is_image)
		return true;
	if (r->o.even) /* the middle of each of `even` equal parts */
		return f->index - r->start >= (2 * r->pictures + 1) * r->total / (2 * even);
	return r->o.fps <= 0 || (double)r->pictures / r->o.fps <= r->frame_s + 1e-6;
}

static bool has_all(const struct vfm_clip_reader *r)
{
	if (r->o.even && !r->is_image)
		return r->pictures >= r->o.even || r->pictures >= r->total;
	return r->o.most && r->pictures >= r->o.most;
}

static int give_picture(struct vfm_clip_reader *r, uint8_t *rgb, struct vfm_err *err)
{
	TRY(vfm_limit_check(&r->limit, r->src, err));
	TRY(vfm_video_rgb(
		r->video, r->width, r->height, r->o.fit == VFM_CLIP_COVER ? VFM_FIT_COVER : VFM_FIT_STRETCH, rgb, err));
	r->pictures++;
	return 1;
}

int vfm_clip_next(struct vfm_clip_reader *r, uint8_t *rgb, struct vfm_err *err)
{
	struct vfm_frame f;
	int rc;

	if (r->at_end || has_all(r))
		return 0;
	/* the frame of the picture before may be the next picture too */
	if (r->have_frame && !r->is_image && !r->o.even && r->o.fps > 0 &&
		(double)r->pictures / r->o.fps <= r->frame_s + 1e-6)
		return give_picture(r, rgb, err);
	while ((rc = decode_frame(r, &f, err)) == 1)
		if (is_due(r, &f))
			return give_picture(r, rgb, err);
	return rc;
}

int vfm_clip_whole_patches(const struct vfm_clip_reader *r, const struct vfm_geometry *g, int32_t patch_t,
	int64_t *frames, struct vfm_err *err)
{
	*frames = vfm_geometry_fit_patch(g, r->pictures, patch_t);
	if (*frames > 0)
		return 0;
	if (vfm_geometry_fit(g, r->pictures) > 0)
		return vfm_fail(err, VFM_EINPUT,
			"'%s' gives %lld frames: too few for latent frames in patches of %d (--patch)", r->src,
			(long long)r->pictures, patch_t);
	return vfm_fail(err, VFM_EINPUT, "'%s' gives %lld frames: the tokenizer takes at least %d", r->src,
		(long long)r->pictures, g->first);
}

int vfm_clip_count(const json_t *rec, double timeout_s, int threads, int64_t *frames, struct vfm_err *err)
{
	struct vfm_clip_reader r = {
		.o = {.threads = threads}, .limit = vfm_limit_start(timeout_s > 0 ? timeout_s : TIMEOUT_S)};
	const json_t *known = json_object_get(rec, "frames");
	struct vfm_frame f;
	int rc = open_range(&r, rec, err);

	*frames = 0;
	if (rc >= 0 && r.is_image)
		*frames = 1;
	else if (rc >= 0 && r.end >= 0)
		*frames = r.end - r.start;
	else if (rc >= 0 && json_is_integer(known) && json_integer_value(known) > r.start)
		*frames = json_integer_value(known) - r.start;
	else
		while (rc >= 0 && (rc = decode_frame(&r, &f, err)) == 1)
			(*frames)++;
	vfm_clip_close(&r);
	return rc < 0 ? rc : 0;
}

int vfm_thumbnails(struct vfm_thumbnails *t, const json_t *rec, int frames, int width, int height, double timeout_s,
	int threads, struct vfm_err *err)
{
	const struct vfm_clip_opts o = {.width = width,
		.height = height,
		.fit = VFM_CLIP_CONTAIN,
		.even = frames,
		.timeout_s = timeout_s,
		.threads = threads};
	struct vfm_clip_reader clip = {0};
	int rc = vfm_clip_open(&clip, rec, &o, err);

	*t = (struct vfm_thumbnails){0};
	if (rc >= 0) {
		size_t size = (size_t)clip.width * (size_t)clip.height * 3;

		t->width = clip.width;
		t->height = clip.height;
		t->rgb = vfm_malloc((size_t)frames * size);
		while (t->n < frames && (rc = vfm_clip_next(&clip, t->rgb + (size_t)t->n * size, err)) == 1)
			t->n++;
		if (rc == 0 && t->n == 0)
			rc = vfm_fail(err, VFM_EINPUT, "no frame can be decoded");
	}
	vfm_clip_close(&clip);
	return rc < 0 && t->n == 0 ? rc : 0;
}
