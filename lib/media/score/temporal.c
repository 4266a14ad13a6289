/* temporal.c - differences of lumas in a ring of frames: runs of repeats, and flicker of tiles. */
#include "media/score/temporal.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/stats.h"

enum {
	SIDE = 240,   /* cells of the shorter side, at least, of a frame that has as many pixels */
	ROWS_MAX = 2, /* read for a row of cells */
	TILE = 8,     /* cells, of a side: the smallest change that counts is one of a tile */
	TILES = 4,    /* per side, of flicker */
	N_TILES = TILES * TILES,
	RING = 24, /* frames around the one that is classified */
	LAGS = 4,  /* of flicker: 1, 2, 4, 8 frames */
	PAST = 17, /* frames of tiles: two of the longest lag and one */
};

#define EQUAL_MEAN   0.2   /* levels */
#define EQUAL_TILE   0.002 /* … that a tile adds to the mean, so that a change counts alike at any size … */
#define EQUAL_PEAK   3     /* … or of a tile, if that is more: in small pictures */
#define REPEAT_SHARE 0.15
#define REPEAT_MIN   0.6
#define FROZEN_S     0.25
#define FLICKER_MAX  32

struct luma_change {
	double mean, time_s;
	bool equal;
};

struct vfm_temporal {
	int coded_w, coded_h, side; /* of the frames; of a cell, in pixels */
	int w, h;                   /* in cells */
	int n_rows, *which;         /* rows that are read, ROWS_MAX or fewer for a row of cells */
	uint8_t *rows;              /* [n_rows, coded_w] */
	uint16_t *sums;             /* [coded_w] scratch: of the rows of a cell, or of a tile */
	uint8_t *cells[2];          /* [h, w] means, of this frame and of the one before */
	int64_t compared;           /* those with a frame of the same size before */
	int64_t in_row;             /* since the size changed */

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
	free(t->which);
	free(t->rows);
	free(t->sums);
	free(t->cells[0]);
	free(t->cells[1]);
	free(t);
}

/* ---- repeated frames ---- */

/* Adds the absolute differences of the columns of up to TILE rows of cells to t->sums. */
static void sum_differences(struct vfm_temporal *t, int y)
{
	uint16_t *sums = t->sums;

	memset(sums, 0, (size_t)t->w * sizeof(*sums));
	for (int end = y + TILE < t->h ? y + TILE : t->h; y < end; y++) {
		const uint8_t *a = t->cells[0] + (size_t)y * (size_t)t->w, *b = t->cells[1] + (size_t)y * (size_t)t->w;

#pragma omp simd
		for (int x = 0; x < t->w; x++)
			sums[x] = (uint16_t)(sums[x] + (a[x] > b[x] ? a[x] - b[x] : b[x] - a[x]));
	}
}

static struct luma_change compare_cells(struct vfm_temporal *t, double time_s)
{
	int64_t sum = 0;
	int peak = 0;

