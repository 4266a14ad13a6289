/* artifacts.c - widths of edges, steps at a grid of blocks, and combing between lines, of some rows of a frame. */
#include "media/score/artifacts.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/clones.h"
#include "base/mem.h"

enum {
	BANDS = 32,
	BAND = 8, /* rows */
	EDGE_MIN = 20,
	EDGE_PAUSE = 3, /* pixels without a step within an edge, at most */
	EDGES_MIN = 32, /* of a frame whose blur counts */
	BINS = 128,     /* of the logarithm of an edge's width */
	BINS_OCTAVE = 16,
	STEP_MIN = 1,  /* levels, of blocking: smaller steps are invisible … */
	STEP_MAX = 24, /* … and larger ones are edges */
	GRID = 8,
	CHANGE_MIN = 8, /* levels between frames, of pixels that count for interlacing */
};

#define EDGE_SHARE 0.2
#define COMB_NOISE 0.1  /* levels a pixel */
#define STEP_NOISE 0.02 /* share of the columns that are steps in a picture without texture */

struct vfm_artifacts {
	uint8_t *rows, *next; /* [n_rows, w], of the last frame and of the one after it */
	int w, n_rows;
	int64_t next_at; /* 1 + the number of the frame in `next`; 0: none */
	double blur;
	int64_t n_blur, frames;
	int64_t steps[GRID], columns[GRID]; /* steps between columns x - 1 and x, and columns, by x mod GRID */
	int16_t *change;                    /* [w + 1] */
	int64_t combing[2], compared;       /* sums over pixels, by the order of the fields; and their number */
	float log2[256];                    /* … of the index, from 1 */
};

struct vfm_artifacts *vfm_artifacts_new(void)
{
	struct vfm_artifacts *a = vfm_calloc(1, sizeof(*a));

	for (int i = 1; i < 256; i++)
		a->log2[i] = log2f((float)i);
	return a;
}

void vfm_artifacts_free(struct vfm_artifacts *a)
{
	if (!a)
		return;
	free(a->rows);
	free(a->next);
	free(a->change);
	free(a);
}

/* ---- blur ---- */

static int bin_of_width(const struct vfm_artifacts *a, int height, int step)
{
	return (int)fminf(BINS - 1, BINS_OCTAVE * (a->log2[height] - a->log2[step]));
}

/* Counts the edges of a row by their width. */
static int count_edges(const struct vfm_artifacts *a, const uint8_t *row, int w, int *bins)
{
	int height = 0, step = 0, pause = 0, n = 0;

	for (int x = 1; x <= w; x++) {
		int d = x < w ? row[x] - row[x - 1] : 0;

		if (x < w && d == 0 && ++pause <= EDGE_PAUSE)
			continue;
		if (x == w || d == 0 || (d > 0) != (height > 0)) {
			if (abs(height) >= EDGE_MIN) {
				bins[bin_of_width(a, abs(height), step)]++;
				n++;
			}
			height = step = 0;
		}
		if (d != 0)
			pause = 0;
		height += d;
		step = abs(d) > step ? abs(d) : step;
	}
	return n;
}

static void add_blur(struct vfm_artifacts *a)
{
	int bins[BINS] = {0}, n = 0, k = 0, below;

	for (int y = 0; y < a->n_rows; y += 2)
		n += count_edges(a, a->rows + (size_t)y * (size_t)a->w, a->w, bins);
	if (n < EDGES_MIN)
		return;
	below = bins[0];
	while (below <= EDGE_SHARE * n)
		below += bins[++k];
	/* within the bin: linear */
	a->blur += exp2((k + 1 - (below - EDGE_SHARE * n) / bins[k]) / BINS_OCTAVE);
	a->n_blur++;
}

/* ---- blocking ---- */

/* Stores in change[x] the difference of columns x and x - 1 of a band, summed over its rows: the edge of a block is
 * straight, and texture cancels out.  change[0] = change[w] = 0. */
VFM_CLONES("avx2", "default")
static void sum_changes(struct vfm_artifacts *a, const uint8_t *band)
{
	memset(a->change, 0, ((size_t)a->w + 1) * sizeof(int16_t));
	for (int y = 0; y < BAND; y++) {
		const uint8_t *row = band + (size_t)y * (size_t)a->w;

#pragma omp simd
		for (int x = 1; x < a->w; x++)
			a->change[x] = (int16_t)(a->change[x] + row[x] - row[x - 1]);
	}
#pragma omp simd
	for (int x = 0; x < a->w; x++)
		a->change[x] = (int16_t)abs(a->change[x]);
}

/* Counts the steps of the bands by their place in the grid. */
static void add_steps(struct vfm_artifacts *a)
{
	for (int y = 0; y + BAND <= a->n_rows; y += BAND) {
		const int16_t *c = a->change;

		sum_changes(a, a->rows + (size_t)y * (size_t)a->w);
		for (int x = 1; x < a->w; x++) {
			a->steps[x % GRID] += c[x] > STEP_MIN * BAND && c[x] < STEP_MAX * BAND && c[x] >= c[x - 1] &&
				c[x] >= c[x + 1];
			a->columns[x % GRID]++;
		}
	}
}

