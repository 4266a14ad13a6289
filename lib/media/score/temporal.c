/* temporal.c - differences of lumas in a ring of frames: runs of repeats, and flicker of tiles. */
#include "media/score/temporal.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/stats.h"

enum {
	ROWS = 64,
	SEGMENT = 32,
	TILES = 4, /* per side */
	N_TILES = TILES * TILES,
	RING = 24, /* frames around the one that is classified */
	LAGS = 4,  /* of flicker: 1, 2, 4, 8 frames */
	PAST = 17, /* frames of tiles: two of the longest lag and one */
};

#define EQUAL_MEAN   0.2 /* levels */
#define EQUAL_PEAK   4   /* … of a segment */
#define REPEAT_SHARE 0.15
#define REPEAT_MIN   0.6
#define FROZEN_S     0.25
#define FLICKER_MAX  32

struct luma_change {
	double mean, time_s;
	bool equal;
};

struct vfm_temporal {
	int w, h;
	uint8_t *rows[2]; /* [ROWS, w], this frame and the one before */
	int64_t compared; /* those with a frame of the same size before */
	int64_t in_row;   /* since the size changed */

	struct luma_change ring[RING]; /* newest at (n_changes - 1) % RING */
	int64_t n_changes, classified;
	int64_t run; /* repeated frames up to the one classified last */
	double run_from_s, last_s;
	int64_t frozen, duplicate;

	float tiles[PAST][N_TILES];
	double flicker[LAGS];
	int64_t n_flicker[LAGS];
};

struct vfm_temporal *vfm_temporal_new(void)
{
	return vfm_calloc(1, sizeof(struct vfm_temporal));
}

void vfm_temporal_free(struct vfm_temporal *t)
{
	if (!t)
		return;
	free(t->rows[0]);
	free(t->rows[1]);
	free(t);
}

/* ---- repeated frames ---- */

static int segment_difference(const uint8_t *a, const uint8_t *b, int n)
{
	int sum = 0;

#pragma omp simd reduction(+ : sum)
	for (int i = 0; i < n; i++)
		sum += abs(a[i] - b[i]);
	return sum;
}

static struct luma_change compare_rows(const struct vfm_temporal *t, double time_s)
{
	int64_t sum = 0;
	int peak = 0;

	for (int y = 0; y < ROWS; y++) {
		const uint8_t *a = t->rows[0] + (size_t)y * (size_t)t->w, *b = t->rows[1] + (size_t)y * (size_t)t->w;

		for (int x = 0; x < t->w; x += SEGMENT) {
			int n = t->w - x < SEGMENT ? t->w - x : SEGMENT;
			int d = n == SEGMENT ? segment_difference(a + x, b + x, SEGMENT)
					     : segment_difference(a + x, b + x, n);

			sum += d;
			peak = d > peak * n ? d / n : peak;
		}
	}
	return (struct luma_change){
		.mean = (double)sum / ROWS / t->w,
		.time_s = time_s,
		.equal = (double)sum / ROWS / t->w < EQUAL_MEAN && peak < EQUAL_PEAK,
	};
}

/* The third largest mean difference in the ring. */
static double motion_around(const struct vfm_temporal *t)
{
	double top[3] = {0};
	int64_t n = t->n_changes < RING ? t->n_changes : RING;

	for (int i = 0; i < n; i++) {
		double d = t->ring[i].mean;

		for (int k = 0; k < 3; k++)
			if (d > top[k]) {
				double next = top[k];

				top[k] = d;
				d = next;
			}
	}
	return top[2];
}

/* Ends a run of repeated frames; the frame after it has time `until_s`. */
static void end_run(struct vfm_temporal *t, double until_s)
{
	/* The run lasts from the first of its frames to the one after the last. */
	if (t->run && until_s - t->run_from_s >= FROZEN_S)
		t->frozen += t->run;
	else
		t->duplicate += t->run;
	t->run = 0;
}

static void classify_next(struct vfm_temporal *t)
{
	const struct luma_change *c = &t->ring[t->classified++ % RING];
	double around = motion_around(t);

	if (c->equal || (around > REPEAT_MIN && c->mean < REPEAT_SHARE * around)) {
		if (!t->run++)
			t->run_from_s = c->time_s;
	} else {
		end_run(t, c->time_s);
	}
	t->last_s = c->time_s;
}

