/* score.c - walks the frames of a clip once, and collects brightness, bars, edges, motion, text and artifacts. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "media/av/times.h"
#include "media/score/artifacts.h"
#include "media/score/motion.h"
#include "media/score/score.h"
#include "media/score/temporal.h"
#include "media/score/text.h"

#define PAIR_S        0.1
#define MAX_FRAMES    300
#define MOTION_FRAMES 4 /* of a period: three pairs, which shake needs */

#define CW        256
#define SW        VFM_SCORE_WIDTH
#define MAX_H     1024
#define BLACK     32
#define DARK      64
#define BRIGHT    245
#define HIGHLIGHT 0.01 /* share of the pixels that are highlights */
#define CHROMA    128  /* of a saturated pixel: largest minus smallest channel */
#define BAR_MEAN  24
#define BAR_MAX   48 /* subtitles and logos are brighter */
#define BAR_STEP  12

struct vfm_scorer {
	struct vfm_score sum; /* of the sampled frames */
	int64_t at;           /* number of the next frame */
	struct vfm_motion *motion;
	struct vfm_temporal *temporal;
	struct vfm_artifacts *artifacts;
	struct vfm_text *text;
	uint8_t *rgb, *sharp; /* [ch, CW, 3], [sh, SW] */
	int ch, sh;
	bool image;
	int64_t pair_step, every;
	double pair_s, tick_s;
	int64_t last; /* frame that motion took last, and its time */
	double last_s;
	double highlight, dark;     /* sums over the frames */
	uint8_t *row_max, *col_max; /* brightest pixel and … */
	float *row_mean, *col_mean; /* … largest mean of each row and column in any frame */
};

/* Returns the time between the frames of a pair: that of the rate, unless the timestamps tell of another one. */
static double pair_length(const struct vfm_scorer *w, double s)
{
	return s > 0 && s <= VFM_TIMES_MAX_GAP_S && fabs(s - w->pair_s) > 0.25 * w->pair_s + 2 * w->tick_s ? s
													   : w->pair_s;
}

/* ---- a frame ---- */

static double luma_of(const uint8_t *p)
{
	return 0.299 * p[0] + 0.587 * p[1] + 0.114 * p[2];
}

/* Returns the level that the brightest HIGHLIGHT of n pixels reach, 0 to 1. */
static double highlight_level(const int64_t *histogram, double n)
{
	double above = 0;
	int k = 255;

	while (k > 0 && (above += (double)histogram[k]) < HIGHLIGHT * n)
		k--;
	return k / 255.0;
}

static bool is_clipped_colour(const uint8_t *p)
{
	int low = p[0] < p[1] ? p[0] : p[1], high = p[0] < p[1] ? p[1] : p[0];

	return (p[2] < low ? p[2] : low) == 0 && (p[2] > high ? p[2] : high) >= CHROMA;
}

static void look_at_colour(struct vfm_scorer *w)
{
	double n = (double)CW * w->ch, y1 = 0, y2 = 0, rg1 = 0, rg2 = 0, yb1 = 0, yb2 = 0, black = 0, dark = 0,
	       bright = 0, clipped = 0;
	int64_t histogram[256] = {0};
	struct vfm_score *s = &w->sum;

	for (int64_t i = 0; i < (int64_t)CW * w->ch; i++) {
		const uint8_t *p = w->rgb + 3 * i;
		double y = luma_of(p), rg = p[0] - p[1], yb = 0.5 * (p[0] + p[1]) - p[2];

		y1 += y, y2 += y * y;
		rg1 += rg, rg2 += rg * rg;
		yb1 += yb, yb2 += yb * yb;
		black += y < BLACK;
		dark += y < DARK;
		bright += y > BRIGHT;
		clipped += is_clipped_colour(p);
		histogram[(int)y]++;
	}
	y1 /= n, rg1 /= n, yb1 /= n;
	s->luma += y1 / 255;
	s->contrast += sqrt(fmax(0, y2 / n - y1 * y1)) / 255;
	s->colorfulness += sqrt(fmax(0, rg2 / n - rg1 * rg1) + fmax(0, yb2 / n - yb1 * yb1)) + 0.3 * hypot(rg1, yb1);
	s->black_ratio += black >= 0.98 * n;
	s->oversaturated += clipped / n;
	w->dark += dark / n;
	w->highlight += highlight_level(histogram, n);
	s->overexposed += bright / n;
}

static void look_for_bars(struct vfm_scorer *w)
{
	float col_sum[CW] = {0};

	for (int y = 0; y < w->ch; y++) {
		float sum = 0;

		for (int x = 0; x < CW; x++) {
			float v = (float)luma_of(w->rgb + 3 * ((size_t)y * CW + (size_t)x));

			sum += v;
			col_sum[x] += v;
			if (v > w->row_max[y])
				w->row_max[y] = (uint8_t)v;
			if (v > w->col_max[x])
				w->col_max[x] = (uint8_t)v;
		}
		w->row_mean[y] = fmaxf(w->row_mean[y], sum / CW);
	}
	for (int x = 0; x < CW; x++)
		w->col_mean[x] = fmaxf(w->col_mean[x], col_sum[x] / (float)w->ch);
}

