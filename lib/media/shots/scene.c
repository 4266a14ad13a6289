/* scene.c - the criteria of cuts, dissolves and fades, and the confidence, whose trees bench/shots-calibrate prints.
 *
 * Hard cut: the frames before and after differ in colour, and no pair of frames across the cut matches by blocks, but
 * the frames of each side match among themselves.  A difference no larger than within a side (fast motion) is no cut; a
 * side ends at another change of nearly the same size.  Blocks are compared after division by the local contrast.
 *
 * Dissolve: the frames between two different pictures are mixtures with a steadily growing share, also after division
 * by the local contrast.  The shots on either side change less over as many frames.
 *
 * Fade: frames of one colour, apart from a logo or black bars, between different pictures, or a long black; together
 * with the neighbouring frames of reduced contrast.  In a short fade, the frame of least contrast takes their place.  If
 * frames of both sides match, it is no fade.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/stats.h"
#include "media/shots/scene_impl.h"

#define AROUND       6     /* neighbours on either side, for the local rate of change */
#define FAR          4     /* frames apart within a side */
#define MAYBE        0.2   /* confidence of a candidate that may become a cut */
#define DELAY        9     /* frames after a candidate before it is evaluated */
#define CHANGE       1.5f  /* change of pixels below which nothing happens */
#define MATCHED      0.3f  /* residual of block matching below which two frames are of one shot */
#define FEW_TEXTURED 0.25f /* share of blocks with texture below which a match says little */
#define RECOLOURED   0.6f  /* difference of colours of two such pictures that are not of one shot */
#define APART        2     /* hard cuts are further apart */
#define ALSO_CUT     0.7f  /* so much of the change at a cut, a frame of its sides begins or ends another shot */
#define BLEND_REST   0.2f  /* largest residual of a mixture, as a share of the change */
#define BLEND_NOISE  1.0f  /* … and levels more */
#define BLEND_NEAR   0.35f /* largest change next to it, as a share of the change */
#define LESS_ABRUPT  0.3f  /* a cut changes more than this share of the change next to it */

struct vfm_scene *vfm_scene_new(double fps)
{
	struct vfm_scene *s = vfm_calloc(1, sizeof(struct vfm_scene));

	s->flash = fps > 0 ? (int)fmin(8, fmax(3, round(fps / 6))) : 4;
	s->second = fps > 0 ? (int)fmax(1, round(fps)) : 25;
	s->run_first = -1;
	s->evaluated = 1;
	return s;
}

bool vfm_scene_may_cut(const struct vfm_scene *s, int64_t from, int64_t to)
{
	/* Candidates come in the order of their frames, apart from the length of a dissolve. */
	for (int64_t i = s->n_candidates; i-- > 0 && s->candidates[i].frame >= from;)
		if (s->candidates[i].frame <= to && s->candidates[i].confidence >= MAYBE)
			return true;
	for (int64_t i = s->n_dissolves; i-- > 0 && s->dissolves[i].frame >= from - SCENE_RING;)
		if (s->dissolves[i].frame >= from && s->dissolves[i].frame <= to && s->dissolves[i].confidence >= MAYBE)
			return true;
	for (int64_t i = s->n_runs; i-- > 0 && s->runs[i].end >= from;)
		if (s->runs[i].end <= to)
			return true;
	return false;
}

struct vfm_scene *vfm_scene_copy(const struct vfm_scene *s)
{
	struct vfm_scene *c = vfm_memdup(s, sizeof(*s));

	c->p = vfm_memdup(s->p, s->cap * sizeof(s->p[0]));
	c->candidates = vfm_memdup(s->candidates, s->candidates_cap * sizeof(s->candidates[0]));
	c->dissolves = vfm_memdup(s->dissolves, s->dissolves_cap * sizeof(s->dissolves[0]));
	c->runs = vfm_memdup(s->runs, s->runs_cap * sizeof(s->runs[0]));
	c->chosen = NULL;
	c->cuts = NULL;
	c->chosen_cap = c->cuts_cap = 0;
	c->n_chosen = c->n_cuts = 0;
	return c;
}

