/* scene_plain.c - frames of one colour, and the fades next to them; see scene.h. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "media/shots/dark_lines.h"
#include "media/shots/scene_impl.h"

#define PLAIN_RANGE   14.0f /* range of luma below which a frame is of one colour */
#define BLACK_MEAN    24.0f
#define BARS_LEAVE    0.5f             /* of the picture, at least */
#define BARS_CONTRAST 2.0f             /* the colour between bars is brighter than black by this factor */
#define LOGO_MOST     (SCENE_PIX / 64) /* pixels */
#define LOGO_STD      20.0f
#define LOGO_AGE      16 /* frames that it was there before */
#define LOGO_CHANGE   12 /* levels */
#define LOGO_STAYS    0.8f
#define REST_CHANGE   4.0f
#define LONG_PLAIN    2.0f /* seconds; so much black separates two shots, even similar ones */
#define FADE_LIMIT    96   /* frames of a fade, on either side */
#define FADE_STEP     4    /* frames over which contrast grows */
#define FADE_SLOWER   0.4f /* growth, as a share of the mean of the fade so far, that ends it */
#define FADE_FULL     0.8f /* of the contrast of the shot: so much looks like all of it */
#define FADE_SEEN     0.2f /* … and with so much, a dark frame shows the shot */
#define FADE_SHORTEST 3    /* frames in which contrast falls, and in which it grows */
#define FADED         0.3f /* least contrast of a short fade, as a share of that of either side */
#define SAME_COLOUR   3.0f /* change of pixels that a counter or a small logo makes on one colour */

#define COLOUR_CUT 10.0f /* change of pixels between two pictures of one colour */
#define QUIET      0.25f /* largest change next to it, as a share of it */

/* Frames next to a run of plain ones that are compared: numbers from the nearest on. */
static const int distance[SCENE_COMPARED] = {0, 2, 4, 8, 15};

static int median_luma(const struct vfm_sig *sig)
{
	int count[256] = {0}, n = 0, y = -1;

	for (int i = 0; i < SCENE_PIX; i++)
		count[sig->thumb.y[i]]++;
	while (n <= SCENE_PIX / 2)
		n += count[++y];
	return y;
}

/* Returns whether frame n has one colour apart from a logo: few pixels, which did not change while the rest did. */
static bool is_plain_but_logo(const struct vfm_scene *s, int64_t n)
{
	const struct vfm_sig *now = scene_sig(s, n), *old;
	int middle, out = 0, stay = 0;

	if (n < LOGO_AGE || now->std > LOGO_STD)
		return false;
	old = scene_sig(s, n - LOGO_AGE);
	middle = median_luma(now);
	for (int i = 0; i < SCENE_PIX; i++)
		if (abs(now->thumb.y[i] - middle) > (int)PLAIN_RANGE / 2) {
			out++;
			stay += abs(now->thumb.y[i] - old->thumb.y[i]) < LOGO_CHANGE;
		}
	if (out > LOGO_MOST || stay < LOGO_STAYS * (float)out)
		return false;
	return vfm_sig_pixel(old, now) > REST_CHANGE || (s->p[n - 1].plain && s->p[n].change < LOGO_CHANGE / 8.0f);
}

/* Returns whether a frame has one colour other than black, ignoring black bars at top and bottom or at left and
 * right. */
static bool is_plain_but_bars(const struct vfm_sig *sig)
{
	const uint8_t *y = sig->thumb.y;
	const int w = VFM_SIG_W, h = VFM_SIG_H;
	const int black = (int)BLACK_MEAN;
	int top = vfm_dark_lines(y, w, h, 1, w, black), bottom = vfm_dark_lines(y + (h - 1) * w, -w, h, 1, w, black);
	int left = vfm_dark_lines(y, 1, w, w, h, black), right = vfm_dark_lines(y + w - 1, -1, w, w, h, black);
	int low = 255, high = 0;

	if ((top == 0 || bottom == 0) && (left == 0 || right == 0))
		return false;
	/* The picture's outermost lines may be mixed with the bars. */
	top += top > 0, bottom += bottom > 0, left += left > 0, right += right > 0;
	if (top + bottom >= h || left + right >= w ||
		(float)((w - left - right) * (h - top - bottom)) < BARS_LEAVE * SCENE_PIX)
		return false;
	for (int j = top; j < h - bottom; j++)
		for (int i = left; i < w - right; i++) {
			low = y[j * w + i] < low ? y[j * w + i] : low;
			high = y[j * w + i] > high ? y[j * w + i] : high;
		}
	return low > BARS_CONTRAST * BLACK_MEAN && (float)(high - low) < PLAIN_RANGE;
}

