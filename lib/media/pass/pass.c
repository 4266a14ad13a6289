/* pass.c - the loop over the frames of a file, the frames that it keeps, and the work on clips. */
#include "media/pass/pass.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "media/av/video_out.h"

enum {
	CHECK = 32,  /* frames between searches for clips */
	MARGIN = 72, /* frames after a clip before its boundaries seem certain: most dissolves are shorter */
};

/* Numbers that the file of a clip depends on, which are certain only at the end. */
struct clip_times {
	int fps_num, fps_den;
	bool vfr, bad_times;
	double length_s;
};

struct pass_clip {
	struct vfm_pass_clip c;
	struct clip_times times;
};

struct decode_pass {
	const char *path;
	const struct vfm_pass_opts *o;
	struct vfm_pass *r;
	struct vfm_video *v;
	struct vfm_limit limit; /* without the work on clips, which have limits of their own */
	struct vfm_prober prober;
	struct vfm_shot_track *track; /* NULL: an image, or the frames cannot be converted */
	struct vfm_kept_frame **kept; /* [n_kept], from frame `first` on */
	size_t kept_cap, kept_bytes;
	struct vfm_cut_shape shape; /* of the files */
	int64_t first, n_kept;
	int64_t closed; /* the frames before it belong to clips and transitions that were worked on */
	struct pass_clip *clips;
	size_t clips_cap;
	int n_clips;
};

/* ---- kept frames ---- */

/* Returns whether the clips have no results: files and hashes of an interlaced video are those of deinterlaced frames. */
static bool discards_clips(const struct decode_pass *p)
{
	return p->r->probe.interlaced && (p->o->cut || p->o->hash);
}

/* Frees the kept frames before `from`. */
static void drop_frames(struct decode_pass *p, int64_t from)
{
	int64_t n = from - p->first < p->n_kept ? from - p->first : p->n_kept;

	if (n <= 0)
		return;
	for (int64_t i = 0; i < n; i++) {
		p->kept_bytes -= vfm_kept_frame_bytes(p->kept[i]);
		vfm_kept_frame_free(p->kept[i]);
	}
	p->n_kept -= n;
	p->first += n;
	memmove(p->kept, p->kept + n, (size_t)p->n_kept * sizeof(p->kept[0]));
}

/* Extends the limit of the pass by the time since `began`, which was work on clips. */
static void exclude_from_limit(struct decode_pass *p, double began)
{
	double took = vfm_now() - began;

	p->limit.until += took;
	vfm_video_extend_limit(p->v, took);
}

/* Keeps the frame that was decoded last, or, if that is enough, its picture in the clip. */
static void keep_frame(struct decode_pass *p, const struct vfm_frame *f)
{
	double began = vfm_now();
	struct vfm_kept_frame *k = p->o->cut
		? vfm_video_keep_picture(p->v, f, p->shape.width, p->shape.height, VFM_FIT_COVER, p->shape.layout)
		: vfm_video_keep(p->v, f);

	exclude_from_limit(p, began);
	if (!k) { /* the frames must follow each other */
		drop_frames(p, f->index);
		p->first = f->index + 1;
		return;
	}
	vfm_grow(&p->kept, &p->kept_cap, (size_t)p->n_kept + 1, sizeof(p->kept[0]));
	p->kept[p->n_kept++] = k;
	p->kept_bytes += vfm_kept_frame_bytes(k);
}

/* ---- a clip ---- */

struct clip_analyzers {
	struct vfm_scorer *scorer;
	struct vfm_clip_hasher *hasher;
};

static void free_analyzers(struct clip_analyzers *l)
{
	vfm_scorer_free(l->scorer);
	vfm_clip_hasher_free(l->hasher);
}

static struct clip_analyzers start_analyzers(
	bool score, bool hash, const struct vfm_score_opts *o, const struct vfm_video *v)
{
	return (struct clip_analyzers){
		score ? vfm_scorer_new(o, vfm_video_info(v)) : NULL, hash ? vfm_clip_hasher_new() : NULL};
}

static int analyze_frame(struct clip_analyzers *l, struct vfm_video *v, const struct vfm_frame *f, struct vfm_err *err)
{
	if (l->scorer)
		TRY(vfm_scorer_push(l->scorer, v, f, err));
	return l->hasher ? vfm_clip_hasher_push(l->hasher, v, f, err) : 0;
}

