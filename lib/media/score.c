/* score.c - see score.h. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "media/score.h"
#include "media/text.h"
#include "media/times.h"

#define PAIR_S     0.1
#define MAX_FRAMES 300

/* motion */
#define MW       128
#define MH       96
#define BLOCK    8
#define N_BLOCKS ((double)(MW * MH) / (BLOCK * BLOCK))
#define REACH    12
#define FLAT     3.0 /* mean absolute deviation below which a block has no texture */
#define NOISE    1.5 /* mean absolute difference of a block caused by noise and coding */
#define STILL    0.6 /* … of a whole frame */

/* other scores */
#define CW       256
#define SW       512
#define MAX_H    1024
#define BLACK    32
#define BAR_MEAN 24
#define BAR_MAX  48 /* subtitles and logos are brighter */

struct work {
	struct vfm_score *s;
	uint8_t motion[2][MW * MH];
	uint8_t *rgb, *sharp; /* [ch, CW, 3], [sh, SW] */
	int ch, sh;
	int64_t pair_step, every;
	double pair_s, tick_s, motion_s[2]; /* motion_s: times of the two frames in motion */
	int64_t n_pairs, n_still;
	double moved, prev_luma, prev2_luma;
	int64_t n_flicker;
	double flicker;
	uint8_t *row_max, *col_max; /* brightest pixel and … */
	float *row_mean, *col_mean; /* … largest mean of each row and column in any frame */
};

/* ---- motion ---- */

static int sad(const uint8_t *a, const uint8_t *b, int limit)
{
	int sum = 0;

	for (int j = 0; j < BLOCK && sum < limit; j++, a += MW, b += MW)
		for (int i = 0; i < BLOCK; i++)
			sum += abs(a[i] - b[i]);
	return sum;
}

static bool is_flat(const uint8_t *p)
{
	int sum = 0, dev = 0;

	for (int j = 0; j < BLOCK; j++)
		for (int i = 0; i < BLOCK; i++)
			sum += p[j * MW + i];
	for (int j = 0; j < BLOCK; j++)
		for (int i = 0; i < BLOCK; i++)
			dev += abs(p[j * MW + i] - sum / (BLOCK * BLOCK));
	return dev < FLAT * BLOCK * BLOCK;
}

/* Returns the minimum of the parabola through three equally spaced values. */
static double vertex(int before, int at, int after)
{
	int bend = before - 2 * at + after;

	return bend > 0 ? fmin(0.5, fmax(-0.5, 0.5 * (before - after) / bend)) : 0;
}

/* Returns the motion of a block at (x, y) from `then` to `now`, in pixels. */
static double block_motion(const uint8_t *then, const uint8_t *now, int x, int y)
{
	const uint8_t *b = now + y * MW + x;
	int still = sad(then + y * MW + x, b, 1 << 30), best = still, bx = 0, by = 0;
	double fx = bx, fy = by;

	if (still < NOISE * BLOCK * BLOCK || is_flat(b))
		return 0;
	for (int dy = -REACH; dy <= REACH; dy++)
		for (int dx = -REACH; dx <= REACH; dx++) {
			/* Penalises long motion, since similar blocks are frequent. */
			int d, cost = abs(dx) + abs(dy);

			if (x + dx < 0 || y + dy < 0 || x + dx + BLOCK > MW || y + dy + BLOCK > MH)
				continue;
			d = sad(then + (y + dy) * MW + x + dx, b, best) + 2 * cost;
			if (d < best) {
				best = d;
				bx = dx;
				by = dy;
			}
		}
	/* No match (light, water, noise): the motion is undefined. */
	if (best > 0.8 * still && best > 4 * NOISE * BLOCK * BLOCK)
		return 0;
	fx = bx;
	fy = by;
	if (x + bx > 0 && x + bx + BLOCK < MW)
		fx += vertex(sad(then + (y + by) * MW + x + bx - 1, b, 1 << 30),
			sad(then + (y + by) * MW + x + bx, b, 1 << 30),
			sad(then + (y + by) * MW + x + bx + 1, b, 1 << 30));
	if (y + by > 0 && y + by + BLOCK < MH)
		fy += vertex(sad(then + (y + by - 1) * MW + x + bx, b, 1 << 30),
			sad(then + (y + by) * MW + x + bx, b, 1 << 30),
			sad(then + (y + by + 1) * MW + x + bx, b, 1 << 30));
	/* The grid is 128 x 96 for any aspect ratio: both directions as shares of a side. */
	return hypot(fx / MW, fy / MH) * 100;
}

