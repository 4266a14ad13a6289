/* text.c - strokes from morphology, pieces to letters to lines, and the odds of a line from its features. */
#include "media/score/text.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum {
	GROUP = 8,  /* frames of a mean */
	RADIUS = 5, /* of the opening: strokes are at most 2 RADIUS pixels thick */
	HEIGHT_MIN = 5,
	HEIGHT_MAX = 53,   /* of a letter, pixels */
	PIECES_MAX = 4096, /* more connected sets are noise */
	LETTERS_MIN = 3,   /* of a line */
	LEVELS = 3,
	BLOCK = 64, /* pixels that are looked at together */
};

#define HEIGHT_UNIT   1.2  /* pixels of the pictures, 288 rows high, that the model was fit to, per pixel */
#define THICKNESS_MAX 0.35 /* of a stroke, in heights of the letter */
#define LEVEL_STD     60   /* largest standard deviation of the brightness of a line's letters */
#define LINE_MIN      1.39 /* log odds of text: a probability of 0.8 */

static const uint8_t contrast_min[LEVELS] = {20, 40, 80};

/* Of the features of a line, and the constant.  They are older than bench/text-calibrate and were fit to the same
 * videos, but by a script that was not kept.  That program prints weights of the same signs, 1.5 to 2 times as large
 * but for that of fragments; with them logos and watermarks of unseen videos are found less well
 * (bench/results/scores-*). */
static const double weights[VFM_TEXT_FEATURES + 1] = {2.21, 0.91, 1.98, -6.25, -3.66, -0.63, -6.97, 1.03, -6.84};

/* A connected set of stroke pixels. */
struct text_piece {
	int left, right, top, bottom; /* inclusive */
	int area, border;             /* pixels, and their sides without a neighbour in the set */
	double level, thickness;      /* mean brightness; mean width of strokes */
	bool is_letter;
	int line; /* root of its line: index of a piece */
};

struct text_line {
	int left, right, top, bottom;
	double pieces, letters; /* sets; letters, where a set wider than high counts as several */
	/* sums over the sets */
	double width, height, thickness, thickness2, level, level2, tops, tops2, bottoms, bottoms2;
};

struct vfm_text {
	int w, h;
	uint16_t *group; /* [h, w] sums of the frames */
	int n_group;
	int64_t groups;
	double sum; /* of the shares of the groups */
	uint8_t *mean, *opened, *flipped, *contrast;
	uint8_t *scratch; /* [2 (w + 2 RADIUS)] */
	bool *seen, *is_text;
	int *stack;
	struct text_piece *pieces;
	vfm_text_watcher *watch;
	void *watch_ctx;
};

struct vfm_text *vfm_text_new(int w, int h)
{
	struct vfm_text *t = vfm_calloc(1, sizeof(*t));
	size_t n;

	t->w = w;
	t->h = h;
	n = (size_t)w * (size_t)h + 1;
	t->group = vfm_calloc(n, sizeof(*t->group));
	t->mean = vfm_malloc(n);
	t->opened = vfm_malloc(n);
	t->flipped = vfm_malloc(n);
	t->contrast = vfm_malloc(n);
	t->scratch = vfm_malloc(2 * ((size_t)t->w + 2 * RADIUS));
	t->seen = vfm_malloc(n * sizeof(bool));
	t->is_text = vfm_malloc(n * sizeof(bool));
	t->stack = vfm_malloc(n * sizeof(int));
	t->pieces = vfm_malloc((PIECES_MAX + 1) * sizeof(*t->pieces));
	return t;
}

void vfm_text_watch(struct vfm_text *t, vfm_text_watcher *watch, void *ctx)
{
	t->watch = watch;
	t->watch_ctx = ctx;
}

void vfm_text_free(struct vfm_text *t)
{
	if (!t)
		return;
	free(t->group);
	free(t->mean);
	free(t->opened);
	free(t->flipped);
	free(t->contrast);
	free(t->scratch);
	free(t->seen);
	free(t->is_text);
	free(t->stack);
	free(t->pieces);
	free(t);
}

/* ---- strokes ---- */

/* out[x] = the minimum of in[x - RADIUS … x + RADIUS] within the row.  pad [2][w + 2 RADIUS] is scratch memory.  The
 * width of the window doubles: 2, 4, 8, then 11 = 2 RADIUS + 1. */
