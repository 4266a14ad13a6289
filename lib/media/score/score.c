/* score.c - walks the frames of a clip once, and collects brightness, bars, edges, motion, text and artifacts. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/clones.h"
#include "base/mem.h"
#include "media/av/times.h"
#include "media/score/artifacts.h"
#include "media/score/motion.h"
#include "media/score/score.h"
#include "media/score/temporal.h"
#include "media/score/text.h"

#define PAIR_S        0.1
#define MAX_FRAMES    200
#define MOTION_FRAMES 4 /* of a period: three pairs, which shake needs */

#define CW            256
#define MAX_SIDE      1024
#define MIN_WIDTH     128 /* of the grid of motion */
#define BLACK         32
#define DARK          64
#define BRIGHT        245
#define HIGHLIGHT     0.01 /* share of the pixels that are highlights */
#define CHROMA        128  /* of a saturated pixel: largest minus smallest channel */
#define REACH         2    /* of the Laplacian, pixels */
#define BAR_MEAN      24
#define BAR_MAX       48 /* subtitles and logos are brighter */
#define BAR_RISE      2  /* within a bar */
#define BAR_STEP      12 /* of the mean, to the picture */
#define BAR_STEP_DARK 3  /* … if BAR_LIT of the pixels are brighter than LIT there */
#define BAR_LIT       0.3
#define LIT           8

/* The largest values of a row or column in any frame: mean, share of the pixels above LIT, brightest pixel. */
struct bar_line {
	float mean, lit;
	uint8_t max;
};

struct vfm_scorer {
	struct vfm_score sum; /* of the sampled frames */
	int64_t at;           /* number of the next frame */
	struct vfm_motion *motion;
	struct vfm_temporal *temporal;
	struct vfm_artifacts *artifacts;
	struct vfm_text *text;
	uint8_t *rgb, *luma; /* [ch, CW, 3], [h, w] */
	int ch, w, h;
	bool is_small; /* smaller than the size of sharpness and text */
	int64_t pair_step, every;
	double pair_s, tick_s;
	int64_t last; /* frame that motion took last, and its time */
	double last_s;
	double highlight, dark; /* sums over the frames */
	struct bar_line *rows, *cols;
};

/* Returns the time between the frames of a pair: that of the rate, unless the timestamps tell of another one. */
static double pair_length(const struct vfm_scorer *w, double s)
{
	return s > 0 && s <= VFM_TIMES_MAX_GAP_S && fabs(s - w->pair_s) > 0.25 * w->pair_s + 2 * w->tick_s ? s
													   : w->pair_s;
}

/* ---- a frame ---- */

/* Returns the level that the brightest HIGHLIGHT of n pixels reach, 0 to 1. */
static double highlight_level(const int64_t *histogram, double n)
{
	double above = 0;
	int k = 255;

	while (k > 0 && (above += (double)histogram[k]) < HIGHLIGHT * n)
		k--;
	return k / 255.0;
}

/* Sums over the pixels of a frame, in thousandths of a level for y and halves for rg and yb. */
struct colour_sums {
	int64_t y, y2, rg, rg2, yb, yb2;
	int black, dark, bright, clipped;
};

/* Adds n pixels, at most 1024, and stores their brightness. */
VFM_CLONES("avx2", "default")
static void add_colours(struct colour_sums *s, const uint8_t *p, int n, uint8_t *level)
{
	int sum_y = 0, sum_rg = 0, sum_rg2 = 0, sum_yb = 0, sum_yb2 = 0, black = 0, dark = 0, bright = 0, clipped = 0;
	double sum_y2 = 0;

#pragma omp simd reduction(+ : sum_y, sum_y2, sum_rg, sum_rg2, sum_yb, sum_yb2, black, dark, bright, clipped)
	for (int i = 0; i < n; i++) {
		int r = p[3 * i], g = p[3 * i + 1], b = p[3 * i + 2];
		int y = 299 * r + 587 * g + 114 * b, rg = 2 * (r - g), yb = r + g - 2 * b;
		int low = r < g ? r : g, high = r < g ? g : r;

		level[i] = (uint8_t)((unsigned)y / 1000);
		sum_y += y, sum_y2 += (double)y * y;
		sum_rg += rg, sum_rg2 += rg * rg;
		sum_yb += yb, sum_yb2 += yb * yb;
		black += y < 1000 * BLACK;
		dark += y < 1000 * DARK;
		bright += y > 1000 * BRIGHT;
		low = low < b ? low : b;
		high = high > b ? high : b;
		clipped += low == 0 && high >= CHROMA;
	}
	s->y += sum_y, s->y2 += (int64_t)sum_y2;
	s->rg += sum_rg, s->rg2 += sum_rg2;
	s->yb += sum_yb, s->yb2 += sum_yb2;
	s->black += black, s->dark += dark, s->bright += bright, s->clipped += clipped;
}