bool vfm_scene_is_plain(const struct vfm_scene *s, int64_t n)
{
	const struct vfm_sig *now = scene_sig(s, n);

	return now->range < PLAIN_RANGE || is_plain_but_bars(now) || is_plain_but_logo(s, n);
}

/* Returns the frame of [from, to] with the most contrast. */
static const struct vfm_sig *clearest(const struct vfm_scene *s, int64_t from, int64_t to)
{
	int64_t best = to;

	for (int64_t t = from < 0 ? 0 : from; t <= to; t++)
		if (s->p[t].std > s->p[best].std)
			best = t;
	return scene_sig(s, best);
}

/* After a flash of one colour the old picture returns at once and with full contrast; after a fade, neither does.
 * f[0..3] */
static void return_features(
	const struct vfm_scene *s, const struct plain_run *r, const struct vfm_sig *after, float f[4])
{
	const struct vfm_sig *next = scene_sig(s, r->end);
	float x[4], sharp = fminf(s->past[0].std / (s->before.std + 1), next->std / (after->std + 1));

	vfm_scene_differ(&s->past[0], next, x);
	for (int i = 0; i < 3; i++)
		f[i] = sharp * (1 - x[i]);
	f[3] = sharp;
}

/* Sets the features that tell whether the shot continues after the plain frames: some frames of both sides match,
 * compared with how much each side changes over as many frames.
 *   f[0..3]    least difference between a frame before and one after
 *   f[4]       vfm_sig_shifted of the frames next to the plain ones
 *   f[5..8]    larger difference within a side, of two frames whose distance is the length of the plain run
 *   f[9..12]   smaller one of the two sides */
static void same_shot_features(const struct vfm_scene *s, const struct plain_run *r, float f[13])
{
	int64_t gap = r->end - r->first + 1, i = 0;
	float side[2][4] = {{0}}, x[4];

	for (int k = 0; k < 4; k++)
		f[k] = 1;
	for (int a = 0; a < s->n_past; a++)
		for (int b = 0; b < SCENE_COMPARED && r->end + distance[b] < s->n; b++) {
			const struct vfm_sig *after = scene_sig(s, r->end + distance[b]);

			if (distance[a] + distance[b] > distance[SCENE_COMPARED - 1] ||
				s->p[r->end + distance[b]].plain)
				continue;
			vfm_scene_differ(&s->past[a], after, x);
			for (int k = 0; k < 4; k++)
				f[k] = fminf(f[k], x[k]);
		}
	f[4] = vfm_sig_shifted(&s->past[0], scene_sig(s, r->end));
	while (i + 1 < SCENE_COMPARED && distance[i] < gap)
		i++;
	if (s->n_past > 1)
		vfm_scene_differ(&s->past[i < s->n_past ? i : s->n_past - 1], &s->past[0], side[0]);
	while (i > 0 && (r->end + distance[i] >= s->n || s->p[r->end + distance[i]].plain))
		i--;
	if (i)
		vfm_scene_differ(scene_sig(s, r->end), scene_sig(s, r->end + distance[i]), side[1]);
	for (int k = 0; k < 4; k++) {
		f[5 + k] = fmaxf(side[0][k], side[1][k]);
		f[9 + k] = fminf(side[0][k], side[1][k]);
	}
}

/* In a fade, the frames next to the plain ones have the picture of the shot with less contrast.  f[0], f[1]: least and
 * most correlation of the two sides. */
static void fading_features(
	const struct vfm_scene *s, const struct plain_run *r, const struct vfm_sig *after, float f[2])
{
	float a = vfm_sig_correlation(&s->past[0], &s->before), b = vfm_sig_correlation(scene_sig(s, r->end), after);

	f[0] = fminf(a, b);
	f[1] = fmaxf(a, b);
}

/* Returns the frame of most contrast of those after the run. */
static const struct vfm_sig *clearest_after(const struct vfm_scene *s, int64_t end)
{
	int64_t to = end;

	while (to + 1 < s->n && to + 1 < end + SCENE_NEAR && !s->p[to + 1].plain)
		to++;
	return clearest(s, end, to);
}