void vfm_scene_free(struct vfm_scene *s)
{
	if (!s)
		return;
	free(s->p);
	free(s->chosen);
	free(s->cuts);
	free(s->candidates);
	free(s->dissolves);
	free(s->runs);
	free(s);
}

void vfm_scene_differ(const struct vfm_sig *a, const struct vfm_sig *b, float f[4])
{
	struct vfm_sig_diff d;

	vfm_sig_compare(a, b, &d);
	f[0] = d.moved;
	f[1] = d.blocks;
	f[2] = d.hist;
	f[3] = d.pixel / (d.pixel + 4 + 0.5f * (a->std + b->std));
}

/* ---- confidence ---- */

/* A tree of three comparisons: from node i to 2 i + 1 if f[at[i]] <= than[i], else to 2 i + 2; the leaves follow. */
struct tree {
	uint8_t at[7];
	float than[7], leaf[8];
};

struct model {
	float bias;
	int n;
	const struct tree *trees;
};

#include "media/shots/scene_trees.h"

static double confidence_of(const struct vfm_cut_candidate *c)
{
	const struct model *m = &models[c->kind];
	double x = (double)m->bias;

	for (int k = 0; k < m->n; k++) {
		const struct tree *t = &m->trees[k];
		int i = 0;

		while (i < 7)
			i = c->f[t->at[i]] <= t->than[i] ? 2 * i + 1 : 2 * i + 2;
		x += (double)t->leaf[i - 7];
	}
	return 1 / (1 + exp(-x));
}

void vfm_scene_add_candidate(struct vfm_scene *s, const struct vfm_cut_candidate *c)
{
	vfm_grow(&s->candidates, &s->candidates_cap, (size_t)s->n_candidates + 1, sizeof(s->candidates[0]));
	s->candidates[s->n_candidates] = *c;
	s->candidates[s->n_candidates++].confidence = confidence_of(c);
}

/* ---- hard cuts ---- */

/* Returns the median change of the frames around t, without t. */
static float local_change(const struct vfm_scene *s, int64_t t)
{
	float v[2 * AROUND] = {0};
	int n = 0;

	for (int64_t u = t - AROUND; u <= t + AROUND; u++)
		if (u > 0 && u < s->n && u != t)
			v[n++] = s->p[u].change;
	vfm_sort_f32(v, (size_t)n);
	return n ? v[n / 2] : 0;
}

/* Lowers f[] to what frames a and b differ. */
static void take_least(const struct vfm_scene *s, int64_t a, int64_t b, float f[4])
{
	float x[4];

	if (a < 0 || b >= s->n)
		return;
	vfm_scene_differ(scene_sig(s, a), scene_sig(s, b), x);
	for (int i = 0; i < 4; i++)
		f[i] = fminf(f[i], x[i]);
}

/* Returns whether the blocks of two frames match, by the least differences f[].  Of two pictures with hardly any
 * texture they always do, so that their colours must match, too. */
static bool is_matched(const float f[4], bool textured)
{
	return f[0] < MATCHED && (textured || f[2] < RECOLOURED);
}

/* Lowers f[0..3] to the least difference of two frames across the cut between t - 1 and t.  Returns false if two of
 * them are nearly the same picture, moved: then t is no cut. */
static bool differs_across(const struct vfm_scene *s, int64_t t, float f[4])
{
	const int gaps[] = {0, 1, 2, s->flash};
	bool textured = fmaxf(vfm_sig_textured(scene_sig(s, t - 1)), vfm_sig_textured(scene_sig(s, t))) > FEW_TEXTURED;

	for (int i = 0; i < 4; i++)
		f[i] = 1;
	for (int k = 0; k < 4; k++) {
		take_least(s, t - 1, t + gaps[k], f);
		if (gaps[k])
			take_least(s, t - 1 - gaps[k], t, f);
		if (is_matched(f, textured))
			return false;
	}
	take_least(s, t - 2, t + 1, f);
	return !is_matched(f, textured);
}

/* Returns how many frames the shot on one side of the cut at t continues, at most FAR: to the next change that may be a
 * cut, too. */
