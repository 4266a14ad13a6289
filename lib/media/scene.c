/* scene.c - see scene.h.  The weights of the confidence are those that bench/shots-calibrate prints. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "media/scene.h"

#define RING        144
#define AROUND      6    /* neighbours on either side, for the local rate of change */
#define FAR         4    /* frames apart within a side */
#define DELAY       9    /* frames after a candidate before it is evaluated */
#define CHANGE      1.5f /* change of pixels below which nothing happens */
#define MATCHED     0.3f /* residual of block matching below which two frames are of one shot */
#define APART       2    /* hard cuts are further apart */
#define N_PIX       (VFM_SIG_W * VFM_SIG_H)
#define PLAIN_RANGE 14.0f /* range of luma below which a frame is of one colour */
#define BESIDE      16    /* frames beside plain ones among which the clearest stands for the shot */
#define BLACK_MEAN  24.0f
#define LONG_PLAIN  12   /* frames; so much black separates two shots, even similar ones */
#define OUTSIDE     36   /* frames beyond the ends of a mixture in which the old picture may return */
#define FADE_LIMIT  96   /* frames of a fade, on either side */
#define FADE_STEP   4    /* frames over which contrast grows */
#define FADE_SLOWER 0.4f /* growth, as a share of the mean of the fade so far, that ends it */
#define FADE_FULL   0.88f

static const int halves[] = {4, 6, 8, 12, 16, 24, 32};
#define N_HALVES ((int)(sizeof(halves) / sizeof(halves[0])))

/* A mixture of two frames: shares near 1/4, 1/2 and 3/4, and a small residual. */
#define SHARE_TOLERANCE 0.15f
#define SHARE_END       0.06f
/* A frame is an end alone if its residual of block matching exceeds that of the frame beyond the end by little. */
#define ALONE            0.1f
#define NOISIER          1.2f
#define MIX_LEFT         0.45f
#define MIX_MIN_DIFF     10.0f
#define MIX_MIN_MOVED    0.4f
#define MIX_MIN_BLOCKS   0.25f
#define MIX_MIN_HIST     0.25f
#define MIX_MIN_CONTRAST 0.25f /* of the end with less contrast, as a share of the other; less is part of a fade */

struct point {
	float change; /* difference of pixels to the frame before */
	float mean, std;
	bool plain;
	int32_t mixture; /* of s->mixtures, centred here: that whose ends differ most; -1: none */
};

struct mixture {
	float energy, from, to;
	float f[VFM_SCENE_FEATURES];
};

struct plain_run {
	int64_t first, end;
	bool black;
	float f[VFM_SCENE_FEATURES];
};

struct vfm_scene {
	struct vfm_sig ring[RING], before, last; /* the clearest and the last frame before the run of plain frames */
	int flash;                               /* frames that a flash may last */
	struct point *p;
	size_t cap;
	int64_t n, evaluated;
	int64_t run_first, run_end; /* of the run that is not yet stored; run_first -1: none, run_end -1: goes on */
	struct vfm_candidate *candidates;
	struct mixture *mixtures;
	struct plain_run *runs;
	size_t candidates_cap, mixtures_cap, runs_cap;
	int64_t n_candidates, n_hard, n_mixtures, n_runs; /* n_hard: of the candidates, which come first, in order */
	struct vfm_cut *cuts;
	size_t cuts_cap;
	int64_t n_cuts;
};

struct vfm_scene *vfm_scene_new(double fps)
{
	struct vfm_scene *s = vfm_calloc(1, sizeof(struct vfm_scene));

	s->flash = fps > 0 ? (int)fmin(8, fmax(3, round(fps / 6))) : 4;
	s->run_first = s->run_end = -1;
	s->evaluated = 1;
	return s;
}

void vfm_scene_free(struct vfm_scene *s)
{
	if (!s)
		return;
	free(s->p);
	free(s->cuts);
	free(s->candidates);
	free(s->mixtures);
	free(s->runs);
	free(s);
}