static void store_run(struct vfm_scene *s, int64_t end)
{
	struct plain_run r = {.first = s->run_first, .end = end, .black = true, .least = FLT_MAX};
	const struct vfm_sig *after = r.end < s->n ? clearest_after(s, r.end) : NULL;
	float contrast = 0, darkest = 255;

	for (int64_t t = r.first; t < r.end; t++) {
		/* Near its end a fade from black is less dark. */
		r.black &= s->p[t].mean < BLACK_MEAN + PLAIN_RANGE;
		darkest = fminf(darkest, s->p[t].mean);
		contrast = fmaxf(contrast, s->p[t].std);
		r.least = fminf(r.least, s->p[t].std);
	}
	r.black &= darkest < BLACK_MEAN;
	r.change_before = r.first > 0 ? s->change_before : 0;
	r.change_after = after ? vfm_sig_pixel(scene_sig(s, r.end - 1), after) : 0;
	if (r.first > 0 && after) {
		vfm_scene_differ(&s->before, after, r.f);
		r.f[4] = fminf(LONG_PLAIN, (float)(r.end - r.first) / (float)s->second);
		r.f[5] = r.black;
		return_features(s, &r, after, r.f + 6);
		r.f[10] = logf((contrast + 1) / (fminf(s->before.std, after->std) + 1));
		same_shot_features(s, &r, r.f + 11);
		fading_features(s, &r, after, r.f + 24);
	}
	vfm_grow(&s->runs, &s->runs_cap, (size_t)s->n_runs + 1, sizeof(s->runs[0]));
	s->runs[s->n_runs++] = r;
	s->run_first = -1;
}

/* Keeps frames before the run that begins at n: a long one outlasts the ring. */
static void keep_past(struct vfm_scene *s, int64_t n)
{
	s->before = *clearest(s, n - SCENE_NEAR, n - 1);
	s->n_past = 0;
	for (int i = 0; i < SCENE_COMPARED && n - 1 - distance[i] >= 0 && !s->p[n - 1 - distance[i]].plain; i++)
		s->past[s->n_past++] = *scene_sig(s, n - 1 - distance[i]);
	s->change_before = vfm_sig_pixel(&s->before, scene_sig(s, n));
}

/* Returns whether frame n, at the middle of a short fade through a colour, has the least contrast: no frame may be
 * entirely of that colour. */
static bool is_faded(const struct vfm_scene *s, int64_t n)
{
	float most[2] = {0}, least = s->p[n].std;

	if (n < FADE_SHORTEST || n + FADE_SHORTEST >= s->n)
		return false;
	for (int64_t u = n < SCENE_NEAR ? 0 : n - SCENE_NEAR + 1; u < n + SCENE_NEAR && u < s->n; u++) {
		if (s->p[u].plain || s->p[u].std < least)
			return false;
		most[u > n] = fmaxf(most[u > n], s->p[u].std);
	}
	for (int k = 1; k < FADE_SHORTEST; k++)
		if (s->p[n - k - 1].std <= s->p[n - k].std || s->p[n + k + 1].std <= s->p[n + k].std)
			return false;
	return least < FADED * fminf(most[0], most[1]);
}

void vfm_scene_follow_plain(struct vfm_scene *s, int64_t n)
{
	if (n < s->n && !s->p[n].plain)
		s->p[n].plain = is_faded(s, n);
	if (n >= s->n || !s->p[n].plain) {
		if (s->run_first >= 0)
			store_run(s, n);
	} else if (s->run_first < 0) {
		s->run_first = n;
		if (n)
			keep_past(s, n);
	}
}

/* Contrast beyond that of a plain frame, which may show a logo. */
static float contrast_over(const struct vfm_scene *s, int64_t t, int64_t plain)
{
	return fmaxf(0, s->p[t].std - s->p[plain].std);
}

/* Returns the last frame of a fade, going outward from frame t next to a plain one.  Stops when contrast grows more
 * slowly than at the beginning, and at the next hard cut. */
static int64_t fade_end(const struct vfm_scene *s, int64_t t, int step)
{
	int64_t u = t, plain = t - step;

	for (int k = 2; k < FADE_LIMIT; k++) {
		int64_t v = u + step, back = k > FADE_STEP ? FADE_STEP : k;
		float now, before;

		if (v < 0 || v >= s->n || s->p[v].plain || vfm_scene_is_hard_cut(s, step > 0 ? v : u))
			break;
		now = contrast_over(s, v, plain);
		before = back == k ? 0 : contrast_over(s, v - step * back, plain);
		if ((now - before) / (float)back < FADE_SLOWER * now / (float)k)
			break;
		u = v;
	}
	return u;
}