static double blockiness_of(const struct vfm_artifacts *a)
{
	double sum = 0, sum2 = 0;

	for (int i = 0; i < GRID; i++) {
		double share = a->columns[i] > 0 ? (double)a->steps[i] / (double)a->columns[i] : 0;

		if (a->columns[i] <= 0)
			return NAN;
		sum += share;
		sum2 += share * share;
	}
	sum /= GRID;
	return sqrt(fmax(0, sum2 / GRID - sum * sum)) / (sum + STEP_NOISE);
}

/* ---- interlacing ---- */

/* Returns the combing of a row of the frame `next` between the rows around it of another, where it differs. */
VFM_CLONES("avx2", "default")
static int64_t sum_combing(const uint8_t *row, const uint8_t *next, int w)
{
	const uint8_t *above = row - w, *below = row + w;
	int sum = 0;

#pragma omp simd reduction(+ : sum)
	for (int x = 0; x < w; x++) {
		/* 16 bits: twice as many lanes */
		int16_t change = (int16_t)(row[x] - next[x]), comb = (int16_t)(above[x] + below[x] - 2 * next[x]);

		change = (int16_t)(change < 0 ? -change : change);
		comb = (int16_t)(comb < 0 ? -comb : comb);
		comb = (int16_t)(change > CHANGE_MIN ? comb : 0);
		sum += comb;
	}
	return sum;
}

/* Sums the combing of the two orders of fields: [0] takes even rows from the next frame, or odd rows from this one,
 * between rows of the other.  A detail that lies on an even row, as in a test card, combs alike in both: it appears in
 * the next frame as often as it leaves this one.  Bands begin with an even row of the frame, and as many even as odd
 * rows count. */
static void add_combing(struct vfm_artifacts *a)
{
	for (int y = 0; y + BAND <= a->n_rows; y += BAND)
		for (int k = 1; k < BAND - 1; k++) {
			const uint8_t *row = a->rows + (size_t)(y + k) * (size_t)a->w;
			const uint8_t *next = a->next + (size_t)(y + k) * (size_t)a->w;

			a->combing[k % 2] += sum_combing(row, next, a->w);
			a->combing[1 - k % 2] += sum_combing(next, row, a->w);
			a->compared += 2 * a->w;
		}
}

static double interlace_of(const struct vfm_artifacts *a)
{
	double c0 = (double)a->combing[0], c1 = (double)a->combing[1];

	return a->compared ? fabs(c0 - c1) / (c0 + c1 + COMB_NOISE * (double)a->compared) : NAN;
}

/* ---- frames ---- */

static void make_room(struct vfm_artifacts *a, int w, int n_rows)
{
	bool same = a->w == w && a->n_rows == n_rows;
	size_t n = (size_t)w * (size_t)n_rows;

	a->w = w;
	a->n_rows = n_rows;
	if (same)
		return;
	free(a->rows);
	free(a->next);
	free(a->change);
	a->rows = vfm_malloc(n);
	a->next = vfm_malloc(n);
	a->change = vfm_malloc(((size_t)w + 1) * sizeof(int16_t));
}

/* Stores the examined rows of a frame in which [BANDS * BAND], and returns their number. */
static int choose_rows(int h, int *which)
{
	int n = 0;

	if (h < BANDS * BAND)
		for (int y = 0; y < h; y++)
			which[n++] = y;
	else
		for (int i = 0; i < BANDS; i++)
			for (int k = 0; k < BAND; k++)
				which[n++] =
					(int)((int64_t)i * (h / BAND - 1) / (BANDS - 1)) * BAND + k; /* on the grid */
	return n;
}

int vfm_artifacts_add(struct vfm_artifacts *a, struct vfm_video *v, struct vfm_err *err)
{
	int w, h, which[BANDS * BAND], n;

	vfm_video_coded_size(v, &w, &h);
	if (a->next_at == vfm_video_shown(v) + 1) { /* vfm_artifacts_next has read them */
		uint8_t *read = a->next;

		a->next = a->rows;
		a->rows = read;
		a->next_at = 0;
	} else {
		n = choose_rows(h, which);
		make_room(a, w, n);
		TRY(vfm_video_coded_rows(v, which, n, a->rows, err));
	}
	add_blur(a);
	add_steps(a);
	a->frames++;
	return 0;
}

int vfm_artifacts_next(struct vfm_artifacts *a, struct vfm_video *v, struct vfm_err *err)
{
	int w, h, which[BANDS * BAND], n;

	vfm_video_coded_size(v, &w, &h);
	n = choose_rows(h, which);
	if (!a->frames || w != a->w || n != a->n_rows)
		return 0; /* the size changes here */
	TRY(vfm_video_coded_rows(v, which, n, a->next, err));
	a->next_at = vfm_video_shown(v) + 1;
	add_combing(a);
	return 0;
}

struct vfm_artifacts_result vfm_artifacts_result(const struct vfm_artifacts *a)
{
	return (struct vfm_artifacts_result){
		.blur = a->n_blur ? a->blur / (double)a->n_blur : NAN,
		.blockiness = blockiness_of(a),
		.interlace = interlace_of(a),
	};
}