static const struct vfm_sig *sig(const struct vfm_scene *s, int64_t frame)
{
	return &s->ring[frame % RING];
}

/* ---- dissolves ---- */

/* Fits x to a mixture of a and b by least squares: the share of b, and the residual over |b - a|. */
static float mixture_share(
	const struct vfm_sig *a, const struct vfm_sig *b, const struct vfm_sig *x, float energy, float *left)
{
	int dot = 0, norm = 0;
	float share;

	for (int i = 0; i < N_PIX; i++) {
		int d = b->thumb.y[i] - a->thumb.y[i], e = x->thumb.y[i] - a->thumb.y[i];

		dot += d * e;
		norm += e * e;
	}
	share = (float)dot / energy;
	*left = sqrtf(fmaxf(0, (float)norm - share * (float)dot) / energy);
	return share;
}

static float energy_of(const struct vfm_sig *a, const struct vfm_sig *b)
{
	int sum = 0;

	for (int i = 0; i < N_PIX; i++)
		sum += (a->thumb.y[i] - b->thumb.y[i]) * (a->thumb.y[i] - b->thumb.y[i]);
	return (float)sum;
}

/* How much two frames differ, in numbers of 0..1. */
static void differ_features(const struct vfm_sig *a, const struct vfm_sig *b, float f[4])
{
	struct vfm_sig_diff d;

	vfm_sig_compare(a, b, &d);
	f[0] = d.moved;
	f[1] = d.blocks;
	f[2] = d.hist;
	f[3] = d.pixel / (d.pixel + 4 + 0.5f * (a->std + b->std));
}

/* Correlation of luma at the same place: near 1 if only the light changed. */
static float correlation(const struct vfm_sig *a, const struct vfm_sig *b)
{
	int dot = 0;

	for (int i = 0; i < N_PIX; i++)
		dot += a->thumb.y[i] * b->thumb.y[i];
	return ((float)dot / N_PIX - a->mean * b->mean) / (a->std * b->std + 1);
}

/* Whether two frames that differ by f[0..3] show two pictures. */
static bool are_pictures(const float f[4])
{
	return f[0] > MIX_MIN_MOVED && f[1] > MIX_MIN_BLOCKS && f[2] > MIX_MIN_HIST;
}

/* f[0..3], f[16] and what depends on shares is known.  Motion keeps its blocks also between the ends; a mixture has
 * less contrast than its ends; after an explosion or a change of light the old picture returns. */
static void mixture_features(const struct vfm_scene *s, int64_t t, int half, float f[VFM_SCENE_FEATURES])
{
	const struct vfm_sig *a = sig(s, t - half), *b = sig(s, t + half), *mid = sig(s, t);
	float x[4], across = vfm_sig_pixel(a, b) + 1;

	differ_features(a, mid, x);
	f[9] = x[0];
	differ_features(mid, b, x);
	f[10] = x[0];
	f[11] = (mid->std + 1) / (0.5f * (a->std + b->std) + 1);
	f[15] = correlation(a, b);
	f[17] = vfm_sig_spread(a, b);
	f[12] = f[13] = 1;
	for (int k = 4; k <= OUTSIDE; k += 4) {
		if (t + half + k < s->n)
			f[12] = fminf(f[12], vfm_sig_pixel(a, sig(s, t + half + k)) / across);
		if (t - half - k >= 0)
			f[13] = fminf(f[13], vfm_sig_pixel(sig(s, t - half - k), b) / across);
	}
	f[14] = fminf(f[12], f[13]);
}

/* Returns how many frames the mixture goes from its middle towards one end: to the first frame that is nearly the end
 * alone, at most `half`.  Motion and light change the picture at the end further: the frames whose blocks match it are
 * of the same shot. */