static void erode_row(const uint8_t *in, uint8_t *out, int w, uint8_t *pad)
{
	int n = w + 2 * RADIUS;
	uint8_t *a = pad, *b = pad + n;

	memset(a, in[0], RADIUS);
	memcpy(a + RADIUS, in, (size_t)w);
	memset(a + RADIUS + w, in[w - 1], RADIUS);
	for (int d = 1; d <= 4; d *= 2) {
		uint8_t *last = a;

		n -= d;
#pragma omp simd
		for (int x = 0; x < n; x++)
			b[x] = a[x] < a[x + d] ? a[x] : a[x + d];
		a = b;
		b = last;
	}
#pragma omp simd
	for (int x = 0; x < w; x++)
		out[x] = a[x] < a[x + 2 * RADIUS - 7] ? a[x] : a[x + 2 * RADIUS - 7];
}

/* out[y] = the minimum of the rows in[y - RADIUS … y + RADIUS]. */
static void erode_columns(const uint8_t *in, uint8_t *out, int w, int h)
{
	for (int y = 0; y < h; y++) {
		int y0 = y < RADIUS ? 0 : y - RADIUS, y1 = y + RADIUS < h ? y + RADIUS : h - 1;
		uint8_t *o = out + (size_t)y * (size_t)w;

		memcpy(o, in + (size_t)y0 * (size_t)w, (size_t)w);
		for (int k = y0 + 1; k <= y1; k++) {
			const uint8_t *row = in + (size_t)k * (size_t)w;

#pragma omp simd
			for (int x = 0; x < w; x++)
				o[x] = o[x] < row[x] ? o[x] : row[x];
		}
	}
}

static void erode(struct vfm_text *t, const uint8_t *in, uint8_t *out, bool rows)
{
	if (!rows)
		erode_columns(in, out, t->w, t->h);
	for (int y = 0; rows && y < t->h; y++)
		erode_row(in + (size_t)y * (size_t)t->w, out + (size_t)y * (size_t)t->w, t->w, t->scratch);
}

static void flip(uint8_t *v, size_t n)
{
#pragma omp simd
	for (size_t i = 0; i < n; i++)
		v[i] ^= 255;
}

/* contrast = how much a pixel of `mean` exceeds the opening along rows or columns, whichever is more. */
static void find_strokes(struct vfm_text *t)
{
	/* Local copies: for the compiler, a store of a byte may change the pointers in t. */
	const uint8_t *mean = t->mean, *opened = t->opened;
	uint8_t *contrast = t->contrast;
	size_t n = (size_t)t->w * (size_t)t->h;

	memset(contrast, 0, n);
	for (int rows = 0; rows < 2; rows++) {
		erode(t, t->mean, t->flipped, rows);
		flip(t->flipped, n);
		erode(t, t->flipped, t->opened, rows);
#pragma omp simd
		for (size_t i = 0; i < n; i++) {
			uint8_t c = (uint8_t)(mean[i] - (opened[i] ^ 255));

			contrast[i] = c > contrast[i] ? c : contrast[i];
		}
	}
}

/* ---- letters ---- */

/* Returns the connected set that contains pixel `first`. */
static struct text_piece trace_piece(struct vfm_text *t, int first, int least)
{
	struct text_piece p = {.left = t->w, .right = -1, .top = t->h, .bottom = -1};
	int n = 1;

	t->stack[0] = first;
	t->seen[first] = true;
	while (n > 0) {
		int at = t->stack[--n], x = at % t->w, y = at / t->w;

		p.left = x < p.left ? x : p.left;
		p.right = x > p.right ? x : p.right;
		p.top = y < p.top ? y : p.top;
		p.bottom = y > p.bottom ? y : p.bottom;
		p.area++;
		p.level += t->mean[at];
		for (int dy = -1; dy <= 1; dy++)
			for (int dx = -1; dx <= 1; dx++) {
				int to = at + dy * t->w + dx;
				bool in = x + dx >= 0 && x + dx < t->w && y + dy >= 0 && y + dy < t->h &&
					t->contrast[to] >= least;

				p.border += !in && (dx == 0 || dy == 0);
				if (!in || t->seen[to])
					continue;
				t->seen[to] = true;
				t->stack[n++] = to;
			}
	}
	return p;
}

static void classify_piece(struct text_piece *p)
{
	int w = p->right - p->left + 1, h = p->bottom - p->top + 1;
	double fill = (double)p->area / w / h;

	p->level /= p->area;
	/* A bar of length l and width s has the area s l and 2 (l + s) sides. */
	p->thickness = 2.0 * p->area / p->border;
	p->is_letter = h >= HEIGHT_MIN && h <= HEIGHT_MAX && w <= 5 * h && fill >= 0.12 &&
		(fill <= 0.85 || 2 * w <= h) && p->thickness <= fmax(1.5, THICKNESS_MAX * h);
}

static int compare_strokes(const void *a, const void *b)
{
	const struct text_piece *p = a, *q = b;

	return p->left != q->left ? p->left - q->left : p->top - q->top;
}

