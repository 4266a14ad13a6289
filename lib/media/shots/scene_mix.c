/* scene_mix.c - mixtures of two pictures, the evidence for dissolves; see scene.h.
 *
 * A mixture has a middle frame and `half` frames to either end.  Frames at 1/4, 1/2 and 3/4 of it are fitted to a
 * weighted mean of its ends; their shares and residuals say how good it is.  The best of the halves counts for each
 * middle.  Middles that are better than their neighbours become candidates. */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "media/shots/scene_impl.h"

static const int halves[] = {4, 6, 8, 12, 16, 24, 32};
#define N_HALVES   ((int)(sizeof(halves) / sizeof(halves[0])))
#define LONGEST    32
#define OUTSIDE    36 /* frames beyond the ends of a mixture that are compared with it */
#define NEIGHBOURS 2  /* middles on either side that a candidate exceeds */

#define SHARE_TOLERANCE 0.2f
#define SHARE_END       0.06f
#define SHARE_MIXED     0.25f /* of the other picture, more than motion and light explain */
/* A frame is an end alone if its residual of block matching exceeds that of the frame beyond the end by little. */
#define ALONE        0.1f
#define NOISIER      1.2f
#define MAX_LEFT     0.62f
#define MIN_DIFF     8.0f
#define MIN_MOVED    0.35f
#define MIN_BLOCKS   0.2f
#define MIN_HIST     0.15f
#define MIN_CONTRAST 0.04f /* of the end with less contrast, as a share of the other */
#define MIN_LENGTH   0.15f /* of the frames that change, as a share of those of the mixture */
#define STEP         0.5f  /* change of one frame, as a share of that of the mixture, that ends a side */