static float mixture_reach(const struct vfm_scene *s, int64_t t, int half, int step, float energy)
{
	const struct vfm_sig *a = sig(s, t - half), *b = sig(s, t + half), *end;
	float share = 0.5f, left;
	struct vfm_sig_diff d;
	float same = ALONE;
	int64_t beyond;
	int k;

	for (k = 1; k < half; k++) {
		share = mixture_share(a, b, sig(s, t + step * k), energy, &left);
		if (step < 0 ? share < SHARE_END : share > 1 - SHARE_END)
			break;
	}
	end = sig(s, t + step * k);
	beyond = t + step * (k + 1);
	if (beyond >= 0 && beyond < s->n) {
		vfm_sig_compare(end, sig(s, beyond), &d);
		same += NOISIER * d.moved;
	}
	for (; k > 1; k--) {
		vfm_sig_compare(end, sig(s, t + step * (k - 1)), &d);
		if (d.moved > same)
			break;
	}
	return (float)k;
}

/* Notes whether the middle frame of 2 half + 1 is a mixture of the outer two. */
static void try_mixture(struct vfm_scene *s, int64_t t, int half)
{
	const struct vfm_sig *a, *b;
	float energy, share[3], left[3];
	struct point *p;
	struct mixture *m;

	if (t < half)
		return;
	a = sig(s, t - half);
	b = sig(s, t + half);
	energy = energy_of(a, b);
	p = &s->p[t];
	/* A part of a dissolve is a mixture, too; the ends of the whole differ most. */
	if (energy < MIX_MIN_DIFF * MIX_MIN_DIFF * N_PIX ||
		(p->mixture >= 0 && energy <= s->mixtures[p->mixture].energy))
		return;
	for (int k = 0; k < 3; k++) {
		share[k] = mixture_share(a, b, sig(s, t + (k - 1) * half / 2), energy, &left[k]);
		if (fabsf(share[k] - 0.25f * (float)(k + 1)) > SHARE_TOLERANCE || left[k] > MIX_LEFT)
			return;
	}
	if (p->mixture < 0) {
		vfm_grow(&s->mixtures, &s->mixtures_cap, (size_t)s->n_mixtures + 1, sizeof(s->mixtures[0]));
		p->mixture = (int32_t)s->n_mixtures++;
	}
	m = &s->mixtures[p->mixture];
	*m = (struct mixture){.energy = energy, .from = (float)t, .to = (float)t};
	m->f[16] = fminf(a->std, b->std) / (fmaxf(a->std, b->std) + 1);
	if (p->plain || m->f[16] <= MIX_MIN_CONTRAST)
		return;
	differ_features(a, b, m->f);
	if (!are_pictures(m->f))
		return;
	m->from -= mixture_reach(s, t, half, -1, energy);
	m->to += mixture_reach(s, t, half, 1, energy);
	mixture_features(s, t, half, m->f);
	m->f[4] = left[1];
	m->f[5] = fmaxf(left[0], left[2]);
	m->f[6] = logf(sqrtf(energy / N_PIX) / MIX_MIN_DIFF);
	m->f[7] = fabsf(share[0] - 0.25f) + fabsf(share[1] - 0.5f) + fabsf(share[2] - 0.75f);
	m->f[8] = sqrtf(energy / N_PIX) / (4 + 0.5f * (a->std + b->std));
}

/* ---- plain frames ---- */

/* Returns the frame of [from, to] with the most contrast. */
static const struct vfm_sig *clearest(const struct vfm_scene *s, int64_t from, int64_t to)
{
	int64_t best = to;

	for (int64_t t = from < 0 ? 0 : from; t <= to; t++)
		if (s->p[t].std > s->p[best].std)
			best = t;
	return sig(s, best);
}

