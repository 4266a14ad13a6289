/* shots.c - decodes frames for the detector, turns its cuts into shots, and divides long shots. */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "media/av/times.h"
#include "media/shots/shots.h"

/* ---- clips between cuts ---- */

struct span_list {
	struct vfm_span *v;
	size_t cap;
	int64_t n;
};

static void add_clip(struct span_list *l, int64_t start, int64_t end)
{
	if (start >= end)
		return;
	vfm_grow(&l->v, &l->cap, (size_t)l->n + 1, sizeof(l->v[0]));
	l->v[l->n++] = (struct vfm_span){.start = start, .end = end, .start_confidence = -1, .end_confidence = -1};
}

static double place_of(const struct vfm_clip_rule *rule, int64_t frame)
{
	return rule->at ? rule->at[frame] : (double)frame;
}

/* Returns the last frame in [lo, hi] that is not after `place`. */
static int64_t frame_at(const struct vfm_clip_rule *rule, double place, int64_t lo, int64_t hi)
{
	while (lo < hi) {
		int64_t mid = lo + (hi - lo + 1) / 2;

		if (place_of(rule, mid) <= place + 1e-6)
			lo = mid;
		else
			hi = mid - 1;
	}
	return lo;
}

/* Returns the end of a clip that begins at `start`, is at most `most` long and has at least one frame. */
static int64_t end_of_clip(const struct vfm_clip_rule *rule, double most, int64_t start, int64_t end)
{
	int64_t at = frame_at(rule, place_of(rule, start) + most, start, end);

	return at > start ? at : start + 1;
}

/* Returns the first frame of part i of a shot. */
static int64_t start_of_part(const struct vfm_clip_rule *rule, int64_t start, int64_t end, int64_t i, int64_t parts)
{
	double from = place_of(rule, start), len = place_of(rule, end) - from;

	return i == parts ? end : frame_at(rule, from + len * (double)i / (double)parts, start, end);
}

static bool parts_fit(const struct vfm_clip_rule *rule, int64_t start, int64_t end, int64_t parts)
{
	for (int64_t i = 0; i < parts; i++)
		if (place_of(rule, start_of_part(rule, start, end, i + 1, parts)) -
				place_of(rule, start_of_part(rule, start, end, i, parts)) >
			rule->max + 1e-6)
			return false;
	return true;
}

static int64_t count_parts(const struct vfm_clip_rule *rule, int64_t start, int64_t end)
{
	double len = place_of(rule, end) - place_of(rule, start);
	int64_t parts = 1;

	if (rule->max > 0 && len > rule->max + 1e-6)
		parts = (int64_t)fmin(ceil((len - 1e-6) / rule->max), (double)(end - start));
	/* If equal parts were too short: fewer parts, each cut to the upper limit. */
	while (parts > 1 && len / (double)parts < rule->min - 1e-6)
		parts--;
	/* Parts begin at frames, so that with a varying rate one of them may be longer than the limit. */
	if (rule->at && parts > 1 && !parts_fit(rule, start, end, parts) && len / (double)(parts + 1) >= rule->min)
		parts++;
	return parts;
}

static void add_shot(struct span_list *l, int64_t start, int64_t end, const struct vfm_clip_rule *rule)
{
	int64_t parts = start < end ? count_parts(rule, start, end) : 0;

	for (int64_t i = 0; i < parts; i++) {
		int64_t a = start_of_part(rule, start, end, i, parts),
			b = start_of_part(rule, start, end, i + 1, parts);

		/* A part that exceeds the maximum, as around a frame that lasts long, becomes several clips. */
		for (int64_t c; a < b; a = c)
			add_clip(l, a, c = rule->max > 0 ? end_of_clip(rule, rule->max, a, b) : b);
	}
}

static void add_strides(struct span_list *l, int64_t frames, const struct vfm_clip_rule *rule)
{
	int64_t end;

	for (int64_t start = 0; start < frames; start = end) {
		end = end_of_clip(rule, rule->stride, start, frames);
		add_clip(l, start, end);
	}
}

/* Adds the clips of the shot between two cuts; NULL: the beginning or end of the file. */
static void add_shot_between(struct span_list *l, const struct vfm_cut *before, const struct vfm_cut *after,
	int64_t frames, const struct vfm_clip_rule *rule)
{
	int64_t start = before ? before->frame : 0, end = after ? after->from : frames, first = l->n;

	add_shot(l, start, end, rule);
	if (l->n == first)
		return;
	if (before)
		l->v[first].start_confidence = before->confidence;
	if (after && l->v[l->n - 1].end == end)
		l->v[l->n - 1].end_confidence = after->confidence;
}