static int side_length(const struct vfm_scene *s, int64_t t, int step)
{
	int64_t u = step < 0 ? t - 1 : t;
	int n = 0;

	for (; n < FAR && u + step >= 0 && u + step < s->n; n++, u += step)
		if (s->p[step < 0 ? u : u + 1].change > ALSO_CUT * s->p[t].change)
			break;
	return n;
}

/* How much the `length` frames of a side that begins at a differ among themselves.  Returns false if there are none. */
static bool side_features(const struct vfm_scene *s, int64_t a, int step, int length, float near[4], float far[4])
{
	if (!length)
		return false;
	vfm_scene_differ(scene_sig(s, a), scene_sig(s, a + step), near);
	vfm_scene_differ(scene_sig(s, a + step * length), scene_sig(s, a), far);
	return true;
}

/* How much larger the change is than those of either side: f[0], f[1] of the side of more, of less difference,
 * f[2] than those of the nearest two frames. */
static void abrupt_features(const struct vfm_scene *s, int64_t t, float f[3])
{
	float most[2] = {0}, near = 0, x = s->p[t].change + 1;

	for (int64_t u = t - AROUND; u <= t + AROUND; u++) {
		if (u <= 0 || u >= s->n || u == t)
			continue;
		most[u > t] = fmaxf(most[u > t], s->p[u].change);
		if (u >= t - 2 && u <= t + 2)
			near = fmaxf(near, s->p[u].change);
	}
	f[0] = logf(x / (fminf(most[0], most[1]) + 1));
	f[1] = logf(x / (fmaxf(most[0], most[1]) + 1));
	f[2] = logf(x / (near + 1));
}

/* Little texture says little about motion, and a number that changes on one colour covers few pixels: f[0] least, f[1]
 * most share of textured blocks, f[2] share of pixels that change. */
static void texture_features(const struct vfm_sig *a, const struct vfm_sig *b, float f[3])
{
	float x = vfm_sig_textured(a), y = vfm_sig_textured(b);

	f[0] = fminf(x, y);
	f[1] = fmaxf(x, y);
	f[2] = vfm_sig_area(a, b);
}

/* The evidence for a cut between t - 1 and t; f[0..3] are known. */
static void cut_features(const struct vfm_scene *s, int64_t t, float f[VFM_SCENE_FEATURES])
{
	float near[2][4], far[2][4], wide[4] = {1, 1, 1, 1};
	int before = side_length(s, t, -1), after = side_length(s, t, 1);
	bool left = side_features(s, t - 1, -1, before, near[0], far[0]);
	bool right = side_features(s, t, 1, after, near[1], far[1]);

	if (!left && !right)
		memset(near, 0, sizeof(near)), memset(far, 0, sizeof(far));
	else if (!left || !right) {
		memcpy(near[left], near[!left], sizeof(near[0]));
		memcpy(far[left], far[!left], sizeof(far[0]));
	}
	take_least(s, t - 1 - before, t + after, wide);
	for (int i = 0; i < 4; i++) {
		f[4 + i] = fmaxf(near[0][i], near[1][i]);
		f[8 + i] = fmaxf(far[0][i], far[1][i]);
		f[12 + i] = fminf(far[0][i], far[1][i]);
		f[16 + i] = wide[i];
	}
	f[20] = logf((s->p[t].change + 1) / (local_change(s, t) + 1));
	f[22] = vfm_sig_spread(scene_sig(s, t - 1), scene_sig(s, t));
	f[23] = t >= 2 && t + 1 < s->n ? vfm_sig_spread(scene_sig(s, t - 2), scene_sig(s, t + 1)) : f[22];
	abrupt_features(s, t, f + 24);
	f[27] = vfm_sig_shifted(scene_sig(s, t - 1), scene_sig(s, t));
	f[21] = logf(1 + fminf(scene_sig(s, t - 1)->std, scene_sig(s, t)->std));
	texture_features(scene_sig(s, t - 1), scene_sig(s, t), f + 28);
}

/* A flash or another cut next to it may change more. */
static bool may_be_cut(const struct vfm_scene *s, int64_t t)
{
	float x = s->p[t].change;

	return x > CHANGE && (t < 2 || x > LESS_ABRUPT * s->p[t - 1].change) &&
		(t + 1 >= s->n || x > LESS_ABRUPT * s->p[t + 1].change) && x > 1.2f * local_change(s, t);
}