static double variance_of(double sum, double sum2, double n)
{
	return fmax(0, sum2 / n - sum / n * (sum / n));
}

static void look_at_colour(struct vfm_scorer *w)
{
	double n = (double)CW * w->ch;
	int64_t histogram[256] = {0};
	struct vfm_score *s = &w->sum;
	struct colour_sums c = {0};

	for (int y = 0; y < w->ch; y++) {
		uint8_t level[CW];

		add_colours(&c, w->rgb + 3 * (size_t)y * CW, CW, level);
		for (int x = 0; x < CW; x++)
			histogram[level[x]]++;
	}
	s->luma += (double)c.y / n / 255e3;
	s->contrast += sqrt(variance_of((double)c.y, (double)c.y2, n)) / 255e3;
	s->colorfulness += 0.5 *
		(sqrt(variance_of((double)c.rg, (double)c.rg2, n) + variance_of((double)c.yb, (double)c.yb2, n)) +
			0.3 * hypot((double)c.rg / n, (double)c.yb / n));
	s->black_ratio += c.black >= 0.98 * n;
	s->oversaturated += c.clipped / n;
	w->dark += c.dark / n;
	w->highlight += highlight_level(histogram, n);
	s->overexposed += c.bright / n;
}

static bool is_dark_line(const struct bar_line *l)
{
	return l->mean < BAR_MEAN && l->max < BAR_MAX;
}

static void take_bar_line(struct bar_line *l, int sum, int lit, int most, int n)
{
	l->mean = fmaxf(l->mean, (float)sum / (float)n);
	l->lit = fmaxf(l->lit, (float)lit / (float)n);
	l->max = (uint8_t)(most > l->max ? most : l->max);
}

VFM_CLONES("avx2", "default")
static void take_row(struct bar_line *l, const uint8_t *p, int w)
{
	int sum = 0, lit = 0, most = 0;

#pragma omp simd reduction(+ : sum, lit) reduction(max : most)
	for (int x = 0; x < w; x++) {
		sum += p[x];
		lit += p[x] > LIT;
		most = p[x] > most ? p[x] : most;
	}
	take_bar_line(l, sum, lit, most, w);
}

/* Takes columns x to x + n - 1, at most MAX_SIDE. */
VFM_CLONES("avx2", "default")
static void take_columns(struct vfm_scorer *w, int x, int n)
{
	int sum[MAX_SIDE] = {0}, lit[MAX_SIDE] = {0}, most[MAX_SIDE] = {0};

	for (int y = 0; y < w->h; y++) {
		const uint8_t *p = w->luma + (size_t)y * (size_t)w->w + x;

#pragma omp simd
		for (int i = 0; i < n; i++) {
			sum[i] += p[i];
			lit[i] += p[i] > LIT;
			most[i] = p[i] > most[i] ? p[i] : most[i];
		}
	}
	for (int i = 0; i < n; i++)
		take_bar_line(&w->cols[x + i], sum[i], lit[i], most[i], w->h);
}

static bool may_have_bar(const struct bar_line *line, int n)
{
	return is_dark_line(&line[0]) || is_dark_line(&line[n - 1]);
}

/* Takes the lines of a frame, as long as a side may have a bar: one whose outer line was bright once has none. */
static void look_for_bars(struct vfm_scorer *w)
{
	take_row(&w->rows[0], w->luma, w->w);
	take_row(&w->rows[w->h - 1], w->luma + (ptrdiff_t)(w->h - 1) * w->w, w->w);
	for (int y = 1; may_have_bar(w->rows, w->h) && y < w->h - 1; y++)
		take_row(&w->rows[y], w->luma + (ptrdiff_t)y * w->w, w->w);
	take_columns(w, 0, 1);
	take_columns(w, w->w - 1, 1);
	if (may_have_bar(w->cols, w->w))
		take_columns(w, 1, w->w - 2);
}

VFM_CLONES("avx2", "default")
static void look_at_edges(struct vfm_scorer *w)
{
	double sum = 0, sum2 = 0, n = (double)(w->w - 2 * REACH) * (w->h - 2 * REACH);

	for (int y = REACH; y < w->h - REACH; y++) {
		const uint8_t *p = w->luma + (size_t)y * (size_t)w->w, *above = p - REACH * w->w,
			      *below = p + REACH * w->w;
		int row = 0, row2 = 0; /* at most 1024 squares of at most 1020 */

#pragma omp simd reduction(+ : row, row2)
		for (int x = REACH; x < w->w - REACH; x++) {
			int v = p[x - REACH] + p[x + REACH] + above[x] + below[x] - 4 * p[x];

			row += v;
			row2 += v * v;
		}
		sum += row;
		sum2 += row2;
	}
	if (n > 0)
		w->sum.sharpness += fmax(0, sum2 / n - sum / n * (sum / n));
}

