/* clip_change.c - weights frame differences, takes their DCT and places, and compares two clips by time shift. */
#include "media/match/clip_change.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/stats.h"

#define SIDE    VFM_CHANGE_SIDE
#define COEFS   VFM_CHANGE_COEFS
#define CELLS   16
#define REACH   2.2   /* standard deviations around the place */
#define AREA    16384 /* pixels that sums count for */
#define MOVING  3.0   /* mean of |d| of all pixels of a step, in levels, … */
#define FAINT   5.0   /* … and that of |d| weighted by |d| */
#define LEAST   8     /* norm of the coefficients below which nothing changes: one pixel of 128 x 128 by 8 levels */
#define NOISE   20.0  /* norm of the coefficients that noise may have */
#define PLACE   0.02  /* standard deviation of places that is noise */
#define DIVISOR 1.6   /* of 1 - correlation */

/* ---- one step ---- */

static float change_cos[SIDE][CELLS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_change_cosines(void)
{
	for (int u = 0; u < SIDE; u++)
		for (int i = 0; i < CELLS; i++)
			change_cos[u][i] =
				(float)(sqrt((u ? 2.0 : 1.0) / CELLS) * cos(acos(-1) * u * (i + 0.5) / CELLS));
}

struct differences { /* of a step */
	int size;
	float *d;           /* [size, size] in levels, shrunk */
	float *rows, *cols; /* [size] sums of |d| */
	double sum, squares;
};

static void take_differences(struct differences *s, const uint16_t *quarters, int step)
{
	const int size = s->size;
	const size_t pixels = (size_t)size * (size_t)size;
	const uint16_t *q = quarters + (size_t)step * pixels;

	memset(s->cols, 0, (size_t)size * sizeof(*s->cols));
	s->sum = s->squares = 0;
	for (int y = 0; y < size; y++) {
		float row = 0, squares = 0;

		for (int x = 0; x < size; x++) {
			size_t i = (size_t)y * (size_t)size + (size_t)x;
			int d = q[2 * pixels + i] + q[3 * pixels + i] - q[i] - q[pixels + i];
			float most = fmaxf(0, (float)abs(d) / 512 - VFM_CHANGE_NOISE);

			s->d[i] = d < 0 ? -most : most;
			s->cols[x] += most;
			row += most;
			squares += most * most;
		}
		s->rows[y] = row;
		s->sum += (double)row;
		s->squares += (double)squares;
	}
}

/* Sets the mean position, in pixels, and REACH standard deviations of sums [n] of pixels. */
static void find_mean_place(const float *sums, int n, double *place, double *reach)
{
	double sum = 0, mean = 0, square = 0;

	for (int i = 0; i < n; i++) {
		sum += (double)sums[i];
		mean += (double)sums[i] * (i + 0.5);
	}
	mean /= sum;
	for (int i = 0; i < n; i++)
		square += (double)sums[i] * (i + 0.5 - mean) * (i + 0.5 - mean);
	*place = mean;
	*reach = REACH * fmax(1, sqrt(square / sum));
}

/* Sets w [SIDE, n] to the weights that turn pixels into coefficients: sums over CELLS parts of place - reach to place +
 * reach, and the DCT of these. */
static void weigh_pixels(float *w, int n, double place, double reach)
{
	const double step = 2 * reach / CELLS;

	memset(w, 0, (size_t)SIDE * (size_t)n * sizeof(*w));
	for (int i = 0; i < CELLS; i++) {
		double lo = place - reach + i * step, hi = lo + step;

		for (int x = lo > 0 ? (int)lo : 0; x < n && x < hi; x++) {
			float share = (float)(fmin(hi, x + 1) - fmax(lo, x));

			for (int u = 0; u < SIDE; u++)
				w[u * n + x] += share * change_cos[u][i];
		}
	}
}

/* c[u, v] = the sum over the pixels of rows[u, y] d[y, x] cols[v, x]; rows of d without change are left out. */
static void sum_shape(float c[COEFS], const struct differences *s, const float *rows, const float *cols)
{
	memset(c, 0, COEFS * sizeof(*c));
	for (int y = 0; y < s->size; y++) {
		float part[SIDE] = {0};

		if (s->rows[y] <= 0)
			continue;
		for (int x = 0; x < s->size; x++)
			for (int v = 0; v < SIDE; v++)
				part[v] += s->d[y * s->size + x] * cols[v * s->size + x];
		for (int u = 0; u < SIDE; u++)
			for (int v = 0; v < SIDE; v++)
				c[u * SIDE + v] += rows[u * s->size + y] * part[v];
	}
}

static uint8_t quantize_place(double x, int from, int to)
{
	return (uint8_t)lrint(255 * fmin(1, fmax(0, (x - from) / (to - from))));
}

/* Sets a step from differences; w [2, SIDE, size] is scratch. */
static void set_step(struct vfm_change *to, const struct differences *s, const int box[4], float *w)
{
	double x, y, reach_x, reach_y, norm = 0;
	float c[COEFS], *rows = w, *cols = w + (size_t)SIDE * (size_t)s->size;

	*to = (struct vfm_change){0};
	if (s->sum <= 0)
		return;
	find_mean_place(s->cols, s->size, &x, &reach_x);
	find_mean_place(s->rows, s->size, &y, &reach_y);
	weigh_pixels(rows, s->size, y, reach_y);
	weigh_pixels(cols, s->size, x, reach_x);
	sum_shape(c, s, rows, cols);
	for (int i = 0; i < COEFS; i++)
		norm += (double)c[i] * (double)c[i];
	norm = sqrt(norm);
	if (norm * AREA / (s->size * s->size) < LEAST)
		return;
	to->size = (uint8_t)(1 + lrint(8 * log2(norm * AREA / (s->size * s->size))));
	to->x = quantize_place(x, box[2], box[3]);
	to->y = quantize_place(y, box[0], box[1]);
	for (int i = 0; i < COEFS; i++)
		to->coef[i] = (int8_t)lrint(127 * (double)c[i] / norm);
}

bool vfm_clip_changes_of(struct vfm_clip_changes *c, const uint16_t *quarters, int n, int size, const int box[4])
{
	const size_t pixels = (size_t)size * (size_t)size;
	const int steps = n - 3 > VFM_CHANGE_STEPS ? VFM_CHANGE_STEPS : n - 3;
	float *block;
	struct differences s = {.size = size};
	double sums[VFM_CHANGE_STEPS], sum = 0, squares = 0;

	c->n = 0;
	if (steps < 2)
		return false;
	pthread_once(&once, make_change_cosines);
	block = vfm_calloc(pixels + 2 * (size_t)(SIDE + 1) * (size_t)size, sizeof(*block));
	s.d = block;
	s.rows = s.d + pixels;
	s.cols = s.rows + size;
	for (int k = 0; k < steps; k++) {
		take_differences(&s, quarters, k);
		set_step(&c->steps[k], &s, box, s.cols + size);
		sum += sums[k] = s.sum;
		squares += s.squares;
	}
	free(block);
	vfm_sort(sums, (size_t)steps);
	if (sums[steps / 2] < MOVING * (double)pixels && squares >= FAINT * sum)
		c->n = steps;
	return c->n && sums[steps - 1] < MOVING * (double)pixels;
}

/* ---- comparison ---- */

struct change_sums { /* over common steps */
	int n;
	double aa, bb, ab; /* of coefficients */
	/* with weights: of places, x and y, and of their products */
	double w, a[2], b[2], a2, b2, diff2;
};

static double norm_of(const struct vfm_change *c)
{
	return c->size ? exp2((c->size - 1) / 8.0) : 0;
}

static void add_step(struct change_sums *s, const struct vfm_change *a, const struct vfm_change *b, bool mirrored)
{
	const double of_a = norm_of(a), of_b = norm_of(b), w = sqrt(of_a * of_b);
	const double at_a[2] = {a->x / 255.0, a->y / 255.0},
		     at_b[2] = {mirrored ? 1 - b->x / 255.0 : b->x / 255.0, b->y / 255.0};
	int both = 0;

	for (int i = 0; i < COEFS; i++)
		both += a->coef[i] * (mirrored && i % 2 ? -b->coef[i] : b->coef[i]);
	s->n++;
	s->aa += of_a * of_a;
	s->bb += of_b * of_b;
	s->ab += of_a * of_b * both / (127.0 * 127);
	s->w += w;
	for (int i = 0; i < 2; i++) {
		s->a[i] += w * at_a[i];
		s->b[i] += w * at_b[i];
		s->a2 += w * at_a[i] * at_a[i];
		s->b2 += w * at_b[i] * at_b[i];
		s->diff2 += w * (at_a[i] - at_b[i]) * (at_a[i] - at_b[i]);
	}
}

/* 1 - correlation of places; less, if there is little but noise. */
static double places_differ(const struct change_sums *s, double noise)
{
	double a2, b2, diff2, weight;

	if (s->w <= 0)
		return 0;
	a2 = s->a2 / s->w, b2 = s->b2 / s->w, diff2 = s->diff2 / s->w;
	for (int i = 0; i < 2; i++) {
		double a = s->a[i] / s->w, b = s->b[i] / s->w;

		a2 -= a * a;
		b2 -= b * b;
		diff2 -= (a - b) * (a - b);
	}
	weight = s->w * s->w / s->n;
	return weight / (weight + noise) * fmax(0, diff2) / (fmax(0, a2) + fmax(0, b2) + 2 * PLACE * PLACE);
}

double vfm_clip_changes_compare(
	const struct vfm_clip_changes *a, const struct vfm_clip_changes *b, int shift, bool mirrored)
{
	const int from = shift > 0 ? shift : 0, end = a->n < b->n + shift ? a->n : b->n + shift;
	struct change_sums s = {0};
	double noise, shapes;

	if (end - from < 2)
		return 0;
	for (int k = from; k < end; k++)
		add_step(&s, &a->steps[k], &b->steps[k - shift], mirrored);
	noise = s.n * NOISE * NOISE;
	shapes = 1 - (s.ab + noise) / sqrt((s.aa + noise) * (s.bb + noise));
	return fmax(shapes, places_differ(&s, noise)) / DIVISOR;
}

/* ---- bytes ---- */

/* Sets the steps, first to end - 1, beyond which nothing changes. */
static void trim_steps(const struct vfm_clip_changes *c, int *first, int *end)
{
	*first = 0;
	*end = c->n;
	while (*end > 0 && !c->steps[*end - 1].size)
		--*end;
	while (*first < *end && !c->steps[*first].size)
		++*first;
}

size_t vfm_clip_changes_size(const struct vfm_clip_changes *c)
{
	int first, end;

	trim_steps(c, &first, &end);
	return VFM_CHANGE_HEAD + (size_t)(end - first) * VFM_CHANGE_BYTES;
}

size_t vfm_clip_changes_pack(const struct vfm_clip_changes *c, uint8_t *out)
{
	size_t len = VFM_CHANGE_HEAD;
	int first, end;

	trim_steps(c, &first, &end);
	out[0] = (uint8_t)c->n;
	out[1] = (uint8_t)first;
	out[2] = (uint8_t)end;
	for (int k = first; k < end; k++, len += VFM_CHANGE_BYTES) {
		const struct vfm_change *s = &c->steps[k];

		out[len] = s->size;
		out[len + 1] = s->x;
		out[len + 2] = s->y;
		memcpy(out + len + 3, s->coef, COEFS);
	}
	return len;
}

size_t vfm_clip_changes_unpack(struct vfm_clip_changes *c, const uint8_t *in, size_t len)
{
	int first, end;

	if (len < VFM_CHANGE_HEAD)
		return 0;
	c->n = in[0], first = in[1], end = in[2];
	if (c->n < 2 || c->n > VFM_CHANGE_STEPS || first > end || end > c->n ||
		len < VFM_CHANGE_HEAD + (size_t)(end - first) * VFM_CHANGE_BYTES)
		return 0;
	memset(c->steps, 0, (size_t)c->n * sizeof(*c->steps));
	in += VFM_CHANGE_HEAD;
	for (int k = first; k < end; k++, in += VFM_CHANGE_BYTES) {
		struct vfm_change *s = &c->steps[k];

		s->size = in[0];
		s->x = in[1];
		s->y = in[2];
		memcpy(s->coef, in + 3, COEFS);
	}
	return VFM_CHANGE_HEAD + (size_t)(end - first) * VFM_CHANGE_BYTES;
}