/* Returns the time between the frames of a pair: that of the rate, unless the timestamps tell of another one. */
static double pair_length(const struct work *w, int at)
{
	double s = w->motion_s[at] - w->motion_s[at ^ 1];

	return s > 0 && s <= VFM_TIMES_MAX_GAP_S && fabs(s - w->pair_s) > 0.25 * w->pair_s + 2 * w->tick_s ? s
													   : w->pair_s;
}

static void add_pair(struct work *w, const uint8_t *then, const uint8_t *now, double seconds)
{
	double sum = 0;
	int64_t diff = 0;

	for (int i = 0; i < MW * MH; i++)
		diff += abs(then[i] - now[i]);
	w->n_pairs++;
	if ((double)diff / (MW * MH) < STILL)
		w->n_still++;
	for (int y = 0; y + BLOCK <= MH; y += BLOCK)
		for (int x = 0; x + BLOCK <= MW; x += BLOCK)
			sum += block_motion(then, now, x, y);
	w->moved += sum / N_BLOCKS / seconds;
}

/* ---- a frame ---- */

static double luma_of(const uint8_t *p)
{
	return 0.299 * p[0] + 0.587 * p[1] + 0.114 * p[2];
}

static void look_at_colour(struct work *w)
{
	double n = (double)CW * w->ch, y1 = 0, y2 = 0, rg1 = 0, rg2 = 0, yb1 = 0, yb2 = 0, black = 0;
	struct vfm_score *s = w->s;

	for (int64_t i = 0; i < (int64_t)CW * w->ch; i++) {
		const uint8_t *p = w->rgb + 3 * i;
		double y = luma_of(p), rg = p[0] - p[1], yb = 0.5 * (p[0] + p[1]) - p[2];

		y1 += y, y2 += y * y;
		rg1 += rg, rg2 += rg * rg;
		yb1 += yb, yb2 += yb * yb;
		black += y < BLACK;
	}
	y1 /= n, rg1 /= n, yb1 /= n;
	s->luma += y1 / 255;
	s->contrast += sqrt(fmax(0, y2 / n - y1 * y1)) / 255;
	s->colorfulness += sqrt(fmax(0, rg2 / n - rg1 * rg1) + fmax(0, yb2 / n - yb1 * yb1)) + 0.3 * hypot(rg1, yb1);
	s->black_ratio += black >= 0.98 * n;
	if (s->frames >= 2) {
		w->flicker += fabs(y1 - 2 * w->prev_luma + w->prev2_luma) / 255;
		w->n_flicker++;
	}
	w->prev2_luma = w->prev_luma;
	w->prev_luma = y1;
}

static void look_for_bars(struct work *w)
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

static void look_at_edges(struct work *w)
{
	double sum = 0, sum2 = 0, n = (double)(SW - 2) * (w->sh - 2);

	for (int y = 1; y < w->sh - 1; y++)
		for (int x = 1; x < SW - 1; x++) {
			const uint8_t *p = w->sharp + (size_t)y * SW + x;
			int v = p[-1] + p[1] + p[-SW] + p[SW] - 4 * p[0];

			sum += v;
			sum2 += v * v;
		}
	if (n > 0)
		w->s->sharpness += fmax(0, sum2 / n - sum / n * (sum / n));
}

static int look_at(struct work *w, struct vfm_video *v, struct vfm_err *err)
{
	TRY(vfm_video_rgb(v, CW, w->ch, VFM_FIT_STRETCH, w->rgb, err));
	TRY(vfm_video_luma(v, SW, w->sh, VFM_FIT_STRETCH, w->sharp, err));
	look_at_colour(w);
	look_for_bars(w);
	look_at_edges(w);
	w->s->text_ratio += vfm_text_ratio(w->sharp, SW, w->sh);
	w->s->frames++;
	return 0;
}

/* ---- a clip ---- */

static int bar(const float *mean, const uint8_t *max, int n, int step)
{
	int from = step > 0 ? 0 : n - 1, k = 0;

	while (k < n && mean[from + step * k] < BAR_MEAN && max[from + step * k] < BAR_MAX)
		k++;
	return k == n ? 0 : k;
}