/* After a flash of one colour the old picture returns at once and with full contrast; after a fade, neither does. */
static void return_features(
	const struct vfm_scene *s, const struct plain_run *r, const struct vfm_sig *after, float f[4])
{
	const struct vfm_sig *next = sig(s, r->end);
	float x[4], sharp = fminf(s->last.std / (s->before.std + 1), next->std / (after->std + 1));

	differ_features(&s->last, next, x);
	for (int i = 0; i < 3; i++)
		f[i] = sharp * (1 - x[i]);
	f[3] = sharp;
}

static void store_run(struct vfm_scene *s)
{
	struct plain_run r = {.first = s->run_first, .end = s->run_end, .black = true};

	for (int64_t t = r.first; t < r.end; t++)
		r.black &= s->p[t].mean < BLACK_MEAN;
	if (r.first > 0 && r.end < s->n) {
		const struct vfm_sig *after = clearest(s, r.end, s->n - 1);

		differ_features(&s->before, after, r.f);
		r.f[4] = fminf(1, (float)(r.end - r.first) / LONG_PLAIN);
		r.f[5] = r.black;
		return_features(s, &r, after, r.f + 6);
	}
	vfm_grow(&s->runs, &s->runs_cap, (size_t)s->n_runs + 1, sizeof(s->runs[0]));
	s->runs[s->n_runs++] = r;
	s->run_first = s->run_end = -1;
}

static void follow_plain(struct vfm_scene *s, int64_t n)
{
	bool plain = s->p[n].plain;

	if (s->run_first >= 0 && s->run_end < 0 && !plain)
		s->run_end = n;
	if (s->run_end >= 0 && (plain || n - s->run_end + 1 >= BESIDE))
		store_run(s);
	if (plain && s->run_first < 0) {
		s->run_first = n;
		if (n) {
			s->before = *clearest(s, n - BESIDE, n - 1);
			s->last = *sig(s, n - 1);
		}
	}
}

/* ---- hard cuts ---- */

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

/* Lowers f[] to what frames a and b differ. */
static void take_least(const struct vfm_scene *s, int64_t a, int64_t b, float f[4])
{
	float x[4];

	if (a < 0 || b >= s->n)
		return;
	differ_features(sig(s, a), sig(s, b), x);
	for (int i = 0; i < 4; i++)
		f[i] = fminf(f[i], x[i]);
}

/* Lowers f[0..3] to the least difference of two frames across the cut between t - 1 and t.  Returns false if two of
 * them are nearly the same picture, moved: then t is no cut. */
static bool differs_across(const struct vfm_scene *s, int64_t t, float f[4])
{
	const int gaps[] = {0, 1, 2, s->flash};

	for (int i = 0; i < 4; i++)
		f[i] = 1;
	for (int k = 0; k < 4; k++) {
		take_least(s, t - 1, t + gaps[k], f);
		if (gaps[k])
			take_least(s, t - 1 - gaps[k], t, f);
		if (f[0] < MATCHED)
			return false;
	}
	take_least(s, t - 2, t + 1, f);
	return f[0] >= MATCHED;
}

/* How much the frames of one side differ among themselves: a and b are one frame apart, c is FAR frames from a.
 * Returns false if the side is too short. */
static bool side_features(const struct vfm_scene *s, int64_t a, int64_t b, int64_t c, float near[4], float far[4])
{
	int64_t low = c < a ? c : a, high = c < a ? a : c;

	if (low < 0 || high >= s->n)
		return false;
	differ_features(sig(s, a), sig(s, b), near);
	differ_features(sig(s, c), sig(s, a), far);
	return true;
}