static int look_at(struct vfm_scorer *w, struct vfm_video *v, struct vfm_err *err)
{
	TRY(vfm_video_rgb(v, CW, w->ch, VFM_FIT_STRETCH, w->rgb, err));
	TRY(vfm_artifacts_add(w->artifacts, v, err));
	look_at_colour(w);
	look_for_bars(w);
	if (!w->is_small) {
		look_at_edges(w);
		vfm_text_add(w->text, w->luma);
	}
	w->sum.frames++;
	return 0;
}

/* ---- a clip ---- */

/* Returns the number of lines of the bar at one side, `step` 1 or -1.  A bar is as dark as its outer line, and ends at an
 * edge: next to it, the picture is brighter at least once, unlike a dark sky, in a good part of the line, unlike an object
 * on black. */
static int bar(const struct bar_line *line, int n, int step)
{
	const struct bar_line *outer = step > 0 ? line : line + n - 1, *in, *out;
	float rise;
	int k = 0;

	while (k < n && is_dark_line(&outer[step * k]) && outer[step * k].mean < outer->mean + BAR_RISE)
		k++;
	if (k == 0 || k == n)
		return 0;
	/* the line at the edge may be mixed */
	in = &outer[step * (k + 2 < n ? k + 2 : n - 1)];
	out = &outer[step * (k > 1 ? k - 2 : 0)];
	rise = in->mean - out->mean;
	if (in->lit < BAR_LIT || rise < BAR_STEP_DARK)
		return 0;
	return rise >= BAR_STEP || in->lit - out->lit >= BAR_LIT ? k : 0;
}

static void compute_bars(struct vfm_scorer *w)
{
	struct vfm_score *s = &w->sum;
	double bars;

	s->letterbox[0] = (double)bar(w->rows, w->h, 1) / w->h;
	s->letterbox[1] = (double)bar(w->rows, w->h, -1) / w->h;
	s->letterbox[2] = (double)bar(w->cols, w->w, 1) / w->w;
	s->letterbox[3] = (double)bar(w->cols, w->w, -1) / w->w;
	bars = 1 - (1 - s->letterbox[0] - s->letterbox[1]) * (1 - s->letterbox[2] - s->letterbox[3]);
	s->bar_ratio = bars;
	/* The shares are those of the picture between the bars, all of whose pixels are dark. */
	s->underexposed = fmax(0, w->dark - bars) / (1 - bars) * (1 - w->highlight);
	s->overexposed = fmin(1, s->overexposed / (1 - bars));
}

static void compute_means(struct vfm_scorer *w)
{
	struct vfm_score *s = &w->sum;
	struct vfm_motion_result m = vfm_motion_result(w->motion);
	struct vfm_temporal_result t = vfm_temporal_end(w->temporal);
	struct vfm_artifacts_result a = vfm_artifacts_result(w->artifacts);
	double n = (double)s->frames;

	s->luma /= n;
	s->contrast /= n;
	s->colorfulness /= n;
	s->sharpness = w->is_small ? NAN : s->sharpness / n;
	s->black_ratio /= n;
	s->oversaturated /= n;
	w->dark /= n;
	w->highlight /= n;
	s->overexposed /= n;
	s->motion = m.motion;
	s->camera_motion = m.camera;
	s->object_motion = m.object;
	s->shake = m.shake;
	s->static_ratio = t.frozen;
	s->duplicate_ratio = t.duplicate;
	s->flicker = t.flicker;
	s->blur = a.blur;
	s->blockiness = a.blockiness;
	s->interlace = a.interlace;
	s->text_ratio = w->is_small ? NAN : vfm_text_end(w->text);
	compute_bars(w);
}

/* Returns x, rounded, within the limits of a side. */
static int bounded_side(double x)
{
	return (int)lrint(fmin(MAX_SIDE, fmax(4, x)));
}

void vfm_score_size(const struct vfm_video_info *info, int *width, int *height)
{
	double w = info->width, h = info->height, scale = fmin(1, VFM_SCORE_SIDE / fmin(w, h));

	scale = fmax(scale, MIN_WIDTH / w);
	*width = bounded_side(scale * w);
	*height = bounded_side(scale * h);
}

static double rate_of(const struct vfm_video_info *info)
{
	return info->fps_num ? (double)info->fps_num / info->fps_den : 25;
}

int64_t vfm_score_step(const struct vfm_video_info *info)
{
	return (int64_t)fmax(1, lrint(PAIR_S * rate_of(info)));
}