static void compute_means(struct work *w, bool image)
{
	struct vfm_score *s = w->s;
	double n = (double)s->frames;

	s->luma /= n;
	s->contrast /= n;
	s->colorfulness /= n;
	s->sharpness /= n;
	s->black_ratio /= n;
	s->text_ratio /= n;
	s->flicker = w->n_flicker ? w->flicker / (double)w->n_flicker : 0;
	s->motion = w->n_pairs ? w->moved / (double)w->n_pairs : 0;
	s->static_ratio = w->n_pairs ? (double)w->n_still / (double)w->n_pairs : image ? 1 : 0;
	s->letterbox[0] = (double)bar(w->row_mean, w->row_max, w->ch, 1) / w->ch;
	s->letterbox[1] = (double)bar(w->row_mean, w->row_max, w->ch, -1) / w->ch;
	s->letterbox[2] = (double)bar(w->col_mean, w->col_max, CW, 1) / CW;
	s->letterbox[3] = (double)bar(w->col_mean, w->col_max, CW, -1) / CW;
}

static int in_range(int h)
{
	return h < 4 ? 4 : h > MAX_H ? MAX_H : h;
}

static void prepare_score(struct work *w, const struct vfm_video_info *info, const struct vfm_score_opts *o)
{
	double fps = info->fps_num ? (double)info->fps_num / info->fps_den : 25;
	int64_t n = o->end >= 0 ? o->end - o->start : o->about > 0 ? o->about : info->frames;

	w->pair_step = (int64_t)fmax(1, lrint(PAIR_S * fps));
	w->pair_s = (double)w->pair_step / fps;
	w->tick_s = info->tick_s;
	/* The least multiple of pair_step that samples at most MAX_FRAMES of n frames. */
	w->every = w->pair_step * (n > 0 ? n / ((MAX_FRAMES + 1) * w->pair_step) + 1 : 1);
	w->ch = in_range((int)lrint((double)CW * info->height / info->width));
	w->sh = in_range((int)lrint((double)SW * info->height / info->width));
	w->rgb = vfm_malloc((size_t)CW * (size_t)w->ch * 3);
	w->sharp = vfm_malloc((size_t)SW * (size_t)w->sh);
	w->row_max = vfm_calloc((size_t)w->ch, 1);
	w->col_max = vfm_calloc(CW, 1);
	w->row_mean = vfm_calloc((size_t)w->ch, sizeof(float));
	w->col_mean = vfm_calloc(CW, sizeof(float));
}

static int score_frames(struct work *w, struct vfm_video *v, const struct vfm_score_opts *o, struct vfm_err *err)
{
	int64_t want = o->end < 0 ? INT64_MAX : o->end - o->start;
	struct vfm_frame f;
	int rc = 0, at = 0;

	for (int64_t i = 0; i < want && (rc = vfm_video_next(v, &f, err)) == 1; i++) {
		bool first = i % w->every == 0, second = i >= w->pair_step && (i - w->pair_step) % w->every == 0;

		if (first || second) {
			TRY(vfm_video_luma(v, MW, MH, VFM_FIT_STRETCH, w->motion[at ^= 1], err));
			w->motion_s[at] = f.time_s;
		}
		if (second)
			add_pair(w, w->motion[at ^ 1], w->motion[at], pair_length(w, at));
		if (first)
			TRY(look_at(w, v, err));
	}
	if (rc < 0)
		return rc;
	if (!w->s->frames)
		return vfm_fail(err, VFM_EINPUT, "no frame can be decoded");
	TRY(vfm_video_check_end(v, o->end, err));
	compute_means(w, vfm_video_info(v)->image);
	return 0;
}

int vfm_score_file(struct vfm_score *s, const char *path, const struct vfm_score_opts *o, struct vfm_err *err)
{
	struct work *w = vfm_calloc(1, sizeof(*w));
	struct vfm_video *v = NULL;
	int rc;

	*s = (struct vfm_score){0};
	w->s = s;
	TRY_OUT(vfm_video_open(&v, path, &o->video, err));
	prepare_score(w, vfm_video_info(v), o);
	if (o->start > 0)
		TRY_OUT(vfm_video_seek(v, o->start, o->start_pts, err));
	rc = score_frames(w, v, o, err);
out:
	vfm_video_close(v);
	free(w->rgb);
	free(w->sharp);
	free(w->row_max);
	free(w->col_max);
	free(w->row_mean);
	free(w->col_mean);
	free(w);
	return rc;
}