static void add_transition(struct span_list *l, const struct vfm_cut *cut, int64_t frames)
{
	int64_t end = cut->frame < frames ? cut->frame : frames;
	struct vfm_span *span;

	if (cut->from >= end)
		return;
	add_clip(l, cut->from, end);
	span = &l->v[l->n - 1];
	span->kind = VFM_SPAN_TRANSITION;
	span->transition = cut->kind;
	span->start_confidence = span->end_confidence = cut->confidence;
}

int64_t vfm_spans_of(int64_t frames, const struct vfm_cut *cuts, int64_t n_cuts, const struct vfm_clip_rule *rule,
	struct vfm_span **spans)
{
	struct span_list l = {0};

	if (rule->stride > 0)
		add_strides(&l, frames, rule);
	for (int64_t i = 0; rule->stride <= 0 && i <= n_cuts; i++) {
		add_shot_between(&l, i ? &cuts[i - 1] : NULL, i < n_cuts ? &cuts[i] : NULL, frames, rule);
		if (i < n_cuts)
			add_transition(&l, &cuts[i], frames);
	}
	*spans = l.v;
	return l.n;
}

/* ---- frames ---- */

struct vfm_shot_track {
	struct vfm_shots_opts o;
	struct vfm_shots s; /* the facts of frames; without spans */
	size_t cap_t, cap_p, cap_e;
	bool bad_pts;
	struct vfm_times times;
	struct vfm_frame_rate claimed; /* by the header */
	double claimed_s;              /* end of the last frame, by the header */
	struct vfm_scene *scene;
	struct vfm_thumb thumb;
	const struct vfm_shot_detector *detector; /* NULL: scene */
	uint8_t *shown;                           /* a frame for it */
};

struct vfm_shot_track *vfm_shot_track_new(const struct vfm_shots_opts *o, const struct vfm_video_info *info)
{
	struct vfm_shot_track *t = vfm_calloc(1, sizeof(*t));

	t->o = *o;
	t->times.tick_s = info->tick_s;
	t->claimed = (struct vfm_frame_rate){info->fps_num, info->fps_den};
	t->claimed_s = info->stream_s;
	t->detector = o->stride ? NULL : o->detector;
	if (t->detector)
		t->shown = vfm_malloc((size_t)t->detector->width * (size_t)t->detector->height * 3);
	t->scene = o->stride || t->detector ? NULL : vfm_scene_new((double)info->fps_num / info->fps_den);
	return t;
}

void vfm_shot_track_free(struct vfm_shot_track *t)
{
	if (!t)
		return;
	vfm_shots_release(&t->s);
	vfm_scene_free(t->scene);
	free(t->shown);
	free(t);
}

int vfm_shot_track_push(struct vfm_shot_track *t, struct vfm_video *v, const struct vfm_frame *f, struct vfm_err *err)
{
	struct vfm_shots *s = &t->s;
	int64_t n = s->frames++;

	vfm_grow(&s->time_s, &t->cap_t, (size_t)n + 2, sizeof(s->time_s[0]));
	vfm_grow(&s->pts, &t->cap_p, (size_t)n + 1, sizeof(s->pts[0]));
	vfm_grow(&s->damaged, &t->cap_e, (size_t)n + 2, sizeof(s->damaged[0]));
	s->time_s[n] = f->time_s;
	s->pts[n] = f->pts;
	s->damaged[0] = 0;
	s->damaged[n + 1] = s->damaged[n] + f->damaged;
	if (f->pts == INT64_MIN || (n && f->pts <= s->pts[n - 1]))
		t->bad_pts = true;
	vfm_times_add(&t->times, f->time_s);
	if (t->detector) {
		TRY(vfm_video_rgb(v, t->detector->width, t->detector->height, VFM_FIT_STRETCH, t->shown, err));
		return t->detector->push(t->detector->ctx, t->shown, err);
	}
	if (!t->scene)
		return 0;
	TRY(vfm_video_thumb(v, &t->thumb, err));
	vfm_scene_push(t->scene, &t->thumb);
	return 0;
}

bool vfm_shot_track_may_cut(const struct vfm_shot_track *t, int64_t from, int64_t to)
{
	return !t->scene || vfm_scene_may_cut(t->scene, from, to);
}

/* Lengths are counted in frames, so that clips of a constant rate have equal numbers of frames, and in seconds if the
 * rate varies. */