static int finish_analyzers(struct clip_analyzers *l, const struct vfm_video *v, struct vfm_score *score,
	struct vfm_clip_hash *hash, struct vfm_err *err)
{
	if (l->scorer)
		TRY(vfm_scorer_finish(l->scorer, score, err));
	return l->hasher ? vfm_clip_hasher_finish(l->hasher, vfm_video_info(v)->image, hash, err) : 0;
}

int vfm_pass_clip_of(const char *path, const struct vfm_score_opts *o, struct vfm_score *score,
	struct vfm_clip_hash *hash, bool *hashed, struct vfm_err *err)
{
	int64_t want = o->end < 0 ? INT64_MAX : o->end - o->start;
	struct vfm_video_opts video = o->video;
	struct clip_analyzers l = {0};
	struct vfm_video *v;
	struct vfm_frame f;
	int rc = 1;

	video.deinterlace = VFM_DEINTERLACE_OFF;
	TRY(vfm_video_open(&v, path, &video, err));
	if (o->start > 0)
		TRY_OUT(vfm_video_seek(v, o->start, o->start_pts, err));
	l = start_analyzers(score, hash, o, v);
	*hashed = hash && !vfm_video_info(v)->interlaced;
	for (int64_t i = 0; i < want && (rc = vfm_video_next(v, &f, err)) == 1; i++) {
		*hashed &= !f.interlaced; /* a hash is that of deinterlaced frames */
		TRY_OUT(analyze_frame(&l, v, &f, err));
	}
	TRY_OUT(rc);
	TRY_OUT(vfm_video_check_end(v, o->end, err));
	rc = finish_analyzers(&l, v, score, hash, err);
out:
	free_analyzers(&l);
	vfm_video_close(v);
	return rc;
}

static int analyze_kept_clip(struct decode_pass *p, struct vfm_pass_clip *c, struct vfm_err *err)
{
	struct vfm_score_opts o = {.start = c->start, .end = c->end, .about = c->end - c->start};
	struct clip_analyzers l = start_analyzers(c->score, c->hash, &o, p->v);
	struct vfm_frame f;
	int rc = 0;

	for (int64_t i = c->start; i < c->end; i++) {
		TRY_OUT(vfm_video_show(p->v, p->kept[i - p->first], &f, err));
		TRY_OUT(analyze_frame(&l, p->v, &f, err));
	}
	rc = finish_analyzers(&l, p->v, c->score, c->hash, err);
out:
	free_analyzers(&l);
	return rc;
}

static int analyze_clip_file(const struct decode_pass *p, struct vfm_pass_clip *c, struct vfm_err *err)
{
	struct vfm_score_opts o = {
		.video = {.threads = p->o->video.threads}, .end = -1, .start_pts = INT64_MIN, .about = c->cut.frames};
	bool hashed;

	TRY(vfm_pass_clip_of(c->file, &o, c->score, c->hash, &hashed, err));
	return hashed || !c->hash ? 0 : VFM_EINPUT;
}

static struct clip_times times_of_clip(
	const struct decode_pass *p, const struct vfm_shots *s, const struct vfm_span *span)
{
	const struct vfm_times *t = &p->prober.times;
	const struct vfm_video_info *i = vfm_video_info(p->v);
	struct vfm_frame_rate rate = vfm_times_rate(t, (struct vfm_frame_rate){i->fps_num, i->fps_den});

	/* Records have the times in microseconds. */
	return (struct clip_times){rate.num, rate.den, vfm_times_vary(t), vfm_times_bad(t),
		round(s->time_s[span->end] * 1e6) / 1e6 - round(s->time_s[span->start] * 1e6) / 1e6};
}

static bool same_times(const struct clip_times *a, const struct clip_times *b)
{
	return a->fps_num == b->fps_num && a->fps_den == b->fps_den && a->vfr == b->vfr &&
		a->bad_times == b->bad_times && a->length_s == b->length_s;
}

/* Writes the file of a clip from kept frames. */
static int write_kept_clip(struct decode_pass *p, struct pass_clip *c, const struct vfm_shots *s, struct vfm_err *err)
{
	static _Atomic unsigned number;
	struct vfm_cut_clip cut = {.o = *p->o->cut};
	char *path = vfm_strfmt("%s/%s%u.%s", p->o->dir, p->o->prefix, atomic_fetch_add(&number, 1),
		vfm_video_out_extension(cut.o.codec));

	cut.out = path;
	cut.o.start = c->c.start;
	cut.o.end = c->c.end;
	cut.o.start_pts = s->pts ? s->pts[c->c.start] : INT64_MIN;
	cut.o.fps_num = c->times.fps_num;
	cut.o.fps_den = c->times.fps_den;
	cut.o.vfr = c->times.vfr;
	cut.o.bad_times = c->times.bad_times;
	cut.o.length_s = c->times.length_s;
	vfm_cut_kept(p->path, &cut, p->v, p->kept + (c->c.start - p->first), c->c.end - c->c.start);
	if (cut.rc < 0) {
		free(path);
		*err = cut.err;
		return cut.rc;
	}
	c->c.file = path;
	c->c.cut = cut.result;
	return 0;
}