static bool has_stroke_pixel(const uint8_t *v, int least)
{
	uint8_t most = 0;

#pragma omp simd reduction(max : most)
	for (int k = 0; k < BLOCK; k++)
		most = v[k] > most ? v[k] : most;
	return most >= least;
}

/* Returns the first of v[from … n - 1] that is at least `least`, or n.  Most blocks of a picture have none. */
static int find_stroke_pixel(const uint8_t *v, int from, int n, int least)
{
	while (from < n) {
		if (from % BLOCK == 0 && from + BLOCK <= n && !has_stroke_pixel(v + from, least)) {
			from += BLOCK;
			continue;
		}
		if (v[from] >= least)
			return from;
		from++;
	}
	return n;
}

/* Collects the connected sets, from left to right; returns their number, or 0 if there are too many. */
static int find_pieces(struct vfm_text *t, int least)
{
	int n = 0, all = t->w * t->h;

	memset(t->seen, 0, (size_t)all * sizeof(bool));
	for (int i = 0; (i = find_stroke_pixel(t->contrast, i, all, least)) < all; i++) {
		if (t->seen[i])
			continue;
		t->pieces[n] = trace_piece(t, i, least);
		if (t->pieces[n].area < 4)
			continue;
		classify_piece(&t->pieces[n]);
		if (++n > PIECES_MAX)
			return 0;
	}
	qsort(t->pieces, (size_t)n, sizeof(*t->pieces), compare_strokes);
	for (int i = 0; i < n; i++)
		t->pieces[i].line = i;
	return n;
}

/* ---- lines ---- */

static int line_of(struct text_piece *v, int i)
{
	while (v[i].line != i)
		i = v[i].line = v[v[i].line].line;
	return i;
}

/* Returns whether q, which begins right of p, continues its line. */
static bool continues(const struct text_piece *p, const struct text_piece *q)
{
	int hp = p->bottom - p->top + 1, hq = q->bottom - q->top + 1, high = hp > hq ? hp : hq, low = hp + hq - high;
	double thick = fmax(p->thickness, q->thickness), thin = p->thickness + q->thickness - thick;

	return q->left - p->right <= high && low >= 0.55 * high && thick <= 2 * thin &&
		fabs(p->level - q->level) <= 45 &&
		(abs(p->bottom - q->bottom) <= fmax(1, 0.2 * high) || abs(p->top - q->top) <= fmax(1, 0.2 * high));
}

static void join_letters(struct text_piece *v, int n)
{
	for (int i = 0; i < n; i++)
		for (int k = i + 1; v[i].is_letter && k < n && v[k].left <= v[i].right + HEIGHT_MAX; k++)
			if (v[k].is_letter && continues(&v[i], &v[k]))
				v[line_of(v, k)].line = line_of(v, i);
}

static struct text_line measure_line(struct text_piece *v, int n, int root)
{
	struct text_line l = {.left = INT32_MAX, .top = INT32_MAX, .right = -1, .bottom = -1};

	for (int i = root; i < n; i++) {
		const struct text_piece *p = &v[i];
		int w = p->right - p->left + 1, h = p->bottom - p->top + 1;

		if (!p->is_letter || line_of(v, i) != root)
			continue;
		l.left = p->left < l.left ? p->left : l.left;
		l.right = p->right > l.right ? p->right : l.right;
		l.top = p->top < l.top ? p->top : l.top;
		l.bottom = p->bottom > l.bottom ? p->bottom : l.bottom;
		l.letters += fmax(1, (double)w / h);
		l.pieces++;
		l.tops += p->top, l.tops2 += (double)p->top * p->top;
		l.bottoms += p->bottom, l.bottoms2 += (double)p->bottom * p->bottom;
		l.width += w;
		l.height += h;
		l.thickness += p->thickness, l.thickness2 += p->thickness * p->thickness;
		l.level += p->level, l.level2 += p->level * p->level;
	}
	return l;
}

/* Returns the number of sets other than the letters of a line, in its box and half its height above and below. */
static int count_fragments(struct text_piece *v, int n, const struct text_line *l, int root)
{
	int count = 0, margin = (l->bottom - l->top + 1) / 2;

	for (int i = 0; i < n && v[i].left <= l->right; i++) {
		int x = (v[i].left + v[i].right) / 2, y = (v[i].top + v[i].bottom) / 2;

		count += x >= l->left && x <= l->right && y >= l->top - margin && y <= l->bottom + margin &&
			(!v[i].is_letter || line_of(v, i) != root);
	}
	return count;
}

