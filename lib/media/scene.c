/* scene.c - see scene.h.  The thresholds were set on videos with known cuts (synthetic and
 * real, four codecs). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "media/scene.h"

#define RING         40
#define ACROSS       4 /* a flash lasts less */
#define AROUND       6 /* neighbours on either side, for the local rate of change */
#define LOCAL_WEIGHT 0.6
#define SEARCH       4
#define N_PIX        (VFM_SIG_W * VFM_SIG_H)

static const int halves[] = {4, 6, 8, 12, 16};
#define N_HALVES ((int)(sizeof(halves) / sizeof(halves[0])))

/* A mixture of two frames: shares near 1/4, 1/2 and 3/4, and a small residual. */
#define SHARE_TOLERANCE  0.13f
#define MIX_LEFT         0.37f
#define MIX_MIN_DIFF     20.0f
#define DIFFERENT_MOVED  0.5f
#define DIFFERENT_BLOCKS 0.45f
#define DIFFERENT_HIST   0.2f
#define PLAIN_STD        12.0f /* contrast below which a frame is nearly one colour */
#define BLACK_MEAN       20.0f
#define BLACK_RUN        12 /* black frames that separate two shots, even similar ones */

struct point {
	float jump;   /* smallest difference between frames on either side */
	float change; /* difference to the frame before */
	float mean, std;
	float mix_energy; /* squared difference between the ends of the longest mixture centred here; 0: none */
	float mix_from, mix_to;
	bool other_side; /* the pictures 8 to 16 frames before and after differ */
};

struct vfm_scene {
	struct vfm_sig ring[RING];
	struct point *p;
	size_t cap;
	int64_t n;
	struct vfm_cut *cuts;
	size_t cuts_cap;
	int64_t n_cuts;
};

struct vfm_scene *vfm_scene_new(void)
{
	return vfm_calloc(1, sizeof(struct vfm_scene));
}

void vfm_scene_free(struct vfm_scene *s)
{
	if (!s)
		return;
	free(s->p);
	free(s->cuts);
	free(s);
}

static const struct vfm_sig *sig(const struct vfm_scene *s, int64_t frame)
{
	return &s->ring[frame % RING];
}

static float unlike(const struct vfm_sig_diff *d)
{
	return d->hist + 0.8f * d->moved + 0.4f * d->blocks + 0.7f * fminf(d->pixel, 60) / 60;
}

/* Fits x to a mixture of a and b by least squares: the share of b, and the residual over |b - a|. */
static float mixture_share(
	const struct vfm_sig *a, const struct vfm_sig *b, const struct vfm_sig *x, float energy, float *left)
{
	int64_t dot = 0, norm = 0;
	float share;

	for (int i = 0; i < N_PIX; i++) {
		int d = b->y[i] - a->y[i], e = x->y[i] - a->y[i];

		dot += d * e;
		norm += e * e;
	}
	share = (float)dot / energy;
	*left = sqrtf(fmaxf(0, (float)norm - share * (float)dot) / energy);
	return share;
}

static float energy_of(const struct vfm_sig *a, const struct vfm_sig *b)
{
	int64_t sum = 0;

	for (int i = 0; i < N_PIX; i++)
		sum += (a->y[i] - b->y[i]) * (a->y[i] - b->y[i]);
	return (float)sum;
}

static bool are_different(const struct vfm_sig *a, const struct vfm_sig *b)
{
	struct vfm_sig_diff d;

	vfm_sig_compare(a, b, SEARCH, &d);
	return d.moved > DIFFERENT_MOVED && d.blocks > DIFFERENT_BLOCKS && d.hist > DIFFERENT_HIST;
}