static void release_clip(struct vfm_pass_clip *c)
{
	if (c->file)
		unlink(c->file);
	free(c->file);
	free(c->score);
	free(c->hash);
	*c = (struct vfm_pass_clip){0};
}

/* Works on a clip whose frames are kept.  After an error, the clip has no results. */
static void work_on_clip(struct decode_pass *p, const struct vfm_shots *s, const struct vfm_span *span)
{
	const struct vfm_pass_opts *o = p->o;
	struct pass_clip c = {.c = {.start = span->start, .end = span->end}, .times = times_of_clip(p, s, span)};
	struct vfm_err err = {0};
	double began = vfm_now();
	int rc = 0;

	if (o->score)
		c.c.score = vfm_calloc(1, sizeof(*c.c.score));
	if (o->hash)
		c.c.hash = vfm_calloc(1, sizeof(*c.c.hash));
	if (o->cut)
		rc = write_kept_clip(p, &c, s, &err);
	if (rc == 0 && (o->score || o->hash))
		rc = o->cut ? analyze_clip_file(p, &c.c, &err) : analyze_kept_clip(p, &c.c, &err);
	exclude_from_limit(p, began);
	if (rc < 0) {
		release_clip(&c.c);
		return;
	}
	vfm_grow(&p->clips, &p->clips_cap, (size_t)p->n_clips + 1, sizeof(p->clips[0]));
	p->clips[p->n_clips++] = c;
}

/* ---- clips whose boundaries seem certain ---- */

static int64_t margin_of(const struct decode_pass *p)
{
	return p->o->shots.stride ? 1 : MARGIN;
}

/* Returns the number of spans, from the first on, that later frames probably leave as they are: up to the last cut that
 * is far enough behind. */
static int64_t count_closed(const struct decode_pass *p, const struct vfm_shots *s)
{
	int64_t n = 0;

	for (int64_t i = 0; i < s->n; i++) {
		const struct vfm_span *span = &s->spans[i];
		bool is_bounded = p->o->shots.stride || span->kind == VFM_SPAN_TRANSITION || span->end_confidence >= 0;

		if (is_bounded && span->end + margin_of(p) <= s->frames)
			n = i + 1;
	}
	return n;
}

/* Works on the clips that are closed, and frees their frames. */
static void close_clips(struct decode_pass *p, const struct vfm_shots *s, int64_t n_closed)
{
	for (int64_t i = 0; i < n_closed; i++) {
		const struct vfm_span *span = &s->spans[i];

		if (span->start < p->closed)
			continue;
		p->closed = span->end;
		if (span->kind == VFM_SPAN_CLIP && span->start >= p->first && span->end <= p->first + p->n_kept)
			work_on_clip(p, s, span);
		drop_frames(p, p->closed);
	}
}

static void work_on_closed_clips(struct decode_pass *p)
{
	struct vfm_err err = {0};
	struct vfm_shots s;

	/* The mean of a varying rate is known at the end. */
	if (p->o->cut && vfm_times_vary(&p->prober.times))
		return;
	if (vfm_shot_track_shots(p->track, &s, &err) < 0)
		return;
	close_clips(p, &s, count_closed(p, &s));
	vfm_shots_release(&s);
}

static void add_frame(struct decode_pass *p, const struct vfm_frame *f)
{
	struct vfm_err err = {0};

	if (!p->track)
		return;
	if (vfm_shot_track_push(p->track, p->v, f, &err) < 0) { /* as if the video had no shots: split says why */
		drop_frames(p, INT64_MAX);
		vfm_shot_track_free(p->track);
		p->track = NULL;
		return;
	}
	if (!(p->o->score || p->o->hash || p->o->cut) || discards_clips(p)) {
		drop_frames(p, INT64_MAX);
		return;
	}
	keep_frame(p, f);
	if ((f->index + 1) % CHECK == 0 && vfm_shot_track_may_cut(p->track, p->closed + 1, f->index + 1 - margin_of(p)))
		work_on_closed_clips(p);
	while (p->kept_bytes > p->o->kept_bytes)
		drop_frames(p, p->first + 1);
}