/* The evidence for a cut between t - 1 and t; f[0..3] are known. */
static void cut_features(const struct vfm_scene *s, int64_t t, float f[VFM_SCENE_FEATURES])
{
	float near[2][4], far[2][4], wide[4] = {1, 1, 1, 1};
	bool left = side_features(s, t - 1, t - 2, t - 1 - FAR, near[0], far[0]);
	bool right = side_features(s, t, t + 1, t + FAR, near[1], far[1]);

	if (!left && !right)
		memset(near, 0, sizeof(near)), memset(far, 0, sizeof(far));
	else if (!left || !right) {
		memcpy(near[left], near[!left], sizeof(near[0]));
		memcpy(far[left], far[!left], sizeof(far[0]));
	}
	take_least(s, t - FAR, t - 1 + FAR, wide);
	for (int i = 0; i < 4; i++) {
		f[4 + i] = fmaxf(near[0][i], near[1][i]);
		f[8 + i] = fmaxf(far[0][i], far[1][i]);
		f[12 + i] = fminf(far[0][i], far[1][i]);
		f[16 + i] = wide[i];
	}
	f[20] = logf((s->p[t].change + 1) / (local_change(s, t) + 1));
	f[22] = vfm_sig_spread(sig(s, t - 1), sig(s, t));
	f[23] = t >= 2 && t + 1 < s->n ? vfm_sig_spread(sig(s, t - 2), sig(s, t + 1)) : f[22];
	f[21] = logf(1 + fminf(sig(s, t - 1)->std, sig(s, t)->std));
}

/* Of equal changes the first counts as higher. */
static bool is_peak(const struct vfm_scene *s, int64_t t)
{
	float x = s->p[t].change;

	return x > CHANGE && (t < 2 || x > s->p[t - 1].change) && (t + 1 >= s->n || x >= s->p[t + 1].change) &&
		x > 1.2f * local_change(s, t);
}

static void evaluate_change(struct vfm_scene *s, int64_t t)
{
	float across[4];
	struct vfm_candidate *c;

	/* Frames of one colour are candidates of their own, with both of their ends. */
	if (!is_peak(s, t) || s->p[t - 1].plain || s->p[t].plain || !differs_across(s, t, across))
		return;
	vfm_grow(&s->candidates, &s->candidates_cap, (size_t)s->n_candidates + 1, sizeof(s->candidates[0]));
	c = &s->candidates[s->n_candidates++];
	*c = (struct vfm_candidate){.from = t, .frame = t, .kind = VFM_CUT_HARD};
	memcpy(c->f, across, sizeof(across));
	cut_features(s, t, c->f);
}

void vfm_scene_push(struct vfm_scene *s, const struct vfm_thumb *thumb)
{
	int64_t n = s->n++;
	struct vfm_sig *now = &s->ring[n % RING];

	vfm_grow(&s->p, &s->cap, (size_t)s->n, sizeof(s->p[0]));
	vfm_sig_of(now, thumb);
	s->p[n] = (struct point){.mean = now->mean, .std = now->std, .plain = now->range < PLAIN_RANGE, .mixture = -1};
	if (n)
		s->p[n].change = vfm_sig_pixel(sig(s, n - 1), now);
	follow_plain(s, n);
	for (int k = 0; k < N_HALVES; k++)
		try_mixture(s, n - OUTSIDE - halves[k], halves[k]);
	if (n - DELAY >= 1)
		evaluate_change(s, s->evaluated++);
}

/* ---- decisions ---- */

struct model {
	float bias, weight[VFM_SCENE_FEATURES];
};

#include "media/scene_weights.h"

static double confidence_of(const struct vfm_candidate *c)
{
	const struct model *m = &models[c->kind];
	double x = m->bias;

	for (int i = 0; i < VFM_SCENE_FEATURES; i++)
		x += (double)m->weight[i] * (double)c->f[i];
	return 1 / (1 + exp(-x));
}

static struct vfm_candidate *store_candidate(struct vfm_scene *s, const float f[VFM_SCENE_FEATURES])
{
	struct vfm_candidate *c;

	vfm_grow(&s->candidates, &s->candidates_cap, (size_t)s->n_candidates + 1, sizeof(s->candidates[0]));
	c = &s->candidates[s->n_candidates++];
	*c = (struct vfm_candidate){0};
	memcpy(c->f, f, sizeof(c->f));
	return c;
}