static void evaluate_change(struct vfm_scene *s, int64_t t)
{
	float across[4];
	struct vfm_cut_candidate c = {.from = t, .frame = t, .kind = VFM_CUT_HARD};

	/* Frames of one colour are candidates of their own, with both of their ends. */
	if (!may_be_cut(s, t) || s->p[t - 1].plain || s->p[t].plain || !differs_across(s, t, across))
		return;
	memcpy(c.f, across, sizeof(across));
	cut_features(s, t, c.f);
	vfm_scene_add_candidate(s, &c);
}

/* ---- frames ---- */

/* If a frame between a and b is a mixture of both, with a mean residual below `most` levels, returns the share of b;
 * else 0. */
static float share_between(
	const struct vfm_thumb *a, const struct vfm_thumb *between, const struct vfm_thumb *b, float most)
{
	int up = 0, down = 0;
	float share, rest = 0;

#pragma omp simd reduction(+ : up, down)
	for (int i = 0; i < SCENE_PIX; i++) {
		int d = b->y[i] - a->y[i];

		up += d * (between->y[i] - a->y[i]);
		down += d * d;
	}
	share = down ? (float)up / (float)down : 0;
#pragma omp simd reduction(+ : rest)
	for (int i = 0; i < SCENE_PIX; i++)
		rest += fabsf((float)(between->y[i] - a->y[i]) - share * (float)(b->y[i] - a->y[i]));
	return share > 0 && share < 1 && rest / SCENE_PIX < most ? share : 0;
}

/* Conversion of the frame rate, and of fields to frames, leaves one frame at a cut that is a mixture of both shots.
 * Returns the frame that represents frame t: its neighbour whose share is larger, or itself. */
static const struct vfm_thumb *unmixed(const struct vfm_scene *s, int64_t t)
{
	const struct vfm_thumb *v[SCENE_QUEUE];
	float change, share;

	for (int i = 0; i < SCENE_QUEUE; i++)
		v[i] = &s->queue[(t + i + SCENE_QUEUE - 2) % SCENE_QUEUE];
	if (t < 2 || t + 2 >= s->pushed)
		return v[2];
	change = vfm_thumb_change(v[1], v[3]);
	if (change < 2 * CHANGE || vfm_thumb_change(v[0], v[1]) > BLEND_NEAR * change ||
		vfm_thumb_change(v[3], v[4]) > BLEND_NEAR * change)
		return v[2];
	share = share_between(v[1], v[2], v[3], BLEND_REST * change + BLEND_NOISE);
	return share == 0 ? v[2] : share < 0.5f ? v[1] : v[3];
}

static void take_frame_of(struct vfm_scene *s, const struct vfm_thumb *thumb)
{
	int64_t n = s->n++;
	struct vfm_sig *now = &s->ring[n % SCENE_RING];

	vfm_grow(&s->p, &s->cap, (size_t)s->n, sizeof(s->p[0]));
	vfm_sig_of(now, thumb);
	s->p[n] = (struct scene_point){.mean = now->mean, .std = now->std};
	if (n)
		s->p[n].change = vfm_sig_pixel(scene_sig(s, n - 1), now);
	s->p[n].plain = vfm_scene_is_plain(s, n);
	if (n - SCENE_NEAR + 1 >= 0)
		vfm_scene_follow_plain(s, s->followed++);
	vfm_scene_follow_mixtures(s, false);
	if (n - DELAY >= 1)
		evaluate_change(s, s->evaluated++);
}

void vfm_scene_push(struct vfm_scene *s, const struct vfm_thumb *thumb)
{
	s->queue[s->pushed++ % SCENE_QUEUE] = *thumb;
	if (s->pushed > 2)
		take_frame_of(s, unmixed(s, s->n));
}

/* ---- decisions ---- */