/* ---- the end ---- */

/* Returns whether a span of the whole video is the clip, with the times that its file depends on. */
static bool is_final_clip(const struct decode_pass *p, const struct pass_clip *c, const struct vfm_span *span)
{
	struct clip_times times = times_of_clip(p, &p->r->shots, span);

	return span->kind == VFM_SPAN_CLIP && span->start == c->c.start && span->end == c->c.end &&
		(!p->o->cut || same_times(&c->times, &times));
}

/* Passes the results of clips whose boundaries and times are the final ones. */
static void take_clips(struct decode_pass *p)
{
	struct vfm_pass *r = p->r;
	const struct vfm_span *span = r->shots.spans, *end = span + r->shots.n;
	bool discards_all = discards_clips(p);

	r->clips = vfm_calloc((size_t)p->n_clips + 1, sizeof(r->clips[0]));
	for (int i = 0; i < p->n_clips; i++) {
		struct pass_clip *c = &p->clips[i];

		while (span < end && span->start < c->c.start) /* both are in order */
			span++;
		if (discards_all || span == end || !is_final_clip(p, c, span))
			release_clip(&c->c);
		else
			r->clips[r->n_clips++] = c->c;
	}
	p->n_clips = 0;
}

static void finish_video(struct decode_pass *p)
{
	struct vfm_err err = {0};

	if (!p->track || vfm_shot_track_shots(p->track, &p->r->shots, &err) < 0)
		return;
	close_clips(p, &p->r->shots, p->r->shots.n);
	take_clips(p);
}

/* Scores and hashes an image. */
static void analyze_image(struct decode_pass *p, const struct vfm_frame *f)
{
	struct vfm_score_opts o = {.end = -1, .about = 1};
	struct clip_analyzers l = start_analyzers(p->o->score, p->o->hash, &o, p->v);
	struct vfm_pass_clip c = {.end = 1};
	struct vfm_err err = {0};

	if (l.scorer)
		c.score = vfm_calloc(1, sizeof(*c.score));
	if (l.hasher)
		c.hash = vfm_calloc(1, sizeof(*c.hash));
	if (analyze_frame(&l, p->v, f, &err) < 0 || finish_analyzers(&l, p->v, c.score, c.hash, &err) < 0) {
		release_clip(&c);
	} else {
		p->r->clips = vfm_memdup(&c, sizeof(c));
		p->r->n_clips = 1;
	}
	free_analyzers(&l);
}

static int decode_frames(struct decode_pass *p, struct vfm_err *err)
{
	struct vfm_frame f;
	int rc;

	while ((rc = vfm_video_next(p->v, &f, err)) == 1) {
		vfm_prober_add(&p->prober, &f);
		add_frame(p, &f);
		if (vfm_video_info(p->v)->image && (p->o->score || p->o->hash) && !p->o->cut)
			analyze_image(p, &f);
	}
	return rc;
}

int vfm_pass_file(struct vfm_pass *r, const char *path, const struct vfm_pass_opts *o, struct vfm_err *err)
{
	struct decode_pass p = {.path = path, .o = o, .r = r, .limit = o->video.limit};
	int rc;

	*r = (struct vfm_pass){0};
	TRY(vfm_video_open(&p.v, path, &o->video, err));
	vfm_prober_begin(&p.prober, &r->probe, p.v);
	if (o->cut)
		p.shape = vfm_cut_shape(o->cut, vfm_video_info(p.v));
	if (!r->probe.info.image)
		p.track = vfm_shot_track_new(&o->shots, vfm_video_info(p.v));
	TRY_OUT(decode_frames(&p, err));
	if (o->facts)
		TRY_OUT(vfm_prober_end(&p.prober, p.v, path, &p.limit, err));
	if (!r->probe.info.image)
		finish_video(&p);
out:
	drop_frames(&p, INT64_MAX);
	free(p.kept);
	for (int i = 0; i < p.n_clips; i++)
		release_clip(&p.clips[i].c);
	free(p.clips);
	vfm_shot_track_free(p.track);
	vfm_video_close(p.v);
	if (rc < 0)
		vfm_pass_release(r);
	return rc;
}

void vfm_pass_discard_clips(struct vfm_pass *r)
{
	for (int i = 0; i < r->n_clips; i++)
		release_clip(&r->clips[i]);
	free(r->clips);
	r->clips = NULL;
	r->n_clips = 0;
}

void vfm_pass_release(struct vfm_pass *r)
{
	vfm_pass_discard_clips(r);
	vfm_shots_release(&r->shots);
}