static int by_energy(const void *a, const void *b)
{
	const struct mixture *x = a, *y = b;

	if (x->energy != y->energy)
		return x->energy > y->energy ? -1 : 1;
	return x->from < y->from ? -1 : x->from > y->from;
}

/* Whether the ends are two pictures, neither one moved nor one of a fade. */
static bool is_between_pictures(const struct vfm_scene *s, const struct mixture *m, int64_t from, int64_t to)
{
	for (int64_t t = from; t <= to; t++)
		if (s->p[t < s->n ? t : s->n - 1].plain)
			return false;
	return to > from && m->f[16] > MIX_MIN_CONTRAST && are_pictures(m->f);
}

/* Of overlapping mixtures, which are parts of one dissolve or motion, the one whose ends differ most counts. */
static void gather_dissolves(struct vfm_scene *s)
{
	uint8_t *covered = vfm_calloc((size_t)s->n + 1, 1);

	if (s->n_mixtures)
		qsort(s->mixtures, (size_t)s->n_mixtures, sizeof(s->mixtures[0]), by_energy);
	for (int64_t i = 0; i < s->n_mixtures; i++) {
		const struct mixture *m = &s->mixtures[i];
		int64_t from = (int64_t)fmaxf(0, floorf(m->from) + 1), to = (int64_t)fminf((float)s->n, floorf(m->to));
		struct vfm_candidate *c;
		bool overlaps = false;

		if (!is_between_pictures(s, m, from > 0 ? from - 1 : 0, to))
			continue;
		for (int64_t t = from; t <= to; t++)
			overlaps |= covered[t];
		memset(covered + from, 1, (size_t)(to - from + 1));
		if (overlaps)
			continue;
		c = store_candidate(s, m->f);
		c->from = from;
		c->frame = to;
		c->kind = VFM_CUT_DISSOLVE;
	}
	free(covered);
}

static bool is_hard_cut(const struct vfm_scene *s, int64_t t)
{
	int64_t low = 0, high = s->n_hard;

	while (low < high) {
		int64_t mid = low + (high - low) / 2;

		if (s->candidates[mid].frame < t)
			low = mid + 1;
		else
			high = mid;
	}
	return low < s->n_hard && s->candidates[low].frame == t &&
		confidence_of(&s->candidates[low]) >= VFM_SCENE_THRESHOLD;
}

/* Goes from frame t, the first beside a plain one, outward to the first frame of full contrast: while contrast grows as
 * fast as it did from the plain frame on, at most to the next hard cut. */
static int64_t fade_end(const struct vfm_scene *s, int64_t t, int step)
{
	int64_t u = t;
	float full;

	for (int k = 2; k < FADE_LIMIT; k++) {
		int64_t v = u + step, back = k > FADE_STEP ? FADE_STEP : k;
		float before;

		if (v < 0 || v >= s->n || s->p[v].plain || is_hard_cut(s, step > 0 ? v : u))
			break;
		before = back == k ? 0 : s->p[v - step * back].std;
		if ((s->p[v].std - before) / (float)back < FADE_SLOWER * s->p[v].std / (float)k)
			break;
		u = v;
	}
	for (full = s->p[u].std; t != u && s->p[t].std < FADE_FULL * full; t += step)
		continue;
	return t;
}

static void gather_fades(struct vfm_scene *s)
{
	for (int64_t i = 0; i < s->n_runs; i++) {
		const struct plain_run *r = &s->runs[i];
		struct vfm_candidate *c;
		int64_t from = r->first > 0 ? fade_end(s, r->first - 1, -1) + 1 : 0,
			to = r->end < s->n ? fade_end(s, r->end, 1) : s->n;

		c = store_candidate(s, r->f);
		c->from = from;
		c->frame = to;
		c->kind = VFM_CUT_FADE;
		c->abrupt = from == r->first || to == r->end;
	}
}