static void look_at_edges(struct vfm_scorer *w)
{
	double sum = 0, sum2 = 0, n = (double)(SW - 2) * (w->sh - 2);

	for (int y = 1; y < w->sh - 1; y++) {
		const uint8_t *p = w->sharp + (size_t)y * SW;
		int row = 0, row2 = 0; /* 510 squares of at most 1020 */

#pragma omp simd reduction(+ : row, row2)
		for (int x = 1; x < SW - 1; x++) {
			int v = p[x - 1] + p[x + 1] + p[x - SW] + p[x + SW] - 4 * p[x];

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
	look_at_edges(w);
	vfm_text_add(w->text, w->sharp);
	w->sum.frames++;
	return 0;
}

/* ---- a clip ---- */

/* Returns the number of black lines from one side, `step` 1 or -1.  A bar ends at an edge: the picture next to it is
 * brighter than the bar at least once, unlike a dark sky. */
static int bar(const float *mean, const uint8_t *max, int n, int step)
{
	int from = step > 0 ? 0 : n - 1, k = 0, next;

	while (k < n && mean[from + step * k] < BAR_MEAN && max[from + step * k] < BAR_MAX)
		k++;
	if (k == 0 || k == n)
		return 0;
	next = k + 2 < n ? k + 2 : n - 1;
	return mean[from + step * next] - mean[from + step * (k > 1 ? k - 2 : 0)] < BAR_STEP ? 0 : k;
}

static void compute_bars(struct vfm_scorer *w)
{
	struct vfm_score *s = &w->sum;
	double bars;

	s->letterbox[0] = (double)bar(w->row_mean, w->row_max, w->ch, 1) / w->ch;
	s->letterbox[1] = (double)bar(w->row_mean, w->row_max, w->ch, -1) / w->ch;
	s->letterbox[2] = (double)bar(w->col_mean, w->col_max, CW, 1) / CW;
	s->letterbox[3] = (double)bar(w->col_mean, w->col_max, CW, -1) / CW;
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
	s->sharpness /= n;
	s->black_ratio /= n;
	s->oversaturated /= n;
	w->dark /= n;
	w->highlight /= n;
	s->overexposed /= n;
	s->motion = m.motion;
	s->camera_motion = m.camera;
	s->object_motion = m.object;
	s->shake = m.shake;
	s->static_ratio = w->image ? 1 : t.frozen;
	s->duplicate_ratio = t.duplicate;
	s->flicker = t.flicker;
	s->blur = a.blur;
	s->blockiness = a.blockiness;
	s->interlace = a.interlace;
	s->text_ratio = vfm_text_end(w->text);
	compute_bars(w);
}

/* Returns the height, within limits, of a picture of this width. */
static int height_at(const struct vfm_video_info *info, int width)
{
	int h = (int)lrint((double)width * info->height / info->width);

	return h < 4 ? 4 : h > MAX_H ? MAX_H : h;
}

int vfm_score_height(const struct vfm_video_info *info)
{
	return height_at(info, SW);
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

	w->image = info->image;
	w->pair_step = vfm_score_step(info);
	w->pair_s = (double)w->pair_step / rate_of(info);
	w->tick_s = info->tick_s;
	/* The least multiple of pair_step that samples at most MAX_FRAMES of n frames. */
	w->every = w->pair_step * (n > 0 ? n / ((MAX_FRAMES + 1) * w->pair_step) + 1 : 1);
	w->ch = height_at(info, CW);
	w->sh = vfm_score_height(info);
	w->last = -1;
	w->motion = vfm_motion_new(info);
	w->temporal = vfm_temporal_new();
	w->artifacts = vfm_artifacts_new();
	w->text = vfm_text_new(SW, w->sh);
	w->rgb = vfm_malloc((size_t)CW * (size_t)w->ch * 3);
	w->sharp = vfm_malloc((size_t)SW * (size_t)w->sh);
	w->row_max = vfm_calloc((size_t)w->ch, 1);
	w->col_max = vfm_calloc(CW, 1);
	w->row_mean = vfm_calloc((size_t)w->ch, sizeof(float));
	w->col_mean = vfm_calloc(CW, sizeof(float));
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
	free(w->sharp);
	free(w->row_max);
	free(w->col_max);
	free(w->row_mean);
	free(w->col_mean);
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
	TRY(vfm_video_luma(v, SW, w->sh, VFM_FIT_STRETCH, w->sharp, err));
	vfm_motion_frame(w->motion, w->sharp, SW, w->sh,
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