static struct vfm_clip_rule clip_rule(const struct vfm_shot_track *t, const struct vfm_shots *s, double fps)
{
	const struct vfm_shots_opts *o = &t->o;
	struct vfm_clip_rule rule = {.min = o->min_s, .max = o->max_s, .at = s->time_s};

	if (!vfm_times_vary(&t->times)) {
		rule.min = fmax(1, ceil(o->min_s * fps - 1e-6));
		rule.max = o->max_s > 0 ? fmax(1, floor(o->max_s * fps + 1e-6)) : 0;
		rule.at = NULL;
	}
	if (o->stride)
		rule.stride = rule.max > 0 ? rule.max : (double)s->frames;
	return rule;
}

/* Copies the facts of the frames so far; computes the times if those of the file are bad. */
static void copy_frames(const struct vfm_shot_track *t, struct vfm_frame_rate rate, struct vfm_shots *s)
{
	size_t n = (size_t)t->s.frames;

	*s = (struct vfm_shots){.frames = t->s.frames};
	s->time_s = vfm_memdup(t->s.time_s, (n + 1) * sizeof(s->time_s[0]));
	s->damaged = vfm_memdup(t->s.damaged, (n + 1) * sizeof(s->damaged[0]));
	s->pts = t->bad_pts ? NULL : vfm_memdup(t->s.pts, n * sizeof(s->pts[0]));
	for (size_t i = 0; vfm_times_bad(&t->times) && i < n; i++)
		s->time_s[i] = (double)i * rate.den / rate.num;
	s->time_s[n] = s->time_s[0] + vfm_times_duration(&t->times, rate, t->claimed_s);
}

int vfm_shot_track_shots(const struct vfm_shot_track *t, struct vfm_shots *s, struct vfm_err *err)
{
	struct vfm_frame_rate rate = vfm_times_rate(&t->times, t->claimed);
	const struct vfm_cut *cuts = NULL;
	struct vfm_clip_rule rule;
	struct vfm_scene *scene;
	int64_t n_cuts = 0;
	int rc = 0;

	if (!t->s.frames)
		return vfm_fail(err, VFM_EINPUT, "no frame can be decoded");
	scene = t->scene ? vfm_scene_copy(t->scene) : NULL;
	if (rate.num < 1 || rate.den < 1)
		rate = (struct vfm_frame_rate){25, 1};
	copy_frames(t, rate, s);
	if (t->detector)
		TRY_OUT(t->detector->cuts(t->detector->ctx, &cuts, &n_cuts, err));
	else if (scene)
		cuts = vfm_scene_cuts(scene, t->o.threshold, !t->o.hard_only, &n_cuts);
	rule = clip_rule(t, s, (double)rate.num / rate.den);
	s->n = vfm_spans_of(s->frames, cuts, n_cuts, &rule, &s->spans);
	/* A clock of milliseconds may round 24 frames down to less than a second. */
	for (int64_t i = 0; i < s->n; i++)
		if (s->spans[i].kind == VFM_SPAN_CLIP &&
			vfm_shots_length_s(s, &s->spans[i]) < t->o.min_s - t->times.tick_s)
			s->spans[i].kind = VFM_SPAN_SHORT;
out:
	if (rc < 0)
		vfm_shots_release(s);
	vfm_scene_free(scene);
	return rc;
}

double vfm_shots_length_s(const struct vfm_shots *s, const struct vfm_span *span)
{
	return round((s->time_s[span->end] - s->time_s[span->start]) * 1e6) / 1e6;
}

int vfm_shots_file(struct vfm_shots *s, const char *path, const struct vfm_shots_opts *o, struct vfm_err *err)
{
	struct vfm_video_opts video = o->video;
	struct vfm_shot_track *t;
	struct vfm_video *v;
	struct vfm_frame f;
	int rc;

	*s = (struct vfm_shots){0};
	video.deinterlace = VFM_DEINTERLACE_OFF;
	TRY(vfm_video_open(&v, path, &video, err));
	t = vfm_shot_track_new(o, vfm_video_info(v));
	while ((rc = vfm_video_next(v, &f, err)) == 1)
		TRY_OUT(vfm_shot_track_push(t, v, &f, err));
	if (rc == 0 && vfm_shot_track_shots(t, s, err) < 0)
		rc = vfm_err_context(err, "'%s'", path);
out:
	vfm_shot_track_free(t);
	vfm_video_close(v);
	return rc;
}

void vfm_shots_release(struct vfm_shots *s)
{
	free(s->spans);
	free(s->time_s);
	free(s->pts);
	free(s->damaged);
	*s = (struct vfm_shots){0};
}