const struct vfm_candidate *vfm_scene_candidates(struct vfm_scene *s, int64_t *n)
{
	if (s->evaluated <= s->n) {
		while (s->evaluated < s->n)
			evaluate_change(s, s->evaluated++);
		s->n_hard = s->n_candidates;
		for (int k = 0; k < N_HALVES; k++)
			for (int64_t t = s->n - OUTSIDE - halves[k]; t + halves[k] < s->n; t++)
				try_mixture(s, t, halves[k]);
		s->evaluated = s->n + 1;
		if (s->run_first >= 0) {
			if (s->run_end < 0)
				s->run_end = s->n;
			store_run(s);
		}
		gather_fades(s);
		gather_dissolves(s);
	}
	*n = s->n_candidates;
	return s->candidates;
}

static void add_cut(struct vfm_scene *s, const struct vfm_candidate *c, double confidence)
{
	struct vfm_cut cut = {.from = c->from < 0 ? 0 : c->from,
		.frame = c->frame > s->n ? s->n : c->frame,
		.kind = c->kind,
		.confidence = confidence};

	if (cut.frame < cut.from || cut.frame <= 0 || (cut.from == 0 && cut.frame >= s->n))
		return;
	vfm_grow(&s->cuts, &s->cuts_cap, (size_t)s->n_cuts + 1, sizeof(s->cuts[0]));
	s->cuts[s->n_cuts++] = cut;
}

/* Candidates for hard cuts are in order; of those close together the most certain counts. */
static void choose_hard(struct vfm_scene *s, double threshold)
{
	for (int64_t i = 0; i < s->n_hard; i++) {
		const struct vfm_candidate *c = &s->candidates[i];
		struct vfm_cut *last = s->n_cuts ? &s->cuts[s->n_cuts - 1] : NULL;
		double confidence = confidence_of(c);

		if (confidence < threshold)
			continue;
		if (last && c->frame - last->frame <= APART) {
			if (confidence <= last->confidence)
				continue;
			s->n_cuts--;
		}
		add_cut(s, c, confidence);
	}
}

static bool has_hard(const struct vfm_scene *s, int64_t n_hard, int64_t from, int64_t to)
{
	for (int64_t i = 0; i < n_hard; i++)
		if (s->cuts[i].frame >= from && s->cuts[i].frame <= to)
			return true;
	return false;
}

/* Chooses dissolves and fades; without `gradual`, those of plain frames alone of which a side is a cut. */
static void choose_ranges(struct vfm_scene *s, double threshold, bool gradual)
{
	int64_t n_hard = s->n_cuts;

	for (int64_t i = s->n_hard; i < s->n_candidates; i++) {
		const struct vfm_candidate *c = &s->candidates[i];
		double confidence = confidence_of(c);

		if (!gradual && !c->abrupt)
			continue;
		/* The video begins or ends plain. */
		if (c->kind == VFM_CUT_FADE && (c->from <= 0 || c->frame >= s->n))
			confidence = 1;
		if (confidence < threshold)
			continue;
		if (c->kind != VFM_CUT_DISSOLVE || !has_hard(s, n_hard, c->from - 1, c->frame + 1))
			add_cut(s, c, confidence);
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
		if (c.confidence > last->confidence)
			last->confidence = c.confidence;
		last->frame = c.frame;
	}
	s->n_cuts = n;
}

const struct vfm_cut *vfm_scene_cuts(struct vfm_scene *s, double threshold, bool gradual, int64_t *n_cuts)
{
	int64_t n;

	threshold = threshold > 0 ? threshold : VFM_SCENE_THRESHOLD;
	vfm_scene_candidates(s, &n);
	s->n_cuts = 0;
	choose_hard(s, threshold);
	choose_ranges(s, threshold, gradual);
	if (s->n_cuts)
		merge(s);
	*n_cuts = s->n_cuts;
	return s->cuts;
}