bool vfm_scene_is_hard_cut(const struct vfm_scene *s, int64_t t)
{
	int64_t low = 0, high = s->n_hard;

	while (low < high) {
		int64_t mid = low + (high - low) / 2;

		if (s->candidates[mid].frame < t)
			low = mid + 1;
		else
			high = mid;
	}
	return low < s->n_hard && s->candidates[low].frame == t && s->candidates[low].confidence >= VFM_SCENE_THRESHOLD;
}

static int by_confidence(const void *a, const void *b)
{
	const struct vfm_cut_candidate *x = a, *y = b;

	if (x->confidence != y->confidence)
		return x->confidence > y->confidence ? -1 : 1;
	return x->from < y->from ? -1 : x->from > y->from;
}

static void gather_dissolves(struct vfm_scene *s)
{
	int64_t first = s->n_candidates;

	for (int64_t i = 0; i < s->n_dissolves; i++)
		vfm_scene_add_candidate(s, &s->dissolves[i]);
	if (s->n_dissolves)
		qsort(s->candidates + first, (size_t)s->n_dissolves, sizeof(s->candidates[0]), by_confidence);
}

const struct vfm_cut_candidate *vfm_scene_candidates(struct vfm_scene *s, int64_t *n)
{
	while (s->n < s->pushed)
		take_frame_of(s, unmixed(s, s->n));
	if (s->evaluated <= s->n) {
		while (s->evaluated < s->n)
			evaluate_change(s, s->evaluated++);
		s->n_hard = s->n_candidates;
		s->evaluated = s->n + 1;
		vfm_scene_follow_mixtures(s, true);
		while (s->followed <= s->n)
			vfm_scene_follow_plain(s, s->followed++);
		vfm_scene_gather_fades(s);
		gather_dissolves(s);
	}
	*n = s->n_candidates;
	return s->candidates;
}

/* A fade without frames, which is a flash at a cut, counts as a hard cut. */
static void choose_cut(struct vfm_scene *s, const struct vfm_cut_candidate *c, double confidence)
{
	bool fade = c->kind == VFM_CUT_FADE;
	struct chosen_cut x = {.cut = {.from = c->from,
				       .frame = c->frame,
				       .kind = c->from == c->frame ? VFM_CUT_HARD : c->kind,
				       .confidence = confidence},
		.seen_from = fade ? c->seen_from : c->from,
		.seen_frame = fade ? c->seen_frame : c->frame};

	if (x.seen_frame < x.seen_from || x.seen_frame <= 0 || (x.seen_from == 0 && x.seen_frame >= s->n))
		return;
	vfm_grow(&s->chosen, &s->chosen_cap, (size_t)s->n_chosen + 1, sizeof(s->chosen[0]));
	s->chosen[s->n_chosen++] = x;
}

/* Chooses hard cuts.  Candidates are in order; of those close together, only the most certain is a cut. */
static void choose_hard(struct vfm_scene *s, double threshold)
{
	for (int64_t i = 0; i < s->n_hard; i++) {
		const struct vfm_cut_candidate *c = &s->candidates[i];
		const struct vfm_cut *last = s->n_chosen ? &s->chosen[s->n_chosen - 1].cut : NULL;

		if (c->confidence < threshold)
			continue;
		if (last && c->frame - last->frame <= APART) {
			if (c->confidence <= last->confidence)
				continue;
			s->n_chosen--;
		}
		choose_cut(s, c, c->confidence);
	}
}

static bool has_hard(const struct vfm_scene *s, int64_t n_hard, int64_t from, int64_t to)
{
	for (int64_t i = 0; i < n_hard; i++)
		if (s->chosen[i].cut.frame >= from && s->chosen[i].cut.frame <= to)
			return true;
	return false;
}

/* Chooses fades; without `gradual`, those of plain frames with a cut on one side. */
static void choose_fades(struct vfm_scene *s, double threshold, bool gradual)
{
	for (int64_t i = s->n_hard; i < s->n_candidates; i++) {
		const struct vfm_cut_candidate *c = &s->candidates[i];

		if (c->kind == VFM_CUT_FADE && (gradual || c->abrupt) && (c->sure || c->confidence >= threshold))
			choose_cut(s, c, c->sure ? 1 : c->confidence);
	}
}