/* Returns the first frame from t to `end` with a share of the contrast at the end, both beyond `base`. */
static int64_t contrast_reach(const struct vfm_scene *s, int64_t t, int64_t end, float base, float share)
{
	float least = share * fmaxf(0, s->p[end].std - base);

	while (t != end && s->p[t].std - base < least && least > 0)
		t += end > t ? 1 : -1;
	return t;
}

/* One side of a run of plain frames; frame numbers count outward from it. */
struct fade_side {
	int64_t next, end; /* the frame next to the run, the last one of the fade */
	int64_t seen;      /* the first frame that shows the shot; of a fade to another colour than black, all of it */
	bool abrupt;       /* the next frame shows all of the shot */
	bool differs;      /* the shot differs from the plain frames by more than a counter or a small logo */
};

/* step -1: before the plain frames, 1: after them */
static struct fade_side measure_side(const struct vfm_scene *s, const struct plain_run *r, int step)
{
	int64_t t = step < 0 ? r->first - 1 : r->end, full;
	struct fade_side side = {.next = t, .end = t, .seen = t, .abrupt = true};
	float change = step < 0 ? r->change_before : r->change_after;

	if (t < 0 || t >= s->n)
		return side;
	side.end = fade_end(s, t, step);
	full = contrast_reach(s, t, side.end, s->p[t - step].std, FADE_FULL);
	side.abrupt = full == t;
	side.seen = r->black ? contrast_reach(s, t, side.end, r->least, FADE_SEEN) : full;
	side.differs = fmaxf(change, fabsf(s->p[side.end].mean - s->p[t - step].mean)) > SAME_COLOUR;
	return side;
}

/* Adds the fade from one frame to another, which shows a shot again. */
static void add_fade(
	struct vfm_scene *s, const struct plain_run *r, const struct fade_side *a, const struct fade_side *b)
{
	struct vfm_cut_candidate c = {.from = a->end + 1,
		.frame = b->end,
		.seen_from = a->seen + 1,
		.seen_frame = b->seen,
		.kind = VFM_CUT_FADE,
		.abrupt = a->abrupt || b->abrupt,
		.sure = r->first == 0 || r->end == s->n};

	/* A single frame between two shots, with no fade next to it, is a flash at a cut. */
	if (!c.sure && a->abrupt && b->abrupt && b->next - a->next == 2)
		c.from = c.seen_from = c.frame = c.seen_frame = b->next;
	if (c.seen_from == c.seen_frame)
		c.from = c.frame = c.seen_frame;
	memcpy(c.f, r->f, sizeof(c.f));
	vfm_scene_add_candidate(s, &c);
}

/* Returns whether the colour changes at frame t, and neither for a while before nor after it. */
static bool is_colour_cut(const struct vfm_scene *s, const struct plain_run *r, int64_t t)
{
	int64_t quiet = s->second / 2;
	float change = s->p[t].change;

	if (change < COLOUR_CUT || t - r->first < quiet || r->end - t < quiet)
		return false;
	for (int64_t u = t - quiet + 1; u < t + quiet; u++)
		if (u != t && s->p[u].change > QUIET * change)
			return false;
	return true;
}

static void add_colour_cuts(struct vfm_scene *s, const struct plain_run *r)
{
	for (int64_t t = r->first + 1; t < r->end; t++) {
		struct vfm_cut_candidate c = {.from = t,
			.frame = t,
			.seen_from = t,
			.seen_frame = t,
			.kind = VFM_CUT_FADE,
			.sure = true,
			.abrupt = true};

		if (is_colour_cut(s, r, t))
			vfm_scene_add_candidate(s, &c);
	}
}

void vfm_scene_gather_fades(struct vfm_scene *s)
{
	for (int64_t i = 0; i < s->n_runs; i++) {
		const struct plain_run *r = &s->runs[i];
		struct fade_side a = measure_side(s, r, -1), b = measure_side(s, r, 1);
		/* The ends of the run itself. */
		struct fade_side first = {.next = r->first, .end = r->first, .seen = r->first, .abrupt = true};
		struct fade_side last = {.next = r->end - 1, .end = r->end - 1, .seen = r->end - 1, .abrupt = true};

		add_colour_cuts(s, r);
		if (r->black || r->end - r->first < s->second) {
			if (a.differs || b.differs)
				add_fade(s, r, &a, &b);
			continue;
		}
		/* A picture of one colour, such as a clear sky, is a shot of its own. */
		if (a.differs)
			add_fade(s, r, &a, &first);
		if (b.differs)
			add_fade(s, r, &last, &b);
	}
}