static double deviation(double sum, double sum2, double n)
{
	return sqrt(fmax(0, sum2 / n - sum / n * (sum / n)));
}

/* Sets the features of a line found at a contrast of `least`, in the order of text.h. */
static void measure_features(const struct text_line *l, double fragments, int least, double *f)
{
	double k = l->pieces, height = l->height / k;

	f[0] = log(k);
	f[1] = log(l->letters);
	f[2] = log(HEIGHT_UNIT * height);
	f[3] = l->thickness / k / height;
	f[4] = deviation(l->thickness, l->thickness2, k) * k / l->thickness;
	f[5] = fragments / l->letters;
	f[6] = fmin(deviation(l->tops, l->tops2, k), deviation(l->bottoms, l->bottoms2, k)) / height;
	f[7] = log2(least / 20.0);
}

static double text_odds(const double *f)
{
	double odds = weights[VFM_TEXT_FEATURES];

	for (int i = 0; i < VFM_TEXT_FEATURES; i++)
		odds += weights[i] * f[i];
	return odds;
}

/* Returns whether a line has the shape of one of text. */
static bool is_even(const struct text_line *l)
{
	double k = l->pieces, height = l->height / k, width = l->right - l->left + 1;

	return l->letters >= LETTERS_MIN && width >= 2 * height && l->bottom - l->top + 1 <= 2.5 * height &&
		l->width >= 0.3 * width && deviation(l->level, l->level2, k) <= LEVEL_STD &&
		deviation(l->thickness, l->thickness2, k) <= 0.5 * l->thickness / k;
}

static bool is_line(struct vfm_text *t, int n, const struct text_line *l, int root, int least)
{
	struct vfm_text_line line = {l->left, l->right, l->top, l->bottom, {0}};
	double fragments;

	if (!is_even(l))
		return false;
	fragments = count_fragments(t->pieces, n, l, root);
	if (fragments > l->letters)
		return false;
	measure_features(l, fragments, least, line.f);
	if (t->watch)
		t->watch(t->watch_ctx, &line);
	return text_odds(line.f) >= LINE_MIN;
}

/* Marks the lines among the n sets found at a contrast of `least`. */
static void mark_lines(struct vfm_text *t, int n, int least)
{
	struct text_piece *v = t->pieces;

	join_letters(v, n);
	for (int i = 0; i < n; i++) {
		struct text_line l;

		if (!v[i].is_letter || v[i].line != i)
			continue;
		l = measure_line(v, n, i);
		if (!is_line(t, n, &l, i, least))
			continue;
		for (int y = l.top; y <= l.bottom; y++)
			memset(t->is_text + (size_t)y * (size_t)t->w + l.left, 1, (size_t)(l.right - l.left + 1));
	}
}

/* Returns the share of `mean` that lines cover. */
static double text_of_mean(struct vfm_text *t)
{
	size_t n = (size_t)t->w * (size_t)t->h, found = 0;

	memset(t->is_text, 0, n * sizeof(bool));
	for (int dark = 0; dark < 2; dark++) {
		if (dark)
			flip(t->mean, n);
		find_strokes(t);
		for (int k = 0; k < LEVELS; k++)
			mark_lines(t, find_pieces(t, contrast_min[k]), contrast_min[k]);
	}
	for (size_t i = 0; i < n; i++)
		found += t->is_text[i];
	return (double)found / (double)n;
}

/* ---- frames ---- */

static void end_group(struct vfm_text *t)
{
	uint32_t reciprocal = (65536 + (uint32_t)t->n_group - 1) / (uint32_t)t->n_group; /* exact for sums below 9362 */
	int n = t->w * t->h;
	const uint16_t *group = t->group;
	uint8_t *mean = t->mean;

#pragma omp simd
	for (int i = 0; i < n; i++)
		mean[i] = (uint8_t)(group[i] * reciprocal >> 16);
	memset(t->group, 0, (size_t)n * sizeof(*t->group));
	t->sum += text_of_mean(t);
	t->groups++;
	t->n_group = 0;
}

void vfm_text_add(struct vfm_text *t, const uint8_t *luma)
{
	uint16_t *sum = t->group;

	if (t->w < 1 || t->h < 1)
		return;
#pragma omp simd
	for (int i = 0; i < t->w * t->h; i++)
		sum[i] = (uint16_t)(sum[i] + luma[i]);
	if (++t->n_group == GROUP)
		end_group(t);
}

double vfm_text_end(struct vfm_text *t)
{
	/* A short rest is no mean, unless there is nothing else. */
	if (t->n_group >= GROUP / 2 || (t->n_group > 0 && t->groups == 0))
		end_group(t);
	return t->groups > 0 ? t->sum / (double)t->groups : 0;
}