/* Whether the middle frame of 2 half + 1 is a mixture of the outer two. */
static void try_mixture(struct vfm_scene *s, int64_t t, int half)
{
	const struct vfm_sig *a = sig(s, t - half), *b = sig(s, t + half);
	float energy = energy_of(a, b), share[3], left[3], slope;
	struct point *p = &s->p[t];

	/* A part of a dissolve is a mixture, too; the ends of the whole differ most. */
	if (energy < MIX_MIN_DIFF * MIX_MIN_DIFF * N_PIX || energy <= p->mix_energy)
		return;
	for (int k = 0; k < 3; k++) {
		share[k] = mixture_share(a, b, sig(s, t + (k - 1) * half / 2), energy, &left[k]);
		if (fabsf(share[k] - 0.25f * (float)(k + 1)) > SHARE_TOLERANCE || left[k] > MIX_LEFT)
			return;
	}
	if (!are_different(a, b))
		return;
	slope = (share[2] - share[0]) / (float)half;
	p->mix_energy = energy;
	p->mix_from = (float)t - share[1] / slope;
	p->mix_to = (float)t + (1 - share[1]) / slope;
}

void vfm_scene_push(struct vfm_scene *s, const uint8_t *rgb)
{
	int64_t n = s->n++;
	struct vfm_sig *now = &s->ring[n % RING];
	struct vfm_sig_diff d;

	vfm_grow(&s->p, &s->cap, (size_t)s->n, sizeof(s->p[0]));
	vfm_sig_of(now, rgb);
	s->p[n] = (struct point){.jump = INFINITY, .mean = now->mean, .std = now->std};
	for (int back = 1; back <= ACROSS && back <= n; back++) {
		float x;

		vfm_sig_compare(sig(s, n - back), now, SEARCH, &d);
		x = unlike(&d);
		if (back == 1)
			s->p[n].change = x;
		s->p[n - back + 1].jump = fminf(s->p[n - back + 1].jump, x);
		s->p[n].jump = fminf(s->p[n].jump, x);
	}
	for (int k = 0; k < N_HALVES; k++) {
		int64_t t = n - halves[k];

		if (n < 2 * halves[k])
			continue;
		try_mixture(s, t, halves[k]);
		if (s->p[t].std < PLAIN_STD && halves[k] >= 8 && !s->p[t].other_side)
			s->p[t].other_side = are_different(sig(s, t - halves[k]), now);
	}
}

/* ---- decisions ---- */

static int compare_floats(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return x < y ? -1 : x > y;
}

/* Returns the median change of the frames around t, without t. */
static float local_change(const struct vfm_scene *s, int64_t t)
{
	float v[2 * AROUND] = {0};
	int n = 0;

	for (int64_t u = t - AROUND; u <= t + AROUND; u++)
		if (u > 0 && u < s->n && u != t)
			v[n++] = s->p[u].change;
	qsort(v, (size_t)n, sizeof(v[0]), compare_floats);
	return n ? v[n / 2] : 0;
}

static void add_cut(struct vfm_scene *s, struct vfm_cut cut)
{
	if (cut.frame <= 0 || cut.frame > s->n || (cut.from <= 0 && cut.frame >= s->n))
		return;
	if (cut.from < 0)
		cut.from = 0;
	vfm_grow(&s->cuts, &s->cuts_cap, (size_t)s->n_cuts + 1, sizeof(s->cuts[0]));
	s->cuts[s->n_cuts++] = cut;
}

/* Of equal jumps the first counts as higher. */
static bool higher(const struct point *a, int64_t ia, const struct point *b, int64_t ib)
{
	return a->jump > b->jump || (a->jump == b->jump && ia < ib);
}

static void find_hard(struct vfm_scene *s, double threshold)
{
	for (int64_t t = 1; t < s->n; t++) {
		double score = s->p[t].jump - LOCAL_WEIGHT * local_change(s, t);
		bool highest = true;

		if (score < threshold)
			continue;
		for (int64_t u = t - ACROSS; u <= t + ACROSS && highest; u++)
			highest = u < 1 || u >= s->n || !higher(&s->p[u], u, &s->p[t], t);
		if (highest)
			add_cut(s, (struct vfm_cut){.from = t, .frame = t, .kind = VFM_CUT_HARD, .score = score});
	}
}

static bool has_hard(const struct vfm_scene *s, int64_t n_hard, int64_t from, int64_t to)
{
	for (int64_t i = 0; i < n_hard; i++)
		if (s->cuts[i].frame >= from && s->cuts[i].frame <= to)
			return true;
	return false;
}