/* Fits x to a mixture of a and b by least squares: the share of b, and the residual over |b - a|. */
static float mixture_share(
	const struct vfm_sig *a, const struct vfm_sig *b, const struct vfm_sig *x, float energy, float *left)
{
	int dot = 0, norm = 0;
	float share;

	for (int i = 0; i < SCENE_PIX; i++) {
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

	for (int i = 0; i < SCENE_PIX; i++)
		sum += (a->thumb.y[i] - b->thumb.y[i]) * (a->thumb.y[i] - b->thumb.y[i]);
	return (float)sum;
}

/* Returns the residual of chroma where x has the share of b, over the difference of luma of a and b. */
static float chroma_left(
	const struct vfm_sig *a, const struct vfm_sig *b, const struct vfm_sig *x, float share, float energy)
{
	float sum = 0;

	for (int i = 0; i < SCENE_PIX / 4; i++) {
		float u = (float)a->thumb.cb[i] + share * (float)(b->thumb.cb[i] - a->thumb.cb[i]) -
			(float)x->thumb.cb[i];
		float v = (float)a->thumb.cr[i] + share * (float)(b->thumb.cr[i] - a->thumb.cr[i]) -
			(float)x->thumb.cr[i];

		sum += u * u + v * v;
	}
	return sqrtf(4 * sum / energy);
}

struct mixture {
	int64_t t;
	int half;
	float energy, share[3], left[3];
};

/* Returns how well the frames are a mixture, 0: not at all. */
static float fit_mixture(const struct vfm_scene *s, int64_t t, int half, struct mixture *m)
{
	const struct vfm_sig *a, *b;
	float off = 0, left = 0;

	*m = (struct mixture){.t = t, .half = half};
	if (t < half || t + half >= s->n)
		return 0;
	a = scene_sig(s, t - half);
	b = scene_sig(s, t + half);
	m->energy = energy_of(a, b);
	if (m->energy < MIN_DIFF * MIN_DIFF * SCENE_PIX)
		return 0;
	for (int k = 1; k >= -1; k--) { /* 1, 0, -1: the middle decides least often */
		int i = k + 1;

		m->share[i] = mixture_share(a, b, scene_sig(s, t + k * half / 2), m->energy, &m->left[i]);
		off = fmaxf(off, fabsf(m->share[i] - 0.25f * (float)(i + 1)));
		left = fmaxf(left, m->left[i]);
		if (off > SHARE_TOLERANCE || left > MAX_LEFT)
			return 0;
	}
	off /= SHARE_TOLERANCE;
	left /= MAX_LEFT;
	return sqrtf(m->energy / SCENE_PIX) * (1.1f - left * left) * (1.1f - off * off);
}

/* Returns how many frames the mixture goes from its middle towards one end: to the first frame that is nearly the end
 * alone, at most `half`.  Motion and light change the picture at the end further: the frames whose blocks match it are
 * of the same shot. */
static int mixture_reach(const struct vfm_scene *s, const struct mixture *m, int step)
{
	const struct vfm_sig *a = scene_sig(s, m->t - m->half), *b = scene_sig(s, m->t + m->half), *end;
	float share = 0.5f, left;
	struct vfm_sig_diff d;
	float same = ALONE;
	int64_t beyond;
	int k;

	for (k = 1; k < m->half; k++) {
		share = mixture_share(a, b, scene_sig(s, m->t + step * k), m->energy, &left);
		if (step < 0 ? share < SHARE_END : share > 1 - SHARE_END)
			break;
	}
	end = scene_sig(s, m->t + step * k);
	beyond = m->t + step * (k + 1);
	if (beyond >= 0 && beyond < s->n) {
		vfm_sig_compare(end, scene_sig(s, beyond), &d);
		same += NOISIER * d.moved;
	}
	for (; k > 1; k--) {
		vfm_sig_compare(end, scene_sig(s, m->t + step * (k - 1)), &d);
		if (d.moved > same)
			break;
	}
	return k;
}

/* Returns `reach`, or more where frames beyond still have a share of the other picture that neither motion nor light
 * explains: their blocks match those of the end if both pictures move. */
static int share_reach(const struct vfm_scene *s, const struct mixture *m, int step, int reach)
{
	const struct vfm_sig *a = scene_sig(s, m->t - m->half), *b = scene_sig(s, m->t + m->half);

	for (; reach < m->half; reach++) {
		float left, share = mixture_share(a, b, scene_sig(s, m->t + step * reach), m->energy, &left);

		if (step < 0 ? share <= SHARE_MIXED : share >= 1 - SHARE_MIXED)
			break;
	}
	return reach;
}

/* After an explosion or a change of light the old picture returns. */
static void return_shares(const struct vfm_scene *s, const struct mixture *m, float f[3])
{
	const struct vfm_sig *a = scene_sig(s, m->t - m->half), *b = scene_sig(s, m->t + m->half);
	float across = vfm_sig_pixel(a, b) + 1;

	f[0] = f[1] = 1;
	for (int k = 4; k <= OUTSIDE; k += 4) {
		if (m->t + m->half + k < s->n)
			f[0] = fminf(f[0], vfm_sig_pixel(a, scene_sig(s, m->t + m->half + k)) / across);
		if (m->t - m->half - k >= 0)
			f[1] = fminf(f[1], vfm_sig_pixel(scene_sig(s, m->t - m->half - k), b) / across);
	}
	f[2] = fminf(f[0], f[1]);
}

/* Sets f[0..3] to the change of a shot beyond an end of the mixture, over at most as many frames as the mixture has, at
 * most OUTSIDE, and not beyond the next cut; f[4] to the sum of its changes over the length of the mixture, divided by
 * `across`.  Returns false if fewer than 2 frames remain. */
static bool side_of_mixture(const struct vfm_scene *s, const struct mixture *m, int step, float across, float f[5])
{
	int64_t end = m->t + step * m->half, u = end;
	int most = 2 * m->half < OUTSIDE ? 2 * m->half : OUTSIDE, k;
	float path = 0;

	for (k = 0; k < most; k++) {
		float change;

		if (u + step < 0 || u + step >= s->n)
			break;
		change = s->p[step > 0 ? u + 1 : u].change;
		if (change > STEP * across)
			break;
		path += change;
		u += step;
	}
	if (k < 2)
		return false;
	if (step < 0)
		vfm_scene_differ(scene_sig(s, u), scene_sig(s, end), f);
	else
		vfm_scene_differ(scene_sig(s, end), scene_sig(s, u), f);
	f[4] = path / across * (float)(2 * m->half) / (float)k;
	return true;
}

static void sides_of_mixture(
	const struct vfm_scene *s, const struct mixture *m, float across, float high[5], float low[5])
{
	float side[2][5] = {{0}};
	bool left = side_of_mixture(s, m, -1, across, side[0]), right = side_of_mixture(s, m, 1, across, side[1]);

	for (int i = 0; i < 5; i++) {
		float x = left || !right ? side[0][i] : side[1][i], y = right || !left ? side[1][i] : side[0][i];

		high[i] = fmaxf(x, y);
		low[i] = fminf(x, y);
	}
}

/* Fits the form of x to alpha times that of a plus beta times that of b; form hardly changes with light.  Returns the
 * residual as a share of x. */
static float fit_form(
	const struct vfm_sig *a, const struct vfm_sig *b, const struct vfm_sig *x, float *alpha, float *beta)
{
	int aa = 0, bb = 0, ab = 0, xa = 0, xb = 0, xx = 0;
	float det, left;

	for (int y = VFM_SIG_SEARCH; y < VFM_SIG_SEARCH + VFM_SIG_H; y++)
		for (int i = y * VFM_SIG_STRIDE + VFM_SIG_SEARCH; i < y * VFM_SIG_STRIDE + VFM_SIG_SEARCH + VFM_SIG_W;
			i++) {
			int p = a->form[i] - 128, q = b->form[i] - 128, r = x->form[i] - 128;

			aa += p * p;
			bb += q * q;
			ab += p * q;
			xa += r * p;
			xb += r * q;
			xx += r * r;
		}
	det = (float)aa * (float)bb - (float)ab * (float)ab + 1e6f;
	*alpha = ((float)xa * (float)bb - (float)xb * (float)ab) / det;
	*beta = ((float)xb * (float)aa - (float)xa * (float)ab) / det;
	left = (float)xx - *alpha * (float)xa - *beta * (float)xb;
	return sqrtf(fmaxf(0, left) / ((float)xx + 1));
}

/* In a dissolve the form of one picture grows while that of the other vanishes.
 *   f[0] least share of the middle, f[1] its residual, f[2] growth between 1/4 and 3/4, f[3] larger residual there */
static void form_features(const struct vfm_scene *s, const struct mixture *m, float f[4])
{
	const struct vfm_sig *a = scene_sig(s, m->t - m->half), *b = scene_sig(s, m->t + m->half);
	float alpha[3], beta[3], left[3];

	for (int k = 0; k < 3; k++)
		left[k] = fit_form(a, b, scene_sig(s, m->t + (k - 1) * m->half / 2), &alpha[k], &beta[k]);
	f[0] = fminf(alpha[1], beta[1]);
	f[1] = left[1];
	f[2] = alpha[0] - alpha[2] + beta[2] - beta[0];
	f[3] = fmaxf(left[0], left[2]);
}

/* Motion and light keep blocks over a quarter of the way; f[0], f[1]: most and least difference of blocks. */
static void quarter_features(const struct vfm_scene *s, const struct mixture *m, float f[2])
{
	struct vfm_sig_diff d;

	f[0] = 0;
	f[1] = 1;
	for (int k = -2; k < 2; k++) {
		vfm_sig_compare(scene_sig(s, m->t + k * m->half / 2), scene_sig(s, m->t + (k + 1) * m->half / 2), &d);
		f[0] = fmaxf(f[0], d.moved);
		f[1] = fminf(f[1], d.moved);
	}
}

/* f[0..3] are known.  Motion keeps its blocks also between the ends; a mixture has less contrast than its ends. */
static void mixture_features(const struct vfm_scene *s, const struct mixture *m, float f[VFM_SCENE_FEATURES])
{
	const struct vfm_sig *a = scene_sig(s, m->t - m->half), *b = scene_sig(s, m->t + m->half);
	const struct vfm_sig *mid = scene_sig(s, m->t);
	float x[4], high[5], low[5], across = vfm_sig_pixel(a, b) + 1, path = 0, most = 0;

	f[4] = m->left[1];
	f[5] = fmaxf(m->left[0], m->left[2]);
	f[6] = logf(sqrtf(m->energy / SCENE_PIX) / MIN_DIFF);
	f[7] = fabsf(m->share[0] - 0.25f) + fabsf(m->share[1] - 0.5f) + fabsf(m->share[2] - 0.75f);
	f[8] = sqrtf(m->energy / SCENE_PIX) / (4 + 0.5f * (a->std + b->std));
	vfm_scene_differ(a, mid, x);
	f[9] = x[0];
	vfm_scene_differ(mid, b, x);
	f[10] = x[0];
	f[11] = (mid->std + 1) / (0.5f * (a->std + b->std) + 1);
	return_shares(s, m, f + 12);
	f[15] = vfm_sig_correlation(a, b);
	f[17] = vfm_sig_spread(a, b);
	for (int64_t t = m->t - m->half + 1; t <= m->t + m->half; t++) {
		path += s->p[t].change;
		most = fmaxf(most, s->p[t].change);
	}
	f[18] = path / across;
	f[19] = most / across;
	sides_of_mixture(s, m, across, high, low);
	for (int i = 0; i < 5; i++) {
		f[20 + i] = high[i];
		f[25 + i] = low[i];
	}
	f[30] = logf((float)m->half);
	f[31] = chroma_left(a, b, mid, m->share[1], m->energy);
	f[32] = vfm_sig_shifted(a, b);
	quarter_features(s, m, f + 33);
	form_features(s, m, f + 35);
	x[0] = vfm_sig_textured(a);
	x[1] = vfm_sig_textured(b);
	f[40] = fminf(x[0], x[1]);
	f[41] = fmaxf(x[0], x[1]);
}

/* Stores the mixture at t as a candidate if its ends are two pictures, neither one moved nor one of a fade. */
static void add_dissolve(struct vfm_scene *s, int64_t t)
{
	struct vfm_cut_candidate c = {.kind = VFM_CUT_DISSOLVE};
	const struct vfm_sig *a, *b;
	struct mixture m;
	int before, after;

	fit_mixture(s, t, s->p[t].half, &m);
	a = scene_sig(s, t - m.half);
	b = scene_sig(s, t + m.half);
	c.f[16] = fminf(a->std, b->std) / (fmaxf(a->std, b->std) + 1);
	if (c.f[16] <= MIN_CONTRAST)
		return;
	vfm_scene_differ(a, b, c.f);
	if (c.f[0] <= MIN_MOVED || c.f[1] <= MIN_BLOCKS || c.f[2] <= MIN_HIST)
		return;
	before = mixture_reach(s, &m, -1);
	after = mixture_reach(s, &m, 1);
	c.from = t - share_reach(s, &m, -1, before) + 1;
	c.frame = t + share_reach(s, &m, 1, after);
	for (int64_t u = c.from - 1; u <= c.frame; u++)
		if (s->p[u].plain)
			return;
	c.f[39] = (float)(before + after - 1) / (float)(2 * m.half);
	if (c.f[39] < MIN_LENGTH)
		return;
	mixture_features(s, &m, c.f);
	vfm_grow(&s->dissolves, &s->dissolves_cap, (size_t)s->n_dissolves + 1, sizeof(s->dissolves[0]));
	s->dissolves[s->n_dissolves++] = c;
}

static void best_mixture(struct vfm_scene *s, int64_t t)
{
	struct mixture m;

	for (int k = 0; k < N_HALVES; k++) {
		float fit = fit_mixture(s, t, halves[k], &m);

		if (fit > s->p[t].mixture) {
			s->p[t].mixture = fit;
			s->p[t].half = (int8_t)halves[k];
		}
	}
}

static void choose_mixture(struct vfm_scene *s, int64_t t)
{
	float best = s->p[t].mixture;

	if (best <= 0)
		return;
	for (int64_t u = t - NEIGHBOURS; u <= t + NEIGHBOURS; u++)
		if (u >= 0 && u < s->n && (u < t ? s->p[u].mixture >= best : s->p[u].mixture > best))
			return;
	add_dissolve(s, t);
}

void vfm_scene_follow_mixtures(struct vfm_scene *s, bool ended)
{
	int64_t until = ended ? s->n + NEIGHBOURS : s->n - OUTSIDE - LONGEST;

	for (; s->mixed < until; s->mixed++) {
		if (s->mixed < s->n)
			best_mixture(s, s->mixed);
		if (s->mixed >= NEIGHBOURS)
			choose_mixture(s, s->mixed - NEIGHBOURS);
	}
}