/* Chooses dissolves.  Candidates come in order of falling confidence.  Several may cover the same dissolve: of
 * overlapping ones, only the most certain is chosen. */
static void choose_dissolves(struct vfm_scene *s, double threshold)
{
	uint8_t *covered = vfm_calloc((size_t)s->n + 1, 1);
	int64_t n_hard = s->n_chosen;

	for (int64_t i = s->n_hard; i < s->n_candidates; i++) {
		const struct vfm_cut_candidate *c = &s->candidates[i];
		size_t length = (size_t)(c->frame - c->from + 1);

		if (c->kind != VFM_CUT_DISSOLVE || c->confidence < threshold ||
			has_hard(s, n_hard, c->from - 1, c->frame + 1) || memchr(covered + c->from, 1, length))
			continue;
		memset(covered + c->from, 1, length);
		choose_cut(s, c, c->confidence);
	}
	free(covered);
}

static int by_start(const void *a, const void *b)
{
	const struct vfm_cut *x = &((const struct chosen_cut *)a)->cut, *y = &((const struct chosen_cut *)b)->cut;

	if (x->from != y->from)
		return x->from < y->from ? -1 : 1;
	return x->frame < y->frame ? -1 : x->frame > y->frame;
}

/* Light that grows in a fade may be taken for a dissolve. */
static bool absorbs(const struct chosen_cut *fade, const struct chosen_cut *c)
{
	int64_t from = fade->cut.from > c->cut.from ? fade->cut.from : c->cut.from;
	int64_t end = fade->cut.frame < c->cut.frame ? fade->cut.frame : c->cut.frame;

	return fade->cut.kind == VFM_CUT_FADE && c->cut.kind != VFM_CUT_FADE &&
		2 * (end - from) >= c->cut.frame - c->cut.from;
}

/* Merges c, which begins later, into an overlapping transition; a fade absorbs what lies within it. */
static void merge_into(struct chosen_cut *into, const struct chosen_cut *c)
{
	bool inner = absorbs(into, c), outer = absorbs(c, into);

	if (!inner) {
		into->seen_from = outer || c->seen_from < into->seen_from ? c->seen_from : into->seen_from;
		into->seen_frame = outer || c->seen_frame > into->seen_frame ? c->seen_frame : into->seen_frame;
	}
	if (c->cut.kind > into->cut.kind)
		into->cut.kind = c->cut.kind;
	if (c->cut.confidence > into->cut.confidence)
		into->cut.confidence = c->cut.confidence;
	if (c->cut.frame > into->cut.frame)
		into->cut.frame = c->cut.frame;
}

static void merge_cuts(struct vfm_scene *s)
{
	int64_t n = 0;

	if (s->n_chosen)
		qsort(s->chosen, (size_t)s->n_chosen, sizeof(s->chosen[0]), by_start);
	for (int64_t i = 0; i < s->n_chosen; i++)
		if (n && s->chosen[i].cut.from <= s->chosen[n - 1].cut.frame)
			merge_into(&s->chosen[n - 1], &s->chosen[i]);
		else
			s->chosen[n++] = s->chosen[i];
	vfm_grow(&s->cuts, &s->cuts_cap, (size_t)n + 1, sizeof(s->cuts[0]));
	for (int64_t i = 0; i < n; i++) {
		s->cuts[i] = s->chosen[i].cut;
		s->cuts[i].from = s->chosen[i].seen_from;
		s->cuts[i].frame = s->chosen[i].seen_frame;
	}
	s->n_cuts = n;
}

const struct vfm_cut *vfm_scene_cuts(struct vfm_scene *s, double threshold, bool gradual, int64_t *n_cuts)
{
	int64_t n;

	threshold = threshold > 0 ? threshold : VFM_SCENE_THRESHOLD;
	vfm_scene_candidates(s, &n);
	s->n_chosen = 0;
	choose_hard(s, threshold);
	/* An invented one adds two boundaries, and takes the frames between them out of the clips. */
	threshold = (1 + threshold) / 2;
	if (gradual)
		choose_dissolves(s, threshold);
	choose_fades(s, threshold, gradual);
	merge_cuts(s);
	*n_cuts = s->n_cuts;
	return s->cuts;
}