/* Reduces runs of candidates for the middle of a dissolve to the one whose ends differ most. */
static void find_dissolves(struct vfm_scene *s)
{
	int64_t n_hard = s->n_cuts, t = 1;

	while (t < s->n) {
		int64_t best = t, end = t;

		if (s->p[t].mix_energy <= 0) {
			t++;
			continue;
		}
		while (end < s->n && end - t < RING &&
			(s->p[end].mix_energy > 0 || (end + 1 < s->n && s->p[end + 1].mix_energy > 0))) {
			if (s->p[end].mix_energy > s->p[best].mix_energy)
				best = end;
			end++;
		}
		if (!has_hard(s, n_hard, (int64_t)s->p[best].mix_from - 1, (int64_t)s->p[best].mix_to + 1))
			add_cut(s,
				(struct vfm_cut){.from = (int64_t)floorf(s->p[best].mix_from) + 1,
					.frame = (int64_t)floorf(s->p[best].mix_to),
					.kind = VFM_CUT_DISSOLVE});
		t = end;
	}
}

/* Goes from the lowest contrast outward while contrast grows. */
static int64_t slope_end(const struct vfm_scene *s, int64_t t, int step)
{
	int64_t u = t, limit = t + (int64_t)step * 24;

	while (u + step >= 0 && u + step < s->n && u + step != limit && s->p[u + step].std > s->p[u].std * 1.02f)
		u += step;
	return u;
}

static void find_fades(struct vfm_scene *s)
{
	for (int64_t t = 0; t < s->n; t++) {
		int64_t first = t, last = t;
		bool apart = false, black = true;

		if (s->p[t].std >= PLAIN_STD)
			continue;
		for (; last < s->n && s->p[last].std < PLAIN_STD; last++) {
			apart |= s->p[last].other_side;
			black &= s->p[last].mean < BLACK_MEAN;
		}
		/* A long plain shot is a shot; its ends are hard cuts. */
		if (black ? apart || last - first >= BLACK_RUN : apart && last - first < BLACK_RUN)
			add_cut(s,
				(struct vfm_cut){.from = first ? slope_end(s, first, -1) + 1 : 0,
					.frame = last < s->n ? slope_end(s, last - 1, 1) : s->n,
					.kind = VFM_CUT_FADE});
		t = last;
	}
}

static int by_frame(const void *a, const void *b)
{
	const struct vfm_cut *x = a, *y = b;

	return x->frame < y->frame ? -1 : x->frame > y->frame;
}

/* Merges overlapping transitions; a fade absorbs the transitions within it. */
static void merge(struct vfm_scene *s)
{
	int64_t n = 0;

	qsort(s->cuts, (size_t)s->n_cuts, sizeof(s->cuts[0]), by_frame);
	for (int64_t i = 0; i < s->n_cuts; i++) {
		struct vfm_cut *last = n ? &s->cuts[n - 1] : NULL, c = s->cuts[i];

		if (!last || c.from > last->frame) {
			s->cuts[n++] = c;
			continue;
		}
		if (c.from < last->from)
			last->from = c.from;
		if (c.kind > last->kind)
			last->kind = c.kind;
		last->frame = c.frame;
	}
	s->n_cuts = n;
}

const struct vfm_cut *vfm_scene_cuts(struct vfm_scene *s, double threshold, bool gradual, int64_t *n_cuts)
{
	s->n_cuts = 0;
	find_hard(s, threshold > 0 ? threshold : VFM_SCENE_THRESHOLD);
	if (gradual) {
		find_dissolves(s);
		find_fades(s);
	}
	if (s->n_cuts)
		merge(s);
	*n_cuts = s->n_cuts;
	return s->cuts;
}

/* ---- clips ---- */

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
	l->v[l->n++] = (struct vfm_span){.start = start, .end = end};
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

int64_t vfm_clips_of(int64_t frames, const struct vfm_cut *cuts, int64_t n_cuts, const struct vfm_clip_rule *rule,
	struct vfm_span **spans)
{
	struct span_list l = {0};
	int64_t start = 0;

	if (rule->stride > 0) {
		add_strides(&l, frames, rule);
	} else {
		for (int64_t i = 0; i < n_cuts; i++) {
			add_shot(&l, start, cuts[i].from, rule);
			start = cuts[i].frame;
		}
		add_shot(&l, start, frames, rule);
	}
	*spans = l.v;
	return l.n;
}