	for (int y = 0; y < t->h; y += TILE) {
		sum_differences(t, y);
		for (int x = 0; x < t->w; x += TILE) {
			int d = 0;

			for (int i = x; i < t->w && i < x + TILE; i++)
				d += t->sums[i];
			sum += d;
			peak = d > peak ? d : peak;
		}
	}
	return (struct luma_change){
		.mean = (double)sum / t->h / t->w,
		.time_s = time_s,
		.equal = (double)sum / t->h / t->w < EQUAL_MEAN &&
			peak < fmax(EQUAL_TILE * t->w * t->h, EQUAL_PEAK * TILE * TILE),
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

static void average_tiles(const struct vfm_temporal *t, float *tile)
{
	for (int k = 0; k < N_TILES; k++) {
		int x0 = k % TILES * t->w / TILES, x1 = (k % TILES + 1) * t->w / TILES;
		int y0 = k / TILES * t->h / TILES, y1 = (k / TILES + 1) * t->h / TILES;
		int64_t sum = 0;

		for (int y = y0; y < y1; y++) {
			const uint8_t *row = t->cells[0] + (size_t)y * (size_t)t->w;
			int part = 0;

#pragma omp simd reduction(+ : part)
			for (int x = x0; x < x1; x++)
				part += row[x];
			sum += part;
		}
		tile[k] = x1 > x0 && y1 > y0 ? (float)sum / (float)(x1 - x0) / (float)(y1 - y0) : 0;
	}
}

static void add_flicker(struct vfm_temporal *t)
{
	float bend[N_TILES];

	average_tiles(t, t->tiles[t->in_row % PAST]);
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
	int side = (w < h ? w : h) / SIDE, per_cell;

	classify_rest(t);
	t->coded_w = w;
	t->coded_h = h;
	t->side = side > 1 ? side : 1;
	t->w = w / t->side;
	t->h = h / t->side;
	t->in_row = 0;
	per_cell = t->side < ROWS_MAX ? t->side : ROWS_MAX;
	t->n_rows = per_cell * t->h;
	t->which = vfm_realloc(t->which, (size_t)t->n_rows, sizeof(*t->which));
	for (int i = 0; i < t->n_rows; i++)
		t->which[i] = i / per_cell * t->side + i % per_cell * t->side / per_cell;
	t->rows = vfm_realloc(t->rows, (size_t)t->n_rows, (size_t)w);
	t->sums = vfm_realloc(t->sums, (size_t)w, sizeof(*t->sums));
	for (int i = 0; i < 2; i++)
		t->cells[i] = vfm_realloc(t->cells[i], (size_t)t->w, (size_t)t->h);
}

/* Sets n cells to the means of the columns of `side` sums each; a constant side is faster. */
static inline void average_columns(const uint16_t *sums, int n, int side, int area, uint8_t *cell)
{
	uint32_t reciprocal = ((1U << 24) + (uint32_t)area - 1) / (uint32_t)area;

	for (int x = 0; x < n; x++, sums += side) {
		uint32_t sum = (uint32_t)area / 2;

		for (int k = 0; k < side; k++)
			sum += sums[k];
		cell[x] = (uint8_t)((uint64_t)sum * reciprocal >> 24);
	}
}

/* Averages `n` rows of pixels to a row of cells. */
static void average_cells(struct vfm_temporal *t, const uint8_t *rows, int n, uint8_t *cell)
{
	int area = n * t->side, w = t->w * t->side;
	uint16_t *sums = t->sums;

	memset(sums, 0, (size_t)w * sizeof(*sums));
	for (int k = 0; k < n; k++, rows += t->coded_w) {
#pragma omp simd
		for (int x = 0; x < w; x++)
			sums[x] = (uint16_t)(sums[x] + rows[x]);
	}
	switch (t->side) {
	case 2:
		average_columns(sums, t->w, 2, area, cell);
		break;
	case 3:
		average_columns(sums, t->w, 3, area, cell);
		break;
	case 4:
		average_columns(sums, t->w, 4, area, cell);
		break;
	default:
		average_columns(sums, t->w, t->side, area, cell);
	}
}

/* Reads the cells of the last frame of `v`. */
static int read_cells(struct vfm_temporal *t, struct vfm_video *v, struct vfm_err *err)
{
	int n = t->n_rows / t->h;

	if (t->side == 1)
		return vfm_video_coded_rows(v, t->which, t->n_rows, t->cells[0], err);
	TRY(vfm_video_coded_rows(v, t->which, t->n_rows, t->rows, err));
	for (int y = 0; y < t->h; y++)
		average_cells(
			t, t->rows + (size_t)(y * n) * (size_t)t->coded_w, n, t->cells[0] + (size_t)y * (size_t)t->w);
	return 0;
}

int vfm_temporal_add(struct vfm_temporal *t, struct vfm_video *v, const struct vfm_frame *f, struct vfm_err *err)
{
	uint8_t *swap = t->cells[0];
	int w, h;

	vfm_video_coded_size(v, &w, &h);
	if (w != t->coded_w || h != t->coded_h)
		begin_size(t, w, h);
	else
		t->cells[0] = t->cells[1], t->cells[1] = swap;
	TRY(read_cells(t, v, err));
	add_flicker(t);
	if (t->in_row > 0) {
		t->ring[t->n_changes++ % RING] = compare_cells(t, f->time_s);
		t->compared++;
		if (t->n_changes - t->classified >= RING / 2)
			classify_next(t);
	}
	t->in_row++;
	return 0;
}

struct vfm_temporal_result vfm_temporal_end(struct vfm_temporal *t)
{
	struct vfm_temporal_result r = {.frozen = NAN, .duplicate = NAN, .flicker = NAN};

	classify_rest(t);
	if (t->compared) {
		r.frozen = (double)t->frozen / (double)t->compared;
		r.duplicate = (double)t->duplicate / (double)t->compared;
	}
	for (int k = 0; k < LAGS; k++)
		if (t->n_flicker[k])
			r.flicker = fmax(r.flicker, t->flicker[k] / (double)t->n_flicker[k] / 255);
	return r;
}
