/* clips.c - the clips between the boundaries of shots; see scene.h. */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "media/shots/clips.h"
#include "media/shots/scene.h"

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

		if (rule->max <= 0)
			add_clip(l, a, b);
		else if (!rule->at && a < b)
			add_clip(l, a, end_of_clip(rule, rule->max, a, b));
		else /* around a frame that lasts long, a part becomes several clips */
			for (int64_t c; a < b; a = c)
				add_clip(l, a, c = end_of_clip(rule, rule->max, a, b));
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

int64_t vfm_clips_of(int64_t frames, const struct vfm_cut *cuts, int64_t n_cuts, const struct vfm_clip_rule *rule,
	struct vfm_span **spans)
{
	struct span_list l = {0};

	if (rule->stride > 0)
		add_strides(&l, frames, rule);
	for (int64_t i = 0; rule->stride <= 0 && i <= n_cuts; i++)
		add_shot_between(&l, i ? &cuts[i - 1] : NULL, i < n_cuts ? &cuts[i] : NULL, frames, rule);
	*spans = l.v;
	return l.n;
}