/* Classifies the pending changes, at the end or before the size changes. */
static void classify_rest(struct vfm_temporal *t)
{
	double step = 0;

	if (t->n_changes > 1)
		step = t->ring[(t->n_changes - 1) % RING].time_s - t->ring[(t->n_changes - 2) % RING].time_s;
	while (t->classified < t->n_changes)
		classify_next(t);
	end_run(t, t->last_s + fmax(0, step));
	t->n_changes = t->classified = 0;
}

/* ---- flicker ---- */

static void sum_tiles(const struct vfm_temporal *t, float *tile)
{
	for (int k = 0; k < N_TILES; k++) {
		int x0 = (int)((int64_t)(k % TILES) * t->w / TILES);
		int x1 = (int)((int64_t)(k % TILES + 1) * t->w / TILES), y0 = k / TILES * (ROWS / TILES);
		int64_t sum = 0;

		for (int y = y0; y < y0 + ROWS / TILES; y++) {
			const uint8_t *row = t->rows[0] + (size_t)y * (size_t)t->w;
			int part = 0;

#pragma omp simd reduction(+ : part)
			for (int x = x0; x < x1; x++)
				part += row[x];
			sum += part;
		}
		tile[k] = x1 > x0 ? (float)sum / (float)(x1 - x0) / (ROWS / TILES) : 0;
	}
}

static void add_flicker(struct vfm_temporal *t)
{
	float bend[N_TILES];

	sum_tiles(t, t->tiles[t->in_row % PAST]);
	for (int k = 0; k < LAGS; k++) {
		int lag = 1 << k;

		if (t->in_row < 2 * lag)
			continue;
		for (int i = 0; i < N_TILES; i++)
			bend[i] = 0.5F *
				(t->tiles[t->in_row % PAST][i] - 2 * t->tiles[(t->in_row - lag) % PAST][i] +
					t->tiles[(t->in_row - 2 * lag) % PAST][i]);
		vfm_sort_f32(bend, N_TILES);
		t->flicker[k] += fmin(FLICKER_MAX, fabs(0.5 * (bend[N_TILES / 2 - 1] + bend[N_TILES / 2])));
		t->n_flicker[k]++;
	}
}

/* ---- frames ---- */

static void begin_size(struct vfm_temporal *t, int w, int h)
{
	classify_rest(t);
	t->w = w;
	t->h = h;
	t->in_row = 0;
	for (int i = 0; i < 2; i++) {
		free(t->rows[i]);
		t->rows[i] = vfm_malloc(ROWS * (size_t)w);
	}
}

int vfm_temporal_add(struct vfm_temporal *t, struct vfm_video *v, const struct vfm_frame *f, struct vfm_err *err)
{
	uint8_t *swap = t->rows[0];
	int w, h, which[ROWS];

	vfm_video_coded_size(v, &w, &h);
	if (w != t->w || h != t->h)
		begin_size(t, w, h);
	else
		t->rows[0] = t->rows[1], t->rows[1] = swap;
	for (int i = 0; i < ROWS; i++)
		which[i] = (int)((2 * (int64_t)i + 1) * h / (2 * ROWS));
	TRY(vfm_video_coded_rows(v, which, ROWS, t->rows[0], err));
	add_flicker(t);
	if (t->in_row > 0) {
		t->ring[t->n_changes++ % RING] = compare_rows(t, f->time_s);
		t->compared++;
		if (t->n_changes - t->classified >= RING / 2)
			classify_next(t);
	}
	t->in_row++;
	return 0;
}

struct vfm_temporal_result vfm_temporal_end(struct vfm_temporal *t)
{
	struct vfm_temporal_result r = {0};
	double n = t->compared ? (double)t->compared : 1;

	classify_rest(t);
	r.frozen = (double)t->frozen / n;
	r.duplicate = (double)t->duplicate / n;
	for (int k = 0; k < LAGS; k++)
		if (t->n_flicker[k])
			r.flicker = fmax(r.flicker, t->flicker[k] / (double)t->n_flicker[k] / 255);
	return r;
}