struct vfm_scorer *vfm_scorer_new(const struct vfm_score_opts *o, const struct vfm_video_info *info)
{
	struct vfm_scorer *w = vfm_calloc(1, sizeof(*w));
	int64_t n = o->end >= 0 ? o->end - o->start : o->about > 0 ? o->about : info->frames;

	w->pair_step = vfm_score_step(info);
	w->pair_s = (double)w->pair_step / rate_of(info);
	w->tick_s = info->tick_s;
	/* The least multiple of pair_step that samples at most MAX_FRAMES of n frames. */
	w->every = w->pair_step * (n > 0 ? n / ((MAX_FRAMES + 1) * w->pair_step) + 1 : 1);
	w->ch = bounded_side((double)CW * info->height / info->width);
	vfm_score_size(info, &w->w, &w->h);
	w->is_small = info->width < VFM_SCORE_SIDE || info->height < VFM_SCORE_SIDE;
	w->last = -1;
	w->motion = vfm_motion_new(info);
	w->temporal = vfm_temporal_new();
	w->artifacts = vfm_artifacts_new();
	w->text = vfm_text_new(w->w, w->h);
	w->rgb = vfm_malloc((size_t)CW * (size_t)w->ch * 3);
	w->luma = vfm_malloc((size_t)w->w * (size_t)w->h);
	w->rows = vfm_calloc((size_t)w->h, sizeof(*w->rows));
	w->cols = vfm_calloc((size_t)w->w, sizeof(*w->cols));
	return w;
}

void vfm_scorer_free(struct vfm_scorer *w)
{
	if (!w)
		return;
	vfm_motion_free(w->motion);
	vfm_temporal_free(w->temporal);
	vfm_artifacts_free(w->artifacts);
	vfm_text_free(w->text);
	free(w->rgb);
	free(w->luma);
	free(w->rows);
	free(w->cols);
	free(w);
}

/* Examines the first frame of each period of `every` frames and compares it with the one after it.  Motion takes up to
 * MOTION_FRAMES of them, pair_step apart. */
int vfm_scorer_push(struct vfm_scorer *w, struct vfm_video *v, const struct vfm_frame *f, struct vfm_err *err)
{
	int64_t i = w->at++, k = i % w->every;

	TRY(vfm_temporal_add(w->temporal, v, f, err));
	if (i > 0 && (i - 1) % w->every == 0)
		TRY(vfm_artifacts_next(w->artifacts, v, err));
	if (k % w->pair_step || k / w->pair_step >= MOTION_FRAMES)
		return 0;
	TRY(vfm_video_luma(v, w->w, w->h, VFM_FIT_STRETCH, w->luma, err));
	vfm_motion_frame(w->motion, w->luma, w->w, w->h,
		w->last >= 0 && i - w->last == w->pair_step ? pair_length(w, f->time_s - w->last_s) : 0);
	w->last = i;
	w->last_s = f->time_s;
	return k == 0 ? look_at(w, v, err) : 0;
}

int vfm_scorer_finish(struct vfm_scorer *w, struct vfm_score *s, struct vfm_err *err)
{
	if (!w->sum.frames)
		return vfm_fail(err, VFM_EINPUT, "no frame can be decoded");
	compute_means(w);
	*s = w->sum;
	return 0;
}

static int score_frames(struct vfm_score *s, struct vfm_video *v, const struct vfm_score_opts *o, struct vfm_err *err)
{
	struct vfm_scorer *w = vfm_scorer_new(o, vfm_video_info(v));
	int64_t want = o->end < 0 ? INT64_MAX : o->end - o->start;
	struct vfm_frame f;
	int rc = 0;

	for (int64_t i = 0; i < want && (rc = vfm_video_next(v, &f, err)) == 1; i++)
		TRY_OUT(vfm_scorer_push(w, v, &f, err));
	if (rc < 0)
		goto out;
	TRY_OUT(vfm_scorer_finish(w, s, err));
	rc = vfm_video_check_end(v, o->end, err);
out:
	vfm_scorer_free(w);
	return rc;
}

int vfm_score_file(struct vfm_score *s, const char *path, const struct vfm_score_opts *o, struct vfm_err *err)
{
	struct vfm_video_opts video = o->video;
	struct vfm_video *v = NULL;
	int rc;

	*s = (struct vfm_score){0};
	video.deinterlace = VFM_DEINTERLACE_OFF; /* interlacing is one of the scores */
	TRY_OUT(vfm_video_open(&v, path, &video, err));
	if (o->start > 0)
		TRY_OUT(vfm_video_seek(v, o->start, o->start_pts, err));
	rc = score_frames(s, v, o, err);
out:
	vfm_video_close(v);
	return rc;
}
